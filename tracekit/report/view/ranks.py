"""Differences between ranks and steps: idle time and what the host did in it, bubbles, stragglers, step times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import polars as pl

from tracekit._util.text import counted, ms, percent
from tracekit.analysis import Analysis, RankResult
from tracekit.report.view.lateness import when_late, why_late
from tracekit.report.view.pace import beyond_noise
from tracekit.schema import IDLE_CAUSES, PHASES

MAX_BUBBLES = 16
MAX_STRAGGLERS = 10
MAX_CANDIDATES_NAMED = 3
"""Ranks that are named if clocks leave open which of them arrived last."""
MAX_STEPS = 100
MAX_HOST_ROWS = 5
MIN_HOST_ROW_SHARE = 0.005
"""Share of the launch-bound idle time from which an activity of the host has a row."""
MIN_LAUNCH_BOUND_SHARE = 0.01
"""Share of the span from which launch-bound idle time has a table."""
MAX_ACTIVITY_LENGTH = 60
"""Characters shown of an activity's name."""


class BubbleRow(msgspec.Struct, frozen=True):
    """The idle time of one rank by cause, and its bubble."""

    rank: int
    idle_ns: int | None
    causes: Mapping[str, float | None]
    """Shares of the idle time by cause, as ``schema.IDLE_CAUSES`` names them."""
    wait_ns: int | None
    bubble: float | None
    lower_bound: bool
    phase_ns: Mapping[str, int | None]
    """Bubble in each phase of the pipeline; empty if there are no phases."""


class HostActivityRow(msgspec.Struct, frozen=True):
    """One activity of the host while the GPU waited for its next launch."""

    ns: float
    """Per rank."""
    share: float
    """Share of the launch-bound idle time."""
    doing: str
    """Kind of the activity."""
    what: str
    line: str
    """Line of the program's source; empty if no stacks were recorded."""


class HostActivity(msgspec.Struct, frozen=True):
    """Activities of the host in launch-bound idle time, the longest first."""

    rows: tuple[HostActivityRow, ...]
    note: str

    @property
    def lines(self) -> bool:
        """Whether lines of source are known."""
        return any(row.line for row in self.rows)


class Straggler(msgspec.Struct, frozen=True):
    """A rank that starts operations last, and what that costs the others."""

    rank: int
    label: str
    caused_ns: int
    """Waiting of the other ranks, summed."""
    operations: int
    share: float
    """Share of the largest ``caused_ns``."""
    candidates: tuple[int, ...] = ()
    """Ranks that it may have been instead, itself included, where clocks leave that open; empty if it is certain."""
    when: str = ""
    """Steps in which it is late."""
    why: str = ""
    """Causes, in words; empty if it is never late by much."""

    @property
    def ranks(self) -> str:
        """The rank, or the ranks of which clocks leave open which it was.

        >>> Straggler(2, "dp_comm", 9, 1, 1.0).ranks, Straggler(2, "dp_comm", 9, 1, 1.0, (1, 2)).ranks
        ('2', '1 or 2')
        """
        few = len(self.candidates) <= MAX_CANDIDATES_NAMED
        return (" or ".join(map(str, self.candidates)) if few else f"one of {len(self.candidates)}") or str(self.rank)


class StepRow(msgspec.Struct, frozen=True):
    """One step over the ranks."""

    step: int | None
    least_ns: int
    median_ns: float
    most_ns: int
    longest: int
    """A rank on which it took longest."""
    slowest: int | None
    """That rank, if it is slower than every other by more than noise."""
    partial: bool
    share: float
    """Median over the time of the longest step."""


class Steps(msgspec.Struct, frozen=True):
    """The times of several steps."""

    rows: tuple[StepRow, ...]
    more: int
    """Steps that are not shown."""
    one_rank: bool


def bubble_rows(analysis: Analysis) -> tuple[BubbleRow, ...]:
    """Return the idle time of each rank by cause, the largest bubble first; empty if no rank was idle or waited."""
    has_phases = bool(analysis.total.label_ns.get("pp_comm"))
    rows = [_bubble(rank, has_phases=has_phases) for rank in analysis.rank_results if rank.whole.budget.span_ns]
    if not any(row.idle_ns or row.wait_ns or row.idle_ns is None for row in rows):
        return ()
    return tuple(sorted(rows, key=lambda row: -((row.bubble if analysis.total.pipeline else row.idle_ns) or 0.0)))


def _bubble(rank: RankResult, *, has_phases: bool) -> BubbleRow:
    whole, idle_ns = rank.whole, rank.whole.budget.idle_ns
    shares = {cause: rank.idle_causes.get(cause, 0) / idle_ns if idle_ns else None for cause in IDLE_CAUSES}
    return BubbleRow(
        rank=rank.rank,
        idle_ns=idle_ns if whole.idle_known else None,
        causes=shares if whole.idle_known else dict.fromkeys(IDLE_CAUSES),
        wait_ns=whole.bubble.wait_ns,
        bubble=whole.bubble_fraction,
        lower_bound=whole.lower_bound,
        phase_ns={phase: _bubble_in_phase(rank.phases, phase) for phase in PHASES}
        if has_phases and rank.phases
        else {},
    )


