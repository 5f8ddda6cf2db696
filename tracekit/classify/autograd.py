"""Which pass launched each GPU event, read from the autograd engine's own ranges and sequence numbers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit._util.arrays import AnyInts, Bools, Int32s, find_sorted, is_in_sorted, take_or_missing
from tracekit._util.categories import CategoryColumn
from tracekit.classify import _nodes
from tracekit.classify._nest import Ints, in_order
from tracekit.classify.ranges import NODE, Launches, Ranges

_BACKWARD = r"(Backward\d*|Backwards|BackwardHook|AccumulateGrad|CopySlices)$"
_BOOKKEEPING = r"^(record_param_comms|c10d::|nccl:|aten::(detach|empty|zeros_like|record_stream))|^detach"
_CHECKPOINT = r"(?i)checkpoint|recompute"
"""Nodes of functions that people write to run a forward again."""

FORWARD_ONLY = (
    r"^aten::(conv(olution|\dd|_transpose\dd)?|_convolution|(cudnn|miopen|mkldnn)_convolution|(cudnn_|miopen_|native_|_)?"
    r"(batch|layer|group|instance)_norm\w*(?<!backward)|(_fused_)?rms_norm|_?(log_)?softmax|\w+_loss(\d?d?_forward)?|gelu|silu_?"
    r"|relu_?|threshold_?|leaky_relu_?|\w*(max|avg)_pool\dd(_with_indices)?|embedding(_bag)?|dropout|native_dropout|linear"
    r"|_?scaled_dot_product_(?!\w*backward)\w*|_(flash|efficient|cudnn)_attention_forward|upsample_\w+(?<!backward))$"
)
"""Operators that only a forward calls, as long as no node does."""


class Nodes(NamedTuple):
    """Numbers and start times of the nodes the engine ran, in order of time."""

    sequence: Ints
    start: Ints


class NodeNames:
    """Names of ranges as nodes: ``MmBackward0``, whether of the engine's evaluation or of the node's own range."""

    def __init__(self, names: CategoryColumn) -> None:
        short = [v.removeprefix(NODE).removeprefix("torch::autograd::") for v in names.values]
        self._names = names
        self._short = CategoryColumn(tuple(short), np.arange(len(short))).replace(short)

    @property
    def values(self) -> tuple[str, ...]:
        """The distinct names."""
        return self._short.values

    def take(self, rows: AnyInts) -> CategoryColumn:
        """Return the names of *rows*; null for a negative one."""
        return self._short.take(take_or_missing(self._names.codes, rows))


@dataclass(frozen=True, eq=False, repr=False)
class Autograd:
    """The engine's nodes among the ranges, and what they say of every GPU event."""

    ranges: Ranges
    names: NodeNames
    rows: Ints  # the outer ranges of nodes' evaluations, in order of thread and time
    node_of: Int32s  # of every range: the row of the node that runs it, -1 outside the engine
    differentiable: Int32s  # of every range: nearest op at or above it that made a node which ran backward
    again: Int32s  # of every range: nearest op at or above it that re-runs forward work inside a node
    node_sequence: Ints  # of every range that is a node: its number
    runs_again: Bools  # of every range that is a node: the same node runs once more later
    ran_before: Bools  # of every range that is a node: the same node ran before
    node_row: Ints  # of every GPU event
    node: CategoryColumn
    fwd_op: CategoryColumn
    sequence: Ints
    site: CategoryColumn  # "forward", "backward", "recompute"; null where the engine says nothing
    made: Bools  # of every GPU event: its op made a node, though perhaps none that ran backward in this window

    @property
    def active(self) -> bool:
        """The trace holds any backward at all."""
        return bool(len(self.rows))

    @cached_property
    def row_names(self) -> CategoryColumn:
        """Names of the nodes in ``rows``."""
        return self.names.take(self.rows)

    @cached_property
    def nodes(self) -> Nodes:
        """The numbered nodes in the order they ran."""
        rows = self.rows[self.node_sequence[self.rows] >= 0]
        rows = rows[np.argsort(self.ranges.start(rows), kind="stable")]
        return Nodes(self.node_sequence[rows], self.ranges.start(rows))


