"""GPU and host times of a run's ops by kind and stage, and their conversion to a model cut into other stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec
import numpy as np
import polars as pl

from tracekit.compare.predict.engine import Floats, Launches
from tracekit.compare.predict.machine import MIDDLE, Machine
from tracekit.compare.predict.rank_programs import POST, RUN, Program
from tracekit.intervals import union
from tracekit.schedules import Schedule

SPLIT_GPU_FACTORS = ((1.0, 1.0), (1.05, 1.2), (1.1, 1.4))
"""GPU time of I and of W in a run that splits its backwards, over their shares of a whole backward by kernel labels;
low, likely and high. Work that both halves need (the statistics of a norm, for example) runs twice."""

SPLIT_HOST_FACTORS = ((0.55, 1.0), (0.6, 1.3), (0.75, 2.2))
"""Host time of I and of W over that of a whole backward; low, likely and high. Used if only whole backwards ran.

PyTorch calls its autograd engine once for every group of parameters, so splitting costs the host more than the GPU. A
run that does not split cannot show by how much (docs/whatif.md lists the runs these figures are from).
"""

QUANTILES = (0.25, 0.5, 0.75)
"""Quantile of the times of equal ops at each level (``LOW``, ``MIDDLE``, ``HIGH``)."""

MAX_WEIGHT_GRADIENT_SHARE = 0.9
"""Largest share of a backward's time that is taken as weight gradients."""


class MeasuredOps(msgspec.Struct, frozen=True, eq=False):
    """Times of the run's ops in nanoseconds. Arrays have one value per stage of the run."""

    gpu_ns: Mapping[str, Floats]  # by kind (F, I, W, B): GPU time with no message beside it and no wait for the host
    launch_ns: Mapping[str, Floats]  # by kind: host time to launch one op
    host_gap_ns: float  # host time between two ops
    post_ns: float  # host time to post a message kernel
    last_launch_to_end_ns: float  # from the launch of an op's last kernel to its end, where the host was the limit
    cell_ns: Mapping[tuple[str, int, int], float]  # GPU time of each op by kind, stage and micro-batch
    has_split_backwards: bool

    def typical_work(self, program: Program, schedule: Schedule) -> list[float]:
        """Return the typical duration of each piece of a program."""
        gpu_ns = _for_stages(self.gpu_ns, schedule.stages)
        return [float(gpu_ns[piece.kind][piece.stage]) for piece in program.pieces]

    def own_work(self, program: Program) -> list[float]:
        """Return the measured duration of each piece of the run's own program; the typical one if it did not run."""
        return [
            self.cell_ns.get((piece.kind, piece.stage, piece.microbatch), float(self.gpu_ns[piece.kind][piece.stage]))
            for piece in program.pieces
        ]

    def launches(self, program: Program, schedule: Schedule, host_starts: Floats | None = None) -> Launches:
        """Return the times at which the host of every rank has launched its pieces and message kernels.

        Args:
            program: Program of *schedule*.
            schedule: Schedule that is predicted.
            host_starts: Time at which each rank's host begins the step; 0 if None.
        """
        launch_ns = _for_stages(self.launch_ns, schedule.stages)
        first, last = np.zeros((2, len(program.pieces)))
        posts = np.zeros(len(program.kernels))
        for rank, steps in enumerate(program.steps):
            now = 0.0 if host_starts is None else float(host_starts[rank])
            for action, number in steps:
                if action == RUN:
                    piece = program.pieces[number]
                    first[number] = now
                    now += float(launch_ns[piece.kind][piece.stage])
                    last[number] = now + self.last_launch_to_end_ns
                    now += self.host_gap_ns
                elif action == POST:
                    posts[number] = now
                    now += self.post_ns
        return Launches(first, last, posts)


def _for_stages(times: Mapping[str, Floats], stages: int) -> dict[str, Floats]:
    """Return times by kind for a model cut into *stages*."""
    return {kind: recut_stages(values, stages) for kind, values in times.items()}


