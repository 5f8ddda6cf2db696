"""Findings as reports show them: which are shown, and each as a sentence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter

from tracekit._util.text import join_with_and, percent, short_ms, size
from tracekit.analysis.result import Analysis
from tracekit.documents.analysis import Budget, Step
from tracekit.documents.findings import Finding
from tracekit.findings.collect import find
from tracekit.findings.families import kind_of
from tracekit.findings.kind import KINDS, is_bound
from tracekit.report.blocks import FindingItem

BOUND_WORDS = {"≤": "at most", "~": "about"}
"""Signs before what a finding saves, in words."""


def shown_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that cost or save enough to be shown."""
    return tuple(finding for finding in findings if finding.matters)


MAX_FIRST_FINDINGS = 3
"""Findings that are shown first."""
MIN_SHARE_TO_SHOW_FIRST = 0.03
"""Share of the step that a finding saves, or costs, from which it is shown first; the first of all is
in any case."""
MIN_SHARE_OF_QUICK_REMEDY = 0.02
"""Share of the step from which a finding is shown first that a changed line mends."""
MAX_ABSENCES = 2
"""Absent costs that are named."""
BEYOND_COST_FACTOR = 1.02
"""Saving over the time that a text states, from which is said why it is more."""
NOTHING_MORE_SHARE = 0.02
"""Share of what a finding saves alone, below which it saves nothing more after others."""
MAX_EXPOSED_SHARE = 0.05
"""Share of the step up to which it is worth saying how little is exposed."""


def first_findings(findings: Sequence[Finding]) -> list[tuple[int, Finding]]:
    """Return the findings that are shown first, with their numbers.

    They are those up to the last large one, so that no number is missing before it; then the first
    about memory. Where there is room, the first that a changed line of the loop mends is added, which
    is worth doing though it saves little, with the one before it if only one is between; an RL loop
    has other things to mend first.
    """
    numbered = list(enumerate(findings, start=1))
    first = numbered[:MAX_FIRST_FINDINGS]
    large = [number for number, finding in first if finding.effect_share >= MIN_SHARE_TO_SHOW_FIRST]
    shown = first[: max(large, default=1)]
    about_memory = []
    quickly_mended = []
    for number, finding in numbered[len(shown) :]:
        if finding.cost_bytes:
            about_memory.append((number, finding))
        elif kind_of(finding).quick_to_try and finding.effect_share >= MIN_SHARE_OF_QUICK_REMEDY:
            quickly_mended.append((number, finding))
    kinds = [kind_of(finding) for _, finding in shown]
    has_quick_remedy = any(kind.quick_to_try or kind.of_iterations for kind in kinds)
    if len(shown) == MAX_FIRST_FINDINGS or has_quick_remedy:
        quickly_mended = []
    chosen = dict([*shown, *about_memory[:1], *quickly_mended[:1]])
    next_number = len(shown) + 1
    if quickly_mended and quickly_mended[0][0] == next_number + 1:
        chosen.setdefault(*numbered[next_number - 1])
    return sorted(chosen.items(), key=itemgetter(0))


def absent_costs(findings: Sequence[Finding], budget: Budget, *, host_recorded: bool) -> str:
    """Return what is not wrong, in a few words; empty if nothing of that is known or worth a line.

    >>> absent_costs((), Budget(span_ns=1000, compute_ns=990, exposed_ns={"dp_comm": 5}, idle=5), host_recorded=True)
    'nothing to gain outside compute: no data stalls, no sync stalls, 0.5 % exposed transfers'
    """
    shown = [kind_of(finding) for finding in shown_findings(findings)]
    present = {kind.absence for kind in shown}
    absent = []
    if host_recorded:
        absences = dict.fromkeys(kind.absence for kind in KINDS.values() if kind.absence)
        absent = [words for words in absences if words not in present][:MAX_ABSENCES]
    exposed_share = sum(budget.exposed_ns.values()) / budget.span_ns if budget.span_ns else 1.0
    is_hidden = exposed_share <= MAX_EXPOSED_SHARE
    if is_hidden:
        exposed = (
            f"{percent(exposed_share)} exposed transfers"
            if exposed_share
            else "no exposed transfers"
        )
        absent.append(exposed)
    if not absent or not budget.span_ns:
        return ""
    only_compute = host_recorded and is_hidden and all(kind.is_about_operator for kind in shown)
    return f"{'nothing to gain outside compute: ' if only_compute else ''}{', '.join(absent)}"


def findings_of(analysis: Analysis) -> tuple[Finding, ...]:
    """Return the findings of an analysis, found once for all that ask."""
    if analysis.document is not None:
        return analysis.document.findings
    return analysis.once(find)


def main_findings(analysis: Analysis) -> tuple[Finding, ...]:
    """Return what costs time, those with the largest saving first; small ones are left out."""
    return shown_findings(findings_of(analysis))


def role_findings(analysis: Analysis) -> tuple[Finding, ...]:
    """Return the findings about iterations and weight updates, with which the list begins; empty for other runs."""
    return tuple(finding for finding in main_findings(analysis) if kind_of(finding).of_iterations)


