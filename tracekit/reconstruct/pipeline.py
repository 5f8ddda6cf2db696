"""The cells of one pipeline in one step, and their names once its schedule is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.columns import to_int64
from tracekit.align.clocks import Clocks
from tracekit.errors import Notice
from tracekit.reconstruct.chunks import COUNTED, SURE
from tracekit.reconstruct.place import Placement
from tracekit.schedules import Op, Schedule
from tracekit.schedules.ops import from_columns
from tracekit.schema import CELLS, STALL_CAUSES, conform

Ints = npt.NDArray[np.int64]

BORNE_OUT = 0.85
"""Confidence of cells tied by position whose order a schedule and the recorded peers of their messages both explain."""
INSIDE = tuple(f"{cause}_ns" for cause in STALL_CAUSES)
DETAILED = pl.Schema(
    {
        **CELLS,
        "position": pl.Int32(),
        "pair": pl.Int64(),
        "b_pair": pl.Int64(),
        "launch_ns": pl.Int64(),
        "last_ns": pl.Int64(),
        "layers": pl.Int64(),
        "wgrad_ns": pl.Int64(),
        **dict.fromkeys(INSIDE, pl.Int64()),
    }
)
"""Cells with their place, their pair (see ``CHUNKS``), first and last launch, layers, weight gradients and stalls."""
NAMED = ("position", "op", "stage", "microbatch", "b_stage", "b_microbatch", "pair", "b_pair")
"""What a cell is, whenever it ran."""
_BY_STAGE, _BY_PAIR = slice(0, 6), [0, 1, 6, 7]


def names_as_numbers(detail: pl.DataFrame) -> Ints:
    """Return the columns ``NAMED`` of cells (``DETAILED``), side by side; -1 where there is none."""
    op = detail["op"].to_physical().to_numpy().astype(np.int64)
    return np.stack([op if name == "op" else to_int64(detail[name], -1) for name in NAMED], axis=1)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Rows of a larger table, cut out when they are asked for: a table of few rows takes more room than its rows."""

    table: pl.DataFrame
    first: int
    size: int

    def frame(self) -> pl.DataFrame:
        """Return the rows."""
        return self.table.slice(self.first, self.size)


@dataclass(frozen=True, eq=False)
class Pipeline:
    """One pipeline in one step: its ranks in stage order and the cells of those that are there.

    ``cells`` has the columns of ``tracekit.schema.CELLS``, times on one clock, sorted by rank and start.
    """

    ranks: tuple[int, ...]
    step: int
    placement: Placement
    clocks: Clocks
    stages_from: str  # "annotations", "messages", "pattern" or "nothing"
    notices: tuple[Notice, ...] = ()
    rows: Stretch = field(default_factory=lambda: Stretch(pl.DataFrame(schema=DETAILED), 0, 0), repr=False)
    """Where its cells (``DETAILED``) stand in the table of all steps."""
    weights_counted: bool = False
    traffic: Mapping[int, Mapping[int, int]] = field(default_factory=dict, repr=False)
    peers_told: bool = False  # the recording says to whom messages went
    numbers: Ints = field(default_factory=lambda: np.zeros((0, len(NAMED)), np.int64), repr=False)
    """What each cell is (``NAMED``), as numbers."""

    @property
    def detail(self) -> pl.DataFrame:
        """Its cells with all that is known of them (``DETAILED``)."""
        return self.rows.frame()

    @property
    def cells(self) -> pl.DataFrame:
        """Its cells."""
        return conform(self.detail, CELLS)

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """Positions in the pipeline that have a trace."""
        return tuple(np.unique(self.numbers[:, NAMED.index("position")]).tolist())

    def orders(self) -> dict[int, list[Op]]:
        """Return what each rank ran, in order, by its position in the pipeline.

        Where stages are not known, all are 0 and pairs stand for micro-batches.
        """
        return self._orders

    @property
    def order_key(self) -> bytes:
        """What ``orders`` says, as bytes: equal keys, equal orders."""
        return self.numbers[:, _BY_STAGE if self.stages_from != "nothing" else _BY_PAIR].tobytes()

    @cached_property
    def _orders(self) -> dict[int, list[Op]]:
        known = self.stages_from != "nothing"
        ops = self.detail["op"].to_list()
        if known:
            own = [to_int64(self.detail[n], -1).tolist() for n in ("stage", "microbatch")]
            back = [to_int64(self.detail[n], -1).tolist() for n in ("b_stage", "b_microbatch")]
        else:
            own = [[0] * len(ops), self.detail["pair"].to_list()]
            back = [[0] * len(ops), self.detail["b_pair"].to_list()]
        back = [[n if op == "FB" else None for op, n in zip(ops, column, strict=True)] for column in back]
        columns = (ops, *own, *back)
        position = self.detail["position"].to_numpy()
        first = np.flatnonzero(np.diff(position, prepend=-1)).tolist()
        return {
            int(position[a]): from_columns(*(column[a:b] for column in columns))
            for a, b in pairwise([*first, len(ops)])
        }


def same_order(pipeline: Pipeline, schedule: Schedule) -> bool:
    """Return whether the pipeline's ops are the schedule's, by name and place."""
    own = pipeline.orders()
    return all(own[at] == list(schedule.ranks[at]) for at in pipeline.positions)


