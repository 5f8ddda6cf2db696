"""Assembly of pipelines from their ranks: the cells of every step, on one clock.

Steps of a run are alike: the same chunks in the same order with the same messages between them.
``StepTables.look`` describes a step independently of its times, so that a step which looks like an
earlier one need not be examined again.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from tracekit._util.arrays import Bools, Ints
from tracekit._util.columns import to_int64
from tracekit.align.clocks import Clocks
from tracekit.errors import Notice, NoticeValues
from tracekit.pipeline.reconstruct.chunk_table import CHUNKS
from tracekit.pipeline.reconstruct.messages import RANK_MESSAGES
from tracekit.pipeline.reconstruct.pipeline import (
    DETAILED,
    STALL_COLUMNS,
    Pipeline,
    identity_numbers,
)
from tracekit.pipeline.reconstruct.rank_pipeline import RankPipeline
from tracekit.pipeline.reconstruct.segment import CONFIDENCE_COUNTED, CONFIDENCE_POSITION
from tracekit.pipeline.reconstruct.stage_assignment import (
    Place,
    StagePlacement,
    assign_stages,
    pair_by_messages,
)
from tracekit.schema import conform

Line = Sequence[int]
"""Ranks of a pipeline in stage order."""

_CHUNK_OPS = ("F", "I", "W", "B")
_CHUNK_OP_TYPE = pl.Enum(_CHUNK_OPS)
_WEIGHTS = _CHUNK_OPS.index("W")


class _StepPart(NamedTuple):
    """Rows of one rank in one instance."""

    position: int
    chunks: slice
    messages: slice


class StepTables:
    """Chunks and messages of pipelines. An *instance* is one pipeline in one step."""

    def __init__(
        self, ranks: Mapping[int, RankPipeline], lines: Sequence[tuple[Line, Sequence[int]]]
    ) -> None:
        """Collect the tables of *lines*, each with its steps, ascending.

        Ranks of a line may have no trace.
        """
        self.lines: list[Line] = []
        # Of each line: whether the peers of its messages were derived from their order.
        self.peers_by_order: list[bool] = []
        # Index of the line, and step.
        self.instances: list[tuple[int, int]] = []
        positions_of_ranks: list[tuple[int, int, int]] = []
        for index, (line, steps) in enumerate(lines):
            self.lines.append(line)
            by_order = False
            for position, rank in enumerate(line):
                positions_of_ranks.append((index, position, rank))
                by_order |= rank in ranks and ranks[rank].peers_by_order
            self.peers_by_order.append(by_order)
            for step in steps:
                self.instances.append((index, step))
        instance_index = pl.DataFrame(
            self.instances, schema={"line": pl.Int64, "step": pl.Int64}, orient="row"
        ).with_row_index("instance")
        members = pl.DataFrame(
            positions_of_ranks,
            schema={"line": pl.Int64, "position": pl.Int32, "rank": pl.Int32},
            orient="row",
        )

        recorded = members.filter(pl.col("rank").is_in([*ranks]))

        def collect(name: str, schema: pl.Schema) -> pl.DataFrame:
            """Return one table of all ranks with line, instance, position and rank, sorted by instance and position."""
            tables: list[pl.DataFrame] = [getattr(ranks[rank], name) for rank in recorded["rank"]]
            owner = np.repeat(np.arange(len(tables)), [table.height for table in tables])
            table = pl.concat([schema.to_frame(), *tables]).with_columns(recorded[owner])
            table = table.join(instance_index, on=["line", "step"], maintain_order="left")
            return table.sort("instance", "position", maintain_order=True)

        self.chunks = collect("chunks", CHUNKS)
        # Peers are positions, null outside the line.
        positions = members.select("line", peer="rank", peer_position="position")
        messages = collect("messages", RANK_MESSAGES)
        messages = messages.join(positions, on=["line", "peer"], how="left", maintain_order="left")
        self.messages = messages.with_columns(peer="peer_position")
        # By instance, the parts that have chunks, by position.
        self.parts: list[list[_StepPart]] = [[] for _ in self.instances]
        with_messages = _row_ranges(self.messages)
        for (instance, position), chunks in _row_ranges(self.chunks).items():
            no_messages = slice(0, 0)
            part = _StepPart(position, chunks, with_messages.get((instance, position), no_messages))
            self.parts[instance].append(part)
        # What each chunk is: op, doubt about its pair, pair, row of its partner, stage and
        # micro-batch.
        self.chunk_codes = _encode_chunks(self.chunks)
        self.last_ns = self.chunks["last_ns"].to_numpy()
        self.send = self.messages["send"].to_numpy()
        self.launch_ns = self.messages["launch_ns"].to_numpy()
        self.peer = to_int64(self.messages["peer"], -1)

    def look(self, instance: int) -> Hashable:
        """Return a key of what a step looks like: equal keys, equal stages, micro-batches and traffic."""
        pp = len(self.lines[self.instances[instance][0]])
        return pp, *(self._look_of_part(part, pp) for part in self.parts[instance])

    def _look_of_part(self, part: _StepPart, pp: int) -> Hashable:
        """Return a key of what a rank did: its chunks, and when and to whom it sent between them."""
        codes = self.chunk_codes[part.chunks]
        peer = self.peer[part.messages]
        is_send = self.send[part.messages]
        does_send_result = codes[:, 0] != _WEIGHTS
        last_launch_ns = self.last_ns[part.chunks][does_send_result]
        send_launch_ns = self.launch_ns[part.messages][is_send]
        launch_order = np.argsort(np.concatenate([last_launch_ns, send_launch_ns]), kind="stable")
        is_last_a_peer = bool((peer == pp - 1).any())
        return (
            part.position,
            codes.tobytes(),
            launch_order.tobytes(),
            peer[is_send].tobytes(),
            is_last_a_peer,
        )


def _row_ranges(table: pl.DataFrame) -> dict[tuple[int, int], slice]:
    """Return the rows of each instance and position of a table sorted by these."""
    rows = table.with_row_index("row").group_by("instance", "position", maintain_order=True)
    ranges = rows.agg(pl.col("row").first(), pl.len())
    return {
        (instance, position): slice(first, first + count)
        for instance, position, first, count in ranges.rows()
    }


def _encode_chunks(chunks: pl.DataFrame) -> Ints:
    """Return the columns of ``StepTables.chunk_codes``."""
    confidence = chunks["confidence"].fill_null(2.0).to_numpy()
    doubt = (confidence <= CONFIDENCE_COUNTED).astype(np.int64) + (
        confidence <= CONFIDENCE_POSITION
    )
    op = to_int64(chunks["op"].cast(_CHUNK_OP_TYPE).to_physical())
    numbers = [to_int64(chunks[name], -1) for name in ("pair", "beside", "stage", "microbatch")]
    return np.stack([op, doubt, *numbers], axis=1)


StepCache = dict[Hashable, "_StepResult"]
"""Results of steps already examined, by ``StepTables.look``."""


def assemble(
    ranks: Mapping[int, RankPipeline], pipeline: Line, step: int, clocks: Clocks
) -> Pipeline:
    """Return the pipeline that the ranks *pipeline* (in stage order.

    Some may have no trace) form in one step.
    """
    return assemble_steps(ranks, [(pipeline, [step])], clocks, {})[0][0]


def assemble_steps(
    ranks: Mapping[int, RankPipeline],
    lines: Sequence[tuple[Line, Sequence[int]]],
    clocks: Clocks,
    cache: StepCache,
) -> list[list[Pipeline]]:
    """Return for each line the pipeline it forms in each of its steps.

    All steps are assembled at once, because a table of one step has only a few rows.

    Args:
        ranks: Per-rank tables.
        lines: Ranks in stage order (some may have no trace), each with the steps to assemble.
        clocks: Offsets that put all ranks on one clock.
        cache: Results of earlier steps; new results are added.

    """
    tables = StepTables(ranks, lines)
    results = [
        _examine_instance(tables, instance, cache) for instance in range(len(tables.instances))
    ]
    detail = _make_cells(tables, results, clocks)
    numbers = identity_numbers(detail)
    first_cells = accumulate((len(result.stage) for result in results), initial=0)
    pipelines_of_lines: list[list[Pipeline]] = [[] for _ in lines]
    for (line, step), result, (first, end) in zip(
        tables.instances, results, pairwise(first_cells), strict=True
    ):
        is_by_order = tables.peers_by_order[line]
        pipeline = Pipeline(
            ranks=tuple(tables.lines[line]),
            step=step,
            placement=replace(result.placement, places={}),  # the cells have them
            clocks=clocks,
            stages_from=result.stages_from,
            notices=_stages_unknown_notice(result),
            detail=detail.slice(first, end - first),
            numbers=numbers[first:end],
            weights_counted=result.weights_counted,
            traffic=result.traffic,
            peers_recorded=result.stages_from == "messages" and not is_by_order,
        )
        pipelines_of_lines[line].append(pipeline)
    return pipelines_of_lines


class _StepResult(msgspec.Struct, frozen=True, eq=False):
    """Stages and messages of one step, and stage and micro-batch of each of its cells (-1: unknown)."""

    placement: StagePlacement
    stages_from: str
    weights_counted: bool
    traffic: Mapping[int, Mapping[int, int]]
    stage: Ints
    microbatch: Ints
    is_unplaced: Bools
    """Cells whose stage nothing tells."""
    cells: pl.DataFrame | None
    """The step's cells if they are not its chunks as recorded: paired anew, or joined to overlapped
    blocks."""


def _examine_instance(tables: StepTables, instance: int, cache: StepCache) -> _StepResult:
    """Return the result of a step that looks the same, else examine this one."""
    look = tables.look(instance)
    if look in cache:
        return cache[look]
    line, _ = tables.instances[instance]
    chunks = {}
    messages = {}
    for part in tables.parts[instance]:
        chunks[part.position] = tables.chunks[part.chunks]
        messages[part.position] = tables.messages[part.messages]
    result = _examine_step(chunks, messages, len(tables.lines[line]))
    # Times of cells differ from step to step, so they cannot be used again.
    if result.cells is None:
        cache[look] = result
    return result


def _examine_step(
    chunks: dict[int, pl.DataFrame], messages: dict[int, pl.DataFrame], pp: int
) -> _StepResult:
    """Find stage and micro-batch of every chunk of a step.

    *chunks* and *messages* are by position.
    """
    placement, stages_from = _place_chunks(chunks, messages, pp)
    paired = pair_by_messages(chunks, messages, placement, pp)
    cells = []
    is_unplaced = []
    is_changed = paired is not chunks
    for position, table in sorted(paired.items()):
        places = placement.places.get(position, {})
        lacks_stage = table["stage"].is_null().to_numpy()
        if places:
            lacks_stage = np.zeros(table.height, np.bool_)
        named = _fill_places(table, places)
        if (table["beside"] >= 0).any():
            named = _join_blocks(
                named.with_columns(confidence=_limited_confidence(lacks_stage, CONFIDENCE_POSITION))
            )
            lacks_stage = np.zeros(named.height, np.bool_)
            is_changed = True
        cells.append(named)
        is_unplaced.append(lacks_stage)
    joined = pl.concat(cells, how="diagonal") if cells else pl.DataFrame(schema=DETAILED)
    is_counted_weight = (pl.col("op") == "W") & (pl.col("confidence") <= CONFIDENCE_COUNTED)
    return _StepResult(
        placement=placement,
        stages_from=stages_from,
        weights_counted=any(table.filter(is_counted_weight).height for table in paired.values()),
        traffic=_count_messages(messages),
        stage=to_int64(joined["stage"]),
        microbatch=to_int64(joined["microbatch"]),
        is_unplaced=np.concatenate([np.zeros(0, np.bool_), *is_unplaced]),
        cells=joined if is_changed else None,
    )


def _place_chunks(
    chunks: dict[int, pl.DataFrame], messages: dict[int, pl.DataFrame], pp: int
) -> tuple[StagePlacement, str]:
    """Return the stages of a step's chunks, and what they come from."""
    unnamed = 0
    for table in chunks.values():
        unnamed += table["stage"].null_count() + table["microbatch"].null_count()
    if not unnamed:
        return StagePlacement("annotated", 1, {}), "annotations"
    placement = assign_stages(chunks, messages, pp)
    if not placement.places:
        return placement, "nothing"
    return placement, "order" if pp == 1 else "messages"


