"""Sequences of sides: those of one key on one rank, in the order of issue, and which of them lack a side."""

from __future__ import annotations

import msgspec
import numpy as np

from tracekit._util.arrays import Bools, Ints, SortedGroups
from tracekit.align.clock_bounds import MAX_ACKNOWLEDGE_NS, NO_BOUND_NS
from tracekit.align.sides import Sides

MAX_REFERENCES = 8
"""Ranks that a rank's operations are compared with to see which are missing."""
MIN_FIT_RATIO = 3.0
"""How many times better an end must agree with another operation's than with its counterpart's to
look for holes."""


class Sequences(msgspec.Struct, frozen=True, eq=False):
    """The sequences of all keys and ranks, key by key: the sides of one key on one rank, in the order of issue."""

    order: Ints
    """Sides, sequence by sequence."""
    first: Ints
    """Index in ``order`` of the first side of each sequence."""
    length: Ints
    reference: Ints
    """Longest sequence of the same key; of several the first."""
    size: Ints
    """Bytes of each side, in the order of ``order``; -1 if unknown."""

    @classmethod
    def of(cls, sides: Sides) -> Sequences:
        """Divide the sides into sequences."""
        # One number per key, rank and direction (-1, 0 or 1), then the sides of each in the order of
        # issue.
        rank_count = int(sides.rank.max(initial=0)) + 1
        number = (sides.key * rank_count + sides.rank) * 3 + sides.sends + 1
        order = np.lexsort((sides.order, number))
        sequences = SortedGroups.of(number[order])
        key = sides.key[order[sequences.first]]
        keys = SortedGroups.of(key)
        # The sequences key by key, of each key the longest first: those of a key keep its rows.
        longest_first = np.lexsort((np.arange(len(key)), -sequences.size, key))
        reference = keys.spread(longest_first[keys.first])
        return cls(order, sequences.first, sequences.size, reference, sides.bytes[order])

    def positions(self) -> Ints:
        """Return the position of each side in its sequence."""
        position = np.empty(len(self.order), np.int64)
        position[self.order] = np.arange(len(self.order)) - np.repeat(self.first, self.length)
        return position

    def rows(self, sequence: int) -> Ints:
        """Return the sides of one sequence."""
        return self.order[self.first[sequence] : self.first[sequence] + self.length[sequence]]

    def references(self, sequence: int, with_holes: list[int]) -> list[int]:
        """Return other sequences of the same key that are as long as the longest, at most ``MAX_REFERENCES``."""
        is_longest = (self.reference == self.reference[sequence]) & (
            self.length == self.length[self.reference]
        )
        is_longest[[sequence, *with_holes]] = False
        references: list[int] = np.flatnonzero(is_longest)[:MAX_REFERENCES].tolist()
        return references

    def find_uneven(self, sides: Sides) -> Ints:
        """Return the sequences that have fewer sides than their reference, some of other sizes, or some out of place.

        Sides are out of place only where their ends are known and their groups named.
        """
        is_shorter = self.length < self.length[self.reference]
        sequence = np.repeat(np.arange(len(self.first)), self.length)
        counterpart = self._counterparts(sequence, is_shorter)
        ends = _Ends(
            sequences=self,
            sequence=sequence,
            counterpart=counterpart,
            end_ns=sides.end[self.order],
            is_comparable=(sides.recorded & ~sides.nameless)[self.order],
        )
        longest_apart_ns = np.where(sides.meets, sides.end - sides.start, NO_BOUND_NS)[self.order]
        has_misfit = self.count_sides(sequence, ends.find_misfits(longest_apart_ns)) > 0
        return np.flatnonzero(
            is_shorter | self.find_other_sizes(sequence, counterpart) | has_misfit
        )

    def _counterparts(self, sequence: Ints, is_shorter: Bools) -> Ints:
        """Return the counterpart of each side in the reference if both are complete.

        Of a shorter sequence itself.
        """
        index = np.arange(len(self.order))
        counterpart = index - self.first[sequence] + self.first[self.reference[sequence]]
        return np.where(is_shorter[sequence], index, counterpart)

    def find_other_sizes(self, sequence: Ints, counterpart: Ints) -> Bools:
        """Return the sequences of which some sides, and less than half, have another size than their counterparts.

        Sizes of an exchange may differ everywhere (every rank sends another amount): that says
        nothing about order.
        """
        other_size = self.size[counterpart]
        is_different = (self.size != other_size) & (self.size >= 0) & (other_size >= 0)
        different_count = self.count_sides(sequence, is_different)
        return (different_count > 0) & (different_count * 2 < self.length)

    def count_sides(self, sequence: Ints, mask: Bools) -> Ints:
        """Return in how many sides of each sequence *mask* holds."""
        return np.bincount(sequence[mask], minlength=len(self.first))

    def median(self, values: Ints, sequence: Ints) -> Ints:
        """Return the median of each sequence; of two middle values the higher one."""
        median: Ints = values[np.lexsort((values, sequence))][self.first + self.length // 2]
        return median


class _EndsApart(msgspec.Struct, frozen=True, eq=False):
    """Distances of ends from those of one neighbour of each side's counterpart."""

    apart_ns: Ints
    is_usable: Bools

    def misfit_ns(self, clock_ns: Ints) -> Ints:
        """Return how far apart the ends lie if the clocks differ by *clock_ns*.

        ``NO_BOUND_NS`` where not usable.
        """
        return np.where(self.is_usable, np.abs(self.apart_ns - clock_ns), NO_BOUND_NS)


class _Ends(msgspec.Struct, frozen=True, eq=False):
    """Ends of the sides of all sequences, compared with those of their counterparts and of these' neighbours.

    Where two ranks lack different operations, those between are each other's neighbours by their
    order: their ends agree with those before or after their counterparts.
    """

    sequences: Sequences
    sequence: Ints
    counterpart: Ints
    end_ns: Ints
    is_comparable: Bools

    def find_misfits(self, longest_apart_ns: Ints) -> Bools:
        """Return the sides whose ends agree with a neighbour of their counterpart, or with none.

        *longest_apart_ns* is how far the ends of each side's operation may lie apart.
        """
        own = self._compare(0)
        before = self._compare(-1)
        after = self._compare(1)
        clock_ns = self._likeliest_clocks(own, before, after)[self.sequence]
        own_ns = own.misfit_ns(clock_ns)
        neighbour_ns = np.minimum(before.misfit_ns(clock_ns), after.misfit_ns(clock_ns))
        fits_neighbour_better = neighbour_ns * MIN_FIT_RATIO < own_ns
        most_ns = (
            np.maximum(longest_apart_ns, longest_apart_ns[self.counterpart]) + MAX_ACKNOWLEDGE_NS
        )
        is_too_far_apart = own_ns > most_ns
        is_noticeable = own.is_usable & (own_ns > MAX_ACKNOWLEDGE_NS)
        return is_noticeable & (fits_neighbour_better | is_too_far_apart)

    def _compare(self, step: int) -> _EndsApart:
        """Compare each side with what comes *step* sides after its counterpart.

        A neighbour of another size is no partner of an operation whose counterpart has its size.
        """
        size = self.sequences.size
        neighbour = np.clip(self.counterpart + step, 0, len(self.end_ns) - 1)
        is_same_sequence = self.sequence[neighbour] == self.sequence[self.counterpart]
        may_be_partner = (size != size[self.counterpart]) | (size == size[neighbour])
        is_known = self.is_comparable & self.is_comparable[neighbour]
        return _EndsApart(
            self.end_ns - self.end_ns[neighbour], is_same_sequence & may_be_partner & is_known
        )

    def _likeliest_clocks(self, own: _EndsApart, before: _EndsApart, after: _EndsApart) -> Ints:
        """Return for each sequence by how much its clock differs from that of its reference.

        By nothing, as recorded, or by a median of the distances, if ends then agree clearly better.
        """
        as_recorded = np.zeros(len(self.sequences.first), np.int64)
        candidates = [  # the difference, and the weight of its misfit
            (as_recorded, 1 / MIN_FIT_RATIO),
            (self.sequences.median(own.apart_ns, self.sequence), 1.0),
            (self.sequences.median(before.apart_ns, self.sequence), MIN_FIT_RATIO),
            (self.sequences.median(after.apart_ns, self.sequence), MIN_FIT_RATIO),
        ]
        misfits = []
        for clock_ns, weight in candidates:
            of_side = clock_ns[self.sequence]
            misfit_ns = np.minimum(own.misfit_ns(of_side), before.misfit_ns(of_side))
            misfit_ns = np.minimum(misfit_ns, after.misfit_ns(of_side))
            misfits.append(weight * np.maximum(self.sequences.median(misfit_ns, self.sequence), 1))
        best = np.argmin(misfits, axis=0)
        likeliest: Ints = np.choose(best, [clock_ns for clock_ns, _ in candidates])
        return likeliest
