"""What a recording could hold beyond what most answers need: not missing, but worth knowing of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tracekit.doctor.recording import RankFacts
from tracekit.metrics.peaks import PEAKS_VARIABLE, find_gpu


class Extra(msgspec.Struct, frozen=True):
    """Something more: when a rank lacks it, what it would add, and how to get it."""

    code: str
    lacks: Callable[[RankFacts], bool]
    adds: str
    how: str


EXTRAS = (
    Extra(
        "memory",
        lambda f: f.source.reader == "kineto" and f.gpu_events > 0 and f.allocations == 0,
        "memory by phase and rank, GB a chunk, and which schedules would not fit",
        "profile(profile_memory=True) or tracekit.profiler(…, memory=True): one event more per allocation, about a "
        "fifth more of a trace",
    ),
    Extra(
        "memory-totals",
        lambda f: f.gpu_events > 0 and f.allocations > 0 and f.with_totals == 0,
        "memory by phase and rank: allocations were recorded without their totals, as PyTorch did in 2021",
        "record with a newer PyTorch",
    ),
    Extra(
        "peaks",
        lambda f: f.gpu_events > 0 and f.with_shapes > 0 and not any(map(find_gpu, f.source.devices)),
        "share of the GPU's peak and model FLOP utilisation: this GPU's peak is not known",
        f"name the GPU and its peaks in a file, and that file in {PEAKS_VARIABLE}",
    ),
)
"""In the order they are told; a new one is an entry."""


def extras(facts: Sequence[RankFacts]) -> list[Extra]:
    """Return what some rank could hold more."""
    return [extra for extra in EXTRAS if any(map(extra.lacks, facts))]
