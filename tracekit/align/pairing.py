"""Pairing of operations that several ranks issued in the same order, where some of them are missing.

``pair_with_references`` aligns one sequence of operations with the same operations on other ranks;
``choose_sources`` divides the receives of a rank among the sends of two others. Both look for the
cheapest alignment that keeps the order of issue. A pair costs the logarithm of the misfit of its
times, in units of what is usual: a pair whose ends lie ten times as far apart is as much less
likely at any distance. Where another alignment costs little more, an operation has no certain
partner.
"""

from __future__ import annotations

import msgspec
import numpy as np

from tracekit._util.arrays import Bools, Floats, Ints
from tracekit.align.clock_bounds import MAX_ACKNOWLEDGE_NS

SKIP_COST = 10.0
"""Cost of leaving an operation unmatched; and of a pair whose sizes differ, or, of a collective,
whose ranks had issued different numbers of other operations before it."""
IMPOSSIBLE_COST = 40.0
"""Cost of a pair that cannot be one operation if the clocks are right."""
MIN_NOISE_TO_INTERVAL = 1e-3
"""Least misfit that is told from none, in units of the usual time between two operations."""
MIN_MARGIN = 1.0
"""Cost beyond the cheapest alignment that every alignment with another partner must have for a pair
to be certain: the times of the other partner fit nearly three times as badly."""
MAX_EXTRA_SKIPS = 2
"""Operations that a sequence may lack beyond the difference of lengths, where the other one lacks
as many."""
MAX_SHIFTS = 64
"""Shifts between two sequences that are weighed operation by operation."""
ROUNDING = 1e-9
"""Difference of two sums of the same costs in different order."""
NO_END_NS = 2**62
"""Latest end of an operation that was not recorded, where nothing bounds it."""


class OperationSequence(msgspec.Struct, frozen=True, eq=False):
    """Operations of one kind on one rank in the order of issue, with their times on the common clock.

    An operation that was launched and not recorded has the earliest start and end that are
    possible.
    """

    start: Ints
    end: Ints
    latest_end: Ints
    """The end; of an operation that was not recorded the latest possible one."""
    size: Ints
    """Bytes; -1 if unknown."""
    others: Ints
    """Number of other operations, matched for certain, that the rank issued before in the step."""
    has_own_kernel: Bools
    """Whether the operation has its kernel for itself."""
    sends: int = -1
    """1 of messages that are sent, 0 of messages that are received, -1 of collectives."""
    meets: bool = True
    """Whether the operations end nowhere before all have begun."""
    uncertainty_ns: int = 0
    """How far the clock may be off from that of the sequence that is paired with this one."""

    def __len__(self) -> int:
        return len(self.end)

    def moved(self, offset_ns: int) -> OperationSequence:
        """Return the sequence with all times later by *offset_ns*."""
        return msgspec.structs.replace(
            self,
            start=self.start + offset_ns,
            end=self.end + offset_ns,
            latest_end=np.where(
                self.latest_end < NO_END_NS, self.latest_end + offset_ns, NO_END_NS
            ),
        )

    @property
    def usual_interval_ns(self) -> int:
        """Median time between two ends."""
        if len(self) < 2:
            return 1
        return max(int(np.median(np.abs(np.diff(self.end)))), 1)


