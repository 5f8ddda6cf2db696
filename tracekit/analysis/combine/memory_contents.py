"""Contents of the memory of ranks, with the stages and micro-batches of the schedule, as documents show it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import polars as pl

from tracekit.against_ideal import ScheduleComparison
from tracekit.analysis.combine.out_of_memory import MAX_SOURCE_LINES, out_of_memory_document
from tracekit.documents import memory as documents
from tracekit.documents.coding import rows
from tracekit.metrics.memory import RankContents

MAX_LEAKS = 10
"""Leaks in a document, the largest."""

Place = tuple[int | None, int | None]
"""Stage and micro-batch."""
Places = Mapping[tuple[int, int], Place]
"""Place by step and pair: the index of a forward within its step."""
UNKNOWN_PLACE: Place = (None, None)


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


def contents_document(
    contents: RankContents,
    *,
    places: Places | None = None,
    ideal_in_flight: int | None = None,
    forward_ns: Mapping[str, float] | None = None,
    link_gb_s: float | None = None,
    capacity_bytes: int | None = None,
) -> documents.MemoryContents:
    """Return what fills one rank's memory.

    Args:
        contents: What was measured.
        places: Stage and micro-batch by step and pair; None without a recognised schedule.
        ideal_in_flight: Most micro-batches in flight in the schedule; None without one.
        forward_ns: GPU time of forwards per step, by module.
        link_gb_s: Bandwidth between host and GPU; None if unknown.
        capacity_bytes: Memory of the GPU; None if unknown.

    """
    has_schedule = ideal_in_flight is not None
    activations = contents.activations["bytes"]
    microbatch_bytes = None
    if has_schedule and len(activations):
        sizes = activations.to_numpy()
        microbatch_bytes = (int(sizes.min()), int(sizes.max()))
    by_category = contents.contents.group_by("category").agg(pl.sum("bytes"))
    by_category = by_category.sort("bytes", "category", descending=[True, False])
    clock = contents.clock
    return documents.MemoryContents(
        source=contents.source,
        clock=None
        if clock is None
        else documents.SnapshotPlace(clock.offset_ns, clock.uncertainty_ns, clock.source),
        peak=_peak(contents, places or {}),
        by_category=dict(by_category.cast({"category": pl.String}).iter_rows()),
        activations=_activations(contents, places or {}),
        lines=_lines(contents),
        modules=_modules(contents, forward_ns or {}, link_gb_s),
        in_flight=contents.in_flight if has_schedule else None,
        ideal_in_flight=ideal_in_flight,
        microbatch_bytes=microbatch_bytes,
        outlived_bytes=contents.outlived_bytes,
        leaks=_leaks(contents, places or {}),
        fragmentation=_fragmentation(contents),
        steps=rows(contents.steps, documents.StepMemory),
        end_allocated_bytes=contents.end_allocated_bytes,
        end_active_bytes=contents.end_active_bytes,
        end_difference_bytes=contents.end_difference_bytes,
        failed_request_bytes=contents.oom_bytes,
        out_of_memory=out_of_memory_document(contents, capacity_bytes),
    )


def _peak(contents: RankContents, places: Places) -> documents.MemoryPeak:
    peak = contents.peak
    stage, microbatch = UNKNOWN_PLACE
    if peak.step is not None and peak.pair is not None:
        stage, microbatch = places.get((peak.step, peak.pair), UNKNOWN_PLACE)
    return documents.MemoryPeak(
        bytes=peak.bytes,
        at_ns=peak.at_ns,
        active_bytes=peak.active_bytes,
        requested_bytes=peak.requested_bytes,
        reserved_bytes=peak.reserved_bytes,
        step=peak.step,
        op=peak.op if places else None,
        stage=stage,
        microbatch=microbatch,
        phase=peak.phase,
        operator=peak.operator,
    )


def _activations(contents: RankContents, places: Places) -> list[documents.CellMemory]:
    """Return the activations at the peak by micro-batch.

    Nothing is known of micro-batches without a schedule.
    """
    activations = contents.contents.filter(pl.col("category") == "activations")
    by_pair = (
        activations.group_by("step", "pair")
        .agg(pl.sum("bytes"))
        .sort("step", "pair", nulls_last=True)
    )
    cells: dict[tuple[int | None, int | None, int | None], int] = {}
    for step, pair, size in by_pair.iter_rows():
        stage, microbatch = places.get((step, pair), UNKNOWN_PLACE)
        key = (step, stage, microbatch)
        cells[key] = cells.get(key, 0) + size
    return [documents.CellMemory(*key, bytes=size) for key, size in cells.items()]


def _lines(contents: RankContents) -> list[documents.LineMemory]:
    """Return the contents by source line and category, the largest first."""
    named = contents.contents.join(contents.stacks.select("stack", "line"), on="stack", how="left")
    key = ["line", "category"]
    lines = named.group_by(key).agg(pl.sum("bytes", "count")).cast({"category": pl.String})
    ordered = lines.sort("bytes", *key, descending=[True, False, False], nulls_last=True)
    return rows(ordered.head(MAX_SOURCE_LINES), documents.LineMemory)


def _modules(
    contents: RankContents, forward_ns: Mapping[str, float], link_gb_s: float | None
) -> list[documents.ModuleMemory]:
    modules = []
    for module, size, step_bytes in contents.modules.iter_rows():
        forward = forward_ns.get(module)
        # Bytes over GB/s are nanoseconds; each byte is copied out and back in.
        offload = None if link_gb_s is None else 2 * step_bytes / link_gb_s
        modules.append(
            documents.ModuleMemory(
                module=module,
                bytes=size,
                step_bytes=step_bytes,
                forward_ns=None if forward is None else round(forward),
                recompute_bytes_per_ms=size / forward * 1e6 if forward else None,
                offload_ns=None if offload is None else round(offload),
                offload_bytes_per_ms=size / offload * 1e6 if offload else None,
            )
        )
    return modules


def _leaks(contents: RankContents, places: Places) -> list[documents.MemoryLeak]:
    lines = dict(contents.stacks.select("stack", "line").iter_rows())
    leaks = []
    for leak in contents.leaks.head(MAX_LEAKS).rows(named=True):
        # Stages and micro-batches of the leaked allocations, as far as they are known.
        stages = set()
        microbatches: set[int] = set()
        for key in product(leak["steps"], leak["pairs"]):
            if key in places:
                stage, microbatch = places[key]
                stages.add(stage)
                if microbatch is not None:
                    microbatches.add(microbatch)
        leaks.append(
            documents.MemoryLeak(
                line=lines.get(leak["stack"]),
                operator=leak["operator"],
                module=leak["module"],
                phase=leak["phase"],
                stage=stages.pop() if len(stages) == 1 else None,
                microbatches=tuple(sorted(microbatches)),
                bytes=leak["bytes"],
                bytes_per_step=leak["bytes_per_step"],
                steps=tuple(leak["steps"]),
            )
        )
    return leaks


def _fragmentation(contents: RankContents) -> documents.MemoryFragmentation | None:
    fragmentation = contents.fragmentation
    if fragmentation is None:
        return None
    lines = dict(contents.stacks.select("stack", "line").iter_rows())
    return documents.MemoryFragmentation(
        at_ns=fragmentation.at_ns,
        reserved_bytes=fragmentation.reserved_bytes,
        allocated_bytes=fragmentation.allocated_bytes,
        pending_bytes=fragmentation.pending_bytes,
        cached_bytes=fragmentation.cached_bytes,
        fragmented_bytes=fragmentation.fragmented_bytes,
        forced_segments=fragmentation.forced_segments,
        forced_bytes=fragmentation.forced_bytes,
        largest_request_bytes=fragmentation.largest_request_bytes,
        largest_request_free_bytes=fragmentation.largest_request_free_bytes,
        largest_request_line=lines.get(fragmentation.largest_request_stack),
    )
