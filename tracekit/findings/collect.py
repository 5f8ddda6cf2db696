"""The list of findings of a run.

It begins with what is likely to save most. Two findings may be about the same time: then the
one that is more certain comes first, and the other says what it would save after it. Both follow
from replays of the changes together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import msgspec

from tracekit.analysis import Analysis
from tracekit.analysis.result import Finder
from tracekit.documents.findings import MIN_SHARE_TO_SHOW, Finding
from tracekit.findings.communication import PeerLate
from tracekit.findings.context import Context
from tracekit.findings.families import ASKED_LAST, CORE_FINDERS
from tracekit.findings.host import HostFinding, LaunchBound, PlansForNewShapes
from tracekit.findings.kind import FindingKind
from tracekit.findings.ranks import LateRank
from tracekit.findings.remedies import kind_of_alternative
from tracekit.graph.change import Change
from tracekit.graph.changes import FREE_CPU

LIKELY_SHARE_OF_COST = 0.25
"""Share of its cost that a finding is likely to save if that cannot be predicted. By choice: of a
predicted upper bound it is half."""
MAX_COMPARED_FINDINGS = 6
"""Findings whose changes are replayed together, those that are likely to save most."""
MIN_WAITING_SAID_OF_RANKS = 0.5
"""Share of exposed communication that findings about late ranks tell of, from which it is no finding
of its own."""
MIN_LISTED_SHARE = 0.001
"""Share of the step that a change must be predicted to save for its finding to be listed: less is what
rounding and the clocks' resolution make."""
MIN_SHARE_OF_CERTAIN_SAVING = 0.05
"""Share of the step from which a saving stands before one that is only possible."""
MIN_SHARE_OF_SLOWED_HOST = 0.5
"""Saving of cores of its own over that of an activity of the host, from which the activity is mostly slow
for want of them."""
MIN_SHARED_SHARE = 0.1
"""Share of the smaller of two savings that both changes together must save less than their sum, for
the findings to share time."""


def find(analysis: Analysis) -> tuple[Finding, ...]:
    """Return all findings of a run, those that are likely to save most first.

    In an RL loop what its iterations lose comes first, then what the main role's step does.

    >>> from tracekit import analyze
    >>> [finding.code for finding in find(analyze("sample_traces/slow-ddp"))][:2]
    ['exposed_comm', 'slow_rank']
    """
    return tuple(finding.to_document() for finding in find_kinds(analysis))


def find_kinds(analysis: Analysis) -> tuple[FindingKind, ...]:
    """Return the findings of a run as what they are, in the order of their list."""
    context = Context(analysis)
    says_nothing_of_steps = context.step.is_start_up_alone or context.captured_launches > 0
    own = map(kind_of_alternative, analysis.advice.entries)
    finders: tuple[Finder, ...] = (*CORE_FINDERS, *analysis.rooms.finders, *own)
    for finder in finders:
        is_of_steps = not finder.independent_of_steps
        lacks_steps = not context.step_ns and not finder.of_iterations
        if not (lacks_steps or (is_of_steps and says_nothing_of_steps)):
            context.found += finder.find(context)
    if not context.step_ns:
        return tuple(context.found)
    if context.is_inference:
        context.found = [finding for finding in context.found if not finding.training_only]
    listed = [finding for finding in context.found if _is_worth_listing(finding)]
    if context.has_doubtful_clock:
        listed = [finding for finding in listed if not finding.rests_on_launches]
    listed = [finding for finding in listed if not is_said_of_a_rank(finding, listed)]
    if context.lacks_launches:
        listed = [_without_saving(finding) for finding in listed]
    context.found = listed
    for finder in ASKED_LAST:
        listed += finder.find(context)
    ordered = sorted(listed, key=_order)
    if analysis.role_results.iterations:
        # What an RL loop's iterations lose is listed first; its numbers must be right for ``relate_findings``.
        between_roles = [finding for finding in listed if finding.of_iterations]
        of_steps = [finding for finding in ordered if not finding.of_iterations]
        ordered = [*between_roles, *of_steps]
    return relate_findings(context, [_with_run(context, finding) for finding in ordered])


def _with_run(context: Context, finding: FindingKind) -> FindingKind:
    """Return a finding with what is known of its run, and the lines of its places that were read for any finding."""
    facts = context.facts_of_host if finding.of_host else context.facts
    places = context.analysis.with_lines(finding.where, if_read=True) or finding.where
    return msgspec.structs.replace(finding, run=facts, where=places)


