"""What the host did instead of launching: the launch-bound part of idle time, by the host's work in it.

While the GPU is idle because its next work was not launched, the thread that launches it is somewhere: inside a call
that waits for the GPU, in an allocation, in the launches of other work, in an operator, in the data loader, in garbage
collection, or in Python between operators. Each nanosecond goes to the innermost range of that thread that was open
then; where that thread had none, to that of another thread that launches GPU work (autograd's hands over to the main
one). The parts sum to the launch-bound idle time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import numpy as np
import polars as pl

from tracekit._loops.interval_sets import NEVER
from tracekit._loops.nesting import OP
from tracekit._util.arrays import Bools, Int32s, find_sorted, group_rows, take_or_missing
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import to_int64
from tracekit.classify.range_nesting import Nested, nest
from tracekit.intervals import Longs, touches_any
from tracekit.metrics.host import BLOCKS, Api
from tracekit.schema import KINDS

INSTEAD = ("sync", "allocation", "launch", "garbage_collection", "data_loading", "operator", "annotation", "python")
"""What a host can have done: waited for the GPU, managed its memory, launched other work, …, Python between ranges."""
HOST_KINDS = ("cpu_op", "annotation", "runtime", "driver")
MOST = 50
"""Rows of a rank that are kept, the longest; the sums by cause are exact."""

_ALLOCATION = r"Malloc|cudaFree|hipFree|MemAlloc|MemFree|MemMap|MemUnmap|MemCreate|MemAddress|HostAlloc|HostRegister"
_LAUNCH = r"Launch|MemcpyAsync|MemsetAsync|Memcpy.*Async|cuMemset"
_LOADING = r"(?i)dataloader|data_loader|dataset.*__next__|load_batch|next_batch"
_COLLECTION = r"(?i)\bpython gc\b|garbage.?collect|\bgc[.:_ ]?collect|^gc$"
_ITEM = ("aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::nonzero")
_DEEPEST = 64
_STEP = r"^ProfilerStep#"

ROWS = pl.Schema(
    {
        "instead": pl.Enum(INSTEAD),
        "what": pl.String(),  # the call, operator or annotation; null of Python between them
        "line": pl.String(),  # innermost Python frame, where stacks were recorded
        "ns": pl.Int64(),
        "count": pl.Int64(),
    }
)


def instead_of_launching(events: pl.DataFrame, labelled: pl.DataFrame, holes: pl.DataFrame) -> pl.DataFrame:
    """Return ROWS: the launch-bound time of *holes* (see ``metrics.gaps``) by what the host did, longest first.

    >>> from tracekit.schema import EVENTS, LABELLED, conform
    >>> host = [{"kind": "cpu_op", "name": "aten::item", "tid": 1, "start_ns": 10, "end_ns": 70},
    ...         {"kind": "runtime", "name": "cudaStreamSynchronize", "tid": 1, "start_ns": 20, "end_ns": 60}]
    >>> gpu = conform(pl.DataFrame({"start_ns": [0, 100], "launch_tid": [1, 1]}), LABELLED)
    >>> holes = pl.DataFrame({"start_ns": [5], "launch_bound_ns": [75], "next": [1]})
    >>> instead_of_launching(conform(pl.DataFrame(host), EVENTS), gpu, holes).select("instead", "what", "ns").rows()
    [('sync', 'aten::item', 40), ('operator', 'aten::item', 20), ('python', None, 15)]
    """
    bound = holes["launch_bound_ns"].to_numpy()
    asked = np.flatnonzero(bound > 0)
    if not len(asked) or "tid" not in events.columns:
        return ROWS.to_frame()
    start = holes["start_ns"].to_numpy()[asked]
    tids = to_int64(labelled["launch_tid"][holes["next"].to_numpy()[asked]])
    stretches = _Stretches(start, start + bound[asked], tids)
    threads = [int(tid) for tid in labelled["launch_tid"].drop_nulls().unique().to_list()]
    host = _Ranges.of(events, stretches, threads, HOST_KINDS)
    if not len(host):
        return ROWS.to_frame()
    tid, begin, ns, innermost = _innermost(host, stretches, threads)
    code, shown = _kinds_and_names(host, innermost)
    frames = _Ranges.of(events, stretches, threads, ("python",))
    line = frames.innermost(tid, begin) if len(frames) else np.full(len(begin), -1, np.int64)
    return _summed(code, host.name.take(shown), frames.name.take(line), ns)


def shortened(rows: pl.DataFrame, most: int = MOST) -> pl.DataFrame:
    """Return the longest *most* rows, and the rest of each kind as one row without a name."""
    rest = rows[most:].group_by("instead", maintain_order=True).agg(pl.col("ns", "count").sum())
    return pl.concat([rows[:most], rest.select(pl.col(c) if c in rest else pl.lit(None, t).alias(c)
                                               for c, t in ROWS.items())])  # fmt: skip


def inside_launches(api: Api, labelled: pl.DataFrame, holes: pl.DataFrame) -> int:
    """Return how much of *holes* was spent inside the launch call (one of *api*) of the work that ended each.

    >>> calls = pl.DataFrame({"kind": ["runtime"], "correlation": [7], "end_ns": [90]})
    >>> holes = pl.DataFrame({"start_ns": [5], "end_ns": [95], "launch_bound_ns": [75], "next": [0]})
    >>> inside_launches(Api(calls), pl.DataFrame({"correlation": [7]}), holes)
    10
    """
    if holes.is_empty() or not {"correlation", "end_ns"} <= set(api.calls.columns):
        return 0
    asked = to_int64(labelled["correlation"])[holes["next"].to_numpy()]
    returned = _returned(to_int64(api.calls["correlation"]), api.calls["end_ns"].to_numpy(), asked)
    start, until, bound = (holes[c].to_numpy() for c in ("start_ns", "end_ns", "launch_bound_ns"))
    return int(np.maximum(np.minimum(returned, until) - start - bound, 0).sum())


def _returned(number: Longs, end: Longs, asked: Longs) -> Longs:
    """Return when the calls of the numbers *asked* for returned; never where there is none.

    A call inside a call has its number: the outer one returns last, and counts.
    """
    order = np.argsort(number, kind="stable")  # calls come nearly in the order of their numbers
    number = number[order]
    first = np.flatnonzero(np.diff(number, prepend=-1))  # none is numbered -1: these come first, and do not count
    last = np.maximum.reduceat(end[order], first)
    return take_or_missing(last, find_sorted(asked, number[first]), NEVER)


class _Stretches:
    """Times in which a thread was asked for: ascending, apart from each other."""

    def __init__(self, start: Longs, end: Longs, tid: Longs) -> None:
        order = np.argsort(start, kind="stable")
        self.start, self.end, self.tid = start[order], end[order], tid[order]

    def touch(self, start: Longs, end: Longs, asked: Bools) -> Longs:
        """Return which of the ranges *asked* for touch a stretch."""
        rows = np.flatnonzero(asked)
        return rows[touches_any(start[rows], end[rows], self.start, self.end)]


class _Ranges(msgspec.Struct, frozen=True, eq=False):
    """Ranges of the host's threads, in order of thread and start; of two that start together the longer one first."""

    kind: Longs
    name: CategoryColumn
    tid: Longs
    start: Longs
    end: Longs

    @classmethod
    def of(cls, events: pl.DataFrame, stretches: _Stretches, threads: list[int], kinds: Sequence[str]) -> _Ranges:
        """Return the ranges of some *kinds* on these *threads* that touch a stretch."""
        kind = events["kind"].to_physical().to_numpy()
        wanted = np.zeros(len(KINDS), np.bool_)
        wanted[[KINDS.index(name) for name in kinds]] = True
        if not wanted[kind].any():
            nothing = np.zeros(0, np.int64)
            return cls(nothing, CategoryColumn.constant(None, 0), nothing, nothing, nothing)
        start, end = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
        at = stretches.touch(start, end, wanted[kind])
        tid = to_int64(events["tid"][at], NEVER)
        own = np.isin(tid, threads)
        at, tid = at[own], tid[own]
        keys = pl.DataFrame({"tid": tid, "start_ns": start[at], "end_ns": end[at]})
        order = keys.select(pl.arg_sort_by("tid", "start_ns", -pl.col("end_ns"))).to_series().to_numpy()
        at = at[order]
        return cls(
            kind[at].astype(np.int64), CategoryColumn.from_series(events["name"][at]), tid[order], start[at], end[at]
        )

    def __len__(self) -> int:
        return len(self.start)

    def nested(self, tid: Longs, at: Longs) -> Nested:
        """Return which range is inside which, and inside which range threads were at some moments."""
        zero = np.zeros(len(self), np.int64)
        return nest(self.tid, self.start, self.end, np.full(len(self), OP, np.int64), zero, tid, at)

    def innermost(self, tid: Longs, at: Longs) -> Longs:
        """Return the innermost range open on a thread at a moment; -1 where there is none."""
        return self.nested(tid, at).point_op


