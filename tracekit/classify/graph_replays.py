"""Replays of graphs with the launches of their capture, so that their kernels have operators, shapes and modules.

Every replay gets a copy of the host's events during the capture, squeezed into the time of its
graph launch, and each of its kernels is launched by the call that captured it. Labels are then
found as for work without graphs. The copies serve classification alone: what is measured about the
host and about launches rests on what the replay recorded.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit._util.arrays import Ints
from tracekit.classify.captured_graphs import (
    CapturedGraph,
    Mismatch,
    NodeMatch,
    match_nodes,
    read_captured_graphs,
)
from tracekit.classify.names import HOST_CALLS
from tracekit.schema import GPU_KINDS, GraphCapture, RankEvents

JOINED = pl.Schema(
    {
        "id": pl.Int64(),  # GPU event of a replay
        "replay": pl.Int64(),  # number of the replay, by the time of its launch
        "graph": pl.Int64(),  # captured graph
        "launch": pl.Int64(),  # launch in that graph
    }
)
"""Nodes of replays that are joined with launches of captured graphs."""


@dataclass(frozen=True, eq=False, repr=False)
class Replays:
    """The replays of one rank, joined with the graphs of a capture."""

    graphs: tuple[CapturedGraph, ...]
    calls: pl.DataFrame
    """Graph launches by time: ``replay``, ``correlation``, ``start_ns``, ``end_ns``, ``pid``,
    ``tid``, ``step``."""
    joined: pl.DataFrame
    """Columns: ``JOINED``."""
    mismatches: tuple[Mismatch, ...]
    """Reasons for the replays that are not joined, the most frequent first."""
    replay_ns: int
    """GPU time of all replays, as the sum of their events."""
    joined_ns: int
    """GPU time of the events that are joined."""

    @property
    def replays_joined(self) -> int:
        """Number of replays of which events are joined."""
        return int(self.joined["replay"].n_unique())


def join_replays(events: pl.DataFrame, capture: GraphCapture) -> Replays:
    """Join the replays among one rank's events with the graphs of a capture."""
    graphs = read_captured_graphs(capture)
    calls, nodes = _read_replays(events)
    nodes = nodes.join(capture.blocks, on="id", how="left", maintain_order="left")
    nodes_of = {}
    for (replay,), of_replay in nodes.partition_by("replay", as_dict=True).items():
        nodes_of[replay] = of_replay
    # 1. The graphs that fit each replay, and of the others the reason of the graph that comes
    # closest.
    fitting: dict[int, dict[int, NodeMatch]] = {}
    reasons: dict[int, Mismatch] = {}
    for replay, of_replay in nodes_of.items():
        results = [match_nodes(graph, of_replay) for graph in graphs]
        fitting[replay] = {
            i: match for i, match in enumerate(results) if isinstance(match, NodeMatch)
        }
        if not fitting[replay]:
            reasons[replay] = _closest(
                [result for result in results if isinstance(result, Mismatch)]
            )
    # 2. One graph for each replay that some fit.
    matches: dict[int, tuple[int, NodeMatch]] = {}
    for fits, replays in _group_by_fits(fitting).items():
        chosen = _choose_graphs(graphs, fits, len(replays))
        for i, replay in enumerate(replays):
            if chosen is None:
                reasons[replay] = Mismatch("several_graphs", len(fits), len(nodes_of[replay]))
            else:
                matches[replay] = (chosen[i], fitting[replay][chosen[i]])
    # 3. Replays that were cut off, by the names that whole ones have.
    for replay, cut_match in _match_cut_replays(nodes_of, matches, reasons).items():
        matches[replay] = cut_match
        del reasons[replay]
    # 4. Replays whose launch leaves no room for the copies of the capture.
    room_ns = _room_of_calls(events, calls)
    for replay, (graph, _) in list(matches.items()):
        if room_ns[replay] <= graphs[graph].moments:
            reasons[replay] = Mismatch("short_launch", graphs[graph].moments, room_ns[replay])
            del matches[replay]
    joined = _joined_table(nodes_of, matches)
    duration = pl.col("end_ns") - pl.col("start_ns")
    of_joined = nodes.join(joined.select("id"), on="id", how="semi")
    return Replays(
        graphs,
        calls,
        joined,
        tuple(mismatch for mismatch, _ in Counter(reasons.values()).most_common()),
        int(nodes.select(duration.sum()).item()),
        int(of_joined.select(duration.sum()).item()),
    )


