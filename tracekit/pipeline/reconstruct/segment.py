"""Cutting of one rank's kernels into chunks: forwards, backwards and weight gradients that run apart.

The order in which the host launched kernels says more than the GPU's clock. Where the run names its
cells with ``PP:`` ranges, these decide (``cut_by_ranges``). Otherwise a backward is a walk of the
autograd engine down the sequence numbers (``find_walks``), and its forward is made of the forward
kernels with the same numbers. Weight gradients outside the engine have no number: they are counted
off against the backwards that left them out (``ChunkAssembly``).
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints, as_int64
from tracekit._util.values import first_that_holds
from tracekit.pipeline.reconstruct.kernels import (
    AUTOGRAD,
    FORWARD,
    KERNEL_COLUMNS,
    LOOSE_WGRAD,
    Kernels,
)
from tracekit.pipeline.reconstruct.walks import find_walks

CONFIDENCE_ANNOTATED = 1.0
"""Confidence of a chunk that an annotation names."""
CONFIDENCE_AUTOGRAD = 0.95
"""Confidence of a pair of forward and backward that share autograd sequence numbers."""
CONFIDENCE_COUNTED = 0.7
"""Confidence of a pair found by counting, first in, first out."""
CONFIDENCE_POSITION = 0.5
"""Confidence of a pair that only its position in the step suggests."""

_MIN_WGRAD_SHARE_OF_LATER_WALKS = 0.5
"""Share of the time of later walks over a backward's numbers above which these are its weight
gradient."""
_MAX_WGRAD_SHARE_OF_SPLIT_BACKWARD = 0.02
"""Share of a backward's time in weight gradients below which its later walks are its weight
gradient."""
_MAX_WGRAD_INSIDE_SPLIT_BACKWARD = 0.5
"""Weight gradient time inside a backward that left its weight gradients out, relative to what was
left out."""


class StepChunks(msgspec.Struct, frozen=True, eq=False):
    """Chunks of one rank and step, in launch order, and the chunk of each kernel."""

    op: list[str]  # F, I, W or B
    pair: Ints  # index of the forward that the chunk belongs to; forwards are numbered in launch order
    confidence: list[float]
    chunk: Ints  # of each kernel; -1: none
    from_ranges: bool = False  # cut by the ``PP:`` ranges of the run


ChunkOwners = list[int]
"""Chunks as they are found. A chunk is one backward with its forward, which owns itself, or a
weight gradient that ran apart, which the chunk of its backward owns."""


def add_backward(owners: ChunkOwners) -> int:
    """Add a chunk for a backward with its forward; return its index."""
    owners.append(len(owners))
    return len(owners) - 1


def chunks_of_walks(walk: Ints, owner: Ints, kernels: Kernels) -> tuple[ChunkOwners, Ints]:
    """Turn the walks of the autograd engine into chunks.

    Every first walk over some numbers is a backward. Later walks over the same numbers are one
    weight gradient if weight gradients take most of their time or the backward has hardly any;
    otherwise they belong to the backward. There may be many: an engine can be called for one group
    of parameters after another.

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


_MAX_SHARE_OF_STRAY_FORWARD = 0.3
"""Share of the median forward's time up to which a run of unmatched forward kernels joins the
nearest forward."""
_NO_NUMBER = np.iinfo(np.int64).max


def segment_steps(rows: pl.DataFrame) -> list[tuple[int, Ints, StepChunks]]:
    """Cut each step into chunks.

    Args:
        rows: GPU events of a rank, as ``prepare`` returns them.

    Returns:
        For each step, ascending: its number, the indices of its rows, and its chunks.

    """
    of_kernels = rows.select("step", *KERNEL_COLUMNS).with_row_index("row")
    numbered = of_kernels.drop_nulls("step").sort("step", maintain_order=True)
    steps = numbered.partition_by("step", maintain_order=True)
    chunks_of_steps = []
    for step in steps:
        rows_of_step = as_int64(step["row"].to_numpy())
        chunks_of_steps.append((step["step"][0], rows_of_step, segment_step(Kernels(step))))
    return chunks_of_steps


def segment_step(kernels: Kernels) -> StepChunks:
    """Cut the kernels of one step into chunks: by the run's own ranges, else by evidence."""
    return cut_by_ranges(kernels) or cut_by_evidence(kernels)


