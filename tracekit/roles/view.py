"""Roles of a run, its RL iterations and its weight updates: tables, sentences, and what to do about them."""

from collections.abc import Callable

from tracekit._util.text import format_ranges, ms, percent, short_ms
from tracekit.analysis import Analysis
from tracekit.analysis.result import Role, RoleResults
from tracekit.documents.roles import WeightUpdate
from tracekit.metrics.overlap import ratio
from tracekit.report.gap_words import is_wait_bound
from tracekit.report.sections.stragglers import late_rows, why_late
from tracekit.report.table import Column, Table, make_table
from tracekit.report.words import WORDS

MAX_UPDATES_SHOWN = 3
"""Weight updates that a table shows one by one."""
MIN_WAITING_SHARE_TO_NAME = 0.5
"""Share of a label from which waiting in it is what the label's time is about."""
MAX_ROLE_ROWS = 32
"""Iterations that a table lists."""


def has_roles(analysis: Analysis) -> bool:
    """Return whether ranks have several processes, or weights are updated between processes."""
    results = analysis.role_results
    updates_between_processes = bool(results.weight_updates) and analysis.reload is None
    return bool(results.roles or results.iterations) or updates_between_processes


def roles_table(results: RoleResults) -> Table | None:
    """Return the roles, what each does and how its time divides; None without any."""

    def share(role: Role, ns: int) -> float | None:
        return ratio(ns, role.analysis.total.budget.span_ns)

    def longest_span_ns(role: Role) -> int:
        return max(rank.whole.budget.span_ns for rank in role.analysis.ranks)

    columns = (
        Column(
            "role",
            value=lambda role: role.name + (" (main)" if role.name == results.main_role else ""),
        ),
        Column("does", value=lambda role: WORDS.role_kinds[role.kind]),
        Column("ranks", "figure", value=lambda role: format_ranges(role.ranks)),
        Column("longest span", "ms", value=longest_span_ns),
        Column(
            "compute",
            "share",
            value=lambda role: share(role, role.analysis.total.budget.compute_ns),
        ),
        Column(
            "exposed",
            "share",
            value=lambda role: share(role, sum(role.analysis.total.budget.exposed_ns.values())),
        ),
        Column("idle", "share", value=lambda role: share(role, role.analysis.total.budget.idle_ns)),
    )
    return make_table(
        columns,
        results.roles,
        notes=[
            "each analysed as a run of its own; shares of its ranks' spans; the other sections are of the main role, "
            "a page's timeline is of all"
        ],
        search=lambda role: f'role:"={role.name}"',
    )


def iterations_table(results: RoleResults) -> Table | None:
    """Return the phases of each iteration of an RL loop; None without any."""
    iterations = results.iterations[:MAX_ROLE_ROWS]
    phases = []
    for phase in WORDS.phases:
        if any(phase in iteration.phase_ns for iteration in iterations):
            phases.append(phase)
    columns = (
        Column("iteration", "iteration", terminal_heading="nr"),
        Column("time", "ms"),
        *(Column(WORDS.phases[phase], "ms") for phase in phases),
        Column("tail rank", "figure"),
        Column("tail", "ms", 2, "longest rollout minus the median rank's"),
        Column("decode steps", "figure", 1),
    )
    rows = []
    for iteration in iterations:
        tail = iteration.rollout_tail
        in_phases = [iteration.phase_ns.get(phase, 0) for phase in phases]
        decode_steps = "" if tail is None or tail.decode_steps is None else tail.decode_steps
        tail_cells = ("", None, "") if tail is None else (tail.rank, tail.ns, decode_steps)
        rows.append(
            (str(iteration.index), iteration.end_ns - iteration.start_ns, *in_phases, *tail_cells)
        )
    return make_table(
        columns,
        rows,
        notes=["mean over GPUs, a shared one counted once; phases sum to the time"],
    )


def waits_table(results: RoleResults) -> Table | None:
    """Return what each role waited for in each iteration; None where every iteration has one role."""
    iterations = results.iterations[:MAX_ROLE_ROWS]
    if all(len(iteration.roles) < 2 for iteration in iterations):
        return None
    outside = "time of the iteration outside the role's phases, in which a GPU is busy in part"
    columns = (
        Column("iteration", "iteration", terminal_heading="nr"),
        Column("role"),
        Column("GPU busy", "ms"),
        Column("outside", "ms", note=outside),
        Column("runs meanwhile"),
        Column("for", "ms"),
    )
    rows = []
    for iteration in iterations:
        for wait in iteration.roles:
            other = wait.waits_for or ""
            rows.append(
                (
                    str(iteration.index),
                    wait.role,
                    wait.busy_ns,
                    wait.idle_ns,
                    other or "no role",
                    wait.waited_ns.get(other),
                )
            )
    return make_table(columns, rows, notes=["mean over the role's ranks"])


