"""``tracekit ingest``: traces into a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracekit._util.text import counted, size
from tracekit.cli._base import say
from tracekit.cli._common import keeping, parse_ranks, show_notices
from tracekit.cli._options import Dask, Nsys, Paths, Rank, Ranks, Resume, Rules, Strict, Workers


def run(
    paths: Paths,
    *,
    output: Annotated[Path, typer.Option("-o", "--output", help="The store to write: a folder.", metavar="STORE")],
    ranks: Ranks = None,
    rank: Rank = None,
    rules: Rules = None,
    workers: Workers = None,
    nsys: Nsys = None,
    stacks: Annotated[bool, typer.Option("--stacks", help="Keep Python frames too.")] = False,
    lenient: Annotated[bool, typer.Option(help="Use what can be read of a damaged file.")] = True,
    strict: Strict = False,
    resume: Resume = False,
    dask: Dask = None,
) -> None:
    """Write traces as a Parquet store, labelled, one folder per rank; reading it back needs no parsing."""
    from tracekit.run.dask import cluster
    from tracekit.run.ingest import ingest

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
    say(f"Wrote {output}: {counted(len(store.entries), 'rank')}, {rows:,} events, {size(written)}")
