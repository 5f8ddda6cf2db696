"""``tracekit export``: the trace with labels, pipeline and ideal, for ui.perfetto.dev."""

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

SCHEDULE_HELP = "Ideal to draw: auto, a name, an order file or none."
STACKS_HELP = "Python frames too."


def export(
    paths: Annotated[list[str], typer.Argument(help=PATHS_HELP, metavar="PATH")],
    *,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where to write it: .json.gz or .json.", metavar="FILE")
    ],
    schedule: Annotated[str, typer.Option(help=SCHEDULE_HELP, metavar="NAME")] = "auto",
    ranks: Annotated[str | None, typer.Option(help=RANKS_HELP, metavar="RANKS")] = None,
    rank: Annotated[int | None, typer.Option(help=RANK_HELP, metavar="N", min=0)] = None,
    rules: Annotated[Path | None, typer.Option(help=RULES_HELP, metavar="FILE")] = None,
    stacks: Annotated[bool, typer.Option("--stacks", help=STACKS_HELP)] = False,
    workers: Annotated[int | None, typer.Option(help=WORKERS_HELP, metavar="N", min=1)] = None,
    nsys: Annotated[
        str | None, typer.Option(help=NSYS_HELP, metavar="PROGRAM", envvar=NSYS_VARIABLE, callback=use_nsys)
    ] = None,
) -> None:
    """Write the trace with tracks of labels, pipeline cells and ideal cells; open it at ui.perfetto.dev."""
    from tracekit.export import export as run

    done = run(
        paths,
        output,
        schedule=schedule,
        ranks=parse_ranks(ranks),
        rank=rank,
        rules=rules,
        stacks=stacks,
        workers=workers,
    )
    show_notices(done.notices)
    cells = f", {done.cells:,} cells" if done.cells else ""
    written = size(done.path.stat().st_size)
    ranked = f"{len(done.ranks)} rank{'s' * (len(done.ranks) != 1)}"
    typer.echo(f"Wrote {done.path}: {ranked}, {done.events:,} events{cells}, {written}")
    typer.echo("open it at https://ui.perfetto.dev, or with: tracekit open", err=True)
