"""Chunks of one step on one rank: forwards, backwards and weight gradients that run apart, in launch order.

``segment`` finds the forwards and the backwards of the autograd engine. This module adds the weight gradients that ran
outside the engine (``ChunkAssembly``) and lists all chunks.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import numpy as np

from tracekit._util.arrays import Ints
from tracekit.reconstruct.kernels import AUTOGRAD, FORWARD, LOOSE_WGRAD, Kernels

CONFIDENCE_ANNOTATED = 1.0
"""Confidence of a chunk that an annotation names."""
CONFIDENCE_AUTOGRAD = 0.95
"""Confidence of a pair of forward and backward that share autograd sequence numbers."""
CONFIDENCE_COUNTED = 0.7
"""Confidence of a pair found by counting, first in, first out."""
CONFIDENCE_POSITION = 0.5
"""Confidence of a pair that only its position in the step suggests."""

_MIN_WGRAD_SHARE_OF_LATER_WALKS = 0.5
"""Share of the time of later walks over a backward's numbers above which these are its weight gradient."""
_MAX_WGRAD_SHARE_OF_SPLIT_BACKWARD = 0.02
"""Share of a backward's time in weight gradients below which its later walks are its weight gradient."""
_MAX_WGRAD_INSIDE_SPLIT_BACKWARD = 0.5
"""Weight gradient time inside a backward that left its weight gradients out, relative to what was left out."""


class StepChunks(msgspec.Struct, frozen=True, eq=False):
    """Chunks of one rank and step, in launch order, and the chunk of each kernel."""

    op: list[str]  # F, I, W or B
    pair: Ints  # index of the forward that the chunk belongs to; forwards are numbered in launch order
    confidence: list[float]
    chunk: Ints  # of each kernel; -1: none
    from_ranges: bool = False  # cut by the ``PP:`` ranges of the run


ChunkOwners = list[int]
"""Chunks as they are found. A chunk is one backward with its forward, which owns itself, or a weight gradient that ran
apart, which the chunk of its backward owns."""


def add_backward(owners: ChunkOwners) -> int:
    """Add a chunk for a backward with its forward; return its index."""
    owners.append(len(owners))
    return len(owners) - 1


def chunks_of_walks(walk: Ints, owner: Ints, kernels: Kernels) -> tuple[ChunkOwners, Ints]:
    """Turn the walks of the autograd engine into chunks.

    Every first walk over some numbers is a backward. Later walks over the same numbers are one weight gradient if
    weight gradients take most of their time or the backward has hardly any; otherwise they belong to the backward.
    There may be many: an engine can be called for one group of parameters after another.

    Args:
        walk: Walk of each kernel of the engine, as ``find_walks`` returns it.
        owner: For each walk the walk that first visited its numbers.
        kernels: The kernels of the step.

    Returns:
        The chunks, and the chunk of each walk.

    """
    count = len(owner)
    autograd = kernels.rows_of(AUTOGRAD)
    duration = kernels.duration_ns[autograd]
    total_ns = np.bincount(walk, duration, count)
    wgrad_ns = np.bincount(walk, duration * kernels.is_wgrad[autograd], count)
    is_later = owner != np.arange(count)
    later_ns = np.bincount(owner[is_later], total_ns[is_later], count)
    later_wgrad_ns = np.bincount(owner[is_later], wgrad_ns[is_later], count)
    is_split = (later_wgrad_ns > _MIN_WGRAD_SHARE_OF_LATER_WALKS * later_ns) | (
        wgrad_ns < _MAX_WGRAD_SHARE_OF_SPLIT_BACKWARD * total_ns
    )
    owners: ChunkOwners = []
    chunk_of_walk = np.zeros(count, np.int64)
    weight_chunk: dict[int, int] = {}  # by the walk of the backward
    for index, first in enumerate(owner.tolist()):
        if first == index:
            chunk_of_walk[index] = add_backward(owners)
        elif is_split[first]:
            if first not in weight_chunk:
                weight_chunk[first] = len(owners)
                owners.append(int(chunk_of_walk[first]))
            chunk_of_walk[index] = weight_chunk[first]
        else:
            chunk_of_walk[index] = chunk_of_walk[first]
    return owners, chunk_of_walk


def split_at_barriers(rows: Ints, host_ns: Ints, barrier_ns: Ints) -> list[Ints]:
    """Split *rows*, which are in launch order, wherever a barrier was launched between two of them."""
    barriers_before = np.searchsorted(barrier_ns, host_ns[rows], side="right")
    return np.split(rows, np.flatnonzero(np.diff(barriers_before)) + 1)


