"""The steps of one pipeline, assembled from its ranks: all at once, since a table of one step has but a few rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.records import dataclass
from tracekit.align.clocks import Clocks
from tracekit.errors import Notice
from tracekit.reconstruct.chunks import COUNTED, POSITION
from tracekit.reconstruct.pairing import tied_by_messages
from tracekit.reconstruct.pipeline import DETAILED, INSIDE, Pipeline, Stretch, names_as_numbers
from tracekit.reconstruct.place import Place, Placement, place
from tracekit.reconstruct.rank import RankPipeline
from tracekit.schema import conform

Names = list[int | None]


def assemble(ranks: Mapping[int, RankPipeline], pipeline: Sequence[int], step: int, clocks: Clocks) -> Pipeline:
    """Return the pipeline that the ranks *pipeline* (in stage order; some may have no trace) form in one step."""
    return assemble_steps(ranks, pipeline, [step], clocks)[0]


def assemble_steps(
    ranks: Mapping[int, RankPipeline], pipeline: Sequence[int], steps: Sequence[int], clocks: Clocks
) -> list[Pipeline]:
    """Return the pipeline that the ranks *pipeline* (in stage order; some may have no trace) form in each step."""
    position = {rank: i for i, rank in enumerate(pipeline)}
    places = pl.col("peer").replace_strict(position, default=None, return_dtype=pl.Int32)
    present = {position[r]: ranks[r] for r in pipeline if r in ranks}
    chunks = {at: _cut(rank.chunks) for at, rank in present.items()}
    messages = {at: _cut(rank.messages.with_columns(places)) for at, rank in present.items()}
    none = {at: rank.messages.clear().with_columns(places) for at, rank in present.items()}
    placed = []
    for step in steps:
        there = [at for at in present if step in chunks[at]]
        sent = {at: messages[at].get(step, none[at]) for at in there}
        placed.append(_Placed.of(step, {at: chunks[at][step] for at in there}, sent, len(pipeline)))
    by_order = any(rank.peers_by_order for rank in present.values())
    detail, first = _cells(placed, pipeline, clocks, by_order=by_order)
    numbers = names_as_numbers(detail)
    return [
        Pipeline(
            tuple(pipeline),
            one.step,
            replace(one.placement, places={}),  # the cells have them
            clocks,
            one.stages_from,
            () if one.named else _unplaced(one.placement),
            Stretch(detail, at, count),
            one.weights_counted,
            one.traffic,
            one.stages_from == "messages" and not by_order,
            numbers[at : at + count],
        )
        for one, at, count in zip(placed, first, np.diff(first).tolist(), strict=False)
    ]


def _cut(table: pl.DataFrame) -> dict[int, pl.DataFrame]:
    """Return the rows of each step; rows without one are left out."""
    table = table.drop_nulls("step")
    step = table["step"].to_numpy()
    if (np.diff(step) < 0).any():
        order = np.argsort(step, kind="stable")
        table, step = table[order], step[order]
    first = np.flatnonzero(np.diff(step, prepend=step[:1] - 1))
    count = np.diff(first, append=len(step))
    return {
        number: table.slice(a, n)
        for number, a, n in zip(step[first].tolist(), first.tolist(), count.tolist(), strict=True)
    }


@dataclass(frozen=True, eq=False)
class _Placed:
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


def _cells(
    placed: Sequence[_Placed], pipeline: Sequence[int], clocks: Clocks, *, by_order: bool
) -> tuple[pl.DataFrame, list[int]]:
    """Return the cells of all steps (``DETAILED``), step by step, and where each step's begin, and the last one's end.

    Forwards and backwards that ran as one block are joined.
    """
    pieces: list[_Piece] = []
    sizes = []
    for turn, one in enumerate(placed):
        of_step = [_Piece.of(turn, at, table, one) for at, table in sorted(one.chunks.items())]
        pieces += of_step
        sizes.append(sum(piece.table.height for piece in of_step))
    first = list(accumulate(sizes, initial=0))
    if not pieces:
        return pl.DataFrame(schema=DETAILED), first
    rows = [piece.table.height for piece in pieces]

    def each(values: Sequence[int | bool]) -> npt.NDArray[np.int64]:
        return np.repeat(np.array(values), rows)

    at, turn_of = each([piece.at for piece in pieces]), each([piece.turn for piece in pieces])
    table = pl.concat([piece.table for piece in pieces], how="diagonal")
    unplaced = pl.Series(each([piece.unplaced for piece in pieces])) & table["stage"].is_null()
    table = table.with_columns(
        pl.Series("rank", np.array(pipeline)[at], pl.Int32),
        pl.Series("position", at, pl.Int32),
        pl.Series("step", np.array([one.step for one in placed])[turn_of], pl.Int64),
        pl.Series("stage", [name for piece in pieces for name in piece.stage], pl.Int32),
        pl.Series("microbatch", [name for piece in pieces for name in piece.microbatch], pl.Int32),
        confidence=_unplaced_confidence(unplaced),
    )
    table = clocks.align(table, "start_ns", "end_ns", "launch_ns", "last_ns")
    order = np.lexsort((table["end_ns"].to_numpy(), table["start_ns"].to_numpy(), at, turn_of))
    detail = conform(table[order], DETAILED)
    told = np.array([one.stages_from == "messages" for one in placed])
    if by_order and told.any():
        counted = pl.min_horizontal("confidence", pl.lit(COUNTED, pl.Float32))
        detail = detail.with_columns(confidence=pl.when(pl.Series(told[turn_of])).then(counted).otherwise("confidence"))
    return detail, first


def _unplaced_confidence(unplaced: pl.Series) -> pl.Expr:
    """Return how far to trust the chunks' places: where nothing gives a stage, no further than their order."""
    return pl.when(unplaced).then(pl.min_horizontal("confidence", pl.lit(POSITION))).otherwise("confidence")


@dataclass(frozen=True, eq=False)
class _Piece:
    """One rank's cells in one step, and their names."""

    turn: int
    at: int
    table: pl.DataFrame
    stage: Names
    microbatch: Names
    unplaced: bool

    @classmethod
    def of(cls, turn: int, at: int, chunks: pl.DataFrame, step: _Placed) -> _Piece:
        places = step.placement.places.get(at, {})
        blocks = chunks["beside"].to_numpy().max(initial=-1) >= 0
        names = _named(chunks, places)
        if blocks:
            own = (pl.Series(name, column, pl.Int32) for name, column in names.items())
            sure = {} if places else {"confidence": _unplaced_confidence(chunks["stage"].is_null())}
            chunks = _with_blocks(chunks.with_columns(*own, **sure))
            names = {name: chunks[name].to_list() for name in names}
        return cls(turn, at, chunks, names["stage"], names["microbatch"], unplaced=not (places or blocks))


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
