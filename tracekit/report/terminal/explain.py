"""The explanation of an event's label, and the largest kernels of a label."""

from pathlib import Path

import polars as pl

from tracekit._util.text import percent, rounded, short_ms, terminal
from tracekit.analysis import Analysis
from tracekit.classify import classify, explain, load_rules
from tracekit.classify.graph_replays import events_with_captured_launches
from tracekit.documents.analysis import Step
from tracekit.documents.findings import EvidenceValue
from tracekit.errors import OptionError
from tracekit.findings.families import kind_of
from tracekit.findings.kind import is_bound
from tracekit.graph.change import parse_change
from tracekit.report.findings import bound_words, main_findings, per_words, remarks_on
from tracekit.report.words import WORDS
from tracekit.schema import GAP_CAUSES, LABELS, RankEvents

MAX_KERNELS_OF_LABEL = 12


def explain_finding(analysis: Analysis, number: int) -> str:
    """Return a finding of the first screen with all its evidence and places, by its number.

    >>> from tracekit import analyze
    >>> print(explain_finding(analyze("sample_traces/slow-ddp"), 2).splitlines()[0])
    2. the others wait 26.4 ms in dp_comm for rank 2: the same kernels take 1.98 times as long (12 SMs, others 32)
    """
    findings = main_findings(analysis)
    if not 1 <= number <= len(findings):
        there_are = f"there are findings 1 to {len(findings)}" if findings else "there is none"
        raise OptionError(f"there is no finding {number}", hint=there_are)
    finding = findings[number - 1]
    lines = [f"{number}. {finding.text}", f"   {finding.advice}", ""]
    per = "a step" if analysis.step.marked else "in all"
    cost = f"{short_ms(finding.cost_ns)} of {_reference(analysis.step)} {per}"
    kind = kind_of(finding)
    if kind.of_single_steps and "excess_ns" in finding.evidence:
        steps = finding.evidence.get("recorded_steps")
        cost = f"{short_ms(finding.cost_ns)} a step, spread over {steps} steps"
    if kind.of_iterations:
        cost = f"{short_ms(finding.cost_ns)} {per_words(finding)}"
    lines.append(f"   costs {cost}")
    if finding.saving_ns is not None:
        low_high = (
            None
            if is_bound(finding, least_is_unknown=kind.least_is_unknown)
            else finding.saves_range_ns
        )
        between = (
            ""
            if low_high is None
            else f", between {short_ms(low_high[0])} and {short_ms(low_high[1])}"
        )
        saved = f"{bound_words(finding)}{short_ms(finding.saving_ns)}"
        lines.append(f"   saves {saved}{between}")
    if remarks := remarks_on(finding, number, analysis.step):
        lines.append(f"   {remarks}")
    if finding.change is not None:
        lines.append(f"   predicted with {_change_options(finding.change)}")
    lines.append("   rests on:")
    for name, value in finding.evidence.items():
        if name in UNEXPLAINED_EVIDENCE:
            continue
        lines.append(f"     {_evidence_name(name):<30} {_evidence_value(name, value)}")
    if finding.where:
        lines.append("   where (ms after the first GPU work of the rank):")
    starts = dict(
        analysis.tables["timeline"].group_by("rank").agg(pl.col("start_ns").min()).iter_rows()
    )
    for example in analysis.with_lines(finding.where) or finding.where:
        step = "" if example.step is None else f" step {example.step}"
        source = f"  {terminal(example.source)}" if example.source else ""
        length = short_ms(example.end_ns - example.start_ns)
        name = terminal(example.name or "")
        start = f"{(example.start_ns - starts.get(example.rank, 0)) / 1e6:,.1f}"
        lines.append(f"     rank {example.rank}{step}  {start}  {length:>10}  {name}{source}")
    return "\n".join(lines)


def _reference(step: Step) -> str:
    """Return the time that a cost is a part of, and which it is where the first line states another one.

    >>> _reference(Step.of(102_000_000, free_ns=98_500_000))
    '98.5 ms (without the profiler)'
    """
    reference = short_ms(step.reference_ns)
    is_stated = step.free_ns is None or step.stated_ns == step.free_ns
    return reference if is_stated else f"{reference} (without the profiler)"


def _change_options(change: str) -> str:
    """Return the options that ask for a change, of which there may be several, separated by commas.

    >>> _change_options("hide pp_comm, no host delay")
    "--change 'hide pp_comm' --change 'no host delay'"
    >>> _change_options("ranks 1, 3 like others")
    "--change 'ranks 1, 3 like others'"
    """
    return " ".join(f"--change '{part}'" for part in parse_change(change).parts)


