"""The command ``tracekit ingest``."""

from pathlib import Path
from typing import Annotated

import typer

from tracekit._util.text import counted, size
from tracekit.report.terminal import command_options as options
from tracekit.report.terminal.console import (
    note_partial_store,
    print_line,
    print_notices,
    shows_result,
)


def run(
    paths: options.Paths = None,
    *,
    output: Annotated[Path, options.output("The store to write: a folder.", metavar="STORE")],
    ranks: options.Ranks = None,
    roles: options.Roles = None,
    file_rank: options.FileRank = None,
    rules: options.Rules = None,
    workers: options.Workers = None,
    stacks: Annotated[bool, typer.Option("--stacks", help="Keep Python frames as well.")] = False,
    strict: options.Strict = False,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    dask: options.Dask = None,
) -> None:
    """Write traces as a Parquet store, labelled, one folder per rank.

    Reading it back needs no parsing.
    """
    from tracekit.late.store import read_stored_recordings
    from tracekit.run.dask import cluster
    from tracekit.run.ingest import ingest

    with note_partial_store(output), cluster(dask) as (executor, cluster_size):
        store = ingest(
            options.role_paths(paths, roles, "ingest"),
            output,
            ranks=ranks,
            file_rank=file_rank,
            workers=workers or cluster_size,
            executor=executor,
            stacks=stacks,
            on_damage="error" if strict else "warn",
            rules=rules,
            resume=resume,
            overwrite=overwrite,
        )
    print_notices(store.notices)
    events = sum(entry.rows for entry in store.entries)
    store_bytes = sum(file.stat().st_size for file in output.rglob("*") if file.is_file())
    contents = []
    if store.entries:
        contents += [counted(len(store.entries), "rank"), f"{events:,} events"]
    recordings = read_stored_recordings(output)
    if recordings is not None:
        contents.append(f"{counted(recordings.collectives.height, 'collective')} of dumps and logs")
    if shows_result([output]):
        print_line(f"Wrote {output}: {', '.join(contents)}, {size(store_bytes)}")
