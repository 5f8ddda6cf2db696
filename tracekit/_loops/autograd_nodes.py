"""Autograd nodes among host ranges, and the operators inside and outside of them.

Ranges come with parents before children (``tracekit.classify.host_ranges``), so that one pass over
the rows sees the result of a parent before it needs it.
"""

from __future__ import annotations

try:
    import cython
except ImportError:
    from tracekit._loops import uncompiled as cython

from tracekit._loops import let_interrupt

# Flags of a name.
EVALUATION_NAME = 1  # the engine evaluates a node
BACKWARD_NAME = 2  # named for a backward
COMM_RECORD_NAME = 4  # the record of a communication call
FORWARD_ONLY_NAME = 8  # only a forward calls it
NEVER_RERUN_NAME = 16  # inside a node it never is forward work that runs again
NODE_NAME = 32  # the range of a node inside its evaluation

# Flags of an op.
NODE = 1  # it is a node
FORWARD = 2  # only a forward calls it
MADE_NODE_THAT_RAN = 4  # it made a node that ran backward
MADE_NODE = 8  # it made a node, which may not have run in this trace
RERUN = 16  # it runs forward work again


@cython.cfunc
@cython.inline
def _flags_of(
    row: cython.Py_ssize_t,
    name: cython.const[cython.int][::1],
    name_flags: cython.const[cython.longlong][::1],
) -> cython.longlong:
    """Return the flags of a range's name; the last are those of ranges without a name."""
    return name_flags[name[row] if name[row] >= 0 else name_flags.shape[0] - 1]


def find_nodes(
    parent: cython.const[cython.int][::1],
    is_op: cython.const[cython.uchar][::1],
    name: cython.const[cython.int][::1],
    name_flags: cython.const[cython.longlong][::1],
    sequence: cython.const[cython.longlong][::1],
    node_of: cython.int[::1],
    number: cython.longlong[::1],
    flags: cython.uchar[::1],
    ops_outside_nodes: cython.int[::1],
    possible_reruns: cython.int[::1],
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
        ops_outside_nodes: Result: numbered ops outside of nodes.
        possible_reruns: Result: numbered ops inside of nodes that may be forward work run again.
        counts: Result: how many rows these two have; 0 at the call.

    """
    evaluation_name: cython.longlong = EVALUATION_NAME
    backward_name: cython.longlong = BACKWARD_NAME
    comm_record_name: cython.longlong = COMM_RECORD_NAME
    forward_only_name: cython.longlong = FORWARD_ONLY_NAME
    never_rerun_name: cython.longlong = NEVER_RERUN_NAME
    node_name: cython.longlong = NODE_NAME
    node: cython.uchar = NODE
    forward: cython.uchar = FORWARD
    is_node: cython.bint
    is_own_range: cython.bint
    for i in range(parent.shape[0]):
        if (i & 0xFFFF) == 0:
            let_interrupt()
        parent_row = parent[i]
        node_around = node_of[parent_row] if parent_row >= 0 else -1
        own_flags = _flags_of(i, name, name_flags) if is_op[i] else 0
        flags_around = _flags_of(node_around, name, name_flags) if node_around >= 0 else 0
        is_node = (own_flags & evaluation_name) != 0 or (
            (own_flags & backward_name) != 0 and (flags_around & evaluation_name) == 0
        )
        node_of[i] = i if is_node else node_around
        number[i] = sequence[i] if is_node else -1
        flags[i] = node if is_node else 0
        # Some evaluations have no number, only the node's own range inside has. The node's hooks
        # before and behind that range run ops with other numbers.
        is_own_range = (own_flags & node_name) != 0 and (flags_around & evaluation_name) != 0
        if is_own_range and node_around == parent_row and number[parent_row] < 0:
            number[parent_row] = sequence[i]
        if is_node or not is_op[i]:
            continue
        if node_around < 0:
            if (own_flags & forward_only_name) != 0:
                flags[i] = forward
            if sequence[i] >= 0 and (own_flags & comm_record_name) == 0:
                ops_outside_nodes[counts[0]] = i
                counts[0] += 1
        elif sequence[i] >= 0 and (own_flags & never_rerun_name) == 0:
            possible_reruns[counts[1]] = i
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
        flags: Flags of each range. Ranges inside a ``FORWARD`` or ``MADE_NODE`` op get that flag
            too.
        made_node: Result: nearest ``MADE_NODE_THAT_RAN`` op at or above each range; -1: none.
        rerun: Result: nearest ``RERUN`` op at or above each range with no node between them; -1:
            none. A node inside forward work that runs again is backward work.

    """
    ran_flag: cython.uchar = MADE_NODE_THAT_RAN
    node: cython.uchar = NODE
    rerun_flag: cython.uchar = RERUN
    inherited: cython.uchar = FORWARD | MADE_NODE
    for i in range(parent.shape[0]):
        if (i & 0xFFFF) == 0:
            let_interrupt()
        parent_row = parent[i]
        if (flags[i] & ran_flag) != 0:
            made_node[i] = i
        else:
            made_node[i] = made_node[parent_row] if parent_row >= 0 else -1
        if (flags[i] & node) != 0:
            rerun[i] = -1
        elif (flags[i] & rerun_flag) != 0:
            rerun[i] = i
        else:
            rerun[i] = rerun[parent_row] if parent_row >= 0 else -1
        if parent_row >= 0:
            flags[i] |= flags[parent_row] & inherited
