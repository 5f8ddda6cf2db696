"""Run every notebook in an empty folder with only an installed tracekit, as Colab does.

python ci/run_notebooks.py SOURCE_ARCHIVE

What the first cell of a notebook would fetch from the repository, the sample traces, comes from the
source archive that was built; what it would install must be installed. Needs nbclient and ipykernel.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tracekit._version import INSTALLED_FROM

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
PUBLISHED_ARCHIVE = (
    "https://github.com/tracekit-ml/tracekit/archive/refs/tags/v{__version__}.tar.gz"
)
PUBLISHED_FOLDER = "tracekit-{__version__}/sample_traces"


def main(source_archive: Path) -> None:
    """Run each notebook; one that fails ends the script with its error."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        setup = next(cell for cell in notebook.cells if cell.cell_type == "code")
        setup.source = with_local_archive(setup.source, source_archive)
        with tempfile.TemporaryDirectory() as folder:
            resources = {"metadata": {"path": folder}}
            NotebookClient(
                notebook, timeout=600, kernel_name="python3", resources=resources
            ).execute()
        print(f"{path.name} runs")


def with_local_archive(setup: str, source_archive: Path) -> str:
    """Return the first cell with a source archive of this machine in place of the published one.

    It asks for tracekit by its name alone, which is met by what is installed.
    """
    published_package = f" @ {INSTALLED_FROM}"
    for published in (published_package, PUBLISHED_ARCHIVE, PUBLISHED_FOLDER):
        if published not in setup:
            raise ValueError(f"the first cell of a notebook does not name {published}")
    setup = setup.replace(published_package, "")
    setup = setup.replace(PUBLISHED_ARCHIVE, source_archive.resolve().as_uri())
    return setup.replace(PUBLISHED_FOLDER, PUBLISHED_FOLDER.replace("tracekit-", "tracekit_ml-"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