def read_autograd(ranges: Ranges, launches: Launches) -> Autograd:
    """Find the engine's nodes, tie each to its forward op, and place every GPU event."""
    names = NodeNames(ranges.name)
    walk = _nodes.find_nodes(ranges.op_of, ranges.is_op, ranges.name.codes, _says(ranges.name), ranges.sequence)
    node_of, number, marks = walk.node_of, walk.number, walk.marks
    rows = np.flatnonzero(marks & _nodes.NODE)
    makers, taken = _makers(ranges, walk.outside)
    forward_op = ~ranges.called(walk.outside, r"^c10d::")
    makers &= forward_op
    made = walk.outside[makers]
    marks[made[is_in_sorted(ranges.sequence[made], np.sort(number[rows], kind="stable"))]] |= _nodes.ANSWERED
    marks[walk.outside[makers & taken]] |= _nodes.MADE
    marks[_reruns(ranges, names, rows, walk)] |= _nodes.AGAIN
    differentiable, again = _nodes.spread(ranges.op_of, marks)

    op = launches.op
    node_row, maker = take_or_missing(node_of, op), take_or_missing(differentiable, op)
    met = np.append(marks, np.uint8(0))[op]
    # A backward inside a node, as a checkpoint's, counts anew on its thread: the outer node's number is the forward's.
    sequence = np.where(
        node_row >= 0,
        take_or_missing(number, _outer(ranges, node_of, node_row)),
        take_or_missing(ranges.sequence, maker),
    )
    site = CategoryColumn.choose(
        len(op),
        [
            ("recompute", (node_row >= 0) & (take_or_missing(again, op) >= 0)),
            ("backward", node_row >= 0),
            ("forward", (maker >= 0) | (met & _nodes.FORWARD > 0)),
        ],
    )
    runs_again, ran_before = _visits(ranges, names, rows, number)
    return Autograd(
        ranges,
        names,
        rows,
        node_of,
        differentiable,
        again,
        number,
        runs_again,
        ran_before,
        node_row,
        names.take(node_row),
        ranges.name.take(_forward_ops(ranges, names, walk.outside[forward_op], node_row, number)),
        sequence,
        site,
        met & _nodes.MADE > 0,
    )


def _says(names: CategoryColumn) -> Ints:
    """What each distinct name says of an op."""
    nodes = {v.removeprefix(NODE) for v in names.values if v.startswith(NODE)}
    wrapper = names.answers(f"^{NODE}")
    backward = names.answers(_BACKWARD)
    inner = np.array([*(v in nodes for v in names.values), False])
    own = wrapper | backward | inner | names.answers(_BOOKKEEPING)
    says: Ints = (
        wrapper * _nodes.WRAPPER
        + (backward & ~wrapper & ~names.answers(r"^(aten|c10d)::")) * _nodes.NAMED
        + names.answers(r"^record_param_comms") * _nodes.COMMS
        + names.answers(FORWARD_ONLY) * _nodes.AHEAD
        + own * _nodes.NO_RERUN
    )
    return says


def _outer(ranges: Ranges, node_of: Int32s, node: Ints) -> Ints:
    """Return the outermost node around each of the given nodes."""
    while ((above := take_or_missing(node_of, take_or_missing(ranges.op_of, node))) >= 0).any():
        node = np.where(above >= 0, above, node)
    return node


def _visits(ranges: Ranges, names: NodeNames, nodes: Ints, number: Ints) -> tuple[Bools, Bools]:
    """Nodes that run again, and nodes that ran before: same name, number and forward thread.

    A zero-bubble schedule differentiates by the inputs first and by the weights later, through the same nodes.
    """
    again, before = np.zeros((2, len(number)), np.bool_)
    rows = nodes[number[nodes] >= 0]
    rows = rows[np.argsort(number[rows], kind="stable")]
    same = np.diff(number[rows], prepend=-1, append=-1) == 0
    rows = rows[same[1:] | same[:-1]]
    if not len(rows):
        return again, before
    table = pl.DataFrame(
        {
            "name": names.take(rows).codes,
            "sequence": number[rows],
            "thread": ranges.column("fwd_thread", rows),
            "start": ranges.start(rows),
        }
    )
    keys = ("name", "sequence", "thread")
    visits = table.select(
        again=pl.col("start") < pl.col("start").max().over(keys),
        before=pl.col("start") > pl.col("start").min().over(keys),
    )
    again[rows], before[rows] = visits["again"].to_numpy(), visits["before"].to_numpy()
    return again, before


def _makers(ranges: Ranges, rows: Int32s) -> tuple[Bools, Bools]:
    """Which numbered ops made a node, and which numbers some node took.

    An op records the number the *next* node will get, so ops that make none repeat the number of the one that does:
    the last to start with it, and whatever contains that one. A number was taken when a higher one follows on the
    thread, even where the window ends before the backward.
    """
    if not len(rows):
        return np.zeros(0, np.bool_), np.zeros(0, np.bool_)
    thread, sequence, end = ranges.thread[rows], ranges.sequence[rows], ranges.end(rows)
    order = in_order(thread, sequence)
    ordered = end[order]
    last = np.append((np.diff(sequence[order]) != 0) | (np.diff(thread[order]) != 0), True)
    stop = np.flatnonzero(last)
    makers = np.empty(len(rows), np.bool_)
    makers[order] = ordered >= np.repeat(ordered[stop], np.diff(stop, prepend=-1))
    begins = np.flatnonzero(np.diff(thread, prepend=-1))  # rows come thread by thread
    highest = np.repeat(np.maximum.reduceat(sequence, begins), np.diff(begins, append=len(rows)))
    return makers, sequence < highest


