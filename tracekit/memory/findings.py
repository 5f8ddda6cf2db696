"""Findings about GPU memory: a request that failed, a high peak, fragmentation, leaks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tracekit.documents.analysis import AllocatorMemory
from tracekit.documents.findings import EvidenceValue, Finding, Place
from tracekit.documents.memory import MemoryContents, MemoryLeak, ModuleMemory, SnapshotMemory
from tracekit.findings.context import Context

NEARLY_FULL_SHARE = 0.9
"""Reserved share of the GPU's memory from which a peak is near the limit."""
MIN_OUTLIVED_SHARE = 0.05
"""Share of the peak in activations whose backward has ended, from which they are a finding."""
MIN_FRAGMENTED_SHARE = 0.1
"""Share of the reserved memory that is free in pieces, from which fragmentation is a finding."""
MIN_LEAKED_SHARE_PER_STEP = 0.001
"""Share of the peak that a step leaves behind, from which a leak is a finding."""


def memory_findings(context: Context) -> Iterator[Finding]:
    """Yield findings about the memory of each rank: of each kind the rank with most bytes."""
    memory = context.analysis.memory
    if memory is None:
        return
    candidates: dict[str, list[Finding]] = {}
    for rank in memory.figures.ranks:
        if rank.contents is None:
            continue
        for make in (_failures, _peak_findings, _leaks, _fragmentation):
            for finding in make(rank, rank.contents):
                candidates.setdefault(f"{finding.code}.{finding.case}", []).append(finding)
    for findings in candidates.values():
        yield max(findings, key=lambda finding: finding.cost_bytes or 0)


def snapshot_findings(snapshots: Iterable[SnapshotMemory]) -> Iterator[Finding]:
    """Yield the requests that failed of memory snapshots without a trace."""
    for snapshot in snapshots:
        finding = out_of_memory(snapshot.rank, snapshot.contents)
        if finding is not None:
            yield finding


def _failures(rank: AllocatorMemory, contents: MemoryContents) -> Iterator[Finding]:
    """Yield the request of a rank that failed."""
    finding = out_of_memory(rank.rank, contents)
    if finding is not None:
        yield finding


def out_of_memory(rank: int | None, contents: MemoryContents) -> Finding | None:
    """Return the request that failed; None if none did."""
    failure = contents.out_of_memory
    if failure is None:
        return None
    category, category_bytes = next(iter(failure.by_category.items()), ("other", 0))
    evidence: dict[str, EvidenceValue] = {
        "cause": failure.cause,
        "requested_bytes": failure.requested_bytes,
        "missing_bytes": failure.missing_bytes,
        "line": failure.line,
        "origin": failure.origin,
        "device_free_bytes": failure.device_free_bytes,
        "capacity_bytes": failure.capacity_bytes,
        "outside_bytes": failure.outside_bytes,
        "reserved_bytes": failure.reserved_bytes,
        "allocated_bytes": failure.allocated_bytes,
        "fragmented_bytes": failure.fragmented_bytes,
        "largest_piece_bytes": failure.largest_piece_bytes,
        "pools_bytes": failure.other_streams_bytes + failure.private_pools_bytes,
        "leaked_bytes": failure.leaked_bytes,
        "category": category,
        "category_bytes": category_bytes,
        "limit_bytes": failure.limit_bytes,
    }
    if failure.copied is not None:
        evidence["copied_bytes"] = failure.copied.bytes
        evidence["copied_from"] = failure.copied.line
    for prefix, remedy in zip(("remedy", "second_remedy"), failure.remedies, strict=False):
        evidence[prefix] = remedy.code
        evidence[f"{prefix}_bytes"] = remedy.bytes
        evidence[f"{prefix}_is_enough"] = remedy.is_enough
        evidence[f"{prefix}_name"] = remedy.name
    where: tuple[Place, ...] = ()
    if rank is not None:
        where = (Place(rank, None, failure.at_ns, failure.at_ns, None, failure.line),)
    return Finding(
        code="out_of_memory",
        cost_ns=0,
        cost_bytes=failure.requested_bytes,
        share=0.0,
        ranks=() if rank is None else (rank,),
        where=where,
        evidence=evidence,
    )


def _peak_findings(rank: AllocatorMemory, contents: MemoryContents) -> Iterator[Finding]:
    """Yield the first finding about a rank's peak that holds; none where a request failed."""
    if contents.out_of_memory is not None:
        return
    reserved = rank.reserved_bytes or contents.peak.bytes
    capacity = rank.capacity_bytes
    is_nearly_full = capacity is not None and reserved >= NEARLY_FULL_SHARE * capacity
    measured = contents.in_flight
    ideal = contents.ideal_in_flight
    holds_too_many = measured is not None and ideal is not None and measured > ideal
    keeps_after_backward = (
        not contents.leaks and contents.outlived_bytes >= MIN_OUTLIVED_SHARE * contents.peak.bytes
    )
    cases = [  # the first that holds decides
        (is_nearly_full, "nearly_full", contents.peak.bytes),
        (holds_too_many, "above_schedule", _excess_bytes(contents)),
        (keeps_after_backward, "outlived", contents.outlived_bytes),
    ]
    for holds, case, cost_bytes in cases:
        if holds:
            evidence = _peak_evidence(rank, contents)
            yield _finding(
                rank,
                contents,
                code="memory_peak",
                case=case,
                cost_bytes=cost_bytes or 0,
                evidence=evidence,
            )
            return


