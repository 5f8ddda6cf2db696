"""Tables of one rank: the part of an analysis that needs only the rank's own events.

They are small and picklable, so that ranks can be measured in any process and combined in one
(``analysis.combine``).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from tracekit._util.machine import give_back_memory
from tracekit.align.gpu_clock import is_clock_unexplained
from tracekit.align.steps import assign_parts, host_ranges, number_steps
from tracekit.analysis.measure.by import RankRows, rank_rows
from tracekit.analysis.measure.kernels import kernel_reasons, kernel_table, shape_list
from tracekit.analysis.measure.operators import operator_table
from tracekit.analysis.measure.rank_timeline import RankTimeline, rank_timeline
from tracekit.analysis.measure.recording_checks import (
    capture_notices,
    content_notices,
    damage_notices,
    repetition_notices,
)
from tracekit.analysis.measure.room_measures import LabelledSteps, RoomMeasure
from tracekit.classify import RuleBook, load_rules
from tracekit.classify.classify_events import classify_lost_kernels, classify_with_lost
from tracekit.classify.graph_replays import join_replays
from tracekit.documents.analysis import Budget, TimedStep
from tracekit.errors import Notice
from tracekit.graph.loadable import GraphTables, TableInMemory
from tracekit.graph.rank_events import find_host_work, find_rank_events
from tracekit.graph.recording_cost import find_recording_cost
from tracekit.intervals import Intervals, union_of
from tracekit.metrics.alternatives import find_remedies
from tracekit.metrics.alternatives.own import NO_OWN_ADVICE, OwnAdvice, own_remedies
from tracekit.metrics.bandwidth import copies
from tracekit.metrics.budget import (
    add_slow_launch_ends,
    budgets,
    gaps,
    name_next_events,
    phases,
)
from tracekit.metrics.causes import Rank, exposure_causes
from tracekit.metrics.completeness import Completeness, add_lost_operators, check_completeness
from tracekit.metrics.expert_balance import measure_expert_work
from tracekit.metrics.host.events import HostEvents, find_frames, split_host_events
from tracekit.metrics.host.idle_activity import find_host_activity, keep_longest
from tracekit.metrics.host.new_shapes import find_new_shapes
from tracekit.metrics.host.stalls import find_stalls
from tracekit.metrics.host.time_by_activity import measure_host_time
from tracekit.metrics.host.waiting_calls import (
    add_time_inside_launches,
    find_loader_waits,
    find_waiting_calls,
    waits_for_queue,
)
from tracekit.metrics.kernel_limits import find_memory_bound
from tracekit.metrics.label_intervals import Lanes, timeline, weak_ns
from tracekit.metrics.lateness import LatenessTables, measure_lateness
from tracekit.metrics.loops import find_loops
from tracekit.metrics.lost_operators import find_lost_operators
from tracekit.metrics.operations import count_issued_messages, operations
from tracekit.metrics.overlap import hidden, label_times, measure_overlap_costs
from tracekit.metrics.peaks import host_link_gb_s
from tracekit.metrics.process_phases import ROLLOUT, find_decode_steps, find_stretches
from tracekit.metrics.rank_work import HOST_OPERATORS, RankWork, describe_rank_work
from tracekit.metrics.rates import ProductTotals, products
from tracekit.metrics.sites import RankSites, find_sites
from tracekit.metrics.step_kinds import measure_step_kinds
from tracekit.metrics.step_time import (
    find_start_up_steps,
    step_budgets,
    timed_steps,
)
from tracekit.pipeline.reconstruct import RankPipeline, rank_pipeline
from tracekit.schema import EVENTS, IDLE_CAUSES, LABELLED, RankEvents, Source

MAX_GAPS_PER_RANK = 100
"""Idle gaps that are listed, the longest; sums are over all gaps."""
MIN_EVENTS_TO_GIVE_BACK_MEMORY = 10_000
"""Events from which freed memory is worth returning to the system."""
MEASURED_COLUMNS = (
    "kind",
    "name",
    "start_ns",
    "end_ns",
    "tid",
    "shapes",
    "concrete",
    "sequence",
    "collective",
    "step",
)
"""Columns of a rank's events that measuring reads after its GPU events are labelled."""


