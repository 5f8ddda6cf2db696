"""Data of the pages of an analysis and a diff: what their scripts draw timelines and schedules from."""

from collections.abc import Mapping, Sequence

from msgspec import UNSET, Struct, UnsetType


class PackedColumns(Struct, frozen=True):
    """Columns of integers, deflated, as base64; ``assets/columns.js`` reads them."""

    count: int
    """Number of rows."""
    columns: Sequence[tuple[str, int, bool]]
    """Name of each column, its bytes per value, and whether it holds steps from row to row."""
    unit_ns: int
    """Nanoseconds in a unit of its times."""
    data: str
    """The columns."""


class Coloured(Struct, frozen=True):
    """A label, a lane of the host or a kind of cell, with its colour."""

    name: str
    """Its name."""
    colour: str
    """Its colour."""


class PageLane(Struct, frozen=True):
    """A lane of a rank."""

    name: str
    """Its name."""
    labels: Sequence[str]
    """Labels of the events in it."""


class PageStepTime(Struct, frozen=True):
    """Time of a step on the page."""

    step: int | None
    """Number of the step; null if steps are not marked."""
    from_ms: float
    """Its start."""
    to_ms: float
    """Its end."""


class RankTrack(Struct, frozen=True, omit_defaults=True):
    """Events of one rank. Columns that the recording does not give are left out."""

    rank: int
    """The rank."""
    events: PackedColumns
    """GPU events: start, length, description, and delay from the launch (0: unknown, else in 100
    ns, from 1)."""
    phases: Sequence[tuple[int | None, str, float, float]]
    """Phases of the pipeline: step, name, start and end in ms."""
    steps: Sequence[PageStepTime]
    """Its steps."""
    causes: PackedColumns | UnsetType = UNSET
    """Exposed time of its events by cause, in 100 ns."""
    operations: PackedColumns | UnsetType = UNSET
    """Communication: hidden time, waiting (0: unknown, else in 100 ns, from 1) and size in KiB,
    from 1."""
    matches: PackedColumns | UnsetType = UNSET
    """Numbers of the operations across ranks that its events take part in."""
    label_causes: Mapping[str, Mapping[int, int]] | UnsetType = UNSET
    """Exposed time in ns by label and number of the cause, where single events were not kept."""
    host: PackedColumns | UnsetType = UNSET
    """Ranges of the host: start, length, lane, thread and number of the name."""
    memory: PackedColumns | UnsetType = UNSET
    """Memory in KiB over time in microseconds."""


class PathPieces(Struct, frozen=True):
    """The critical path."""

    pieces: PackedColumns
    """Start, length, rank, and numbers of the texts of each piece."""
    texts: str
    """The texts, as deflated JSON in base64."""


class Timeline(Struct, frozen=True):
    """Timeline of one role. Times are nanoseconds from ``origin_ns``."""

    origin_ns: str
    """Start of the first step on the common clock, as text: JavaScript's numbers have 53 bits."""
    begin_ns: int
    """Start of the time axis."""
    end_ns: int
    """End of the time axis."""
    labels: Sequence[Coloured]
    """Labels of its events."""
    lanes: Sequence[PageLane]
    """Lanes of every rank."""
    host: Sequence[Coloured]
    """Lanes of every host."""
    causes: Sequence[tuple[str, str]]
    """Name and meaning of each cause of exposure, by its number."""
    merged: bool
    """Whether events are merged intervals of each label."""
    left_out: Sequence[str]
    """Sentences about what is not shown."""
    steps: Sequence[PageStepTime]
    """Steps of the run."""
    descriptions: str
    """Texts that describe events, as deflated JSON in base64."""
    ranks: Sequence[RankTrack]
    """Events by rank."""
    path: PathPieces | None
    """The critical path; null if it was not computed."""
    memory_top: float | None
    """The most memory that a rank held, in GB; null if not recorded."""


class RoleTimeline(Struct, frozen=True):
    """Timeline of one role."""

    role: str
    """Name of the role; empty in a run without roles."""
    timeline: Timeline
    """Its timeline."""


class ScheduleSection(Struct, frozen=True):
    """Cells of a pipeline, measured or ideal."""

    name: str
    """``measured`` or ``ideal``."""
    boxes: PackedColumns
    """Cells and the time outside of them: start, length, row, kind, and what the tooltip says."""


