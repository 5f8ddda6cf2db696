"""Draw every plot that ``tracekit analyze --plot`` can name, small, for docs/gallery.md.

python notebooks/gallery.py
"""

from __future__ import annotations

import importlib.util
import io
import sys
from pathlib import Path

import tracekit
from tracekit.report import plot

HERE = Path(__file__).parent
PICTURES = HERE.parent / "docs/img"
SAMPLE = {"schedule": "1f1b", "measured": "1f1b", "ideal": "1f1b", "budget": "vpp-overlap", "overlap": "vpp-overlap",
          "gap": "vpp-overlap", "lanes": "vpp-overlap", "timeline": "vpp-overlap", "curve": "1f1b"}  # fmt: skip
"""The sample each plot is shown on."""


def main() -> None:
    spec = importlib.util.spec_from_file_location("render", HERE / "render.py")
    assert spec is not None
    assert spec.loader is not None
    render = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(render)
    found = {
        name: tracekit.analyze(HERE.parent / "sample_traces" / name, what_if=name == "1f1b")
        for name in set(SAMPLE.values())
    }
    for name, sample in SAMPLE.items():
        drawn = io.BytesIO()
        plot.draw(found[sample], name).savefig(drawn, format="png", dpi=110, facecolor="white")
        target = PICTURES / f"plot-{name}.png"
        render.small(drawn.getvalue()).save(target, optimize=True)
        print(f"{target.name}: {target.stat().st_size / 1000:.0f} kB", file=sys.stderr)


if __name__ == "__main__":
    main()