def what_is_fine(analysis: Analysis) -> str:
    """Return what costs nothing, in a few words; empty if that is not known."""
    host_recorded = not analysis.tables["host_time"].is_empty()
    return absent_costs(
        findings_of(analysis), analysis.step.stated_budget, host_recorded=host_recorded
    )


def per_words(finding: Finding) -> str:
    """Return what a finding's times are of.

    >>> per_words(Finding(code="rollout", case="tail", cost_ns=1, share=0.1))
    'per iteration'
    """
    kind = kind_of(finding)
    if not kind.of_iterations and finding.evidence.get("steps_marked") is False:
        return "of the recording"
    return "in one iteration" if is_of_one_iteration(finding) else kind.time_is


def finding_line(finding: Finding, remarks: str = "") -> str:
    """Return a finding in one sentence: what, why, what to do, what that would save, and *remarks* on the saving."""
    saves = ""
    if finding.saving_ns:
        saved = f"{bound_words(finding)}{short_ms(finding.saving_ns)}"
        remarked = f"; {remarks}" if remarks else ""
        saves = f" (saves {saved} {per_words(finding)}{remarked})"
    return f"{finding.text}: {finding.advice}{saves}"


def is_of_one_iteration(finding: Finding) -> bool:
    """Return whether a finding's time is of one iteration, and most others have much less of it.

    Its share of all iterations would be taken for a share of that one.
    """
    return "iteration" in finding.evidence and finding.evidence.get("recurs") is False


def finding_title(finding: Finding) -> str:
    """Return a finding in a few words: what it is about, without figures.

    >>> finding_title(Finding(code="host_sync", cost_ns=1, share=0.1, evidence={"op": "aten::item"}))
    'CPU stops in aten::item'
    >>> finding_title(Finding(code="exposed_comm", cost_ns=1, share=0.1, evidence={"label": "dp_comm"}))
    'exposed dp_comm'
    """
    return kind_of(finding).title_of(finding)


def bound_sign(finding: Finding) -> str:
    """Return the sign before a finding's effect, of which it may save nothing: at most, or about.

    Empty for others; what faster links would save is an assumption and no bound.

    >>> bound_sign(Finding(code="slow_kernel", cost_ns=4, share=0.2))
    '≤'
    >>> bound_sign(Finding(code="slow_kernel", cost_ns=4, share=0.2, may_save_more=True))
    '~'
    >>> bound_sign(Finding(code="exposed_comm", case="too_little_compute", cost_ns=4, share=0.2, saves_ns=2))
    ''
    """
    kind = kind_of(finding)
    assumes_links = finding.saving_ns is not None and kind.with_faster_links
    if assumes_links or not is_bound(finding, least_is_unknown=kind.least_is_unknown):
        return ""
    return "~" if finding.may_save_more else "≤"


def bound_words(finding: Finding) -> str:
    """Return that sign in words, with the space behind them.

    >>> bound_words(Finding(code="slow_kernel", cost_ns=4, share=0.2))
    'at most '
    """
    return f"{BOUND_WORDS[sign]} " if (sign := bound_sign(finding)) else ""


def shared_time(finding: Finding, number: int | None = None) -> str:
    """Return with which findings it shares its time, and what it saves after those before it; empty if with none.

    Where its own *number* is known, only those before it are named.

    >>> second = Finding(code="host_sync", cost_ns=4, share=0.2, shares_time_with=(1, 3), saves_after_ns=2_000_000)
    >>> shared_time(second)
    'shares its time with 1 and 3: 2.00 ms are left to save after them'
    >>> shared_time(second, 2)
    'shares its time with 1: 2.00 ms are left to save after it'
    """
    others = [other for other in finding.shares_time_with if number is None or other < number]
    if not others:
        return ""
    numbers = join_with_and(map(str, others))
    words = f"shares its time with {numbers}"
    after_ns = finding.saves_after_ns
    if after_ns is None or after_ns == finding.saves_ns:
        return words
    saves_little = after_ns < NOTHING_MORE_SHARE * finding.effect_ns
    left = "nothing is" if saves_little else f"{short_ms(after_ns)} are"
    those = "it" if len(others) == 1 else "them"
    return f"{words}: {left} left to save after {those}"


def beyond_cost(finding: Finding, budget: Budget) -> str:
    """Return why a finding saves more than the GPU is idle, or than its sentence states; empty where it does not.

    >>> late = Finding(code="launch_bound", cost_ns=7, share=0.2, saves_ns=12)
    >>> beyond_cost(late, Budget(span_ns=31, compute_ns=16, exposed_ns={"dp_comm": 6}, idle=9))
    'more than the GPU is idle: exposed dp_comm gets shorter, too'
    >>> beyond_cost(late, Budget(span_ns=31, compute_ns=16, exposed_ns={}, idle=15))
    ''
    """
    saving_ns = finding.saving_ns or 0
    longest = max(budget.exposed_ns, key=lambda label: budget.exposed_ns[label], default=None)
    if kind_of(finding).of_host and saving_ns > budget.idle_ns and longest is not None:
        return f"more than the GPU is idle: exposed {longest} gets shorter, too"
    stated_ns = kind_of(finding).stated_ns(finding)
    if stated_ns is not None and saving_ns > BEYOND_COST_FACTOR * stated_ns:
        return f"more than the {short_ms(stated_ns)}: what follows starts earlier, too"
    return ""


