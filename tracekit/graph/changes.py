"""Predictions of changes to a run ("what if"): the step time that a replay of its events with them gives.

Several changes are made together: each one starts from what those before it left, and hiding comes
last, behind the compute that is left then.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Floats, Ints
from tracekit.documents.analysis import ChangedStep, PathPart
from tracekit.graph.change import (
    Balanced,
    Change,
    FasterLinks,
    Hidden,
    LikeOthers,
    NoHostDelay,
    RefusedError,
    Remedied,
)
from tracekit.graph.constants import (
    FREE_COST_RANGE,
    FREE_HOST_RANGE,
    FREE_HOST_RANGE_WITHOUT_STATE,
    FREE_RANGE_OF_GPU_LIMIT,
    HOST_STATE_QUANTILES,
    HOST_VARIATION,
    LANE_BINS,
    LINK_VARIATION,
    MAX_FREE_RANGE_WIDTH,
    MAX_LISTED_CHANGES,
    MAX_PATH_PARTS,
    MAX_SHARE_ABOVE_GPU_LIMIT,
    MIN_FREE_VARIATION,
    MIN_SAVED_SHARE_TO_PROPOSE,
    MIN_VARIATION,
    ROUNDING_SHARE,
)
from tracekit.graph.event_graph import EventGraph, EventReplay, HostChange
from tracekit.graph.walks import path_parts
from tracekit.intervals import union
from tracekit.metrics.alternatives.stalls import FreeCpu
from tracekit.metrics.label_intervals import COMPUTE_SET
from tracekit.metrics.step_time import FreeStep
from tracekit.schema import COMMUNICATION_LABELS, LABELS

FREE_CPU = Remedied(FreeCpu.change)


class ChangedGraph:
    """A graph with changes under way."""

    def __init__(self, graph: EventGraph, positions: Mapping[int, int]) -> None:
        self.graph = graph
        self.positions = positions
        self.factor, self.host_factor = np.ones((2, len(graph.start)))
        """New over measured duration of each event, and of the host's time before its launch."""
        self.waits_for_launch = np.ones(len(graph.start), np.bool_)
        """Whether the start of each event waits for its launch."""
        self.factor_range = np.ones((2, len(graph.start)))
        """Least and largest factor of each event over ``factor``."""
        self.gone, self.unwaited = np.zeros((2, len(graph.start)), np.bool_)
        """Events that disappear, and those before whose launch the host no longer waits."""
        self.hidden_share = np.zeros(len(graph.start))
        """Share of each event's time that runs beside compute instead."""
        self.hidden: list[str] = []  # labels
        self.removed: set[str] = set()  # activities of the host
        self.removed_waits: set[str] = set()  # operators that ask for synchronisations
        self.microbatches: list[int] = []
        self.schedules: list[str] = []
        self.rests_on: list[str] = []

    @property
    def work_ns(self) -> Floats:
        """Time that each event itself takes with the changes made so far, hiding apart."""
        return self.graph.work_ns * self.factor

    @cached_property
    def _without_host_work(self) -> HostChange:
        """What removing activities does to launches: all changes are made before the first replay."""
        is_asked_for = (pl.col("code") == "host_sync") & pl.col("op").is_in(self.removed_waits)
        return self.graph.without_host_work(
            pl.col("code").is_in(self.removed) | is_asked_for,
            launching="launch_bound" in self.removed,
        )

    def costs_time(self, saves_ns: int) -> bool:
        """Return whether another schedule makes the step longer: it has no saving, then."""
        return bool(self.schedules) and saves_ns < 0

    def hidden_ns(self) -> int:
        """Return the time per step that hidden labels take by themselves on the rank where they take longest."""
        graph = self.graph
        sums = []
        for label in self.hidden:
            label_ns = self.work_ns * graph.has_label(label)
            sums.append(np.bincount(graph.rank_index, weights=label_ns, minlength=1).max())
        return round(max(sums, default=0.0) / len(graph.steps))

    def hide_labels(self) -> None:
        """Hide the transfers of ``hidden`` labels behind compute that nothing runs beside yet.

        Only what is exposed of each transfer gets shorter: what compute hides already saves
        nothing. Compute that hides one label hides no other.
        """
        graph = self.graph
        rank_step = graph.rank_step
        count = len(graph.ranks) * len(graph.steps)
        transfer_start = graph.end - graph.work_ns

        def scale(rows: Bools) -> Floats:
            """Return the time of *rows* with the changes over that without, by rank and step."""
            before_ns = np.bincount(rank_step[rows], graph.work_ns[rows], count)
            changed_ns = np.bincount(rank_step[rows], self.work_ns[rows], count)
            return changed_ns / np.maximum(before_ns, 1)

        compute = graph.compute_intervals
        free_ns = graph.compute_alone_ns * scale(graph.has_label(*COMPUTE_SET))
        for label in self.hidden:
            events = graph.has_label(label)
            ran = union(transfer_start[events], graph.end[events], rank_step[events])
            exposed_ns = (ran - compute).totals_ns(count) * scale(events)
            hideable_share = np.minimum(1.0, free_ns / np.maximum(exposed_ns, 1))
            free_ns = free_ns - hideable_share * exposed_ns
            work_ns = graph.work_ns[events]
            hidden_ns = compute.covered_ns(
                transfer_start[events], graph.end[events], rank_step[events]
            )
            exposed_share = 1 - hidden_ns / np.maximum(work_ns, 1)
            self.hidden_share[events] = exposed_share * hideable_share[rank_step[events]]

    def replay(self, *, free: float = 0.0, factor_range: Floats | float = 1.0) -> EventReplay:
        """Run the events again with all changes.

        Args:
            free: Part of the recording's cost that the host is spared (``EventGraph.replay``).
            factor_range: Further factor on the duration of each event.
        """
        graph = self.graph
        factor = self.factor * (1 - self.hidden_share) * factor_range
        host_factor = self.host_factor
        unwaited = self.unwaited
        unloaded = None
        if self.removed or self.removed_waits:
            is_released, unloaded, removed_share = self._without_host_work
            unwaited = unwaited | is_released
            # The graph applies the free host's factor: what is removed is a share of the recorded time.
            free_factor = graph.free_host_factor(free) if free else np.ones(len(graph.start))
            kept_share = np.maximum(free_factor - removed_share, 0.0) / free_factor
            host_factor = host_factor * kept_share
        return graph.replay(
            factor,
            host_factor,
            waits_for_launch=self.waits_for_launch,
            free=free,
            gone=self.gone,
            unwaited=unwaited,
            unloaded=unloaded,
        )

    def scale_ranks(
        self, ranks: Collection[int], key: Ints, weights: Ints | Floats, *, like_others: bool
    ) -> Floats:
        """Return for each event the factor that gives its rank the same sum of *weights* as the ranks like it have.

        Args:
            ranks: Indices of the ranks to scale; events of others get 1.
            key: What is summed: events with the same number.
            weights: What is summed up.
            like_others: Whether to take the median of the ranks that are not scaled, or the mean
                of all.
        """
        graph = self.graph
        _, key = np.unique(key, return_inverse=True)
        keys = int(key.max(initial=0)) + 1
        count = len(graph.ranks)
        sums = np.bincount(graph.rank_index * keys + key, weights, count * keys).reshape(
            count, keys
        )
        ratio = np.ones((count, keys))
        for index in ranks:
            # Ranks of one position in several pipelines are alike; in a single pipeline all ranks
            # count.
            position = self.positions.get(graph.ranks[index])
            comparable = [
                i for i, rank in enumerate(graph.ranks) if self.positions.get(rank) == position
            ]
            if len(comparable) == 1:
                comparable = list(range(count))
            if like_others:
                others = [i for i in comparable if i not in ranks]
                others = others or [i for i in comparable if i != index]
                usual = np.median(sums[others], axis=0)
            else:
                usual = sums[comparable].mean(axis=0)
            ratio[index] = np.divide(usual, sums[index], out=np.ones(keys), where=sums[index] > 0)
        return ratio[graph.rank_index, key]


