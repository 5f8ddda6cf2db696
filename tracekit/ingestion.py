"""From traces to a store: each rank is read, labelled and written by one worker; only its entry travels back."""

from __future__ import annotations

import os
from collections.abc import Collection
from functools import partial
from pathlib import Path

from tracekit._version import __version__
from tracekit.classify import classify, load_rules
from tracekit.errors import InputError, Notice
from tracekit.parsers.discovery import SourceRef, listing
from tracekit.store import Entry, Store, building, open_store, write_manifest, write_rank
from tracekit.trace import (
    Paths,
    check_one_run,
    find,
    merged_notices,
    missing_notice,
    prepare,
    raise_failures,
    read_ref,
    worker_count,
)
from tracekit.workers import run_map

LABEL_PAYS_BYTES = 1 << 28
"""Labelling and compressing cost more than reading, so that processes pay earlier than for reading alone."""


def ingest(
    paths: Paths,
    store: str | os.PathLike[str],
    *,
    ranks: Collection[int] | None = None,
    rank: int | None = None,
    workers: int | None = None,
    stacks: bool = False,
    lenient: bool = True,
    rules: str | os.PathLike[str] | None = None,
) -> tuple[Store, tuple[Notice, ...]]:
    """Write traces as a store: the events and the labelled events of every rank; return it and what was noticed.

    The store appears when it is whole. *rules* is a rules file to label with.

    >>> import tempfile
    >>> store, notices = ingest("sample_traces/reload", tempfile.mkdtemp() + "/store", ranks=[0, 1])
    >>> store.ranks
    (0, 1)
    """
    if rules is not None:
        load_rules(Path(rules))  # a mistake in the rules is one error, not one a rank
    refs, notices = find(paths, ranks=ranks, rank=rank)
    with building(Path(store)) as folder:
        work = partial(_ingest_one, folder=folder, ranks=ranks, stacks=stacks, lenient=lenient, rules=rules)
        count = worker_count(refs, workers, pays=LABEL_PAYS_BYTES)
        if count > 1:
            prepare(refs)
        done = run_map(work, refs, workers=count, progress="ingesting")
        raise_failures(done)
        entries = [entry for one in done for entry in one.unwrap()]
        if not entries:
            raise InputError(f"there is no rank {listing(map(str, ranks or ()))}", hint="leave out --ranks")
        check_one_run([(entry.source, entry.start_ns, entry.end_ns) for entry in entries])
        write_manifest(folder, entries, labelled_by=labelled_by(rules))
    opened = open_store(Path(store))
    missing = () if ranks is not None else missing_notice(opened.sources)
    return opened, (*notices, *merged_notices(opened.sources), *missing)


def labelled_by(rules: str | os.PathLike[str] | None = None) -> str:
    """Say which version and rules label: the same words mean the same labels.

    >>> labelled_by().endswith("built-in rules")
    True
    """
    if rules is None:
        return f"tracekit {__version__}, built-in rules"
    import hashlib

    try:
        digest = hashlib.sha256(Path(rules).read_bytes()).hexdigest()[:16]
    except OSError as error:
        raise InputError(f"{os.fspath(rules)}: cannot be read: {error.strerror}", hint="check --rules") from error
    return f"tracekit {__version__}, rules {digest}"


def _ingest_one(
    ref: SourceRef,
    *,
    folder: Path,
    ranks: Collection[int] | None,
    stacks: bool,
    lenient: bool,
    rules: str | os.PathLike[str] | None,
) -> list[Entry]:
    loaded = None if rules is None else load_rules(Path(rules))
    parts = read_ref(ref, stacks=stacks, lenient=lenient)
    wanted = [part for part in parts if ranks is None or part.source.rank in ranks]
    return [write_rank(folder, part, classify(part.events, rules=loaded)) for part in wanted]
