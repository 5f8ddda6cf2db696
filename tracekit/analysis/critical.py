"""The critical path across ranks: from a step's end back to its start, a chain of work in which nothing waited.

On a rank the walk follows what held each piece of work back (``metrics.path``). In a communication it goes on with the
rank that came last: from its arrival on the transfer ran (a segment of the rank whose work waited for it), before it
everybody waited for what that rank was doing. The
parts follow each other without a gap or an overlap, so that they sum to the step to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tracekit._util.text import ranks_named
from tracekit.align.clocks import Clocks
from tracekit.analysis.links import Links
from tracekit.analysis.tables import RankTables
from tracekit.analysis.walk import KINDS, Arrivals, Pieces, Walks, walk_back
from tracekit.errors import Notice
from tracekit.metrics.causes import with_peers
from tracekit.schema import conform

if TYPE_CHECKING:
    from tracekit.compare import ScheduleComparison

SEGMENTS = pl.Schema(
    {
        "step": pl.Int64(),
        "rank": pl.Int32(),
        "kind": pl.String(),  # cell, kernel, copy, collective, message, launch, host or unknown
        "what": pl.String(),
        "label": pl.String(),
        "cause": pl.String(),  # of communication and copies: why they are exposed, where they are
        "stage": pl.Int32(),
        "peer": pl.Int32(),  # of communication: the rank that came last, where the path goes on
        "start_ns": pl.Int64(),  # on the common clock
        "end_ns": pl.Int64(),
        "idle_ns": pl.Int64(),
        "exposed_ns": pl.Int64(),
    }
)
"""The critical path, in order of time: each segment starts where the one before it ends."""
SLACK = pl.Schema(
    {"step": pl.Int64(), "rank": pl.Int32(), "path_ns": pl.Int64(), "slack_ns": pl.Int64(), "operations": pl.Int64()}
)
"""Of each rank: its time on the path; how much later it could have come to every operation of the path that others
were later for (null: to none); and how many those are."""


_JOINED = ("kernel", "copy", "host")
"""Segments of which neighbours that are alike are one."""


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """The chain of each step, with the slack of what is not on it."""

    segments: pl.DataFrame
    """In order of time; kernels of a pipeline cell are one segment."""
    pieces: pl.DataFrame
    """The same with kernels by label."""
    slack: pl.DataFrame
    notices: tuple[Notice, ...] = ()
    unknown_labels: frozenset[str] = field(default_factory=frozenset)
    """Labels with communication that no peer's trace tells about: whether the path runs through it is not known."""

    @property
    def broken(self) -> bool:
        """Whether some step's path could not be followed back to the step's start."""
        return any(note.code == "path-ends" for note in self.notices)

    def blocking_ns(self, rank: int, labels: Sequence[str], step: int | None = None) -> dict[str, int | None]:
        """Return the exposed time of each label that lies on the path, on one rank (and in one step).

        None where the path could not be followed, or no peer's trace tells the label's waiting.
        """
        on_path = self._on_path.get((rank, step), {})
        known = not self.broken and len(self.segments) > 0
        return {
            label: on_path.get(label, 0) if known and label not in self.unknown_labels else None for label in labels
        }

    @cached_property
    def _on_path(self) -> dict[tuple[int, int | None], dict[str | None, int]]:
        """Exposed time on the path by label, of each rank's steps and (step None) of the rank."""
        found: dict[tuple[int, int | None], dict[str | None, int]] = {}
        by_step = self.segments.group_by("rank", "step", "label").agg(pl.col("exposed_ns").sum())
        for rank, step, label, ns in by_step.iter_rows():
            for key in {(rank, step), (rank, None)}:
                labels = found.setdefault(key, {})
                labels[label] = labels.get(label, 0) + ns
        return found

    def because(self, parts: Sequence[RankTables], waited: pl.DataFrame) -> CriticalPath:
        """Return the path with the cause of exposure of each communication and copy, where it was exposed."""
        main = {part.source.rank: _main_causes(part, waited) for part in parts}

        def with_cause(table: pl.DataFrame) -> pl.DataFrame:
            rows = table.select("rank", "label", "exposed_ns").iter_rows()
            causes = [main[rank].get(label) if ns else None for rank, label, ns in rows]
            return table.with_columns(cause=pl.Series(causes, dtype=pl.String))

        return replace(self, segments=with_cause(self.segments), pieces=with_cause(self.pieces))

    def totals(self) -> dict[str, dict[str, int]]:
        """Return the path's time by label, rank, stage, kind and cause; each sums to the path.

        Work that has no label, stage or cause counts under its kind.
        """
        sums = {}
        for by in ("label", "rank", "stage", "kind", "cause"):
            key = pl.coalesce(pl.col(by).cast(pl.String), "kind")
            rows = self.pieces.group_by(key.alias("key")).agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
            sums[f"by_{by}"] = dict(rows.sort("ns", "key", descending=[True, False]).iter_rows())
        return sums

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        columns = ("step", "rank", "kind", "what", "label", "cause", "stage", "peer", "start_ns", "end_ns")
        spans = self.segments.group_by("step", maintain_order=True).agg(
            pl.col("start_ns").min(), pl.col("end_ns").max()
        )
        return {
            "critical_path": self.segments.select(columns).to_dicts(),
            "critical_path_ns": {
                "total": int((spans["end_ns"] - spans["start_ns"]).sum()),
                **self.totals(),
                "slack": self.slack.to_dicts(),
            },
        }


