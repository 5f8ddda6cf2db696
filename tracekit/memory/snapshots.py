"""Memory snapshots without a trace: what fills the GPU by purpose and source line, growth over steps, differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from tracekit._version import __version__
from tracekit.documents import memory as documents
from tracekit.documents.coding import HasDocument
from tracekit.documents.findings import Finding
from tracekit.errors import InputError, Notice
from tracekit.memory.measures import MemoryHistory, RankContents, measure_contents
from tracekit.schema import MemorySnapshot

MAX_CHANGED_LINES = 20
"""Source lines of a difference, those that changed most."""


@dataclass(frozen=True, eq=False)
class RankSnapshot:
    """One memory snapshot and what it holds."""

    path: str
    rank: int | None
    events: int
    contents: RankContents

    @classmethod
    def of(
        cls, snapshot: MemorySnapshot, rank: int | None, *, capacity_bytes: int | None = None
    ) -> RankSnapshot:
        """Measure a snapshot; *capacity_bytes* is the memory of its GPU, None if unknown."""
        contents = measure_contents(
            MemoryHistory.of_snapshot(snapshot), capacity_bytes=capacity_bytes
        )
        if contents is None:
            raise InputError(
                "holds no allocation",
                path=snapshot.path,
                hint="write it while the model is in memory",
            )
        return cls(snapshot.path, rank, len(snapshot.events), contents)


@dataclass(frozen=True, eq=False)
class SnapshotReport(HasDocument):
    """What fills the GPUs of a run, from memory snapshots alone. ``to_dict`` is its JSON."""

    snapshots: tuple[RankSnapshot, ...]
    """By rank."""
    notices: tuple[Notice, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """Largest peak of any snapshot."""
        return max(snapshot.contents.figures.peak.bytes for snapshot in self.snapshots)

    def to_document(self) -> documents.MemoryDocument:
        """Return the JSON document (``format: tracekit.memory/1``)."""
        rows = [
            documents.SnapshotMemory(
                rank=snapshot.rank,
                path=snapshot.path,
                device=snapshot.contents.device,
                events=snapshot.events,
                contents=snapshot.contents.figures,
            )
            for snapshot in self.snapshots
        ]
        return documents.MemoryDocument(
            tracekit=__version__,
            format=documents.MEMORY_FORMAT,
            peak_bytes=self.peak_bytes,
            snapshots=rows,
            findings=self.findings,
            warnings=self.notices,
        )


@dataclass(frozen=True, eq=False)
class SnapshotDiff(HasDocument):
    """Two memory snapshots of each rank, compared. ``to_dict`` is its JSON."""

    changes: tuple[documents.SnapshotChange, ...]
    notices: tuple[Notice, ...] = ()
    pairs: tuple[tuple[RankSnapshot, RankSnapshot], ...] = ()
    """The snapshots that were compared, as ``changes`` lists them."""

    def to_document(self) -> documents.MemoryDiffDocument:
        """Return the JSON document (``format: tracekit.memory-diff/1``)."""
        return documents.MemoryDiffDocument(
            tracekit=__version__,
            format=documents.MEMORY_DIFF_FORMAT,
            snapshots=list(self.changes),
            warnings=self.notices,
        )


def compare_snapshots(before: SnapshotReport, after: SnapshotReport) -> SnapshotDiff:
    """Return what changed between the snapshots of each rank.

    Single snapshots are compared whatever their ranks.
    """
    pairs = _pair_up(before.snapshots, after.snapshots)
    changes = [_snapshot_change(first, second) for first, second in pairs]
    return SnapshotDiff(tuple(changes), (*before.notices, *after.notices), tuple(pairs))


def _pair_up(
    before: Sequence[RankSnapshot], after: Sequence[RankSnapshot]
) -> list[tuple[RankSnapshot, RankSnapshot]]:
    if len(before) == len(after) == 1:
        return [(before[0], after[0])]
    by_gpu = {(snapshot.rank, snapshot.contents.device): snapshot for snapshot in after}
    pairs = []
    for first in before:
        second = by_gpu.get((first.rank, first.contents.device))
        if second is None:
            second = _only_of_rank(after, first.rank)
        if second is not None:
            pairs.append((first, second))
    if not pairs:
        raise InputError(
            "the two sides have no rank in common", hint="name snapshots of the same ranks"
        )
    return pairs


def _only_of_rank(snapshots: Sequence[RankSnapshot], rank: int | None) -> RankSnapshot | None:
    """Return the only snapshot of a rank; None if it has none, or several."""
    of_rank = [snapshot for snapshot in snapshots if snapshot.rank == rank]
    return of_rank[0] if len(of_rank) == 1 else None


def _snapshot_change(before: RankSnapshot, after: RankSnapshot) -> documents.SnapshotChange:
    first = before.contents
    second = after.contents
    reserve_before = first.figures.fragmentation
    reserve_after = second.figures.fragmentation
    return documents.SnapshotChange(
        rank=after.rank,
        before_path=before.path,
        after_path=after.path,
        peak=_moment_change(first, second, first.contents, second.contents),
        end=_moment_change(first, second, first.end_contents, second.end_contents),
        before_reserved_bytes=None if reserve_before is None else reserve_before.reserved_bytes,
        after_reserved_bytes=None if reserve_after is None else reserve_after.reserved_bytes,
    )


def _moment_change(
    first: RankContents, second: RankContents, before: pl.DataFrame, after: pl.DataFrame
) -> documents.MomentChange:
    """Return the change from one moment to another, by purpose and by source line."""
    sides = {"before": _by_line(before, first.stacks), "after": _by_line(after, second.stacks)}
    key = ["line", "category"]
    lines = sides["before"].join(
        sides["after"], on=key, how="full", coalesce=True, nulls_equal=True, suffix="_after"
    )
    lines = lines.select(
        *key,
        before_bytes=pl.col("bytes").fill_null(0),
        after_bytes=pl.col("bytes_after").fill_null(0),
        before_count=pl.col("count").fill_null(0),
        after_count=pl.col("count_after").fill_null(0),
    )
    change = (pl.col("after_bytes") - pl.col("before_bytes")).abs()
    lines = lines.sort(change, "line", "category", descending=[True, False, False])
    categories = lines.group_by("category").agg(pl.sum("before_bytes", "after_bytes"))
    categories = categories.sort(change, "category", descending=[True, False])
    changed = lines.filter(pl.col("after_bytes") != pl.col("before_bytes")).head(MAX_CHANGED_LINES)
    return documents.MomentChange(
        before_bytes=int(before["bytes"].sum()),
        after_bytes=int(after["bytes"].sum()),
        categories=[documents.CategoryChange(**row) for row in categories.iter_rows(named=True)],
        lines=[documents.LineChange(**row) for row in changed.iter_rows(named=True)],
    )


def _by_line(contents: pl.DataFrame, stacks: pl.DataFrame) -> pl.DataFrame:
    """Return bytes and count by source line and category."""
    named = contents.join(stacks.select("stack", "line"), on="stack", how="left")
    return named.group_by("line", pl.col("category").cast(pl.String)).agg(pl.sum("bytes", "count"))
