"""Contents of GPU memory: tables by rank and by source line, and the sentence of the first screen."""

from __future__ import annotations

from collections.abc import Sequence

from tracekit._util.text import UNKNOWN, counted, listing, percent, size
from tracekit.analysis import Analysis
from tracekit.documents.analysis import AllocatorMemory
from tracekit.documents.memory import MemoryContents, MemoryPeak
from tracekit.memory.measures import MEMORY_PHASES
from tracekit.report.table import Column, Table, make_table
from tracekit.report.text import gb, gb_range
from tracekit.report.words import WORDS

SHORT = {
    "before_recording": "before",
    "weights": "weights",
    "gradients": "grads",
    "optimizer_state": "opt.",
    "activations": "activ.",
}
"""Kinds of contents that have a column, with its heading in the terminal; the others are the
rest."""
MAX_LINES_IN_TABLE = 10
"""Source lines that are shown, those with the most memory."""
NO_STACK = "(no Python stack)"
"""Line of allocations without one: those of autograd's own thread, or where stacks were not
recorded."""
MAX_CATEGORIES_NAMED = 3
"""Kinds of contents that the sentence names, the largest."""
MAX_CATEGORIES_IN_LINE = 2
"""Kinds of contents that the line of the first screen names."""
SHOWN_PHASES = tuple(dict.fromkeys(MEMORY_PHASES.values()))
HOST_TIME_NOTE = (
    "memory is allocated when the host launches, so phases are the host's; "
    "a range: allocated while two phases overlap"
)

MAX_MEMORY_RANKS = 16
"""Ranks whose memory is shown, those with the highest peak."""


def _filled(analysis: Analysis) -> list[AllocatorMemory]:
    """Return the ranks whose contents are known."""
    ranks = () if analysis.memory is None else analysis.memory.ranks
    return [rank for rank in ranks if rank.contents is not None]


def peak_place(peak: MemoryPeak) -> str:
    """Return where the host was at the peak: its cell, else its phase; empty if unknown.

    >>> peak_place(MemoryPeak(1, 1, 1, 1, 1, 2, "B", 0, 1, "backward", None))
    '0B1'
    """
    if peak.op is not None and peak.stage is not None:
        return f"{peak.stage}{peak.op}{peak.microbatch}"
    return peak.phase or ""


def contents_table(analysis: Analysis) -> Table | None:
    """Return what fills each rank's memory at its peak, in GB.

    None if single allocations are not known.
    """
    ranks = sorted(_filled(analysis), key=lambda rank: -rank.peak_bytes)[:MAX_MEMORY_RANKS]
    if not ranks:
        return None
    ranks.sort(key=lambda rank: rank.rank)
    categories = _own_columns([rank.contents for rank in ranks if rank.contents is not None])
    columns = [
        Column("rank", "rank"),
        Column("peak", "figure"),
        Column("in", "word", note="the cell, else the phase, that the host was launching"),
        *(
            Column(WORDS.memory_categories[name], "figure", terminal_heading=SHORT[name])
            for name in categories
        ),
        Column(
            "rest",
            "figure",
            3,
            note="communication buffers, workspace, tensors of the program and other",
        ),
        Column(
            "in flight",
            "figure",
            1,
            note="most micro-batches whose activations are in memory at once",
        ),
        Column("free", "figure", 2, note="reserved at the peak and not in tensors"),
    ]
    rows = [_contents_row(rank, categories) for rank in ranks]
    return make_table(
        columns,
        rows,
        notes=_contents_notes(analysis),
    )


def _own_columns(contents: Sequence[MemoryContents]) -> list[str]:
    """Return the kinds of contents with a column of their own that any rank has."""
    present = set()
    for rank in contents:
        for category, count in rank.by_category.items():
            if count:
                present.add(category)
    return [category for category in SHORT if category in present]


def _contents_row(rank: AllocatorMemory, categories: Sequence[str]) -> tuple[object, ...]:
    contents = rank.contents
    assert contents is not None, "only ranks with contents are shown"
    peak = contents.peak
    free = None if peak.reserved_bytes is None else peak.reserved_bytes - peak.bytes
    own = [contents.by_category.get(name, 0) for name in categories]
    shares = [gb(count) for count in (*own, peak.bytes - sum(own))]
    in_flight = UNKNOWN
    if contents.in_flight is not None:
        in_flight = str(contents.in_flight)
        if contents.ideal_in_flight not in (None, contents.in_flight):
            in_flight += f" (schedule {contents.ideal_in_flight})"
    return rank.rank, gb(peak.bytes), peak_place(peak), *shares, in_flight, gb(free)


def _contents_notes(analysis: Analysis) -> list[str]:
    clocks = [rank.contents.clock for rank in _filled(analysis) if rank.contents is not None]
    uncertain = [clock.uncertainty_ns for clock in clocks if clock is not None]
    notes = []
    if uncertain:
        notes.append(
            f"memory snapshots are on the traces' clock to within {max(uncertain) / 1000:,.0f} µs"
        )
    if any(
        "before_recording" in rank.contents.by_category
        for rank in _filled(analysis)
        if rank.contents is not None
    ):
        notes.append(
            f"{WORDS.memory_categories['before_recording']}: allocated before the history began"
        )
    return notes


