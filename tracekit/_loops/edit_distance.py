"""Edit distance between two sequences (Myers 1986, An O(ND) difference algorithm)."""

from __future__ import annotations

try:
    import cython
except ImportError:
    from tracekit._loops import uncompiled as cython


def count_edits(
    a: cython.const[cython.longlong][::1],
    b: cython.const[cython.longlong][::1],
    limit: cython.Py_ssize_t,
    reach: cython.longlong[::1],
) -> int:
    """Count the insertions and deletions that turn sequence ``a`` into ``b``.

    Args:
        a, b: The sequences.
        limit: Edits from which counting stops.
        reach: Scratch space: 2 * ``limit`` + 3 zeros.

    Returns:
        Number of edits, or ``limit`` + 1 if there are more than ``limit``.

    """
    # A diagonal holds the pairs (x, y) of positions in a and b with x - y = diagonal.
    # reach[diagonal + limit + 1] is the farthest x on it that the edits so far lead to; an edit
    # leads to a neighbouring diagonal.
    for edits in range(limit + 1):
        for diagonal in range(-edits, edits + 1, 2):
            k = diagonal + limit + 1
            if diagonal == -edits or (diagonal != edits and reach[k - 1] < reach[k + 1]):
                x = reach[k + 1]  # insert an element of b
            else:
                x = reach[k - 1] + 1  # delete an element of a
            while x < a.shape[0] and x - diagonal < b.shape[0] and a[x] == b[x - diagonal]:
                x += 1
            reach[k] = x
            if x >= a.shape[0] and x - diagonal >= b.shape[0]:
                return edits
    return limit + 1
