"""Plots of an analysis with matplotlib: each function returns a Figure and draws on *ax* where one is given.

>>> from tracekit import analyze
>>> from tracekit.report import plot
>>> figure = plot.budget(analyze("sample_traces/reload", schedule="none"))
>>> figure.axes[0].get_title(loc="left")
'Where the time of each rank went'
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke

from tracekit._util.text import counted, ms, percent, signed
from tracekit.analysis import Analysis
from tracekit.errors import OptionError
from tracekit.metrics.label_intervals import COMPUTE_SET
from tracekit.pipeline.against_ideal import WhatIf
from tracekit.pipeline.against_ideal.comparison import StepComparison
from tracekit.report import figures
from tracekit.report.palette import (
    IDLE_COLOUR,
    LABEL_COLOURS,
    LESS_COLOUR,
    MORE_COLOUR,
    TOTAL_COLOUR,
    mix_colours,
)
from tracekit.report.schedule.layout import (
    LOWER,
    PART_EDGES,
    UPPER,
    WHOLE,
    ScheduleLayout,
    headline,
    layout_pipeline,
)
from tracekit.report.schedule.plot import MAX_LABELLED_BOXES, ROW_MARGIN, cell_handles, draw_grid
from tracekit.report.sections.budget import RankBudget, budgets_of_ranks, mean_budget
from tracekit.report.sections.overlap import hiding_matrix
from tracekit.report.sections.schedule import Rung, gap_rungs
from tracekit.report.text import signed_ms
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS, LABELS

__all__ = [
    "CORE_PLOTS",
    "budget",
    "curve",
    "gap",
    "lanes",
    "overlap",
    "schedule",
    "timeline",
]

MIN_BAR_SHARE_FOR_TEXT = 0.055
"""Width, as a share of the axes, from which a part of a bar shows its percentage."""
Show = Literal["both", "measured", "ideal"]
MARGIN_INCHES = 1.6
"""Width of the figure beside the time axis."""
Lanes = Mapping[str, Mapping[str, int]]
"""Labels of each lane and the part of it they are drawn in."""
MAX_RANKS_IN_EXCERPT = 16
"""Ranks of an excerpt where none are named."""
EXCERPT_SHARE = 0.15
"""Share of the step that an excerpt shows where no window is given."""
RANK_GAP_ROWS = 0.6
"""Space between the lanes of two ranks, in rows."""
MAX_VECTOR_BOXES = 2_000
"""More boxes of one label are drawn as pixels, so that the file stays small."""
_EXPERT_LABELS = ("ep_dispatch", "ep_combine")
PLOT_LANES: Lanes = {
    "Computation": dict.fromkeys(COMPUTE_SET, WHOLE),
    "Communication": {
        **dict.fromkeys(COMMUNICATION_LABELS, LOWER),
        **dict.fromkeys(_EXPERT_LABELS, UPPER),
    },
    "Offload": {**dict.fromkeys(COPY_LABELS, UPPER), "onload": LOWER},
}
"""Labels of each lane and the part of it they are drawn in (0: the whole, 1 and 2: a half), so that
labels that run at once do not cover each other."""

RELOAD_LANES: Lanes = {
    "H2D": {"onload": 0, "offload": 0, "memory": 0},
    "Broadcast": dict.fromkeys(COMMUNICATION_LABELS, 0),
    "Reload": {"reload": 0},
    "Computation": PLOT_LANES["Computation"],
}


def budget(analysis: Analysis, *, ax: Axes | None = None) -> Figure:
    """Draw each rank's span as a bar: compute, exposed time by label, idle.

    Shares are of the rank's own span.
    """
    bars = budgets_of_ranks(analysis)
    mean = mean_budget(analysis)
    longest_ms = max(bar.bar.whole_ns for bar in bars) / 1e6
    figure, axes = figures.figure_and_axes(
        ax, width=9, height=float(np.clip(0.34 * len(bars) + 1.5, 2.2, 14))
    )
    text_style: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": 8}
    for row, bar in enumerate(bars):
        left = 0.0
        for part in bar.bar.parts:
            width = part.ns / 1e6
            axes.barh(
                row,
                width,
                left=left,
                height=0.78,
                color=part.colour,
                edgecolor="white",
                linewidth=0.5,
            )
            if width / longest_ms > MIN_BAR_SHARE_FOR_TEXT:
                text = percent(part.ns, bar.bar.whole_ns, digits=0)
                axes.text(
                    left + width / 2,
                    row,
                    text,
                    color=figures.text_colour_on(part.colour),
                    **text_style,
                )
            left += width
    axes.set_xlim(0, longest_ms)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    step = max(1, -(-len(bars) // 32))
    axes.set_yticks(range(0, len(bars), step), [f"rank {bar.rank}" for bar in bars[::step]])
    figures.strip_axes(axes, x_label="time (ms) of the rank's span")
    figures.draw_title(axes, "Where the time of each rank went", _budget_facts(analysis, bars))
    handles = [
        Patch(facecolor=part.colour, label=part.name)
        for part in mean.bar.parts
        if part.ns or part.kind == "idle"
    ]
    figures.draw_legend(axes, handles, below_axes=ax is not None)
    return figure


def _budget_facts(analysis: Analysis, bars: Sequence[RankBudget]) -> str:
    total = analysis.total.budget
    facts = [f"mean: compute {percent(total.compute_ns / total.span_ns)} of the span"]
    if analysis.total.bubble_fraction is not None:
        facts.append(f"bubble {mean_budget(analysis).bubble}")
    if len(bars) < len(analysis.ranks):
        facts.append(
            f"{len(bars)} of {len(analysis.ranks):,} ranks, those that differ most from the mean"
        )
    return " · ".join(facts)


def overlap(analysis: Analysis, *, ax: Axes | None = None) -> Figure:
    """Draw the overlap matrix: of each communication and copy label, the share that each compute label covers.

    Compute labels may run at once, so a row can add up to more than 100 %.
    """
    matrix = analysis.once(hiding_matrix)
    if matrix is None:
        return figures.message_figure(ax, "There is no communication or copy to hide.")
    columns = [*matrix.labels, "exposed"]
    width = max(1.1 * len(columns) + 3.2, 6.4)
    height = float(np.clip(0.42 * len(matrix.rows) + 1.4, 2, 12))
    figure, axes = figures.figure_and_axes(ax, width=width, height=height)
    row_names = []
    for y, row in enumerate(matrix.rows):
        row_names.append(f"{row.label}  ({ms(row.ns)} per rank)")
        shares = {**row.by_label, "exposed": 1 - row.hidden}
        for x, column in enumerate(columns):
            share = shares[column]
            base = MORE_COLOUR if column == "exposed" else LABEL_COLOURS[column]
            # The exponent lifts small shares: 10 % must be seen beside 100 %.
            fill = mix_colours(IDLE_COLOUR, base, min(max(share, 0.0), 1.0) ** 0.7)
            axes.add_patch(
                Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, facecolor=fill, edgecolor="none")
            )
            text = percent(share) if share else "–"
            colour = figures.text_colour_on(fill) if share else figures.FAINT_INK
            axes.text(x, y, text, ha="center", va="center", fontsize=8.5, color=colour)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylim(len(matrix.rows) - 0.5, -0.5)
    axes.set_yticks(range(len(row_names)), row_names)
    axes.set_xticks(range(len(columns)), columns)
    figures.strip_axes(axes)
    axes.xaxis.tick_top()
    axes.tick_params(axis="x", length=0)
    axes.spines["bottom"].set_visible(False)
    axes.set_title(
        "What hides what: share of the row's time",
        loc="left",
        fontsize=11,
        color=figures.INK,
        pad=12,
    )
    return figure


def gap(analysis: Analysis, *, ax: Axes | None = None) -> Figure:
    """Draw a waterfall from the ideal to the measured schedule span, one bar per cause.

    The parts sum to the gap.
    """
    comparison = analysis.comparison
    rungs = None if comparison is None else gap_rungs(comparison)
    if comparison is None or rungs is None:
        reason = "Ranks are missing."
        if comparison is None:
            reason = "No pipeline schedule was found in these traces."
        return figures.message_figure(ax, f"There is no gap to split. {reason}")
    figure, axes = figures.figure_and_axes(ax, width=9, height=0.36 * len(rungs) + 1.4)
    _draw_waterfall(axes, rungs)
    ideal_ns = comparison.head.ideal_ns
    measured_ns = comparison.head.measured_ns
    more = f", {signed(100 * (measured_ns / ideal_ns - 1), 0)} %" if ideal_ns else ""
    facts = f"{comparison.name}: {ms(ideal_ns)} ideal, {ms(measured_ns)} measured{more}"
    figures.draw_title(axes, "From the ideal to the run", facts)
    return figure


def _draw_waterfall(axes: Axes, bars: Sequence[Rung]) -> None:
    """Draw bars that lead from one total to another, each labelled with what it adds."""
    colours = {"total": TOTAL_COLOUR, "more": MORE_COLOUR, "less": LESS_COLOUR}
    widest_ms = max(bar.high_ns for bar in bars) / 1e6
    for row, bar in enumerate(bars):
        low = bar.low_ns / 1e6
        high = bar.high_ns / 1e6
        axes.barh(row, high - low, left=low, height=0.66, color=colours[bar.kind])
        text = ms(bar.ns) if bar.kind == "total" else signed_ms(bar.ns)
        axes.text(high + widest_ms * 0.008, row, text, va="center", fontsize=8.5, color=figures.INK)
    level = bars[0].high_ns / 1e6  # a thin line joins each bar to the next at the level they share
    for row, bar in enumerate(bars[1:]):
        axes.plot(
            [level, level], [row + 0.33, row + 1 - 0.33], color=figures.FAINT_INK, linewidth=0.8
        )
        level += bar.ns / 1e6 if bar.kind != "total" else 0
    axes.set_xlim(0, widest_ms * 1.14)
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_yticks(range(len(bars)), [bar.name for bar in bars])
    figures.strip_axes(axes, x_label="time (ms)")


def schedule(analysis: Analysis, *, show: Show = "both", ax: Axes | None = None) -> Figure:
    """Draw the measured pipeline above its ideal, or one of them, with the micro-batch in every cell it fits.

    >>> from tracekit import analyze
    >>> figure = schedule(analyze("sample_traces/1f1b"), show="ideal")
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['rank 0', 'rank 1', 'rank 2', 'rank 3']
    """
    if show not in ("both", "measured", "ideal"):
        raise OptionError(f"there is no {show} schedule", hint="use both, measured or ideal")
    if analysis.comparison is None:
        return figures.message_figure(ax, "No pipeline schedule was found in these traces.")
    compared = analysis.comparison.head
    layouts = {
        name: layout.in_ms()
        for name, layout in layout_pipeline(compared).items()
        if show in ("both", name)
    }
    *_, last = layouts.values()
    end = max(layout.end for layout in layouts.values())
    rows = len(layouts) * (len(last.rows) + 1) - 1  # one empty row between the sections
    width = _figure_width(list(layouts.values()), end)
    figure, axes = figures.figure_and_axes(
        ax, width=width, height=float(np.clip(0.34 * rows + 1.6, 2.6, 14))
    )
    inches = width - MARGIN_INCHES if ax is None else axes.get_window_extent().width / figure.dpi
    labelled = sum(len(layout.cells) for layout in layouts.values()) <= MAX_LABELLED_BOXES and end
    inches_per_unit = inches / end if labelled else 0
    draw_grid(
        axes,
        layouts,
        inches_per_unit=inches_per_unit,
        x_label="time (ms) from the step's first cell",
    )
    name = (
        analysis.comparison.name
        if analysis.comparison.exact
        else f"{analysis.comparison.name}, nearly"
    )
    figures.draw_title(axes, headline(compared.match.schedule, name=name), _facts(compared, show))
    figures.draw_legend(axes, cell_handles(last), below_axes=ax is not None)
    return figure


def _figure_width(layouts: list[ScheduleLayout], end: float) -> float:
    """Return the width in inches at which the shorter cells show their micro-batch, within limits."""
    durations = pl.concat([layout.cells["end"] - layout.cells["start"] for layout in layouts])
    if len(durations) > MAX_LABELLED_BOXES or not end:
        return 16
    short = float(durations.quantile(0.1) or end)
    return float(np.clip(end / max(short, 1e-9) * 0.16 + MARGIN_INCHES, 8, 18))


def _facts(compared: StepComparison, show: Show) -> str:
    measured = (
        f"measured {ms(compared.measured_ns)}, {percent(compared.measured_bubble)} outside cells"
    )
    ideal = f"ideal {ms(compared.ideal_ns)}, {percent(compared.ideal_bubble)} outside cells"
    return {"both": f"{measured} · {ideal}", "measured": measured, "ideal": ideal}[show]


def curve(analysis: Analysis, *, ax: Axes | None = None) -> Figure:
    """Draw the time per micro-batch of the run's own schedule over the number of micro-batches.

    Predictions for other numbers of chunks are marked at this run's number of micro-batches.
    """
    comparison = analysis.comparison
    predictions = () if comparison is None else comparison.what_if
    by_microbatches = []
    by_chunks = []
    for prediction in predictions:
        if prediction.change == "microbatches":
            by_microbatches.append(prediction)
        elif prediction.change == "chunks":
            by_chunks.append(prediction)
    if comparison is None or not by_microbatches:
        text = (
            "Nothing was predicted: analyze with what_if, and see the notices for what is missing."
        )
        return figures.message_figure(ax, text)
    figure, axes = figures.figure_and_axes(ax, width=7, height=3.6)
    _draw_curves(axes, by_microbatches)
    if len(by_chunks) > 1:
        for prediction in by_chunks:
            _mark_chunks(axes, prediction)
    axes.set_ylim(bottom=0, top=1.08 * axes.get_ylim()[1])  # space for the name of the topmost mark
    axes.set_ylabel("ms per micro-batch", fontsize=8.5, color=figures.INK)
    figures.strip_axes(axes, x_label="micro-batches of a step")
    axes.legend(fontsize=8, frameon=False)
    facts = f"{comparison.name} on {comparison.pp} ranks; measured at {comparison.microbatches}"
    figures.draw_title(axes, "More micro-batches, other chunks", facts)
    return figure


def _draw_curves(axes: Axes, predictions: Sequence[WhatIf]) -> None:
    """Draw the predicted time with its range as a band, and the ideal time dashed, both in ms per micro-batch."""
    counts = []
    predicted = []
    ideal = []
    low = []
    high = []
    for prediction in predictions:
        low_ns, high_ns = prediction.predicted_range_ns or (0, 0)
        counts.append(prediction.microbatches or 1)
        predicted.append(_ms_per_microbatch(prediction, prediction.predicted_ns))
        ideal.append(_ms_per_microbatch(prediction, prediction.ideal_ns))
        low.append(_ms_per_microbatch(prediction, low_ns))
        high.append(_ms_per_microbatch(prediction, high_ns))
    axes.fill_between(counts, low, high, color=MORE_COLOUR, alpha=0.18, linewidth=0)
    axes.plot(counts, predicted, color=MORE_COLOUR, marker="o", markersize=4, label="predicted")
    axes.plot(counts, ideal, color=LESS_COLOUR, linestyle="--", label="ideal")


def _mark_chunks(axes: Axes, prediction: WhatIf) -> None:
    """Mark the time predicted for another number of chunks."""
    point = (prediction.microbatches or 1, _ms_per_microbatch(prediction, prediction.predicted_ns))
    axes.plot(*point, color=figures.INK, marker="_", markersize=12, linestyle="none")
    style: dict[str, Any] = {
        "textcoords": "offset points",
        "fontsize": 7.5,
        "color": figures.INK,
        "va": "bottom",
    }
    text = axes.annotate(counted(prediction.virtual or 1, "chunk"), point, (8, 2), **style)
    # Readable over a curve behind it.
    text.set_path_effects([withStroke(linewidth=3, foreground="white")])


def _ms_per_microbatch(prediction: WhatIf, ns: int | None) -> float:
    return (ns or 0) / (prediction.microbatches or 1) / 1e6


def lanes(
    analysis: Analysis, *, rank: int | None = None, step: int | None = None, ax: Axes | None = None
) -> Figure:
    """Draw one rank's computation, communication and copies in one step, with the pipeline's phases above.

    The rank is the first where none is given; the step that of the schedule, else the first.
    """
    table = analysis.tables["timeline"]
    lanes = lanes_for(labels_of(table))
    figure, axes = figures.figure_and_axes(ax, width=12, height=1.4 + 0.6 * len(lanes))
    rank = (analysis.ranks[0] if rank is None else analysis.rank(rank)).rank
    step, begin_ns, end_ns = _step_window(analysis, rank, step)
    _draw_ranks(axes, table, [rank], lanes, (begin_ns, begin_ns, end_ns), below_axes=ax is not None)
    axes.set_ylim(len(lanes), -0.35)
    axes.set_yticks(np.arange(len(lanes)) + 0.5, list(lanes))
    _draw_phases(axes, analysis, rank, step)
    figures.draw_title(
        axes, f"Rank {rank}{'' if step is None else f', step {step}'}: what ran when"
    )
    return figure


def timeline(
    analysis: Analysis,
    *,
    ranks: Iterable[int] | None = None,
    start_ms: float | None = None,
    end_ms: float | None = None,
    ax: Axes | None = None,
) -> Figure:
    """Draw an excerpt of several ranks, each with its lanes, between two times after the step's first event.

    Without a window it shows the middle of the step. Ranks are drawn on the clocks of their files.
    """
    if ranks is None:
        ranks = [measured.rank for measured in analysis.ranks][:MAX_RANKS_IN_EXCERPT]
    # Which raises for a rank that was not analysed.
    ranks = [analysis.rank(rank).rank for rank in ranks]
    if not ranks:
        raise OptionError(
            "there are no ranks to draw", hint="name at least one, or leave ranks out"
        )
    table = analysis.tables["timeline"]
    lanes = lanes_for(labels_of(table))
    height = float(np.clip(0.24 * len(lanes) * len(ranks) + 1.5, 2.6, 14))
    figure, axes = figures.figure_and_axes(ax, width=12, height=height)
    starts_ns = []
    ends_ns = []
    for rank in ranks:
        _, start_ns, end_ns = _step_window(analysis, rank, None)
        starts_ns.append(start_ns)
        ends_ns.append(end_ns)
    origin_ns = min(starts_ns)
    begin_ns, end_ns = _excerpt(origin_ns, max(ends_ns), start_ms, end_ms)
    tops = _draw_ranks(
        axes, table, ranks, lanes, (origin_ns, begin_ns, end_ns), below_axes=ax is not None
    )
    axes.set_ylim(tops[-1] + len(lanes), 0)
    axes.set_yticks([top + len(lanes) / 2 for top in tops], [f"rank {rank}" for rank in ranks])
    figures.draw_title(axes, "What ran when, rank by rank", f"from above: {', '.join(lanes)}")
    return figure


def _step_window(analysis: Analysis, rank: int, step: int | None) -> tuple[int | None, int, int]:
    """Return number, start and end of a step on a rank.

    For None, of the schedule's step, else of the first.
    """
    steps = analysis.tables["steps"].filter(rank=rank)
    of_schedule = None if analysis.comparison is None else analysis.comparison.head.pipeline.step
    window = steps.filter(pl.col("step").eq_missing(of_schedule if step is None else step))
    if window.is_empty() and step is not None:
        raise OptionError(f"rank {rank} has no step {step}", hint="see the table steps")
    number, start_ns, end_ns = (
        (steps if window.is_empty() else window).select("step", "start_ns", "end_ns").row(0)
    )
    return number, start_ns, end_ns


def _excerpt(
    origin_ns: int, last_ns: int, start_ms: float | None, end_ms: float | None
) -> tuple[int, int]:
    """Return start and end of the excerpt.

    By default ``EXCERPT_SHARE`` of the step, from its middle.
    """
    length = int((last_ns - origin_ns) * EXCERPT_SHARE)
    if start_ms is None:
        begin = origin_ns + (last_ns - origin_ns - length) // 2
    else:
        begin = origin_ns + int(start_ms * 1e6)
    end = begin + length if end_ms is None else origin_ns + int(end_ms * 1e6)
    if end <= begin:
        raise OptionError("the excerpt ends before it begins", hint="give start_ms < end_ms")
    return begin, end


def _draw_ranks(
    axes: Axes,
    table: pl.DataFrame,
    ranks: Sequence[int],
    lanes: Lanes,
    times: Sequence[int],
    *,
    below_axes: bool,
) -> list[float]:
    """Draw ranks one below the other, and the legend; return the top of each rank.

    *times* are the origin of the time axis, in ms, and the begin and end of what is drawn.
    """
    origin_ns, begin_ns, end_ns = times
    axes.set_xlim((begin_ns - origin_ns) / 1e6, (end_ns - origin_ns) / 1e6)
    inside = (
        pl.col("rank").is_in(ranks) & (pl.col("end_ns") > begin_ns) & (pl.col("start_ns") < end_ns)
    )
    start = pl.col("start_ns").clip(begin_ns)
    end = pl.col("end_ns").clip(None, end_ns)
    events = table.filter(inside).with_columns(
        start=(start - origin_ns) / 1e6, end=(end - origin_ns) / 1e6
    )
    tops = [i * (len(lanes) + RANK_GAP_ROWS) for i in range(len(ranks))]
    for rank, top in zip(ranks, tops, strict=True):
        _draw_lanes(axes, events.filter(rank=rank), lanes, first_row=top)
    figures.strip_axes(axes, x_label="time (ms) from the step's first event")
    handles: list[Any] = [
        Patch(facecolor=LABEL_COLOURS[label], label=label) for label in labels_of(events)
    ]
    handles.append(Patch(facecolor=IDLE_COLOUR, label="nothing"))
    figures.draw_legend(axes, handles, below_axes=below_axes)
    return tops


def _draw_lanes(axes: Axes, events: pl.DataFrame, lanes: Lanes, *, first_row: float) -> None:
    """Draw each label on its lane, over idle time as wide as the axes; *events* are in ms.

    A half of a lane whose other half is empty fills the whole lane.
    """
    left, right = axes.get_xlim()
    height = 1 - 2 * ROW_MARGIN
    present = set(labels_of(events))
    for lane, part_of_label in enumerate(lanes.values()):
        top = first_row + lane + ROW_MARGIN
        figures.draw_boxes(
            axes,
            start=[left],
            end=right,
            top=top,
            bottom=top + height,
            facecolors=IDLE_COLOUR,
            zorder=0,
        )
        parts_used = {part for label, part in part_of_label.items() if label in present}
        for label, part in part_of_label.items():
            same = events.filter(label=label)
            upper, lower = PART_EDGES[part if len(parts_used) > 1 else WHOLE]
            figures.draw_boxes(
                axes,
                start=same["start"].to_numpy(),
                end=same["end"].to_numpy(),
                top=top + height * upper,
                bottom=top + height * lower,
                facecolors=LABEL_COLOURS[label],
                zorder=1,
                rasterized=len(same) > MAX_VECTOR_BOXES,
            )


def _draw_phases(axes: Axes, analysis: Analysis, rank: int, step: int | None) -> None:
    """Draw dashed lines between the pipeline's phases, and the names of those that are wide enough."""
    if not analysis.total.pipeline:
        return
    phases = analysis.tables["phases"].filter(
        (pl.col("rank") == rank) & pl.col("step").eq_missing(step)
    )
    total_ns = int(phases["span_ns"].sum())
    start = 0.0
    for name, span_ns in phases.select("phase", "span_ns").iter_rows():
        end = start + span_ns / 1e6
        if start:
            axes.axvline(
                start, color=figures.FAINT_INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=3
            )
        if span_ns > 0.05 * total_ns:
            axes.text(
                (start + end) / 2,
                -0.06,
                name,
                ha="center",
                va="bottom",
                fontsize=8.5,
                color=figures.QUIET_INK,
            )
        start = end


