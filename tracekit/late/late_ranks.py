"""Ranks that join late: in which steps, by how much, since when, and how that repeats.

A rank's lateness in a step is the time by which it joined the step's operations after the median of
the others, summed up (for times of calls, the largest: a host that is late once is late at all
calls that follow). A step is late if that exceeds what is usual in this run, and a share of the
step's time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
import polars as pl
from msgspec.structs import replace

from tracekit._util.arrays import Bools, Floats, Ints
from tracekit.align.recorded_clocks import MEDIAN_DEVIATION_TO_SIGMA, clock_offsets
from tracekit.documents.late import LateRanks, OperationPlace, RecordedClock
from tracekit.late.arrivals import Arrivals

NOISE_SCALES = 6.0
"""Standard deviations of a rank's usual lateness by which a late step exceeds it."""
MIN_LATE_SHARE_OF_STEP = 0.01
"""Share of a step's time that a late step loses at least."""
MIN_COST_SHARE = 0.001
"""Share of the record's time that lateness which repeats costs at least, to be reported."""
MIN_OCCASIONAL_COST_SHARE = 0.01
"""The same for lateness that does not repeat."""
MIN_STALL_SHARE_OF_STEP = 0.5
"""Share of a step's time that a single late step loses at least, to be reported however long the
record is."""
FULLY_LATE_SHARE = 0.9
"""Share of a step's largest lateness, by times of calls, that the first operation of a late host
has already."""
MIN_LATE_STEPS = 4
"""Late steps from which on they can be constant, periodic or drifting."""
MIN_EXPLAINED_LATE_SHARE = 0.7
"""Share of a rank's late steps that lie in the span, or at the period, that is reported."""
MISS_WEIGHT = 3
"""Steps that are late for each that is not, at least, in a span that counts as late throughout."""
MIN_DRIFT_RATIO = 1.5
"""Lateness in the last third of the late steps over that in the first third, from which on it
drifts."""
MIN_DRIFT_ORDER = 0.5
"""Share by which pairs of late steps that grow outnumber those that shrink, from which on it
drifts."""
MIN_COMMON_STEPS_SHARE = 0.8
"""Share of late steps that ranks have in common to be reported as one, for instance those of a
host."""
MIN_CALL_SHARE = 0.5
"""Share of the lateness that the host's call had already, from which on the host is the cause."""
MIN_WAITED_SHARE = 0.5
"""Share of the lateness that a rank had waited in other groups just before, from which on that is
the cause."""
MAX_STEPS_FOR_PERIOD = 4_096
"""Steps, the latest, among which a period is looked for."""


@dataclass(frozen=True, eq=False)
class StepLateness:
    """Lateness by rank and step."""

    table: pl.DataFrame
    """Columns: rank, step, late_ns (joined after the others), signed_ns (the same, with what it
    joined before them), wait_ns (waited for others) and caused_wait_ns."""
    steps: Ints
    """Numbers of the steps, in order."""
    start_ns: Ints
    """Start of each step, on the reference clock."""
    step_ns: float | None
    """Median time of a step."""

    @property
    def duration_ns(self) -> float | None:
        """Time of the record: from the start of the first step to the end of the last.

        None if it is not known.
        """
        if self.step_ns is None:
            return None
        return float(self.start_ns[-1] - self.start_ns[0]) + self.step_ns


def measure_steps(arrivals: Arrivals, clocks: Mapping[int, RecordedClock]) -> StepLateness:
    """Return the lateness of every rank in every step.

    Where steps are not known, of every operation.
    """
    members = arrivals.members
    rows = _with_steps(members).drop_nulls("step")
    rows = rows.with_columns(
        late_ns=pl.col("late_ns").clip(lower_bound=0),
        signed_ns=pl.col("late_ns"),
        caused_wait_ns=pl.when("is_last").then(pl.col("wait_ns").sum().over("op_id")).otherwise(0),
    )
    amounts = pl.col("late_ns", "signed_ns", "wait_ns", "caused_wait_ns")
    total = amounts.sum() if arrivals.basis == "durations" else amounts.max()
    table = rows.group_by("rank", "step").agg(total).sort("rank", "step")
    offset = clock_offsets(clocks, default=0)
    starts = (
        rows.with_columns(time_ns=pl.col("order_ns") - offset)
        .group_by("step", "rank")
        .agg(pl.col("time_ns").min())
        .group_by("step")
        .agg(pl.col("time_ns").median().cast(pl.Int64))
        .sort("step")
    )
    start_ns = starts["time_ns"].fill_null(0).to_numpy()
    step_ns = float(np.median(np.diff(start_ns))) if len(start_ns) > 1 else None
    return StepLateness(table, starts["step"].to_numpy(), start_ns, step_ns)


