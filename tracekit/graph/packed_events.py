"""Events of a replay as they are stored: differences in place of times and row numbers, which compress to a third."""

from __future__ import annotations

import polars as pl

from tracekit.graph.rank_events import BEFORE, RANK_EVENTS
from tracekit.metrics.alternatives.remedy import REMEDY

EVENTS_WITH_REMEDIES = pl.Schema({**RANK_EVENTS, "remedies": pl.List(REMEDY)})
"""GPU events of one rank for a replay, with what changes would make of each."""
_ROW = pl.int_range(pl.len(), dtype=pl.Int32)


def pack_events(events: pl.DataFrame) -> pl.DataFrame:
    """Return ``EVENTS_WITH_REMEDIES`` with differences in place of times and row numbers.

    A start counts from the start before, an end and a launch from the start of their event, and the
    number of a communication from the number of the communication before. An event that is waited
    for counts back from the event that waits: 0 is none.

    >>> packed = pack_events(EVENTS_WITH_REMEDIES.to_frame())
    >>> unpack_events(packed).schema == EVENTS_WITH_REMEDIES
    True
    """
    packed = events.select(
        pl.col("start_ns") - pl.col("start_ns").shift(1, fill_value=0),
        pl.col("end_ns") - pl.col("start_ns"),
        pl.col("launch_ns") - pl.col("start_ns"),
        *(
            pl.when(pl.col(name) >= 0).then(_ROW - pl.col(name)).otherwise(0).alias(name)
            for name in BEFORE
        ),
        id=pl.col("id") - pl.col("id").forward_fill().shift(1).fill_null(0),
    )
    return events.with_columns(*packed).select(EVENTS_WITH_REMEDIES.names())


def unpack_events(packed: pl.DataFrame) -> pl.DataFrame:
    """Return the events that ``pack_events`` packed."""
    start_ns = pl.col("start_ns").cum_sum()
    unpacked = packed.select(
        start_ns,
        end_ns=pl.col("end_ns") + start_ns,
        launch_ns=pl.col("launch_ns") + start_ns,
        id=pl.when(pl.col("id").is_not_null()).then(pl.col("id").fill_null(0).cum_sum()),
        **{
            name: pl.when(pl.col(name) != 0).then(_ROW - pl.col(name)).otherwise(-1).cast(pl.Int32)
            for name in BEFORE
        },
    )
    return packed.with_columns(*unpacked)
