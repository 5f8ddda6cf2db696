"""Sources of a run: discovery before reading, reading, reports of failures, and checks that they belong to one run."""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
from msgspec.structs import replace

from tracekit._util.notices import of_ranks
from tracekit._util.text import first_of, joined, listing, verb
from tracekit._util.workers import ItemResult
from tracekit.align.gpu_clock import align_gpu_clock
from tracekit.align.recorded_time import leave_out_impossible_times
from tracekit.errors import (
    InputError,
    MachineError,
    Notice,
    NoticeValues,
    OptionError,
    OutputError,
    RuleError,
    TracekitError,
)
from tracekit.parsers import remote
from tracekit.parsers.discovery import Discovery, discover
from tracekit.parsers.file_type import MEMORY_SNAPSHOT, MERGED, ROCM
from tracekit.parsers.one_run import check_single_run
from tracekit.parsers.rank_numbers import missing_ranks
from tracekit.parsers.source_refs import SourceRef
from tracekit.schema import (
    EVENTS,
    GPU_KINDS,
    MULTI_RANK_READERS,
    PYTORCH_READERS,
    GraphCapture,
    MemorySnapshot,
    RankEvents,
    Source,
)
from tracekit.store.files import holds_recordings, open_single_store, open_store

PathList = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
Paths = PathList | Mapping[str, PathList]
"""Paths of a run, or of each of its roles by the role's name."""


class OneRole(msgspec.Struct, frozen=True):
    """Paths of a run of which only one role is read."""

    paths: PathList
    role: str

    def __iter__(self) -> Iterator[str | os.PathLike[str]]:
        return iter([self.paths] if isinstance(self.paths, str | os.PathLike) else self.paths)


MAX_GAP_WITHIN_RUN_NS = 3_600_000_000_000
"""Largest gap (1 h) between the recordings of one run: its ranks are profiled at the same time."""
EARLIEST_DATE_NS = 1_400_000_000_000_000_000
"""Times before this (2014) count from the start of a machine and tell no date."""


def find(
    paths: PathList, *, ranks: Collection[int] | None = None, rank: int | None = None
) -> Discovery:
    """Return what is at *paths*, with one source per rank where the rank is known before reading.

    A store becomes one source per rank. *rank* is the rank of a single file that does not name it.
    Several sources may have the same rank (``roles.assign`` tells them apart).

    >>> [ref.rank for ref in find("sample_traces/reload", ranks=[1, 3]).refs]
    [1, 3]
    """
    discovery = discover(paths, ranks=ranks, rank=rank, check=False)
    refs: list[SourceRef] = []
    notices = list(discovery.notices)
    for ref in discovery.refs:
        if ref.reader != "store":
            refs.append(ref)
            continue
        store = open_store(ref.path)
        if not store.complete:
            notices.append(
                Notice(
                    "store-incomplete",
                    (
                        f"{ref.path}: writing this store was interrupted; go on "
                        "with: tracekit ingest --resume"
                    ),
                    values={"path": ref.path},
                )
            )
        notices += store.notices
        if not store.sources:
            raise _empty_store_error(ref)
        refs += refs_of_store(ref, store.sources)
    refs = _with_snapshots(refs, discovery.recordings)
    if ranks is not None:
        refs = [
            ref for ref in refs if ref.rank in {None, *ranks} or ref.reader in MULTI_RANK_READERS
        ]
    return replace(discovery, refs=tuple(refs), notices=tuple(notices))


def _with_snapshots(refs: Sequence[SourceRef], recordings: Sequence[SourceRef]) -> list[SourceRef]:
    """Return the sources with the memory snapshots that may be of the same process: of their rank, or of none.

    Where some lie in the folder of the trace, only these count.
    """
    snapshots = [ref for ref in recordings if ref.reader == MEMORY_SNAPSHOT]
    if not snapshots:
        return list(refs)
    attached = []
    for ref in refs:
        if ref.reader == "store":
            attached.append(ref)
            continue
        candidates = [snapshot for snapshot in snapshots if snapshot.rank in (None, ref.rank)]
        beside = [snapshot for snapshot in candidates if _folder(snapshot) == _folder(ref)]
        attached.append(replace(ref, snapshots=tuple(beside or candidates)))
    return attached


def _folder(ref: SourceRef) -> str:
    return ref.path.rpartition("/")[0]