def pair_with_references(own: OperationSequence, references: list[OperationSequence]) -> Ints:
    """Return for each operation its position in the *references*; -1 if it has no certain partner.

    The references are the same operations on other ranks, all of them as long as the longest.
    Operations that are paired have the same size, times that fit, and come after as many other
    operations.

    >>> ends, same = np.array([10, 30, 40, 70]), np.ones(4, np.int64)
    >>> def sequence(kept):
    ...     times = {"start": ends[kept] - 5, "end": ends[kept], "latest_end": ends[kept]}
    ...     return OperationSequence(**times, size=same[kept], others=same[kept], has_own_kernel=same[kept] > 0)
    >>> pair_with_references(sequence([0, 1, 3]), [sequence([0, 1, 2, 3])]).tolist()
    [0, 1, 3]
    """
    length = len(references[0])
    missing = length - len(own)
    # Shift k pairs operation i with operation i + k of the reference.
    shifts = np.arange(min(0, missing) - MAX_EXTRA_SKIPS, max(0, missing) + MAX_EXTRA_SKIPS + 1)
    partner = np.arange(len(own))[:, None] + shifts
    is_inside = (partner >= 0) & (partner < length)
    partner = np.clip(partner, 0, length - 1)
    is_likely = is_inside
    if missing:  # as many on both sides are here because each may lack another one
        is_likely = is_inside & (shifts >= min(0, missing)) & (shifts <= max(0, missing))
    cost = costs_with_references(own, references, partner, is_likely)
    cost[~is_inside] = np.inf
    partners = certain_partners(cost, shifts, length)
    largest_uncertainty_ns = max(reference.uncertainty_ns for reference in references)
    if largest_uncertainty_ns <= references[0].usual_interval_ns // 2:
        return partners
    # The clocks may differ by more than one operation: see whether ends agree better with other
    # offsets.
    moved = [
        reference.moved(likely_offset(own, reference, partner, is_likely))
        for reference in references
    ]
    cost_if_moved = costs_with_references(own, moved, partner, is_likely)
    cost_if_moved[~is_inside] = np.inf
    lowest = np.where(is_likely, cost, np.inf).min(axis=1).sum()
    lowest_if_moved = np.where(is_likely, cost_if_moved, np.inf).min(axis=1).sum()
    if 2 * lowest_if_moved < lowest:
        return certain_partners(cost_if_moved, shifts, length)
    return partners


def choose_sources(
    receives: OperationSequence, queues: tuple[OperationSequence, OperationSequence]
) -> Ints:
    """Return for each receive which of two queues of sends it takes from: 0 or 1.

    -1 if that is not certain.

    As many sends as receives are taken in full, in the cheapest way. If there are more of either,
    some lack their other side, and a receive that another way would give to another queue, or to
    none, is not certain.

    >>> def sequence(*ends):
    ...     times = dict.fromkeys(("start", "end", "latest_end"), np.array(ends))
    ...     unknown = np.full(len(ends), -1)
    ...     return OperationSequence(**times, size=unknown, others=unknown, has_own_kernel=unknown < 0, sends=0)
    >>> choose_sources(sequence(10, 30, 40), (sequence(10, 40), sequence(30))).tolist()
    [0, 1, 0]
    """
    first, second = queues
    if not len(second):
        return np.zeros(len(receives), np.int64)
    sends_left = len(first) + len(second) - len(receives)
    shifts = np.arange(min(sends_left, 0), max(sends_left, 0) + 1)
    of_first, of_second = _costs_with_queues(receives, first, second)
    by_shift = _arrange_by_shift(of_second, shifts, len(first))
    before = _least_costs(of_first, by_shift, shifts)
    if not sends_left:
        return _follow_cheapest(of_first, of_second, before[:, 0])
    # From behind, what is left after a receive is what came before it.
    by_shift_behind = _arrange_by_shift(of_second[::-1, ::-1], shifts, len(first))
    after = _least_costs(of_first[::-1, ::-1], by_shift_behind, shifts)[::-1, ::-1, ::-1]
    ways = [
        before[:-1, :, :-1] + of_first[:, None, :] + after[1:, :, 1:],
        before[:-1] + by_shift + after[1:],
        before[:-1, 1:] + SKIP_COST + after[1:, :-1],  # the receive has no send
    ]
    cost_of_way = np.array([way.min(axis=(1, 2), initial=np.inf) for way in ways])
    cheapest = cost_of_way.argmin(axis=0)
    lowest, second_lowest = np.partition(cost_of_way, 1, axis=0)[:2]
    is_certain = (cheapest < len(queues)) & (second_lowest - lowest > MIN_MARGIN)
    return np.where(is_certain, cheapest, -1)


