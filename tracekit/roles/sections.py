"""Roles, iterations and weight updates in the reports of an analysis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracekit.analysis import Analysis
from tracekit.analysis.result import RoleResults
from tracekit.findings.families import kind_of
from tracekit.report.blocks import Block
from tracekit.report.findings import role_findings
from tracekit.report.section import Section
from tracekit.report.table import Table
from tracekit.roles.charts import phase_chart, update_charts
from tracekit.roles.view import (
    has_roles,
    iterations_table,
    roles_table,
    step_summary,
    update_summary,
    updates_table,
    waits_table,
)


def _table(
    make: Callable[[RoleResults], Table | None],
) -> Callable[[Analysis], Sequence[Block | None]]:
    """Return what builds one table of a run that has roles, iterations or updates."""
    return lambda analysis: [make(analysis.role_results) if has_roles(analysis) else None]


def _iterations(analysis: Analysis) -> Sequence[Block | None]:
    (table,) = _table(iterations_table)(analysis)
    return [] if table is None else [phase_chart(analysis), table]


def _updates(analysis: Analysis) -> Sequence[Block | None]:
    (table,) = _table(updates_table)(analysis)
    return [] if table is None else [table, *update_charts(analysis)]


def _said_of_roles(analysis: Analysis) -> Sequence[str | None]:
    """Return the step of the main role, where an iteration holds it, and what moving the weights takes."""
    # A finding about what surrounds the moving of weights says how long moving takes.
    is_stated = any(kind_of(finding).states_moving_time for finding in role_findings(analysis))
    return step_summary(analysis), None if is_stated else update_summary(analysis)


ROLE_SECTIONS = (
    Section(
        id="roles",
        tab="Roles",
        title="Roles",
        name="Roles",
        build=_table(roles_table),
        on_first_screen=_said_of_roles,
    ),
    Section(
        id="iterations",
        tab="Roles",
        title="Iterations",
        name="Iterations",
        part_of="roles",
        picture=2,
        build=_iterations,
    ),
    Section(
        id="role-waits",
        title="Which role waits for which",
        part_of="roles",
        build=_table(waits_table),
    ),
    Section(
        id="weight-updates",
        tab="Roles",
        title="Weight updates",
        name="Weight updates",
        part_of="roles",
        build=_updates,
    ),
)
