"""Autograd nodes among host ranges, and the operators inside and outside of them.

Ranges come with parents before children (``tracekit.classify.host_ranges``), so that one pass over the rows sees the
result of a parent before it needs it.
"""

from __future__ import annotations

import cython

EVALUATION_NAME, BACKWARD_NAME, COMM_RECORD_NAME, FORWARD_ONLY_NAME, NEVER_RERUN_NAME = 1, 2, 4, 8, 16
"""Flags of a name: the engine evaluates a node; named for a backward; the record of a communication call; only a
forward calls it; inside a node it never is forward work that runs again."""

NODE, FORWARD, MADE_NODE_THAT_RAN, MADE_NODE, RERUN = 1, 2, 4, 8, 16
"""Flags of an op: it is a node; only a forward calls it; it made a node that ran backward; it made a node, which may
not have run in this trace; it runs forward work again."""


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
    evaluation_name: cython.longlong = EVALUATION_NAME
    backward_name: cython.longlong = BACKWARD_NAME
    comm_record_name: cython.longlong = COMM_RECORD_NAME
    forward_only_name: cython.longlong = FORWARD_ONLY_NAME
    never_rerun_name: cython.longlong = NEVER_RERUN_NAME
    node: cython.uchar = NODE
    forward: cython.uchar = FORWARD
    nameless: cython.Py_ssize_t = name_flags.shape[0] - 1
    is_node: cython.bint
    for i in range(parent.shape[0]):
        above = parent[i]
        outer_node = node_of[above] if above >= 0 else -1
        own_flags = 0
        if is_op[i]:
            own_flags = name_flags[name[i] if name[i] >= 0 else nameless]
        outer_flags = 0
        if outer_node >= 0:
            outer_flags = name_flags[name[outer_node] if name[outer_node] >= 0 else nameless]
        is_node = (own_flags & evaluation_name) != 0 or (
            (own_flags & backward_name) != 0 and (outer_flags & evaluation_name) == 0
        )
        node_of[i] = i if is_node else outer_node
        number[i] = sequence[i] if is_node else -1
        flags[i] = node if is_node else 0
        if sequence[i] >= 0 and above >= 0 and (flags[above] & node) != 0 and sequence[above] < 0:
            number[above] = sequence[i]  # some files write the number on the inner range only
        if is_node or not is_op[i]:
            continue
        if outer_node < 0:
            if (own_flags & forward_only_name) != 0:
                flags[i] = forward
            if sequence[i] >= 0 and (own_flags & comm_record_name) == 0:
                outside[counts[0]] = i
                counts[0] += 1
        elif sequence[i] >= 0 and (own_flags & never_rerun_name) == 0:
            inside[counts[1]] = i
            counts[1] += 1


def spread_flags(
    parent: cython.const[cython.int][::1],
    flags: cython.uchar[::1],
    made_node: cython.int[::1],
    rerun: cython.int[::1],
) -> None:
    """Pass flags of ops on to everything inside them.

    Args:
        parent: Op around each range; -1: none.
        flags: Flags of each range. Ranges inside a ``FORWARD`` or ``MADE_NODE`` op get that flag too.
        made_node: Result: nearest ``MADE_NODE_THAT_RAN`` op at or above each range; -1: none.
        rerun: Result: nearest ``RERUN`` op at or above each range with no node between them; -1: none. A node inside
            forward work that runs again is backward work.

    """
    ran_flag: cython.uchar = MADE_NODE_THAT_RAN
    node: cython.uchar = NODE
    rerun_flag: cython.uchar = RERUN
    inherited: cython.uchar = FORWARD | MADE_NODE
    for i in range(parent.shape[0]):
        above = parent[i]
        if (flags[i] & ran_flag) != 0:
            made_node[i] = i
        else:
            made_node[i] = made_node[above] if above >= 0 else -1
        if (flags[i] & node) != 0:
            rerun[i] = -1
        elif (flags[i] & rerun_flag) != 0:
            rerun[i] = i
        else:
            rerun[i] = rerun[above] if above >= 0 else -1
        if above >= 0:
            flags[i] |= flags[above] & inherited
