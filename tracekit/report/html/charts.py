"""Data of the page's charts: the timeline of all ranks, and the schedule chart.

The timeline shows the events of all ranks on one clock, with descriptions, matches and the critical
path. Times are nanoseconds from the start of the first step on the common clock. Runs of more ranks
than ``MAX_RANKS_WITH_EVENTS`` have no single events; their timeline shows each label's merged
intervals. The schedule chart shows each pipeline and step, measured above its ideal.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
from msgspec import UNSET, UnsetType, structs

from tracekit._util.arrays import Ints
from tracekit._util.text import counted, format_ranges, percent, short_ms
from tracekit.align.clocks import Clocks
from tracekit.analysis import Analysis
from tracekit.analysis.measure import rank_timeline
from tracekit.analysis.measure.rank_timeline import RankTimeline
from tracekit.documents import page as documents
from tracekit.graph.critical_path import CriticalPath
from tracekit.intervals import union
from tracekit.metrics import label_intervals
from tracekit.pipeline.against_ideal import StepComparison
from tracekit.report.html.packed_columns import pack_columns, pack_intervals, pack_json
from tracekit.report.html.source_paths import shorten_source_paths
from tracekit.report.palette import LABEL_COLOURS
from tracekit.report.schedule.layout import ScheduleLayout, layout_pipeline
from tracekit.report.sections.stragglers import stragglers
from tracekit.report.words import WORDS
from tracekit.schema import (
    COPY_LABELS,
    EXPOSURE_CAUSES,
    GAP_CAUSES,
    LABELS,
    LATEST_NS,
    MEMORY_CURVE,
    PASSES,
    conform,
)

MAX_RANKS_ON_PAGE = 512
"""Ranks on the page of a run whose single events were not kept."""
MAX_MERGED_INTERVALS = 300_000
"""Merged intervals of all ranks on such a page, about 2 MB; of more, the nearest ones of each rank
are joined."""
MAX_STRAGGLERS_ADDED = 3
"""Ranks that others wait for which are among them in any case."""
MAX_EVENTS = 2_400_000
"""Events on the page, about 20 MB; of more, the shortest of each rank are left out."""

TIMELINE_LANES: Mapping[str, Sequence[str]] = {
    "compute": label_intervals.COMPUTE_SET,
    "experts": ["ep_dispatch", "ep_combine"],
    "pipeline": ["pp_comm"],
    "tensor": ["tp_comm"],
    "data": ["dp_comm"],
    "context": ["cp_comm"],
    "comm": ["comm", "broadcast"],
    "copies": COPY_LABELS,
}
"""Labels of each lane of a rank."""
MAX_PATH_PIECES = 200_000
"""Pieces of the critical path that the page holds, the longest."""
HOST_COLOURS = {
    "ranges": "#C3B1D6",
    "Python": "#D9C58B",
    "operators": "#8A97A3",
    "waiting calls": "#B5473C",
}
MAX_HOST_RANGES_ON_PAGE = 400_000
"""Host ranges that the page holds, the longest of each rank."""
MAX_CHOICES = 16
"""Pipelines and steps that a page holds."""
MAX_CELLS = 60_000
"""Cells of all choices together; the pipeline and step that the numbers describe is always
there."""

Moment = tuple[float, float]
"""Start and end in ms on the page's time axis."""


