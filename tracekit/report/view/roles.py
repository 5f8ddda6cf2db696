"""Roles of a run, its RL iterations and its weight updates: tables, and the sentences of the answer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tracekit._util.text import format_ranges, ms
from tracekit.analysis import Analysis
from tracekit.analysis.result import RoleResults
from tracekit.documents.roles import Iteration, WeightUpdate
from tracekit.metrics.overlap import ratio
from tracekit.report.role_words import GAP_WORDS, PHASE_WORDS
from tracekit.report.table import Column, Table, make_table

MAX_UPDATES_SHOWN = 3
"""Weight updates that a table shows one by one."""
MAX_ROWS = 32
"""Iterations that a table lists."""
KIND_WORDS = {
    "trainer": "trains",
    "rollout": "generates",
    "inference": "runs forward only",
    "parameter_server": "sends weights",
    "inference_worker": "takes weights",
    "unknown": "unknown",
}


class RolesView(msgspec.Struct, frozen=True):
    """Tables of roles, iterations and weight updates; None where there are none."""

    roles: Table | None
    iterations: Table | None
    waits: Table | None
    updates: Table | None

    @property
    def tables(self) -> tuple[tuple[str, str, Table | None], ...]:
        """Title, explanation and content of each table."""
        return (
            ("Roles", "each analysed as a run of its own; shares of its ranks' spans", self.roles),
            ("Iterations", "mean over GPUs, a shared one counted once; phases sum to the time", self.iterations),
            ("Which role waits for which", "per rank of the role", self.waits),
            ("Weight updates", "from the first copy to a device to the last reload", self.updates),
        )


def roles_view(analysis: Analysis) -> RolesView | None:
    """Return the tables; None for a run with one process per rank and without a weight update between processes."""
    results = analysis.role_results
    if not results.roles and not results.iterations and (not results.weight_updates or analysis.reload is not None):
        return None
    return RolesView(
        roles=_roles_table(results),
        iterations=_iterations_table(results.iterations[:MAX_ROWS]),
        waits=_waits_table(results.iterations[:MAX_ROWS]),
        updates=_updates_table(results.weight_updates),
    )


def _roles_table(results: RoleResults) -> Table | None:
    columns = (
        Column("role"),
        Column("does"),
        Column("ranks", "figure"),
        Column("longest span", "ms"),
        Column("compute", "share"),
        Column("exposed", "share"),
        Column("idle", "share"),
    )
    rows = []
    for role in results.roles:
        total = role.analysis.total.budget
        rows.append(
            (
                role.name + (" (main)" if role.name == results.main_role else ""),
                KIND_WORDS[role.kind],
                format_ranges(role.ranks),
                max((rank.whole.budget.span_ns for rank in role.analysis.rank_results), default=0),
                ratio(total.compute_ns, total.span_ns),
                ratio(sum(total.exposed_ns.values()), total.span_ns),
                ratio(total.idle_ns, total.span_ns),
            )
        )
    return make_table(columns, rows) if rows else None


def _iterations_table(iterations: Sequence[Iteration]) -> Table | None:
    phases = [phase for phase in PHASE_WORDS if any(phase in iteration.phase_ns for iteration in iterations)]
    columns = [Column("iteration", "figure", terminal_heading="nr"), Column("time", "ms")]
    columns += [Column(PHASE_WORDS[phase], "ms") for phase in phases]
    columns += [
        Column("tail rank", "figure"),
        Column("tail", "ms", 2, "longest rollout minus the median rank's"),
        Column("decode steps", "figure", 1),
    ]
    rows = []
    for iteration in iterations:
        tail = iteration.rollout_tail
        cells = [str(iteration.index), iteration.end_ns - iteration.start_ns]
        cells += [iteration.phase_ns.get(phase, 0) for phase in phases]
        if tail is None:
            cells += ["", None, ""]
        else:
            cells += [str(tail.rank), tail.ns, "" if tail.decode_steps is None else str(tail.decode_steps)]
        rows.append(tuple(cells))
    return make_table(columns, rows) if rows else None


def _waits_table(iterations: Sequence[Iteration]) -> Table | None:
    columns = (
        Column("iteration", "figure", terminal_heading="nr"),
        Column("role"),
        Column("GPU busy", "ms"),
        Column("idle", "ms", note="time of the iteration outside the role's phases"),
        Column("runs meanwhile"),
        Column("for", "ms"),
    )
    rows = [
        (
            str(iteration.index),
            wait.role,
            wait.busy_ns,
            wait.idle_ns,
            wait.waits_for or "no role",
            wait.waited_ns[wait.waits_for] if wait.waits_for else None,
        )
        for iteration in iterations
        for wait in iteration.roles
    ]
    return make_table(columns, rows) if any(len(iteration.roles) > 1 for iteration in iterations) else None


def _updates_table(updates: Sequence[WeightUpdate]) -> Table | None:
    """Return the updates as columns, of many the shortest, the median and the longest."""
    if not updates:
        return None
    shown = [(f"update {number}", update) for number, update in enumerate(updates)]
    if len(updates) > MAX_UPDATES_SHOWN:
        ordered = sorted(shown, key=lambda item: item[1].measured_ns)
        shown = [
            (f"{word} ({ordered[i][0]})", ordered[i][1])
            for word, i in (("shortest", 0), ("median", len(updates) // 2), ("longest", -1))
        ]
    lines: list[tuple[str, list[str]]] = [
        ("moved", [f"{update.bytes / 1e9:,.3f} GB in {update.buckets} buckets" for _, update in shown]),
        ("time", [f"{ms(update.measured_ns)} ({update.gb_s:.2f} GB/s)" for _, update in shown]),
        ("copy from the host (H2D), per rank", [ms(update.h2d_ns) for _, update in shown]),
        ("broadcast, per rank", [ms(update.broadcast_ns) for _, update in shown]),
        ("reload, per rank", [ms(update.reload_ns) for _, update in shown]),
        ("no GPU work, per rank", [ms(update.host_ns) for _, update in shown]),
        ("two-buffer ideal", [ms(update.ideal_ns) for _, update in shown]),
    ]
    if all(update.gap_ns is not None for _, update in shown):
        lines += [
            (f"+ {words}", [ms((update.gap_ns or {})[cause]) for _, update in shown])
            for cause, words in GAP_WORDS.items()
        ]
    columns = [Column(""), *(Column(name, "figure") for name, _ in shown)]
    return make_table(columns, [(name, *values) for name, values in lines])