def _fill_places(chunks: pl.DataFrame, places: Mapping[int, Place]) -> pl.DataFrame:
    """Return the chunks with stage and micro-batch by their pair, where annotations did not give them."""
    if not places:
        return chunks
    stage_of_pair = {}
    microbatch_of_pair = {}
    for pair, (stage, microbatch) in places.items():
        stage_of_pair[pair] = stage
        microbatch_of_pair[pair] = microbatch
    pair_column = pl.col("pair")
    stages = pair_column.replace_strict(stage_of_pair, default=None, return_dtype=pl.Int32)
    microbatches = pair_column.replace_strict(
        microbatch_of_pair, default=None, return_dtype=pl.Int32
    )
    return chunks.with_columns(
        stage=pl.coalesce("stage", stages), microbatch=pl.coalesce("microbatch", microbatches)
    )


_FIRST_OF_HALVES = ("start_ns", "launch_ns", "confidence")
"""Columns of a block that are the lower one of its halves'."""
_LAST_OF_HALVES = ("end_ns", "last_ns", "busy_ns", "wgrad_ns", *STALL_COLUMNS)
"""Columns of a block that are the higher one of its halves'."""


def _join_blocks(chunks: pl.DataFrame) -> pl.DataFrame:
    """Join forwards and backwards that ran as one block; the other chunks stay as they are."""
    halves = (
        chunks.with_row_index("index")
        .with_columns(pl.col("index").cast(pl.Int64))
        .filter(pl.col("beside") >= 0)
    )
    forwards = halves.filter(pl.col("op") == "F")
    backwards = halves.filter(pl.col("op") != "F")
    blocks = forwards.join(backwards, left_on="beside", right_on="index", suffix="_b")
    # Both halves were measured over the whole block, so their measures are equal.
    joined = blocks.with_columns(
        *[pl.min_horizontal(name, f"{name}_b").alias(name) for name in _FIRST_OF_HALVES],
        *[pl.max_horizontal(name, f"{name}_b").alias(name) for name in _LAST_OF_HALVES],
        op=pl.lit("FB"),
    ).select(
        *("instance", "step", "rank", "position", "stage", "microbatch", "pair", "op"),
        *_FIRST_OF_HALVES,
        *_LAST_OF_HALVES,
        b_stage="stage_b",
        b_microbatch="microbatch_b",
        b_pair="pair_b",
    )
    return pl.concat([chunks.filter(pl.col("beside") < 0), joined], how="diagonal")


