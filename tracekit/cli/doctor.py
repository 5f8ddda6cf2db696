"""``tracekit doctor``: what is in these files, and how to record better."""

from __future__ import annotations

from typing import Annotated

import typer

from tracekit.cli._common import (
    NSYS_HELP,
    NSYS_VARIABLE,
    PATHS_HELP,
    RANK_HELP,
    RANKS_HELP,
    WORKERS_HELP,
    parse_ranks,
    use_nsys,
)


def doctor(
    paths: Annotated[list[str], typer.Argument(help=PATHS_HELP, metavar="PATH")],
    *,
    ranks: Annotated[str | None, typer.Option(help=RANKS_HELP, metavar="RANKS")] = None,
    rank: Annotated[int | None, typer.Option(help=RANK_HELP, metavar="N", min=0)] = None,
    workers: Annotated[int | None, typer.Option(help=WORKERS_HELP, metavar="N", min=1)] = None,
    nsys: Annotated[
        str | None, typer.Option(help=NSYS_HELP, metavar="PROGRAM", envvar=NSYS_VARIABLE, callback=use_nsys)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say what these traces hold, what is missing, which answers that rules out, and how to record better."""
    from tracekit.cli._screen import Screen
    from tracekit.doctor import diagnose
    from tracekit.report.doctor import as_json, show

    diagnosis = diagnose(paths, ranks=parse_ranks(ranks), rank=rank, workers=workers)
    if json:
        typer.echo(as_json(diagnosis))
    else:
        show(diagnosis, Screen())
