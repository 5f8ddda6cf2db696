"""Sources to events: one by one or side by side in processes, with what cannot be read kept as data."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from tracekit._util.text import listing
from tracekit._util.workers import ItemResult
from tracekit.errors import Notice, OptionError, OutputError, RuleError
from tracekit.parsers import remote
from tracekit.parsers.refs import SourceRef
from tracekit.schema import EVENTS, RankEvents, Source
from tracekit.store.files import open_store

_MEMORY = ".memory"  # beside a rank's events: what the allocator said


def read_ref(ref: SourceRef, *, stacks: bool = False, lenient: bool = True) -> list[RankEvents]:
    """Read one source: one rank, or all the ranks of an Nsight Systems report."""
    if ref.reader == "store":
        assert ref.rank is not None, "a store's sources name their rank"
        return [open_store(ref.path).rank(ref.rank)]
    with remote.fetched(ref.path) as local:
        parts = READERS[ref.reader](local, ref, stacks, lenient)
    return [_settled(part, ref, alone=len(parts) == 1) for part in parts]


def _kineto(path: str, ref: SourceRef, stacks: bool, lenient: bool) -> list[RankEvents]:
    from tracekit.parsers import kineto

    given = ref.rank if ref.rank_from != "content" else None
    return [kineto.read(path, rank=given, stacks=stacks, lenient=lenient)]


def _nsight(path: str, ref: SourceRef, _: bool, lenient: bool) -> list[RankEvents]:
    from tracekit.parsers import nsight

    return nsight.read(path, rank=ref.rank if ref.rank_from == "option" else None, lenient=lenient)


READERS: dict[str, Callable[[str, SourceRef, bool, bool], list[RankEvents]]] = {"kineto": _kineto, "nsight": _nsight}
"""How each reader that ``parsers.probe`` names is called: file, source, whether with stacks, whether leniently."""


def _settled(part: RankEvents, ref: SourceRef, *, alone: bool) -> RankEvents:
    """Give a rank its place: the path as it was asked for, and the rank as discovery settled it."""
    source = msgspec.structs.replace(part.source, path=ref.path)
    if not alone or source.rank_from == "content" or ref.rank is None or ref.rank_from == "content":
        return replace(part, source=source)
    events, memory = part.events, part.memory
    if source.rank != ref.rank:
        events, memory = (table.with_columns(rank=pl.lit(ref.rank, EVENTS["rank"])) for table in (events, memory))
    return RankEvents(events, msgspec.structs.replace(source, rank=ref.rank, rank_from=ref.rank_from), memory)


def read_to_files(ref: SourceRef, *, folder: str, stacks: bool, lenient: bool) -> list[tuple[str, Source]]:
    """Read one source and leave its events as Parquet files in *folder*, for another process to take up."""
    written = []
    for part in read_ref(ref, stacks=stacks, lenient=lenient):
        handle, name = tempfile.mkstemp(suffix=".parquet", dir=folder)
        os.close(handle)
        part.events.write_parquet(name, compression="lz4", statistics=False)
        if len(part.memory):
            part.memory.write_parquet(f"{name}{_MEMORY}", compression="lz4", statistics=False)
        written.append((name, part.source))
    return written


def from_files(written: list[tuple[str, Source]]) -> list[RankEvents]:
    """Take up what ``read_to_files`` left."""
    parts = []
    for name, source in written:
        part = RankEvents(pl.read_parquet(name, hive_partitioning=False), source)
        beside = Path(f"{name}{_MEMORY}")
        if beside.exists():
            part = replace(part, memory=pl.read_parquet(beside, hive_partitioning=False))
            beside.unlink()
        parts.append(part)
        Path(name).unlink()
    return parts


def raise_failures(done: Sequence[ItemResult[SourceRef, Any]]) -> None:
    """Raise the first failure, and say how many more there are."""
    failed = [one for one in done if one.error is not None]
    if not failed:
        return
    error = failed[0].error
    assert error is not None, "only failures are in the list"
    where = "" if failed[0].item.name in error.message else f"{failed[0].item.path}: "
    more = f" (and {len(failed) - 1} more files cannot be read)" if len(failed) > 1 else ""
    raise type(error)(f"{where}{error.message}{more}", hint=error.hint) from error.__cause__


MOST_LISTED = 20
"""Failed traces with a line of their own; of more, their number."""


def failure_notices(done: Sequence[ItemResult[SourceRef, Any]], *, strict: bool = False) -> tuple[Notice, ...]:
    """List the sources that could not be read, by path; raise where that is all of them, or with *strict* any.

    >>> from tracekit.errors import InputError
    >>> good, bad = SourceRef("rank0.json", "kineto", 0), SourceRef("rank1.json", "kineto", 1)
    >>> failed = ItemResult(1, bad, error=InputError("rank1.json: ends early"))
    >>> failure_notices([ItemResult(0, good, value=[]), failed])[0].message
    'rank 1 is left out: rank1.json: ends early'
    """
    failed = [one for one in done if one.error is not None]
    words = (OutputError, RuleError, OptionError) if len(failed) == len(done) else (OutputError, RuleError)
    for one in failed:
        if isinstance(one.error, words):
            raise one.error  # the words or the place are wrong, not this trace
    if strict or len(failed) == len(done):
        raise_failures(done)
    notices = [Notice("rank-failed", _left_out(one)) for one in failed[:MOST_LISTED]]
    if more := failed[MOST_LISTED:]:
        named = listing((one.item.path for one in more), most=8)
        notices.append(Notice("rank-failed", f"{len(more)} more are left out: {named}"))
    return tuple(notices)


def _left_out(one: ItemResult[SourceRef, Any]) -> str:
    assert one.error is not None, "only failures are left out"
    reason = one.error.message
    rank = "a source" if one.item.rank is None else f"rank {one.item.rank}"
    if reason.startswith(one.item.path):
        return f"{rank} is left out: {reason}"
    return f"{rank} is left out: {one.item.path}: {reason.removeprefix(f'{one.item.name}: ')}"
