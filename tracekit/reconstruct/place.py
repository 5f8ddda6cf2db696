"""Stages and micro-batches of chunks, from what was sent to whom.

A forward that sends to the next rank and a forward that sends back to the one before it belong to different stages.
Messages between two ranks arrive in the order they were sent, so the k-th forward of a stage on one rank is the k-th
on the next, and counting is enough once each forward's stage on its rank is known:

- every forward goes to the next rank, the last rank sends none: one stage per rank;
- the last rank sends some back to the first: several stages per rank, in a loop;
- forwards go both ways: two stages per rank, either the legs of a V or two pipelines in opposite directions. The last
  rank tells: in a V it begins with what it received, in the other case with micro-batches of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import polars as pl

Place = tuple[int, int]
"""Stage and micro-batch."""


class Placement(msgspec.Struct, frozen=True):
    """``places[position][pair]``: stage and micro-batch; empty, with a reason, where they are not known."""

    shape: str  # "line", "loop", "V", "two-way" or "unknown"
    virtual: int
    places: Mapping[int, Mapping[int, Place]]
    reason: str = ""


def place(chunks: Mapping[int, pl.DataFrame], messages: Mapping[int, pl.DataFrame], pp: int) -> Placement:
    """Return stage and micro-batch of every pair, by position in the pipeline. *messages* hold positions, not ranks."""
    goes = {at: forward_peers(chunks[at], messages[at]) for at in chunks}
    if pp == 1:
        return _line(goes, chunks)
    if any(peer is None for m in messages.values() for send, peer in _sends(m) if send):
        return Placement("unknown", 1, {}, "the trace does not say who the messages went to")
    if _both_ways(goes, pp):
        return _two_ways(goes, pp)
    if _wraps(goes, pp):
        return _loop(goes, pp)
    if pp > 2 and 0 in messages and pp - 1 in messages[0]["peer"].to_list():
        return Placement("unknown", 1, {}, "without the last rank the chunks of a loop cannot be told apart")
    return _line(goes, chunks)


def _sends(messages: pl.DataFrame) -> Iterator[tuple[bool, int | None]]:
    return zip(messages["send"].to_list(), messages["peer"].to_list(), strict=True)


def forward_peers(chunks: pl.DataFrame, messages: pl.DataFrame) -> list[int | None]:
    """Return, for each forward in launch order, the position its output was sent to, None for nowhere.

    What is sent between two chunks belongs to the chunks launched last before it. Where a forward and a backward send
    together to different ranks, forwards that sent alone tell which way forwards go.
    """
    every, last, launch = chunks["op"].to_list(), chunks["last_ns"].to_numpy(), messages["launch_ns"].to_numpy()
    work = np.array([row for row, kind in enumerate(every) if kind != "W"], np.int64)
    work = work[np.argsort(last[work], kind="stable")]
    sends = np.flatnonzero(messages["send"].to_numpy())
    sends = sends[np.argsort(launch[sends], kind="stable")]
    done = np.searchsorted(last[work], launch[sends], side="right")
    own, peers_of = chunks["pair"].to_list(), messages["peer"].to_list()
    op, pairs, to = [every[row] for row in work], [own[row] for row in work], [peers_of[row] for row in sends]
    peer_of: dict[int, int] = {}
    mixed: list[tuple[list[tuple[str, int]], list[int]]] = []
    before = 0
    counts, first = np.unique(done, return_index=True)  # launch order: done never falls
    for count, a, b in zip(counts.tolist(), first.tolist(), [*first.tolist(), len(to)][1:], strict=True):
        if b - a == 1 and count:  # a message by itself is of the chunk before it
            if op[count - 1] == "F":
                peer_of[pairs[count - 1]] = to[a]
            before = count
            continue
        peers = to[a:b]
        span = slice(before, count)
        launched, before = list(zip(op[span], pairs[span], strict=True))[-len(peers) :], count
        if len(launched) == 1 or len(set(peers)) == 1:
            peer_of |= {pair: peer for (kind, pair), peer in zip(launched, peers, strict=False) if kind == "F"}
        elif launched:
            mixed.append((launched, peers))
    usual = set(peer_of.values())
    for launched, peers in mixed:
        left = [p for p in peers if p in usual] or list(peers)
        for kind, pair in launched:
            if kind == "F":
                peer_of[pair] = left.pop(0) if left else peers[0]
    return [peer_of.get(pair) for kind, pair in zip(every, own, strict=True) if kind == "F"]


def _both_ways(goes: Mapping[int, list[int | None]], pp: int) -> bool:
    inner = any(to == at - 1 for at, peers in goes.items() if 0 < at < pp - 1 for to in peers)
    ends = pp == 2 and 0 in goes and any(to is None for to in goes[0]) and any(to == 1 for to in goes[0])
    return inner or ends


def _wraps(goes: Mapping[int, list[int | None]], pp: int) -> bool:
    return pp - 1 in goes and any(to == 0 for to in goes[pp - 1])


def _count(stages: list[int], first: Mapping[int, int] | None = None) -> dict[int, Place]:
    """Micro-batches counted off within each stage."""
    seen: dict[int, int] = dict(first or {})
    places = {}
    for pair, stage in enumerate(stages):
        number = seen.get(stage, 0)
        places[pair] = (stage, number)
        seen[stage] = number + 1
    return places


def _line(goes: Mapping[int, list[int | None]], chunks: Mapping[int, pl.DataFrame]) -> Placement:
    """One stage per rank; backwards whose forward is not in the trace are numbered after the others."""
    pairs = {at: len(set(chunks[at]["pair"].to_list())) for at in goes}
    return Placement("line", 1, {at: _count([at] * max(len(peers), pairs[at])) for at, peers in goes.items()})


def _two_ways(goes: Mapping[int, list[int | None]], pp: int) -> Placement:
    last = goes.get(pp - 1)
    if not last:
        return Placement(
            "unknown", 2, {}, "without the last rank's forwards a V cannot be told from two opposite pipelines"
        )
    opposite = last[0] is not None
    places = {}
    for at, peers in goes.items():
        down = [to is None if at == pp - 1 else to == at + 1 for to in peers]
        if opposite:
            half = len(peers) // 2
            mirror = {pp - 1 - at: half} if at != pp - 1 - at else {}
            places[at] = _count([at if way else pp - 1 - at for way in down], mirror)
        else:
            places[at] = _count([at if way else 2 * pp - 1 - at for way in down])
    return Placement("two-way" if opposite else "V", 2, places)


def _loop(goes: Mapping[int, list[int | None]], pp: int) -> Placement:
    """Every rank runs its forwards in the same order; the last rank's tell which belong to the last chunk."""
    ends = [to is None for to in goes[pp - 1]]
    total, microbatches = len(ends), sum(ends)
    if not microbatches or total % microbatches:
        return Placement("unknown", 1, {}, "the last rank's sends do not divide into chunks")
    virtual = total // microbatches
    chunks = _chunk_order(ends, virtual, pp)
    if chunks is None:
        return Placement("unknown", virtual, {}, f"the order of {virtual} chunks per rank is not a known one")
    if any(len(peers) != total for peers in goes.values()):
        return Placement("unknown", virtual, {}, "the ranks ran different numbers of forwards")
    return Placement("loop", virtual, {at: _count([c * pp + at for c in chunks]) for at in goes})


def _chunk_order(ends: list[bool], virtual: int, pp: int) -> list[int] | None:
    """Return each forward's chunk: with two, from the ends; with more, groups of micro-batches must explain them."""
    if virtual == 2:
        return [int(end) for end in ends]
    microbatches = sum(ends)
    for group in sorted(range(1, microbatches + 1), key=lambda g: (g != pp, g)):
        order = [
            chunk
            for first in range(0, microbatches, group)
            for chunk in range(virtual)
            for _ in range(min(group, microbatches - first))
        ]
        if [chunk == virtual - 1 for chunk in order] == ends:
            return order
    return None
