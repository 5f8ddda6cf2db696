"""How often the same kernels repeat in a chunk: the layers of a stage."""

from __future__ import annotations

import numpy as np

from tracekit._util.arrays import Ints, group_rows

REGULAR = 0.95
"""Share of a chunk's time that kernels must take which come a multiple of so many times for these to be its layers."""


def repeats(chunk: Ints, name: Ints, took_ns: Ints) -> Ints:
    """Return for every chunk how many equal layers it is made of: the most that nearly all its kernels divide into.

    Of each kernel its *chunk*, a number for its *name*, and its time. What comes once (an embedding, a loss) counts
    against it.

    >>> repeats(np.zeros(9, np.int64), np.array([0, 1, 1] * 3), np.ones(9, np.int64)).tolist()
    [3]
    """
    kind, first = group_rows(chunk, name)
    place, n, ns = chunk[first], np.bincount(kind), np.bincount(kind, took_ns)
    total = np.bincount(place, ns)
    layers = np.ones(len(total), np.int64)
    for times in np.unique(n):
        even = np.bincount(place, ns * (n % times == 0), len(total))
        layers[even >= REGULAR * total] = times  # ascending, so the most of them stays
    return layers
