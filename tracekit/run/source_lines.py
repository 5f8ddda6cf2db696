"""Source lines of places that are shown: Python's stacks are read when a place asks for them, of its rank alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import polars as pl

from tracekit.errors import TracekitError
from tracekit.metrics.host.events import find_calls, find_frames
from tracekit.metrics.host.time_by_activity import add_lines
from tracekit.parsers.source_refs import SourceRef
from tracekit.schema import GPU_KINDS, RankEvents
from tracekit.store.files import open_single_store
from tracekit.store.sources import read_ref


@dataclass(frozen=True, eq=False)
class SourceLines:
    """Reads the stacks of ranks whose events were read without them."""

    refs: Mapping[int, SourceRef]
    """Where the events of each rank are."""
    _by_rank: dict[int, Mapping[tuple[int, int], str] | None] = field(default_factory=dict)
    """Lines that were read, by rank, and start and end of the place."""

    @classmethod
    def of(cls, refs: Mapping[int, SourceRef]) -> SourceLines:
        """Return the reader of ranks whose paths hold also after a change of the folder."""
        absolute = {}
        for rank, ref in refs.items():
            path = ref.path if ref.url is not None else str(Path(ref.path).absolute())
            absolute[rank] = msgspec.structs.replace(ref, path=path)
        return cls(absolute)

    @property
    def ranks_read(self) -> Collection[int]:
        """Ranks whose stacks were read so far."""
        return self._by_rank.keys()

    def __call__(self, rank: int, places: pl.DataFrame) -> Mapping[tuple[int, int], str] | None:
        """Return the lines of a rank's *places* (``HOST_PLACES``) by their start and end.

        Places outside any recorded function are left out; None if the file cannot be read any more.
        """
        if rank not in self._by_rank:
            self._by_rank[rank] = self._read(rank, places)
        return self._by_rank[rank]

    def _read(self, rank: int, places: pl.DataFrame) -> Mapping[tuple[int, int], str] | None:
        try:
            events = _read_with_stacks(self.refs[rank], rank).events
        except (TracekitError, OSError):
            return None
        on_gpu = events.filter(pl.col("kind").is_in(GPU_KINDS))["correlation"].drop_nulls().unique()
        calls = find_calls(events).rows
        launching = calls.filter(pl.col("correlation").is_in(on_gpu.implode()))["tid"]
        frames = find_frames(events).on_threads(launching.drop_nulls().unique().to_numpy())
        without_lines = places.with_columns(source=pl.lit(None, pl.String))
        with_lines = add_lines(without_lines, frames).drop_nulls("source")
        rows = with_lines.select("start_ns", "end_ns", "source").iter_rows()
        return {(start_ns, end_ns): line for start_ns, end_ns, line in rows}


def _read_with_stacks(ref: SourceRef, rank: int) -> RankEvents:
    """Return the events of a rank with Python's stacks."""
    if ref.reader == "store" and ref.rank is not None:
        return open_single_store(ref.path).rank(rank)
    parts = read_ref(ref, ranks=frozenset({rank}), stacks=True)
    return next(part for part in parts if part.source.rank == rank)
