"""The critical path across ranks: from a step's end back to its start, a chain of work in which nothing waited.

It is a walk over the replayed events (``walks``), each of which knows what it waited for last.
Segments follow each other without a gap or an overlap, so that they sum to the step to the
nanosecond. Of a large run it is the path over the ranks whose events are replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import polars as pl

from tracekit._util.notices import of_ranks
from tracekit._util.text import joined, ms, ranks_named
from tracekit.align.clocks import Clocks
from tracekit.documents.analysis import PathTotals, Slack
from tracekit.documents.coding import rows, table_schema
from tracekit.errors import Notice, NoticeValues
from tracekit.graph.constants import MAX_HOLE_SHARE
from tracekit.graph.event_graph import EventGraph
from tracekit.graph.loadable import GraphTables
from tracekit.graph.path_segments import SEGMENTS, describe_segments, walk_recorded_steps
from tracekit.metrics.causes import with_peers
from tracekit.pipeline.against_ideal import ScheduleComparison
from tracekit.schema import conform

SLACK = table_schema(Slack)


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """The path of every step, and the slack of each rank."""

    segments: pl.DataFrame
    """``SEGMENTS``; kernels of a pipeline cell are one segment."""
    pieces: pl.DataFrame
    """``SEGMENTS``; kernels are joined by label instead."""
    slack: pl.DataFrame
    notices: tuple[Notice, ...] = ()
    unknown_labels: frozenset[str] = field(default_factory=frozenset)
    """Labels with communication that has no peer's trace: it is unknown whether the path runs
    through it."""
    ranks_left_out: frozenset[int] = frozenset()
    """Ranks whose events are not replayed: what lies on a path of all ranks is not known of them."""

    @property
    def broken(self) -> bool:
        """Whether some step's path could not be followed back to the step's start."""
        return any(notice.code == "path-ends" for notice in self.notices)

    @cached_property
    def _work(self) -> pl.DataFrame:
        """Segments of the path without transfers, which belong to all members alike.

        With their time ``ns``.
        """
        return self.pieces.filter(~pl.col("kind").is_in(["collective", "message"])).with_columns(
            ns=pl.col("end_ns") - pl.col("start_ns")
        )

    @cached_property
    def uncertain_ns(self) -> int:
        """Work on the path that may lie on another rank, because clocks do not tell who arrived last."""
        return int(self._work.filter("uncertain")["ns"].sum())

    @cached_property
    def candidates(self) -> list[int]:
        """Ranks that may have the most work on the path: more than one if clocks leave it open which has."""
        by_rank = (
            self._work.group_by("rank")
            .agg(pl.col("ns").sum())
            .sort("ns", "rank", descending=[True, False])
        )
        if not self.uncertain_ns:
            return by_rank["rank"].head(1).to_list()
        least_ns = int(by_rank["ns"].to_numpy().max(initial=0)) - 2 * self.uncertain_ns
        return sorted(by_rank.filter(pl.col("ns") >= least_ns)["rank"].to_list())

    def blocking_ns(
        self, rank: int, labels: Sequence[str], step: int | None = None
    ) -> dict[str, int | None]:
        """Return the exposed time of each label that lies on the path, on one rank (and in one step).

        None where the path could not be followed, of a rank that is not replayed, or where the label's
        waiting is unknown without a peer's trace.
        """
        on_path = self._exposed_on_path.get((rank, step), {})
        is_replayed = rank not in self.ranks_left_out
        is_path_known = not self.broken and len(self.segments) > 0 and is_replayed
        blocking_ns: dict[str, int | None] = {}
        for label in labels:
            is_known = is_path_known and label not in self.unknown_labels
            blocking_ns[label] = on_path.get(label, 0) if is_known else None
        return blocking_ns

    @cached_property
    def _exposed_on_path(self) -> dict[tuple[int, int | None], dict[str | None, int]]:
        """Exposed time on the path by label, for each (rank, step) and for the whole rank (step None)."""
        exposed: dict[tuple[int, int | None], dict[str | None, int]] = {}
        by_step = self.segments.group_by("rank", "step", "label").agg(pl.col("exposed_ns").sum())
        for rank, step, label, ns in by_step.iter_rows():
            for key in {(rank, step), (rank, None)}:
                by_label = exposed.setdefault(key, {})
                by_label[label] = by_label.get(label, 0) + ns
        return exposed

    def because(self, exposed: Mapping[int, pl.DataFrame], waited: pl.DataFrame) -> CriticalPath:
        """Return the path with the cause of exposure of each communication and copy, where it was exposed.

        Args:
            exposed: Exposed time by cause of each rank (``metrics.causes.PIECES``).
            waited: Operations of all ranks with their waits.

        """
        # Waiting for peers is left out: on the path no rank waits for a peer, it continues with the
        # one that arrived last.
        by_time = (
            with_peers(exposed, waited)
            .filter(pl.col("cause") != "peer_late")
            .sort("ns", maintain_order=True)
        )
        main_causes = (
            by_time.group_by("rank", "label").agg(pl.col("cause").last()).cast({pl.Enum: pl.String})
        )

        def with_cause(table: pl.DataFrame) -> pl.DataFrame:
            named = table.drop("cause").join(
                main_causes, on=["rank", "label"], how="left", maintain_order="left"
            )
            is_exposed = pl.col("exposed_ns") > 0
            return named.with_columns(cause=pl.when(is_exposed).then("cause")).select(table.columns)

        return replace(self, segments=with_cause(self.segments), pieces=with_cause(self.pieces))

    def to_document(self) -> PathTotals:
        """Return the ``critical_path_ns`` of the document."""
        steps = self.segments.group_by("step").agg(
            ns=pl.col("end_ns").max() - pl.col("start_ns").min()
        )
        return PathTotals(
            total=int(steps["ns"].sum()),
            **self.totals(),
            slack=rows(self.slack, Slack),
            uncertain=self.uncertain_ns,
            candidates=self.candidates,
        )

    def totals(self) -> dict[str, dict[str, int]]:
        """Return the path's time by label, rank, stage, kind and cause; each sums to the path.

        Work that has no label, stage or cause counts under its kind.
        """
        totals = {}
        for column in ("label", "rank", "stage", "kind", "cause"):
            key = pl.coalesce(pl.col(column).cast(pl.String), "kind")
            rows = self.pieces.group_by(key.alias("key")).agg(
                ns=(pl.col("end_ns") - pl.col("start_ns")).sum()
            )
            totals[f"by_{column}"] = dict(
                rows.sort("ns", "key", descending=[True, False]).iter_rows()
            )
        return totals


def join_cells(path: CriticalPath, compared: ScheduleComparison) -> CriticalPath:
    """Return the path with each rank's stage, and with pipeline cells in place of the kernels inside them."""
    stage_of_rank: dict[int, int] = {}
    for comparison in compared.all:
        for stage, rank in enumerate(comparison.pipeline.ranks):
            stage_of_rank[rank] = stage
    stages = pl.col("rank").replace_strict(stage_of_rank, default=None, return_dtype=pl.Int32)
    pieces = path.pieces.with_columns(stage=stages)
    return replace(path, segments=_join_by_cell(pieces, compared.cells), pieces=pieces)


