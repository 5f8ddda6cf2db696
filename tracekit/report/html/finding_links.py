"""Links of findings on the page, and the figure beside each."""

from __future__ import annotations

from tracekit._util.text import percent, short_ms, size
from tracekit.documents.findings import Finding
from tracekit.findings.families import kind_of
from tracekit.report.findings import bound_sign, is_of_one_iteration


def section_of(finding: Finding) -> str | None:
    """Return the section of the page that shows a finding without a place in the timeline; None if there is none."""
    return kind_of(finding).section


def figure_of(finding: Finding) -> str:
    """Return what a finding is likely to save, behind its sign, as the terminal says it.

    >>> figure_of(Finding(code="host_sync", cost_ns=4_000_000, share=0.2, saves_ns=3_000_000))
    '3.00 ms'
    >>> figure_of(Finding(code="host_sync", cost_ns=4_000_000, share=0.2))
    '≤ 4.00 ms'
    >>> figure_of(Finding(code="leak", cost_ns=0, cost_bytes=8_388_608, share=0.0))
    '8.4 MB'
    """
    if finding.cost_bytes and not finding.cost_ns:
        return size(finding.cost_bytes)
    return f"{bound_sign(finding)} {short_ms(finding.effect_ns)}".lstrip()


def search_of(finding: Finding) -> str | None:
    """Return the search for the operator or the label that a finding is about.

    None if it is about something else.

    >>> search_of(Finding(code="slow_kernel", cost_ns=1, share=0.1, evidence={"op": "aten::mm"}))
    'op:"aten::mm"'
    >>> search_of(Finding(code="optimizer", cost_ns=1, share=0.1))
    'label:=optimizer'
    """
    kind = kind_of(finding)
    operator = finding.evidence.get("op")
    if kind.is_about_operator and operator:
        return f'op:"{operator}"'
    label = kind.label_of_kernels or finding.evidence.get("label")
    return f"label:={label}" if label else None


def share_words(finding: Finding) -> str:
    """Return what the figure of a finding is, and its share of the step, or of what else it is a share of.

    >>> share_words(Finding(code="x", cost_ns=4, share=0.2, saves_ns=3, saves_range_ns=(0, 3)))
    'saved at most, 15 % of the step'
    >>> share_words(Finding(code="x", cost_ns=4, share=0.2, evidence={"steps_marked": False}))
    'saved at most, 20 % of the recording'
    """
    if finding.cost_bytes and not finding.cost_ns:
        return "of memory"
    default = "recording" if finding.evidence.get("steps_marked") is False else "step"
    whole = finding.evidence.get("share_of", default)
    # The sign stands before the figure: only that nothing saves more is worth words behind it.
    saved = "saved at most" if bound_sign(finding) == "≤" else "saved"
    if is_of_one_iteration(finding):
        return f"{saved}, once"
    return f"{saved}, {percent(finding.effect_share, digits=0)} of the {whole}"
