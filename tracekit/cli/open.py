"""``tracekit open``: the exported trace handed to ui.perfetto.dev, from this machine to one reader."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli._common import (
    NSYS_HELP,
    NSYS_VARIABLE,
    PATHS_HELP,
    RANK_HELP,
    RANKS_HELP,
    RULES_HELP,
    WORKERS_HELP,
    parse_ranks,
    show_notices,
    size,
    use_nsys,
)
from tracekit.cli.export import SCHEDULE_HELP, STACKS_HELP


def open_(
    paths: Annotated[list[str], typer.Argument(help=PATHS_HELP, metavar="PATH")],
    *,
    schedule: Annotated[str, typer.Option(help=SCHEDULE_HELP, metavar="NAME")] = "auto",
    ranks: Annotated[str | None, typer.Option(help=RANKS_HELP, metavar="RANKS")] = None,
    rank: Annotated[int | None, typer.Option(help=RANK_HELP, metavar="N", min=0)] = None,
    rules: Annotated[Path | None, typer.Option(help=RULES_HELP, metavar="FILE")] = None,
    stacks: Annotated[bool, typer.Option("--stacks", help=STACKS_HELP)] = False,
    workers: Annotated[int | None, typer.Option(help=WORKERS_HELP, metavar="N", min=1)] = None,
    nsys: Annotated[
        str | None, typer.Option(help=NSYS_HELP, metavar="PROGRAM", envvar=NSYS_VARIABLE, callback=use_nsys)
    ] = None,
    port: Annotated[
        int,
        typer.Option(help="Port to serve on; ui.perfetto.dev reads only from 9001.", min=0, max=65535, metavar="PORT"),
    ] = 9001,
) -> None:
    """Print a link that opens the trace at ui.perfetto.dev; it is served on loopback only and ends once read."""
    import tempfile

    from tracekit.export import export
    from tracekit.report.serve import OneReader

    with tempfile.TemporaryDirectory(prefix="tracekit-") as folder:
        file = Path(folder) / "trace.json.gz"
        with OneReader(file, port=port) as offer:  # a taken port is said before the work, not after it
            done = export(
                paths,
                file,
                schedule=schedule,
                ranks=parse_ranks(ranks),
                rank=rank,
                rules=rules,
                stacks=stacks,
                workers=workers,
            )
            show_notices(done.notices)
            typer.echo(offer.link)
            typer.echo(f"serving {size(file.stat().st_size)} to one reader; Ctrl-C ends it", err=True)
            offer.wait()
            typer.echo("read; done", err=True)
