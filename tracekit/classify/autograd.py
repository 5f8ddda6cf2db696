"""Pass of each GPU event as recorded by the autograd engine: its node ranges and sequence numbers.

The engine wraps the evaluation of each backward node in a range. A node carries the sequence number of the forward op
that made it, which connects the two passes. Forward work inside a node is recomputation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._loops import autograd_nodes
from tracekit._util.arrays import (
    Bools,
    Int32s,
    Ints,
    as_flags,
    as_int32,
    as_int64,
    find_sorted,
    is_in_sorted,
    take_or_missing,
)
from tracekit._util.categories import CategoryColumn
from tracekit.classify.host_ranges import EVALUATE_NODE, Launches, Ranges
from tracekit.classify.row_order import distinct_rows, number_values

_BACKWARD = r"(Backward\d*|Backwards|BackwardHook|AccumulateGrad|CopySlices)$"
_BOOKKEEPING = r"^(record_param_comms|c10d::|nccl:|aten::(detach|empty|zeros_like|record_stream))|^detach"
_CHECKPOINT = r"(?i)checkpoint|recompute"
"""Nodes of user-written functions that run a forward again."""

FORWARD_ONLY = (
    r"^aten::(conv(olution|\dd|_transpose\dd)?|_convolution|(cudnn|miopen|mkldnn)_convolution|(cudnn_|miopen_|native_|_)?"
    r"(batch|layer|group|instance)_norm\w*(?<!backward)|(_fused_)?rms_norm|_?(log_)?softmax|\w+_loss(\d?d?_forward)?|gelu|silu_?"
    r"|relu_?|threshold_?|leaky_relu_?|\w*(max|avg)_pool\dd(_with_indices)?|embedding(_bag)?|dropout|native_dropout|linear"
    r"|_?scaled_dot_product_(?!\w*backward)\w*|_(flash|efficient|cudnn)_attention_forward|upsample_\w+(?<!backward))$"
)
"""Operators that outside of nodes only a forward calls."""

_Flags = npt.NDArray[np.uint8]


class NodeWalk(NamedTuple):
    """Nodes among the ranges, and the numbered ops around them."""

    node_of: Int32s  # of every range: row of the node that runs it, its own row for a node, -1 outside the engine
    number: Ints  # of every range that is a node: its sequence number; -1 for other ranges
    flags: _Flags  # of every range: ``NODE``, ``FORWARD``
    outside: Int32s  # numbered ops outside of nodes
    inside: Int32s  # numbered ops inside of nodes that may run forward work again


@dataclass(frozen=True, eq=False, repr=False)
class Autograd:
    """Nodes among the ranges, and what they say about every GPU event."""

    ranges: Ranges
    names: CategoryColumn  # of every range: its name as a node's (``MmBackward0``), whether evaluation or own range
    rows: Ints  # rows of the nodes' evaluations, by thread and time
    node_of: Int32s  # of every range: row of the node that runs it, -1 outside the engine
    differentiable: Int32s  # of every range: nearest op at or above it that made a node which ran backward, -1 if none
    rerun: Int32s  # of every range: nearest op at or above it that re-runs forward work inside a node, -1 if none
    node_sequence: Ints  # of every range that is a node: its sequence number
    runs_again: Bools  # of every range that is a node: the same node runs again later
    ran_before: Bools  # of every range that is a node: the same node ran before
    # The remaining columns have one row per GPU event.
    node_row: Ints  # row of the node that launched it, -1 if none
    node: CategoryColumn  # name of that node
    fwd_op: CategoryColumn  # name of the forward op that the node belongs to
    sequence: Ints  # sequence number of the node, or of the forward op that launched it
    site: CategoryColumn  # "forward", "backward", "recompute"; null where autograd does not tell
    made_node: Bools  # its op made a node, which may not have run backward in this window

    @property
    def active(self) -> bool:
        """Whether the trace has any node."""
        return bool(len(self.rows))

    @cached_property
    def row_names(self) -> CategoryColumn:
        """Names of the nodes in ``rows``."""
        return self.names.take(self.rows)

    @cached_property
    def numbered_nodes(self) -> tuple[Ints, Ints]:
        """Sequence numbers and start times of the nodes that have a number, in the order they ran."""
        rows = self.rows[self.node_sequence[self.rows] >= 0]
        rows = rows[np.argsort(self.ranges.start(rows), kind="stable")]
        return self.node_sequence[rows], self.ranges.start(rows)


def read_autograd(ranges: Ranges, launches: Launches) -> Autograd:
    """Find the nodes, connect each to its forward op, and find the pass of every GPU event."""
    full_names = ranges.name.values
    names = ranges.name.replace(
        [name.removeprefix(EVALUATE_NODE).removeprefix("torch::autograd::") for name in full_names]
    )
    walk = find_nodes(ranges.op_of, ranges.is_op, ranges.name.codes, _name_flags(ranges.name), ranges.sequence)
    node_of, number, flags = walk.node_of, walk.number, walk.flags
    nodes = np.flatnonzero(flags & autograd_nodes.NODE)
    made_node, is_taken = _node_makers(ranges, walk.outside)
    is_forward_op = ~ranges.name_matches(walk.outside, r"^c10d::")
    made_node &= is_forward_op
    makers = walk.outside[made_node]
    ran = is_in_sorted(ranges.sequence[makers], np.sort(number[nodes], kind="stable"))
    flags[makers[ran]] |= autograd_nodes.MADE_NODE_THAT_RAN
    flags[walk.outside[made_node & is_taken]] |= autograd_nodes.MADE_NODE
    flags[_rerun_ops(ranges, names, nodes, walk)] |= autograd_nodes.RERUN
    differentiable, rerun = spread_flags(ranges.op_of, flags)

    # From here on: one row per GPU event, by the op that launched it.
    op = launches.op
    node_row, maker = take_or_missing(node_of, op), take_or_missing(differentiable, op)
    op_flags = np.append(flags, np.uint8(0))[op]
    # A backward inside a node, as a checkpoint runs it, numbers anew on its thread: the forward has the outer node's
    # number.
    sequence = np.where(
        node_row >= 0,
        take_or_missing(number, _outermost_nodes(ranges, node_of, node_row)),
        take_or_missing(ranges.sequence, maker),
    )
    site = CategoryColumn.choose(
        len(op),
        [
            ("recompute", (node_row >= 0) & (take_or_missing(rerun, op) >= 0)),
            ("backward", node_row >= 0),
            ("forward", (maker >= 0) | (op_flags & autograd_nodes.FORWARD > 0)),
        ],
    )
    runs_again, ran_before = _repeated_nodes(ranges, names, nodes, number)
    forward_op = _forward_ops(ranges, names, walk.outside[is_forward_op], node_row, number)
    return Autograd(
        ranges=ranges, names=names, rows=nodes, node_of=node_of, differentiable=differentiable, rerun=rerun,
        node_sequence=number, runs_again=runs_again, ran_before=ran_before, node_row=node_row,
        node=names.take(node_row), fwd_op=ranges.name.take(forward_op), sequence=sequence, site=site,
        made_node=op_flags & autograd_nodes.MADE_NODE > 0,
    )  # fmt: skip


def find_nodes(parent: Int32s, is_op: Bools, name: Int32s, name_flags: Ints, sequence: Ints) -> NodeWalk:
    """Find the nodes: evaluations, and ops named for a backward that no evaluation contains.

    Args:
        parent: Op around each range. Ranges come with parents before children.
        is_op: Which ranges are ops.
        name: Code of each range's name.
        name_flags: Flags of each distinct name (``_name_flags``); the last for ranges without a name.
        sequence: Sequence number of each range; -1: none.
    """
    size = len(parent)
    node_of, outside, inside = (np.empty(size, np.int32) for _ in range(3))
    number, flags, counts = np.empty(size, np.int64), np.empty(size, np.uint8), np.zeros(2, np.int64)
    autograd_nodes.find_nodes(
        parent=as_int32(parent),
        is_op=as_flags(is_op),
        name=as_int32(name),
        name_flags=as_int64(name_flags),
        sequence=as_int64(sequence),
        node_of=node_of,
        number=number,
        flags=flags,
        outside=outside,
        inside=inside,
        counts=counts,
    )
    return NodeWalk(node_of, number, flags, outside[: counts[0]].copy(), inside[: counts[1]].copy())


def spread_flags(parent: Int32s, flags: _Flags) -> tuple[Int32s, Int32s]:
    """Return for every range the nearest op at or above it that made a node which ran, and that re-runs forward work.

    A node inside a re-run is backward again, so the second search stops at a node. Ranges inside an op that is
    ``FORWARD`` or ``MADE_NODE`` get that flag in *flags*, too.
    """
    made_node, rerun = np.empty((2, len(parent)), np.int32)
    autograd_nodes.spread_flags(as_int32(parent), flags, made_node, rerun)
    return made_node, rerun


def _name_flags(names: CategoryColumn) -> Ints:
    """Return the flags of each distinct name, and last those of no name."""
    evaluated = {name.removeprefix(EVALUATE_NODE) for name in names.values if name.startswith(EVALUATE_NODE)}
    evaluation = names.answers(f"^{EVALUATE_NODE}")
    backward = names.answers(_BACKWARD)
    inner_range = np.array([*(name in evaluated for name in names.values), False])
    never_rerun = evaluation | backward | inner_range | names.answers(_BOOKKEEPING)
    flags: Ints = (
        evaluation * autograd_nodes.EVALUATION_NAME
        + (backward & ~evaluation & ~names.answers(r"^(aten|c10d)::")) * autograd_nodes.BACKWARD_NAME
        + names.answers(r"^record_param_comms") * autograd_nodes.COMM_RECORD_NAME
        + names.answers(FORWARD_ONLY) * autograd_nodes.FORWARD_ONLY_NAME
        + never_rerun * autograd_nodes.NEVER_RERUN_NAME
    )
    return flags


def _outermost_nodes(ranges: Ranges, node_of: Int32s, node: Ints) -> Ints:
    """Return the outermost node around each of these nodes."""
    while ((above := take_or_missing(node_of, take_or_missing(ranges.op_of, node))) >= 0).any():
        node = np.where(above >= 0, above, node)
    return node


def _repeated_nodes(ranges: Ranges, names: CategoryColumn, nodes: Ints, number: Ints) -> tuple[Bools, Bools]:
    """Return masks of the ranges whose node runs again later, and whose node ran before.

    A zero-bubble schedule differentiates by the inputs first and by the weights later, through the same nodes. Two runs
    are of the same node if name, sequence number and forward thread are equal.
    """
    runs_again, ran_before = np.zeros((2, len(number)), np.bool_)
    rows = nodes[number[nodes] >= 0]
    rows = rows[np.argsort(number[rows], kind="stable")]
    is_equal = np.diff(number[rows], prepend=-1, append=-1) == 0  # equal to the number before it
    rows = rows[is_equal[1:] | is_equal[:-1]]
    if not len(rows):
        return runs_again, ran_before
    runs = pl.DataFrame(
        {
            "name": names.take(rows).codes,
            "sequence": number[rows],
            "thread": ranges.column("fwd_thread", rows),
            "start": ranges.start(rows),
        }
    )
    start, same_node = pl.col("start"), ("name", "sequence", "thread")
    runs = runs.select(again=start < start.max().over(same_node), before=start > start.min().over(same_node))
    runs_again[rows], ran_before[rows] = runs["again"].to_numpy(), runs["before"].to_numpy()
    return runs_again, ran_before


def _node_makers(ranges: Ranges, rows: Int32s) -> tuple[Bools, Bools]:
    """Return which numbered ops (*rows*) made a node, and the number of which was taken by some node.

    An op records the number that the *next* node will get, so ops that make no node repeat the number of the op that
    does: the last one to start with the number, and every op that contains it. A number was taken if a higher one
    occurs on the thread, even where the window ends before the backward.
    """
    if not len(rows):
        return np.zeros(0, np.bool_), np.zeros(0, np.bool_)
    thread, sequence, end = ranges.thread[rows], ranges.sequence[rows], ranges.end(rows)
    # Sort by thread and number; within a number the ops stay in order of start. An op made the node if it ends no
    # earlier than the last op of its number: it is that op, or contains it.
    order = np.lexsort((sequence, thread))
    ordered_end = end[order]
    is_last = np.append((np.diff(sequence[order]) != 0) | (np.diff(thread[order]) != 0), True)
    last = np.flatnonzero(is_last)
    made_node = np.empty(len(rows), np.bool_)
    made_node[order] = ordered_end >= np.repeat(ordered_end[last], np.diff(last, prepend=-1))
    thread_begin = np.flatnonzero(np.diff(thread, prepend=-1))  # rows come thread by thread
    highest = np.repeat(np.maximum.reduceat(sequence, thread_begin), np.diff(thread_begin, append=len(rows)))
    return made_node, sequence < highest


def _rerun_ops(ranges: Ranges, names: CategoryColumn, nodes: Ints, walk: NodeWalk) -> Int32s:
    """Return the ops that run forward work again inside a node.

    Backward formulas run with gradients off, so that their ops have no sequence number. A checkpoint re-runs its
    forward with gradients on. A function written in Python always gets a number, so it counts only inside a checkpoint,
    or where its own node runs later.
    """
    rows = walk.inside
    is_python = ~ranges.name_matches(rows, "::")
    is_rerun = np.ones(len(rows), np.bool_)
    is_rerun[is_python] = _own_node_runs_later(ranges, names, nodes, rows[is_python])
    return rows[is_rerun | names.take(walk.node_of[rows]).matches(_CHECKPOINT)]


def _own_node_runs_later(ranges: Ranges, names: CategoryColumn, nodes: Ints, rows: Int32s) -> Bools:
    """Return which functions (*rows*) have a node of their name and number that runs after them."""
    runs_later = np.zeros(len(rows), np.bool_)
    nodes = nodes[ranges.sequence[nodes] >= 0]
    if not len(rows) or not len(nodes):
        return runs_later
    function = ranges.name.take(rows)
    functions = pl.DataFrame(
        {
            "name": function.replace([f"{name}Backward" for name in function.values]).series("name", pl.String()),
            "sequence": ranges.sequence[rows],
            "index": np.arange(len(rows)),
        }
    )
    node_runs = pl.DataFrame(
        {
            "name": names.take(nodes).series("name", pl.String()),
            "sequence": ranges.sequence[nodes],
            "start": ranges.start(nodes),
        }
    )
    last_runs = node_runs.group_by("name", "sequence").agg(pl.col("start").max())
    matched = functions.join(last_runs, on=("name", "sequence"))
    index = matched["index"].to_numpy()
    runs_later[index] = matched["start"].to_numpy() > ranges.start(rows[index])
    return runs_later


def _forward_ops(ranges: Ranges, names: CategoryColumn, ops: Int32s, node_row: Ints, number: Ints) -> Ints:
    """Return for every GPU event inside a node the row of the forward op that the node belongs to; -1 where none.

    Of the *ops* with the node's number it is the last one whose name fits the node's, else the last one.
    """
    nodes = distinct_rows(node_row[node_row >= 0], len(ranges))
    nodes = nodes[number[nodes] >= 0]
    sorted_numbers = np.sort(number[nodes], kind="stable")
    op_number = find_sorted(ranges.sequence[ops], sorted_numbers)  # position of the number in sorted_numbers
    ops, op_number = ops[op_number >= 0], op_number[op_number >= 0]
    node_number = find_sorted(number[nodes], sorted_numbers)
    last_op = np.full(len(sorted_numbers), -1, np.int64)
    last_op[op_number] = ops  # of several the last one stays

    # Words that names have in common, as codes. A node's word that no op has is -2: it fits none.
    op_name, node_name = ranges.name.take(ops), names.take(nodes)
    word_code = {word: code for code, word in enumerate(dict.fromkeys(map(_common_word, op_name.values)))}
    op_word = number_values(op_name, lambda name: word_code[_common_word(name)])
    node_word = number_values(node_name, lambda name: word_code.get(_common_word(name), -2), missing=-2)

    # One key per number and word. The last op of each key that some node has is the op that fits it.
    key_base = len(word_code) + 2
    node_key = node_number * key_base + node_word
    sorted_keys = np.sort(node_key, kind="stable")
    fitting_op = np.full(len(sorted_keys) + 1, -1, np.int64)  # its last element takes the ops that fit no node
    fitting_op[find_sorted(op_number * key_base + op_word, sorted_keys)] = ops
    fitting_op[-1] = -1
    best = fitting_op[find_sorted(node_key, sorted_keys)]

    forward_op = np.full(len(ranges) + 1, -1, np.int64)
    forward_op[nodes] = np.where((best >= 0) & (node_word >= 0), best, last_op[node_number])
    return forward_op[node_row]


def _common_word(name: str) -> str:
    """Return what the names of an op and of its node have in common.

    >>> _common_word("aten::add_"), _common_word("AddBackward0")
    ('add', 'add')
    """
    name = name.rsplit("::", 1)[-1].lower().replace("_", "")
    return name.rstrip("0123456789").removesuffix("backward")