_UPDATE_LINES: dict[str, Callable[[WeightUpdate], str]] = {
    "moved": lambda update: f"{update.bytes / 1e9:,.3f} GB in {update.buckets} buckets",
    "time": lambda update: f"{ms(update.measured_ns)} ({update.gb_s:.2f} GB/s)",
    "copy from the host (H2D), per rank": lambda update: ms(update.h2d_ns),
    "broadcast, per rank": lambda update: ms(update.broadcast_ns),
    "reload, per rank": lambda update: ms(update.reload_ns),
    "no GPU work, per rank": lambda update: ms(update.host_ns),
    "two-buffer ideal": lambda update: ms(update.ideal_ns),
}
"""Lines of the table of weight updates, and how the figure of an update is written in them."""


def updates_table(results: RoleResults) -> Table | None:
    """Return the weight updates as columns, of many the shortest, the median and the longest; None without any."""
    updates = results.weight_updates
    if not updates:
        return None
    updates_by_name = {f"update {number}": update for number, update in enumerate(updates)}
    if len(updates) > MAX_UPDATES_SHOWN:
        shortest_first = sorted(
            updates_by_name.items(), key=lambda named_update: named_update[1].measured_ns
        )
        updates_by_name = {}
        for word, i in (("shortest", 0), ("median", len(updates) // 2), ("longest", -1)):
            name, update = shortest_first[i]
            updates_by_name[f"{word} ({name})"] = update
    shown = list(updates_by_name.values())
    rows: list[tuple[str, ...]] = []
    for heading, format_figure in _UPDATE_LINES.items():
        rows.append((heading, *[format_figure(update) for update in shown]))
    gaps = [update.gap_ns for update in shown if update.gap_ns is not None]
    if len(gaps) == len(shown):
        for cause, words in WORDS.update_causes.items():
            rows.append((f"+ {words}", *[ms(gap_ns[cause]) for gap_ns in gaps]))
    columns = [Column("")]
    columns += [Column(name, "figure") for name in updates_by_name]
    return make_table(
        columns,
        rows,
        notes=[
            "from the first copy to a device to the last reload; the lines after + lead from the ideal to the time"
        ],
    )


def step_summary(analysis: Analysis) -> str | None:
    """Return the step of the main role in a few words, where an iteration holds it, and whom it waits for.

    None without iterations.
    """
    results = analysis.role_results
    step = analysis.step
    if not results.iterations or step.time_ns is None:
        return None
    budget = step.budget_ns
    exposed_ns = sum(budget.exposed_ns.values())
    longest = max(budget.exposed_ns, key=lambda label: budget.exposed_ns[label], default="")
    waiting = _waiting_summary(analysis, longest)
    transfers = f"mostly {longest}, {waiting}" if waiting else f"mostly {longest}"
    parts = [f"computes for {percent(budget.compute_ns, budget.span_ns, digits=0)}"]
    if exposed_ns:
        share = percent(exposed_ns, budget.span_ns, digits=0)
        parts.append(f"has exposed transfers for {share} ({transfers})")
    if budget.idle_ns:
        parts.append(f"is idle for {percent(budget.idle_ns, budget.span_ns, digits=0)}")
    role = f"the {results.main_role}" if results.main_role else "the main role"
    return f"from step to step ({short_ms(step.time_ns)}) {role} {', '.join(parts)}"


def _waiting_summary(analysis: Analysis, label: str) -> str:
    """Return how much of a label's time is waiting, for which rank longest, and why that one is late.

    Empty unless most of it is waiting.
    """
    total = analysis.total
    waits_ns = total.wait_ns.get(label) or 0
    label_ns = total.label_ns.get(label) or 0
    late = late_rows(analysis, label)
    if not late or waits_ns < MIN_WAITING_SHARE_TO_NAME * label_ns:
        return ""
    why = why_late(late[0])
    bound = "at most " if is_wait_bound(analysis, label) else ""
    share = percent(waits_ns, label_ns, digits=0)
    return f"{bound}{share} of it waiting, longest for rank {late[0].rank}: {why}"


def update_summary(analysis: Analysis) -> str | None:
    """Return what moving the weights takes in the longest update, in a few words; None without any."""
    updates = analysis.role_results.weight_updates
    if not updates:
        return None
    longest = max(updates, key=lambda update: update.measured_ns)
    rate = f"{longest.bytes / 1e9:,.2f} GB at {longest.gb_s:.2f} GB/s"
    of_longest = " in the longest weight update" if len(updates) > 1 else ""
    text = f"moving the weights takes {short_ms(longest.measured_ns)}{of_longest}, {rate}"
    if longest.ideal_ns is None:
        return text
    return f"{text}; {short_ms(longest.ideal_ns)} if one part were copied while another is sent (two buffers)"
