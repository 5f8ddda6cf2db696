"""Pass of each GPU event as recorded by the autograd engine: its node ranges and sequence numbers.

The engine wraps the evaluation of each backward node in a range. A node carries the sequence number
of the forward op that made it, which connects the two passes. Forward work inside a node is
recomputation.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._loops import autograd_nodes
from tracekit._util.arrays import (
    AnyInts,
    Bools,
    Int32s,
    Ints,
    SortedGroups,
    as_flags,
    as_int32,
    as_int64,
    group_rows,
    is_in_sorted,
    take_or_missing,
)
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import to_int64
from tracekit.classify.host_ranges import EVALUATE_NODE, Launches, Ranges
from tracekit.classify.names import NODES, OPERATORS
from tracekit.classify.row_order import mask_of_rows, number_values

_Flags = npt.NDArray[np.uint8]


class NodeWalk(NamedTuple):
    """Nodes among the ranges, and the numbered ops around them."""

    node_of: Int32s  # of every range: row of the node that runs it, its own row for a node, -1 outside the engine
    number: Ints  # of every range that is a node: its sequence number; -1 for other ranges
    flags: _Flags  # of every range: ``NODE``, ``FORWARD``
    ops_outside_nodes: Int32s  # numbered ops outside of nodes
    possible_reruns: Int32s  # numbered ops inside of nodes that may run forward work again


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
    runs_again: (
        Bools  # of every range that is a node, and last for none: the same node runs again later
    )
    ran_before: Bools  # of every range that is a node, and last for none: the same node ran before
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
    def numbered_rows(self) -> Ints:
        """Rows of the nodes that have a sequence number, in the order they ran."""
        rows = self.rows[self.node_sequence[self.rows] >= 0]
        return rows[np.argsort(self.ranges.start(rows), kind="stable")]

    def followed_by(self, names: str) -> Bools:
        """Return the mask of nodes after which their thread runs a node of these *names*.

        One row more than ranges.
        """
        thread = self.ranges.thread[self.rows]
        follows = self.row_names.matches(names)[1:] & (thread[1:] == thread[:-1])
        return mask_of_rows(len(self.ranges) + 1, self.rows[:-1], follows)


def read_autograd(ranges: Ranges, launches: Launches) -> Autograd:
    """Find the nodes, connect each to its forward op, and find the pass of every GPU event."""
    full_names = ranges.name.values
    names = ranges.name.replace(
        [name.removeprefix(EVALUATE_NODE).removeprefix("torch::autograd::") for name in full_names]
    )
    walk = find_nodes(
        ranges.op_of, ranges.is_op, ranges.name.codes, _name_flags(ranges.name), ranges.sequence
    )
    node_of = walk.node_of
    number = walk.number
    flags = walk.flags
    nodes = np.flatnonzero(flags & autograd_nodes.NODE)
    made_node, is_taken = _node_makers(ranges, walk.ops_outside_nodes)
    is_forward_op = ~ranges.name_matches(walk.ops_outside_nodes, r"^c10d::")
    made_node = made_node & is_forward_op
    makers = walk.ops_outside_nodes[made_node]
    ran = is_in_sorted(ranges.sequence[makers], np.sort(number[nodes], kind="stable"))
    flags[makers[ran]] |= autograd_nodes.MADE_NODE_THAT_RAN
    flags[walk.ops_outside_nodes[made_node & is_taken]] |= autograd_nodes.MADE_NODE
    flags[_rerun_ops(ranges, names, nodes, walk)] |= autograd_nodes.RERUN
    differentiable, rerun = spread_flags(ranges.op_of, flags)

    # From here on: one row per GPU event, by the op that launched it.
    op = launches.op
    node_row = take_or_missing(node_of, op)
    maker = take_or_missing(differentiable, op)
    op_flags = np.append(flags, np.uint8(0))[op]
    in_node = node_row >= 0
    is_forward = (maker >= 0) | (op_flags & autograd_nodes.FORWARD > 0)
    # A backward inside a node, as a checkpoint runs it, numbers anew on its thread: the forward has
    # the outer node's number.
    node_number = take_or_missing(number, _outermost_nodes(ranges, node_of, node_row))
    sequence = np.where(in_node, node_number, take_or_missing(ranges.sequence, maker))
    is_rerun = in_node & (take_or_missing(rerun, op) >= 0)
    site = CategoryColumn.choose(
        len(op), [("recompute", is_rerun), ("backward", in_node), ("forward", is_forward)]
    )
    runs_again, ran_before = _repeated_nodes(ranges, names, nodes, number)
    forward_op = _forward_ops(
        ranges, names, walk.ops_outside_nodes[is_forward_op], node_row, number
    )
    return Autograd(
        ranges=ranges,
        names=names,
        rows=nodes,
        node_of=node_of,
        differentiable=differentiable,
        rerun=rerun,
        node_sequence=number,
        runs_again=runs_again,
        ran_before=ran_before,
        node_row=node_row,
        node=names.take(node_row),
        fwd_op=ranges.name.take(forward_op),
        sequence=sequence,
        site=site,
        made_node=op_flags & autograd_nodes.MADE_NODE > 0,
    )


def find_nodes(
    parent: Int32s, is_op: Bools, name: Int32s, name_flags: Ints, sequence: Ints
) -> NodeWalk:
    """Find the nodes: evaluations, and ops named for a backward that no evaluation contains.

    Args:
        parent: Op around each range. Ranges come with parents before children.
        is_op: Which ranges are ops.
        name: Code of each range's name.
        name_flags: Flags of each distinct name (``_name_flags``); the last for ranges without a
            name.
        sequence: Sequence number of each range; -1: none.
    """
    size = len(parent)
    node_of, ops_outside_nodes, possible_reruns = (np.empty(size, np.int32) for _ in range(3))
    number = np.empty(size, np.int64)
    flags = np.empty(size, np.uint8)
    counts = np.zeros(2, np.int64)
    autograd_nodes.find_nodes(
        parent=as_int32(parent),
        is_op=as_flags(is_op),
        name=as_int32(name),
        name_flags=as_int64(name_flags),
        sequence=as_int64(sequence),
        node_of=node_of,
        number=number,
        flags=flags,
        ops_outside_nodes=ops_outside_nodes,
        possible_reruns=possible_reruns,
        counts=counts,
    )
    return NodeWalk(
        node_of,
        number,
        flags,
        ops_outside_nodes[: counts[0]].copy(),
        possible_reruns[: counts[1]].copy(),
    )


def spread_flags(parent: Int32s, flags: _Flags) -> tuple[Int32s, Int32s]:
    """Return for every range the nearest op at or above it that made a node which ran, and that re-runs forward work.

    A node inside a re-run is backward again, so the second search stops at a node. Ranges inside an
    op that is ``FORWARD`` or ``MADE_NODE`` get that flag in *flags*, too.
    """
    made_node, rerun = np.empty((2, len(parent)), np.int32)
    autograd_nodes.spread_flags(as_int32(parent), flags, made_node, rerun)
    return made_node, rerun


def _name_flags(names: CategoryColumn) -> Ints:
    """Return the flags of each distinct name, and last those of no name."""
    evaluated = {
        name.removeprefix(EVALUATE_NODE) for name in names.values if name.startswith(EVALUATE_NODE)
    }
    evaluation = names.answers(f"^{EVALUATE_NODE}")
    backward = names.answers(NODES["backward"])
    is_node = np.array([*(name in evaluated for name in names.values), False])
    never_rerun = evaluation | backward | is_node | names.answers(OPERATORS["bookkeeping"])
    flags: Ints = (
        evaluation * autograd_nodes.EVALUATION_NAME
        + (backward & ~evaluation & ~names.answers(r"^(aten|c10d)::"))
        * autograd_nodes.BACKWARD_NAME
        + names.answers(r"^record_param_comms") * autograd_nodes.COMM_RECORD_NAME
        + names.answers(OPERATORS["forward_only"]) * autograd_nodes.FORWARD_ONLY_NAME
        + never_rerun * autograd_nodes.NEVER_RERUN_NAME
        + is_node * autograd_nodes.NODE_NAME
    )
    return flags


def _outermost_nodes(ranges: Ranges, node_of: Int32s, node: Ints) -> Ints:
    """Return the outermost node around each of these nodes."""
    while ((above := take_or_missing(node_of, take_or_missing(ranges.op_of, node))) >= 0).any():
        node = np.where(above >= 0, above, node)
    return node


def _repeated_nodes(
    ranges: Ranges, names: CategoryColumn, nodes: Ints, number: Ints
) -> tuple[Bools, Bools]:
    """Return masks of the ranges, and last for none, whose node runs again later, and whose node ran before.

    A zero-bubble schedule differentiates by the inputs first and by the weights later, through the
    same nodes. Two runs are of the same node if name, sequence number and forward thread are equal.
    """
    rows = nodes[number[nodes] >= 0]
    thread = to_int64(ranges.column("fwd_thread", rows))
    if len(group_rows(names.codes[rows], number[rows], thread)[1]) == len(rows):  # none runs twice
        never = np.zeros(len(number) + 1, np.bool_)
        return never, never
    runs = node_table(ranges, rows, number).with_columns(name=names.take(rows).codes)
    start = pl.col("start")
    same_node = ("name", "sequence", "thread")
    repeated = runs.select(
        again=start < start.max().over(same_node), before=start > start.min().over(same_node)
    )
    runs_again, ran_before = (
        mask_of_rows(len(number) + 1, rows, column.to_numpy()) for column in repeated
    )
    return runs_again, ran_before


def node_table(ranges: Ranges, rows: Ints, number: Ints) -> pl.DataFrame:
    """Return a table of some nodes: row, start, sequence number, and thread of the forward, -1 where unknown."""
    thread = ranges.column("fwd_thread", rows).fill_null(-1)
    return pl.DataFrame(
        {"row": rows, "start": ranges.start(rows), "sequence": number[rows], "thread": thread}
    )


def _node_makers(ranges: Ranges, rows: Int32s) -> tuple[Bools, Bools]:
    """Return which numbered ops (*rows*) made a node, and the number of which was taken by some node.

    An op records the number that the *next* node will get, so ops that make no node repeat the
    number of the op that does: the last one to start with the number, and every op that contains
    it. A number was taken if a higher one occurs on the thread, even where the window ends before
    the backward.
    """
    thread = ranges.thread[rows]
    sequence = ranges.sequence[rows]
    end_ns = ranges.end(rows)
    # Ops come by thread and start. One made the node if it ends no earlier than the last op of its
    # number: it is that op, or contains it.
    same_number, first_rows = group_rows(thread, sequence)
    last_end_ns = np.empty(len(first_rows), np.int64)
    last_end_ns[same_number] = end_ns  # of several ops of a number the last remains
    threads = SortedGroups.of(thread)
    largest = np.maximum.reduceat(sequence, threads.first) if len(rows) else sequence
    return end_ns >= last_end_ns[same_number], sequence < threads.spread(largest)


def _rerun_ops(ranges: Ranges, names: CategoryColumn, nodes: Ints, walk: NodeWalk) -> Int32s:
    """Return the ops that run forward work again inside a node.

    Backward formulas run with gradients off, so that their ops have no sequence number. A
    checkpoint re-runs its forward with gradients on, and its node's formula follows. A function written
    in Python always gets a number, so it counts only inside a checkpoint, or where its own node runs later.
    """
    rows = walk.possible_reruns
    is_python = ~ranges.name_matches(rows, "::")
    is_rerun = ~_is_formula(ranges, names, walk)
    is_rerun[is_python] = _own_node_runs_later(ranges, names, nodes, rows[is_python])
    return rows[is_rerun | names.take(walk.node_of[rows]).matches(NODES["checkpoint"])]


def _is_formula(ranges: Ranges, names: CategoryColumn, walk: NodeWalk) -> Bools:
    """Return which of the possible re-runs are the formula of their node, differentiable itself (``create_graph``).

    Behind the last op of a node of PyTorch's own that has a number, its formula would come without.
    """
    rows = walk.possible_reruns
    is_formula = np.zeros(len(rows), np.bool_)
    if not len(rows):
        return is_formula
    node = walk.node_of[rows]
    inside = np.flatnonzero(ranges.is_op & is_in_sorted(walk.node_of, np.unique(node)))
    above = ranges.op_of[inside]
    # The node's own range is inside that of its evaluation, and has the ops of the formula in it.
    is_direct = (walk.flags[above] & autograd_nodes.NODE == 0) & (above != walk.node_of[inside])
    is_direct &= ranges.name.take(above).matches(NODES["of_torch"])
    ops = inside[is_direct]
    if not len(ops):
        return is_formula
    unnumbered = ops[ranges.sequence[ops] < 0]
    last_unnumbered = np.full(len(walk.node_of), np.iinfo(np.int64).min)
    np.maximum.at(last_unnumbered, walk.node_of[unnumbered], ranges.start(unnumbered))
    has_formula = np.zeros(len(walk.node_of), np.bool_)
    has_formula[walk.node_of[ops]] = True
    result: Bools = has_formula[node] & (last_unnumbered[node] < ranges.start(rows))
    return result


def _own_node_runs_later(ranges: Ranges, names: CategoryColumn, nodes: Ints, rows: Int32s) -> Bools:
    """Return which functions (*rows*) have a node of their name and number that runs after them."""
    if not len(rows):
        return np.zeros(0, np.bool_)
    function = ranges.name.take(rows)
    own_node = function.replace([f"{name}Backward" for name in function.values]).series(
        "name", pl.String()
    )
    functions = pl.DataFrame(
        {"name": own_node, "sequence": ranges.sequence[rows], "start": ranges.start(rows)}
    )
    node_name = names.take(nodes).series("name", pl.String())
    runs = pl.DataFrame(
        {"name": node_name, "sequence": ranges.sequence[nodes], "last_run": ranges.start(nodes)}
    )
    last_runs = runs.filter(pl.col("sequence") >= 0).group_by("name", "sequence").max()
    matched = functions.join(last_runs, on=("name", "sequence"), how="left", maintain_order="left")
    return (matched["last_run"] > matched["start"]).fill_null(False).to_numpy()


def _forward_ops(
    ranges: Ranges, names: CategoryColumn, ops: Int32s, node_row: Ints, number: Ints
) -> Ints:
    """Return for every GPU event inside a node the row of the forward op that the node belongs to.

    -1 where none.

    Of the *ops* with the node's number it is the last one whose name fits the node's, else the last
    one.
    """
    nodes = np.flatnonzero(mask_of_rows(len(ranges), node_row[node_row >= 0]))
    nodes = nodes[number[nodes] >= 0]
    code_of_word: dict[str, int] = {}

    def word_code(name: str) -> int:
        return code_of_word.setdefault(_common_word(name), len(code_of_word))

    # Ops and nodes without a name have no word in common.
    op_words = number_values(ranges.name, word_code, missing=-1)[ops]
    node_words = number_values(names, word_code, missing=-2)[nodes]
    words = np.concatenate([op_words, node_words])
    sequences = np.concatenate([ranges.sequence[ops], number[nodes]])
    last_op = _last_rows(ops, group_rows(sequences)[0])
    fitting_op = _last_rows(ops, group_rows(sequences, words)[0])
    forward_op = np.full(len(ranges) + 1, -1, np.int64)
    forward_op[nodes] = np.where(fitting_op >= 0, fitting_op, last_op)
    return forward_op[node_row]


def _last_rows(rows: AnyInts, group: Ints) -> Ints:
    """Return for all behind the first ``len(rows)`` elements of *group* the last of the *rows* of its group.

    -1 where there is none.

    >>> _last_rows(np.array([7, 8, 9]), np.array([0, 0, 1, 0, 2])).tolist()
    [8, -1]
    """
    last_row = np.full(int(group.max(initial=-1)) + 1, -1, np.int64)
    last_row[group[: len(rows)]] = rows  # of several rows of a group the last remains
    return last_row[group[len(rows) :]]


def _common_word(name: str) -> str:
    """Return what the names of an op and of its node have in common.

    >>> _common_word("aten::add_"), _common_word("AddBackward0")
    ('add', 'add')
    """
    name = name.rsplit("::", 1)[-1].lower().replace("_", "")
    return name.rstrip("0123456789").removesuffix("backward")