def _group_by_fits(
    fitting: Mapping[int, Mapping[int, NodeMatch]],
) -> dict[tuple[int, ...], list[int]]:
    """Return the replays by the graphs that fit them, without those that none fits."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for replay, matches in fitting.items():
        if matches:
            groups.setdefault(tuple(matches), []).append(replay)
    return groups


def _match_cut_replays(
    nodes_of: Mapping[int, pl.DataFrame],
    matches: Mapping[int, tuple[int, NodeMatch]],
    unmatched: Iterable[int],
) -> dict[int, tuple[int, NodeMatch]]:
    """Join replays of which the recording has the begin or the end alone, by the names of a whole replay.

    Only where a graph runs in the order of its launches does the n-th node of a part tell its
    launch, and only if the names fit one end of one graph and nothing else.
    """
    names_of_graph: dict[int, list[str]] = {}
    for replay, (graph, match) in matches.items():
        if (match.launch == np.arange(len(match.launch))).all():
            names_of_graph.setdefault(graph, _names(nodes_of[replay]))
    joined = {}
    for replay in unmatched:
        names = _names(nodes_of[replay])
        candidates = []
        for graph, all_names in names_of_graph.items():
            missing = len(all_names) - len(names)
            if missing <= 0:
                continue
            if all_names[: len(names)] == names:
                candidates.append((graph, 0))
            if all_names[missing:] == names:
                candidates.append((graph, missing))
        if len(candidates) == 1:
            ((graph, first),) = candidates
            joined[replay] = (graph, NodeMatch(first + np.arange(len(names)), None, None))
    return joined


def _names(nodes: pl.DataFrame) -> list[str]:
    """Return the names of nodes by start."""
    return nodes["name"].cast(pl.String).to_list()


def _read_replays(events: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the graph launches by time, and the GPU events of each by start."""
    is_call = pl.col("kind").is_in(("runtime", "driver"))
    launches_graph = pl.col("name").cast(pl.String).str.contains(HOST_CALLS["launch_graph"])
    calls = (
        events.filter(is_call & launches_graph & pl.col("correlation").is_not_null())
        .sort("start_ns", "id")
        .unique("correlation", keep="first", maintain_order=True)
        .select("correlation", "start_ns", "end_ns", "pid", "tid", "step")
        .with_row_index("replay")
        .with_columns(pl.col("replay").cast(pl.Int64))
    )
    columns = (
        "id",
        "kind",
        "name",
        "device",
        "stream",
        "bytes",
        "start_ns",
        "end_ns",
        "correlation",
    )
    nodes = (
        events.filter(pl.col("kind").is_in(GPU_KINDS))
        .select(columns)
        .join(calls.select("correlation", "replay"), on="correlation")
        .sort("replay", "start_ns", "id")
    )
    return calls, nodes


def _closest(reasons: Sequence[Mismatch]) -> Mismatch:
    """Return the mismatch of the graph that is most like the replay."""
    if not reasons:
        return Mismatch("no_graphs")
    return min(reasons, key=lambda reason: abs(reason.captured - reason.replayed))


