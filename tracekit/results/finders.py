"""Finders of the rooms, besides those of every run (``findings.families``)."""

from collections.abc import Mapping

from tracekit.analysis.result import Finder
from tracekit.findings.kind import KINDS, FindingKind
from tracekit.memory.findings import MemoryFinding
from tracekit.roles.findings import RoleFinding

ROOM_FINDERS: tuple[Finder, ...] = (MemoryFinding, RoleFinding)
"""Handed to every analysis, whose findings are looked for with them (``Analysis.finders``)."""


def all_kinds() -> Mapping[tuple[str, str], type[FindingKind]]:
    """Return every class of findings by code and case, those of rooms with them.

    >>> all_kinds()["recording", "ranks"].title, all_kinds()["leak", ""].section
    ('what the recording lacks', 'memory')
    """
    return KINDS
