"""Sentences of findings, made from their codes and evidence by the templates in ``findings.toml``."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from tracekit._util.text import listing, ms, percent, ranks_named
from tracekit.documents.findings import Finding
from tracekit.metrics.budget import Budget
from tracekit.report.text import short_ms, size
from tracekit.schema import LABEL_WORDS

MIN_SHARE_TO_SHOW = 0.01
"""Share of the step from which a finding is shown unless all are asked for."""
ONCE_A_STEP = 0.75
"""Mean count per step from which something happens once a step; less is in one of two steps or
more."""
MAX_FINDING_STEPS_NAMED = 4
"""Steps that a sentence names."""


class Advice(msgspec.Struct, frozen=True):
    """One thing to do next."""

    text: str
    command: str | None = None
    """The whole command to copy, if there is one."""


def shown_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings that cost or save enough to be shown."""
    shown = []
    for finding in findings:
        if finding.share >= MIN_SHARE_TO_SHOW or finding.cost_bytes:
            shown.append(finding)
    return tuple(shown)


ABSENCES = {
    "data_loading": "no waiting for data",
    "host_sync": "no sync stalls",
    "pageable_copy": "no pageable copies",
    "allocator": "no allocations",
    "compile": "no compilation",
}
"""What is said of a run of which the host was recorded, by the code of a finding that it does not
have."""
MAX_ABSENCES = 2
"""Absent costs that are named, the first of ``ABSENCES``."""
MAX_EXPOSED_SHARE = 0.05
"""Share of the step up to which it is worth saying how little is exposed."""


def absent_costs(findings: Sequence[Finding], budget: Budget, *, host_recorded: bool) -> str:
    """Return what is not wrong, in a few words; empty if nothing of that is known or worth a line.

    >>> absent_costs((), Budget(1000, 990, {"dp_comm": 5}, 5), host_recorded=True)
    'nothing to gain outside compute: no waiting for data, no sync stalls, 0.5 % exposed transfers'
    """
    shown = {finding.code for finding in shown_findings(findings)}
    absent = (
        [words for code, words in ABSENCES.items() if code not in shown][:MAX_ABSENCES]
        if host_recorded
        else []
    )
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
    only_compute = host_recorded and is_hidden and shown <= {"slow_kernel"}
    return f"{'nothing to gain outside compute: ' if only_compute else ''}{', '.join(absent)}"


