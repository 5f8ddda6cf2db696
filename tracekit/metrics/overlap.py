"""What compute hides: overlap and exposure by label, and the matrix of what hides what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from tracekit._util.coded import Kind, Text, kinds
from tracekit.intervals import Intervals, Longs, union
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
    start, end = labelled["start_ns"].to_numpy(), labelled["end_ns"].to_numpy()
    group = labelled[part].to_numpy() if part is not None else np.zeros(len(start), np.int64)
    label, pass_, module = (Text.of(labelled[name]) for name in ("label", "pass", "module"))
    asked = np.flatnonzero(label.map(EXPOSABLE.__contains__))
    hiding = np.flatnonzero(label.map(COMPUTE_SET.__contains__))
    if not len(asked) or not len(hiding):
        return pl.DataFrame(schema=HIDDEN)
    time = _Time(start, end, group)
    plain = _matrix(time.runs(kinds(asked, label)), time.covers(kinds(hiding, label)), detail=False)
    split = _matrix(
        time.runs(kinds(asked, label, pass_)), time.covers(kinds(hiding, label, pass_, module)), detail=True
    )
    table = pl.DataFrame([*plain, *split], schema=HIDDEN, orient="row")
    order = pl.col("label").cast(pl.Enum(LABELS))
    return table.sort("part", "detail", order, "pass", -pl.col("ns"), "by", "by_pass", "by_module")


class _Runs(NamedTuple):
    """The disjoint pieces of each kind, those of one kind and part (a run) beside each other."""

    pieces: Intervals
    first: Longs
    """Where each run begins."""
    kind: list[Kind]
    part: list[int]
    of_ns: list[int]
    """How long each run is."""


@dataclass(frozen=True, eq=False)
class _Time:
    """When events ran, and in which part."""

    start: Longs
    end: Longs
    part: Longs

    def covers(self, named: list[tuple[Kind, Longs]]) -> list[tuple[Kind, Intervals]]:
        """Return the union of each kind's events, by part."""
        return [(kind, union(self.start[rows], self.end[rows], self.part[rows])) for kind, rows in named]

    def runs(self, named: list[tuple[Kind, Longs]]) -> _Runs:
        """Return the pieces of all kinds."""
        covers = self.covers(named)
        columns = ("group", "start_ns", "end_ns")
        part, start, end = (np.concatenate([getattr(cover, c) for _, cover in covers]) for c in columns)
        which = np.repeat(np.arange(len(covers)), [len(cover) for _, cover in covers])
        new = np.ones(len(which), np.bool_)
        new[1:] = (which[1:] != which[:-1]) | (part[1:] != part[:-1])
        first = np.flatnonzero(new)
        kind = [covers[k][0] for k in which[first].tolist()]
        of_ns = _sums(end - start, first).tolist()
        return _Runs(Intervals(part, start, end), first, kind, part[first].tolist(), of_ns)


def _matrix(runs: _Runs, covers: list[tuple[Kind, Intervals]], *, detail: bool) -> list[tuple[Any, ...]]:
    """Return rows of HIDDEN: what each of *covers* hides of each run; in *detail* also the runs that nothing hides."""
    rows: list[tuple[Any, ...]] = []
    alone = np.ones(len(runs.first), np.bool_)
    pieces = runs.pieces
    for kind, cover in covers:
        ns = _sums(cover.covered_ns(pieces.start_ns, pieces.end_ns, pieces.group), runs.first)
        by, by_pass, by_module = (*kind, None, None)[:3]
        for run in np.flatnonzero(ns).tolist():
            label, pass_ = (*runs.kind[run], None)[:2]
            rows.append((runs.part[run], detail, label, pass_, by, by_pass, by_module, int(ns[run]), runs.of_ns[run]))
        alone &= ns == 0
    for run in np.flatnonzero(alone).tolist() if detail else []:
        rows.append((runs.part[run], True, *runs.kind[run], None, None, None, 0, runs.of_ns[run]))
    return rows


def _sums(ns: Longs, first: Longs) -> Longs:
    return np.add.reduceat(ns, first) if len(first) else ns[:0]


def _part(column: str | None) -> pl.Expr:
    return (pl.col(column).cast(pl.Int64) if column is not None else pl.lit(0, pl.Int64)).alias("part")


def _sum_or_null(column: str) -> pl.Expr:
    return pl.when(pl.col(column).is_not_null().any()).then(pl.col(column).sum()).otherwise(None)
