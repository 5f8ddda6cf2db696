"""The store: events as a Parquet dataset, one folder per rank, read back identical and without parsing.

    STORE/tracekit-store.json          the manifest: format, ranks, and each rank's source
    STORE/rank=3/events.parquet        the events table of rank 3 (its source in the file's metadata)
    STORE/rank=3/memory.parquet        what the allocator of rank 3 said, where it was recorded
    STORE/rank=3/labelled.parquet      the labelled GPU events of rank 3, where they were written
    STORE/rank=3/tables.zip            what an analysis takes from rank 3, where it was measured
    STORE/rank=3/entry.json            rank 3's line of the manifest, and the key of the trace it was made from

Every file's digest is in its rank's entry and is checked before the file is read; the manifest and the entries carry
one of their own. A rank is built beside its place and renamed when it is whole; what the manifest does not list does
not exist. How a store comes to be, rank by rank, is in ``tracekit.store.growing``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
from msgspec.structs import replace

from tracekit._util.files import atomic_write
from tracekit._util.os_errors import read_error, write_error
from tracekit._version import __version__
from tracekit.errors import InputError, Notice
from tracekit.parsers.discovery import STORE_MANIFEST
from tracekit.parsers.ranks import unknown_rank
from tracekit.schema import EVENTS, LABELLED, MEMORY, RankEvents, Source
from tracekit.store.seals import SEAL, check_seal, digest, same_digest, sealed

FORMAT = "tracekit.store/2"
MANIFEST = STORE_MANIFEST
SOURCE_KEY = "tracekit.source"
ENTRY = "entry.json"
ZSTD_LEVEL = 1
"""Compression of the Parquet files: 12 % less CPU time than zstd's default level 3, for files 13 % larger."""
_AGAIN = "ingest the traces again"


class Entry(msgspec.Struct, frozen=True):
    """One rank of a store."""

    rank: int
    rows: int
    labelled_rows: int | None  # None: not labelled
    start_ns: int | None  # of its first event; None without events
    end_ns: int | None
    source: Source
    key: str | None = None
    """What it was made from: the trace's path, size and time, and how it was read. The same key, the same content."""
    together: tuple[int, ...] = ()
    """All ranks that the same trace gave."""
    digests: Mapping[str, str] = {}
    """What the bytes of each of its files hash to: a bit that has flipped since is found before it is read."""

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Entry:
        """Read back what ``msgspec.to_builtins`` and JSON made of an entry."""
        source, together = Source.from_dict(data["source"]), tuple(data.get("together", ()))
        return cls(**{**data, "source": source, "together": together})


