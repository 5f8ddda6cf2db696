"""GPU memory: what fills it, why it ran out, and what grows, from memory snapshots.

What is heavy is imported when the call is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.errors import InputError, Notice, TracekitError

if TYPE_CHECKING:
    from tracekit.memory.result import MemoryResult
    from tracekit.parsers.rank_numbers import RankChoice
    from tracekit.store.sources import PathList

__all__ = ["memory"]


def memory(
    paths: PathList, *, ranks: RankChoice | None = None, gpu_memory_gb: float | None = None
) -> MemoryResult:
    """Return what fills the GPUs of a run, from its memory snapshots alone.

    Args:
        paths: Files, folders or globs with snapshots of ``torch.cuda.memory._dump_snapshot``;
            traces beside them are not read. ``analyze`` reads both.
        ranks: Ranks to read; by default all.
        gpu_memory_gb: Memory of each GPU in GB, which a snapshot does not tell: what other
            processes hold follows from it where memory ran out.

    >>> report = memory("sample_traces/memory-snapshot", ranks=[0])
    >>> report.snapshots[0].contents.figures.peak.bytes
    587931648

    """
    import dataclasses

    from tracekit.memory.findings import snapshot_findings
    from tracekit.memory.result import MemoryResult
    from tracekit.memory.run import capacity_bytes, find_snapshots, measure_gpus, no_snapshot_error
    from tracekit.memory.snapshot_file import read_memory_snapshots
    from tracekit.parsers import remote
    from tracekit.parsers.rank_numbers import chosen_ranks, unknown_rank_error

    numbers = chosen_ranks(ranks)
    capacity = capacity_bytes(gpu_memory_gb)
    refs = find_snapshots(paths)
    if not refs:
        raise no_snapshot_error(paths)
    if numbers is not None:
        present = [ref.rank for ref in refs if ref.rank is not None]
        refs = [ref for ref in refs if ref.rank in numbers]
        if not refs:
            raise unknown_rank_error(numbers, present)
    snapshots = []
    notices: list[Notice] = []
    errors: list[TracekitError] = []
    for ref in refs:
        try:
            with remote.fetch_to_local(ref.url or ref.path) as local:
                of_file = read_memory_snapshots(local, name=ref.path)
            of_gpus, notices_of_file = measure_gpus(of_file, ref.rank, capacity)
            snapshots += of_gpus
            notices += notices_of_file
        except InputError as error:
            errors.append(error)
            notices.append(
                Notice(
                    "memory-snapshot-failed",
                    (f"a memory snapshot is left out: {error.message}"),
                    values={"case": "unreadable", "error": error.message},
                )
            )
    if not snapshots:
        raise errors[0]
    result = MemoryResult(tuple(snapshots), tuple(notices))
    findings = snapshot_findings(result.to_document().snapshots)
    documents = tuple(finding.to_document() for finding in findings)
    return dataclasses.replace(result, findings=documents)
