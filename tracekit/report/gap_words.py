"""Words for the gap between a pipeline and its ideal, for missing ranks, and for waits that are bounds."""

from collections.abc import Sequence

from tracekit._util.text import join_with_and, ms, ranks_named
from tracekit.analysis import Analysis
from tracekit.analysis.combine.notices import without_pipeline_notices
from tracekit.errors import Notice
from tracekit.parsers.rank_numbers import missing_ranks
from tracekit.report.text import signed_ms
from tracekit.schema import GAP_CAUSES, LABEL_WORDS

MIN_GAP_SHARE = 0.05
"""Share of the schedule span from which a part of the gap is worth a line."""
MAX_MISSING_NAMED = 64
"""Missing ranks that are looked for to be named."""
GAP_LABELS = {
    "exposed_ep": ("ep_dispatch", "ep_combine"),
    "exposed_comm": ("tp_comm", "dp_comm", "cp_comm", "comm"),
    "p2p": ("pp_comm",),
}
"""Causes of a gap that are communication, and the labels they are made of."""


def relevant_notices(analysis: Analysis) -> tuple[Notice, ...]:
    """Return the notices for a reader: without those about the pipeline of a run that has none."""
    return (
        analysis.notices if analysis.total.pipeline else without_pipeline_notices(analysis.notices)
    )


def missing_ranks_named(ranks: Sequence[int], world_size: int | None) -> str:
    """Return the ranks of a run that are not among *ranks*; empty if none is missing.

    >>> missing_ranks_named([0, 1, 4], 5), missing_ranks_named([0], None)
    ('ranks 2, 3', '')
    """
    count, first = missing_ranks(ranks, world_size or 0, most=MAX_MISSING_NAMED)
    more = f" and {count - len(first)} more" if count > len(first) else ""
    return f"{ranks_named(first)}{more}" if count else ""


def gap_words(analysis: Analysis, cause: str) -> str:
    """Return a cause of the gap in words.

    Other communication by the label that is exposed longest.
    """
    exposed_ns = analysis.total.budget.exposed_ns
    labels = [label for label in GAP_LABELS.get(cause, ()) if exposed_ns.get(label)]
    if not labels or cause != "exposed_comm":
        return GAP_CAUSES[cause]
    label = max(labels, key=lambda name: exposed_ns[name])
    return (
        f"exposed communication, mostly {label}"
        if len(labels) > 1
        else f"exposed {LABEL_WORDS[label]} ({label})"
    )


def gap_basis(analysis: Analysis, cause: str) -> str:
    """Return how a part of the gap relates to the exposed time of its labels.

    Empty for a cause without labels.

    A part of the gap adds up along the chain of stages that the schedule span follows, so that it
    can be longer than what is exposed on any rank, or shorter.
    """
    exposed_ns = analysis.total.budget.exposed_ns
    labels = [label for label in GAP_LABELS.get(cause, ()) if exposed_ns.get(label)]
    rank_steps = max(1, sum(len(rank.per_step) for rank in analysis.rank_results))
    per_rank = ms(sum(exposed_ns[label] for label in labels) / rank_steps)
    named = f"{join_with_and(labels)}: {per_rank} per rank"
    return f" along the chain of stages ({named})" if labels else ""


def of_the_gap(ns: float, total: float, where: str, words: str) -> str:
    """Return what part of a gap one cause is.

    More than all of it where other causes shorten the run.

    >>> of_the_gap(25_300_000, 26_200_000, "to the ideal", "late launches")
    '25.3 ms of the 26.2 ms to the ideal is late launches'
    >>> of_the_gap(26_300_000, 25_600_000, "to the ideal", "late launches")
    'the 25.6 ms to the ideal is late launches (26.3 ms; other causes −0.7 ms)'
    """
    if ns <= total:
        return f"{ms(ns)} of the {ms(total)} {where} is {words}"
    return f"the {ms(total)} {where} is {words} ({ms(ns)}; other causes {signed_ms(total - ns)})"


def is_wait_bound(analysis: Analysis, label: str) -> bool:
    """Return whether the waits of a label are upper bounds."""
    bounds = [notice for notice in analysis.notices if notice.code == "wait-bound"]
    return any(label in notice.labels for notice in bounds)
