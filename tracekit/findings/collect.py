"""The registry of findings, and the list that it gives for a run.

The list begins with what is likely to save most. Two findings may be about the same time: then the
one that is more certain comes first, and the other says what it would save after it. Both follow
from replays of the changes together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations

import msgspec

from tracekit.analysis import Analysis
from tracekit.documents.findings import MIN_SHARE_TO_SHOW, Finding
from tracekit.findings.communication import exposed_findings, repeated_reductions
from tracekit.findings.context import Context
from tracekit.findings.host import OFFENCES, host_findings
from tracekit.findings.kernels import kernel_findings
from tracekit.findings.pipeline import schedule_findings
from tracekit.findings.ranks import CODES as CODES_OF_CAUSES
from tracekit.findings.ranks import rank_findings
from tracekit.findings.recording import capture_findings, recording_findings, unexplained_idle
from tracekit.findings.remedies import operators_with_remedy, remedy_findings
from tracekit.findings.steps import step_findings
from tracekit.memory.findings import memory_findings
from tracekit.metrics.host.time_by_activity import HOST_CODES
from tracekit.roles.findings import role_findings


def _work_findings(context: Context) -> Iterator[Finding]:
    """Yield the findings about the GPU's own work: what a change of it saves, and then what else is slow."""
    remedies = tuple(remedy_findings(context))
    yield from remedies
    yield from kernel_findings(context, operators_with_remedy(context, remedies))


REGISTRY: Mapping[str, Callable[[Context], Iterator[Finding]]] = {
    "host": host_findings,
    "steps": step_findings,
    "repeated_reduction": repeated_reductions,
    "exposed": exposed_findings,
    "ranks": rank_findings,
    "pipeline": schedule_findings,
    "work": _work_findings,
    "memory": memory_findings,
    "recording": recording_findings,
}
"""What makes findings, by the part of the run that it looks at."""


INDEPENDENT_OF_STEPS = frozenset({"memory", "recording"})
"""What is found also where all that was recorded is start-up or the capture of graphs, which say nothing of
other steps."""
TRAINING_CODES = frozenset(
    {
        "late_reduction",
        "optimizer",
        "recompute",
        "repeated_reduction",
        "schedule_gap",
        "small_messages",
        "unused_parameters",
    }
)
"""Codes that only training has: in inference such a pattern means something else."""
TRAINING_CASES = frozenset(
    {
        ("exposed_comm", "gathered_twice"),
        ("memory_peak", "above_schedule"),
        ("memory_peak", "nearly_full"),  # a server fills the GPU with its cache on purpose
        ("memory_peak", "outlived"),
        ("precision", "trained_weights"),
        ("slow_kernel", "optimizer"),
        ("slow_step", "checkpoint"),
        ("slow_step", "evaluation"),
        ("slow_step", "unused_parameters"),
    }
)
"""The same of single cases of a code."""
VENDOR_CODES = frozenset({"exposed_comm", "launch_bound", "schedule_gap", "slow_kernel"})
"""Codes whose advice in training names graphs or libraries of kernels, which each vendor calls otherwise."""
RANK_CODES = frozenset(CODES_OF_CAUSES.values())
"""Codes of findings about ranks that the others wait for."""
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
    context = Context(analysis)
    between_roles = tuple(role_findings(context))
    if not context.step_ns:
        return between_roles
    findings: list[Finding] = []
    says_nothing_of_steps = context.step.is_start_up_alone or context.captured_launches
    for name, make in REGISTRY.items():
        if not says_nothing_of_steps or name in INDEPENDENT_OF_STEPS:
            findings += make(context)
    if context.is_inference:
        findings = [finding for finding in findings if not is_of_training(finding)]
    listed = [finding for finding in findings if _is_worth_listing(finding)]
    listed = [finding for finding in listed if not _is_said_of_a_rank(finding, listed)]
    if context.lacks_launches:
        listed = [_without_saving(finding) for finding in listed]
    if context.captured_launches:
        listed += capture_findings(context)
    else:
        listed += unexplained_idle(context, listed)
    # What an RL loop's iterations lose is listed first; its numbers must be right for ``_relate``.
    if analysis.role_results.iterations:
        ordered = [*between_roles, *sorted(listed, key=_order)]
    else:
        ordered = sorted([*listed, *between_roles], key=_order)
    return _relate(context, [_with_workload(context, finding) for finding in ordered])


def is_of_training(finding: Finding) -> bool:
    """Return whether only training has such a finding.

    >>> is_of_training(Finding(code="optimizer", cost_ns=1, share=0.1))
    True
    """
    return finding.code in TRAINING_CODES or (finding.code, finding.case) in TRAINING_CASES


def _with_workload(context: Context, finding: Finding) -> Finding:
    """Return a finding with what its words depend on in inference and without steps."""
    if context.is_inference:
        evidence = {**finding.evidence, "workload": "inference", "vendor": context.vendor}
        evidence["generates"] = bool(context.analysis.step_kinds)
        if finding.code in HOST_CODES:
            evidence["between_steps_share"] = context.between_steps_share
    elif finding.code in VENDOR_CODES:
        evidence = {**finding.evidence, "vendor": context.vendor}
    elif not context.step.is_marked:
        evidence = dict(finding.evidence)
    else:
        return finding
    if not context.step.is_marked:
        evidence["steps_marked"] = False
    return msgspec.structs.replace(finding, evidence=evidence)


