"""The command ``tracekit doctor``."""

from typing import Annotated

import typer

from tracekit.cli import _options as options


def run(
    paths: options.Paths = None,
    *,
    ranks: options.Ranks = None,
    roles: options.Roles = None,
    rank: options.Rank = None,
    workers: options.Workers = None,
    nsys: options.Nsys = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Show what these traces hold and lack, how to record better, and what costs time in a step."""
    from tracekit.doctor.diagnose import diagnose
    from tracekit.report.terminal.screen import Screen

    diagnosis = diagnose(
        options.role_paths(paths, roles, "doctor"),
        ranks=ranks,
        file_rank=rank,
        workers=workers,
        steps=True,
    )
    if json:
        typer.echo(diagnosis.to_json())
    else:
        Screen().print(diagnosis)
