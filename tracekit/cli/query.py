"""The command ``tracekit query``."""

from pathlib import Path
from typing import Annotated

import typer

from tracekit.report.terminal import command_options as options
from tracekit.report.terminal.console import print_note, print_text

MAX_PRINTED_ROWS = 200
"""Rows printed at most; --output writes all."""


def run(
    store: Annotated[
        Path,
        typer.Argument(
            help="A store that ingest wrote, or a table of runs that watch wrote.", metavar="STORE"
        ),
    ],
    sql: Annotated[
        str,
        typer.Argument(
            help="A SELECT over events, labelled, collectives, ranks, budgets, cells, findings; or over runs.",
            metavar="SQL",
        ),
    ],
    *,
    output: Annotated[
        Path | None, options.output("Write the rows: .csv, .json or .parquet.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Answer SQL over the tables of a store, or over a table of runs.

    Nothing is written, and nothing outside the store is read.
    """
    from tracekit.report.write import (
        ROW_FORMATS,
        check_extension,
        render_rows,
        rows_json,
        rows_text,
        write_file,
    )
    from tracekit.run.query import query

    extension = "" if output is None else check_extension(output, ROW_FORMATS)
    rows = query(store, sql)
    if output is not None:
        write_file(output, render_rows(rows, extension))
        print_note(f"wrote {output}")
    elif json:
        typer.echo(rows_json(rows))
    else:
        from tracekit.report.terminal.screen import Screen

        screen = Screen()
        print_text(
            rows_text(
                rows, most=MAX_PRINTED_ROWS, width=screen.columns if screen.is_terminal else None
            )
        )
