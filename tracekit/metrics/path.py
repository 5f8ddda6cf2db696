"""One rank's part of the critical path: what came before what, in as few pieces as possible.

Following the holders back (``metrics.holds``) from an event is a walk without choices. Only events that lie on a walk
from a communication (where a walk may arrive from another rank) or from a step's last event can be on the path; of
those, compute that follows compute of the same label on its stream is one piece. An event held back by its launch goes
on with the host: from the launch call back to the last call in which the host waited for the GPU, and from there with
the GPU work whose end let it go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit._loops import critical_path
from tracekit._util.arrays import Bools, as_int64
from tracekit._util.columns import present, to_int64, with_nulls
from tracekit.intervals import Intervals, Longs
from tracekit.metrics.causes import Rank
from tracekit.metrics.holds import EARLY_NS, LAUNCH, NOTHING, STREAM
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS, LABELS

NODE_KINDS = ("kernel", "copy", "communication", "launch", "host", "unknown")
_KERNEL, _COPY, _COMM, _LAUNCH, _HOST, _UNKNOWN = range(len(NODE_KINDS))
_WORDS = ("name", "op", "annotation")
"""What a piece is called after: its kernel, or what the host launched it from."""
SINCE_EVER = np.iinfo(np.int64).min // 4
"""Start of host work that nothing in the trace precedes."""

NODES = pl.Schema(
    {
        "kind": pl.Enum(NODE_KINDS),
        "label": pl.Enum(LABELS),
        "what": pl.String(),  # the longest kernel of a piece; the operator around a launch
        "part": pl.Int64(),
        "start_ns": pl.Int64(),  # where the piece before it ends
        "end_ns": pl.Int64(),
        "idle_ns": pl.Int64(),  # of that, time in which it was waiting to start
        "exposed_ns": pl.Int64(),  # of a communication or copies: what the budget calls exposed
        "before": pl.Int64(),  # row of the piece that it followed; -1: the walk ends
        "id": pl.Int64(),  # event of a communication
        "last": pl.Boolean(),  # ends its step on this rank
    }
)


def path_nodes(rank: Rank, calls: pl.DataFrame, paid: Mapping[str, Intervals]) -> pl.DataFrame:
    """Return NODES of one rank; *paid* is its exposed time over the whole window, by label."""
    if not len(rank.start_ns):
        return NODES.to_frame()
    holds, order = rank.holds, rank.order
    comm = rank.labels(*COMMUNICATION_LABELS)
    last = _last(rank)
    let_go, released = _let_go(rank, calls)
    by = np.where(holds.how == LAUNCH, let_go, holds.by)
    by = np.where((by >= 0) & (rank.start_ns[by] > rank.start_ns), -1, by)
    needed = (comm | last).astype(np.int64)
    order, by = as_int64(order), as_int64(by)
    critical_path.mark_walks(order, by, needed)
    on = needed > 0
    children = np.bincount(by[on & (by >= 0)], minlength=len(by))
    join = on & (holds.how == STREAM) & holds.sure & ~comm & (by >= 0)
    join &= (children[by] == 1) & (rank.label[by] == rank.label) & (rank.part[by] == rank.part) & ~last[by]
    run = np.full(len(by), -1, np.int64)
    took = as_int64(rank.end_ns - rank.start_ns)
    head, tail, longest = np.empty((3, len(by)), np.int64)
    count = critical_path.number_pieces(order, by, needed, join.astype(np.int64), took, run, head, tail, longest)
    head, tail, longest = head[:count], tail[:count], longest[:count]
    return _table(rank, _Forest(head, tail, longest, by, on, run, last, comm, released), paid)


class _Forest(NamedTuple):
    """Which events are on walks, which follow which, and which pieces they form."""

    head: Longs
    """First event of each piece."""
    tail: Longs
    longest: Longs
    by: Longs
    on: Bools
    run: Longs
    """Piece of each event."""
    last: Bools
    comm: Bools
    released: Longs


def _table(rank: Rank, forest: _Forest, paid: Mapping[str, Intervals]) -> pl.DataFrame:
    holds, head, tail, count = rank.holds, forest.head, forest.tail, len(forest.head)
    rows = np.flatnonzero(forest.on)
    run = forest.run[rows]
    how, sure = holds.how[head], holds.sure[head]
    begin = np.where(sure & (how != LAUNCH), holds.since_ns[head], rank.start_ns[head])
    ran = np.bincount(run, weights=(rank.end_ns - rank.start_ns)[rows], minlength=count).astype(np.int64)
    until = rank.end_ns[tail]
    copies = rank.labels(*COPY_LABELS)[head]
    between = _between(rank, forest)
    others = np.zeros(len(between["named"]), np.int64)
    main = {
        "kind": np.where(forest.comm[head], _COMM, np.where(copies, _COPY, _KERNEL)),
        "named": forest.longest,
        "part": rank.part[head],
        "start_ns": begin,
        "end_ns": until,
    }
    at = {name: np.concatenate([column, between[name]]) for name, column in main.items()}
    ids = rank.labelled["id"].to_numpy() if "id" in rank.labelled.columns else np.arange(len(rank.start_ns))
    known = np.concatenate([forest.comm[head], others > 0])
    return pl.DataFrame(
        {
            "kind": pl.Series(NODE_KINDS, dtype=NODES["kind"])[at["kind"]],
            "label": _labels(np.concatenate([rank.label[head], others - 1])),
            "what": _words(rank, at["named"], count),
            "part": at["part"],
            "start_ns": at["start_ns"],
            "end_ns": at["end_ns"],
            "idle_ns": np.concatenate([np.maximum(until - begin - ran, 0), others]),
            "exposed_ns": np.concatenate([_exposed(rank, rows, run, count, paid), others]),
            "before": between["before"],
            "id": with_nulls(ids[np.concatenate([head, others])], known),
            "last": np.concatenate([forest.last[tail], others > 0]),
        },
        schema=NODES,
    )


def _between(rank: Rank, forest: _Forest) -> dict[str, Longs]:
    """Return what lies between pieces of GPU work: launches, host work, what is not known; ``before`` is of all."""
    holds, head, count = rank.holds, forest.head, len(forest.head)
    how, sure = holds.how[head], holds.sure[head]
    by = forest.by[head]
    earlier = np.where(by >= 0, forest.run[by], -1)
    launched = how == LAUNCH
    unsure = ~sure & (how != NOTHING)
    # First the time right before a piece: from its launch call, or from when it should have started.
    gap, hosts = np.flatnonzero(launched | unsure), np.flatnonzero(launched)
    before, work = earlier.copy(), earlier.copy()
    before[gap] = count + np.arange(len(gap))
    work[hosts] = count + len(gap) + np.arange(len(hosts))
    at = head[hosts]
    since = np.where(by[hosts] >= 0, forest.released[at], SINCE_EVER)
    named = np.concatenate([head[gap], at])
    return {
        "kind": np.concatenate([np.where(unsure[gap], _UNKNOWN, _LAUNCH), np.full(len(hosts), _HOST)]),
        "start_ns": np.concatenate([holds.since_ns[head[gap]], since]),
        "end_ns": np.concatenate([rank.start_ns[head[gap]], holds.since_ns[at]]),
        "part": rank.part[named],
        "named": named,
        "before": np.concatenate([before, work[gap], earlier[hosts]]),
    }


def _words(rank: Rank, named: Longs, count: int) -> pl.Series:
    """Return what pieces are called: the first *count* after their kernel, the others after what launched it."""
    labelled = rank.labelled
    name, op, around = (labelled[c] if c in labelled.columns else None for c in _WORDS)
    kernels = None if name is None else name[named[:count]]
    launched = [column[named[count:]] for column in (op, around) if column is not None]
    around_launch = launched[0].fill_null(launched[1]) if len(launched) > 1 else next(iter(launched), None)
    rows = (count, len(named) - count)
    parts = [
        pl.repeat(None, size, dtype=pl.String, eager=True) if column is None else column.cast(pl.String)
        for column, size in zip((kernels, around_launch), rows, strict=True)
    ]
    return pl.concat([part.alias("what") for part in parts])


def _labels(code: Longs) -> pl.Series:
    """Return the labels of these numbers; null for -1."""
    return pl.Series([*LABELS, None], dtype=NODES["label"])[np.where(code < 0, len(LABELS), code)]


def _last(rank: Rank) -> Bools:
    """Return which events end last in their part."""
    last = np.zeros(len(rank.part), np.bool_)
    order = np.lexsort((rank.end_ns, rank.part))
    final = np.append(np.flatnonzero(np.diff(rank.part[order])), len(order) - 1)
    last[order[final]] = True
    return last


def _exposed(rank: Rank, rows: Longs, run: Longs, count: int, paid: Mapping[str, Intervals]) -> Longs:
    """Return how much of each run's communication and copies the budget calls exposed."""
    total = np.zeros(count, np.int64)
    for label, lane in paid.items():
        of_label = np.flatnonzero(rank.label[rows] == LABELS.index(label))
        at = rows[of_label]
        np.add.at(total, run[of_label], lane.covered_ns(rank.start_ns[at], rank.end_ns[at]))
    return total


