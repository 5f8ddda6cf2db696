"""Which pass launched each GPU event, read from the autograd engine's own ranges and sequence numbers."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit._util.coded import Bools, Text, among, pick
from tracekit._util.records import dataclass
from tracekit.classify._nest import Ints
from tracekit.classify.ranges import NODE, Launches, Ranges

_BACKWARD = r"(Backward\d*|Backwards|BackwardHook|AccumulateGrad|CopySlices)$"
_CHECKPOINT = r"(?i)checkpoint|recompute"
"""Nodes of functions that people write to run a forward again."""

FORWARD_ONLY = (
    r"^aten::(conv(olution|\dd|_transpose\dd)?|_convolution|(cudnn|miopen|mkldnn)_convolution|(cudnn_|miopen_|native_|_)?"
    r"(batch|layer|group|instance)_norm\w*(?<!backward)|(_fused_)?rms_norm|_?(log_)?softmax|\w+_loss(\d?d?_forward)?|gelu|silu_?"
    r"|relu_?|threshold_?|leaky_relu_?|\w*(max|avg)_pool\dd(_with_indices)?|embedding(_bag)?|dropout|native_dropout|linear"
    r"|_?scaled_dot_product_(?!\w*backward)\w*|_(flash|efficient|cudnn)_attention_forward|upsample_\w+(?<!backward))$"
)
"""Operators that only a forward calls, as long as no node does."""


@dataclass(frozen=True)
class Nodes:
    """Numbers and start times of the nodes the engine ran, in order of time."""

    sequence: Ints
    start: Ints


@dataclass(frozen=True)
class Autograd:
    """The engine's nodes among the ranges, and what they say of every GPU event."""

    is_node: Bools  # of every range: it is the outer range of one node's evaluation
    node_of: Ints  # of every range: the row of the node that runs it, -1 outside the engine
    differentiable: Ints  # of every range: nearest op at or above it that made a node which ran backward
    again: Ints  # of every range: nearest op at or above it that re-runs forward work inside a node
    names: Text  # of every range: its name as a node, "MmBackward0"
    node_sequence: Ints  # of every range that is a node: its number
    runs_again: Bools  # of every range that is a node: the same node runs once more later
    ran_before: Bools  # of every range that is a node: the same node ran before
    node_row: Ints  # of every GPU event
    node: Text
    fwd_op: Text
    sequence: Ints
    site: Text  # "forward", "backward", "recompute"; null where the engine says nothing
    made: Bools  # of every GPU event: its op made a node, though perhaps none that ran backward in this window
    active: bool  # the trace holds any backward at all

    def nodes(self, ranges: Ranges) -> Nodes:
        """List the numbered nodes in the order they ran."""
        rows = np.flatnonzero(self.is_node & (self.node_sequence >= 0))
        rows = rows[np.argsort(ranges.start[rows], kind="stable")]
        return Nodes(self.node_sequence[rows], ranges.start[rows])


def read_autograd(ranges: Ranges, launches: Launches) -> Autograd:
    """Find the engine's nodes, tie each to its forward op, and place every GPU event."""
    is_node = _nodes(ranges)
    node_of = ranges.nearest_op(is_node)
    names = _node_names(ranges)
    inside = node_of >= 0
    node_sequence = np.where(is_node, _node_sequence(ranges, is_node), -1)

    numbered = ranges.is_op & ~inside & (ranges.sequence >= 0) & ~ranges.name.matches(r"^record_param_comms")
    forward_op = numbered & ~ranges.name.matches(r"^c10d::")
    makers, used = _makers(ranges, forward_op, numbered)
    rows = np.flatnonzero(makers)
    answered = np.zeros(len(ranges), np.bool_)
    answered[rows] = among(ranges.sequence[rows], np.sort(node_sequence[is_node], kind="stable"))
    differentiable = ranges.nearest_op(answered)
    made_row = ranges.nearest_op(makers & used)
    again = _reruns(ranges, names, is_node, node_of)
    ahead = ranges.nearest_op(ranges.name.matches(FORWARD_ONLY) & ~inside)

    op = launches.op
    node_row = pick(node_of, op)
    made = pick(differentiable, op)
    # A backward inside a node, as a checkpoint's, counts anew on its thread: the outer node's number is the forward's.
    outer = ranges.nearest_op(is_node & (pick(node_of, ranges.op_of) < 0))
    sequence = np.where(node_row >= 0, pick(node_sequence, pick(outer, op)), pick(ranges.sequence, made))
    site = Text.choose(
        len(op),
        [
            ("recompute", (node_row >= 0) & (pick(again, op) >= 0)),
            ("backward", node_row >= 0),
            ("forward", (made >= 0) | (pick(ahead, op) >= 0)),
        ],
    )
    fwd = _forward_ops(ranges, forward_op, names, is_node, node_sequence)
    runs_again, ran_before = _visits(ranges, names, is_node, node_sequence)
    return Autograd(
        is_node,
        node_of,
        differentiable,
        again,
        names,
        node_sequence,
        runs_again,
        ran_before,
        node_row,
        names.take(node_row),
        ranges.name.take(pick(fwd, node_row)),
        sequence,
        site,
        pick(made_row, op) >= 0,
        bool(is_node.any()),
    )