class _Chunk(msgspec.Struct, frozen=True, eq=False):
    op: str
    pair: int  # chunk of the backward in ``ChunkOwners``
    rows: Ints
    confidence: float


@dataclass(eq=False)
class ChunkAssembly:
    """The kernels of a step with the chunks found so far; ``finish`` adds loose weight gradients and lists the chunks.

    A loose weight gradient ran outside the autograd engine and has no sequence number. Loose weight gradients are taken
    in runs that no other work interrupts. A run inside a backward belongs to it. The others are counted off against the
    backwards that have no weight gradients, first in, first out.
    """

    kernels: Kernels
    chunk_of_row: Ints
    owners: ChunkOwners
    paired_by_position: set[int]  # chunks whose forward and backward only their position ties
    absorbed: set[int] = field(default_factory=set)  # chunks that loose weight gradients joined
    forward_rows: dict[int, Ints] = field(init=False)  # by chunk
    autograd_rows: dict[int, Ints] = field(init=False)  # by chunk, with the loose weight gradients that joined

    def __post_init__(self) -> None:
        """Group the rows by chunk."""
        self.forward_rows = self._rows_by_chunk(FORWARD)
        self.autograd_rows = self._rows_by_chunk(AUTOGRAD)

    def _is_weight(self, chunk: int) -> bool:
        return self.owners[chunk] != chunk

    def _rows_by_chunk(self, category: int) -> dict[int, Ints]:
        rows = np.flatnonzero((self.kernels.category == category) & (self.chunk_of_row >= 0))
        if not len(rows):
            return {}
        rows = rows[np.argsort(self.chunk_of_row[rows], kind="stable")]
        chunks, first = np.unique(self.chunk_of_row[rows], return_index=True)
        return dict(zip(chunks.tolist(), np.split(rows, first[1:]), strict=True))

    def finish(self) -> StepChunks:
        """Return all chunks in launch order, with pairs numbered by their forwards."""
        loose = self._loose_weights()
        split = {chunk.pair for chunk in loose}
        split |= {self.owners[chunk] for chunk in self.autograd_rows if self._is_weight(chunk)}
        listed: list[_Chunk] = []
        for chunk, rows in self.forward_rows.items():
            is_sure = chunk in self.autograd_rows and chunk not in self.paired_by_position
            listed.append(_Chunk("F", chunk, rows, CONFIDENCE_AUTOGRAD if is_sure else CONFIDENCE_POSITION))
        for chunk, rows in self.autograd_rows.items():
            pair = self.owners[chunk]
            op = "W" if self._is_weight(chunk) else "I" if pair in split else "B"
            confidence = CONFIDENCE_POSITION if pair in self.paired_by_position else CONFIDENCE_AUTOGRAD
            listed.append(_Chunk(op, pair, rows, confidence))
        listed = sorted([*listed, *loose], key=lambda chunk: int(self.kernels.host_ns[chunk.rows[0]]))
        # Pairs are numbered in the order of their forwards; those without a forward come behind.
        pairs = [*(chunk.pair for chunk in listed if chunk.op == "F"), *(chunk.pair for chunk in listed)]
        number_of_pair = {pair: number for number, pair in enumerate(dict.fromkeys(pairs))}
        chunk_of_row = np.full(len(self.chunk_of_row), -1, np.int64)
        for index, listed_chunk in enumerate(listed):
            chunk_of_row[listed_chunk.rows] = index
        return StepChunks(
            op=[chunk.op for chunk in listed],
            pair=np.array([number_of_pair[chunk.pair] for chunk in listed], np.int64),
            confidence=[chunk.confidence for chunk in listed],
            chunk=chunk_of_row,
        )

    def _loose_weights(self) -> list[_Chunk]:
        """Return the chunks of loose weight gradients; those inside a backward are added to its rows instead."""
        loose = self.kernels.rows_of(LOOSE_WGRAD)
        if not len(loose):
            return []
        host_ns = self.kernels.host_ns
        placed_ns = host_ns[self.chunk_of_row >= 0]
        barrier_ns = np.sort(np.concatenate([placed_ns, self.kernels.message_ns]))
        runs = self._absorb(split_at_barriers(loose, host_ns, barrier_ns))
        waiting = self._backwards_without_weights(runs)
        weights = []
        for rows in _split_evenly(runs, len(waiting)):
            launch = int(host_ns[rows[0]])
            started = (chunk for chunk in waiting if host_ns[self.autograd_rows[chunk][0]] < launch)
            backward = next(started, None)
            if backward is None:
                continue
            waiting.remove(backward)
            is_sure = self._follows_directly(launch, backward, placed_ns)
            weights.append(_Chunk("W", backward, rows, CONFIDENCE_AUTOGRAD if is_sure else CONFIDENCE_COUNTED))
        return weights

    def _absorb(self, runs: list[Ints]) -> list[Ints]:
        """Add runs launched inside a backward, or right at its end, to the backward; return the other runs."""
        host_ns = self.kernels.host_ns
        spans = sorted(
            (int(host_ns[rows[0]]), int(host_ns[rows[-1]]), chunk) for chunk, rows in self.autograd_rows.items()
        )
        if not spans:
            return runs
        first_ns, last_ns, chunks = np.array(spans, np.int64).T
        outside = []
        for rows in runs:
            launch = host_ns[rows[0]]
            around = np.flatnonzero((first_ns < launch) & (launch < last_ns))
            if len(around):
                self._join(rows, int(chunks[around[-1]]))
            else:
                outside.append(rows)
        placed = np.flatnonzero(self.chunk_of_row >= 0)
        kept = []
        for rows in outside:
            neighbour = self._chunk_beside(rows, placed)
            if neighbour is None:
                kept.append(rows)
            else:
                self._join(rows, neighbour)
        return kept

    def _chunk_beside(self, rows: Ints, placed: Ints) -> int | None:
        """Return the chunk that a run belongs to because it lies right behind or right before its kernels, if any.

        Right behind: a weight gradient of the engine, or a backward that loose weight gradients have joined already.
        Right before: a weight gradient of the engine.
        """
        following = int(np.searchsorted(placed, rows[0]))
        for index, is_before in ((following - 1, False), (following, True)):
            if not 0 <= index < len(placed) or self.kernels.category[placed[index]] != AUTOGRAD:
                continue
            chunk = int(self.chunk_of_row[placed[index]])
            if self._is_weight(chunk) or (chunk in self.absorbed and not is_before):
                return chunk
        return None

    def _join(self, rows: Ints, chunk: int) -> None:
        self.absorbed.add(chunk)
        self.autograd_rows[chunk] = np.sort(np.concatenate([self.autograd_rows[chunk], rows]))

    def _backwards_without_weights(self, runs: Iterable[Ints]) -> list[int]:
        """Return the backwards that left out weight gradients, in the order they ended.

        These have far less weight gradient time inside than the mean outside. A few kernels inside are no counter-
        evidence: gradients of norms and biases stay inside autograd.
        """
        duration, is_wgrad = self.kernels.duration_ns, self.kernels.is_wgrad
        backwards = [c for c in self.autograd_rows if not self._is_weight(c) and c not in self.absorbed]
        inside_ns = {chunk: float(duration[rows][is_wgrad[rows]].sum()) for chunk, rows in self.autograd_rows.items()}
        outside_ns = float(sum(duration[rows].sum() for rows in runs))
        candidates = backwards
        for _ in range(2):  # the mean outside depends on how many backwards share it
            max_inside_ns = _MAX_WGRAD_INSIDE_SPLIT_BACKWARD * outside_ns / max(1, len(candidates))
            candidates = [chunk for chunk in backwards if inside_ns[chunk] < max_inside_ns]
        return sorted(candidates, key=lambda chunk: int(self.kernels.host_ns[self.autograd_rows[chunk][-1]]))

    def _follows_directly(self, launch: int, backward: int, placed_ns: Ints) -> bool:
        """Return whether nothing but the backward's own forward was launched between it and *launch*."""
        end = int(self.kernels.host_ns[self.autograd_rows[backward][-1]])
        own_rows = self.forward_rows.get(backward)
        own = 0 if own_rows is None else _count_between(self.kernels.host_ns[own_rows], end, launch)
        return _count_between(placed_ns, end, launch) == own


def _count_between(ascending: Ints, after: int, before: int) -> int:
    """Return how many values lie strictly between two moments."""
    return max(0, int(np.searchsorted(ascending, before) - np.searchsorted(ascending, after, side="right")))


def _split_evenly(runs: list[Ints], wanted: int) -> list[Ints]:
    """Split runs into about *wanted* parts of equal length; drop runs much shorter than such a part.

    Several weight gradients in a row look like one long run.
    """
    total = sum(len(rows) for rows in runs)
    if not wanted or not total:
        return []
    length = total / wanted
    parts: list[Ints] = []
    for rows in runs:
        count = min(round(len(rows) / length), len(rows))
        if count:
            parts += np.array_split(rows, count)
    return parts