Lane = list[tuple[str | None, float, float]]
"""Parts of a rank's step in order: the label that takes most of it (None: idle), start and width as
shares."""


def _extents(bounds: pl.DataFrame) -> pl.DataFrame:
    """Return the first start and the last end of each step over all ranks, for drawing them on one axis."""
    by_step = bounds.group_by("step_index").agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    return by_step.sort("step_index")


class WhatIfGraph(msgspec.Struct, frozen=True, eq=False, dict=True):
    """The graph of a run, with what questions about it need besides."""

    graph: EventGraph
    measured_ns: int
    """Step time of the run as recorded (``metrics.step_time``)."""
    timed_free_ns: int | None = None
    """Step without the profiler as the recorder timed it; None: it did not."""
    events_lost: bool = False
    """Whether the recording lost events."""
    positions: Mapping[int, int] = {}
    """Position of each rank in its pipeline."""
    clock_error_ns: int = 0
    """Largest uncertainty of a clock."""
    microbatches: Callable[[int], tuple[int, int, int] | str] | None = None
    """Change of the step by another number of micro-batches: low, likely and high, or why not;
    None: no pipeline."""
    schedule: Callable[[str], tuple[int, int, int] | str] | None = None
    """The same by another schedule."""
    memory: Callable[[int], tuple[tuple[int, int | None] | None, bool | None]] | None = None
    """Bounds of the memory that another number of micro-batches needs, and whether it fits; None:
    no pipeline."""

    def replayed_ns(self, bounds: pl.DataFrame) -> int:
        """Return the step time with the bounds of replayed steps.

        It is the measured one, less what the replay took off the graph's. Where the steps of the graph are longer than
        those of the run (slow ones are among its few), it is less the same share.
        """
        in_graph_ns = self.graph.measured_step_ns
        saved_ns = in_graph_ns - self.graph.step_ns(bounds)
        if in_graph_ns > self.measured_ns and saved_ns > 0:
            saved_ns = round(saved_ns * self.measured_ns / in_graph_ns)
        return max(self.measured_ns - saved_ns, 0)

    @cached_property
    def free_step(self) -> FreeStep | None:
        """The step without the profiler; None if it was neither timed nor can be modelled."""
        graph = self.graph
        if not graph.recording_known or not self.measured_ns:
            if self.timed_free_ns is None:
                return None
            return FreeStep(self.timed_free_ns, (self.timed_free_ns,) * 2, "timed")
        replay, bounds = self._free_replay
        if self.timed_free_ns is not None:
            budget = graph.budget(replay.start, replay.end, bounds, self.timed_free_ns)
            return FreeStep(self.timed_free_ns, (self.timed_free_ns,) * 2, "timed", budget)
        # No step gets longer without the profiler: the median of steps that differ does, where a replay makes them
        # alike.
        modelled_ns = min(self._modelled_free_ns, self.measured_ns)
        budget = graph.budget(replay.start, replay.end, bounds, modelled_ns)
        return FreeStep(modelled_ns, self._free_range_ns(modelled_ns), "modelled", budget)

    def _free_range_ns(self, modelled_ns: int) -> tuple[int, int]:
        """Return the range of the step without the profiler.

        It is narrow where the GPU is the limit, whose work the profiler does not change. Elsewhere
        it follows from how uncertain the recording's cost and the host's own speed are. Events that
        the recording lost cost as well: the step may then be as long as recorded. Where other
        processes shared the host's cores, it may be as short as without them. Transfers that the step
        waits for differ from one recording to the next, and few steps tell their median with an error.
        """
        graph = self.graph
        unlimited = graph.replay(waits_for_launch=np.zeros(len(graph.start), np.bool_))
        gpu_ns = self.replayed_ns(
            graph.step_bounds(unlimited.start, unlimited.end, unlimited.launch)
        )
        low, high = FREE_RANGE_OF_GPU_LIMIT
        if modelled_ns > (1 + MAX_SHARE_ABOVE_GPU_LIMIT) * gpu_ns:
            shortest_ns, longest_ns = (
                self._with_cost_given_back(part, self._host_at_end(end))
                for end, part in enumerate(FREE_COST_RANGE)
            )
            low = min(shortest_ns / modelled_ns, 1.0) * (1 - MIN_FREE_VARIATION)
            high = max(longest_ns / modelled_ns, 1.0) * (1 + MIN_FREE_VARIATION)
            narrowing = min(MAX_FREE_RANGE_WIDTH / (high - low), 1.0)
            low = 1 - (1 - low) * narrowing
            high = 1 + (high - 1) * narrowing
        varies = self._variation_of_free_step(modelled_ns)
        low = 1 - math.hypot(1 - low, varies)
        high = 1 + math.hypot(high - 1, varies)
        least_ns = round(low * modelled_ns)
        most_ns = round(high * modelled_ns)
        if self.events_lost:
            most_ns = max(most_ns, self.measured_ns)
        if (graph.remedies["change"] == FREE_CPU.remedy).any():
            without_stalls = ChangedGraph(graph, self.positions)
            FREE_CPU.apply(without_stalls)
            replay = without_stalls.replay(free=1.0)
            bounds = graph.step_bounds(replay.start, replay.end, replay.launch, free=1.0)
            least_ns = min(least_ns, round(low * self.replayed_ns(bounds)))
        return least_ns, most_ns

    def _variation_of_free_step(self, modelled_ns: int) -> float:
        """Return by what share of it the step without the profiler differs with its links and the choice of steps."""
        replay, bounds = self._free_replay
        transfers = 0.0
        if len(self.graph.matches):
            parts = path_parts(self.graph, replay, bounds)
            is_transfer = parts["label"].is_in(COMMUNICATION_LABELS).fill_null(False)
            transfers = float(parts["ns"].filter(is_transfer).sum()) / max(modelled_ns, 1)
        step_share, steps = self.deviation_of_steps
        return math.hypot(min(transfers, 1.0) * LINK_VARIATION, step_share / math.sqrt(steps))

    @cached_property
    def deviation_of_steps(self) -> tuple[float, int]:
        """Median deviation of the measured steps from their median, as a share of that, and their number, at least 1.

        One slow step among four is no spread of the others.
        """
        bounds = self.graph.measured_bounds.drop_nulls("time_ns")
        times_ns = bounds.group_by("step").agg(pl.col("time_ns").median())["time_ns"].to_numpy()
        if not len(times_ns):
            return 0.0, 1
        middle_ns = np.median(times_ns)
        deviation_ns = np.median(np.abs(times_ns - middle_ns))
        return float(deviation_ns / max(middle_ns, 1.0)), len(times_ns)

    @cached_property
    def _free_replay(self) -> tuple[EventReplay, pl.DataFrame]:
        """The events without the profiler, and the bounds of their steps."""
        replay = self.graph.replay(free=1.0)
        return replay, self.graph.step_bounds(replay.start, replay.end, replay.launch, free=1.0)

    @cached_property
    def _modelled_free_ns(self) -> int:
        """The step without the profiler by the model."""
        return self.replayed_ns(self._free_replay[1])

    def _host_at_end(self, end: int) -> Floats:
        """Return the time of the host before launches at the low (0) or high (1) end of the range, over the likely one.

        Its threads may all be as fast, or as slow, as they were for a tenth of the recording.
        """
        in_state = self.graph.in_state(HOST_STATE_QUANTILES[end])
        unknown = FREE_HOST_RANGE_WITHOUT_STATE[end]
        return np.where(np.isnan(in_state), unknown, in_state * FREE_HOST_RANGE[end])

    def _with_cost_given_back(self, part: float, host_factor: Floats) -> int:
        """Return the step if *part* of the recording's cost is given back, and the host takes so much longer."""
        replay = self.graph.replay(host_factor=host_factor, free=part)
        return self.replayed_ns(
            self.graph.step_bounds(replay.start, replay.end, replay.launch, free=part)
        )

    def _free_predicted_ns(
        self, changed: ChangedGraph, factor_range: Floats | float = 1.0
    ) -> int | None:
        """Return the step without the profiler with changes; None if it is not known.

        Where the free step was timed, the model tells what the changes save of it; of a modelled step that is longer,
        the same share.
        """
        free = self.free_step
        if free is None or not self.graph.recording_known:
            return None
        replay = changed.replay(free=1.0, factor_range=factor_range)
        bounds = self.graph.step_bounds(replay.start, replay.end, replay.launch, free=1.0)
        modelled_ns = self._modelled_free_ns
        saved_ns = modelled_ns - max(self.replayed_ns(bounds), changed.hidden_ns())
        if modelled_ns > free.time_ns and saved_ns > 0:
            saved_ns = round(saved_ns * free.time_ns / modelled_ns)
        return max(free.time_ns - saved_ns, 0)

    def predict(self, changes: Sequence[Change]) -> ChangedStep:
        """Predict the step with all *changes* at once.

        What they save is of the step without the profiler, where that is known.
        """
        key = tuple(changes)
        if key not in self._predicted:
            self._predicted[key] = self._predict(changes, saving_alone=False)
        return self._predicted[key]

    def predict_saving(self, changes: Sequence[Change]) -> ChangedStep:
        """Predict what all *changes* save at once, without ranges and the new critical path."""
        whole = self._predicted.get(tuple(changes))
        return whole or self._predict(changes, saving_alone=True)

    @cached_property
    def _predicted(self) -> dict[tuple[Change, ...], ChangedStep]:
        """Whole predictions made so far, by their changes."""
        return {}

    def saved_by_step_ns(self, changes: Sequence[Change]) -> list[int]:
        """Return what *changes* save of each step, median over ranks: without the profiler where that is known."""
        graph = self.graph
        free = 1.0 if graph.recording_known else 0.0
        before = self._free_replay[1] if free else graph.measured_bounds
        replay = self.changed_graph(changes).replay(free=free)
        after = graph.step_bounds(replay.start, replay.end, replay.launch, free=free)
        both = before.select("rank_index", "step_index", "time_ns").join(
            after.select("rank_index", "step_index", after_ns="time_ns"),
            on=["rank_index", "step_index"],
        )
        saved = both.drop_nulls().group_by("step_index", maintain_order=True)
        saved_ns = saved.agg(ns=(pl.col("time_ns") - pl.col("after_ns")).median())["ns"]
        return [round(ns) for ns in saved_ns]

    def _predict(self, changes: Sequence[Change], *, saving_alone: bool) -> ChangedStep:
        """Return a prediction; *saving_alone*: without ranges and the new critical path."""
        free_ns = None if self.free_step is None else self.free_step.time_ns
        texts = tuple(map(str, changes))
        step = ChangedStep(", ".join(texts), texts, self.measured_ns, free_ns=free_ns)
        try:
            changed = self.changed_graph(changes)
            if len(changed.microbatches) == 1 and self.memory is not None:
                peak_bytes, fits = self.memory(changed.microbatches[0])
                step = msgspec.structs.replace(step, peak_bytes=peak_bytes, fits=fits)
            added = np.zeros(3)
            for count in changed.microbatches:
                added += self._of_pipeline(self.microbatches, count)
            for name in changed.schedules:
                added += self._of_pipeline(self.schedule, name)
        except RefusedError as refused:
            return msgspec.structs.replace(step, why_not=refused.message)
        if changed.microbatches:
            changed.rests_on.append("micro-batches of this run's size")
        if changed.schedules:
            changed.rests_on.append("the run's own times of forward and backward")
        replay = changed.replay()
        bounds = self.graph.step_bounds(replay.start, replay.end, replay.launch)
        replayed_ns = max(self.replayed_ns(bounds), changed.hidden_ns())
        predicted_ns = round(replayed_ns + added[1])
        single_changes = [part for change in changes for part in change.parts]
        if len(single_changes) > 1 and not changed.microbatches and not changed.schedules:
            worse_than = self._better_alone(single_changes, predicted_ns)
            if worse_than is not None:
                why_not = f"'{worse_than}' alone is faster: these changes work against each other"
                return msgspec.structs.replace(step, why_not=why_not)
        likely_ns = self._free_predicted_ns(changed)
        free_predicted_ns = likely_ns
        saves_ns = step.measured_ns - predicted_ns
        if free_ns is not None and likely_ns is not None:
            saves_ns = round(free_ns - likely_ns - added[1])
            free_predicted_ns = max(round(likely_ns + added[1]), 0)
        step = msgspec.structs.replace(
            step,
            predicted_ns=predicted_ns,
            free_predicted_ns=free_predicted_ns,
            saves_ns=None if changed.microbatches or changed.costs_time(saves_ns) else saves_ns,
            rests_on=tuple(changed.rests_on),
        )
        if saving_alone:
            return step
        parts_of_path = path_parts(self.graph, replay, bounds)
        margin_ns = self.range_margin_ns(replayed_ns, parts_of_path)
        low_ns, high_ns = self._bounds_ns(changed, replayed_ns)
        least_ns = max(round(low_ns - margin_ns + added[0]), 0)
        most_ns = round(high_ns + margin_ns + added[2])
        least_saved_ns, most_saved_ns = self._saved_range_ns(
            changed,
            saves_ns,
            likely_ns,
            (most_ns - predicted_ns, predicted_ns - least_ns),
            margin_ns,
        )
        step_ns = step.measured_ns if free_ns is None else free_ns
        saves_range_ns = (max(least_saved_ns, 0), min(max(most_saved_ns, 0), step_ns))
        return msgspec.structs.replace(
            step,
            predicted_range_ns=(least_ns, most_ns),
            saves_range_ns=None if step.saves_ns is None else saves_range_ns,
            critical_path=tuple(
                PathPart(*row) for row in parts_of_path.head(MAX_PATH_PARTS).rows()
            ),
        )

    def _saved_range_ns(
        self,
        changed: ChangedGraph,
        saves_ns: int,
        likely_ns: int | None,
        widths_ns: tuple[int, int],
        margin_ns: float,
    ) -> tuple[int, int]:
        """Return what changes save at least and at most.

        Where factors have a range and the free step with the changes, *likely_ns*, is known, its
        replays with the largest and the least factors tell; else the widths of the recorded
        step's range do.
        """
        saved = []
        for sign, width_ns, factor_range in zip(
            (-1, 1), widths_ns, changed.factor_range[::-1], strict=True
        ):
            if likely_ns is None or (factor_range == 1).all():
                saved.append(round(saves_ns + sign * width_ns))
                continue
            bound_ns = self._free_predicted_ns(changed, factor_range) or 0
            saved.append(round(saves_ns + likely_ns - bound_ns + sign * margin_ns))
        return saved[0], saved[1]

    def _bounds_ns(self, changed: ChangedGraph, likely_ns: int) -> tuple[int, int]:
        """Return the step with the least and the largest factors; *likely_ns* where no factor has a range."""
        bounds_ns = []
        for factor_range in changed.factor_range:
            if (factor_range == 1).all():
                bounds_ns.append(likely_ns)
                continue
            replay = changed.replay(factor_range=factor_range)
            bounds_ns.append(
                self.replayed_ns(self.graph.step_bounds(replay.start, replay.end, replay.launch))
            )
        return min(likely_ns, bounds_ns[0]), max(likely_ns, bounds_ns[1])

    def changed_graph(self, changes: Sequence[Change]) -> ChangedGraph:
        """Return the graph with *changes*."""
        changed = ChangedGraph(self.graph, self.positions)
        for change in changes:
            change.apply(changed)
        if len(changed.microbatches) > 1:
            raise RefusedError("a run has one number of micro-batches")
        if len(changed.schedules) > 1 or (changed.schedules and changed.microbatches):
            raise RefusedError(
                "another schedule is predicted with nothing else of the pipeline changed"
            )
        if changed.hidden:
            changed.hide_labels()
        return changed

    def _better_alone(self, changes: Sequence[Change], together_ns: int) -> Change | None:
        """Return one of *changes* with which alone the step is shorter than with all of them; None if there is none."""
        for change in changes:
            alone_ns = self.predict([change]).predicted_ns
            if alone_ns is not None and together_ns - alone_ns > ROUNDING_SHARE * self.measured_ns:
                return change
        return None

    def _of_pipeline(
        self, predict: Callable[[Any], tuple[int, int, int] | str] | None, value: int | str
    ) -> Ints:
        """Return the change of the step by another pipeline: low, likely and high."""
        if predict is None:
            raise RefusedError("this run has no pipeline that could be another")
        difference = predict(value)
        if isinstance(difference, str):
            raise RefusedError(difference)
        return np.array(difference)

    def range_margin_ns(self, replayed_ns: int, parts_of_path: pl.DataFrame) -> float:
        """Return the half width of a range, from the spread of the steps and what the critical path consists of.

        Steps, links and hosts vary independently of each other, so that their squares add up.
        """
        step_share = max(MIN_VARIATION, self.deviation_of_steps[0])
        is_transfer = parts_of_path["label"].is_in(COMMUNICATION_LABELS).fill_null(False)
        transfer_ns = int(parts_of_path["ns"].filter(is_transfer).sum())
        host_ns = int(parts_of_path["ns"].filter(parts_of_path["label"].is_null()).sum())
        margins_ns = (
            replayed_ns * step_share,
            transfer_ns * LINK_VARIATION,
            host_ns * HOST_VARIATION,
        )
        return math.hypot(*margins_ns) + self.clock_error_ns

    def best_changes(self, *, without: Collection[Change] = ()) -> list[ChangedStep]:
        """Return the changes that would save most, other than *without* and faster kernels."""
        rows = [self.predict([change]) for change in self._candidates() if change not in without]
        worthwhile = []
        for row in rows:
            if (row.saves_ns or 0) > MIN_SAVED_SHARE_TO_PROPOSE * (row.free_ns or row.measured_ns):
                worthwhile.append(row)
        return sorted(worthwhile, key=lambda row: -(row.saves_ns or 0))[:MAX_LISTED_CHANGES]

    def _candidates(self) -> Iterator[Change]:
        """Yield the changes that are tried if none was asked for."""
        graph = self.graph
        communication = [label for label in COMMUNICATION_LABELS if graph.has_label(label).any()]
        yield from map(Hidden, communication)
        if communication:
            yield FasterLinks(2.0)
        yield NoHostDelay()
        if len(graph.ranks) > 1:
            yield Balanced()
            # The ranks with the most compute, and with the latest host.
            work_ns = (graph.end - graph.start) * graph.has_label(*COMPUTE_SET)
            rank_indices = set()
            for weights in (work_ns, graph.launched_late_ns):
                rank_indices.add(int(np.bincount(graph.rank_index, weights).argmax()))
            yield from (LikeOthers((graph.ranks[index],)) for index in sorted(rank_indices))

    def lanes(self, changes: Sequence[Change], *, max_ranks: int) -> dict[int, Lane]:
        """Return the lanes of ranks with *changes*, in the step nearest to the step time, as long as it is measured."""
        graph = self.graph
        changed = self.changed_graph(changes)
        replay = changed.replay()
        lengths = _extents(graph.measured_bounds)
        step = int(
            (lengths["end_ns"] - lengths["start_ns"] - self.measured_ns).abs().arg_min() or 0
        )
        measured_ns = lengths["end_ns"][step] - lengths["start_ns"][step]
        replayed = _extents(graph.step_bounds(replay.start, replay.end, replay.launch))
        begin = replayed["start_ns"][step]
        end = replayed["end_ns"][step]
        edges = np.linspace(begin, begin + max(measured_ns, end - begin), LANE_BINS + 1).astype(
            np.int64
        )
        lanes: dict[int, Lane] = {}
        for index, rank in enumerate(graph.ranks[:max_ranks]):
            events = (graph.rank_index == index) & (graph.step_index == step)
            names: list[str | None] = [
                None,
                *(label for label in LABELS if graph.has_label(label)[events].any()),
            ]
            # Row 0: idle, where nothing else covers more.
            covered = np.zeros((len(names), LANE_BINS))
            for row, label in enumerate(names):
                if label is not None:
                    rows = events & graph.has_label(label)
                    covered[row] = union(replay.start[rows], replay.end[rows]).covered_ns(
                        edges[:-1], edges[1:]
                    )
            bins = enumerate(covered.argmax(axis=0).tolist())
            lanes[rank] = []
            for row, group in groupby(bins, key=lambda item: item[1]):
                positions = [position for position, _ in group]
                lanes[rank].append(
                    (names[row], positions[0] / LANE_BINS, len(positions) / LANE_BINS)
                )
        return lanes
