"""Run the notebooks, store what they show in them, and keep their pictures, small, for docs/notebooks.md.

python notebooks/render.py
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
    # Colours that cover little keep theirs: a label's colour means something wherever it is.
    return image.quantize(160, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)


def store(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook with what its cells show: pictures small, no messages of the machine, no times of running."""
    for cell in notebook.cells:
        cell.metadata.clear()
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    output.data["image/png"] = base64.b64encode(_png(output.data["image/png"])).decode()
    notebook.metadata = {key: notebook.metadata[key] for key in ("kernelspec", "language_info")}
    nbformat.write(notebook, path)


def _png(stored: str) -> bytes:
    out = io.BytesIO()
    small(base64.b64decode(stored)).save(out, format="PNG", optimize=True)
    return out.getvalue()


def main() -> None:
    for path in sorted(HERE.glob("*.ipynb")):
        notebook = executed(path)
        store(notebook, path)
        for number, png in enumerate(pictures(notebook), 1):
            target = PICTURES / f"notebook-{path.stem[:2]}-{number}.png"
            small(png).save(target, optimize=True)
            print(f"{target.name}: {target.stat().st_size / 1000:.0f} kB", file=sys.stderr)


if __name__ == "__main__":
    main()
