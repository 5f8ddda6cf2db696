"""Integers chosen for one path of probes, and the slots that a dict of CPython looks at for its keys.

An integer's hash is the integer, so whoever writes a file can choose numbers that all look at the
same slots of a dict. Most of the numbers lie at the beginning of the path on which a dict looks for
a free slot; the others land on it behind their first probes, and each of them looks at all that
follows.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import numpy as np

PERTURB_SHIFT = 5
BITS = 31
"""Of the integers: few enough for a rank, a stream or a thread."""
SAMPLES = 1 << 18


def chosen_integers(count: int) -> list[int]:
    """Return *count* different integers for which the slots that a dict looks at grow with the square of *count*."""
    bits = _table_bits(count)
    mask = (1 << bits) - 1
    path = np.zeros(mask + 1, np.int64)
    for i in range(mask):
        path[i + 1] = (5 * path[i] + 1) & mask
    position = np.empty_like(path)
    position[path] = np.arange(len(path))
    head = path[: 3 * count // 4]
    is_taken = position < len(head)
    chosen: dict[int, None] = {}
    random = np.random.default_rng(1)
    while len(chosen) < count - len(head):
        number = random.integers(1 << bits, 1 << BITS, SAMPLES)
        slot = number & mask
        perturb = number
        meets_taken_slots = is_taken[slot]
        while perturb.any():
            perturb = perturb >> PERTURB_SHIFT
            slot = (5 * slot + perturb + 1) & mask
            meets_taken_slots = meets_taken_slots & is_taken[slot]
        lands_early = position[slot] < len(head) // 2
        chosen.update(dict.fromkeys(number[meets_taken_slots & lands_early].tolist()))
    return [*head.tolist(), *list(chosen)[: count - len(head)]]


def count_probes(keys: Iterable[Hashable]) -> int:
    """Return at how many slots a dict looks that takes *keys* in their order.

    >>> count_probes(range(1000))
    1000
    """
    hashes = [hash(key) for key in keys]
    mask = (1 << _table_bits(len(hashes))) - 1
    taken = bytearray(mask + 1)
    probes = 0
    for number in hashes:
        perturb = number & (1 << 64) - 1
        slot = perturb & mask
        probes += 1
        while taken[slot]:
            perturb >>= PERTURB_SHIFT
            slot = (5 * slot + perturb + 1) & mask
            probes += 1
        taken[slot] = 1
    return probes


def _table_bits(count: int) -> int:
    """Return the bits of the number of slots of a dict with *count* keys: at most two thirds are taken."""
    bits = 3
    while 2 * (1 << bits) // 3 < count:
        bits += 1
    return bits
