"""All ranks' rows together: what ``analyze(..., by="layer")`` gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import polars as pl

from tracekit.analysis.by.rows import NO_PRODUCT, NO_SHAPE, NOT_PLACED, OUTSIDE, RankRows
from tracekit.metrics.label_intervals import COMPUTE_SET
from tracekit.metrics.rates import MAX_UNCOUNTED_SHARE
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS, LABELS, PATH_SEPARATOR

LAST = (OUTSIDE, NO_SHAPE, NO_PRODUCT, NOT_PLACED)
"""Rows that are no place, in the order they come, after all others."""


class By(msgspec.Struct, frozen=True, eq=False):
    """The step in rows that add up to the time in which any GPU was busy. Sums over ranks and steps."""

    kind: str
    """``layer``, ``module``, ``annotation`` or ``shape``."""
    rows: pl.DataFrame
    """``name, stage, ranks, layer, path, evidence, count, ns, share, compute_ns, communication_ns, copy_ns``, a column
    ``…_ns`` for every compute label, ``inclusive_ns`` (with what is inside, of paths alone), ``calls, flop, tflop_s,
    share_of_peak, below_peak_ns``."""
    total_ns: int
    """Time in which anything ran, on all ranks: the sum of ``ns``."""
    steps: int
    notes: tuple[str, ...] = ()

    @property
    def placed(self) -> int:
        """Rows that are a place."""
        return len(self.rows.filter(~pl.col("name").is_in(LAST)))

    @staticmethod
    def is_place(name: str) -> bool:
        """Return whether a row of this name is a place, not what has none."""
        return name not in LAST

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "by": self.kind,
            "total_ns": self.total_ns,
            "steps": self.steps,
            "rows": self.rows.to_dicts() if self.placed else None,
            "notes": list(self.notes),
        }


def combined(
    parts: Mapping[int, RankRows], *, stages: Mapping[int, tuple[int, ...]], pipeline: bool, steps: int
) -> By | None:
    """Return the ranks' rows as one table; None without any.

    *stages* are those each rank ran, where a schedule is known. In a *pipeline*, ranks with different stages hold
    different layers: their rows stay apart.
    """
    if not parts:
        return None
    kind = next(iter(parts.values())).kind
    groups = _groups(parts, stages, pipeline=pipeline and kind in ("layer", "module"))
    several = [one.rows.with_columns(group=pl.lit(groups[rank][0]), rank=pl.lit(rank)) for rank, one in parts.items()]
    rates = [one.rates.with_columns(group=pl.lit(groups[rank][0])) for rank, one in parts.items()]
    # What is in no place is so on all ranks alike.
    apart = pl.when(pl.col("name").is_in(LAST)).then(-1).otherwise("group").alias("group")
    table = _with_rates(_summed(pl.concat(several).with_columns(apart)), pl.concat(rates).with_columns(apart))
    single = {group: found[0] for group, found in groups.values() if len(found) == 1}
    own = pl.col("group").replace_strict(single, default=None, return_dtype=pl.Int64)
    table = table.with_columns(stage=pl.coalesce("stage", own))
    total = int(table["ns"].sum())
    table = _inclusive(_ordered(table, kind), kind).with_columns(
        share=pl.col("ns") / total if total else pl.lit(None, pl.Float64)
    )
    notes = list(dict.fromkeys(one.note for one in parts.values() if one.note))
    unknown = table.filter(pl.col("layer").is_not_null() & pl.col("stage").is_null())
    if any(len(found) > 1 for _, found in groups.values()) and len(unknown):
        notes.append("ranks that run several stages show layer n of all of them in one row")
    # Rows of ranks that hold different layers bear the same names: readers need the ranks.
    table = table.with_columns(apart=pl.lit(len({group for group, _ in groups.values()}) > 1))
    return By(kind, table.drop("group"), total, steps, tuple(notes))


def _groups(
    parts: Mapping[int, RankRows], stages: Mapping[int, tuple[int, ...]], *, pipeline: bool
) -> dict[int, tuple[int, tuple[int, ...]]]:
    """Return of every rank a number that ranks with the same layers share, and the stages it runs."""
    if not pipeline:
        return dict.fromkeys(parts, (0, ()))
    known = sorted({stages[rank] for rank in parts if rank in stages})
    place = {found: at for at, found in enumerate(known)}
    return {rank: (place[stages[rank]], stages[rank]) if rank in stages else (len(known) + rank, ()) for rank in parts}


def _summed(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per place, with its time by label and by set."""
    keys = ["group", "name", "stage", "layer", "path"]
    label = pl.col("label")

    def within(labels: Sequence[str]) -> pl.Expr:
        return pl.col("ns").filter(label.is_in(labels)).sum()

    present = [name for name in LABELS if name in set(rows["label"].unique().to_list()) and name in COMPUTE_SET]
    return rows.group_by(keys, maintain_order=True).agg(
        ranks=pl.col("rank").unique().sort(),
        evidence=pl.col("evidence").drop_nulls().unique().sort().str.join(", "),
        count=pl.col("count").sum(),
        ns=pl.col("ns").sum(),
        compute_ns=within(COMPUTE_SET),
        communication_ns=within(COMMUNICATION_LABELS),
        copy_ns=within(COPY_LABELS),
        **{f"{name}_ns": within([name]) for name in present},
    ).with_columns(evidence=pl.when(pl.col("evidence") != "").then("evidence"))  # fmt: skip