def find_late_ranks(
    arrivals: Arrivals,
    lateness: StepLateness,
    clocks: Mapping[int, RecordedClock],
    hosts: Mapping[int, str],
) -> tuple[LateRanks, ...]:
    """Return the ranks that join late, the most expensive first.

    Args:
        arrivals: Arrivals at operations.
        lateness: The same by step.
        clocks: Clocks of the ranks.
        hosts: Host of each rank, where it is known.

    """
    if lateness.table.is_empty() or lateness.step_ns is None:
        return ()
    threshold = late_threshold(lateness)
    late_rows = lateness.table.filter(pl.col("late_ns") >= threshold)
    duration = lateness.duration_ns
    assert duration is not None, "the time of a step is known"
    costly = []
    for (rank,), rows in late_rows.group_by("rank", maintain_order=True):
        assert isinstance(rank, int), "ranks are numbers"
        late_rank = _describe(rank, rows, arrivals, lateness, clocks)
        if is_worth_reporting(late_rank, duration, lateness.step_ns):
            costly.append(late_rank)
    merged = _merge_ranks(costly, hosts)
    in_order = sorted(merged, key=lambda late: (-late.cost_ns, late.ranks))
    return tuple(replace(late, share=round(late.cost_ns / duration, 6)) for late in in_order)


def lost_time(facts: Sequence[LateRanks], lateness: StepLateness) -> int | None:
    """Return the time that a run lost to ranks that join late: of each step the lateness of the latest; in ns.

    Ranks that are late because they had waited for others count with these others. None if nothing
    can be compared.
    """
    if lateness.table.is_empty() or lateness.step_ns is None:
        return None
    late_steps: list[tuple[int, int]] = []
    for fact in facts:
        if fact.cause != "waited_itself":
            late_steps += product(fact.ranks, fact.steps)
    schema = lateness.table.select("rank", "step").schema
    counted = pl.DataFrame(late_steps, schema=schema, orient="row")
    latest = (
        lateness.table.join(counted, on=["rank", "step"], how="semi")
        .group_by("step")
        .agg(pl.col("late_ns").max())
    )
    return int(latest["late_ns"].sum())


def is_worth_reporting(late: LateRanks, duration_ns: float, step_ns: float) -> bool:
    """Return whether lateness costs enough, or stalled the run once."""
    if late.kind != "occasional":
        return late.cost_ns >= MIN_COST_SHARE * duration_ns
    is_costly = late.cost_ns >= MIN_OCCASIONAL_COST_SHARE * duration_ns
    longest_ns = late.late_range_ns[1]
    return is_costly or longest_ns >= MIN_STALL_SHARE_OF_STEP * step_ns


def late_threshold(lateness: StepLateness) -> float:
    """Return the lateness from which on a step counts as late, in ns.

    What is usual follows from how each rank's lateness varies in time, so that a rank that is
    always late by the same does not count as usual; of all ranks the lower median, so that late
    ranks, if fewer than half, do not decide.
    """
    signed = pl.col("signed_ns")
    usual = lateness.table.group_by("rank").agg(deviation=(signed - signed.median()).abs().median())
    deviation = MEDIAN_DEVIATION_TO_SIGMA * _lower_median(usual["deviation"].to_numpy())
    assert lateness.step_ns is not None, "the caller checks it"
    return max(NOISE_SCALES * deviation, MIN_LATE_SHARE_OF_STEP * lateness.step_ns, 1.0)


