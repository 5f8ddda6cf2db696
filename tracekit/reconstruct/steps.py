"""The steps of pipelines, assembled from their ranks: all at once, since a table of one step has but a few rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate, pairwise

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec.structs import replace

from tracekit.align.clocks import Clocks
from tracekit.errors import Notice
from tracekit.reconstruct.chunks import COUNTED, POSITION
from tracekit.reconstruct.pairing import tied_by_messages
from tracekit.reconstruct.pipeline import DETAILED, INSIDE, Pipeline, Stretch, names_as_numbers
from tracekit.reconstruct.place import Place, Placement, place
from tracekit.reconstruct.rank import RankPipeline
from tracekit.reconstruct.work import Line, Work
from tracekit.schema import conform

Names = list[int | None]


Known = dict[Hashable, "_Found"]
"""What was found about steps that look alike, by what they look like."""


def assemble(ranks: Mapping[int, RankPipeline], pipeline: Line, step: int, clocks: Clocks) -> Pipeline:
    """Return the pipeline that the ranks *pipeline* (in stage order; some may have no trace) form in one step."""
    return assemble_steps(ranks, [(pipeline, [step])], clocks, {})[0][0]


def assemble_steps(
    ranks: Mapping[int, RankPipeline], lines: Sequence[tuple[Line, Sequence[int]]], clocks: Clocks, known: Known
) -> list[list[Pipeline]]:
    """Return of each of *lines* (ranks in stage order; some may have no trace) the pipeline they form in each step.

    *known* is what earlier steps have shown: one whose chunks and messages follow each other alike is not looked at
    again.
    """
    work = Work.of(ranks, lines)
    placed = [_placed(work, turn, known) for turn in range(len(work.turns))]
    detail, first = _cells(work, placed, clocks)
    numbers = names_as_numbers(detail)
    made = iter(
        Pipeline(
            tuple(lines[line][0]),
            step,
            replace(one.placement, places={}),  # the cells have them
            clocks,
            one.stages_from,
            () if one.named else _unplaced(one.placement),
            Stretch(detail, a, b - a),
            one.weights_counted,
            one.traffic,
            one.stages_from == "messages" and not work.by_order[line],
            numbers[a:b],
        )
        for (line, step), one, (a, b) in zip(work.turns, placed, pairwise(first), strict=True)
    )
    return [[next(made) for _ in steps] for _, steps in lines]


class _Placed(msgspec.Struct, frozen=True, eq=False):
    """One step: each position's chunks, and what was found about their stages and messages."""

    step: int
    chunks: Mapping[int, pl.DataFrame]
    named: bool  # ranges say stage and micro-batch
    placement: Placement
    stages_from: str
    weights_counted: bool
    traffic: Mapping[int, Mapping[int, int]]

    @classmethod
    def of(cls, step: int, chunks: dict[int, pl.DataFrame], messages: dict[int, pl.DataFrame], pp: int) -> _Placed:
        named = all(c["stage"].null_count() == 0 and c["microbatch"].null_count() == 0 for c in chunks.values())
        placement = Placement("annotated", 1, {}) if named else place(chunks, messages, pp)
        chunks = dict(tied_by_messages(chunks, messages, placement, pp))
        return cls(
            step,
            chunks,
            named,
            placement,
            "annotations" if named else _stages_from(placement, pp),
            any(map(_weights_counted, chunks.values())),
            _traffic(messages),
        )


def _weights_counted(chunks: pl.DataFrame) -> bool:
    ops = chunks["op"].to_list()
    if "W" not in ops:
        return False
    sure = chunks["confidence"].to_list()
    return any(op == "W" and how is not None and how <= COUNTED for op, how in zip(ops, sure, strict=True))


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


class _Found(msgspec.Struct, frozen=True, eq=False):
    """What was found about one step, and the stage and micro-batch of each of its chunks (-1: none)."""

    named: bool
    placement: Placement
    stages_from: str
    weights_counted: bool
    traffic: Mapping[int, Mapping[int, int]]
    stage: npt.NDArray[np.int64]
    microbatch: npt.NDArray[np.int64]
    unplaced: npt.NDArray[np.bool_]
    at: npt.NDArray[np.int64]
    """Position of each."""
    table: pl.DataFrame | None = None
    """Its chunks, where they are not as they were: tied anew, or joined to blocks."""

    @classmethod
    def of(cls, step: int, chunks: dict[int, pl.DataFrame], messages: dict[int, pl.DataFrame], pp: int) -> _Found:
        """Return what is found about a step's *chunks* and *messages*, by position."""
        placed = _Placed.of(step, chunks, messages, pp)
        pieces = [_Piece.of(at, table, placed) for at, table in sorted(placed.chunks.items())]
        same = all(piece.table is chunks[piece.at] for piece in pieces)
        rows = [piece.table.height for piece in pieces]
        return cls(
            placed.named,
            placed.placement,
            placed.stages_from,
            placed.weights_counted,
            placed.traffic,
            np.array([-1 if name is None else name for piece in pieces for name in piece.stage], np.int64),
            np.array([-1 if name is None else name for piece in pieces for name in piece.microbatch], np.int64),
            np.repeat(np.array([piece.unplaced for piece in pieces], np.bool_), rows),
            np.repeat(np.array([piece.at for piece in pieces], np.int64), rows),
            None if same else pl.concat([piece.table for piece in pieces], how="diagonal"),
        )


