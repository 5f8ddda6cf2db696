"""Reading of sources: events of one source, and reports of failures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import polars as pl

from tracekit._util.text import listing
from tracekit._util.workers import ItemResult
from tracekit.errors import MachineError, Notice, OptionError, OutputError, RuleError, TracekitError
from tracekit.parsers import remote
from tracekit.parsers.source_refs import SourceRef
from tracekit.schema import EVENTS, RankEvents
from tracekit.store.files import open_store

MAX_FAILURES_LISTED = 20
"""Failed sources that have a notice of their own; further ones share one notice."""


def read_ref(ref: SourceRef, *, stacks: bool = False, lenient: bool = True) -> list[RankEvents]:
    """Read one source: one rank, or all ranks of an Nsight Systems report.

    Args:
        ref: The source.
        stacks: Read Python frames too.
        lenient: Use what can be read of a damaged file; otherwise it is an error.

    """
    if ref.reader == "store":
        assert ref.rank is not None, "a store's sources name their rank"
        part = open_store(ref.path).rank(ref.rank)
        return [replace(part, source=msgspec.structs.replace(part.source, role=ref.role or part.source.role))]
    with remote.fetch_to_local(ref.path) as local:
        parts = READERS[ref.reader](local, ref, stacks, lenient)
    return [_with_discovered_rank(part, ref, only_rank=len(parts) == 1) for part in parts]


def _read_kineto(path: str, ref: SourceRef, stacks: bool, lenient: bool) -> list[RankEvents]:
    from tracekit.parsers import kineto

    rank = ref.rank if ref.rank_from != "content" else None
    return [kineto.read(path, rank=rank, stacks=stacks, lenient=lenient)]


def _read_nsight(path: str, ref: SourceRef, _: bool, lenient: bool) -> list[RankEvents]:
    from tracekit.parsers import nsight

    return nsight.read(path, rank=ref.rank if ref.rank_from == "option" else None, lenient=lenient)


READERS: dict[str, Callable[[str, SourceRef, bool, bool], list[RankEvents]]] = {
    "kineto": _read_kineto,
    "nsight": _read_nsight,
}
"""The function of each reader that ``parsers.probe`` names; arguments: local file, source, stacks, lenient."""


def _with_discovered_rank(part: RankEvents, ref: SourceRef, *, only_rank: bool) -> RankEvents:
    """Return a rank with the path of its source and, if its file does not name it, the rank that discovery found."""
    source = msgspec.structs.replace(part.source, path=ref.path, role=ref.role)
    if not only_rank or source.rank_from == "content" or ref.rank is None or ref.rank_from == "content":
        return replace(part, source=source)
    events, memory = part.events, part.memory
    if source.rank != ref.rank:
        events, memory = (table.with_columns(rank=pl.lit(ref.rank, EVENTS["rank"])) for table in (events, memory))
    return RankEvents(events, msgspec.structs.replace(source, rank=ref.rank, rank_from=ref.rank_from), memory)


def _failures(results: Sequence[ItemResult[SourceRef, Any]]) -> list[tuple[SourceRef, TracekitError]]:
    return [(result.item, result.error) for result in results if result.error is not None]


def raise_failures(results: Sequence[ItemResult[SourceRef, Any]]) -> None:
    """Raise the first failure, if there is any, with the number of further ones."""
    failures = _failures(results)
    if not failures:
        return
    ref, error = failures[0]
    path = "" if ref.name in error.message else f"{ref.path}: "
    more = f" (and {len(failures) - 1} more files cannot be read)" if len(failures) > 1 else ""
    raise type(error)(f"{path}{error.message}{more}", hint=error.hint) from error.__cause__


def failure_notices(results: Sequence[ItemResult[SourceRef, Any]], *, strict: bool = False) -> tuple[Notice, ...]:
    """Return notices of the sources that could not be read; raise if these are all, or with *strict* any.

    >>> from tracekit.errors import InputError
    >>> good, bad = SourceRef("rank0.json", "kineto", 0), SourceRef("rank1.json", "kineto", 1)
    >>> failed = ItemResult(1, bad, error=InputError("rank1.json: ends early"))
    >>> failure_notices([ItemResult(0, good, value=[]), failed])[0].message
    'rank 1 is left out: rank1.json: ends early'
    """
    failures = _failures(results)
    all_failed = len(failures) == len(results)
    # These errors are about the call (its rules, its store, its options) or the machine, not about the source that they
    # came up at: which ranks would be left out is chance.
    errors_of_call: tuple[type[TracekitError], ...] = (MachineError, OutputError, RuleError)
    if all_failed:
        errors_of_call += (OptionError,)
    for _, error in failures:
        if isinstance(error, errors_of_call):
            raise error
    if strict or all_failed:
        raise_failures(results)
    notices = [Notice("rank-failed", _failure_text(*failure)) for failure in failures[:MAX_FAILURES_LISTED]]
    if unlisted := failures[MAX_FAILURES_LISTED:]:
        paths = listing((ref.path for ref, _ in unlisted), most=8)
        notices.append(Notice("rank-failed", f"{len(unlisted)} more are left out: {paths}"))
    return tuple(notices)


def _failure_text(ref: SourceRef, error: TracekitError) -> str:
    rank = "a source" if ref.rank is None else f"rank {ref.rank}"
    if error.message.startswith(ref.path):
        return f"{rank} is left out: {error.message}"
    return f"{rank} is left out: {ref.path}: {error.message.removeprefix(f'{ref.name}: ')}"
