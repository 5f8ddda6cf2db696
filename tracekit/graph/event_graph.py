"""Graph of a run's GPU events: what each one waited for, so that the run can be replayed with other durations.

An event starts after the event before it on its stream, after work of another stream that its
stream was told to wait for, and after its launch. A launch comes after the one before it on the
same host, after GPU work that the host waited for, when there is room in the launch queue, and after
the batch that the host waited for. A matched communication transfers from the
arrival of its last member on. Time between the last of these and the start of an event, which
nothing explains, is kept; so the unchanged graph replays to the nanosecond.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._loops.critical_path import NO_LIMIT, replay_events
from tracekit._util.arrays import Bools, Floats, Int32s, Ints, as_int64
from tracekit._util.columns import to_int64
from tracekit.align.clocks import Clocks
from tracekit.align.matching import last_of_match
from tracekit.align.steps import (
    NO_STEP,
    UNKNOWN_TIME,
    StepRows,
    interval_columns,
    step_intervals,
)
from tracekit.documents.analysis import Budget, StepTime
from tracekit.graph.constants import (
    MIN_FREE_HOST_SHARE,
    RANKS_LOADED_TOGETHER,
    WORK_STATE_EXPONENT,
)
from tracekit.graph.loadable import GraphTables
from tracekit.graph.merged_events import MergedEvents, merge_events
from tracekit.graph.rank_events import BEFORE, GAPS_WITHIN, HOST_WORK
from tracekit.intervals import Intervals, union
from tracekit.metrics.label_intervals import COMPUTE_SET, Lanes
from tracekit.metrics.start_constraints import (
    LAUNCH,
    OTHER_STREAM,
    STREAM,
    ReadyTimes,
    usual_reactions,
)
from tracekit.metrics.step_time import find_unusual, mean_budget, step_budgets
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS, LABELS


class EventReplay(msgspec.Struct, frozen=True, eq=False):
    """Times of a replayed run, and what held each event back (``_loops.critical_path.replay_events``)."""

    start: Ints
    end: Ints
    launch: Ints
    """``NO_LIMIT`` if not recorded."""
    replayed: Ints
    """Start, end and more of each event, in the order of ``ReplayInput``."""
    arrivals: Ints


class ReplayInput(msgspec.Struct, frozen=True, eq=False):
    """A graph as ``replay_events`` takes it, its events in the order of their starts.

    The replay goes through all ranks in that order: with events rank by rank it would read from as
    many places of memory as there are ranks, in three times the time.
    """

    by_time: Ints
    """Events of the graph in the order of their starts."""
    order: npt.NDArray[np.uint32]
    times: Ints
    delays: Ints
    before: Int32s
    first_match: Int32s
    matches: Int32s
    decisive: Int32s
    rank_index: Int32s
    gap_share: Floats
    """Share of each event's time that is between the events that it was joined from."""


class _HostsOfSteps(NamedTuple):
    """Of each step of each rank, sorted by both: when its host was in it, as measured."""

    rows: StepRows
    start_ns: Ints
    before_launch_ns: Ints
    """From the host's start of the step to its first launch."""
    tail_ns: Ints
    """From the end of its last GPU work to the host's end of the step."""
    has_lead: Bools
    """Whether the host's start is known, and with it the first two times."""
    has_tail: Bools
    is_first: Bools
    """Whether the step is the first of its rank."""


class HostChange(NamedTuple):
    """What is left before each launch if the host does some of its work no longer."""

    is_released: Bools
    """Whether the host no longer waits for the GPU."""
    has_batch: Bools
    """Whether it no longer waits for a batch."""
    removed_share: Floats
    """Share of its time that is taken out."""


