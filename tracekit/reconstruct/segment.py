"""Cutting of one rank's kernels into chunks: forwards, backwards and weight gradients that run apart.

The order in which the host launched kernels says more than the GPU's clock. Where the run names its cells with ``PP:``
ranges, these decide (``cut_by_ranges``). Otherwise a backward is a walk of the autograd engine down the sequence
numbers (``find_walks``), and its forward is made of the forward kernels with the same numbers. Weight gradients
outside the engine have no number: they are counted off against the backwards that left them out (``chunks``).
"""

from collections import Counter, deque
from itertools import accumulate

import numpy as np
import polars as pl

from tracekit._loops import autograd_walks
from tracekit._util.arrays import Bools, Ints, as_int64, find_sorted, take_or_missing
from tracekit.reconstruct.chunks import (
    CONFIDENCE_ANNOTATED,
    ChunkAssembly,
    ChunkOwners,
    StepChunks,
    add_backward,
    chunks_of_walks,
    split_at_barriers,
)
from tracekit.reconstruct.kernels import AUTOGRAD, FORWARD, LOOSE_WGRAD, MESSAGE, Kernels

_KernelNames = tuple[int, ...]
"""Codes of the names of a walk's kernels, in order."""


def find_walks(kernels: Kernels) -> tuple[Ints, Ints]:
    """Assign the kernels of the autograd engine to walks.

    Returns:
        The walk of each of these kernels, in launch order; and for each walk its owner, the walk that visited its
        numbers first: itself, or the backward whose weight gradient it is.

    """
    category = kernels.category
    autograd = kernels.rows_of(AUTOGRAD)
    number = kernels.number[autograd]
    loose_wgrads_before = np.cumsum(category == LOOSE_WGRAD)[autograd]
    walk, owner = _number_walks(number, loose_wgrads_before)
    is_first_visit = (number >= 0) & (owner[walk] == walk)
    cut_walk = _split_by_messages(walk, autograd, kernels)
    cut_walk = _split_repetitions(cut_walk, autograd, kernels, is_first_visit)
    final_walk, owner = _renumber_walks(number, _first_visitors(cut_walk, number, is_first_visit), walk)
    barriers_before = np.cumsum((category == FORWARD) | (category == MESSAGE))[autograd]
    return _join_next_walk(final_walk, number >= 0, barriers_before), owner


def _number_walks(number: Ints, loose_wgrads_before: Ints) -> tuple[Ints, Ints]:
    """Return walk and owner as ``find_walks`` does, from sequence numbers alone.

    *loose_wgrads_before* counts the weight gradients outside autograd that were launched before each kernel.
    """
    numbered = number[number >= 0]
    if not len(numbered):
        return np.zeros(len(number), np.int64), np.zeros(min(1, len(number)), np.int64)
    first_number = numbered.min()
    first_walk = np.full(int(numbered.max() - first_number) + 1, -1, np.int64)
    next_number, walk = np.full((2, len(number)), -1, np.int64)
    repeated_walk = np.full(len(number) + 1, -1, np.int64)
    count = autograd_walks.number_walks(
        as_int64(number), as_int64(loose_wgrads_before), first_number, first_walk, next_number, walk, repeated_walk
    )
    return np.maximum(walk, 0), repeated_walk[:count]  # kernels before the first number join the first walk


def _split_by_messages(walk: Ints, autograd: Ints, kernels: Kernels) -> Ints:
    """Cut walks that are several backwards run last in, first out: their numbers continue downwards.

    A walk is cut between two kernels if a message was launched between them, and between the forwards of the two.
    """
    message_ns = kernels.message_ns
    forward = np.flatnonzero((kernels.category == FORWARD) & (kernels.number >= 0))
    numbered = np.flatnonzero(kernels.number[autograd] >= 0)  # indices into autograd and walk
    if len(numbered) < 2 or not len(message_ns) or not len(forward):
        return walk
    number = kernels.number[autograd[numbered]]
    messages_before = np.searchsorted(message_ns, kernels.host_ns[autograd[numbered]])
    # Candidates (indices into number): the kernel and the one behind it are of one walk, with a message between.
    is_same_walk = walk[numbered[1:]] == walk[numbered[:-1]]
    candidate = np.flatnonzero(is_same_walk & (messages_before[1:] > messages_before[:-1]))
    # The forward kernels nearest to the gap in the numbers: the last at or below it and the first at or above it.
    forward = forward[np.argsort(kernels.number[forward], kind="stable")]
    forward_number = kernels.number[forward]
    below = np.searchsorted(forward_number, number[candidate + 1], side="right") - 1
    above = np.searchsorted(forward_number, number[candidate], side="left")
    has_both = (below >= 0) & (above < len(forward))
    candidate, below, above = candidate[has_both], below[has_both], above[has_both]
    messages_before_forward = np.searchsorted(message_ns, kernels.host_ns[forward])
    is_cut = messages_before_forward[above] > messages_before_forward[below]
    return _begin_walks(walk, numbered[candidate[is_cut] + 1])


