"""The autograd engine's nodes among host ranges, and what lies inside and outside of them.

Ranges come with parents before children (``tracekit.classify._nest``).
"""

from __future__ import annotations

import cython

WRAPPER, NAMED, COMMS, AHEAD, NO_RERUN = 1, 2, 4, 8, 16
"""Flags of an op's name: the engine evaluates a node; it is named for a backward; it is communication's own; only a
forward calls it; inside a node it is not forward work run again."""

NODE, FORWARD, ANSWERED, MADE, AGAIN = 1, 2, 4, 8, 16
"""Flags of an op: it is a node; only a forward calls it; it made a node that ran; it made any node; it is forward work
run again."""


def find_nodes(
    parent: cython.const[cython.int][::1],
    is_op: cython.const[cython.uchar][::1],
    name: cython.const[cython.int][::1],
    name_flags: cython.const[cython.longlong][::1],
    sequence: cython.const[cython.longlong][::1],
    node_of: cython.int[::1],
    number: cython.longlong[::1],
    flags: cython.uchar[::1],
    outside: cython.int[::1],
    inside: cython.int[::1],
    counts: cython.longlong[::1],
) -> None:
    """Find the nodes: evaluations, and ops named for a backward that have no evaluation around them.

    Args:
        parent: Op around each range; -1: none.
        is_op: Which ranges are ops.
        name: Number of each range's name; -1: none.
        name_flags: Flags of each name; the last for ranges without a name.
        sequence: Autograd sequence number of each range; -1: none.
        node_of: Result: the node that runs each range, itself for a node; -1: outside the engine.
        number: Result: sequence number of each node; -1 for other ranges.
        flags: Result: ``NODE`` and ``FORWARD`` of each range.
        outside: Result: numbered ops outside of nodes.
        inside: Result: numbered ops inside of nodes that may be forward work run again.
        counts: Result: how many rows ``outside`` and ``inside`` have; 0 at the call.

    """
    wrapper: cython.longlong = WRAPPER
    named: cython.longlong = NAMED
    comms: cython.longlong = COMMS
    ahead: cython.longlong = AHEAD
    no_rerun: cython.longlong = NO_RERUN
    node: cython.uchar = NODE
    forward: cython.uchar = FORWARD
    nameless: cython.Py_ssize_t = name_flags.shape[0] - 1
    i: cython.Py_ssize_t
    above: cython.Py_ssize_t
    node_around: cython.longlong
    own: cython.longlong
    around: cython.longlong
    is_node: cython.bint
    for i in range(parent.shape[0]):
        above = parent[i]
        node_around = node_of[above] if above >= 0 else -1
        own = 0
        if is_op[i]:
            own = name_flags[name[i] if name[i] >= 0 else nameless]
        around = 0
        if node_around >= 0:
            around = name_flags[name[node_around] if name[node_around] >= 0 else nameless]
        is_node = (own & wrapper) != 0 or ((own & named) != 0 and (around & wrapper) == 0)
        node_of[i] = i if is_node else node_around
        number[i] = sequence[i] if is_node else -1
        flags[i] = node if is_node else 0
        if sequence[i] >= 0 and above >= 0 and (flags[above] & node) != 0 and sequence[above] < 0:
            number[above] = sequence[i]  # some files write the number on the inner range only
        if is_node or not is_op[i]:
            continue
        if node_around < 0:
            if (own & ahead) != 0:
                flags[i] = forward
            if sequence[i] >= 0 and (own & comms) == 0:
                outside[counts[0]] = i
                counts[0] += 1
        elif sequence[i] >= 0 and (own & no_rerun) == 0:
            inside[counts[1]] = i
            counts[1] += 1


def spread_flags(
    parent: cython.const[cython.int][::1],
    flags: cython.uchar[::1],
    answered: cython.int[::1],
    again: cython.int[::1],
) -> None:
    """Pass flags of ops on to all that lies in them.

    Args:
        parent: Op around each range; -1: none.
        flags: Flags of each range. Those in a ``FORWARD`` or ``MADE`` op get the flag too.
        answered: Result: nearest ``ANSWERED`` op at or above each range; -1: none.
        again: Result: nearest ``AGAIN`` op at or above each range with no node between them; -1: none. What a node runs
            inside of forward work run again is backward work.

    """
    answered_flag: cython.uchar = ANSWERED
    node: cython.uchar = NODE
    again_flag: cython.uchar = AGAIN
    inherited: cython.uchar = FORWARD | MADE
    i: cython.Py_ssize_t
    above: cython.Py_ssize_t
    for i in range(parent.shape[0]):
        above = parent[i]
        if (flags[i] & answered_flag) != 0:
            answered[i] = i
        else:
            answered[i] = answered[above] if above >= 0 else -1
        if (flags[i] & node) != 0:
            again[i] = -1
        elif (flags[i] & again_flag) != 0:
            again[i] = i
        else:
            again[i] = again[above] if above >= 0 else -1
        if above >= 0:
            flags[i] |= flags[above] & inherited
