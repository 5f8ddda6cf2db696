"""Sends and receives, whatever they are called: where the wait of one is unknown, so is the bubble.

A bubble holds the exposed waiting of the pipeline's messages. A message may stand in a trace as what it is, as a
kernel that only looks like one (``SendRecv`` also carries all-to-alls), as communication of no known kind, or only as
a call of the host. All of these count here, so that a bubble is stated as exact only where none is left open.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import present

_COLLECTIVE = (
    r"(?i)all_?reduce|all_?gather|reduce_?scatter|broadcast|all_?to_?all|barrier|gather|scatter|reduce|dispatch|combine"
)
_ISSUED = r"^(c10d::(i?send|i?recv)|nccl:(send|recv)|nccl(Send|Recv)\b)"
_MOVED = r"^i?(send|recv)$"


def may_be_message(operations: pl.DataFrame) -> Bools:
    """Return which operations are, or may be, a send or a receive: by kind, by name, or because no kind is known.

    >>> ops = pl.DataFrame({"label": ["pp_comm", "comm", "comm", "comm", "ep_dispatch"],
    ...                     "what": ["p2p", "sendrecv", "allreduce", "device_kernel", "all_to_allv"]})
    >>> ops.filter(may_be_message(ops))["what"].to_list()
    ['p2p', 'sendrecv', 'device_kernel']
    """
    label, what = CategoryColumn.from_series(operations["label"]), CategoryColumn.from_series(operations["what"])
    nameless = label.map(lambda text: text == "comm") & ~what.matches(_COLLECTIVE)
    named = what.map(lambda text: text in ("p2p", "sendrecv")) | label.map(lambda text: text == "pp_comm")
    return named | nameless


def unknown_waits(operations: pl.DataFrame) -> Bools:
    """Return which operations leave the bubble open: messages whose wait is not known, or whose role is not.

    >>> ops = pl.DataFrame({"label": ["pp_comm", "pp_comm", "pp_comm", "comm"], "what": ["p2p"] * 4,
    ...                     "wait_ns": [3, None, 3, 3], "open": [False, True, True, False]})
    >>> unknown_waits(ops).tolist()
    [False, True, True, True]
    """
    waits = operations.select(pl.col("wait_ns").is_null() | pl.col("open") | (pl.col("label") == "comm")).to_series()
    unknown: Bools = may_be_message(operations) & waits.fill_null(False).to_numpy()
    return unknown


def issued_messages(events: pl.DataFrame) -> int:
    """Return how many of the host's calls send or receive.

    >>> issued_messages(pl.DataFrame({"kind": ["cpu_op", "cpu_op", "kernel"], "name": ["c10d::send", "aten::mm", "k"],
    ...                               "collective": [None, None, "send"]}))
    1
    """
    named, said = np.flatnonzero(CategoryColumn.from_series(events["name"]).matches(_ISSUED)), events["collective"]
    moved = np.flatnonzero(present(said))[CategoryColumn.from_series(said.drop_nulls()).matches(_MOVED)]
    return int(events["kind"][np.union1d(named, moved)].is_in(["cpu_op", "annotation"]).sum())


def unseen_messages(issued: int, messages: int) -> bool:
    """Return whether the host sent or received and none of the operations on the GPU may be that message.

    >>> unseen_messages(4, 0), unseen_messages(4, 1), unseen_messages(0, 0)
    (True, False, False)
    """
    return issued > 0 and not messages
