"""What the host did instead of launching: the launch-bound part of idle time, by the host's work in it.

While the GPU is idle because its next work was not launched, the thread that launches it is somewhere: inside a call
that waits for the GPU, in an allocation, in the launches of other work, in an operator, in the data loader, in garbage
collection, or in Python between operators. Each nanosecond goes to the innermost range of that thread that was open
then; where that thread had none, to that of another thread that launches GPU work (autograd's hands over to the main
one). The parts sum to the launch-bound idle time.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from tracekit._util.columns import whole_numbers
from tracekit._util.sets import NEVER
from tracekit.classify._nest import OP, Nested, nest
from tracekit.intervals import Longs
from tracekit.metrics.host import BLOCKS, Api

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
    asked = holes.filter(pl.col("launch_bound_ns") > 0)
    tids = labelled["launch_tid"].gather(asked["next"]).cast(pl.Int64)
    if asked.is_empty() or "tid" not in events.columns:
        return ROWS.to_frame()
    start = asked["start_ns"].to_numpy()
    stretches = _Stretches(start, start + asked["launch_bound_ns"].to_numpy(), tids.fill_null(-1).to_numpy())
    threads = [int(tid) for tid in labelled["launch_tid"].drop_nulls().unique().to_list()]
    host = _ranges(events, stretches, threads)
    if host.is_empty():
        return ROWS.to_frame()
    cuts, innermost = _innermost(host, stretches, threads)
    return _summed(cuts, *_kinds_and_names(host, innermost), _frames(events, stretches, threads))


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
    asked = whole_numbers(labelled["correlation"])[holes["next"].to_numpy()]
    returned = _returned(whole_numbers(api.calls["correlation"]), api.calls["end_ns"].to_numpy(), asked)
    start, until, bound = (holes[c].to_numpy() for c in ("start_ns", "end_ns", "launch_bound_ns"))
    return int(np.maximum(np.minimum(returned, until) - start - bound, 0).sum())


def _returned(number: Longs, end: Longs, asked: Longs) -> Longs:
    """Return when the calls of the numbers *asked* for returned; never where there is none.

    A call inside a call has its number: the outer one returns last, and counts.
    """
    order = np.argsort(number, kind="stable")  # calls come nearly in the order of their numbers
    number = number[order]
    first = np.flatnonzero(np.diff(number, prepend=-1))  # none is numbered -1: these come first, and do not count
    if not len(first):
        return np.full(len(asked), NEVER)
    last = np.maximum.reduceat(end[order], first)
    at = np.minimum(np.searchsorted(number[first], asked), len(first) - 1)
    return np.where(number[first][at] == asked, last[at], NEVER)


class _Stretches:
    """Times in which a thread was asked for: ascending, apart from each other."""

    def __init__(self, start: Longs, end: Longs, tid: Longs) -> None:
        order = np.argsort(start, kind="stable")
        self.start, self.end, self.tid = start[order], end[order], tid[order]

    def touched(self, start: Longs, end: Longs) -> np.ndarray:
        """Return which ranges touch a stretch."""
        at = np.searchsorted(self.end, start, side="right")
        return (at < len(self.start)) & (self.start[np.minimum(at, len(self.start) - 1)] < end)


def _ranges(events: pl.DataFrame, stretches: _Stretches, threads: list[int]) -> pl.DataFrame:
    start, end = events["start_ns"].to_numpy(), events["end_ns"].to_numpy()
    asked = events["kind"].is_in(HOST_KINDS).to_numpy() & stretches.touched(start, end)
    host = events.select("kind", "name", "tid", "start_ns", "end_ns")[np.flatnonzero(asked)]
    ranges = host.filter(pl.col("tid").is_in(threads)).sort("tid", "start_ns", -pl.col("end_ns"))
    return ranges.with_columns(pl.col("kind").cast(pl.String))


def _frames(events: pl.DataFrame, stretches: _Stretches, threads: list[int]) -> pl.DataFrame:
    kinds = (pl.col("kind") == "python") & pl.col("tid").is_in(threads)
    frames = events.lazy().filter(kinds).select("name", "tid", "start_ns", "end_ns").collect()
    touching = stretches.touched(frames["start_ns"].to_numpy(), frames["end_ns"].to_numpy())
    return frames.filter(pl.Series(touching)).sort("tid", "start_ns", -pl.col("end_ns"))


def _innermost(host: pl.DataFrame, stretches: _Stretches, threads: list[int]) -> tuple[pl.DataFrame, Longs]:
    """Return the stretches cut where a range begins or ends, and the innermost range of each cut."""
    edges = np.concatenate([host["start_ns"].to_numpy(), host["end_ns"].to_numpy(), stretches.start, stretches.end])
    edges = np.sort(edges, kind="stable")  # four runs that ascend, nearly
    edges = edges[np.diff(edges, prepend=edges[0] - 1) > 0]
    at = np.searchsorted(stretches.start, edges, side="right") - 1
    inside = (at >= 0) & (edges < stretches.end[np.maximum(at, 0)])
    which = at[inside]
    begin = edges[inside]
    end = np.minimum(edges[np.minimum(np.flatnonzero(inside) + 1, len(edges) - 1)], stretches.end[which])
    innermost = _ask(host, stretches.tid[which], begin)
    for tid in threads:  # no range open on the launching thread: another one may be at work for it
        open_ = np.flatnonzero(innermost < 0)
        if len(open_):
            innermost[open_] = _ask(host, np.full(len(open_), tid, np.int64), begin[open_])
    return pl.DataFrame({"tid": stretches.tid[which], "begin": begin, "ns": end - begin}), innermost


def _ask(ranges: pl.DataFrame, tid: Longs, at: Longs) -> Longs:
    """Return the innermost range open on a thread at a moment; -1 where there is none."""
    return _nested(ranges, tid, at).asked_op


def _nested(ranges: pl.DataFrame, tid: Longs, at: Longs) -> Nested:
    zero = np.zeros(len(ranges), np.int64)
    thread, start, end = (ranges[c].to_numpy() for c in ("tid", "start_ns", "end_ns"))
    return nest(thread, start, end, np.full(len(ranges), OP, np.int64), zero, tid, at)


def _summed(cuts: pl.DataFrame, code: Longs, what: pl.Series, frames: pl.DataFrame) -> pl.DataFrame:
    lines = pl.Series([None], dtype=pl.String).new_from_index(0, len(cuts))
    if len(frames):
        at = _ask(frames, cuts["tid"].to_numpy(), cuts["begin"].to_numpy())
        text = frames["name"].cast(pl.String)
        lines = pl.select(pl.when(pl.Series(at >= 0)).then(text.gather(np.maximum(at, 0)))).to_series()
    table = pl.DataFrame({"code": code, "what": what, "line": lines, "ns": cuts["ns"]})
    kinds = pl.Series(INSTEAD, dtype=ROWS["instead"])
    summed = table.group_by("code", "what", "line").agg(pl.col("ns").sum(), count=pl.len().cast(pl.Int64))
    return (
        summed.with_columns(instead=kinds.gather(summed["code"].cast(pl.UInt32)))
        .select(pl.col(c).cast(t) for c, t in ROWS.items())
        .sort(["ns", "instead", "what"], descending=[True, False, False])
    )


def _kinds_and_names(host: pl.DataFrame, innermost: Longs) -> tuple[Longs, pl.Series]:
    """Return the kind of each cut and the name shown for it."""
    names = host["name"].cast(pl.String)
    keys = host.select("kind", name=names)
    table = keys.unique().with_columns(
        code=pl.struct("kind", "name").map_elements(
            lambda key: INSTEAD.index(_means(key["kind"], key["name"])), return_dtype=pl.Int64
        )
    )
    codes = keys.join(table, on=["kind", "name"], how="left", maintain_order="left")["code"].to_numpy()
    nothing = np.zeros(0, np.int64)
    around = _nested(host, nothing, nothing).op_of
    carrier = _carrier(codes, around)
    at = carrier[np.maximum(innermost, 0)]
    code = np.where(innermost >= 0, codes[at], INSTEAD.index("python"))
    sync = code == INSTEAD.index("sync")
    outer = np.maximum(around[at], 0)
    item = names.is_in(_ITEM).to_numpy()
    shown = np.where(sync & (around[at] >= 0) & item[outer], outer, at)
    named = pl.Series((innermost >= 0) & (code != INSTEAD.index("python")))
    return code, pl.select(pl.when(named).then(names.gather(shown))).to_series()


def _carrier(codes: Longs, around: Longs) -> Longs:
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