@dataclass(frozen=True)
class Store:
    """A store that was opened: its ranks are read one at a time, and only when asked for.

    >>> import tempfile
    >>> from tracekit import ingest
    >>> store, _ = ingest("sample_traces/reload", tempfile.mkdtemp() + "/store", ranks=[0, 2])
    >>> store.ranks, store.rank(2).source.rank
    ((0, 2), 2)
    """

    path: Path
    entries: tuple[Entry, ...]
    labelled_by: str | None = None
    """Who labelled it: version and rules. Labels of other rules must be made anew."""
    complete: bool = True
    """False while it is written, and after that was interrupted: ``tracekit ingest --resume`` goes on."""
    notices: tuple[Notice, ...] = ()
    """What happened when it was written: which traces could not be read, and why."""
    _by_rank: dict[int, Entry] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_rank", {entry.rank: entry for entry in self.entries})

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks it holds, ascending."""
        return tuple(sorted(self._by_rank))

    @property
    def sources(self) -> tuple[Source, ...]:
        """Each rank's source, as parsing found it."""
        return tuple(self._by_rank[rank].source for rank in self.ranks)

    def scan(self, rank: int) -> pl.LazyFrame:
        """Return one rank's events, unread: columns and rows are fetched when collected."""
        return pl.scan_parquet(self.checked_file(rank, "events"), hive_partitioning=False)

    def scan_labelled(self, rank: int) -> pl.LazyFrame | None:
        """Return one rank's labelled events, unread; None where they were not written."""
        if self._entry(rank).labelled_rows is None:
            return None
        return pl.scan_parquet(self.checked_file(rank, "labelled"), hive_partitioning=False)

    def rank(self, rank: int) -> RankEvents:
        """Read one rank: its events table, its source, and what its allocator said."""
        entry = self._entry(rank)
        events = _collect(self.scan(rank), self._file(rank, "events"), EVENTS, entry.rows)
        return RankEvents(events, entry.source, self.memory(rank))

    def memory(self, rank: int) -> pl.DataFrame:
        """Read what one rank's allocator said; empty where it was not recorded, or an older version wrote the store."""
        if "memory.parquet" not in self._entry(rank).digests:
            return MEMORY.to_frame()
        lazy = pl.scan_parquet(self.checked_file(rank, "memory"), hive_partitioning=False)
        return _collect(lazy, self._file(rank, "memory"), MEMORY)

    def labelled(self, rank: int) -> pl.DataFrame | None:
        """Read one rank's labelled events; None where they were not written."""
        lazy, rows = self.scan_labelled(rank), self._entry(rank).labelled_rows
        if lazy is None or rows is None:
            return None
        return _collect(lazy, self._file(rank, "labelled"), LABELLED, rows)

    def _entry(self, rank: int) -> Entry:
        try:
            return self._by_rank[rank]
        except KeyError:
            raise unknown_rank([rank], self.ranks, where=str(self.path)) from None

    def intact(self, rank: int, name: str) -> bool:
        """Return whether a file of a rank is there and holds what was written."""
        try:
            return same_digest(rank_folder(self.path, rank) / name, self._entry(rank).digests.get(name))
        except OSError:
            return False

    def _file(self, rank: int, name: str) -> Path:
        self._entry(rank)
        return rank_folder(self.path, rank) / f"{name}.parquet"

    def checked_file(self, rank: int, name: str) -> Path:
        """Return the path of one rank's table (``events``, ``labelled``, ``memory``) after verifying its checksum."""
        file = self._file(rank, name)
        try:
            same = same_digest(file, self._entry(rank).digests.get(file.name))
        except OSError as error:
            raise read_error(error, file, hint=_AGAIN) from error
        if not same:
            raise InputError(f"{file}: is damaged: its bytes are not those that were written", hint=_AGAIN)
        return file


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
    return _root(Path(path)).joinpath(MANIFEST).is_file()


def open_store(path: str | Path) -> Store:
    """Open a store: read its manifest, and nothing else yet.

    >>> open_store("sample_traces")
    Traceback (most recent call last):
    tracekit.errors.InputError: sample_traces: ...
    """
    root = _root(Path(path))
    try:
        seen = (root / MANIFEST).stat()
    except OSError:
        seen = None
    # Ranks are opened one by one: without memory, a thousand of them would read the manifest a thousand times.
    return _opened(root, *((seen.st_ino, seen.st_mtime_ns, seen.st_size) if seen is not None else (0, 0, 0)))