def with_sentences(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return findings with their sentences: what costs time and why, and what to do about it.

    >>> with_sentences([Finding(code="hang", cost_ns=4_000_000, share=0.2)])[0].text
    'an operation did not complete'
    """
    return tuple(
        msgspec.structs.replace(
            finding,
            text=_fill(_template(finding)["text"], finding),
            advice=_fill(_template(finding)["advice"], finding),
        )
        for finding in findings
    )


def finding_line(finding: Finding) -> str:
    """Return a finding in one sentence: what, why, what to do, and what that would save."""
    saves = ""
    if finding.saves_ns:
        saves = f" (saves up to {short_ms(finding.saves_ns)} per step)"
    return f"{finding.text}: {finding.advice}{saves}"


def finding_in_a_log(finding: Finding) -> str:
    """Return a finding as one line of a log: what it saves, or costs at most, then what, why and what to do.

    >>> hang = Finding(code="hang", cost_ns=4_000_000, share=0.2, saves_ns=2_000_000)
    >>> finding_in_a_log(*with_sentences([hang]))
    'saves 2.00 ms (10 %): an operation did not complete → `tracekit late` shows which'
    """
    if finding.cost_bytes and not finding.cost_ns:
        effect = size(finding.cost_bytes)
    elif finding.saves_ns is None:
        effect = f"saves at most {short_ms(finding.cost_ns)} ({percent(finding.share, digits=0)})"
    else:
        share = finding.share * finding.saves_ns / finding.cost_ns if finding.cost_ns else 0.0
        effect = f"saves {short_ms(finding.saves_ns)} ({percent(share, digits=0)})"
    return f"{effect}: {finding.text} → {finding.advice}"


@cache
def templates() -> Mapping[str, Any]:
    """Return the templates by code."""
    return msgspec.toml.decode(
        Path(__file__).with_name("findings.toml").read_bytes(), type=dict[str, Any]
    )


def _template(finding: Finding) -> Mapping[str, str]:
    """Return the texts of the finding's case; where the case has none, those of the code."""
    of_code = templates()[finding.code]
    of_case = of_code.get(finding.case)
    return of_case if isinstance(of_case, Mapping) else of_code


def _fill(template: str, finding: Finding) -> str:
    """Return a template with the finding's evidence."""
    names = [name for _, name, _, _ in string.Formatter().parse(template) if name]
    fields = {name: _field(finding, name) for name in names}
    return template.format(**fields)


def _field(finding: Finding, name: str) -> str:
    """Return one name of a template as text: derived words first, else the evidence of that name."""
    if name in _DERIVED:
        return _DERIVED[name](finding)
    value = finding.evidence.get(name)
    if value is None:
        return "unknown"
    return value if isinstance(value, str) else _number(name, value)


def _number(name: str, value: float) -> str:
    """Return a figure of the evidence as text; its name tells the unit."""
    if name.endswith("_ns"):
        return short_ms(value)
    if name.endswith("_bytes"):
        return size(round(value))
    if name.startswith("share") or name.endswith("_share"):
        return percent(float(value), digits=0)
    return f"{value:,.3g}" if isinstance(value, float) else f"{value:,}"


def framework_options(framework: object, topic: str) -> str:
    """Return the framework's own options for a label or for ``bytes``; empty if there are none.

    >>> framework_options("DDP", "dp_comm"), framework_options(None, "dp_comm")
    ('`bucket_cap_mb`', '')
    """
    options: Mapping[str, Mapping[str, str]] = templates()["options"]
    return options.get(str(framework), {}).get(topic, "")


def _label_words(finding: Finding) -> str:
    label = str(finding.evidence.get("label"))
    return f"{LABEL_WORDS.get(label, label)} ({label})"


def _rate(finding: Finding) -> str:
    rate = finding.evidence.get("gb_per_s")
    return f" at {rate:,.2g} GB/s" if isinstance(rate, float) else ""


def _option(finding: Finding) -> str:
    options = framework_options(
        finding.evidence.get("framework"), str(finding.evidence.get("label"))
    )
    return f" ({options})" if options else ""


def _fewer_bytes(finding: Finding) -> str:
    return (
        framework_options(finding.evidence.get("framework"), "bytes")
        or "a narrower type, compression"
    )


def _in_op(finding: Finding) -> str:
    operator = finding.evidence.get("op") or finding.evidence.get("name")
    is_value = str(operator) == "aten::_local_scalar_dense"
    return f" in {'aten::item' if is_value else operator}" if operator else ""


def _how_often(finding: Finding) -> str:
    """Return how often something happens: once a step, 8 times a step, in one of 4 steps."""
    count = finding.evidence.get("calls_per_step")
    if not isinstance(count, int | float) or count <= 0:
        return "now and then"
    if count < ONCE_A_STEP:
        return f"in one of {round(1 / count)} steps"
    times = round(count)
    return "once a step" if times == 1 else f"{times:,} times a step"


def _in_steps(finding: Finding) -> str:
    late_steps = finding.evidence.get("late_steps")
    is_always_late = late_steps == finding.evidence.get("recorded_steps")
    if is_always_late or not finding.steps:
        return " in every step"
    return f" in step {listing(map(str, finding.steps), most=MAX_FINDING_STEPS_NAMED)}"


def _while_others_wait(finding: Finding) -> str:
    """Return whom the others wait for in a slow step; empty if nobody comes late to it.

    >>> _while_others_wait(Finding(code="slow_step", cost_ns=1, share=0.1, ranks=(0,)))
    '; the others wait for rank 0'
    """
    return f"; the others wait for {ranks_named(finding.ranks)}" if finding.ranks else ""


def _tokens(finding: Finding) -> str:
    own = finding.evidence.get("tokens")
    others = finding.evidence.get("tokens_of_others")
    if not own or not others or own == others:
        return ""
    return f" ({own:,} tokens, the others {others:,})"


def _in_module(finding: Finding) -> str:
    module = finding.evidence.get("module")
    return f" ({module})" if module else ""


def _utilisation(finding: Finding) -> str:
    share = finding.evidence.get("model_flop_utilisation")
    if not isinstance(share, float):
        return ""
    return f" (the step reaches {percent(share, digits=0)} of peak FLOP/s)"


LIMIT_WORDS = {"peak": "peak rate", "bandwidth": "memory bandwidth"}
"""What limits an operator, in words."""


def _source(finding: Finding) -> str:
    return next((example.source for example in finding.where if example.source), "unknown")


def _peak_place(finding: Finding) -> str:
    """Return where the host is at the peak: cell, else phase."""
    op = finding.evidence.get("op")
    stage = finding.evidence.get("stage")
    microbatch = finding.evidence.get("microbatch")
    if op is not None and stage is not None:
        return f", in {stage}{op}{microbatch} (stage {stage}, micro-batch {microbatch})"
    phase = finding.evidence.get("phase")
    return f", in the {phase}" if phase else ""


def _recompute(finding: Finding) -> str:
    module = finding.evidence.get("recompute_module")
    freed_bytes = finding.evidence.get("recompute_bytes")
    recompute_ns = finding.evidence.get("recompute_ns")
    if module is None or not isinstance(freed_bytes, int) or not isinstance(recompute_ns, int):
        return "recompute activations"
    return f"recompute {module} (frees up to {size(freed_bytes)} for {ms(recompute_ns)} per step)"


def _leak_place(finding: Finding) -> str:
    """Return what leaks, as far as known: line, operator, module, stage and micro-batch."""
    evidence = finding.evidence
    parts = []
    if evidence.get("line"):
        parts.append(f"allocated at {evidence['line']}")
    if evidence.get("operator"):
        parts.append(f"by {evidence['operator']}")
    if evidence.get("module"):
        parts.append(f"in {evidence['module']}")
    stage = evidence.get("stage")
    microbatch = evidence.get("microbatch")
    if stage is not None and microbatch is not None:
        parts.append(f"of micro-batch {microbatch} on stage {stage}")
    return f", {' '.join(parts)}" if parts else ""


def _until_full(finding: Finding) -> str:
    steps = finding.evidence.get("steps_until_full")
    return f"; the GPU is full in about {steps:,} steps" if isinstance(steps, int) else ""


def _late_steps(finding: Finding) -> str:
    """Return in which steps ranks are late over a whole run, and which of them the traces show."""
    recorded = sorted({example.step for example in finding.where if example.step is not None})
    shown = (
        f" (steps {listing(map(str, recorded), most=MAX_FINDING_STEPS_NAMED)} are in the trace)"
        if recorded
        else ""
    )
    period = finding.evidence.get("period")
    if isinstance(period, int):
        return f" every {period} steps since step {finding.evidence.get('since_step')}{shown}"
    if finding.evidence.get("kind") == "occasional":
        return f" in step {listing(map(str, finding.steps), most=MAX_FINDING_STEPS_NAMED)}{shown}"
    return f" in nearly every step since step {finding.evidence.get('since_step')}{shown}"


_DERIVED: Mapping[str, Callable[[Finding], str]] = {
    "cost": lambda finding: short_ms(finding.cost_ns),
    "label_words": _label_words,
    "rate": _rate,
    "option": _option,
    "fewer_bytes": _fewer_bytes,
    "in_op": _in_op,
    "how_often": _how_often,
    "in_module": _in_module,
    "utilisation": _utilisation,
    "limit_words": lambda finding: LIMIT_WORDS.get(str(finding.evidence.get("limit")), "limit"),
    "in_steps": _in_steps,
    "in_late_steps": _late_steps,
    "ranks_named": lambda finding: ranks_named(finding.ranks),
    "while_others_wait": _while_others_wait,
    "tokens_words": _tokens,
    "source": _source,
    "peak_place": _peak_place,
    "category_words": lambda finding: str(finding.evidence.get("category")).replace("_", " "),
    "recompute": _recompute,
    "leak_place": _leak_place,
    "until_full": _until_full,
    "at_line": lambda finding: f" in {line}" if (line := finding.evidence.get("line")) else "",
    "rank": lambda finding: str(finding.ranks[0]),
}
"""Names of templates that are more than one value of the evidence."""
