"""The command ``tracekit doctor``."""

from typing import Annotated

import typer

from tracekit.report.terminal import command_options as options


def run(
    paths: options.Paths = None,
    *,
    ranks: options.Ranks = None,
    roles: options.Roles = None,
    file_rank: options.FileRank = None,
    workers: options.Workers = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Show what these traces hold and lack, and how to record better."""
    from tracekit.doctor.diagnose import diagnose
    from tracekit.report.terminal.screen import Screen

    diagnosis = diagnose(
        options.role_paths(paths, roles, "doctor"),
        ranks=ranks,
        file_rank=file_rank,
        workers=workers,
    )
    if json:
        typer.echo(diagnosis.to_json())
    else:
        Screen().print(diagnosis)
