"""Places of findings on the page's timeline, and the paths of traces as a page that is shared may show them."""

from __future__ import annotations

import os.path
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import polars as pl

from tracekit._util.text import ms, percent
from tracekit.analysis.combine.spread import FIGURES, Different, Spread
from tracekit.documents.page import FindingPlaces, PlaceOnPage, RankRemark
from tracekit.findings import Finding
from tracekit.report.html.charts import PageClock
from tracekit.report.view.top import Card

MAX_RANKS_OF_FINDING = 3
"""Ranks of a finding up to which each of them stands out; more are not the exception."""
MAX_PLACES = 5
"""Places of one finding that the page leads to."""


def places_on_page(
    cards: Sequence[Card], clock: PageClock, ranks: Collection[int]
) -> list[FindingPlaces]:
    """Return for each card where the timeline shows it; *ranks* are those that the timeline has."""
    return [
        FindingPlaces(
            card.number, card.finding.text, _places(card.finding, clock, ranks)[:MAX_PLACES]
        )
        for card in cards
    ]


def _places(finding: Finding, clock: PageClock, ranks: Collection[int]) -> list[PlaceOnPage]:
    """Return the places of a finding: those that it names, else the steps of its ranks, else its steps."""
    if not ranks:
        return []
    if finding.where:
        return [
            _place(
                place.rank,
                place.step,
                clock.moment_on(place.rank, place.start_ns, place.end_ns),
                place.name,
            )
            for place in finding.where
            if place.rank in ranks
        ]
    if finding.ranks:
        shown = [rank for rank in finding.ranks if rank in ranks]
        return [place for rank in shown for place in _steps_of_rank(finding, clock, rank)[:1]]
    return _steps_of_rank(finding, clock, min(ranks)) if finding.steps else []


def _steps_of_rank(finding: Finding, clock: PageClock, rank: int) -> list[PlaceOnPage]:
    """Return the finding's steps on a rank; its first step if the finding names none."""
    steps = clock.steps.filter(rank=rank).sort("start_ns")
    if finding.steps:
        steps = steps.filter(pl.col("step").is_in(finding.steps))
    moments = steps.select("step", "start_ns", "end_ns").rows()
    return [
        _place(rank, step, (start_ns / 1e6, end_ns / 1e6), None)
        for step, start_ns, end_ns in moments
    ]


def _place(
    rank: int, step: int | None, moment: tuple[float, float], name: str | None
) -> PlaceOnPage:
    from_ms, to_ms = moment
    facts = [
        f"rank {rank}",
        "" if step is None else f"step {step}",
        name or "",
        ms(1e6 * (to_ms - from_ms)),
    ]
    return PlaceOnPage(rank, from_ms, to_ms, ", ".join(fact for fact in facts if fact))


def different_ranks(findings: Sequence[Finding], spread: Spread | None) -> list[RankRemark]:
    """Return the ranks that stand out: those that findings name, then those whose figures differ from like ranks'."""
    remarks: dict[int, str] = {}
    for finding in findings:
        if 0 < len(finding.ranks) <= MAX_RANKS_OF_FINDING:
            for rank in finding.ranks:
                remarks.setdefault(rank, finding.text)
    if spread is not None:
        # Of ranks that take longer together, the one that computes most is first: the others wait
        # for it.
        compute = dict(spread.table.select("rank", "compute").rows())
        for row in sorted(spread.different, key=lambda row: -(compute[row.rank] or 0.0)):
            remarks.setdefault(row.rank, _difference(row))
    return [RankRemark(rank, text) for rank, text in remarks.items()]


def _difference(row: Different) -> str:
    """Return how a rank's figure differs from that of like ranks."""
    if row.figure == "span_ns":
        return f"span {ms(row.value)} (median of {row.like}: {ms(row.median)})"
    return (
        f"{FIGURES[row.figure]}: {percent(row.value)} (median of {row.like}: {percent(row.median)})"
    )


class PathNames:
    """Removes the folders above the traces from texts, so that a page can be shared.

    >>> names = PathNames(["/home/ada/runs/big/rank0.json", "/home/ada/runs/big/rank1.json"])
    >>> names.shorten("tracekit analyze /home/ada/runs/big --what-if")
    'tracekit analyze big --what-if'
    >>> names.shorten("/home/ada/runs/big/rank1.json: ends early")
    'big/rank1.json: ends early'
    """

    def __init__(self, paths: Iterable[str]) -> None:
        local = [Path(path).absolute() for path in paths if "://" not in path]
        self._prefix = f"{Path(os.path.commonpath(local)).parent}/" if local else "//"

    def shorten(self, text: str) -> str:
        """Return the text without the folders above the traces."""
        return text if self._prefix == "//" else text.replace(self._prefix, "")