def _without_saving(finding: Finding) -> Finding:
    """Return a finding whose saving is not known, because a replay lacks launches."""
    return msgspec.structs.replace(
        finding, change=None, saves_ns=None, saves_range_ns=None, certain="possible"
    )


def _is_worth_listing(finding: Finding) -> bool:
    """Return whether a finding costs something, and its change is not predicted to save next to nothing."""
    costs_something = finding.cost_ns > 0 or bool(finding.cost_bytes)
    return costs_something and (
        finding.saves_ns is None or finding.effect_share >= MIN_LISTED_SHARE
    )


def _is_said_of_a_rank(finding: Finding, others: Sequence[Finding]) -> bool:
    """Return whether a finding says that ranks wait for late ones, and others which ranks these are and why."""
    if (finding.code, finding.case) != ("exposed_comm", "peer_late"):
        return False
    explained_ns = 0.0
    for other in others:
        late_ns = other.evidence.get("late_ns")
        of_label = other.evidence.get("label") == finding.evidence.get("label")
        if other.code in RANK_CODES and of_label and isinstance(late_ns, int):
            steps = int(other.evidence.get("late_steps") or 0)
            explained_ns += late_ns * steps / int(other.evidence.get("recorded_steps") or 1)
    return explained_ns >= MIN_WAITING_SAID_OF_RANKS * finding.cost_ns


def likely_ns(finding: Finding) -> int:
    """Return what a finding is likely to save: the middle of its range, or a part of its cost.

    >>> likely_ns(Finding(code="host_sync", cost_ns=9, share=0.1, saves_ns=6, saves_range_ns=(0, 6)))
    3
    >>> likely_ns(Finding(code="slow_kernel", cost_ns=8, share=0.1))
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


def _order(finding: Finding) -> tuple[bool, bool, bool, int, int, int]:
    """Return the key by which findings are ordered: what matters first, then by likely saving, cost in time and memory.

    What ended the run comes before all.
    Those that reports leave out come last, so that a finding has the same number everywhere.
    """
    is_small = finding.effect_share < MIN_SHARE_TO_SHOW
    cost = (-finding.cost_ns, -(finding.cost_bytes or 0))
    ended_run = finding.code == "out_of_memory"
    return not ended_run, not finding.matters, is_small, -likely_ns(finding), *cost


def _relate(context: Context, ordered: Sequence[Finding]) -> tuple[Finding, ...]:
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

    def share_time(first: Finding, second: Finding) -> bool:
        return (first.code, first.change, second.code, second.change) in sharing

    listed: list[Finding] = []
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
                finding, shares_time_with=tuple(shared), saves_after_ns=after_ns
            )
        )
    return tuple(result)


def _after_what_saves_more(
    listed: Sequence[Finding], is_done_by_others: Sequence[bool]
) -> list[Finding]:
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
    context: Context, listed: Sequence[Finding], compared: Sequence[Finding]
) -> list[int | None]:
    """Return what each finding saves after those before it; None of those that are not *compared*."""
    saves_after_ns: list[int | None] = []
    changes: list[str] = []
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


def _stands_before(finding: Finding, other: Finding) -> bool:
    """Return whether a finding stands before another one about the same time.

    It saves more for certain, or saves enough where the other is only possible; or it is an activity
    of the host that leaves the GPU idle longer than launching does: launching is what else the host
    does; or other processes slow the host down, which then does all else more slowly.
    """
    is_surer = other.certain == "possible" and finding.certain != "possible"
    if is_surer and finding.effect_share >= MIN_SHARE_OF_CERTAIN_SAVING:
        return True
    is_longer_activity = other.code == "launch_bound" and finding.code in OFFENCES
    if is_longer_activity and finding.cost_ns > other.cost_ns:
        return True
    is_slowed_host = finding.code == "busy_cpu" and other.code in HOST_CODES
    if is_slowed_host and likely_ns(finding) >= MIN_SHARE_OF_SLOWED_HOST * likely_ns(other):
        return True
    return _least_ns(finding) > _least_ns(other)


def _least_ns(finding: Finding) -> int:
    """Return the lower end of what a finding saves."""
    return finding.saves_range_ns[0] if finding.saves_range_ns is not None else 0


def _share_time(context: Context, first: Finding, second: Finding) -> bool:
    """Return whether two changes together save clearly less than the sum of what each saves."""
    if first.change is None or second.change is None:
        return False
    savings_ns = (first.saves_ns or 0, second.saves_ns or 0)
    together = context.predict(first.change, second.change)
    if together is None:  # they work against each other
        return True
    lost_ns = sum(savings_ns) - (together.saves_ns or 0)
    return lost_ns > MIN_SHARED_SHARE * min(savings_ns)
