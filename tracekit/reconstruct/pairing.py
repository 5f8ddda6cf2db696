"""Which forward each backward belongs to, where nothing recorded ties them and ranks hold several stages in a loop.

Without sequence numbers backwards are tied to forwards first in, first out, which is right for one stage a rank. In a
loop the last chunk's backwards run first. The first rank tells: of its backwards only those of the first stage send
nothing on. Every rank runs its backwards in the same order, and micro-batches are counted off within each stage.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from tracekit.reconstruct.chunks import COUNTED, POSITION
from tracekit.reconstruct.messages import senders
from tracekit.reconstruct.place import Placement

_BACK = ("B", "I")


def tied_by_messages(
    chunks: Mapping[int, pl.DataFrame], messages: Mapping[int, pl.DataFrame], placement: Placement, pp: int
) -> Mapping[int, pl.DataFrame]:
    """Return the chunks of all positions, with backwards paired by their messages where only order paired them."""
    if placement.shape != "loop" or 0 not in chunks or not _guessed(chunks):
        return chunks
    first = chunks[0].filter(pl.col("op") != "W").sort("last_ns")
    sent = np.unique(senders(first, messages[0].filter("send")))
    back = first["op"].is_in(_BACK).to_numpy()
    silent = ~np.isin(np.flatnonzero(back), sent)
    order = _chunk_order(silent.tolist(), placement.virtual, pp)
    if order is None:
        return chunks
    tied = {at: _tied(table, order, placement.places[at], at, pp) for at, table in chunks.items()}
    return (
        chunks if any(table is None for table in tied.values()) else {at: t for at, t in tied.items() if t is not None}
    )


def _guessed(chunks: Mapping[int, pl.DataFrame]) -> bool:
    backs = [table.filter(pl.col("op").is_in(_BACK))["confidence"] for table in chunks.values()]
    return all(len(sure) and bool((sure <= POSITION).all()) for sure in backs)


def _chunk_order(ends: list[bool], virtual: int, pp: int) -> list[int] | None:
    """Return each backward's chunk, counted from the first stage; groups of micro-batches must explain the *ends*.

    >>> _chunk_order([False, False, True, True], 2, 2)
    [1, 1, 0, 0]
    """
    microbatches = sum(ends)
    if not microbatches or len(ends) != virtual * microbatches:
        return None
    if virtual == 2:
        return [0 if end else 1 for end in ends]
    for group in sorted(range(1, microbatches + 1), key=lambda g: (g != pp, g)):
        order = [
            chunk
            for first in range(0, microbatches, group)
            for chunk in reversed(range(virtual))
            for _ in range(min(group, microbatches - first))
        ]
        if [chunk == 0 for chunk in order] == ends:
            return order
    return None


def _tied(
    chunks: pl.DataFrame, order: list[int], places: Mapping[int, tuple[int, int]], at: int, pp: int
) -> pl.DataFrame | None:
    """Return one rank's chunks with its backwards paired anew; None where they are not as many as the first rank's."""
    rows = chunks.with_row_index("row").filter(pl.col("op").is_in(_BACK)).sort("launch_ns")
    if len(rows) != len(order):
        return None
    pair_of = {place: pair for pair, place in places.items()}
    seen: dict[int, int] = {}
    new: dict[int, int] = {}  # by the pair it was tied to before
    for before, chunk in zip(rows["pair"].to_list(), order, strict=True):
        stage = chunk * pp + at
        forward_pair = pair_of.get((stage, seen.get(stage, 0)))
        if forward_pair is None:
            return None
        new[before] = forward_pair
        seen[stage] = seen.get(stage, 0) + 1
    if len(new) != len(order):
        return None
    follows = pl.col("op") != "F"
    return chunks.with_columns(
        pair=pl.when(follows).then(pl.col("pair").replace(new)).otherwise("pair"),
        confidence=pl.when(follows).then(pl.lit(COUNTED)).otherwise("confidence"),
    )
