"""Cells of one pipeline in one step, and their stages and micro-batches once the schedule is known."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit.align.clocks import Clocks
from tracekit.errors import Notice
from tracekit.pipeline.reconstruct.segment import CONFIDENCE_ANNOTATED, CONFIDENCE_COUNTED
from tracekit.pipeline.reconstruct.stage_assignment import StagePlacement
from tracekit.pipeline.schedules import Op, Schedule
from tracekit.schema import CELL_OPS, CELLS, STALL_CAUSES, conform

CONFIDENCE_ORDER_AND_PEERS = 0.85
"""Confidence of cells paired by position whose order both a schedule and the recorded peers of
messages explain."""
STALL_COLUMNS = tuple(f"{cause}_ns" for cause in STALL_CAUSES)
DETAILED = pl.Schema(
    {
        **CELLS,
        "position": pl.Int32(),
        **dict.fromkeys(
            ("pair", "b_pair", "launch_ns", "last_ns", "layers", "wgrad_ns", *STALL_COLUMNS),
            pl.Int64(),
        ),
    }
)
"""Cells with their position in the pipeline, pair, first and last launch, layers, weight gradients
and stalls; see ``CHUNKS`` for these columns."""
CELL_IDENTITY = (
    "position",
    "op",
    "stage",
    "microbatch",
    "b_stage",
    "b_microbatch",
    "pair",
    "b_pair",
)
"""Columns that tell what a cell is, independent of its times."""
# Columns of CELL_IDENTITY, and the code of W.
_POSITION = CELL_IDENTITY.index("position")
_OP = CELL_IDENTITY.index("op")
_WEIGHT_GRADIENT = CELL_OPS.index("W")
# Columns of CELL_IDENTITY that name a cell, where stages are known and where they are not.
_BY_STAGE = slice(0, 6)
_BY_PAIR = [0, 1, 6, 7]


@dataclass(frozen=True, eq=False)
class Pipeline:
    """One pipeline in one step: its ranks in stage order, and the cells of those that have a trace."""

    ranks: tuple[int, ...]
    step: int
    placement: StagePlacement
    clocks: Clocks
    stages_from: (
        str  # "annotations", "messages", "order" (one rank), "pattern" (of a schedule) or "nothing"
    )
    detail: pl.DataFrame = field(repr=False)
    """Cells with all columns of ``DETAILED``, sorted by position and start."""
    numbers: Ints = field(repr=False)
    """``identity_numbers`` of the cells."""
    notices: tuple[Notice, ...] = ()
    weights_counted: bool = False  # some weight gradients were paired by counting
    traffic: Mapping[int, Mapping[int, int]] = field(default_factory=dict, repr=False)
    """Number of messages by sending and receiving position; empty if unknown."""
    peers_recorded: bool = False  # stages come from messages whose peers were recorded

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """Positions in the pipeline that have a trace."""
        return tuple(np.unique(self.numbers[:, _POSITION]).tolist())

    @property
    def order_key(self) -> bytes:
        """Key of ``orders``: equal keys, equal orders."""
        return self.numbers[:, _BY_STAGE if self.stages_from != "nothing" else _BY_PAIR].tobytes()

    @cached_property
    def orders(self) -> dict[int, list[Op]]:
        """Ops that each rank ran, in order, by position in the pipeline.

        Where stages are not known, all are 0 and pairs stand for micro-batches.
        """
        detail = self.detail
        if self.stages_from == "nothing":
            zero = pl.lit(0, pl.Int32)
            detail = detail.with_columns(
                stage=zero, microbatch="pair", b_stage=zero, b_microbatch="b_pair"
            )
        is_block = pl.col("op") == "FB"
        ops = detail.select(
            "position",
            "op",
            pl.col("stage", "microbatch").fill_null(-1),
            pl.when(is_block).then(pl.col("b_stage", "b_microbatch")).fill_null(-1),
        )
        orders: dict[int, list[Op]] = {}
        for position, *op in ops.rows():
            orders.setdefault(position, []).append(Op(*op))
        return orders


def identity_numbers(detail: pl.DataFrame) -> Ints:
    """Return the columns ``CELL_IDENTITY`` of cells as one matrix; -1 for null."""
    return detail.select(
        pl.col(CELL_IDENTITY).to_physical().cast(pl.Int64).fill_null(-1)
    ).to_numpy()


def has_same_order(pipeline: Pipeline, schedule: Schedule) -> bool:
    """Return whether every rank of the pipeline ran the schedule's ops in the schedule's order."""
    orders = pipeline.orders
    return all(orders[position] == list(schedule.ranks[position]) for position in orders)


def rename_cells(pipeline: Pipeline, schedule: Schedule, *, has_names: bool) -> Pipeline:
    """Return the pipeline with the stages and micro-batches of the schedule whose order it follows.

    The pattern of forwards, backwards and their pairs fits the schedule on every rank. So each
    forward takes stage and micro-batch of the schedule's forward at the same place in the order,
    and so do its backward and weight gradient. With *has_names* the cells have the schedule's names
    already.
    """
    table = pipeline.detail if has_names else _with_names_of(schedule, pipeline)
    agrees_with_messages = has_names or _has_same_stages(pipeline.detail, table)
    by_pattern = pipeline.stages_from == "nothing" or not agrees_with_messages
    # An order that fits a schedule on every rank makes a pair found by position likely, not
    # certain. Where messages were recorded with their peers, these confirm it a second time.
    most = CONFIDENCE_COUNTED if by_pattern else CONFIDENCE_ANNOTATED
    confirmed = CONFIDENCE_ORDER_AND_PEERS if pipeline.peers_recorded else CONFIDENCE_COUNTED
    least = min(confirmed, most)
    if not _is_between(table["confidence"], least, most):
        table = table.with_columns(pl.col("confidence").fill_null(least).clip(least, most))
    has_weight_gradients = (pipeline.numbers[:, _OP] == _WEIGHT_GRADIENT).any()
    detail = _fuse_backwards(table, schedule) if has_weight_gradients else table
    has_same_cells = has_names and detail is table
    numbers = pipeline.numbers if has_same_cells else identity_numbers(detail)
    notices = tuple(notice for notice in pipeline.notices if notice.code != "stages-unknown")
    stages_from = "pattern" if by_pattern else pipeline.stages_from
    return replace(
        pipeline, stages_from=stages_from, notices=notices, detail=detail, numbers=numbers
    )


def _is_between(column: pl.Series, least: float, most: float) -> bool:
    """Return whether all rows of a column have a value from *least* to *most*.

    A step has few cells: to ask takes a tenth of the time of a query that changes nothing.
    """
    if column.is_empty() or column.null_count():
        return False
    return least <= float(column.min()) and float(column.max()) <= most  # type: ignore[arg-type]  # polars types them as any value


_HAS_FORWARD = ("F", "FB")


def _with_names_of(schedule: Schedule, pipeline: Pipeline) -> pl.DataFrame:
    """Return the cells with stages and micro-batches of the schedule's ops."""
    unknown = (None, None)
    # Stage, micro-batch, and those of the backward of a block.
    names: list[tuple[int | None, ...]] = []
    for position in pipeline.positions:
        order = schedule.ranks[position]
        cells = (
            pipeline.detail.filter(pl.col("position") == position)
            .select("op", "pair", "b_pair")
            .rows()
        )
        forward_pairs = [pair for op, pair, _ in cells if op in _HAS_FORWARD]
        forwards = [op for op in order if op.kind in _HAS_FORWARD]
        place_of_pair = {
            pair: (forward.stage, forward.microbatch)
            for pair, forward in zip(forward_pairs, forwards, strict=True)
        }
        # Weight gradients that were only counted take the schedule's order as well.
        weights = [op for op in order if op.kind == "W"]
        weight_cells = [pair for op, pair, _ in cells if op == "W"]
        use_weight_order = pipeline.weights_counted and len(weights) == len(weight_cells)
        next_weight = iter(weights)
        for op, pair, b_pair in cells:
            own: tuple[int | None, int | None] = place_of_pair.get(pair, unknown)
            of_backward: tuple[int | None, int | None] = unknown
            if op == "W" and use_weight_order:
                weight = next(next_weight)
                own = (weight.stage, weight.microbatch)
            if op == "FB":
                of_backward = place_of_pair.get(b_pair, unknown)
            names.append((*own, *of_backward))
    columns = ("stage", "microbatch", "b_stage", "b_microbatch")
    named = pl.DataFrame(names, schema=dict.fromkeys(columns, pl.Int32), orient="row")
    return pipeline.detail.with_columns(named)


