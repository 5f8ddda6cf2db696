"""Memory snapshots without a trace: sentences and tables."""

from __future__ import annotations

from tracekit._util.text import join_with_and, percent, size
from tracekit.documents.memory import (
    MemoryContents,
    MemoryDocument,
    MomentChange,
    OutOfMemory,
    SnapshotChange,
    SnapshotMemory,
)
from tracekit.memory.view import (
    MAX_CATEGORIES_NAMED,
    NO_STACK,
    category_shares,
    source_lines,
)
from tracekit.report.table import Column, Table, make_table
from tracekit.report.text import gb
from tracekit.report.words import WORDS

MAX_STEPS_SHOWN = 12
"""Steps that are listed, the last ones."""
MIN_FREE_SHARE_TO_REPORT = 0.1
"""Share of the reserved memory that is free in pieces, from which it is reported."""


def fullest(document: MemoryDocument) -> SnapshotMemory:
    """Return the snapshot with the highest peak."""
    return max(document.snapshots, key=lambda snapshot: snapshot.contents.peak.bytes)


def headline(snapshot: SnapshotMemory) -> str:
    """Return how full the GPU was, and with what."""
    contents = snapshot.contents
    of_rank = "The GPU" if snapshot.rank is None else f"Rank {snapshot.rank}"
    parts = category_shares(contents, most=MAX_CATEGORIES_NAMED)
    reserved = (
        ""
        if contents.peak.reserved_bytes is None
        else f" ({size(contents.peak.reserved_bytes)} reserved)"
    )
    return (
        f"{of_rank} holds {size(contents.peak.bytes)}{reserved} at its peak: {join_with_and(parts)}"
    )


def facts(document: MemoryDocument) -> list[str]:
    """Return what stands out: requests that failed, leaks, fragmentation."""
    sentences = [f"{finding.text}: {finding.advice}" for finding in document.findings]
    for snapshot in document.snapshots:
        of_rank = _subject(snapshot)
        sentences += [f"{of_rank}: {fact}" for fact in _facts_of(snapshot.contents)]
    return sentences


def _subject(snapshot: SnapshotMemory) -> str:
    return "the GPU" if snapshot.rank is None else f"rank {snapshot.rank}"


def failure(document: MemoryDocument) -> OutOfMemory | None:
    """Return the failed request that lacked most; None if none failed."""
    failures = [
        snapshot.contents.out_of_memory
        for snapshot in document.snapshots
        if snapshot.contents.out_of_memory is not None
    ]
    return max(failures, key=lambda one: one.needed_bytes, default=None)


def _facts_of(contents: MemoryContents) -> list[str]:
    sentences = []
    for leak in contents.leaks:
        source = (
            f", allocated {'below' if leak.places > 1 else 'at'} {leak.line}" if leak.line else ""
        )
        sentences.append(
            f"every step leaves {size(leak.bytes_per_step)} behind{source} ({len(leak.steps)} steps)"
        )
    reserve = contents.fragmentation
    if contents.out_of_memory is not None:
        return sentences  # what was free in pieces when the request failed stands there
    if reserve is None or reserve.fragmented_bytes is None or not reserve.forced_segments:
        return sentences
    if reserve.fragmented_bytes >= MIN_FREE_SHARE_TO_REPORT * reserve.reserved_bytes:
        share = percent(reserve.fragmented_bytes, reserve.reserved_bytes, digits=0)
        sentences.append(
            f"{size(reserve.fragmented_bytes)} ({share} of what is reserved) are free in pieces; a request for "
            f"{size(reserve.largest_request_bytes or 0)} did not fit while "
            f"{size(reserve.largest_request_free_bytes or 0)} were free"
        )
    return sentences


