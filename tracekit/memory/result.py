"""Memory snapshots as people get them: they print themselves, also in a notebook."""

from __future__ import annotations

from tracekit._util.text import counted, size
from tracekit.memory.snapshots import SnapshotDiff, SnapshotReport
from tracekit.memory.terminal import render, render_diff
from tracekit.report.notebook import NOTEBOOK_WIDTH, screen_html


class MemoryResult(SnapshotReport):
    """What fills the GPUs of a run. ``to_dict`` is its JSON; a notebook shows it.

    >>> from tracekit import memory
    >>> memory("sample_traces/memory-snapshot", ranks=[0])
    <Memory: 1 snapshot, peak 587.9 MB>
    """

    def _repr_html_(self) -> str:
        return screen_html(render(self, NOTEBOOK_WIDTH))

    def __repr__(self) -> str:
        snapshots = counted(len(self.snapshots), "snapshot")
        return f"<Memory: {snapshots}, peak {size(self.peak_bytes)}>"


class MemoryDiffResult(SnapshotDiff):
    """Two memory snapshots of each rank, compared. ``to_dict`` is its JSON; a notebook shows it.

    >>> from tracekit import diff_memory
    >>> diff_memory("sample_traces/memory-snapshot", "sample_traces/memory-snapshot")
    <MemoryDiff: 4 snapshots compared>
    """

    def _repr_html_(self) -> str:
        return screen_html(render_diff(self, NOTEBOOK_WIDTH))

    def __repr__(self) -> str:
        return f"<MemoryDiff: {counted(len(self.changes), 'snapshot')} compared>"
