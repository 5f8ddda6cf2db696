"""Pipelines of a run, and the position of each rank in every kind of parallel group.

They come from the layout if one is given, else from the peers of messages and the process groups of
the traces. Peers that the traces do not name as ranks of the run come from communicators, else from
the order along the pipeline.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

import polars as pl

from tracekit._util.arguments import checked_text
from tracekit._util.text import listed, percent, ranks_named
from tracekit.align.peers import MESSAGES, PipelinePeers, along_pipelines, by_communicator
from tracekit.classify.rules import builtin_rules
from tracekit.errors import Notice, NoticeValues, OptionError
from tracekit.parsers.rank_numbers import MAX_RANKS
from tracekit.pipeline.reconstruct.rank_pipeline import RankPipeline
from tracekit.schema import conform

GROUP_KINDS = ("pp", "ep", "tp", "cp", "dp")
"""Kinds of parallelism for which the position of a rank is found."""


@dataclass(frozen=True)
class ParallelGroups:
    """Pipelines of a run, each with its ranks in stage order, and positions of ranks in their groups."""

    pipelines: tuple[tuple[int, ...], ...]
    positions: Mapping[int, Mapping[str, int]]
    """``positions[rank]["ep"]``"""
    notices: tuple[Notice, ...] = ()
    unsized: tuple[int, ...] = ()
    """Ranks of pipelines that are not listed: other ranks of them have no trace, and nothing tells
    how many."""


NODE_SIZE = "node"
"""Name in a layout for the number of consecutive ranks on one machine; the other names are axes of
the mesh."""


def split_layout(text: str | None) -> tuple[str | None, int | None]:
    """Return the mesh of a layout and the number of ranks on a node; None for what is not given.

    >>> split_layout("pp=4,ep=2,node=8"), split_layout("node=8")
    (('pp=4,ep=2', 8), (None, 8))
    """
    if text is None:
        return None, None
    axes: list[str] = []
    node_sizes: list[str] = []
    for word in _words_of_layout(checked_text(text, "layout")):
        name, _, size = word.partition("=")
        if name.strip() == NODE_SIZE:
            node_sizes.append(size.strip())
        else:
            axes.append(word)
    if not node_sizes:
        return ",".join(axes) or text, None
    mesh = ",".join(axes) or None
    size = node_sizes[0]
    if len(node_sizes) > 1 or not re.fullmatch(r"[1-9]\d{0,5}", size):
        raise OptionError(
            f"layout {text!r} does not say how many ranks a node has", hint="write it as node=8"
        )
    if mesh is not None:
        parse_layout(mesh)
    return mesh, int(size)


def _words_of_layout(text: str) -> list[str]:
    """Return the parts of a layout between commas; empty ones are left out."""
    words = [word.strip() for word in text.split(",")]
    return [word for word in words if word]


def parse_layout(text: str) -> dict[str, int]:
    """Return the sizes of a mesh written as ``pp=4,ep=2``, the last one varying fastest from rank to rank.

    >>> parse_layout("pp=4,ep=2")
    {'pp': 4, 'ep': 2}
    >>> parse_layout("pp4")
    Traceback (most recent call last):
    tracekit.errors.OptionError: layout 'pp4' is not NAME=size,… (write it as pp=4,ep=2: slowest first)
    """
    sizes: dict[str, int] = {}
    for word in _words_of_layout(text):
        match = re.fullmatch(r"([a-z]\w*)=([1-9]\d{0,8})", word)
        if not match or match[1] in sizes:
            raise OptionError(
                f"layout {text!r} is not NAME=size,…", hint="write it as pp=4,ep=2: slowest first"
            )
        sizes[match[1]] = int(match[2])
    if "pp" not in sizes:
        raise OptionError(f"layout {text!r} has no pp", hint="write it as pp=4,ep=2: slowest first")
    return sizes


def mesh_positions(sizes: Mapping[str, int], rank: int) -> dict[str, int]:
    """Return a rank's position along every axis of the mesh.

    >>> mesh_positions({"pp": 4, "ep": 2}, 5)
    {'pp': 2, 'ep': 1}
    """
    positions = dict.fromkeys(sizes, 0)
    for name, size in reversed(list(sizes.items())):
        rank, positions[name] = divmod(rank, size)
    return positions


def mesh_lines(ranks: Sequence[int], layout: str | Mapping[str, int]) -> list[list[int]]:
    """Return the pipelines of a mesh that include any of the *ranks*, each in stage order.

    >>> mesh_lines([0, 1], "pp=2,ep=2")
    [[0, 2], [1, 3]]
    """
    sizes = parse_layout(layout) if isinstance(layout, str) else dict(layout)
    # Ranks that differ only along pp form a pipeline.
    lines: dict[tuple[int, ...], list[int]] = {}
    for rank in range(prod(sizes.values())):
        positions = mesh_positions(sizes, rank)
        positions.pop("pp")
        lines.setdefault(tuple(positions.values()), []).append(rank)
    return [line for line in lines.values() if not set(ranks).isdisjoint(line)]


def find_parallel_groups(
    ranks: Sequence[RankPipeline], layout: str | Mapping[str, int] | None = None
) -> ParallelGroups:
    """Return pipelines and positions, from the layout if given, else from messages and process groups."""
    if layout is not None:
        sizes = parse_layout(layout) if isinstance(layout, str) else dict(layout)
        return _from_layout(ranks, sizes)
    pipelines, unsized, notices = _from_messages(ranks)
    positions = {rank.rank: _group_positions(rank) for rank in ranks}
    return add_pipelines(ParallelGroups((), positions, notices, unsized), pipelines)


def add_pipelines(groups: ParallelGroups, pipelines: Sequence[tuple[int, ...]]) -> ParallelGroups:
    """Return the groups with more pipelines, and with notices of ranks of these that have no trace."""
    positions = {rank: dict(own) for rank, own in groups.positions.items()}
    notices = list(groups.notices)
    for pipeline in pipelines:
        missing = [rank for rank in pipeline if rank not in groups.positions]
        if missing:
            notices.append(
                Notice(
                    "partial-pipeline",
                    (
                        f"pipeline of ranks {listed(tuple(pipeline), most=8)}: no trace of "
                        f"{ranks_named(tuple(missing))}: their cells, and what they held up, "
                        "cannot be known"
                    ),
                    ranks=tuple(pipeline),
                    values={"missing": tuple(missing)},
                )
            )
        for position, rank in enumerate(pipeline):
            positions.setdefault(rank, {})["pp"] = position
    return replace(
        groups,
        pipelines=(*groups.pipelines, *pipelines),
        positions=positions,
        notices=tuple(notices),
    )


def _from_layout(ranks: Sequence[RankPipeline], sizes: Mapping[str, int]) -> ParallelGroups:
    """Return the groups of a mesh.

    Pipelines that the messages contradict are left out, with a notice.
    """
    world_size = prod(sizes.values())
    with_trace = sorted({rank.rank for rank in ranks})
    highest = with_trace[-1]
    layout = ",".join(f"{name}={size}" for name, size in sizes.items())
    ranks_of_run = max((rank.world_size or 0 for rank in ranks), default=0)
    if ranks_of_run % world_size:
        raise OptionError(
            f"layout {layout} has {world_size} ranks, the run has {ranks_of_run}",
            hint="its sizes multiply to the number of ranks",
        )
    if sizes["pp"] > 1 and all(rank.messages.is_empty() for rank in ranks):
        raise OptionError(
            f"layout {layout} has a pipeline of {sizes['pp']} ranks, and no rank here sends or receives anything",
            hint="leave --layout out",
        )
    if highest >= world_size:
        raise OptionError(
            f"layout {layout} has {world_size} ranks, the trace has rank {highest}",
            hint="its sizes multiply to the number of ranks",
        )
    if world_size >= MAX_RANKS:
        raise OptionError(
            f"the layout has {world_size} ranks, more than any run",
            hint="write sizes such as pp=4,ep=2",
        )
    pipelines = []
    notices = []
    for line in mesh_lines(with_trace, sizes):
        notice = _find_contradiction(ranks, line)
        if notice is None:
            pipelines.append(tuple(line))
        else:
            notices.append(notice)
    positions = {rank: mesh_positions(sizes, rank) for rank in with_trace}
    return ParallelGroups(tuple(pipelines), positions, tuple(notices))


def _find_contradiction(ranks: Sequence[RankPipeline], line: Sequence[int]) -> Notice | None:
    """Return a notice if a rank exchanges messages with ranks outside the pipeline that the layout puts it in."""
    for rank in ranks:
        others: set[int] = set()
        if rank.rank in line:
            others = {peer for peer in rank.peers if peer is not None} - set(line)
        if others:
            values: NoticeValues = {
                "case": "layout",
                "pipeline": tuple(line),
                "peers": tuple(sorted(others)),
            }
            return Notice(
                "no-schedule",
                (
                    f"the layout makes ranks {listed(tuple(line), most=8)} one "
                    f"pipeline, but {ranks_named((rank.rank,))} exchanges its messages "
                    f"with rank {listed(tuple(sorted(others)), most=8)}: no schedule "
                    "can be named for it"
                ),
                ranks=(rank.rank,),
                values=values,
            )
    return None


def _from_messages(
    ranks: Sequence[RankPipeline],
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...], tuple[Notice, ...]]:
    """Return the pipelines, the ranks of pipelines of unknown size, and notices."""
    by_rank = {rank.rank: rank for rank in ranks}
    peers: dict[int, Sequence[int | None]] = {}
    without_peers = []
    for rank in ranks:
        peers[rank.rank] = rank.peers
        if rank.peers == (None,):
            without_peers.append(rank)
    connected, notices = _with_unnamed_peers(_connect(peers), without_peers)
    pipelines: list[tuple[int, ...]] = []
    unsized: list[int] = []
    for members in connected:
        recorded = [by_rank[member] for member in members if member in by_rank]
        in_order = _find_pipeline_group(members, recorded, peers)
        if in_order is not None:
            pipelines.append(in_order)
        elif len(recorded) == len(members):
            pipelines.append(tuple(members))
        else:  # those without a trace may have exchanged messages with still others
            unsized += [rank.rank for rank in recorded]
    # Ranks that never exchange messages may be of one pipeline all the same, so a pipeline can be
    # found twice.
    return tuple(dict.fromkeys(pipelines)), tuple(unsized), tuple(notices)


def _with_unnamed_peers(
    connected: list[list[int]], without_peers: Sequence[RankPipeline]
) -> tuple[list[list[int]], list[Notice]]:
    """Return the connected ranks with those whose messages name no peers, by their groups, and notices of them.

    Args:
        connected: Sets of ranks that messages connect; a rank of *without_peers* is connected with
            none.
        without_peers: Ranks whose messages do not name their peers.

    """
    if not without_peers:
        return connected, []
    unconnected = {rank.rank for rank in without_peers}
    groups = [members for members in connected if not unconnected.issuperset(members)]
    notices = []
    for group, members in _group_without_peers(without_peers).items():
        notice = _without_peers_notice(members, group)
        notices.append(notice)
        if notice.code == "no-peers":
            groups.append(members)
    return groups, notices


def _connect(peers: Mapping[int, Sequence[int | None]]) -> list[list[int]]:
    """Return the sets of ranks that messages connect, each ascending, in the order of their lowest rank."""
    members_of: dict[int, set[int]] = {}  # of each rank: the ranks that it is connected with so far
    for rank, others in peers.items():
        members = {rank}
        for linked in (rank, *others):
            if linked is not None:
                members |= members_of.get(linked, {linked})
        for member in members:
            members_of[member] = members
    in_order = {}  # by their lowest rank
    for members in members_of.values():
        in_order[min(members)] = sorted(members)
    return sorted(in_order.values())


def _group_without_peers(ranks: Sequence[RankPipeline]) -> dict[tuple[int, ...], list[int]]:
    """Return the ranks whose messages do not name their peers, by the process group they share.

    (): none is known.
    """
    members: dict[tuple[int, ...], list[int]] = {}
    for rank in sorted(ranks, key=lambda rank: rank.rank):
        members.setdefault(_group_of_messages(rank), []).append(rank.rank)
    return members


def _group_of_messages(rank: RankPipeline) -> tuple[int, ...]:
    """Return the ranks of the process group that carries a rank's messages; () if it is not known.

    It is the first one that is described as a pipeline's, else the one that the messages name.
    """
    used: tuple[int, ...] = ()
    for group in rank.groups:
        if len(group.ranks) < 2 or rank.rank not in group.ranks:
            continue
        if _kind_of_group(group.description) == "pp":
            return group.ranks
        if group.name == rank.group and not used:
            used = group.ranks
    return used


def _without_peers_notice(members: list[int], group: tuple[int, ...]) -> Notice:
    """Return a notice about ranks whose messages do not name their peers.

    Without all ranks nothing is known.
    """
    if not group and members != list(range(len(members))):
        return Notice(
            "no-schedule",
            (
                "messages do not name their peers, and not all ranks are here (only "
                f"{listed(tuple(members), most=8)}): which ranks form a pipeline is "
                "not known; give all, or --layout"
            ),
            ranks=tuple(members),
            values={"case": "ranks_unknown"},
        )
    return Notice(
        "no-peers",
        (
            f"messages do not name their peers: ranks {listed(tuple(members), most=8)} "
            "are taken as one pipeline, in this order; override with --layout"
        ),
        ranks=tuple(members),
        values={"case": "one_pipeline"},
    )


def _find_pipeline_group(
    members: list[int], ranks: Sequence[RankPipeline], peers: Mapping[int, Sequence[int | None]]
) -> tuple[int, ...] | None:
    """Return the ranks of the process group that is the pipeline of these members, in stage order.

    None if unknown.

    It is described as a pipeline group, or it is the communicator of the messages and these go to
    neighbours in it.
    """
    for rank in ranks:
        for group in rank.groups:
            if len(group.ranks) < 2 or not set(members) <= set(group.ranks):
                continue
            if _kind_of_group(group.description) == "pp":
                return group.ranks
            if group.name == rank.group and _are_neighbours(group.ranks, ranks, peers):
                return group.ranks
    return None


def _are_neighbours(
    order: Sequence[int], ranks: Sequence[RankPipeline], peers: Mapping[int, Sequence[int | None]]
) -> bool:
    """Return whether all peers are neighbours in this order, the first and the last being neighbours too."""
    position = {rank: index for index, rank in enumerate(order)}
    distances = set()
    for rank in ranks:
        for peer in peers[rank.rank]:
            if peer is not None:
                distances.add(abs(position[peer] - position[rank.rank]))
    return distances <= {1, len(order) - 1}


@lru_cache(maxsize=1_000)
def _kind_of_group(description: str | None) -> str | None:
    """Return the kind of parallelism that the description of a process group names.

    None for one of several kinds.

    >>> _kind_of_group("EXPERT_DATA_PARALLEL_GROUP"), _kind_of_group("DATA_PARALLEL_GROUP_WITH_CP")
    ('dp', 'dp')
    >>> _kind_of_group("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP") is None
    True
    """
    kind = builtin_rules().group_kind(description or "")
    is_embedding = "embedding" in (description or "").lower()  # the first and the last stage alone
    return kind if kind in GROUP_KINDS and not is_embedding else None


def _group_positions(rank: RankPipeline) -> dict[str, int]:
    """Return the position of a rank in its first group of every kind."""
    positions: dict[str, int] = {}
    for group in rank.groups:
        kind = _kind_of_group(group.description)
        if kind and kind not in positions and rank.rank in group.ranks:
            positions[kind] = group.ranks.index(rank.rank)
    return positions


def name_peers(
    ranks: Sequence[RankPipeline], layout: str | Mapping[str, int] | None = None
) -> tuple[list[RankPipeline], tuple[Notice, ...]]:
    """Return the ranks with the peers of their messages as ranks of the run.

    A notice comes with them if the order of messages gave the peers.
    """
    local = {rank.rank: rank for rank in ranks if rank.peers_local and rank.messages.height}
    if not local:
        return list(ranks), ()
    tables = []
    without_peers = []
    for rank in local.values():
        tables.append(rank.messages.with_columns(rank=pl.lit(rank.rank, pl.Int32)))
        if rank.messages["peer"].is_null().all():
            without_peers.append(rank.rank)
    is_lost = (pl.col("kernel") < 0).fill_null(False)
    times = pl.when(~is_lost).then(pl.col("start_ns", "end_ns"))
    table = conform(pl.concat(tables).with_columns(times), MESSAGES)
    table = table.with_columns(peer=by_communicator(table))
    notices: tuple[Notice, ...] = ()
    if len(without_peers) > 1:
        is_unnamed = pl.col("rank").is_in(without_peers)
        unnamed = table.filter(is_unnamed)
        lines = None if layout is None else mesh_lines(without_peers, layout)
        named = along_pipelines(unnamed, lines)
        if named.pipelines:
            notices = (_order_notice(named, len(unnamed)),)
            table = pl.concat([table.filter(~is_unnamed), unnamed.with_columns(named.peer)])
    named_messages = table.partition_by("rank", as_dict=True, maintain_order=True)
    for number, rank in local.items():
        messages = rank.messages.with_columns(named_messages[number,]["peer"])
        by_order = bool(notices) and number in without_peers
        local[number] = replace(rank, messages=messages, peers_local=False, peers_by_order=by_order)
    return [local.get(rank.rank, rank) for rank in ranks], notices


MAX_RANKS_NAMED = 8
"""Ranks of a pipeline that a sentence names."""
MAX_PIPELINES_NAMED = 4
"""Pipelines that a sentence names; of the others it says how many there are."""


def _order_notice(named: PipelinePeers, count: int) -> Notice:
    values: NoticeValues = {
        "case": "by_order",
        "pipelines": tuple(tuple(line) for line in named.pipelines),
        "met_share": named.met_share,
        "messages": count,
    }
    shown = [listed(line, most=MAX_RANKS_NAMED) for line in named.pipelines[:MAX_PIPELINES_NAMED]]
    more = len(named.pipelines) - len(shown)
    pipelines = "; ".join(shown) + (f" and {more} more" if more else "")
    message = (
        f"messages do not name their peers: along the pipeline of ranks {pipelines} the k-th send meets the k-th "
        f"receive, and {percent(named.met_share, digits=0)} of the {count:,} ran at the same time as their other "
        "side; waiting rests on that match (override with --layout)"
    )
    return Notice("no-peers", message, values=values)
