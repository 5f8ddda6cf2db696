"""The ``memory`` call: memory snapshots read and measured without a trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from msgspec.structs import replace

from tracekit.analysis.memory_snapshots import RankSnapshot, compare_snapshots
from tracekit.errors import InputError, Notice, OptionError, TracekitError
from tracekit.findings.memory import snapshot_findings
from tracekit.metrics.memory import history_notices
from tracekit.parsers import remote
from tracekit.parsers.discovery import discover
from tracekit.parsers.file_type import MEMORY_SNAPSHOT
from tracekit.parsers.memory_snapshot import read_memory_snapshots
from tracekit.parsers.rank_numbers import RankChoice, chosen_ranks
from tracekit.parsers.source_refs import SourceRef
from tracekit.report.findings import with_sentences
from tracekit.report.notices import with_messages
from tracekit.results.memory import MemoryDiffResult, MemoryResult
from tracekit.schema import MemorySnapshot
from tracekit.store.sources import PathList

MAX_GPU_MEMORY_GB = 100_000.0
"""Largest memory of a GPU that is taken for one."""


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
    numbers = chosen_ranks(ranks)
    capacity_bytes = _capacity_bytes(gpu_memory_gb)
    refs = find_snapshots(paths)
    if numbers is not None:
        refs = [ref for ref in refs if ref.rank in numbers]
    if not refs:
        raise _no_snapshot_error(paths)
    snapshots = []
    notices: list[Notice] = []
    errors: list[TracekitError] = []
    for ref in refs:
        try:
            with remote.fetch_to_local(ref.url or ref.path) as local:
                of_file = read_memory_snapshots(local, name=ref.path)
            of_gpus, notices_of_file = _measure_gpus(of_file, ref.rank, capacity_bytes)
            snapshots += of_gpus
            notices += notices_of_file
        except InputError as error:
            errors.append(error)
            notices.append(Notice("memory-snapshot-failed", values={"error": error.message}))
    if not snapshots:
        raise errors[0]
    result = MemoryResult(tuple(snapshots), with_messages(notices))
    findings = with_sentences(snapshot_findings(result.to_document().snapshots))
    return dataclasses.replace(result, findings=findings)


def _measure_gpus(
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
            notices.append(replace(notice, ranks=ranks))
    if not measured:
        raise InputError(
            f"{snapshots[0].path}: holds no allocation",
            hint="write it while the model is in memory",
        )
    return measured, notices


def _capacity_bytes(gpu_memory_gb: float | None) -> int | None:
    """Return the memory of a GPU in bytes; raise if it is not positive."""
    if gpu_memory_gb is None:
        return None
    if not 0 < gpu_memory_gb < MAX_GPU_MEMORY_GB:
        raise OptionError(
            f"{gpu_memory_gb} GB is no GPU's memory", hint="give it in GB, such as 80"
        )
    return round(gpu_memory_gb * 1e9)


def _no_snapshot_error(paths: PathList) -> InputError:
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