def renamed(steps: Sequence[tuple[Pipeline, Schedule, bool]]) -> list[Pipeline]:
    """Return each pipeline with stages and micro-batches as the schedule whose order it follows calls them.

    The pattern of forwards, backwards and their pairs fitted every rank, so each forward takes the name of the
    schedule's forward in the same place, and its backward and weight gradient follow. The last of each of *steps*
    says whether it has these names already.
    """
    if not steps:
        return []
    fresh = [pipeline.detail if same else _with_names_of(plan, pipeline) for pipeline, plan, same in steps]
    by_pattern = [
        pipeline.stages_from == "nothing" or not _same_names(pipeline.detail, table)
        for (pipeline, _, _), table in zip(steps, fresh, strict=True)
    ]
    sizes = [table.height for table in fresh]
    # An order that fits a schedule on every rank makes a pair tied by position likely, not certain.
    # Where messages were recorded with their peers, they bear it out a second time.
    least = np.repeat([BORNE_OUT if pipeline.peers_told else COUNTED for pipeline, _, _ in steps], sizes)
    most = np.repeat([COUNTED if pattern else SURE for pattern in by_pattern], sizes)
    table = pl.concat([conform(one, DETAILED) if "cell" in one.columns else one for one in fresh])
    lifted = pl.max_horizontal("confidence", pl.Series(least))
    table = conform(table.with_columns(confidence=pl.min_horizontal(lifted, pl.Series(most))), DETAILED)
    numbers = names_as_numbers(table)
    split = "W" in table["op"].to_list()
    done, first = [], 0
    for (pipeline, plan, _), pattern, size in zip(steps, by_pattern, sizes, strict=True):
        rows, what = Stretch(table, first, size), numbers[first : first + size]
        if split:
            fused = _fused(rows.frame(), plan)
            rows, what = Stretch(fused, 0, fused.height), names_as_numbers(fused)
        source = "pattern" if pattern else pipeline.stages_from
        kept = tuple(n for n in pipeline.notices if n.code != "stages-unknown")
        done.append(replace(pipeline, stages_from=source, notices=kept, rows=rows, numbers=what))
        first += size
    return done


def _with_names_of(schedule: Schedule, pipeline: Pipeline) -> pl.DataFrame:
    """Return the cells, each forward named as the schedule's in its place, and its backward and W after it."""
    detail = pipeline.detail.with_row_index("cell")
    nobody = (None, None)
    names: list[tuple[int | None, ...]] = []
    for position in pipeline.positions:
        part = detail.filter(pl.col("position") == position)
        order = schedule.ranks[position]
        rows = part.select("cell", "op", "pair", "b_pair").rows()
        there = [(op.stage, op.microbatch) for op in order if op.kind in ("F", "FB")]
        to = dict(zip((pair for _, op, pair, _ in rows if op in ("F", "FB")), there, strict=True))
        weights = [(op.stage, op.microbatch) for op in order if op.kind == "W"]
        counted = pipeline.weights_counted and len(weights) == (part["op"] == "W").sum()
        turn = iter(weights)
        for cell, op, pair, b_pair in rows:
            back = to.get(b_pair, nobody) if op == "FB" else nobody
            names.append((cell, *(next(turn) if op == "W" and counted else to.get(pair, nobody)), *back))
    table = pl.DataFrame(
        names,
        schema=["cell", "stage", "microbatch", "b_stage", "b_microbatch"],
        orient="row",
        infer_schema_length=None,
    ).with_columns(pl.col("cell").cast(pl.UInt32))
    return detail.drop("stage", "microbatch", "b_stage", "b_microbatch").join(table, on="cell", maintain_order="left")


def _same_names(before: pl.DataFrame, after: pl.DataFrame) -> bool:
    """Return whether messages and pattern agree on the forwards' stages; micro-batches may be counted differently."""
    if before is after:
        return True
    forwards = ([s for op, s in zip(t["op"].to_list(), t["stage"].to_list(), strict=True) if op in ("F", "FB")]
                for t in (before, after))  # fmt: skip
    return next(forwards) == next(forwards)


def _fused(detail: pl.DataFrame, schedule: Schedule) -> pl.DataFrame:
    """Join an I and the W right after it where the schedule has one B there."""
    if not (detail["op"] == "W").any():
        return detail
    whole = [(at, op.stage, op.microbatch) for at, order in enumerate(schedule.ranks) for op in order if op.kind == "B"]
    if not whole:
        return detail
    place = ["position", "stage", "microbatch"]
    table = pl.DataFrame(whole, schema=dict.fromkeys(place, pl.Int32), orient="row").with_columns(fuse=pl.lit(True))
    joined = detail.join(table, on=place, how="left", maintain_order="left")
    following = pl.all_horizontal(pl.col(n) == pl.col(n).shift(-1) for n in place) & (pl.col("op").shift(-1) == "W")
    first = (pl.col("op") == "I") & pl.col("fuse").fill_null(False) & following.fill_null(False)
    joined = joined.with_columns(first=first)
    summed = ("busy_ns", "wgrad_ns", *INSIDE)
    fused = joined.with_columns(
        pl.when("first").then(pl.lit("B")).otherwise(pl.col("op").cast(pl.String)).alias("op"),
        *(pl.when("first").then(pl.col(n).shift(-1)).otherwise(n).alias(n) for n in ("end_ns", "last_ns")),
        *(pl.when("first").then(pl.col(n) + pl.col(n).shift(-1)).otherwise(n).alias(n) for n in summed),
    )
    return conform(fused.filter(~pl.col("first").shift(1).fill_null(False)), DETAILED)