def cut_by_evidence(kernels: Kernels) -> StepChunks:
    """Cut the kernels of one step into chunks without using ranges."""
    walk, owner = find_walks(kernels)
    owners, chunk_of_walk = chunks_of_walks(walk, owner, kernels)
    chunk_of_row = np.full(len(kernels.category), -1, np.int64)
    chunk_of_row[kernels.rows_of(AUTOGRAD)] = chunk_of_walk[walk]
    _match_forwards(chunk_of_row, kernels, owners)
    _place_unmatched_forwards(chunk_of_row, kernels, owners)
    paired_by_position = _pair_orphan_backwards(chunk_of_row, kernels, owners)
    return ChunkAssembly(kernels, chunk_of_row, owners, paired_by_position).finish()


def _is_weight(owners: ChunkOwners) -> Bools:
    """Return which chunks are weight gradients that ran apart."""
    is_weight: Bools = np.array(owners, np.int64) != np.arange(len(owners))
    return is_weight


def _match_forwards(chunk_of_row: Ints, kernels: Kernels, owners: ChunkOwners) -> None:
    """Assign each forward kernel to the backward whose range of sequence numbers includes the kernel's number."""
    forward = kernels.rows_of(FORWARD)
    autograd = kernels.rows_of(AUTOGRAD)
    numbered = autograd[kernels.number[autograd] >= 0]
    numbered = numbered[~_is_weight(owners)[chunk_of_row[numbered]]]
    if not len(numbered):
        return
    lowest = np.full(len(owners), _NO_NUMBER)
    highest = np.full(len(owners), -1, np.int64)
    np.minimum.at(lowest, chunk_of_row[numbered], kernels.number[numbered])
    np.maximum.at(highest, chunk_of_row[numbered], kernels.number[numbered])
    # The candidate for a number is the backward with the highest lowest number that is not above
    # it.
    by_lowest = np.argsort(lowest, kind="stable")
    number = kernels.number[forward]
    position = np.searchsorted(lowest[by_lowest], number, side="right") - 1
    candidate = by_lowest[np.maximum(position, 0)]
    is_inside = (position >= 0) & (number >= 0) & (number <= highest[candidate])
    chunk_of_row[forward[is_inside]] = candidate[is_inside]


def _place_unmatched_forwards(chunk_of_row: Ints, kernels: Kernels, owners: ChunkOwners) -> None:
    """Assign the forward kernels that belong to no backward.

    A run of them joins the forward next to it if no message was launched between. A short run joins
    the forward launched nearest in time, unless that one's backward had begun: then it is something
    else, such as gradients scaled at the end of the step. Any other run is a forward whose backward
    is not in the trace, and a chunk of its own.
    """
    host_ns = kernels.host_ns
    duration = kernels.duration_ns
    forward = kernels.rows_of(FORWARD)
    matched = forward[chunk_of_row[forward] >= 0]
    unmatched = forward[chunk_of_row[forward] < 0]
    if not len(unmatched):
        return
    placed = np.flatnonzero(chunk_of_row >= 0)  # forward and autograd kernels that have a chunk
    is_matched = np.zeros(len(chunk_of_row), bool)
    is_matched[matched] = True
    max_stray_ns = 0.0
    if len(matched):
        chunk_of_matched = chunk_of_row[matched]
        forward_ns = np.bincount(chunk_of_matched, duration[matched])[np.unique(chunk_of_matched)]
        max_stray_ns = _MAX_SHARE_OF_STRAY_FORWARD * np.median(forward_ns)
    backward_began_ns = np.full(len(owners), np.iinfo(np.int64).max)
    autograd = placed[~is_matched[placed]]
    np.minimum.at(backward_began_ns, chunk_of_row[autograd], host_ns[autograd])
    messages_before = np.searchsorted(kernels.message_ns, host_ns)
    barrier_ns = np.sort(np.concatenate([host_ns[placed], kernels.message_ns]))
    for rows in split_at_barriers(unmatched, host_ns, barrier_ns):
        first = rows[0]
        following = int(np.searchsorted(placed, first))
        # The placed kernels right before and right behind.
        neighbours = placed[max(following - 1, 0) : following + 1]
        neighbours = neighbours[
            is_matched[neighbours] & (messages_before[neighbours] == messages_before[first])
        ]
        if len(neighbours):
            chunk_of_row[rows] = chunk_of_row[neighbours[0]]
        elif len(matched) and duration[rows].sum() < max_stray_ns:
            nearest = chunk_of_row[matched[np.argmin(np.abs(host_ns[matched] - host_ns[first]))]]
            if host_ns[first] < backward_began_ns[nearest]:
                chunk_of_row[rows] = nearest
        else:
            chunk_of_row[rows] = add_backward(owners)


