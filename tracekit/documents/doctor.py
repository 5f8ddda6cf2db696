"""Contents and gaps of recordings: ``tracekit doctor --json``."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from tracekit.documents.findings import Finding
from tracekit.errors import Notice
from tracekit.schema import ProcessGroup

DOCTOR_FORMAT: Literal["tracekit.doctor/1"] = "tracekit.doctor/1"


class RecordedRank(Struct, frozen=True):
    """Contents of one rank's file."""

    rank: int
    """Number of the rank."""
    rank_from: str
    """Evidence for the number: content, name, option or only file."""
    path: str
    """Its file."""
    events: int
    """Events."""
    gpu_events: int
    """GPU events."""
    launched: int
    """GPU events with a launch."""
    streams: int
    """GPU streams."""
    devices: list[int]
    """Numbers of the GPUs."""
    steps: list[int]
    """Marked steps."""
    counts: Mapping[str, int]
    """Events by kind."""


class Reexport(Struct, frozen=True):
    """Another export of the same Nsight report."""

    option: str
    """Option to add."""
    gives: str
    """What it adds."""
    command: str
    """The command."""


class Extra(Struct, frozen=True):
    """An optional recording that no answer needs."""

    code: str
    """Word that never changes."""
    adds: str
    """What it would add."""
    how: str
    """How to record it."""


class DoctorFinding(Struct, frozen=True):
    """Something the recording lacks."""

    code: str
    """Word that never changes."""
    severity: str
    """blocks (no answer without it), limits (fewer or weaker answers) or note."""
    problem: str
    """What is missing."""
    ranks: tuple[int, ...]
    """On which ranks."""
    rules_out: tuple[str, ...]
    """Answers that this rules out."""
    fix: str
    """How to record it."""


class DoctorDocument(Struct, frozen=True):
    """Contents of recordings, what they lack, and how to record it."""

    format: Literal["tracekit.doctor/1"]
    """Name and number of the format."""
    paths: list[str]
    """Paths as given."""
    reader: str
    """kineto or nsight."""
    versions: Mapping[str, str]
    """Versions of programs and libraries."""
    ranks: list[int]
    """Numbers of the ranks."""
    world_size: int | None
    """Ranks of the run, as far as the files show."""
    devices: list[str]
    """Names of the GPUs."""
    steps: list[int]
    """Marked steps."""
    span_ns: int
    """Recorded time: from the first to the last event."""
    step_time_ns: int | None
    """Step time of the run, from the start of a step to the start of the next one; null without
    marked steps."""
    groups: list[ProcessGroup]
    """Process groups."""
    counts: Mapping[str, int]
    """Events by kind."""
    skipped: Mapping[str, int]
    """Events that were not read, by reason."""
    by_rank: list[RecordedRank]
    """Contents of each rank's file."""
    answers: list[str] | None
    """Answers that an Nsight recording can give; null for others."""
    export_again: Reexport | None
    """Another export that would add something."""
    extras: list[Extra]
    """Optional recordings."""
    findings: list[DoctorFinding]
    """What is missing."""
    step_findings: tuple[Finding, ...] | None
    """Null: what costs time in a step is in ``findings`` of analyze. Files of earlier versions have it here."""
    warnings: tuple[Notice, ...]
    """Notices."""