def _placed(work: Work, turn: int, known: Known) -> _Found:
    """Return what is known about a step: from one that looks alike, else by looking."""
    look = work.look(turn)
    if look not in known:
        line, step = work.turns[turn]
        there = {int(work.at[one]): one for one in work.ranks_in(turn)}
        chunks = {at: work.chunks_of(one) for at, one in there.items()}
        found = _Found.of(step, chunks, {at: work.messages_of(one) for at, one in there.items()}, len(work.lines[line]))
        if found.table is not None:
            return found
        known[look] = found
    return known[look]


def _cells(work: Work, placed: Sequence[_Found], clocks: Clocks) -> tuple[pl.DataFrame, list[int]]:
    """Return the cells of all turns (``DETAILED``), turn by turn, and where each one's begin, and the last one's end.

    Forwards and backwards that ran as one block are joined.
    """
    sizes = [len(one.at) for one in placed]
    first = list(accumulate(sizes, initial=0))
    if not first[-1]:
        return pl.DataFrame(schema=DETAILED), first
    turn_of, at = np.repeat(np.arange(len(placed)), sizes), np.concatenate([one.at for one in placed])
    table = _chunks(work, placed)
    unplaced = pl.Series(np.concatenate([one.unplaced for one in placed])) & table["stage"].is_null()
    line, step = (np.array([turn[part] for turn in work.turns])[turn_of] for part in range(2))
    begin = np.cumsum([0, *map(len, work.lines)])
    names = {name: np.concatenate([getattr(one, name) for one in placed]) for name in ("stage", "microbatch")}
    table = table.with_columns(
        pl.Series("rank", np.array([rank for ranks in work.lines for rank in ranks])[begin[line] + at], pl.Int32),
        pl.Series("position", at, pl.Int32),
        pl.Series("step", step, pl.Int64),
        *(pl.when(pl.Series(of >= 0)).then(pl.Series(of, dtype=pl.Int32)).alias(name) for name, of in names.items()),
        confidence=_unplaced_confidence(unplaced),
    )
    table = clocks.align(table, "start_ns", "end_ns", "launch_ns", "last_ns")
    order = np.lexsort((table["end_ns"].to_numpy(), table["start_ns"].to_numpy(), at, turn_of))
    detail = conform(table[order], DETAILED)
    told = (
        np.array([one.stages_from == "messages" for one in placed])
        & np.array(work.by_order)[[line for line, _ in work.turns]]
    )
    if told.any():
        counted = pl.min_horizontal("confidence", pl.lit(COUNTED, pl.Float32))
        detail = detail.with_columns(confidence=pl.when(pl.Series(told[turn_of])).then(counted).otherwise("confidence"))
    return detail, first


def _chunks(work: Work, placed: Sequence[_Found]) -> pl.DataFrame:
    """Return the chunks of all turns: as they are, but for those that were tied anew or joined."""
    if all(one.table is None for one in placed):
        return work.chunks
    edges = work.first[np.searchsorted(work.turn, np.arange(len(placed) + 1))].tolist()
    each = zip(placed, pairwise(edges), strict=True)
    tables = [work.chunks.slice(a, b - a) if one.table is None else one.table for one, (a, b) in each]
    return pl.concat(tables, how="diagonal")


def _unplaced_confidence(unplaced: pl.Series) -> pl.Expr:
    """Return how far to trust the chunks' places: where nothing gives a stage, no further than their order."""
    return pl.when(unplaced).then(pl.min_horizontal("confidence", pl.lit(POSITION))).otherwise("confidence")


class _Piece(msgspec.Struct, frozen=True, eq=False):
    """One rank's cells in one step, and their names."""

    at: int
    table: pl.DataFrame
    stage: Names
    microbatch: Names
    unplaced: bool

    @classmethod
    def of(cls, at: int, chunks: pl.DataFrame, step: _Placed) -> _Piece:
        places = step.placement.places.get(at, {})
        blocks = chunks["beside"].to_numpy().max(initial=-1) >= 0
        names = _named(chunks, places)
        if blocks:
            own = (pl.Series(name, column, pl.Int32) for name, column in names.items())
            sure = {} if places else {"confidence": _unplaced_confidence(chunks["stage"].is_null())}
            chunks = _with_blocks(chunks.with_columns(*own, **sure))
            names = {name: chunks[name].to_list() for name in names}
        return cls(at, chunks, names["stage"], names["microbatch"], unplaced=not (places or blocks))


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


def _named(chunks: pl.DataFrame, places: Mapping[int, Place]) -> dict[str, Names]:
    """Return stage and micro-batch of each chunk: from the placement, where annotations did not give them."""
    own = {name: chunks[name].to_list() for name in ("stage", "microbatch")}
    if not places:
        return own
    placed = [places.get(pair, (None, None)) for pair in chunks["pair"].to_list()]
    return {
        name: [place[part] if known is None else known for known, place in zip(column, placed, strict=True)]
        for part, (name, column) in enumerate(own.items())
    }