def _bubble_in_phase(phases: Sequence[Mapping[str, Any]], name: str) -> int | None:
    rows = [phase for phase in phases if phase["phase"] == name]
    if not rows or any(row["idle_ns"] is None for row in rows):
        return None
    return sum(int(row["idle_ns"]) + int(row["wait_ns"] or 0) for row in rows)


def host_activity_view(analysis: Analysis) -> HostActivity | None:
    """Return what the host did in launch-bound idle time, over all ranks; None if there is little of it."""
    span_ns, ranks = analysis.total.budget.span_ns, max(1, len(analysis.rank_results))
    ns_of: dict[tuple[str, str | None, str | None], int] = {}
    for rank in analysis.rank_results:
        for row in rank.instead:
            key = (row["instead"], row["what"], row["line"])
            ns_of[key] = ns_of.get(key, 0) + row["ns"]
    launch_bound_ns = sum(ns_of.values())
    if not analysis.total.idle_known or launch_bound_ns < MIN_LAUNCH_BOUND_SHARE * span_ns or not launch_bound_ns:
        return None
    # Activities without a name say nothing, except that Python itself ran.
    named = {key: ns for key, ns in ns_of.items() if key[1] or key[0] == "python"}
    longest = sorted(named.items(), key=lambda item: -item[1])[:MAX_HOST_ROWS]
    rows = tuple(
        HostActivityRow(
            ns / ranks, ns / launch_bound_ns, kind.replace("_", " "), (what or "")[:MAX_ACTIVITY_LENGTH], line or ""
        )
        for (kind, what, line), ns in longest
        if ns >= MIN_HOST_ROW_SHARE * launch_bound_ns
    )
    inside_launch_ns = sum(rank.inside_launch_ns for rank in analysis.rank_results) / ranks
    return HostActivity(
        rows,
        f"launch-bound idle is {percent(launch_bound_ns, span_ns)} of the span; "
        f"inside the launch call itself: {ms(inside_launch_ns)} per rank",
    )


def stragglers(analysis: Analysis) -> tuple[Straggler, ...]:
    """Return the ranks that start operations last, those that cause the most waiting first."""
    rows = [row for row in analysis.stragglers.rows if row.caused_ns][:MAX_STRAGGLERS]
    steps = len(analysis.step_times)
    return tuple(
        Straggler(
            row.rank,
            row.label,
            row.caused_ns,
            row.operations,
            row.caused_ns / rows[0].caused_ns,
            tuple(row.candidates) if row.uncertain else (),
            when_late(row, steps),
            why_late(row),
        )
        for row in rows
    )


def clock_note(analysis: Analysis) -> str:
    """Return a sentence about how well the clocks of the ranks agree; empty if nothing was matched."""
    clocks = analysis.clocks
    if clocks.residual_ns is None:
        return ""
    corrected = len(clocks.table.filter(pl.col("offset_ns") != 0))
    sentence = (
        f"Matched ends lie {clocks.residual_ns / 1e3:,.1f} µs apart "
        f"(median; {(clocks.worst_ns or 0) / 1e3:,.1f} at most)"
    )
    if corrected:
        sentence += f"; {counted(corrected, 'clock')} {'was' if corrected == 1 else 'were'} corrected"
    uncertainty_ns = clocks.table["uncertainty_ns"].max()
    if isinstance(uncertainty_ns, int) and uncertainty_ns:
        sentence += f"; clocks may differ by up to {ms(uncertainty_ns)} more than that tells"
    return sentence


def steps_view(analysis: Analysis) -> Steps | None:
    """Return the time of each step over ranks; None if there is one step."""
    table = analysis.tables["steps"]
    if table["step"].n_unique() < 2:
        return None
    spans = table.group_by("step").agg(
        least=pl.col("span_ns").min(),
        median=pl.col("span_ns").median(),
        most=pl.col("span_ns").max(),
        longest=pl.col("rank").sort_by("span_ns").last(),
        second=pl.col("span_ns").top_k(2).min(),
        partial=pl.col("partial").any(),
    )
    longest_ns = int(spans["most"].to_numpy().max(initial=1))
    rows = tuple(
        StepRow(
            step=row["step"],
            least_ns=row["least"],
            median_ns=row["median"],
            most_ns=row["most"],
            longest=row["longest"],
            slowest=row["longest"] if beyond_noise(row["most"], row["second"]) else None,
            partial=row["partial"],
            share=row["median"] / longest_ns,
        )
        for row in spans.sort("step").head(MAX_STEPS).iter_rows(named=True)
    )
    return Steps(rows, max(0, len(spans) - MAX_STEPS), table["rank"].n_unique() == 1)