def _without_saving(finding: FindingKind) -> FindingKind:
    """Return a finding whose saving is not known, because a replay lacks launches; of iterations none was replayed."""
    if finding.of_iterations:
        return finding
    return msgspec.structs.replace(
        finding, change=None, saves_ns=None, saves_range_ns=None, certain="possible"
    )


def _is_worth_listing(finding: FindingKind) -> bool:
    """Return whether a finding costs something, and its change is not predicted to save next to nothing."""
    costs_something = finding.cost_ns > 0 or bool(finding.cost_bytes)
    return costs_something and (
        finding.saves_ns is None or finding.effect_share >= MIN_LISTED_SHARE
    )


def is_said_of_a_rank(finding: FindingKind, others: Sequence[FindingKind]) -> bool:
    """Return whether a finding says that ranks wait for late ones, and others which ranks these are and why."""
    if not isinstance(finding, PeerLate):
        return False
    explained_ns = 0.0
    for other in others:
        if isinstance(other, LateRank) and other.label == finding.label:
            explained_ns += other.late_ns * other.late_steps / (other.recorded_steps or 1)
    return explained_ns >= MIN_WAITING_SAID_OF_RANKS * finding.cost_ns


def likely_ns(finding: FindingKind) -> int:
    """Return what a finding is likely to save: the middle of its range, or a part of its cost.

    >>> likely_ns(FindingKind(cost_ns=9, share=0.1, saves_ns=6, saves_range_ns=(0, 6)))
    3
    >>> likely_ns(FindingKind(cost_ns=8, share=0.1))
    2
    """
    if finding.is_bound and finding.saves_ns is not None:
        return finding.saves_ns // 2
    if finding.saves_range_ns is not None:
        middle_ns = sum(finding.saves_range_ns) // 2
        return middle_ns if finding.saves_ns is None else min(middle_ns, finding.saves_ns)
    if finding.saves_ns is not None:
        return finding.saves_ns
    return round(LIKELY_SHARE_OF_COST * finding.cost_ns)


def _order(finding: FindingKind) -> tuple[bool, bool, bool, int, int, int]:
    """Return the key by which findings are ordered: what matters first, then by likely saving, cost in time and memory.

    What ended the run comes before all.
    Those that reports leave out come last, so that a finding has the same number everywhere.
    """
    is_small = finding.effect_share < MIN_SHARE_TO_SHOW
    cost = (-finding.cost_ns, -(finding.cost_bytes or 0))
    return not finding.ended_run, not finding.matters, is_small, -likely_ns(finding), *cost


def relate_findings(context: Context, ordered: Sequence[FindingKind]) -> tuple[FindingKind, ...]:
    """Return findings with what they share: the more certain first, and what each saves after those before it.

    What saves nothing more after those before it comes after what does.
    """
    compared = []
    for finding in ordered:
        if finding.change is not None and finding.effect_share >= MIN_SHARE_TO_SHOW:
            compared.append(finding)
    compared = compared[:MAX_COMPARED_FINDINGS]
    sharing = set()
    for first, second in combinations(compared, 2):
        if _share_time(context, first, second):
            sharing |= {(first.code, first.change, second.code, second.change)}
            sharing |= {(second.code, second.change, first.code, first.change)}

    def share_time(first: FindingKind, second: FindingKind) -> bool:
        of_changes = (first.code, first.change, second.code, second.change) in sharing
        return of_changes or _is_of_same_steps(first, second)

    listed: list[FindingKind] = []
    for finding in ordered:
        # Before the first that it shares time with and that is less certain than it.
        position = len(listed)
        for index, other in enumerate(listed):
            if share_time(finding, other) and _stands_before(finding, other):
                position = index
                break
        listed.insert(position, finding)
    is_done_by_others = []
    saves_after_ns = _savings_in_sequence(context, listed, compared)
    for position, (finding, after_ns) in enumerate(zip(listed, saves_after_ns, strict=True)):
        saves_little = after_ns is not None and context.share(after_ns) < MIN_SHARE_TO_SHOW
        # A bound may save less than the most, and then leaves something to the others.
        before = [other for other in listed[:position] if not other.is_bound]
        is_done = saves_little and any(share_time(finding, other) for other in before)
        is_done_by_others.append(is_done)
    listed = _after_what_saves_more(listed, is_done_by_others)
    saves_after_ns = _savings_in_sequence(context, listed, compared)
    result = []
    for finding, after_ns in zip(listed, saves_after_ns, strict=True):
        shared = [
            number for number, other in enumerate(listed, start=1) if share_time(finding, other)
        ]
        result.append(
            msgspec.structs.replace(
                finding,
                shares_time_with=tuple(shared),
                saves_after_ns=after_ns,
                may_save_more=may_save_more(finding, listed),
            )
        )
    return tuple(result)


