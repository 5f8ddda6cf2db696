"""The cells of one pipeline in one step, assembled from its ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

import numpy as np
import polars as pl

from tracekit._util.columns import whole_numbers
from tracekit.align.clocks import Clocks
from tracekit.errors import Notice
from tracekit.reconstruct.chunks import COUNTED, POSITION, SURE
from tracekit.reconstruct.pairing import tied_by_messages
from tracekit.reconstruct.place import Place, Placement, place
from tracekit.reconstruct.rank import RankPipeline
from tracekit.schedules import Op, Schedule
from tracekit.schedules.ops import from_columns
from tracekit.schema import CELLS, STALL_CAUSES, conform

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


@dataclass(frozen=True, eq=False)
class Pipeline:
    """One pipeline in one step: its ranks in stage order and the cells of those that are there.

    ``cells`` has the columns of ``tracekit.schema.CELLS``, times on one clock, sorted by rank and start.
    """

    ranks: tuple[int, ...]
    step: int
    cells: pl.DataFrame
    placement: Placement
    clocks: Clocks
    stages_from: str  # "annotations", "messages", "pattern" or "nothing"
    notices: tuple[Notice, ...] = ()
    detail: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=DETAILED), repr=False)
    weights_counted: bool = False
    traffic: Mapping[int, Mapping[int, int]] = field(default_factory=dict, repr=False)
    peers_told: bool = False  # the recording says to whom messages went

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """Positions in the pipeline that have a trace."""
        return tuple(np.unique(self.detail["position"].to_numpy()).tolist())

    def orders(self) -> dict[int, list[Op]]:
        """Return what each rank ran, in order, by its position in the pipeline.

        Where stages are not known, all are 0 and pairs stand for micro-batches.
        """
        return self._orders

    @cached_property
    def _orders(self) -> dict[int, list[Op]]:
        known = self.stages_from != "nothing"
        ops = self.detail["op"].to_list()
        if known:
            own = [whole_numbers(self.detail[n], -1).tolist() for n in ("stage", "microbatch")]
            back = [whole_numbers(self.detail[n], -1).tolist() for n in ("b_stage", "b_microbatch")]
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


def assemble(ranks: Mapping[int, RankPipeline], pipeline: Sequence[int], step: int, clocks: Clocks) -> Pipeline:
    """Return the pipeline that the ranks *pipeline* (in stage order; some may have no trace) form in one step."""
    position = {rank: i for i, rank in enumerate(pipeline)}
    parts = {position[r]: ranks[r].by_step[step] for r in pipeline if r in ranks and step in ranks[r].by_step}
    chunks = {at: table for at, (table, _) in parts.items()}
    places = pl.col("peer").replace_strict(position, default=None, return_dtype=pl.Int32)
    messages = {at: table.with_columns(places) for at, (_, table) in parts.items()}
    named = all(c["stage"].null_count() == 0 and c["microbatch"].null_count() == 0 for c in chunks.values())
    placement = Placement("annotated", 1, {}) if named else place(chunks, messages, len(pipeline))
    chunks = dict(tied_by_messages(chunks, messages, placement, len(pipeline)))
    stages_from = "annotations" if named else _stages_from(placement, len(pipeline))
    by_order = any(ranks[r].peers_by_order for r in pipeline if r in ranks)
    tables = [
        _cells(table, rank=pipeline[at], position=at, placement=placement, clocks=clocks, step=step)
        for at, table in sorted(chunks.items())
    ]
    detail = pl.concat(tables) if tables else pl.DataFrame(schema=DETAILED)
    if stages_from == "messages" and by_order:
        detail = detail.with_columns(pl.min_horizontal("confidence", pl.lit(COUNTED, pl.Float32)).alias("confidence"))
    return Pipeline(
        tuple(pipeline),
        step,
        conform(detail, CELLS),
        placement,
        clocks,
        stages_from,
        () if named else _unplaced(placement),
        detail,
        any(
            op == "W" and sure is not None and sure <= COUNTED
            for c in chunks.values()
            for op, sure in zip(c["op"].to_list(), c["confidence"].to_list(), strict=True)
        ),
        _traffic(messages),
        stages_from == "messages" and not by_order,
    )


def _stages_from(placement: Placement, ranks: int) -> str:
    """Return where the stages come from, without annotations."""
    if not placement.places:
        return "nothing"
    return "order" if ranks == 1 else "messages"


def _unplaced(placement: Placement) -> tuple[Notice, ...]:
    if placement.places:
        return ()
    return (Notice("stages-unknown", f"stages and micro-batches are not known: {placement.reason}"),)


def _traffic(messages: Mapping[int, pl.DataFrame]) -> dict[int, dict[int, int]]:
    """Return who sent how many messages to whom; empty where the trace does not show it."""
    sent = {
        at: Counter(peer for send, peer in zip(t["send"].to_list(), t["peer"].to_list(), strict=True) if send)
        for at, t in messages.items()
    }
    if any(None in peers for peers in sent.values()) or not any(sent.values()):
        return {}
    return {at: dict(peers) for at, peers in sent.items()}


def _cells(
    chunks: pl.DataFrame, *, rank: int, position: int, placement: Placement, clocks: Clocks, step: int
) -> pl.DataFrame:
    """One rank's chunks as cells, forwards and backwards that ran as one block joined."""
    places = placement.places.get(position, {})
    chunks = _named(chunks, places)
    table = _with_blocks(chunks) if (chunks["beside"] >= 0).any() else chunks
    placed = table.with_columns(rank=pl.lit(rank, pl.Int32), position=pl.lit(position), step=pl.lit(step))
    return conform(
        clocks.align(placed, "start_ns", "end_ns", "launch_ns", "last_ns").sort("start_ns", "end_ns"), DETAILED
    )