def lines_table(analysis: Analysis) -> Table | None:
    """Return the source lines that hold most of the fullest rank's memory at its peak.

    None without stacks.
    """
    ranks = _filled(analysis)
    if not ranks:
        return None
    fullest = max(ranks, key=lambda rank: rank.peak_bytes)
    contents = fullest.contents
    assert contents is not None, "only ranks with contents are looked at"
    return source_lines(contents, rank=fullest.rank)


def source_lines(contents: MemoryContents, *, rank: int | None) -> Table | None:
    """Return the source lines with most memory at the peak; None without stacks."""
    if not any(line.line for line in contents.lines):
        return None
    columns = [
        Column("line", "name", value=lambda line: line.line or NO_STACK),
        Column(
            "holds",
            "word",
            value=lambda line: WORDS.memory_categories.get(line.category, line.category),
        ),
        Column("allocations", "count", 1, value="count"),
        Column("GB", "figure", value=lambda line: gb(line.bytes)),
        Column("of peak", "share", value=lambda line: line.bytes / max(1, contents.peak.bytes)),
    ]
    notes = [] if rank is None else [f"rank {rank}, at its peak"]
    return make_table(
        columns,
        contents.lines[:MAX_LINES_IN_TABLE],
        notes=notes,
    )


def category_shares(contents: MemoryContents, *, most: int, min_share: float = 0.0) -> list[str]:
    """Return the purposes that take most of the peak, at most *most*, with their shares of it."""
    largest = list(contents.by_category.items())[:most]
    min_bytes = min_share * contents.peak.bytes
    return [
        f"{WORDS.memory_categories.get(name, name)} {percent(count, contents.peak.bytes, digits=0)}"
        for name, count in largest
        if count >= min_bytes
    ]


def memory_line(analysis: Analysis) -> str | None:
    """Return in one line how full the fullest rank is, where, and with what.

    None if that is not known.
    """
    fullest = max(_filled(analysis), key=lambda rank: rank.peak_bytes, default=None)
    if fullest is None or fullest.contents is None:
        return None
    contents = fullest.contents
    whole = "" if fullest.capacity_bytes is None else f" of {size(fullest.capacity_bytes)}"
    where = []
    if len(analysis.ranks) > 1:
        where.append(f"rank {fullest.rank}")
    cell_or_phase = peak_place(contents.peak)
    if cell_or_phase:
        where.append(f"in {cell_or_phase}")
    parts = category_shares(contents, most=MAX_CATEGORIES_IN_LINE)
    remark = f" ({', '.join(where)})" if where else ""
    return f"memory {size(contents.peak.bytes)}{whole}{remark}: {', '.join(parts)}"


def memory_table(analysis: Analysis) -> Table | None:
    """Return the memory of the ranks in GB, by phase and per chunk of the schedule.

    None if it was not recorded.
    """
    if analysis.memory is None:
        return None
    ranks = sorted(analysis.memory.ranks, key=lambda rank: -rank.peak_bytes)[:MAX_MEMORY_RANKS]
    phases = []
    for phase in SHOWN_PHASES:
        if any(phase in rank.by_phase for rank in ranks):
            phases.append(phase)
    columns = [Column("rank", "rank"), Column("peak", "figure"), Column("reserved", "figure", 2)]
    columns += [Column(phase, "figure") for phase in phases]
    columns += [
        Column("before", "figure", 1),
        Column("a chunk", "figure"),
        Column("chunks", "figure"),
    ]
    rows = [_memory_row(rank, phases) for rank in sorted(ranks, key=lambda rank: rank.rank)]
    return make_table(
        columns,
        rows,
        notes=_memory_notes(analysis, len(ranks)),
    )


def _memory_row(rank: AllocatorMemory, phases: Sequence[str]) -> tuple[object, ...]:
    in_phases = []
    for phase in phases:
        peak = rank.by_phase.get(phase)
        in_phases.append(UNKNOWN if peak is None else gb_range(peak.at_least, peak.at_most))
    count = UNKNOWN
    if rank.chunks is not None:
        count = str(rank.chunks)
        if rank.ideal_chunks not in (None, rank.chunks):
            count += f" (schedule {rank.ideal_chunks})"
    return (
        rank.rank,
        gb(rank.peak_bytes),
        gb(rank.reserved_bytes),
        *in_phases,
        gb(rank.base_bytes),
        UNKNOWN if rank.chunk_bytes is None else gb_range(*rank.chunk_bytes),
        count,
    )


def _memory_notes(analysis: Analysis, shown: int) -> list[str]:
    recorded = analysis.memory.ranks if analysis.memory is not None else ()
    capacities = sorted(
        {rank.capacity_bytes for rank in recorded if rank.capacity_bytes is not None}
    )
    notes = [
        f"GB of tensors; the GPU has {listing(map(gb, capacities))}"
        if capacities
        else "GB of tensors",
        HOST_TIME_NOTE,
    ]
    if any(rank.chunks is not None for rank in recorded):
        notes.append(
            "before: before the first chunk; a chunk: what memory grows by over a forward cell and falls by over a "
            "backward, their medians; chunks: the most in memory at once"
        )
    if shown < len(recorded):
        notes.append(f"the {shown} fullest of {counted(len(recorded), 'rank')}")
    missing = len(analysis.ranks) - len(recorded)
    if missing:
        notes.append(f"{missing} of {len(analysis.ranks)} ranks did not record it")
    return notes
