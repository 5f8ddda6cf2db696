"""The ``memory`` call: memory snapshots read and measured without a trace."""

from __future__ import annotations

from msgspec.structs import replace

from tracekit.analysis.memory_snapshots import RankSnapshot, compare_snapshots
from tracekit.errors import InputError, Notice, TracekitError
from tracekit.metrics.memory import history_notices
from tracekit.parsers import remote
from tracekit.parsers.discovery import discover
from tracekit.parsers.file_type import MEMORY_SNAPSHOT
from tracekit.parsers.memory_snapshot import read_memory_snapshot
from tracekit.parsers.source_refs import RankChoice, SourceRef, chosen_ranks
from tracekit.report.notices import with_messages
from tracekit.results.memory import MemoryDiffResult, MemoryResult
from tracekit.store.sources import PathList


def memory(paths: PathList, *, ranks: RankChoice | None = None) -> MemoryResult:
    """Return what fills the GPUs of a run, from its memory snapshots alone.

    Args:
        paths: Files, folders or globs with snapshots of ``torch.cuda.memory._dump_snapshot``;
            traces beside them are not read. ``analyze`` reads both.
        ranks: Ranks to read; by default all.

    >>> report = memory("sample_traces/memory-snapshot", ranks=[0])
    >>> report.snapshots[0].contents.peak.bytes
    587931648

    """
    numbers = chosen_ranks(ranks)
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
                snapshot = read_memory_snapshot(local, name=ref.path)
            measured = RankSnapshot.of(snapshot, ref.rank)
            snapshots.append(measured)
            for notice in (*snapshot.notices, *history_notices(measured.contents)):
                notices.append(replace(notice, ranks=() if ref.rank is None else (ref.rank,)))
        except InputError as error:
            errors.append(error)
            notices.append(Notice("memory-snapshot-failed", values={"error": error.message}))
    if not snapshots:
        raise errors[0]
    return MemoryResult(tuple(snapshots), with_messages(notices))


def _no_snapshot_error(paths: PathList) -> InputError:
    """Return the error for paths without a memory snapshot.

    Of a store it says what became of them.
    """
    stores = []
    for ref in discover(paths, check=False, need_traces=False).refs:
        if ref.reader == "store":
            stores.append(ref.path)
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
    return MemoryDiffResult(compared.changes, compared.notices)
