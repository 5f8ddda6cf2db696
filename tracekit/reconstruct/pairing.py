"""Pairing of backwards with forwards by their messages, for ranks that hold several stages in a loop.

Without sequence numbers, backwards are paired with forwards first in, first out, which is right for one stage per rank.
In a loop the backwards of the last chunk run first. The first rank tells the order: of its backwards only those of the
first stage send nothing. Every rank runs its backwards in the same order, and micro-batches are counted within each
stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import polars as pl

from tracekit.reconstruct.chunks import CONFIDENCE_COUNTED, CONFIDENCE_POSITION
from tracekit.reconstruct.messages import find_senders
from tracekit.reconstruct.stage_assignment import Place, Placement, find_chunk_order

_IS_BACKWARD = pl.col("op").is_in(("B", "I"))


def pair_by_messages(
    chunks: Mapping[int, pl.DataFrame], messages: Mapping[int, pl.DataFrame], placement: Placement, pp: int
) -> Mapping[int, pl.DataFrame]:
    """Return the chunks of all positions, with backwards paired by messages if only their position paired them.

    Arguments are those of ``assign_stages``, and the *placement* it returned.
    """
    if placement.shape != "loop" or 0 not in chunks or not all(map(_is_paired_by_position, chunks.values())):
        return chunks
    work = chunks[0].filter(pl.col("op") != "W").sort("last_ns")
    senders = find_senders(work, messages[0].filter("send"))
    backwards = np.flatnonzero(work.select(_IS_BACKWARD).to_series().to_numpy())
    is_first_stage = ~np.isin(backwards, senders)
    order = find_chunk_order(is_first_stage.tolist(), placement.virtual, pp)
    if order is None:
        return chunks
    paired = {}
    for position, table in chunks.items():
        # Backwards take the chunks from the last to the first.
        stages = [(placement.virtual - 1 - chunk) * pp + position for chunk in order]
        with_pairs = _pair_in_order(table, stages, placement.places[position])
        if with_pairs is None:
            return chunks
        paired[position] = with_pairs
    return paired


def _is_paired_by_position(chunks: pl.DataFrame) -> bool:
    confidence = chunks.filter(_IS_BACKWARD)["confidence"]
    return len(confidence) > 0 and bool((confidence <= CONFIDENCE_POSITION).all())


def _pair_in_order(chunks: pl.DataFrame, stages: list[int], places: Mapping[int, Place]) -> pl.DataFrame | None:
    """Pair one rank's backwards, in launch order, with the forwards of these *stages*; None if they do not fit."""
    old_pairs = chunks.filter(_IS_BACKWARD).sort("launch_ns")["pair"].to_list()
    if len(old_pairs) != len(stages):
        return None
    pair_of_place = {place: pair for pair, place in places.items()}
    microbatches: Counter[int] = Counter()  # seen of each stage
    new_pairs: dict[int, int] = {}  # by the old pair
    for old_pair, stage in zip(old_pairs, stages, strict=True):
        new_pair = pair_of_place.get((stage, microbatches[stage]))
        if new_pair is None:
            return None
        new_pairs[old_pair] = new_pair
        microbatches[stage] += 1
    if len(new_pairs) != len(stages):
        return None
    is_paired = pl.col("op") != "F"
    return chunks.with_columns(
        pair=pl.when(is_paired).then(pl.col("pair").replace(new_pairs)).otherwise("pair"),
        confidence=pl.when(is_paired).then(pl.lit(CONFIDENCE_COUNTED)).otherwise("confidence"),
    )
