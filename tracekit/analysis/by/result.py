"""Rows of all ranks by layer, module, annotation or shape: the result of ``analyze(..., by="layer")``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import polars as pl

from tracekit.analysis.by.rows import NO_PRODUCT, NO_SHAPE, NOT_PLACED, OUTSIDE, RankRows
from tracekit.metrics.label_intervals import COMPUTE_SET
from tracekit.metrics.rates import MAX_UNCOUNTED_SHARE
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS, LABELS, PATH_SEPARATOR

LAST = (OUTSIDE, NO_SHAPE, NO_PRODUCT, NOT_PLACED)
"""Names of rows that are no place, in the order in which they follow all others."""


class By(msgspec.Struct, frozen=True, eq=False):
    """The busy time of all GPUs in rows, each nanosecond in one of them. Sums over ranks and steps."""

    kind: str
    """``layer``, ``module``, ``annotation`` or ``shape``."""
    rows: pl.DataFrame
    """``name, stage, ranks, layer, path, evidence, count, ns, share, compute_ns, communication_ns, copy_ns``, a column
    ``…_ns`` for every compute label, ``inclusive_ns`` (with all that is inside; only for modules and annotations),
    ``calls, flop, tflop_s, share_of_peak, below_peak_ns``."""
    total_ns: int
    """Busy time of all GPUs: the sum of ``ns``."""
    steps: int
    notes: tuple[str, ...] = ()

    @property
    def placed(self) -> int:
        """Number of rows that are a place."""
        return len(self.rows.filter(~pl.col("name").is_in(LAST)))

    @staticmethod
    def is_place(name: str) -> bool:
        """Return whether a row of this name is a place."""
        return name not in LAST


def combined(
    rows_by_rank: Mapping[int, RankRows], *, stages: Mapping[int, tuple[int, ...]], pipeline: bool, steps: int
) -> By | None:
    """Return the rows of all ranks as one table; None without any.

    Args:
        rows_by_rank: The rows of each rank.
        stages: Pipeline stages that each rank ran, if a schedule is known.
        pipeline: Whether the run has a pipeline, in which ranks of different stages hold different layers, so that
            their rows must not be added.
        steps: Number of steps.

    """
    if not rows_by_rank:
        return None
    kind = next(iter(rows_by_rank.values())).kind
    if not pipeline or kind not in ("layer", "module"):
        stages, groups = {}, dict.fromkeys(rows_by_rank, 0)
    else:
        groups = _layer_groups(rows_by_rank, stages)
    rows = pl.concat(
        rank_rows.rows.with_columns(group=pl.lit(groups[rank]), rank=pl.lit(rank))
        for rank, rank_rows in rows_by_rank.items()
    )
    rates = pl.concat(
        rank_rows.rates.with_columns(group=pl.lit(groups[rank])) for rank, rank_rows in rows_by_rank.items()
    )
    # Rows that are no place are the same on all ranks.
    group = pl.when(pl.col("name").is_in(LAST)).then(-1).otherwise("group").alias("group")
    table = _with_rates(_sum_rows(rows.with_columns(group)), rates.with_columns(group))
    # Where the trace does not name the stage, the stage of a rank that runs only one.
    single_stage = {groups[rank]: stages[rank][0] for rank in rows_by_rank if len(stages.get(rank, ())) == 1}
    stage_of_group = pl.col("group").replace_strict(single_stage, default=None, return_dtype=pl.Int64)
    table = table.with_columns(stage=pl.coalesce("stage", stage_of_group))
    total = int(table["ns"].sum())
    share = pl.col("ns") / total if total else pl.lit(None, pl.Float64)
    table = _with_inclusive(_sort_rows(table, kind), kind).with_columns(share=share)
    notes = list(dict.fromkeys(rank_rows.note for rank_rows in rows_by_rank.values() if rank_rows.note))
    without_stage = table.filter(pl.col("layer").is_not_null() & pl.col("stage").is_null())
    if len(without_stage) and any(len(stages.get(rank, ())) > 1 for rank in rows_by_rank):
        notes.append("ranks that run several stages show layer n of all of them in one row")
    # Rows of ranks that hold different layers have the same names: reports then show the ranks.
    table = table.with_columns(apart=pl.lit(len(set(groups.values())) > 1))
    return By(kind, table.drop("group"), total, steps, tuple(notes))


def _layer_groups(ranks: Iterable[int], stages: Mapping[int, tuple[int, ...]]) -> dict[int, int]:
    """Return a number per rank, equal for ranks that hold the same layers: those that run the same stages."""
    distinct = sorted(set(stages.values()))
    number_of_stages = {rank_stages: number for number, rank_stages in enumerate(distinct)}
    # A rank without known stages is a group of its own.
    return {rank: number_of_stages[stages[rank]] if rank in stages else len(distinct) + rank for rank in ranks}


def _sum_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Return one row per place, with its time by compute label and by set of labels."""

    def ns_of(labels: Sequence[str]) -> pl.Expr:
        return pl.col("ns").filter(pl.col("label").is_in(labels)).sum()

    present = set(rows["label"].unique().to_list())
    compute_labels = [label for label in LABELS if label in present and label in COMPUTE_SET]
    evidence = pl.col("evidence").drop_nulls().unique().sort().str.join(", ")
    summed = rows.group_by("group", "name", "stage", "layer", "path", maintain_order=True).agg(
        ranks=pl.col("rank").unique().sort(),
        evidence=evidence,
        count=pl.col("count").sum(),
        ns=pl.col("ns").sum(),
        compute_ns=ns_of(COMPUTE_SET),
        communication_ns=ns_of(COMMUNICATION_LABELS),
        copy_ns=ns_of(COPY_LABELS),
        **{f"{label}_ns": ns_of([label]) for label in compute_labels},
    )
    return summed.with_columns(evidence=pl.when(pl.col("evidence") != "").then("evidence"))


