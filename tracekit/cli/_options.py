"""Options that mean the same in every command, each declared once: its type, its help and how it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli._common import NSYS_VARIABLE, use_nsys

Paths = Annotated[
    list[str], typer.Argument(help="Traces: files, a folder, a quoted glob, a URL or a store.", metavar="PATH")
]
Ranks = Annotated[str | None, typer.Option(help="Read only these ranks: 0,2 or 0-7.", metavar="RANKS")]
Rank = Annotated[int | None, typer.Option(help="The rank of a single file that does not name it.", metavar="N", min=0)]
Rules = Annotated[Path | None, typer.Option(help="Rules file to label with, before the built-in ones.", metavar="FILE")]
Workers = Annotated[
    int | None, typer.Option(help="Number of reading processes; by default as many as help.", metavar="N", min=1)
]
Nsys = Annotated[
    str | None,
    typer.Option(
        help="Path of nsys, which reads .nsys-rep reports, if it is not on the PATH.",
        metavar="PROGRAM",
        envvar=NSYS_VARIABLE,
        callback=use_nsys,
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="A damaged, unreadable or missing rank is an error, not a warning.")
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the store: read only traces that are not in it or have changed.")
]
Dask = Annotated[
    str | None,
    typer.Option(
        help="Work on the Dask cluster whose scheduler is at this address: tcp://host:8786.", metavar="ADDRESS"
    ),
]
IdealDrawn = Annotated[str, typer.Option(help="Ideal to draw: auto, a name, an order file or none.", metavar="NAME")]
StacksDrawn = Annotated[bool, typer.Option("--stacks", help="Python frames too.")]
