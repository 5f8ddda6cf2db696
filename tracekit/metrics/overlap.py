"""What compute hides: overlap and exposure by label, and the matrix of what hides what."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.intervals import Longs, union
from tracekit.metrics.lanes import COMPUTE_SET, EXPOSABLE, Lanes
from tracekit.schema import LABELS, conform

LABEL_TIMES = pl.Schema(
    {
        "part": pl.Int64(),
        "label": pl.String(),
        "ns": pl.Int64(),
        "count": pl.Int64(),
        "hidden_ns": pl.Int64(),
        "exposed_ns": pl.Int64(),
        "bytes": pl.Int64(),
    }
)
HIDDEN = pl.Schema(
    {
        "part": pl.Int64(),
        "detail": pl.Boolean(),
        "label": pl.String(),
        "pass": pl.String(),
        "by": pl.String(),
        "by_pass": pl.String(),
        "by_module": pl.String(),
        "ns": pl.Int64(),
        "of_ns": pl.Int64(),  # time of the label (and pass) in this part: the share's denominator
    }
)


def ratio(part: int, whole: int) -> float | None:
    """Return the share of *whole*; None where there is nothing to divide by.

    >>> ratio(1, 4), ratio(0, 0)
    (0.25, None)
    """
    return part / whole if whole else None


def label_times(labelled: pl.DataFrame, lanes: Lanes, *, part: str | None = None) -> pl.DataFrame:
    """Return time, count, hidden and exposed time of every label and set; hidden / ns is the share that compute hides.

    >>> events = pl.DataFrame(
    ...     {"label": ["forward", "pp_comm"], "start_ns": [0, 4], "end_ns": [6, 8], "bytes": [None, 9]})
    >>> table = label_times(events, Lanes.of(events))
    >>> table.filter(label="pp_comm").select("ns", "hidden_ns", "exposed_ns", "bytes").rows()
    [(4, 2, 2, 9)]
    """
    size = _sum_or_null("bytes") if "bytes" in labelled.columns else pl.lit(None)
    counts = labelled.group_by(_part(part), "label").agg(count=pl.len().cast(pl.Int64), bytes=size)
    counts = counts.with_columns(pl.col("label").cast(pl.String))
    rows = []
    for name in (*lanes.by_label, "compute", "communication", "copy"):
        lane = lanes.named(name)
        total = lane.totals_ns(lanes.parts)
        hidden = total if name in (*COMPUTE_SET, "compute") else (lane & lanes.compute).totals_ns(lanes.parts)
        rows += [
            (int(p), name, int(total[p]), int(hidden[p]), int(total[p] - hidden[p])) for p in np.flatnonzero(total)
        ]
    times = pl.DataFrame(rows, schema=["part", "label", "ns", "hidden_ns", "exposed_ns"], orient="row")
    joined = times.cast({"part": pl.Int64, "label": pl.String}).join(
        counts, on=["part", "label"], how="full", coalesce=True
    )
    order = pl.Enum(["compute", "communication", "copy", *LABELS])
    filled = joined.with_columns(pl.col("ns", "hidden_ns", "exposed_ns").fill_null(0))
    return conform(filled.sort("part", pl.col("label").cast(order)), LABEL_TIMES)


def hidden(labelled: pl.DataFrame, *, part: str | None = None) -> pl.DataFrame:
    """Return how long each compute label (with pass and module) runs beside each communication or copy label and pass.

    Two kernels that hide the same moment both count, so a row of the matrix may sum to more than the label's
    hidden time. Rows whose ``detail`` is false are the plain label × label matrix; those with true split both by pass,
    and the hiding side by module; a label and pass that nothing ran beside has one such row, with a null ``by``.

    >>> events = pl.DataFrame({"label": ["dgrad", "ep_dispatch"], "start_ns": [0, 4], "end_ns": [6, 8],
    ...                        "pass": ["backward", "forward"], "module": ["mlp", None]})
    >>> hidden(events).select("detail", "label", "pass", "by", "by_module", "ns").rows()
    [(False, 'ep_dispatch', None, 'dgrad', None, 2), (True, 'ep_dispatch', 'forward', 'dgrad', 'mlp', 2)]
    """
    frame = labelled.select(_part(part), "label", "pass", "module", "start_ns", "end_ns")
    asked = frame.filter(pl.col("label").is_in(EXPOSABLE))
    hiding = frame.filter(pl.col("label").is_in(COMPUTE_SET))
    if asked.is_empty() or hiding.is_empty():
        return pl.DataFrame(schema=HIDDEN)
    tables = []
    for detail in (False, True):
        of = ["label", "pass"] if detail else ["label"]
        by = ["label", "pass", "module"] if detail else ["label"]
        pieces = _Pieces.of(asked, of)
        found = _beside(pieces, hiding, by).with_columns(detail=pl.lit(detail))
        tables.append(conform(found.filter(pl.col("ns") > 0), HIDDEN))
    beside = pl.concat(tables)
    table = pl.concat([beside, _alone(pieces.runs, beside)])
    order = pl.col("label").cast(pl.Enum(LABELS))
    return table.sort("part", "detail", order, "pass", -pl.col("ns"), "by", "by_pass", "by_module")


@dataclass(frozen=True, eq=False)
class _Pieces:
    """The disjoint pieces of each label (and pass), those of one label, pass and part beside each other."""

    start: Longs
    end: Longs
    part: Longs
    first: Longs
    """Where each label, pass and part begins."""
    runs: pl.DataFrame
    """Of each of those: its keys, and how long it is."""

    @classmethod
    def of(cls, asked: pl.DataFrame, keys: list[str]) -> _Pieces:
        """Return the pieces of *asked* by *keys*."""
        named = asked.partition_by(keys, maintain_order=True)
        unions = [union(*(rows[c].to_numpy() for c in ("start_ns", "end_ns", "part"))) for rows in named]
        start, end, part = (np.concatenate([getattr(u, c) for u in unions]) for c in ("start_ns", "end_ns", "group"))
        key = np.repeat(np.arange(len(unions)), [len(u) for u in unions])
        new = np.ones(len(key), np.bool_)
        new[1:] = (key[1:] != key[:-1]) | (part[1:] != part[:-1])
        first = np.flatnonzero(new)
        heads = pl.concat(rows[:1].select(pl.col(keys).cast(pl.String)) for rows in named)
        runs = heads[key[first]].with_columns(
            part=pl.Series(part[first], dtype=pl.Int64), of_ns=pl.Series(_sums(end - start, first))
        )
        return cls(start, end, part, first, runs)


def _sums(ns: Longs, first: Longs) -> Longs:
    return np.add.reduceat(ns, first) if len(first) else ns[:0]


def _alone(runs: pl.DataFrame, beside: pl.DataFrame) -> pl.DataFrame:
    """Return a row for each part, label and pass of *runs* that nothing ran beside."""
    every = runs.with_columns(ns=pl.lit(0), detail=pl.lit(True))
    covered = beside.filter("detail")
    return conform(every.join(covered, on=["part", "label", "pass"], how="anti", nulls_equal=True), HIDDEN)


def _beside(pieces: _Pieces, hiding: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return, for each label and part of *pieces*, the time that each label (pass and module) of *hiding* covers."""
    names = {"label": "by", "pass": "by_pass", "module": "by_module"}
    tables = []
    for rows in hiding.partition_by(keys, maintain_order=True):
        cover = union(*(rows[c].to_numpy() for c in ("start_ns", "end_ns", "part")))
        ns = cover.covered_ns(pieces.start, pieces.end, pieces.part)
        head = rows[:1].select(pl.col(key).cast(pl.String).alias(names[key]) for key in keys)
        tables.append((head, _sums(ns, pieces.first)))
    count = len(pieces.first)
    heads = pl.concat(head for head, _ in tables)
    return pl.concat(
        [
            pieces.runs[np.tile(np.arange(count), len(tables))],
            heads[np.repeat(np.arange(len(tables)), count)],
            pl.DataFrame({"ns": np.concatenate([ns for _, ns in tables])}),
        ],
        how="horizontal",
    )


def _part(column: str | None) -> pl.Expr:
    return (pl.col(column).cast(pl.Int64) if column is not None else pl.lit(0, pl.Int64)).alias("part")


def _sum_or_null(column: str) -> pl.Expr:
    return pl.when(pl.col(column).is_not_null().any()).then(pl.col(column).sum()).otherwise(None)
