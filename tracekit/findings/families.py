"""Finders of every run; rooms and users of the package add to them."""

from __future__ import annotations

from tracekit.analysis.result import Finder
from tracekit.findings.communication import ExposedTransfers, RepeatedReduction
from tracekit.findings.host import HostFinding
from tracekit.findings.kernels import SlowKernel
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
