"""Activations in flight: what each micro-batch of a pipeline keeps from its forward until its backward."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from tracekit.documents.memory import CellMemory
from tracekit.schema import conform

MIN_SHARE_IN_FLIGHT = 0.5
"""Share of a micro-batch's activations that must still be allocated for it to be in flight."""

ACTIVATIONS = pl.Schema(
    {
        "step": pl.Int64(),
        "pair": pl.Int64(),  # of the forward, within its step (``reconstruct.chunk_table.CHUNKS``)
        "bytes": pl.Int64(),  # left behind by the forward
        "start_ns": pl.Int64(),  # host time of its first allocation
        "end_ns": pl.Int64(),  # when less than half of it is left; null: still there at the end
    }
)
"""One row per forward of a chunk."""


Place = tuple[int | None, int | None]
"""Stage and micro-batch."""
Places = Mapping[tuple[int, int], Place]
"""Place by step and pair: the index of a forward within its step."""
UNKNOWN_PLACE: Place = (None, None)


def measure_activations(purposes: pl.DataFrame) -> pl.DataFrame:
    """Return ``ACTIVATIONS``; *purposes* come from ``contents.find_purposes``."""
    is_left_by_forward = (pl.col("category") == "activations") & pl.col("phase").is_in(["forward"])
    own = purposes.filter(is_left_by_forward & pl.col("pair").is_not_null())
    if own.is_empty():
        return ACTIVATIONS.to_frame()
    key = ["step", "pair"]
    last_ns = np.iinfo(np.int64).max
    # Ordered by the time of freeing, the one with which half of the bytes are gone ends the
    # micro-batch's flight.
    ordered = own.with_columns(pl.col("free_ns").fill_null(last_ns)).sort(*key, "free_ns")
    gone = pl.col("bytes").cum_sum().over(key)
    total = pl.col("bytes").sum().over(key)
    is_over = gone > (1 - MIN_SHARE_IN_FLIGHT) * total
    ends = (
        ordered.filter(is_over)
        .group_by(key, maintain_order=True)
        .agg(end_ns=pl.col("free_ns").first())
    )
    table = own.group_by(key, maintain_order=True).agg(
        pl.sum("bytes"), start_ns=pl.col("alloc_ns").min()
    )
    table = table.join(ends, on=key, how="left").sort("start_ns")
    return conform(table.with_columns(pl.col("end_ns").replace(last_ns, None)), ACTIVATIONS)


def most_in_flight(activations: pl.DataFrame) -> int:
    """Return the largest number of forwards whose activations are in memory at once.

    >>> rows = {"start_ns": [0, 5, 20], "end_ns": [10, 15, None]}
    >>> most_in_flight(pl.DataFrame(rows))
    2
    """
    if activations.is_empty():
        return 0
    starts = activations["start_ns"].to_numpy()
    ends = activations["end_ns"].drop_nulls().to_numpy()
    times = np.concatenate([ends, starts])
    changes = np.concatenate([np.full(len(ends), -1), np.full(len(starts), 1)])
    order = np.lexsort((changes, times))  # an end before a start at the same time
    return int(np.cumsum(changes[order]).max())


def cells_with_activations(contents: pl.DataFrame, places: Places) -> list[CellMemory]:
    """Return the activations of ``contents.CONTENTS`` by micro-batch and stage, as far as these are known."""
    by_pair = (
        contents.filter(pl.col("category") == "activations")
        .group_by("step", "pair")
        .agg(pl.sum("bytes"))
        .sort("step", "pair", nulls_last=True)
    )
    cells: dict[tuple[int | None, int | None, int | None], int] = {}
    for step, pair, size in by_pair.iter_rows():
        key = (step, *places.get((step, pair), UNKNOWN_PLACE))
        cells[key] = cells.get(key, 0) + size
    return [CellMemory(*key, bytes=size) for key, size in cells.items()]