def _empty_store_error(ref: SourceRef) -> InputError:
    """Return the error about a store without any rank's events."""
    if holds_recordings(Path(ref.path)):
        problem = "the store holds dumps and logs, but no trace"
        return InputError(problem, path=ref.path, hint="tracekit late reads it")
    problem = "the store holds no rank yet"
    return InputError(problem, path=ref.path, hint="go on with: tracekit ingest --resume")


def refs_of_store(ref: SourceRef, sources: Sequence[Source]) -> list[SourceRef]:
    """Return one source per rank of a store."""
    return [
        replace(
            ref,
            rank=source.rank,
            rank_from=source.rank_from,
            world_size=source.world_size,
            bytes=ref.bytes // len(sources),
            role=ref.role or source.role,
        )
        for source in sources
    ]


def check_one_run(spans: Sequence[tuple[Source, int | None, int | None]]) -> None:
    """Raise if ranks are of different runs.

    A span is a rank's source, first and last time in ns.
    """
    paths_by_run = defaultdict(list)
    dated_spans = []
    for source, start_ns, end_ns in spans:
        if source.run is not None:
            paths_by_run[source.run].append(source.path)
        if start_ns and start_ns > EARLIEST_DATE_NS:
            dated_spans.append((start_ns, end_ns or start_ns, source.path))
    check_single_run([source for source, _, _ in spans])
    if len(paths_by_run) > 1:
        examples = "; ".join(listing(paths, most=2) for paths in list(paths_by_run.values())[:3])
        problem = f"these traces come from {len(paths_by_run)} different runs: {examples}"
        raise InputError(problem, hint="name the files of one run")
    _check_gaps(dated_spans)


def _check_gaps(spans: list[tuple[int, int, str]]) -> None:
    """Raise if a recording starts long after all earlier ones have ended.

    A span is start, end and path.
    """
    latest_end = 0
    latest_path = ""
    for start, end, path in sorted(spans):
        if latest_path and start - latest_end > MAX_GAP_WITHIN_RUN_NS:
            hours = (start - latest_end) / 3.6e12
            problem = f"these traces come from different runs: {path} begins {hours:.0f} h after {latest_path} ends"
            raise InputError(problem, hint="name the files of one run")
        if end > latest_end:
            latest_end = end
            latest_path = path


MIN_GPU_EVENTS_OF_A_COPY = 16
"""GPU events from which two ranks with equal times are one file, copied: a clock of nanoseconds gives no two
ranks even a few equal times."""


def times_digest(events: pl.DataFrame) -> str | None:
    """Return a digest of when and where a rank's GPU events ran; None if they are too few to tell files apart."""
    on_gpu = events.filter(pl.col("kind").is_in(GPU_KINDS))
    if len(on_gpu) < MIN_GPU_EVENTS_OF_A_COPY:
        return None
    digest = hashlib.blake2b(digest_size=16)
    for column in ("start_ns", "end_ns", "device", "stream"):
        digest.update(on_gpu[column].cast(pl.Int64).fill_null(-1).to_numpy().tobytes())
    return digest.hexdigest()


def copied_ranks_notices(sources: Sequence[Source]) -> tuple[Notice, ...]:
    """Return a notice of each group of ranks whose GPU events have the same times to the nanosecond.

    Their files are copies of one; of which rank is unknown.
    """
    by_digest: dict[str, list[Source]] = defaultdict(list)
    for source in sources:
        if source.times_digest is not None:
            by_digest[source.times_digest].append(source)
    notices = []
    for copies in by_digest.values():
        if len(copies) > 1:
            files = tuple(source.path for source in copies)
            ranks = tuple(source.rank for source in copies)
            notices.append(
                Notice(
                    "copied-ranks",
                    (
                        f"{of_ranks(ranks)}{joined(files)} have the same times to the nanosecond: "
                        "they are copies of one rank's file. Which rank's is "
                        "unknown, and none of them is analysed"
                    ),
                    ranks=ranks,
                    values={"files": files},
                )
            )
    return tuple(notices)


def span(part: RankEvents) -> tuple[Source, int | None, int | None]:
    """Return a rank's source, and its first and last time in ns."""
    first, last = part.events.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    return part.source, first, last


