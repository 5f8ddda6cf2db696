"""The command ``tracekit late``."""

from pathlib import Path
from typing import Annotated

import typer

from tracekit.report.terminal import command_options as options
from tracekit.report.terminal.console import print_note, print_notices, shows_result

RECORDINGS_HELP = (
    "Flight-recorder dumps, NCCL Inspector logs, traces: files, folders or quoted globs."
)


def run(
    paths: Annotated[list[str], typer.Argument(help=RECORDINGS_HELP, metavar="PATH")],
    *,
    output: Annotated[
        list[Path] | None,
        options.output("Write the result: .json, .html or .csv; may be repeated."),
    ] = None,
    ranks: options.Ranks = None,
    workers: options.Workers = None,
    json: options.Json = False,
) -> None:
    """Show who joins collectives late over a whole run, since when and by how much, and who hangs."""
    from tracekit.late import late
    from tracekit.late.terminal import render
    from tracekit.late.write import check_late_output, write_late
    from tracekit.report.terminal.screen import Screen

    for path in output or ():
        check_late_output(path)
    result = late(paths, ranks=ranks, workers=workers)
    for path in output or ():
        write_late(result, path)
        print_note(f"wrote {path}")
    if json:
        typer.echo(result.to_json())
        return
    if shows_result(output):
        screen = Screen()
        screen.print(render(result, screen.width))
    print_notices(result.notices)
