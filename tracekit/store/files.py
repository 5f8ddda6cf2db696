"""Parquet store: one folder per rank, with the rank's events, labels and measured tables.

    STORE/tracekit-store.json          the manifest: format, ranks, and each rank's source
    STORE/rank=3/events.parquet the events table of rank 3 (its source in the file's metadata)
    STORE/rank=3/memory.parquet the allocator's events of rank 3, if it recorded them
    STORE/rank=3/labelled.parquet the labelled GPU events of rank 3 STORE/rank=3/tables.zip the
    measured tables of rank 3 (analysis.persistence), if they were written STORE/rank=3/entry.json
    the manifest's entry for rank 3 STORE/recordings dumps and logs of the whole run, if there are
    any (``late.store``)

Every file's checksum is in its rank's entry and is verified before the file is read; the manifest
and the entries have a checksum of their own. A rank is written into a temporary folder that is
renamed when it is complete. A rank that the manifest does not list does not exist.
``tracekit.store.writer`` writes the manifest while ranks are added.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import polars as pl
from msgspec.structs import replace

from tracekit._util.arguments import checked_path
from tracekit._util.os_errors import read_error, write_error
from tracekit._version import __version__
from tracekit.documents.coding import Document, decode, encode, to_plain
from tracekit.documents.store_manifest import StoreEntry, StoreManifest
from tracekit.errors import InputError, MachineError, Notice, OptionError
from tracekit.parsers import remote
from tracekit.parsers.discovery import STORE_MANIFEST
from tracekit.parsers.rank_numbers import unknown_rank_error
from tracekit.parsers.source_refs import SourceRef
from tracekit.schema import EVENTS, LABELLED, MEMORY, RankEvents, Source
from tracekit.store.checks import check_table, read_table

CHECKSUM_KEY = "digest"
"""Key of a document's checksum, computed over all its other keys."""


