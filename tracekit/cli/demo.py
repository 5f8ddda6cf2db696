"""The command ``tracekit demo``, which needs no trace."""

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli._console import print_note, shows_result


def run(
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Folder to write the sample run and its page into.",
            metavar="FOLDER",
        ),
    ] = Path("tracekit-demo"),
) -> None:
    """Write a sample run of four ranks, analyse it, and write its page."""
    from tracekit.report.terminal.analysis import render
    from tracekit.report.terminal.screen import Screen
    from tracekit.report.write import write
    from tracekit.run.analyze import analyze
    from tracekit.synthetic.files import write_sample

    files = write_sample(output)
    analysis = analyze([str(output)])
    write(analysis, output / "report.html")
    if shows_result([output]):
        render(analysis, Screen(), full=False, page_written=True)
    print_note(f"wrote {len(files)} traces and report.html into {output}")
    print_note(f"every table: tracekit analyze {output} --full")