@dataclass(frozen=True, eq=False)
class Measures:
    """Measurements of one rank by part: the parts are its whole window (one part), or each of its steps.

    Tables have a column ``part``, which counts from 0.
    """

    budgets: tuple[Budget, ...]
    """One per part."""
    labels: pl.DataFrame
    hidden: pl.DataFrame
    covered: Intervals
    """Times at which compute and communication run together."""
    exposed: pl.DataFrame
    """Exposed time by cause, before waiting for peers is known."""
    weak: tuple[int, ...]
    """By part, the time in ns whose label rests on weak evidence."""


@dataclass(frozen=True, eq=False, kw_only=True)
class RankTables(GraphTables):
    """The measured tables of one rank, small and picklable."""

    window: Measures
    by_step: Measures
    """The same object as ``window`` if there is one step."""
    timed_steps: tuple[TimedStep, ...] = ()
    """Step time of each step, and where it went."""
    step_kinds: pl.DataFrame
    """Prefill and decode steps of an inference server (``metrics.step_kinds``)."""
    phases: pl.DataFrame
    """Phases of each step (``metrics.budget``)."""
    idle_causes: Mapping[str, int]
    """Idle time in ns by cause."""
    copies: pl.DataFrame
    """Copies by label (``metrics.bandwidth``)."""
    operations: pl.DataFrame
    gaps: pl.DataFrame
    timeline: pl.DataFrame
    """Intervals by label, merged until they are few enough to draw."""
    pipeline: RankPipeline | None = None
    """Its part of the pipeline (``tracekit.pipeline.reconstruct``); None if no schedule was asked for."""
    stretches: pl.DataFrame
    """Stretches of training, generation and weight synchronisation (``metrics.process_phases``)."""
    decode_steps: pl.DataFrame
    """Attention that reads a cache of keys and values (``metrics.process_phases``)."""
    products: pl.DataFrame
    """Matrix products by label, module, operator, shapes and dtype (``metrics.rates``)."""
    rates: ProductTotals
    experts: pl.DataFrame
    """Work of its experts for each dispatch (``metrics.expert_balance``)."""
    kernels: pl.DataFrame
    """Time per step by kernel name, label and module (``analysis.kernels``)."""
    reasons: pl.DataFrame
    """Reasons for the labels of the longest kernels (``analysis.kernels``)."""
    operators: pl.DataFrame
    """Time per step by operator and by its inputs (``analysis.operators``)."""
    shapes: tuple[str, ...]
    """Input shapes of the model's matrix products, if they were recorded."""
    instead: pl.DataFrame
    """Activity of the host while the GPU waited for its next launch (``metrics.host.idle_activity``)."""
    inside_launch_ns: int
    """Idle time that lies inside the launch call of the work that ended it."""
    host_time: pl.DataFrame
    """Time of the host by step and activity (``metrics.host.time_by_activity``); empty if its events were not
    recorded."""
    host_places: pl.DataFrame
    """Where the GPU was idle longest meanwhile."""
    memory_bound: pl.DataFrame
    """Operators that move memory, with the time that its bandwidth asks for
    (``metrics.kernel_limits``)."""
    hiding: pl.DataFrame
    """Durations of kernels beside communication, and of the same kernels alone
    (``metrics.overlap``)."""
    lateness: LatenessTables
    """Figures that explain why others wait for it (``metrics.lateness``)."""
    gpu_number: int | None = None
    """Number of the GPU that its events ran on; None if there are several."""
    steps_marked: bool = True
    """False if steps are not marked, so that ranks may number them differently."""
    idle_known: bool = True
    """False if work ran on the GPU that the trace does not show."""
    messages_issued: int
    """Number of host calls that send or receive."""
    by: RankRows | None
    """Its time by layer, module, annotation or shape (``analysis.by``); None if not asked for."""
    events: RankTimeline | None = None
    """Its single events, for the page; None if they were not kept."""
    of_rooms: Mapping[str, Any] = field(default_factory=dict)
    """What side rooms measured of it, by ``RoomMeasure.name``; None where nothing was recorded."""
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class LabelledRank:
    """One rank whose GPU events are labelled, with what measuring reads of its other events."""

    rank: RankEvents
    """Its events have ``MEASURED_COLUMNS`` alone, unless all columns were asked for."""
    gpu_events: pl.DataFrame
    """``LABELLED``."""
    lost: pl.DataFrame
    """Communication kernels that were launched and not recorded, labelled."""
    host: HostEvents
    rules: RuleBook | None
    """Rules that it was labelled with, before the built-in ones."""
    damage: tuple[Notice, ...]
    """Notices of GPU events that could not be read."""
    capture: tuple[Notice, ...]
    """Notices about the replays of graphs."""


