"""Graph of a run's GPU events: what each one waited for, so that the run can be replayed with other durations.

An event starts after the event before it on its stream, after work of another stream that its stream was told to wait
for, and after its launch. A launch comes after the one before it on the same host, and after GPU work that the host
waited for. A matched communication transfers from the arrival of its last member on. Time between the last of these
and the start of an event, which nothing explains, is kept; so the unchanged graph replays to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._loops.critical_path import NO_LIMIT, replay_events, walk_replayed_step
from tracekit._util.arrays import Bools, Int32s, Ints, as_int64
from tracekit._util.columns import to_int64
from tracekit.align.clocks import Clocks
from tracekit.align.matching import last_of_match
from tracekit.critical_path.pieces import find_release
from tracekit.metrics.causes import Rank
from tracekit.metrics.label_intervals import COMPUTE_SET
from tracekit.metrics.start_constraints import (
    MAX_BACK_TO_BACK_NS,
    OTHER_STREAM,
    last_of_other_stream,
    previous_on_stream,
)
from tracekit.schema import COMMUNICATION_LABELS, LABELS

Floats = npt.NDArray[np.float64]

RANK_EVENTS = pl.Schema(
    {
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "launch_ns": pl.Int64(),  # null if not recorded
        "part": pl.Int64(),
        "label": pl.Enum(LABELS),
        "name": pl.Categorical(),
        "module": pl.Categorical(),
        "op": pl.Categorical(),
        "stream_before": pl.Int32(),  # row of the event before it on its stream; -1: none
        "other_before": pl.Int32(),  # row of the work of another stream that it may have waited for; -1: none
        "other_held": pl.Boolean(),  # whether that work is what held it back
        "launch_before": pl.Int32(),  # row of the event launched before it; -1: none
        "released_by": pl.Int32(),  # row of the event whose end let the host go on to its launch; -1: none
        "blocked_ns": pl.Int64(),  # time since the launch before in which the host waited for that event
        "id": pl.Int64(),  # of a communication
    }
)
"""GPU events of one rank with what each waited for."""


class GraphTables(msgspec.Struct, frozen=True, eq=False):
    """One rank's part of the graph."""

    rank: int
    events: pl.DataFrame
    """``RANK_EVENTS``."""
    steps: tuple[int | None, ...]
    """Step of each part."""


def find_rank_events(rank: Rank, calls: pl.DataFrame) -> pl.DataFrame:
    """Return ``RANK_EVENTS`` of one rank; *calls* are the host's waiting calls (``WAITING_CALLS``)."""
    start, end, launched = rank.start_ns, rank.end_ns, rank.launched
    constraints = rank.constraints
    stream_before = previous_on_stream(constraints.stream, start, end)
    other = last_of_other_stream(constraints.stream, start, end)
    # What was launched later cannot have been waited for.
    other[(other >= 0) & launched & launched[other] & (rank.launch_ns[other] > rank.launch_ns)] = -1
    may_wait = constraints.may_wait
    if not rank.waits_recorded:  # compute right behind its neighbour was held back by nothing else
        may_wait = (stream_before < 0) | (start - end[stream_before] > MAX_BACK_TO_BACK_NS)
    other[rank.labels(*COMPUTE_SET) & ~may_wait] = -1
    is_held = (constraints.kind == OTHER_STREAM) & (constraints.blocker >= 0)
    other = np.where(is_held, constraints.blocker, other)

    # The host's launches in order, and the calls between them in which it waited for the GPU.
    release = find_release(rank, calls)
    order = np.flatnonzero(launched)
    order = order[np.argsort(rank.launch_ns[order], kind="stable")]
    launch_before, released_by = np.full((2, len(start)), -1, np.int64)
    launch_before[order[1:]] = order[:-1]
    is_new = release.event[order] >= 0
    is_new[1:] &= release.event[order[1:]] != release.event[order[:-1]]
    released = order[is_new]
    released_by[released] = release.event[released]
    blocked_ns = np.zeros(len(start), np.int64)
    has_before = released[launch_before[released] >= 0]
    blocked_ns[has_before] = rank.blocked.covered_ns(
        rank.launch_ns[launch_before[has_before]], rank.launch_ns[has_before]
    )
    columns = rank.labelled.columns
    is_communication = rank.labels(*COMMUNICATION_LABELS)
    ids = to_int64(rank.labelled["id"]) if "id" in columns else np.arange(len(start))
    return pl.DataFrame(
        {
            "start_ns": start,
            "end_ns": end,
            "launch_ns": rank.labelled["launch_ns"],
            "part": rank.part,
            "label": pl.Series(LABELS, dtype=RANK_EVENTS["label"])[rank.label],
            **{
                name: rank.labelled[name].cast(pl.Categorical)
                if name in columns
                else pl.repeat(None, len(start), dtype=pl.Categorical, eager=True)
                for name in ("name", "module", "op")
            },
            "stream_before": stream_before,
            "other_before": other,
            "other_held": is_held,
            "launch_before": launch_before,
            "released_by": released_by,
            "blocked_ns": blocked_ns,
            "id": pl.Series(ids).set(~pl.Series(is_communication), None),
        },
        schema_overrides=RANK_EVENTS,
    )


