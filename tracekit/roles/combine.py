"""The analyses of all roles combined into one result, and the check that they are roles of one run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace as replace_fields
from itertools import pairwise
from pathlib import Path

from tracekit._util.text import listed, ms
from tracekit.align.clocks import Clocks
from tracekit.analysis import Analysis
from tracekit.analysis.measure.tables import RankTables
from tracekit.analysis.result import Role, RoleResults
from tracekit.errors import InputError, Notice, NoticeValues
from tracekit.metrics.process_phases import TRAIN
from tracekit.parsers.one_run import several_runs_error
from tracekit.roles.handovers import explain_by_handovers, find_handovers, step_windows
from tracekit.roles.iterations import find_iterations
from tracekit.roles.processes import (
    Process,
    kind_of_role,
    processes_on_one_clock,
    share_a_process,
)
from tracekit.roles.weight_updates import UpdateProcess, find_weight_updates
from tracekit.roles.weight_updates.summary import summarize_longest_update
from tracekit.roles.weight_updates.transfers import WEIGHT_TRANSFERS
from tracekit.schema import Source

KIND_ORDER = ("trainer", "parameter_server", "rollout", "inference_worker", "inference", "unknown")
"""Kinds of roles, the one that leads a run first."""


def combine_roles(
    analyses: Mapping[str, Analysis],
    tables: Mapping[str, Sequence[RankTables]],
    *,
    main: str,
    named: bool,
) -> Analysis:
    """Return the main role's analysis with the results of all roles.

    A run of one role comes here too: it may update weights or have the iterations of an RL loop.

    Args:
        analyses: The analysis of each role.
        tables: The ranks' tables of each role.
        main: The main role (``main_role``).
        named: Whether the caller named the roles; otherwise roles that all do the same work are
            separate runs.
    """
    has_several_roles = len(tables) > 1
    # The first role's clock becomes that of all: it must be a role whose ranks' clocks are tied to
    # each other, such as the trainer or the parameter servers.
    clock_role_first = sorted(tables, key=lambda role: analyses[role].clocks.residual_ns is None)
    processes, clocks, notices = processes_on_one_clock(
        {role: tables[role] for role in clock_role_first},
        {role: analysis.clocks for role, analysis in analyses.items()},
    )
    kinds = _kinds_of_roles(processes)
    if has_several_roles and not named and set(kinds.values()) == {"trainer"}:
        folders = {str(Path(ranks[0].source.path).parent) for ranks in tables.values()}
        raise several_runs_error(sorted(folders))
    updates, update_notices = find_weight_updates(processes)
    notices += update_notices
    # A band is a stretch of one phase (train, rollout, weight synchronisation, …) of one process.
    iterations, phase_bands = find_iterations(processes, kinds, updates)
    explained = {}
    for role, analysis in analyses.items():
        reload = summarize_longest_update(_update_processes(tables[role], analysis.clocks))
        explained[role] = replace_fields(analysis, reload=reload)
    for role, analysis in analyses.items() if has_several_roles else ():
        handovers = find_handovers(role, phase_bands, step_windows(tables[role], clocks[role]))
        stragglers = explain_by_handovers(analysis.waiting, handovers)
        explained[role] = replace_fields(explained[role], waiting=stragglers)

    roles: list[Role] = []
    if has_several_roles:
        main_role_first = sorted(
            tables, key=lambda role: (role != main, KIND_ORDER.index(kinds[role]), role)
        )
        for role in main_role_first:
            ranks = sorted(rank.source.rank for rank in tables[role])
            roles.append(Role(role, kinds[role], tuple(ranks), explained[role], clocks[role]))
        notices += _role_notices(roles)
    # The phases of one role outside an RL loop are compared with nothing.
    has_comparable_phases = has_several_roles or bool(iterations)
    results = RoleResults(
        main_role=main if has_several_roles else None,
        roles=tuple(roles),
        iterations=tuple(iterations),
        weight_updates=tuple(updates),
        bands=tuple(phase_bands) if has_comparable_phases else (),
    )
    return replace_fields(
        explained[main], role_results=results, notices=(*notices, *explained[main].notices)
    )


def _update_processes(ranks: Sequence[RankTables], clocks: Clocks) -> list[UpdateProcess]:
    """Return the ranks that take part in weight updates, on one clock."""
    processes = []
    for tables in sorted(ranks, key=lambda tables: tables.source.rank):
        transfers = WEIGHT_TRANSFERS.of(tables)
        if transfers is not None:
            rank = tables.source.rank
            times = clocks.moved(rank, "start_ns", "end_ns")
            stretches = tables.stretches.with_columns(times)
            processes.append(UpdateProcess("", rank, stretches, transfers.with_columns(times)))
    return processes


def _kinds_of_roles(processes: Sequence[Process]) -> dict[str, str]:
    """Return the kind of each role, by what its processes work on."""
    processes_by_role: dict[str, list[Process]] = {}
    for process in processes:
        processes_by_role.setdefault(process.role, []).append(process)
    return {role: kind_of_role(members) for role, members in processes_by_role.items()}


def main_role(tables: Mapping[str, Sequence[RankTables]]) -> str:
    """Return the role that trains, else the one with the most GPU work."""

    def rank_role(role: str) -> tuple[bool, int]:
        trains = any(TRAIN in rank.stretches["phase"] for rank in tables[role])
        busy_ns = 0
        for rank in tables[role]:
            busy_ns += sum(budget.span_ns - budget.idle_ns for budget in rank.window.budgets)
        return trains, busy_ns

    return max(tables, key=rank_role)


def _role_notices(roles: Sequence[Role]) -> list[Notice]:
    """Return what the roles of a run leave unanswered."""
    notices = []
    counts = tuple(len(role.ranks) for role in roles)
    if len(set(counts)) > 1:
        names = tuple(role.name for role in roles)
        by_role = ", ".join(f"{role.name} {len(role.ranks)}" for role in roles)
        message = f"roles have different numbers of ranks ({by_role}): their GPUs are counted apart, not as shared"
        values: NoticeValues = {"roles": names, "counts": counts}
        notices.append(Notice("role-ranks", message, values=values, severity="note"))
    for role in roles:
        without_gpu = _ranks_without_gpu_work(role.analysis)
        if without_gpu:
            notices.append(
                Notice(
                    "role-missing",
                    (
                        f"role {role.name}: rank {listed(without_gpu)} has no GPU events; its "
                        "part of updates and iterations is unknown"
                    ),
                    ranks=without_gpu,
                    values={"case": "no_gpu_events", "role": role.name},
                )
            )
        if role.kind == "unknown" and not without_gpu:
            notices.append(
                Notice(
                    "role-missing",
                    (
                        f"role {role.name} neither trains, generates nor moves "
                        "weights, as far as its events show"
                    ),
                    values={"case": "unknown", "role": role.name},
                )
            )
    kinds = {role.kind for role in roles}
    if "rollout" in kinds and "trainer" not in kinds:
        notices.append(
            Notice(
                "role-missing",
                ("no role trains: iterations need the trainer's traces too (--role trainer=PATH)"),
                values={"case": "trainer"},
            )
        )
    return notices


def _ranks_without_gpu_work(analysis: Analysis) -> tuple[int, ...]:
    """Return the ranks whose recording holds no GPU work."""
    ranks = [result.rank for result in analysis.ranks if not result.whole.budget.span_ns]
    return tuple(ranks)


def check_roles(spans: Sequence[tuple[Source, int | None, int | None]], *, named: bool) -> None:
    """Raise if the sources' roles are none of one run: recorded at different times, or by the same processes.

    Args:
        spans: Source, first and last time in ns of each rank.
        named: Whether the caller named the roles.

    >>> from msgspec.structs import replace
    >>> source = Source("a/rank0.json", "kineto", 0, "name", role="a", pid=7)
    >>> check_roles([(source, 0, 10), (replace(source, role="b", pid=8), 5, 20)], named=False)
    """
    sources: list[Source] = []
    windows: dict[str, tuple[int, int]] = {}
    for source, start, end in spans:
        if source.role is None:
            continue
        sources.append(source)
        if start is not None and end is not None:
            first, last = windows.get(source.role, (start, end))
            windows[source.role] = (min(first, start), max(last, end))
    folders = sorted({str(Path(source.path).parent) for source in sources})
    if not named and share_a_process(sources):
        raise several_runs_error(folders)
    ordered = sorted(windows.items(), key=lambda item: item[1])
    for (role, (_, end)), (next_role, (start, _)) in pairwise(ordered):
        if start >= end:
            if not named:
                raise several_runs_error(folders)
            gap = f"role {next_role} begins {ms(start - end)} after role {role} ends"
            hint = "profile all roles over the same iterations"
            raise InputError(f"{gap}: they were not recorded together", hint=hint)