def _evidence_value(name: str, value: EvidenceValue) -> str:
    """Return a figure of the evidence with its unit.

    >>> _evidence_value("idle_ns", 1_500_000), _evidence_value("has_fused_optimizer", True)
    ('1.50 ms', 'yes')
    >>> _evidence_value("calls_per_step", 1204.6), _evidence_value("cause", "nothing_to_hide")
    ('1,205', 'with no compute ready that could run beside it')
    """
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return WORDS_OF_VALUES.get(name, {}).get(value, terminal(value))
    if name.endswith("_ns"):
        return short_ms(value)
    if name.endswith("_share") or name.startswith("share") or name == "model_flop_utilisation":
        return percent(float(value), digits=0)
    return rounded(value) if isinstance(value, float) else f"{value:,}"


WORDS_OF_VALUES = {"cause": WORDS.exposure_causes, "gap_part": GAP_CAUSES}
"""Words of values that are words of the code, by the figure's name."""
UNEXPLAINED_EVIDENCE = frozenset(
    {"recurs", "share_of", "steps_marked", "workload", "is_pytorch", "generates"}
)
"""Figures that only choose words of other sentences."""
EVIDENCE_NAMES = {
    "unhideable_ns": "transfer with no compute left",
    "free_compute_ns": "compute that hides nothing yet",
    "gb_per_s": "GB/s",
    "op": "operator",
    "host_ns": "time of the CPU in it",
    "idle_ns": "idle GPU meanwhile",
    "idle_after_ns": "idle GPU until the CPU is ahead",
    "gpu_work_ns": "GPU work",
    "mean_event_ns": "mean length of GPU work",
    "events_per_step": "kernels and copies a step",
    "op_ns": "time of this operator",
    "op_gain_ns": "of that saved at its limit",
    "operators": "slow operators",
    "model_flop_utilisation": "model FLOP at each type's peak",
    "stacks_not_read": "stacks recorded and not read",
}
"""Names of figures whose own name says too little."""


def _evidence_name(name: str) -> str:
    """Return what a figure of the evidence is called.

    >>> _evidence_name("unhideable_ns"), _evidence_name("late_steps"), _evidence_name("part_ns")
    ('transfer with no compute left', 'late steps', 'part')
    """
    return EVIDENCE_NAMES.get(name, name.removesuffix("_ns").replace("_", " "))


def explain_text(
    rank: RankEvents, selector: str, *, rules: str | Path | None = None, all_rules: bool = False
) -> str:
    """Return the explanation of one event of a rank.

    Args:
        rank: The events of the rank.
        selector: The id of an event, part of a kernel's name, or a label. Of a label the largest
            kernels are listed, the rules that gave it are counted, and the longest event is
            explained.
        rules: A file of further rules.
        all_rules: Of a label, list for the longest event every rule that was tried, and not only
            those that match.

    >>> from tracekit.run.load import load
    >>> print(explain_text(load("sample_traces/reload", ranks=[0]).rank(0), "broadcast").splitlines()[0])
    broadcast: 8 events, 103.131 ms on rank 0
    """
    rule_book = load_rules(rules) if rules is not None else None
    events = events_with_captured_launches(rank)
    if selector not in LABELS:
        return explain(
            events, int(selector) if selector.isdecimal() else selector, rule_book
        ).render()
    labelled = classify(events, rules=rule_book)
    rows = labelled.filter(pl.col("label") == selector).with_columns(
        ns=pl.col("end_ns") - pl.col("start_ns")
    )
    if rows.is_empty():
        raise OptionError(
            f"no event of rank {rank.source.rank} is labelled {selector}",
            hint="leave --explain out to see",
        )
    longest = int(rows.sort("ns", descending=True)["id"][0])
    head = f"{selector}: {len(rows):,} events, {int(rows['ns'].sum()) / 1e6:.3f} ms on rank {rank.source.rank}"
    kernels = (
        rows.group_by(pl.col("name").cast(pl.String), pl.col("rule").cast(pl.String))
        .agg(pl.col("ns").sum(), count=pl.len())
        .sort("ns", "name", descending=[True, False])
    )
    lines = []
    for row in kernels.head(MAX_KERNELS_OF_LABEL).iter_rows(named=True):
        amount = f"{row['ns'] / 1e6:10.3f} ms  {row['count']:6,}"
        lines.append(f"  {amount}  {row['rule'] or '-':28} {terminal(row['name'][:90])}")
    by_rule = (
        kernels.group_by("rule")
        .agg(pl.col("ns", "count").sum())
        .sort("ns", "rule", descending=[True, False])
    )
    rule_lines = []
    for row in by_rule.iter_rows(named=True):
        amount = f"{row['ns'] / 1e6:10.3f} ms  {row['count']:6,}"
        rule_lines.append(f"  {amount}  {row['rule'] or 'no rule knows them'}")
    explained = explain(events, longest, rule_book).render(all_rules=all_rules)
    more = [] if all_rules else ["  --full lists the rules that do not match, and why"]
    return "\n".join(
        [
            head,
            *lines,
            "",
            "decided by",
            *rule_lines,
            "",
            "the longest of them",
            "",
            explained,
            *more,
        ]
    )
