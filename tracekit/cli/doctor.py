"""The command ``tracekit doctor``."""

from __future__ import annotations

from typing import Annotated

import typer

from tracekit.cli._options import Nsys, Paths, Rank, Ranks, Workers, parse_ranks
from tracekit.cli._roles import Roles, role_paths


def run(
    paths: Paths = None,
    *,
    ranks: Ranks = None,
    roles: Roles = None,
    rank: Rank = None,
    workers: Workers = None,
    nsys: Nsys = None,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Show what these traces hold, what is missing, which answers that rules out, and how to record better."""
    from tracekit.doctor.diagnose import diagnose
    from tracekit.report.terminal.doctor import show
    from tracekit.report.terminal.screen import Screen

    diagnosis = diagnose(role_paths(paths, roles, "doctor"), ranks=parse_ranks(ranks), file_rank=rank, workers=workers)
    if json:
        typer.echo(diagnosis.to_json())
    else:
        show(diagnosis, Screen())
