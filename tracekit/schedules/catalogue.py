"""Catalogue of the schedules that come with tracekit: generator, source and accepted sizes of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from tracekit.schedules import classic, controllable, dualpipe, greedy, interleaved, zero_bubble
from tracekit.schedules.ops import Op
from tracekit.schedules.times import Times


class Sizes(NamedTuple):
    """Sizes and times of the schedule to generate. ``group`` is 0 where the schedule has no groups.

    >>> Sizes(pp=4, microbatches=8, virtual=1, group=0, times=Times()).pp
    4
    """

    pp: int
    microbatches: int
    virtual: int
    group: int
    times: Times


Orders = Iterable[Sequence[Op] | str]
"""The order of each rank: ops, or a line in the notation."""


class Entry(msgspec.Struct, frozen=True):
    """A schedule of the registry.

    >>> from tracekit.schedules import describe
    >>> describe("1f1b").virtual
    1
    """

    name: str
    build: Callable[[Sizes], Orders]
    summary: str
    source: str = ""
    constraint: str = ""
    """Sizes it accepts, in words: "dualpipe needs …"; empty if it accepts any."""
    holds: Callable[[Sizes], bool] = lambda _: True
    """Whether the constraint holds for some sizes."""
    virtual: int | None = 1
    """Chunks per rank; None: the user chooses (default 2)."""
    default_group: Callable[[int, int], int | None] | None = None
    """Micro-batches per group for some ranks and micro-batches; None: the schedule has no groups."""
    pipeline: bool = True
    """Whether it is a pipeline of micro-batches; weight-reload is not."""
    searched: bool = False
    """Whether its order is searched for the given times, so that its sizes do not determine it."""


_GROUP_CONSTRAINT = (
    "needs micro-batches that divide into equal groups of about pp, or a group G with pp ≤ G ≤ microbatches "
    "whose rest is 0 or at least pp micro-batches"
)


def _has_valid_group(n: Sizes) -> bool:
    """Return whether ``_GROUP_CONSTRAINT`` holds."""
    if n.group == interleaved.default_group(n.pp, n.microbatches):
        return True
    rest = n.microbatches % n.group if n.group else 1
    return n.pp <= n.group <= n.microbatches and (rest == 0 or rest >= n.pp)


def _grouped_entry(name: str, build: Callable[[Sizes], Orders], *, summary: str, source: str) -> Entry:
    """Return the entry of an interleaved schedule, whose micro-batches run in groups."""
    return Entry(
        name,
        build,
        summary,
        source,
        constraint=f"{name} {_GROUP_CONSTRAINT}",
        holds=_has_valid_group,
        virtual=None,
        default_group=interleaved.default_group,
    )


CATALOGUE = (
    Entry(
        "gpipe",
        lambda n: classic.gpipe(n.pp, n.microbatches),
        summary="all forwards, then all backwards",
        source="Huang et al. 2019, arXiv:1811.06965",
    ),
    Entry(
        "1f1b",
        lambda n: classic.one_f_one_b(n.pp, n.microbatches),
        summary="one forward, one backward: warm up, alternate, drain",
        source="Narayanan et al. 2021, arXiv:2006.09503",
    ),
    _grouped_entry(
        "interleaved",
        lambda n: interleaved.interleaved(n.pp, n.microbatches, n.virtual, n.group),
        summary="1F1B over several chunks per rank (Megatron's virtual pipeline)",
        source="Narayanan et al. 2021, arXiv:2104.04473",
    ),
    _grouped_entry(
        "interleaved-overlap",
        lambda n: interleaved.interleaved_overlap(n.pp, n.microbatches, n.virtual, n.group),
        summary="interleaved with one warm-up more, every steady pair overlapped (Kimi K2)",
        source="Kimi K2 2025, arXiv:2507.20534; Megatron's MoE overlap",
    ),
    Entry(
        "looped-bfs",
        lambda n: interleaved.looped_bfs(n.pp, n.microbatches, n.virtual),
        summary="chunk after chunk all forwards, then back all backwards",
        source="Lamy-Poirier 2023, arXiv:2211.05953",
        virtual=None,
    ),
    Entry(
        "zb-h1",
        lambda n: zero_bubble.zb_h(n.pp, n.microbatches, h=1),
        summary="backward split in two, W fills what was empty; 1F1B's memory",
        source="Qi et al. 2023, arXiv:2401.10241",
    ),
    Entry(
        "zb-h2",
        lambda n: zero_bubble.zb_h(n.pp, n.microbatches, h=2),
        summary="as zb-h1 with twice the memory and no inner gaps at F = I = W",
        source="Qi et al. 2023, arXiv:2401.10241",
    ),
    Entry(
        "zb-1p",
        lambda n: greedy.search(n.pp, n.microbatches, n.times, limit=n.pp),
        summary="searched order for the given times, activations of pp micro-batches",
        source="Qi et al. 2023, arXiv:2401.10241",
        searched=True,
    ),
    Entry(
        "zb-2p",
        lambda n: greedy.search(n.pp, n.microbatches, n.times, limit=2 * n.pp),
        summary="searched order for the given times, activations of 2·pp micro-batches",
        source="Qi et al. 2023, arXiv:2401.10241",
        searched=True,
    ),
    _grouped_entry(
        "interleaved-zb",
        lambda n: interleaved.interleaved_zero_bubble(n.pp, n.microbatches, n.virtual, n.group),
        summary="interleaved with the backward split in two (PyTorch)",
        source="PyTorch, torch.distributed.pipelining",
    ),
    Entry(
        "zb-v",
        lambda n: zero_bubble.zb_v(n.pp, n.microbatches),
        summary="two chunks per rank in a V, no inner gaps at F = I = W, 1F1B's memory",
        source="Qi et al. 2024, arXiv:2405.15362",
        virtual=2,
    ),
    Entry(
        "v-half",
        lambda n: controllable.v_half(n.pp, n.microbatches),
        summary="V-shape with about half of 1F1B's memory",
        source="Qi et al. 2024, arXiv:2405.15362",
        virtual=2,
    ),
    Entry(
        "v-min",
        lambda n: controllable.v_min(n.pp, n.microbatches),
        summary="V-shape with about a third of 1F1B's memory",
        source="Qi et al. 2024, arXiv:2405.15362",
        virtual=2,
    ),
    Entry(
        "chimera",
        lambda n: classic.chimera(n.pp, n.microbatches),
        summary="two pipelines through the same ranks, one down and one up",
        source="Li and Hoefler 2021, arXiv:2107.06925",
        constraint="chimera needs an even number of ranks and micro-batches in multiples of pp",
        holds=lambda n: n.pp % 2 == 0 and n.microbatches % n.pp == 0,
    ),
    Entry(
        "dualpipe",
        lambda n: dualpipe.dualpipe(n.pp, n.microbatches),
        summary="micro-batches enter at both ends; forwards and backwards overlapped in pairs (DeepSeek-V3)",
        source="DeepSeek-AI 2024, arXiv:2412.19437",
        constraint="dualpipe needs an even number of ranks and at least 2×pp micro-batches",
        holds=lambda n: n.pp % 2 == 0 and n.microbatches >= 2 * n.pp,
        virtual=2,
    ),
    Entry(
        "dualpipev",
        lambda n: dualpipe.dualpipev(n.pp, n.microbatches),
        summary="DualPipe cut in half: two chunks per rank in a V, no second copy of the weights",
        source="DeepSeek-AI 2025, github.com/deepseek-ai/DualPipe",
        constraint="dualpipev needs at least 2×pp micro-batches",
        holds=lambda n: n.microbatches >= 2 * n.pp,
        virtual=2,
    ),
    Entry(
        "weight-reload",
        lambda _: (),
        summary="checkpoint-engine's update of inference weights: copy, broadcast and reload in a pipeline",
        source="Moonshot AI 2025, github.com/MoonshotAI/checkpoint-engine",
        constraint="weight-reload needs ranks and rounds of 1 or more",
        pipeline=False,
    ),
)
"""In the order ``names()`` lists them."""
