"""Idle time of each rank and its causes, and what the host did meanwhile."""

from collections import Counter
from collections.abc import Sequence

from msgspec.structs import replace

from tracekit._util.text import counted, ms, percent
from tracekit.analysis import Analysis
from tracekit.documents.analysis import Figures, Phase, RankFigures
from tracekit.report.section import TERMINAL_AND_PAGE, Section
from tracekit.report.table import Column, Table, make_table
from tracekit.report.text import at_least
from tracekit.schema import IDLE_CAUSES, PHASES

MAX_HOST_ROWS = 5
MIN_HOST_ROW_SHARE = 0.005
"""Share of the launch-bound idle time from which an activity of the host has a row."""
MIN_LAUNCH_BOUND_SHARE = 0.01
"""Share of the span from which launch-bound idle time has a table."""
MAX_ACTIVITY_LENGTH = 60
"""Characters shown of an activity's name."""
MAX_RANKS_LISTED_IN_FULL = 16
"""Up to this number of ranks, the table lists all of them …"""
WORST_RANKS_LISTED = 5
"""… and of more ranks, this many, in the order of their numbers."""
_ALWAYS_SHOWN_IDLE_CAUSES = ("launch_bound", "dependency")


def idle_table(analysis: Analysis) -> Table | None:
    """Return the causes of each rank's idle time, its pipeline wait and its bubble by phase.

    None if none idles.
    """
    is_pipelined = analysis.total.pipeline
    # Without recorded messages between stages the bubble of a phase is not known.
    has_messages = bool(analysis.total.label_ns.get("pp_comm"))
    ranks = [rank for rank in analysis.ranks if rank.whole.budget.span_ns]
    if not any(_may_idle(rank.whole) for rank in ranks):
        return None
    causes = []
    for cause in IDLE_CAUSES:
        is_present = any((rank.idle_causes or {}).get(cause) for rank in ranks)
        if is_present or cause in _ALWAYS_SHOWN_IDLE_CAUSES:
            causes.append(cause)
    columns = [Column("rank", "rank"), Column("idle", "ms")]
    columns += [Column(IDLE_CAUSES[cause], "share", note="shares of idle") for cause in causes]
    if is_pipelined:
        columns.append(Column("pipeline wait", "ms"))
        columns.append(Column("bubble", "figure", note="of the span"))
        columns += [Column(phase, "ms", 1, "bubble in that phase") for phase in PHASES]
    amounts = []  # by which ranks are chosen
    for rank in ranks:
        amount = rank.whole.bubble_fraction if is_pipelined else rank.whole.budget.idle_ns
        amounts.append(amount or 0.0)
    shown, note = worst_ranks(ranks, amounts)
    rows = []
    for rank in shown:
        row = _idle_row(rank, causes)
        if is_pipelined:
            row += _bubble_row(rank, has_messages=has_messages)
        rows.append(tuple(row))
    return make_table(columns, rows, notes=[note] if note else ())


def worst_ranks(
    ranks: Sequence[RankFigures], amounts: Sequence[float]
) -> tuple[list[RankFigures], str]:
    """Return the ranks with the largest amounts in the order of their numbers, and a note if some are left out."""
    count = len(ranks) if len(ranks) <= MAX_RANKS_LISTED_IN_FULL else WORST_RANKS_LISTED
    largest = sorted(range(len(ranks)), key=lambda i: -amounts[i])[:count]
    note = ""
    if len(largest) < len(ranks):
        note = f"the {len(largest)} worst of {counted(len(ranks), 'rank')}"
    return sorted((ranks[i] for i in largest), key=lambda rank: rank.rank), note


def _may_idle(whole: Figures) -> bool:
    """Return whether a rank idles or waits, or may do so unseen."""
    return bool(whole.budget.idle_ns or whole.bubble.wait_ns or not whole.idle_known)


