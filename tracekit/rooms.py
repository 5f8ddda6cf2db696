"""Additions of the side rooms to every analysis, as three lists: what is measured per rank, findings, sections.

They stand above the rooms and below ``results``, since an analysis that is read back has the findings and sections too.
What measures, stores and reads ranks is handed the first; what finds and shows is handed the others, which are made
when they are asked for: a worker that measures imports no reports.
"""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from tracekit.analysis.measure.room_measures import RoomMeasure
from tracekit.analysis.result import Finder, Rooms
from tracekit.memory.measures import RANK_MEMORY
from tracekit.roles.weight_updates.transfers import WEIGHT_TRANSFERS

if TYPE_CHECKING:
    from tracekit.findings.kind import FindingKind
    from tracekit.report.section import Section

ROOM_MEASURES: tuple[RoomMeasure[Any], ...] = (RANK_MEMORY, WEIGHT_TRANSFERS)
"""What is measured of each rank, and kept in a store, besides the tables of the core."""


def room_finders() -> tuple[Finder, ...]:
    """Return what looks for findings besides the families of every run (``findings.families``)."""
    from tracekit.memory.findings import MemoryFinding
    from tracekit.roles.findings import RoleFinding

    return (MemoryFinding, RoleFinding)


@cache
def all_sections() -> "tuple[Section, ...]":
    """Return all sections of the reports of an analysis, in their order.

    >>> [section.id for section in all_sections()][:2]
    ['timeline', 'roles']
    """
    from tracekit.memory.sections import MEMORY_SECTIONS
    from tracekit.report.section import insert_sections
    from tracekit.report.sections import CORE_SECTIONS
    from tracekit.roles.sections import ROLE_SECTIONS

    with_roles = insert_sections(CORE_SECTIONS, ROLE_SECTIONS, after="timeline")
    return insert_sections(with_roles, MEMORY_SECTIONS, after="experts")


@cache
def side_rooms() -> Rooms:
    """Return what is handed to every analysis that people get."""
    return Rooms(finders=room_finders(), sections=all_sections())


def all_kinds() -> "Mapping[tuple[str, str], type[FindingKind]]":
    """Return every class of findings by code and case, those of rooms with them.

    >>> all_kinds()["recording", "ranks"].title, all_kinds()["leak", ""].section
    ('what the recording lacks', 'memory')
    """
    from tracekit.findings.kind import KINDS

    side_rooms()
    return KINDS
