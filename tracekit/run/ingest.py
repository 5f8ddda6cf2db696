"""The ``ingest`` call: traces written into a store, by worker processes, a Dask cluster or any other executor.

A worker gets a path. It reads, labels and measures that trace, writes its rank into the store, and
returns only the rank's entry in the manifest. Analysis across ranks (clocks, waits, the pipeline
and its ideal) then works on the small tables in the store. Traces that fail are listed by path; the
ranks done so far are kept. Flight-recorder dumps and NCCL Inspector logs beside the traces, or
alone, become the store's table of collectives.
"""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from tracekit._util.arguments import checked_path
from tracekit._util.machine import give_back_memory
from tracekit._util.workers import ItemResult
from tracekit.analysis.measure.tables import label_rank, measure_rank
from tracekit.analysis.persistence import write_tables
from tracekit.classify import load_rules
from tracekit.classify.classify_events import classify_with_lost
from tracekit.classify.graph_replays import join_replays
from tracekit.documents.store_manifest import StoreEntry
from tracekit.errors import InputError, Notice, OptionError
from tracekit.late.find_recordings import find_recordings, has_recordings_alone
from tracekit.late.recordings import Recordings
from tracekit.late.store import read_stored_recordings, write_recordings
from tracekit.memory.snapshot_file import read_memory_snapshot
from tracekit.parsers.rank_numbers import RankChoice, chosen_ranks
from tracekit.parsers.source_refs import SourceRef
from tracekit.roles.assign import group_by_role
from tracekit.rooms import ROOM_MEASURES
from tracekit.run import driver
from tracekit.schema import MULTI_RANK_READERS
from tracekit.store import source_workers
from tracekit.store.files import (
    ROLE_PREFIX,
    Store,
    content_key,
    is_store,
    labelled_by,
    open_store,
    write_rank,
)
from tracekit.store.sources import OneRole, PathList, Paths, failure_notices, read_ref, span
from tracekit.store.stored_run import (
    StoredRun,
    check_recordings_of_store,
    check_store_at,
    may_replace_rank,
)
from tracekit.store.writer import StoreWriter, locked_target, store_folder


@dataclass(frozen=True, slots=True)
class RankIngest:
    """The work of one rank as a function of its source.

    Picklable, so that any executor can run it.
    """

    folder: str
    """The store, which the workers must be able to reach."""
    rules: str | None = None
    """A rules file, which the workers must be able to reach."""
    ranks: frozenset[int] | None = None
    stacks: bool = False
    lenient: bool = True
    stored_run: StoredRun | None = None
    """The run in a store that is resumed: ranks of another run are not written."""

    def __call__(self, ref: SourceRef) -> list[StoreEntry]:
        """Read, label and measure a source.

        Write its rank (the ranks of an Nsight report) into the store.
        """
        key = self.key(ref)
        rules = None if self.rules is None else load_rules(Path(self.rules))
        parts = read_ref(
            ref,
            ranks=self.ranks,
            stacks=self.stacks,
            lenient=self.lenient,
            read_snapshot=read_memory_snapshot,
        )
        if self.stored_run is not None:
            for part in parts:
                self.stored_run.check(*span(part))
        source_ranks = [part.source.rank for part in parts]
        entries = []
        for part in parts:
            replays = None if part.capture is None else join_replays(part.events, part.capture)
            labelled, lost = classify_with_lost(part.events, rules=rules, replays=replays)
            labelled_rank = label_rank(part, labelled=labelled, lost=lost)
            tables = measure_rank(labelled_rank, rooms=ROOM_MEASURES)
            give_back_memory()  # for writing, which needs memory too
            entries.append(
                write_rank(
                    Path(self.folder),
                    part,
                    labelled,
                    key=key,
                    together=source_ranks,
                    beside=lambda folder, tables=tables: write_tables(tables, folder),  # type: ignore[misc]
                    may_replace=None if self.stored_run is None else may_replace_rank,
                )
            )
        return entries

    def key(self, ref: SourceRef) -> str:
        """Return the digest of the source and of the options that the rank in the store depends on."""
        may_hold_several = ref.reader in MULTI_RANK_READERS
        ranks = sorted(self.ranks) if self.ranks is not None and may_hold_several else None
        return content_key(ref, (labelled_by(self.rules), self.stacks, self.lenient, ranks))


