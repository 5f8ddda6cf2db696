"""Handovers between roles of one rank: who begins an iteration last, and for which other role it waited.

Where roles take turns on a GPU, a trainer begins when the rollout of its rank has ended. Seen from
the trainer alone, its host launches late; seen with all roles, it waited for the other role. Which
rank is last, and why, may change from iteration to iteration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace as replace_fields
from statistics import mean
from typing import NamedTuple

from msgspec.structs import replace

from tracekit.align.clocks import Clocks
from tracekit.analysis.combine.stragglers import MIN_CAUSE_SHARE, Stragglers
from tracekit.analysis.measure.tables import RankTables
from tracekit.documents.analysis import Evidence, Straggler, WaitCause
from tracekit.documents.roles import PhaseBand
from tracekit.roles.iterations import band_spans, select_bands


class StepWindow(NamedTuple):
    """One step of one rank, on the clock of all roles."""

    rank: int
    step: int | None
    start_ns: int
    end_ns: int


class Handover(NamedTuple):
    """A rank that began an iteration last because another role of the rank ended later than on the other ranks."""

    iteration: int
    rank: int
    step: int | None
    """Step of the role in which the rank began the iteration; None if steps are not numbered."""
    other_role: str
    waited_ns: int
    """How much later the other role ended, at most by how much later the rank began; against the
    mean of the others."""


def step_windows(ranks: Sequence[RankTables], clocks: Clocks) -> list[StepWindow]:
    """Return the steps of a role's ranks on the clock of all roles."""
    windows = []
    for tables in ranks:
        rank = tables.source.rank
        steps = tables.steps.with_columns(clocks.moved(rank, "start_ns", "end_ns"))
        for step, start, end in steps.select("step", "start_ns", "end_ns").iter_rows():
            windows.append(StepWindow(rank, step, start, end))
    return windows


def find_handovers(
    role: str, bands: Sequence[PhaseBand], windows: Sequence[StepWindow]
) -> list[Handover]:
    """Return for each iteration the rank of *role* that began last, if another role of the rank ended later.

    Args:
        role: Name of the role.
        bands: Phases of all processes, with their iterations.
        windows: Steps of the role's ranks.

    >>> bands = [
    ...     PhaseBand(role, rank, role, start, end, end - start, 0)
    ...     for role, spans in {"rollout": [(0, 10), (0, 40)], "trainer": [(12, 60), (44, 60)]}.items()
    ...     for rank, (start, end) in enumerate(spans)
    ... ]
    >>> find_handovers("trainer", bands, [StepWindow(1, 7, 44, 60)])  # 30 of the 32 that rank 1 begins later
    [Handover(iteration=0, rank=1, step=7, other_role='rollout', waited_ns=30)]
    """
    handovers = []
    for iteration in dict.fromkeys(band.iteration for band in bands):
        if iteration is None:
            continue
        in_iteration = select_bands(bands, iteration=iteration)
        starts = {}
        spans = band_spans(select_bands(in_iteration, role=role), lambda band: band.rank)
        for rank, (start, _) in spans.items():
            starts[rank] = start
        if len(starts) < 2:
            continue
        last_rank = max(starts, key=lambda rank: starts[rank])
        step = _step_at(windows, last_rank, starts[last_rank])
        began_later_ns = _later_than_others(last_rank, starts)
        waits = []
        for other_role in sorted({band.role for band in in_iteration} - {role}):
            ends = _last_ends(select_bands(in_iteration, role=other_role), starts)
            waited_ns = min(began_later_ns, _later_than_others(last_rank, ends))
            waits.append(Handover(iteration, last_rank, step, other_role, waited_ns))
        longest = max(waits, key=lambda handover: handover.waited_ns, default=None)
        if longest is not None and longest.waited_ns > 0:
            handovers.append(longest)
    return handovers


