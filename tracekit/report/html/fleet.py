"""Many ranks on the page: distributions, the ranks that differ, and the mesh as a heat map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracekit._util.text import ms, percent
from tracekit.analysis import Analysis
from tracekit.analysis.spread import FIGURES, MANY_RANKS, Figure, Spread, by_rank, spread
from tracekit.errors import Notice

BAND = 64
"""Columns of the heat map side by side; broader meshes go on below."""
MOST_DIFFERENT = 20
MOST_ALIKE = 5
"""Warnings of one kind that are shown one by one."""


def page_fleet(analysis: Analysis) -> dict[str, Any] | None:
    """Return what the section shows; None for runs of few ranks, which have a bar each."""
    if len(analysis.ranks) <= MANY_RANKS:
        return None
    found = spread(analysis)
    return {
        "figures": [
            {
                "title": one.title,
                "cells": [_value(one.name, x) for x in (one.least, one.low, one.median, one.high, one.most)],
                "least_rank": one.least_rank,
                "most_rank": one.most_rank,
                "bars": [count / max(one.counts) for count in one.counts],
                "counts": one.counts,
            }
            for one in found.figures
        ],
        "different": [
            {
                "rank": one.rank,
                "figure": FIGURES[one.figure],
                "value": _value(one.figure, one.value),
                "median": _value(one.figure, one.median),
                "like": one.like,
            }
            for one in found.different[:MOST_DIFFERENT]
        ],
        "more_different": max(0, len(found.different) - MOST_DIFFERENT),
        "heat": _heat(found),
    }


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


def _value(name: str, figure: float) -> str:
    return ms(figure) if name == "span_ns" else percent(figure)


def _heat(found: Spread) -> dict[str, Any] | None:
    bubble = next((one for one in found.figures if one.name == "bubble"), None)
    if bubble is None:
        return None
    figures = by_rank(found)
    bands = []
    for start in range(0, found.mesh.width, BAND):
        rows = []
        for name, ranks in zip(found.mesh.rows, found.mesh.cells, strict=True):
            part = ranks[start : start + BAND]
            rows.append({"name": name, "cells": [_cell(rank, figures, bubble) for rank in part]})
        bands.append({"columns": range(start, start + max(len(row["cells"]) for row in rows)), "rows": rows})
    return {"bands": bands, "least": percent(bubble.least), "most": percent(bubble.most), "column": found.mesh.column}


def _cell(rank: int | None, figures: Mapping[int, Mapping[str, float | None]], scale: Figure) -> dict[str, Any]:
    if rank is None:
        return {"heat": None, "text": "", "title": "no trace"}
    one = figures[rank]
    bubble = one["bubble"]
    told = f"rank {rank}: bubble {percent(bubble)}, compute {percent(one['compute'])}, span {ms(one['span_ns'])}"
    if bubble is None:
        return {"heat": None, "text": "?", "title": told}
    return {"heat": scale.shade(bubble), "text": f"{100 * bubble:.0f}", "title": told}