class PageClock:
    """Times of each rank as nanoseconds since the first step's start on the common clock.

    A run that shares the time axis of another one has that one's *origin_ns*, and its *clocks* lead
    to it.
    """

    def __init__(
        self, analysis: Analysis, *, clocks: Clocks | None = None, origin_ns: int | None = None
    ) -> None:
        self._clocks = clocks or analysis.clocks
        timed = analysis.tables["steps"].drop_nulls(["start_ns", "end_ns"])  # not in saved analyses
        steps = self._clocks.align(timed, "start_ns", "end_ns")
        first_ns = int(steps["start_ns"].to_numpy().min()) if len(steps) else 0
        self.origin_ns = first_ns if origin_ns is None else origin_ns
        self.begin_ns = first_ns - self.origin_ns
        self.end_ns = int(steps["end_ns"].to_numpy().max()) - self.origin_ns if len(steps) else 1
        times = pl.col("start_ns", "end_ns") - self.origin_ns
        self.steps = steps.with_columns(times)

    def on_page(self, rank: int, *columns: str) -> list[pl.Expr]:
        """Return columns of a rank's recorded times as times of the page."""
        return [time - self.origin_ns for time in self._clocks.moved(rank, *columns)]

    def moment(self, start_ns: int, end_ns: int) -> Moment:
        """Return when a stretch of the common clock is on the page."""
        return (start_ns - self.origin_ns) / 1e6, (end_ns - self.origin_ns) / 1e6

    def moment_on(self, rank: int, start_ns: int, end_ns: int) -> Moment:
        """Return when a stretch of a rank's own clock is on the page."""
        start_ns, end_ns = self._clocks.to_common(rank, np.array([start_ns, end_ns])).tolist()
        return self.moment(start_ns, end_ns)


def role_timelines(analysis: Analysis, clock: PageClock) -> list[documents.RoleTimeline]:
    """Return the name of each role and its data on the time axis of *clock*, the main role first.

    A run without roles is one nameless role; roles without GPU events are left out.
    """
    event_counts: dict[str, int] = {}  # of each role with GPU events
    for role in analysis.role_results.roles:
        if role.analysis.tables["timeline"].height:
            event_counts[role.name] = _count_events(role.analysis.events)
    if not event_counts:
        timeline = timeline_data(analysis, clock)
        return [documents.RoleTimeline("", timeline)] if timeline else []
    all_events = max(1, sum(event_counts.values()))
    main_ranks = tuple(result.rank for result in analysis.ranks)
    timelines = []
    for role in analysis.role_results.roles:
        if role.name not in event_counts:
            continue
        if role.name == analysis.role_results.main_role:
            shown = analysis
            own_clock = clock
        else:
            shown = role.analysis
            # Processes of one rank are on one host: its clock in the main role is its clock in all.
            clocks = analysis.clocks if role.ranks == main_ranks else role.clocks
            own_clock = PageClock(shown, clocks=clocks, origin_ns=clock.origin_ns)
        max_events = MAX_EVENTS * event_counts[role.name] // all_events
        data = timeline_data(shown, own_clock, max_events=max_events)
        if data is not None:
            timelines.append(documents.RoleTimeline(role.name, data))
    return timelines


def timeline_data(
    analysis: Analysis, clock: PageClock, *, max_events: int = MAX_EVENTS
) -> documents.Timeline | None:
    """Return the data of the timeline; None without GPU events."""
    if analysis.tables["timeline"].is_empty():
        return None
    timelines = _page_timelines(analysis)
    with_longest_events = _without_shortest(timelines, max_events)
    rank_count = len(timelines)
    shown = [_with_fewer_host_ranges(timeline, rank_count) for timeline in with_longest_events]
    descriptions, numbers = _shared_descriptions(shown)
    text_numbers = _number_texts(descriptions, shown)
    present = set(descriptions["label"].to_list())
    labels = [label for label in LABELS if label in present]
    lanes = []
    for lane, lane_labels in TIMELINE_LANES.items():
        lanes.append(documents.PageLane(lane, [label for label in lane_labels if label in present]))
    ranks = [
        _rank_data(analysis, clock, timeline, description_numbers, text_numbers)
        for timeline, description_numbers in zip(shown, numbers, strict=True)
    ]
    causes = [
        (WORDS.exposure_causes[cause], WORDS.exposure_meanings[cause]) for cause in EXPOSURE_CAUSES
    ]
    return documents.Timeline(
        origin_ns=str(clock.origin_ns),
        begin_ns=min(0, clock.begin_ns),
        end_ns=clock.end_ns,
        labels=[documents.Coloured(label, LABEL_COLOURS[label]) for label in labels],
        lanes=lanes,
        host=[documents.Coloured(name, HOST_COLOURS[name]) for name in rank_timeline.HOST_LANES],
        causes=causes,
        merged=not analysis.events,
        left_out=_left_out(analysis, timelines, shown),
        steps=_steps(clock.steps),
        descriptions=_pack_descriptions(descriptions, text_numbers),
        ranks=ranks,
        path=_path(analysis, clock),
        memory_top=_memory_top_gb(analysis),
    )