@lru_cache(maxsize=8)
def _opened(root: Path, *_: int) -> Store:
    try:
        manifest = json.loads((root / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise InputError(
                f"{root}: is a store of format {manifest['format']}, this version reads {FORMAT}",
                hint="ingest the traces again",
            )
        check_seal(manifest)
        entries = tuple(Entry.from_dict(one) for one in manifest["ranks"])
        notices = tuple(Notice(**one) for one in manifest.get("notices", ()))
    except FileNotFoundError:
        raise InputError(
            f"{root}: is not a store: it has no {MANIFEST}", hint="make one with: tracekit ingest"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{root / MANIFEST}: is damaged: {error}", hint="ingest the traces again") from error
    return Store(root, entries, manifest.get("labelled_by"), bool(manifest.get("complete", True)), notices)


def write_rank(
    folder: Path,
    rank: RankEvents,
    labelled: pl.DataFrame | None = None,
    *,
    key: str | None = None,
    together: Sequence[int] = (),
    beside: Callable[[Path], object] | None = None,
) -> Entry:
    """Write one rank into *folder* (a store being built); return its entry for the manifest.

    Runs in any process: ranks share nothing but the folder. *key* says what it was made from: a rank that is there
    with the same key is left as it is (the work was done twice). *beside* writes further files into the rank's folder.
    """
    number = rank.source.rank
    target = rank_folder(folder, number)
    part = Path(tempfile.mkdtemp(prefix=f".rank={number}.", dir=folder))
    metadata = {SOURCE_KEY: json.dumps(rank.source.to_dict())}
    entry = Entry(
        rank=number,
        rows=rank.events.height,
        labelled_rows=None if labelled is None else labelled.height,
        start_ns=rank.events["start_ns"].min(),  # type: ignore[arg-type]  # polars types a minimum as any value
        end_ns=rank.events["end_ns"].max(),  # type: ignore[arg-type]
        source=rank.source,
        key=key,
        together=tuple(together),
    )
    try:
        _write_table(rank.events, part / "events.parquet", metadata)
        if len(rank.memory):
            _write_table(rank.memory, part / "memory.parquet")
        if labelled is not None:
            _write_table(labelled, part / "labelled.parquet", metadata)
        if beside is not None:
            beside(part)
        entry = replace(entry, digests={file.name: digest(file) for file in sorted(part.iterdir())})
        (part / ENTRY).write_text(json.dumps(sealed(msgspec.to_builtins(entry)), indent=1), encoding="utf-8")
        part.chmod(0o755)
        if not _move_in(part, target, key):
            raise InputError(f"rank {number} was found twice", hint="name one trace per rank")
    except (pl.exceptions.PolarsError, OSError) as error:
        raise write_error(error, target) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return entry


def _write_table(frame: pl.DataFrame, file: Path, metadata: dict[str, str] | None = None) -> None:
    """Write a table as a Parquet file, with *metadata* as the file's key-value metadata."""
    frame.write_parquet(file, compression="zstd", compression_level=ZSTD_LEVEL, metadata=metadata)


def _move_in(part: Path, target: Path, key: str | None) -> bool:
    """Give a rank its place; False where another trace's rank has it."""
    try:
        part.rename(target)
    except OSError:
        if not target.exists():
            raise
        entry = read_entry(target)
        return key is not None and entry is not None and entry.key == key
    return True


def read_entry(folder: Path) -> Entry | None:
    """Read the entry in a rank's folder; None where there is no whole one."""
    try:
        data = json.loads((folder / ENTRY).read_text(encoding="utf-8"))
        check_seal(data)
        return Entry.from_dict({key: value for key, value in data.items() if key != SEAL})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def labelled_by(rules: str | os.PathLike[str] | None = None) -> str:
    """Return the version and rules that label: equal text means equal labels.

    >>> labelled_by().endswith("built-in rules")
    True
    """
    if rules is None:
        return f"tracekit {__version__}, built-in rules"
    try:
        digest = hashlib.sha256(Path(rules).read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise InputError(f"{os.fspath(rules)}: cannot be read: {error.strerror}", hint="check --rules") from error
    return f"tracekit {__version__}, rules {digest}"


def write_manifest(
    folder: Path,
    entries: Iterable[Entry],
    *,
    labelled_by: str | None = None,
    complete: bool = True,
    notices: Sequence[Notice] = (),
) -> None:
    """Write the manifest that makes *folder* a store: what it does not list does not exist."""
    ranks = [msgspec.to_builtins(entry) for entry in sorted(entries, key=lambda entry: entry.rank)]
    document: dict[str, Any] = {
        "format": FORMAT,
        "tracekit": __version__,
        "labelled_by": labelled_by,
        "complete": complete,
        "notices": [msgspec.to_builtins(notice) for notice in notices],
        "ranks": ranks,
    }
    with atomic_write(folder / MANIFEST) as part:
        part.write_text(json.dumps(sealed(document), indent=1), encoding="utf-8")


def _root(path: Path) -> Path:
    return path.parent if path.name == MANIFEST else path


def _collect(lazy: pl.LazyFrame, file: Path, schema: pl.Schema, rows: int | None = None) -> pl.DataFrame:
    """Return a frame, checked against what the manifest lists; without *rows* only its columns are listed."""
    try:
        frame = lazy.collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        raise read_error(error, file, hint=_AGAIN) from error
    if frame.schema != schema or rows not in (None, frame.height):
        raise InputError(f"{file}: is not what the manifest lists", hint="ingest the traces again")
    return frame
