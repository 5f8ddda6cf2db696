"""Small pictures of every plot of ``tracekit analyze --plot``, for docs/gallery.md.

python notebooks/gallery.py
"""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path

import tracekit
from tracekit.report import plot

FOLDER = Path(__file__).parent
PICTURES = FOLDER.parent / "docs/img"
SAMPLE_OF_PLOT = {
    **dict.fromkeys(("schedule", "measured", "ideal", "curve"), "1f1b"),
    **dict.fromkeys(("budget", "overlap", "gap", "lanes", "timeline"), "vpp-overlap"),
}
"""Sample trace that each plot is drawn from."""


def main() -> None:
    """Draw and write every plot."""
    spec = importlib.util.spec_from_file_location("render", FOLDER / "render.py")
    assert spec is not None
    assert spec.loader is not None
    render = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(render)
    analyses = {
        name: tracekit.analyze(FOLDER.parent / "sample_traces" / name, what_if=name == "1f1b")
        for name in set(SAMPLE_OF_PLOT.values())
    }
    for name, sample in SAMPLE_OF_PLOT.items():
        png = io.BytesIO()
        plot.draw(analyses[sample], name).savefig(png, format="png", dpi=110, facecolor="white")
        target = PICTURES / f"plot-{name}.png"
        render.shrink_picture(png.getvalue()).save(target, optimize=True)
        print(f"{target.name}: {target.stat().st_size / 1000:.0f} kB", file=sys.stderr)


if __name__ == "__main__":
    main()
