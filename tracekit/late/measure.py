"""From the collectives of a run, as recorders saw them, to the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
from msgspec import structs

from tracekit._util.notices import of_ranks
from tracekit._version import __version__
from tracekit.align.recorded_clocks import align_recorded_clocks
from tracekit.align.recorded_ops import match_operations
from tracekit.align.recorded_steps import RecordedSteps, find_steps
from tracekit.documents.late import (
    LATE_FORMAT,
    GroupWaiting,
    LateDocument,
    LateRanks,
    PipelineOrder,
    RankDistribution,
    RecordedClock,
    RecordedStepsEntry,
    RecordingEntry,
)
from tracekit.errors import InputError, Notice, NoticeValues
from tracekit.late.arrivals import Arrivals, measure_arrivals
from tracekit.late.hangs import Dumps, find_hang
from tracekit.late.late_ranks import StepLateness, find_late_ranks, lost_time, measure_steps
from tracekit.late.pipeline_order import find_pipelines
from tracekit.late.result import WholeRun
from tracekit.late.transfers import find_slow_links, measure_transfers, summarise_transfers
from tracekit.parsers.rank_numbers import missing_ranks
from tracekit.schema import COLLECTIVES, RECORDERS, ProcessGroup, RankCollectives, Recording
from tracekit.store.sources import missing_ranks_text

MAX_CLOCK_DIFFERENCE_NS = 600_000_000_000
"""Largest difference (10 min) between clocks of one run; beyond it a clock is wrong, or dumps are
of several runs."""


def measure_whole_run(parts: Sequence[RankCollectives], notices: Sequence[Notice] = ()) -> WholeRun:
    """Return who joins collectives late, and hangs.

    Args:
        parts: Operations of each rank and recorder.
        notices: Notices from reading.

    """
    sources = tuple(part.source for part in parts)
    collectives = (
        pl.concat([part.collectives for part in parts]) if parts else COLLECTIVES.to_frame()
    )
    if collectives.is_empty():
        raise InputError("the records hold no collective", hint="record a run that communicates")
    members, left_out = match_operations(collectives)
    clocks = align_recorded_clocks(members)
    members, steps = find_steps(members, from_start=_is_from_start(collectives))
    arrivals = measure_arrivals(members, clocks)
    lateness = measure_steps(arrivals, clocks)
    hosts = {
        source.rank: source.host
        for source in sources
        if source.rank is not None and source.host is not None
    }
    groups = _groups(sources)
    group_ranks = {name: group.ranks for name, group in groups.items()}
    transfers = measure_transfers(members)
    world_size = max(
        (max(group.ranks) + 1 for group in groups.values() if group.ranks), default=None
    )
    run_notices = [
        Notice(
            "recorder-left-out",
            (
                f"what the {recorder} recorded cannot be told from what another recorder did, "
                "and is not compared"
            ),
            values={"recorder": recorder},
        )
        for recorder in left_out
    ]
    late = _with_profiled_steps(find_late_ranks(arrivals, lateness, clocks, hosts), members)
    lost_ns = lost_time(late, lateness)
    lost_share = None
    if lost_ns is not None and lateness.duration_ns:
        lost_share = round(lost_ns / lateness.duration_ns, 6)
    document = LateDocument(
        tracekit=__version__,
        format=LATE_FORMAT,
        paths=tuple(source.path for source in sources),
        records=_records(collectives),
        ranks=tuple(sorted({source.rank for source in sources if source.rank is not None})),
        world_size=world_size,
        operations=int(members["op_id"].n_unique()),
        compared=int(arrivals.members["op_id"].n_unique()),
        basis=arrivals.basis,
        steps=_steps(steps, lateness),
        clocks=tuple(clock for _, clock in sorted(clocks.items())),
        hang=find_hang(_dumps(collectives, sources, clocks, lateness.step_ns, members)),
        late=late,
        distributions=_distributions(arrivals),
        groups=_waiting_by_group(arrivals, groups),
        transfers=summarise_transfers(transfers),
        slow_links=find_slow_links(transfers, group_ranks),
        pipelines=_pipelines(collectives),
        warnings=(
            *notices,
            *run_notices,
            *_run_notices(sources, members, clocks, world_size, arrivals),
        ),
        lost_ns=lost_ns,
        lost_share=lost_share,
    )
    return WholeRun(
        document=document,
        sources=sources,
        collectives=collectives,
        members=members,
        arrivals=arrivals,
        lateness=lateness,
        steps=steps,
        transfer_times=transfers,
    )


def _steps(steps: RecordedSteps, lateness: StepLateness) -> RecordedStepsEntry:
    """Return the steps, numbered from the first to the last of which lateness is known."""
    numbers = lateness.steps.tolist() if steps.count else []
    return RecordedStepsEntry(
        count=steps.count,
        first=numbers[0] if numbers else None,
        last=numbers[-1] if numbers else None,
        numbered_from=steps.numbered_from,
        time_ns=None if lateness.step_ns is None else round(lateness.step_ns),
        operations=steps.ops_per_step,
    )


def _with_profiled_steps(
    facts: Sequence[LateRanks], members: pl.DataFrame
) -> tuple[LateRanks, ...]:
    """Add which of the late steps a profiler's trace shows."""
    profiler_bit = 1 << RECORDERS.index("profiler")
    is_profiled = (pl.col("sources").cast(pl.Int64) & profiler_bit) > 0
    profiled = set(members.filter(is_profiled)["step"].drop_nulls().to_list())
    linked = []
    for fact in facts:
        steps = tuple(step for step in fact.steps if step in profiled)
        linked.append(structs.replace(fact, profiled_steps=steps))
    return tuple(linked)


