"""Tests of the plots of an analysis: they draw what was measured, on the given axes, in every format."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
import polars as pl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from tests.kept import analysis_of
from tracekit.errors import InputError, OptionError
from tracekit.pipeline.schedules import generate, simulate
from tracekit.report import plot
from tracekit.report.palette import CELL_COLOURS, IDLE_COLOUR, LABEL_COLOURS
from tracekit.report.schedule.plot import draw_schedule
from tracekit.results import plots
from tracekit.results.write import write

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pipeline(samples):
    return analysis_of(samples / "1f1b", what_if=True)  # the curve is drawn from predictions


@pytest.fixture(scope="module")
def reload(samples):
    return analysis_of(samples / "reload-overlap")


def rectangles(ax, colour=None):
    """Every rectangle of the collections: (left, right, top, bottom, colour)."""
    texts = []
    for drawn in ax.collections:
        if isinstance(drawn, PolyCollection):
            colours = [to_hex(c) for c in drawn.get_facecolor()]
            for i, path in enumerate(drawn.get_paths()):
                box = path.get_extents()
                fill = colours[i % len(colours)] if colours else None
                texts.append((box.x0, box.x1, box.y0, box.y1, fill))
    return [r for r in texts if colour is None or r[4] == colour.lower()]


def words(figure):
    return [t.get_text() for ax in figure.axes for t in ax.texts] + [
        ax.get_title(loc="left") for ax in figure.axes
    ]


@pytest.mark.parametrize("name", plots.PLOTS)
def test_every_plot_is_a_figure_and_takes_axes(pipeline, reload, name):
    for analysis in (pipeline, reload):
        assert isinstance(plots.draw(analysis, name), Figure)
    outer = Figure(figsize=(10, 8))
    first, second = outer.subplots(2, 1)
    function = {"measured": plot.schedule, "ideal": plot.schedule}.get(name, plots.PLOTS[name])
    assert function(pipeline, ax=second) is outer
    assert not first.collections
    assert not first.patches
    if name in ("memory", "flame"):  # the sample has no memory snapshot, which the picture says
        assert second.texts
    else:
        assert second.collections or second.patches


@pytest.mark.parametrize("which", ["measured", "ideal"])
def test_cells_are_drawn_where_they_ran(pipeline, which):
    figure = plot.schedule(pipeline, show=which)
    cells = pipeline.comparison.head.cells
    start, end = (
        ("start_ns", "end_ns") if which == "measured" else ("ideal_start_ns", "ideal_end_ns")
    )
    origin = cells[start].min()
    for op in ("F", "B"):
        rows = cells.filter(pl.col("op") == op).sort("rank", start)
        drawn = sorted(
            rectangles(figure.axes[0], CELL_COLOURS[op]), key=lambda r: (round(r[2]), r[0])
        )
        expected = [
            ((a - origin) / 1e6, (b - origin) / 1e6) for a, b in rows.select(start, end).iter_rows()
        ]
        np.testing.assert_allclose([r[:2] for r in drawn], expected, atol=1e-6)


def test_both_stand_on_one_time_axis(pipeline):
    ax = plot.schedule(pipeline).axes[0]
    assert ax.get_xlim() == (0, pipeline.comparison.head.measured_ns / 1e6)
    assert [t.get_text() for t in ax.get_yticklabels()] == [f"rank {r}" for r in (0, 1, 2, 3)] * 2
    assert {"measured", "ideal"} <= {t.get_text() for t in ax.texts}
    idle = rectangles(ax, IDLE_COLOUR)
    assert sorted({round(r[1], 6) for r in idle}) == sorted(
        round(ns / 1e6, 6)
        for ns in (pipeline.comparison.head.ideal_ns, pipeline.comparison.head.measured_ns)
    )


def test_overlapped_pairs_show_forward_above_backward(samples):
    analysis = analysis_of(samples / "overlapped")
    figure = plot.schedule(analysis, show="measured")
    pairs = analysis.comparison.head.cells.filter(pl.col("op") == "FB").height
    halves = [r for r in rectangles(figure.axes[0], CELL_COLOURS["F"]) if r[3] - r[2] < 0.5]
    below = [r for r in rectangles(figure.axes[0], CELL_COLOURS["B"]) if r[3] - r[2] < 0.5]
    assert len(halves) == len(below) == pairs
    # Y grows downwards.
    assert all(f[3] <= b[2] + 1e-9 for f, b in zip(sorted(halves), sorted(below), strict=True))


def test_budget_bars_are_the_budget(pipeline):
    figure = plot.budget(pipeline)
    bars = figure.axes[0].patches
    for row, one in enumerate(pipeline.ranks):
        mine = [p for p in bars if abs(p.get_y() + p.get_height() / 2 - row) < 1e-6]
        assert sum(p.get_width() for p in mine) == pytest.approx(one.whole.budget.span_ns / 1e6)
        by_colour = {to_hex(p.get_facecolor()): p.get_width() for p in mine}
        exposed = one.whole.budget.exposed_ns["pp_comm"] / 1e6
        assert by_colour[LABEL_COLOURS["pp_comm"].lower()] == pytest.approx(exposed)
        assert by_colour[IDLE_COLOUR.lower()] == pytest.approx(one.whole.budget.idle_ns / 1e6)


def test_the_waterfall_leads_from_the_ideal_to_the_run(pipeline):
    held = pipeline.comparison
    bars = plot.gap(pipeline).axes[0].patches
    assert bars[0].get_width() == pytest.approx(held.head.ideal_ns / 1e6)
    assert bars[-1].get_width() == pytest.approx(held.head.measured_ns / 1e6)
    gap = {name: ns for name, ns in held.gap_ns.items() if ns}
    assert sorted(round(p.get_width(), 6) for p in bars[1:-1]) == sorted(
        round(abs(ns) / 1e6, 6) for ns in gap.values()
    )


def test_the_matrix_says_the_share_that_is_hidden(pipeline):
    shares = [w for w in words(plot.overlap(pipeline)) if w.endswith("%")]
    exposed = 1 - pipeline.total.overlap["pp_comm"]
    assert f"{exposed:.1%}".replace("%", " %") in shares


def test_lanes_show_the_time_of_each_label(pipeline):
    """Drawn are unions of a label's intervals, so that their widths add up to its time."""
    figure = plot.lanes(pipeline, rank=2)
    assert "Rank 2" in words(figure)[-1]
    for label in ("forward", "pp_comm"):
        width = sum(r[1] - r[0] for r in rectangles(figure.axes[0], LABEL_COLOURS[label]))
        passes = pipeline.tables["timeline"].filter(rank=2, label=label)
        assert width == pytest.approx((passes["end_ns"] - passes["start_ns"]).sum() / 1e6)
        assert width >= pipeline.rank(2).whole.label_ns[label] / 1e6 * 0.999


