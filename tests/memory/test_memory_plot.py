"""Pictures of memory."""

from __future__ import annotations

import pytest

from tests.kept import analysis_of

pytestmark = pytest.mark.slow


def texts(figure):
    return [text.get_text() for text in figure.findobj(lambda artist: hasattr(artist, "get_text"))]


def test_memory_stands_above_the_cells_on_one_time_axis(samples):
    analysis = analysis_of(samples / "memory-snapshot")
    figure = analysis.plot.memory()
    (axes,) = figure.axes
    curves = [line for line in axes.get_lines() if len(line.get_xdata()) > 10]
    assert len(curves) == 4
    # Lower is larger on this axis: rows of cells are counted downwards from 0, memory stands above
    # them.
    assert all(max(line.get_ydata()) < 0 for line in curves)
    highest = [min(line.get_ydata()) for line in curves]
    peaks = [rank.peak_bytes for rank in analysis.memory.ranks]
    assert sorted(range(4), key=lambda rank: highest[rank]) == sorted(
        range(4), key=lambda rank: -peaks[rank]
    )
    assert "rank 3" in texts(figure)


def test_without_a_schedule_memory_stands_alone(snapshots):
    figure = analysis_of(snapshots / "fsdp").plot.memory()
    assert "Memory over the step" in texts(figure)


def test_a_run_without_memory_says_so(samples):
    analysis = analysis_of(samples / "reload")
    assert "Memory was not recorded in these traces." in texts(analysis.plot.memory())
    assert any("Single allocations are not known" in text for text in texts(analysis.plot.flame()))


def test_the_flame_graph_is_as_wide_as_the_peak(samples):
    analysis = analysis_of(samples / "memory-snapshot")
    figure = analysis.plot.flame(rank=2)
    (axes,) = figure.axes
    peak = analysis.memory.ranks[2].peak_bytes
    assert axes.get_xlim() == (0, peak)
    lowest = [patch for patch in axes.patches if patch.get_y() == 0]
    assert [patch.get_width() for patch in lowest] == [peak]
    second = [patch.get_width() for patch in axes.patches if patch.get_y() == 1]
    assert sum(second) == pytest.approx(peak, rel=0.01)