def _with_rates(table: pl.DataFrame, rates: pl.DataFrame) -> pl.DataFrame:
    """Return the rows with the rates of their products, over the products' own time; null if FLOP are unknown."""
    at_peak_ns = pl.when(pl.col("at_peak_ns").is_not_null().all()).then(pl.col("at_peak_ns").sum())
    summed = rates.group_by("group", "name", "stage").agg(
        pl.col("calls", "flop", "product_ns", "uncounted_ns").sum(), at_peak_ns=at_peak_ns
    )
    is_known = (pl.col("product_ns") > 0) & (pl.col("uncounted_ns") <= MAX_UNCOUNTED_SHARE * pl.col("product_ns"))
    joined = table.join(summed, on=("group", "name", "stage"), how="left", nulls_equal=True, maintain_order="left")
    return joined.with_columns(
        calls=pl.when(is_known).then("calls"),
        flop=pl.when(is_known).then("flop"),
        tflop_s=pl.when(is_known).then(pl.col("flop") / pl.col("product_ns") / 1e3),
        share_of_peak=pl.when(is_known).then(pl.col("at_peak_ns") / pl.col("product_ns")),
        below_peak_ns=pl.when(is_known).then((pl.col("product_ns") - pl.col("at_peak_ns")).round()).cast(pl.Int64),
    ).drop("product_ns", "uncounted_ns", "at_peak_ns")


def _sort_rows(table: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Return layers in the model's order, shapes by the time they lose against the peak, all else by time."""
    positions_of_last = {name: position for position, name in enumerate(LAST)}
    last = pl.col("name").replace_strict(positions_of_last, default=-1, return_dtype=pl.Int64)
    order = {
        "layer": [pl.col("stage"), pl.col("group"), pl.col("layer")],
        "shape": [-pl.col("below_peak_ns"), -pl.col("ns"), pl.col("name")],
    }.get(kind, [-pl.col("ns"), pl.col("name")])
    return table.sort([last, *order], nulls_last=True)


def _with_inclusive(table: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Return rows that are paths with ``inclusive_ns``, the time of all paths that begin with theirs."""
    if kind not in ("module", "annotation"):
        return table
    inclusive_ns: dict[tuple[int, str], int] = {}
    for group, path, ns in table.select("group", "path", "ns").iter_rows():
        words = path.split(PATH_SEPARATOR) if path else []
        for depth in range(1, len(words) + 1):
            key = (group, PATH_SEPARATOR.join(words[:depth]))
            inclusive_ns[key] = inclusive_ns.get(key, 0) + ns
    keys = table.select("group", "path").iter_rows()
    column = [inclusive_ns.get((group, path)) if path else None for group, path in keys]
    return table.with_columns(inclusive_ns=pl.Series(column, dtype=pl.Int64))
