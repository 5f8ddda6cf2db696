"""GPU and host times of a run's ops by kind and stage, and their conversion to a model cut into other stages."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Floats
from tracekit.graph.constants import (
    MIDDLE,
    MIN_SHARE_OF_LAUNCHES_AFTER_MESSAGES,
    QUANTILES,
    SPLIT_GPU_FACTORS,
    SPLIT_HOST_FACTORS,
    SPLIT_SEARCH_SHARE,
    SWITCH_HOST_FACTOR,
)
from tracekit.graph.engine import HostTimes
from tracekit.graph.machine import Machine
from tracekit.graph.rank_programs import Piece, Program
from tracekit.graph.shared_gpu import SharedGpu, count_computing_ranks, fit_shared_gpu
from tracekit.intervals import Intervals, union_of
from tracekit.pipeline.against_ideal.replay import fill_missing_times, weight_gradient_share
from tracekit.pipeline.schedules import Schedule


class OpTimes(msgspec.Struct, frozen=True):
    """Times of one op that ran, in nanoseconds; of an FB, those of one half."""

    gpu_ns: float
    before_ns: float
    launch_ns: float


class MeasuredOps(msgspec.Struct, frozen=True, eq=False):
    """Times of the run's ops in nanoseconds. Arrays have one value per stage of the run."""

    # By kind (F, I, W, B): GPU time with no message beside it and no wait for the host.
    gpu_ns: Mapping[str, Floats]
    # Of positions with another GPU: time of kernels there / time in ``gpu_ns``.
    gpu_slowdowns: Mapping[int, float]
    # By kind: host time from an op's first to its last launch, no switch before it.
    launch_ns: Mapping[str, Floats]
    # By kind: host time before an op's first launch, without posts and waiting.
    before_ns: Mapping[str, Floats]
    post_ns: float  # host time to post a message kernel
    last_launch_to_end_ns: (
        float  # from the launch of an op's last kernel to its end, where the host was the limit
    )
    host_waits: bool  # whether the host stands still until a message is there
    block_factor: float  # GPU time of an FB / that of its halves run alone; 1 if none ran
    cells: Mapping[Piece, OpTimes]  # ops that ran
    # First launch of each position in the step, from the first GPU event of all.
    host_starts: tuple[float, ...]
    # First GPU event of each position in the step, from the first of all.
    gpu_starts: tuple[float, ...]
    has_split_backwards: bool

    def times(self, program: Program, schedule: Schedule, *, own: bool = False) -> list[OpTimes]:
        """Return the typical times of each piece of a program.

        With *own*, of pieces that ran those that they took.
        """
        gpu_ns = _for_stages(self.gpu_ns, schedule.stages)
        before_ns = _for_stages(self.before_ns, schedule.stages)
        launch_ns = _for_stages(self.launch_ns, schedule.stages)
        times: dict[int, OpTimes] = {}
        for position, numbers in enumerate(program.rank_pieces):
            slowdown = self.gpu_slowdowns.get(position, 1.0)
            previous_kind = "F"
            for number in numbers:
                piece = program.pieces[number]
                kind = piece.kind
                stage = piece.stage
                switches = kind == "F" and previous_kind != "F"
                typical = OpTimes(
                    float(gpu_ns[kind][stage])
                    * slowdown
                    * (self.block_factor if piece.in_block else 1.0),
                    float(before_ns[kind][stage]),
                    float(launch_ns[kind][stage]) * (SWITCH_HOST_FACTOR if switches else 1.0),
                )
                times[number] = self.cells.get(piece, typical) if own else typical
                previous_kind = kind
        return [times[number] for number in range(len(program.pieces))]

    def next_starts(
        self, rank_ends: Sequence[float], host_ends: Sequence[float]
    ) -> tuple[list[float], list[float]]:
        """Return when hosts and GPUs begin the step after one, in which ranks and their hosts ended at these times.

        A host goes on when it has launched everything, but begins no longer before its GPU is free
        than in the run: in a loop that waits for the GPU in every step it begins with it.
        """
        gpu_starts = [end - min(rank_ends) for end in rank_ends]
        ahead_ns = [gpu - host for gpu, host in zip(self.gpu_starts, self.host_starts, strict=True)]
        launched = [end - min(rank_ends) for end in host_ends]
        host_starts = [
            max(end, gpu - ahead)
            for end, gpu, ahead in zip(launched, gpu_starts, ahead_ns, strict=True)
        ]
        return host_starts, gpu_starts

    def host_times(self, times: Sequence[OpTimes], *, own: bool = False) -> HostTimes:
        """Return the times of the hosts for these *times* of pieces.

        With *own*, they begin as they did in the run.
        """
        return HostTimes(
            before_ns=[op.before_ns for op in times],
            launch_ns=[op.launch_ns for op in times],
            post_ns=self.post_ns,
            last_launch_to_end_ns=self.last_launch_to_end_ns,
            waits_for_messages=self.host_waits,
            starts=self.host_starts if own else None,
            gpu_starts=self.gpu_starts if own else None,
        )


