"""Walks of the autograd engine over one step's kernels: each first walk over some sequence numbers is a backward.

The engine runs nodes in descending order of their sequence numbers, so that a number which rises
begins another walk.
"""

from collections import Counter
from itertools import accumulate

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints, find_sorted, take_or_missing
from tracekit.classify.messages import parse_messages
from tracekit.pipeline.reconstruct.kernels import AUTOGRAD, FORWARD, LOOSE_WGRAD, MESSAGE, Kernels

_KernelNames = tuple[int, ...]
"""Codes of the names of a walk's kernels, in order."""


def find_walks(kernels: Kernels) -> tuple[Ints, Ints]:
    """Assign the kernels of the autograd engine to walks.

    Returns:
        The walk of each of these kernels, in launch order; and for each walk its owner, the walk
        that visited its numbers first: itself, or the backward whose weight gradient it is.

    """
    category = kernels.category
    autograd = kernels.rows_of(AUTOGRAD)
    number = kernels.number[autograd]
    loose_wgrads_before = np.cumsum(category == LOOSE_WGRAD)[autograd]
    walk, owner = _number_walks(number, loose_wgrads_before)
    is_first_visit = (number >= 0) & (owner[walk] == walk)
    cut_walk = _split_by_messages(walk, autograd, kernels)
    cut_walk = _split_repetitions(cut_walk, autograd, kernels, is_first_visit)
    final_walk, owner = _renumber_walks(
        number, _first_visitors(cut_walk, number, is_first_visit), walk
    )
    barriers_before = np.cumsum((category == FORWARD) | (category == MESSAGE))[autograd]
    return _join_next_walk(final_walk, number >= 0, barriers_before), owner


def _number_walks(number: Ints, loose_wgrads_before: Ints) -> tuple[Ints, Ints]:
    """Return walk and owner as ``find_walks`` does, from sequence numbers alone.

    *loose_wgrads_before* counts the weight gradients outside autograd that were launched before
    each kernel.
    """
    numbered = number[number >= 0]
    if not len(numbered):
        return np.zeros(len(number), np.int64), np.zeros(min(1, len(number)), np.int64)
    walk, repeated_walk = _descending_walks(number.tolist(), loose_wgrads_before.tolist())
    # Kernels before the first number join the first walk.
    return np.maximum(np.array(walk, np.int64), 0), np.array(repeated_walk, np.int64)


def _descending_walks(
    number: list[int], loose_wgrads_before: list[int]
) -> tuple[list[int], list[int]]:
    """Assign kernels to descending walks over sequence numbers.

    A walk ends where the number rises, where it comes to numbers that another walk has been over,
    and where it leaves such numbers again.

    Args:
        number: Sequence number of each kernel, in launch order; -1: none.
        loose_wgrads_before: Weight gradients outside autograd launched before each kernel. One
            between two kernels of the same number shows that the node was run twice, unless the
            walk goes on downwards after it.

    Returns:
        The walk of each kernel, -1 before the first number; and for each walk the earlier walk whose
        numbers it goes over again, or itself.

    >>> _descending_walks([3, 2, 1, 3, 2, 1], [0] * 6)
    ([0, 0, 0, 1, 1, 1], [0, 0])
    """
    next_number = _next_other_numbers(number)
    first_walk: dict[int, int] = {}  # by number: the walk that was first at it
    repeated_walk: list[int] = []
    walk = []
    current = last = -1
    last_loose_wgrads = 0
    for n, following, loose_wgrads in zip(number, next_number, loose_wgrads_before, strict=True):
        if n < 0:
            walk.append(current)
            continue
        earlier = first_walk.get(n, -1)
        repeated = repeated_walk[current] if current >= 0 else -1
        continues_down = 0 <= following < n and following not in first_walk
        goes_back = n > last  # a walk never goes up; true of the first number too
        # A weight gradient outside autograd separates two runs of a node, unless the walk continues
        # to new numbers.
        runs_twice = n == last and loose_wgrads > last_loose_wgrads and not continues_down
        # Down to numbers of an earlier walk, other than the one that is being repeated.
        enters_other = n < last and earlier >= 0 and repeated != earlier
        # Down from the numbers of the repeated walk to new ones.
        leaves_repeat = current >= 0 and earlier < 0 and repeated != current
        if goes_back or runs_twice or enters_other or leaves_repeat:
            current += 1
            repeated_walk.append(earlier if earlier >= 0 else current)
        if earlier < 0:
            first_walk[n] = current
        walk.append(current)
        last = n
        last_loose_wgrads = loose_wgrads
    return walk, repeated_walk


def _next_other_numbers(number: list[int]) -> list[int]:
    """Return for each kernel the next number that differs from its own; -1: none.

    >>> _next_other_numbers([3, 3, -1, 2])
    [2, 2, -1, -1]
    """
    next_number = [-1] * len(number)
    different = following = -1
    for i in range(len(number) - 1, -1, -1):
        if number[i] >= 0:
            if following != number[i]:
                different = following
            next_number[i] = different
            following = number[i]
    return next_number


