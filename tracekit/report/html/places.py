"""Places of findings on the page's timeline, and the paths of traces as a page that is shared may show them."""

from __future__ import annotations

import os.path
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import msgspec
import polars as pl

from tracekit._util.text import format_ranges, ms, percent
from tracekit.analysis.combine.spread import FIGURES, Different, Spread
from tracekit.documents.findings import MAX_PLACES_PER_FINDING, Finding
from tracekit.documents.page import FindingPlaces, PlaceOnPage, RankRemark
from tracekit.findings.families import kind_of
from tracekit.pipeline.against_ideal import ScheduleComparison
from tracekit.report.html.charts import PageClock
from tracekit.report.html.source_paths import shorten_source_paths

MAX_RANKS_OF_FINDING = 3
"""Ranks of a finding up to which each of them stands out; more are not the exception."""


class BusiestRank(msgspec.Struct, frozen=True):
    """The rank of a pipeline whose cells compute longest: the one that unequal stages wait for."""

    rank: int
    stages: tuple[int, ...]
    step: int | None
    compute_ns: int
    """Compute within its cells."""
    median_ns: int
    """Median of that over the ranks of the pipeline."""

    @property
    def text(self) -> str:
        """How much longer it computes than the others."""
        noun = "stage" if len(self.stages) == 1 else "stages"
        times = f"{ms(self.compute_ns)} of compute in a step, the median rank {ms(self.median_ns)}"
        return f"{noun} {format_ranges(self.stages)}: {times}"


def busiest_rank(comparison: ScheduleComparison | None) -> BusiestRank | None:
    """Return the rank whose cells compute longest in the pipeline that the page describes.

    None without a pipeline, and where no rank computes longer than the median rank.
    """
    if comparison is None:
        return None
    cells = comparison.head.cells
    by_rank = cells.group_by("rank").agg(pl.col("busy_ns").sum(), pl.col("stage").unique())
    by_rank = by_rank.sort("busy_ns", "rank", descending=[True, False])
    rank, compute_ns, stages = by_rank.select("rank", "busy_ns", "stage").row(0)
    median_ns = round(float(by_rank["busy_ns"].median() or 0))  # type: ignore[arg-type]
    if compute_ns <= median_ns:
        return None
    step = comparison.head.pipeline.step
    return BusiestRank(rank, tuple(sorted(stages)), step, compute_ns, median_ns)


def _is_about_stages(finding: Finding) -> bool:
    """Return whether a finding is about stages that take unequal time."""
    return kind_of(finding).is_about_stages


def places_on_page(
    findings: Sequence[Finding],
    clock: PageClock,
    ranks: Collection[int],
    *,
    busiest: BusiestRank | None = None,
) -> list[FindingPlaces]:
    """Return for each finding where the timeline, which has *ranks*, shows it.

    A finding about unequal stages leads to the *busiest* rank.
    """
    return [
        FindingPlaces(
            number,
            shorten_source_paths(finding.text),
            _places(finding, clock, ranks, busiest)[:MAX_PLACES_PER_FINDING],
        )
        for number, finding in enumerate(findings, start=1)
    ]


def _places(
    finding: Finding, clock: PageClock, ranks: Collection[int], busiest: BusiestRank | None
) -> list[PlaceOnPage]:
    """Return the places of a finding: those that it names, else the steps of its ranks, else its steps."""
    if not ranks:
        return []
    if busiest is not None and _is_about_stages(finding) and busiest.rank in ranks:
        return _step_of_busiest(busiest, clock)
    places: list[PlaceOnPage] = []
    if finding.where:
        for shown in finding.where:
            if shown.rank in ranks:
                moment = clock.moment_on(shown.rank, shown.start_ns, shown.end_ns)
                places.append(_place(shown.rank, shown.step, moment, shown.name))
        return places
    if finding.ranks:
        for rank in finding.ranks:
            if rank in ranks:
                places += _steps_of_rank(finding, clock, rank)[:1]
        return places
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


def _step_of_busiest(busiest: BusiestRank, clock: PageClock) -> list[PlaceOnPage]:
    """Return the step of the rank whose cells compute longest."""
    steps = clock.steps.filter(pl.col("step").eq_missing(busiest.step), rank=busiest.rank)
    return [
        PlaceOnPage(
            busiest.rank, start_ns / 1e6, end_ns / 1e6, f"rank {busiest.rank}: {busiest.text}"
        )
        for start_ns, end_ns in steps.select("start_ns", "end_ns").rows()
    ]


def _place(
    rank: int, step: int | None, moment: tuple[float, float], name: str | None
) -> PlaceOnPage:
    from_ms, to_ms = moment
    facts = [
        f"rank {rank}",
        "" if step is None else f"step {step}",
        shorten_source_paths(name or ""),
        ms(1e6 * (to_ms - from_ms)),
    ]
    return PlaceOnPage(rank, from_ms, to_ms, ", ".join(fact for fact in facts if fact))


def different_ranks(
    findings: Sequence[Finding], spread: Spread | None, *, busiest: BusiestRank | None = None
) -> list[RankRemark]:
    """Return the ranks that stand out: those that findings name, then those whose figures differ from like ranks'.

    Where stages take unequal time, *busiest* is the rank that the others wait for.
    """
    remarks: dict[int, str] = {}
    if busiest is not None and any(map(_is_about_stages, findings)):
        remarks[busiest.rank] = busiest.text
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
    return [RankRemark(rank, shorten_source_paths(text)) for rank, text in remarks.items()]


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
