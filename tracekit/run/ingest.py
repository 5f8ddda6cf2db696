"""Many ranks: one rank's work, mapped over processes, a Dask cluster or any other executor, into a store.

A worker gets a path and nothing else: it reads, labels and measures that trace and writes its rank into the store.
Only a line about it travels back. What crosses ranks (clocks, waits, the pipeline, its ideal) then works on the small
tables in the store. Whatever fails is listed by path, and what is done is kept.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from tracekit._util.machine import give_back_memory
from tracekit.analysis.persist import write_tables
from tracekit.analysis.tables import rank_tables
from tracekit.classify import classify, load_rules
from tracekit.errors import InputError, Notice, OptionError
from tracekit.parsers import remote
from tracekit.parsers.refs import SourceRef
from tracekit.run.driver import MEASURE_PAYS_BYTES, check_run, find_sources, map_sources
from tracekit.store.files import Entry, Store, labelled_by, open_store, rank_folder, write_rank
from tracekit.store.growing import Growing, place
from tracekit.store.reading import failure_notices, read_ref
from tracekit.store.sources import Paths


@dataclass(frozen=True, slots=True)
class RankWork:
    """One rank's work: a pure function of its source, picklable, so that any executor can run it anywhere.

    *folder* is the store, *rules* a rules file; both must be where the workers can reach them.
    """

    folder: str
    rules: str | None = None
    ranks: frozenset[int] | None = None
    stacks: bool = False
    lenient: bool = True

    def __call__(self, ref: SourceRef) -> list[Entry]:
        """Read, label and measure *ref*; write its rank (or, of an Nsight report, ranks) into the store."""
        key = self.key(ref)
        rules = None if self.rules is None else load_rules(Path(self.rules))
        parts = read_ref(ref, stacks=self.stacks, lenient=self.lenient)
        wanted = [part for part in parts if self.ranks is None or part.source.rank in self.ranks]
        together = [part.source.rank for part in wanted]
        entries = []
        for part in wanted:
            labelled = classify(part.events, rules=rules)
            tables = rank_tables(part, labelled=labelled)
            give_back_memory()  # writing takes some of its own
            entries.append(
                write_rank(
                    Path(self.folder),
                    part,
                    labelled,
                    key=key,
                    together=together,
                    beside=lambda folder, tables=tables: write_tables(tables, folder),  # type: ignore[misc]
                )
            )
        return entries

    def key(self, ref: SourceRef) -> str:
        """Return what the rank in the store would be made from; another file, time or option gives another key."""
        asked = sorted(self.ranks) if self.ranks is not None and ref.reader == "nsight" else None
        how = (labelled_by(self.rules), self.stacks, self.lenient, asked)
        return content_key(ref, how)


def content_key(ref: SourceRef, how: object = None) -> str:
    """Return a digest of a source's path, size and time of change (what a server says of it), and of *how*.

    >>> content_key(SourceRef("README.md", "kineto")) == content_key(SourceRef("./README.md", "kineto"))
    True
    >>> content_key(SourceRef("README.md", "kineto")) == content_key(SourceRef("README.md", "kineto", 3))
    False
    """
    if "://" in ref.path:
        place, stamp = ref.path, remote.stamp(ref.path)
    else:
        path = Path(ref.path).absolute()
        place = str(path)
        if ref.reader == "store" and ref.rank is not None:
            path = rank_folder(path, ref.rank)
        try:
            files = sorted(path.iterdir()) if path.is_dir() else [path]
            stamp = repr([(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files])
        except OSError as error:
            raise InputError(f"{ref.path}: cannot be read: {error.strerror}", hint="check the path") from error
    parts = (place, stamp, ref.reader, ref.rank, ref.rank_from, how)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def ingest(
    paths: Paths,
    store: str | os.PathLike[str],
    *,
    ranks: Collection[int] | None = None,
    rank: int | None = None,
    workers: int | None = None,
    executor: Executor | None = None,
    stacks: bool = False,
    lenient: bool = True,
    strict: bool = False,
    rules: str | os.PathLike[str] | None = None,
    resume: bool = False,
) -> tuple[Store, tuple[Notice, ...]]:
    """Write traces as a store: every rank's events, labels and tables; return it and what was noticed.

    Ranks are read by *workers* processes, or by any ``concurrent.futures`` *executor* (*workers* is then how many it
    has; it stays open). A trace that cannot be read is left out and listed; with *strict* that, and a missing rank, is
    an error. A new store grows in its place, so that an interruption leaves the ranks done so far; *resume* goes on
    with those that are not there, or whose trace has changed. Without it, a store that is there is replaced, when the
    new one is whole.

    >>> import tempfile
    >>> store, notices = ingest("sample_traces/reload", tempfile.mkdtemp() + "/store", ranks=[0, 1])
    >>> store.ranks
    (0, 1)
    """
    if rules is not None:
        load_rules(Path(rules))  # a mistake in the rules is one error, not one per rank
    refs, notices = find_sources(paths, ranks=ranks, rank=rank, strict=strict)
    target = Path(store).absolute()
    refs = tuple(ref if "://" in ref.path else replace(ref, path=str(Path(ref.path).absolute())) for ref in refs)
    if resume and any(Path(ref.path) == target for ref in refs):
        raise OptionError(f"{target}: cannot be resumed from itself", hint="name the traces")
    with place(target, resume=resume) as folder:
        work = RankWork(
            str(folder),
            None if rules is None else str(Path(rules).absolute()),
            None if ranks is None else frozenset(ranks),
            stacks,
            lenient,
        )
        growing = Growing(folder, labelled_by(rules), list(notices))
        todo = growing.pick_up(refs, work.key) if resume else list(refs)
        with growing:
            done = map_sources(
                work,
                todo,
                workers=workers,
                executor=executor,
                progress="ingesting",
                pays=MEASURE_PAYS_BYTES,
                each=growing.add,
                stop_at_failure=strict,
            )
            failures = failure_notices([*done, *growing.kept_as_done], strict=strict)
            growing.notices += failures
            spans = [(entry.source, entry.start_ns, entry.end_ns) for entry in growing.entries.values()]
            checked = check_run(spans, ranks=ranks, failed=bool(failures), strict=strict)
            growing.complete = True
    opened = open_store(target)
    return opened, (*growing.resumed_notices, *opened.notices, *checked)
