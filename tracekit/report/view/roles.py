"""Roles of a run, its RL iterations and its weight updates: tables, sentences, and what to do about them."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import mean

import msgspec
import polars as pl

from tracekit._util.text import counted, format_ranges, join_with_and, ms, percent
from tracekit.analysis import Analysis
from tracekit.analysis.result import Role, RoleResults
from tracekit.documents.roles import Iteration, RolloutTail, WeightUpdate
from tracekit.intervals import union
from tracekit.metrics.overlap import ratio
from tracekit.metrics.process_phases import ROLLOUT, TRAIN
from tracekit.report.table import Column, Table, make_table
from tracekit.report.text import at_least, short_ms
from tracekit.report.words import WORDS
from tracekit.roles.iterations import band_spans, select_bands

MAX_UPDATES_SHOWN = 3
"""Weight updates that a table shows one by one."""
MAX_ROWS = 32
"""Iterations that a table lists."""
MIN_RATIO_OF_UNEQUAL_ITERATIONS = 1.2
"""Longest over shortest iteration from which both are named beside the mean."""
MIN_IDLE_SHARE = 0.05
"""Share of the iterations from which time in which no role runs is named."""
MIN_SHARE = 0.01
"""Share of an iteration, or of a weight update, from which something is advised."""


def role_tables(analysis: Analysis) -> dict[str, tuple[str, Table]]:
    """Return the tables of roles, iterations and weight updates by their titles, each with its explanation.

    There is none in a run with one process per rank and without a weight update between processes.
    """
    results = analysis.role_results
    updates_between_processes = results.weight_updates and analysis.reload is None
    if not results.roles and not results.iterations and not updates_between_processes:
        return {}
    iterations = results.iterations[:MAX_ROWS]
    updates = _updates_table(results.weight_updates)
    phases = "mean over GPUs, a shared one counted once; phases sum to the time"
    tables = {
        "Roles": (
            "each analysed as a run of its own; shares of its ranks' spans",
            _roles_table(results),
        ),
        "Iterations": (phases, _iterations_table(iterations)),
        "Which role waits for which": ("per rank of the role", _waits_table(iterations)),
        "Weight updates": ("from the first copy to a device to the last reload", updates),
    }
    filled = {}
    for title, (meaning, table) in tables.items():
        if table is not None:
            filled[title] = (meaning, table)
    return filled


def _roles_table(results: RoleResults) -> Table | None:
    def share(role: Role, ns: int) -> float | None:
        return ratio(ns, role.analysis.total.budget.span_ns)

    def longest_span_ns(role: Role) -> int:
        return max(rank.whole.budget.span_ns for rank in role.analysis.rank_results)

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
    return make_table(columns, results.roles)


def _iterations_table(iterations: Sequence[Iteration]) -> Table | None:
    phases = []
    for phase in WORDS.phases:
        if any(phase in iteration.phase_ns for iteration in iterations):
            phases.append(phase)
    columns = (
        Column("iteration", "figure", terminal_heading="nr"),
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
    return make_table(columns, rows)


def _waits_table(iterations: Sequence[Iteration]) -> Table | None:
    if all(len(iteration.roles) < 2 for iteration in iterations):
        return None
    outside = "time of the iteration outside the role's phases, in which a GPU is busy in part"
    columns = (
        Column("iteration", "figure", terminal_heading="nr"),
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
    return make_table(columns, rows)


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


def _updates_table(updates: Sequence[WeightUpdate]) -> Table | None:
    """Return the updates as columns, of many the shortest, the median and the longest."""
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
    for name in updates_by_name:
        columns.append(Column(name, "figure"))
    return make_table(columns, rows)


def decode_words(tail: RolloutTail) -> str:
    """Return the decode steps of the longest and of the median rank; empty if they are unknown."""
    if tail.decode_steps is None or tail.median_decode_steps is None:
        return ""
    return f" ({tail.decode_steps} decode steps, median {tail.median_decode_steps:g})"


def iteration_sentence(analysis: Analysis) -> str | None:
    """Return what an iteration takes, by phase, which role waits, and the tail of the rollout.

    None without any.
    """
    iterations = analysis.role_results.iterations
    if not iterations:
        return None
    total_ns = _total_ns(iterations)
    parts = []
    for phase, words in WORDS.phases.items():
        phase_ns = _phase_ns(iterations, phase)
        if phase_ns:
            train_waits = _train_waits(analysis) if phase == TRAIN else ""
            parts.append(f"{percent(phase_ns / total_ns)} {words}{train_waits}")
    count = len(iterations)
    times = sorted(iteration.end_ns - iteration.start_ns for iteration in iterations)
    over = f" (mean of {count})" if count > 1 else ""
    if times[-1] > MIN_RATIO_OF_UNEQUAL_ITERATIONS * times[0]:
        over = f" (mean of {count}, {ms(times[0])} to {ms(times[-1])})"
    text = f"An iteration takes {ms(total_ns / count)}{over}: {join_with_and(parts)}"
    start = late_start(analysis)
    late = "" if start is None else f" In iteration {start.iteration} {start.words}."
    return f"{text}{_longest_wait(iterations)}.{_tail_sentence(iterations)}{late}"


def _longest_wait(iterations: Sequence[Iteration]) -> str:
    """Return which role waits longest for which other; empty if none waits."""
    waits = Counter[tuple[str, str]]()
    for iteration in iterations:
        for wait in iteration.roles:
            for other, ns in wait.waited_ns.items():
                waits[wait.role, other] += ns
    if not waits:
        return ""
    (role, other), waited_ns = waits.most_common(1)[0]
    if not waited_ns:
        return ""
    return f"; role {role} waits for {other} in {percent(waited_ns / _total_ns(iterations))} of it"


def _phase_ns(iterations: Sequence[Iteration], phase: str) -> int:
    """Return the time of a phase in all iterations together."""
    return sum(iteration.phase_ns.get(phase, 0) for iteration in iterations)


def phase_times(analysis: Analysis) -> dict[str, float]:
    """Return the time of each phase in an iteration, in ns, the mean of all.

    Empty without iterations.
    """
    iterations = analysis.role_results.iterations
    if not iterations:
        return {}
    return {phase: _phase_ns(iterations, phase) / len(iterations) for phase in WORDS.phases}


def step_summary(analysis: Analysis) -> str | None:
    """Return the step of the main role in a few words, where an iteration holds it.

    None without iterations.
    """
    results = analysis.role_results
    step = analysis.step
    if not results.iterations or step.time_ns is None:
        return None
    budget = step.budget
    exposed_ns = sum(budget.exposed_ns.values())
    parts = {"compute": budget.compute_ns, "exposed transfers": exposed_ns, "idle": budget.idle_ns}
    shares = [f"{name} {percent(ns, budget.span_ns, digits=0)}" for name, ns in parts.items() if ns]
    role = f" of the {results.main_role}" if results.main_role else ""
    return f"a step{role}, start to start: {short_ms(step.time_ns)}, {', '.join(shares)}"


def update_summary(analysis: Analysis) -> str | None:
    """Return what the longest weight update takes in a few words; None without any."""
    updates = analysis.role_results.weight_updates
    if not updates:
        return None
    longest = max(updates, key=lambda update: update.measured_ns)
    rate = f"{longest.bytes / 1e9:,.2f} GB at {longest.gb_s:.2f} GB/s"
    text = f"weight update: {short_ms(longest.measured_ns)}, {rate}"
    if longest.ideal_ns is None:
        return text
    return f"{text}; ideal with two buffers: {short_ms(longest.ideal_ns)}"


def _train_waits(analysis: Analysis) -> str:
    """Return how much of the main role's training is waiting for other ranks.

    Empty if it is little or unknown.
    """
    results = analysis.role_results
    starts = []
    ends = []
    ranks = []
    for band in results.bands:
        if band.phase == TRAIN and band.role == results.main_role:
            starts.append(band.start_ns)
            ends.append(band.end_ns)
            ranks.append(band.rank)
    trained = union(starts, ends, ranks)
    operations = analysis.clocks.align(analysis.tables["operations"], "start_ns", "end_ns")
    waits = operations.filter(pl.col("wait_ns") > 0)
    start_ns = waits["start_ns"].to_numpy()
    wait_ns = waits["wait_ns"].to_numpy()
    rank = waits["rank"].to_numpy()
    share = ratio((union(start_ns, start_ns + wait_ns, rank) & trained).total_ns, trained.total_ns)
    if share is None or share < MIN_SHARE:
        return ""
    return f" ({at_least(percent(share), operations['wait_ns'].has_nulls())} of it waiting for other ranks)"


class LateStart(msgspec.Struct, frozen=True):
    """A rollout that starts so late that it ends last, in the iteration where that costs most."""

    iteration: int
    ns: int
    """Its start minus that of the first rank."""
    words: str
    others_start_together: bool
    """Whether no other iteration has one."""


def late_start(analysis: Analysis) -> LateStart | None:
    """Return the rollout whose late start costs most.

    None if every rollout that ends last does so by its length.

    The rank that ends last must have started later, by more than its rollout is longer than the
    median rank's and by more than clocks may be off.
    """
    off_ns = analysis.clocks.table["uncertainty_ns"].drop_nulls().max()
    late_starts = []
    for iteration in analysis.role_results.iterations:
        tail = iteration.rollout_tail
        rollouts = select_bands(
            analysis.role_results.bands, phase=ROLLOUT, iteration=iteration.index
        )
        starts = {}
        for rank, (start, _) in band_spans(rollouts, lambda band: band.rank).items():
            starts[rank] = start
        if tail is None or tail.last_rank not in starts:
            continue
        first = min(starts, key=lambda rank: starts[rank])
        late_ns = starts[tail.last_rank] - starts[first]
        longer_ns = tail.ns if tail.rank == tail.last_rank else 0
        noise_ns = max(
            MIN_SHARE * (iteration.end_ns - iteration.start_ns),
            off_ns if isinstance(off_ns, int) else 0,
        )
        if late_ns > max(longer_ns, noise_ns):
            after = f"{short_ms(late_ns)} after that of rank {first}"
            text = f"the rollout of rank {tail.last_rank} starts {after} and ends last"
            late_starts.append((late_ns, iteration.index, text))
    if not late_starts:
        return None
    late_ns, index, text = max(late_starts)
    return LateStart(
        index, late_ns, text, len(late_starts) == 1 and len(analysis.role_results.iterations) > 1
    )


def _rollout_tails(iterations: Sequence[Iteration]) -> list[RolloutTail]:
    """Return the tails of the iterations in which several ranks roll out."""
    tails = []
    for iteration in iterations:
        if iteration.rollout_tail is not None:
            tails.append(iteration.rollout_tail)
    return tails


def _tail_sentence(iterations: Sequence[Iteration]) -> str:
    tails = _rollout_tails(iterations)
    if not tails:
        return ""
    if len({tail.rank for tail in tails}) > 1:
        listed = ", ".join(f"rank {tail.rank} {ms(tail.ns)}" for tail in tails[:4])
        return f" The rollout's tail (longest minus median rank) changes: {listed}."
    tail = tails[0]
    longer = ms(mean(tail.ns for tail in tails))
    return f" Rank {tail.rank} is the rollout's tail: {longer} longer than the median rank{decode_words(tail)}."


def update_sentence(analysis: Analysis) -> str | None:
    """Return what a weight update moves and takes, and how far it is from the ideal.

    None without any.
    """
    updates = analysis.role_results.weight_updates
    if not updates or analysis.reload is not None:
        return None
    longest = max(updates, key=lambda update: update.measured_ns)
    subject = "The weight update"
    if len(updates) > 1:
        subject = f"The longest of {len(updates)} weight updates"
    moved = f"{longest.bytes / 1e9:,.2f} GB in {counted(longest.buckets, 'bucket')}"
    text = f"{subject} moves {moved} in {ms(longest.measured_ns)} ({longest.gb_s:.2f} GB/s)"
    if longest.ideal_ns is None or longest.gap_ns is None:
        return f"{text}; reloads are not recorded, so that its ideal is unknown."
    cause = _largest_cause(longest.gap_ns)
    text += f"; with two buffers and the same times for each bucket it would take {ms(longest.ideal_ns)}"
    gap = ms(longest.gap_ns[cause])
    return f"{text}. The largest part of the difference, {gap}, is {_cause_words(longest, cause)}."


def _largest_cause(gap_ns: Mapping[str, int]) -> str:
    """Return the cause that explains most of a weight update's time above its ideal."""
    return max(gap_ns, key=lambda cause: gap_ns[cause])