def label_rank(
    rank: RankEvents,
    *,
    labelled: pl.DataFrame | None = None,
    lost: pl.DataFrame | None = None,
    rules: str | Path | RuleBook | None = None,
    all_columns: bool = False,
) -> LabelledRank:
    """Label one rank and split its host events.

    Its other events are not held: if the caller lets *rank* go, their memory is free.

    Args:
        rank: Its events and source.
        labelled: Its labelled events, if they are known already.
        lost: Its communication kernels that were launched and not recorded, if they are known as
            well.
        rules: Rules file or book to label with, before the built-in rules.
        all_columns: Keep all columns of its events.

    """
    give_back_memory(worth=rank.events.height > MIN_EVENTS_TO_GIVE_BACK_MEMORY)  # of reading
    damage = tuple(damage_notices(rank))
    book = load_rules(rules) if isinstance(rules, str | Path) else rules
    replays = None if rank.capture is None else join_replays(rank.events, rank.capture)
    if labelled is None:
        labelled, lost = classify_with_lost(rank.events, rules=book, replays=replays)
    elif lost is None:
        lost = classify_lost_kernels(rank.events, rules=book)
    return LabelledRank(
        rank=rank if all_columns else replace(rank, events=rank.events.select(MEASURED_COLUMNS)),
        gpu_events=labelled,
        lost=lost,
        host=split_host_events(rank.events),
        rules=book,
        damage=damage,
        capture=tuple(capture_notices(replays, rank.capture)),
    )


