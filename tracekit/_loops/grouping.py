"""Distinct pairs numbered in the order in which they first appear."""

from __future__ import annotations

try:
    import cython
except ImportError:
    from tracekit._loops import uncompiled as cython

from tracekit._loops import let_interrupt

_HASH_FACTOR = 1099511628211  # the 64-bit FNV prime
_LOW_64_BITS = 2**64 - 1


def number_pairs(
    a: cython.const[cython.longlong][::1],
    b: cython.const[cython.longlong][::1],
    slots: cython.longlong[::1],
    first_row: cython.longlong[::1],
    out: cython.longlong[::1],
) -> int:
    """Number pairs of any integers in the order of their first appearance.

    Args:
        a, b: The two columns.
        slots: Scratch space for a hash table, -1 at the call. Its length is a power of two.
        first_row: Result: row at which each number first appears. As long as ``slots``.
        out: Result: number of each row.

    Returns:
        Number of distinct pairs; -1 if the hash table is too small for them.

    """
    factor: cython.ulonglong = _HASH_FACTOR
    low_64_bits: cython.ulonglong = _LOW_64_BITS
    mask: cython.ulonglong = slots.shape[0] - 1
    count: cython.Py_ssize_t = 0
    hash_a: cython.ulonglong
    hash_b: cython.ulonglong
    slot: cython.ulonglong
    for i in range(a.shape[0]):
        if (i & 0xFFFF) == 0:
            let_interrupt()
        if i > 0 and a[i] == a[i - 1] and b[i] == b[i - 1]:  # mostly rows repeat the one before
            out[i] = out[i - 1]
            continue
        hash_a = cython.cast(cython.ulonglong, a[i])
        hash_b = cython.cast(cython.ulonglong, b[i])
        slot = ((hash_a * factor) ^ hash_b) * factor & low_64_bits
        slot = (slot ^ (slot >> 29)) & mask
        # Linear probing: the pair is in the first slot, from its own on, that holds it or is empty.
        while slots[slot] >= 0:
            row = first_row[slots[slot]]
            if a[row] == a[i] and b[row] == b[i]:
                break
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            if 2 * count > slots.shape[0] - 1:  # at most half full, else probing takes long
                return -1
            slots[slot] = count
            first_row[count] = i
            count += 1
        out[i] = slots[slot]
    return count
