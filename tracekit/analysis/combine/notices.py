"""Notices about a whole run: doubtful clocks, unknown waits, unlabelled work, weak evidence."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from tracekit.align.clocks import Clocks
from tracekit.align.gpu_clock import is_clock_unexplained
from tracekit.analysis.combine.replayed_ranks import ReplayedRanks
from tracekit.analysis.measure.tables import RankTables
from tracekit.analysis.measured import total_figures
from tracekit.classify.messages import parse_group_ranks
from tracekit.documents.analysis import RankFigures
from tracekit.errors import Notice, NoticeValues
from tracekit.metrics.operations import (
    has_unknown_wait,
    has_unseen_messages,
    may_be_message,
    may_be_of_pipeline,
)
from tracekit.metrics.step_time import FreeStep, StepSummary
from tracekit.pipeline.against_ideal import ScheduleComparison
from tracekit.store.sources import EARLIEST_DATE_NS

MIN_UNLABELLED_SHARE_TO_WARN = 0.01
"""Share of a rank's span."""
MIN_WEAK_SHARE_TO_WARN = 0.01
"""Share of GPU time whose labels rest on weak evidence."""
MIN_OUTSIDE_TO_BOUND_RATIO = 2.0
"""Share of time outside cells over the lower bound of the bubble, from which the bound needs an
explanation."""
MAX_STEPS_NAMED = 8
"""Most steps that a notice names one by one."""
PIPELINE_NOTICES = ("no-pipeline", "no-sequence-numbers", "pairs-by-order")
"""Codes of notices that do not concern a run without a pipeline."""


def without_known_peers(notices: Sequence[Notice], operations: pl.DataFrame) -> list[Notice]:
    """Return the notices; without those about unknown peers if all peers are known by now.

    >>> read = [Notice("peers-in-communicator")]
    >>> without_known_peers(read, pl.DataFrame({"messages": [[{"send": True, "peer": 1}]]}))
    []
    >>> len(without_known_peers(read, pl.DataFrame({"messages": [[{"send": True, "peer": None}]]})))
    1
    """
    has_unknown = bool(operations.select(_names_no_peer().any()).item())
    if has_unknown:
        return list(notices)
    return [notice for notice in notices if notice.code != "peers-in-communicator"]


def _names_no_peer() -> pl.Expr:
    """Return the condition that some message of an operation does not name its peer.

    Null without messages.
    """
    return pl.col("messages").list.eval(pl.element().struct.field("peer").is_null()).list.any()


def without_pipeline_notices(notices: Iterable[Notice]) -> tuple[Notice, ...]:
    """Return the notices without those of ``PIPELINE_NOTICES``."""
    return tuple(notice for notice in notices if notice.code not in PIPELINE_NOTICES)


def clock_notices(ranks: Sequence[RankTables], clocks: Clocks) -> list[Notice]:
    """Return notices of ranks that were recorded so far from the others in time that they may be of another run.

    Clocks of machines differ, and are aligned; but a run that was recorded again a minute later has
    the same operations and would be aligned as well. Times that are no dates tell nothing.
    """
    spans: dict[int, tuple[Any, Any]] = {}
    for table in ranks:
        span = (table.steps["start_ns"].min(), table.steps["end_ns"].max())
        spans[table.source.rank] = span
    longest_ns = max((end - start for start, end in spans.values() if start is not None), default=0)
    first_rank = min(spans, default=0)
    notices = []
    for rank, offset_ns in clocks.table.select("rank", "offset_ns").drop_nulls().rows():
        start_ns = spans[rank][0] or 0
        if abs(offset_ns) > longest_ns and start_ns > EARLIEST_DATE_NS:
            values = {"apart_ns": abs(offset_ns), "later": offset_ns > 0, "other_rank": first_rank}
            notices.append(Notice("clocks-apart", ranks=(rank,), values=values))
    return notices