# ---- Costs of pairs.


def costs_with_references(
    own: OperationSequence, references: list[OperationSequence], partner: Ints, is_likely: Bools
) -> Floats:
    """Return the cost of pairing each operation with each *partner*: the lowest over the references."""
    misfits, impossible = zip(
        *(_misfit(own, reference, partner) for reference in references), strict=True
    )
    misfit_ns = np.min(misfits, axis=0)
    best_ns = np.where(is_likely, misfit_ns, np.iinfo(np.int64).max).min(axis=1)
    cost = time_costs(misfit_ns, best_ns, references[0])
    own_size = own.size[:, None]
    sizes_differ = [
        (own_size != reference.size[partner]) & (own_size >= 0) & (reference.size[partner] >= 0)
        for reference in references
    ]
    cost += SKIP_COST * np.all(sizes_differ, axis=0)
    cost += IMPOSSIBLE_COST * np.any(impossible, axis=0)
    # Ranks that share a collective run the same program; the two sides of a message do not.
    if own.sends < 0:
        others_differ = [
            own.others[:, None] != reference.others[partner] for reference in references
        ]
        cost += SKIP_COST * np.all(others_differ, axis=0)
    return cost


def _costs_with_queues(
    receives: OperationSequence, first: OperationSequence, second: OperationSequence
) -> tuple[Floats, Floats]:
    """Return the cost of pairing each receive with each send of two queues."""
    every_receive = np.zeros((len(receives), 1), np.int64)
    first_misfit_ns, first_impossible = _misfit(
        receives, first, every_receive + np.arange(len(first))
    )
    second_misfit_ns, second_impossible = _misfit(
        receives, second, every_receive + np.arange(len(second))
    )
    best_ns = np.concatenate([first_misfit_ns, second_misfit_ns], axis=1).min(axis=1)
    of_first = time_costs(first_misfit_ns, best_ns, receives) + IMPOSSIBLE_COST * first_impossible
    of_second = (
        time_costs(second_misfit_ns, best_ns, receives) + IMPOSSIBLE_COST * second_impossible
    )
    return of_first, of_second


def time_costs(misfit_ns: Ints, best_ns: Ints, sequence: OperationSequence) -> Floats:
    """Return the cost of misfits.

    *best_ns* is the lowest one of each operation, whose median is what is usual.
    """
    usual_ns = float(np.median(best_ns)) if len(best_ns) else 0.0
    noise_ns = max(usual_ns, sequence.usual_interval_ns * MIN_NOISE_TO_INTERVAL)
    cost: Floats = np.log1p(misfit_ns / noise_ns)
    return cost


def _misfit(own: OperationSequence, other: OperationSequence, partner: Ints) -> tuple[Ints, Bools]:
    """Return how badly the times of each pair fit in nanoseconds, and which pairs cannot be one operation.

    What was not recorded fits within the bounds of its times.
    """
    rows = np.arange(len(own))[:, None]
    if own.sends < 0:
        return _collective_misfit(own, rows, other, partner)
    if own.sends:
        return _message_misfit(own, rows, other, partner)
    return _message_misfit(other, partner, own, rows)


def _collective_misfit(
    own: OperationSequence, row: Ints, other: OperationSequence, other_row: Ints
) -> tuple[Ints, Bools]:
    """Return the misfit of two members of a collective: they end together, after both have begun."""
    own_after = own.end[row] - other.latest_end[other_row]
    other_after = other.end[other_row] - own.latest_end[row]
    apart_ns = np.maximum(np.maximum(own_after, other_after), 0)
    first_end = np.minimum(own.latest_end[row], other.latest_end[other_row])
    last_start = np.maximum(own.start[row], other.start[other_row])
    ends_before_begin = first_end < last_start - MAX_ACKNOWLEDGE_NS
    return apart_ns, ends_before_begin & own.meets


