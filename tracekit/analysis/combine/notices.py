"""Notices about a whole run: doubtful clocks, unknown waits, unlabelled work, weak evidence."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import polars as pl

from tracekit._util.notices import of_ranks
from tracekit._util.text import first_of, joined, ms, percent, ranks_named, verb
from tracekit.align.clocks import Clocks
from tracekit.align.gpu_clock import is_clock_unexplained
from tracekit.analysis.combine.replayed_ranks import ReplayedRanks
from tracekit.analysis.measure.tables import RankTables
from tracekit.analysis.measured import total_figures
from tracekit.classify.messages import parse_group_ranks
from tracekit.documents.analysis import RankFigures, Step
from tracekit.errors import Notice, NoticeValues
from tracekit.metrics.operations import (
    has_unknown_wait,
    has_unseen_messages,
    may_be_message,
    may_be_of_pipeline,
)
from tracekit.metrics.step_time import FreeStep
from tracekit.pipeline.against_ideal import ScheduleComparison
from tracekit.store.sources import EARLIEST_DATE_NS

MIN_UNLABELLED_SHARE_TO_WARN = 0.01
"""Share of a rank's span."""
MIN_WEAK_SHARE_TO_WARN = 0.01
"""Share of GPU time whose labels rest on weak evidence."""
MIN_OUTSIDE_TO_BOUND_RATIO = 2.0
"""Share of time outside cells over the lower bound of the bubble, from which the bound needs an
explanation."""
MAX_RANKS_NAMED = 8
"""Ranks that others wait for that a notice names."""
MAX_STEPS_NAMED = 8
"""Most steps that a notice names one by one."""
PIPELINE_NOTICES = ("no-pipeline", "pairs-by-order")
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
            values = {
                "case": "recorded",
                "apart_ns": abs(offset_ns),
                "later": offset_ns > 0,
                "other_rank": first_rank,
            }
            notices.append(
                Notice(
                    "clocks-apart",
                    (
                        f"{ranks_named((rank,))} was recorded "
                        f"{abs(offset_ns) / 1000000000.0:,.1f} s "
                        f"{'after' if offset_ns > 0 else 'before'} rank "
                        f"{first_rank}: if they belong to one run, their clocks "
                        "differ by that much; if not, name the files of one run"
                    ),
                    ranks=(rank,),
                    values=values,
                )
            )
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
        notices.append(
            Notice(
                "wait-unknown",
                (
                    f"{of_ranks(tuple(unseen))}the host sends and receives, but no kernel is known to do "
                    "so: waiting inside them is not known and the bubble fraction "
                    "is a lower bound; name the kernels in a rules file (--rules)"
                ),
                ranks=tuple(unseen),
                values={"case": "no_kernels"},
            )
        )
    unknown = operations.filter(pl.Series(has_unknown_wait(operations)) & ~pl.col("hole"))
    if len(unknown):
        notices.append(
            _unknown_wait_notice(
                unknown,
                total=int(may_be_of_pipeline(operations).sum()),
                recorded={rank.source.rank for rank in ranks},
            )
        )
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
    why = "nothing ties the clocks"
    if uncertainty_ns is not None:
        why = f"clocks agree only to {ms(uncertainty_ns, 3)}"
    message = f"{joined(labels)}: waits are upper bounds (own duration minus the shortest one), because {why}"
    values: NoticeValues = {"uncertainty_ns": uncertainty_ns}
    return [Notice("wait-bound", message, labels=tuple(labels), values=values)]


def incomplete_group_notices(operations: pl.DataFrame) -> list[Notice]:
    """Return a notice of collectives of which some members have no trace, and which ranks to add."""
    collectives = operations.filter(pl.col("open") & ~pl.col("hole") & (pl.col("what") != "p2p"))
    if collectives.is_empty():
        return []
    labels = sorted(collectives["label"].unique().to_list())
    members = parse_group_ranks(collectives["group_ranks"])["members"].explode().drop_nulls()
    missing = sorted(set(members.to_list()) - set(operations["rank"].unique().to_list()))
    remedy = f"add {ranks_named(missing)}" if missing else "give all ranks"
    message = f"{joined(labels)}: not all members were recorded, so waiting for the others is not known; {remedy}"
    values: NoticeValues = {"case": "members_missing", "missing": tuple(missing)}
    return [Notice("wait-unknown", message, labels=tuple(labels), values=values)]


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
    launched_by = ""
    if ranks:
        launched_by = f" ({ranks_named(ranks)} launched it, and its kernel is not in the file)"
    message = (
        f"{len(holes)} of {len(operations):,} operations ({joined(labels)}) lack the side of another "
        f"rank{launched_by}: waits in them are lower bounds"
    )
    values: NoticeValues = {"case": "holes", "count": len(holes), "total": len(operations)}
    return [Notice("uneven-operations", message, ranks=ranks, labels=labels, values=values)]


