"""Trace: what ``load`` returns, and how ranks are read, side by side where that pays."""

from __future__ import annotations

import html
import importlib
import os
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from tracekit import _native
from tracekit.errors import InputError, Notice, OptionError, OutputError, RuleError
from tracekit.parsers import remote
from tracekit.parsers.discovery import SourceRef, check_unmixed, discover, listing
from tracekit.schema import EVENTS, RankEvents, Source
from tracekit.store import open_store
from tracekit.workers import Done, available_memory, cores, run_map

if TYPE_CHECKING:
    import pandas as pd

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]

GZIP_RATIO = 15
"""Traces are repetitive: a gzip file holds about this many times its size."""
SPAWN_PAYS_BYTES = 1 << 30
"""JSON below which starting processes costs more than it saves."""
APART_NS = 3_600_000_000_000
"""Ranks of one run are profiled together; an hour between one's end and the next one's start means two runs."""
EPOCH_NS = 1_400_000_000_000_000_000
"""Clocks before this (2014) count from a machine's start: they say nothing about when a run was."""


@dataclass(frozen=True)
class Trace:
    """The events of one run, every rank's in one table, and where they came from."""

    parts: tuple[RankEvents, ...]
    """One a rank, by rank."""
    notices: tuple[Notice, ...] = ()
    """What was lost, missing or chosen on the way here."""

    @cached_property
    def events(self) -> pl.DataFrame:
        """All ranks' events (columns: ``tracekit.schema.EVENTS``)."""
        return pl.concat([part.events for part in self.parts]) if self.parts else EVENTS.to_frame()

    @property
    def sources(self) -> tuple[Source, ...]:
        """Each rank's source."""
        return tuple(part.source for part in self.parts)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks, ascending."""
        return tuple(part.source.rank for part in self.parts)

    def rank(self, rank: int) -> RankEvents:
        """Return one rank's events and source."""
        for part in self.parts:
            if part.source.rank == rank:
                return part
        held = listing(map(str, self.ranks), most=8)
        raise InputError(f"there is no rank {rank}", hint=f"the trace holds {held}")

    def to_pandas(self) -> pd.DataFrame:
        """Return the events as a pandas table; repeated text stays categorical."""
        return self.events.to_pandas()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.events.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        rows = sum(part.events.height for part in self.parts)
        return f"<Trace: {len(self.parts)} ranks, {rows:,} events>"

    def _repr_html_(self) -> str:
        heads = ("rank", "events", "GPU", "CPU", "steps", "span", "device", "source")
        head = "".join(f"<th>{name}</th>" for name in heads)
        shown = self.parts[:16]
        body = "".join(_html_row(part) for part in shown)
        if len(self.parts) > len(shown):
            body += f'<tr><td colspan="{len(heads)}">… and {len(self.parts) - len(shown)} more ranks</td></tr>'
        notes = "".join(f"<li>{html.escape(notice.message)}</li>" for notice in self.notices[:8])
        return (
            f"<p><b>{html.escape(repr(self)[1:-1])}</b></p><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table>" + (f"<ul>{notes}</ul>" if notes else "")
        )


def load(
    paths: Paths,
    *,
    ranks: Collection[int] | None = None,
    rank: int | None = None,
    workers: int | None = None,
    stacks: bool = False,
    lenient: bool = True,
) -> Trace:
    """Read traces into a ``Trace``: a file, several, a folder, a glob, a URL or a store.

    *ranks* reads only those; *rank* is the rank of a single file that does not say; *workers* bounds the
    processes (by default one a rank where the files are large, within cores and memory); *stacks* reads Python
    frames too; without *lenient* a damaged file is an error rather than a notice.

    >>> trace = load("sample_traces/reload")
    >>> trace.ranks
    (0, 1, 2, 3)
    """
    refs, notices = find(paths, ranks=ranks, rank=rank)
    done = read_all(refs, workers=workers, stacks=stacks, lenient=lenient)
    raise_failures(done)
    parts = sorted((part for one in done for part in one.unwrap()), key=lambda part: part.source.rank)
    check_one_run([span(part) for part in parts])
    if ranks is not None:
        parts = [part for part in parts if part.source.rank in ranks]
        if missing := sorted(set(ranks) - {part.source.rank for part in parts}):
            raise InputError(f"there is no rank {listing(map(str, missing))}", hint="leave out --ranks to see them all")
    sources = [part.source for part in parts]
    missing_ranks = () if ranks is not None else missing_notice(sources)
    return Trace(tuple(parts), (*notices, *merged_notices(sources), *missing_ranks))