def recut_stages(times: Floats, stages: int) -> Floats:
    """Return the times of a model cut into another number of equal stages.

    The additional time of the first and the last stage (an embedding, a head) stays in the first and the last stage.

    >>> recut_stages(np.array([4.0, 4.0, 4.0, 5.0]), 8).tolist()
    [2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.0]
    >>> recut_stages(np.array([2.0, 4.0, 2.0, 2.0]), 2).tolist()
    [6.0, 4.0]
    """
    own_stages = len(times)
    if own_stages == stages:
        return times
    layers = times.copy()
    additional = np.zeros(2)
    if own_stages > 2:
        additional = np.maximum(times[[0, -1]] - float(np.median(times[1:-1])), 0.0)
        layers[[0, -1]] -= additional
    # Cumulative time at the edges of the present stages, interpolated at the edges of the new ones.
    edge_times = np.concatenate([[0.0], np.cumsum(layers)])
    new_edge_times = np.interp(np.linspace(0, own_stages, stages + 1), np.arange(own_stages + 1), edge_times)
    new_times: Floats = np.diff(new_edge_times)
    new_times[0] += additional[0]
    new_times[-1] += additional[1]
    return new_times


def measure_ops(
    cells: pl.DataFrame, messages: Mapping[int, pl.DataFrame], machine: Machine, *, stages: int, level: int = MIDDLE
) -> MeasuredOps:
    """Measure the ops of one step.

    Args:
        cells: Cells of the step (``DETAILED``).
        messages: Messages (``MESSAGES``) by position, on the clock of the cells.
        machine: Machine of the run; its slowdown beside messages is taken out of the GPU times.
        stages: Stages of the run.
        level: Quartile of equal ops to take: ``LOW``, ``MIDDLE`` (the median) or ``HIGH``.
    """
    rows = cells.with_columns(pl.col("op").cast(pl.String), pl.col("stage").fill_null(0).cast(pl.Int64))
    # Of each nanosecond beside messages, this share would not have been needed without them.
    slowdown_share = {kind: 1 - 1 / factor for kind, factor in machine.slowdown.items()}
    share = pl.col("op").replace_strict(slowdown_share, default=0.0, return_dtype=pl.Float64)
    slowdown_ns = share * _time_beside_messages(cells, messages)
    rows = rows.with_columns(
        gpu_ns=(pl.col("end_ns") - pl.col("start_ns") - pl.col("host_ns") - slowdown_ns).clip(0),
        launching_ns=(pl.col("last_ns") - pl.col("launch_ns")).clip(0),
    )
    weight_share = _weight_gradient_share(rows)
    input_factor, weight_factor = SPLIT_GPU_FACTORS[level]
    gpu_ns = _times_by_kind(
        rows,
        "gpu_ns",
        stages,
        level,
        split=((1 - weight_share) * input_factor, weight_share * weight_factor),
        join=lambda input_grad, weight_grad: input_grad / input_factor + weight_grad / weight_factor,
    )
    split_host = SPLIT_HOST_FACTORS[level]
    launch_ns = _times_by_kind(
        rows,
        "launching_ns",
        stages,
        level,
        split=split_host,
        join=lambda input_grad, weight_grad: (input_grad + weight_grad) / sum(split_host),
    )
    host_gap_ns, post_ns = _measure_host(rows, messages)
    after_last_launch = pl.col("end_ns") - pl.col("last_ns")
    host_limited = rows.filter(after_last_launch < pl.col("gpu_ns"))
    last_launch_to_end_ns = host_limited.select(after_last_launch.clip(0).median()).item()  # None without rows
    by_cell = rows.select("op", "stage", pl.col("microbatch").fill_null(-1), "gpu_ns").rows()
    return MeasuredOps(
        gpu_ns,
        launch_ns,
        host_gap_ns,
        post_ns,
        float(last_launch_to_end_ns or 0),
        cell_ns={(kind, stage, microbatch): ns for kind, stage, microbatch, ns in by_cell},
        has_split_backwards=bool((rows["op"] == "W").any()),
    )


def _time_beside_messages(cells: pl.DataFrame, messages: Mapping[int, pl.DataFrame]) -> pl.Series:
    """Return the time of each cell, in nanoseconds, in which a message kernel ran on its rank."""
    beside_ns = np.zeros(cells.height, np.int64)
    cell_position = cells["position"].to_numpy()
    start, end = cells["start_ns"].to_numpy(), cells["end_ns"].to_numpy()
    for position, table in messages.items():
        on_rank = cell_position == position
        message_time = union(table["start_ns"].to_numpy(), table["end_ns"].to_numpy())
        beside_ns[on_rank] = message_time.covered_ns(start[on_rank], end[on_rank])
    return pl.Series("beside_ns", beside_ns)


