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

from tracekit._util.files import (
    atomic_write,
    check_parent,
    is_locked_by_another,
    lock_temporary,
    remove_abandoned,
    temporary_prefix,
)
from tracekit._util.os_errors import write_error
from tracekit._version import __version__
from tracekit.documents.coding import encode
from tracekit.documents.store_manifest import STORE_FORMAT, StoreEntry, StoreManifest
from tracekit.errors import Notice, OutputError
from tracekit.parsers.source_refs import SourceRef
from tracekit.store.files import (
    MANIFEST,
    holds_recordings,
    is_store,
    open_store,
    rank_folder,
    read_entry,
    with_checksum,
)

MANIFEST_INTERVAL_S = 5.0
"""Seconds between two updates of the manifest while ranks are added: at most this much work is lost
to a kill."""


@contextlib.contextmanager
def locked_target(target: Path) -> Iterator[None]:
    """Keep *target* for this process while a store is written there; it is made if it does not exist.

    Raise OutputError if another process writes a store there. A folder that is made and stays
    empty is removed.
    """
    check_target(target)
    is_new = not target.exists()
    try:
        target.mkdir(exist_ok=True)
    except OSError as error:
        raise write_error(error, target) from error
    try:
        with is_locked_by_another(target) as is_locked:
            if is_locked:
                raise OutputError(
                    "another process is writing a store there",
                    path=target,
                    hint="wait until it has ended",
                )
            yield
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # it holds a store now
                target.rmdir()


@contextlib.contextmanager
def store_folder(target: Path, *, resume: bool) -> Iterator[Path]:
    """Yield the folder to write ranks into: *target* itself, or one beside it if a store there is to be replaced.

    *target* is an empty folder or a store (``locked_target``).
    """
    if is_store(target) and not resume:
        with replace_store(target) as folder:
            yield folder
        return
    try:
        yield target
    finally:
        is_empty = not is_store(target) or not (
            open_store(target).entries or holds_recordings(target)
        )
        if is_empty:  # nothing was written: leave things as they were
            for member in target.iterdir():
                if member.is_dir():
                    shutil.rmtree(member, ignore_errors=True)
                else:
                    member.unlink(missing_ok=True)


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
    check_parent(target)
    if target.is_file():
        raise OutputError(
            "is a file; a store is a folder", path=target, hint="choose another place"
        )
    if target.is_dir() and not is_store(target):
        remove_abandoned(target / MANIFEST)  # of an ingestion that was killed before its first rank
    if target.is_dir() and not is_store(target) and any(target.iterdir()):
        raise OutputError(
            "holds other files and is not a store",
            path=target,
            hint="name a new or an empty folder",
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
            f"cannot be replaced: {error.strerror}", path=target, hint="choose another place"
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
    outdated: dict[int, StoreEntry] = field(default_factory=dict)
    """Ranks in the store whose source has changed since; each stays until it is read again."""
    written_s: float = 0.0
    """Time of the last write of the manifest, on the monotonic clock."""
    _added: set[int] = field(default_factory=set)
    _earlier_manifest: bytes | None = None

    def __enter__(self) -> StoreWriter:
        with contextlib.suppress(FileNotFoundError):
            self._earlier_manifest = (self.folder / MANIFEST).read_bytes()
        self.write()
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        for abandoned in self.folder.glob(".rank=*"):  # of workers that were killed
            shutil.rmtree(abandoned, ignore_errors=True)
        if error_type is None:
            self.write()
        elif self._earlier_manifest is not None and not self._added:
            with atomic_write(self.folder / MANIFEST) as temporary:  # as it was
                temporary.write_bytes(self._earlier_manifest)
        else:
            self._keep_outdated()
            self.write()

    def resume(self, refs: Sequence[SourceRef], key: Callable[[SourceRef], str]) -> list[SourceRef]:
        """Take over the ranks of sources that have not changed.

        Return the sources that must be read.

        Ranks of changed sources are outdated. Ranks of sources that are not among *refs* stay.

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
            if entry is None:
                shutil.rmtree(folder, ignore_errors=True)
            elif entry.rank in self.entries:
                continue
            elif entry.source.path in pending_paths or entry.rank in pending_ranks:
                self.outdated[entry.rank] = entry
            else:
                self.entries[entry.rank] = entry
        return pending

    def remove_outdated(self) -> None:
        """Remove the ranks whose source has changed and could not be read again."""
        for rank in self.outdated.keys() - self.entries.keys():
            shutil.rmtree(rank_folder(self.folder, rank), ignore_errors=True)
        self.outdated.clear()

    def remove_added(self) -> None:
        """Remove the ranks that were written since the store was opened."""
        for rank in self._added:
            self.entries.pop(rank, None)
            shutil.rmtree(rank_folder(self.folder, rank), ignore_errors=True)
        self._added.clear()

    def _keep_outdated(self) -> None:
        """List the outdated ranks that were not written again: the work was interrupted."""
        for rank, entry in self.outdated.items():
            if rank not in self.entries and read_entry(rank_folder(self.folder, rank)) == entry:
                self.entries[rank] = entry

    def keep_stored_ranks(self) -> None:
        """Take over all ranks of the store, whatever became of their sources; remove unreadable ones."""
        self.resume([], key=lambda ref: "")  # without any source no key is compared

    def add(self, entries: Sequence[StoreEntry]) -> None:
        """Add ranks that were written."""
        for entry in entries:
            self.entries[entry.rank] = entry
            self._added.add(entry.rank)
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