def _for_stages(times: Mapping[str, Floats], stages: int) -> dict[str, Floats]:
    """Return times by kind for a model cut into *stages*."""
    return {kind: recut_stages(values, stages) for kind, values in times.items()}


def recut_stages(times: Floats, stages: int) -> Floats:
    """Return the times of a model cut into another number of equal stages.

    The additional time of the first and the last stage (an embedding, a head) stays in the first
    and the last stage.

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
    new_edge_times = np.interp(
        np.linspace(0, own_stages, stages + 1), np.arange(own_stages + 1), edge_times
    )
    new_times: Floats = np.diff(new_edge_times)
    new_times[0] += additional[0]
    new_times[-1] += additional[1]
    return new_times


def measure_ops(
    cells: pl.DataFrame,
    messages: Mapping[int, pl.DataFrame],
    machine: Machine,
    *,
    stages: int,
    lead_ns: pl.Series,
    full_queue: Mapping[int, Intervals],
    gpu_slowdowns: Mapping[int, float] | None = None,
    level: int = MIDDLE,
) -> MeasuredOps:
    """Measure the ops of one step.

    Args:
        cells: Cells of the step (``DETAILED``).
        messages: Messages (``MESSAGES``) by position, on the clock of the cells.
        machine: Machine of the run; its slowdown beside messages is taken out of the GPU times.
        stages: Stages of the run.
        lead_ns: GPU time of each cell between its readiness and its start: exchanges with experts,
            copies, other work.
        full_queue: When the host of each position waited for room in the GPU's queue, which is not
            its own time.
        gpu_slowdowns: Slowdown of the GPUs of some positions, which is theirs and not their
            stages'.
        level: What to take of the times of equal ops: the quartiles ``LOW`` and ``HIGH``, or
            ``MIDDLE``, the mean.
    """
    rows = cells.with_columns(
        pl.col("op").cast(pl.String), pl.col("stage").fill_null(0).cast(pl.Int64)
    )
    rows = rows.with_columns(
        gpu_ns=time_alone(rows, messages, machine) + lead_ns,
        launching_ns=_host_time(rows, "launch_ns", "last_ns", full_queue),
    )
    rows, post_ns, host_waits = _measure_host(rows, messages, full_queue)
    weight_share = _weight_gradient_share(rows)
    input_factor, weight_factor = SPLIT_GPU_FACTORS[level]
    gpu_slowdown = pl.col("position").replace_strict(
        gpu_slowdowns or {}, default=1.0, return_dtype=pl.Float64
    )
    on_usual_gpu = rows.with_columns(pl.col("gpu_ns") / gpu_slowdown)
    times_by_kind = partial(_times_by_kind, stages=stages, level=level)
    gpu_ns = times_by_kind(
        on_usual_gpu,
        "gpu_ns",
        split=((1 - weight_share) * input_factor, weight_share * weight_factor),
        join=lambda input_grad, weight_grad: (
            input_grad / input_factor + weight_grad / weight_factor
        ),
    )
    has_split_backwards = bool((rows["op"] == "W").any())
    split_host = SPLIT_HOST_FACTORS[level]
    previous_op = pl.col("op").shift(1).over("position", order_by="launch_ns")
    switch_factor = (
        pl.when(pl.col("op") == "F", previous_op != "F").then(SWITCH_HOST_FACTOR).otherwise(1.0)
    )
    launch_ns = times_by_kind(
        rows.with_columns(launching_ns=pl.col("launching_ns") / switch_factor),
        "launching_ns",
        split=split_host,
        join=lambda input_grad, weight_grad: (input_grad + weight_grad) / sum(split_host),
    )
    # A split backward has two ops, and the host's time before an op twice.
    search_ns = SPLIT_SEARCH_SHARE * launch_ns["B"]
    before_ns = times_by_kind(
        rows,
        "before_ns",
        split=(1.0, 1.0),
        join=lambda input_grad, weight_grad: np.maximum(input_grad - search_ns, 0.0),
    )
    if not has_split_backwards:
        before_ns["I"] = before_ns["I"] + search_ns
    after_last_launch = pl.col("end_ns") - pl.col("last_ns")
    host_limited = rows.filter(after_last_launch < pl.col("gpu_ns"))
    # None without rows.
    last_launch_to_end_ns = host_limited.select(after_last_launch.clip(0).median()).item()
    return MeasuredOps(
        gpu_ns,
        gpu_slowdowns or {},
        launch_ns,
        before_ns,
        post_ns,
        float(last_launch_to_end_ns or 0),
        host_waits,
        block_factor=_block_factor(on_usual_gpu, gpu_ns, level),
        cells=_times_of_cells(rows, gpu_ns),
        host_starts=_first_of_positions(rows, messages, "launch_ns"),
        gpu_starts=_first_of_positions(rows, messages, "start_ns"),
        has_split_backwards=has_split_backwards,
    )


def fit_sharing(
    cells: pl.DataFrame, messages: Mapping[int, pl.DataFrame], machine: Machine
) -> SharedGpu:
    """Measure what messages cost the compute of ranks that share one GPU.

    Args:
        cells: Cells of the step (``DETAILED``).
        messages: Messages (``MESSAGES``) by position, on the clock of the cells.
        machine: Machine of the run; its slowdown beside messages is what is expected.
    """
    slowing = _slowing_messages(messages, machine)
    beside_message, computing = count_computing_ranks(cells, slowing)
    table = cells.select(
        equal_ops=pl.struct("op", "stage").rank("dense"),
        took_ns=(pl.col("end_ns") - pl.col("start_ns") - pl.col("host_ns")).cast(pl.Float64),
        own_share=_time_beside_messages(cells, slowing)
        / (pl.col("end_ns") - pl.col("start_ns")).clip(1),
        beside_message=pl.Series(beside_message),
        computing=pl.Series(computing),
    ).filter(pl.col("took_ns") > 0)
    columns = (table[name].cast(pl.Float64).to_numpy() for name in table.columns)
    return fit_shared_gpu(*columns, expected_slowdown=machine.pooled_slowdown)


def time_alone(
    rows: pl.DataFrame, messages: Mapping[int, pl.DataFrame], machine: Machine
) -> pl.Series:
    """Return the GPU time of each cell with no message beside it, on its rank or on others that share its GPU.

    It does not contain waits for the host.
    """
    slowing = _slowing_messages(messages, machine)
    # Of each nanosecond beside messages, this share would not have been needed without them.
    slowdown_share = {kind: 1 - 1 / factor for kind, factor in machine.slowdown.items()}
    share = rows["op"].replace_strict(slowdown_share, default=0.0, return_dtype=pl.Float64)
    slowdown_ns = share * _time_beside_messages(rows, slowing)
    alone_ns = (rows["end_ns"] - rows["start_ns"] - rows["host_ns"] - slowdown_ns).clip(0)
    if not machine.ranks_share_gpu:
        return alone_ns
    beside_message, computing = count_computing_ranks(rows, slowing)
    others = machine.other_cost * beside_message + machine.compute_cost * computing
    return alone_ns / pl.Series(1 + others)


def _slowing_messages(
    messages: Mapping[int, pl.DataFrame], machine: Machine
) -> dict[int, pl.DataFrame]:
    """Return the messages that slow compute down, by position.

    Receives that wait for nothing are open all the time and slow nothing down, here as in the
    engine.
    """
    if machine.queues != "free":
        return dict(messages)
    return {position: table.filter("send") for position, table in messages.items()}


def _first_of_positions(
    rows: pl.DataFrame, messages: Mapping[int, pl.DataFrame], column: str
) -> tuple[float, ...]:
    """Return the first launch or start of an op or a message on each position, from the first start of all."""
    columns = {"start_ns": "start_ns", "time_ns": column}
    events = [rows.select("position", **columns)]
    for p, table in messages.items():
        events.append(table.select(pl.lit(p, pl.Int32).alias("position"), **columns))
    times = pl.concat(events)
    first = times.group_by("position").agg(pl.col("time_ns").min()).sort("position")["time_ns"]
    return tuple((first - times["start_ns"].min()).cast(pl.Float64).to_list())


def _block_factor(rows: pl.DataFrame, gpu_ns: Mapping[str, Floats], level: int) -> float:
    """Return the GPU time of blocks FB over that of their halves run alone; 1 if no block ran."""
    blocks = rows.filter(pl.col("op") == "FB").select("stage", "b_stage", "gpu_ns").rows()
    factors = [
        ns / max(1.0, gpu_ns["F"][stage] + gpu_ns["B"][b_stage]) for stage, b_stage, ns in blocks
    ]
    return float(np.quantile(factors, QUANTILES[level])) if factors else 1.0


def _times_of_cells(rows: pl.DataFrame, gpu_ns: Mapping[str, Floats]) -> dict[Piece, OpTimes]:
    """Return the times of every op that ran.

    Those of an FB are divided as its halves run alone would be.
    """
    cells = {}
    columns = (
        "op",
        "stage",
        "microbatch",
        "b_stage",
        "b_microbatch",
        "gpu_ns",
        "before_ns",
        "launching_ns",
    )
    numbered = rows.select(columns).with_columns(pl.col("microbatch").fill_null(-1))
    for kind, stage, microbatch, b_stage, b_microbatch, gpu, before, launch in numbered.rows():
        if kind != "FB":
            cells[Piece(kind, stage, microbatch)] = OpTimes(gpu, before, launch)
            continue
        forward_ns = float(gpu_ns["F"][stage])
        backward_ns = float(gpu_ns["B"][b_stage])
        share = forward_ns / max(1.0, forward_ns + backward_ns)
        cells[Piece("F", stage, microbatch, True)] = OpTimes(gpu * share, before, launch * share)
        cells[Piece("B", b_stage, b_microbatch, True)] = OpTimes(
            gpu * (1 - share), 0.0, launch * (1 - share)
        )
    return cells


def _time_beside_messages(cells: pl.DataFrame, messages: Mapping[int, pl.DataFrame]) -> pl.Series:
    """Return the time of each cell, in nanoseconds, in which a message kernel ran on its rank."""
    beside_ns = np.zeros(cells.height, np.int64)
    cell_position = cells["position"].to_numpy()
    start = cells["start_ns"].to_numpy()
    end = cells["end_ns"].to_numpy()
    for position, table in messages.items():
        on_rank = cell_position == position
        beside_ns[on_rank] = union_of(table).covered_ns(start[on_rank], end[on_rank])
    return pl.Series("beside_ns", beside_ns)


def _times_by_kind(
    rows: pl.DataFrame,
    column: str,
    *,
    stages: int,
    level: int,
    split: tuple[float, float],
    join: Callable[[Floats, Floats], Floats],
) -> dict[str, Floats]:
    """Return the times of F, I, W and B per stage.

    Kinds that did not run are derived from those that did.

    Args:
        rows: Cells.
        column: Column with the times.
        stages: Stages of the run.
        level: Quartile to take.
        split: Time of I and of W over that of a whole backward.
        join: Returns the time of a whole backward from those of I and W.
    """
    ran: dict[str, Floats] = {}
    for kind in ("F", "I", "W", "B"):
        times = _times_per_stage(rows.filter(pl.col("op") == kind), column, stages, level)
        if times is not None:
            ran[kind] = times
    if "I" in ran and "W" in ran:
        joined = join(ran["I"], ran["W"])
        # A few whole backwards among split ones, at the end of a step, tell less than all of them
        # together.
        whole_count = int((rows["op"] == "B").sum())
        split_count = int((rows["op"] == "W").sum())
        whole_ns = ran.get("B", np.zeros(stages))
        ran["B"] = (whole_count * whole_ns + split_count * joined) / (whole_count + split_count)
    block_ns = rows.filter(pl.col("op") == "FB").select(pl.col(column).median()).item()
    if block_ns is not None:
        ran["FB"] = np.full(stages, float(block_ns))
    return fill_missing_times(ran, lambda backward: (backward * split[0], backward * split[1]))


def _times_per_stage(rows: pl.DataFrame, column: str, stages: int, level: int) -> Floats | None:
    """Return mean or quartile of the times per stage.

    Of a stage without rows the mean of the others; None for no rows.

    The likely time of an op is the mean, because ops along a chain add up, the few long ones too.
    Of the host's times it is the mean at every level: all of their time counts, and how far the
    pace of hosts varies is a part of the range by itself (``HOST_SPEED_FACTOR``).
    """
    if rows.is_empty():
        return None
    has_quartiles = column == "gpu_ns" and level != MIDDLE
    estimate = (
        pl.col(column).quantile(QUANTILES[level], "linear")
        if has_quartiles
        else pl.col(column).mean()
    )
    quartiles = rows.group_by("stage", maintain_order=True).agg(estimate)
    times = np.full(stages, np.mean(quartiles[column].to_list()))
    for stage, ns in quartiles.rows():
        if 0 <= stage < stages:
            times[stage] = ns
    return times


def _weight_gradient_share(rows: pl.DataFrame) -> float:
    """Return the share of weight gradients in the compute of whole backwards, by labels.

    A half if none is labelled.
    """
    backwards = rows.filter(pl.col("op") == "B")
    return (
        weight_gradient_share(backwards["wgrad_ns"].to_numpy(), backwards["busy_ns"].to_numpy())
        or 0.5
    )


def _host_time(
    rows: pl.DataFrame, start: str, end: str, full_queue: Mapping[int, Intervals]
) -> pl.Series:
    """Return the time between two columns of each row without waiting for room in the GPU's queue, at least 0."""
    start_ns = rows[start].to_numpy()
    end_ns = rows[end].to_numpy()
    position = rows["position"].to_numpy()
    own_ns = np.maximum(end_ns - start_ns, 0)
    for on_position, waiting in full_queue.items():
        on_rank = (position == on_position) & (own_ns > 0)
        own_ns[on_rank] -= waiting.covered_ns(start_ns[on_rank], end_ns[on_rank])
    return pl.Series(own_ns)