def _join_by_cell(segments: pl.DataFrame, cells: pl.DataFrame) -> pl.DataFrame:
    """Return the segments with neighbouring kernels and copies of one cell joined into one segment."""
    cells = cells.filter(pl.col("stage").is_not_null() & pl.col("microbatch").is_not_null()).select(
        pl.col("rank").cast(pl.Int32),
        "step",
        middle_ns="start_ns",
        cell_end_ns="end_ns",
        cell=pl.format("{}{}{}", "stage", pl.col("op").cast(pl.String), "microbatch"),
    )
    # The cell of a kernel or copy is the last one that started before the segment's middle, if it
    # had not ended then.
    is_inside = (pl.col("middle_ns") < pl.col("cell_end_ns")) & pl.col("kind").is_in(
        ["kernel", "copy"]
    )
    with_cells = (
        segments.with_row_index("row")
        .with_columns(middle_ns=(pl.col("start_ns") + pl.col("end_ns")) // 2)
        .sort("middle_ns")
        .join_asof(
            cells.sort("middle_ns"), on="middle_ns", by=["rank", "step"], check_sortedness=False
        )
        .sort("row")
        .with_columns(cell=pl.when(is_inside).then("cell"))
    )
    # Neighbours of the same rank and cell get the same number, and are summed to one segment.
    same_cell = pl.struct("rank", "cell") == pl.struct("rank", "cell").shift(1)
    joins = (same_cell & pl.col("cell").is_not_null()).fill_null(False)
    has_cell = pl.col("cell").is_not_null()
    return conform(
        with_cells.with_columns(joined=(~joins).cum_sum())
        .group_by("joined", maintain_order=True)
        .agg(
            pl.col("step", "rank", "cause", "stage", "peer").first(),
            pl.when(has_cell).then(pl.lit("cell")).otherwise("kind").first().alias("kind"),
            pl.coalesce("cell", "what").first().alias("what"),
            pl.col("chain", "launched").first(),
            pl.col("label").sort_by(pl.col("end_ns") - pl.col("start_ns")).last(),
            pl.col("start_ns").first(),
            pl.col("end_ns").last(),
            pl.col("idle_ns", "exposed_ns").sum(),
            pl.col("uncertain").any(),
        ),
        SEGMENTS,
    )


def critical_path(
    graph: EventGraph | None,
    parts: Sequence[GraphTables],
    operations: pl.DataFrame,
    members: pl.DataFrame,
    clocks: Clocks,
    *,
    exposed: Mapping[int, pl.DataFrame],
) -> CriticalPath:
    """Return the critical path of every step.

    Args:
        graph: The events of all ranks, or of those replayed; None if no rank has events.
        parts: Tables of all ranks.
        operations: Operations of all ranks, in order of rank. Those that only a rank with a trace
            lacks have a ``hole`` (``metrics.operations.add_waits``), if it has that column.
        members: Matched operations with their waits (``align.waits.with_waits``), whose ``row`` is a
            row of *operations*.
        clocks: Clock offsets of the ranks.
        exposed: Exposed time by cause of each rank (``metrics.causes.PIECES``).

    """
    if graph is None:
        return CriticalPath(SEGMENTS.to_frame(), SEGMENTS.to_frame(), SLACK.to_frame())
    walk = walk_recorded_steps(graph, members, clocks)
    segments = describe_segments(graph, walk, exposed, clocks)
    unmatched = operations.filter(~pl.int_range(pl.len()).is_in(members["row"].unique().implode()))
    unknown_labels = labels_with_unknown_path(
        clocks.align(unmatched, "start_ns", "end_ns"), segments
    )
    without_launches = [part.source.rank for part in parts if not part.launches_known]
    all_recorded = len(parts) >= max((part.source.world_size or 0 for part in parts), default=0)
    notices = tuple(
        _notices(_longest_stop(walk), unknown_labels, without_launches, all_recorded=all_recorded)
    )
    slack = _measure_slack(graph, walk)
    return _with_doubts(
        CriticalPath(segments, segments, slack, notices, unknown_labels, graph.ranks_left_out)
    )


def _longest_stop(walk: pl.DataFrame) -> tuple[int | None, int, int] | None:
    """Return step, rank and remaining time of the walk that ended furthest from its step's start; None if none did."""
    stops = walk.filter(pl.col("kind") == "nothing").select(
        "step", "rank", ns=pl.col("end_ns") - pl.col("start_ns")
    )
    return None if stops.is_empty() else stops.sort("ns").row(-1)


def _measure_slack(graph: EventGraph, walk: pl.DataFrame) -> pl.DataFrame:
    """Return ``SLACK``: a row for every step and rank."""
    key = ["step", "rank"]
    path_ns = walk.group_by(key).agg(path_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    margins = walk.drop_nulls("margin_ns").group_by(key)
    slack = margins.agg(slack_ns=pl.col("margin_ns").min(), operations=pl.len().cast(pl.Int64))
    steps = pl.DataFrame({"step": pl.Series(graph.steps, dtype=pl.Int64)})
    ranks = pl.DataFrame({"rank": pl.Series(graph.ranks, dtype=pl.Int32)})
    table = steps.join(ranks, how="cross", maintain_order="left_right")
    for measured in (path_ns, slack):
        table = table.join(measured, on=key, how="left", nulls_equal=True, maintain_order="left")
    return conform(table.with_columns(pl.col("path_ns", "operations").fill_null(0)), SLACK)


def labels_with_unknown_path(unmatched: pl.DataFrame, segments: pl.DataFrame) -> frozenset[str]:
    """Return the labels of which it is unknown whether the path runs through them.

    These are labels of operations without a peer's trace. Of operations that a peer's trace merely
    lacks, the time that the path runs through them must be more than ``MAX_HOLE_SHARE`` of the
    path.

    Args:
        unmatched: Operations without a match, on the common clock.
        segments: Segments of the path.

    """
    has_hole = pl.col("hole") if "hole" in unmatched.columns else pl.lit(False)
    without_trace = unmatched.filter(~has_hole)["label"].cast(pl.String).unique().to_list()
    holes = unmatched.filter(has_hole).select(
        "rank", pl.col("label").cast(pl.String), "start_ns", "end_ns"
    )
    overlap_ns = pl.min_horizontal("end_ns", "end_ns_of_hole") - pl.max_horizontal(
        "start_ns", "start_ns_of_hole"
    )
    on_path = (
        segments.select("rank", pl.col("label").cast(pl.String), "start_ns", "end_ns")
        .join(holes, on=["rank", "label"], suffix="_of_hole")
        .group_by("label")
        .agg(ns=overlap_ns.clip(0).sum())
    )
    path_ns = int((segments["end_ns"] - segments["start_ns"]).sum())
    in_holes = on_path.filter(pl.col("ns") > MAX_HOLE_SHARE * path_ns)["label"].to_list()
    return frozenset((*without_trace, *in_holes))


def _with_doubts(path: CriticalPath) -> CriticalPath:
    """Return the path with a notice if clocks leave open which rank it mostly runs along."""
    if len(path.candidates) < 2:
        return path
    uncertain = Notice(
        "path-uncertain",
        (
            f"clocks do not tell which of {ranks_named(tuple(path.candidates))} "
            "has the most work on the critical path: for "
            f"{ms(int(path.uncertain_ns), 3)} of it another rank may have arrived "
            "last"
        ),
        ranks=tuple(path.candidates),
        values={"uncertain_ns": int(path.uncertain_ns)},
    )
    return replace(path, notices=(*path.notices, uncertain))


def _notices(
    longest_stop: tuple[int | None, int, int] | None,
    unknown_labels: frozenset[str],
    without_launches: Sequence[int],
    *,
    all_recorded: bool,
) -> list[Notice]:
    """Return notices about walks that stopped early, missing launches and missing peers.

    Args:
        longest_stop: Step, rank and remaining nanoseconds of the walk that stopped furthest from
            its step's start.
        unknown_labels: Labels with communication that has no peer's trace.
        without_launches: Ranks whose file has no launches.
        all_recorded: Whether the traces of all ranks were given.

    """
    notices = []
    if without_launches:
        notices.append(
            Notice(
                "path-ends",
                (
                    f"{of_ranks(without_launches)}the file has no launches, so the critical path cannot "
                    "cross from the GPU to the host and follows the streams alone; record CPU activities as "
                    "well"
                ),
                ranks=tuple(without_launches),
                values={"case": "no_launches"},
            )
        )
    if longest_stop is not None:
        step, rank, ns = longest_stop
        values: NoticeValues = {"case": "stopped", "step": step, "remaining_ns": int(ns)}
        of_step = "" if step is None else f" of step {step}"
        message = (
            f"the critical path{of_step} was followed back only to {ms(int(ns), 3)} after the step's start, on "
            f"rank {rank}: the trace does not say what the work there waited for; record launches and "
            "synchronisation"
        )
        notices.append(Notice("path-ends", message, ranks=(int(rank),), values=values))
    if unknown_labels:
        case = "peers_missing"
        why = "no peer's trace says whether it was waiting there; give all ranks"
        if all_recorded:
            case = "no_counterpart"
            why = "some of it has no counterpart in the traces of the peers; record all ranks over the same time"
        labels = tuple(sorted(unknown_labels))
        message = f"the critical path stays on its rank in {joined(labels)}: {why}"
        notices.append(Notice("path-alone", message, labels=labels, values={"case": case}))
    return notices
