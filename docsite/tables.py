"""Reference of table columns: of the schema with their comments, of an analysis by name."""

from __future__ import annotations

import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl

from docsite.code import comments, docstring_under, markdown, row, table

SCHEMA_TABLES = {
    "Events": ("EVENTS", "`trace.events`, `events.parquet` of a store"),
    "Evidence": ("EVIDENCE", "the next columns of `trace.labelled`, `labelled.parquet` of a store"),
    "Labels": ("LABELLING", "the last columns of the same"),
    "Pipeline cells": ("CELLS", "the first columns of the table `cells` of an analysis"),
}
MEANINGS_FILE = Path(__file__).with_name("columns.toml")
"""Contents of the tables of an analysis and meanings of their columns; a name means the same in
every table."""


def page() -> str:
    """Return the page of tables."""
    from tracekit import schema

    out = [
        "# Tables",
        "",
        "Times are Int64 nanoseconds since the Unix epoch; unknown is null, never 0 or empty. `Categorical` is text"
        " stored once. Columns are never renamed or reordered.",
    ]
    for title, (variable, where) in SCHEMA_TABLES.items():
        column_comments = comments(schema, variable)
        description = markdown(docstring_under(schema, variable))
        out += [
            "",
            f"## {title}",
            "",
            f"{description} Where: {where}.".strip(),
            "",
            *table("column", "type", "meaning"),
        ]
        out += [
            row(f"`{name}`", _type(kind), column_comments.get(name, ""))
            for name, kind in getattr(schema, variable).items()
        ]
    return "\n".join([*out, *_analysis()]) + "\n"


def words() -> dict[str, Any]:
    """Return the meanings of an analysis' tables and columns."""
    return tomllib.loads(MEANINGS_FILE.read_text(encoding="utf-8"))


def _analysis() -> list[str]:
    known = words()
    out = [
        "",
        "## Tables of an analysis",
        "",
        "`analysis.tables[NAME]`, polars; `analysis.to_pandas()[NAME]`; one CSV or Parquet file each with"
        " `tracekit analyze … -o tables.parquet`.",
    ]
    for name, frame in _tables().items():
        out += [
            "",
            f"### {name}",
            "",
            known["table"][name],
            "",
            *table("column", "type", "meaning"),
        ]
        out += [
            row(f"`{column}`", _type(kind), meaning(known, name, column))
            for column, kind in frame.schema.items()
        ]
    return out


def _tables() -> Mapping[str, pl.DataFrame]:
    """Return the tables of a small synthetic run with a pipeline, which has every table."""
    from tracekit.pipeline.schedules import generate
    from tracekit.run.analyze import analyze
    from tracekit.synthetic import Recipe, write_run

    with tempfile.TemporaryDirectory() as folder:
        write_run(Recipe(generate("1f1b", pp=2, microbatches=2)), folder)
        return analyze(folder, workers=1).tables


def meaning(known: dict[str, Any], name: str, column: str) -> str:
    """Return the meaning of a column: in this table, else in all tables."""
    return str(known.get("in", {}).get(name, {}).get(column) or known["column"][column])


def _type(kind: Any) -> str:
    text = str(kind)
    return (
        "Enum"
        if text.startswith("Enum")
        else "Categorical"
        if text.startswith("Categorical")
        else text
    )
