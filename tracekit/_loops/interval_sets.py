"""Passes over intervals and over interval sets (disjoint, sorted by group and start)."""

from __future__ import annotations

import cython

NEVER: cython.longlong = -(2**62)


def join(
    group: cython.longlong[::1],
    start: cython.longlong[::1],
    end: cython.longlong[::1],
    room: cython.longlong[:, ::1],
    out: cython.longlong[:, ::1],
) -> int:
    """Merge."""
    groups: cython.Py_ssize_t = room.shape[1] - 1
    g: cython.Py_ssize_t
    i: cython.Py_ssize_t
    for g in range(groups + 1):
        room[0, g] = 0
        room[1, g] = NEVER
        room[2, g] = NEVER
    for i in range(start.shape[0]):
        g = group[i]
        if end[i] > start[i]:
            if start[i] < room[2, g]:
                return -1
            room[2, g] = start[i]
            if start[i] > room[1, g]:
                room[0, g + 1] += 1
            room[1, g] = max(room[1, g], end[i])
    return int(room[0, groups])
