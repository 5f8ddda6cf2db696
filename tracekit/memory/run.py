"""Memory snapshots found, read and measured without a trace, and compared."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit._util.notices import with_ranks
from tracekit.errors import InputError, Notice, OptionError
from tracekit.memory import memory
from tracekit.memory.measures import history_notices
from tracekit.memory.result import MemoryDiffResult
from tracekit.memory.snapshots import RankSnapshot, compare_snapshots
from tracekit.parsers.discovery import discover
from tracekit.parsers.file_type import MEMORY_SNAPSHOT
from tracekit.parsers.source_refs import SourceRef
from tracekit.schema import MemorySnapshot
from tracekit.store.sources import PathList

MAX_GPU_MEMORY_GB = 100_000.0
"""Largest memory of a GPU that is taken for one."""


def measure_gpus(
    snapshots: Sequence[MemorySnapshot], rank: int | None, capacity_bytes: int | None
) -> tuple[list[RankSnapshot], list[Notice]]:
    """Return what each GPU of one file holds, and notices. GPUs without an allocation are left out."""
    measured = []
    notices = []
    ranks = () if rank is None else (rank,)
    for snapshot in snapshots:
        try:
            of_gpu = RankSnapshot.of(snapshot, rank, capacity_bytes=capacity_bytes)
        except InputError:
            if len(snapshots) == 1:
                raise
            continue
        measured.append(of_gpu)
        for notice in (*snapshot.notices, *history_notices(of_gpu.contents)):
            notices.append(with_ranks(notice, ranks))
    if not measured:
        raise InputError(
            "holds no allocation",
            path=snapshots[0].path,
            hint="write it while the model is in memory",
        )
    return measured, notices


def capacity_bytes(gpu_memory_gb: float | None) -> int | None:
    """Return the memory of a GPU in bytes; raise if it is not positive."""
    if gpu_memory_gb is None:
        return None
    if not 0 < gpu_memory_gb < MAX_GPU_MEMORY_GB:
        raise OptionError(
            f"{gpu_memory_gb} GB is no GPU's memory", hint="give it in GB, such as 80"
        )
    return round(gpu_memory_gb * 1e9)


def no_snapshot_error(paths: PathList) -> InputError:
    """Return the error for paths without a memory snapshot.

    Of a store it says what became of them.
    """
    stores = [
        ref.path
        for ref in discover(paths, check=False, need_traces=False).refs
        if ref.reader == "store"
    ]
    if stores:
        problem = (
            f"{stores[0]}: a store keeps what analyze tells of memory snapshots, not the snapshots"
        )
        return InputError(
            problem, hint=f"tracekit analyze {stores[0]}, or name the folder of the snapshots"
        )
    return InputError(
        "there is no memory snapshot here", hint="torch.cuda.memory._dump_snapshot writes one"
    )


def find_snapshots(paths: PathList) -> list[SourceRef]:
    """Return the memory snapshots at *paths*, by rank."""
    discovery = discover(paths, check=False, need_traces=False)
    return [ref for ref in discovery.recordings if ref.reader == MEMORY_SNAPSHOT]


def holds_snapshots_alone(paths: PathList) -> bool:
    """Return whether there are memory snapshots at *paths* and no traces."""
    try:
        discovery = discover(paths, check=False, need_traces=False)
    except InputError:  # a saved analysis, say, or nothing at all: whoever reads it says so
        return False
    has_snapshots = any(ref.reader == MEMORY_SNAPSHOT for ref in discovery.recordings)
    return has_snapshots and not discovery.refs


def diff_memory(before: PathList, after: PathList) -> MemoryDiffResult:
    """Return what changed from one memory snapshot to another, or between those of each rank of two runs.

    >>> change = diff_memory("sample_traces/memory-snapshot/memory_rank0.pickle.gz",
    ...                      "sample_traces/memory-snapshot/memory_rank3.pickle.gz")
    >>> change.changes[0].peak.after_bytes
    407083520
    """
    compared = compare_snapshots(memory(before), memory(after))
    return MemoryDiffResult(compared.changes, compared.notices, compared.pairs)