def find(
    paths: Paths, *, ranks: Collection[int] | None = None, rank: int | None = None
) -> tuple[tuple[SourceRef, ...], tuple[Notice, ...]]:
    """Find what there is to read, one source a rank where that can be told; a store is opened into its ranks.

    >>> [ref.rank for ref in find("sample_traces/reload", ranks=[1, 3])[0]]
    [1, 3]
    """
    found = discover(paths, ranks=ranks, rank=rank)
    refs: list[SourceRef] = []
    said = list(found.notices)
    for ref in found.refs:
        if ref.reader == "store":
            said += _store_notices(ref)
            refs += _store_refs(ref)
        else:
            refs.append(ref)
    check_unmixed(refs)
    if ranks is not None:
        refs = [ref for ref in refs if ref.rank is None or ref.rank in ranks or ref.reader == "nsight"]
    return tuple(refs), tuple(said)


def _store_refs(ref: SourceRef) -> list[SourceRef]:
    sources = open_store(ref.path).sources
    if not sources:
        raise InputError(f"{ref.path}: the store holds no rank yet", hint="go on with: tracekit ingest --resume")
    size = ref.bytes // max(1, len(sources))
    return [replace(ref, rank=s.rank, rank_from=s.rank_from, world_size=s.world_size, bytes=size) for s in sources]


def _store_notices(ref: SourceRef) -> list[Notice]:
    store = open_store(ref.path)
    if store.complete:
        return list(store.notices)
    text = f"{ref.path}: writing this store was interrupted; go on with: tracekit ingest --resume"
    return [Notice("store-incomplete", text), *store.notices]


def read_ref(ref: SourceRef, *, stacks: bool = False, lenient: bool = True) -> list[RankEvents]:
    """Read one source: one rank, or all the ranks of an Nsight Systems report."""
    if ref.reader == "store":
        assert ref.rank is not None, "a store's sources name their rank"
        return [open_store(ref.path).rank(ref.rank)]
    with remote.fetched(ref.path) as local:
        if ref.reader == "nsight":
            from tracekit.parsers import nsight

            parts = nsight.read(local, rank=ref.rank if ref.rank_from == "option" else None, lenient=lenient)
        else:
            from tracekit.parsers import kineto

            given = ref.rank if ref.rank_from != "content" else None
            parts = [kineto.read(local, rank=given, stacks=stacks, lenient=lenient)]
    return [_settled(part, ref, alone=len(parts) == 1) for part in parts]


def _settled(part: RankEvents, ref: SourceRef, *, alone: bool) -> RankEvents:
    """Give a rank its place: the path as it was asked for, and the rank as discovery settled it."""
    source = replace(part.source, path=ref.path)
    if not alone or source.rank_from == "content" or ref.rank is None or ref.rank_from == "content":
        return RankEvents(part.events, source)
    events = part.events
    if source.rank != ref.rank:
        events = events.with_columns(rank=pl.lit(ref.rank, EVENTS["rank"]))
    return RankEvents(events, replace(source, rank=ref.rank, rank_from=ref.rank_from))