def _message_misfit(
    sent: OperationSequence, sent_row: Ints, received: OperationSequence, received_row: Ints
) -> tuple[Ints, Bools]:
    """Return the misfit of the two sides of a message.

    A receive ends soon after both sides have begun and the send has ended. It cannot end before its
    send began, nor before a send that had its kernel for itself ended.
    """
    sent_end = sent.end[sent_row]
    received_latest_end = received.latest_end[received_row]
    both_ready = np.maximum(sent.latest_end[sent_row], received.start[received_row])
    late_ns = np.maximum(received.end[received_row] - both_ready, 0)
    early_ns = np.maximum(sent_end - received_latest_end, 0)
    ends_before_send = sent.has_own_kernel[sent_row] & (
        received_latest_end < sent_end - MAX_ACKNOWLEDGE_NS
    )
    ends_before_begin = received_latest_end < sent.start[sent_row]
    return late_ns + early_ns, ends_before_send | ends_before_begin


def likely_offset(
    own: OperationSequence, other: OperationSequence, partner: Ints, is_likely: Bools
) -> int:
    """Return the offset of the clocks for which most ends agree, nearest to 0 if there are several such.

    Operations that follow each other at equal intervals agree with their neighbours nearly as well
    as with their partners: as long as more than half as many agree there, clocks are not moved
    further than they must be.
    """
    apart = own.end[:, None] - other.end[partner]
    is_likely = is_likely & (np.abs(apart) <= other.uncertainty_ns)
    of_same_size = is_likely & (own.size[:, None] == other.size[partner])
    ordered = np.sort(apart[of_same_size if of_same_size.any() else is_likely])
    if not len(ordered):
        return 0
    width_ns = other.usual_interval_ns / 4
    count = np.searchsorted(ordered, ordered + width_ns, side="right") - np.arange(len(ordered))
    middle = ordered[np.arange(len(ordered)) + count // 2]
    many = np.flatnonzero(count * 2 > count.max())
    return int(middle[many[np.argmin(np.abs(middle[many]))]])


# ---- The cheapest alignments.


def certain_partners(cost: Floats, shifts: Ints, other_length: int) -> Ints:
    """Return the partner of each operation in the cheapest alignment that keeps the order.

    -1: none.

    An operation that has another partner in an alignment that costs little more has none either.
    Two operations that were issued in another order than their partners may each have theirs in an
    alignment that leaves the other one out.

    Args:
        cost: Cost of pairing operation i with operation i + shifts[k] of the other sequence;
            infinite outside of it.
        shifts: Consecutive shifts.
        other_length: Number of operations of the other sequence.

    """
    position = np.arange(len(cost))
    # A rank that began late or ended early: all its operations have one shift.
    if len(shifts) > MAX_SHIFTS:
        k = int(np.argmin(np.minimum(cost, SKIP_COST).sum(axis=0)))
        return np.where(np.isfinite(cost[:, k]), position + shifts[k], -1)
    # Of the other sequence, behind the partner of the last operation.
    rest = other_length - len(cost) - shifts
    before = _least_costs_of_one(cost, shifts)
    # From behind, operation i of n is operation n - 1 - i, and what is left after a pair is what
    # came before it.
    after = _least_costs_of_one(cost[::-1, ::-1], rest[::-1])[::-1, ::-1]
    least = np.where(rest >= 0, before[-1] + SKIP_COST * rest, np.inf).min()
    cost_in_order = cost[:, shifts == 0].sum() if len(cost) == other_length else np.inf
    # As many on both sides, and nothing speaks for a hole on either.
    if cost_in_order <= least + MIN_MARGIN:
        return position
    with_pair = before[:-1] + cost + after[1:]  # least cost of all alignments that contain the pair
    lowest, second = np.partition(with_pair, 1, axis=1)[:, :2].T
    is_certain = (lowest <= least + ROUNDING) & (second >= least + MIN_MARGIN)
    partner = position + shifts[with_pair.argmin(axis=1)]
    _, number, claims = np.unique(
        np.where(is_certain, partner, -1), return_inverse=True, return_counts=True
    )
    return np.where(is_certain & (claims[number] == 1), partner, -1)


def _least_costs_of_one(cost: Floats, shifts: Ints) -> Floats:
    """Return in [i, k] the lowest cost of aligning what comes before i and before i + shifts[k] of the other."""
    no_first_queue = np.zeros((len(cost), 0))
    return _least_costs(no_first_queue, cost[:, :, None], shifts)[:, :, 0]


def _arrange_by_shift(cost: Floats, shifts: Ints, first_length: int) -> Floats:
    """Return the cost in [i, s, j] of pairing i with i + shifts[s] - j of the second queue.

    Infinite outside of it.
    """
    i = np.arange(len(cost))[:, None, None]
    taken_of_first = np.arange(first_length + 1)
    k = i + shifts[:, None] - taken_of_first
    is_inside = (k >= 0) & (k < cost.shape[1])
    return np.where(is_inside, cost[i, np.clip(k, 0, cost.shape[1] - 1)], np.inf)


def _least_costs(of_first: Floats, of_second: Floats, shifts: Ints) -> Floats:
    """Return the lowest costs of aligning operations with two queues, of which the first may be empty.

    Element [i, s, j] is for the first i operations, j of the first queue and i + shifts[s] - j of
    the second.

    Args:
        of_first: Cost in [i, j] of pairing operation i with j of the first queue.
        of_second: Cost in [i, s, j] of pairing operation i with i + shifts[s] - j of the second
            queue.
        shifts: Consecutive shifts, 0 among them: operations of the queues that were skipped less
            own ones.

    """
    least = np.full((len(of_second) + 1, *of_second.shape[1:]), np.inf)
    least[0, shifts == 0, 0] = 0.0
    least[0] = _skip_in_queues(least[0])
    for i, cost in enumerate(of_second):
        reached = least[i] + cost
        reached[:, 1:] = np.minimum(reached[:, 1:], least[i, :, :-1] + of_first[i])
        # The operation is skipped: the same next one of the queues is a shift lower.
        reached[:-1] = np.minimum(reached[:-1], least[i, 1:] + SKIP_COST)
        least[i + 1] = _skip_in_queues(reached)
    return least


def _skip_in_queues(least: Floats) -> Floats:
    """Return the lowest costs if operations of the queues may be skipped, too, which raises the shift."""
    if least.shape[1] == 1:  # one queue: a running minimum finds from where
        skipped = SKIP_COST * np.arange(len(least))[:, None]
        running: Floats = np.minimum.accumulate(least - skipped, axis=0) + skipped
        return running
    for s in range(1, len(least)):
        least[s] = np.minimum(least[s], least[s - 1] + SKIP_COST)
        least[s, 1:] = np.minimum(least[s, 1:], least[s - 1, :-1] + SKIP_COST)
    return least


def _follow_cheapest(of_first: Floats, of_second: Floats, before: Floats) -> Ints:
    """Return the queue of each operation along the cheapest way, from the end, if none is skipped.

    *before* holds in [i, j] the lowest cost of the first i operations, j of them with the first
    queue.
    """
    chosen = np.zeros(len(of_second), np.int64)
    j = of_first.shape[1]
    for i in range(len(of_second) - 1, -1, -1):
        k = i - j  # taken of the second queue before this operation, if it takes from the second
        via_first = before[i, j - 1] + of_first[i, j - 1] if j > 0 else np.inf
        via_second = before[i, j] + of_second[i, k] if k >= 0 else np.inf
        if via_first <= via_second:
            j -= 1
        else:
            chosen[i] = 1
    return chosen
