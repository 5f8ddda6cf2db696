"""The notebooks run from top to bottom as a newcomer runs them, and are stored with what they show."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PICTURES = {"01-first-look": 2, "02-pipeline-and-ideal": 6, "03-hunting-a-regression": 1,
            "04-megatron-to-a-better-schedule": 4, "05-weight-updates-and-rl": 1}  # fmt: skip


@pytest.fixture(scope="module")
def render():
    pytest.importorskip("nbclient", reason="nbclient is not installed: notebooks are not run")
    spec = importlib.util.spec_from_file_location("render", ROOT / "notebooks/render.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("default")  # of the libraries that run a kernel, not of ours
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs_and_shows_its_pictures(render, path):
    notebook = render.run_notebook(path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in code)
    said = [out for cell in code for out in cell.outputs if out.output_type == "stream" and out.name == "stderr"]
    assert [out.text for out in said] == []
    pictures = render.notebook_pictures(notebook)
    assert len(pictures) == PICTURES[path.stem]
    for picture in pictures:
        colours = render.shrink_picture(picture).convert("RGB").getcolors(1 << 24)
        assert len(colours) > 5, "an empty picture"


def test_each_leads_to_the_next():
    assert [path.stem for path in NOTEBOOKS] == list(PICTURES)
    for path, following in itertools.pairwise(NOTEBOOKS):
        assert f"]({following.name})" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_can_be_read_without_running(path):
    """What a cell shows is stored with it, and nothing of the machine that ran it."""
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)
    assert sum(bool(cell["outputs"]) for cell in code) >= len(code) - 2  # imports and folders show nothing
    assert sum("image/png" in out.get("data", {}) for cell in code for out in cell["outputs"]) == PICTURES[path.stem]
    assert not [out for cell in code for out in cell["outputs"] if out["output_type"] == "error"]
    assert all(cell["metadata"] == {} for cell in notebook["cells"])
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert not re.search(r"/(home|root|tmp|work)/", text)
    assert len(text) < 400_000


def test_the_documentation_shows_every_picture():
    text = (ROOT / "docs/notebooks.md").read_text(encoding="utf-8")
    shown = re.findall(r"\]\(img/(notebook-\d\d-\d\.png)\)", text)
    made = [f"notebook-{stem[:2]}-{i}.png" for stem, count in PICTURES.items() for i in range(1, count + 1)]
    assert sorted(shown) == made
    for name in made:
        assert (ROOT / "docs/img" / name).stat().st_size < 100_000
