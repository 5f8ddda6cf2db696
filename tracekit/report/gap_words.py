"""Notices that matter to a reader, missing ranks by name, and waits that are bounds."""

from collections.abc import Sequence

from tracekit._util.text import ranks_named
from tracekit.analysis import Analysis
from tracekit.analysis.combine.notices import without_pipeline_notices
from tracekit.errors import Notice
from tracekit.parsers.rank_numbers import missing_ranks
from tracekit.report.notices import NoticeLine, shorten_notices

MAX_MISSING_NAMED = 64
"""Missing ranks that are looked for to be named."""


def relevant_notices(analysis: Analysis) -> tuple[Notice, ...]:
    """Return the notices for a reader: without those about the pipeline of a run that has none."""
    return (
        analysis.notices if analysis.total.pipeline else without_pipeline_notices(analysis.notices)
    )


def warnings_of(analysis: Analysis) -> tuple[NoticeLine, ...]:
    """Return the notices for a reader as lines."""
    return tuple(shorten_notices(relevant_notices(analysis)))


def missing_ranks_named(ranks: Sequence[int], world_size: int | None) -> str:
    """Return the ranks of a run that are not among *ranks*; empty if none is missing.

    >>> missing_ranks_named([0, 1, 4], 5), missing_ranks_named([0], None)
    ('ranks 2, 3', '')
    """
    count, first = missing_ranks(ranks, world_size or 0, most=MAX_MISSING_NAMED)
    more = f" and {count - len(first)} more" if count > len(first) else ""
    return f"{ranks_named(first)}{more}" if count else ""


def is_wait_bound(analysis: Analysis, label: str) -> bool:
    """Return whether the waits of a label are upper bounds."""
    bounds = [notice for notice in analysis.notices if notice.code == "wait-bound"]
    return any(label in notice.labels for notice in bounds)
