"""``tracekit ingest``: traces into a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit.cli._common import (
    DASK_HELP,
    NSYS_HELP,
    NSYS_VARIABLE,
    PATHS_HELP,
    RANK_HELP,
    RANKS_HELP,
    RESUME_HELP,
    RULES_HELP,
    STRICT_HELP,
    WORKERS_HELP,
    counted,
    keeping,
    parse_ranks,
    show_notices,
    size,
    use_nsys,
)


def ingest(
    paths: Annotated[list[str], typer.Argument(help=PATHS_HELP, metavar="PATH")],
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="The store to write: a folder.", metavar="STORE")],
    ranks: Annotated[str | None, typer.Option(help=RANKS_HELP, metavar="RANKS")] = None,
    rank: Annotated[int | None, typer.Option(help=RANK_HELP, metavar="N", min=0)] = None,
    rules: Annotated[Path | None, typer.Option(help=RULES_HELP, metavar="FILE")] = None,
    workers: Annotated[int | None, typer.Option(help=WORKERS_HELP, metavar="N", min=1)] = None,
    nsys: Annotated[
        str | None, typer.Option(help=NSYS_HELP, metavar="PROGRAM", envvar=NSYS_VARIABLE, callback=use_nsys)
    ] = None,
    stacks: Annotated[bool, typer.Option("--stacks", help="Keep Python frames too.")] = False,
    lenient: Annotated[bool, typer.Option(help="Use what can be read of a damaged file.")] = True,
    strict: Annotated[bool, typer.Option("--strict", help=STRICT_HELP)] = False,
    resume: Annotated[bool, typer.Option("--resume", help=RESUME_HELP)] = False,
    dask: Annotated[str | None, typer.Option(help=DASK_HELP, metavar="ADDRESS")] = None,
) -> None:
    """Write traces as a Parquet store, labelled, one folder a rank; reading it back needs no parsing."""
    from tracekit.fleet import cluster, ingest

    with keeping(output), cluster(dask) as (executor, size_of_cluster):
        store, notices = ingest(
            paths,
            output,
            ranks=parse_ranks(ranks),
            rank=rank,
            workers=workers or size_of_cluster,
            executor=executor,
            stacks=stacks,
            lenient=lenient and not strict,
            strict=strict,
            rules=rules,
            resume=resume,
        )
    show_notices(notices)
    rows = sum(entry.rows for entry in store.entries)
    written = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
    typer.echo(f"Wrote {output}: {counted(len(store.entries), 'rank')}, {rows:,} events, {size(written)}")
