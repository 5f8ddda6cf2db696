"""Native passes over intervals, and over sets of them that are built: disjoint, sorted by group and start."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tracekit._util.native import native

Longs = npt.NDArray[np.int64]

NEVER = np.iinfo(np.int64).min // 2
"""Before all times."""
EITHER, BOTH, WITHOUT = range(3)
"""What ``merge`` keeps: what either set covers, what both do, what the first does and the second does not."""


@native("int64(int64[::1], int64[::1], int64[::1], int64[:,::1], int64[:,::1])")
def join(group: Longs, start: Longs, end: Longs, room: Longs, out: Longs) -> int:
    """Join intervals that touch, those of each group in order of start; return how many came out, -1 if out of order.

    *room* has three rows, one column for each group and one more: where a group's next interval goes, until when the
    last one reaches, and when it began.
    """
    groups = room.shape[1] - 1
    for g in range(groups + 1):
        room[0, g], room[1, g], room[2, g] = 0, NEVER, NEVER
    for i in range(len(start)):
        g = group[i]
        if end[i] > start[i]:
            if start[i] < room[2, g]:
                return -1
            room[2, g] = start[i]
            if start[i] > room[1, g]:
                room[0, g + 1] += 1
            room[1, g] = max(room[1, g], end[i])
    for g in range(groups):
        room[0, g + 1] += room[0, g]
        room[1, g] = NEVER
    count = room[0, groups]
    for i in range(len(start)):
        g = group[i]
        if end[i] > start[i]:
            if start[i] > room[1, g]:
                at = room[0, g]
                room[0, g] = at + 1
                out[0, at], out[1, at] = g, start[i]
            room[1, g] = max(room[1, g], end[i])
            out[2, room[0, g] - 1] = room[1, g]
    return int(count)


@native("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64[:,::1])")
def merge(  # noqa: PLR0912, PLR0917 - native code is one function and takes no keywords
    group: Longs, start: Longs, end: Longs, group_b: Longs, start_b: Longs, end_b: Longs, way: int, out: Longs
) -> int:  # fmt: skip
    """Merge two sorted sets; return how many intervals came out."""
    i = j = count = 0
    if way == EITHER:
        while i < len(start) or j < len(start_b):
            first = j >= len(start_b) or (
                i < len(start) and (group[i] < group_b[j] or (group[i] == group_b[j] and start[i] <= start_b[j]))
            )
            if first:
                g, s, e = group[i], start[i], end[i]
                i += 1
            else:
                g, s, e = group_b[j], start_b[j], end_b[j]
                j += 1
            if count > 0 and out[0, count - 1] == g and s <= out[2, count - 1]:
                out[2, count - 1] = max(out[2, count - 1], e)
            else:
                out[0, count], out[1, count], out[2, count] = g, s, e
                count += 1
        return count
    since = start[0]  # without: what is left of the first set's interval begins here
    while i < len(start):
        if j >= len(start_b) or group[i] < group_b[j] or (group[i] == group_b[j] and end[i] <= start_b[j]):
            if way == WITHOUT and since < end[i]:
                out[0, count], out[1, count], out[2, count] = group[i], since, end[i]
                count += 1
            i += 1
            if i < len(start):
                since = start[i]
        elif group_b[j] < group[i] or end_b[j] <= since:
            j += 1
        else:  # they overlap
            low, high = max(since, start_b[j]), min(end[i], end_b[j])
            if way == BOTH:
                out[0, count], out[1, count], out[2, count] = group[i], low, high
                count += 1
            elif since < low:
                out[0, count], out[1, count], out[2, count] = group[i], since, low
                count += 1
            since = high
            if end_b[j] < end[i]:
                j += 1
            else:
                i += 1
                if i < len(start):
                    since = start[i]
    return count


@native("void(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1])")
def cover(  # noqa: PLR0917 - native code takes no keywords
    group: Longs, start: Longs, end: Longs, running: Longs, asked: Longs, low: Longs, high: Longs, covered: Longs
) -> None:  # fmt: skip
    """Add to *covered* the time of each asked interval that the set covers; *running* are the set's running totals."""
    for edge in range(2):
        place = 0  # how many intervals of the set start at or before the moment; the next is mostly near
        for i in range(len(asked)):
            g = asked[i]
            t = high[i] if edge else low[i]
            if place > 0 and (group[place - 1] > g or (group[place - 1] == g and start[place - 1] > t)):
                a, b = 0, place - 1
            else:
                step, a, b = 1, place, place
                while b < len(start) and (group[b] < g or (group[b] == g and start[b] <= t)):
                    a, b, step = b + 1, b + step, step * 2
                b = min(b, len(start))
            while a < b:
                middle = (a + b) // 2
                if group[middle] < g or (group[middle] == g and start[middle] <= t):
                    a = middle + 1
                else:
                    b = middle
            place = a
            passed = running[place]
            if place > 0 and group[place - 1] == g and end[place - 1] > t:
                passed -= end[place - 1] - t
            covered[i] += passed if edge else -passed


@native("void(int64[::1], int64[::1], int64[::1], int64[::1], int64[:,::1], int64[:,::1], int64[:,:,::1])")
def meet(  # noqa: PLR0917 - native code takes no keywords
    group: Longs, kind: Longs, start: Longs, end: Longs, reach: Longs, total: Longs, both: Longs
) -> None:
    """Add up how long each kind runs (*total*) and how long two kinds run at once (*both*), in each group.

    Intervals come in order of start. The kinds are those asked about, then those they may meet: ``both[g, a, b]`` is
    of asked kind *a* and of kind *b* behind them. *reach* says until when each runs.
    """
    asked, others = both.shape[1], both.shape[2]
    for i in range(len(start)):
        g, k = group[i], kind[i]
        since = max(start[i], reach[g, k])
        if end[i] <= since:
            continue
        total[g, k] += end[i] - since
        reach[g, k] = end[i]
        if k < asked:
            for j in range(others):
                both[g, k, j] += max(min(end[i], reach[g, asked + j]) - since, 0)
        else:
            for j in range(asked):
                both[g, j, k - asked] += max(min(end[i], reach[g, j]) - since, 0)


@native("void(int64[::1], int64[::1], int64[::1], int64[::1], boolean[::1])")
def touch(since: Longs, until: Longs, start: Longs, end: Longs, touched: npt.NDArray[np.bool_]) -> None:
    """Say which intervals touch a stretch [since, until); stretches ascend, apart from each other.

    Of those marked as *touched* the ones that touch none lose their mark.
    """
    place, count = 0, len(until)  # how many stretches end at or before the moment; the next is mostly near
    for i in range(len(start)):
        if not touched[i]:
            continue
        low, high, step = place, place, 1
        if high < count and until[high] <= start[i]:
            while high < count and until[high] <= start[i]:
                low, high, step = high + 1, high + step, step * 2
            high = min(high, count)
        else:
            while low > 0 and until[low - 1] > start[i]:
                low, high, step = max(low - step, 0), low - 1, step * 2
        while low < high:
            middle = (low + high) // 2
            if until[middle] <= start[i]:
                low = middle + 1
            else:
                high = middle
        place = low
        touched[i] = place < count and since[place] < end[i]
