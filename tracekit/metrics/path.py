"""One rank's part of the critical path: what came before what, in as few pieces as possible.

Following the holders back (``metrics.holds``) from an event is a walk without choices. Only events that lie on a walk
from a communication (where a walk may arrive from another rank) or from a step's last event can be on the path; of
those, compute that follows compute of the same label on its stream is one piece. An event held back by its launch goes
on with the host: from the launch call back to the last call in which the host waited for the GPU, and from there with
the GPU work whose end let it go.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from tracekit._util.coded import Text
from tracekit._util.native import native, whole
from tracekit.intervals import Intervals, Longs
from tracekit.metrics.causes import Rank
from tracekit.metrics.holds import EARLY_NS, LAUNCH, NOTHING, STREAM, in_order
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
    holds = rank.holds
    order = in_order(rank.start_ns, rank.end_ns)
    comm = np.isin(rank.label, [LABELS.index(label) for label in COMMUNICATION_LABELS])
    last = _last(rank)
    let_go, released = _let_go(rank, calls)
    by = np.where(holds.how == LAUNCH, let_go, holds.by)
    by = np.where((by >= 0) & (rank.start_ns[by] > rank.start_ns), -1, by)
    needed = (comm | last).astype(np.int64)
    _mark(whole(order), whole(by), needed)
    on = needed > 0
    children = np.bincount(by[on & (by >= 0)], minlength=len(by))
    join = on & (holds.how == STREAM) & holds.sure & ~comm & (by >= 0)
    join &= (children[by] == 1) & (rank.label[by] == rank.label) & (rank.part[by] == rank.part) & ~last[by]
    run = np.full(len(by), -1, np.int64)
    _number(whole(order), whole(by), needed, join.astype(np.int64), run)
    return _table(rank, _Forest(order, by, on, join, run, last, comm, released), paid)


class _Forest:
    """Which events are on walks, which follow which, and which pieces they form."""

    def __init__(self, *columns: np.ndarray) -> None:
        self.order, self.by, self.on, self.join, self.run, self.last, self.comm, self.released = columns


def _table(rank: Rank, forest: _Forest, paid: Mapping[str, Intervals]) -> pl.DataFrame:
    holds = rank.holds
    rows = forest.order[forest.on[forest.order]]
    run = forest.run[rows]
    count = int(run.max(initial=-1)) + 1
    head = np.empty(count, np.int64)
    head[run[~forest.join[rows]]] = rows[~forest.join[rows]]
    tail = np.empty(count, np.int64)
    tail[run] = rows  # rows ascend: the last one stays
    how, sure = holds.how[head], holds.sure[head]
    begin = np.where(sure & (how != LAUNCH), holds.since_ns[head], rank.start_ns[head])
    code = rank.label[head]
    copies = np.isin(code, [LABELS.index(label) for label in COPY_LABELS])
    ran = np.bincount(run, weights=(rank.end_ns - rank.start_ns)[rows], minlength=count).astype(np.int64)
    until = rank.end_ns[tail]
    main = pl.DataFrame(
        {
            "kind": np.where(forest.comm[head], _COMM, np.where(copies, _COPY, _KERNEL)),
            "label": code,
            "named": _longest(rank, rows, run, count),
            "part": rank.part[head],
            "start_ns": begin,
            "end_ns": until,
            "idle_ns": np.maximum(until - begin - ran, 0),
            "exposed_ns": _exposed(rank, rows, run, count, paid),
            "before": np.full(count, -1, np.int64),
            "row": np.where(forest.comm[head], head, -1),
            "last": forest.last[tail],
        }
    )
    extra, before = _between(rank, forest, head)
    main = main.with_columns(before=pl.Series(before))
    return _finished(rank, pl.concat([main, extra.select(main.columns)]))


def _between(rank: Rank, forest: _Forest, head: Longs) -> tuple[pl.DataFrame, Longs]:
    """Return what lies between pieces of GPU work (launches, host work, what is not known), and what each follows."""
    holds, count = rank.holds, len(head)
    how, sure = holds.how[head], holds.sure[head]
    by = forest.by[head]
    earlier = np.where(by >= 0, forest.run[by], -1)
    launched = how == LAUNCH
    unsure = ~sure & (how != NOTHING)
    # First the time right before a piece: from its launch call, or from when it should have started.
    gap = np.flatnonzero(launched | unsure)
    place = np.full(count, -1, np.int64)
    place[gap] = count + np.arange(len(gap))
    before = np.where(place >= 0, place, earlier)
    hosts = np.flatnonzero(launched)
    host_place = np.full(count, -1, np.int64)
    host_place[hosts] = count + len(gap) + np.arange(len(hosts))
    gaps = pl.DataFrame(
        {
            "kind": np.where(unsure[gap], _UNKNOWN, _LAUNCH),
            "start_ns": holds.since_ns[head[gap]],
            "end_ns": rank.start_ns[head[gap]],
            "part": rank.part[head[gap]],
            "named": head[gap],
            "before": np.where(launched[gap], host_place[gap], earlier[gap]),
        }
    )
    at = head[hosts]
    work = pl.DataFrame(
        {
            "kind": np.full(len(hosts), _HOST),
            "start_ns": np.where(by[hosts] >= 0, forest.released[at], SINCE_EVER),
            "end_ns": holds.since_ns[at],
            "part": rank.part[at],
            "named": at,
            "before": earlier[hosts],
        }
    )
    zeros = {"label": pl.lit(-1, pl.Int64), "idle_ns": pl.lit(0, pl.Int64), "exposed_ns": pl.lit(0, pl.Int64),
             "row": pl.lit(-1, pl.Int64), "last": pl.lit(False)}  # fmt: skip
    return pl.concat([gaps, work]).with_columns(**zeros), before


def _finished(rank: Rank, table: pl.DataFrame) -> pl.DataFrame:
    """Return the table with names in place of numbers."""
    labelled = rank.labelled
    nameless = Text.constant(None, len(labelled))
    name, op, around = (Text.of(labelled[c]) if c in labelled.columns else nameless for c in _WORDS)
    named, gpu = table["named"].to_numpy(), (table["kind"] <= _COMM).to_numpy()
    what = name.take(np.where(gpu, named, -1)).fill(op.fill(around).take(np.where(gpu, -1, named)))
    ids = labelled["id"] if "id" in labelled.columns else pl.Series(np.arange(len(labelled)))
    kinds, labels = pl.Series(NODE_KINDS, dtype=NODES["kind"]), pl.Series(LABELS, dtype=NODES["label"])
    known = pl.col("label") >= 0
    return table.with_columns(
        what=what.series("what"),
        id=pl.when(pl.col("row") >= 0).then(ids.gather(table["row"].clip(0))),
        kind=kinds.gather(table["kind"]),
        label=pl.when(known).then(labels.gather(table["label"].clip(0))),
    ).select(pl.col(name).cast(dtype) for name, dtype in NODES.items())


def _last(rank: Rank) -> np.ndarray:
    """Return which events end last in their part."""
    last = np.zeros(len(rank.part), np.bool_)
    order = np.lexsort((rank.end_ns, rank.part))
    final = np.append(np.flatnonzero(np.diff(rank.part[order])), len(order) - 1)
    last[order[final]] = True
    return last


def _longest(rank: Rank, rows: Longs, run: Longs, count: int) -> Longs:
    """Return the row of the longest event of each run."""
    order = np.lexsort(((rank.end_ns - rank.start_ns)[rows], run))
    longest = np.empty(count, np.int64)
    longest[run[order]] = rows[order]
    return longest


def _exposed(rank: Rank, rows: Longs, run: Longs, count: int, paid: Mapping[str, Intervals]) -> Longs:
    """Return how much of each run's communication and copies the budget calls exposed."""
    total = np.zeros(count, np.int64)
    for label, lane in paid.items():
        of_label = rank.label[rows] == LABELS.index(label)
        at = rows[of_label]
        np.add.at(total, run[of_label], lane.covered_ns(rank.start_ns[at], rank.end_ns[at]))
    return total


