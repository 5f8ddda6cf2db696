"""Segments of the critical path: what the walks of the recorded steps (``walks``) went through, in order of time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit.align.clocks import Clocks
from tracekit.graph.event_graph import EventGraph
from tracekit.graph.walks import KINDS_OF_HOST, WALK, WalkEnds, begins_of_steps, walk_steps
from tracekit.intervals import Intervals, union
from tracekit.metrics.start_constraints import MAX_REACTION_NS
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS, LABELS, conform

SEGMENTS = pl.Schema(
    {
        "step": pl.Int64(),
        "rank": pl.Int32(),
        "kind": pl.String(),  # cell, kernel, copy, collective, message, launch, host or unknown
        "what": pl.String(),
        "chain": pl.String(),  # operators around the launch, outermost first
        "launched": pl.String(),  # of launches and host work: the GPU event that was launched
        "label": pl.String(),
        "cause": pl.String(),  # of exposed communication and copies: cause of the exposure
        "stage": pl.Int32(),
        "peer": pl.Int32(),  # of communication: the rank that arrived last, where the path continues
        "start_ns": pl.Int64(),  # on the common clock
        "end_ns": pl.Int64(),
        "idle_ns": pl.Int64(),
        "exposed_ns": pl.Int64(),
        "uncertain": pl.Boolean(),  # the path may run along another rank here: clocks do not tell who arrived last
    }
)
"""The critical path, in order of time: each segment starts where the one before it ends."""
PATH_WALK = pl.Schema(
    {
        **WALK,
        "step": pl.Int64(),
        "rank": pl.Int32(),
        "label": pl.String(),  # of the event
        "peer": pl.Int32(),  # of a transfer: the rank that came last
        "margin_ns": pl.Int64(),  # of a transfer: how much earlier the own rank came
        "is_message": pl.Boolean(),
        "uncertain": pl.Boolean(),  # as in ``SEGMENTS``
    }
)
"""The walks of the recorded steps, each from its end back to its begin."""
_JOINED_KINDS = ("kernel", "copy", "host")
"""Kinds of which neighbouring segments with the same label are joined."""


def walk_recorded_steps(graph: EventGraph, members: pl.DataFrame, clocks: Clocks) -> pl.DataFrame:
    """Return ``PATH_WALK``: the walks of the recorded steps.

    Args:
        graph: The events.
        members: Matched operations with their waits (``align.waits.with_waits``).
        clocks: Clock offsets of the ranks.
    """
    ends, tails = _find_ends(graph)
    walks = pl.concat([tails, walk_steps(graph, graph.replay(), ends)])
    walks = walks.sort("step_index", maintain_order=True)
    event = walks["event"].to_numpy()
    following = np.maximum(walks["following"].to_numpy(), 0)
    ranks = pl.Series(graph.ranks, dtype=pl.Int32)
    label = pl.Series(LABELS, dtype=pl.String)[graph.label[event]]
    is_transfer = walks["kind"] == "transferred"
    margin_ns = np.maximum(graph.start[following] - graph.start[event], 0)
    match = pl.Series(graph.decisive[event])
    match = match.set(match < 0, None)
    is_message, is_open = _judge_matches(members, clocks)
    with_events = walks.with_columns(
        step=pl.Series(graph.steps, dtype=pl.Int64)[walks["step_index"].to_numpy()],
        rank=ranks[graph.rank_index[event]],
        label=label,
        peer=ranks[graph.rank_index[following]].set(~is_transfer, None),
        margin_ns=pl.Series(margin_ns).set(~is_transfer, None),
        is_message=is_message.gather(match).fill_null(value=False),
        uncertain=is_open.gather(match).fill_null(value=False),
    )
    # From a communication the walk goes on along the rank that came last, up to and with the next
    # communication.
    is_communication = pl.col("kind").is_in(["ran", "transferred"]) & pl.col("label").is_in(
        COMMUNICATION_LABELS
    )
    of_communication = pl.when(is_communication).then("uncertain")
    uncertain = of_communication.shift(1).forward_fill().over("step_index").fill_null(value=False)
    return conform(with_events.with_columns(uncertain=uncertain), PATH_WALK)


def _judge_matches(members: pl.DataFrame, clocks: Clocks) -> tuple[pl.Series, pl.Series]:
    """Return for each match whether it is a message, and whether it is open which member came last.

    It is open if another one came earlier than the last by less than the clocks of the two may be
    off.
    """
    if members.is_empty():
        return pl.Series(dtype=pl.Boolean), pl.Series(dtype=pl.Boolean)
    rank = members["rank"].to_numpy()
    arrival = clocks.to_common_each(rank, members["start_ns"].to_numpy())
    last = members["last"].to_numpy()
    may_be_last = arrival[last] - arrival <= clocks.uncertainty_between(rank, rank[last])
    match = members["match"].to_numpy()
    open_members = np.bincount(match, weights=may_be_last & (rank != rank[last]))
    messages = np.bincount(match, weights=members["sends"].is_not_null().to_numpy())
    return pl.Series(messages > 0), pl.Series(open_members > 0)


def _find_ends(graph: EventGraph) -> tuple[WalkEnds, pl.DataFrame]:
    """Return between what to walk, and ``WALK`` of the host's work behind the last GPU work of steps.

    A step ends where the next one begins: the walk starts from what held the first event of that
    one back. Other steps end with the host's work behind their last event.
    """
    key = ["rank_index", "step_index"]
    events = pl.DataFrame(
        {
            "rank_index": graph.rank_index,
            "step_index": graph.step_index,
            "start_ns": graph.start,
            "end_ns": graph.end,
        }
    ).with_row_index("event")
    edges = events.group_by(key).agg(
        first=pl.col("event").get(pl.col("start_ns").arg_min()).cast(pl.Int64),
        last=pl.col("event").get(pl.col("end_ns").arg_max()).cast(pl.Int64),
    )
    has_time = pl.col("time_ns").is_not_null()
    is_next_step = (pl.col("rank_index").shift(-1) == pl.col("rank_index")) & (
        pl.col("step").shift(-1) == pl.col("step") + 1
    )
    bounds = graph.measured_bounds.join(edges, on=key, maintain_order="left").with_columns(
        first_of_next=pl.when(is_next_step & has_time).then(pl.col("first").shift(-1))
    )
    is_followed = pl.col("first_of_next").is_not_null()
    has_tail = ~is_followed & has_time & (pl.col("interval_end_ns") > pl.col("end_ns"))
    steps = bounds.with_columns(
        begin_ns=pl.when(has_time).then("interval_start_ns").otherwise("start_ns"),
        walk_end_ns=pl.when(is_followed).then("interval_end_ns").otherwise("end_ns"),
        step_end_ns=pl.when(is_followed | has_tail).then("interval_end_ns").otherwise("end_ns"),
        event=pl.coalesce("first_of_next", "last"),
    )
    # The rank that is in a step longest.
    of_steps = (
        steps.sort("step_index", "step_end_ns", descending=[False, True], maintain_order=True)
        .unique("step_index", keep="first", maintain_order=True)
        .with_columns(pl.col("step_index").cast(pl.Int64))
    )
    tails = of_steps.filter(pl.col("step_end_ns") > pl.col("walk_end_ns")).select(
        "step_index",
        "event",
        kind=pl.lit("host_tail", WALK["kind"]),
        following="event",
        start_ns="walk_end_ns",
        end_ns="step_end_ns",
    )
    ends = WalkEnds(
        begins=begins_of_steps(graph, steps, steps["begin_ns"].to_numpy()),
        event=of_steps["event"].to_numpy(),
        end_ns=of_steps["walk_end_ns"].to_numpy(),
        at_start=of_steps["first_of_next"].is_not_null().to_numpy(),
    )
    return ends, tails


def describe_segments(
    graph: EventGraph, walk: pl.DataFrame, exposed: Mapping[int, pl.DataFrame], clocks: Clocks
) -> pl.DataFrame:
    """Return ``SEGMENTS`` in order of time, neighbouring kernels, copies or host work of one label joined.

    Args:
        graph: The events.
        walk: ``PATH_WALK``.
        exposed: Exposed time by cause of each rank (``metrics.causes.PIECES``).
        clocks: Clock offsets of the ranks.
    """
    # Each walk went back in time: reverse it within its step.
    ordered = walk.reverse().sort("step_index", maintain_order=True)
    event = ordered["event"].to_numpy()
    events = graph.events.select("name", "op", "chain")[event]
    ns = pl.col("end_ns") - pl.col("start_ns")
    is_communication = pl.col("label").is_in(COMMUNICATION_LABELS)
    # What began long after all that it is known to have waited for was held back by something else.
    is_gap = pl.col("walk_kind").is_in(["followed", "followed_other_stream"])
    is_unexplained = (is_gap | (pl.col("walk_kind") == "launched")) & (ns > MAX_REACTION_NS)
    kind = (
        pl.when(is_unexplained | (pl.col("walk_kind") == "nothing"))
        .then(pl.lit("unknown"))
        .when(pl.col("walk_kind") == "launched")
        .then(pl.lit("launch"))
        .when(pl.col("walk_kind").is_in(KINDS_OF_HOST))
        .then(pl.lit("host"))
        .when(is_communication)
        .then(pl.when("is_message").then(pl.lit("message")).otherwise(pl.lit("collective")))
        .when(pl.col("label").is_in(COPY_LABELS))
        .then(pl.lit("copy"))
        .otherwise(pl.lit("kernel"))
    )
    is_work = ~pl.col("kind").is_in(["host", "launch", "unknown"])
    is_tail = pl.col("walk_kind") == "host_tail"
    name = pl.col("name").cast(pl.String)
    described = (
        pl.concat([ordered.rename({"kind": "walk_kind"}), events], how="horizontal")
        .with_columns(pl.col("op", "chain").cast(pl.String), kind=kind, ns=ns, is_gap=is_gap)
        .with_columns(
            label=pl.when(is_work).then("label"),
            what=pl.when(is_work).then(name).otherwise(pl.coalesce("op", "chain")),
            launched=pl.when(~is_work).then(name),
        )
        .with_columns(pl.when(~is_tail).then(pl.col("what", "chain", "launched")))
    )
    return _join_neighbours(_with_idle_and_exposed_time(described, graph, exposed, clocks))


def _with_idle_and_exposed_time(
    segments: pl.DataFrame,
    graph: EventGraph,
    exposed: Mapping[int, pl.DataFrame],
    clocks: Clocks,
) -> pl.DataFrame:
    """Return the segments with ``idle_ns`` and ``exposed_ns``.

    Idle is the time in which the GPU runs nothing while the host works, and between events; exposed
    is the time of communication and copies as in the budget.
    """
    rank_index = graph.rank_index[segments["event"].to_numpy()].astype(np.int64)
    start = segments["start_ns"].to_numpy()
    end = segments["end_ns"].to_numpy()
    busy_ns = graph.busy.covered_ns(start, end, rank_index)
    exposed_labels = (*COMMUNICATION_LABELS, *COPY_LABELS)
    label = segments["label"].replace_strict(
        exposed_labels, range(len(exposed_labels)), default=-1, return_dtype=pl.Int64
    )
    exposed_times = _exposed_times(graph, exposed, clocks, exposed_labels)
    group = rank_index * len(exposed_labels) + label.fill_null(-1).to_numpy()
    group = np.where(label.fill_null(-1).to_numpy() >= 0, group, -1)
    exposed_ns = exposed_times.covered_ns(start, end, group)
    is_host = pl.col("kind").is_in(["host", "launch"])
    is_gap = pl.col("is_gap") & (pl.col("kind") != "unknown")
    return segments.with_columns(
        idle_ns=pl.when(is_host)
        .then(pl.Series(end - start - busy_ns))
        .when(is_gap)
        .then("ns")
        .otherwise(0),
        exposed_ns=pl.Series(exposed_ns),
    )


def _exposed_times(
    graph: EventGraph,
    exposed: Mapping[int, pl.DataFrame],
    clocks: Clocks,
    labels: tuple[str, ...],
) -> Intervals:
    """Return when each label of each rank is exposed, on the common clock: group is rank index * labels + label."""
    starts: list[Ints] = []
    ends: list[Ints] = []
    groups: list[Ints] = []
    for rank_index, rank in enumerate(graph.ranks):
        pieces = exposed[rank]
        label = (
            pieces["label"]
            .cast(pl.String)
            .replace_strict(labels, range(len(labels)), return_dtype=pl.Int64)
        )
        start = pieces["start_ns"].to_numpy()
        starts.append(clocks.to_common(rank, start))
        ends.append(clocks.to_common(rank, start + pieces["ns"].to_numpy()))
        groups.append(rank_index * len(labels) + label.to_numpy())
    return union(np.concatenate(starts), np.concatenate(ends), np.concatenate(groups))


def _join_neighbours(segments: pl.DataFrame) -> pl.DataFrame:
    """Return ``SEGMENTS`` with neighbouring kernels, copies or host work of one label joined.

    A joined segment is named by its longest event, and work of the host by what it launched at its
    end.
    """
    identity = pl.col("step_index", "kind", "rank", "label", "uncertain")
    is_alike = pl.all_horizontal(identity.eq_missing(identity.shift(1)))
    # The time before an event since the one before it is the event's own.
    is_same_event = pl.col("event") == pl.col("event").shift(1)
    joins_neighbour = pl.col("kind").is_in(_JOINED_KINDS) | is_same_event
    joins = joins_neighbour & is_alike & (pl.int_range(pl.len()) > 0)
    is_named_by_last = pl.col("kind") == "host"
    weight = pl.when(is_named_by_last).then(pl.int_range(pl.len())).otherwise("ns")
    joined = (
        segments.with_columns(joined=(~joins).cum_sum(), weight=weight)
        .sort("joined", "weight", maintain_order=True)
        .group_by("joined", maintain_order=True)
        .agg(
            pl.col("step", "rank", "kind", "label", "peer", "uncertain").first(),
            pl.col("start_ns").min(),
            pl.col("end_ns").max(),
            # Of the longest; of several as long, of the last.
            pl.col("what", "chain", "launched").last(),
            pl.col("idle_ns", "exposed_ns").sum(),
        )
    )
    return conform(joined, SEGMENTS)
