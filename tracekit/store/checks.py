"""Checks of a store's tables when they are read: whoever writes a store can also write checksums that fit.

A table is loaded only if its declared number of rows fits into memory. Its columns must have the
types of its schema, and its times must be ones that a clock shows: everything behind relies on both
without checking again.
"""

import io

import polars as pl

from tracekit._util.inflation import inflated_limit
from tracekit._util.machine import available_memory
from tracekit.errors import MachineError
from tracekit.schema import LATEST_NS, conform

MAX_TOTAL = 1 << 60
"""Largest sum of a column: 36 years in nanoseconds, or an exabyte. Sums over eight ranks, of two
columns or of times and durations then fit into 64 bits."""
EVENT_NUMBER_LIMIT = 1 << 32
"""Events of a rank, which ``id`` counts from 0. The number of a rank, of 31 bits, and that of an
event fit into 64 bits together."""
NEVER_NULL = ("rank", "id", "kind", "start_ns", "end_ns", "at_ns", "label")
"""Columns that every row has, in the tables that have them."""
TIMES = ("start_ns", "end_ns", "at_ns", "launch_ns")
"""Columns of events that hold times of a clock."""
MAX_BYTES_OF_A_VALUE = 16
"""Bytes in memory of a value whose type does not tell: a text or a list, without what it points
to."""


def read_table(data: bytes, schema: pl.Schema) -> pl.DataFrame:
    """Return the table in a Parquet file with the columns of *schema*; those it lacks are null.

    Raises:
        MachineError: Its rows do not fit into memory.
        ValueError: It has columns of other kinds, or texts far longer than the file.
    """
    stored = pl.read_parquet_schema(io.BytesIO(data))
    names = [name for name in schema if name in stored]
    for name in names:
        if stored[name].is_nested() and not schema[name].is_nested():
            raise ValueError(f"the column {name} has lists or records")
    rows = pl.scan_parquet(io.BytesIO(data)).select(pl.len()).collect().item()
    check_size(rows, schema)
    table = pl.read_parquet(io.BytesIO(data), columns=names)
    # Lengths stand in the rows. Each text is looked at when it becomes a category: of a text that
    # all rows repeat, the file has one copy, and that is as long as all of them.
    lengths = table.select(pl.col(pl.String).str.len_bytes().cast(pl.UInt64).sum())
    text_bytes = sum(lengths.row(0)) if lengths.width else 0
    if text_bytes > inflated_limit(len(data)):
        raise ValueError(f"its texts are {text_bytes:,} bytes long together")
    return conform(table, schema)


def check_size(rows: int, schema: pl.Schema) -> None:
    """Raise ``MachineError`` if a table of that many rows cannot fit into memory.

    >>> check_size(1000, pl.Schema({"rank": pl.Int32()}))
    >>> check_size(10**15, pl.Schema({"rank": pl.Int32()}))
    Traceback (most recent call last):
    tracekit.errors.MachineError: 1,000,000,000,000,000 rows take 4,000,000.0 GB, ... (use a machine with more memory)
    """
    needed = rows * sum(_bytes_of_value(dtype) for dtype in schema.values())
    available = available_memory()
    if needed > available:
        problem = (
            f"{rows:,} rows take {needed / 1e9:,.1f} GB, and {available / 1e9:,.1f} GB are free"
        )
        raise MachineError(problem, hint="use a machine with more memory")


def _bytes_of_value(dtype: pl.DataType) -> int:
    """Return the least bytes that a value of a type takes in memory."""
    if isinstance(dtype, pl.Int64 | pl.UInt64 | pl.Float64):
        return 8
    if isinstance(dtype, pl.Int32 | pl.UInt32 | pl.Float32 | pl.Categorical):
        return 4
    return (
        1 if isinstance(dtype, pl.Boolean | pl.Enum | pl.Int8 | pl.UInt8) else MAX_BYTES_OF_A_VALUE
    )


