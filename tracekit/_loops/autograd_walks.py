"""Walks of the autograd engine over sequence numbers: the boundaries between backwards.

A backward runs nodes in descending order of sequence number (``tracekit.reconstruct.segment``).
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from tracekit._loops import uncompiled as cython


def number_walks(
    number: cython.const[cython.longlong][::1],
    loose_wgrads_before: cython.const[cython.longlong][::1],
    first_number: cython.longlong,
    first_walk: cython.longlong[::1],
    next_number: cython.longlong[::1],
    walk: cython.longlong[::1],
    repeated_walk: cython.longlong[::1],
) -> int:
    """Assign kernels to descending walks over sequence numbers.

    A walk ends where the number rises, where it comes to numbers that another walk has been over,
    and where it leaves such numbers again.

    Args:
        number: Sequence number of each kernel, in launch order; -1: none.
        loose_wgrads_before: Weight gradients outside autograd launched before each kernel. One
            between two kernels of the same number shows that the node was run twice, unless the
            walk goes on downwards after it.
        first_number: Smallest sequence number.
        first_walk: Walk that was first at each number, counted from ``first_number``; -1 at the
            call.
        next_number: Scratch space, one number for each kernel.
        walk: Result: walk of each kernel; -1 before the first number.
        repeated_walk: Result: for each walk the earlier walk whose numbers it goes over again, or
            itself. One longer than the kernels, -1 at the call.

    Returns:
        Number of walks.

    """
    different: cython.longlong = -1
    following: cython.longlong = -1
    current: cython.longlong = -1
    last: cython.longlong = -1
    last_loose_wgrads: cython.longlong = 0
    continues_down: cython.bint
    goes_back: cython.bint
    runs_twice: cython.bint
    enters_other: cython.bint
    leaves_repeat: cython.bint
    # From the back: the next number that differs from the kernel's own; -1: none.
    for i in range(number.shape[0] - 1, -1, -1):
        if number[i] >= 0:
            if following != number[i]:
                different = following
            next_number[i] = different
            following = number[i]
    for i in range(number.shape[0]):
        n = number[i]
        if n < 0:
            walk[i] = current
            continue
        earlier = first_walk[n - first_number]
        continues_down = (
            next_number[i] >= 0
            and next_number[i] < n
            and first_walk[next_number[i] - first_number] < 0
        )
        goes_back = n > last  # a walk never goes up; true of the first number too
        # A weight gradient outside autograd separates two runs of a node, unless the walk continues
        # to new numbers.
        runs_twice = n == last and loose_wgrads_before[i] > last_loose_wgrads and not continues_down
        # Down to numbers of an earlier walk, other than the one that is being repeated.
        enters_other = n < last and earlier >= 0 and repeated_walk[current] != earlier
        # Down from the numbers of the repeated walk to new ones.
        leaves_repeat = current >= 0 and earlier < 0 and repeated_walk[current] != current
        if goes_back or runs_twice or enters_other or leaves_repeat:
            current += 1
            repeated_walk[current] = earlier if earlier >= 0 else current
        if earlier < 0:
            first_walk[n - first_number] = current
        walk[i] = current
        last = n
        last_loose_wgrads = loose_wgrads_before[i]
    return int(current + 1)


def renumber_walks(
    number: cython.const[cython.longlong][::1],
    first_visitor: cython.const[cython.longlong][::1],
    uncut_walk: cython.const[cython.longlong][::1],
    walk: cython.longlong[::1],
    repeated_walk: cython.longlong[::1],
    first_walk: cython.longlong[::1],
) -> int:
    """Assign kernels to walks anew once walks were cut: a walk ends where the first visitor or the uncut walk changes.

    Args:
        number: Sequence number of each kernel, in launch order; -1: none.
        first_visitor: Walk, after cutting, that was first at the kernel's number.
        uncut_walk: Walk of each kernel before cutting.
        walk: Result: walk of each kernel; 0 before the first number.
        repeated_walk: Result: for each walk the first walk with the same first visitor. -1 at the
            call.
        first_walk: Scratch space: for each first visitor its first walk in the result; -1 at the
            call.

    Returns:
        Number of walks, at least 1.

    """
    current: cython.longlong = -1
    last: cython.longlong = -1
    last_visitor: cython.longlong = -1
    last_uncut_walk: cython.longlong = -1
    for i in range(number.shape[0]):
        if number[i] >= 0:
            if (
                current < 0
                or first_visitor[i] != last_visitor
                or number[i] > last
                or uncut_walk[i] != last_uncut_walk
            ):
                current += 1
                last_visitor = first_visitor[i]
                if first_walk[last_visitor] < 0:
                    first_walk[last_visitor] = current
                repeated_walk[current] = first_walk[last_visitor]
            last = number[i]
            last_uncut_walk = uncut_walk[i]
        walk[i] = max(current, 0)
    return max(int(current + 1), 1)
