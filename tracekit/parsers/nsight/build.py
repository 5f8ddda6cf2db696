"""One rank's frames into the events table, in an order that does not depend on the file format."""

from __future__ import annotations

import polars as pl

from tracekit.schema import EVENTS

_TIES = ("kind", "tid", "correlation", "stream", "name")


def events_table(frames: list[pl.DataFrame], *, rank: int, pid: int) -> pl.DataFrame:
    """Put *frames* together, sorted by start, longest first; ``id`` is the position.

    Column by column, so that never more than one column exists twice.
    """
    height = sum(frame.height for frame in frames)
    order = _order(frames)
    columns: list[pl.Series] = []
    for name, dtype in EVENTS.items():
        if name == "rank":
            columns.append(pl.repeat(rank, height, dtype=dtype, eager=True).alias(name))
        elif name == "pid":
            columns.append(pl.repeat(pid, height, dtype=dtype, eager=True).alias(name))
        elif name == "id":
            columns.append(pl.int_range(height, dtype=pl.Int64, eager=True).alias(name))
        elif not any(name in frame.columns for frame in frames):
            columns.append(pl.repeat(None, height, dtype=dtype, eager=True).alias(name))
        else:
            column = _column(frames, name, dtype)
            columns.append(column if order is None else column.gather(order))
    return pl.DataFrame(columns)


def _column(frames: list[pl.DataFrame], name: str, dtype: pl.DataType) -> pl.Series:
    parts = [
        frame[name].cast(dtype, strict=False)
        if name in frame.columns
        else pl.repeat(None, frame.height, dtype=dtype, eager=True).alias(name)
        for frame in frames
    ]
    # In one piece, since to gather from several takes six times as long.
    return pl.concat(parts).rechunk().alias(name) if parts else pl.Series(name, dtype=dtype)


def _order(frames: list[pl.DataFrame]) -> pl.Series | None:
    """Return the positions in order of start; None when they are in order already."""
    start = _column(frames, "start_ns", pl.Int64())
    order = None if start.is_sorted() else start.arg_sort()
    in_order = start if order is None else start.gather(order)
    again = (in_order == in_order.shift(1)).fill_null(False)
    if not again.any():
        return order
    # The tied events are few: sort them by everything, and put them back where ties are.
    index = pl.int_range(len(start), dtype=pl.UInt32, eager=True)
    places = index.filter(again | again.shift(-1).fill_null(False))
    order = index if order is None else order
    tied = order.gather(places)
    keys = pl.DataFrame([tied.alias("index"), start.gather(tied)]).with_columns(
        _column(frames, "end_ns", pl.Int64()).gather(tied),
        *(_column(frames, name, EVENTS[name]).gather(tied) for name in _TIES),
    )
    # Names sort as text: the numbers behind categories depend on what was read before.
    keys = keys.with_columns(pl.col("name").cast(pl.String))
    settled = keys.sort("start_ns", "end_ns", *_TIES, descending=[False, True, *[False] * len(_TIES)])["index"]
    return order.scatter(places, settled)
