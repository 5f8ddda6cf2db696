"""The command ``tracekit diff``."""

from pathlib import Path
from typing import Annotated

import typer

from tracekit.report.terminal import command_options as options
from tracekit.report.terminal.console import print_note, shows_result

SIDE_HELP = "A trace, a store, a folder, a saved analysis or a baseline file."


def run(
    before: Annotated[str, typer.Argument(help=SIDE_HELP, metavar="A")],
    after: Annotated[str, typer.Argument(help=SIDE_HELP, metavar="B")],
    *,
    output: Annotated[
        list[Path] | None, options.output("Write the result: .json, .md or .html; may be repeated.")
    ] = None,
    change: Annotated[
        str | None,
        options.value(
            "The change that was made from A to B, such as 'no data loading': what was predicted for it is held "
            "against what was measured.",
            "TEXT",
        ),
    ] = None,
    role: options.Role = None,
    json: options.Json = False,
) -> None:
    """Show what changed from A to B by label, module, rank, kernel and cell, the largest change first."""
    from tracekit.diffs import diff
    from tracekit.memory.run import holds_snapshots_alone
    from tracekit.report.ci.write import DIFF, to_json
    from tracekit.report.terminal.changes import show_diff
    from tracekit.report.terminal.screen import Screen
    from tracekit.report.write import check_extension

    for path in output or ():
        check_extension(path, DIFF)
    if holds_snapshots_alone(before) and holds_snapshots_alone(after):
        _show_memory(before, after, output=output or [], json=json)
        return
    changes = diff(before, after, role=role, change=change)
    for path in output or ():
        changes.save(path)
        print_note(f"wrote {path}")
    if json:
        typer.echo(to_json(changes.document), nl=False)
    elif shows_result(output):
        show_diff(changes.document, Screen(highlight=True))


def _show_memory(before: str, after: str, *, output: list[Path], json: bool) -> None:
    """Show what changed from one memory snapshot to another."""
    from tracekit.memory.run import diff_memory
    from tracekit.memory.terminal import render_diff
    from tracekit.memory.write import check_memory_output, write_memory
    from tracekit.report.terminal.console import print_notices
    from tracekit.report.terminal.screen import Screen

    for path in output:
        check_memory_output(path, (".html", ".json"))
    changes = diff_memory(before, after)
    for path in output:
        write_memory(changes, path)
        print_note(f"wrote {path}")
    if json:
        typer.echo(changes.to_json())
        return
    if shows_result(output):
        screen = Screen()
        screen.print(render_diff(changes, screen.width))
    print_notices(changes.notices)