def missing_notice(sources: Sequence[Source], *, role: str | None = None) -> tuple[Notice, ...]:
    """Return a notice of the ranks of a run, or of one of its roles, that are missing, if its world size is known."""
    size = max((source.world_size or 0 for source in sources), default=0)
    count, first = missing_ranks(
        {source.rank for source in sources}, size, most=MAX_MISSING_RANKS_KEPT
    )
    if not count:
        return ()
    values: NoticeValues = {
        "count": count,
        "world_size": size,
        "missing": tuple(first),
        "role": role,
    }
    of_role = f"role {role}: " if role else ""
    message = f"{of_role}{missing_ranks_text(count, size, first)}"
    return (Notice("missing-ranks", message, values=values),)


def missing_ranks_text(count: int, world_size: int, first: Sequence[int]) -> str:
    """Return how many ranks are not here, and the first of them."""
    are = verb(count, "is", "are")
    return f"{count} of {world_size} ranks {are} not here: {first_of(first, count=count)}"


FATAL_IF_STRICT = {
    "not-a-trace": "a file is not a trace",
    "missing-ranks": "ranks are missing",
    "copied-ranks": "files of several ranks are copies of one",
    "rank-failed": "a rank cannot be read",
    "store-incomplete": "the store is not complete",
}
"""Notices that are errors with ``--strict``, and what the error says."""


def check_strict(notices: Sequence[Notice]) -> None:
    """Raise the first notice of a trace that was skipped or is missing: with ``--strict`` they are fatal.

    >>> check_strict([Notice("no-steps")])
    """
    for notice in notices:
        if notice.code in FATAL_IF_STRICT:
            problem = FATAL_IF_STRICT[notice.code]
            hint = "leave out --strict to go on without them"
            raise InputError(problem, hint=hint, notice=notice)


ReadSnapshot = Callable[..., MemorySnapshot]
"""Reads a memory snapshot from a path, with the *name* to call it in messages."""
MAX_MISSING_RANKS_KEPT = 4
"""Missing ranks that their notice holds; there may be very many."""
MAX_FAILURES_LISTED = 20
"""Failed sources that have a notice of their own; further ones share one notice."""
MAX_UNLISTED_PATHS = 8
"""Paths that the shared notice holds."""


def read_ref(
    ref: SourceRef,
    *,
    ranks: Collection[int] | None = None,
    stacks: bool = False,
    lenient: bool = True,
    read_snapshot: ReadSnapshot | None = None,
) -> list[RankEvents]:
    """Read one source: one rank, or all ranks of an Nsight Systems report.

    Args:
        ref: The source.
        ranks: Ranks to return; by default all.
        stacks: Read Python frames too.
        lenient: Use what can be read of a damaged file; otherwise it is an error.
        read_snapshot: Reads the rank's memory snapshots; by default they are left unread.

    """
    if ref.reader == "store":
        assert ref.rank is not None, "a store's sources name their rank"
        part = open_single_store(ref.path).rank(ref.rank)
        parts = [
            replace_fields(part, source=replace(part.source, role=ref.role or part.source.role))
        ]
    else:
        with remote.fetch_to_local(ref.url or ref.path) as local:
            parts = READERS[ref.reader](local, ref, stacks, lenient)
            capture = None if ref.capture is None else read_capture(ref, local, lenient=lenient)
        parts = [_with_discovered_rank(part, ref, only_rank=len(parts) == 1) for part in parts]
        parts = [_with_times_digest(part) for part in parts]
        parts = [align_gpu_clock(leave_out_impossible_times(part)) for part in parts]
        if read_snapshot is not None and ref.snapshots and len(parts) == 1:
            parts = [_with_snapshot_contents(parts[0], ref.snapshots, read_snapshot)]
        if capture is not None:
            parts = [replace_fields(part, capture=capture) for part in parts]
    if ranks is None:
        return parts
    return [part for part in parts if part.source.rank in ranks]


def read_capture(replay: SourceRef, replay_file: str, *, lenient: bool = True) -> GraphCapture:
    """Read the capture that is attached to a source, which was read from *replay_file*."""
    from tracekit.parsers.kineto.captures import read_kernel_blocks, read_launched_kernels

    ref = replay.capture
    assert ref is not None, "only sources with a capture are read with it"
    if ref.reader not in PYTORCH_READERS:
        hint = "give the trace that PyTorch's profiler wrote while the graph was captured"
        raise InputError("a capture is read from PyTorch traces alone", path=ref.path, hint=hint)
    with remote.fetch_to_local(ref.url or ref.path) as local:
        (part,) = READERS[ref.reader](local, ref, False, lenient)
        capture = GraphCapture(part.events, ref.path)
        if ref.reader == "kineto":
            capture = replace_fields(capture, kernels=read_launched_kernels(local))
    if replay.reader == "kineto":
        capture = replace_fields(capture, blocks=read_kernel_blocks(replay_file))
    return capture


