"""Lateness, hangs and transfers over a whole run, from recorders that are always on.

What is heavy is imported when the call is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracekit.errors import InputError

if TYPE_CHECKING:
    from tracekit.late.late_result import LateResult
    from tracekit.parsers.rank_numbers import RankChoice
    from tracekit.schema import RankCollectives
    from tracekit.store.sources import PathList

__all__ = ["late"]


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
    from tracekit.late.find_recordings import read_found_recordings
    from tracekit.late.late_result import LateResult
    from tracekit.late.measure import measure_whole_run
    from tracekit.late.run import read_traces
    from tracekit.parsers.discovery import discover
    from tracekit.parsers.rank_numbers import chosen_ranks

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
    traces, trace_notices = read_traces(discovery.refs, workers=workers)
    parts += traces
    notices += trace_notices
    if numbers is not None:
        parts = [part for part in parts if part.source.rank in numbers]
    return LateResult.of(measure_whole_run(parts, notices))