def wait_notices(ranks: Sequence[RankTables], operations: pl.DataFrame) -> list[Notice]:
    """Return notices of messages whose waiting could not be separated from their transfer."""
    messages = Counter(operations["rank"].filter(pl.Series(may_be_message(operations))).to_list())
    notices = []
    unseen = []
    for rank in ranks:
        if has_unseen_messages(rank.messages_issued, messages[rank.source.rank]):
            unseen.append(rank.source.rank)
    if unseen:
        notices.append(Notice("wait-unknown", ranks=tuple(unseen), values={"case": "no_kernels"}))
    unknown = operations.filter(pl.Series(has_unknown_wait(operations)) & ~pl.col("hole"))
    if len(unknown):
        values = _why_wait_unknown(unknown, {rank.source.rank for rank in ranks})
        values |= {"count": len(unknown), "total": int(may_be_of_pipeline(operations).sum())}
        notices.append(Notice("wait-unknown", values=values))
    return notices


def bounded_wait_notices(operations: pl.DataFrame, clocks: Clocks) -> list[Notice]:
    """Return a notice of labels whose waits are upper bounds, because the clocks are not aligned well enough."""
    bounded = operations.filter(
        (pl.col("wait_is_bound") & (pl.col("wait_ns") > 0)).fill_null(False)
    )
    labels = sorted(bounded["label"].unique().to_list())
    if not labels:
        return []
    largest_ns = clocks.table["uncertainty_ns"].max()
    uncertainty_ns = largest_ns if isinstance(largest_ns, int) else None
    return [Notice("wait-bound", labels=tuple(labels), values={"uncertainty_ns": uncertainty_ns})]


def incomplete_group_notices(operations: pl.DataFrame) -> list[Notice]:
    """Return a notice of collectives of which some members have no trace, and which ranks to add."""
    collectives = operations.filter(pl.col("open") & ~pl.col("hole") & (pl.col("what") != "p2p"))
    if collectives.is_empty():
        return []
    labels = sorted(collectives["label"].unique().to_list())
    members = parse_group_ranks(collectives["group_ranks"])["members"].explode().drop_nulls()
    missing = sorted(set(members.to_list()) - set(operations["rank"].unique().to_list()))
    return [Notice("members-missing", labels=tuple(labels), values={"missing": tuple(missing)})]


def lost_operation_notices(operations: pl.DataFrame, lost: pl.DataFrame) -> list[Notice]:
    """Return a notice of operations that a rank with a trace did not record, so that waits in them are lower bounds.

    Args:
        operations: Operations of all ranks with their waits.
        lost: Operations that were launched and not recorded.

    """
    holes = operations.filter("hole")
    if holes.is_empty():
        return []
    labels = tuple(sorted(holes["label"].cast(pl.String).unique().to_list()))
    ranks = tuple(sorted(lost["rank"].unique().to_list()))
    values: NoticeValues = {"count": len(holes), "total": len(operations)}
    return [Notice("operations-lost", ranks=ranks, labels=labels, values=values)]


def _why_wait_unknown(unknown: pl.DataFrame, recorded: set[int]) -> NoticeValues:
    """Return why the waits of operations are *unknown*."""
    if unknown["messages"].null_count() == len(unknown):
        return {"case": "unnamed"}
    if unknown.select(_names_no_peer().fill_null(True).all()).item():
        return {"case": "peers_unnamed"}
    named = set(unknown["messages"].explode().struct.field("peer").drop_nulls().to_list())
    if named and named <= recorded:
        return {"case": "no_counterpart"}
    return {"case": "peers_missing", "missing": tuple(sorted(named - recorded))}


def unlabelled_notices(results: Sequence[RankFigures]) -> list[Notice]:
    """Return a notice of ranks with much work that no rule labels."""
    shares = {}
    for result in results:
        if result.whole.budget.span_ns:
            other_ns = result.whole.label_ns.get("other", 0)
            shares[result.rank] = other_ns / result.whole.budget.span_ns
    above = [rank for rank, share in shares.items() if share > MIN_UNLABELLED_SHARE_TO_WARN]
    if not above:
        return []
    worst = max(above, key=lambda rank: shares[rank])
    values: NoticeValues = {
        "share": shares[worst],
        "limit": MIN_UNLABELLED_SHARE_TO_WARN,
        "ranks_above": len(above) if len(above) > 1 else 0,
    }
    return [Notice("unlabelled", ranks=(worst,), values=values)]


