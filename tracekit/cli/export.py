"""``tracekit export``: the trace with labels, pipeline and ideal, for ui.perfetto.dev."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli._common import PATHS_HELP, RANK_HELP, RANKS_HELP, WORKERS_HELP, parse_ranks, show_notices, size

SCHEDULE_HELP = "Ideal to draw: auto, a name, an order file or none."
RULES_HELP = "Rules file to label with, before the built-in ones."
STACKS_HELP = "Python frames too."


def export(
    paths: Annotated[list[str], typer.Argument(help=PATHS_HELP, metavar="PATH…")],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write it: .json.gz or .json.")],
    schedule: Annotated[str, typer.Option(help=SCHEDULE_HELP)] = "auto",
    ranks: Annotated[str | None, typer.Option(help=RANKS_HELP)] = None,
    rank: Annotated[int | None, typer.Option(help=RANK_HELP)] = None,
    rules: Annotated[Path | None, typer.Option(help=RULES_HELP)] = None,
    stacks: Annotated[bool, typer.Option("--stacks", help=STACKS_HELP)] = False,
    workers: Annotated[int | None, typer.Option(help=WORKERS_HELP, min=1)] = None,
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
