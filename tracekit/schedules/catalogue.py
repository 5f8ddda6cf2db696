"""The schedules that come with tracekit, as data: what each is, who found it, and which sizes it takes."""

from __future__ import annotations

from tracekit.schedules import chimera, classic, controllable, dualpipe, greedy, interleaved, zero_bubble
from tracekit.schedules.registry import Entry, Sizes

_GROUPS = (
    "needs micro-batches that divide into equal groups of about pp, or a group G with pp ≤ G ≤ microbatches "
    "whose rest is 0 or at least pp micro-batches"
)


def _grouped(n: Sizes) -> bool:
    if n.group == interleaved.default_group(n.pp, n.microbatches):
        return True
    rest = n.microbatches % n.group if n.group else 1
    return n.pp <= n.group <= n.microbatches and (rest == 0 or rest >= n.pp)


def _even(n: Sizes) -> bool:
    return n.pp % 2 == 0


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
    Entry(
        "interleaved",
        lambda n: interleaved.interleaved(n.pp, n.microbatches, n.virtual, n.group),
        summary="1F1B over several chunks per rank (Megatron's virtual pipeline)",
        source="Narayanan et al. 2021, arXiv:2104.04473",
        constraint=f"interleaved {_GROUPS}",
        holds=_grouped,
        virtual=None,
        default_group=interleaved.default_group,
    ),
    Entry(
        "interleaved-overlap",
        lambda n: interleaved.interleaved_overlap(n.pp, n.microbatches, n.virtual, n.group),
        summary="interleaved with one warm-up more, every steady pair overlapped (Kimi K2)",
        source="Kimi K2 2025, arXiv:2507.20534; Megatron's MoE overlap",
        constraint=f"interleaved-overlap {_GROUPS}",
        holds=_grouped,
        virtual=None,
        default_group=interleaved.default_group,
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
    Entry(
        "interleaved-zb",
        lambda n: interleaved.interleaved_zero_bubble(n.pp, n.microbatches, n.virtual, n.group),
        summary="interleaved with the backward split in two (PyTorch)",
        source="PyTorch, torch.distributed.pipelining",
        constraint=f"interleaved-zb {_GROUPS}",
        holds=_grouped,
        virtual=None,
        default_group=interleaved.default_group,
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
        lambda n: chimera.chimera(n.pp, n.microbatches),
        summary="two pipelines through the same ranks, one down and one up",
        source="Li and Hoefler 2021, arXiv:2107.06925",
        constraint="chimera needs an even number of ranks and micro-batches in multiples of pp",
        holds=lambda n: _even(n) and n.microbatches % n.pp == 0,
    ),
    Entry(
        "dualpipe",
        lambda n: dualpipe.dualpipe(n.pp, n.microbatches),
        summary="micro-batches enter at both ends; forwards and backwards overlapped in pairs (DeepSeek-V3)",
        source="DeepSeek-AI 2024, arXiv:2412.19437",
        constraint="dualpipe needs an even number of ranks and at least 2×pp micro-batches",
        holds=lambda n: _even(n) and n.microbatches >= 2 * n.pp,
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