def _count_messages(messages: Mapping[int, pl.DataFrame]) -> dict[int, dict[int, int]]:
    """Return how many messages each position sent to which.

    Empty where the trace does not show it.
    """
    sent = {
        position: Counter(table.filter("send")["peer"].to_list())
        for position, table in messages.items()
    }
    is_peer_unknown = any(None in peers for peers in sent.values())
    if is_peer_unknown or not any(sent.values()):
        return {}
    return {position: dict(peers) for position, peers in sent.items()}


WHY_STAGES_ARE_UNKNOWN = {
    "peers_unnamed": "the trace does not say who the messages went to",
    "loop_without_last_rank": "without the last rank the chunks of a loop cannot be told apart",
    "v_without_last_rank": (
        "without the last rank's forwards a V cannot be told from two opposite pipelines"
    ),
    "uneven_sends": "the last rank's sends do not divide into chunks",
    "unknown_chunk_order": "the order of {virtual} chunks per rank is not a known one",
    "uneven_forwards": "the ranks ran different numbers of forwards",
}
"""Words for each reason of a placement."""


def _stages_unknown_notice(result: _StepResult) -> tuple[Notice, ...]:
    if result.stages_from != "nothing":
        return ()
    placement = result.placement
    reason = placement.reason or "peers_unnamed"
    why = WHY_STAGES_ARE_UNKNOWN[reason].format(virtual=placement.virtual)
    message = f"stages and micro-batches are not known: {why}"
    values: NoticeValues = {"case": placement.reason, "virtual": placement.virtual}
    return (Notice("stages-unknown", message, values=values),)