def _times_by_kind(
    rows: pl.DataFrame,
    column: str,
    stages: int,
    level: int,
    *,
    split: tuple[float, float],
    join: Callable[[Floats, Floats], Floats],
) -> dict[str, Floats]:
    """Return the times of F, I, W and B per stage; kinds that did not run are derived from those that did.

    Args:
        rows: Cells.
        column: Column with the times.
        stages: Stages of the run.
        level: Quartile to take.
        split: Time of I and of W over that of a whole backward.
        join: Returns the time of a whole backward from those of I and W.
    """
    forward, input_grad, weight_grad, backward = (
        _times_per_stage(rows.filter(pl.col("op") == kind), column, stages, level) for kind in ("F", "I", "W", "B")
    )
    if backward is None and input_grad is not None and weight_grad is not None:
        backward = join(input_grad, weight_grad)
    if backward is None:
        # Only blocks FB ran: two thirds of a block are its backward.
        block = rows.filter(pl.col("op") == "FB").select(pl.col(column).median()).item()
        backward = np.full(stages, (block or 3.0) * 2 / 3)
    if forward is None:
        forward = backward / 2
    if input_grad is None or weight_grad is None:
        input_grad, weight_grad = backward * split[0], backward * split[1]
    return {"F": forward, "I": input_grad, "W": weight_grad, "B": backward}


def _times_per_stage(rows: pl.DataFrame, column: str, stages: int, level: int) -> Floats | None:
    """Return a quartile of the times per stage; the mean of the others for a stage without rows; None for no rows."""
    if rows.is_empty():
        return None
    quartiles = rows.group_by("stage", maintain_order=True).agg(pl.col(column).quantile(QUANTILES[level], "linear"))
    times = np.full(stages, np.mean(quartiles[column].to_list()))
    for stage, ns in quartiles.rows():
        if 0 <= stage < stages:
            times[stage] = ns
    return times


def _weight_gradient_share(rows: pl.DataFrame) -> float:
    """Return the share of weight gradients in the compute of whole backwards, by labels; a half if none is labelled."""
    backwards = rows.filter(pl.col("op") == "B")
    weight_ns, total_ns = int(backwards["wgrad_ns"].sum()), int(backwards["busy_ns"].sum())
    return min(weight_ns / total_ns, MAX_WEIGHT_GRADIENT_SHARE) if weight_ns and total_ns else 0.5


def _measure_host(rows: pl.DataFrame, messages: Mapping[int, pl.DataFrame]) -> tuple[float, float]:
    """Return the host's time between two ops, and its time to post a message kernel, in nanoseconds.

    The time from the last launch of an op to the first launch of the next one grows with the message kernels posted
    between them. A line is fitted to the median of that time over the number of kernels; its value at 0 and its slope
    are the results.
    """
    gaps, posted_kernels = [], []
    for (position,), ops in rows.sort("launch_ns").group_by("position", maintain_order=True):
        first, last = ops["launch_ns"].to_numpy(), ops["last_ns"].to_numpy()
        gaps.append(np.maximum(first[1:] - last[:-1], 0))
        posts = messages[position]["launch_ns"].unique().sort().to_numpy() if position in messages else first[:0]
        # Posts before the next op's first launch, less those before this op's last launch.
        posts_between = np.searchsorted(posts, first[1:]) - np.searchsorted(posts, last[:-1])
        posted_kernels.append(np.maximum(posts_between, 0))
    if not gaps:
        return 0.0, 0.0
    table = pl.DataFrame({"gap_ns": np.concatenate(gaps), "kernels": np.concatenate(posted_kernels)})
    medians = table.group_by("kernels").agg(pl.col("gap_ns").median(), gaps=pl.len()).sort("kernels")
    kernels, gap_ns, count = (medians[name].to_numpy().astype(float) for name in ("kernels", "gap_ns", "gaps"))
    if not len(kernels):
        return 0.0, 0.0
    if len(kernels) == 1:  # one number of kernels everywhere: no line to fit
        return (float(gap_ns[0]), 0.0) if kernels[0] == 0 else (0.0, float(gap_ns[0] / kernels[0]))
    slope, at_zero = np.polyfit(kernels, gap_ns, 1, w=np.sqrt(count))
    return max(0.0, float(at_zero)), max(0.0, float(slope))
