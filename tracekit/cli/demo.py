"""The command ``tracekit demo``, which needs no trace."""

import os
import shutil
import sysconfig
from pathlib import Path
from typing import Annotated

import typer

from tracekit._util.os_errors import write_error
from tracekit.errors import InputError, OutputError
from tracekit.report.terminal.console import print_note, print_text, shows_result

RUNS = {
    "h100-ddp": "Data-parallel training on eight H100 (modded-nanogpt, recorded by its author):",
    "1f1b": "A pipeline of four stages:",
}
"""Sample runs in the order in which they are shown, and what each is."""
INSTALLED_SAMPLES = "share/tracekit/sample_traces"
"""Folder of the sample runs below the one that data files are installed to."""


def run(
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Folder to write the sample runs and their pages into.",
            metavar="FOLDER",
        ),
    ] = Path("tracekit-demo"),
) -> None:
    """Analyse two sample runs, data-parallel training and a pipeline, and write them with their pages."""
    from tracekit.report.terminal.analysis import render
    from tracekit.report.terminal.screen import Screen
    from tracekit.results.write import write
    from tracekit.run.analyze import analyze

    copy_runs(find_samples(), output)
    for name, what in RUNS.items():
        analysis = analyze([str(output / name)])
        write(analysis, output / f"{name}.html")
        if shows_result([output]):
            print_text(what)
            render(analysis, Screen(), full=False, page_written=True)
            print_text("")
    pages = " and ".join(str(output / f"{name}.html") for name in RUNS)
    print_note(f"wrote the runs into {output}, as pages {pages}")
    print_note(f"every table: tracekit analyze {output / next(iter(RUNS))} --full")


def find_samples() -> Path:
    """Return the folder of the sample runs: of this checkout, or as they were installed."""
    beside_package = Path(__file__).resolve().parents[2]
    data_folders = (
        beside_package,
        Path(sysconfig.get_path("data")),
        Path(sysconfig.get_path("data", f"{os.name}_user")),
    )
    folders = [beside_package / "sample_traces"]
    folders += [folder / INSTALLED_SAMPLES for folder in data_folders]
    for folder in folders:
        if all((folder / name).is_dir() for name in RUNS):
            return folder
    raise InputError(
        "the sample runs are not installed with tracekit",
        hint="clone the repository and run: tracekit analyze sample_traces/h100-ddp",
    )


def copy_runs(samples: Path, target: Path) -> None:
    """Copy the sample runs into a folder, which must be empty or contain only what an older demo wrote."""
    expected = {*RUNS, *(f"{name}.html" for name in RUNS)}
    if target.exists() and (
        not target.is_dir() or any(path.name not in expected for path in target.iterdir())
    ):
        raise OutputError(
            "already exists and contains other files",
            path=target,
            hint="name another folder with -o",
        )
    try:
        for name in RUNS:
            shutil.copytree(samples / name, target / name, dirs_exist_ok=True)
    except OSError as error:
        raise write_error(error, target) from error
