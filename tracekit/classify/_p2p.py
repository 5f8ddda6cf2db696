"""What a point-to-point kernel moves: the sends and receives issued just before it on its thread.

A batch of point-to-point ops runs as one ``SendRecv`` kernel that carries no peer of its own. The ops recorded
on the launching thread (``record_param_comms`` in PyTorch traces, NCCL's own ranges in Nsight's) say who and which way.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit._util.arrays import Ints, group_rows
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import NULL_INT64, to_int64
from tracekit.classify.ranges import Gpu, Launches, Ranges

_CALLS = ("send", "recv", "isend", "irecv")
_OWN = (*_CALLS, "coalesced")
_MOVES = r"(?i)sendrecv|nccl.*generic"


def point_to_point(gpu: Gpu, ranges: Ranges, launches: Launches) -> CategoryColumn:
    """Return the messages of every point-to-point kernel in the order they were issued: ``send:2,recv:0``.

    A peer the file does not name is ``?``.

    >>> from tracekit.classify.ranges import read_ranges
    >>> from tracekit.schema import EVENTS, conform
    >>> rows = [
    ...     {"id": 0, "kind": "cpu_op", "tid": 1, "start_ns": 1, "end_ns": 2, "collective": "send", "peer": 2},
    ...     {"id": 1, "kind": "cpu_op", "tid": 1, "start_ns": 3, "end_ns": 4, "collective": "recv", "peer": 0},
    ...     {"id": 2, "kind": "runtime", "name": "launch", "tid": 1, "start_ns": 5, "end_ns": 6, "correlation": 7},
    ...     {"id": 3, "kind": "kernel", "name": "ncclDevKernel_SendRecv", "start_ns": 8, "end_ns": 9, "correlation": 7},
    ... ]
    >>> point_to_point(*read_ranges(conform(pl.DataFrame(rows), EVENTS))).strings()
    ['send:2,recv:0']
    """
    ops, own = ranges.asking(*_CALLS), gpu.text("collective")
    nameless = gpu.is_kernel & (~own.present | own.any_of(*_OWN))
    kernels = np.flatnonzero(nameless & gpu.names.matches(_MOVES) & launches.called)
    ops = ops[np.lexsort((ranges.rows[ops], ranges.start(ops)))]
    answers = _next_kernels(ranges, launches, ops, kernels)
    ops, answers = ops[answers >= 0], answers[answers >= 0]
    if not len(ops):
        return CategoryColumn.constant(None, len(gpu))
    call, peer = ranges.collective(ops), to_int64(ranges.column("peer", ops), NULL_INT64)
    code, first = group_rows(call.codes, peer)
    words = [f"{str(call.value(at)).removeprefix('i')}:{'?' if peer[at] == NULL_INT64 else peer[at]}" for at in first]
    messages = pl.DataFrame({"kernel": answers, "message": pl.Series(words)[code]})
    moved = messages.group_by("kernel", maintain_order=True).agg(pl.col("message").str.join(","))
    return CategoryColumn.from_series(moved["message"]).spread(moved["kernel"].to_numpy(), len(gpu))


def _next_kernels(ranges: Ranges, launches: Launches, ops: Ints, kernels: Ints) -> Ints:
    """For each op the first of *kernels* that its thread launched after it began, -1 where none."""
    answers = np.full(len(ops), -1, np.int64)
    thread = ranges.source.int64_at("tid", ranges.rows[ops])
    kernels = kernels[np.argsort(launches.at[kernels], kind="stable")]
    threads = launches.tid[kernels]
    for tid in np.unique(threads[threads >= 0]):
        here, asked = kernels[threads == tid], np.flatnonzero(thread == tid)
        answers[asked] = np.append(here, -1)[np.searchsorted(launches.at[here], ranges.start(ops[asked]))]
    return answers