def _number_texts(descriptions: pl.DataFrame, timelines: Sequence[RankTimeline]) -> dict[str, int]:
    """Return a number for every text of the descriptions and of the host's ranges."""
    texts = [descriptions[name] for name in rank_timeline.DESCRIPTION_TEXTS]
    texts += [timeline.host["name"].cast(pl.String) for timeline in timelines]
    different = pl.concat(texts).drop_nulls().unique(maintain_order=True).to_list()
    return dict(zip(different, range(len(different)), strict=True))


def _pack_descriptions(descriptions: pl.DataFrame, text_numbers: Mapping[str, int]) -> str:
    """Pack the descriptions: every text once, and columns of the texts' numbers, -1 for none."""
    columns = {}
    for name in rank_timeline.DESCRIPTION_TEXTS:
        numbers = descriptions.select(_text_number(name, text_numbers))
        columns[name] = numbers.to_series().to_list()
    return pack_json(
        {
            "texts": [shorten_source_paths(text) for text in text_numbers],
            "columns": columns,
            "stream": descriptions["stream"].to_list(),
        }
    )


def _count_events(timelines: Iterable[RankTimeline]) -> int:
    """Return the number of events of all ranks."""
    return sum(len(timeline.events) for timeline in timelines)


def _time_of_events_ns(timelines: Iterable[RankTimeline]) -> int:
    """Return the sum of the durations of all events of all ranks."""
    total_ns = 0
    for timeline in timelines:
        total_ns += int((timeline.events["end_ns"] - timeline.events["start_ns"]).sum())
    return total_ns


def _page_timelines(analysis: Analysis) -> list[RankTimeline]:
    """Return the ranks to show: all whose events were kept, else some with each label's merged intervals as events."""
    if analysis.events:
        return list(analysis.events)
    merged = analysis.tables["timeline"].with_columns(
        pl.col("label").cast(pl.Enum(LABELS)), pl.col("pass").cast(pl.Enum(PASSES))
    )
    texts = pl.Schema(
        {**dict.fromkeys(rank_timeline.DESCRIPTION_TEXTS, pl.String()), "stream": pl.Int64()}
    )
    shown = _shown_ranks(analysis)
    max_intervals = MAX_MERGED_INTERVALS // max(1, len(shown))
    by_rank = merged.partition_by("rank", as_dict=True)
    timelines = []
    for rank in shown:
        intervals = label_intervals.timeline(
            by_rank.get((rank,), merged.clear()), max_intervals=max_intervals
        )
        of_rank = intervals.with_columns(pl.col("label", "pass").cast(pl.String))
        described = (
            of_rank.select("label", "pass")
            .unique(maintain_order=True)
            .with_row_index("description")
        )
        events = of_rank.join(
            described, on=["label", "pass"], nulls_equal=True, maintain_order="left"
        )
        timelines.append(
            RankTimeline(
                rank,
                conform(events, rank_timeline.EVENT_TIMES),
                conform(described, texts),
                host=rank_timeline.HOST_RANGES.to_frame(),
                host_count=0,
            )
        )
    return timelines