def _main_causes(part: RankTables, waited: pl.DataFrame) -> dict[str, str]:
    """Return the largest cause of each label's exposed time on one rank, waiting for peers left out.

    On the path nobody waits for a peer: it goes on with the one who came last.
    """
    operations = waited.filter(pl.col("rank") == part.source.rank)
    exposed = with_peers(part.window.exposed, operations).filter(pl.col("cause") != "peer_late")
    return dict(exposed.sort("ns").group_by("label").agg(pl.col("cause").last()).iter_rows())


def in_cells(path: CriticalPath, compared: ScheduleComparison) -> CriticalPath:
    """Return the path with each rank's stage, and with pipeline cells in place of the kernels inside them."""
    cells = compared.cells
    stages = {rank: at for comparison in compared.all for at, rank in enumerate(comparison.pipeline.ranks)}
    place = pl.col("rank").replace_strict(stages, default=None, return_dtype=pl.Int32)
    pieces = path.pieces.with_columns(stage=place)
    if cells.is_empty() or pieces.is_empty():
        return replace(path, segments=pieces, pieces=pieces)
    return replace(path, segments=_joined(pieces, cells), pieces=pieces)


def _joined(segments: pl.DataFrame, cells: pl.DataFrame) -> pl.DataFrame:
    """Return the segments with neighbouring kernels and copies of one cell joined; a cell has what begins in it."""
    name = pl.format("{}{}{}", "stage", pl.col("op").cast(pl.String), "microbatch")
    named = cells.filter(pl.col("stage").is_not_null() & pl.col("microbatch").is_not_null()).select(
        pl.col("rank").cast(pl.Int32), "step", "start_ns", cell=name, until="end_ns"
    )
    placed = (
        segments.with_row_index("row")
        .with_columns(at=(pl.col("start_ns") + pl.col("end_ns")) // 2)
        .sort("at")
        .join_asof(
            named.rename({"start_ns": "at"}).sort("at"), on="at", by=["rank", "step"], strategy="backward",
            check_sortedness=False,
        )
        .sort("row")
        .with_columns(cell=pl.when((pl.col("at") < pl.col("until")) & pl.col("kind").is_in(["kernel", "copy"]))
                      .then("cell"))
    )  # fmt: skip
    same = pl.struct("rank", "cell") == pl.struct("rank", "cell").shift(1)
    joins = (same & pl.col("cell").is_not_null()).fill_null(False)
    longest = pl.col("end_ns") - pl.col("start_ns")
    cell = pl.col("cell").is_not_null()
    return (
        placed.with_columns(run=(~joins).cum_sum())
        .group_by("run", maintain_order=True)
        .agg(
            pl.col("step", "rank", "cause", "stage", "peer").first(),
            pl.when(cell).then(pl.lit("cell")).otherwise("kind").first().alias("kind"),
            pl.coalesce("cell", "what").first().alias("what"),
            pl.col("label").sort_by(longest).last(),
            pl.col("start_ns").first(),
            pl.col("end_ns").last(),
            pl.col("idle_ns", "exposed_ns").sum(),
        )
        .select(pl.col(c).cast(t) for c, t in SEGMENTS.items())
    )


def critical_path(
    parts: Sequence[RankTables], operations: pl.DataFrame, members: pl.DataFrame, clocks: Clocks
) -> CriticalPath:
    """Return the path of every step; *operations* and *members* are all ranks' communication and how it matched."""
    segments, slack, broken = SEGMENTS.to_frame(), SLACK.to_frame(), None
    links = Links.of(parts, operations, clocks)
    if links is not None:
        pieces, walks = walk_back(links, Arrivals.of(links, members, clocks), clocks)
        segments, slack, broken = _segments(pieces, walks), _slack(pieces, walks), _broken(pieces, walks)
    silent = operations.filter(~pl.int_range(pl.len()).is_in(members["row"].unique().implode()))
    unknown = frozenset(silent["label"].unique().to_list())
    blind = [part.source.rank for part in parts if not part.launches_known]
    return CriticalPath(segments, segments, slack, tuple(_notices(broken, unknown, blind)), unknown)


def _segments(pieces: Pieces, walks: Walks) -> pl.DataFrame:
    """Return the segments in order of time; neighbours that are alike are one."""
    if not len(walks.step):
        return SEGMENTS.to_frame()
    order = np.lexsort((-np.arange(len(walks.step)), walks.step))  # each walk went back in time
    at, step, kind = walks.piece[order], walks.step[order], walks.kind[order]
    ns = (walks.end - walks.start)[order]
    place, about = pieces.place(at), pieces.about(at)
    label = about["label"].to_physical().cast(pl.Int64).fill_null(-1).to_numpy()
    joins = np.isin(kind, [KINDS.index(name) for name in _JOINED])
    joins[0] = False
    for column in (step, kind, place, label):
        joins[1:] &= column[1:] == column[:-1]
    first = np.flatnonzero(~joins)
    run = np.cumsum(~joins) - 1
    longest = np.empty(len(first), np.int64)
    by_length = np.lexsort((ns, run))
    longest[run[by_length]] = by_length  # they ascend: the last one stays
    sums = {c: np.add.reduceat(np.minimum(about[c].to_numpy(), ns), first) for c in ("idle_ns", "exposed_ns")}
    peer = walks.peer[order][first]
    peers = pl.Series([*pieces.links.ranks, None], dtype=pl.Int32)
    return conform(
        pl.DataFrame(
            {
                "step": pl.Series(pieces.links.steps, dtype=pl.Int64).gather(step[first]),
                "rank": peers.gather(place[first]),
                "kind": pl.Series(KINDS).gather(kind[first]),
                "what": about["what"].gather(longest),
                "label": about["label"].gather(first),
                "peer": peers.gather(np.where(peer >= 0, peer, len(pieces.links.ranks))),
                "start_ns": walks.start[order][first],
                "end_ns": walks.end[order][np.append(first[1:], len(order)) - 1],
                **sums,
            }
        ),
        SEGMENTS,
    )


def _slack(pieces: Pieces, walks: Walks) -> pl.DataFrame:
    """Return each rank's time on the path of each step and the least it came early to the path's operations."""
    steps, ranks = walks.early.shape
    at = walks.step * ranks + pieces.place(walks.piece)
    on = np.zeros(steps * ranks, np.int64)
    np.add.at(on, at, walks.end - walks.start)
    table = pl.DataFrame(
        {
            "step": pl.Series(pieces.links.steps, dtype=pl.Int64).gather(np.repeat(np.arange(steps), ranks)),
            "rank": pl.Series(pieces.links.ranks * steps, dtype=pl.Int32),
            "path_ns": on,
            "early": walks.early.ravel(),
            "operations": walks.operations.ravel(),
        }
    )
    early = pl.when(pl.col("operations") > 0).then("early")
    return table.with_columns(slack_ns=early).select(pl.col(c).cast(t) for c, t in SLACK.items())


def _broken(pieces: Pieces, walks: Walks) -> tuple[int | None, int, int] | None:
    """Return (step, rank, ns) of the walk that ended furthest from its step's start, where one did."""
    ends = [(step, *ended) for step, ended in zip(pieces.links.steps, walks.ended, strict=True) if ended is not None]
    return max(ends, key=lambda end: end[2], default=None)


def _notices(broken: tuple[int | None, int, int] | None, unknown: frozenset[str], blind: Sequence[int]) -> list[Notice]:
    """Return notices of where the path ended early, and of launches or ranks missing from it."""
    notices = []
    if blind:
        text = (
            f"{ranks_named(blind)}: the file has no launches, so the critical path cannot cross "
            "from the GPU to the host and follows the streams alone; record CPU activities as well"
        )
        notices.append(Notice("path-ends", text))
    if broken is not None:
        step, rank, ns = broken
        where = f" of step {step}" if step is not None else ""
        text = (
            f"the critical path{where} was followed back only to {ns / 1e6:.3f} ms after the step's start, on rank "
            f"{rank}: the trace does not say what the work there waited for; record launches and synchronisation"
        )
        notices.append(Notice("path-ends", text))
    if unknown:
        text = (
            f"the critical path stays on its rank in {', '.join(sorted(unknown))}: no peer's trace says whether it was "
            "waiting there; give all ranks"
        )
        notices.append(Notice("path-alone", text))
    return notices
