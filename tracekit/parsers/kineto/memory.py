"""Rows of the allocator's events to their table."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import polars as pl

from tracekit.parsers.kineto.scanner.columns import MEMORY_COLUMNS, NULL
from tracekit.parsers.kineto.table import LATEST_NS
from tracekit.parsers.kineto.worker import Part
from tracekit.schema import MEMORY, conform


def memory_table(parts: Iterable[Part], *, rank: int, base_ns: int) -> pl.DataFrame:
    """Return what the allocator did, in the order of time (``schema.MEMORY``); what no clock shows is left out."""
    rows = [rows for part in parts for rows in part.memory]
    if not rows:
        return MEMORY.to_frame()
    table = np.concatenate(rows)
    at = table[:, 0]
    table = table[(at >= max(-LATEST_NS - base_ns, NULL + 1)) & (at <= min(LATEST_NS - base_ns, 2**63 - 1))]
    frame = pl.DataFrame({name: table[:, k] for k, name in enumerate(MEMORY_COLUMNS)})
    frame = frame.with_columns(pl.when(pl.all() != NULL).then(pl.all()))
    frame = frame.with_columns(rank=pl.lit(rank, pl.Int32), at_ns=pl.col("at_ns") + base_ns)
    small = [pl.col(name).cast(MEMORY[name], strict=False) for name in ("device_type", "device")]
    return conform(frame.with_columns(small), MEMORY).sort("at_ns", maintain_order=True)
