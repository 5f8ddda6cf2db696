"""Which ranks form a pipeline together, and each rank's place in every kind of group."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import prod

import msgspec
from msgspec.structs import replace

from tracekit._util.text import ranks_named
from tracekit.errors import Notice, OptionError
from tracekit.parsers.ranks import MOST_RANKS
from tracekit.reconstruct.rank import RankPipeline

_KINDS = {
    "pp": r"pipe|\bpp\b|_pp|pp_",
    "ep": r"expert|\bep\b|_ep|ep_",
    "tp": r"tensor|\btp\b|_tp|tp_",
    "cp": r"context|\bcp\b|_cp|cp_",
    "dp": r"data|\bdp\b|_dp|dp_|fsdp|replicate|shard",
}


class Roles(msgspec.Struct, frozen=True):
    """The pipelines of a run, ranks in stage order, and positions: ``positions[rank]["ep"]``.

    ``unsized`` are ranks whose pipeline is not among these: others of it have no trace, and nothing says how many.
    """

    pipelines: tuple[tuple[int, ...], ...]
    positions: Mapping[int, Mapping[str, int]]
    notices: tuple[Notice, ...] = ()
    unsized: tuple[int, ...] = ()


NODE = "node"
"""The word of a layout for how many consecutive ranks share a machine; the others are sizes of the mesh."""


def split_layout(text: str | None) -> tuple[str | None, int | None]:
    """Return the mesh of a layout and the number of ranks on a node, each None where it is not given.

    >>> split_layout("pp=4,ep=2,node=8"), split_layout("node=8")
    (('pp=4,ep=2', 8), (None, 8))
    """
    if text is None:
        return None, None
    words = [word for word in map(str.strip, text.split(",")) if word]
    nodes = [word for word in words if word.partition("=")[0].strip() == NODE]
    mesh = ",".join(word for word in words if word not in nodes) or (None if nodes else text)
    if not nodes:
        return mesh, None
    size = nodes[0].partition("=")[2].strip()
    if len(nodes) > 1 or not re.fullmatch(r"[1-9]\d{0,5}", size):
        raise OptionError(f"layout {text!r} does not say how many ranks a node has", hint="write it as node=8")
    if mesh is not None:
        parse_layout(mesh)
    return mesh, int(size)


def parse_layout(text: str) -> dict[str, int]:
    """Return the sizes of a mesh written as ``pp=4,ep=2``, the last one varying fastest from rank to rank.

    >>> parse_layout("pp=4,ep=2")
    {'pp': 4, 'ep': 2}
    >>> parse_layout("pp4")
    Traceback (most recent call last):
    tracekit.errors.OptionError: layout 'pp4' is not NAME=size,… (write it as pp=4,ep=2: slowest first)
    """
    sizes: dict[str, int] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"([a-z]\w*)=([1-9]\d*)", word)
        if not match or match[1] in sizes:
            raise OptionError(f"layout {text!r} is not NAME=size,…", hint="write it as pp=4,ep=2: slowest first")
        sizes[match[1]] = int(match[2])
    if "pp" not in sizes:
        raise OptionError(f"layout {text!r} has no pp", hint="write it as pp=4,ep=2: slowest first")
    return sizes


def mesh_positions(sizes: Mapping[str, int], rank: int) -> dict[str, int]:
    """Return a rank's place along every axis of the mesh.

    >>> mesh_positions({"pp": 4, "ep": 2}, 5)
    {'pp': 2, 'ep': 1}
    """
    place: dict[str, int] = {}
    for name, size in reversed(list(sizes.items())):
        place[name] = rank % size
        rank //= size
    return dict(reversed(list(place.items())))


def mesh_lines(ranks: Sequence[int], layout: str | Mapping[str, int]) -> list[list[int]]:
    """Return the pipelines of a mesh that have any of the *ranks*, each in stage order.

    >>> mesh_lines([0, 1], "pp=2,ep=2")
    [[0, 2], [1, 3]]
    """
    sizes = parse_layout(layout) if isinstance(layout, str) else dict(layout)
    lines: dict[tuple[tuple[str, int], ...], list[int]] = {}
    for rank in range(prod(sizes.values())):
        place = mesh_positions(sizes, rank)
        lines.setdefault(tuple((k, v) for k, v in place.items() if k != "pp"), []).append(rank)
    return [line for line in lines.values() if set(line) & set(ranks)]


def find_roles(ranks: Sequence[RankPipeline], layout: str | Mapping[str, int] | None = None) -> Roles:
    """Return pipelines and positions, from the layout if given, else from who sent to whom and the process groups."""
    if layout is not None:
        return _from_mesh(ranks, parse_layout(layout) if isinstance(layout, str) else dict(layout))
    notices: list[Notice] = []
    pipelines, unsized = _from_messages(ranks, notices)
    positions: dict[int, dict[str, int]] = {r.rank: _group_positions(r) for r in ranks}
    return with_pipelines(Roles((), positions, tuple(notices), unsized), pipelines)


def with_pipelines(roles: Roles, more: Sequence[tuple[int, ...]]) -> Roles:
    """Return the roles with more pipelines, and notices of what is missing in these."""
    positions = {rank: dict(place) for rank, place in roles.positions.items()}
    missing = [_missing(pipeline, roles.positions) for pipeline in more]
    for pipeline in more:
        for place, rank in enumerate(pipeline):
            positions.setdefault(rank, {})["pp"] = place
    notices = (*roles.notices, *(n for n in missing if n))
    return replace(roles, pipelines=(*roles.pipelines, *more), positions=positions, notices=notices)


def _missing(pipeline: Sequence[int], known: Mapping[int, object]) -> Notice | None:
    missing = [m for m in pipeline if m not in known]
    if not missing:
        return None
    text = f"pipeline of ranks {_few(pipeline)}: no trace of {ranks_named(missing)}: their cells, and what they held "
    return Notice("partial-pipeline", f"{text}up, cannot be known")


def _from_mesh(ranks: Sequence[RankPipeline], sizes: Mapping[str, int]) -> Roles:
    world, highest = prod(sizes.values()), max(r.rank for r in ranks)
    if highest >= world:
        given = ",".join(f"{name}={size}" for name, size in sizes.items())
        raise OptionError(
            f"layout {given} has {world} ranks, the trace has rank {highest}",
            hint="its sizes multiply to the number of ranks",
        )
    if world >= MOST_RANKS:
        raise OptionError(f"the layout has {world} ranks, more than any run", hint="write sizes such as pp=4,ep=2")
    places = {rank: mesh_positions(sizes, rank) for rank in range(world)}
    present = {r.rank for r in ranks}
    pipelines = tuple(tuple(line) for line in mesh_lines(sorted(present), sizes))
    against = {line: _leaving(ranks, line) for line in pipelines}
    fitting = tuple(line for line, notice in against.items() if notice is None)
    return Roles(fitting, {rank: places[rank] for rank in sorted(present)}, tuple(filter(None, against.values())))


def _leaving(ranks: Sequence[RankPipeline], line: Sequence[int]) -> Notice | None:
    """Return a notice of messages to or from ranks that the layout does not put into the same pipeline."""
    for r in ranks:
        others = {peer for peer in r.peers if peer is not None} - set(line) if r.rank in line else ()
        if others:
            text = (
                f"the layout makes ranks {_few(line)} one pipeline, but rank {r.rank} exchanges its messages with rank"
            )
            return Notice("layout-contradicted", f"{text} {_few(sorted(others))}: no schedule can be named for it")
    return None


def _from_messages(
    ranks: Sequence[RankPipeline], notices: list[Notice]
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Return the pipelines, and the ranks that are in one whose size is not known."""
    parent = {r.rank: r.rank for r in ranks}

    def root(rank: int) -> int:
        while parent.setdefault(rank, rank) != rank:
            rank = parent[rank]
        return rank

    peers = {r.rank: r.peers for r in ranks}
    for rank, others in peers.items():
        for peer in others:
            if peer is not None:
                parent[root(peer)] = root(rank)
    by_root: dict[int, list[int]] = {}
    for rank in sorted(parent):
        by_root.setdefault(root(rank), []).append(rank)
    known = {r.rank: r for r in ranks}
    nameless = [r for r in ranks if peers[r.rank] == (None,)]
    if nameless:
        by_root = {k: m for k, m in by_root.items() if not set(m) <= {r.rank for r in nameless}}
        for k, (shared, members) in enumerate(_nameless(nameless).items()):
            notices.append(_nameless_notice(members, shared))
            if notices[-1].code == "peers-unknown":
                by_root[-1 - k] = members
    pipelines, unsized = [], []
    for members in by_root.values():
        full = _complete(members, [known[m] for m in members if m in known], peers)
        if full is not None:
            pipelines.append(tuple(full))
        elif all(m in known for m in members):
            pipelines.append(tuple(members))
        else:  # those without a trace may have talked to others still
            unsized += [m for m in members if m in known]
    # Parts that never talk to each other may be one pipeline all the same.
    return tuple(dict.fromkeys(pipelines)), tuple(unsized)