def attach_captures(refs: Sequence[SourceRef], captures: Sequence[SourceRef]) -> list[SourceRef]:
    """Return the sources, each with the capture of its rank, or with the only one there is.

    >>> replay, capture = SourceRef("replay.json", "kineto", 0), SourceRef("capture.json", "kineto", 0)
    >>> attach_captures([replay], [capture])[0].capture.path
    'capture.json'
    """
    by_rank = {ref.rank: ref for ref in captures}
    attached = []
    for ref in refs:
        capture = by_rank.get(ref.rank)
        if capture is None and len(captures) == 1:
            capture = captures[0]
        attached.append(ref if capture is None else replace(ref, capture=capture))
    return attached


def attach_named_capture(
    refs: Sequence[SourceRef], capture: PathList | None
) -> tuple[SourceRef, ...]:
    """Return the sources with the capture at the path that the caller named, if there is one.

    The paths of captures are absolute: workers may run in another folder.
    """
    if capture is None:
        return tuple(refs)
    captures = []
    for ref in discover(capture).refs:
        path = ref.path if ref.url is not None else os.path.abspath(ref.path)  # noqa: PTH100
        captures.append(replace(ref, path=path))
    return tuple(attach_captures(refs, captures))


def separate_captures(refs: Sequence[SourceRef]) -> list[SourceRef] | None:
    """Return the sources that are not captures, with those that are attached.

    None if there are no captures.

    Only ranks with several files are looked into, and files that do not say their rank.
    """
    from tracekit.parsers.kineto.captures import holds_capture

    files_of = Counter(ref.rank for ref in refs)
    captures = []
    others = []
    for ref in refs:
        may_be_capture = ref.reader == "kineto" and ref.url is None and len(refs) > 1
        is_ambiguous = ref.rank is None or files_of[ref.rank] > 1 or None in files_of
        if may_be_capture and is_ambiguous and holds_capture(ref.path):
            captures.append(ref)
        else:
            others.append(ref)
    if not captures or not others:
        return None
    if len(others) == 1 and others[0].rank is None:
        others = [replace(others[0], rank=0, rank_from="only file")]
    return attach_captures(others, captures)


def _with_snapshot_contents(
    part: RankEvents, refs: Sequence[SourceRef], read_snapshot: ReadSnapshot
) -> RankEvents:
    """Return a rank with its memory snapshots.

    One that cannot be read is left out, with a notice.
    """
    snapshots = []
    notices = []
    for ref in refs:
        try:
            with remote.fetch_to_local(ref.url or ref.path) as local:
                snapshots.append(read_snapshot(local, name=ref.path))
        except InputError as error:
            notices.append(
                Notice(
                    "memory-snapshot-failed",
                    (f"a memory snapshot is left out: {error.message}"),
                    values={"case": "unreadable", "error": error.message},
                )
            )
    source = replace(part.source, notices=(*part.source.notices, *notices))
    return replace_fields(part, source=source, snapshots=tuple(snapshots))


def _read_kineto(path: str, ref: SourceRef, stacks: bool, lenient: bool) -> list[RankEvents]:
    from tracekit.parsers import kineto

    rank = ref.rank if ref.rank_from != "content" else None
    return [kineto.read(path, rank=rank, stacks=stacks, lenient=lenient)]


def _read_merged(path: str, _: SourceRef, stacks: bool, lenient: bool) -> list[RankEvents]:
    from tracekit.parsers import kineto

    return kineto.read_ranks(path, stacks=stacks, lenient=lenient)


def _read_nsight(path: str, ref: SourceRef, _: bool, lenient: bool) -> list[RankEvents]:
    from tracekit.parsers import nsight

    return nsight.read(path, rank=ref.rank if ref.rank_from == "option" else None, lenient=lenient)


def _read_perfetto(path: str, ref: SourceRef, stacks: bool, lenient: bool) -> list[RankEvents]:
    from tracekit.parsers import perfetto

    return [perfetto.read(path, rank=ref.rank, stacks=stacks, lenient=lenient)]


def _read_rocm(path: str, ref: SourceRef, _: bool, lenient: bool) -> list[RankEvents]:
    from tracekit.parsers import rocm

    return rocm.read(path, rank=ref.rank if ref.rank_from == "option" else None, lenient=lenient)