def measure_rank(
    labelled_rank: LabelledRank,
    *,
    steps: str | None = None,
    pipeline: bool = True,
    by: str | None = None,
    keep_events: bool = False,
    frames: pl.DataFrame | None = None,
    advice: OwnAdvice = NO_OWN_ADVICE,
    rooms: Sequence[RoomMeasure[Any]] = (),
) -> RankTables:
    """Measure one rank.

    Args:
        labelled_rank: Its events, with all columns if *by* is given.
        steps: Steps to measure, such as ``2:4``; by default all.
        pipeline: Reconstruct its part of the pipeline.
        by: Add its time by ``layer``, ``module``, ``annotation`` or ``shape``.
        keep_events: Keep its single events, for the page.
        frames: Its Python frames, for the source lines of the events.
        advice: What a user adds to the catalogue of alternatives.
        rooms: What side rooms measure of it.

    >>> from tracekit.run.load import load
    >>> labelled_rank = label_rank(load("sample_traces/reload", ranks=[0]).rank(0))
    >>> tables = measure_rank(labelled_rank)
    >>> tables.window.budgets[0].span_ns, tables.window.budgets[0].conserved
    (104587652, True)

    """
    rank = labelled_rank.rank
    host = labelled_rank.host
    labelled = labelled_rank.gpu_events
    repeated = repetition_notices(labelled, rank.source)
    comparable = _comparable_launches(labelled, rank.source)
    recording = check_completeness(host.calls, comparable)
    without_launch = find_lost_operators(host.calls, labelled, rank.events)
    recording = add_lost_operators(recording, without_launch, host.calls, comparable)
    labelled = add_slow_launch_ends(labelled, host.calls.rows)
    labelled, lost, unmarked = _number_steps_with_lost(labelled, labelled_rank.lost)
    in_launch_order, step_table, step_notices = assign_parts(
        labelled, steps, host=host_ranges(rank.events)
    )
    gpu_events = _comparable_launches(in_launch_order, rank.source)
    lost = lost.filter(pl.col("step").is_in(step_table["step"].implode(), nulls_equal=True))
    other_steps = labelled if len(labelled) > len(gpu_events) else None
    in_full_queue = waits_for_queue(host.calls, gpu_events)
    waiting_calls = find_waiting_calls(host.calls, gpu_events, in_full_queue=in_full_queue)
    tables = _tables_of_gpu_events(
        rank,
        gpu_events,
        step_table,
        host,
        recording,
        launch_ns=in_launch_order["launch_ns"],
        waiting_calls=waiting_calls,
        other_steps=other_steps,
        rules=labelled_rank.rules,
        by=by,
        frames=frames,
        advice=advice,
    )
    give_back_memory(worth=len(gpu_events) > MIN_EVENTS_TO_GIVE_BACK_MEMORY)
    events = None
    if keep_events:
        events = rank_timeline(rank, gpu_events, find_waiting_calls(host.calls), frames)
    own_pipeline = None
    if pipeline:
        full_queue = union_of(host.calls.rows.filter(pl.Series(in_full_queue)))
        own_pipeline = rank_pipeline(
            in_launch_order, rank.source, around=labelled, lost=lost, full_queue=full_queue
        )
        own_pipeline = replace(own_pipeline, cut=recording.cut_steps)
    steps_of_rooms = LabelledSteps(
        rank=rank,
        gpu_events=gpu_events,
        stretches=tables.stretches,
        chunks=None if own_pipeline is None else own_pipeline.chunks,
        all_steps=steps is None,
    )
    of_rooms = {room.name: room.measure(steps_of_rooms) for room in rooms}
    room_notices = [notice for _, notices in of_rooms.values() for notice in notices]
    return replace(
        tables,
        operations=pl.concat([tables.operations, operations(lost, Lanes.of(lost))]),
        pipeline=own_pipeline,
        events=events,
        of_rooms={name: measured for name, (measured, _) in of_rooms.items()},
        steps_marked=not unmarked,
        idle_known=recording.idle_known and not labelled_rank.damage,
        notices=(
            *labelled_rank.damage,
            *repeated,
            *recording.notices,
            *labelled_rank.capture,
            *unmarked,
            *step_notices,
            *content_notices(gpu_events, step_table, host.calls.rows, rank),
            *room_notices,
            *tables.notices,
        ),
    )


def _comparable_launches(labelled: pl.DataFrame, source: Source) -> pl.DataFrame:
    """Return the events with the times of their launches only if these can be compared with the GPU's times.

    The order of launches holds whatever the GPU's clock shows: steps and pipelines are found by it.
    """
    if is_clock_unexplained(source):
        return labelled.with_columns(launch_ns=pl.lit(None, LABELLED["launch_ns"]))
    return labelled


def _with_remedies(
    graph_events: pl.DataFrame,
    work: Rank,
    rank: RankEvents,
    *,
    stalls: Intervals,
    sites: RankSites,
    advice: OwnAdvice,
) -> tuple[pl.DataFrame, tuple[Notice, ...]]:
    """Return the rank's events with what changes would make of each, and notices about a user's *advice*."""
    gpu_events = work.labelled
    notices: list[Notice] = []

    def find_own(rank_work: RankWork) -> Iterator[pl.DataFrame]:
        for found in own_remedies(rank_work, advice.entries, rank.source.rank):
            if isinstance(found, Notice):
                notices.append(found)
            else:
                yield found

    launching = gpu_events["op"].unique().drop_nulls().cast(pl.String)
    rank_work = describe_rank_work(
        gpu_events,
        device=next(iter(rank.source.devices), None),
        multiprocessors=rank.source.multiprocessors,
        stalls=stalls,
        on_new_shapes=find_new_shapes(rank.events, launching),
        operators=rank.events.filter(pl.col("kind") == "cpu_op").select(HOST_OPERATORS.names()),
        loops=find_loops(rank.events, gpu_events["launch_tid"].drop_nulls().unique().to_list()),
        rates=advice.rates,
        texts=work.texts,
        sites=sites,
    )
    remedies = find_remedies(rank_work, own=find_own)
    return graph_events.with_columns(remedies=remedies), tuple(notices)