def contents_table(document: MemoryDocument) -> Table:
    """Return what fills each GPU at its peak, in GB."""
    present: set[str] = set()
    for snapshot in document.snapshots:
        present.update(snapshot.contents.by_category)
    categories = [name for name in WORDS.memory_categories if name in present]
    all_contents = [snapshot.contents for snapshot in document.snapshots]
    columns = [Column("holds")]
    columns += [Column(name, "figure") for name in names(document)]
    rows: list[tuple[object, ...]] = []
    for category in categories:
        sizes = [contents.by_category.get(category, 0) for contents in all_contents]
        rows.append((WORDS.memory_categories[category], *map(gb, sizes)))
    peaks = [contents.peak for contents in all_contents]
    rows.append(("allocated", *(gb(peak.bytes) for peak in peaks)))
    rows.append(("active", *(gb(peak.active_bytes) for peak in peaks)))
    rows.append(("reserved", *(gb(peak.reserved_bytes) for peak in peaks)))
    notes = ["active: allocated, or freed and still in use by a stream"]
    return Table(tuple(columns), tuple(rows), tuple(notes), frozenset({len(rows) - 3}))


def names(document: MemoryDocument) -> list[str]:
    """Return the names of snapshots: the ranks, else the files, with the GPU where those are not unique."""
    shown = []
    for snapshot in document.snapshots:
        file = snapshot.path.rpartition("/")[2]
        shown.append(file if snapshot.rank is None else f"rank {snapshot.rank}")
    if len(set(shown)) < len(shown):
        devices = [snapshot.device for snapshot in document.snapshots]
        shown = [f"{name} GPU {device}" for name, device in zip(shown, devices, strict=True)]
    return shown


def lines_table(snapshot: SnapshotMemory) -> Table | None:
    """Return the source lines that hold most at the peak; None without stacks."""
    return source_lines(snapshot.contents, rank=snapshot.rank)


def steps_table(snapshot: SnapshotMemory) -> Table | None:
    """Return the growth over steps; None if steps are not known."""
    steps = snapshot.contents.steps[-MAX_STEPS_SHOWN:]
    if not steps:
        return None
    columns = [
        Column("step", "count"),
        Column("at its start GB", "figure", value=lambda step: gb(step.first_bytes)),
        Column("peak GB", "figure", value=lambda step: gb(step.peak_bytes)),
    ]
    return make_table(columns, steps)


def change_headline(change: SnapshotChange) -> str:
    """Return how the peak changed, and what is left."""
    of_rank = "" if change.rank is None else f"Rank {change.rank}: "
    peak = f"peak {size(change.peak.before_bytes)} → {size(change.peak.after_bytes)}"
    end = f"when written {size(change.end.before_bytes)} → {size(change.end.after_bytes)}"
    return f"{of_rank}{peak}; {end}"


_MB_COLUMNS = (
    Column("before MB", "figure", value=lambda row: f"{row.before_bytes / 1e6:,.1f}"),
    Column("after MB", "figure", value=lambda row: f"{row.after_bytes / 1e6:,.1f}"),
    Column(
        "change MB",
        "change",
        value=lambda row: f"{(row.after_bytes - row.before_bytes) / 1e6:+,.1f}",
    ),
)


def change_table(moment: MomentChange) -> Table | None:
    """Return the source lines that changed most; None if none did."""
    if not moment.lines:
        return None
    columns = [
        Column("line", "name", value=lambda line: line.line or NO_STACK),
        Column(
            "holds", value=lambda line: WORDS.memory_categories.get(line.category, line.category)
        ),
        *_MB_COLUMNS,
    ]
    return make_table(columns, moment.lines)


def category_change_table(moment: MomentChange) -> Table | None:
    """Return what changed by purpose; None if nothing did."""
    changed = [row for row in moment.categories if row.before_bytes != row.after_bytes]
    if not changed:
        return None
    columns = [
        Column("holds", value=lambda row: WORDS.memory_categories.get(row.category, row.category)),
        *_MB_COLUMNS,
    ]
    return make_table(columns, changed)