def _pair_orphan_backwards(chunk_of_row: Ints, kernels: Kernels, owners: ChunkOwners) -> set[int]:
    """Pair backwards whose numbers no forward has with forwards that have no backward, first in, first out.

    Recomputed layers are an example: the backward walks over new numbers. An orphan backward is
    then a run of its kernels that no forward, no other backward and no message interrupts.

    Returns:
        The chunks that were paired by position alone.

    """
    host_ns = kernels.host_ns
    forward = np.flatnonzero((kernels.category == FORWARD) & (chunk_of_row >= 0))
    autograd = np.flatnonzero((kernels.category == AUTOGRAD) & (chunk_of_row >= 0))
    forward_chunks, first = np.unique(chunk_of_row[forward], return_index=True)
    launch_of_forward = dict(
        zip(forward_chunks.tolist(), host_ns[forward[first]].tolist(), strict=True)
    )
    has_forward = np.isin(chunk_of_row[autograd], forward_chunks)
    orphan = autograd[~(has_forward | _is_weight(owners)[chunk_of_row[autograd]])]
    unpaired = launch_of_forward.keys() - set(chunk_of_row[autograd].tolist())
    if not len(orphan) or not unpaired:
        return set()
    waiting = deque(sorted(unpaired, key=lambda chunk: launch_of_forward[chunk]))
    is_other = np.isin(kernels.category, (FORWARD, AUTOGRAD))
    is_other[orphan] = False
    barrier_ns = np.sort(np.concatenate([host_ns[is_other], kernels.message_ns]))
    paired = set()
    for rows in split_at_barriers(orphan, host_ns, barrier_ns):
        if waiting and launch_of_forward[waiting[0]] < host_ns[rows[0]]:
            chunk = waiting.popleft()
            paired.add(chunk)
            chunk_of_row[rows] = chunk
    return paired


class _Chunk(msgspec.Struct, frozen=True, eq=False):
    op: str
    pair: int  # chunk of the backward in ``ChunkOwners``
    rows: Ints
    confidence: float