def _is_from_start(collectives: pl.DataFrame) -> bool:
    """Return whether the record begins with the first operation of every group on every rank."""
    first = (
        collectives.filter(~pl.col("is_message"))
        .group_by("source", "rank", "group")
        .agg(pl.col("sequence").min())
    )
    return bool((first["sequence"].fill_null(2) <= 1).all())


def _groups(sources: Sequence[Recording]) -> dict[str, ProcessGroup]:
    """Return the groups of a run by name."""
    groups: dict[str, ProcessGroup] = {}
    for source in sources:
        for group in source.groups:
            groups.setdefault(group.name, group)
    return groups


def _records(collectives: pl.DataFrame) -> tuple[RecordingEntry, ...]:
    """Return how much each recorder has."""
    time = pl.coalesce("enqueued_ns", "started_ns", "completed_by_ns")
    entries = []
    for recorder in RECORDERS:
        rows = collectives.filter(pl.col("source") == recorder)
        if rows.is_empty():
            continue
        first, last = rows.select(time.min().alias("first"), time.max().alias("last")).row(0)
        ranks = tuple(sorted(rows["rank"].unique().to_list()))
        entries.append(RecordingEntry(recorder, ranks, rows.height, first, last))
    return tuple(entries)


def _dumps(
    collectives: pl.DataFrame,
    sources: Sequence[Recording],
    clocks: Mapping[int, RecordedClock],
    step_ns: float | None,
    members: pl.DataFrame,
) -> Dumps:
    """Return what is known of hangs: the flight recorder's operations, and the steps of collectives."""
    is_dump = (pl.col("source") == "flight_recorder") & pl.col("sequence").is_not_null()
    steps = members.select("group", "sequence", "step").drop_nulls().unique(["group", "sequence"])
    step_of_op = {(str(group), sequence): step for group, sequence, step in steps.iter_rows()}
    dumps = [source for source in sources if source.recorder == "flight_recorder"]
    return Dumps(collectives.filter(is_dump), dumps, clocks, step_ns, step_of_op)


def _pipelines(collectives: pl.DataFrame) -> tuple[PipelineOrder, ...]:
    """Return the pipelines that the first recorder with messages tells."""
    for recorder in RECORDERS:
        pipelines = find_pipelines(collectives.filter(pl.col("source") == recorder))
        if pipelines:
            return pipelines
    return ()


def _without_warm_up(members: pl.DataFrame) -> pl.DataFrame:
    """Return the members that are in a step; all of them where steps are not known."""
    return members if members["step"].null_count() == members.height else members.drop_nulls("step")


def _distributions(arrivals: Arrivals) -> tuple[RankDistribution, ...]:
    """Return how each rank joined."""
    late = pl.col("late_ns")
    caused = pl.when("is_last").then(pl.col("wait_ns").sum().over("op_id")).otherwise(0)
    table = (
        _without_warm_up(arrivals.members)
        .with_columns(caused_ns=caused)
        .group_by("rank")
        .agg(
            operations=pl.len(),
            last=pl.col("is_last").sum(),
            median=late.median(),
            p90=late.quantile(0.9),
            p99=late.quantile(0.99),
            max=late.max(),
            waited=pl.col("wait_ns").sum(),
            caused=pl.col("caused_ns").sum(),
        )
        .sort("rank")
    )
    distributions = []
    for row in table.iter_rows(named=True):
        distribution = RankDistribution(
            rank=row["rank"],
            operations=row["operations"],
            last=row["last"],
            median_ns=round(row["median"]),
            p90_ns=round(row["p90"]),
            p99_ns=round(row["p99"]),
            max_ns=row["max"],
            waited_ns=row["waited"],
            caused_wait_ns=row["caused"],
        )
        distributions.append(distribution)
    return tuple(distributions)


