"""Changes to a run ("what if"): the step time that a replay of its events with the change predicts.

A change is text: ``dp_comm x0.5`` (a label, module, operator or kernel takes half its time), ``rank 2 like others``,
``no host delay``, ``links x2`` (twice the bandwidth), ``hide dp_comm``, ``balance`` and ``microbatches 16``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Int32s
from tracekit._util.text import ranks_named
from tracekit.critical_path.graph import EventGraph, Floats, Replay, has_label, unchanged
from tracekit.errors import OptionError
from tracekit.metrics.label_intervals import COMPUTE_SET
from tracekit.schema import COMMUNICATION_LABELS, LABELS

MAX_LISTED_CHANGES = 5
"""Changes that are listed if none was asked for, those that save most."""
MIN_SAVED_SHARE = 0.01
"""Share of the step that a change must save to be listed."""
MAX_PATH_PARTS = 6
"""Parts of the new critical path that are kept, the largest."""
MIN_VARIATION = 0.06
"""Smallest half width of a range, as a share of the prediction: the links of two recordings differ by that much."""
FORMS = (
    "NAME x0.5 (a label, module, operator or kernel), links x2, rank N like others, no host delay, hide LABEL, balance, "
    "microbatches N"
)

_SCALE = re.compile(r"(?P<name>.+?)\s*[x×]\s*(?P<factor>\d+(\.\d+)?)")
_RANK = re.compile(r"rank\s+(?P<rank>\d+)\s+like\s+others")
_HIDE = re.compile(r"hide\s+(?P<label>\S+)")
_MICROBATCHES = re.compile(r"micro-?batches\s+(?P<count>\d+)")


class PathPart(msgspec.Struct, frozen=True):
    """Time of one label on one rank on the critical path, per step; a label of None is the host."""

    rank: int
    label: str | None
    ns: int


class ChangedStep(msgspec.Struct, frozen=True):
    """A change and the step time that it would lead to, the mean over the steps, in nanoseconds.

    ``saves_ns`` is an upper bound of what the change can give: what nothing in the trace forbids happens. It is null
    where the change is another amount of work. ``why_not`` is the reason why there is no prediction.
    """

    change: str
    measured_ns: int
    predicted_ns: int | None = None
    predicted_range_ns: tuple[int, int] | None = None
    saves_ns: int | None = None
    critical_path: tuple[PathPart, ...] = ()
    rests_on: tuple[str, ...] = ()
    why_not: str | None = None


class RefusedError(Exception):
    """The trace has no evidence for an answer; the text is the reason."""


class ChangedGraph:
    """A graph with changes under way: factors of durations and hosts, and what events wait for."""

    def __init__(self, graph: EventGraph, positions: Mapping[int, int]) -> None:
        self.graph = graph
        self.positions = positions
        self.factor, self.host_factor = unchanged(graph)
        names = ("stream_before", "other_before", "released_by")
        self.edges: dict[str, Int32s] = {name: graph.events[name].to_numpy() for name in names}
        self.rests_on: list[str] = []

    def scale(self, events: Bools, factor: float | Floats) -> None:
        """Multiply the durations of *events*."""
        self.factor[events] *= factor

    def replay(self, *, certain_only: bool = False) -> Replay:
        """Replay it; *certain_only*: without waits that did not hold anything back in the run."""
        edges = self.edges
        if certain_only:
            other = np.where(self.graph.events["other_held"].to_numpy(), edges["other_before"], -1)
            edges = edges | {"other_before": other.astype(np.int32)}
        return self.graph.replay(factor=self.factor, host_factor=self.host_factor, **edges)

    def group_means(self, events: Bools, keys: Mapping[str, np.ndarray], weights: np.ndarray) -> pl.DataFrame:
        """Return the sum of *weights* over *events* by rank and *keys*, and its median over ranks (``others_ns``)."""
        columns = {name: values[events] for name, values in keys.items()} | {"weight": weights[events]}
        sums = pl.DataFrame({"rank": self.graph.rank_index[events], **columns})
        position = [self.positions.get(rank, 0) for rank in self.graph.ranks]
        sums = sums.group_by("rank", *keys).agg(pl.col("weight").sum())
        return sums.with_columns(position=pl.Series(position, dtype=pl.Int64).gather(sums["rank"]))


def parse_change(text: str) -> Callable[[ChangedGraph], None] | int:
    """Return the function that makes a change to a graph; the number of micro-batches for ``microbatches N``."""
    words = " ".join(text.split())
    if words == "no host delay":
        return _without_host_delay
    if words == "balance":
        return _balance
    if match := _MICROBATCHES.fullmatch(words):
        return int(match["count"])
    if match := _RANK.fullmatch(words):
        rank = int(match["rank"])
        return lambda changed: _like_others(changed, rank)
    if match := _HIDE.fullmatch(words):
        label = match["label"]
        return lambda changed: _hide(changed, label)
    if match := _SCALE.fullmatch(words):
        name, factor = match["name"], float(match["factor"])
        if factor <= 0:
            raise OptionError(f"--change {text!r}: the factor must be above 0", hint=f"changes are {FORMS}")
        if name == "links":
            return lambda changed: _faster_links(changed, factor)
        return lambda changed: changed.scale(_select(changed.graph, name), factor)
    raise OptionError(f"--change {text!r} is not a change that is known", hint=f"changes are {FORMS}")


def _select(graph: EventGraph, name: str) -> Bools:
    """Return the events of a label, a module, an operator or a kernel; of kernels, a part of the name is enough."""
    for column in ("label", "module", "op", "name"):
        events = graph.events[column].cast(pl.String).str.to_lowercase() == name.lower()
        if events.any():
            return events.fill_null(False).to_numpy()
    events = graph.events["name"].cast(pl.String).str.contains(name, literal=True).fill_null(False)
    if events.any():
        return events.to_numpy()
    raise _unknown_name_error(graph, name, ("label", "module"))


def _unknown_name_error(graph: EventGraph, name: str, columns: Sequence[str]) -> OptionError:
    present = [
        f"{column}s {', '.join(graph.events[column].cast(pl.String).unique().drop_nulls().sort().to_list())}"
        for column in columns
        if graph.events[column].null_count() < graph.events.height
    ]
    return OptionError(f"nothing in this run is called {name!r}", hint=f"there are {'; '.join(present)}")


def _without_host_delay(changed: ChangedGraph) -> None:
    """Let every event start without waiting for its launch."""
    if not (changed.graph.events["launch_ns"].is_not_null()).any():
        raise RefusedError("the trace has no launches: record CPU activities as well")
    changed.host_factor[:] = -1.0
    changed.rests_on.append("everything is launched before it could start, data loading included")


def _faster_links(changed: ChangedGraph, factor: float) -> None:
    """Divide the transfers of all communication by *factor*."""
    events = has_label(changed.graph, *COMMUNICATION_LABELS)
    if not events.any():
        raise RefusedError("there is no communication in this run")
    changed.scale(events, 1 / factor)
    changed.rests_on.append("transfers are all bandwidth, no latency")


def _hide(changed: ChangedGraph, label: str) -> None:
    """Let no forward or backward work wait for events of *label*; the optimizer still does."""
    graph = changed.graph
    present = set(graph.events["label"].cast(pl.String).unique())
    if label not in LABELS or label not in present:
        raise _unknown_name_error(graph, label, ("label",))
    hidden = has_label(graph, label)
    frees = ~hidden & ~has_label(graph, "optimizer")
    stream_before, other_before, released_by = (changed.edges[name].copy() for name in changed.edges)
    # On a stream of both: work waits for the last event before it that is not hidden, and hidden events for each other.
    own_before = stream_before.copy()
    for kind, before in ((frees, stream_before), (hidden, own_before)):
        skipped = hidden if kind is frees else ~hidden
        rows = np.flatnonzero(kind & (before >= 0))
        while len(rows := rows[skipped[before[rows]]]):
            before[rows] = before[before[rows]] if kind is hidden else changed.edges["stream_before"][before[rows]]
            rows = rows[before[rows] >= 0]
    lone = hidden & (other_before < 0)
    other_before[lone] = np.where(own_before[lone] != stream_before[lone], own_before[lone], -1)
    for edges in (other_before, released_by):
        waits_for_hidden = np.flatnonzero(frees & (edges >= 0))
        edges[waits_for_hidden[hidden[edges[waits_for_hidden]]]] = -1
    changed.edges = {"stream_before": stream_before, "other_before": other_before, "released_by": released_by}
    changed.rests_on.append(f"no forward or backward work waits for {label}, whatever data it needs")


def _like_others(changed: ChangedGraph, rank: int) -> None:
    """Give the work of each label, and the host, of one rank the time that they take on the other ranks, per step."""
    graph = changed.graph
    if rank not in graph.ranks:
        raise OptionError(f"there is no rank {rank} in this run", hint=f"there are {ranks_named(graph.ranks)}")
    if len(graph.ranks) < 2:
        raise RefusedError("no other rank's trace to compare with: give all ranks")
    _require_matches(graph)
    index = graph.ranks.index(rank)
    _scale_to_others(changed, lambda ranks: ranks == index)
    changed.rests_on.append("in each step the rank's work and host take the median of the other ranks")


def _balance(changed: ChangedGraph) -> None:
    """Give the work of each label between two dispatches (in each step, without experts) the mean over ranks."""
    graph = changed.graph
    if len(graph.ranks) < 2:
        raise RefusedError("a single rank has nothing to be balanced with: give all ranks")
    _require_matches(graph)
    # Number of dispatches launched before each event on its rank: ranks of an expert group have the same number.
    dispatches = has_label(graph, "ep_dispatch")
    order = np.lexsort((np.where(graph.launch < graph.end, graph.launch, graph.start), graph.rank_index))
    count = np.cumsum(dispatches[order])
    first = np.searchsorted(graph.rank_index[order], np.arange(len(graph.ranks)))
    section = np.empty(len(order), np.int64)
    section[order] = count - np.concatenate([[0], count])[first][graph.rank_index[order]]
    _scale_to_others(changed, lambda ranks: np.ones(len(ranks), np.bool_), section=section, mean=True)
    changed.rests_on.append("work of a label takes the mean over ranks; kernels scale with their tokens")


def _require_matches(graph: EventGraph) -> None:
    """Refuse where it is not known whether ranks waited for each other."""
    if not len(graph.matches):
        raise RefusedError("no communication could be matched between ranks, so that it is unknown who waited for whom")


def _scale_to_others(
    changed: ChangedGraph,
    is_scaled: Callable[[np.ndarray], Bools],
    *,
    section: np.ndarray | None = None,
    mean: bool = False,
) -> None:
    """Scale the compute (and without *mean* the host) of ranks to the median (or mean) of the ranks like them.

    Ranks are compared with those at the same position of other pipelines, if there are several pipelines.
    """
    graph = changed.graph
    keys = {"step": graph.step_index, "label": graph.label}
    if section is not None:
        keys["section"] = section
    compute = has_label(graph, *COMPUTE_SET)
    several = len(set(changed.positions.values())) < len(graph.ranks)
    groups = [("factor", compute, keys, (graph.end - graph.start).astype(np.float64))]
    if not mean:
        late_ns = graph.launched_late_ns
        everything = np.ones(len(late_ns), np.bool_)
        groups.append(("host_factor", everything, {"step": graph.step_index}, late_ns.astype(np.float64)))
    for attribute, events, by, weights in groups:
        sums = changed.group_means(events, by, weights)
        if not several:
            sums = sums.with_columns(position=pl.lit(0, pl.Int64))
        scaled = pl.Series(is_scaled(sums["rank"].to_numpy()))
        others = sums if mean else sums.filter(~scaled)
        usual = others.group_by("position", *by).agg(
            usual=pl.col("weight").mean() if mean else pl.col("weight").median()
        )
        ratios = sums.filter(scaled).join(usual, on=["position", *by], how="left").filter(pl.col("weight") > 0)
        ratio = pl.col("usual") / pl.col("weight")
        if attribute == "host_factor":  # a host that is late less often than others stays as it is
            ratio = ratio.clip(upper_bound=1.0)
        ratios = ratios.select("rank", *by, ratio=ratio)
        rows = pl.DataFrame({"rank": graph.rank_index, **by}).join(
            ratios, on=["rank", *by], how="left", maintain_order="left"
        )
        factor = rows["ratio"].fill_null(1.0).to_numpy()
        scaled_events = events & (weights > 0)
        getattr(changed, attribute)[scaled_events] *= factor[scaled_events]


class WhatIfGraph(msgspec.Struct, frozen=True, eq=False):
    """The graph of a run, with what questions about it need besides."""

    graph: EventGraph
    positions: Mapping[int, int] = {}
    """Position of each rank in its pipeline."""
    clock_error_ns: int = 0
    """Largest uncertainty of a clock."""
    microbatches: Callable[[int], tuple[int, int, int] | str] | None = None
    """Change of the step by another number of micro-batches: low, likely and high, or why not; None: no pipeline."""

    @property
    def measured_ns(self) -> int:
        """Time per step, as ``step_ns`` of the measured times."""
        return self.graph.step_ns(self.graph.start, self.graph.end)

    def predict(self, changes: Sequence[str]) -> ChangedStep:
        """Predict the step with all *changes* at once."""
        changed = ChangedGraph(self.graph, self.positions)
        added = np.zeros(3)
        measured_ns, text = self.measured_ns, ", ".join(changes)
        is_same_work = True
        try:
            for change in changes:
                edit = parse_change(change)
                if isinstance(edit, int):
                    if self.microbatches is None:
                        raise RefusedError("this run has no pipeline whose micro-batches could be counted")
                    difference = self.microbatches(edit)
                    if isinstance(difference, str):
                        raise RefusedError(difference)
                    added += difference
                    changed.rests_on.append("micro-batches of this run's size")
                    is_same_work = False
                else:
                    edit(changed)
        except RefusedError as refused:
            return ChangedStep(text, measured_ns, why_not=str(refused))
        replay = changed.replay()
        tight_ns = self.graph.step_ns(replay.start, replay.end)
        loose = changed.replay(certain_only=True)
        loose_ns = self.graph.step_ns(loose.start, loose.end)
        share = self._variation()
        low_ns = min(tight_ns, loose_ns) * (1 - share) - self.clock_error_ns + added[0]
        high_ns = max(tight_ns, loose_ns) * (1 + share) + self.clock_error_ns + added[2]
        predicted_ns = round(tight_ns + added[1])
        parts = self.graph.path_parts(replay).head(MAX_PATH_PARTS)
        return ChangedStep(
            change=text,
            measured_ns=measured_ns,
            predicted_ns=predicted_ns,
            predicted_range_ns=(round(low_ns), round(high_ns)),
            saves_ns=measured_ns - predicted_ns if is_same_work else None,
            critical_path=tuple(PathPart(*row) for row in parts.iter_rows()),
            rests_on=tuple(changed.rests_on),
        )

    def _variation(self) -> float:
        """Return the half width of a range, as a share: half the distance of the quartiles of the measured steps."""
        begins, ends = self.graph.step_times(self.graph.start, self.graph.end)
        low, middle, high = np.quantile(ends - begins, [0.25, 0.5, 0.75])
        return max(MIN_VARIATION, float((high - low) / 2 / max(middle, 1.0)))

    def best_changes(self) -> list[ChangedStep]:
        """Return the changes that would save most, without asking for faster kernels."""
        rows = [self.predict([text]) for text in self._candidates()]
        worthwhile = [row for row in rows if (row.saves_ns or 0) > MIN_SAVED_SHARE * row.measured_ns]
        return sorted(worthwhile, key=lambda row: -(row.saves_ns or 0))[:MAX_LISTED_CHANGES]

    def _candidates(self) -> Iterator[str]:
        """Yield the changes that are tried if none was asked for."""
        graph = self.graph
        labels = graph.events["label"].cast(pl.String).unique().sort().to_list()
        communication = [label for label in labels if label in COMMUNICATION_LABELS]
        yield from (f"hide {label}" for label in communication)
        if communication:
            yield "links x2"
        if graph.events["launch_ns"].null_count() < graph.events.height:
            yield "no host delay"
        if len(graph.ranks) > 1 and len(graph.matches):
            yield "balance"
            yield from (f"rank {rank} like others" for rank in self._slowest_ranks())

    def _slowest_ranks(self) -> list[int]:
        """Return the ranks with the most compute, which others may wait for."""
        graph = self.graph
        compute = has_label(graph, *COMPUTE_SET)
        busy = np.bincount(
            graph.rank_index[compute], weights=(graph.end - graph.start)[compute], minlength=len(graph.ranks)
        )
        late = np.bincount(graph.rank_index, weights=graph.launched_late_ns, minlength=len(graph.ranks))
        return sorted({graph.ranks[int(np.argmax(busy))], graph.ranks[int(np.argmax(late))]})
