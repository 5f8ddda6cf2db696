"""How many ranks a pipeline has where only some of its ranks left a trace and no process group shows it.

The peers that messages name are a lower bound: the first rank of any pipeline talks to the second one only. So every
size is tried, with ranks numbered as meshes do it (neighbours equally far apart), and kept where all messages stay
inside the pipeline and the order is a known schedule's at that size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import gcd

import msgspec
import polars as pl

from tracekit.align.clocks import Clocks
from tracekit.compare import identify
from tracekit.compare.identify import Match
from tracekit.errors import Notice
from tracekit.reconstruct.pipeline import Pipeline
from tracekit.reconstruct.rank import RankPipeline
from tracekit.reconstruct.steps import assemble
from tracekit.schedules import Schedule

SIZES = range(2, 17)
"""Pipeline sizes that are tried."""
MOST_CELLS = 2_048
"""Forwards of a whole schedule beyond which a size is not tried: making all schedules of it takes too long."""

Lines = tuple[tuple[int, ...], ...]


class _Fit(msgspec.Struct, frozen=True):
    size: int
    names: tuple[str, ...]
    lines: Lines
    doubts: tuple[bool, bool, bool]


def line_of(rank: int, size: int, stride: int) -> tuple[int, ...]:
    """Return the pipeline that a rank of a regular mesh is in.

    >>> line_of(5, size=4, stride=2)
    (1, 3, 5, 7)
    """
    block = size * stride
    first = rank // block * block + rank % stride
    return tuple(range(first, first + block, stride))


def size_from_order(ranks: Sequence[RankPipeline], wanted: str) -> tuple[Lines, list[Notice]]:
    """Return the pipelines these ranks are in, where one size explains them best, and the notices about it."""
    fits = list(_fits(ranks, wanted))
    who = f"rank{'s' * (len(ranks) > 1)} {', '.join(str(r.rank) for r in ranks[:8])}{' …' * (len(ranks) > 8)}"
    unsized = f"{who}: nothing in the trace says how many ranks the pipeline has"
    if not fits:
        tried = "no known schedule" if wanted == "auto" else wanted
        return (), [_unknown(f"{unsized}, and {tried} of {SIZES[0]} to {SIZES[-1]} ranks has this order")]
    best = min(fit.doubts for fit in fits)
    top, rest = [f for f in fits if f.doubts == best], [f for f in fits if f.doubts != best]
    if len(top) > 1:
        return (), [_unknown(f"{unsized}, and the order is that of {_listed(top)}")]
    finding = f"{unsized}; its order is that of {_listed(top)}"
    if rest:
        text = f"{finding}, and less likely (blocks run apart, or other stages than the ranges say) of {_listed(rest)}"
        return top[0].lines, [
            Notice("schedule-ambiguous", f"{text}; traces of more ranks, or --layout, would decide it")
        ]
    return top[0].lines, [Notice("size-from-order", f"{finding} and of no other size tried; override with --layout")]


def _unknown(text: str) -> Notice:
    return Notice("pipeline-size-unknown", f"{text}: no schedule is named; give more of its ranks, or --layout pp=N")


def _listed(fits: Sequence[_Fit]) -> str:
    """Return names with the sizes they fit at: ``1f1b of 4 ranks, gpipe of 2, 3 … ranks``."""
    sizes: dict[str, list[int]] = {}
    for fit in fits:
        for name in fit.names:
            sizes.setdefault(name, []).append(fit.size)
    return ", ".join(
        f"{name} of {', '.join(map(str, counts[:4]))}{' …' * (len(counts) > 4)} ranks" for name, counts in sizes.items()
    )


def _fits(ranks: Sequence[RankPipeline], wanted: str) -> Iterator[_Fit]:
    peers = {r.rank: set(r.messages["peer"].drop_nulls().to_list()) - {r.rank} for r in ranks}
    stride = gcd(*(abs(peer - rank) for rank, rank_peers in peers.items() for peer in rank_peers))
    worlds = {r.world_size for r in ranks if r.world_size}
    by_rank = {r.rank: r for r in ranks}
    for size in SIZES:
        if not stride or any(world % (size * stride) for world in worlds):
            continue
        lines = {rank: line_of(rank, size, stride) for rank in by_rank}
        if any(not peers[rank] <= set(line) for rank, line in lines.items()):
            continue
        whole = tuple(dict.fromkeys(lines.values()))
        tried = [_match(by_rank, line, wanted) for line in whole]
        if all(tried):
            matches = [fit for fit in tried if fit]
            names = tuple(dict.fromkeys(match.schedule.name for match, _ in matches))
            yield _Fit(size, names, whole, max(doubts for _, doubts in matches))


def _match(
    by_rank: Mapping[int, RankPipeline], line: Sequence[int], wanted: str
) -> tuple[Match, tuple[bool, bool, bool]] | None:
    """Return the schedule this pipeline's fullest step follows and what speaks against it; None for none."""
    present = [by_rank[r] for r in line if r in by_rank]
    steps = set.intersection(*(set(r.by_step) for r in present))
    if not steps:
        return None
    step = max(sorted(steps), key=lambda s: present[0].by_step[s][0].height)
    pipeline = assemble(by_rank, line, step, Clocks.recorded([]))
    orders = pipeline.orders()
    forwards = max(sum(op.kind in ("F", "FB") for op in order) for order in orders.values())
    if len(line) * forwards > MOST_CELLS:
        return None
    match = identify.exact_match(
        orders,
        identify.Lazy(lambda: _known(len(line), forwards, wanted)),
        traffic=pipeline.traffic,
        stages_known=pipeline.stages_from != "nothing",
        weights_by_count=pipeline.weights_counted,
    )
    return (match, _doubts(match, pipeline)) if match else None


def _known(pp: int, forwards: int, wanted: str) -> Iterator[Schedule]:
    """Every schedule of this size with a fixed order, or those the user's word can mean."""
    if wanted != "auto":
        yield from (s for s in identify.named(wanted, pp, forwards) if s.pp == pp)
        return
    yield from identify.candidates(pp, forwards, searched=False)


def _doubts(match: Match, pipeline: Pipeline) -> tuple[bool, bool, bool]:
    """Return what speaks against a match: other stages than the ranges say, blocks run apart, halves run as one."""
    kinds = set(pipeline.detail["op"].cast(pl.String))
    other = pipeline.stages_from == "annotations" and any(
        [op.stage for op in order if op.kind in ("F", "FB")]
        != [op.stage for op in match.schedule.ranks[at] if op.kind in ("F", "FB")]
        for at, order in pipeline.orders().items()
    )
    return other, match.unfused > 0 and "FB" not in kinds, match.fused > 0 and "W" not in kinds
