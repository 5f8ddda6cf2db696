"""Stalls and lanes of one rank.

Stalls are disjoint sets of time in which the GPU did nothing for its pipeline, by cause. Lanes are
the communication and copies that the rank hid while warming up, steady and cooling down. The
published ideal of the overlapped interleaved schedule has three lanes. Warm-up runs forwards beside
their offload. The steady phase runs a forward and a backward together, weight gradients beside the
pipeline's sends, the offload of the last forward and the onload for the next backward. Cool-down
runs backwards beside their onload. Every lane but computation is hidden.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, group_rows
from tracekit._util.columns import to_int64
from tracekit._util.values import invert_lists
from tracekit.intervals import EMPTY, Intervals, union
from tracekit.metrics.label_intervals import COMPUTE_SET, LABEL_SETS, has_label, label_codes
from tracekit.schema import LABELS, PASSES, PHASES, conform

MIN_GAP_NS = 5_000
"""Shorter gaps between kernels occur on any busy GPU: they are part of what ran before or after
them."""

_WORK_LABELS = (*COMPUTE_SET, "memory")
OTHER_COMMUNICATION = ("tp_comm", "dp_comm", "cp_comm", "comm", "broadcast")
"""Labels of communication that no cause of its own stands for."""
_LABELS_OF_CAUSE = {
    "other_work": _WORK_LABELS,
    "exposed_ep": ("ep_dispatch", "ep_combine"),
    "p2p": ("pp_comm",),
    "exposed_comm": OTHER_COMMUNICATION,
    "offload": ("offload", "onload", "reload"),
}
"""Labels of each cause. Time that two causes share belongs to the first."""


def time_of(
    events: pl.DataFrame, labels: Sequence[str], *, among: Bools | None = None
) -> Intervals:
    """Return the time in which any event of these labels ran.

    *among* is a mask of events to look at.

    >>> events = pl.DataFrame({"label": ["forward", "memory"], "start_ns": [0, 4], "end_ns": [5, 9]})
    >>> time_of(events, ["memory"])
    Intervals([4, 9))
    """
    is_wanted = has_label(label_codes(events), labels)
    if among is not None:
        is_wanted &= among
    return union(events["start_ns"].to_numpy()[is_wanted], events["end_ns"].to_numpy()[is_wanted])


def find_stalls(
    rows: pl.DataFrame, in_chunk: Bools, all_events: pl.DataFrame, chunks: pl.DataFrame
) -> dict[str, Intervals]:
    """Return disjoint sets of time outside the compute of the chunks, by cause.

    Args:
        rows: GPU events of the steps to look at.
        in_chunk: Mask of these that belong to a chunk.
        all_events: All GPU events of the rank: work of the step before can stall this one.
        chunks: Chunks of the steps (``CHUNKS``).

    """
    covered = time_of(rows, _WORK_LABELS, among=in_chunk)
    stalls: dict[str, Intervals] = {}
    explained = fill_short_gaps(covered)
    for cause, labels in _LABELS_OF_CAUSE.items():
        covered = covered | time_of(all_events, labels)
        with_cause = fill_short_gaps(covered)
        stalls[cause] = with_cause - explained
        explained = with_cause
    windows = _step_windows(chunks)
    stalls["host"] = _find_host_gaps(all_events, explained, windows)
    return {cause: stall & windows for cause, stall in stalls.items()}


def fill_short_gaps(covered: Intervals) -> Intervals:
    """Return the time together with the gaps shorter than ``MIN_GAP_NS`` between its parts."""
    if not len(covered):
        return covered
    is_gap = covered.start_ns[1:] - covered.end_ns[:-1] >= MIN_GAP_NS
    # Of the parts between two gaps.
    is_first = np.append(True, is_gap)
    is_last = np.append(is_gap, True)
    return Intervals(covered.group[is_first], covered.start_ns[is_first], covered.end_ns[is_last])


def _step_windows(chunks: pl.DataFrame) -> Intervals:
    """Return the time of the steps, each with as much again before it, when other ranks may already have begun."""
    steps = chunks.group_by("step").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    start = steps["start_ns"].to_numpy()
    end = steps["end_ns"].to_numpy()
    return union(2 * start - end, end)


def _find_host_gaps(events: pl.DataFrame, covered: Intervals, windows: Intervals) -> Intervals:
    """Return the idle time before kernels that the host launched too late, and before the first kernel of all.

    A kernel launched into an idle GPU does not start at once. It would have, had it been launched
    before, so that time is the host's as well. The usual delay is measured at such kernels: no
    kernel could have started earlier.
    """
    launched = events.select("start_ns", "launch_ns").drop_nulls("launch_ns")
    launched = launched.sort("start_ns", maintain_order=True)
    if not len(covered) or not len(windows) or launched.is_empty():
        return EMPTY
    # Each gap ends where covered time begins; the first gap begins with the windows.
    gap_start = np.concatenate(
        [[min(windows.start_ns[0], covered.start_ns[0])], covered.end_ns[:-1]]
    )
    gap_end = covered.start_ns
    # The first kernel that starts at or after the end of each gap.
    starts = launched["start_ns"].to_numpy()
    launches = launched["launch_ns"].to_numpy()
    row = np.minimum(np.searchsorted(starts, gap_end), len(starts) - 1)
    ends_with_kernel = starts[row] == gap_end
    launch = launches[row]
    is_late = ends_with_kernel & (launch > gap_start)
    is_late[0] = ends_with_kernel[0]
    delays = (gap_end - launch)[1:][is_late[1:]]
    usual_delay = max(0, int(np.median(delays))) if len(delays) else 0
    stall_end = np.where(is_late, gap_end, np.minimum(gap_end, launch + usual_delay))
    is_stall = ends_with_kernel & (stall_end > gap_start)
    return union(gap_start[is_stall], stall_end[is_stall])


LANES = pl.Schema(
    {
        "step": pl.Int64(),
        "phase": pl.Enum((*PHASES, "FB")),  # FB: inside the overlapped blocks alone
        "span_ns": pl.Int64(),  # of the phase on this rank
        "lane": pl.Enum(("computation", "communication", "offload")),
        "label": pl.String(),
        "pass": pl.String(),
        "total_ns": pl.Int64(),
        "hidden_ns": pl.Int64(),  # under compute
        "beside_wgrad_ns": pl.Int64(),
        "beside_other_pass_ns": pl.Int64(),  # under compute of the other pass, so of another micro-batch
    }
)
MIN_CROSSED_SHARE = 0.1
"""Share of communication that must run beside the other pass's compute for micro-batches to overlap
on a rank."""
_COMPUTE_OF_OTHER_PASS = (("dgrad", "wgrad", "backward", "recompute"), ("forward",))
"""Compute labels of the other pass, for each of ``PASSES``."""
_LANE_NAMES = ("computation", "communication", "offload")
_LANE_OF_LABEL = invert_lists(dict(zip(_LANE_NAMES, LABEL_SETS.values(), strict=True)))


def measure_lanes(rows: pl.DataFrame, chunks: pl.DataFrame) -> pl.DataFrame:
    """Return one rank's time, and its time hidden under compute, per step, phase, label and pass (``LANES``).

    Warm-up ends where the first backward starts, cool-down begins where the last forward ends.

    >>> rows = pl.DataFrame({"label": ["forward", "offload", "dgrad"], "pass": ["forward", None, "backward"],
    ...     "start_ns": [0, 4, 10], "end_ns": [8, 10, 20]})
    >>> chunks = pl.DataFrame({"step": [0, 0], "op": ["F", "B"], "beside": [-1, -1], "start_ns": [0, 10],
    ...     "end_ns": [8, 20]})
    >>> measure_lanes(rows, chunks).filter(label="offload").select("phase", "total_ns", "hidden_ns").rows()
    [('warm-up', 6, 4)]
    """
    windows = _windows(chunks)
    if windows.is_empty() or rows.is_empty():
        return pl.DataFrame(schema=LANES)
    start = windows["start_ns"].to_numpy()
    end = windows["end_ns"].to_numpy()
    compute = time_of(rows, COMPUTE_SET)
    wgrad = time_of(rows, ("wgrad",))
    other_passes = [time_of(rows, labels) for labels in _COMPUTE_OF_OTHER_PASS]
    # The rows are grouped by label and pass; a missing pass is -1.
    code = label_codes(rows)
    pass_code = to_int64(rows["pass"].cast(pl.Enum(PASSES)).to_physical())
    group, first_row = group_rows(code, pass_code)
    time_of_group = union(rows["start_ns"], rows["end_ns"], group)
    parts = []
    for index, (label_index, pass_index) in enumerate(
        zip(code[first_row].tolist(), pass_code[first_row].tolist(), strict=True)
    ):
        time = time_of_group.of(index)
        label = LABELS[label_index]
        measured = {
            "total_ns": time,
            "hidden_ns": time & compute,
            "beside_wgrad_ns": time & wgrad,
            "beside_other_pass_ns": time & other_passes[pass_index] if pass_index >= 0 else EMPTY,
        }
        parts.append(
            windows.select(
                "step",
                "phase",
                (pl.col("end_ns") - pl.col("start_ns")).alias("span_ns"),
                pl.lit(_LANE_OF_LABEL[label]).alias("lane"),
                pl.lit(label).alias("label"),
                pl.lit(PASSES[pass_index] if pass_index >= 0 else None, pl.String).alias("pass"),
                *(pl.Series(name, part.covered_ns(start, end)) for name, part in measured.items()),
            )
        )
    # A step has several windows of overlapped blocks.
    keys = ("label", "pass", "lane", "step", "phase")
    summed = pl.concat(parts).group_by(keys, maintain_order=True).sum()
    return conform(summed.filter(pl.col("total_ns") > 0), LANES)


def _windows(chunks: pl.DataFrame) -> pl.DataFrame:
    """Return step, phase, start_ns and end_ns of every phase, and of every overlapped block."""
    start = pl.col("start_ns")
    end = pl.col("end_ns")
    is_forward = pl.col("op") == "F"
    steps = chunks.group_by("step", maintain_order=True).agg(
        first=start.min(),
        first_backward=pl.coalesce(start.filter(~is_forward).min(), end.max()),
        last_forward=pl.coalesce(end.filter(is_forward).max(), start.min()),
        last=end.max(),
    )
    windows: list[tuple[int, str, int, int]] = []
    for step, first, first_backward, last_forward, last in steps.rows():
        edges = (first, first_backward, max(first_backward, last_forward), last)
        for phase, (low, high) in zip(PHASES, pairwise(edges), strict=True):
            windows.append((step, phase, low, high))
    for (step,), halves in chunks.filter(pl.col("beside") >= 0).group_by(
        "step", maintain_order=True
    ):
        blocks = union(halves["start_ns"].to_numpy(), halves["end_ns"].to_numpy())
        for span in zip(blocks.start_ns.tolist(), blocks.end_ns.tolist(), strict=True):
            windows.append((step, "FB", *span))
    schema = pl.Schema(
        {"step": pl.Int64(), "phase": LANES["phase"], "start_ns": pl.Int64(), "end_ns": pl.Int64()}
    )
    return pl.DataFrame(windows, schema=schema, orient="row").filter(end > start)


def crossed_share(table: pl.DataFrame) -> float:
    """Return the share of a rank's communication, of known pass, that runs beside compute of the other pass.

    >>> crossed_share(pl.DataFrame({"phase": ["steady"], "lane": ["communication"], "pass": ["forward"],
    ...                             "total_ns": [10], "beside_other_pass_ns": [7]}))
    0.7
    """
    # Blocks are measured again inside their phases.
    is_phase = pl.col("phase").cast(pl.String) != "FB"
    is_communication = pl.col("lane").cast(pl.String) == "communication"
    with_pass = table.filter(is_communication & pl.col("pass").is_not_null() & is_phase)
    total_ns = int(with_pass["total_ns"].sum())
    return int(with_pass["beside_other_pass_ns"].sum()) / total_ns if total_ns else 0.0