def _cause_words(update: WeightUpdate, cause: str) -> str:
    words = WORDS.update_causes[cause]
    if cause == "late_rank" and update.late_rank is not None:
        return f"{words} (rank {update.late_rank})"
    return words


class RoleCost(msgspec.Struct, frozen=True):
    """What costs time in the iterations of an RL loop or in its weight updates, and what to do."""

    what: str
    remedy: str
    ns: int
    """Mean per iteration; of one iteration or weight update if it occurs once."""
    per: str
    """What the time is of, such as ``"per iteration"``."""
    share: float
    """Share of all iterations; of the longest weight update in a run without iterations."""
    recurs: bool
    """Whether it is not of one iteration alone."""
    start_ns: int
    """Start of the iteration or update that shows it best, on the common clock."""
    end_ns: int
    rank: int | None = None
    """Rank that it is about; None for all."""

    @property
    def text(self) -> str:
        """What costs time and what to do, in one line."""
        return f"{self.what}: {self.remedy}"


def role_advice(analysis: Analysis) -> list[str]:
    """Return what to do about rollouts and weight updates, in the order of :func:`role_costs`."""
    return [cost.text for cost in role_costs(analysis)]


def role_costs(analysis: Analysis) -> list[RoleCost]:
    """Return what rollouts and weight updates cost, what recurs first and the largest first; then idle time."""
    costs = [
        _tail_cost(analysis),
        _late_start_cost(analysis),
        _weight_sync_cost(analysis),
        _update_cost(analysis),
    ]
    large_costs = []
    for cost in costs:
        if cost is not None and cost.share > MIN_SHARE:
            large_costs.append(cost)
    large_costs.sort(key=lambda cost: (cost.recurs, cost.share, cost.text), reverse=True)
    idle = _idle_cost(analysis)
    return large_costs if idle is None else [*large_costs, idle]


