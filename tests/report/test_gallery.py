"""Test that the gallery shows every plot with the command that draws it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracekit.results.plots import PLOTS

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[2] / "docs"


def test_every_plot_is_in_the_gallery():
    text = (DOCS / "gallery.md").read_text(encoding="utf-8")
    for name in PLOTS:
        assert f"(img/plot-{name}.png)" in text
        assert f"--plot {name}" in text
        assert (DOCS / "img" / f"plot-{name}.png").stat().st_size < 100_000
