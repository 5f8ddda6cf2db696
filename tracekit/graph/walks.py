"""Walks along the critical path of each step: from what ends it back to its begin, over the replayed events.

Each event of a replay knows what it waited for last (``event_graph``). A walk follows that: back on
a rank, and where a communication waited for another rank on with the last that came
(``_loops.critical_path.walk_back``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit._loops.critical_path import NO_LIMIT, SEGMENT_KINDS, walk_back
from tracekit._util.arrays import Bools, Ints
from tracekit.graph.event_graph import EventGraph, EventReplay
from tracekit.schema import LABELS

WALK_KINDS = (*SEGMENT_KINDS, "host_tail")
"""What a segment of a walk is: also the host's work behind the last GPU work of a step."""
WALK = pl.Schema(
    {
        "step_index": pl.Int64(),
        "event": pl.Int64(),
        "kind": pl.Enum(WALK_KINDS),
        "following": pl.Int64(),  # event that the walk goes on with; -1: none
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
    }
)
"""Segments of the walks, each step's from its end back to its begin."""
KINDS_OF_HOST = ("host_worked", "released", "queue_was_full", "loader_was_slow", "host_tail")
"""Kinds of segments in which the host works, or waits for its loader."""
KINDS_WITHOUT_GPU_WORK = ("launched", *KINDS_OF_HOST, "nothing")
"""Kinds of segments in which no GPU work is on the path."""


class WalkEnds(NamedTuple):
    """Between what the walk of each step goes."""

    begins: Ints
    """[step index, rank index]: begin of the step on the rank; ``NO_LIMIT``: the rank has none."""
    event: Ints
    """Of each step: the event to walk back from."""
    end_ns: Ints
    """The time to walk back from."""
    at_start: Bools
    """Whether to walk back from what held that event back, else from its end."""


def walk_steps(graph: EventGraph, replay: EventReplay, ends: WalkEnds) -> pl.DataFrame:
    """Return the walks of all steps (``WALK``)."""
    inputs = graph.replay_input
    events = len(graph.start)
    by_time = inputs.by_time
    row_of_event = np.empty(events, np.int64)
    row_of_event[by_time] = np.arange(events)
    # The system allocates memory only where it is written.
    segments = np.empty((4 * events + 4, 5), np.int64)
    visited = np.zeros((2, events), np.int32)
    walks: list[Ints] = []
    for step_index, event in enumerate(ends.event.tolist()):
        count = walk_back(
            int(row_of_event[event]),
            int(ends.end_ns[step_index]),
            bool(ends.at_start[step_index]),
            step_index + 1,
            ends.begins[step_index],
            inputs.rank_index,
            inputs.before,
            inputs.decisive,
            replay.replayed,
            replay.arrivals,
            visited,
            segments,
        )
        walks.append(segments[:count].copy())
    walked = np.concatenate([segments[:0], *walks])
    following = walked[:, 2]
    return pl.DataFrame(
        {
            "step_index": np.repeat(np.arange(len(walks)), [len(walk) for walk in walks]),
            "event": by_time[walked[:, 0]],
            "kind": pl.Series(WALK_KINDS, dtype=WALK["kind"])[walked[:, 1]],
            "following": np.where(following >= 0, by_time[following], -1),
            "start_ns": walked[:, 3],
            "end_ns": walked[:, 4],
        },
        schema_overrides=WALK,
    )


def begins_of_steps(graph: EventGraph, bounds: pl.DataFrame, begin_ns: Ints) -> Ints:
    """Return ``WalkEnds.begins`` from the begin of each row of ``EventGraph.step_bounds``."""
    begins = np.full((len(graph.steps), len(graph.ranks)), NO_LIMIT)
    begins[bounds["step_index"].to_numpy(), bounds["rank_index"].to_numpy()] = begin_ns
    return begins


def path_parts(graph: EventGraph, replay: EventReplay, bounds: pl.DataFrame) -> pl.DataFrame:
    """Return the parts of the replayed steps' critical paths, per step, the longest first.

    *bounds* are those of the replayed steps (``EventGraph.step_bounds``). Columns rank, label
    (null: the host) and ns.
    """
    # Of several that end last the first one of the graph, which numbers them rank by rank.
    last_event = np.array([rows[replay.end[rows].argmax()] for rows in graph.events_of_steps])
    ends = WalkEnds(
        begins=begins_of_steps(graph, bounds, bounds["start_ns"].to_numpy()),
        event=last_event,
        end_ns=replay.end[last_event],
        at_start=np.zeros(len(last_event), np.bool_),
    )
    walks = walk_steps(graph, replay, ends)
    event = walks["event"].to_numpy()
    labels = pl.Series(LABELS, dtype=pl.String)[graph.label[event]]
    is_host = walks["kind"].cast(pl.String).is_in(KINDS_WITHOUT_GPU_WORK)
    parts = pl.DataFrame(
        {
            "rank": pl.Series(graph.ranks, dtype=pl.Int32)[graph.rank_index[event]],
            "label": labels.set(is_host, None),
            "ns": walks["end_ns"] - walks["start_ns"],
        }
    )
    of_step = pl.col("ns").sum() // len(graph.steps)
    summed = parts.group_by("rank", "label").agg(of_step).filter(pl.col("ns") > 0)
    return summed.sort("ns", "rank", "label", descending=[True, False, False])
