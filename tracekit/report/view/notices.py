"""Warnings as a reader wants them: of one kind the first few."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.errors import Notice

MOST_ALIKE = 5
"""Warnings of one kind that are shown one by one."""


def few_alike(notices: Sequence[Notice]) -> list[Notice]:
    """Shorten a list of notices: of one kind the first few and how many more; failures are all listed, by path.

    >>> [note.message for note in few_alike([Notice("cut", f"rank {n} ends early") for n in range(7)])][-2:]
    ['rank 4 ends early', '2 more like this']
    """
    seen: dict[str, int] = {}
    kept = []
    for notice in notices:
        seen[notice.code] = seen.get(notice.code, 0) + 1
        if seen[notice.code] <= MOST_ALIKE or notice.code == "rank-failed":
            kept.append(notice)
    left = {code: count - MOST_ALIKE for code, count in seen.items() if code != "rank-failed" and count > MOST_ALIKE}
    last = {notice.code: at for at, notice in enumerate(kept)}
    for code in sorted(left, key=lambda code: -last[code]):
        kept.insert(last[code] + 1, Notice(code, f"{left[code]} more like this"))
    return kept
