"""Roles, iterations and weight updates in the reports of an analysis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracekit.analysis.result import RoleResults
from tracekit.findings.families import kind_of
from tracekit.report.blocks import Block, Sentence
from tracekit.report.sections import TEXT_MEDIA, Section
from tracekit.report.table import Table
from tracekit.report.view import View
from tracekit.roles.view import (
    has_roles,
    iterations_table,
    roles_table,
    step_summary,
    update_summary,
    updates_table,
    waits_table,
)

Build = Callable[[View], Sequence[Block | None]]


def _table(make: Callable[[RoleResults], Table | None]) -> Build:
    """Return what builds one table of a run that has roles, iterations or updates."""
    return lambda view: [make(view.analysis.role_results) if has_roles(view.analysis) else None]


def _iterations_on_page(view: View) -> Sequence[Block | None]:
    """Return the iterations, and below them which role waits for which."""
    (iterations,) = _table(iterations_table)(view)
    (waits,) = _table(waits_table)(view)
    heading = None if waits is None else Sentence("which role waits for which", "heading")
    return iterations, heading, waits


def _said_of_roles(view: View) -> Sequence[str | None]:
    """Return the step of the main role, where an iteration holds it, and what moving the weights takes."""
    # A finding about what surrounds the moving of weights says how long moving takes.
    is_stated = any(kind_of(finding).states_moving_time for finding in view.role_findings)
    return step_summary(view.analysis), None if is_stated else update_summary(view.analysis)


ROLE_SECTIONS = (
    Section(
        id="iterations", tab="Roles", title="Iterations", name="Iterations", media=("page",), build=_iterations_on_page,
        on_first_screen=_said_of_roles,
    ),
    Section(
        id="roles", tab="Roles", title="Roles", name="Roles", build=_table(roles_table),
    ),
    Section(
        id="role-iterations", title="Iterations", part_of="roles", media=TEXT_MEDIA, build=_table(iterations_table),
    ),
    Section(
        id="role-waits", title="Which role waits for which", part_of="roles", media=TEXT_MEDIA,
        build=_table(waits_table),
    ),
    Section(
        id="role-updates", title="Weight updates", part_of="roles", media=TEXT_MEDIA, build=_table(updates_table),
    ),
    Section(
        id="weight-updates", tab="Roles", title="Weight updates", name="Weight updates", media=("page",),
        build=_table(updates_table),
    ),
)  # fmt: skip
