"""One rank's point-to-point messages, and which of its chunks made what each of them sends."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.reconstruct.kernels import ENGINE, FORWARD, LOOSE

Ints = npt.NDArray[np.int64]

MESSAGES = pl.Schema(
    {
        "step": pl.Int64(),
        "kernel": pl.Int64(),  # messages of one batch share their kernel
        "send": pl.Boolean(),
        "peer": pl.Int32(),
        "launch_ns": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "group": pl.String(),  # the communicator
        "stream": pl.Int64(),
        "inline": pl.Boolean(),  # on a stream that runs compute too
        "bytes": pl.Int64(),  # of the kernel, all its messages; null where the trace does not say
        "made": pl.String(),  # of a send: F or B, the chunk whose result it carries; null where none came before it
    }
)
"""Sends and receives in the order they were issued."""


def read_messages(rows: pl.DataFrame, chunks: pl.DataFrame) -> pl.DataFrame:
    """Return the messages (``MESSAGES``) among a rank's *rows*; *chunks* are its forwards and backwards."""
    part = rows.filter((pl.col("label").cast(pl.String) == "pp_comm") & pl.col("p2p").is_not_null())
    computing = rows.filter(pl.col("side").is_in([FORWARD, ENGINE, LOOSE]))["stream"].unique()
    split = part.select(
        "step",
        pl.col("host_ns").alias("launch_ns"),
        "start_ns",
        "end_ns",
        pl.col("p2p").cast(pl.String).str.split(",").alias("message"),
        pl.col("group").cast(pl.String),
        "stream",
        "bytes",
        inline=pl.col("stream").is_in(computing.implode()),
        kernel="id",
    ).explode("message")
    way = pl.col("message").str.split(":")
    messages = split.with_columns(
        send=way.list.get(0) == "send", peer=way.list.get(1).cast(pl.Int32, strict=False)
    ).with_row_index("at")
    sends = messages.filter("send")
    made = sends.select("at", made=_makers(sends["step"], sends["launch_ns"], chunks))
    joined = messages.join(made, on="at", how="left", maintain_order="left")
    return joined.select(pl.col(name).cast(kind) for name, kind in MESSAGES.items())


def _makers(step: pl.Series, launch_ns: pl.Series, chunks: pl.DataFrame) -> pl.Series:
    """Return F or B for each send: the kind of the chunk launched last before it; several sends at once, one each."""
    work = chunks.filter(pl.col("op") != "W").sort("step", "last_ns", maintain_order=True)
    ops, last = work["op"].replace("I", "B").to_numpy().astype("<U1"), work["last_ns"].to_numpy()
    made = np.full(len(launch_ns), "", dtype="<U1")
    steps, at = step.fill_null(-1).to_numpy(), launch_ns.to_numpy()
    for number in np.unique(steps).tolist():
        in_step = np.flatnonzero(steps == number)
        first, end = np.searchsorted(work["step"].to_numpy(), [number, number + 1]).tolist()
        chunk = _senders(last[first:end], at[in_step])
        known = chunk >= 0
        made[in_step[known]] = ops[first:end][chunk[known]]
    return pl.Series("made", made).replace("", None)


def senders(work: pl.DataFrame, sends: pl.DataFrame) -> Ints:
    """Return the row of *work* (chunks in order of ``last_ns``) that made what each of the *sends* carries, else -1.

    >>> work = pl.DataFrame({"last_ns": [10, 20]})
    >>> senders(work, pl.DataFrame({"launch_ns": [12, 25]})), senders(work, pl.DataFrame({"launch_ns": [25, 25]}))
    (array([0, 1]), array([0, 1]))
    """
    return _senders(work["last_ns"].to_numpy(), np.sort(sends["launch_ns"].to_numpy()))


def _senders(last_ns: Ints, launch_ns: Ints) -> Ints:
    done = np.searchsorted(last_ns, launch_ns, side="right")
    _, first, run, count = np.unique(done, return_index=True, return_inverse=True, return_counts=True)
    chunk: Ints = np.maximum(done - count[run] + np.arange(len(done)) - first[run], -1)
    return chunk