def _nodes(ranges: Ranges) -> Bools:
    """Outer ranges of node evaluations; where the wrapper was not recorded, the node's own range stands for it."""
    wrapper = ranges.name.map(lambda v: v.startswith(NODE))
    named = ranges.name.matches(_BACKWARD) & ~wrapper & ~ranges.name.matches(r"^(aten|c10d)::")
    alone = named & (ranges.nearest_op(wrapper) < 0)
    return (wrapper | alone) & ranges.is_op


def _node_names(ranges: Ranges) -> Text:
    def short(value: str) -> str:
        return value.removeprefix(NODE).removeprefix("torch::autograd::")

    return ranges.name.replace([short(v) for v in ranges.name.values])


def _node_sequence(ranges: Ranges, is_node: Bools) -> Ints:
    """Find every node's number; some files write it on the inner range only."""
    sequence = ranges.sequence.copy()
    inner = np.flatnonzero((ranges.op_of >= 0) & (ranges.sequence >= 0))
    parent = ranges.op_of[inner]
    use = is_node[parent] & (sequence[parent] < 0)
    sequence[parent[use]] = ranges.sequence[inner[use]]
    return sequence


def _visits(ranges: Ranges, names: Text, is_node: Bools, node_sequence: Ints) -> tuple[Bools, Bools]:
    """Nodes that run again, and nodes that ran before: same name, number and forward thread.

    A zero-bubble schedule differentiates by the inputs first and by the weights later, through the same nodes.
    """
    rows = np.flatnonzero(is_node & (node_sequence >= 0))
    table = pl.DataFrame(
        {
            "name": names.codes[rows],
            "sequence": node_sequence[rows],
            "thread": ranges.column("fwd_thread", rows),
            "start": ranges.start[rows],
        }
    )
    keys = ("name", "sequence", "thread")
    twice = table.select(pl.struct(keys).is_duplicated()).to_series()
    table, rows = table.filter(twice), rows[twice.to_numpy()]  # mostly none
    visits = table.select(
        again=pl.col("start") < pl.col("start").max().over(keys),
        before=pl.col("start") > pl.col("start").min().over(keys),
    )
    again, before = np.zeros(len(is_node), np.bool_), np.zeros(len(is_node), np.bool_)
    again[rows], before[rows] = visits["again"].to_numpy(), visits["before"].to_numpy()
    return again, before


def _makers(ranges: Ranges, candidates: Bools, numbered: Bools) -> tuple[Bools, Bools]:
    """Ops that made a node, and the numbers that some node took.

    An op records the number the *next* node will get, so ops that make none repeat the number of the one that does:
    the last to start with it, and whatever contains that one. A number was taken when a higher one follows on the
    thread, even where the window ends before the backward. Among all *numbered* ops only *candidates* can have made a
    node; that another repeats a number later still shows that those before it did not take it.
    """
    rows = np.flatnonzero(numbered)
    table = pl.DataFrame({"thread": ranges.thread[rows], "sequence": ranges.sequence[rows], "end": ranges.end[rows]})
    last = table.select(pl.col("end").last().over("thread", "sequence"))["end"].to_numpy()
    higher = table.select(pl.col("sequence") < pl.col("sequence").max().over("thread"))["sequence"].to_numpy()
    makers, taken = np.zeros(len(candidates), np.bool_), np.zeros(len(candidates), np.bool_)
    makers[rows], taken[rows] = ranges.end[rows] >= last, higher
    return makers & candidates, taken