def check_table(table: pl.DataFrame, *, rank: int, rows: int | None) -> None:
    """Raise ``ValueError`` if a table is not one that tracekit wrote for *rank*.

    Args:
        table: The table, with the columns of its schema.
        rank: Rank that all rows must be of.
        rows: Number of rows that its store lists; None if it lists none.

    >>> check_table(pl.DataFrame({"rank": [0], "start_ns": [5], "end_ns": [3]}), rank=0, rows=1)
    Traceback (most recent call last):
    ValueError: an event ends before it starts
    """
    if rows is not None and table.height != rows:
        raise ValueError(f"it has {table.height:,} rows, and {rows:,} are listed")
    for name in NEVER_NULL:
        if name in table.columns and table[name].null_count():
            raise ValueError(f"the column {name} has rows without a value")
    if table.height and not (table["rank"] == rank).all():
        raise ValueError("it has rows of another rank")
    if "id" in table.columns and not is_number_of_an_event(table["id"]):
        raise ValueError("id has numbers that no event has")
    for name in TIMES:
        if name in table.columns and not is_time_of_a_clock(table[name]):
            raise ValueError(f"{name} has times that no clock shows")
    if "end_ns" not in table.columns:
        return
    if (table["end_ns"] < table["start_ns"]).any():
        raise ValueError("an event ends before it starts")
    if is_total_too_large(table["end_ns"] - table["start_ns"]):
        raise ValueError(f"its events take {MAX_TOTAL / 1e9 / 86400 / 365:.0f} years and more")


def is_time_of_a_clock(column: pl.Series) -> bool:
    """Return whether all times of a column are ones that a clock may show.

    >>> is_time_of_a_clock(pl.Series([0, None])), is_time_of_a_clock(pl.Series([1 << 63 - 1]))
    (True, False)
    """
    return largest_value(column) < LATEST_NS


def is_number_of_an_event(column: pl.Series) -> bool:
    """Return whether all numbers of a column are from 0 to ``EVENT_NUMBER_LIMIT``, exclusive, or null.

    >>> is_number_of_an_event(pl.Series([0, None])), is_number_of_an_event(pl.Series([-1]))
    (True, False)
    """
    return bool(((column >= 0) & (column < EVENT_NUMBER_LIMIT)).all())


def largest_value(column: pl.Series) -> int:
    """Return the largest absolute value of a column of numbers, none of them infinite; 0 if it has none.

    >>> largest_value(pl.Series([-(1 << 63), 5])) == 1 << 63
    True
    """
    least = column.min()
    most = column.max()
    if least is None or most is None:
        return 0
    return max(abs(int(least)), abs(int(most)))  # type: ignore[arg-type]  # polars types them as any value


def is_total_too_large(column: pl.Series) -> bool:
    """Return whether the sum of a column's absolute values reaches ``MAX_TOTAL``.

    Where it may, it is computed with floating-point numbers, which do not wrap around.

    >>> is_total_too_large(pl.Series([1 << 62, 1 << 62])), is_total_too_large(pl.Series([-1, None]))
    (True, False)
    """
    if largest_value(column) * len(column) < MAX_TOTAL:
        return False
    return float(column.cast(pl.Float64).abs().sum()) >= MAX_TOTAL


def check_collectives(table: pl.DataFrame, *, rows: int) -> None:
    """Raise ``ValueError`` if a table of collectives is not one that tracekit wrote.

    >>> check_collectives(pl.DataFrame({"rank": [0], "source": ["profiler"], "id": [None]}), rows=1)
    Traceback (most recent call last):
    ValueError: the column id has rows without a value
    """
    if table.height != rows:
        raise ValueError(f"it has {table.height:,} rows, and {rows:,} are listed")
    for name in ("rank", "source", "id", "is_message"):
        if table[name].null_count():
            raise ValueError(f"the column {name} has rows without a value")
    for name in ("enqueued_ns", "started_ns", "completed_ns", "completed_by_ns", "duration_ns"):
        if not is_time_of_a_clock(table[name]):
            raise ValueError(f"{name} has times that no clock shows")
