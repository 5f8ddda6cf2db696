"""``tracekit open``: the exported trace handed to ui.perfetto.dev, from this machine to one reader."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit._util.text import size
from tracekit.cli._base import say
from tracekit.cli._common import parse_ranks, show_notices
from tracekit.cli._options import IdealDrawn, Nsys, Paths, Rank, Ranks, Rules, StacksDrawn, Workers


def open_(
    paths: Paths,
    *,
    schedule: IdealDrawn = "auto",
    ranks: Ranks = None,
    rank: Rank = None,
    rules: Rules = None,
    stacks: StacksDrawn = False,
    workers: Workers = None,
    nsys: Nsys = None,
    port: Annotated[
        int,
        typer.Option(help="Port to serve on; ui.perfetto.dev reads only from 9001.", min=0, max=65535, metavar="PORT"),
    ] = 9001,
) -> None:
    """Print a link that opens the trace at ui.perfetto.dev; it is served on loopback only and ends once read."""
    import tempfile

    from tracekit.report.perfetto.export import export
    from tracekit.report.perfetto.serve import OneReader

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
            say(offer.link)
            say(f"serving {size(file.stat().st_size)} to one reader; Ctrl-C ends it", err=True)
            offer.wait()
            say("read; done", err=True)
