"""Size of a pipeline of which some ranks have no trace and no process group is recorded.

The peers of messages are a lower bound: the first rank of any pipeline exchanges messages with the second one only. So
every size is tried, with ranks numbered as in a mesh (neighbours at equal distances). A size fits if all messages stay
inside the pipeline and the order is a known schedule's at that size.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import gcd

import msgspec
import polars as pl

from tracekit._util.text import plural
from tracekit.align.clocks import Clocks
from tracekit.compare.find_schedule import OrderSearch
from tracekit.compare.identify import Match, candidates, forward_stages, named_candidates
from tracekit.errors import Notice
from tracekit.reconstruct.pipeline import Pipeline
from tracekit.reconstruct.pipeline_steps import assemble
from tracekit.reconstruct.rank_pipeline import RankPipeline

SIZES_TO_TRY = range(2, 17)
MAX_FORWARDS_TO_TRY = 2_048
"""Forwards of a whole schedule above which a size is not tried: generating all schedules of it takes too long."""

Pipelines = tuple[tuple[int, ...], ...]
"""Ranks of each pipeline in stage order."""

Doubts = tuple[bool, bool, bool]
"""Evidence against a match, the strongest first; see ``_find_doubts``."""


class _FittingSize(msgspec.Struct, frozen=True):
    """A size at which the order is a known schedule's."""

    size: int
    names: tuple[str, ...]  # of the schedules
    pipelines: Pipelines
    doubts: Doubts


def pipeline_of(rank: int, size: int, stride: int) -> tuple[int, ...]:
    """Return the ranks of the pipeline that contains a rank of a regular mesh.

    >>> pipeline_of(5, size=4, stride=2)
    (1, 3, 5, 7)
    """
    block = size * stride
    first = rank // block * block + rank % stride
    return tuple(range(first, first + block, stride))


def find_pipeline_size(ranks: Sequence[RankPipeline], wanted: str) -> tuple[Pipelines, list[Notice]]:
    """Find the pipelines of ranks by the size that explains their order best.

    Args:
        ranks: Tables of the ranks.
        wanted: ``auto``, or the schedule that the user named.

    Returns:
        The pipelines, none if no size or several fit best, and notices about them.
    """
    fits = list(_fitting_sizes(ranks, wanted))
    numbers = ", ".join(str(rank.rank) for rank in ranks[:8]) + (" …" if len(ranks) > 8 else "")
    noun = "rank" if len(ranks) == 1 else plural("rank")
    unsized = f"{noun} {numbers}: nothing in the trace says how many ranks the pipeline has"
    if not fits:
        tried = "no known schedule" if wanted == "auto" else wanted
        sizes = f"{SIZES_TO_TRY[0]} to {SIZES_TO_TRY[-1]}"
        return (), [_size_unknown(f"{unsized}, and {tried} of {sizes} ranks has this order")]
    least_doubts = min(fit.doubts for fit in fits)
    best = [fit for fit in fits if fit.doubts == least_doubts]
    others = [fit for fit in fits if fit.doubts != least_doubts]
    if len(best) > 1:
        return (), [_size_unknown(f"{unsized}, and the order is that of {_list_sizes(best)}")]
    text = f"{unsized}; its order is that of {_list_sizes(best)}"
    if not others:
        text += " and of no other size tried; override with --layout"
        return best[0].pipelines, [Notice("size-from-order", text)]
    text += f", and less likely (blocks run apart, or other stages than the ranges say) of {_list_sizes(others)}"
    text += "; traces of more ranks, or --layout, would decide it"
    return best[0].pipelines, [Notice("schedule-ambiguous", text)]


def _size_unknown(text: str) -> Notice:
    return Notice("pipeline-size-unknown", f"{text}: no schedule is named; give more of its ranks, or --layout pp=N")


def _list_sizes(fits: Sequence[_FittingSize]) -> str:
    """Return names with the sizes at which they fit: ``1f1b of 4 ranks, gpipe of 2, 3 … ranks``."""
    sizes: dict[str, list[int]] = {}
    for fit in fits:
        for name in fit.names:
            sizes.setdefault(name, []).append(fit.size)
    return ", ".join(
        f"{name} of {', '.join(map(str, fitting[:4]))}{' …' if len(fitting) > 4 else ''} ranks"
        for name, fitting in sizes.items()
    )


def _fitting_sizes(ranks: Sequence[RankPipeline], wanted: str) -> Iterator[_FittingSize]:
    """Yield the sizes at which messages and orders of all ranks fit."""
    by_rank = {rank.rank: rank for rank in ranks}
    peers = {number: set(rank.messages["peer"].drop_nulls().to_list()) - {number} for number, rank in by_rank.items()}
    stride = gcd(*(abs(peer - number) for number, rank_peers in peers.items() for peer in rank_peers))
    if not stride:
        return
    world_sizes = {rank.world_size for rank in ranks if rank.world_size}
    for size in SIZES_TO_TRY:
        pipeline_of_rank = {number: pipeline_of(number, size, stride) for number in by_rank}
        if any(world_size % (size * stride) for world_size in world_sizes):
            continue
        if not all(peers[number] <= set(pipeline) for number, pipeline in pipeline_of_rank.items()):
            continue
        pipelines = tuple(dict.fromkeys(pipeline_of_rank.values()))
        matches = [_match_fullest_step(by_rank, pipeline, wanted) for pipeline in pipelines]
        fitting = [entry for entry in matches if entry is not None]
        if len(fitting) == len(pipelines):
            names = tuple(dict.fromkeys(match.schedule.name for match, _ in fitting))
            yield _FittingSize(size, names, pipelines, max(doubts for _, doubts in fitting))


def _match_fullest_step(
    by_rank: Mapping[int, RankPipeline], pipeline_ranks: Sequence[int], wanted: str
) -> tuple[Match, Doubts] | None:
    """Return the schedule that the step with the most chunks follows, and the doubts; None if there is none."""
    ranks = [by_rank[rank] for rank in pipeline_ranks if rank in by_rank]
    steps = set.intersection(*(set(rank.by_step) for rank in ranks))
    if not steps:
        return None
    step = max(sorted(steps), key=lambda step: ranks[0].by_step[step][0].height)
    search = OrderSearch(assemble(by_rank, pipeline_ranks, step, Clocks.recorded([])))
    if search.pp * search.forwards > MAX_FORWARDS_TO_TRY:
        return None
    schedules = candidates(search.pp, search.forwards, searched=False)
    if wanted != "auto":
        named = named_candidates(wanted, search.pp, search.forwards)
        schedules = (schedule for schedule in named if schedule.pp == search.pp)
    match = search.exact_match(schedules)
    return (match, _find_doubts(match, search.pipeline)) if match else None


def _find_doubts(match: Match, pipeline: Pipeline) -> Doubts:
    """Return whether the stages differ from those of the ranges, blocks ran apart, and split backwards ran whole."""
    kinds = set(pipeline.detail["op"].cast(pl.String))
    other_stages = pipeline.stages_from == "annotations" and any(
        forward_stages(order) != forward_stages(match.schedule.ranks[position])
        for position, order in pipeline.orders.items()
    )
    blocks_apart = match.blocks_run_apart > 0 and "FB" not in kinds
    backwards_whole = match.backwards_run_whole > 0 and "W" not in kinds
    return other_stages, blocks_apart, backwards_whole
