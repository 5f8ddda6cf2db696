"""The ``late`` call: dumps, logs and traces of a run read and compared over the whole recorded time."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.analysis import Analysis
from tracekit.errors import InputError, Notice
from tracekit.parsers.discovery import discover
from tracekit.parsers.one_run import check_single_run
from tracekit.parsers.rank_numbers import RankChoice, chosen_ranks
from tracekit.parsers.source_refs import SourceRef
from tracekit.results import LateResult
from tracekit.run.driver import map_sources
from tracekit.run.recordings import find_recordings, read_found_recordings
from tracekit.schema import RankCollectives
from tracekit.store.files import open_store
from tracekit.store.sources import PathList, failure_notices, read_ref, refs_of_store
from tracekit.whole_run.measure import measure_whole_run
from tracekit.whole_run.profiled import collectives_of_events, collectives_of_operations
from tracekit.whole_run.result import WholeRun


def late(
    paths: PathList, *, ranks: RankChoice | None = None, workers: int | None = None
) -> LateResult:
    """Return who joins collectives late over a whole run, and hangs.

    Flight-recorder dumps, NCCL Inspector logs and profiler traces are recognised by content. One
    kind is enough, and several of the same run complete each other.

    Args:
        paths: Files, folders, globs or stores of one run.
        ranks: Ranks to read; by default all.
        workers: Number of worker processes for reading traces; by default as many as pay.

    >>> run = late("sample_traces/always-on/late")
    >>> [(fact.ranks, fact.kind, fact.period) for fact in run.late]
    [((1,), 'periodic', 3)]
    >>> late("sample_traces/always-on/hang").hang.missing[0].rank
    2

    """
    numbers = chosen_ranks(ranks)
    discovery = discover(paths, check=False, need_traces=False)
    recordings = read_found_recordings(discovery)
    if recordings is None and not discovery.refs:
        raise InputError(
            "there is no record of collectives here",
            hint="name flight-recorder dumps, Inspector logs or traces",
        )
    notices = list(discovery.notices)
    parts: list[RankCollectives] = []
    if recordings is not None:
        parts += recordings.parts
        notices += recordings.notices
    traces, trace_notices = _read_traces(discovery.refs, workers=workers)
    parts += traces
    notices += trace_notices
    if numbers is not None:
        parts = [part for part in parts if part.source.rank in numbers]
    return LateResult.of(measure_whole_run(parts, notices))


def late_beside_traces(paths: PathList, analysis: Analysis) -> WholeRun | None:
    """Return the result for dumps and logs that lie beside analysed traces.

    None if there are none.
    """
    recordings = find_recordings(paths)
    if recordings is None:
        return None
    traces = collectives_of_operations(analysis.tables["operations"], analysis.sources)
    return measure_whole_run([*recordings.parts, *traces], recordings.notices)


def _read_traces(
    refs: Sequence[SourceRef], *, workers: int | None
) -> tuple[list[RankCollectives], tuple[Notice, ...]]:
    """Return the collectives of profiler traces, and notices about those that cannot be read."""
    if not refs:
        return [], ()
    expanded = []
    for ref in refs:
        is_store = ref.reader == "store"
        expanded += refs_of_store(ref, open_store(ref.path).sources) if is_store else [ref]
    if not expanded:
        return [], ()
    check_single_run(expanded)
    results = map_sources(_read_trace, expanded, workers=workers, progress="reading")
    notices = failure_notices(results)
    parts = []
    for result in results:
        if result.error is None:
            parts += result.unwrap()
    return parts, notices


def _read_trace(ref: SourceRef) -> list[RankCollectives]:
    return [collectives_of_events(part) for part in read_ref(ref)]