READERS: dict[str, Callable[[str, SourceRef, bool, bool], list[RankEvents]]] = {
    "kineto": _read_kineto,
    MERGED: _read_merged,
    "perfetto": _read_perfetto,
    "nsight": _read_nsight,
    ROCM: _read_rocm,
}
"""The function of each reader that ``parsers.file_type`` names; arguments: local file, source,
stacks, lenient."""


def _with_discovered_rank(part: RankEvents, ref: SourceRef, *, only_rank: bool) -> RankEvents:
    """Return a rank with the path of its source and, if its file does not name it, the rank that discovery found."""
    source = replace(part.source, path=ref.path, role=ref.role)
    if (
        not only_rank
        or source.rank_from == "content"
        or ref.rank is None
        or ref.rank_from == "content"
    ):
        return replace_fields(part, source=source)
    events = part.events
    memory = part.memory
    if source.rank != ref.rank:
        events = events.with_columns(rank=pl.lit(ref.rank, EVENTS["rank"]))
        memory = memory.with_columns(rank=pl.lit(ref.rank, EVENTS["rank"]))
    return RankEvents(
        events, replace(source, rank=ref.rank, rank_from=ref.rank_from), memory, part.snapshots
    )


def _with_times_digest(part: RankEvents) -> RankEvents:
    source = replace(part.source, times_digest=times_digest(part.events))
    return replace_fields(part, source=source)


def _failures(
    results: Sequence[ItemResult[SourceRef, Any]],
) -> list[tuple[SourceRef, TracekitError]]:
    return [(result.item, result.error) for result in results if result.error is not None]


def raise_failures(results: Sequence[ItemResult[SourceRef, Any]]) -> None:
    """Raise the first failure, if there is any, with the number of further ones."""
    failures = _failures(results)
    if not failures:
        return
    ref, error = failures[0]
    more = f" (and {len(failures) - 1} more files cannot be read)" if len(failures) > 1 else ""
    raise error.copy(path=error.path or ref.path, more=more)


def failure_notices(
    results: Sequence[ItemResult[SourceRef, Any]], *, strict: bool = False, already_stored: int = 0
) -> tuple[Notice, ...]:
    """Return notices of the sources that could not be read.

    Raise if these are all, or with *strict* any.

    Args:
        results: Results of the sources that were read now.
        strict: Whether a single failure is an error.
        already_stored: Number of further sources, which a resumed store has: not all have failed
            then.

    >>> from tracekit.errors import InputError
    >>> good, bad = SourceRef("rank0.json", "kineto", 0), SourceRef("rank1.json", "kineto", 1)
    >>> failed = ItemResult(1, bad, error=InputError("ends early", path="rank1.json"))
    >>> failure_notices([ItemResult(0, good, value=[]), failed])[0].values["error"]
    'rank1.json: ends early'
    """
    failures = _failures(results)
    all_failed = len(failures) == len(results) + already_stored
    # These errors are about the call (its rules, its store, its options) or the machine, not about
    # the source that they came up at: which ranks would be left out is chance.
    errors_of_call: tuple[type[TracekitError], ...] = (MachineError, OutputError, RuleError)
    if all_failed:
        errors_of_call += (OptionError,)
    for _, error in failures:
        if isinstance(error, errors_of_call):
            raise error
    if strict or all_failed:
        raise_failures(results)
    notices = [_failure_notice(*failure) for failure in failures[:MAX_FAILURES_LISTED]]
    if unlisted := failures[MAX_FAILURES_LISTED:]:
        paths = tuple(ref.path for ref, _ in unlisted[:MAX_UNLISTED_PATHS])
        notices.append(
            Notice(
                "rank-failed",
                (f"{len(unlisted)} more are left out: {first_of(paths, count=len(unlisted))}"),
                values={"case": "others", "count": len(unlisted), "paths": paths},
            )
        )
    return tuple(notices)


def _failure_notice(ref: SourceRef, error: TracekitError) -> Notice:
    """Return a notice of a source that could not be read, with an error that names its path."""
    message = error.copy(path=ref.path).message
    values: NoticeValues = {"case": "source", "path": ref.path, "error": message}
    if ref.rank is None:
        return Notice("rank-failed", (f"a source is left out: {message}"), values=values)
    return Notice(
        "rank-failed",
        f"rank {ref.rank} is left out: {message}",
        ranks=(ref.rank,),
        values=values | {"case": "rank"},
    )
