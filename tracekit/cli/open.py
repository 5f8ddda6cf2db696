"""``tracekit open``: the exported trace handed to ui.perfetto.dev, from this machine to one reader."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit._util.text import size
from tracekit.cli._base import say
from tracekit.cli._common import parse_ranks, show_notices
from tracekit.cli._options import IdealDrawn, Nsys, Paths, Rank, Ranks, Rules, StacksDrawn, Workers

if TYPE_CHECKING:
    from tracekit.report.perfetto.serve import OneReader


def run(
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
    from tracekit.report.perfetto.serve import OneReader, is_export

    if len(paths) == 1 and is_export(paths[0]):
        with OneReader(Path(paths[0]), port=port) as offer:
            _offer(offer)
        return
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
            _offer(offer)


def _offer(offer: OneReader) -> None:
    """Print the link, wait for its reader, and say what it takes from another machine."""
    say(offer.link)
    if forward := over_ssh(offer.port):
        say(f"over SSH: first run this on your own machine, then open the link there: {forward}", err=True)
    say(f"serving {size(offer.file.stat().st_size)} to one reader; Ctrl-C ends it", err=True)
    offer.wait()
    say("read; done", err=True)


def over_ssh(port: int, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the command that forwards *port* to the reader's own machine; None where this one is not reached over SSH.

    >>> over_ssh(9001, {"SSH_CONNECTION": "10.0.0.9 52514 10.0.0.7 22", "USER": "ada"})
    'ssh -N -L 9001:127.0.0.1:9001 ada@10.0.0.7'
    """
    words = environment.get("SSH_CONNECTION", "").split()
    if len(words) != 4:
        return None
    user = f"{environment['USER']}@" if environment.get("USER") else ""
    other = f" -p {words[3]}" if words[3] != "22" else ""
    return f"ssh -N -L {port}:127.0.0.1:{port}{other} {user}{words[2]}"
