"""The walks over all operators that find the autograd engine's nodes, and what is inside or outside of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit._loops import autograd_nodes
from tracekit._loops.autograd_nodes import (
    AGAIN,
    AHEAD,
    ANSWERED,
    COMMS,
    FORWARD,
    MADE,
    NAMED,
    NO_RERUN,
    NODE,
    WRAPPER,
)
from tracekit._util.arrays import Bools, Int32s, Ints, as_flags, as_int32, as_int64

__all__ = [
    "AGAIN",
    "AHEAD",
    "ANSWERED",
    "COMMS",
    "FORWARD",
    "MADE",
    "NAMED",
    "NODE",
    "NO_RERUN",
    "WRAPPER",
    "Walk",
    "find_nodes",
    "spread",
]

Bytes = npt.NDArray[np.uint8]


class Walk(NamedTuple):
    """The engine's nodes among the ranges, and the numbered ops around them."""

    node_of: Int32s  # of every range: the row of the node that runs it, itself for a node, -1 outside the engine
    number: Ints  # of every range that is a node: its sequence number
    marks: Bytes  # of every range: what it is
    outside: Int32s  # rows of the numbered ops outside of nodes
    inside: Int32s  # rows of the numbered ops inside of nodes that may be forward work run again


def find_nodes(parent: Int32s, is_op: Bools, name: Int32s, says: Ints, sequence: Ints) -> Walk:
    """Find the nodes: evaluations, and what is named for a backward with no evaluation around it.

    Ranges come with parents before children; *says* is what each distinct name says, at its end what no name does.
    """
    size = len(parent)
    node_of, outside, inside = (np.empty(size, np.int32) for _ in range(3))
    number, marks, counts = np.empty(size, np.int64), np.empty(size, np.uint8), np.zeros(2, np.int64)
    autograd_nodes.find_nodes(
        parent=as_int32(parent),
        is_op=as_flags(is_op),
        name=as_int32(name),
        name_flags=as_int64(says),
        sequence=as_int64(sequence),
        node_of=node_of,
        number=number,
        flags=marks,
        outside=outside,
        inside=inside,
        counts=counts,
    )
    return Walk(node_of, number, marks, outside[: counts[0]].copy(), inside[: counts[1]].copy())


def spread(parent: Int32s, marks: Bytes) -> tuple[Int32s, Int32s]:
    """For every range the nearest op at or above it that made a node which ran, and that is forward run again.

    A node inside a re-run is backward again, so the second is not looked for past a node. What lies in an op that is
    ``FORWARD`` or ``MADE`` is marked so, too.
    """
    answered, again = np.empty((2, len(parent)), np.int32)
    autograd_nodes.spread_flags(as_int32(parent), marks, answered, again)
    return answered, again
