"""The critical path across ranks: from a step's end back to its start, a chain of work in which nothing waited.

On a rank the walk follows what held each piece of work back (``metrics.path``). In a communication it goes on with the
rank that came last: from its arrival on the transfer ran (a segment of the rank whose work waited for it), before it
everybody waited for what that rank was doing. The
parts follow each other without a gap or an overlap, so that they sum to the step to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tracekit._util.text import listing
from tracekit.align.clocks import Clocks
from tracekit.analysis.tables import RankTables
from tracekit.errors import Notice
from tracekit.intervals import Longs
from tracekit.metrics.causes import with_peers
from tracekit.metrics.path import NODE_KINDS

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
        segments = self.segments.filter(pl.col("rank") == rank)
        if step is not None:
            segments = segments.filter(pl.col("step").eq_missing(step))
        on_path = dict(segments.group_by("label").agg(pl.col("exposed_ns").sum()).iter_rows())
        known = not self.broken and len(self.segments) > 0
        return {
            label: on_path.get(label, 0) if known and label not in self.unknown_labels else None for label in labels
        }

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
    ranks = {part.source.rank: _Nodes.of(part, clocks) for part in parts if len(part.path)}
    arrivals = _Arrivals.of(members, operations, clocks)
    silent = operations.filter(~pl.int_range(pl.len()).is_in(members["row"].unique().to_list()))
    walks = [_walk(step, ends, ranks, arrivals) for step, ends in _steps(ranks).items()]
    segments = pl.concat([walk.table() for walk in walks]) if walks else SEGMENTS.to_frame()
    slack = pl.concat([walk.slack(sorted(ranks)) for walk in walks]) if walks else SLACK.to_frame()
    unknown = frozenset(silent["label"].unique().to_list())
    blind = [part.source.rank for part in parts if not part.launches_known]
    return CriticalPath(segments, segments, slack, tuple(_notices(walks, unknown, blind)), unknown)


@dataclass(frozen=True, eq=False)
class _Nodes:
    """One rank's pieces, on the common clock."""

    rank: int
    table: pl.DataFrame
    kind: Longs
    start: Longs
    end: Longs
    before: Longs
    step: list[int | None]
    row: Mapping[int, int]
    """Of a communication's event: its piece."""
    first: Mapping[int | None, int]
    """When each step's GPU work began."""

    @classmethod
    def of(cls, part: RankTables, clocks: Clocks) -> _Nodes:
        rank = pl.lit(part.source.rank, pl.Int32)
        ever = part.path["start_ns"] < 0
        moved = clocks.align(part.path.with_columns(rank=rank), "start_ns", "end_ns")
        start = np.where(ever.to_numpy(), part.path["start_ns"].to_numpy(), moved["start_ns"].to_numpy())
        steps = clocks.align(part.steps.select("step", "start_ns").with_columns(rank=rank), "start_ns")
        numbers = part.steps["step"].to_list()
        table = part.path
        known = table.with_row_index("row").filter(pl.col("id").is_not_null())
        return cls(
            part.source.rank,
            table,
            table["kind"].to_physical().to_numpy().astype(np.int64),
            start,
            moved["end_ns"].to_numpy(),
            table["before"].to_numpy(),
            [numbers[p] if p < len(numbers) else None for p in table["part"].to_list()],
            dict(zip(known["id"].to_list(), known["row"].to_list(), strict=True)),
            dict(zip(steps["step"].to_list(), steps["start_ns"].to_list(), strict=True)),
        )


@dataclass(frozen=True, eq=False)
class _Arrivals:
    """Who came last to each operation, and when; when each of the others came."""

    last: Mapping[tuple[int, int], tuple[int, int, int]]
    """(rank, event) to (rank, event, aligned start) of the last to come."""
    start: Mapping[tuple[int, int], int]
    message: frozenset[tuple[int, int]]

    @classmethod
    def of(cls, members: pl.DataFrame, operations: pl.DataFrame, clocks: Clocks) -> _Arrivals:
        if members.is_empty():
            return cls({}, {}, frozenset())
        moved = clocks.align(members.select("match", "rank", "id", "start_ns", "sends"), "start_ns")
        latest = moved.sort("start_ns", "rank").group_by("match", maintain_order=True).last()
        named = latest.select("match", last_rank="rank", last_id="id", last_ns="start_ns")
        # A kernel of several messages starts to transfer when the last of all its partners has come.
        arrivals = moved.join(named, on="match").sort("last_ns").group_by("rank", "id", maintain_order=True).last()
        keys = list(zip(arrivals["rank"].to_list(), arrivals["id"].to_list(), strict=True))
        lasts = zip(
            arrivals["last_rank"].to_list(), arrivals["last_id"].to_list(), arrivals["last_ns"].to_list(), strict=True
        )
        sent = arrivals["sends"].is_not_null().to_list()
        return cls(
            dict(zip(keys, lasts, strict=True)),
            dict(zip(keys, arrivals["start_ns"].to_list(), strict=True)),
            frozenset(key for key, message in zip(keys, sent, strict=True) if message),
        )


def _steps(ranks: Mapping[int, _Nodes]) -> dict[int | None, list[tuple[int, int, int]]]:
    """Return, for each step, where each rank's work ends: (end, rank, node)."""
    ends: dict[int | None, list[tuple[int, int, int]]] = {}
    for rank, nodes in ranks.items():
        for row in np.flatnonzero(nodes.table["last"].to_numpy()).tolist():
            ends.setdefault(nodes.step[row], []).append((int(nodes.end[row]), rank, row))
    return dict(sorted(ends.items(), key=lambda item: (item[0] is None, item[0] or 0)))


