"""The command ``tracekit diff``."""

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli import _options as options
from tracekit.cli._console import print_line

SIDE_HELP = "A trace, a store, a folder, a saved analysis or a baseline file."


def run(
    before: Annotated[str, typer.Argument(help=SIDE_HELP, metavar="A")],
    after: Annotated[str, typer.Argument(help=SIDE_HELP, metavar="B")],
    *,
    output: Annotated[
        list[Path] | None, options.output("Write the result: .json, .md or .html; may be repeated.")
    ] = None,
    role: options.Role = None,
    nsys: options.Nsys = None,
    json: options.Json = False,
) -> None:
    """Show what changed from A to B by label, module, rank, kernel and cell, the largest change first."""
    from tracekit.diffs import diff
    from tracekit.report.ci.write import DIFF, to_json, write_diff
    from tracekit.report.terminal.changes import show_diff
    from tracekit.report.terminal.screen import Screen
    from tracekit.report.write import check_extension

    for path in output or ():
        check_extension(path, DIFF)
    changes = diff(before, after, role=role)
    for path in output or ():
        write_diff(changes, path)
        print_line(f"wrote {path}", err=True)
    if json:
        typer.echo(to_json(changes.to_dict()), nl=False)
    else:
        show_diff(changes.to_dict(), Screen(highlight=True))