def _shown_ranks(analysis: Analysis) -> list[int]:
    """Return the ranks to show: first, last, those of the pipeline, stragglers, then those of unusual bubbles."""
    ranks = [measured.rank for measured in analysis.ranks]
    if len(ranks) <= MAX_RANKS_ON_PAGE:
        return ranks
    in_pipeline: Sequence[int] = ()
    if analysis.comparison is not None:
        in_pipeline = analysis.comparison.head.pipeline.ranks
    late = [straggler.rank for straggler in stragglers(analysis)[:MAX_STRAGGLERS_ADDED]]
    bubbles = [measured.whole.bubble_fraction or 0.0 for measured in analysis.ranks]
    distance_from_usual = np.abs(np.array(bubbles) - np.median(bubbles))
    unusual_first = np.array(ranks)[np.argsort(-distance_from_usual, kind="stable")].tolist()
    wanted = dict.fromkeys([ranks[0], ranks[-1], *in_pipeline, *late, *unusual_first])
    analysed = set(ranks)
    return sorted([rank for rank in wanted if rank in analysed][:MAX_RANKS_ON_PAGE])


def _without_shortest(timelines: Sequence[RankTimeline], max_events: int) -> Sequence[RankTimeline]:
    """Return the timelines with the longest events of each rank, *max_events* in all."""
    total = _count_events(timelines)
    if total <= max_events:
        return timelines
    duration = pl.col("end_ns") - pl.col("start_ns")
    shortened = []
    for timeline in timelines:
        count = len(timeline.events) * max_events // total
        longest = timeline.events.top_k(count, by=duration).sort("start_ns")
        shortened.append(replace(timeline, events=longest))
    return shortened


def _with_fewer_host_ranges(timeline: RankTimeline, rank_count: int) -> RankTimeline:
    """Return the timeline with a rank's share of the host ranges that a page holds."""
    max_ranges = MAX_HOST_RANGES_ON_PAGE // rank_count
    if len(timeline.host) <= max_ranges:
        return timeline
    longest = timeline.host.top_k(max_ranges, by=pl.col("end_ns") - pl.col("start_ns"))
    return replace(timeline, host=longest.sort("start_ns", -pl.col("end_ns")))


def _left_out(
    analysis: Analysis, timelines: Sequence[RankTimeline], shown: Sequence[RankTimeline]
) -> list[str]:
    """Return sentences about what the timeline does not show."""
    sentences = []
    ranks = len(analysis.ranks)
    if not analysis.events:
        of_ranks = f" of {len(shown)} of {ranks} ranks" if len(shown) < ranks else ""
        sentences.append(
            f"This file holds merged intervals by label{of_ranks}, no single kernels;"
            " `tracekit analyze … --ranks 0-7 -o page.html` writes those of some ranks."
        )
    cut = _count_events(timelines) - _count_events(shown)
    if cut:
        cut_share = 1 - _time_of_events_ns(shown) / max(1, _time_of_events_ns(timelines))
        sentences.append(
            f"{counted(cut, 'event')}, the shortest of each rank, are left out to keep the file small:"
            f" {percent(cut_share)} of the time of all events."
        )
    cut_hosts = [timeline for timeline in shown if timeline.host_count > len(timeline.host)]
    if cut_hosts:
        hidden = sum(timeline.host_count - len(timeline.host) for timeline in cut_hosts)
        longest_ns = max(_shortest_ns(timeline.host) for timeline in cut_hosts)
        sentences.append(
            f"{counted(hidden, 'host range')}, the shortest of each rank, are left out: operators, ranges"
            f" and calls of at most {short_ms(max(longest_ns, 1_000))}."
        )
    return sentences


def _shortest_ns(ranges: pl.DataFrame) -> int:
    """Return the duration of the shortest range."""
    return int((ranges["end_ns"] - ranges["start_ns"]).to_numpy().min(initial=LATEST_NS))