class ScheduleChoice(Struct, frozen=True):
    """A pipeline and step that can be chosen."""

    name: str
    """Its name."""
    kinds: Sequence[Coloured]
    """Kinds of cells."""
    shaded: bool
    """Whether chunks of a rank differ in shade."""
    rows: Sequence[str]
    """Names of the rows."""
    ranks: Sequence[int]
    """Ranks of the rows."""
    step: int | None
    """The step."""
    end_ns: int
    """End of the time axis."""
    origin_ns: str
    """Start of the pipeline on the common clock, as text."""
    cells: Sequence[str]
    """Names of the measured cells."""
    sections: Sequence[ScheduleSection]
    """What is drawn below each other."""


class ScheduleChart(Struct, frozen=True):
    """Schedules of a run."""

    causes: Sequence[str]
    """Causes of delays, by their number."""
    choices: Sequence[ScheduleChoice]
    """What can be chosen; first what the numbers describe."""


class PlaceOnPage(Struct, frozen=True):
    """A stretch of one rank's timeline."""

    rank: int
    """The rank."""
    from_ms: float
    """Its start."""
    to_ms: float
    """Its end."""
    title: str
    """Rank, step, event and length, in words."""


class FindingPlaces(Struct, frozen=True):
    """Places of the timeline that show a finding."""

    number: int
    """Number of the finding on the page."""
    text: str
    """What costs time and why."""
    places: Sequence[PlaceOnPage]
    """The places, the one that shows it best first."""


class RankRemark(Struct, frozen=True):
    """How a rank differs from those it should be like."""

    rank: int
    """The rank."""
    text: str
    """How it differs, in words."""


class MemoryTrack(Struct, frozen=True):
    """All allocations of one GPU."""

    name: str
    """Rank or file."""
    levels: PackedColumns
    """Events: time, and reserved KiB from 1 (0: unknown)."""
    lives: PackedColumns
    """Allocations: event that made it (-1: before the first), events until it is freed, size in
    units of 2^40, 2^20 and 1 byte, category, stack from 1 (0: unknown), whether it leaks; segment
    from 1 (0: unknown) and place in it in 2^20 and 1 byte."""
    segments: PackedColumns | None
    """Segments, by address: event that made it (-1), events until it is given back, size in 2^20
    and 1 byte, number of its stream; null where they are not known."""
    stacks: str
    """Packed JSON: texts of the frames of each stack, outermost first, and of its line."""
    steps: Sequence[tuple[int, int]]
    """Number and first event of each step."""
    peak: int
    """Event of the peak; -1 without events."""
    failed: int | None
    """Event of the last request that failed; null if none did."""
    left_out: str
    """What of it is not on the page; empty if all of it is."""


class MemoryCharts(Struct, frozen=True):
    """Allocations of GPUs over time."""

    tracks: Sequence[MemoryTrack]
    """GPUs; those of a diff: before, then after."""
    categories: Sequence[Coloured]
    """What memory is for, in the order of the curves from below; the last one leaks."""
    frames: str
    """Packed JSON: texts and kinds (own, library, compiled) of all frames."""
    compares: bool = False
    """Whether the second half of the tracks is compared with the first."""


class MemoryPageData(Struct, frozen=True):
    """Data of the page of memory snapshots."""

    memory: MemoryCharts
    """Allocations."""


class PageData(Struct, frozen=True):
    """Data of the page of an analysis."""

    schedule: ScheduleChart | None
    """Schedules; null without a pipeline."""
    timelines: Sequence[RoleTimeline]
    """Timelines, the main role first."""
    path: str | None
    """Input, as commands name it; null if it is not one path."""
    findings: Sequence[FindingPlaces] = ()
    """Where the timeline shows each finding."""
    different: Sequence[RankRemark] = ()
    """Ranks that differ from the others, which the timeline marks."""
    memory: MemoryCharts | None = None
    """Allocations over time; null where single ones are not known."""


class DiffSide(Struct, frozen=True):
    """One run of a diff."""

    timeline: Timeline
    """Its timeline."""
    schedule: ScheduleChart | None
    """Its schedules; null without a pipeline."""
    path: str | None
    """Its input, as commands name it; null if it is not one path."""


class DiffData(Struct, frozen=True):
    """Data of the page of a diff."""

    sides: Sequence[DiffSide]
    """Both runs; empty if their events are not at hand."""
    comparable_cells: bool | None
    """Whether cells of both runs hold the same work."""
    changed: RankRemark | None = None
    """The rank that changed, which the timeline begins with; null if none is known."""