@dataclass(eq=False)
class ChunkAssembly:
    """The kernels of a step with the chunks found so far.

    ``finish`` adds loose weight gradients and lists the chunks.

    A loose weight gradient ran outside the autograd engine and has no sequence number. Loose weight
    gradients are taken in runs that no other work interrupts. A run inside a backward belongs to
    it. The others are counted off against the backwards that have no weight gradients, first in,
    first out.
    """

    kernels: Kernels
    chunk_of_row: Ints
    owners: ChunkOwners
    paired_by_position: set[int]  # chunks whose forward and backward only their position ties
    absorbed: set[int] = field(default_factory=set)  # chunks that loose weight gradients joined
    forward_rows: dict[int, Ints] = field(init=False)  # by chunk
    # By chunk, with the loose weight gradients that joined.
    autograd_rows: dict[int, Ints] = field(init=False)

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
        for chunk in self.autograd_rows:
            if self._is_weight(chunk):
                split.add(self.owners[chunk])
        listed: list[_Chunk] = []
        for chunk, rows in self.forward_rows.items():
            is_sure = chunk in self.autograd_rows and chunk not in self.paired_by_position
            confidence = CONFIDENCE_AUTOGRAD if is_sure else CONFIDENCE_POSITION
            listed.append(_Chunk("F", chunk, rows, confidence))
        for chunk, rows in self.autograd_rows.items():
            pair = self.owners[chunk]
            cases = [  # the first that holds decides
                (self._is_weight(chunk), "W"),
                (pair in split, "I"),
                (True, "B"),
            ]
            is_sure = pair not in self.paired_by_position
            confidence = CONFIDENCE_AUTOGRAD if is_sure else CONFIDENCE_POSITION
            listed.append(_Chunk(first_that_holds(cases), pair, rows, confidence))
        listed += loose
        listed.sort(key=lambda chunk: int(self.kernels.host_ns[chunk.rows[0]]))
        # Pairs are numbered in the order of their forwards; those without a forward come behind.
        number_of_pair: dict[int, int] = {}
        forwards = [chunk for chunk in listed if chunk.op == "F"]
        for listed_chunk in (*forwards, *listed):
            number_of_pair.setdefault(listed_chunk.pair, len(number_of_pair))
        op: list[str] = []
        pair_numbers: list[int] = []
        confidences: list[float] = []
        chunk_of_row = np.full(len(self.chunk_of_row), -1, np.int64)
        for index, listed_chunk in enumerate(listed):
            op.append(listed_chunk.op)
            pair_numbers.append(number_of_pair[listed_chunk.pair])
            confidences.append(listed_chunk.confidence)
            chunk_of_row[listed_chunk.rows] = index
        return StepChunks(
            op=op,
            pair=np.array(pair_numbers, np.int64),
            confidence=confidences,
            chunk=chunk_of_row,
        )

    def _loose_weights(self) -> list[_Chunk]:
        """Return the chunks of loose weight gradients.

        Those inside a backward are added to its rows instead.
        """
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
            backward = self._first_started(waiting, launch)
            if backward is None:
                continue
            waiting.remove(backward)
            is_sure = self._follows_directly(launch, backward, placed_ns)
            confidence = CONFIDENCE_AUTOGRAD if is_sure else CONFIDENCE_COUNTED
            weights.append(_Chunk("W", backward, rows, confidence))
        return weights

    def _first_started(self, backwards: list[int], launch_ns: int) -> int | None:
        """Return the first of the *backwards* that was launched before a moment; None if none was."""
        for chunk in backwards:
            first_row = self.autograd_rows[chunk][0]
            if self.kernels.host_ns[first_row] < launch_ns:
                return chunk
        return None

    def _absorb(self, runs: list[Ints]) -> list[Ints]:
        """Add runs launched inside a backward, or right at its end, to the backward.

        Return the other runs.
        """
        host_ns = self.kernels.host_ns
        spans = [
            (host_ns[rows[0]], host_ns[rows[-1]], chunk)
            for chunk, rows in self.autograd_rows.items()
        ]
        spans.sort()
        outside = []
        for rows in runs:
            around = [
                chunk for first_ns, last_ns, chunk in spans if first_ns < host_ns[rows[0]] < last_ns
            ]
            if around:
                self._join(rows, around[-1])
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

        Right behind: a weight gradient of the engine, or a backward that loose weight gradients
        have joined already. Right before: a weight gradient of the engine.
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

        These have far less weight gradient time inside than the mean outside. A few kernels inside
        are no counter- evidence: gradients of norms and biases stay inside autograd.
        """
        duration = self.kernels.duration_ns
        is_wgrad = self.kernels.is_wgrad
        backwards = [
            chunk
            for chunk in self.autograd_rows
            if not self._is_weight(chunk) and chunk not in self.absorbed
        ]
        inside_ns = {
            chunk: float(duration[rows][is_wgrad[rows]].sum())
            for chunk, rows in self.autograd_rows.items()
        }
        outside_ns = float(sum(duration[rows].sum() for rows in runs))
        candidates = backwards
        for _ in range(2):  # the mean outside depends on how many backwards share it
            max_inside_ns = _MAX_WGRAD_INSIDE_SPLIT_BACKWARD * outside_ns / max(1, len(candidates))
            candidates = [chunk for chunk in backwards if inside_ns[chunk] < max_inside_ns]
        return sorted(
            candidates, key=lambda chunk: int(self.kernels.host_ns[self.autograd_rows[chunk][-1]])
        )

    def _follows_directly(self, launch: int, backward: int, placed_ns: Ints) -> bool:
        """Return whether nothing but the backward's own forward was launched between it and *launch*."""
        end = int(self.kernels.host_ns[self.autograd_rows[backward][-1]])
        own_rows = self.forward_rows.get(backward)
        own = 0 if own_rows is None else _count_between(self.kernels.host_ns[own_rows], end, launch)
        return _count_between(placed_ns, end, launch) == own


def _count_between(ascending: Ints, after: int, before: int) -> int:
    """Return how many values lie strictly between two moments."""
    return max(
        0, int(np.searchsorted(ascending, before) - np.searchsorted(ascending, after, side="right"))
    )


