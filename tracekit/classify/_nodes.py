"""The walks over all operators that find the autograd engine's nodes, and what is inside or outside of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit._util.coded import Bools, Ints, Places
from tracekit._util.native import narrow, native

Bytes = npt.NDArray[np.uint8]

WRAPPER, NAMED, COMMS, AHEAD, NO_RERUN = 1, 2, 4, 8, 16
"""What an op's name says: the engine evaluates a node; it is named for a backward; it is communication's own; only a
forward calls it; inside a node it is no forward run again."""

NODE, FORWARD, ANSWERED, MADE, AGAIN = 1, 2, 4, 8, 16
"""What an op is: a node; one that only a forward calls; the maker of a node that ran, or of any; forward run again."""


@native(
    "void(int32[::1], boolean[::1], int32[::1], int64[::1], int64[::1], int32[::1], int64[::1], uint8[::1],"
    " int32[::1], int32[::1], int64[::1])"
)
def _find(  # noqa: PLR0917 - native code is one function and takes no keywords
    parent: Places, is_op: Bools, name: Places, says: Ints, sequence: Ints, node_of: Places, number: Ints,
    marks: Bytes, outside: Places, inside: Places, counts: Ints,
) -> None:  # fmt: skip
    for i in range(len(parent)):
        above = parent[i]
        around = node_of[above] if above >= 0 else np.int32(-1)
        said = says[name[i]] if is_op[i] else np.int64(0)
        is_node = said & WRAPPER or (said & NAMED and (around < 0 or not says[name[around]] & WRAPPER))
        node_of[i] = i if is_node else around
        number[i] = sequence[i] if is_node else -1
        marks[i] = NODE if is_node else 0
        if sequence[i] >= 0 and above >= 0 and marks[above] & NODE and sequence[above] < 0:
            number[above] = sequence[i]  # some files write it on the inner range only
        if is_node or not is_op[i]:
            continue
        if around < 0:
            if said & AHEAD:
                marks[i] = FORWARD
            if sequence[i] >= 0 and not said & COMMS:
                outside[counts[0]] = i
                counts[0] += 1
        elif sequence[i] >= 0 and not said & NO_RERUN:
            inside[counts[1]] = i
            counts[1] += 1


class Walk(NamedTuple):
    """The engine's nodes among the ranges, and the numbered ops around them."""

    node_of: Places  # of every range: the row of the node that runs it, itself for a node, -1 outside the engine
    number: Ints  # of every range that is a node: its sequence number
    marks: Bytes  # of every range: what it is
    outside: Places  # rows of the numbered ops outside of nodes
    inside: Places  # rows of the numbered ops inside of nodes that may be forward work run again


def find_nodes(parent: Places, is_op: Bools, name: Places, says: Ints, sequence: Ints) -> Walk:
    """Find the nodes: evaluations, and what is named for a backward with no evaluation around it.

    Ranges come with parents before children; *says* is what each distinct name says, at its end what no name does.
    """
    size = len(parent)
    node_of, outside, inside = (np.empty(size, np.int32) for _ in range(3))
    number, marks, counts = np.empty(size, np.int64), np.empty(size, np.uint8), np.zeros(2, np.int64)
    _find(narrow(parent), is_op, narrow(name), says, sequence, node_of, number, marks, outside, inside, counts)
    return Walk(node_of, number, marks, outside[: counts[0]].copy(), inside[: counts[1]].copy())


@native("void(int32[::1], uint8[::1], int32[::1], int32[::1])")
def _spread(parent: Places, marks: Bytes, answered: Places, again: Places) -> None:
    for i in range(len(parent)):
        above = parent[i]
        answered[i] = i if marks[i] & ANSWERED else answered[above] if above >= 0 else -1
        if marks[i] & NODE:
            again[i] = -1
        elif marks[i] & AGAIN:
            again[i] = i
        else:
            again[i] = again[above] if above >= 0 else -1
        if above >= 0:
            marks[i] |= marks[above] & (FORWARD | MADE)


def spread(parent: Places, marks: Bytes) -> tuple[Places, Places]:
    """For every range the nearest op at or above it that made a node which ran, and that is forward run again.

    A node inside a re-run is backward again, so the second is not looked for past a node. What lies in an op that is
    ``FORWARD`` or ``MADE`` is marked so, too.
    """
    answered, again = np.empty((2, len(parent)), np.int32)
    _spread(narrow(parent), marks, answered, again)
    return answered, again
