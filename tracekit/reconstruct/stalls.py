"""Why one rank's GPU did nothing for its pipeline at some moment: disjoint sets of time, by cause."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.columns import present, to_int64
from tracekit.intervals import EMPTY, Intervals, union
from tracekit.metrics.lanes import among_labels, label_codes
from tracekit.schema import COMPUTE_LABELS

Ints = npt.NDArray[np.int64]

BREATH_NS = 5_000
"""Shorter gaps between kernels are how a GPU breathes: part of what ran before or after them."""

_WORK = (*COMPUTE_LABELS, "other", "memory")
_LABELS = {
    "other_work": _WORK,
    "exposed_ep": ("ep_dispatch", "ep_combine"),
    "p2p": ("pp_comm",),
    "exposed_comm": ("tp_comm", "dp_comm", "cp_comm", "comm", "broadcast"),
    "offload": ("offload", "onload", "reload"),
}
"""Labels of each cause; of two at once the first pays."""


class Timeline(msgspec.Struct, frozen=True, eq=False):
    """A rank's GPU events as arrays, from which the time of any labels can be read."""

    code: Ints
    start_ns: Ints
    end_ns: Ints

    @classmethod
    def of(cls, rows: pl.DataFrame) -> Timeline:
        """From a table with label, start_ns and end_ns."""
        return cls(label_codes(rows), rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())

    def time(self, labels: Sequence[str], *, among: npt.NDArray[np.bool_] | None = None) -> Intervals:
        """Return when anything of these labels ran; *among* picks events.

        >>> rows = pl.DataFrame({"label": ["forward", "memory"], "start_ns": [0, 4], "end_ns": [5, 9]})
        >>> Timeline.of(rows).time(["memory"])
        Intervals([4, 9))
        """
        wanted = among_labels(self.code, labels)
        at = np.flatnonzero(wanted if among is None else wanted & among)
        return union(self.start_ns[at], self.end_ns[at])


def find_stalls(
    ran: Timeline, used: npt.NDArray[np.bool_], everything: pl.DataFrame, chunks: pl.DataFrame
) -> dict[str, Intervals]:
    """Return disjoint sets of time outside the chunks' compute, by cause.

    *ran* (the events *used* are in chunks) is of the steps that are looked at; *everything* are all of the rank's GPU
    events, because work of the step before can stand in the way of this one's.
    """
    covered = ran.time(_WORK, among=used)
    beside = Timeline.of(everything)
    stalls: dict[str, Intervals] = {}
    before = _with_breaths(covered)
    for cause, labels in _LABELS.items():
        covered = covered | beside.time(labels)
        after = _with_breaths(covered)
        stalls[cause], before = after - before, after
    windows = _windows(chunks)
    stalls["host"] = _host_gaps(everything, before, windows)
    return {cause: stall & windows for cause, stall in stalls.items()}


def _with_breaths(covered: Intervals) -> Intervals:
    """Return the time, and the short gaps between its parts."""
    if not len(covered):
        return covered
    wide = covered.start_ns[1:] - covered.end_ns[:-1] >= BREATH_NS
    first, last = np.append(True, wide), np.append(wide, True)
    return Intervals(covered.group[first], covered.start_ns[first], covered.end_ns[last])


def _windows(chunks: pl.DataFrame) -> Intervals:
    """Return the time of the steps, each with as much again before it, when other ranks may already have begun."""
    if chunks.is_empty():
        return EMPTY
    step, start, end = (chunks[name].to_numpy() for name in ("step", "start_ns", "end_ns"))
    order = np.argsort(step, kind="stable")
    first = np.flatnonzero(np.diff(step[order], prepend=step[order[0]] - 1))
    begin, until = np.minimum.reduceat(start[order], first), np.maximum.reduceat(end[order], first)
    return union(2 * begin - until, until)


def _host_gaps(events: pl.DataFrame, covered: Intervals, windows: Intervals) -> Intervals:
    """Idle time before a kernel that the host launched too late, and before the first one of all.

    A kernel launched into an idle GPU does not start at once. It would have, had it been launched before, so that time
    is the host's as well. How long it usually takes is measured there: no kernel could have started earlier.
    """
    known = np.flatnonzero(present(events["launch_ns"]))
    if not len(covered) or not len(windows) or not len(known):
        return EMPTY
    known = known[np.argsort(events["start_ns"].to_numpy()[known], kind="stable")]
    starts, launches = events["start_ns"].to_numpy()[known], to_int64(events["launch_ns"])[known]
    ends = covered.start_ns
    begins = np.concatenate([[min(windows.start_ns[0], ends[0])], covered.end_ns[:-1]])
    at = np.minimum(np.searchsorted(starts, ends), len(starts) - 1)
    before_kernel, launched = starts[at] == ends, launches[at]
    late = before_kernel & (launched > begins)
    late[0] = before_kernel[0]
    took = (ends - launched)[1:][late[1:]]
    usual = max(0, int(np.median(took))) if len(took) else 0
    reached = np.where(late, ends, np.minimum(ends, launched + usual))
    waited = before_kernel & (reached > begins)
    return union(begins[waited], reached[waited])
