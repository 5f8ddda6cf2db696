"""Notebooks run from top to bottom and stored with their outputs.

Their pictures, small, for docs/notebooks.md.

python notebooks/render.py           all of them
python notebooks/render.py 01 04     those whose names begin so
"""

from __future__ import annotations

import base64
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).parent
PICTURES = FOLDER.parent / "docs/img"
MAX_WIDTH_PX = 1000
MAX_COLOURS = 160


def run_notebook(path: Path) -> nbformat.NotebookNode:
    """Return a notebook after running it top to bottom in its own folder."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(FOLDER)}}
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    return notebook


def notebook_pictures(notebook: nbformat.NotebookNode) -> list[bytes]:
    """Return the PNGs in the outputs of a notebook, in order."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    return [
        base64.b64decode(output.data["image/png"])
        for output in outputs
        if "image/png" in output.get("data", {})
    ]


def shrink_picture(png: bytes) -> Image.Image:
    """Return a picture no wider than a page, with few colours."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    if image.width > MAX_WIDTH_PX:
        image = image.resize(
            (MAX_WIDTH_PX, round(image.height * MAX_WIDTH_PX / image.width)),
            Image.Resampling.LANCZOS,
        )
    # The method keeps colours that cover little: the colour of a label has a meaning everywhere.
    return image.quantize(MAX_COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)


def store_notebook(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write a notebook with its outputs: small pictures, nothing from stderr, no times of execution."""
    for cell in notebook.cells:
        cell.metadata.clear()
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    output.data["image/png"] = _shrink_base64(output.data["image/png"])
    notebook.metadata = {key: notebook.metadata[key] for key in ("kernelspec", "language_info")}
    nbformat.write(notebook, path)


def _shrink_base64(picture: str) -> str:
    """Return a PNG in base64 as a smaller one."""
    file = io.BytesIO()
    shrink_picture(base64.b64decode(picture)).save(file, format="PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def main(prefixes: Sequence[str]) -> None:
    """Run and store every notebook, or those whose names begin with a prefix, and write their pictures."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if prefixes and not path.name.startswith(tuple(prefixes)):
            continue
        notebook = run_notebook(path)
        store_notebook(notebook, path)
        for number, png in enumerate(notebook_pictures(notebook), 1):
            target = PICTURES / f"notebook-{path.stem[:2]}-{number}.png"
            shrink_picture(png).save(target, optimize=True)
            print(f"{target.name}: {target.stat().st_size / 1000:.0f} kB", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