def _innermost(host: _Ranges, stretches: _Stretches, threads: list[int]) -> tuple[Longs, Longs, Longs, Longs]:
    """Return the stretches cut where a range begins or ends: thread, begin, time, and the innermost range of each."""
    edges = np.concatenate([host.start, host.end, stretches.start, stretches.end])
    edges = np.sort(edges, kind="stable")  # four runs that ascend, nearly
    edges = edges[np.diff(edges, prepend=edges[0] - 1) > 0]
    at = np.searchsorted(stretches.start, edges, side="right") - 1
    inside = (at >= 0) & (edges < stretches.end[np.maximum(at, 0)])
    which = at[inside]
    begin = edges[inside]
    end = np.minimum(edges[np.minimum(np.flatnonzero(inside) + 1, len(edges) - 1)], stretches.end[which])
    innermost = host.innermost(stretches.tid[which], begin)
    for tid in threads:  # no range open on the launching thread: another one may be at work for it
        open_ = np.flatnonzero(innermost < 0)
        if len(open_):
            innermost[open_] = host.innermost(np.full(len(open_), tid, np.int64), begin[open_])
    return stretches.tid[which], begin, end - begin, innermost


def _summed(code: Longs, what: CategoryColumn, line: CategoryColumn, ns: Longs) -> pl.DataFrame:
    kind, first = group_rows(code, what.codes, line.codes)
    total, count = np.bincount(kind, ns).astype(np.int64).tolist(), np.bincount(kind).tolist()
    named = zip(code[first].tolist(), what.take(first).strings(), line.take(first).strings(), total, count, strict=True)
    rows = sorted(named, key=lambda row: (-row[3], row[0], row[1] is not None, row[1] or ""))
    return pl.DataFrame([(INSTEAD[row[0]], *row[1:]) for row in rows], schema=ROWS, orient="row")