def weak_label_notices(results: Sequence[RankFigures]) -> list[Notice]:
    """Return a notice if much GPU time is labelled only by the work that ran around it."""
    share = total_figures(results).weak_share
    if share is None or share <= MIN_WEAK_SHARE_TO_WARN:
        return []
    return [Notice("weak-labels", values={"share": share})]


def free_step_notices(ranks: Sequence[RankTables], free: FreeStep | None) -> list[Notice]:
    """Return why the step without the profiler is not known; empty if it is, or if nothing was recorded.

    A run whose events were not kept says nothing: nobody could do anything about it.
    """
    if free is not None or not any(rank.graph_events is not None for rank in ranks):
        return []
    by_other_profiler = tuple(rank.source.rank for rank in ranks if rank.source.reader == "nsight")
    if by_other_profiler:
        return [Notice("no-free-step", values={"case": "other_profiler"})]
    if any(is_clock_unexplained(rank.source) for rank in ranks):  # its own notice says so
        return []
    without_operators = [
        rank.source.rank for rank in ranks if not rank.source.counts.get("cpu_op", 0)
    ]
    if not without_operators:
        return []
    named = () if len(without_operators) == len(ranks) else tuple(without_operators)
    return [Notice("no-free-step", ranks=named, values={"case": "no_operators"})]


def replayed_ranks_notices(replayed: ReplayedRanks | None) -> list[Notice]:
    """Return which ranks of a large run are replayed, if not all are."""
    if replayed is None:
        return []
    values: NoticeValues = {
        "replayed": len(replayed.ranks),
        "count": replayed.count,
        "waited_for": replayed.waited_for,
        "spread": replayed.spread,
    }
    return [Notice("replay-sampled", values=values)]


def start_up_notices(steps: StepSummary) -> list[Notice]:
    """Return the steps in which code was loaded onto the GPU, and whether there are others.

    >>> from tracekit.metrics.step_time import StepTime
    >>> (notice,) = start_up_notices(StepSummary(10, (StepTime(0, 10),), start_up=(0,)))
    >>> notice.values["case"]
    'alone'
    """
    if not steps.start_up:
        return []
    case = "alone" if steps.is_start_up_alone else "left_out"
    named = steps.start_up[:MAX_STEPS_NAMED]
    values: NoticeValues = {"case": case, "count": len(steps.start_up), "steps": named}
    return [Notice("start-up", values=values)]


def uncommon_step_notices(steps: StepSummary) -> list[Notice]:
    """Return the steps that some ranks recorded and others did not, one notice for ranks that lack the same steps.

    >>> (notice,) = uncommon_step_notices(StepSummary(10, not_common={8: (1,), 9: (1,)}))
    >>> notice.ranks, notice.values["steps"]
    ((1,), (8, 9))
    """
    steps_by_ranks: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for step, ranks in steps.not_common.items():
        steps_by_ranks[ranks].append(step)
    notices = []
    for ranks, missing in steps_by_ranks.items():
        values: NoticeValues = {"count": len(missing), "steps": tuple(missing[:MAX_STEPS_NAMED])}
        notices.append(Notice("steps-not-common", ranks=ranks, values=values))
    return notices


def bound_notices(
    results: Sequence[RankFigures], comparison: ScheduleComparison | None
) -> list[Notice]:
    """Return a notice if the lower bound of the bubble is far below the share of time outside pipeline cells."""
    total = total_figures(results)
    bound = total.bubble_fraction
    if comparison is None or not comparison.exact or not total.lower_bound or bound is None:
        return []
    outside_cells = comparison.head.measured_bubble
    if outside_cells <= MIN_OUTSIDE_TO_BOUND_RATIO * bound:
        return []
    return [Notice("bubble-bound-low", values={"bound": bound, "outside_cells": outside_cells})]