def _with_rates(table: pl.DataFrame, rates: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with their products' rates: over the products' own time, where all their FLOP are known."""
    peak = pl.when(pl.col("at_peak_ns").is_not_null().all()).then(pl.col("at_peak_ns").sum()).alias("at_peak_ns")
    summed = rates.group_by("group", "name", "stage").agg(
        pl.col("calls", "flop", "product_ns", "uncounted_ns").sum(), peak
    )
    known = (pl.col("product_ns") > 0) & (pl.col("uncounted_ns") <= MAX_UNCOUNTED_SHARE * pl.col("product_ns"))
    joined = table.join(summed, on=("group", "name", "stage"), how="left", nulls_equal=True, maintain_order="left")
    return joined.with_columns(
        calls=pl.when(known).then("calls"),
        flop=pl.when(known).then("flop"),
        tflop_s=pl.when(known).then(pl.col("flop") / pl.col("product_ns") / 1e3),
        share_of_peak=pl.when(known).then(pl.col("at_peak_ns") / pl.col("product_ns")),
        below_peak_ns=pl.when(known).then((pl.col("product_ns") - pl.col("at_peak_ns")).round()).cast(pl.Int64),
    ).drop("product_ns", "uncounted_ns", "at_peak_ns")


def _ordered(table: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Return layers in the model's order, shapes by what they lose to the peak, all else by time."""
    last = pl.col("name").replace_strict({name: at for at, name in enumerate(LAST)}, default=-1, return_dtype=pl.Int64)
    by = {
        "layer": [pl.col("stage"), pl.col("group"), pl.col("layer")],
        "shape": [-pl.col("below_peak_ns"), -pl.col("ns"), pl.col("name")],
    }.get(kind, [-pl.col("ns"), pl.col("name")])
    return table.sort([last, *by], nulls_last=True)


def _inclusive(table: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Return the rows with the time of all that is inside them, where they are paths: every prefix's sum."""
    if kind not in ("module", "annotation"):
        return table
    sums: dict[tuple[int, str], int] = {}
    for group, path, ns in table.select("group", "path", "ns").iter_rows():
        words = path.split(PATH_SEPARATOR) if path else []
        for depth in range(1, len(words) + 1):
            key = (group, PATH_SEPARATOR.join(words[:depth]))
            sums[key] = sums.get(key, 0) + ns
    inside = [sums.get((group, path)) if path else None for group, path in table.select("group", "path").iter_rows()]
    return table.with_columns(inclusive_ns=pl.Series(inside, dtype=pl.Int64))
