"""Run the notebooks and keep their pictures, small, for docs/notebooks.md.

    python notebooks/render.py

The notebooks themselves stay as they are: outputs are not kept in them.
"""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

HERE = Path(__file__).parent
PICTURES = HERE.parent / "docs/img"
WIDEST = 1000


def executed(path: Path) -> nbformat.NotebookNode:
    """Return a notebook after running it top to bottom in its own folder."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(HERE)}}).execute()
    return notebook


def pictures(notebook: nbformat.NotebookNode) -> list[bytes]:
    """Return the PNGs that cells show, in order."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [base64.b64decode(one.data["image/png"]) for one in outputs if "image/png" in one.get("data", {})]


def small(png: bytes) -> Image.Image:
    """Return a picture of few colours, no wider than a page."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    if image.width > WIDEST:
        image = image.resize((WIDEST, round(image.height * WIDEST / image.width)), Image.Resampling.LANCZOS)
    return image.quantize(96, dither=Image.Dither.NONE)


def main() -> None:
    for path in sorted(HERE.glob("*.ipynb")):
        for number, png in enumerate(pictures(executed(path)), 1):
            target = PICTURES / f"notebook-{path.stem[:2]}-{number}.png"
            small(png).save(target, optimize=True)
            print(f"{target.name}: {target.stat().st_size / 1000:.0f} kB", file=sys.stderr)


if __name__ == "__main__":
    main()
