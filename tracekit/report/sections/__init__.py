"""The sections of a report of an analysis, in the order of the text reports: a module per subject.

``tracekit.rooms`` adds those of the side rooms.
"""

from __future__ import annotations

from tracekit.analysis import Analysis
from tracekit.report.section import Section
from tracekit.report.sections import (
    budget,
    changed_steps,
    copies,
    findings,
    idle,
    kernels,
    notes,
    operators,
    overlap,
    path,
    places,
    ranks,
    rates,
    reload,
    schedule,
    steps,
    stragglers,
    timeline,
)

CORE_SECTIONS: tuple[Section, ...] = (
    timeline.TIMELINE_SECTION,
    budget.BUDGET_SECTION,
    ranks.RANKS_SECTION,
    *overlap.OVERLAP_SECTIONS,
    idle.IDLE_SECTION,
    idle.HOST_SECTION,
    *schedule.SCHEDULE_SECTIONS,
    path.CRITICAL_PATH_SECTION,
    *changed_steps.CHANGE_SECTIONS,
    places.BY_SECTION,
    *rates.RATE_SECTIONS,
    *stragglers.STRAGGLER_SECTIONS,
    steps.STEPS_SECTION,
    copies.COPIES_SECTION,
    reload.RELOAD_SECTION,
    kernels.KERNELS_SECTION,
    operators.OPERATORS_SECTION,
    notes.WARNINGS_SECTION,
    findings.FINDINGS_SECTION,
    notes.DEFINITIONS_SECTION,
)
"""The core's sections."""


def all_sections(analysis: Analysis) -> tuple[Section, ...]:
    """Return the sections of an analysis' reports, in order: those of the rooms that were handed to it, too."""
    return analysis.rooms.sections or CORE_SECTIONS