def _lower_median(values: Floats) -> float:
    return float(np.sort(values)[(len(values) - 1) // 2])


def _describe(
    rank: int,
    rows: pl.DataFrame,
    arrivals: Arrivals,
    lateness: StepLateness,
    clocks: Mapping[int, RecordedClock],
) -> LateRanks:
    """Describe the lateness of one rank from its late steps."""
    steps = rows["step"].to_numpy()
    is_late = np.isin(lateness.steps, steps)
    amount = rows["late_ns"].to_numpy().astype(float)
    pattern, period, span = find_recurrence(is_late)
    kind: Literal["constant", "periodic", "drifting", "occasional"] = pattern
    growth = None
    first, last = span
    index = np.searchsorted(lateness.steps, steps)
    in_span = (index >= first) & (index <= last)
    if kind == "constant" and is_growing(amount[in_span]):
        kind = "drifting"
        growth = round(_slope(steps[in_span], amount[in_span]))
    worst = latest_operations(arrivals, rank, steps)
    late_ns = worst["late_ns"].to_numpy()
    gap = period or 1
    uncertainty = clocks[rank].uncertainty_ns if rank in clocks else None
    needs_clock = arrivals.basis == "calls"
    typical = round(float(np.median(late_ns)))
    has_stopped = last + gap < len(lateness.steps)
    return LateRanks(
        ranks=(rank,),
        hosts=(),
        kind=kind,
        period=period,
        steps=tuple(steps.tolist()),
        since_step=int(lateness.steps[first]),
        since_ns=int(lateness.start_ns[first]) or None,
        until_step=int(lateness.steps[last]) if has_stopped else None,
        from_beginning=first - gap < 0,
        late_ns=typical,
        late_range_ns=(int(late_ns.min()), int(late_ns.max())),
        at=_usual_place(worst),
        caused_wait_ns=int(rows["caused_wait_ns"].sum()),
        cost_ns=round(float(amount.sum())),
        share=0.0,
        cause=find_cause(worst, arrivals, rank, uncertainty),
        uncertain=needs_clock and (uncertainty is None or uncertainty >= typical),
        growth_ns=growth,
    )


def _with_steps(members: pl.DataFrame) -> pl.DataFrame:
    """Return the members; where no sequence repeats, each operation stands for a step."""
    if members["step"].null_count() == members.height:
        return members.with_columns(step=pl.col("op_id"))
    return members


def latest_operations(arrivals: Arrivals, rank: int, steps: Ints) -> pl.DataFrame:
    """Return, for each of a rank's late steps, the operation that it was latest at.

    A host that is late once is late at all calls that follow: of these the first counts.
    """
    of_rank = _with_steps(arrivals.members.filter(pl.col("rank") == rank))
    rows = of_rank.filter(pl.col("step").is_in(steps.tolist())).sort("step", "op_id")
    share = 1.0 if arrivals.basis == "durations" else FULLY_LATE_SHARE
    is_latest = pl.col("late_ns") >= share * pl.col("late_ns").max().over("step")
    return rows.filter(is_latest).unique("step", keep="first", maintain_order=True)


def _usual_place(worst: pl.DataFrame) -> OperationPlace:
    """Return the operation at which a rank is latest in most of its late steps."""
    places = worst.group_by("place", "op", "bytes", "group", maintain_order=True).agg(
        count=pl.len(), late_ns=pl.col("late_ns").sum()
    )
    usual = places.sort("count", "late_ns", descending=True).row(0, named=True)
    return OperationPlace(usual["place"], str(usual["op"]), usual["bytes"], str(usual["group"]))


def find_cause(
    worst: pl.DataFrame, arrivals: Arrivals, rank: int, uncertainty_ns: int | None
) -> Literal["host", "gpu", "waited_itself"] | None:
    """Return why a rank is late: its host called late, its GPU was late, or it had waited in another group.

    None where the clock's uncertainty leaves that open.
    """
    late = float(worst["late_ns"].sum())
    waited = _waited_before(worst, arrivals, rank)
    if waited >= MIN_WAITED_SHARE * late:
        return "waited_itself"
    if arrivals.basis != "durations":
        return "host"  # times of calls are compared: it is the calls that are late
    calls = worst["call_late_ns"].drop_nulls()
    if calls.len() < worst.height or uncertainty_ns is None:
        return None
    called_late = float(calls.sum())
    allowance = uncertainty_ns * worst.height
    if called_late - allowance >= MIN_CALL_SHARE * late:
        return "host"
    if called_late + allowance < MIN_CALL_SHARE * late:
        return "gpu"
    return None


def _waited_before(worst: pl.DataFrame, arrivals: Arrivals, rank: int) -> float:
    """Return how long a rank waited in other groups, in the same steps, before the operations it joined late."""
    moments = worst.select("step", late_op="op_id", late_group="group")
    waits = arrivals.members.filter(pl.col("rank") == rank).join(moments, on="step")
    before = waits.filter(
        (pl.col("op_id") < pl.col("late_op")) & (pl.col("group") != pl.col("late_group"))
    )
    return float(before["wait_ns"].sum())


# Patterns in time


def find_recurrence(
    is_late: Bools,
) -> tuple[Literal["constant", "periodic", "occasional"], int | None, tuple[int, int]]:
    """Return how late steps repeat, their period, and the first and last of them that belong to the pattern."""
    late = np.flatnonzero(is_late)
    span = (int(late[0]), int(late[-1]))
    if len(late) < MIN_LATE_STEPS:
        return "occasional", None, span
    first, last, hits = densest_span(is_late)
    if hits >= max(MIN_LATE_STEPS, MIN_EXPLAINED_LATE_SHARE * len(late)):
        return "constant", None, (first, last)
    best: tuple[int, int, int, int] | None = None  # hits, period, first, last
    offset = max(0, len(is_late) - MAX_STEPS_FOR_PERIOD)
    recent = is_late[offset:]
    for period in range(2, len(recent) // MIN_LATE_STEPS + 1):
        phase = _best_phase(recent, period)
        first, last, hits = densest_span(recent[phase::period])
        if hits >= MIN_LATE_STEPS and (best is None or hits > best[0]):
            best = (hits, period, offset + phase + first * period, offset + phase + last * period)
    if best is not None and best[0] >= MIN_EXPLAINED_LATE_SHARE * len(late):
        return "periodic", best[1], (best[2], best[3])
    return "occasional", None, span


def _best_phase(is_late: Bools, period: int) -> int:
    """Return the remainder, dividing steps by the period, that most late steps have."""
    return int(np.argmax(np.bincount(np.flatnonzero(is_late) % period, minlength=period)))


def densest_span(is_late: Bools) -> tuple[int, int, int]:
    """Return first, last and number of late steps of the span in which late steps outnumber others most.

    A step that is not late weighs as much as several late ones, so that the span is late nearly
    throughout.
    """
    weights = np.where(is_late, 1, -MISS_WEIGHT)
    sums = np.concatenate([[0], np.cumsum(weights)])
    lowest_before = np.minimum.accumulate(sums)
    end = int(np.argmax(sums - lowest_before))
    start = int(np.argmin(sums[: end + 1])) if end else 0
    return start, max(start, end - 1), int(np.count_nonzero(is_late[start:end]))


def is_growing(amount: Floats) -> bool:
    """Return whether lateness grows: its last third over its first third, and in most pairs of steps."""
    third = len(amount) // 3
    if third < 1:
        return False
    grows = np.median(amount[-third:]) >= MIN_DRIFT_RATIO * np.median(amount[:third])
    recent = amount[-MAX_STEPS_FOR_PERIOD :: max(1, len(amount) // 512)]
    signs = np.sign(recent[None, :] - recent[:, None])
    pairs = np.triu_indices(len(recent), 1)
    return bool(grows and np.mean(signs[pairs]) >= MIN_DRIFT_ORDER)


def _slope(steps: Ints, amount: Floats) -> float:
    """Return the growth per step: difference of the last and the first third, over the steps between them."""
    third = max(1, len(amount) // 3)
    rise = float(np.median(amount[-third:]) - np.median(amount[:third]))
    run = float(np.median(steps[-third:]) - np.median(steps[:third]))
    return rise / run if run else 0.0


# Several ranks


def _merge_ranks(late_ranks: Sequence[LateRanks], hosts: Mapping[int, str]) -> list[LateRanks]:
    """Put ranks together that are late in the same steps."""
    groups: list[list[LateRanks]] = []
    for entry in sorted(late_ranks, key=lambda entry: -entry.cost_ns):
        for group in groups:
            if are_late_together(group[0], entry):
                group.append(entry)
                break
        else:
            groups.append([entry])
    return [_as_one(group, hosts) for group in groups]


def are_late_together(a: LateRanks, b: LateRanks) -> bool:
    """Return whether two rows of late ranks have the same cause in mostly the same steps."""
    common = len(set(a.steps) & set(b.steps))
    return a.cause == b.cause and common >= MIN_COMMON_STEPS_SHARE * max(len(a.steps), len(b.steps))


def _as_one(group: Sequence[LateRanks], hosts: Mapping[int, str]) -> LateRanks:
    """Return one entry for ranks that are late together, with the cost of the most expensive: they overlap in time."""
    ranks: list[int] = []
    least_ns, most_ns = group[0].late_range_ns
    caused_wait_ns = 0
    for entry in group:
        ranks += entry.ranks
        least_ns = min(least_ns, entry.late_range_ns[0])
        most_ns = max(most_ns, entry.late_range_ns[1])
        caused_wait_ns += entry.caused_wait_ns
    ranks.sort()
    return replace(
        group[0],
        ranks=tuple(ranks),
        hosts=tuple(sorted({hosts[rank] for rank in ranks if rank in hosts})),
        late_range_ns=(least_ns, most_ns),
        caused_wait_ns=caused_wait_ns,
        uncertain=all(entry.uncertain for entry in group),
    )