def _unknown_wait_notice(unknown: pl.DataFrame, *, total: int, recorded: set[int]) -> Notice:
    """Return why the waits of operations are *unknown*, of *total* messages between *recorded* ranks."""
    not_known = "waiting inside them is not known and the bubble fraction is a lower bound"
    of_messages = f"{len(unknown)} of {total} sends and receives"
    values: NoticeValues = {"count": len(unknown), "total": total}
    if unknown["messages"].null_count() == len(unknown):
        case = "unnamed"
        message = (
            f"{of_messages} name neither what they carry nor their peer: {not_known}; record operators, "
            "or the peers"
        )
    elif unknown.select(_names_no_peer().fill_null(True).all()).item():
        case = "peers_unnamed"
        message = f"{of_messages} do not name their peer: {not_known}; record the peers"
    else:
        peers = unknown["messages"].explode().struct.field("peer").drop_nulls()
        named = set(peers.to_list())
        missing = tuple(sorted(named - recorded))
        if named and not missing:
            case = "no_counterpart"
            message = (
                f"{of_messages} have no counterpart in the trace of their peer: {not_known}; record all ranks over "
                "the same time"
            )
        else:
            case = "peers_missing"
            values["missing"] = missing
            message = f"{of_messages} have no peer in these traces: {not_known}; add {ranks_named(missing)}"
    return Notice("wait-unknown", message, values={"case": case, **values})


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
    elsewhere = ""
    if len(above) > 1:
        limit = percent(MIN_UNLABELLED_SHARE_TO_WARN, digits=0)
        elsewhere = f"; above {limit} on {len(above)} ranks"
    message = (
        f"no rule knows what {percent(shares[worst])} of rank {worst}'s span is (label other{elsewhere}): it "
        "counts as compute; name it in a rules file (--rules), see --explain other"
    )
    return [Notice("unlabelled", message, ranks=(worst,), values=values)]


def weak_label_notices(results: Sequence[RankFigures]) -> list[Notice]:
    """Return a notice if much GPU time is labelled only by the work that ran around it."""
    share = total_figures(results).weak_share
    if share is None or share <= MIN_WEAK_SHARE_TO_WARN:
        return []
    return [
        Notice(
            "weak-labels",
            (
                f"{percent(share)} of GPU time is labelled by weak evidence (what ran "
                "around it): record operators and shapes, or name it in a rules file "
                "(--rules); --explain says which rule decided"
            ),
            values={"share": share},
        )
    ]


def free_step_notices(ranks: Sequence[RankTables], free: FreeStep | None) -> list[Notice]:
    """Return why the step without the profiler is not known; empty if it is, or if nothing was recorded.

    A run whose events were not kept says nothing: nobody could do anything about it.
    """
    if free is not None or not any(rank.graph_events is not None for rank in ranks):
        return []
    by_other_profiler = tuple(rank.source.rank for rank in ranks if rank.source.reader == "nsight")
    if by_other_profiler:
        return [
            Notice(
                "no-free-step",
                (
                    "what a step takes without this profiler is not known: times and "
                    "savings are as recorded"
                ),
                values={"case": "other_profiler"},
                severity="note",
            )
        ]
    if any(is_clock_unexplained(rank.source) for rank in ranks):  # its own notice says so
        return []
    without_operators = [
        rank.source.rank for rank in ranks if not rank.source.counts.get("cpu_op", 0)
    ]
    if not without_operators:
        return []
    named = () if len(without_operators) == len(ranks) else tuple(without_operators)
    return [
        Notice(
            "no-free-step",
            (
                f"{of_ranks(named)}the recording has GPU activities alone: the GPU's work is exact, but "
                "what the host did, and what a step takes without the profiler, is not "
                "known: record CPU activities as well, or with tracekit.profiler, which "
                "times the step before it records"
            ),
            ranks=named,
            values={"case": "no_operators"},
        )
    ]