def _has_same_stages(before: pl.DataFrame, after: pl.DataFrame) -> bool:
    """Return whether messages and pattern agree on the forwards' stages.

    Micro-batches may be counted differently.
    """
    is_forward = before["op"].is_in(("F", "FB"))
    return before["stage"].filter(is_forward).equals(after["stage"].filter(is_forward))


def _fuse_backwards(detail: pl.DataFrame, schedule: Schedule) -> pl.DataFrame:
    """Join an I and the W right behind it where the schedule has one B."""
    key = ["position", "stage", "microbatch"]
    backwards = []
    for position, order in enumerate(schedule.ranks):
        backwards += [(position, op.stage, op.microbatch) for op in order if op.kind == "B"]
    whole_backwards = pl.DataFrame(backwards, schema=dict.fromkeys(key, pl.Int32), orient="row")
    is_whole = pl.struct(key).is_in(whole_backwards.to_struct().implode())
    is_followed = pl.all_horizontal(pl.col(key) == pl.col(key).shift(-1))
    is_followed &= pl.col("op").shift(-1) == "W"
    cells = detail.with_columns(
        is_first=((pl.col("op") == "I") & is_whole & is_followed).fill_null(False)
    )
    # The B ends with the W behind the I, and is busy and stalled as long as both.
    ends = pl.col("end_ns", "last_ns")
    measures = pl.col("busy_ns", "wgrad_ns", *STALL_COLUMNS)
    fused = cells.with_columns(
        pl.when("is_first").then(ends.shift(-1)).otherwise(ends),
        pl.when("is_first").then(measures + measures.shift(-1)).otherwise(measures),
        op=pl.when("is_first").then(pl.lit("B")).otherwise(pl.col("op").cast(pl.String)),
    )
    is_second = pl.col("is_first").shift(1).fill_null(False)
    return conform(fused.filter(~is_second), DETAILED)