class EventGraph(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Events of all ranks, rank by rank, on the common clock.

    Numbers of events count over all ranks.
    """

    events: pl.DataFrame
    """``RANK_EVENTS`` and ``rank``; rows of events are numbers of events."""
    start: Ints
    """Measured start of each event."""
    end: Ints
    launch: Ints
    """``NO_LIMIT`` if not recorded."""
    ranks: tuple[int, ...]
    rank_index: Int32s
    """Of each event: its rank's index in ``ranks``."""
    steps: tuple[int | None, ...]
    step_index: Int32s
    first_match: Int32s
    """Matched operations of event i: ``matches[first_match[i]:first_match[i + 1]]``."""
    matches: Int32s
    decisive: Int32s
    """The match of each event that was complete last, if the event ended after that; -1: none."""
    transfer_ns: Ints
    """Time of each event from that match's last arrival to its end."""
    host: pl.DataFrame
    """By ``rank`` and ``step``: ``lead_ns`` from the host's start of the step to its first GPU
    work, and ``tail_ns`` from the end of its last GPU work to the host's end of the step, if that
    is later."""
    ranks_left_out: frozenset[int] = frozenset()
    """Ranks of the run whose events are not replayed."""
    host_work: pl.DataFrame = HOST_WORK.to_frame()
    """What hosts did between launches (``HOST_WORK``); ``event`` counts over all ranks."""

    @classmethod
    def build(
        cls,
        parts: Sequence[GraphTables],
        operations: pl.DataFrame,
        members: pl.DataFrame,
        clocks: Clocks,
        *,
        ranks_left_out: frozenset[int] = frozenset(),
    ) -> EventGraph | None:
        """Join the events of all ranks; None if no rank kept its events.

        Args:
            parts: Tables of the ranks, in order of rank.
            operations: Operations of all ranks, in order of rank.
            members: Matched operations (``align.matching.MEMBERS``), whose ``row`` is a row of
                *operations*.
            clocks: Clock offsets of the ranks.
            ranks_left_out: Ranks of the run that *parts* leaves out on purpose: of so large a run,
                events are joined (``graph.merged_events``).
        """
        frames: list[pl.DataFrame] = []
        host_work = [HOST_WORK.to_frame()]
        first = 0
        for first_part in range(0, len(parts), RANKS_LOADED_TOGETHER):
            batch = _load_events(parts[first_part : first_part + RANKS_LOADED_TOGETHER])
            if batch is None:
                continue
            if ranks_left_out:
                batch = merge_events(*batch, batch.events["rank"].to_numpy())
            frames.append(batch.events.with_columns(_rows_behind(pl.lit(first, pl.Int32))))
            host_work.append(batch.host_work.with_columns(pl.col("event") + first))
            first += batch.events.height
        if not frames:
            return None
        events = clocks.align(pl.concat(frames, rechunk=True), "start_ns", "end_ns", "launch_ns")
        steps = events["step"].unique().sort(nulls_last=True)
        ranks = events["rank"].unique().sort()
        step_number = pl.col("step").rank("dense").cast(pl.Int32).fill_null(len(steps)) - 1
        return cls(
            events,
            events["start_ns"].to_numpy(),
            events["end_ns"].to_numpy(),
            to_int64(events["launch_ns"], NO_LIMIT),
            tuple(ranks),
            np.searchsorted(ranks.to_numpy(), events["rank"].to_numpy()).astype(np.int32),
            tuple(steps),
            events.select(step_number).to_series().to_numpy(),
            *_match_events(events, operations, members, clocks),
            host=pl.concat([_host_around(part) for part in parts]),
            ranks_left_out=ranks_left_out,
            host_work=pl.concat(host_work),
        )

    @cached_property
    def remedies(self) -> pl.DataFrame:
        """What changes would make of events: ``event``, ``ns`` and the fields of ``alternatives.remedy.REMEDY``."""
        if "remedies" not in self.events.columns:
            return pl.DataFrame(schema={"event": pl.Int64(), "change": pl.String()})
        numbered = self.events.select(
            "remedies",
            event=pl.int_range(pl.len(), dtype=pl.Int64),
            ns=pl.col("end_ns") - pl.col("start_ns"),
        )
        return numbered.drop_nulls("remedies").explode("remedies").unnest("remedies")

    @cached_property
    def before(self) -> Int32s:
        """What each event waits for, one row for each of ``BEFORE``."""
        return np.stack([self.events[name].to_numpy() for name in BEFORE]).astype(np.int32)

    @cached_property
    def label(self) -> Ints:
        """Index of each event's label in ``LABELS``."""
        return self.events["label"].to_physical().to_numpy().astype(np.int64)

    @cached_property
    def is_pageable_copy(self) -> Bools:
        """Which events copy pageable memory."""
        names = self.events["name"].unique().drop_nulls()
        of_copies = names.filter(names.cast(pl.String).str.contains("(?i)pageable"))
        return self.events["name"].is_in(of_copies.implode()).fill_null(False).to_numpy()

    @cached_property
    def work_ns(self) -> Ints:
        """Time that each event itself takes: of matched communication its transfer, else its duration."""
        duration_ns = self.end - self.start - self.gaps_within_ns
        return as_int64(np.where(self.decisive >= 0, self.transfer_ns, duration_ns))

    @cached_property
    def gaps_within_ns(self) -> Ints:
        """Time between the events that each event was joined from; 0 of a single one."""
        if GAPS_WITHIN not in self.events.columns:
            return np.zeros(len(self.start), np.int64)
        return self.events[GAPS_WITHIN].to_numpy()

    @cached_property
    def rank_begin(self) -> Ints:
        """Begin of the window on the rank of each event, before which none of its events can start.

        Ranks enter a step at different times, which is nobody's delay. The first step begins as the
        step time has it (``align.steps``).
        """
        return self._begins[self.rank_index]

    @cached_property
    def _begins(self) -> Ints:
        """Begin of the first step of each rank."""
        first_steps = self.measured_bounds.sort("rank_index", "step_index").unique(
            "rank_index", keep="first", maintain_order=True
        )
        return first_steps["interval_start_ns"].to_numpy()

    @cached_property
    def gpu_ready(self) -> Ints:
        """When all GPU work that each event waited for had ended.

        The begin of its rank if there is none.
        """
        ready = self.rank_begin.copy()
        for before in self.before[:2]:
            ready = np.maximum(
                ready, np.where(before >= 0, np.minimum(self.end[before], self.start), -NO_LIMIT)
            )
        return ready

    @cached_property
    def launched_late_ns(self) -> Ints:
        """Time for which each event could have run but was not launched."""
        launched = np.where(
            self.launch == NO_LIMIT, self.gpu_ready, np.minimum(self.launch, self.start)
        )
        return as_int64(np.maximum(launched - self.gpu_ready, 0))

    @cached_property
    def replay_input(self) -> ReplayInput:
        """The graph as ``replay_events`` takes it."""
        count = len(self.start)
        by_time = np.argsort(self.start, kind="stable")
        number = np.empty(count, np.int32)
        number[by_time] = np.arange(count, dtype=np.int32)
        # Starts, and launches (number of events + event), merged; a launch before a start.
        launched = np.flatnonzero(self.launch != NO_LIMIT)
        nodes = np.concatenate([number[launched] + count, number]).astype(np.uint32)
        times = np.concatenate([self.launch[launched], self.start])
        # Matches of each event, in the new order of events.
        match_counts = np.diff(self.first_match)[by_time]
        first_match = np.concatenate([[0], np.cumsum(match_counts)]).astype(np.int32)
        shift = np.repeat(self.first_match[:-1][by_time] - first_match[:-1], match_counts)
        return ReplayInput(
            by_time=by_time,
            order=np.ascontiguousarray(nodes[np.argsort(times, kind="stable")]),
            times=np.stack(
                [each[by_time] for each in (self.start, self.end, self.launch, self.rank_begin)]
            ),
            delays=np.stack([each[by_time] for each in self._delays()]),
            before=np.stack(
                [np.where(each >= 0, number[each], -1)[by_time] for each in self.before]
            ).astype(np.int32),
            first_match=first_match,
            matches=self.matches[shift + np.arange(len(shift))],
            decisive=self.decisive[by_time],
            rank_index=self.rank_index[by_time],
            gap_share=(self.gaps_within_ns / np.maximum(self.end - self.start, 1))[by_time],
        )

    def _delays(self) -> tuple[Ints, ...]:
        """Delays of events as ``replay_events`` takes them.

        After what held it back an event started when it did. Without that it would have started in the
        time that is usual on its rank after the others, and before it did.
        """
        has_launch = self.launch != NO_LIMIT
        ready = ReadyTimes.of(
            self.start, self.end, self.launch, has_launch, (self.before[0], self.before[1])
        )
        held_by = self.events["held_by"].to_numpy()
        reactions = np.stack([self.start - ready_ns for ready_ns in ready])
        for first, end in pairwise(
            np.searchsorted(self.rank_index, np.arange(len(self.ranks) + 1))
        ):
            of_rank = slice(first, end)
            usual = usual_reactions(
                self.start[of_rank], ReadyTimes(*(ready_ns[of_rank] for ready_ns in ready))
            )
            for row, kind in enumerate((STREAM, LAUNCH, OTHER_STREAM)):
                is_other_reason = held_by[of_rank] != kind
                reaction_ns = reactions[row, of_rank]
                reaction_ns[is_other_reason] = np.minimum(
                    reaction_ns[is_other_reason] - 1, usual[row]
                )
        after_stream_ns, latency_ns, after_other_ns = reactions
        after_release_ns = self.events["after_release_ns"].to_numpy()
        return (
            latency_ns,
            after_stream_ns,
            after_other_ns,
            self._waiting_ns,
            after_release_ns,
            self.transfer_ns,
        )

    @cached_property
    def _waiting_ns(self) -> Ints:
        """Time before each launch in which the host waited for the GPU or for a batch."""
        return as_int64(self.events["blocked_ns"].to_numpy() + self.events["loading_ns"].to_numpy())

    @cached_property
    def recording_known(self) -> bool:
        """Whether it is known what the recording cost every rank's host."""
        return self.events["recording_ns"].null_count() == 0

    @cached_property
    def _host_ns(self) -> Ints:
        """Time of the host before each launch, since the one before; 0 if there is none."""
        previous = self.before[2]
        has_both = (previous >= 0) & (self.launch != NO_LIMIT)
        host_ns = np.zeros(len(self.start), np.int64)
        host_ns[has_both] = self.launch[has_both] - self.launch[previous[has_both]]
        return as_int64(np.maximum(host_ns - self._waiting_ns, 0))

    def in_state(self, quantile: float) -> Floats:
        """Return the time of each launch's host as in the state that its rank's host has at a *quantile* of its time.

        It is over the recorded one; NaN where the state is not known.
        """
        states = self.events["host_state"].cast(pl.Float64).fill_null(math.nan).to_numpy()
        factor = np.full(len(states), math.nan)
        for index in range(len(self.ranks)):
            rows = np.flatnonzero((self.rank_index == index) & ~np.isnan(states))
            rows = rows[np.argsort(states[rows], kind="stable")]
            host_ns = np.cumsum(self._host_ns[rows])
            if len(rows) and host_ns[-1]:
                usual = rows[np.searchsorted(host_ns, quantile * host_ns[-1])]
                factor[rows] = (states[usual] / states[rows]) ** WORK_STATE_EXPONENT
        return factor

    def free_host_factor(self, free: float = 1.0) -> Floats:
        """Return the time of the host before each launch without the profiler, over the recorded one.

        *free* is the part of the recording's cost that is given back, 1 for what is likely. The
        result must not be written to.
        """
        return self._likely_free_factor if free == 1.0 else self._free_factor(free)

    @cached_property
    def _likely_free_factor(self) -> Floats:
        return self._free_factor(1.0)

    @cached_property
    def _likely_free_shares(self) -> Floats:
        return self._free_shares(self._likely_free_factor)

    def _free_factor(self, free: float) -> Floats:
        host_ns = self._host_ns
        recording_ns = free * self.events["recording_ns"].fill_null(0).to_numpy()
        share = np.divide(recording_ns, host_ns, out=np.zeros(len(host_ns)), where=host_ns > 0)
        factor: Floats = np.maximum(1 - share, MIN_FREE_HOST_SHARE)
        # What the host did before the first launch is not known: it is as on the whole.
        is_first = (self.before[2] < 0) & (self.launch != NO_LIMIT)
        factor[is_first] = self._free_shares(factor)[self.rank_index[is_first]]
        return factor

    def _free_shares(self, factor: Floats) -> Floats:
        """Return for each rank the time of its host with the factors of launches, over the recorded one."""
        count = len(self.ranks)
        recorded_ns = np.bincount(self.rank_index, self._host_ns, count)
        free_ns = np.bincount(self.rank_index, self._host_ns * factor, count)
        shares: Floats = np.ones(count)
        np.divide(free_ns, recorded_ns, out=shares, where=recorded_ns > 0)
        return shares

    def has_label(self, *labels: str) -> Bools:
        """Return which events have one of *labels*."""
        is_one_of_them = np.isin(LABELS, labels)
        return is_one_of_them[self.label]

    @cached_property
    def _rank_steps(self) -> tuple[pl.DataFrame, Ints, Ints]:
        """Each step of each rank with the host's time around it, the events in that order, and the first of each."""
        keys = self.rank_index.astype(np.int64) * len(self.steps) + self.step_index
        by_step = np.argsort(keys, kind="stable")
        present, first = np.unique(keys[by_step], return_index=True)
        rank_index, step_index = np.divmod(present, max(len(self.steps), 1))
        steps = pl.DataFrame(
            {
                "rank_index": rank_index.astype(np.int32),
                "step_index": step_index.astype(np.int32),
                "rank": pl.Series(self.ranks, dtype=pl.Int32).gather(rank_index),
                "step": pl.Series(self.steps, dtype=pl.Int64).gather(step_index),
            }
        )
        with_host = steps.join(
            self.host, on=["rank", "step"], how="left", nulls_equal=True, maintain_order="left"
        )
        return with_host, by_step, first

    @cached_property
    def _hosts(self) -> _HostsOfSteps:
        """The host's time around each step of each rank, as measured."""
        steps, by_step, first = self._rank_steps
        first_launch = np.minimum.reduceat(self.launch[by_step], first)
        first_start = np.minimum.reduceat(self.start[by_step], first)
        first_launch = np.where(first_launch == NO_LIMIT, first_start, first_launch)
        rank_index = steps["rank_index"].to_numpy()
        rows = StepRows.of(rank_index, to_int64(steps["step"], NO_STEP))
        host_start = first_start - to_int64(steps["lead_ns"], 0)
        is_first = np.zeros(len(rank_index), np.bool_)
        is_first[rows.first] = True
        return _HostsOfSteps(
            rows=rows,
            start_ns=host_start,
            before_launch_ns=first_launch - host_start,
            tail_ns=to_int64(steps["tail_ns"], 0),
            has_lead=steps["lead_ns"].is_not_null().to_numpy(),
            has_tail=steps["tail_ns"].is_not_null().to_numpy(),
            is_first=is_first,
        )

    def step_bounds(
        self, start: Ints, end: Ints, launch: Ints, *, free: float = 0.0
    ) -> pl.DataFrame:
        """Return when each rank was in each step, with step times (``align.steps.add_step_intervals``).

        *start*, *end* and *launch* are times of all events, as measured or replayed. The host's work
        before the first launch of a step and behind its GPU work keeps its length, or the share that
        is left of it on a *free* host (``replay``); each rank's host begins its first step when it did.
        Columns ``rank_index`` and ``step_index`` are added.
        """
        steps, by_step, first = self._rank_steps
        hosts = self._hosts
        first_start = np.minimum.reduceat(start[by_step], first)
        last_end = np.maximum.reduceat(end[by_step], first)
        first_launch = np.minimum.reduceat(launch[by_step], first)
        first_launch = np.where(first_launch == NO_LIMIT, first_start, first_launch)
        before_launch_ns, tail_ns = hosts.before_launch_ns, hosts.tail_ns
        if free:
            shares_of_ranks = (
                self._likely_free_shares
                if free == 1.0
                else self._free_shares(self.free_host_factor(free))
            )
            shares = shares_of_ranks[steps["rank_index"].to_numpy()]
            before_launch_ns = (before_launch_ns * shares).astype(np.int64)
            tail_ns = (tail_ns * shares).astype(np.int64)
        mark = np.where(hosts.is_first, hosts.start_ns, first_launch - before_launch_ns)
        mark = np.where(hosts.has_lead, mark, UNKNOWN_TIME)
        host_end = np.where(hosts.has_tail, last_end + tail_ns, UNKNOWN_TIME)
        begin, interval_end = step_intervals(hosts.rows, first_start, last_end, mark, host_end)
        of_gpu = [pl.Series("start_ns", first_start), pl.Series("end_ns", last_end)]
        intervals = interval_columns(begin, interval_end).get_columns()
        identity = [steps[name] for name in ("rank_index", "step_index", "rank", "step")]
        return pl.DataFrame([*identity, *of_gpu, *intervals])

    def budget(self, start: Ints, end: Ints, bounds: pl.DataFrame, time_ns: int) -> Budget:
        """Return the parts of an ordinary step of *time_ns* in which events run from *start* to *end*.

        *bounds* are those of the steps (``step_bounds``), of which those that stand out are left out.
        """
        of_steps = bounds.drop_nulls("time_ns").group_by("step_index", maintain_order=True)
        times = [
            StepTime(step_index, round(ns))
            for step_index, ns in of_steps.agg(pl.col("time_ns").median()).iter_rows()
        ]
        unusual = [each.step for each in find_unusual(times)]
        bounds = bounds.filter(~pl.col("step_index").is_in(unusual))
        events = pl.DataFrame(
            {
                "label": self.events["label"],
                "start_ns": start,
                "end_ns": np.maximum(end - self.gaps_within_ns, start),
                "rank_index": self.rank_index,
            }
        )
        lanes = Lanes.of(events, parts=len(self.ranks), part="rank_index")
        timed = bounds.drop_nulls("time_ns")
        budgets = step_budgets(timed, lanes, part=timed["rank_index"].to_numpy())
        return mean_budget(budgets, time_ns)

    @cached_property
    def measured_bounds(self) -> pl.DataFrame:
        """When each rank was in each step, as measured."""
        return self.step_bounds(self.start, self.end, self.launch)

    @cached_property
    def measured_step_ns(self) -> int:
        """Step time as measured."""
        return self.step_ns(self.measured_bounds)

    @staticmethod
    def step_ns(bounds: pl.DataFrame) -> int:
        """Return the step time of ``step_bounds``: the median over ranks, and of that the median over steps."""
        of_steps: dict[int, list[int]] = {}
        for step_index, time_ns in zip(
            bounds["step_index"].to_list(), bounds["time_ns"].to_list(), strict=True
        ):
            if time_ns is not None:
                of_steps.setdefault(step_index, []).append(time_ns)
        # Whole nanoseconds of each step, as the step time has them: two roundings give another
        # figure than one.
        step_ns = [round(median(times_ns)) for times_ns in of_steps.values()]
        return round(median(step_ns)) if step_ns else 0

    @cached_property
    def rank_step(self) -> Int32s:
        """Of each event: number of its step on its rank, counted over the steps of all ranks."""
        return self.rank_index * len(self.steps) + self.step_index

    @cached_property
    def busy(self) -> Intervals:
        """When the GPU of each rank (``rank_index``) runs any event."""
        return union(self.start, self.end, self.rank_index)

    @cached_property
    def compute_intervals(self) -> Intervals:
        """When each step of each rank (``rank_step``) computes."""
        computes = self.has_label(*COMPUTE_SET)
        start = self.end[computes] - self.work_ns[computes]
        return union(start, self.end[computes], self.rank_step[computes])

    @cached_property
    def compute_alone_ns(self) -> Ints:
        """Time that each step of each rank (``rank_step``) computes beside no communication and no copy.

        Compute beside an operation that waits counts as hiding it, as in the budget.
        """
        others = self.has_label(*COMMUNICATION_LABELS, *COPY_LABELS)
        beside_others = union(self.start[others], self.end[others], self.rank_step[others])
        count = len(self.ranks) * len(self.steps)
        return (self.compute_intervals - beside_others).totals_ns(count)

    @cached_property
    def waiting_operators(self) -> frozenset[str]:
        """Operators, or calls, that make the host wait for the GPU before it launches anything else."""
        return frozenset(self.host_work.filter(pl.col("code") == "host_sync")["op"].to_list())

    def without_host_work(self, removed: pl.Expr, *, launching: bool) -> HostChange:
        """Return what is left before each launch if the host does some of its work no longer.

        Args:
            removed: Which rows of ``HOST_WORK`` take no time, in which the host does not wait for the GPU
                either.
            launching: Whether the time in none of ``HOST_WORK`` is taken out as well.
        """
        count = len(self.start)
        blocked_ns = self.events["blocked_ns"].to_numpy()
        is_launched = self.launch != NO_LIMIT
        is_first = is_launched & (self.before[BEFORE.index("launch_before")] < 0)
        host_ns = np.where(is_first, np.maximum(self.launch - self.rank_begin, 0), self._host_ns)
        after_ns = np.maximum(self.events["after_release_ns"].to_numpy(), 0)

        def sums(rows: pl.DataFrame, column: str) -> Floats:
            """Return the sum of a column for each event."""
            weights = rows[column].cast(pl.Float64).to_numpy()
            return np.bincount(rows["event"].to_numpy(), weights, count).astype(np.float64)

        gone = self.host_work.filter(removed)
        removed_ns = sums(gone, "ns")
        removed_after_ns = sums(gone, "after_ns")
        if launching:
            removed_ns += np.maximum(host_ns - sums(self.host_work, "ns"), 0)
            removed_after_ns += np.maximum(after_ns - sums(self.host_work, "after_ns"), 0)
        # A wait that is left holds the host as long as all of them did.
        removed_waits = sums(gone, "waits")
        is_released = (removed_waits > 0) & (removed_waits >= sums(self.host_work, "waits"))
        has_batch = np.zeros(count, np.bool_)
        has_batch[gone.filter(pl.col("code") == "data_loading")["event"].to_numpy()] = True
        # A launch behind work that the host waited for follows that, else the launch before.
        # More than all the time since then lies before it.
        is_held = ~is_released & (blocked_ns > 0) & (removed_ns <= after_ns)
        share = np.where(is_held, removed_after_ns, removed_ns) / np.maximum(
            np.where(is_held, after_ns, host_ns), 1
        )
        removed_share = np.where(is_launched, np.clip(share, 0.0, 1.0), 0.0)
        return HostChange(is_released, has_batch, removed_share)

    def replay(
        self,
        factor: Floats | None = None,
        host_factor: Floats | None = None,
        *,
        waits_for_launch: Bools | None = None,
        free: float = 0.0,
        gone: Bools | None = None,
        unwaited: Bools | None = None,
        unloaded: Bools | None = None,
    ) -> EventReplay:
        """Run the events again.

        Args:
            factor: New over measured duration of each event, of matched communication of its
                transfer; 1 if None.
            host_factor: New over measured time of the host before each launch; 1 if None.
            waits_for_launch: Events whose start waits for their launch; all if None.
            free: Part of the recording's cost that the host is spared: 0 runs on the host as
                recorded, 1 on the host without the profiler.
            gone: Events that disappear: nothing lies between them and what is before them.
            unwaited: Events before whose launch the host no longer waits for the GPU.
            unloaded: Events before whose launch it no longer waits for a batch.
        """
        count = len(self.start)
        inputs = self.replay_input
        by_time = inputs.by_time
        delays = inputs.delays
        before = inputs.before
        if gone is not None and gone.any():
            delays = delays.copy()
            delays[:3, gone[by_time]] = 0  # after the launch and after the work before
        if unwaited is not None and unwaited.any():
            delays = delays.copy()
            before = before.copy()
            # Room in the queue is needed all the same, and no time after it was seen.
            not_held = unwaited[by_time] & (before[BEFORE.index("released_by")] >= 0)
            before[BEFORE.index("released_by"), not_held] = -1
            delays[4, not_held] = 0
        if unloaded is not None and unloaded.any():
            before = before.copy()
            before[BEFORE.index("loader_before"), unloaded[by_time]] = -1
        matches = int(self.matches.max(initial=-1)) + 1
        factors = np.ones((3, count))
        if factor is not None:
            factors[0] = factor[by_time]
            # The time between joined events stays.
            factors[0] += (1 - factors[0]) * inputs.gap_share
        if host_factor is not None:
            factors[1] = host_factor[by_time]
        if waits_for_launch is not None:
            factors[2] = waits_for_launch[by_time]
        if free:
            factors[1] *= self.free_host_factor(free)[by_time]
        replayed = np.zeros((5, count), np.int64)
        arrivals = np.full((2, matches), -NO_LIMIT)
        replay_events(
            inputs.order,
            inputs.times,
            delays,
            before,
            factors,
            inputs.first_match,
            inputs.matches,
            inputs.decisive,
            replayed,
            arrivals,
        )
        start, end, launch = np.empty((3, count), np.int64)
        start[by_time] = replayed[0]
        end[by_time] = replayed[1]
        launch[by_time] = replayed[2]
        return EventReplay(start, end, launch, replayed, arrivals)

    @cached_property
    def events_of_steps(self) -> list[Ints]:
        """Events of each step, ascending."""
        by_step = np.argsort(self.step_index, kind="stable")
        counts = np.bincount(self.step_index, minlength=len(self.steps))
        return np.split(by_step, np.cumsum(counts)[:-1])


def _load_events(parts: Sequence[GraphTables]) -> MergedEvents | None:
    """Return the events of some ranks with ``rank`` and ``step``, and what their hosts did before launches.

    None if none of them has events.
    """
    frames: list[pl.DataFrame] = []
    work = [HOST_WORK.to_frame()]
    ranks: list[int] = []
    steps: list[pl.Series] = []
    first = 0
    for part in parts:
        events = None if part.graph_events is None else part.graph_events.load()
        if events is None or events.is_empty():
            continue
        frames.append(events)
        ranks.append(part.source.rank)
        steps.append(part.steps["step"])
        if part.graph_host_work is not None:
            # A store's tables are checked one by one, not whether they fit together.
            of_events = part.graph_host_work.load().filter(pl.col("event") < events.height)
            work.append(of_events.with_columns(pl.col("event") + first))
        first += events.height
    if not frames:
        return None
    # Rows of a rank's own table become rows of the table of all, and its parts steps.
    heights = [frame.height for frame in frames]
    first_rows = np.repeat(np.cumsum(heights) - heights, heights)
    step_counts = np.array([len(series) for series in steps])
    first_steps = np.repeat(np.cumsum(step_counts) - step_counts, heights)
    joined = pl.concat(frames)
    part_of_rank = np.minimum(joined["part"].to_numpy(), np.repeat(step_counts - 1, heights))
    events = joined.with_columns(
        _rows_behind(pl.Series(first_rows.astype(np.int32))),
        pl.Series("rank", np.repeat(ranks, heights), pl.Int32),
        pl.concat(steps).gather(first_steps + part_of_rank).alias("step"),
    )
    return MergedEvents(events, pl.concat(work))


def _rows_behind(first_row: pl.Expr | pl.Series) -> pl.Expr:
    """Return ``BEFORE`` of events that stand behind *first_row* others."""
    before = pl.col(BEFORE)
    return pl.when(before >= 0).then(before + first_row).otherwise(-1)


def _host_around(rank: GraphTables) -> pl.DataFrame:
    """Return the host's time before and behind the GPU work of each step of a rank."""
    tail_ns = (pl.col("host_end_ns") - pl.col("end_ns")).clip(lower_bound=0)
    return rank.steps.select(
        "step",
        rank=pl.lit(rank.source.rank, pl.Int32),
        lead_ns=pl.col("start_ns") - pl.col("host_start_ns"),
        tail_ns=tail_ns,
    )


def _match_events(
    events: pl.DataFrame, operations: pl.DataFrame, members: pl.DataFrame, clocks: Clocks
) -> tuple[Int32s, Int32s, Int32s, Ints]:
    """Return ``first_match``, ``matches``, ``decisive`` and ``transfer_ns`` of an ``EventGraph``."""
    numbers = events.select("rank", "id", event=pl.int_range(pl.len(), dtype=pl.Int64)).drop_nulls(
        "id"
    )
    by_row = operations.select("rank", "id", row=pl.int_range(pl.len(), dtype=pl.Int64))
    joined = (
        members.select("match", "row", "start_ns")
        .join(by_row, on="row")
        .join(numbers, on=["rank", "id"])
    )
    joined = joined.sort("match")
    match = joined["match"].to_numpy()
    event = joined["event"].to_numpy()
    start = clocks.to_common_each(joined["rank"].to_numpy(), joined["start_ns"].to_numpy())
    arrival = start[last_of_match(match, start)]
    # Of an event's matches the one that was complete last is written last.
    by_arrival = np.argsort(arrival, kind="stable")
    decisive = np.full(events.height, -1, np.int32)
    complete = np.zeros(events.height, np.int64)
    decisive[event[by_arrival]] = match[by_arrival]
    complete[event[by_arrival]] = arrival[by_arrival]
    transfer = as_int64(np.where(decisive >= 0, events["end_ns"].to_numpy() - complete, 0))
    decisive[transfer <= 0] = -1  # it ended before the others came: it did not wait for them
    by_event = np.argsort(event, kind="stable")
    first_match = np.searchsorted(event[by_event], np.arange(events.height + 1)).astype(np.int32)
    return first_match, match[by_event].astype(np.int32), decisive, transfer