def _nameless(ranks: Sequence[RankPipeline]) -> dict[tuple[int, ...], list[int]]:
    """Return the ranks whose messages do not name their peers, by the group they share (() where none is known)."""
    lines: dict[tuple[int, ...], list[int]] = {}
    for r in ranks:
        groups = [g for g in r.groups if len(g.ranks) > 1 and r.rank in g.ranks]
        described = [g.ranks for g in groups if _kind(g.description) == "pp"]
        used = [g.ranks for g in groups if g.name == r.group]
        lines.setdefault(next(iter(described + used), ()), []).append(r.rank)
    return {shared: sorted(line) for shared, line in lines.items()}


def _nameless_notice(members: list[int], shared: tuple[int, ...]) -> Notice:
    """Return a notice about ranks whose messages do not name their peers; without all ranks nothing is known."""
    if not shared and members != list(range(len(members))):
        text = f"messages do not name their peers, and not all ranks are here (only {_few(members)})"
        return Notice("ranks-unknown", f"{text}: which ranks form a pipeline is not known; give all, or --layout")
    text = f"messages do not name their peers: ranks {_few(members)} are taken as one pipeline, in this order"
    return Notice("peers-unknown", f"{text}; override with --layout")


def _complete(
    members: list[int], ranks: Sequence[RankPipeline], peers: Mapping[int, Sequence[int | None]]
) -> list[int] | None:
    """Return the pipeline's ranks in order, from its communicator if that is a pipeline group; None where unknown."""
    for r in ranks:
        for group in r.groups:
            if len(group.ranks) < 2 or not set(members) <= set(group.ranks):
                continue
            if _kind(group.description) == "pp":
                return list(group.ranks)
            if group.name == r.group and _chain(group.ranks, [(one.rank, peers[one.rank]) for one in ranks]):
                return list(group.ranks)
    return None


def _chain(order: Sequence[int], ranks: Iterable[tuple[int, Sequence[int | None]]]) -> bool:
    """Whether everyone's peers are neighbours in this order, so that it may well be a pipeline."""
    place = {rank: i for i, rank in enumerate(order)}
    steps = {
        abs(place.get(peer, -9) - place.get(rank, 0)) for rank, peers in ranks for peer in peers if peer is not None
    }
    return steps <= {1, len(order) - 1}


def _kind(description: str | None) -> str | None:
    text = (description or "").lower()
    return next((kind for kind, pattern in _KINDS.items() if re.search(pattern, text)), None)


def _group_positions(rank: RankPipeline) -> dict[str, int]:
    positions: dict[str, int] = {}
    for group in rank.groups:
        kind = _kind(group.description)
        if kind and kind not in positions and rank.rank in group.ranks:
            positions[kind] = group.ranks.index(rank.rank)
    return positions


def _few(ranks: Iterable[int]) -> str:
    listed = list(ranks)
    return ", ".join(map(str, listed[:8])) + (f" … ({len(listed)} in all)" if len(listed) > 8 else "")
