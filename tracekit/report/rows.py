"""A table of rows as text, and as files."""

from __future__ import annotations

import io
from pathlib import Path

import polars as pl

from tracekit._util.files import atomic_write, check_output_path
from tracekit._util.text import counted, terminal
from tracekit.errors import OptionError

FORMATS = (".csv", ".json", ".parquet")


def rows_text(rows: pl.DataFrame, *, most: int) -> str:
    """Return rows in columns, the first *most* of them.

    >>> print(rows_text(pl.DataFrame({"rank": [0, 1], "label": ["forward", None]}), most=1))
    rank  label
       0  forward
    1 row more
    """
    shown = rows.head(most)
    cells = [list(rows.columns)] + [["–" if v is None else terminal(v) for v in row] for row in shown.iter_rows()]
    widths = [max(len(line[at]) for line in cells) for at in range(len(rows.columns))]
    right = [dtype.is_numeric() for dtype in rows.dtypes]
    lines = [
        "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right, strict=True)).rstrip()
        for line in cells
    ]
    if len(rows) > most:
        lines.append(f"{counted(len(rows) - most, 'row')} more")
    return "\n".join(lines)


def check_rows(path: Path) -> None:
    """Refuse a file that rows cannot be written to."""
    if path.suffix.lower() not in FORMATS:
        raise OptionError(
            f"{path}: cannot write {path.suffix or 'a file without extension'}", hint="use .csv, .json, .parquet"
        )
    check_output_path(path)


def write_rows(rows: pl.DataFrame, path: Path) -> None:
    """Write rows beside *path* and move them there."""
    with atomic_write(path) as part:
        if path.suffix.lower() == ".parquet":
            buffer = io.BytesIO()
            rows.write_parquet(buffer)
            part.write_bytes(buffer.getvalue())
        else:
            text = rows.write_csv() if path.suffix.lower() == ".csv" else rows.write_json()
            part.write_text(text, encoding="utf-8")
