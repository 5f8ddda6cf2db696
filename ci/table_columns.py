"""Columns of the tables that a rank is measured into, as the file of them in the package.

``python ci/table_columns.py`` writes the file; run it when a table gets a column.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from tracekit.analysis.measure.tables import label_rank, measure_rank
from tracekit.analysis.table_checks import COLUMNS_FILE, named_tables
from tracekit.schema import EVENTS, LABELLED, RankEvents, Source

HEADER = "# Columns of the tables of a rank in a store; ci/table_columns.py writes this file.\n"


def measured_columns() -> dict[str, pl.Schema]:
    """Return the columns of each table of the core: those of a rank without events.

    Those of side rooms stand with what they measure (``RoomMeasure.columns``).
    """
    nothing = RankEvents(EVENTS.to_frame(), Source("", "kineto", 0, "option"))
    no_events = LABELLED.to_frame()
    tables = measure_rank(label_rank(nothing, labelled=no_events, lost=no_events))
    return {name: table.schema for name, table in named_tables(tables)}


def type_text(dtype: pl.DataType) -> str:
    """Return the TOML value of a column's type.

    >>> type_text(pl.List(pl.Struct({"peer": pl.Int32()})))
    '{ list = { struct = { peer = "Int32" } } }'
    >>> type_text(pl.Enum(["forward", "backward"]))
    '["forward", "backward"]'
    """
    if isinstance(dtype, pl.Enum):
        words = ", ".join(f'"{word}"' for word in dtype.categories)
        return f"[{words}]"
    if isinstance(dtype, pl.List):
        inner: Any = dtype.inner
        return f"{{ list = {type_text(inner)} }}"
    if isinstance(dtype, pl.Struct):
        fields: list[Any] = dtype.fields
        texts = ", ".join(f"{field.name} = {type_text(field.dtype)}" for field in fields)
        return f"{{ struct = {{ {texts} }} }}"
    return f'"{dtype.base_type().__name__}"'


def file_text(columns: dict[str, pl.Schema]) -> str:
    """Return the text of the file."""
    text = HEADER
    for name, schema in columns.items():
        if name.startswith("by_step."):  # as those of the window
            continue
        text += f'\n["{name}"]\n'
        for column, dtype in schema.items():
            text += f"{column} = {type_text(dtype)}\n"
    return text


if __name__ == "__main__":
    COLUMNS_FILE.write_text(file_text(measured_columns()), encoding="utf-8")
