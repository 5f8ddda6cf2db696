"""Lateness of a rank that another role of the same rank explains.

Where roles take turns on a GPU, a trainer begins when the rollout of its rank has ended. Seen from the trainer alone,
its host launches late; seen with all roles, it waited for the other role.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace as replace_fields
from statistics import median

from msgspec.structs import replace

from tracekit.analysis.stragglers import MIN_CAUSE_SHARE, Stragglers
from tracekit.documents.analysis import Evidence, Straggler, WaitCause
from tracekit.documents.roles import PhaseBand


def explain_by_other_roles(stragglers: Stragglers, role: str, bands: Sequence[PhaseBand]) -> Stragglers:
    """Return the stragglers of *role* with ``host_late`` replaced where another role of the rank ran until then.

    Args:
        stragglers: Ranks of the role that others wait for.
        role: Name of the role.
        bands: Phases of all processes, with their iterations.
    """
    return replace_fields(stragglers, rows=tuple(_explain(row, role, bands) for row in stragglers.rows))


def _explain(row: Straggler, role: str, bands: Sequence[PhaseBand]) -> Straggler:
    share, other_role = _handover_share(row.rank, role, bands)
    if share < MIN_CAUSE_SHARE:
        return row
    if share > 1 - MIN_CAUSE_SHARE:
        share = 1.0
    why: list[WaitCause] = []
    for part in row.why:
        if part.cause != "host_late":
            why.append(part)
            continue
        waited_ns = round(share * part.ns)
        why.append(WaitCause("waited_itself", waited_ns, Evidence(role=other_role)))
        if share < 1:
            idle_ns = round((1 - share) * (part.evidence.idle_ns or 0))
            why.append(replace(part, ns=part.ns - waited_ns, evidence=Evidence(idle_ns=idle_ns)))
    return replace(row, why=sorted(why, key=lambda part: (part.cause == "unknown", -part.ns)))


def _handover_share(rank: int, role: str, bands: Sequence[PhaseBand]) -> tuple[float, str | None]:
    """Return which share of a rank's late starts another role of the rank explains, and the role that explains most.

    In each iteration the rank's start is compared with the median start of the role's other ranks, and so are the ends
    of the other role that lie before these starts.

    >>> bands = [
    ...     PhaseBand(role, rank, role, start, end, end - start, 0)
    ...     for role, spans in {"rollout": [(0, 10), (0, 40)], "trainer": [(12, 60), (44, 60)]}.items()
    ...     for rank, (start, end) in enumerate(spans)
    ... ]
    >>> _handover_share(1, "trainer", bands)  # 30 of the 32 that rank 1 starts later
    (0.9375, 'rollout')
    """
    starts: dict[int, dict[int, int]] = {}  # by iteration and rank: first start of the role
    for band in bands:
        if band.role == role and band.iteration is not None:
            by_rank = starts.setdefault(band.iteration, {})
            by_rank[band.rank] = min(band.start_ns, by_rank.get(band.rank, band.start_ns))
    late_ns = 0
    explained_ns: dict[str, int] = {}
    for iteration, by_rank in starts.items():
        own_start = by_rank.pop(rank, None)
        if own_start is None or not by_rank or own_start <= median(by_rank.values()):
            continue
        delay_ns = round(own_start - median(by_rank.values()))
        late_ns += delay_ns
        for other_role in {band.role for band in bands} - {role}:
            ends: dict[int, int] = {}
            for band in bands:
                begins_after = own_start if band.rank == rank else by_rank.get(band.rank, band.end_ns - 1)
                if (band.role, band.iteration) == (other_role, iteration) and band.end_ns <= begins_after:
                    ends[band.rank] = max(band.end_ns, ends.get(band.rank, band.end_ns))
            own_end = ends.pop(rank, None)
            if own_end is not None and ends:
                waited_ns = min(delay_ns, max(0, round(own_end - median(ends.values()))))
                explained_ns[other_role] = explained_ns.get(other_role, 0) + waited_ns
    if not late_ns or not explained_ns:
        return 0.0, None
    other_role = max(explained_ns, key=lambda name: explained_ns[name])
    return explained_ns[other_role] / late_ns, other_role