def replayed_ranks_notices(replayed: ReplayedRanks | None) -> list[Notice]:
    """Return which ranks of a large run are replayed, if not all are."""
    if replayed is None:
        return []
    values: NoticeValues = {
        "case": "ranks",
        "replayed": len(replayed.ranks),
        "count": replayed.count,
        "waited_for": replayed.waited_for,
        "spread": replayed.spread,
    }
    chosen = "those nearest to the median of their kind"
    if replayed.waited_for:
        named = first_of(replayed.waited_for, count=MAX_RANKS_NAMED)
        chosen = f"those that others wait for most (ranks {named}), with whom they exchange messages, and {chosen}"
    message = (
        f"savings and the step without the profiler come from a replay of {len(replayed.ranks)} of "
        f"{replayed.count:,} ranks: {chosen}; compute of the ranks left out differs from that median by up to "
        f"{percent(replayed.spread)}: what is unlike others there and lets nobody wait is not found"
    )
    return [Notice("sampled", message, values=values, severity="note")]


def start_up_notices(steps: Step) -> list[Notice]:
    """Return the steps in which code was loaded onto the GPU, and whether there are others.

    >>> from tracekit.documents.analysis import StepTime
    >>> (notice,) = start_up_notices(Step.of(10, per_step=[StepTime(0, 10)], start_up=[0]))
    >>> notice.values["case"]
    'alone'
    """
    if not steps.start_up:
        return []
    case = "alone" if steps.is_start_up_alone else "left_out"
    named = tuple(steps.start_up[:MAX_STEPS_NAMED])
    values: NoticeValues = {"case": case, "count": len(steps.start_up), "steps": named}
    count = len(steps.start_up)
    loads = (
        f"{verb(count, 'step', 'steps')} {first_of(named, count=count)} {verb(count, 'loads', 'load')} code onto the "
        "GPU (start-up)"
    )
    if steps.is_start_up_alone:
        message = (
            f"{loads}, and no other was recorded: nothing is advised about it; record later steps"
        )
        return [Notice("start-up", message, values=values)]
    return [
        Notice("start-up", f"{loads}: left out of ordinary steps", values=values, severity="note")
    ]


def uncommon_step_notices(steps: Step) -> list[Notice]:
    """Return the steps that some ranks recorded and others did not, one notice for ranks that lack the same steps.

    >>> from tracekit.documents.analysis import StepNotCommon
    >>> lacking = [StepNotCommon(8, [1]), StepNotCommon(9, [1])]
    >>> (notice,) = uncommon_step_notices(Step.of(10, not_common=lacking))
    >>> notice.ranks, notice.values["steps"]
    ((1,), (8, 9))
    """
    steps_by_ranks: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for lacking in steps.not_common:
        steps_by_ranks[tuple(lacking.missing_ranks)].append(lacking.step)
    notices = []
    for ranks, missing in steps_by_ranks.items():
        values: NoticeValues = {"count": len(missing), "steps": tuple(missing[:MAX_STEPS_NAMED])}
        notices.append(
            Notice(
                "steps-not-common",
                (
                    f"{of_ranks(ranks)}{verb(len(missing), 'step', 'steps')} "
                    f"{first_of(tuple(missing[:MAX_STEPS_NAMED]), count=len(missing))}"
                    f" {verb(len(missing), 'is', 'are')} missing, which other "
                    "ranks recorded: only steps that all ranks recorded are "
                    "counted"
                ),
                ranks=ranks,
                values=values,
            )
        )
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
    return [
        Notice(
            "bubble-bound-low",
            (
                f"the bubble's bound of {percent(bound)} counts idle time and known waits "
                "alone: ranks of the pipeline were in no cell for "
                f"{percent(outside_cells)} of its time; record the peers of messages to "
                "know how much of that is bubble"
            ),
            values={"bound": bound, "outside_cells": outside_cells},
        )
    ]