def _make_cells(tables: StepTables, results: Sequence[_StepResult], clocks: Clocks) -> pl.DataFrame:
    """Return the cells of all instances (``DETAILED``), sorted by instance, position and start."""
    table = _concat_cells(tables, results)
    if table.is_empty():
        return pl.DataFrame(schema=DETAILED)
    stages: list[Ints] = []
    microbatches: list[Ints] = []
    is_unplaced: list[Bools] = []
    is_by_order: list[Bools] = []
    for (line, _), result in zip(tables.instances, results, strict=True):
        stages.append(result.stage)
        microbatches.append(result.microbatch)
        is_unplaced.append(result.is_unplaced)
        by_order = result.stages_from == "messages" and tables.peers_by_order[line]
        is_by_order.append(np.full(len(result.stage), by_order))
    table = table.with_columns(
        stage=_known_numbers(np.concatenate(stages)),
        microbatch=_known_numbers(np.concatenate(microbatches)),
        confidence=_limited_confidence(np.concatenate(is_unplaced), CONFIDENCE_POSITION),
    )
    table = table.with_columns(
        confidence=_limited_confidence(np.concatenate(is_by_order), CONFIDENCE_COUNTED)
    )
    table = clocks.align(table, "start_ns", "end_ns", "launch_ns", "last_ns")
    return conform(
        table.sort("instance", "position", "start_ns", "end_ns", maintain_order=True), DETAILED
    )


def _known_numbers(numbers: Ints) -> pl.Expr:
    """Return stages or micro-batches as a column with null for -1."""
    return pl.when(pl.Series(numbers >= 0)).then(pl.Series(numbers, dtype=pl.Int32))


def _limited_confidence(is_limited: Bools, limit: float) -> pl.Expr:
    """Return the confidence of cells, at most *limit* for some of them."""
    limited = pl.min_horizontal("confidence", pl.lit(limit))
    return pl.when(pl.Series(is_limited)).then(limited).otherwise("confidence")


def _concat_cells(tables: StepTables, results: Sequence[_StepResult]) -> pl.DataFrame:
    """Return the chunks of all instances, or the cells that were made of them."""
    if all(result.cells is None for result in results):
        return tables.chunks
    cells = []
    for parts, result in zip(tables.parts, results, strict=True):
        recorded = [tables.chunks[part.chunks] for part in parts]
        cells += recorded if result.cells is None else [result.cells]
    return pl.concat(cells, how="diagonal")
