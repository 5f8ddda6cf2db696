"""``tracekit diff``: what changed between two runs, for people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli._base import say
from tracekit.cli._options import Nsys

SIDE_HELP = "A trace, a store, a folder, a saved analysis or a baseline file."


def run(
    before: Annotated[str, typer.Argument(help=SIDE_HELP, metavar="A")],
    after: Annotated[str, typer.Argument(help=SIDE_HELP, metavar="B")],
    *,
    output: Annotated[
        list[Path] | None,
        typer.Option("--output", "-o", help="Write the result: .json, .md or .html; may be repeated.", metavar="FILE"),
    ] = None,
    nsys: Nsys = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Show what changed from A to B by label, module, rank, kernel and cell, the largest change first."""
    from tracekit.diffs import diff as compare
    from tracekit.report.ci import write as gate_write
    from tracekit.report.terminal import diff as diff_terminal
    from tracekit.report.terminal.screen import Screen

    paths = output or []
    gate_write.check_outputs(paths, gate_write.DIFF)
    result = compare(before, after).to_dict()
    gate_write.write_all(result, paths, gate_write.DIFF)
    for path in paths:
        say(f"wrote {path}", err=True)
    if json:
        typer.echo(gate_write.to_json(result), nl=False)
    else:
        diff_terminal.show(result, Screen(highlight=True))
