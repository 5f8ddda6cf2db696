"""Walks of the autograd engine over sequence numbers: the boundaries between backwards.

A backward runs nodes in descending order of sequence number (``tracekit.reconstruct.segment``).
"""

from __future__ import annotations

import cython


def number_walks(
    number: cython.const[cython.longlong][::1],
    outside: cython.const[cython.longlong][::1],
    first_number: cython.longlong,
    owner: cython.longlong[::1],
    next_number: cython.longlong[::1],
    walk: cython.longlong[::1],
    repeats: cython.longlong[::1],
) -> int:
    """Assign kernels to descending walks over sequence numbers.

    A walk ends where the number rises, where it comes to numbers that another walk has been over, and where it leaves
    such numbers again.

    Args:
        number: Sequence number of each kernel, in launch order; -1: none.
        outside: Count of weight gradients outside autograd launched up to each kernel. One between two kernels of the
            same number shows that the node was run twice, unless the walk goes on downwards after it.
        first_number: Smallest sequence number.
        owner: Walk that was first at each number, counted from ``first_number``; -1 at the call.
        next_number: Scratch space, one number for each kernel.
        walk: Result: walk of each kernel; -1 before the first number.
        repeats: Result: for each walk the earlier walk whose numbers it goes over again, or itself. One longer than the
            kernels, -1 at the call.

    Returns:
        Number of walks.

    """
    count: cython.Py_ssize_t = number.shape[0]
    different: cython.longlong = -1
    current: cython.longlong = -1
    last: cython.longlong = -1
    last_outside: cython.longlong = 0
    continues_down: cython.bint
    run_twice: cython.bint
    is_repeat: cython.bint
    leaves_repeat: cython.bint
    # From the back: the next number that differs from the kernel's own.
    for i in range(count - 1, -1, -1):
        if i + 1 < count and number[i + 1] >= 0 and number[i + 1] != number[i]:
            different = number[i + 1]
        next_number[i] = different
    for i in range(count):
        n = number[i]
        if n < 0:
            walk[i] = current
            continue
        visitor = owner[n - first_number]
        continues_down = next_number[i] >= 0 and next_number[i] < n and owner[next_number[i] - first_number] < 0
        run_twice = n == last and outside[i] > last_outside and not continues_down
        is_repeat = visitor >= 0 and (run_twice or (n != last and (n > last or repeats[current] != visitor)))
        leaves_repeat = visitor < 0 and current >= 0 and repeats[current] != current
        if current < 0 or n > last or is_repeat or leaves_repeat:
            current += 1
            repeats[current] = visitor if is_repeat else current
        if owner[n - first_number] < 0:
            owner[n - first_number] = repeats[current]
        walk[i] = current
        last = n
        last_outside = outside[i]
    return int(current + 1)


def renumber_walks(
    number: cython.const[cython.longlong][::1],
    home: cython.const[cython.longlong][::1],
    begun: cython.const[cython.longlong][::1],
    walk: cython.longlong[::1],
    repeats: cython.longlong[::1],
    first_at_home: cython.longlong[::1],
) -> int:
    """Assign kernels to walks anew once walks were cut: a walk ends where its home or the earlier walk changes.

    Args:
        number: Sequence number of each kernel, in launch order; -1: none.
        home: Walk, after cutting, that was first at the kernel's number.
        begun: Walk of each kernel before cutting.
        walk: Result: walk of each kernel; 0 before the first number.
        repeats: Result: for each walk the first walk with the same home. -1 at the call.
        first_at_home: Scratch space: for each home the first walk there; -1 at the call.

    Returns:
        Number of walks, at least 1.

    """
    current: cython.longlong = -1
    last: cython.longlong = -1
    last_home: cython.longlong = -1
    last_begun: cython.longlong = -1
    for i in range(number.shape[0]):
        if number[i] >= 0:
            if current < 0 or home[i] != last_home or number[i] > last or begun[i] != last_begun:
                current += 1
                last_home = home[i]
                if first_at_home[last_home] < 0:
                    first_at_home[last_home] = current
                repeats[current] = first_at_home[last_home]
            last = number[i]
            last_begun = begun[i]
        walk[i] = max(current, 0)
    return max(int(current + 1), 1)
