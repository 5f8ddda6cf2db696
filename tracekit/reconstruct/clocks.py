"""Clocks of several ranks set to one: a message leaves and arrives in kernels that run, and mostly end, together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Clocks:
    """``offset_ns[rank]``: what to add to its times; ``residual_ns``: by how much matched ends then differ (median)."""

    offset_ns: Mapping[int, int]
    residual_ns: int | None


TIGHT_NS = 30_000
"""Matched ends that agree this well among themselves are trusted to a microsecond or so."""


def align(messages: Mapping[int, pl.DataFrame]) -> Clocks:
    """Offsets from the matched sends and receives of neighbouring ranks; the lowest rank's clock stays.

    The k-th send from a to b is the k-th receive of b from a. Single messages end on both sides at about the same time:
    where these ends agree among themselves both ways, the middle is the offset. Batches end with their last message, so
    of them only this is used: nothing is received before its sending began. A clock that does not break it stays.
    """
    links = _links(messages)
    offsets: dict[int, int] = {}
    for root in sorted(messages):
        queue = [] if root in offsets else [root]
        offsets.setdefault(root, 0)
        while queue:
            here = queue.pop(0)
            for (a, b), link in links.items():
                other = b if here == a else a if here == b else here
                if other not in offsets:
                    offsets[other] = offsets[here] + (link.offset if here == a else -link.offset)
                    queue.append(other)
    left = [np.abs(link.ends + offsets[b] - offsets[a]) for (a, b), link in links.items()]
    return Clocks(offsets, int(np.median(np.concatenate(left))) if left else None)


@dataclass(frozen=True)
class _Link:
    offset: int  # to add to b's times so that they are a's
    ends: Ints  # end on b − end on a


def _links(messages: Mapping[int, pl.DataFrame]) -> dict[tuple[int, int], _Link]:
    found = {}
    for a, table in messages.items():
        for b in table["peer"].drop_nulls().unique().sort().to_list():
            if a < b and b in messages and (link := _link(table, messages[b], a, b)):
                found[a, b] = link
    return found


def _link(first: pl.DataFrame, second: pl.DataFrame, a: int, b: int) -> _Link | None:
    """Both directions of one pair of ranks."""
    low, high = -(2**62), 2**62
    ends, middles, tight = [], [], True
    for sent_by_a in (True, False):
        mine, theirs = _side(first, b, sent_by_a), _side(second, a, not sent_by_a)
        if mine.height != theirs.height or not mine.height:
            continue
        difference = (theirs["end_ns"] - mine["end_ns"]).to_numpy()
        if sent_by_a:
            low = max(low, int((mine["start_ns"] - theirs["end_ns"]).to_numpy().max()))
        else:
            high = min(high, int((mine["end_ns"] - theirs["start_ns"]).to_numpy().min()))
        single = difference[(mine["alone"] & theirs["alone"]).to_numpy()]
        middle = float(np.median(single if len(single) else difference))
        tight &= len(single) >= 4 and bool(np.median(np.abs(single - middle)) < TIGHT_NS)
        ends.append(difference)
        middles.append(middle)
    if not ends:
        return None
    guess = -int(np.mean(middles))
    if not tight:
        guess = 0 if low <= 0 <= high or low > high else int(np.clip(guess, low, high))
    return _Link(guess, np.concatenate(ends))


def _side(messages: pl.DataFrame, peer: int, send: bool) -> pl.DataFrame:
    return (
        messages.with_columns(alone=pl.len().over("kernel") == 1)
        .filter((pl.col("peer") == peer) & (pl.col("send") == send))
        .sort("launch_ns", maintain_order=True)
        .select("start_ns", "end_ns", "alone")
    )