def spread_over(finding: Finding) -> str:
    """Return over which steps the time of a single slow one is spread; empty for other findings.

    >>> evidence = {"excess_ns": 80, "recorded_steps": 4, "mean_ns": 56_900_000}
    >>> spread_over(Finding(code="slow_step", cost_ns=20, share=0.3, evidence=evidence))
    'spread over 4 steps of 56.9 ms on average'
    """
    mean_ns = finding.evidence.get("mean_ns")
    if not kind_of(finding).of_single_steps or not isinstance(mean_ns, int):
        return ""
    return (
        f"spread over {finding.evidence['recorded_steps']} steps of {short_ms(mean_ns)} on average"
    )


def beyond_step(finding: Finding, step: Step) -> str:
    """Return which steps a finding's times are of, where they are longer than the step that is stated; empty where not.

    What the host does is a mean of recorded steps, the step their median, or what it is without the profiler.

    >>> from tracekit.documents.analysis import StepTime
    >>> wait = Finding(code="data_loading", cost_ns=185_000_000, share=1)
    >>> steps = [StepTime(number, ns) for number, ns in enumerate((10_000_000, 10_000_000, 600_000_000))]
    >>> beyond_step(wait, Step.of(10_000_000, per_step=steps))
    'steps differ: they take 207 ms on average'
    """
    stated_ns = max(kind_of(finding).stated_ns(finding) or 0, finding.saving_ns or 0)
    if not step.stated_ns or not step.time_ns or stated_ns <= step.stated_ns:
        return ""
    if stated_ns <= step.time_ns:
        return f"as recorded, when a step took {short_ms(step.time_ns)}"
    times_ns = [each.time_ns for each in step.usual]
    mean_ns = sum(times_ns) / max(len(times_ns), 1)
    return (
        f"steps differ: they take {short_ms(mean_ns)} on average" if mean_ns > step.time_ns else ""
    )


def between(finding: Finding) -> str:
    """Return the range of what a change of the host saves, where it is wider than the saving; empty elsewhere.

    >>> effect = {"cost_ns": 4, "share": 0.2, "saves_ns": 8_000_000, "saves_range_ns": (2_000_000, 12_000_000)}
    >>> between(Finding(code="host_sync", **effect))
    'between 2.00 and 12.0 ms'
    """
    saves_ns, range_ns = finding.saves_ns, finding.saves_range_ns
    if not saves_ns or range_ns is None or not range_ns[0] or not kind_of(finding).of_host:
        return ""
    if range_ns[1] - range_ns[0] <= saves_ns:
        return ""
    least, most = map(short_ms, range_ns)
    return f"between {least.removesuffix(' ms')} and {most}"


def remarks_on(finding: Finding, number: int, step: Step) -> str:
    """Return what is to be known about the times of a finding; empty if nothing is.

    Args:
        finding: The finding.
        number: Its number.
        step: The step that they are parts of.

    """
    of_size = (
        spread_over(finding)
        or beyond_step(finding, step)
        or beyond_cost(finding, step.stated_budget)
    )
    return "; ".join(filter(None, (between(finding), of_size, shared_time(finding, number))))


def finding_items(analysis: Analysis) -> list[FindingItem]:
    """Return all findings with their numbers as blocks."""
    items = []
    advised: dict[str, int] = {}
    for number, finding in enumerate(main_findings(analysis), start=1):
        same_as = advised.setdefault(finding.advice, number)
        items.append(
            FindingItem(
                number,
                finding,
                remarks_on(finding, number, analysis.step),
                same_as=None if same_as == number else same_as,
            )
        )
    return items


def further_findings(analysis: Analysis) -> list[FindingItem]:
    """Return the findings that the first screen leaves out."""
    first = {number for number, _ in first_findings(main_findings(analysis))}
    return [item for item in finding_items(analysis) if item.number not in first]


def finding_in_a_log(finding: Finding) -> str:
    """Return a finding as one line of a log: what it saves, or costs at most, then what, why and what to do.

    >>> texts = {"text": "kernels only move memory", "advice": "compile the model"}
    >>> finding_in_a_log(Finding(code="unfused", cost_ns=4_000_000, share=0.2, saves_ns=2_000_000, **texts))
    'saves 2.00 ms (10 %): kernels only move memory → compile the model'
    """
    if finding.cost_bytes and not finding.cost_ns:
        effect = size(finding.cost_bytes)
    else:
        share = percent(finding.effect_share, digits=0)
        effect = f"saves {bound_words(finding)}{short_ms(finding.effect_ns)} ({share})"
    return f"{effect}: {finding.text} → {finding.advice}"