def _choose_graphs(
    graphs: tuple[CapturedGraph, ...], fits: Sequence[int], replays: int
) -> list[int] | None:
    """Return the graph of each of several replays that the same graphs fit.

    None if that cannot be told.

    Graphs with the same operators and shapes, as those of the pieces of equal layers, are replayed
    in the order of their captures.
    """
    if len(fits) == 1:
        return [fits[0]] * replays
    contents = {graphs[i].contents for i in fits}
    if len(contents) > 1 or replays % len(fits):
        return None
    return list(fits) * (replays // len(fits))


def _joined_table(
    nodes_of: Mapping[int, pl.DataFrame], matches: Mapping[int, tuple[int, NodeMatch]]
) -> pl.DataFrame:
    """Return the nodes that are joined (``JOINED``), by replay."""
    tables = [JOINED.to_frame()]
    for replay, (graph, match) in sorted(matches.items()):
        table = nodes_of[replay].select(
            "id",
            replay=pl.lit(replay, pl.Int64),
            graph=pl.lit(graph, pl.Int64),
            launch=pl.Series(match.launch),
        )
        tables.append(table.filter(pl.col("launch") >= 0))
    return pl.concat(tables)


# ---- events with copies of the capture


def add_captured_launches(events: pl.DataFrame, replays: Replays) -> pl.DataFrame:
    """Return one rank's events with the host's events of the capture in each replay that is joined."""
    next_id = 1 + _largest(events, "id")
    next_correlation = 1 + _largest(events, "correlation")
    next_sequence = 1 + _largest(events, "sequence")
    copies = []
    links = []
    graph_of = dict(replays.joined.select("replay", "graph").unique().iter_rows())
    room_ns = _room_of_calls(events, replays.calls)
    for call in replays.calls.iter_rows(named=True):
        if call["replay"] not in graph_of:
            continue
        graph = replays.graphs[graph_of[call["replay"]]]
        host = graph.host
        correlations = graph.launches["correlation"]
        numbers = pl.Series(np.arange(len(correlations)) + next_correlation)
        times = _squeeze(host, call["start_ns"], room_ns[call["replay"]])
        copies.append(
            host.with_columns(
                id=pl.int_range(pl.len(), dtype=pl.Int64) + next_id,
                rank=pl.lit(events["rank"][0], pl.Int32),
                start_ns=pl.Series(times[0]),
                end_ns=pl.Series(times[1]),
                pid=pl.lit(call["pid"], pl.Int64),
                tid=pl.when(pl.col("tid") == graph.main_tid)
                .then(pl.lit(call["tid"], pl.Int64))
                .otherwise("tid"),
                correlation=pl.col("correlation").replace_strict(
                    correlations, numbers, default=None
                ),
                external_id=pl.lit(None, pl.Int64),
                sequence=pl.col("sequence") + next_sequence,
                step=pl.lit(call["step"], pl.Int64),
            )
        )
        links.append(
            replays.joined.filter(pl.col("replay") == call["replay"]).select(
                "id", captured_correlation=pl.col("launch") + next_correlation
            )
        )
        next_id += len(host)
        next_correlation += len(correlations)
        next_sequence += 1 + _largest(host, "sequence")
    if not copies:
        return events
    linked = events.join(pl.concat(links), on="id", how="left", maintain_order="left")
    linked = linked.with_columns(correlation=pl.coalesce("captured_correlation", "correlation"))
    return pl.concat([linked.drop("captured_correlation"), *copies])


def events_with_captured_launches(rank: RankEvents) -> pl.DataFrame:
    """Return the events of a rank, with those of the capture in each replay if it has one."""
    if rank.capture is None:
        return rank.events
    return add_captured_launches(rank.events, join_replays(rank.events, rank.capture))


def restore_launches(labelled: pl.DataFrame, replays: Replays) -> pl.DataFrame:
    """Return labelled events with the launches that the replays recorded: those of their graphs."""
    calls = replays.calls.select(
        "replay", call_correlation="correlation", call_ns="start_ns", call_tid="tid"
    )
    of_event = replays.joined.select("id", "replay").join(calls, on="replay").drop("replay")
    restored = labelled.join(of_event, on="id", how="left", maintain_order="left").with_columns(
        correlation=pl.coalesce("call_correlation", "correlation"),
        launch_ns=pl.coalesce("call_ns", "launch_ns"),
        launch_tid=pl.coalesce("call_tid", "launch_tid"),
    )
    return restored.select(labelled.columns)


def _largest(events: pl.DataFrame, column: str) -> int:
    """Return the largest value of a column of numbers; 0 if it has none."""
    return int(events[column].max() or 0)  # type: ignore[arg-type]


def _room_of_calls(events: pl.DataFrame, calls: pl.DataFrame) -> dict[int, int]:
    """Return for every graph launch the time in ns from its start until the host's next event, by replay.

    An event that ends at the launch's end or later, and began before it, is around the launch.
    """
    host_starts = events.filter(~pl.col("kind").is_in(GPU_KINDS))["start_ns"].sort().to_numpy()
    room = {}
    for replay, start_ns, end_ns in calls.select("replay", "start_ns", "end_ns").iter_rows():
        following = int(np.searchsorted(host_starts, end_ns, side="left"))
        is_last = following == len(host_starts)
        room[replay] = (
            np.iinfo(np.int64).max - start_ns if is_last else int(host_starts[following]) - start_ns
        )
    return room


def _squeeze(host: pl.DataFrame, start_ns: int, room_ns: int) -> tuple[Ints, Ints]:
    """Return starts and ends of the copied events: their order alone, as nanoseconds from the launch on.

    Times in order keep what lies in what. They need one nanosecond each, which launches have: the
    call takes longer for each node, and the host's next event comes some time after it.
    """
    times = np.concatenate([host["start_ns"].to_numpy(), host["end_ns"].to_numpy()])
    distinct, order = np.unique(times, return_inverse=True)
    assert len(distinct) < room_ns, "replays without room for the copies are not joined"
    squeezed = start_ns + 1 + order
    return squeezed[: len(host)], squeezed[len(host) :]