def ingest(
    paths: Paths | OneRole,
    store: str | os.PathLike[str],
    *,
    ranks: RankChoice | None = None,
    file_rank: int | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    stacks: bool = False,
    rules: str | os.PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    on_damage: driver.OnDamage = "warn",
) -> Store:
    """Write traces as a store (every rank's events, labels and tables).

    Return it, with the notices of writing it.

    A new store is written in place, so that an interruption leaves the ranks done so far. A store
    that is there is continued with *resume*, if it is of the same run, and replaced with
    *overwrite*, when the new one is complete; otherwise it is an error. A store never holds ranks
    of two runs.

    Args:
        paths: Files, a folder, a glob, a URL or a store; for ranks with several processes also the
            paths of each role by its name.
        store: Folder to write; with several roles, each has a folder of its own in it
            (``Store.roles``).
        ranks: Ranks to read; by default all.
        file_rank: Rank of a single file that does not name it.
        workers: Number of worker processes, or of the executor's workers; by default as many as
            pay.
        executor: Any ``concurrent.futures`` executor; it stays open.
        stacks: Keep Python frames too.
        rules: Rules file to label with, before the built-in rules.
        resume: Read only traces that are not in the store or have changed since.
        overwrite: Replace the store that is there.
        on_damage: ``warn`` uses what can be read of damaged files and leaves out missing and
            unreadable ranks, with notices; ``skip`` leaves out damaged ranks as well; ``error``
            raises.

    >>> import tempfile
    >>> store = ingest("sample_traces/reload", tempfile.mkdtemp() + "/store", ranks=[0, 1])
    >>> store.ranks, store.notices
    ((0, 1), ())

    """
    driver.check_on_damage(on_damage)
    ranks = chosen_ranks(ranks)
    strict = on_damage == "error"
    if rules is not None:
        load_rules(Path(rules))  # raises here if it is wrong, not once per rank
    target = checked_path(store, "store").absolute()
    # Dumps and logs are of no role: where roles are named, they are not looked for.
    paths_with_recordings = None if isinstance(paths, Mapping | OneRole) else paths
    if resume and overwrite:
        raise OptionError(
            "a store is either continued or replaced", hint="leave out resume or overwrite"
        )
    if paths_with_recordings is not None and has_recordings_alone(paths_with_recordings):
        return _ingest_recordings(
            paths_with_recordings, target, ranks=ranks, resume=resume, overwrite=overwrite
        )
    discovery = driver.find_sources(paths, ranks=ranks, rank=file_rank, strict=strict)
    refs = tuple(with_absolute_path(ref) for ref in discovery.refs)
    if resume and any(Path(ref.path) == target for ref in refs):
        raise OptionError("cannot be resumed from itself", path=target, hint="name the traces")
    map_sources = partial(
        source_workers.map_sources,
        workers=workers,
        executor=executor,
        progress="ingesting",
        measures=True,
    )
    named = isinstance(paths, Mapping)
    check_run = partial(driver.check_run, ranks=ranks, strict=strict, named=named)
    run_so_far = _RunSoFar(check_run, named=named)
    with locked_target(target):
        stored_run = None if overwrite else check_store_at(target, refs, resume=resume)
        work_in_folder = partial(
            RankIngest,
            rules=None if rules is None else str(Path(rules).absolute()),
            ranks=None if ranks is None else frozenset(ranks),
            stacks=stacks,
            lenient=on_damage == "warn",
            stored_run=stored_run,
        )
        with store_folder(target, resume=resume) as folder:
            resume_notices = _write_roles(
                folder,
                refs,
                source_notices=discovery.notices,
                work_in_folder=work_in_folder,
                map_sources=map_sources,
                run_so_far=run_so_far,
                resume=resume,
                strict=strict,
            )
            recording_notices = _store_recordings(
                paths_with_recordings, folder, ranks=ranks, strict=strict
            )
    # The manifest keeps the notices of finding and reading the sources (``opened.notices``). The
    # others are of this call alone, or found anew whenever the store is read.
    opened = open_store(target)
    all_notices = (*resume_notices, *opened.notices, *run_so_far.notices, *recording_notices)
    return replace_fields(opened, notices=all_notices)


@dataclass(slots=True)
class _RunSoFar:
    """What is known about the whole run while its roles are written one after the other."""

    check_run: Callable[..., tuple[Notice, ...]]
    """``driver.check_run`` with the options of this run."""
    named: bool
    """Whether the caller named the roles."""
    spans: list[driver.Span] = field(default_factory=list)
    """Source, start and end of every rank that was written."""
    any_failed: bool = False
    notices: tuple[Notice, ...] = ()
    """Notices of the last check; after the last role they are those of the whole run."""

    def add(self, writer: StoreWriter, *, failed: bool) -> None:
        """Add the ranks of a role, and check them together with those of the roles before it.

        A mistake is found early that way: the check raises before the role's store is complete. If
        the ranks are of several runs, those that were written are removed.
        """
        for entry in writer.entries.values():
            self.spans.append((entry.source, entry.start_ns, entry.end_ns))
        try:
            driver.check_same_run(self.spans, named=self.named)
        except InputError:
            writer.remove_added()
            raise
        self.any_failed = self.any_failed or failed
        self.notices = self.check_run(self.spans, failed=self.any_failed)


