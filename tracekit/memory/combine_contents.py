"""Contents of the memory of ranks with what the schedule and other tables tell of them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import polars as pl
from msgspec.structs import replace

from tracekit.documents.memory import MemoryContents, MemoryLeak, MemoryPeak, ModuleMemory
from tracekit.memory.measures import RankContents
from tracekit.memory.measures.activations import (
    UNKNOWN_PLACE,
    Place,
    Places,
    cells_with_activations,
)
from tracekit.pipeline.against_ideal import ScheduleComparison


def find_places(comparison: ScheduleComparison | None) -> dict[int, dict[tuple[int, int], Place]]:
    """Return by rank the stage and micro-batch of each forward, and of its backwards, as the schedule names them."""
    places: dict[int, dict[tuple[int, int], Place]] = {}
    for compared in () if comparison is None else comparison.all:
        detail = compared.pipeline.detail
        forward = detail.select("rank", "step", "pair", "stage", "microbatch")
        backward = detail.select(
            "rank", "step", pair="b_pair", stage="b_stage", microbatch="b_microbatch"
        )
        for rank, step, pair, stage, microbatch in pl.concat(
            [forward, backward.cast(forward.schema)]
        ).iter_rows():
            if pair is not None and stage is not None:
                places.setdefault(rank, {})[step, pair] = (stage, microbatch)
    return places


def complete_contents(
    contents: RankContents,
    *,
    places: Places,
    ideal_in_flight: int | None,
    forward_ns: Mapping[str, float],
    link_gb_s: float | None,
) -> MemoryContents:
    """Return what fills one rank's memory, with stages, micro-batches and the cost of saving activations.

    Args:
        contents: What was measured.
        places: Stage and micro-batch by step and pair; empty without a recognised schedule.
        ideal_in_flight: Most micro-batches in flight in the schedule; None without one.
        forward_ns: GPU time of forwards per step, by module.
        link_gb_s: Bandwidth between host and GPU; None if unknown.

    """
    figures = contents.figures
    has_schedule = ideal_in_flight is not None
    microbatch_bytes = None
    sizes = contents.activations["bytes"].to_numpy()
    if has_schedule and len(sizes):
        microbatch_bytes = (int(sizes.min()), int(sizes.max()))
    return replace(
        figures,
        peak=_peak(contents, places),
        activations=cells_with_activations(contents.contents, places),
        modules=[_module(module, forward_ns, link_gb_s) for module in figures.modules],
        in_flight=figures.in_flight if has_schedule else None,
        ideal_in_flight=ideal_in_flight,
        microbatch_bytes=microbatch_bytes,
        leaks=_leaks(contents, places),
    )


def _peak(contents: RankContents, places: Places) -> MemoryPeak:
    peak = contents.figures.peak
    stage, microbatch = UNKNOWN_PLACE
    if peak.step is not None and contents.peak_pair is not None:
        stage, microbatch = places.get((peak.step, contents.peak_pair), UNKNOWN_PLACE)
    op = peak.op if places else None
    return replace(peak, op=op, stage=stage, microbatch=microbatch)


def _module(
    module: ModuleMemory, forward_ns: Mapping[str, float], link_gb_s: float | None
) -> ModuleMemory:
    """Return a module with what recomputing or offloading its activations costs."""
    forward = forward_ns.get(module.module)
    # Bytes over GB/s are nanoseconds; each byte is copied out and back in.
    offload = None if link_gb_s is None else 2 * module.step_bytes / link_gb_s
    return replace(
        module,
        forward_ns=None if forward is None else round(forward),
        recompute_bytes_per_ms=module.bytes / forward * 1e6 if forward else None,
        offload_ns=None if offload is None else round(offload),
        offload_bytes_per_ms=module.bytes / offload * 1e6 if offload else None,
    )


def _leaks(contents: RankContents, places: Places) -> list[MemoryLeak]:
    """Return the leaks with the stages and micro-batches that left them, as far as these are known."""
    leaks = []
    pairs_of_leaks = contents.leaks["pairs"].to_list()
    for leak, pairs in zip(contents.figures.leaks, pairs_of_leaks, strict=False):
        left_by = [places[key] for key in product(leak.steps, pairs) if key in places]
        stages = {stage for stage, _ in left_by}
        microbatches = {microbatch for _, microbatch in left_by if microbatch is not None}
        leaks.append(
            replace(
                leak,
                stage=stages.pop() if len(stages) == 1 else None,
                microbatches=tuple(sorted(microbatches)),
            )
        )
    return leaks
