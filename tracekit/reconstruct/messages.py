"""One rank's point-to-point messages, and which of its chunks made what each of them sends."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.arrays import Bools
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import to_int64
from tracekit.reconstruct.kernels import ENGINE, FORWARD, LOOSE, MESSAGE

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
    side = rows["side"].to_numpy()
    part = rows[np.flatnonzero(side == MESSAGE)]
    stream = rows["stream"]
    computing = stream.filter(pl.Series(np.isin(side, (FORWARD, ENGINE, LOOSE)))).unique()
    text = CategoryColumn.from_series(part["p2p"])
    words = [[_message(word) for word in value.split(",")] for value in text.values]
    count = text.look_up(np.array([len(own) for own in words], np.int64))
    row = np.repeat(np.arange(len(part)), count)
    sent, peer = ([one[which] for code in text.codes.tolist() for one in words[code]] for which in (0, 1))
    table = part.select("step", "host_ns", "start_ns", "end_ns", "stream", "bytes", "id", "group")[row]
    send = np.array(sent, np.bool_)
    made: list[str | None] = [None] * len(row)
    for at, maker in zip(
        np.flatnonzero(send).tolist(), _makers(table["step"], table["host_ns"], send, chunks), strict=True
    ):
        made[at] = maker
    return pl.DataFrame(
        {
            "step": table["step"],
            "kernel": table["id"],
            "send": send,
            "peer": pl.Series(peer, dtype=pl.Int32),
            "launch_ns": table["host_ns"],
            "start_ns": table["start_ns"],
            "end_ns": table["end_ns"],
            "group": table["group"].cast(pl.String),
            "stream": table["stream"],
            "inline": table["stream"].is_in(computing.implode()),
            "bytes": table["bytes"],
            "made": pl.Series(made, dtype=pl.String),
        },
        schema=MESSAGES,
    )


def _message(word: str) -> tuple[bool, int | None]:
    """Return whether a message is sent, and to or from whom.

    >>> _message("send:2"), _message("recv:?")
    ((True, 2), (False, None))
    """
    way, _, peer = word.partition(":")
    return way == "send", int(peer) if peer.isdecimal() and len(peer) < 10 else None


def _makers(step: pl.Series, launch_ns: pl.Series, send: Bools, chunks: pl.DataFrame) -> list[str | None]:
    """Return F or B for each send: the kind of the chunk launched last before it; several sends at once, one each."""
    work = np.flatnonzero((chunks["op"] != "W").to_numpy())
    of, last = chunks["step"].to_numpy()[work], chunks["last_ns"].to_numpy()[work]
    order = np.lexsort((last, of))
    work, of, last = work[order], of[order], last[order]
    steps, at = to_int64(step)[send], launch_ns.to_numpy()[send]
    maker = np.full(len(at), -1, np.int64)
    for number in np.unique(steps).tolist():
        in_step = np.flatnonzero(steps == number)
        first, end = np.searchsorted(of, [number, number + 1]).tolist()
        chunk = _senders(last[first:end], at[in_step])
        maker[in_step] = np.where(chunk >= 0, chunk + first, -1)
    ops = chunks["op"].to_list()
    kinds = ["B" if ops[row] == "I" else ops[row] for row in work.tolist()]
    return [kinds[row] if row >= 0 else None for row in maker.tolist()]


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
