"""Columns of the tables that a rank is measured into, as the file of them in the package.

``python ci/table_columns.py`` writes the file; run it when a table gets a column.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from tracekit.analysis.measure.tables import rank_tables
from tracekit.analysis.table_checks import COLUMNS_FILE, named_tables
from tracekit.memory.measures.activations import ACTIVATIONS
from tracekit.memory.measures.contents import CONTENTS
from tracekit.memory.measures.history import (
    FRAMES,
    HISTORY_LEVELS,
    HISTORY_STACKS,
    LIVES,
    SEGMENT_LIVES,
)
from tracekit.memory.measures.leaks import LEAKS
from tracekit.memory.measures.rank_contents import STACKS, STEP_STARTS
from tracekit.roles.weight_updates.transfers import RELOAD_EVENTS
from tracekit.schema import EVENTS, LABELLED, RankEvents, Source

HEADER = "# Columns of the tables of a rank in a store; ci/table_columns.py writes this file.\n"
ONLY_SOMETIMES = {
    "reload": RELOAD_EVENTS,
    "memory.contents.contents": CONTENTS,
    "memory.contents.end_contents": CONTENTS,
    "memory.contents.stacks": STACKS,
    "memory.contents.activations": ACTIVATIONS,
    "memory.contents.leaks": LEAKS,
    "memory.contents.step_starts": STEP_STARTS,
    "memory.contents.history.lives": LIVES,
    "memory.contents.history.levels": HISTORY_LEVELS,
    "memory.contents.history.segments": SEGMENT_LIVES,
    "memory.contents.history.frames": FRAMES,
    "memory.contents.history.stacks": HISTORY_STACKS,
}
"""Columns of the tables that a rank without events does not have."""


def measured_columns() -> dict[str, pl.Schema]:
    """Return the columns of each table: those of a rank without events, then those that it lacks."""
    nothing = RankEvents(EVENTS.to_frame(), Source("", "kineto", 0, "option"))
    no_events = LABELLED.to_frame()
    tables = rank_tables(nothing, labelled=no_events, lost=no_events)
    return {name: table.schema for name, table in named_tables(tables)} | ONLY_SOMETIMES


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
