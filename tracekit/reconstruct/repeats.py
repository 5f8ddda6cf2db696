"""How often the same kernels repeat in a chunk: the layers of a stage."""

from __future__ import annotations

import numpy as np
import polars as pl

REGULAR = 0.95
"""Share of a chunk's time that kernels must take which come a multiple of so many times for these to be its layers."""


def repeats(used: pl.DataFrame) -> pl.DataFrame:
    """Return for every chunk how many equal layers it is made of: the most that nearly all its kernels divide into.

    *used* are kernels: chunk, name, start_ns, end_ns. What comes once (an embedding, a loss) counts against it.

    >>> names = ["norm", "gemm", "gemm"] * 3
    >>> used = pl.DataFrame({"chunk": [0] * 9, "name": names, "start_ns": range(9), "end_ns": range(1, 10)})
    >>> repeats(used).rows()
    [(0, 3)]
    """
    counted = used.group_by("chunk", "name").agg(n=pl.len(), ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
    if counted.is_empty():
        return pl.DataFrame(schema={"chunk": used.schema["chunk"], "layers": pl.Int64})
    chunk, n, ns = (counted[c].to_numpy() for c in ("chunk", "n", "ns"))
    names, place = np.unique(chunk, return_inverse=True)
    total = np.bincount(place, ns)
    layers = np.ones(len(names), np.int64)
    for times in np.unique(n):
        even = np.bincount(place, ns * (n % times == 0), len(names))
        layers[even >= REGULAR * total] = times  # ascending, so the most of them stays
    return pl.DataFrame({"chunk": names, "layers": layers}).cast({"chunk": used.schema["chunk"]})
