"""Writing of a store: its folder, and its manifest while ranks are added.

A store that replaces another is built in a folder beside it, which is renamed when the store is
complete. A new store is written in place, so that an interruption leaves the ranks done so far.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tracekit._util.files import atomic_write, lock_temporary, remove_abandoned, temporary_prefix
from tracekit._util.os_errors import write_error
from tracekit._version import __version__
from tracekit.documents.coding import encode
from tracekit.documents.store_manifest import STORE_FORMAT, StoreEntry, StoreManifest
from tracekit.errors import InputError, Notice, OutputError
from tracekit.parsers.source_refs import SourceRef, file_listing
from tracekit.store.files import MANIFEST, is_store, open_store, read_entry, with_checksum
from tracekit.store.recordings import holds_recordings

MANIFEST_INTERVAL_S = 5.0
"""Seconds between two updates of the manifest while ranks are added: at most this much work is lost
to a kill."""


@contextlib.contextmanager
def store_folder(target: Path, *, resume: bool) -> Iterator[Path]:
    """Yield the folder to write ranks into: *target* itself, or one beside it if a store there is to be replaced."""
    if is_store(target) and not resume:
        with replace_store(target) as folder:
            yield folder
        return
    check_target(target)
    existed = target.exists()
    target.mkdir(exist_ok=True)
    try:
        yield target
    finally:
        is_empty = not is_store(target) or not (
            open_store(target).entries or holds_recordings(target)
        )
        if is_empty:  # nothing was written: leave things as they were
            shutil.rmtree(target, ignore_errors=True)
            if existed:
                target.mkdir()


@contextlib.contextmanager
def replace_store(path: str | Path) -> Iterator[Path]:
    """Yield a folder beside *path* to build a store in; rename it to *path* if the block succeeds.

    A store at *path* is replaced; any other folder or file there is an error.
    """
    target = Path(path)
    check_target(target)
    remove_abandoned(target)
    try:
        temporary = Path(tempfile.mkdtemp(prefix=temporary_prefix(target), dir=target.parent))
    except OSError as error:
        raise write_error(error, target) from error
    try:
        with lock_temporary(temporary):
            yield temporary
            temporary.chmod(0o755)
        _move_to_target(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_target(target: Path) -> None:
    """Raise if no store can be written at *target*."""
    if not target.parent.is_dir():
        raise OutputError(f"{target}: there is no folder {target.parent}", hint="create it first")
    if target.is_file():
        raise OutputError(f"{target}: is a file; a store is a folder", hint="choose another place")
    if target.is_dir() and not is_store(target) and any(target.iterdir()):
        raise OutputError(
            f"{target}: holds other files and is not a store", hint="name a new or an empty folder"
        )


def check_same_run(target: Path, refs: Sequence[SourceRef]) -> None:
    """Raise if the store at *target* holds another run: none of its ranks was read from any of the sources.

    Args:
        target: The folder to write; it may hold no store, or a damaged one, which may go.
        refs: The sources of the new store.

    """
    if not is_store(target):
        return
    try:
        stored = {entry.source.path for entry in open_store(target).entries}
    except InputError:
        return
    source_paths: set[str] = set()
    for ref in refs:
        if ref.reader == "store":
            source_paths.update(entry.source.path for entry in open_store(ref.path).entries)
        else:
            source_paths.add(ref.path)
    if stored and not stored & source_paths:
        problem = f"{target}: holds the store of another run{file_listing(stored, most=1)}"
        raise OutputError(
            problem, hint="choose another folder, or --overwrite (overwrite=True) to replace it"
        )


def _move_to_target(temporary: Path, target: Path) -> None:
    """Rename the folder of a complete store to *target*; a store that is there goes away."""
    try:
        if not target.exists():
            temporary.rename(target)
            return
        # Move the old store aside, and back again if the new one cannot be moved in.
        aside = Path(tempfile.mkdtemp(prefix=f".{target.name[:40]}.old.", dir=target.parent))
        try:
            target.rename(aside / "store")
            temporary.rename(target)
        except OSError:
            if (aside / "store").exists() and not target.exists():
                (aside / "store").rename(target)
            raise
        finally:
            if target.exists():
                shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        raise OutputError(
            f"{target}: cannot be replaced: {error.strerror}", hint="choose another place"
        ) from error


def _has_all_ranks(entries: Mapping[int, StoreEntry]) -> bool:
    """Return whether all ranks of a source were written: a report may hold several."""
    return all(entries.keys() >= set(entry.together) for entry in entries.values())


@dataclass
class StoreWriter:
    """The manifest of a store while ranks are added, as a context manager.

    The manifest is written at the start, every few seconds, and however the block ends.
    """

    folder: Path
    labelled_by: str | None = None
    notices: list[Notice] = field(default_factory=list)
    entries: dict[int, StoreEntry] = field(default_factory=dict)
    unchanged: list[SourceRef] = field(default_factory=list)
    """Sources that were in the store already and have not changed since."""
    complete: bool = False
    written_s: float = 0.0
    """Time of the last write of the manifest, on the monotonic clock."""

    def __enter__(self) -> StoreWriter:
        self.write()
        return self

    def __exit__(self, *_: object) -> None:
        self.write()
        for abandoned in self.folder.glob(".rank=*"):  # of workers that were killed
            shutil.rmtree(abandoned, ignore_errors=True)

    def resume(self, refs: Sequence[SourceRef], key: Callable[[SourceRef], str]) -> list[SourceRef]:
        """Take over the ranks of sources that have not changed.

        Return the sources that must be read.

        Ranks of changed sources are removed. Ranks of sources that are not among *refs* stay.

        Args:
            refs: The sources of the store.
            key: Returns the key that a source's ranks would get now.

        """
        entries_on_disk = [(folder, read_entry(folder)) for folder in self.folder.glob("rank=*")]
        ranks_by_key: dict[str, dict[int, StoreEntry]] = {}
        for _, entry in entries_on_disk:
            if entry is not None and entry.key is not None:
                ranks_by_key.setdefault(entry.key, {})[entry.rank] = entry
        pending = []
        for ref in refs:
            entries = ranks_by_key.get(key(ref), {})
            if entries and _has_all_ranks(entries):
                self.unchanged.append(ref)
                self.entries.update(entries)
            else:
                pending.append(ref)
        pending_paths = {ref.path for ref in pending}
        pending_ranks = {ref.rank for ref in pending}
        for folder, entry in entries_on_disk:
            from_pending = entry is not None and (
                entry.source.path in pending_paths or entry.rank in pending_ranks
            )
            if entry is None or (from_pending and entry.rank not in self.entries):
                shutil.rmtree(folder, ignore_errors=True)
            else:
                self.entries.setdefault(entry.rank, entry)
        return pending

    def keep_stored_ranks(self) -> None:
        """Take over all ranks of the store, whatever became of their sources; remove unreadable ones."""
        self.resume([], key=lambda ref: "")  # without any source no key is compared

    def add(self, entries: Sequence[StoreEntry]) -> None:
        """Add ranks that were written."""
        for entry in entries:
            self.entries[entry.rank] = entry
        if time.monotonic() - self.written_s > MANIFEST_INTERVAL_S:
            self.write()

    def write(self) -> None:
        """Write the manifest, which makes the folder a store."""
        manifest = StoreManifest(
            format=STORE_FORMAT,
            tracekit=__version__,
            labelled_by=self.labelled_by,
            complete=self.complete,
            notices=tuple(self.notices),
            ranks=tuple(self.entries[rank] for rank in sorted(self.entries)),
        )
        with atomic_write(self.folder / MANIFEST) as temporary:
            temporary.write_text(encode(with_checksum(manifest)), encoding="utf-8")
        self.written_s = time.monotonic()