def test_an_excerpt_shows_its_window_and_nothing_else(pipeline):
    ax = plot.timeline(pipeline, ranks=[1, 3], start_ms=40, end_ms=60).axes[0]
    assert ax.get_xlim() == pytest.approx((40, 60))
    drawn = rectangles(ax)
    assert drawn
    assert all(r[0] >= 40 - 1e-9 and r[1] <= 60 + 1e-9 for r in drawn)
    assert [t.get_text() for t in ax.get_yticklabels()] == ["rank 1", "rank 3"]


def test_a_picture_of_nothing_says_why(reload):
    for name in ("schedule", "gap"):
        assert any("No pipeline schedule was found" in w for w in words(plots.draw(reload, name)))


def test_without_a_name_the_schedule_is_drawn_where_there_is_one(pipeline, reload):
    assert plots.draw(pipeline).axes[0].get_title(loc="left").startswith("1f1b")
    assert plots.draw(reload).axes[0].get_title(loc="left") == "Where the time of each rank went"


def test_what_is_not_there_is_named(pipeline):
    with pytest.raises(InputError, match="there is no rank 9"):
        plot.lanes(pipeline, rank=9)
    with pytest.raises(OptionError, match="has no step 77"):
        plot.lanes(pipeline, step=77)
    with pytest.raises(OptionError, match="there is no later schedule"):
        plot.schedule(pipeline, show="later")
    with pytest.raises(OptionError, match="ends before it begins"):
        plot.timeline(pipeline, start_ms=5, end_ms=4)


@pytest.mark.parametrize(
    ("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")]
)
def test_formats_follow_the_extension_and_are_reproducible(pipeline, tmp_path, suffix, magic):
    paths = [tmp_path / f"{i}{suffix}" for i in range(2)]
    for path in paths:
        write(pipeline, path, plot="gap")
    assert paths[0].read_bytes().startswith(magic)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_drawing_leaves_matplotlib_as_it_was(pipeline, tmp_path):
    before = dict(mpl.rcParams)
    write(pipeline, tmp_path / "x.svg")
    assert dict(mpl.rcParams) == before


def inside(figure):
    """Draw, and tell whether every legend and title lies within the figure."""
    FigureCanvasAgg(figure).draw()
    whole = figure.bbox
    parts = [
        *figure.legends,
        *(ax.get_legend() for ax in figure.axes if ax.get_legend()),
    ]
    for ax in figure.axes:  # its titles are among its own texts
        parts += [
            child for child in ax.get_children() if isinstance(child, Text) and child.get_text()
        ]
    boxes = [artist.get_window_extent() for artist in parts]
    return all(
        box.x0 >= whole.x0 - 1 and box.x1 <= whole.x1 + 1 and box.y0 >= whole.y0 - 1
        for box in boxes
    )


@pytest.mark.parametrize("name", plots.PLOTS)
def test_legends_and_titles_are_not_cut(reload, samples, name):
    for analysis in (reload, analysis_of(samples / "vpp-overlap")):
        assert inside(plots.draw(analysis, name))


@pytest.mark.parametrize("name", ["dualpipe", "dualpipev", "interleaved-overlap"])
def test_a_small_schedules_legend_is_not_cut(name):
    assert inside(draw_schedule(simulate(generate(name, pp=4, microbatches=8))))


def test_lanes_on_which_nothing_runs_are_left_out(pipeline):
    names = [label.get_text() for label in plot.lanes(pipeline).axes[0].get_yticklabels()]
    # Memory alone: nothing was offloaded.
    assert names == [
        "Computation",
        "Communication",
        "Copies",
    ]