def _step_at(windows: Sequence[StepWindow], rank: int, time_ns: int) -> int | None:
    """Return the step of a rank that is under way at a time; None if none is."""
    for window in windows:
        if window.rank == rank and window.start_ns <= time_ns < window.end_ns:
            return window.step
    return None


def _last_ends(bands: Sequence[PhaseBand], starts: Mapping[int, int]) -> dict[int, int]:
    """Return by rank the last end of these bands that lies before the rank's start."""
    ends: dict[int, int] = {}
    for band in bands:
        if band.rank in starts and band.end_ns <= starts[band.rank]:
            ends[band.rank] = max(band.end_ns, ends.get(band.rank, band.end_ns))
    return ends


def _later_than_others(rank: int, times: Mapping[int, int]) -> int:
    """Return by how much a rank's time is later than the mean of the others'.

    0 if it is not, or not known.

    >>> _later_than_others(1, {0: 10, 1: 40, 2: 20}), _later_than_others(0, {0: 10, 1: 40})
    (25, 0)
    """
    others = [time for other, time in times.items() if other != rank]
    if rank not in times or not others:
        return 0
    return max(0, round(times[rank] - mean(others)))


def explain_by_handovers(stragglers: Stragglers, handovers: Sequence[Handover]) -> Stragglers:
    """Return the stragglers with ``waited_itself`` where a handover explains their lateness in a step."""
    rows = tuple(_explain(row, handovers) for row in stragglers.rows)
    return replace_fields(stragglers, rows=rows)


def _explain(row: Straggler, handovers: Sequence[Handover]) -> Straggler:
    """Return a straggler with the part of its lateness that handovers explain, taken from its other causes.

    The handover comes first in its step: what it explains is taken from ``host_late``, and from
    what is unknown where clocks tell that the rank came last.
    """
    late_ns = dict(zip(row.steps, row.late_ns_by_step, strict=True))
    explained = {
        handover: min(handover.waited_ns, late_ns[handover.step])
        for handover in handovers
        if handover.rank == row.rank and handover.step in late_ns
    }
    share = sum(explained.values()) / max(sum(late_ns.values()), 1)
    replaceable = ("host_late",) if row.uncertain else ("host_late", "unknown")
    replaceable_ns = sum(part.ns for part in row.why if part.cause in replaceable)
    waited_ns = min(round(share * row.caused_ns), replaceable_ns)
    if waited_ns < MIN_CAUSE_SHARE * row.caused_ns:
        return row
    if waited_ns > (1 - MIN_CAUSE_SHARE) * replaceable_ns:
        waited_ns = replaceable_ns  # the rest is no more than comparing ranks is exact
    longest = max(explained, key=lambda handover: explained[handover])
    # An iteration in which the rank is hardly late is not one that explains anything.
    least_ns = MIN_CAUSE_SHARE * sum(explained.values())
    iterations = sorted(handover.iteration for handover, ns in explained.items() if ns >= least_ns)
    evidence = Evidence(role=longest.other_role, iterations=iterations)
    why = [WaitCause("waited_itself", waited_ns, evidence)]
    left_ns = waited_ns
    for part in sorted(row.why, key=lambda part: part.cause == "unknown"):
        if part.cause not in replaceable:
            why.append(part)
            continue
        taken_ns = min(left_ns, part.ns)
        left_ns -= taken_ns
        if taken_ns < part.ns:
            why.append(_shortened(part, part.ns - taken_ns))
    return replace(row, why=sorted(why, key=lambda part: (part.cause == "unknown", -part.ns)))


def _shortened(part: WaitCause, ns: int) -> WaitCause:
    """Return a cause that explains only *ns* of what it did, with its evidence in proportion."""
    evidence = part.evidence
    if evidence.idle_ns is not None:
        evidence = replace(evidence, idle_ns=round(evidence.idle_ns * ns / part.ns))
    if evidence.copy_ns is not None:
        evidence = replace(evidence, copy_ns=round(evidence.copy_ns * ns / part.ns))
    return replace(part, ns=ns, evidence=evidence)