def _idle_row(rank: RankFigures, causes: Sequence[str]) -> list[object]:
    """Return a rank's idle time and the share of each cause in it."""
    idle_ns = rank.whole.budget.idle_ns if rank.whole.idle_known else None
    row: list[object] = [rank.rank, idle_ns]
    for cause in causes:
        row.append((rank.idle_causes or {}).get(cause, 0) / idle_ns if idle_ns else None)
    return row


def _bubble_row(rank: RankFigures, *, has_messages: bool) -> list[object]:
    """Return a rank's pipeline wait, its bubble, and the bubble of each phase."""
    whole = rank.whole
    bubble = at_least(percent(whole.bubble_fraction), whole.lower_bound)
    row: list[object] = [whole.bubble.wait_ns, bubble]
    row.extend(_bubble_in_phase(rank.phases, phase) if has_messages else None for phase in PHASES)
    return row


def _bubble_in_phase(phases: Sequence[Phase], name: str) -> int | None:
    """Return the bubble of a phase over all steps; None if it is not there, or idle time is unknown."""
    bubbles_ns = []
    for phase in phases:
        if phase.phase == name:
            if phase.idle_ns is None:
                return None
            bubbles_ns.append(phase.idle_ns + (phase.wait_ns or 0))
    return sum(bubbles_ns) if bubbles_ns else None


def host_activity_table(analysis: Analysis) -> Table | None:
    """Return what the host did in launch-bound idle time, over all ranks.

    None if there is little of it.
    """
    span_ns = analysis.total.budget.span_ns
    ranks = max(1, len(analysis.ranks))
    ns_of: Counter[tuple[str, str | None, str | None]] = Counter()
    for rank in analysis.ranks:
        for row in rank.idle_host:
            ns_of[row.instead, row.what, row.line] += row.ns
    launch_bound_ns = sum(ns_of.values())
    is_little = launch_bound_ns < MIN_LAUNCH_BOUND_SHARE * span_ns
    if not analysis.total.idle_known or is_little or not launch_bound_ns:
        return None
    # Activities without a name say nothing, except that Python itself ran.
    named = {key: ns for key, ns in ns_of.items() if key[1] or key[0] == "python"}
    longest = Counter(named).most_common(MAX_HOST_ROWS)
    rows = []
    searches = []
    for (kind, what, line), ns in longest:
        if ns >= MIN_HOST_ROW_SHARE * launch_bound_ns:
            activity = (what or "")[:MAX_ACTIVITY_LENGTH]
            share = ns / launch_bound_ns
            name = activity.replace('"', "") if kind in ("operator", "annotation") else ""
            searches.append(f'"{name}"' if name else "")
            rows.append((ns / ranks, share, kind.replace("_", " "), activity, line or ""))
    columns = (
        Column("time per rank", "ms", terminal_heading="ms per rank"),
        Column("of it", "share"),
        Column("doing"),
        Column("what"),
        Column("line"),
    )
    inside_launch_ns = sum(rank.inside_launch_ns for rank in analysis.ranks) / ranks
    note = (
        f"launch-bound idle is {percent(launch_bound_ns, span_ns)} of the span; "
        f"inside the launch call itself: {ms(inside_launch_ns)} per rank"
    )
    table = make_table(columns, rows, notes=(note,))
    return None if table is None else replace(table, searches=tuple(searches))


IDLE_SECTION = Section(
    id="idle",
    tab="Budget",
    title="{idle_name}: {idle_about}",
    name="{idle_name}",
    about="{idle_about}",
    media=TERMINAL_AND_PAGE,
    build=lambda analysis: [idle_table(analysis)],
)
HOST_SECTION = Section(
    id="host",
    tab="Budget",
    title="What the host did instead of launching",
    scope="launch-bound idle, {over}",
    name="Host",
    about="what it did instead of launching",
    media=TERMINAL_AND_PAGE,
    build=lambda analysis: [host_activity_table(analysis)],
)
