"""Lanes by phase: communication and copies that each rank hid while warming up, steady and cooling down.

The published ideal of the overlapped interleaved schedule has three lanes. Warm-up runs forwards beside their offload.
The steady phase runs a forward and a backward together, weight gradients beside the pipeline's sends, the offload of
the last forward and the onload for the next backward. Cool-down runs backwards beside their onload. Every lane but
computation is hidden.
"""

from __future__ import annotations

from itertools import pairwise

import polars as pl

from tracekit._util.arrays import group_rows
from tracekit._util.columns import to_int64
from tracekit.intervals import EMPTY, union
from tracekit.reconstruct.stalls import Timeline
from tracekit.schema import COMMUNICATION_LABELS, COMPUTE_LABELS, COPY_LABELS, LABELS, PASSES, PHASES, conform

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
"""Share of communication that must run beside the other pass's compute for micro-batches to overlap on a rank."""
_COMPUTE = (*COMPUTE_LABELS, "other")
_COMPUTE_OF_OTHER_PASS = (("dgrad", "wgrad", "backward", "recompute"), ("forward",))
"""Compute labels of the other pass, for each of ``PASSES``."""
_LANE_OF_LABEL = {
    **dict.fromkeys(_COMPUTE, "computation"),
    **dict.fromkeys(COMMUNICATION_LABELS, "communication"),
    **dict.fromkeys(COPY_LABELS, "offload"),
}


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
    start, end = windows["start_ns"].to_numpy(), windows["end_ns"].to_numpy()
    timeline = Timeline.of(rows)
    compute, wgrad = timeline.time(_COMPUTE), timeline.time(("wgrad",))
    other_passes = [timeline.time(labels) for labels in _COMPUTE_OF_OTHER_PASS]
    # The rows are grouped by label and pass; a missing pass is -1.
    pass_code = to_int64(rows["pass"].cast(pl.Enum(PASSES)).to_physical())
    group, first_row = group_rows(timeline.code, pass_code)
    time_of_group = union(timeline.start_ns, timeline.end_ns, group)
    parts = []
    for index, (label_index, pass_index) in enumerate(
        zip(timeline.code[first_row].tolist(), pass_code[first_row].tolist(), strict=True)
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
    start, end, is_forward = pl.col("start_ns"), pl.col("end_ns"), pl.col("op") == "F"
    steps = chunks.group_by("step", maintain_order=True).agg(
        first=start.min(),
        first_backward=pl.coalesce(start.filter(~is_forward).min(), end.max()),
        last_forward=pl.coalesce(end.filter(is_forward).max(), start.min()),
        last=end.max(),
    )
    windows: list[tuple[int, str, int, int]] = []
    for step, first, first_backward, last_forward, last in steps.rows():
        edges = (first, first_backward, max(first_backward, last_forward), last)
        windows += [(step, phase, low, high) for phase, (low, high) in zip(PHASES, pairwise(edges), strict=True)]
    for (step,), halves in chunks.filter(pl.col("beside") >= 0).group_by("step", maintain_order=True):
        blocks = union(halves["start_ns"].to_numpy(), halves["end_ns"].to_numpy())
        windows += [(step, "FB", *span) for span in zip(blocks.start_ns.tolist(), blocks.end_ns.tolist(), strict=True)]
    schema = pl.Schema({"step": pl.Int64(), "phase": LANES["phase"], "start_ns": pl.Int64(), "end_ns": pl.Int64()})
    return pl.DataFrame(windows, schema=schema, orient="row").filter(end > start)


def crossed_share(table: pl.DataFrame) -> float:
    """Return the share of a rank's communication, of known pass, that runs beside compute of the other pass.

    >>> crossed_share(pl.DataFrame({"phase": ["steady"], "lane": ["communication"], "pass": ["forward"],
    ...                             "total_ns": [10], "beside_other_pass_ns": [7]}))
    0.7
    """
    is_phase = pl.col("phase").cast(pl.String) != "FB"  # blocks are measured again inside their phases
    is_communication = pl.col("lane").cast(pl.String) == "communication"
    with_pass = table.filter(is_communication & pl.col("pass").is_not_null() & is_phase)
    total_ns = int(with_pass["total_ns"].sum())
    return int(with_pass["beside_other_pass_ns"].sum()) / total_ns if total_ns else 0.0