def content_key(ref: SourceRef, options: object = None) -> str:
    """Return a digest of a source's path, its size and time of change (or what its server tells), and *options*.

    >>> content_key(SourceRef("README.md", "kineto")) == content_key(SourceRef("./README.md", "kineto"))
    True
    >>> content_key(SourceRef("README.md", "kineto")) == content_key(SourceRef("README.md", "kineto", 3))
    False
    """
    if ref.url is not None:
        location = ref.path
        stamp = remote.change_stamp(ref.url)
    else:
        path = Path(ref.path).absolute()
        location = str(path)
        if ref.reader == "store" and ref.rank is not None:
            path = rank_folder(path, ref.rank)
        try:
            files = sorted(path.iterdir()) if path.is_dir() else [path]
            stamp = repr(
                [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
            )
        except OSError as error:
            raise InputError(
                f"cannot be read: {error.strerror}", path=ref.path, hint="check the path"
            ) from error
    key = (location, stamp, ref.reader, ref.rank, ref.rank_from, options)
    return hashlib.sha256(repr(key).encode()).hexdigest()


def file_checksum(file: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def matches_checksum(file: Path, expected: str | None) -> bool:
    """Return whether a file has the checksum *expected*; False if none is expected."""
    status = file.stat()
    return _cached_checksum(file, status.st_ino, status.st_mtime_ns, status.st_size) == expected


@lru_cache(maxsize=4096)
def _cached_checksum(file: Path, *_: int) -> str:
    """Return a file's checksum.

    Its inode, time and size are in the cache's key: a changed file is read again.
    """
    return file_checksum(file)


def with_checksum(document: Any) -> dict[str, Any]:
    """Return a document as plain data with its checksum added.

    >>> verify_document(with_checksum({"ranks": [1, 2]}))
    >>> verify_document(with_checksum({"ranks": [1, 2]}) | {"ranks": [1, 3]})
    Traceback (most recent call last):
    ValueError: its content is not what was written
    """
    content = to_plain(document)
    return {**content, CHECKSUM_KEY: _document_checksum(content)}


def verify_document(document: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if a document does not match the checksum in it."""
    content = {key: value for key, value in document.items() if key != CHECKSUM_KEY}
    if document.get(CHECKSUM_KEY) != _document_checksum(content):
        raise ValueError("its content is not what was written")


def _document_checksum(document: Mapping[str, Any]) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


MANIFEST = STORE_MANIFEST
ROLE_PREFIX = "role="
"""Beginning of the name of a role's folder in a store whose ranks have several processes."""
SOURCE_KEY = "tracekit.source"
ENTRY = "entry.json"
RECORDINGS_FOLDER = "recordings"
ZSTD_LEVEL = 1
"""Compression of the Parquet files: 12 % less CPU time than zstd's default level 3, for files 13 %
larger."""
INGEST_AGAIN = "ingest the traces again"


@dataclass(frozen=True)
class Store:
    """An opened store, whose ranks are read one at a time on request.

    >>> import tempfile
    >>> from tracekit import ingest
    >>> store = ingest("sample_traces/reload", tempfile.mkdtemp() + "/store", ranks=[0, 2])
    >>> store.ranks, store.rank(2).source.rank
    ((0, 2), 2)
    """

    path: Path
    entries: tuple[StoreEntry, ...]
    labelled_by: str | None = None
    """Version and rules that labelled it (``labelled_by``); for other rules the labels must be
    computed again."""
    complete: bool = True
    """False while it is written, and if writing was interrupted: ``tracekit ingest --resume``
    continues it."""
    notices: tuple[Notice, ...] = ()
    """Notices from when it was written, such as traces that could not be read; from ``ingest``,
    also what was resumed and what the ranks together lack."""
    roles: Mapping[str, Store] = field(default_factory=dict)
    """The stores of a run's roles, by name; then the ranks' tables are in these. Empty if ranks
    have one process."""

    @cached_property
    def _by_rank(self) -> dict[int, StoreEntry]:
        return {entry.rank: entry for entry in self.entries}

    @property
    def ranks(self) -> tuple[int, ...]:
        """The numbers of its ranks, ascending."""
        return tuple(sorted(self._by_rank))

    @property
    def sources(self) -> tuple[Source, ...]:
        """Each rank's source, by rank."""
        return tuple(self._by_rank[rank].source for rank in self.ranks)

    def source(self, rank: int) -> Source:
        """Return one rank's source."""
        return self._entry(rank).source

    def scan(self, rank: int) -> pl.LazyFrame:
        """Return one rank's events as a lazy frame."""
        return self._read(rank, "events", EVENTS).lazy()

    def scan_labelled(self, rank: int) -> pl.LazyFrame:
        """Return one rank's labelled events as a lazy frame."""
        return self._read(rank, "labelled", LABELLED).lazy()

    def rank(self, rank: int) -> RankEvents:
        """Read one rank: its events, its source and its allocator's events."""
        return RankEvents(
            self._read(rank, "events", EVENTS), self._entry(rank).source, self.memory(rank)
        )

    def memory(self, rank: int) -> pl.DataFrame:
        """Read one rank's allocator events.

        Empty if they were not recorded, or the store is of an old version.
        """
        if "memory.parquet" not in self._entry(rank).digests:
            return MEMORY.to_frame()
        return self._read(rank, "memory", MEMORY)

    def labelled(self, rank: int) -> pl.DataFrame:
        """Read one rank's labelled events."""
        return self._read(rank, "labelled", LABELLED)

    def _read(self, rank: int, name: str, schema: pl.Schema) -> pl.DataFrame:
        """Read a table; columns that stores of older versions lack are null."""
        entry = self._entry(rank)
        listed_rows = {"events": entry.rows, "labelled": entry.labelled_rows}.get(name)
        file = rank_folder(self.path, rank) / f"{name}.parquet"
        try:
            # Read, not mapped: a file that shrinks while it is mapped ends the process.
            data = file.read_bytes()
            if hashlib.sha256(data).hexdigest() != entry.digests.get(file.name):
                raise damaged_file_error(file)
            table = read_table(data, schema)
            check_table(table, rank=rank, rows=listed_rows)
        except ValueError as error:
            raise InputError(f"is damaged: {error}", path=file, hint=INGEST_AGAIN) from error
        except MachineError as error:
            raise MachineError(error.message, path=file, hint=error.hint) from None
        except (pl.exceptions.PolarsError, OSError, MemoryError) as error:
            raise read_error(error, file, hint=INGEST_AGAIN) from error
        return table

    def _entry(self, rank: int) -> StoreEntry:
        if self.roles:
            names = ", ".join(self.roles)
            raise OptionError(
                "is a store of several roles",
                path=self.path,
                hint=f"take one of store.roles: {names}",
            )
        try:
            return self._by_rank[rank]
        except KeyError:
            raise unknown_rank_error([rank], self.ranks, where=str(self.path)) from None

    def intact(self, rank: int, name: str) -> bool:
        """Return whether a file of a rank exists and matches its checksum."""
        try:
            return matches_checksum(
                rank_folder(self.path, rank) / name, self._entry(rank).digests.get(name)
            )
        except OSError:
            return False

    def checked_file(self, rank: int, name: str) -> Path:
        """Return the path of one rank's table (``events``, ``labelled``, ``memory``) after verifying its checksum."""
        file = rank_folder(self.path, rank) / f"{name}.parquet"
        check_file(file, self._entry(rank).digests)
        return file


def check_file(file: Path, digests: Mapping[str, str]) -> None:
    """Raise InputError if a file of a store cannot be read, or does not match its checksum, by the files' names."""
    try:
        intact = matches_checksum(file, digests.get(file.name))
    except OSError as error:
        raise read_error(error, file, hint=INGEST_AGAIN) from error
    if not intact:
        raise damaged_file_error(file)


def damaged_file_error(file: Path) -> InputError:
    """Return the error about a file that does not match its checksum."""
    return InputError(
        "is damaged: its bytes are not those that were written", path=file, hint=INGEST_AGAIN
    )


def rank_folder(store: Path, rank: int) -> Path:
    """Return the folder of one rank of a store.

    >>> rank_folder(Path("s"), 3).as_posix()
    's/rank=3'
    """
    return store / f"rank={rank}"


def is_store(path: str | Path) -> bool:
    """Return whether *path* is a store (or its manifest).

    >>> is_store("/nowhere")
    False
    """
    root = _root(Path(path))
    return root.joinpath(MANIFEST).is_file() or bool(role_folders(root))


def holds_recordings(store: Path) -> bool:
    """Return whether a store holds dumps or logs."""
    return (store / RECORDINGS_FOLDER / ENTRY).is_file()


def role_folders(root: Path) -> list[Path]:
    """Return the folders of a store's roles, ``role=NAME``, which are stores themselves."""
    return sorted(
        folder for folder in root.glob(f"{ROLE_PREFIX}*") if (folder / MANIFEST).is_file()
    )


def open_store(path: str | Path) -> Store:
    """Open a store; only its manifest is read, or those of its roles.

    >>> open_store("sample_traces")
    Traceback (most recent call last):
    tracekit.errors.InputError: sample_traces: ...
    """
    root = _root(checked_path(path, "store"))
    folders = role_folders(root)
    if not folders:
        return open_single_store(root)
    roles: dict[str, Store] = {}
    entries: list[StoreEntry] = []
    notices: dict[Notice, None] = {}  # those that several roles have once
    for folder in folders:
        store = open_store(folder)
        roles[folder.name.removeprefix(ROLE_PREFIX)] = store
        entries += store.entries
        notices |= dict.fromkeys(store.notices)
    return Store(
        root,
        tuple(entries),
        labelled_by=None,
        complete=all(store.complete for store in roles.values()),
        notices=tuple(notices),
        roles=roles,
    )


def open_single_store(path: str | Path) -> Store:
    """Open a store that has no roles; looking for roles would list the folders of all its ranks."""
    root = _root(Path(path))
    try:
        status = (root / MANIFEST).stat()
        stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
    except OSError:
        stamp = (0, 0, 0)
    return _read_manifest(root, *stamp)


@lru_cache(maxsize=8)
def _read_manifest(root: Path, *_: int) -> Store:
    """Return the store at *root*.

    Cached by the manifest's inode, time and size, because every rank opens its store.
    """
    try:
        manifest = read_checked_document(root / MANIFEST, StoreManifest)
    except FileNotFoundError:
        problem = f"is not a store: it has no {MANIFEST}"
        raise InputError(problem, path=root, hint="make one with: tracekit ingest") from None
    return Store(root, manifest.ranks, manifest.labelled_by, manifest.complete, manifest.notices)


def read_checked_document(file: Path, document_type: type[Document]) -> Document:
    """Return a document after verifying its checksum."""
    try:
        data = file.read_bytes()
        document = decode(data, document_type, file, hint=INGEST_AGAIN)
        verify_document(decode(data, dict, file, hint=INGEST_AGAIN))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"is damaged: {error}", path=file, hint=INGEST_AGAIN) from error
    return document


def write_rank(
    folder: Path,
    rank: RankEvents,
    labelled: pl.DataFrame,
    *,
    key: str | None = None,
    together: Sequence[int] = (),
    beside: Callable[[Path], object] | None = None,
    may_replace: Callable[[StoreEntry, StoreEntry], bool] | None = None,
) -> StoreEntry:
    """Write one rank into a store; return its entry for the manifest.

    Any number of processes may do so at once.

    Args:
        folder: Folder of the store.
        rank: The rank's events and source.
        labelled: Its labelled events.
        key: See ``Entry.key``. A rank that exists with the same key is left as it is: two workers
            did the same work.
        together: All ranks that the same trace holds.
        beside: Writes further files into the rank's folder.
        may_replace: Returns whether the rank that is there may be replaced by the new one, from
            their entries; by default it may not.

    """
    number = rank.source.rank
    target = rank_folder(folder, number)
    temporary = Path(tempfile.mkdtemp(prefix=f".rank={number}.", dir=folder))
    metadata = {SOURCE_KEY: encode(rank.source, indent=None)}
    entry = StoreEntry(
        rank=number,
        rows=rank.events.height,
        labelled_rows=labelled.height,
        start_ns=rank.events["start_ns"].min(),  # type: ignore[arg-type]  # polars types a minimum as any value
        end_ns=rank.events["end_ns"].max(),  # type: ignore[arg-type]
        source=rank.source,
        key=key,
        together=tuple(together),
    )
    try:
        write_table(rank.events, temporary / "events.parquet", metadata)
        if len(rank.memory):
            write_table(rank.memory, temporary / "memory.parquet")
        write_table(labelled, temporary / "labelled.parquet", metadata)
        if beside is not None:
            beside(temporary)
        entry = replace(
            entry, digests={file.name: file_checksum(file) for file in sorted(temporary.iterdir())}
        )
        (temporary / ENTRY).write_text(encode(with_checksum(entry)), encoding="utf-8")
        temporary.chmod(0o755)
        if not _move_to_target(temporary, target, entry, may_replace):
            raise InputError(f"rank {number} was found twice", hint="name one trace per rank")
    except (pl.exceptions.PolarsError, OSError) as error:
        raise write_error(error, target) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return entry


def write_table(frame: pl.DataFrame, file: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a table as a Parquet file, with *metadata* as the file's key-value metadata."""
    frame.write_parquet(file, compression="zstd", compression_level=ZSTD_LEVEL, metadata=metadata)


def _move_to_target(
    temporary: Path,
    target: Path,
    entry: StoreEntry,
    may_replace: Callable[[StoreEntry, StoreEntry], bool] | None,
) -> bool:
    """Rename a rank's folder to *target*; return False if a rank of another trace is there."""
    try:
        temporary.rename(target)
    except OSError:
        if not target.exists():
            raise
    else:
        return True
    old = read_entry(target)
    if old is None or may_replace is None or old.key == entry.key:
        return old is not None and entry.key is not None and old.key == entry.key
    if not may_replace(old, entry):
        return False
    aside = temporary.with_name(f"{temporary.name}.old")
    target.rename(aside)
    temporary.rename(target)
    shutil.rmtree(aside, ignore_errors=True)
    return True


def read_entry(folder: Path) -> StoreEntry | None:
    """Read the entry in a rank's folder; None if it is missing or damaged."""
    try:
        return read_checked_document(folder / ENTRY, StoreEntry)
    except (FileNotFoundError, InputError):
        return None


def labelled_by(rules: str | os.PathLike[str] | None = None) -> str:
    """Return a text for the version and rules that label events: equal texts mean equal labels.

    >>> labelled_by().endswith("built-in rules")
    True
    """
    if rules is None:
        return f"tracekit {__version__}, built-in rules"
    try:
        return f"tracekit {__version__}, rules {file_checksum(Path(rules))[:16]}"
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", path=os.fspath(rules), hint="check --rules"
        ) from error


def _root(path: Path) -> Path:
    return path.parent if path.name == MANIFEST else path
