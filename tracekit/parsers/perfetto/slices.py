"""Ends of slices: which end belongs to which begin.

Perfetto draws the slices of a track as nested: an end closes the slice that began last. PyTorch
writes all begins of a group of slices and then all ends in the same order, not in the order of
time; slices that touch or share a time could not be told apart by nesting alone, their places in
the file tell it.
"""

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tracekit._util.arrays import Ints

NO_END = -1

Bools = npt.NDArray[np.bool_]


class Marks:
    """Begins and ends of slices in the order of the file."""

    def __init__(self, begins: tuple[Ints, Ints, Ints], ends: tuple[Ints, Ints, Ints]) -> None:
        """Merge begins and ends, each given as number of the packet, time and track."""
        order = np.argsort(np.concatenate([begins[0], ends[0]]), kind="stable")
        is_end = np.concatenate(
            [np.zeros(len(begins[0]), np.bool_), np.ones(len(ends[0]), np.bool_)]
        )
        index = np.concatenate([np.arange(len(begins[0])), np.arange(len(ends[0]))])
        self.is_end: Bools = is_end[order]
        self.index: Ints = index[order]
        """Number of the begin among the begins, of the end among the ends."""
        self.time: Ints = np.concatenate([begins[1], ends[1]])[order]
        self.track: Ints = np.concatenate([begins[2], ends[2]])[order]


def match_ends(begins: tuple[Ints, Ints, Ints], ends: tuple[Ints, Ints, Ints]) -> Ints:
    """Return the number of each begin's end among the ends, ``NO_END`` where it has none.

    Args:
        begins: Number of the packet, time and track of each begin.
        ends: The same of each end.

    >>> a_then_b = np.array([0, 1]), np.array([0, 5]), np.array([7, 7])
    >>> match_ends(a_then_b, (np.array([2, 3]), np.array([9, 6]), np.array([7, 7]))).tolist()
    [0, 1]
    >>> match_ends(a_then_b, (np.array([2, 3]), np.array([6, 9]), np.array([7, 7]))).tolist()
    [1, 0]
    """
    partner = np.full(len(begins[0]), NO_END, np.int64)
    if not len(begins[0]) or not len(ends[0]):
        return partner
    marks = Marks(begins, ends)
    is_in_order_of_time = bool((np.diff(marks.time) >= 0).all())
    pairs = None if is_in_order_of_time else _match_by_place(marks)
    if pairs is None:
        pairs = _match_by_nesting(marks)
    begin_marks, end_marks = pairs
    partner[marks.index[begin_marks]] = marks.index[end_marks]
    return partner


def _match_by_place(marks: Marks) -> tuple[Ints, Ints] | None:
    """Return pairs of a begin and the end at the same place of the run of ends behind its run of begins.

    None if the file is not written so: an end without a begin, on another track, or before its
    begin.
    """
    changes = np.flatnonzero(np.diff(marks.is_end)) + 1
    run_starts = np.concatenate([[0], changes])
    run = np.searchsorted(run_starts, np.arange(len(marks.is_end)), side="right") - 1
    position = np.arange(len(marks.is_end)) - run_starts[run]  # in its run
    end_marks = np.flatnonzero(marks.is_end)
    if run[end_marks[0]] == 0:
        return None
    begin_marks = run_starts[run[end_marks] - 1] + position[end_marks]
    is_inside_run = begin_marks < run_starts[run[end_marks]]
    if not is_inside_run.all():
        return None
    is_same_track = marks.track[begin_marks] == marks.track[end_marks]
    is_later = marks.time[begin_marks] <= marks.time[end_marks]
    return (begin_marks, end_marks) if (is_same_track & is_later).all() else None


def _match_by_nesting(marks: Marks) -> tuple[Ints, Ints]:
    """Return pairs of a begin and the end that closes it, where an end closes the slice that began last."""
    in_time = np.lexsort((np.arange(len(marks.time)), marks.time, marks.track))
    is_end = marks.is_end[in_time]
    track = marks.track[in_time]
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(track)) + 1, [len(track)]])
    level = np.zeros(len(track), np.int64)
    is_matched = np.ones(len(track), np.bool_)
    for first, last in pairwise(bounds.tolist()):
        level[first:last], is_matched[first:last] = _levels(is_end[first:last])
    # Of one track and level, begins and ends alternate.
    order = np.lexsort((np.arange(len(track)), level, track))
    order = order[is_matched[order]]
    begin = order[:-1]
    end = order[1:]
    is_pair = (
        ~is_end[begin] & is_end[end] & (track[begin] == track[end]) & (level[begin] == level[end])
    )
    return in_time[begin[is_pair]], in_time[end[is_pair]]


def _levels(is_end: Bools) -> tuple[Ints, Bools]:
    """Return how deep each begin and end of one track lies, and which are not ends without a begin.

    >>> level, is_matched = _levels(np.array([True, False, False, True, True]))
    >>> level.tolist(), is_matched.tolist()
    ([1, 1, 2, 2, 1], [False, True, True, True, True])
    """
    open_slices = np.cumsum(np.where(is_end, -1, 1))
    lowest = np.minimum.accumulate(np.minimum(open_slices, 0))
    lowest_before = np.concatenate([[0], lowest[:-1]])
    is_matched = ~(is_end & (open_slices < lowest_before))
    depth = open_slices - lowest
    return np.where(is_end, depth + 1, depth), is_matched
