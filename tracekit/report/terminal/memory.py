"""What the allocators held, in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType

from tracekit.report.terminal.table import fitted, note
from tracekit.report.view import View


def memory(view: View, width: int) -> RenderableType | None:
    """Return each rank's peaks in GB, by phase, and what a chunk holds; None where allocations were not recorded."""
    found = view.memory
    if found is None:
        return None
    heads = ["rank", "peak", "reserved", *found.phases, *(["before", "a chunk", "chunks"] if found.pipelined else [])]
    rows = [
        [str(row.rank), row.peak, row.reserved, *row.phases]
        + ([row.base, row.chunk, row.chunks] if found.pipelined else [])
        for row in found.rows
    ]
    made = fitted(heads, rows, width, left=(), spare=("reserved", "before"))
    return Group(made, *(note(text) for text in found.notes))
