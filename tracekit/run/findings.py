"""Finders of the rooms, besides those of every run."""

from collections.abc import Mapping

from tracekit.analysis.result import Finder
from tracekit.findings.families import CORE_FINDERS
from tracekit.findings.kind import KINDS, FindingKind
from tracekit.findings.unconverted import DocumentFinder
from tracekit.memory.findings import memory_findings
from tracekit.roles.findings import role_findings

__all__ = ["CORE_FINDERS", "ROOM_FINDERS", "all_kinds"]

ROOM_FINDERS: tuple[Finder, ...] = (
    DocumentFinder(memory_findings, independent_of_steps=True),
    DocumentFinder(role_findings, independent_of_steps=True, of_iterations=True),
)
"""Handed to every analysis, whose findings are looked for with them (``Analysis.finders``)."""


def all_kinds() -> Mapping[tuple[str, str], type[FindingKind]]:
    """Return every class of findings by code and case, those of rooms with them.

    >>> all_kinds()["recording", "ranks"].title
    'what the recording lacks'
    """
    return KINDS