def _with_blocks(chunks: pl.DataFrame) -> pl.DataFrame:
    """Forwards and backwards that ran as one block, joined; the others as they are."""
    first = chunks.with_row_index("index")
    halves = first.filter((pl.col("beside") >= 0) & (pl.col("op") != "F"))
    forwards = first.filter((pl.col("beside") >= 0) & (pl.col("op") == "F"))
    blocks = forwards.join(
        halves.with_columns(pl.col("beside").cast(pl.UInt32)), left_on="index", right_on="beside", suffix="_b"
    )
    # Both halves were measured over the whole block.
    joined = blocks.select(
        pl.lit("FB").alias("op"),
        "stage",
        "microbatch",
        "pair",
        pl.col("pair_b").alias("b_pair"),
        pl.col("stage_b").alias("b_stage"),
        pl.col("microbatch_b").alias("b_microbatch"),
        *(pl.min_horizontal(n, f"{n}_b").alias(n) for n in ("start_ns", "launch_ns", "confidence")),
        *(pl.max_horizontal(n, f"{n}_b").alias(n) for n in ("end_ns", "last_ns")),
        *(pl.max_horizontal(n, f"{n}_b").alias(n) for n in ("busy_ns", "wgrad_ns", *INSIDE)),
    )
    used = set(blocks["index"].to_list()) | set(blocks["index_b"].to_list())
    single = first.filter(~pl.col("index").is_in(list(used))) if used else first
    return pl.concat([single, joined], how="diagonal")


def _named(chunks: pl.DataFrame, places: Mapping[int, Place]) -> pl.DataFrame:
    """Stage and micro-batch from the placement, where annotations did not give them."""
    if not places:
        sure = pl.when(pl.col("stage").is_null()).then(pl.min_horizontal("confidence", pl.lit(POSITION)))
        return chunks.with_columns(confidence=sure.otherwise("confidence"))
    placed = [places.get(pair, (None, None)) for pair in chunks["pair"].to_list()]
    columns = []
    for part, name in enumerate(("stage", "microbatch")):
        own = chunks[name].to_list()
        named = [place[part] if known is None else known for known, place in zip(own, placed, strict=True)]
        columns.append(pl.Series(name, named, dtype=pl.Int32))
    return chunks.with_columns(columns)


def renamed(pipeline: Pipeline, schedule: Schedule) -> Pipeline:
    """Return the pipeline with stages and micro-batches as *schedule*, whose order it follows, calls them.

    The pattern of forwards, backwards and their pairs fitted every rank, so each forward takes the name of the
    schedule's forward in the same place, and its backward and weight gradient follow.
    """
    own = pipeline.orders()
    same = all(own[at] == list(schedule.ranks[at]) for at in pipeline.positions)
    fresh = pipeline.detail if same else _with_names_of(schedule, pipeline)
    # An order that fits a schedule on every rank makes a pair tied by position likely, not certain.
    # Where messages were recorded with their peers, they bear it out a second time.
    lifted = pl.max_horizontal("confidence", pl.lit(BORNE_OUT if pipeline.peers_told else COUNTED))
    by_pattern = pipeline.stages_from == "nothing" or not _same_names(pipeline.detail, fresh)
    limit = COUNTED if by_pattern else SURE
    fresh = fresh.with_columns(confidence=pl.min_horizontal(lifted, pl.lit(limit)))
    detail = _fused(conform(fresh, DETAILED), schedule)
    source = "pattern" if by_pattern else pipeline.stages_from
    kept = tuple(n for n in pipeline.notices if n.code != "stages-unknown")
    return replace(pipeline, cells=conform(detail, CELLS), stages_from=source, notices=kept, detail=detail)


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
    whole = [(at, op.stage, op.microbatch) for at, order in enumerate(schedule.ranks) for op in order if op.kind == "B"]
    if not whole or not (detail["op"] == "W").any():
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
