"""The command ``tracekit memory``."""

from pathlib import Path
from typing import Annotated

import typer

from tracekit.report.terminal import command_options as options
from tracekit.report.terminal.console import print_note, print_notices, shows_result

SNAPSHOTS_HELP = (
    "Memory snapshots (torch.cuda.memory._dump_snapshot): files, folders or quoted globs."
)


def run(
    paths: Annotated[list[str], typer.Argument(help=SNAPSHOTS_HELP, metavar="PATH")],
    *,
    output: Annotated[
        list[Path] | None,
        options.output(
            "Write the result: a page .html, .json, or a flame graph of the peak: .svg, .png, .pdf; may be repeated."
        ),
    ] = None,
    ranks: options.Ranks = None,
    gpu_memory: Annotated[
        float | None,
        options.value("Memory of each GPU in GB, which a snapshot does not tell.", "GB"),
    ] = None,
    json: options.Json = False,
) -> None:
    """Show what fills each GPU at its peak, by purpose and source line, and what grows from step to step."""
    from tracekit.memory import memory
    from tracekit.memory.terminal import render
    from tracekit.memory.write import check_memory_output, write_memory
    from tracekit.report.terminal.screen import Screen

    for path in output or ():
        check_memory_output(path)
    report = memory(paths, ranks=ranks, gpu_memory_gb=gpu_memory)
    for path in output or ():
        write_memory(report, path)
        print_note(f"wrote {path}")
    if json:
        typer.echo(report.to_json())
        return
    if shows_result(output):
        screen = Screen()
        screen.print(render(report, screen.width))
    print_notices(report.notices)