def _waiting_by_group(
    arrivals: Arrivals, groups: Mapping[str, ProcessGroup]
) -> tuple[GroupWaiting, ...]:
    """Return the waiting of each group, the largest first."""
    table = (
        _without_warm_up(arrivals.members)
        .group_by("group")
        .agg(
            ranks=pl.col("rank").n_unique(),
            operations=pl.col("op_id").n_unique(),
            waited_ns=pl.col("wait_ns").sum(),
        )
        .sort(["waited_ns", "group"], descending=[True, False])
    )
    entries = []
    for row in table.iter_rows(named=True):
        group = groups.get(str(row["group"]))
        description = group.description if group is not None else None
        entries.append(
            GroupWaiting(
                str(row["group"]), description, row["ranks"], row["operations"], row["waited_ns"]
            )
        )
    return tuple(entries)


def _run_notices(
    sources: Sequence[Recording],
    members: pl.DataFrame,
    clocks: Mapping[int, RecordedClock],
    world_size: int | None,
    arrivals: Arrivals,
) -> list[Notice]:
    """Return what is not certain: missing ranks, records of different times, clocks that are not known."""
    notices = []
    ranks = {source.rank for source in sources if source.rank is not None}
    if world_size is not None:
        count, first = missing_ranks(ranks, world_size, most=4)
        if count:
            values: NoticeValues = {
                "count": count,
                "world_size": world_size,
                "missing": tuple(first),
                "role": None,
            }
            message = missing_ranks_text(count, world_size, first)
            notices.append(Notice("missing-ranks", message, values=values))
    shared = members.filter(pl.len().over("op_id") > 1)
    alone = sorted(set(members["rank"].to_list()) - set(shared["rank"].to_list()))
    if alone and len(ranks) > 1:
        notices.append(
            Notice(
                "clocks-apart",
                (
                    f"{of_ranks(tuple(alone))}shares no operation with other ranks: its record is of "
                    "another time, or of another run"
                ),
                ranks=tuple(alone),
                values={"case": "no_operation_shared"},
            )
        )
    return notices + _clock_notices(clocks, arrivals)


def _clock_notices(clocks: Mapping[int, RecordedClock], arrivals: Arrivals) -> list[Notice]:
    """Return notices of clocks that are far from the others, and of those that are not known."""
    offsets: dict[int, int] = {}
    unknown: list[int] = []
    for rank, clock in sorted(clocks.items()):
        if clock.uncertainty_ns is None:
            unknown.append(rank)
        else:
            offsets[rank] = clock.offset_ns
    usual_ns = float(np.median(list(offsets.values()))) if offsets else 0.0
    apart_ns = {
        rank: abs(offset_ns - usual_ns)
        for rank, offset_ns in offsets.items()
        if abs(offset_ns - usual_ns) > MAX_CLOCK_DIFFERENCE_NS
    }
    notices = []
    if apart_ns:
        hours = round(max(apart_ns.values()) / 3.6e12, 1)
        notice = Notice(
            "clocks-apart",
            (
                f"{of_ranks(tuple(apart_ns))}the clock is {hours} h off: it is wrong, or the record is of "
                "another run"
            ),
            ranks=tuple(apart_ns),
            values={"case": "hours", "hours": hours},
        )
        notices.append(notice)
    if unknown and arrivals.basis != "durations":
        notices.append(
            Notice(
                "clocks-apart",
                (
                    f"{of_ranks(tuple(unknown))}the clock ran differently from others, or jumped: times of "
                    "calls are not compared with it"
                ),
                ranks=tuple(unknown),
                values={"case": "not_constant"},
            )
        )
    return notices


def lateness_matrix(run: WholeRun, *, max_columns: int) -> tuple[list[int], list[int], np.ndarray]:
    """Return ranks, first steps of columns, and the lateness in ns of each rank (rows) in each span of steps (columns).

    A column stands for one step, or for several where there are more steps than *max_columns*: the
    largest counts.
    """
    steps = run.lateness.steps
    ranks = sorted(run.lateness.table["rank"].unique().to_list())
    per_column = max(1, -(-len(steps) // max_columns))
    column = np.searchsorted(steps, run.lateness.table["step"].to_numpy()) // per_column
    row = np.searchsorted(ranks, run.lateness.table["rank"].to_numpy())
    matrix = np.zeros((len(ranks), -(-len(steps) // per_column)), dtype=np.int64)
    np.maximum.at(matrix, (row, column), run.lateness.table["late_ns"].to_numpy())
    return ranks, steps[::per_column].tolist(), matrix
