"""View of a GPU that ran out of memory: where its memory was, and what would have made the request fit."""

from __future__ import annotations

from tracekit._util.text import size
from tracekit.analysis import Analysis
from tracekit.documents.memory import MemoryRemedy, OutOfMemory
from tracekit.memory.words import remedy_words
from tracekit.report.table import Column, Table, make_table
from tracekit.report.text import gb
from tracekit.report.words import WORDS

MAX_REMEDIES_IN_TABLE = 8
"""What would have made it fit that is listed."""


def failure_of(analysis: Analysis) -> OutOfMemory | None:
    """Return the failed request of the rank that lacked most; None if none failed."""
    failures = [
        rank.contents.out_of_memory
        for rank in (() if analysis.memory is None else analysis.memory.ranks)
        if rank.contents is not None and rank.contents.out_of_memory is not None
    ]
    return max(failures, key=lambda failure: failure.needed_bytes, default=None)


def account_table_of(analysis: Analysis) -> Table | None:
    """Return where the memory was when a request failed; None if none did."""
    failure = failure_of(analysis)
    return None if failure is None else account_table(failure)


def remedies_table_of(analysis: Analysis) -> Table | None:
    """Return what would have made the request fit; None if none failed."""
    failure = failure_of(analysis)
    return None if failure is None else remedies_table(failure)


def account_table(failure: OutOfMemory) -> Table:
    """Return where the memory was when a request failed. The rows sum to the total."""
    rows: list[tuple[object, ...]] = [
        (WORDS.memory_categories[category], count)
        for category, count in failure.by_category.items()
    ]
    unusable = (
        ("freed, and still in use by a stream", failure.pending_bytes),
        ("free in pieces between blocks in use", failure.fragmented_bytes),
        ("free in whole segments", failure.cached_bytes),
        ("free in segments of other streams", failure.other_streams_bytes),
        ("free in pools of graphs", failure.private_pools_bytes),
        ("free in segments for other block sizes", failure.small_segments_bytes),
        ("other processes, and CUDA itself", failure.outside_bytes or 0),
    )
    rows += [(name, count) for name, count in unusable if count]
    if failure.device_free_bytes is not None and failure.limit_bytes is None:
        rows.append(("free on the GPU", failure.device_free_bytes))
    total_bytes = sum(count for _, count in rows if isinstance(count, int))
    rows.append(("sum", total_bytes))
    columns = (
        Column("what"),
        Column("GB", "figure"),
        Column("share", "share"),
    )
    cells = tuple((name, gb(count), count / max(1, total_bytes)) for name, count in rows)  # type: ignore[operator,arg-type]
    notes = []
    if failure.limit_bytes is not None:
        notes.append(
            f"a limit of this process, at least {size(failure.limit_bytes)}, is taken for the GPU's memory: "
            f"{size(failure.device_free_bytes or 0)} were free on the GPU"
        )
    elif failure.capacity_bytes is None:
        notes.append(
            "the snapshot does not tell the GPU's memory (`--gpu-memory GB` does): what other "
            "processes hold is not in the sum"
        )
    return Table(
        columns,
        cells,
        tuple(notes),
        totals=frozenset({len(cells) - 1}),
    )


def remedies_table(failure: OutOfMemory) -> Table | None:
    """Return what would have made the request fit; None if nothing is known."""
    if not failure.remedies:
        return None
    columns = [
        Column("what", value=lambda remedy: remedy_words(remedy).replace("`", "")),
        Column("frees at most", "figure", value=_freed),
        Column("enough", value=_enough),
    ]
    notes = []
    if failure.missing_bytes:
        notes.append(
            f"{size(failure.missing_bytes)} were missing for this request; later ones may need more"
        )
    return make_table(
        columns,
        failure.remedies[:MAX_REMEDIES_IN_TABLE],
        notes=notes,
    )


def _freed(remedy: MemoryRemedy) -> str | None:
    return None if remedy.bytes is None else size(remedy.bytes)


def _enough(remedy: MemoryRemedy) -> str:
    if remedy.is_enough is None:
        return ""
    return "yes" if remedy.is_enough else "not alone"
