"""Small pictures of runs, and of every plot of ``tracekit analyze --plot``, for docs/gallery.md.

python notebooks/gallery.py [SAMPLE …]
"""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path

import tracekit
from tracekit.results import plots

FOLDER = Path(__file__).parent
PICTURES = FOLDER.parent / "docs/img"
SAMPLE_OF_PLOT = {
    **dict.fromkeys(("schedule", "measured", "ideal", "curve"), "1f1b"),
    **dict.fromkeys(("budget", "overlap", "gap", "lanes", "timeline"), "vpp-overlap"),
    **dict.fromkeys(("memory", "flame"), "memory-snapshot"),
}
"""Sample trace that each plot is drawn from."""
PLOT_OF_RUN = {
    "slow-ddp": "budget",
    "dualpipe": "schedule",
    "megatron-moe": "gap",
}
"""Plot that shows what a run's answer says."""


def main() -> None:
    """Draw and write every plot, or those of the samples named."""
    spec = importlib.util.spec_from_file_location("render", FOLDER / "render.py")
    assert spec is not None
    assert spec.loader is not None
    render = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(render)
    names = {*SAMPLE_OF_PLOT.values(), *PLOT_OF_RUN}
    if len(sys.argv) > 1:
        names &= set(sys.argv[1:])
    analyses = {}
    for name in sorted(names):
        path = FOLDER.parent / "sample_traces" / name
        analyses[name] = tracekit.analyze(path, what_if=name == "1f1b")
    pictures = [(f"plot-{name}", sample, name) for name, sample in SAMPLE_OF_PLOT.items()]
    pictures += [(f"run-{sample}", sample, name) for sample, name in PLOT_OF_RUN.items()]
    for file_name, sample, name in pictures:
        if sample not in analyses:
            continue
        png = io.BytesIO()
        plots.draw(analyses[sample], name).savefig(png, format="png", dpi=110, facecolor="white")
        target = PICTURES / f"{file_name}.png"
        render.shrink_picture(png.getvalue()).save(target, optimize=True)
        print(f"{target.name}: {target.stat().st_size / 1000:.0f} kB", file=sys.stderr)


if __name__ == "__main__":
    main()