class _Walk:
    """One step's walk back, segment by segment."""

    def __init__(self, step: int | None, begin: int, end: int) -> None:
        self.step, self.begin, self.at = step, begin, end
        self.rows: list[tuple[Any, ...]] = []
        self.margins: dict[int, list[int]] = {}
        self.ended: tuple[int, int] | None = None
        """(rank, ns): where it could not go on, and how much of the step lies before."""

    def take(self, until: int, kind: str, nodes: _Nodes, row: int, peer: int | None = None) -> None:
        """Add a segment from *until* (or the step's start) to where the walk stands."""
        until = min(max(until, self.begin), self.at)
        ns = self.at - until
        if ns > 0:
            label, what, idle, exposed = nodes.table.row(row)[1:3] + nodes.table.row(row)[6:8]
            times = (until, self.at, min(idle, ns), min(exposed, ns))
            self.rows.append((self.step, nodes.rank, kind, what, label, peer, *times))
        self.at = until

    def table(self) -> pl.DataFrame:
        """Return the segments in order of time; neighbours that are alike are one."""
        columns = ("step", "rank", "kind", "what", "label", "peer", "start_ns", "end_ns", "idle_ns", "exposed_ns")
        rows = pl.DataFrame(self.rows[::-1], schema={c: SEGMENTS[c] for c in columns}, orient="row")
        alike = pl.struct("rank", "kind", "label")
        joins = (alike == alike.shift(1)) & pl.col("kind").is_in(["kernel", "copy", "host"])
        merged = (
            rows.with_columns(run=(~joins.fill_null(False)).cum_sum())
            .group_by("run", maintain_order=True)
            .agg(
                pl.col("step", "rank", "kind", "label", "peer").first(),
                pl.col("what").sort_by(pl.col("end_ns") - pl.col("start_ns")).last(),
                pl.col("start_ns").first(),
                pl.col("end_ns").last(),
                pl.col("idle_ns", "exposed_ns").sum(),
            )
        )
        empty = {"cause": pl.lit(None, pl.String), "stage": pl.lit(None, pl.Int32)}
        return merged.with_columns(**empty).select(pl.col(c).cast(t) for c, t in SEGMENTS.items())

    def slack(self, ranks: Sequence[int]) -> pl.DataFrame:
        """Return each rank's time on the path and the least it came early to the path's operations."""
        on: dict[int, int] = {}
        for row in self.rows:
            on[row[1]] = on.get(row[1], 0) + row[7] - row[6]
        rows = [
            (self.step, rank, on.get(rank, 0), min(self.margins.get(rank, []), default=None),
             len(self.margins.get(rank, [])))
            for rank in ranks
        ]  # fmt: skip
        return pl.DataFrame(rows, schema=SLACK, orient="row")


def _walk(
    step: int | None, ends: list[tuple[int, int, int]], ranks: Mapping[int, _Nodes], arrivals: _Arrivals
) -> _Walk:
    end, rank, row = max(ends, key=lambda item: (item[0], -item[1]))
    walk = _Walk(step, min(ranks[r].first[step] for _, r, _ in ends), end)
    here = {r for _, r, _ in ends}
    seen = set()  # clocks that disagree a little could send the walk in a circle: each arrival is gone to once
    while walk.at > walk.begin:
        nodes = ranks[rank]
        kind, until, peer, further = NODE_KINDS[nodes.kind[row]], int(nodes.start[row]), None, (nodes, row)
        if kind == "communication":
            event = int(nodes.table["id"][row])
            kind = "message" if (rank, event) in arrivals.message else "collective"
            last = arrivals.last.get((rank, event))
            seen.add((rank, event))
            known = last is not None and last[0] != rank and last[0] in here and last[1] in ranks[last[0]].row
            if last is not None and known and last[:2] not in seen:
                seen.add(last[:2])
                walk.margins.setdefault(rank, []).append(max(last[2] - arrivals.start[rank, event], 0))
                peer, until, further = last[0], last[2], (ranks[last[0]], ranks[last[0]].row[last[1]])
        walk.take(until, kind, nodes, row, peer)
        nodes, row = further
        rank, earlier = nodes.rank, int(nodes.before[row])
        if earlier < 0 and walk.at > walk.begin:
            walk.ended = (rank, walk.at - walk.begin)
            walk.take(walk.begin, "unknown", nodes, row)
        row = earlier
    return walk


def _notices(walks: Sequence[_Walk], unknown: frozenset[str], blind: Sequence[int]) -> list[Notice]:
    """Return notices of where the path ended early, and of launches or ranks missing from it."""
    notices = []
    if blind:
        text = (
            f"rank {listing(map(str, blind), most=8)}: the file has no launches, so the critical path cannot cross "
            "from the GPU to the host and follows the streams alone; record CPU activities as well"
        )
        notices.append(Notice("path-ends", text))
    ends = [walk for walk in walks if walk.ended is not None]
    if ends:
        worst = max(ends, key=lambda walk: walk.ended[1] if walk.ended else 0)
        rank, ns = worst.ended or (0, 0)
        where = f" of step {worst.step}" if worst.step is not None else ""
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