def _total_ns(iterations: Sequence[Iteration]) -> int:
    """Return the time of all iterations together."""
    return sum(iteration.end_ns - iteration.start_ns for iteration in iterations)


def _tail_cost(analysis: Analysis) -> RoleCost | None:
    """Return how much longer the longest rollout takes than the median rank's; None without any."""
    iterations = analysis.role_results.iterations
    tails = _rollout_tails(iterations)
    if not tails:
        return None
    tail_ns = sum(tail.ns for tail in tails)
    longest_tail = max(tails, key=lambda tail: tail.ns)
    worst = next(each for each in iterations if each.rollout_tail is longest_tail)
    which = "the longest rollout (not always the same rank's)"
    if len({tail.rank for tail in tails}) == 1:
        which = f"the rollout of rank {longest_tail.rank}"
    longer = short_ms(tail_ns / len(tails))
    return RoleCost(
        f"{which} takes {longer} longer than the median rank's",
        "cap or spread the longest sequences, or train on finished ones meanwhile",
        ns=round(tail_ns / len(tails)),
        per="per iteration",
        share=tail_ns / _total_ns(iterations),
        recurs=True,
        start_ns=worst.start_ns,
        end_ns=worst.end_ns,
        rank=longest_tail.rank,
    )


def _late_start_cost(analysis: Analysis) -> RoleCost | None:
    """Return what a rollout that starts late costs; None if none ends last because of it."""
    start = late_start(analysis)
    if start is None:
        return None
    iterations = analysis.role_results.iterations
    iteration = next(each for each in iterations if each.index == start.iteration)
    is_one_off = start.others_start_together
    when = f"in iteration {start.iteration}{' alone' if is_one_off else ''}"
    return RoleCost(
        f"{when} {start.words}",
        "start all rollouts together",
        ns=start.ns,
        per=f"in iteration {start.iteration}",
        share=start.ns / _total_ns(iterations),
        recurs=not is_one_off,
        start_ns=iteration.start_ns,
        end_ns=iteration.end_ns,
        rank=None if iteration.rollout_tail is None else iteration.rollout_tail.last_rank,
    )


