"""Many ranks: one rank's work, mapped over processes, a Dask cluster or any other executor, into a store.

A worker gets a path and nothing else: it reads, labels and measures that trace and writes its rank into the store.
Only a line about it travels back. What crosses ranks (clocks, waits, the pipeline, its ideal) then works on the small
tables in the store. Whatever fails is listed by path, and what is done is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tracekit._words import listing
from tracekit.analysis import Analysis
from tracekit.analysis import analyze as _analyze
from tracekit.analysis.persist import write_tables
from tracekit.analysis.tables import rank_tables
from tracekit.classify import classify, load_rules
from tracekit.errors import InputError, Notice, OptionError
from tracekit.growing import Growing, place
from tracekit.parsers import remote
from tracekit.parsers.refs import SourceRef
from tracekit.reading import failure_notices, prepare, read_ref, worker_count
from tracekit.sources import Paths, check_one_run, check_strict, find, merged_notices, missing_notice
from tracekit.store import Entry, Store, labelled_by, open_store, rank_folder, write_rank
from tracekit.workers import Done, executor_size, iter_map

INGEST_PAYS_BYTES = 1 << 28
"""Labelling, measuring and compressing cost more than reading, so that processes pay earlier than for reading alone."""
CONNECT_S = 15


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
    said = (place, stamp, ref.reader, ref.rank, ref.rank_from, how)
    return hashlib.sha256(repr(said).encode()).hexdigest()


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
        load_rules(Path(rules))  # a mistake in the rules is one error, not one a rank
    refs, notices = find(paths, ranks=ranks, rank=rank)
    if strict:
        check_strict(notices)
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
            done = _map(work, todo, growing, workers=workers, executor=executor, strict=strict)
            growing.notices += failure_notices([*done, *growing.kept_as_done], strict=strict)
            if not growing.entries:
                raise InputError(f"there is no rank {listing(map(str, ranks or ()))}", hint="leave out --ranks")
            entries = growing.entries.values()
            check_one_run([(entry.source, entry.start_ns, entry.end_ns) for entry in entries])
            missing = () if ranks is not None else missing_notice([entry.source for entry in entries])
            if strict:
                check_strict(missing)
            growing.complete = True
    opened = open_store(target)
    return opened, (*growing.said, *opened.notices, *merged_notices(opened.sources), *missing)


def analyze(
    paths: Paths,
    *,
    store: str | os.PathLike[str] | None = None,
    resume: bool = False,
    executor: Executor | None = None,
    workers: int | None = None,
    ranks: Collection[int] | None = None,
    rank: int | None = None,
    rules: str | Path | None = None,
    lenient: bool = True,
    strict: bool = False,
    **options: Any,
) -> Analysis:
    """Analyze, by way of a store where one is named: an analysis that stops can then go on where it was.

    Takes what ``tracekit.analyze`` takes; the result is the same.

    >>> import tempfile
    >>> found = analyze("sample_traces/reload", store=tempfile.mkdtemp() + "/store", ranks=[0, 1])
    >>> [one.rank for one in found.ranks]
    [0, 1]
    """
    common: dict[str, Any] = {"workers": workers, "executor": executor, "ranks": ranks}
    if store is None:
        if resume:
            raise OptionError("--resume needs a store to go on with", hint="name one with --store")
        return _analyze(paths, rank=rank, rules=rules, lenient=lenient, strict=strict, **common, **options)
    made, _ = ingest(paths, store, rank=rank, rules=rules, lenient=lenient, strict=strict, resume=resume, **common)
    found = _analyze(made.path, **common, **options)
    return replace(found, paths=tuple(ref.path for ref in find(paths, ranks=ranks, rank=rank)[0]))


@contextlib.contextmanager
def cluster(address: str | None) -> Iterator[tuple[Executor | None, int | None]]:
    """Yield the executor of the Dask cluster at *address*, and how many ranks it can work on at once.

    Without an address both are None, which means processes on this machine.

    >>> with cluster(None) as (executor, workers):
    ...     executor, workers
    (None, None)
    """
    if address is None:
        yield None, None
        return
    try:
        connect: Any = importlib.import_module("distributed").Client
    except ImportError:
        raise OptionError("--dask needs dask.distributed", hint="pip install 'tracekit-ml[dask]'") from None
    try:
        client = connect(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"--dask {address}: no scheduler answers ({reason})", hint="check the address") from error
    with client:
        threads = sum(client.nthreads().values())
        if not threads:
            raise InputError(f"--dask {address}: the cluster has no workers", hint="start: dask worker ADDRESS")
        yield client.get_executor(pure=False), threads


def _map(
    work: RankWork,
    todo: Sequence[SourceRef],
    growing: Growing,
    *,
    workers: int | None,
    executor: Executor | None,
    strict: bool,
) -> list[Done[SourceRef, list[Entry]]]:
    """Do the work, and let the store grow with what comes in."""
    if executor is not None:
        count = workers or executor_size(executor)
    else:
        count = worker_count(todo, workers, pays=INGEST_PAYS_BYTES)
        if count > 1:
            prepare(todo)
    done = []
    stream = iter_map(work, todo, workers=count, executor=executor, progress="ingesting")
    with contextlib.closing(stream):  # type: ignore[type-var]  # a generator in truth, which stops its workers
        for one in stream:
            done.append(one)
            if one.error is None:
                growing.add(one.unwrap())
            elif strict:
                break
    return sorted(done, key=lambda one: one.index)
