"""Findings and sections of the side rooms, which every analysis has besides those of the core."""

from collections.abc import Mapping

from tracekit.analysis.result import Finder, Rooms
from tracekit.findings.kind import KINDS, FindingKind
from tracekit.memory.findings import MemoryFinding
from tracekit.memory.sections import MEMORY_SECTIONS
from tracekit.report.sections import CORE_SECTIONS, Section, insert_sections
from tracekit.roles.findings import RoleFinding
from tracekit.roles.sections import ROLE_SECTIONS

ROOM_FINDERS: tuple[Finder, ...] = (MemoryFinding, RoleFinding)
"""What looks for findings besides the families of every run (``findings.families``)."""
SECTIONS: tuple[Section, ...] = insert_sections(
    insert_sections(CORE_SECTIONS, ROLE_SECTIONS, after="timeline"),
    MEMORY_SECTIONS,
    after="experts",
)
"""All sections of the reports of an analysis, in their order."""
ROOMS = Rooms(finders=ROOM_FINDERS, sections=SECTIONS)
"""Handed to every analysis."""


def all_kinds() -> Mapping[tuple[str, str], type[FindingKind]]:
    """Return every class of findings by code and case, those of rooms with them.

    >>> all_kinds()["recording", "ranks"].title, all_kinds()["leak", ""].section
    ('what the recording lacks', 'memory')
    """
    return KINDS