class Replay(msgspec.Struct, frozen=True, eq=False):
    """Times of a replayed run, and what held each event back (``_loops.critical_path.replay_events``)."""

    start: Ints
    end: Ints
    launch: Ints
    arrival: Ints
    last_member: Int32s
    start_held_by: Ints
    launch_held_by: Int32s


class EventGraph(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Events of all ranks, rank by rank, on the common clock. Numbers of events count over all ranks."""

    events: pl.DataFrame
    """``RANK_EVENTS`` and ``rank``; rows of events are numbers of events."""
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
    unmatched_ns: Mapping[str, int]
    """By label: time of communication without a known peer."""

    @classmethod
    def build(
        cls, parts: Sequence[GraphTables], operations: pl.DataFrame, members: pl.DataFrame, clocks: Clocks
    ) -> EventGraph:
        """Join the events of all ranks.

        Args:
            parts: Tables of the ranks, in order of rank.
            operations: Operations of all ranks, in order of rank.
            members: Matched operations (``align.matching.MEMBERS``), whose ``row`` is a row of *operations*.
            clocks: Clock offsets of the ranks.
        """
        steps = tuple(sorted({step for part in parts for step in part.steps}, key=lambda s: (s is None, s or 0)))
        number_of_step = {step: index for index, step in enumerate(steps)}
        frames, step_index, first = [], [], 0
        rows_before = ("stream_before", "other_before", "launch_before", "released_by")
        for part in parts:
            shifted = (pl.when(pl.col(name) >= 0).then(pl.col(name) + first).otherwise(-1) for name in rows_before)
            on_one_clock = clocks.moved(part.rank, "start_ns", "end_ns", "launch_ns")
            frames.append(part.events.with_columns(*on_one_clock, *shifted, pl.lit(part.rank, pl.Int32).alias("rank")))
            step_of_part = np.array([number_of_step[step] for step in part.steps] or [0], np.int32)
            step_index.append(step_of_part[np.minimum(part.events["part"].to_numpy(), len(step_of_part) - 1)])
            first += part.events.height
        events = pl.concat(frames, rechunk=True)
        matched = _match_events(events, operations, members, clocks)
        sizes = [part.events.height for part in parts]
        is_unmatched = pl.Series(np.diff(matched.first_match) == 0) & events["id"].is_not_null()
        unmatched = events.filter(is_unmatched).group_by("label").agg((pl.col("end_ns") - pl.col("start_ns")).sum())
        return cls(
            events=events,
            ranks=tuple(part.rank for part in parts),
            rank_index=np.repeat(np.arange(len(parts), dtype=np.int32), sizes),
            steps=steps,
            step_index=np.concatenate(step_index),
            first_match=matched.first_match,
            matches=matched.matches,
            decisive=matched.decisive,
            transfer_ns=matched.transfer_ns,
            unmatched_ns=dict(unmatched.cast({"label": pl.String}).iter_rows()),
        )

    def column(self, name: str) -> Ints:
        """Return a column of integers; ``NO_LIMIT`` for null."""
        return to_int64(self.events[name], NO_LIMIT)

    @cached_property
    def start(self) -> Ints:
        """Measured start of each event."""
        return self.column("start_ns")

    @cached_property
    def end(self) -> Ints:
        """Measured end of each event."""
        return self.column("end_ns")

    @cached_property
    def launch(self) -> Ints:
        """Launch of each event; ``NO_LIMIT`` if not recorded."""
        return self.column("launch_ns")

    @cached_property
    def label(self) -> Ints:
        """Index of each event's label in ``LABELS``."""
        return self.events["label"].to_physical().to_numpy().astype(np.int64)

    @cached_property
    def gpu_ready(self) -> Ints:
        """When all GPU work that each event waited for had ended; the begin of the window if there is none."""
        ready = np.full(len(self.start), self.start.min(initial=NO_LIMIT))
        for name in ("stream_before", "other_before"):
            before = self.events[name].to_numpy()
            ready = np.maximum(ready, np.where(before >= 0, np.minimum(self.end[before], self.start), -NO_LIMIT))
        return ready

    @cached_property
    def delay(self) -> Ints:
        """Time from the last of what each event waited for to its start; 0 if it waited for nothing."""
        before = [self.events[name].to_numpy() >= 0 for name in ("stream_before", "other_before")]
        last = np.where(before[0] | before[1], self.gpu_ready, -NO_LIMIT)
        last = np.maximum(last, np.where(self.launch == NO_LIMIT, -NO_LIMIT, np.minimum(self.launch, self.start)))
        return as_int64(np.where(last == -NO_LIMIT, 0, self.start - last))

    @cached_property
    def launched_late_ns(self) -> Ints:
        """Time for which each event could have run but was not launched."""
        launched = np.where(self.launch == NO_LIMIT, self.gpu_ready, np.minimum(self.launch, self.start))
        return as_int64(np.maximum(launched - self.gpu_ready, 0))

    @cached_property
    def order(self) -> npt.NDArray[np.uint32]:
        """Events by start and launches (number of events + event) by time, merged; a launch before a start."""
        count = len(self.start)
        launched = np.flatnonzero(self.launch != NO_LIMIT)
        nodes = np.concatenate([launched + count, np.arange(count)]).astype(np.uint32)
        times = np.concatenate([self.launch[launched], self.start])
        return np.ascontiguousarray(nodes[np.argsort(times, kind="stable")])

    def step_times(self, start: Ints, end: Ints) -> tuple[Ints, Ints]:
        """Return begin and end of each step over all ranks."""
        begins, ends = np.full(len(self.steps), NO_LIMIT), np.full(len(self.steps), -NO_LIMIT)
        np.minimum.at(begins, self.step_index, start)
        np.maximum.at(ends, self.step_index, end)
        return begins, ends

    def step_ns(self, start: Ints, end: Ints) -> int:
        """Return the mean time per step over all ranks; idle time between steps that follow each other counts."""
        begins, ends = self.step_times(start, end)
        numbers = [-2 if step is None else step for step in self.steps]
        is_followed = np.append(np.diff(numbers) == 1, False)
        return round(float(np.mean(np.where(is_followed, np.append(begins[1:], 0), ends) - begins)))

    def replay(
        self,
        *,
        factor: Floats,
        host_factor: Floats,
        stream_before: Int32s | None = None,
        other_before: Int32s | None = None,
        released_by: Int32s | None = None,
    ) -> Replay:
        """Run the events again.

        Args:
            factor: New over measured duration of each event; of matched communication, of its transfer.
            host_factor: New over measured time of the host before each launch; negative: no wait for the launch.
            stream_before, other_before, released_by: What each event waits for; as recorded if None.
        """
        count, matches = len(self.start), int(self.matches.max(initial=-1)) + 1
        edges = {"stream_before": stream_before, "other_before": other_before, "released_by": released_by}
        new_start, new_end, new_launch, start_held_by = np.zeros((4, count), np.int64)
        result = Replay(
            start=new_start,
            end=new_end,
            launch=new_launch,
            arrival=np.full(matches, -NO_LIMIT, np.int64),
            last_member=np.full(matches, -1, np.int32),
            start_held_by=start_held_by,
            launch_held_by=np.full(count, -1, np.int32),
        )
        replay_events(
            order=self.order,
            start=self.start,
            end=self.end,
            launch=self.launch,
            delay=self.delay,
            launch_before=self.events["launch_before"].to_numpy(),
            blocked=self.column("blocked_ns"),
            factor=factor,
            host_factor=host_factor,
            begin=int(self.start.min(initial=NO_LIMIT)),
            first_match=self.first_match,
            matches=self.matches,
            decisive=self.decisive,
            transfer=self.transfer_ns,
            new_start=new_start,
            new_end=new_end,
            new_launch=new_launch,
            arrival=result.arrival,
            last_member=result.last_member,
            start_held_by=start_held_by,
            launch_held_by=result.launch_held_by,
            **{name: self.events[name].to_numpy() if rows is None else rows for name, rows in edges.items()},
        )
        return result

    def path_parts(self, replay: Replay) -> pl.DataFrame:
        """Return the time of the replayed steps' critical paths by rank and label, and of hosts, per step, longest first.

        Columns rank, label (null: the host) and ns.
        """
        begins, ends = self.step_times(replay.start, replay.end)
        work = (self.rank_index.astype(np.int64) * len(LABELS) + self.label).astype(np.int32)
        work_ns, host_ns = np.zeros((2, len(self.ranks) * len(LABELS)), np.int64)
        for step, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
            last = np.flatnonzero((self.step_index == step) & (replay.end == end))[0]
            walk_replayed_step(
                event=int(last),
                begin=begin,
                new_start=replay.start,
                new_end=replay.end,
                new_launch=replay.launch,
                launch_before=self.events["launch_before"].to_numpy(),
                arrival=replay.arrival,
                last_member=replay.last_member,
                decisive=self.decisive,
                start_held_by=replay.start_held_by,
                launch_held_by=replay.launch_held_by,
                work=work,
                work_ns=work_ns,
                host_ns=host_ns,
            )
        rank = np.repeat(self.ranks, len(LABELS)).astype(np.int32)
        labels = pl.Series(LABELS * len(self.ranks), dtype=pl.String)
        hosts = pl.DataFrame({"rank": rank, "label": pl.Series([None] * len(labels), dtype=pl.String), "ns": host_ns})
        parts = pl.concat([pl.DataFrame({"rank": rank, "label": labels, "ns": work_ns}), hosts])
        total = parts.group_by("rank", "label").agg(pl.col("ns").sum() // max(1, len(self.steps)))
        return total.filter(pl.col("ns") > 0).sort("ns", "rank", "label", descending=[True, False, False])


class _MatchedEvents(msgspec.Struct, frozen=True, eq=False):
    """Matches of the graph's events; see ``EventGraph``."""

    first_match: Int32s
    matches: Int32s
    decisive: Int32s
    transfer_ns: Ints


def _match_events(
    events: pl.DataFrame, operations: pl.DataFrame, members: pl.DataFrame, clocks: Clocks
) -> _MatchedEvents:
    """Find the matched operations that each event is a member of."""
    numbers = events.select("rank", "id", event=pl.int_range(pl.len(), dtype=pl.Int64)).drop_nulls("id")
    by_row = operations.select("rank", "id").with_row_index("row").cast({"row": pl.Int64})
    joined = members.select("match", "row", "start_ns").join(by_row, on="row").join(numbers, on=["rank", "id"])
    match, event = joined["match"].to_numpy(), joined["event"].to_numpy()
    start = clocks.to_common_each(joined["rank"].to_numpy(), joined["start_ns"].to_numpy())
    by_match = np.lexsort((start, match))
    match, event, start = match[by_match], event[by_match], start[by_match]
    # Rows of a match are sorted by arrival: its last row has arrived last.
    arrival = start[last_of_match(match, start)]
    end, count = events["end_ns"].to_numpy(), events.height
    decisive, transfer = np.full(count, -1, np.int32), np.zeros(count, np.int64)
    # Of an event's matches the one that was complete last comes last, and is written last.
    by_arrival = np.argsort(arrival, kind="stable")
    decisive[event[by_arrival]] = match[by_arrival]
    complete = np.zeros(count, np.int64)
    complete[event[by_arrival]] = arrival[by_arrival]
    transfer = np.where(decisive >= 0, end - complete, 0)
    decisive[transfer <= 0] = -1  # it ended before the others came: it did not wait for them
    by_event = np.argsort(event, kind="stable")
    first_match = np.searchsorted(event[by_event], np.arange(count + 1)).astype(np.int32)
    return _MatchedEvents(first_match, match[by_event].astype(np.int32), decisive, as_int64(transfer))


def unchanged(graph: EventGraph) -> tuple[Floats, Floats]:
    """Return the factors of events and hosts that change nothing."""
    return np.ones(len(graph.start)), np.ones(len(graph.start))


def has_label(graph: EventGraph, *labels: str) -> Bools:
    """Return which events have one of *labels*."""
    return np.isin(graph.label, [LABELS.index(label) for label in labels])
