"""Identity of the run whose ranks a store holds, compared before anything is written into the store.

A store holds the ranks of one run. A rank is added to it if its file lies among files that the
store was made from, or if it was recorded while they were. A rank is replaced only by the same
file with the same recording. Tool, world size and the run's own name, where they are known, are
equal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

import msgspec

from tracekit.documents.store_manifest import STORE_FORMAT, StoreEntry
from tracekit.errors import InputError, OutputError
from tracekit.parsers.source_refs import SourceRef, file_listing
from tracekit.schema import Recording, Source
from tracekit.store.files import (
    MANIFEST,
    is_store,
    open_store,
    read_entry,
    role_folders,
)
from tracekit.store.sources import EARLIEST_DATE_NS, MAX_GAP_WITHIN_RUN_NS, check_one_run

REPLACE_HINT = "choose another folder, or --overwrite (overwrite=True) to replace it"
CONTINUE_HINT = (
    "--resume (resume=True) reads what is new or changed, --overwrite (overwrite=True) replaces it"
)

RankOfRole = tuple[str | None, int | None]
"""Role and number of a rank; None for a rank that only reading can tell."""


class StoredRun(msgspec.Struct, frozen=True):
    """Facts about the run in a store that a rank must share to be written into it.

    Small and picklable: the workers that read the ranks compare them.
    """

    store: str
    shares_files: bool  # whether the store was made from some of the files that are read now
    readers: frozenset[str]
    world_sizes: frozenset[int]
    names: frozenset[str]  # ``Source.run`` of its ranks
    start_ns: int | None  # first and last time of its ranks; None if they tell no date
    end_ns: int | None

    def check(self, source: Source, start_ns: int | None, end_ns: int | None) -> None:
        """Raise OutputError if a rank that was read is not of the run in the store.

        Args:
            source: The rank's source.
            start_ns: Its first time.
            end_ns: Its last time.

        """
        self.check_value("tool", source.reader, self.readers)
        self.check_value("world size", source.world_size, self.world_sizes)
        self.check_value("run", source.run, self.names)
        gap_ns = _gap_ns((start_ns, end_ns), (self.start_ns, self.end_ns))
        if gap_ns is None and not self.shares_files:
            raise self._other_run(f"nothing tells that {source.path} is of the same run")
        if gap_ns is not None and gap_ns > (MAX_GAP_WITHIN_RUN_NS if self.shares_files else 0):
            raise self._other_run(f"{source.path} was recorded at another time")

    def check_value(
        self, what: str, value: str | int | None, stored: Collection[str | int]
    ) -> None:
        """Raise OutputError if a value is known for a rank and for the store, and differs."""
        if value and stored and value not in stored:
            known = ", ".join(sorted(str(stored_value) for stored_value in stored))
            raise self._other_run(f"{what} {known}, not {value}")

    def _other_run(self, why: str) -> OutputError:
        problem = f"holds the store of another run: {why}"
        return OutputError(problem, path=self.store, hint=REPLACE_HINT)


def check_store_at(target: Path, refs: Sequence[SourceRef], *, resume: bool) -> StoredRun | None:
    """Return the run in the store at *target*, to be compared with every rank that is read.

    None if it holds no ranks. Raise OutputError if the sources may not be written there.

    Args:
        target: The folder to write.
        refs: The sources of the new store.
        resume: Whether a store that is there is continued; otherwise it is an error.

    """
    if not is_store(target):
        return None
    _check_format(target)
    entries = stored_entries(target)
    stored_paths: dict[RankOfRole, str] = {}
    for entry in entries:
        stored_paths[entry.source.role, entry.rank] = entry.source.path
    source_paths = {(ref.role, ref.rank): _original_path(ref) for ref in refs}
    shares_files = not set(stored_paths.values()).isdisjoint(source_paths.values())
    if entries and not shares_files:
        has_same_ranks = not stored_paths.keys().isdisjoint(source_paths)
        if has_same_ranks or not resume:
            raise _another_run_error(target, stored_paths.values())
    if not resume:
        raise OutputError("holds a store already", path=target, hint=CONTINUE_HINT)
    if not entries:
        return None
    for rank, path in source_paths.items():
        stored_path = stored_paths.get(rank, path)
        if stored_path != path:
            problem = f"holds rank {rank[1]} of {stored_path}, not of {path}"
            raise OutputError(problem, path=target, hint=REPLACE_HINT)
    has_roles = any(entry.source.role for entry in entries)
    if refs and has_roles != any(ref.role for ref in refs):
        problem = (
            f"holds the store of another run: its ranks have {'' if has_roles else 'no '}roles"
        )
        raise OutputError(problem, path=target, hint=REPLACE_HINT)
    run = _stored_run(target, entries, shares_files=shares_files)
    for ref in refs:  # as far as it is known before reading
        if ref.reader != "store":
            run.check_value("tool", ref.reader, run.readers)
        run.check_value("world size", ref.world_size, run.world_sizes)
    return run


def check_recordings_of_store(
    target: Path,
    sources: Iterable[Recording],
    *,
    stored_sources: Iterable[Recording],
    resume: bool,
) -> None:
    """Raise OutputError if dumps and logs may not be written into the store at *target*.

    They replace the dumps and logs of the same files (*stored_sources*), or complete the traces of
    as many ranks.
    """
    if not is_store(target):
        return
    _check_format(target)
    entries = stored_entries(target)
    stored_paths = {source.path for source in stored_sources}
    paths = {source.path for source in sources}
    if stored_paths and stored_paths.isdisjoint(paths):
        raise _another_run_error(target, stored_paths)
    if not resume:
        if entries:
            raise _another_run_error(target, [entry.source.path for entry in entries])
        raise OutputError("holds a store already", path=target, hint=CONTINUE_HINT)
    world_size = max((entry.source.world_size or 0 for entry in entries), default=0)
    ranks = [source.rank for source in sources if source.rank is not None]
    if world_size and ranks and max(ranks) >= world_size:
        why = f"world size {world_size}, and there is a dump of rank {max(ranks)}"
        raise OutputError(f"holds the store of another run: {why}", path=target, hint=REPLACE_HINT)


def may_replace_rank(old: StoreEntry, new: StoreEntry) -> bool:
    """Return whether a rank in a store was read from the same file as the new one.

    Raise OutputError if another recording was written to that file since.
    """
    if old.source.path != new.source.path:
        return False
    gap_ns = _gap_ns((old.start_ns, old.end_ns), (new.start_ns, new.end_ns))
    if gap_ns is not None and gap_ns > 0:
        problem = "holds another recording than the one in the store"
        raise OutputError(problem, path=new.source.path, hint=REPLACE_HINT)
    return True


def stored_entries(store: Path) -> list[StoreEntry]:
    """Return the entries of all ranks that lie in a store, of all roles, whether its manifest lists them or not."""
    entries = []
    for folder in [store, *role_folders(store)]:
        for rank_folder in sorted(folder.glob("rank=*")):
            entry = read_entry(rank_folder)
            if entry is not None:
                entries.append(entry)
    return entries


def _gap_ns(
    first: tuple[int | None, int | None], second: tuple[int | None, int | None]
) -> int | None:
    """Return the time between two recordings, negative if they overlap; None if one of them tells no date."""
    first_start, first_end = first
    second_start, second_end = second
    if first_start is None or first_end is None or second_start is None or second_end is None:
        return None
    if min(first_start, second_start) < EARLIEST_DATE_NS:
        return None
    return max(first_start - second_end, second_start - first_end)


def _check_format(target: Path) -> None:
    """Raise OutputError if another version of tracekit wrote the store in a format that this one does not write."""
    for folder in [target, *role_folders(target)]:
        try:
            manifest = msgspec.json.decode((folder / MANIFEST).read_bytes())
        except (
            OSError,
            ValueError,
        ):  # roles have no manifest above them; a damaged one tells nothing
            continue
        written_format = manifest.get("format") if isinstance(manifest, dict) else None
        if isinstance(written_format, str) and written_format != STORE_FORMAT:
            problem = f"{folder / MANIFEST}: is of the format {written_format}, and this version writes {STORE_FORMAT}"
            raise OutputError(
                problem, hint="install the version of tracekit that wrote it, or --overwrite it"
            )


def _original_path(ref: SourceRef) -> str:
    """Return the file that a source was first read from: of a rank in a store, what the store was made from."""
    if ref.reader != "store" or ref.rank is None:
        return ref.path
    store = open_store(ref.path)
    if store.roles and ref.role is not None:
        store = store.roles[ref.role]
    return store.source(ref.rank).path


def _another_run_error(target: Path, stored_paths: Iterable[str]) -> OutputError:
    listed = file_listing(set(stored_paths), most=1)
    return OutputError(f"holds the store of another run{listed}", path=target, hint=REPLACE_HINT)


def _stored_run(target: Path, entries: Sequence[StoreEntry], *, shares_files: bool) -> StoredRun:
    """Return the facts that the ranks of a store share; raise OutputError if they are of several runs."""
    by_role: dict[str | None, list[StoreEntry]] = {}
    for entry in entries:
        by_role.setdefault(entry.source.role, []).append(entry)
    for of_role in by_role.values():
        try:
            check_one_run([(entry.source, entry.start_ns, entry.end_ns) for entry in of_role])
        except InputError as error:
            raise OutputError(error.message, path=target, hint=REPLACE_HINT) from error
    starts = [entry.start_ns for entry in entries if entry.start_ns is not None]
    ends = [entry.end_ns for entry in entries if entry.end_ns is not None]
    return StoredRun(
        store=str(target),
        shares_files=shares_files,
        readers=frozenset(entry.source.reader for entry in entries),
        world_sizes=frozenset(
            entry.source.world_size for entry in entries if entry.source.world_size
        ),
        names=frozenset(entry.source.run for entry in entries if entry.source.run),
        start_ns=min(starts, default=None),
        end_ns=max(ends, default=None),
    )