def _measure_host(
    rows: pl.DataFrame, messages: Mapping[int, pl.DataFrame], full_queue: Mapping[int, Intervals]
) -> tuple[pl.DataFrame, float, bool]:
    """Measure the hosts between launches.

    A host that waits for messages launches nothing before the end of the message kernels it posted;
    only the time after that end is its own.

    Returns:
        The ops with ``before_ns``, the host's time before their first launch; the median of that
        time for message kernels in nanoseconds; and whether hosts wait for messages.
    """
    ops = rows.select(
        "position",
        "launch_ns",
        "last_ns",
        end_ns=pl.lit(None, pl.Int64),
        op_row=pl.int_range(pl.len()),
    )
    message_launches = []
    for position, table in messages.items():
        message_launches.append(
            table.group_by("kernel")
            .agg(pl.col("launch_ns").min(), pl.col("end_ns").max())
            .select(
                pl.lit(position, pl.Int32).alias("position"),
                "launch_ns",
                pl.col("launch_ns").alias("last_ns"),
                "end_ns",
                pl.lit(None, pl.Int64).alias("op_row"),
            )
        )
    launches = pl.concat([ops, *message_launches]).sort("position", "launch_ns")
    # previous_*: the latest launch, and the latest end of a message kernel, before this row on its
    # position.
    launches = launches.with_columns(
        pl.col("last_ns", "end_ns")
        .cum_max()
        .forward_fill()
        .shift(1)
        .over("position")
        .name.prefix("previous_")
    )
    # Launches right behind a message kernel.
    after_kernel = launches.filter(pl.col("end_ns").shift(1).over("position").is_not_null())
    waited = int((after_kernel["launch_ns"] >= after_kernel["previous_end_ns"]).sum())
    host_waits = waited > MIN_SHARE_OF_LAUNCHES_AFTER_MESSAGES * after_kernel.height
    awaited = ["previous_last_ns", "previous_end_ns"] if host_waits else ["previous_last_ns"]
    launches = launches.with_columns(
        host_free_ns=pl.max_horizontal(awaited).fill_null(pl.col("launch_ns"))
    )
    before_ns = _host_time(launches, "host_free_ns", "launch_ns", full_queue).cast(pl.Float64)
    launches = launches.with_columns(before_ns=before_ns)
    post_ns = (
        launches.filter(pl.col("op_row").is_null()).select(pl.col("before_ns").median()).item()
    )
    by_op = launches.drop_nulls("op_row").sort("op_row")["before_ns"]
    return rows.with_columns(by_op), float(post_ns or 0.0), host_waits
