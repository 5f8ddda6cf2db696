"""A store while it is made: where it may go, and what is in it as ranks come in.

A store that replaces another is built beside it and takes its place when it is whole. A new one grows in its place, so
that whatever ends the work leaves the ranks done so far.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tracekit._util.files import exchange_folders, lock_temporary, remove_abandoned, temporary_prefix
from tracekit._util.os_errors import write_error
from tracekit._util.workers import ItemResult
from tracekit.errors import Notice, OutputError
from tracekit.parsers.refs import SourceRef
from tracekit.store.files import Entry, is_store, open_store, read_entry, write_manifest

MANIFEST_EVERY_S = 5.0
"""How often the manifest is brought up to date while ranks come in: what a killed process can lose."""


@contextlib.contextmanager
def place(target: Path, *, resume: bool) -> Iterator[Path]:
    """Yield the folder to write ranks into: the place itself, or one beside it where a store is to be replaced."""
    if is_store(target) and not resume:
        with building(target) as folder:
            yield folder
        return
    check_target(target)
    there = target.exists()
    target.mkdir(exist_ok=True)
    try:
        yield target
    finally:
        if not is_store(target) or not open_store(target).entries:  # nothing came of it: leave the place as it was
            shutil.rmtree(target, ignore_errors=True)
            if there:
                target.mkdir()


@contextlib.contextmanager
def building(path: str | Path) -> Iterator[Path]:
    """Yield a folder beside *path* to build a store in; when the block succeeds it takes the place of *path*.

    A store that is already there is replaced; any other folder or file is refused.
    """
    target = Path(path)
    check_target(target)
    remove_abandoned(target)
    try:
        part = Path(tempfile.mkdtemp(prefix=temporary_prefix(target), dir=target.parent))
    except OSError as error:
        raise write_error(error, target) from error
    try:
        with lock_temporary(part):
            yield part
            part.chmod(0o755)
        _take_place(part, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def check_target(target: Path) -> None:
    """Refuse a place where a store cannot go."""
    if not target.parent.is_dir():
        raise OutputError(f"{target}: there is no folder {target.parent}", hint="create it first")
    if target.is_file():
        raise OutputError(f"{target}: is a file; a store is a folder", hint="choose another place")
    if target.is_dir() and not is_store(target) and any(target.iterdir()):
        raise OutputError(f"{target}: holds other files and is not a store", hint="name a new or an empty folder")


def _take_place(part: Path, target: Path) -> None:
    try:
        if not target.exists():
            part.rename(target)
            return
        if exchange_folders(part, target):  # the old one goes with the part's folder
            return
        old = Path(tempfile.mkdtemp(prefix=f".{target.name[:40]}.old.", dir=target.parent))
        try:
            target.rename(old / "store")
            part.rename(target)
        except OSError:
            if (old / "store").exists() and not target.exists():
                (old / "store").rename(target)
            raise
        finally:
            if target.exists():
                shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise OutputError(f"{target}: cannot be replaced: {error.strerror}", hint="choose another place") from error


@dataclass
class Growing:
    """A store while ranks come in: its manifest is brought up to date now and then, and whatever ends the work."""

    folder: Path
    labelled_by: str
    notices: list[Notice]
    entries: dict[int, Entry] = field(default_factory=dict)
    kept: list[SourceRef] = field(default_factory=list)
    complete: bool = False
    written_s: float = 0.0

    def __enter__(self) -> Growing:
        self.write()
        return self

    def __exit__(self, *_: object) -> None:
        self.write()
        for part in self.folder.glob(".rank=*"):  # of workers that were killed
            shutil.rmtree(part, ignore_errors=True)

    @property
    def kept_as_done(self) -> list[ItemResult[SourceRef, list[Entry]]]:
        """What was there already, as if it had been done now."""
        return [ItemResult(0, ref, value=[]) for ref in self.kept]

    @property
    def resumed_notices(self) -> tuple[Notice, ...]:
        """Notices for the caller alone; the store does not keep them."""
        if not self.kept:
            return ()
        text = f"{len(self.kept)} traces were in the store already and have not changed"
        return (Notice("resumed", text),)

    def pick_up(self, refs: Sequence[SourceRef], key: Callable[[SourceRef], str]) -> list[SourceRef]:
        """Take over what is there with the *key* it would get now; return what is left to do, its old ranks removed."""
        entries = [(folder, read_entry(folder)) for folder in self.folder.glob("rank=*")]
        by_key: dict[str, dict[int, Entry]] = {}
        for _, entry in entries:
            if entry is not None and entry.key is not None:
                by_key.setdefault(entry.key, {})[entry.rank] = entry
        left = []
        for ref in refs:
            ranks = by_key.get(key(ref), {})
            if ranks and all(rank in ranks for one in ranks.values() for rank in one.together):
                self.kept.append(ref)
                self.entries.update(ranks)
            else:
                left.append(ref)
        paths, numbers = {ref.path for ref in left}, {ref.rank for ref in left}
        for folder, entry in entries:
            if entry is None or (
                entry.rank not in self.entries and (entry.source.path in paths or entry.rank in numbers)
            ):
                shutil.rmtree(folder, ignore_errors=True)
            else:
                self.entries.setdefault(entry.rank, entry)  # of a trace not named this time
        return left

    def add(self, entries: Sequence[Entry]) -> None:
        """Take in ranks that are done."""
        self.entries.update((entry.rank, entry) for entry in entries)
        if time.monotonic() - self.written_s > MANIFEST_EVERY_S:
            self.write()

    def write(self) -> None:
        """Bring the manifest up to date."""
        write_manifest(
            self.folder,
            self.entries.values(),
            labelled_by=self.labelled_by,
            complete=self.complete,
            notices=self.notices,
        )
        self.written_s = time.monotonic()