def _let_go(rank: Rank, calls: pl.DataFrame) -> tuple[Longs, Longs]:
    """Return, for each event, the GPU event whose end let the host continue to its launch (-1: none), and when.

    The host was let go by the last call before the launch that waited for the GPU: some GPU event ended inside it.
    """
    nothing = np.full(len(rank.start_ns), -1, np.int64)
    threads = _launching(rank)
    blocking = calls["blocks"].to_numpy()
    if threads is not None:
        tid = calls["tid"]
        blocking = blocking & (np.isin(to_int64(tid), threads) | ~present(tid))
    if not blocking.any():
        return nothing, nothing
    began, ended = calls["start_ns"].to_numpy()[blocking], calls["end_ns"].to_numpy()[blocking]
    order = np.argsort(rank.end_ns, kind="stable")
    ends = rank.end_ns[order]
    latest = np.searchsorted(ends, ended + EARLY_NS, side="right") - 1
    waited = (latest >= 0) & (ends[np.maximum(latest, 0)] >= began)
    if not waited.any():
        return nothing, nothing
    event, ended = order[latest[waited]], ended[waited]
    by_end = np.argsort(ended, kind="stable")
    event, ended = event[by_end], ended[by_end]
    which = np.searchsorted(ended, rank.launch_ns, side="right") - 1
    there = rank.launched & (which >= 0)
    released_by = np.where(there, event[np.maximum(which, 0)], -1)
    return released_by, np.where(there, np.minimum(rank.end_ns[released_by], rank.launch_ns), -1)


def _launching(rank: Rank) -> Longs | None:
    """Return the threads that launch GPU work; None where the trace does not say."""
    if "launch_tid" not in rank.labelled.columns:
        return None
    tids = rank.labelled["launch_tid"].unique().drop_nulls().to_numpy()
    return tids if len(tids) else None