def _split_evenly(runs: list[Ints], wanted: int) -> list[Ints]:
    """Split runs into about *wanted* parts of equal length.

    Drop runs much shorter than such a part.

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


MIN_SHARE_OF_TIME_IN_RANGES = 0.9
"""Share of the time of forward kernels, and of backward kernels, that must lie in ranges for these
to decide."""

_Cell = tuple[str, int]
"""Op, and the pair it belongs to."""


def cut_by_ranges(kernels: Kernels) -> StepChunks | None:
    """Cut the kernels of one step by the ranges they were launched in.

    Return None if too many were in none.

    Weight gradients outside every range belong to the ``B`` before them: they were held back to run
    beside its send.
    """
    category = kernels.category
    is_named = np.isin(category, (FORWARD, AUTOGRAD, LOOSE_WGRAD)) & kernels.named_op.present
    has_forward = are_parts_covered(kernels.duration_ns, is_named, category == FORWARD)
    if not has_forward or not are_parts_covered(
        kernels.duration_ns, is_named, category == AUTOGRAD
    ):
        return None
    named = np.flatnonzero(is_named)
    cells, cell_of_named = _find_cells(kernels, named)
    chunk = np.full(len(category), -1, np.int64)
    chunk[named] = cell_of_named
    held_back = np.flatnonzero((category == LOOSE_WGRAD) & ~is_named)
    if len(held_back):
        if _pairs_of(cells, "I") - _pairs_of(cells, "W"):
            return None  # the unnamed weight gradients are W that have to be counted off
        # The named backward kernel before each of them tells the cell; only a whole backward (B)
        # holds any back.
        op_of_cell = np.array([op for op, _ in cells], dtype=str)
        backward = named[(op_of_cell != "F")[cell_of_named]]
        before = np.searchsorted(backward, held_back) - 1
        owner = np.where(before >= 0, chunk[backward[np.maximum(before, 0)]], -1)
        is_whole = op_of_cell == "B"
        chunk[held_back] = np.where((owner >= 0) & is_whole[owner], owner, -1)
    return StepChunks(
        op=_rename_whole_backwards(cells, chunk, kernels),
        pair=np.array([pair for _, pair in cells], np.int64),
        confidence=[CONFIDENCE_ANNOTATED] * len(cells),
        chunk=chunk,
        from_ranges=True,
    )


def _pairs_of(cells: list[_Cell], op: str) -> set[int]:
    """Return the pairs that have a cell of this op."""
    return {pair for cell_op, pair in cells if cell_op == op}


def are_parts_covered(duration_ns: Ints, is_named: Bools, is_part: Bools) -> bool:
    """Return whether named kernels take enough of the time of a part of the kernels."""
    total = int(duration_ns[is_part].sum())
    return (
        total > 0
        and int(duration_ns[is_part & is_named].sum()) >= MIN_SHARE_OF_TIME_IN_RANGES * total
    )


def _find_cells(kernels: Kernels, named: Ints) -> tuple[list[_Cell], Ints]:
    """Return the cells in launch order, and the cell of each of the *named* rows.

    A forward that comes back after another forward, or after its own backward, is the next
    iteration's.
    """
    # Kernels in a row with the same op, stage and micro-batch are one run.
    name = np.stack(
        [kernels.named_op.codes[named], kernels.stage[named], kernels.microbatch[named]]
    )
    begins_run = np.ones(len(named), np.bool_)
    begins_run[1:] = (name[:, 1:] != name[:, :-1]).any(axis=0)
    index_of_cell: dict[_Cell, int] = {}
    cell_of_run: list[int] = []
    pair_of: dict[tuple[int, int], int] = {}  # current pair of each stage and micro-batch
    pairs_with_backward: set[int] = set()
    pairs = 0
    last_forward = None
    for code, stage, microbatch in name[:, begins_run].T.tolist():
        op = kernels.named_op.values[code]
        key = (stage, microbatch)
        comes_back = op == "F" and (last_forward != key or pair_of.get(key) in pairs_with_backward)
        if key not in pair_of or comes_back:
            pair_of[key] = pairs
            pairs += 1
        if op == "F":
            last_forward = key
        else:
            pairs_with_backward.add(pair_of[key])
        cell_of_run.append(index_of_cell.setdefault((op, pair_of[key]), len(index_of_cell)))
    return list(index_of_cell), np.array(cell_of_run, np.int64)[np.cumsum(begins_run) - 1]


def _rename_whole_backwards(cells: list[_Cell], chunk: Ints, kernels: Kernels) -> list[str]:
    """Return the op of each cell, B for a W without an I that ran the whole backward.

    A first stage owes nobody an input gradient, so some runtimes run its backward under the name of
    W.
    """
    split = _pairs_of(cells, "I")
    with_backward = set(
        chunk[(chunk >= 0) & (kernels.category == AUTOGRAD) & ~kernels.is_wgrad].tolist()
    )
    ops = []
    for index, (op, pair) in enumerate(cells):
        is_whole_backward = op == "W" and index in with_backward and pair not in split
        ops.append("B" if is_whole_backward else op)
    return ops
