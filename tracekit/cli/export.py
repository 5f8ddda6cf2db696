"""The command ``tracekit export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit._util.text import counted, size
from tracekit.cli._console import print_line, print_notices
from tracekit.cli._options import DrawnIdeal, DrawnStacks, Nsys, Paths, Rank, Ranks, Rules, Workers, parse_ranks
from tracekit.cli._roles import Roles, role_paths


def run(
    paths: Paths = None,
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write: .json.gz or .json.", metavar="FILE")],
    schedule: DrawnIdeal = "auto",
    ranks: Ranks = None,
    roles: Roles = None,
    rank: Rank = None,
    rules: Rules = None,
    stacks: DrawnStacks = False,
    workers: Workers = None,
    nsys: Nsys = None,
) -> None:
    """Write the trace with tracks of labels, pipeline cells and ideal cells; open it at ui.perfetto.dev."""
    from tracekit.report.perfetto.export import export

    exported = export(
        role_paths(paths, roles, "export"),
        output,
        schedule=schedule,
        ranks=parse_ranks(ranks),
        file_rank=rank,
        rules=rules,
        stacks=stacks,
        workers=workers,
    )
    print_notices(exported.notices)
    ranks_text = counted(len(exported.ranks), "rank")
    cells_text = f", {exported.cells:,} cells" if exported.cells else ""
    file_size = size(exported.path.stat().st_size)
    print_line(f"Wrote {exported.path}: {ranks_text}, {exported.events:,} events{cells_text}, {file_size}")
    print_line("open it at https://ui.perfetto.dev, or with: tracekit open", err=True)