def _kinds_and_names(host: _Ranges, innermost: Longs) -> tuple[Longs, Longs]:
    """Return the kind of each cut, and the range whose name is shown for it; -1 for none."""
    kind, first = group_rows(host.kind, host.name.codes)
    names = host.name.take(first).strings()
    means = [_means(KINDS[of], name or "") for of, name in zip(host.kind[first].tolist(), names, strict=True)]
    codes = np.array([INSTEAD.index(one) for one in means], np.int64)[kind]
    nothing = np.zeros(0, np.int64)
    around = host.nested(nothing, nothing).op_of
    carrier = _carrier(codes, around)
    at = carrier[np.maximum(innermost, 0)]
    code = np.where(innermost >= 0, codes[at], INSTEAD.index("python"))
    sync = code == INSTEAD.index("sync")
    outer = np.maximum(around[at], 0)
    item = host.name.map(_ITEM.__contains__)
    shown = np.where(sync & (around[at] >= 0) & item[outer], outer, at)
    return code, np.where((innermost >= 0) & (code != INSTEAD.index("python")), shown, -1)


def _carrier(codes: Longs, around: Int32s) -> Longs:
    """Return the range each counts as: data loading and garbage collection count, whatever runs inside them."""
    special = np.isin(codes, [INSTEAD.index("data_loading"), INSTEAD.index("garbage_collection")])
    own = np.where(special, np.arange(len(codes)), -1)
    for _ in range(_DEEPEST):
        up = np.where((own < 0) & (around >= 0), own[np.maximum(around, 0)], own)
        if (up == own).all():
            break
        own = up
    return np.where(own >= 0, own, np.arange(len(codes)))


def _means(kind: str, name: str) -> str:
    if re.search(_COLLECTION, name):
        return "garbage_collection"
    if re.search(_LOADING, name):
        return "data_loading"
    if kind in ("runtime", "driver"):
        if re.search(BLOCKS, name):
            return "sync"
        return "allocation" if re.search(_ALLOCATION, name) else "launch" if re.search(_LAUNCH, name) else "operator"
    if kind == "annotation":
        return "python" if re.search(_STEP, name) else "annotation"
    return "operator"