def _shared_descriptions(timelines: Sequence[RankTimeline]) -> tuple[pl.DataFrame, list[Ints]]:
    """Return the descriptions of all ranks once each, and for each rank the numbers of its own."""
    columns = [*rank_timeline.DESCRIPTION_TEXTS, "stream"]
    everyone = pl.concat([t.descriptions.select(columns) for t in timelines])
    shared = everyone.unique(maintain_order=True).with_row_index("number")
    numbers = everyone.join(
        shared, on=columns, how="left", nulls_equal=True, maintain_order="left"
    )["number"].to_numpy()
    ends = np.cumsum([len(timeline.descriptions) for timeline in timelines])
    return shared, np.split(numbers.astype(np.int64), ends[:-1])


def _rank_data(
    analysis: Analysis,
    clock: PageClock,
    timeline: RankTimeline,
    description_numbers: Ints,
    text_numbers: Mapping[str, int],
) -> documents.RankTrack:
    """Return the data of one rank.

    Args:
        analysis: The run.
        clock: Time axis of the page.
        timeline: The rank's events and host ranges.
        description_numbers: Number of each of its descriptions among those of all ranks.
        text_numbers: Number of each text on the page.

    """
    rank = timeline.rank
    times = clock.on_page(rank, "start_ns", "end_ns")
    # The delay from launch to start, in steps of 100 ns and counted from 1; 0 if the launch is
    # unknown.
    delay = (
        ((pl.col("start_ns") - pl.col("launch_ns")).clip(0) // 100 + 1)
        .fill_null(0)
        .clip(None, 1 << 30)
    )
    description = pl.lit(pl.Series(description_numbers)).gather("description")
    lanes = timeline.host.select(
        *times, "thread", lane=pl.col("lane").to_physical(), name=_text_number("name", text_numbers)
    )
    return documents.RankTrack(
        rank,
        pack_intervals(timeline.events.select(*times, description=description, delay=delay)),
        _phases(analysis, clock, rank),
        _steps(clock.steps.filter(rank=rank)),
        **_operations(analysis, timeline),
        host=pack_intervals(lanes) if len(lanes) else UNSET,
        memory=_memory_line(analysis, clock, rank),
    )


def _operations(analysis: Analysis, timeline: RankTimeline) -> dict[str, Any]:
    """Return the rank's exposed time by cause, and its communication: event, hidden, waiting, matches across ranks."""
    rows = timeline.events.select("id").drop_nulls().with_row_index("event")
    if rows.is_empty():
        return {"label_causes": _exposure_causes(analysis, timeline.rank)}
    causes = timeline.causes.join(rows, on="id").sort("event")
    causes = causes.select("event", cause=pl.col("cause").to_physical(), time=pl.col("ns") // 100)
    exposed = pack_columns(causes, differences=["event"])
    of_rank = pl.col("rank") == timeline.rank
    operations = analysis.tables["operations"].filter(of_rank).join(rows, on="id").sort("event")
    matched = analysis.tables["matched"].filter(of_rank).join(rows, on="id").sort("event", "match")
    if operations.is_empty():
        return {"causes": exposed}
    operations = operations.select(
        "event",
        hidden=pl.col("hidden_ns") // 100,
        wait=(pl.col("wait_ns") // 100 + 1).fill_null(0),  # 0: unknown
        size=(pl.col("bytes") // 1024 + 1).fill_null(0).clip(None, 1 << 30),  # in KiB
    )
    return {
        "causes": exposed,
        "operations": pack_columns(operations, differences=["event"]),
        "matches": pack_columns(matched.select("event", "match"), differences=["event", "match"]),
    }


def _exposure_causes(analysis: Analysis, rank: int) -> dict[str, dict[int, int]]:
    """Return the exposed time in ns of each label of a rank by the number of its cause."""
    cause_order = list(EXPOSURE_CAUSES)
    by_label: dict[str, dict[int, int]] = {}
    for label, causes in analysis.rank(rank).whole.because_ns.items():
        for cause, ns in causes.items():
            if ns:
                by_label.setdefault(label, {})[cause_order.index(cause)] = int(ns)
    return by_label


def _steps(steps: pl.DataFrame) -> list[documents.PageStepTime]:
    """Return number, start and end of each step: from its first start to its last end on the ranks of the table."""
    by_step = (
        steps.group_by("step")
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        .sort("start_ns")
    )
    return [
        documents.PageStepTime(step, start_ns / 1e6, end_ns / 1e6)
        for step, start_ns, end_ns in by_step.rows()
    ]


def _phases(
    analysis: Analysis, clock: PageClock, rank: int
) -> list[tuple[int | None, str, float, float]]:
    """Return step, name, start and end in ms of the pipeline's phases on a rank.

    None in a run without a pipeline.
    """
    if not analysis.total.pipeline:
        return []
    end_ns = pl.col("start_ns") + pl.col("span_ns").cum_sum().over("step")
    phases = analysis.tables["phases"].filter(rank=rank)
    starts = clock.steps.filter(rank=rank).select("step", "start_ns")
    placed = phases.join(starts, on="step", nulls_equal=True, maintain_order="left")
    return placed.select(
        "step", "phase", (end_ns - pl.col("span_ns")) / 1e6, end_ns.alias("until_ns") / 1e6
    ).rows()


def _path(analysis: Analysis, clock: PageClock) -> documents.PathPieces | None:
    """Return the pieces of the critical path: times, rank, and numbers of their texts.

    None if none was computed.
    """
    path = analysis.critical_path
    if path is None or path.pieces.is_empty():
        return None
    pieces = path_pieces(path)
    names = ("kind", "label", "description", "chain")
    texts = pl.concat([pieces[name] for name in names]).unique(maintain_order=True).to_list()
    number_of = {text: number for number, text in enumerate(texts) if text is not None}
    times = pl.col("start_ns", "end_ns") - clock.origin_ns
    numbers = [_text_number(name, number_of) for name in names]
    packed = pack_intervals(pieces.select(times, "rank", *numbers))
    shared_texts = [text and shorten_source_paths(text) for text in texts]
    return documents.PathPieces(packed, pack_json(shared_texts))


def _text_number(column: str, number_of: Mapping[str, int]) -> pl.Expr:
    """Return the number of each text of a column; -1 if it has none."""
    return (
        pl.col(column).cast(pl.String).replace_strict(number_of, default=-1, return_dtype=pl.Int64)
    )


def path_pieces(path: CriticalPath) -> pl.DataFrame:
    """Return the pieces of the path of all steps on the common clock, by start.

    Columns ``rank, start_ns, end_ns, kind, label, description, chain``; the description tells what
    ran, and where the path comes from and goes on, the chain the operators around its launch.
    """
    # Pieces in order of time over all ranks: a neighbour on another rank is where the path comes
    # from or goes on.
    pieces = path.pieces.sort("step", "start_ns")
    rank_before = pl.col("rank").shift(1).over("step")
    rank_after = pl.col("rank").shift(-1).over("step")
    comes_from = pl.when(pl.col("rank") != rank_before).then(
        pl.format("\nthe path comes from rank {}", rank_before)
    )
    goes_on = pl.when(pl.col("rank") != rank_after).then(
        pl.format("\nthe path goes on with rank {}", rank_after)
    )
    until = pl.when(pl.col("kind") == "host").then(pl.lit("until ")).otherwise(pl.lit(""))
    what = pl.coalesce(pl.format("{}{}", until, "what"), "kind")
    chain = pl.col("chain").str.tail(rank_timeline.MAX_TEXT_LETTERS)
    described = pieces.select(
        "rank",
        "start_ns",
        "end_ns",
        "kind",
        "label",
        chain,
        description=pl.concat_str(what, comes_from.fill_null(""), goes_on.fill_null("")),
    )
    return described.top_k(MAX_PATH_PIECES, by=pl.col("end_ns") - pl.col("start_ns")).sort(
        "start_ns"
    )


def _memory_top_gb(analysis: Analysis) -> float | None:
    """Return the most that any rank allocated or reserved: the top of every memory chart.

    None if not recorded.
    """
    if analysis.memory is None:
        return None
    top_bytes = 0
    for rank in analysis.memory.ranks:
        top_bytes = max(top_bytes, rank.reserved_bytes or 0, rank.peak_bytes)
    return top_bytes / 1e9


def _memory_line(
    analysis: Analysis, clock: PageClock, rank: int
) -> documents.PackedColumns | UnsetType:
    """Return a rank's allocated and reserved memory in KiB, each valid until the next.

    Unset if not recorded.
    """
    recorded = () if analysis.memory is None else analysis.memory.ranks
    line = next((memory.line for memory in recorded if memory.rank == rank), None)
    if line is None:
        return UNSET
    (time_ns,) = clock.on_page(rank, "at_ns")
    points = pl.DataFrame(structs.asdict(line), schema=MEMORY_CURVE)
    points = points.filter(pl.col("allocated").is_not_null()).select(
        time_ns.alias("time_ns"),
        time=time_ns // 1000,
        allocated=pl.col("allocated") // 1024,
        reserved=(pl.col("reserved") // 1024 + 1).fill_null(0),  # 0: unknown
    )
    # The value before the page's first moment is still valid there.
    first = max(0, int((points["time_ns"] <= 0).sum()) - 1)
    end = int((points["time_ns"] < clock.end_ns).sum())
    columns = points.drop("time_ns")[first:end]
    return pack_columns(columns, differences=columns.columns)


def schedule_data(analysis: Analysis) -> documents.ScheduleChart | None:
    """Return every pipeline and step that can be chosen, first the one that the numbers describe."""
    comparison = analysis.comparison
    if comparison is None:
        return None
    others = [compared for compared in comparison.all if compared is not comparison.head]
    choices = [comparison.head]
    cell_count = len(comparison.head.cells)
    for compared in others[: MAX_CHOICES - 1]:
        cell_count += len(compared.cells)
        if cell_count <= MAX_CELLS:
            choices.append(compared)
    has_several_pipelines = len({compared.pipeline.ranks for compared in choices}) > 1
    charts = [
        _choice(compared, analysis.critical_path, name_ranks=has_several_pipelines)
        for compared in choices
    ]
    return documents.ScheduleChart(causes=list(GAP_CAUSES.values()), choices=charts)


def _choice(
    compared: StepComparison, critical: CriticalPath | None, *, name_ranks: bool
) -> documents.ScheduleChoice:
    """Return one pipeline in one step, measured and ideal; its name has the ranks with *name_ranks*."""
    layouts = layout_pipeline(
        compared, extra_columns=[*_waits(compared), path_time_in_cells(critical, compared)]
    )
    measured = layouts["measured"]
    ideal = layouts["ideal"]
    end_ns = max(int(measured.end), int(ideal.end), 1)
    step = compared.pipeline.step
    name_parts = []
    if step is not None:
        name_parts.append(f"step {step}")
    if name_ranks:
        name_parts.append(f"ranks {format_ranges(measured.ranks)}")
    cells = measured.cells.select(pl.format("{} on rank {}", "name", "rank"))
    return documents.ScheduleChoice(
        name=", ".join(name_parts) or "the pipeline",
        kinds=[*measured.colours, documents.Coloured("outside cells", "idle")],
        shaded=measured.shade_count > 1,
        rows=measured.rows,
        ranks=measured.ranks,
        step=step,
        end_ns=end_ns,
        origin_ns=str(measured.origin_ns),
        cells=cells.to_series().to_list(),
        sections=[
            documents.ScheduleSection("measured", _boxes(measured, end_ns)),
            documents.ScheduleSection("ideal", _boxes(ideal, int(ideal.end))),
        ],
    )


def _waits(compared: StepComparison) -> list[pl.Series]:
    """Return for each cell its largest cause of delay after its inputs were ready, how long, and its last input."""
    replays = compared.replays
    # One row per cause: its number, and the delay in front of each cell.
    cause_numbers = []
    delays_of_causes = []
    for number, cause in enumerate(GAP_CAUSES):
        if cause in replays.before:
            cause_numbers.append(number)
            delays_of_causes.append(replays.before[cause])
    if not cause_numbers:
        cause_numbers.append(-1)
        delays_of_causes.append(np.zeros(len(compared.cells), np.int64))
    delays = np.stack(delays_of_causes)
    delay = delays.max(axis=0)
    code = np.array(cause_numbers)[delays.argmax(axis=0)]
    # ``inputs`` holds, per cell, the indices of the cells it waits for, -1 for none: the appended 0
    # is read for those.
    inputs = replays.graph.waits
    input_end = np.where(inputs >= 0, np.append(replays.end, 0)[inputs], -1)
    last_input = np.take_along_axis(inputs, input_end.argmax(axis=1)[:, None], axis=1)[:, 0]
    return [
        pl.Series("cause", np.where(delay > 0, code, -1), dtype=pl.Int8),
        pl.Series("wait_ns", np.maximum(delay, 0), dtype=pl.Int64),
        pl.Series("after", np.where(input_end.max(axis=1) >= 0, last_input, -1), dtype=pl.Int32),
    ]


def _boxes(layout: ScheduleLayout, end_ns: int) -> documents.PackedColumns:
    """Pack the boxes of a layout and, as one more kind, the time outside cells up to *end_ns*."""
    boxes = layout.boxes.with_columns(kind="colour_key", start_ns="start", end_ns="end")
    cells = layout.cells
    busy = union(cells["start"].to_numpy(), cells["end"].to_numpy(), cells["row"].to_numpy())
    rows = np.arange(len(layout.ranks))
    outside = (union(np.zeros_like(rows), np.full_like(rows, end_ns), rows) - busy).to_frame()
    outside = outside.rename({"group": "row"}).with_columns(
        kind=pl.lit(len(layout.colours)), part=pl.lit(0)
    )
    boxes = pl.concat([boxes, outside], how="diagonal_relaxed").sort("start_ns", "part")
    nulls = {
        "part": 0,
        "stage": -1,
        "microbatch": -1,
        "cause": -1,
        "wait_ns": 0,
        "after": -1,
        "path_ns": 0,
    }
    filled = [pl.col(name).fill_null(null) for name, null in nulls.items() if name in boxes.columns]
    columns = boxes.select("start_ns", "end_ns", *filled, "row", "kind")
    # µs, which fit into 32 bits.
    return pack_intervals(columns.with_columns(pl.col("^(wait|path)_ns$") // 1000))


def path_time_in_cells(critical: CriticalPath | None, compared: StepComparison) -> pl.Series:
    """Return the path's time (``path_ns``) in each of the pipeline's cells, 0 where it does not run through."""
    # The path names its cells by stage, op and micro-batch; a pair (FB) by those of its forward.
    name = pl.format("{}{}{}", "stage", pl.col("op").cast(pl.String), "microbatch")
    cells = compared.cells.select(pl.col("rank").cast(pl.Int64), name=name)
    if critical is None:
        return pl.Series("path_ns", [0] * len(cells), dtype=pl.Int64)
    on_path = (
        critical.segments.filter(
            (pl.col("kind") == "cell") & pl.col("step").eq_missing(compared.pipeline.step)
        )
        .group_by(pl.col("rank").cast(pl.Int64), name="what")
        .agg(path_ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    )
    return cells.join(on_path, on=["rank", "name"], how="left", maintain_order="left")[
        "path_ns"
    ].fill_null(0)