def _split_repetitions(walk: Ints, autograd: Ints, kernels: Kernels, is_first_visit: Bools) -> Ints:
    """Cut walks whose two halves run kernels of the same names in the same order.

    Two stages that follow each other on one rank exchange no message, so their backwards look like one walk. But equal
    halves may also be two equal layers. A walk is cut only if its half is what most walks are made of; or at the end of
    the pipeline (one neighbour), where every forward and backward together receive one message, if the cuts then give
    as many backwards as messages were received.
    """
    visits = np.flatnonzero(is_first_visit)
    if len(visits) < 2:
        return walk
    ordered = visits[np.argsort(walk[visits], kind="stable")]
    parts = np.split(ordered, np.flatnonzero(np.diff(walk[ordered])) + 1)  # one part for each walk
    names = [tuple(kernels.name[autograd[part]].tolist()) for part in parts]
    count = Counter(names)
    most_frequent = count.most_common(1)[0][0]
    doubled = sorted((walk_names for walk_names in count if _repeated_half(walk_names)), key=len, reverse=True)
    to_cut = {walk_names for walk_names in doubled if _repeated_half(walk_names) == most_frequent}
    # The longest walks that, cut in two, make up for the backwards missing from the count of messages.
    missing = _messages_received_at_end(kernels) - len(parts)
    for used, total in enumerate(accumulate(count[walk_names] for walk_names in doubled), start=1):
        if total == missing:
            to_cut |= set(doubled[:used])
            break
    middles = [int(part[len(part) // 2]) for part, part_names in zip(parts, names, strict=True) if part_names in to_cut]
    return _begin_walks(walk, np.array(middles, np.int64))


def _messages_received_at_end(kernels: Kernels) -> int:
    """Return the number of messages received by a rank that has only one neighbour; 0 for any other rank."""
    p2p = kernels.p2p
    received, peers = 0, set()
    for code in p2p.codes[kernels.category == MESSAGE].tolist():
        for word in p2p.values[code].split(","):
            direction, _, peer = word.partition(":")
            received += direction == "recv"
            peers.add(peer)
    return received if len(peers) == 1 and "?" not in peers else 0


def _repeated_half(names: _KernelNames) -> _KernelNames:
    """Return the first half of the names if the second half is the same, else nothing."""
    middle = len(names) // 2
    return names[:middle] if names[:middle] == names[middle:] else ()


def _begin_walks(walk: Ints, starts: Ints) -> Ints:
    """Return walks numbered anew, with a new walk beginning at each of the kernels *starts*."""
    begins = np.zeros(len(walk), np.int64)
    begins[starts] = 1
    return walk + np.cumsum(begins)


def _first_visitors(walk: Ints, number: Ints, is_first_visit: Bools) -> Ints:
    """Return for each kernel the walk that visited its number first; -1 if the kernel has no number."""
    visits = np.flatnonzero(is_first_visit)[::-1]
    visits = visits[np.argsort(number[visits], kind="stable")]  # of equal numbers the last visit comes first
    return take_or_missing(walk[visits], find_sorted(number, number[visits]))


def _renumber_walks(number: Ints, first_visitor: Ints, uncut_walk: Ints) -> tuple[Ints, Ints]:
    """Return walks and owners once all cuts are known.

    A new walk begins where one began before cutting, or where the first visitor of the numbers changes.
    """
    if not len(number):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    walk = np.zeros(len(number), np.int64)
    repeated_walk, first_walk = np.full((2, len(number) + 1), -1, np.int64)
    count = autograd_walks.renumber_walks(
        as_int64(number), as_int64(first_visitor), as_int64(uncut_walk), walk, repeated_walk, first_walk
    )
    return walk, np.maximum(repeated_walk, 0)[:count]


def _join_next_walk(walk: Ints, is_numbered: Bools, barriers_before: Ints) -> Ints:
    """Move kernels without a number to the walk behind them if a barrier separates them from the walk before.

    A backward begins with a few such kernels (the gradient of the loss). *barriers_before* counts the forward kernels
    and messages launched before each kernel.
    """
    numbered, unnumbered = np.flatnonzero(is_numbered), np.flatnonzero(~is_numbered)
    if not len(numbered) or not len(unnumbered):
        return walk
    # The numbered kernels around each unnumbered one; at the ends of the step the nearest stands in, see below.
    position = np.searchsorted(numbered, unnumbered)
    following = numbered[np.minimum(position, len(numbered) - 1)]
    preceding = numbered[np.maximum(position - 1, 0)]
    own_barriers = barriers_before[unnumbered]
    is_separated = (position == 0) | (barriers_before[preceding] != own_barriers)
    is_adjacent = (position < len(numbered)) & (barriers_before[following] == own_barriers)
    moves = is_separated & is_adjacent
    joined = walk.copy()
    joined[unnumbered[moves]] = walk[following[moves]]
    return joined


_MAX_SHARE_OF_STRAY_FORWARD = 0.3
"""Share of the median forward's time up to which a run of unmatched forward kernels joins the nearest forward."""
_NO_NUMBER = np.iinfo(np.int64).max


def segment_steps(rows: pl.DataFrame) -> list[tuple[int, Ints, StepChunks]]:
    """Cut each step into chunks.

    Args:
        rows: GPU events of a rank, as ``prepare`` returns them.

    Returns:
        For each step, ascending: its number, the indices of its rows, and its chunks.

    """
    numbered = rows.with_row_index("row").drop_nulls("step").sort("step", maintain_order=True)
    steps = numbered.partition_by("step", maintain_order=True)
    return [(step["step"][0], as_int64(step["row"].to_numpy()), segment_step(Kernels(step))) for step in steps]


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
    forward, autograd = kernels.rows_of(FORWARD), kernels.rows_of(AUTOGRAD)
    numbered = autograd[kernels.number[autograd] >= 0]
    numbered = numbered[~_is_weight(owners)[chunk_of_row[numbered]]]
    if not len(numbered):
        return
    lowest, highest = np.full(len(owners), _NO_NUMBER), np.full(len(owners), -1, np.int64)
    np.minimum.at(lowest, chunk_of_row[numbered], kernels.number[numbered])
    np.maximum.at(highest, chunk_of_row[numbered], kernels.number[numbered])
    # The candidate for a number is the backward with the highest lowest number that is not above it.
    by_lowest = np.argsort(lowest, kind="stable")
    number = kernels.number[forward]
    position = np.searchsorted(lowest[by_lowest], number, side="right") - 1
    candidate = by_lowest[np.maximum(position, 0)]
    is_inside = (position >= 0) & (number >= 0) & (number <= highest[candidate])
    chunk_of_row[forward[is_inside]] = candidate[is_inside]


def _place_unmatched_forwards(chunk_of_row: Ints, kernels: Kernels, owners: ChunkOwners) -> None:
    """Assign the forward kernels that belong to no backward.

    A run of them joins the forward next to it if no message was launched between. A short run joins the forward
    launched nearest in time, unless that one's backward had begun: then it is something else, such as gradients scaled
    at the end of the step. Any other run is a forward whose backward is not in the trace, and a chunk of its own.
    """
    host_ns, duration = kernels.host_ns, kernels.duration_ns
    forward = kernels.rows_of(FORWARD)
    matched, unmatched = forward[chunk_of_row[forward] >= 0], forward[chunk_of_row[forward] < 0]
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
        neighbours = placed[max(following - 1, 0) : following + 1]  # the placed kernels right before and right behind
        neighbours = neighbours[is_matched[neighbours] & (messages_before[neighbours] == messages_before[first])]
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

    Recomputed layers are an example: the backward walks over new numbers. An orphan backward is then a run of its
    kernels that no forward, no other backward and no message interrupts.

    Returns:
        The chunks that were paired by position alone.

    """
    host_ns = kernels.host_ns
    forward = np.flatnonzero((kernels.category == FORWARD) & (chunk_of_row >= 0))
    autograd = np.flatnonzero((kernels.category == AUTOGRAD) & (chunk_of_row >= 0))
    forward_chunks, first = np.unique(chunk_of_row[forward], return_index=True)
    launch_of_forward = dict(zip(forward_chunks.tolist(), host_ns[forward[first]].tolist(), strict=True))
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


MIN_SHARE_OF_TIME_IN_RANGES = 0.9
"""Share of the time of forward kernels, and of backward kernels, that must lie in ranges for these to decide."""

_Cell = tuple[str, int]
"""Op, and the pair it belongs to."""


def cut_by_ranges(kernels: Kernels) -> StepChunks | None:
    """Cut the kernels of one step by the ranges they were launched in; return None if too many were in none.

    Weight gradients outside every range belong to the ``B`` before them: they were held back to run beside its send.
    """
    category = kernels.category
    is_named = np.isin(category, (FORWARD, AUTOGRAD, LOOSE_WGRAD)) & kernels.named_op.present
    if not all(_is_covered(kernels.duration_ns, is_named, category == part) for part in (FORWARD, AUTOGRAD)):
        return None
    named = np.flatnonzero(is_named)
    cells, cell_of_named = _find_cells(kernels, named)
    chunk = np.full(len(category), -1, np.int64)
    chunk[named] = cell_of_named
    held_back = np.flatnonzero((category == LOOSE_WGRAD) & ~is_named)
    if len(held_back):
        split = {pair for op, pair in cells if op == "I"}
        if split - {pair for op, pair in cells if op == "W"}:
            return None  # the unnamed weight gradients are W that have to be counted off
        # The named backward kernel before each of them tells the cell; only a whole backward (B) holds any back.
        backward = named[np.array([op != "F" for op, _ in cells])[cell_of_named]]
        before = np.searchsorted(backward, held_back) - 1
        owner = np.where(before >= 0, chunk[backward[np.maximum(before, 0)]], -1)
        is_whole = np.array([op == "B" for op, _ in cells])
        chunk[held_back] = np.where((owner >= 0) & is_whole[owner], owner, -1)
    return StepChunks(
        op=_rename_whole_backwards(cells, chunk, kernels),
        pair=np.array([pair for _, pair in cells], np.int64),
        confidence=[CONFIDENCE_ANNOTATED] * len(cells),
        chunk=chunk,
        from_ranges=True,
    )


def _is_covered(duration_ns: Ints, is_named: Bools, is_part: Bools) -> bool:
    """Return whether named kernels take enough of the time of a part of the kernels."""
    total = int(duration_ns[is_part].sum())
    return total > 0 and int(duration_ns[is_part & is_named].sum()) >= MIN_SHARE_OF_TIME_IN_RANGES * total


def _find_cells(kernels: Kernels, named: Ints) -> tuple[list[_Cell], Ints]:
    """Return the cells in launch order, and the cell of each of the *named* rows.

    A forward that comes back after another forward, or after its own backward, is the next iteration's.
    """
    # Kernels in a row with the same op, stage and micro-batch are one run.
    name = np.stack([kernels.named_op.codes[named], kernels.stage[named], kernels.microbatch[named]])
    begins_run = np.ones(len(named), np.bool_)
    begins_run[1:] = (name[:, 1:] != name[:, :-1]).any(axis=0)
    index_of_cell: dict[_Cell, int] = {}
    cell_of_run: list[int] = []
    pair_of: dict[tuple[int, int], int] = {}  # current pair of each stage and micro-batch
    pairs_with_backward: set[int] = set()
    pairs, last_forward = 0, None
    for code, stage, microbatch in name[:, begins_run].T.tolist():
        op, key = kernels.named_op.values[code], (stage, microbatch)
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

    A first stage owes nobody an input gradient, so some runtimes run its backward under the name of W.
    """
    split = {pair for op, pair in cells if op == "I"}
    with_backward = set(chunk[(chunk >= 0) & (kernels.category == AUTOGRAD) & ~kernels.is_wgrad].tolist())
    return [
        "B" if op == "W" and index in with_backward and pair not in split else op
        for index, (op, pair) in enumerate(cells)
    ]
