"""Collectives of profiler traces, as recordings of a whole run have them."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit.analysis import Analysis
from tracekit.errors import Notice
from tracekit.late.find_recordings import find_recordings
from tracekit.late.measure import measure_whole_run
from tracekit.late.profiled import collectives_of_events, collectives_of_operations
from tracekit.late.recording_checks import without_copies
from tracekit.late.result import WholeRun
from tracekit.parsers.one_run import check_single_run
from tracekit.parsers.source_refs import SourceRef
from tracekit.schema import RankCollectives
from tracekit.store.files import open_store
from tracekit.store.source_workers import map_sources
from tracekit.store.sources import PathList, failure_notices, read_ref, refs_of_store


def late_beside_traces(paths: PathList, analysis: Analysis) -> WholeRun | None:
    """Return the result for dumps and logs that lie beside analysed traces; None if they are no longer there."""
    recordings = find_recordings(paths)
    if recordings is None:
        return None
    traces = collectives_of_operations(analysis.tables["operations"], analysis.sources)
    return measure_whole_run([*recordings.parts, *traces], recordings.notices)


def read_traces(
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
    originals, copy_notices = without_copies(parts)
    return originals, (*notices, *copy_notices)


def _read_trace(ref: SourceRef) -> list[RankCollectives]:
    return [collectives_of_events(part) for part in read_ref(ref)]