def _excess_bytes(contents: MemoryContents) -> int:
    """Return the activations of the micro-batches in flight beyond those of the schedule."""
    if (
        contents.in_flight is None
        or contents.ideal_in_flight is None
        or contents.microbatch_bytes is None
    ):
        return 0
    return (contents.in_flight - contents.ideal_in_flight) * contents.microbatch_bytes[0]


def _peak_evidence(rank: AllocatorMemory, contents: MemoryContents) -> dict[str, EvidenceValue]:
    peak = contents.peak
    category, size = next(iter(contents.by_category.items()), ("other", 0))
    module = _cheapest_module(contents.modules)
    return {
        "peak_bytes": peak.bytes,
        "capacity_bytes": rank.capacity_bytes,
        "reserved_bytes": rank.reserved_bytes,
        "failed_request_bytes": contents.failed_request_bytes,
        "category": category,
        "category_bytes": size,
        "in_flight": contents.in_flight,
        "ideal_in_flight": contents.ideal_in_flight,
        "outlived_bytes": contents.outlived_bytes,
        "op": peak.op,
        "stage": peak.stage,
        "microbatch": peak.microbatch,
        "phase": peak.phase,
        "recompute_module": None if module is None else module.module,
        "recompute_bytes": None if module is None else module.bytes,
        "recompute_ns": None if module is None else module.forward_ns,
    }


def _cheapest_module(modules: list[ModuleMemory]) -> ModuleMemory | None:
    """Return the module whose recomputation saves most memory for its time."""
    rated = [module for module in modules if module.recompute_bytes_per_ms]
    return max(rated, key=lambda module: module.recompute_bytes_per_ms or 0.0, default=None)


def _leaks(rank: AllocatorMemory, contents: MemoryContents) -> Iterator[Finding]:
    """Yield a finding about the largest leak of a rank."""
    for leak in contents.leaks[:1]:
        if leak.bytes_per_step < MIN_LEAKED_SHARE_PER_STEP * contents.peak.bytes:
            return
        evidence: dict[str, EvidenceValue] = {
            "leaked_bytes": leak.bytes,
            "step_bytes": leak.bytes_per_step,
            "leaking_steps": len(leak.steps),
            "line": leak.line,
            "operator": leak.operator,
            "module": leak.module,
            "stage": leak.stage,
            "microbatch": leak.microbatches[0] if len(leak.microbatches) == 1 else None,
            "steps_until_full": _steps_until_full(rank, leak),
        }
        yield _finding(
            rank,
            contents,
            code="leak",
            cost_bytes=leak.bytes_per_step,
            evidence=evidence,
            steps=leak.steps,
        )


def _steps_until_full(rank: AllocatorMemory, leak: MemoryLeak) -> int | None:
    """Return the number of steps after which the leak has filled the GPU.

    None if its memory is not known.
    """
    reserved = rank.reserved_bytes
    if rank.capacity_bytes is None or reserved is None or not leak.bytes_per_step:
        return None
    return max(0, rank.capacity_bytes - reserved) // leak.bytes_per_step


def _fragmentation(rank: AllocatorMemory, contents: MemoryContents) -> Iterator[Finding]:
    """Yield a finding about a rank whose memory is free in pieces that requests did not fit into."""
    fragmentation = contents.fragmentation
    if (
        fragmentation is None
        or fragmentation.fragmented_bytes is None
        or not fragmentation.forced_segments
    ):
        return
    if fragmentation.fragmented_bytes < MIN_FRAGMENTED_SHARE * fragmentation.reserved_bytes:
        return
    evidence = {
        "reserved_bytes": fragmentation.reserved_bytes,
        "fragmented_bytes": fragmentation.fragmented_bytes,
        "fragmented_share": fragmentation.fragmented_bytes / fragmentation.reserved_bytes,
        "forced_segments": fragmentation.forced_segments,
        "request_bytes": fragmentation.largest_request_bytes,
        "free_bytes": fragmentation.largest_request_free_bytes,
        "line": fragmentation.largest_request_line,
    }
    yield _finding(
        rank,
        contents,
        code="fragmentation",
        cost_bytes=fragmentation.fragmented_bytes,
        evidence=evidence,
    )


def _finding(
    rank: AllocatorMemory,
    contents: MemoryContents,
    *,
    code: str,
    cost_bytes: int,
    evidence: Mapping[str, EvidenceValue],
    case: str = "",
    steps: tuple[int, ...] = (),
) -> Finding:
    """Return a finding that costs memory and no time, at the moment of the peak."""
    at_ns = contents.peak.at_ns
    line = evidence.get("line")
    source = line if isinstance(line, str) else None
    where: tuple[Place, ...] = ()
    if at_ns is not None:
        where = (
            Place(rank.rank, contents.peak.step, at_ns, at_ns, contents.peak.operator, source),
        )
    return Finding(
        code=code,
        case=case,
        cost_ns=0,
        cost_bytes=cost_bytes,
        share=0.0,
        ranks=(rank.rank,),
        steps=steps,
        where=where,
        evidence=evidence,
    )