def _weight_sync_cost(analysis: Analysis) -> RoleCost | None:
    """Return the weight sync's time without moving weights; None if moving takes most of it."""
    iterations = analysis.role_results.iterations
    updates = analysis.role_results.weight_updates
    sync_ns = _phase_ns(iterations, "weight_sync")
    moved_ns = sum(update.measured_ns for update in updates)
    if not moved_ns or sync_ns <= 2 * moved_ns:
        return None
    longest = max(iterations, key=lambda iteration: iteration.phase_ns["weight_sync"])
    return RoleCost(
        f"weight sync takes {short_ms(sync_ns / len(iterations))} per iteration, but moving the weights only "
        f"{short_ms(moved_ns / len(updates))}",
        "shorten the rest (collecting, registering and releasing buffers)",
        ns=round((sync_ns - moved_ns) / len(iterations)),
        per="per iteration",
        share=(sync_ns - moved_ns) / _total_ns(iterations),
        recurs=True,
        start_ns=longest.start_ns,
        end_ns=longest.end_ns,
    )


def _update_cost(analysis: Analysis) -> RoleCost | None:
    """Return the largest part of what the longest weight update takes above its ideal; None if unknown."""
    updates = analysis.role_results.weight_updates
    if not updates or analysis.reload is not None:
        return None
    # As in ``update_sentence``.
    update = max(updates, key=lambda each: each.measured_ns)
    if update.gap_ns is None or update.ideal_ns is None:
        return None
    gap_ns = update.gap_ns
    cause = _largest_cause(gap_ns)
    return RoleCost(
        f"{ms(gap_ns[cause])} of the {ms(update.measured_ns - update.ideal_ns)} between the weight "
        f"update and its ideal is {_cause_words(update, cause)}",
        WORDS.update_remedies[cause],
        ns=gap_ns[cause],
        per="of the longest weight update" if len(updates) > 1 else "of the weight update",
        share=gap_ns[cause] / (_total_ns(analysis.role_results.iterations) or update.measured_ns),
        recurs=True,
        start_ns=update.start_ns,
        end_ns=update.end_ns,
        rank=update.late_rank if cause == "late_rank" else None,
    )


def _idle_cost(analysis: Analysis) -> RoleCost | None:
    """Return the time of iterations in which no role runs; None if it is short."""
    iterations = analysis.role_results.iterations
    total_ns = _total_ns(iterations)
    idle_ns = _phase_ns(iterations, "idle")
    if idle_ns <= MIN_IDLE_SHARE * total_ns:
        return None
    worst = max(iterations, key=lambda iteration: iteration.phase_ns["idle"])
    return RoleCost(
        f"no role runs in {percent(idle_ns / total_ns)} of the iterations (most in iteration {worst.index}: "
        f"{ms(worst.phase_ns['idle'])})",
        "hand over to the next role earlier, or let roles overlap",
        ns=round(idle_ns / len(iterations)),
        per="per iteration",
        share=idle_ns / total_ns,
        recurs=True,
        start_ns=worst.start_ns,
        end_ns=worst.end_ns,
    )