def _split_by_messages(walk: Ints, autograd: Ints, kernels: Kernels) -> Ints:
    """Cut walks that are several backwards run last in, first out: their numbers continue downwards.

    A walk is cut between two kernels if a message was launched between them, and between the
    forwards of the two.
    """
    message_ns = kernels.message_ns
    forward = np.flatnonzero((kernels.category == FORWARD) & (kernels.number >= 0))
    numbered = np.flatnonzero(kernels.number[autograd] >= 0)  # indices into autograd and walk
    if len(numbered) < 2 or not len(message_ns) or not len(forward):
        return walk
    number = kernels.number[autograd[numbered]]
    messages_before = np.searchsorted(message_ns, kernels.host_ns[autograd[numbered]])
    # Candidates (indices into number): the kernel and the one behind it are of one walk, with a
    # message between.
    is_same_walk = walk[numbered[1:]] == walk[numbered[:-1]]
    candidate = np.flatnonzero(is_same_walk & (messages_before[1:] > messages_before[:-1]))
    # The forward kernels nearest to the gap in the numbers: the last at or below it and the first
    # at or above it.
    forward = forward[np.argsort(kernels.number[forward], kind="stable")]
    forward_number = kernels.number[forward]
    below = np.searchsorted(forward_number, number[candidate + 1], side="right") - 1
    above = np.searchsorted(forward_number, number[candidate], side="left")
    has_both = (below >= 0) & (above < len(forward))
    candidate = candidate[has_both]
    below = below[has_both]
    above = above[has_both]
    messages_before_forward = np.searchsorted(message_ns, kernels.host_ns[forward])
    is_cut = messages_before_forward[above] > messages_before_forward[below]
    return _begin_walks(walk, numbered[candidate[is_cut] + 1])


def _split_repetitions(walk: Ints, autograd: Ints, kernels: Kernels, is_first_visit: Bools) -> Ints:
    """Cut walks whose two halves run kernels of the same names in the same order.

    Two stages that follow each other on one rank exchange no message, so their backwards look like
    one walk. But equal halves may also be two equal layers. A walk is cut only if its half is what
    most walks are made of; or at the end of the pipeline (one neighbour), where every forward and
    backward together receive one message, if the cuts then give as many backwards as messages were
    received.
    """
    visits = np.flatnonzero(is_first_visit)
    if len(visits) < 2:
        return walk
    ordered = visits[np.argsort(walk[visits], kind="stable")]
    parts = np.split(ordered, np.flatnonzero(np.diff(walk[ordered])) + 1)  # one part for each walk
    names = [tuple(kernels.name[autograd[part]].tolist()) for part in parts]
    count = Counter(names)
    most_frequent = count.most_common(1)[0][0]
    doubled = sorted(
        (walk_names for walk_names in count if _repeated_half(walk_names)), key=len, reverse=True
    )
    to_cut = {walk_names for walk_names in doubled if _repeated_half(walk_names) == most_frequent}
    # The longest walks that, cut in two, make up for the backwards missing from the count of
    # messages.
    missing = _messages_received_at_end(kernels) - len(parts) if doubled else 0
    for used, total in enumerate(accumulate(count[walk_names] for walk_names in doubled), start=1):
        if total == missing:
            to_cut |= set(doubled[:used])
            break
    middles = [
        int(part[len(part) // 2])
        for part, part_names in zip(parts, names, strict=True)
        if part_names in to_cut
    ]
    return _begin_walks(walk, np.array(middles, np.int64))


def _messages_received_at_end(kernels: Kernels) -> int:
    """Return the number of messages received by a rank that has only one neighbour.

    0 for any other rank.
    """
    messages = (
        parse_messages(kernels.p2p.filter(pl.Series(kernels.category == MESSAGE))).explode().struct
    )
    if messages.field("peer").n_unique() != 1 or messages.field("peer").has_nulls():
        return 0
    return int((~messages.field("send")).sum())


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
    """Return for each kernel the walk that visited its number first.

    -1 if the kernel has no number.
    """
    visits = np.flatnonzero(is_first_visit)[::-1]
    # Of equal numbers the last visit comes first.
    visits = visits[np.argsort(number[visits], kind="stable")]
    return take_or_missing(walk[visits], find_sorted(number, number[visits]))


def _renumber_walks(number: Ints, first_visitor: Ints, uncut_walk: Ints) -> tuple[Ints, Ints]:
    """Return walks and owners once all cuts are known.

    A new walk begins where one began before cutting, or where the first visitor of the numbers
    changes.
    """
    if not len(number):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    first_walk: dict[int, int] = {}  # by first visitor: its first walk in the result
    repeated_walk: list[int] = []  # for each walk the first walk with the same first visitor
    walk = []
    current = last = last_visitor = last_uncut_walk = -1
    rows = zip(number.tolist(), first_visitor.tolist(), uncut_walk.tolist(), strict=True)
    for n, visitor, uncut in rows:
        if n >= 0:
            begins = visitor != last_visitor or n > last or uncut != last_uncut_walk
            if current < 0 or begins:
                current += 1
                last_visitor = visitor
                repeated_walk.append(first_walk.setdefault(visitor, current))
            last = n
            last_uncut_walk = uncut
        walk.append(max(current, 0))
    return np.array(walk, np.int64), np.array(repeated_walk or [0], np.int64)


def _join_next_walk(walk: Ints, is_numbered: Bools, barriers_before: Ints) -> Ints:
    """Move kernels without a number to the walk behind them if a barrier separates them from the walk before.

    A backward begins with a few such kernels (the gradient of the loss). *barriers_before* counts
    the forward kernels and messages launched before each kernel.
    """
    numbered = np.flatnonzero(is_numbered)
    unnumbered = np.flatnonzero(~is_numbered)
    if not len(numbered) or not len(unnumbered):
        return walk
    # The numbered kernels around each unnumbered one; at the ends of the step the nearest stands
    # in, see below.
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