def _reruns(ranges: Ranges, names: Text, is_node: Bools, node_of: Ints) -> Ints:
    """Ops that run forward again inside a node.

    Backward formulas run with gradients off, so their ops carry no sequence number; a checkpoint re-runs its forward
    with gradients on. A node's own inner range repeats the node's number and is no re-run. A function written in Python
    always gets a number, so it counts inside a checkpoint alone, or where its own node runs later.
    """
    nodes = {v.removeprefix(NODE) for v in ranges.name.values if v.startswith(NODE)}
    own = ranges.name.matches(_BACKWARD) | ranges.name.map(lambda v: v.startswith(NODE) or v in nodes)
    numbered = (node_of >= 0) & ~is_node & ~own & (ranges.sequence >= 0) & ~_bookkeeping(ranges)
    python = numbered & ranges.name.map(lambda v: "::" not in v)
    checkpoint = names.matches(_CHECKPOINT)
    believed = np.append(checkpoint, False)[node_of] | _answered_later(ranges, names, is_node, python)
    return inherit_below(ranges, numbered & (~python | believed), is_node)


def _answered_later(ranges: Ranges, names: Text, is_node: Bools, functions: Bools) -> Bools:
    """Which *functions* have a node of their name and number run after them."""
    out = np.zeros(len(ranges), np.bool_)
    rows, nodes = np.flatnonzero(functions), np.flatnonzero(is_node & (ranges.sequence >= 0))
    if not len(rows) or not len(nodes):
        return out
    called = ranges.name.replace([f"{v}Backward" for v in ranges.name.values])
    asked = pl.DataFrame(
        {"name": called.take(rows).series("name").cast(pl.String), "sequence": ranges.sequence[rows], "row": rows}
    )
    ran = pl.DataFrame(
        {
            "name": names.take(nodes).series("name").cast(pl.String),
            "sequence": ranges.sequence[nodes],
            "at": ranges.start[nodes],
        }
    )
    last = ran.group_by("name", "sequence").agg(pl.col("at").max())
    answers = asked.join(last, on=("name", "sequence"))
    row = answers["row"].to_numpy()
    out[row] = answers["at"].to_numpy() > ranges.start[row]
    return out


def _bookkeeping(ranges: Ranges) -> Bools:
    return ranges.name.matches(
        r"^(record_param_comms|c10d::|nccl:|aten::(detach|empty|zeros_like|record_stream))|^detach"
    )


def inherit_below(ranges: Ranges, own: Bools, stop: Bools) -> Ints:
    """Like ``nearest_op``, but not past a range of *stop*: a node inside a re-run is backward again."""
    nearest = ranges.nearest_op(own | stop)
    hit = nearest >= 0
    at = np.where(hit, nearest, 0)
    return np.where(hit & own[at] & ~stop[at], nearest, -1)


def _forward_ops(ranges: Ranges, forward_op: Bools, names: Text, is_node: Bools, node_sequence: Ints) -> Ints:
    """For every node the row of the forward op it belongs to: same number, and the name that fits it best."""

    def key(value: str) -> str:
        value = value.rsplit("::", 1)[-1].lower().replace("_", "")
        return value.rstrip("0123456789").removesuffix("backward")

    rows = np.flatnonzero(forward_op)
    fitted = ranges.name.replace([key(v) for v in ranges.name.values])
    want = names.replace([key(v) for v in names.values])
    nodes = np.flatnonzero(is_node & (node_sequence >= 0))
    ops = pl.DataFrame({"sequence": ranges.sequence[rows], "op": rows, "key": fitted.take(rows).series("key")})
    asked = pl.DataFrame({"sequence": node_sequence[nodes], "node": nodes, "want": want.take(nodes).series("want")})
    # The last op of those that fit, else the last of all, as one number: ops of names that fit count above the others.
    fits = (pl.col("key") == pl.col("want")).fill_null(False).cast(pl.Int64)
    best = (
        asked.join(ops, on="sequence")
        .select("node", best=pl.col("op") + fits * len(ranges))
        .group_by("node")
        .agg(pl.col("best").max())
    )
    out = np.full(len(ranges), -1, np.int64)
    out[best["node"].to_numpy()] = best["best"].to_numpy() % max(len(ranges), 1)
    return out
