"""Finders of every run, to which rooms and users of the package add, and the class of a finding that was written."""

from __future__ import annotations

from tracekit.analysis.result import Finder
from tracekit.documents.findings import Finding
from tracekit.findings.communication import ExposedTransfers, RepeatedReduction
from tracekit.findings.host import HostFinding
from tracekit.findings.kernels import SlowKernel
from tracekit.findings.kind import KINDS, FindingKind
from tracekit.findings.pipeline import ScheduleGap
from tracekit.findings.ranks import RankFinding
from tracekit.findings.recording import GraphsCaptured, UnexplainedIdle, WaitingUnknown
from tracekit.findings.remedies import CHANGES_OF_WORK
from tracekit.findings.steps import DelayedDecode, SlowStep

CORE_FINDERS: tuple[Finder, ...] = (
    HostFinding,
    SlowStep,
    DelayedDecode,
    RepeatedReduction,
    ExposedTransfers,
    RankFinding,
    ScheduleGap,
    *CHANGES_OF_WORK,
    SlowKernel,
    WaitingUnknown,
)
"""What looks for findings, in the order in which it is asked: each sees what was found before it
(``Context.found``)."""
ASKED_LAST: tuple[Finder, ...] = (GraphsCaptured, UnexplainedIdle)
"""What looks for what is left when the list is made."""


def kind_of(finding: Finding) -> type[FindingKind]:
    """Return the class of a finding that was written; the first of its code where its case is not known.

    One of a code that is not known has nothing in common with others.

    >>> kind_of(Finding(code="host_sync", cost_ns=1, share=0.1)).quick_to_try
    True
    >>> kind_of(Finding(code="of another version", cost_ns=1, share=0.1)).quick_to_try
    False
    """
    own = KINDS.get((finding.code, finding.case))
    of_code = (kind for (code, _), kind in KINDS.items() if code == finding.code)
    return own or next(of_code, FindingKind)