def _let_go(rank: Rank, calls: pl.DataFrame) -> tuple[Longs, Longs]:
    """Return, for each event, the GPU event whose end let the host continue to its launch (-1: none), and when.

    The host was let go by the last call before the launch that waited for the GPU: some GPU event ended inside it.
    """
    nothing = np.full(len(rank.start_ns), -1, np.int64)
    threads = _launching(rank)
    blocking = calls.filter("blocks")
    if threads is not None:
        blocking = blocking.filter(pl.col("tid").is_in(threads) | pl.col("tid").is_null())
    if blocking.is_empty():
        return nothing, nothing
    began, ended = blocking["start_ns"].to_numpy(), blocking["end_ns"].to_numpy()
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


def _launching(rank: Rank) -> list[int] | None:
    """Return the threads that launch GPU work; None where the trace does not say."""
    if "launch_tid" not in rank.labelled.columns:
        return None
    return rank.labelled["launch_tid"].drop_nulls().unique().to_list() or None


@native("void(int64[::1], int64[::1], int64[::1])")
def _mark(order: Longs, by: Longs, needed: Longs) -> None:
    """Mark everything on a walk from a marked event; *order* has every event behind the one it follows."""
    for i in range(len(order) - 1, -1, -1):
        row = order[i]
        if needed[row] > 0 and by[row] >= 0:
            needed[by[row]] = 1


@native("void(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def _number(order: Longs, by: Longs, needed: Longs, join: Longs, run: Longs) -> None:
    """Number the pieces: an event that joins takes the number of the one that it follows."""
    count = 0
    for i in range(len(order)):
        row = order[i]
        if needed[row] > 0:
            if join[row] > 0:
                run[row] = run[by[row]]
            else:
                run[row] = count
                count += 1