def labels_of(table: pl.DataFrame) -> list[str]:
    """Return the labels that occur in a table, in the order of the label list."""
    present = set(table["label"].unique().to_list())
    return [label for label in LABELS if label in present]


def lanes_for(present: Sequence[str]) -> Lanes:
    """Return the lanes on which something runs.

    A copy lane without copies to or from the host is called "Copies".

    >>> list(lanes_for(["forward", "pp_comm", "offload"])), list(lanes_for(["forward", "memory"]))
    (['Computation', 'Communication', 'Offload'], ['Computation', 'Copies'])
    """
    lanes = RELOAD_LANES if "reload" in present else PLOT_LANES
    copies_to_host = "offload" in present or "onload" in present
    used = {}
    for name, halves in lanes.items():
        if any(label in halves for label in present):
            title = "Copies" if name == "Offload" and not copies_to_host else name
            used[title] = halves
    return used


CORE_PLOTS: Mapping[str, Callable[..., Figure]] = {
    "schedule": schedule,
    "measured": lambda analysis, **options: schedule(analysis, show="measured", **options),
    "ideal": lambda analysis, **options: schedule(analysis, show="ideal", **options),
    "budget": budget,
    "overlap": overlap,
    "gap": gap,
    "lanes": lanes,
    "timeline": timeline,
    "curve": curve,
}
"""Plots by the name that ``--plot`` takes; ``results.plots`` adds those of the side rooms."""