def _write_roles(
    folder: Path,
    refs: Sequence[SourceRef],
    *,
    source_notices: Sequence[Notice],
    work_in_folder: Callable[[str], RankIngest],
    map_sources: Callable[..., list[ItemResult[SourceRef, list[StoreEntry]]]],
    run_so_far: _RunSoFar,
    resume: bool,
    strict: bool,
) -> list[Notice]:
    """Write the ranks of every role; return how many traces of each were in the store already.

    Args:
        folder: Folder of the store. Each role has a folder in it; ranks without roles are in the store's.
        refs: The sources of all roles.
        source_notices: Notices of finding the sources, which each role's manifest keeps.
        work_in_folder: Returns the work of one rank, which writes into the given folder.
        map_sources: ``source_workers.map_sources`` with the workers to use.
        run_so_far: Every role is added to it.
        resume: Read only sources that are not in the store yet, or have changed.
        strict: Whether a source that fails is an error.

    """
    # Without any source one role is written nevertheless: the checks of the run say what is
    # missing.
    refs_by_role = group_by_role(refs) or {None: []}
    resume_notices = []
    for role, role_refs in refs_by_role.items():
        role_folder = folder if role is None else folder / f"{ROLE_PREFIX}{role}"
        role_folder.mkdir(exist_ok=True)
        work = work_in_folder(str(role_folder))
        writer = StoreWriter(role_folder, labelled_by(work.rules), list(source_notices))
        _write_role(
            writer,
            role_refs,
            work=work,
            map_sources=map_sources,
            run_so_far=run_so_far,
            resume=resume,
            strict=strict,
        )
        if writer.unchanged:
            resume_notices.append(
                Notice(
                    "resumed",
                    (
                        f"{len(writer.unchanged)} traces were in the store "
                        "already and have not changed"
                    ),
                    values={"traces": len(writer.unchanged)},
                )
            )
    return resume_notices


def _write_role(
    writer: StoreWriter,
    refs: Sequence[SourceRef],
    *,
    work: RankIngest,
    map_sources: Callable[..., list[ItemResult[SourceRef, list[StoreEntry]]]],
    run_so_far: _RunSoFar,
    resume: bool,
    strict: bool,
) -> None:
    """Write the ranks of one role into its folder, and check them.

    Args:
        writer: Writer of the role's folder.
        refs: The sources of the role.
        work: Reads one source and writes its ranks into that folder.
        map_sources: ``source_workers.map_sources`` with the workers to use.
        run_so_far: The roles before this one; this one is added.
        resume: Read only sources that are not in the folder yet, or have changed.
        strict: Whether a source that fails is an error.

    """
    pending = writer.resume(refs, work.key) if resume else refs
    with writer:
        results = map_sources(work, pending, on_value=writer.add, stop_at_failure=strict)
        failures = failure_notices(results, strict=strict, already_stored=len(writer.unchanged))
        writer.notices += failures
        writer.remove_outdated()
        run_so_far.add(writer, failed=bool(failures))
        writer.complete = True  # last: what raises above leaves the store incomplete


def with_absolute_path(ref: SourceRef) -> SourceRef:
    """Return a source with its path from the root; one at an address stays as it is."""
    if ref.url is not None:
        return ref
    return replace(ref, path=str(Path(ref.path).absolute()))


def _ingest_recordings(
    paths: PathList,
    target: Path,
    *,
    ranks: Collection[int] | None,
    resume: bool,
    overwrite: bool,
) -> Store:
    """Write a store of dumps and logs alone; return it.

    Ranks of a store that is resumed stay in it.
    """
    recordings = find_recordings(paths)
    assert recordings is not None, "the caller has found some"
    selected = _selected_recordings(recordings, ranks)
    with locked_target(target):
        if not overwrite:
            stored = read_stored_recordings(target)
            check_recordings_of_store(
                target,
                selected.sources,
                stored_sources=() if stored is None else stored.sources,
                resume=resume,
            )
        resumed = open_store(target) if resume and is_store(target) else None
        with store_folder(target, resume=resume) as folder:
            write_recordings(folder, selected)
            if resumed is None:
                writer = StoreWriter(folder)
            else:
                writer = StoreWriter(folder, resumed.labelled_by, list(resumed.notices))
            with writer:
                if resumed is not None:
                    writer.keep_stored_ranks()
                # Ranks whose writing was interrupted are still to be read.
                writer.complete = resumed is None or resumed.complete
    return replace_fields(open_store(target), notices=recordings.notices)


def _store_recordings(
    paths: PathList | None, folder: Path, *, ranks: Collection[int] | None, strict: bool
) -> tuple[Notice, ...]:
    """Write the dumps and logs that lie beside the traces into the store.

    Return notices about them.

    Those of a store that is resumed are written again, which takes seconds.
    """
    try:
        recordings = None if paths is None else find_recordings(paths)
    except InputError as error:
        if strict:
            raise
        return (
            Notice(
                "recordings-beside",
                (f"dumps and logs beside the traces are not used: {error.message}"),
                values={"case": "unusable", "error": error.message},
            ),
        )
    if recordings is None:
        return ()
    write_recordings(folder, _selected_recordings(recordings, ranks))
    return recordings.notices


def _selected_recordings(recordings: Recordings, ranks: Collection[int] | None) -> Recordings:
    """Return the dumps and logs of the ranks that are asked for, with absolute paths."""
    parts = []
    for part in recordings.parts:
        source = part.source
        if ranks is not None and source.rank not in ranks:
            continue
        path = source.path if "://" in source.path else str(Path(source.path).absolute())
        parts.append(replace_fields(part, source=replace(source, path=path)))
    return Recordings(tuple(parts), recordings.notices)