def _reruns(ranges: Ranges, names: NodeNames, nodes: Ints, walk: _nodes.Walk) -> Int32s:
    """Ops that run forward again inside a node.

    Backward formulas run with gradients off, so their ops carry no sequence number; a checkpoint re-runs its forward
    with gradients on. A node's own inner range repeats the node's number and is no re-run. A function written in Python
    always gets a number, so it counts inside a checkpoint alone, or where its own node runs later.
    """
    rows = walk.inside
    python = ~ranges.called(rows, "::")
    believed = np.ones(len(rows), np.bool_)
    believed[python] = _answered_later(ranges, names, nodes, rows[python])
    return rows[believed | names.take(walk.node_of[rows]).matches(_CHECKPOINT)]


def _answered_later(ranges: Ranges, names: NodeNames, nodes: Ints, rows: Int32s) -> Bools:
    """Which functions (*rows*) have a node of their name and number run after them."""
    out = np.zeros(len(rows), np.bool_)
    nodes = nodes[ranges.sequence[nodes] >= 0]
    if not len(rows) or not len(nodes):
        return out
    called = ranges.name.take(rows)
    asked = pl.DataFrame(
        {
            "name": called.replace([f"{v}Backward" for v in called.values]).series("name", pl.String()),
            "sequence": ranges.sequence[rows],
            "place": np.arange(len(rows)),
        }
    )
    ran = pl.DataFrame(
        {
            "name": names.take(nodes).series("name", pl.String()),
            "sequence": ranges.sequence[nodes],
            "at": ranges.start(nodes),
        }
    )
    last = ran.group_by("name", "sequence").agg(pl.col("at").max())
    answers = asked.join(last, on=("name", "sequence"))
    place = answers["place"].to_numpy()
    out[place] = answers["at"].to_numpy() > ranges.start(rows[place])
    return out


def _forward_ops(ranges: Ranges, names: NodeNames, ops: Int32s, node_row: Ints, number: Ints) -> Ints:
    """For every event inside a node the row of the forward op that the node belongs to, -1 where none.

    It has the node's number; of several it is the last one whose name fits, else the last.
    """
    nodes = distinct(node_row[node_row >= 0], len(ranges))
    nodes = nodes[number[nodes] >= 0]
    fwd = np.empty(len(ranges) + 1, np.int64)
    fwd[node_row] = -1
    ranks = np.sort(number[nodes], kind="stable")
    at = find_sorted(ranges.sequence[ops], ranks)
    ops, at = ops[at >= 0], at[at >= 0]
    asked = find_sorted(number[nodes], ranks)
    last = np.full(len(ranks), -1, np.int64)
    last[at] = ops  # of several the last stays
    # Words that names have in common, as numbers; a node's that no op has fits none.
    name, node_name = ranges.name.take(ops), names.take(nodes)
    words = {word: code for code, word in enumerate(dict.fromkeys(map(_key, name.values)))}
    has = name.look_up(np.array([*(words[_key(v)] for v in name.values), -1]))
    want = node_name.look_up(np.array([*(words.get(_key(v), -2) for v in node_name.values), -2]))
    size = len(words) + 2
    pairs = np.sort(asked * size + want, kind="stable")
    place = find_sorted(at * size + has, pairs)
    fitting = np.full(len(pairs) + 1, -1, np.int64)
    fitting[place] = ops
    fitting[-1] = -1
    best = fitting[find_sorted(asked * size + want, pairs)]
    fwd[nodes] = np.where((best >= 0) & (want >= 0), best, last[asked])
    return fwd[node_row]


def _key(name: str) -> str:
    """What the names of an op and of its node have in common."""
    name = name.rsplit("::", 1)[-1].lower().replace("_", "")
    return name.rstrip("0123456789").removesuffix("backward")


def distinct(rows: Ints, size: int) -> Ints:
    """The distinct *rows* below *size*, in order.

    >>> distinct(np.array([3, 1, 3]), 5).tolist()
    [1, 3]
    """
    seen = np.zeros(size, np.bool_)
    seen[rows] = True
    return np.flatnonzero(seen)
