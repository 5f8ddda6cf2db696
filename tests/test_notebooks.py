"""The notebooks run from top to bottom as a newcomer runs them, and are stored with what they show."""

from __future__ import annotations

import base64
import importlib.util
import io
import itertools
import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import tracekit
from tests.kept import analysis_of
from tracekit._version import INSTALLED_FROM
from tracekit.run.analyze import analyze

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PICTURES = {"01-first-look": 2, "02-pipeline-and-ideal": 6, "03-hunting-a-regression": 1,
            "04-megatron-to-a-better-schedule": 4, "05-weight-updates-and-rl": 1,
            "06-whole-runs-and-hangs": 2, "07-eight-gpus": 2}  # fmt: skip

NIGHTLY_NOTEBOOKS = {
    "02-pipeline-and-ideal": pytest.mark.nightly,
    "04-megatron-to-a-better-schedule": pytest.mark.nightly,
}
"""Those that take longest, by what they draw and predict."""


def code_cells(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def check_pictures(pictures, path):
    from PIL import Image

    assert len(pictures) == PICTURES[path.stem]
    for picture in pictures:
        colours = Image.open(io.BytesIO(picture)).convert("RGB").getcolors(1 << 24)
        assert len(colours) > 5, "an empty picture"


@pytest.fixture(scope="module")
def render():
    pytest.importorskip("nbclient", reason="nbclient is not installed: notebooks are not run")
    spec = importlib.util.spec_from_file_location("render", ROOT / "notebooks/render.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.nightly
@pytest.mark.filterwarnings("default")  # of the libraries that run a kernel, not of ours
def test_the_first_runs_in_jupyter_and_shows_its_pictures(render):
    notebook = render.run_notebook(NOTEBOOKS[0])
    cells = code_cells(notebook)
    assert all(cell.execution_count for cell in cells)
    errors = [
        out
        for cell in cells
        for out in cell.outputs
        if out.output_type == "stream" and out.name == "stderr"
    ]
    assert [out.text for out in errors] == []
    pictures = render.notebook_pictures(notebook)
    check_pictures(pictures, NOTEBOOKS[0])
    assert (
        len(render.shrink_picture(pictures[0]).convert("RGB").getcolors(1 << 24))
        <= render.MAX_COLOURS
    )


def analyze_or_share(traces, **options):
    """Return the analysis of a path that other tests made, or analyse a trace in memory."""
    if isinstance(traces, str | Path):
        return analysis_of(traces, **options)
    return analyze(traces, **options)


@pytest.fixture(scope="module")
def shell():
    """IPython in this process: sooner than a kernel of Jupyter, and with the analyses that other tests made."""
    interactiveshell = pytest.importorskip("IPython.core.interactiveshell")
    displayhook = pytest.importorskip("IPython.core.displayhook")
    import matplotlib.pyplot as plt
    from traitlets.config import Config

    class Hook(displayhook.DisplayHook):
        def write_format_data(self, format_dict, md_dict=None):
            """Keep the value of a cell in all its formats, instead of printing its text."""
            self.shell.shown.append(format_dict)

    class Shell(interactiveshell.InteractiveShell):
        displayhook_class = Hook

        def enable_gui(self, gui=None):
            """Accept ``%matplotlib inline``, which opens no windows."""

    backend = plt.get_backend()
    with pytest.MonkeyPatch.context() as patch, plt.rc_context():
        patch.setitem(sys.modules, "notebook", ModuleType("notebook"))
        patch.setattr(tracekit, "analyze", analyze_or_share)
        patch.chdir(ROOT / "notebooks")
        shell = Shell.instance(
            user_module=sys.modules["notebook"], config=Config(HistoryManager={"enabled": False})
        )
        yield shell
        shell.restore_sys_module_state()
        Shell.clear_instance()
    plt.close("all")
    plt.switch_backend(backend)


@pytest.mark.filterwarnings("default")  # as in Jupyter
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=NIGHTLY_NOTEBOOKS.get(path.stem, ())) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_it_runs_and_shows_its_pictures(shell, path):
    from IPython.utils.capture import capture_output

    shell.reset(new_session=False)
    shell.shown = []
    for cell in code_cells(json.loads(path.read_text(encoding="utf-8"))):
        with capture_output() as captured:
            result = shell.run_cell("".join(cell["source"]), store_history=True)
        result.raise_error()
        assert captured.stderr == ""
        shell.shown += [output.data for output in captured.outputs]
    pictures = [data["image/png"] for data in shell.shown if "image/png" in data]
    check_pictures(
        [base64.b64decode(png) if isinstance(png, str) else png for png in pictures], path
    )


def test_each_leads_to_the_next():
    assert [path.stem for path in NOTEBOOKS] == list(PICTURES)
    for path, following in itertools.pairwise(NOTEBOOKS):
        assert f"]({following.name})" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_opens_in_colab_and_gets_tracekit_and_the_samples_there(path):
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    source = about["urls"]["Source"]
    repository = source.removeprefix("https://github.com/")
    colab = f"https://colab.research.google.com/github/{repository}/blob/main/notebooks/{path.name}"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert f"]({colab})" in "".join(notebook["cells"][0]["source"])
    assert f"]({colab})" in (ROOT / "docs/notebooks.md").read_text(encoding="utf-8")
    setup = "".join(code_cells(notebook)[0]["source"])
    first = json.loads(NOTEBOOKS[0].read_text(encoding="utf-8"))
    assert setup == "".join(code_cells(first)[0]["source"])
    assert f'%pip install --quiet "{about["name"]}[sql] @ {INSTALLED_FROM}"' in setup
    assert f'f"{source}/archive/refs/tags/v{{__version__}}.tar.gz"' in setup
    later = "".join("".join(cell["source"]) for cell in code_cells(notebook)[1:])
    assert "../" not in later  # everything is found through what the first cell sets


def test_a_release_takes_the_samples_from_the_archive_that_it_built():
    pytest.importorskip("nbclient", reason="nbclient is not installed: notebooks are not run")
    spec = importlib.util.spec_from_file_location("run_notebooks", ROOT / "ci/run_notebooks.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    (setup, *_) = code_cells(json.loads(NOTEBOOKS[0].read_text(encoding="utf-8")))
    changed = script.with_local_archive("".join(setup["source"]), Path("/dist/tracekit_ml.tar.gz"))
    assert "github.com" not in changed
    assert '%pip install --quiet "tracekit-ml[sql]"' in changed
    assert 'f"file:///dist/tracekit_ml.tar.gz"' in changed
    assert "tracekit_ml-{__version__}/sample_traces" in changed
    with pytest.raises(ValueError, match="does not name"):
        script.with_local_archive("import tracekit", Path("/dist/tracekit_ml.tar.gz"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_can_be_read_without_running(path):
    """What a cell shows is stored with it, and nothing of the machine that ran it."""
    text = path.read_text(encoding="utf-8")
    notebook = json.loads(text)
    code = code_cells(notebook)
    assert all(cell["execution_count"] for cell in code)
    # Imports and folders show nothing.
    assert sum(bool(cell["outputs"]) for cell in code) >= len(code) - 2
    assert (
        sum("image/png" in out.get("data", {}) for cell in code for out in cell["outputs"])
        == PICTURES[path.stem]
    )
    assert not [out for cell in code for out in cell["outputs"] if out["output_type"] == "error"]
    assert all(cell["metadata"] == {} for cell in notebook["cells"])
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert not re.search(r"/(home|root|tmp|work)/", text)
    assert len(text) < 400_000


def test_the_documentation_shows_every_picture():
    text = (ROOT / "docs/notebooks.md").read_text(encoding="utf-8")
    shown = re.findall(r"\]\(img/(notebook-\d\d-\d\.png)\)", text)
    made = [
        f"notebook-{stem[:2]}-{i}.png"
        for stem, count in PICTURES.items()
        for i in range(1, count + 1)
    ]
    assert sorted(shown) == made
    for name in made:
        assert (ROOT / "docs/img" / name).stat().st_size < 100_000