def _number_steps_with_lost(
    labelled: pl.DataFrame, lost: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, list[Notice]]:
    """Number the steps of recorded and lost events together, by the order of their launches.

    Return both with their steps, and notices. Lost events have negative numbers.
    """
    if lost.is_empty():
        numbered, notices = number_steps(labelled)
        return numbered, lost, notices
    numbered, notices = number_steps(pl.concat([labelled, lost], how="diagonal"))
    is_lost = pl.col("id") < 0
    return numbered.filter(~is_lost), numbered.filter(is_lost), notices


def _tables_of_gpu_events(
    rank: RankEvents,
    gpu_events: pl.DataFrame,
    steps: pl.DataFrame,
    host: HostEvents,
    recording: Completeness,
    *,
    launch_ns: pl.Series,
    waiting_calls: pl.DataFrame,
    other_steps: pl.DataFrame | None,
    rules: RuleBook | None,
    by: str | None,
    frames: pl.DataFrame | None,
    advice: OwnAdvice,
) -> RankTables:
    """Return the tables of the labelled GPU events of the selected steps, over the whole window and by step.

    The pipeline, what side rooms measure and the notices are added by ``measure_rank``. *other_steps* are the GPU
    events of all steps, if not all were selected: some may run while a selected step does. *launch_ns*
    are the launches of the events: operations are in their order.
    """
    device = next(iter(rank.source.devices), None)
    is_large = len(gpu_events) > MIN_EVENTS_TO_GIVE_BACK_MEMORY
    work = Rank.of(gpu_events, waiting_calls)
    give_back_memory(worth=is_large)

    # The whole window.
    lanes = Lanes.of(gpu_events)
    idle_gaps = add_time_inside_launches(
        host.calls, gpu_events, gaps(gpu_events, lanes, unrecorded=recording.unrecorded)
    )
    window = by_step = _measures_of_parts(work, lanes, None, recording)
    link_gb_s = None if device is None else host_link_gb_s(device)
    copy_table = copies(window.labels, lanes.exposed, link_gb_s=link_gb_s)
    hiding = measure_overlap_costs(gpu_events, lanes, texts=work.texts)
    launching = host.on_threads(gpu_events["launch_tid"].drop_nulls().unique().to_numpy())
    frames_of_rank = find_frames(rank.events)
    host_activity = keep_longest(
        find_host_activity(launching, frames_of_rank, gpu_events, idle_gaps)
    )
    inside_launch_ns = int(idle_gaps["inside_launch_ns"].sum())
    sites = find_sites(gpu_events, work.texts)
    by_rows = None if by is None else rank_rows(rank, gpu_events, by, sites=sites, lanes=lanes)
    idle_causes = {cause: int(idle_gaps[f"{cause}_ns"].sum()) for cause in IDLE_CAUSES}
    all_lanes = lanes if other_steps is None else Lanes.of(other_steps)
    host_time, host_places, host_stretches = measure_host_time(
        launching,
        frames_of_rank if frames is None else find_frames(frames),
        gpu_events,
        steps,
        busy=all_lanes.busy | recording.unrecorded,  # there the GPU is not known to be idle
        gaps=idle_gaps,
    )
    loading = find_loader_waits(launching.ranges, launching.operators)
    del launching, frames_of_rank
    give_back_memory(worth=is_large)
    of_steps = timed_steps(
        steps,
        step_budgets(steps, all_lanes, unrecorded=recording.unrecorded),
        find_start_up_steps(host.calls, steps),
    )

    # Each step, if there are several. The window's lanes go first: those of the steps take as much
    # memory.
    if len(steps) > 1:
        del lanes, all_lanes
        lanes = Lanes.of(gpu_events, parts=len(steps), part="part")
        by_step = _measures_of_parts(work, lanes, "part", recording)

    product_table, rates = products(
        gpu_events, device=device, multiprocessors=rank.source.multiprocessors, sites=sites
    )
    memory_bound = find_memory_bound(
        gpu_events, device=device, multiprocessors=rank.source.multiprocessors, sites=sites
    )
    stretches = find_stretches(gpu_events)
    rolls_out = ROLLOUT in stretches["phase"]
    decode_steps = find_decode_steps(rank.events if rolls_out else EVENTS.to_frame())
    longest_gaps = idle_gaps.drop("inside_launch_ns").top_k(MAX_GAPS_PER_RANK, by="ns")
    compute_ns = np.array([budget.compute_ns for budget in by_step.budgets], np.int64)
    graph_events = None
    host_work = None
    advice_notices: tuple[Notice, ...] = ()
    if len(gpu_events):
        launching_ops = gpu_events["op"].unique().drop_nulls().cast(pl.String)
        stalls = find_stalls(rank.events, launching_ops)
        cost = None
        if not is_clock_unexplained(rank.source):
            cost = find_recording_cost(rank, host, gpu_events["correlation"], stalls=stalls)
        with_cost = find_rank_events(work, cost, loading)
        host_work = find_host_work(work, with_cost, host_stretches)
        give_back_memory(worth=is_large)
        graph_events, advice_notices = _with_remedies(
            with_cost, work, rank, stalls=stalls, sites=sites, advice=advice
        )
        give_back_memory(worth=is_large)
    return RankTables(
        notices=advice_notices,
        source=rank.source,
        steps=steps,
        window=window,
        by_step=by_step,
        timed_steps=of_steps,
        step_kinds=measure_step_kinds(rank.events, steps, by_step.budgets),
        phases=phases(lanes),
        idle_causes=idle_causes,
        copies=copy_table,
        operations=operations(gpu_events.with_columns(launch_ns=launch_ns), lanes, part="part"),
        gaps=name_next_events(longest_gaps, gpu_events),
        timeline=timeline(gpu_events),
        stretches=stretches,
        decode_steps=decode_steps,
        products=product_table,
        rates=rates,
        experts=measure_expert_work(gpu_events),
        kernels=kernel_table(gpu_events),
        reasons=kernel_reasons(gpu_events, rank=rank.source.rank, rules=rules),
        operators=operator_table(sites.sites, steps=max(len(steps), 1)),
        shapes=shape_list(rank.events),
        instead=host_activity,
        inside_launch_ns=inside_launch_ns,
        host_time=host_time,
        host_places=host_places,
        memory_bound=memory_bound,
        hiding=hiding,
        launches_known=bool(work.launched.any()) or not len(gpu_events),
        lateness=measure_lateness(
            rank.events, gpu_events, steps, idle_gaps, compute_ns, texts=work.texts
        ),
        messages_issued=count_issued_messages(rank.events),
        gpu_number=_sole_gpu_number(gpu_events),
        by=by_rows,
        graph_events=None if graph_events is None else TableInMemory(graph_events),
        graph_host_work=None if host_work is None else TableInMemory(host_work),
    )


def _sole_gpu_number(gpu_events: pl.DataFrame) -> int | None:
    """Return the number of the GPU on which all events ran; None if there are several, or none is said."""
    numbers = gpu_events["device"].unique().to_list()
    return int(numbers[0]) if len(numbers) == 1 and numbers[0] is not None else None


def _measures_of_parts(
    work: Rank, lanes: Lanes, part: str | None, recording: Completeness
) -> Measures:
    """Return the measures of each part of a rank.

    *part* is the column that numbers the parts, None for the whole window.
    """
    labelled = work.labelled
    exposed = exposure_causes(work, lanes.exposed, parts=part is not None)
    if not recording.idle_known:  # compute that was lost may have been ready to run beside
        exposed = exposed.with_columns(pl.col("cause").replace("nothing_to_hide", "unknown"))
    return Measures(
        budgets=tuple(budgets(lanes, unrecorded=recording.unrecorded)),
        labels=label_times(labelled, lanes, part=part),
        hidden=hidden(labelled, part=part, texts=work.texts),
        covered=lanes.compute & lanes.communication,
        exposed=exposed,
        weak=weak_ns(labelled, parts=lanes.parts, part=part),
    )
