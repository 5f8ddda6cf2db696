"""``tracekit export``: the trace with labels, pipeline and ideal, for ui.perfetto.dev."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit._util.text import counted, size
from tracekit.cli._base import say
from tracekit.cli._common import parse_ranks, show_notices
from tracekit.cli._options import IdealDrawn, Nsys, Paths, Rank, Ranks, Rules, StacksDrawn, Workers


def run(
    paths: Paths,
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write: .json.gz or .json.", metavar="FILE")],
    schedule: IdealDrawn = "auto",
    ranks: Ranks = None,
    rank: Rank = None,
    rules: Rules = None,
    stacks: StacksDrawn = False,
    workers: Workers = None,
    nsys: Nsys = None,
) -> None:
    """Write the trace with tracks of labels, pipeline cells and ideal cells; open it at ui.perfetto.dev."""
    from tracekit.report.perfetto.export import export as run

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
    say(f"Wrote {done.path}: {counted(len(done.ranks), 'rank')}, {done.events:,} events{cells}, {written}")
    say("open it at https://ui.perfetto.dev, or with: tracekit open", err=True)
