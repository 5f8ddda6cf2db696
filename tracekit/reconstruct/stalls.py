"""Stalls: disjoint sets of time in which one rank's GPU did nothing for its pipeline, by cause."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints
from tracekit.intervals import EMPTY, Intervals, union
from tracekit.metrics.label_intervals import has_label, label_codes
from tracekit.schema import COMPUTE_LABELS

MIN_GAP_NS = 5_000
"""Shorter gaps between kernels occur on any busy GPU: they are part of what ran before or after them."""

_WORK = (*COMPUTE_LABELS, "other", "memory")
_LABELS_OF_CAUSE = {
    "other_work": _WORK,
    "exposed_ep": ("ep_dispatch", "ep_combine"),
    "p2p": ("pp_comm",),
    "exposed_comm": ("tp_comm", "dp_comm", "cp_comm", "comm", "broadcast"),
    "offload": ("offload", "onload", "reload"),
}
"""Labels of each cause. Time that two causes share belongs to the first."""


class Timeline(msgspec.Struct, frozen=True, eq=False):
    """A rank's GPU events as arrays, from which the time of any labels can be read."""

    code: Ints  # index of the label in LABELS
    start_ns: Ints
    end_ns: Ints

    @classmethod
    def of(cls, rows: pl.DataFrame) -> Timeline:
        """Return the timeline of a table with label, start_ns and end_ns."""
        return cls(label_codes(rows), rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy())

    def time(self, labels: Sequence[str], *, among: Bools | None = None) -> Intervals:
        """Return the time in which any event of these labels ran; *among* is a mask of events to look at.

        >>> rows = pl.DataFrame({"label": ["forward", "memory"], "start_ns": [0, 4], "end_ns": [5, 9]})
        >>> Timeline.of(rows).time(["memory"])
        Intervals([4, 9))
        """
        is_wanted = has_label(self.code, labels)
        if among is not None:
            is_wanted &= among
        return union(self.start_ns[is_wanted], self.end_ns[is_wanted])


def find_stalls(
    timeline: Timeline, in_chunk: Bools, all_events: pl.DataFrame, chunks: pl.DataFrame
) -> dict[str, Intervals]:
    """Return disjoint sets of time outside the compute of the chunks, by cause.

    Args:
        timeline: GPU events of the steps to look at.
        in_chunk: Mask of the events of the timeline that belong to a chunk.
        all_events: All GPU events of the rank: work of the step before can stall this one.
        chunks: Chunks of the steps (``CHUNKS``).

    """
    covered = timeline.time(_WORK, among=in_chunk)
    everything = Timeline.of(all_events)
    stalls: dict[str, Intervals] = {}
    explained = _fill_short_gaps(covered)
    for cause, labels in _LABELS_OF_CAUSE.items():
        covered = covered | everything.time(labels)
        with_cause = _fill_short_gaps(covered)
        stalls[cause], explained = with_cause - explained, with_cause
    windows = _step_windows(chunks)
    stalls["host"] = _find_host_gaps(all_events, explained, windows)
    return {cause: stall & windows for cause, stall in stalls.items()}


def _fill_short_gaps(covered: Intervals) -> Intervals:
    """Return the time together with the gaps shorter than ``MIN_GAP_NS`` between its parts."""
    if not len(covered):
        return covered
    is_gap = covered.start_ns[1:] - covered.end_ns[:-1] >= MIN_GAP_NS
    is_first, is_last = np.append(True, is_gap), np.append(is_gap, True)  # of the parts between two gaps
    return Intervals(covered.group[is_first], covered.start_ns[is_first], covered.end_ns[is_last])


def _step_windows(chunks: pl.DataFrame) -> Intervals:
    """Return the time of the steps, each with as much again before it, when other ranks may already have begun."""
    steps = chunks.group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    start, end = steps["start_ns"].to_numpy(), steps["end_ns"].to_numpy()
    return union(2 * start - end, end)


def _find_host_gaps(events: pl.DataFrame, covered: Intervals, windows: Intervals) -> Intervals:
    """Return the idle time before kernels that the host launched too late, and before the first kernel of all.

    A kernel launched into an idle GPU does not start at once. It would have, had it been launched before, so that time
    is the host's as well. The usual delay is measured at such kernels: no kernel could have started earlier.
    """
    launched = events.drop_nulls("launch_ns").sort("start_ns", maintain_order=True)
    if not len(covered) or not len(windows) or launched.is_empty():
        return EMPTY
    # Each gap ends where covered time begins; the first gap begins with the windows.
    gap_start = np.concatenate([[min(windows.start_ns[0], covered.start_ns[0])], covered.end_ns[:-1]])
    gap_end = covered.start_ns
    # The first kernel that starts at or after the end of each gap.
    starts, launches = launched["start_ns"].to_numpy(), launched["launch_ns"].to_numpy()
    row = np.minimum(np.searchsorted(starts, gap_end), len(starts) - 1)
    ends_with_kernel, launch = starts[row] == gap_end, launches[row]
    is_late = ends_with_kernel & (launch > gap_start)
    is_late[0] = ends_with_kernel[0]
    delays = (gap_end - launch)[1:][is_late[1:]]
    usual_delay = max(0, int(np.median(delays))) if len(delays) else 0
    stall_end = np.where(is_late, gap_end, np.minimum(gap_end, launch + usual_delay))
    is_stall = ends_with_kernel & (stall_end > gap_start)
    return union(gap_start[is_stall], stall_end[is_stall])