def may_save_more(finding: FindingKind, others: Sequence[FindingKind]) -> bool:
    """Return whether a finding's time is no bound of what can be saved.

    Its range ends above it, or the kernels that it calls slow take less time still in another type or
    layout, or another algorithm does without them.
    """
    if finding.saves_ns is not None and finding.saves_range_ns is not None:
        return finding.saves_range_ns[1] > finding.saves_ns
    if not finding.is_about_operator:
        return False
    return any(
        other.change is not None and not other.of_host and (other.saves_ns or 0) > finding.effect_ns
        for other in others
    )


def _after_what_saves_more(
    listed: Sequence[FindingKind], is_done_by_others: Sequence[bool]
) -> list[FindingKind]:
    """Return findings with those that others do behind the others that are worth 1 % of the step."""
    saving, done, small = [], [], []
    for finding, is_done in zip(listed, is_done_by_others, strict=True):
        if finding.effect_share < MIN_SHARE_TO_SHOW:
            small.append(finding)
        elif is_done:
            done.append(finding)
        else:
            saving.append(finding)
    return [*saving, *done, *small]


def _savings_in_sequence(
    context: Context, listed: Sequence[FindingKind], compared: Sequence[FindingKind]
) -> list[int | None]:
    """Return what each finding saves after those before it; None of those that are not *compared*."""
    saves_after_ns: list[int | None] = []
    changes: list[Change] = []
    saved_ns = 0
    for finding in listed:
        after_ns = None
        if finding in compared and finding.change is not None:
            together = context.predict(*changes, finding.change)
            after_ns = 0
            if together is not None:
                after_ns = max((together.saves_ns or 0) - saved_ns, 0)
                saved_ns += after_ns
                changes.append(finding.change)
        saves_after_ns.append(after_ns)
    return saves_after_ns


def _stands_before(finding: FindingKind, other: FindingKind) -> bool:
    """Return whether a finding stands before another one about the same time.

    It saves more for certain, or saves enough where the other is only possible; or it is an activity
    of the host that leaves the GPU idle longer than launching does: launching is what else the host
    does; or other processes slow the host down, which then does all else more slowly.
    """
    is_surer = other.certain == "possible" and finding.certain != "possible"
    if is_surer and finding.effect_share >= MIN_SHARE_OF_CERTAIN_SAVING:
        return True
    launching = (LaunchBound, PlansForNewShapes)
    is_activity = isinstance(finding, HostFinding) and not isinstance(finding, launching)
    is_longer_activity = isinstance(other, launching) and is_activity
    if is_longer_activity and finding.cost_ns > other.cost_ns:
        return True
    is_slowed_host = finding.change == FREE_CPU and other.of_host
    if is_slowed_host and likely_ns(finding) >= MIN_SHARE_OF_SLOWED_HOST * likely_ns(other):
        return True
    return _least_ns(finding) > _least_ns(other)


def _is_of_same_steps(first: FindingKind, second: FindingKind) -> bool:
    """Return whether one is about slow steps in which others wait for a rank, and the other about that rank in them."""
    if first.of_single_steps == second.of_single_steps:
        return False
    slow, late = (first, second) if first.of_single_steps else (second, first)
    same_ranks = bool(late.ranks) and set(late.ranks) <= set(slow.ranks)
    return (
        isinstance(late, LateRank)
        and same_ranks
        and bool(late.steps)
        and set(late.steps) <= set(slow.steps)
    )


def _least_ns(finding: FindingKind) -> int:
    """Return the lower end of what a finding saves."""
    return finding.saves_range_ns[0] if finding.saves_range_ns is not None else 0


def _share_time(context: Context, first: FindingKind, second: FindingKind) -> bool:
    """Return whether two changes together save clearly less than the sum of what each saves."""
    if first.change is None or second.change is None:
        return False
    savings_ns = (first.saves_ns or 0, second.saves_ns or 0)
    together = context.predict(first.change, second.change)
    if together is None:  # they work against each other
        return True
    lost_ns = sum(savings_ns) - (together.saves_ns or 0)
    return lost_ns > MIN_SHARED_SHARE * min(savings_ns)