def read_all(
    refs: Sequence[SourceRef], *, workers: int | None = None, stacks: bool = False, lenient: bool = True
) -> list[Done[SourceRef, list[RankEvents]]]:
    """Read every source, in spawned processes where that pays; failures are data."""
    count = worker_count(refs, workers)
    if count == 1:
        read = partial(read_ref, stacks=stacks, lenient=lenient)
        return run_map(read, refs, workers=1, progress="reading")
    prepare(refs)
    # Parquet between processes: measured at a third of the time of pickled frames.
    with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
        to_files = partial(_read_to_files, folder=folder, stacks=stacks, lenient=lenient)
        done = run_map(to_files, refs, workers=count, progress="reading")
        return [Done(d.index, d.item, None if d.value is None else _from_files(d.value), d.error) for d in done]


def prepare(refs: Sequence[SourceRef]) -> None:
    """Compile what this machine never did, before many processes would each do so."""
    if any(ref.reader == "kineto" for ref in refs):
        importlib.import_module("tracekit.parsers.kineto.scanner")
    _native.prepare()


def worker_count(refs: Sequence[SourceRef], workers: int | None = None, *, pays: int = SPAWN_PAYS_BYTES) -> int:
    """Return how many processes to read with: as asked, else as many as pay and as memory allows.

    >>> worker_count([SourceRef("a.json", "kineto", bytes=1000)] * 4)
    1
    >>> worker_count([SourceRef("a.json", "kineto", bytes=1000)] * 4, workers=3)
    3
    """
    if workers is not None:
        return min(workers, max(1, len(refs))) if workers > 0 else workers
    sizes = [estimated_bytes(ref) for ref in refs]
    if len(refs) < 2 or sum(sizes) < pays or all(ref.reader == "store" for ref in refs):
        return 1
    each = max(sizes) + (300 << 20)
    return max(1, min(cores(), len(refs), available_memory() * 3 // 4 // each))


def estimated_bytes(ref: SourceRef) -> int:
    """Return about how much memory reading a source takes: the size of its text.

    >>> estimated_bytes(SourceRef("a.json.gz", "kineto", bytes=100))
    1500
    """
    return ref.bytes * (GZIP_RATIO if ref.path.endswith(".gz") else 1)


def _read_to_files(ref: SourceRef, *, folder: str, stacks: bool, lenient: bool) -> list[tuple[str, Source]]:
    written = []
    for part in read_ref(ref, stacks=stacks, lenient=lenient):
        handle, name = tempfile.mkstemp(suffix=".parquet", dir=folder)
        os.close(handle)
        part.events.write_parquet(name, compression="lz4", statistics=False)
        written.append((name, part.source))
    return written


def _from_files(written: list[tuple[str, Source]]) -> list[RankEvents]:
    parts = []
    for name, source in written:
        parts.append(RankEvents(pl.read_parquet(name, hive_partitioning=False), source))
        Path(name).unlink()
    return parts


def raise_failures(done: Sequence[Done[SourceRef, Any]]) -> None:
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


def failure_notices(done: Sequence[Done[SourceRef, Any]], *, strict: bool = False) -> tuple[Notice, ...]:
    """List the sources that could not be read, by path; raise where that is all of them, or with *strict* any.

    >>> good, bad = SourceRef("rank0.json", "kineto", 0), SourceRef("rank1.json", "kineto", 1)
    >>> failed = Done(1, bad, error=InputError("rank1.json: ends early"))
    >>> failure_notices([Done(0, good, value=[]), failed])[0].message
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


def _left_out(one: Done[SourceRef, Any]) -> str:
    assert one.error is not None, "only failures are left out"
    reason = one.error.message
    rank = "a source" if one.item.rank is None else f"rank {one.item.rank}"
    if reason.startswith(one.item.path):
        return f"{rank} is left out: {reason}"
    return f"{rank} is left out: {one.item.path}: {reason.removeprefix(f'{one.item.name}: ')}"


def check_strict(notices: Sequence[Notice]) -> None:
    """Raise the first notice of a trace that was skipped or is missing: with ``--strict`` they are fatal.

    >>> check_strict([Notice("no-shapes", "input shapes were not recorded")])
    """
    for notice in notices:
        if notice.code in ("not-a-trace", "missing-ranks", "rank-failed", "store-incomplete"):
            raise InputError(notice.message, hint="leave out --strict to go on without them")


def check_one_run(spans: Sequence[tuple[Source, int | None, int | None]]) -> None:
    """Refuse ranks that reading showed to be of different runs; a span is a source, its first and its last time."""
    sources = [source for source, _, _ in spans]
    check_unmixed([SourceRef(s.path, s.reader, s.rank, s.rank_from, s.world_size) for s in sources])
    runs = defaultdict(list)
    for source in sources:
        if source.run is not None:
            runs[source.run].append(source.path)
    if len(runs) > 1:
        shown = "; ".join(listing(files, most=2) for files in list(runs.values())[:3])
        raise InputError(f"these traces are of {len(runs)} different runs: {shown}", hint="name the files of one run")
    _check_times([(start, end or start, source.path) for source, start, end in spans if start and start > EPOCH_NS])


def _check_times(spans: list[tuple[int, int, str]]) -> None:
    reached, last = 0, ""
    for start, end, path in sorted(spans):
        if last and start - reached > APART_NS:
            hours = (start - reached) / 3.6e12
            raise InputError(
                f"these traces are of different runs: {path} begins {hours:.0f} h after {last} ends",
                hint="name the files of one run",
            )
        if end > reached:
            reached, last = end, path


def span(part: RankEvents) -> tuple[Source, int | None, int | None]:
    """Return a rank's source, first and last time."""
    first, last = part.events.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    return part.source, first, last


def merged_notices(sources: Sequence[Source]) -> tuple[Notice, ...]:
    """Return the sources' notices, one for each code, with the ranks it is about.

    >>> a = Source("a", "kineto", 0, "name", notices=(Notice("cut", "ends early"),))
    >>> merged_notices([a, replace(a, rank=1)])[0].message
    'rank 0, 1: ends early'
    """
    about: dict[tuple[str, str], list[int]] = defaultdict(list)
    for source in sources:
        for notice in source.notices:
            about[notice.code, without_rank(notice.message)].append(source.rank)
    return tuple(
        Notice(code, f"rank {listing(map(str, ranks))}: {message}") for (code, message), ranks in about.items()
    )


def without_rank(message: str) -> str:
    """Return a notice without the rank it begins with, so that ranks with the same one can share it.

    >>> without_rank("rank 3: ends early")
    'ends early'
    """
    return re.sub(r"^rank \d+: ", "", message)


def missing_notice(sources: Sequence[Source]) -> tuple[Notice, ...]:
    """Say which ranks of the run are not here, where the world size is known."""
    size = max((source.world_size or 0 for source in sources), default=0)
    missing = sorted(set(range(size)) - {source.rank for source in sources})
    if not missing:
        return ()
    text = f"{len(missing)} of {size} ranks are not here: {listing(map(str, missing))}"
    return (Notice("missing-ranks", text),)


def _html_row(part: RankEvents) -> str:
    source, counts = part.source, Counter(dict(part.events["kind"].value_counts().iter_rows()))
    gpu = sum(counts[kind] for kind in ("kernel", "memcpy", "memset", "graph"))
    steps = part.events["step"].drop_nulls().unique().sort().to_list()
    _, first, last = span(part)
    cells = (
        source.rank,
        f"{part.events.height:,}",
        f"{gpu:,}",
        f"{counts['cpu_op']:,}",
        f"{steps[0]}–{steps[-1]}" if len(steps) > 1 else listing(map(str, steps)),
        f"{((last or 0) - (first or 0)) / 1e6:,.1f} ms",
        listing(sorted(set(source.devices)), most=1),
        source.path.rsplit("/", 1)[-1],
    )
    return "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in cells) + "</tr>"
