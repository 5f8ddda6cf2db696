"""Forward, dgrad or wgrad: the role of every matrix multiplication, and what gave it away.

A linear layer's forward is [M,K]×[K,N]. Its two backward products contract N (dgrad) or M, the tokens (wgrad).
Where shapes were recorded they decide. Without them: the order in which autograd's own formulas multiply, what
consumes the result, how operands were transposed, and for products outside the engine that more gradients
are owed than were computed. The layout letters in kernel names come last.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, find_sorted, take_or_missing
from tracekit._util.categories import CategoryColumn
from tracekit.classify._nest import Ints
from tracekit.classify.autograd import Autograd, distinct
from tracekit.classify.batched import BATCHED, batched_roles
from tracekit.classify.ranges import Gpu, Launches, Ranges
from tracekit.classify.shapes import roles_by_shape
from tracekit.classify.tallies import owed, places, shares

OPS = (
    r"^aten::(mm|addmm|bmm|baddbmm|addbmm|mv|addmv|_scaled_mm|_grouped_mm|_scaled_grouped_mm|_int_mm"
    r"|_addmm_activation|matmul|linear|einsum)$"
)
KERNELS = (
    r"(?i)gemm|nvjet|cutlass.*(mma|Gemm)|xmma|splitKreduce|^Cijk_|sm\d+_.*_(tn|nt|nn|tt)[_n]|wgmma_fp8"
    r"|^triton_(tem_\w*|b?)mm|matmul_?kernel"  # elsewhere a fused kernel's name lists all it takes part in
)
_ATTENTION = r"(?i)flash(?!infer)|fmha|sdpa|attention"  # their templates spell out the products inside
# cuBLAS is column-major: row-major x·Wᵀ is "TN" there, g·W is "NN" and gᵀ·x is "NT".
_LAYOUT = r"(?:_|^)(?:(tn|nn|nt)(?:_n|t_n)?(?:_|$)|(TN|NN|NT)[NT](?:_|$))|^Cijk_(Alik_Bljk|Ailk_Bljk|Ailk_Bjlk)_"
_LAYOUTS = {
    "tn": "forward",
    "nn": "dgrad",
    "nt": "wgrad",
    "Alik_Bljk": "forward",
    "Ailk_Bljk": "dgrad",
    "Ailk_Bjlk": "wgrad",
}
_TRANSPOSES = r"^aten::(t|transpose|numpy_T|permute|mT|adjoint)$"


class Matmuls(NamedTuple):
    """For every GPU event that multiplies matrices: its role and the evidence for it."""

    is_gemm: Bools
    whole: Bools  # without the kernels that only add up a product's parts
    share: CategoryColumn  # of a node's products: how they number against the forward's
    role: CategoryColumn  # "forward", "dgrad", "wgrad"
    after: CategoryColumn  # of any event: the role of the product its op comes right after
    evidence: CategoryColumn
    """One of "operands", "shapes", "order", "consumer", "transpose", "owed", "layout", "pass", "convolution"."""

    def with_convolutions(self, role: CategoryColumn) -> Matmuls:
        """Put the roles of convolutions' kernels in front."""
        why = CategoryColumn.choose(len(role), [("convolution", role.present)])
        return self._replace(role=role.fill(self.role), evidence=why.fill(self.evidence))


def read_matmuls(gpu: Gpu, ranges: Ranges, launches: Launches, autograd: Autograd, *, doubtful: Bools) -> Matmuls:
    """Give every matrix multiplication its role; shapes say nothing of ranges that are *doubtful*."""
    names = gpu.names
    call = ranges.around(launches.op, OPS)
    by_name = names.matches(KERNELS) & gpu.is_kernel & ~names.matches(_ATTENTION)
    is_gemm = gpu.is_kernel & ((call >= 0) | by_name)

    calls = distinct(call[is_gemm & (call >= 0)], len(ranges))  # that launched something, in thread and time order
    whole = is_gemm & ~names.matches(r"(?i)split_?k")
    nameless = whole & (call < 0)
    share = shares(whole, autograd.node_row, autograd.sequence, autograd.site.any_of("forward"))
    outer = _outermost(ranges, calls)
    paid = autograd.node_row[nameless]
    role, evidence = _call_roles(ranges, autograd, calls, outer, doubtful=doubtful[calls], paid=paid)
    place = np.where(is_gemm, find_sorted(call, calls), -1)
    after = _after(ranges, outer, role, launches.op)
    role, evidence = role.take(place), evidence.take(place)
    role, evidence = _fill(role, evidence, _fused(role, nameless, autograd.node_row), "order")

    site = autograd.site
    backward, forward = site.any_of("backward"), site.any_of("forward")
    silent = autograd.node.matches(rf"(?i)conv|{BATCHED}")  # there layouts do not tell the gradients apart
    layout = layouts(names).where(is_gemm & ~silent)
    role, evidence = _fill(role, evidence, layout.where(backward & ~layout.any_of("forward")), "layout")
    role, evidence = _fill(role, evidence, CategoryColumn.choose(len(call), [("forward", forward & is_gemm)]), "pass")
    host = is_gemm & ~site.present & ~autograd.made & (launches.at >= 0) & autograd.active
    role, evidence = _fill(role, evidence, layout.where(host & layout.any_of("wgrad")), "layout")
    pays = owed(nameless, share, host & nameless & ~role.present, launches.at)
    role, evidence = _fill(role, evidence, CategoryColumn.choose(len(call), [("wgrad", pays)]), "owed")
    role, evidence = _fill(
        role, evidence, CategoryColumn.choose(len(call), [("forward", is_gemm & autograd.made)]), "pass"
    )
    bare = _without_ops(layout.where(is_gemm & (launches.op < 0)))
    if backward.any() and not autograd.active:  # threads told the backward: outside it there is no input's gradient
        bare = bare.where(~site.present & ~bare.any_of("dgrad"))
    role, evidence = _fill(role, evidence, bare, "layout")
    return Matmuls(is_gemm, whole, share, role, after, evidence)


def _fused(role: CategoryColumn, nameless: Bools, node: Ints) -> CategoryColumn:
    """A product that no operator names, in a node whose operators gave the input's gradient alone, is the weight's.

    Extensions multiply and add into the gradient in one call (``wgrad_gemm_accum``).
    """
    if not nameless.any():
        return CategoryColumn.constant(None, len(node))
    nodes = int(node.max(initial=-1)) + 2
    inside = node >= 0
    dgrad = np.bincount(node[inside & role.any_of("dgrad")], minlength=nodes) > 0
    wgrad = np.bincount(node[inside & role.any_of("wgrad")], minlength=nodes) > 0
    alone = np.bincount(node[inside & nameless], minlength=nodes) == 1
    return CategoryColumn.choose(len(node), [("wgrad", inside & nameless & (dgrad & ~wgrad & alone)[node])])


def _without_ops(layout: CategoryColumn) -> CategoryColumn:
    """Layouts of products launched with no operator at all, as by a graph's replay.

    They speak only where all three come about as often, as in training; a forward alone has mostly one.
    """
    counts = np.bincount(layout.codes[layout.present], minlength=len(layout.values))
    ok = int((counts > 0).sum()) == len(set(_LAYOUTS.values())) and 2 * counts[counts > 0].min() >= counts.max()
    return layout if ok else CategoryColumn.constant(None, len(layout))


def _after(ranges: Ranges, outer: Ints, role: CategoryColumn, ops: Ints) -> CategoryColumn:
    """Find the role of the product that the op before each op computed; *outer* are the outermost ops of products."""
    place = np.full(len(ranges), -1, np.int64)
    place[outer] = np.arange(len(outer))
    return role.take(take_or_missing(place, take_or_missing(ranges.before, ops)))


def _fill(
    role: CategoryColumn, evidence: CategoryColumn, other: CategoryColumn, why: str
) -> tuple[CategoryColumn, CategoryColumn]:
    new = other.present & ~role.present
    if not new.any():
        return role, evidence
    return role.fill(other), evidence.fill(CategoryColumn.choose(len(role), [(why, new)]))


def layouts(names: CategoryColumn) -> CategoryColumn:
    """Which product the layout letters of a kernel's name speak of: ``forward``, ``dgrad`` or ``wgrad``.

    >>> names = pl.Series(["nvjet_h_128x64_TNN", "volta_sgemm_64x64_nt", "relu"])
    >>> layouts(CategoryColumn.from_series(names)).series("l").to_list()
    ['forward', 'wgrad', None]
    """
    pattern = re.compile(_LAYOUT)

    def layout(name: str) -> str | None:
        match = pattern.search(name)
        if not match:
            return None
        letters = next(g for g in match.groups() if g)
        return _LAYOUTS.get(letters if letters in _LAYOUTS else letters.lower())

    return names.replace([layout(v) for v in names.values])


def _call_roles(
    ranges: Ranges, autograd: Autograd, calls: Ints, outer: Ints, *, doubtful: Bools, paid: Ints
) -> tuple[CategoryColumn, CategoryColumn]:
    node = np.where(autograd.again[calls] >= 0, -1, autograd.node_of[calls])  # a re-run is no part of its node
    rerun = autograd.again[calls] >= 0
    in_node, forward = node >= 0, (autograd.differentiable[calls] >= 0) & ~rerun
    none = CategoryColumn.constant(None, len(calls))
    role, evidence = none, none
    role, evidence = _fill(role, evidence, CategoryColumn.choose(len(calls), [("forward", forward & ~in_node)]), "pass")
    operands, batched = batched_roles(ranges, autograd, calls, node)
    role, evidence = _fill(role, evidence, operands, "operands")
    by_shape = roles_by_shape(ranges, autograd, calls, node, rerun=rerun).where(~batched & ~doubtful)
    role, evidence = _fill(role, evidence, by_shape, "shapes")
    role, evidence = _fill(role, evidence, _by_order(ranges, autograd, node, in_node), "order")
    consumed, transposed = _by_use(ranges, outer, node, in_node)
    role, evidence = _fill(role, evidence, consumed, "consumer")
    role, evidence = _fill(role, evidence, transposed, "transpose")
    usual = np.isin(ranges.paths_of[calls], np.unique(ranges.paths_of[calls[forward]]))
    linear = ranges.around(calls, r"^aten::linear\Z") >= 0
    usual |= linear
    ahead = linear & (autograd.node_of[calls] < 0) & autograd.active
    role, evidence = _fill(role, evidence, CategoryColumn.choose(len(calls), [("forward", ahead)]), "pass")
    return _fill(
        role, evidence, _owed(ranges, calls, node, role, usual=usual | rerun, paid=np.isin(node, paid)), "owed"
    )


def _by_order(ranges: Ranges, autograd: Autograd, node: Ints, in_node: Bools) -> CategoryColumn:
    """Autograd's own formulas multiply in a fixed order: mm's weight first, addmm's weight second.

    A node with one product served one of the two: the weight where the weight's own nodes run right after it. Of a
    node that ran twice, the first run served the input and the last the weight, as zero-bubble schedules do.
    """
    order, count = _places(node, in_node)
    name = autograd.names.take(np.where(in_node, node, -1))
    mm, addmm = name.matches(r"^MmBackward"), name.matches(r"^Addmm(Activation)?Backward")
    linear = mm | addmm
    pair, single = linear & (count == 2), linear & (count == 1)
    alone = in_node & (count == 1)
    unnumbered = in_node & (take_or_missing(autograd.node_sequence, node) < 0)
    weights = _weight_runs(ranges, autograd) if single.any() else node[:0]
    last = alone & _met(autograd.ran_before, node) & ~_met(autograd.runs_again, node)
    return CategoryColumn.choose(
        len(node),
        [
            ("wgrad", pair & mm & (order == 0)),
            ("dgrad", pair & mm & (order == 1)),
            ("dgrad", pair & addmm & (order == 0)),
            ("wgrad", pair & addmm & (order == 1)),
            ("wgrad", single & np.isin(node, weights)),
            ("wgrad", single & unnumbered & _met(_goes_on_to(ranges, autograd, r"^TBackward"), node)),
            ("wgrad", last & _met(_goes_on_to(ranges, autograd, r"^AccumulateGrad$"), node)),
            ("dgrad", alone & _met(autograd.runs_again, node)),
            ("dgrad", single),
        ],
    )


def _weight_runs(ranges: Ranges, autograd: Autograd) -> Ints:
    """Nodes whose run went on to their weight's transpose, made one or two numbers before the product."""
    rows = autograd.rows[autograd.node_sequence[autograd.rows] >= 0]
    rows = rows[np.argsort(ranges.start(rows), kind="stable")]
    name = autograd.names.take(rows)
    thread = ranges.column("fwd_thread", rows).fill_null(-1)
    table = pl.DataFrame(
        {"row": rows, "at": ranges.start(rows), "sequence": autograd.node_sequence[rows], "thread": thread}
    )
    products = table.filter(pl.Series(name.matches(r"^(Mm|Addmm(Activation)?)Backward")))
    turned = table.filter(pl.Series(name.matches(r"^TBackward"))).drop("row")
    runs = [
        turned.with_columns(pl.col("sequence") + step).join_asof(
            products, on="at", by=["thread", "sequence"], strategy="backward", check_sortedness=False
        )
        for step in (1, 2)
    ]
    return pl.concat(runs)["row"].drop_nulls().to_numpy().astype(np.int64)


def _goes_on_to(ranges: Ranges, autograd: Autograd, names: str) -> Bools:
    """Nodes after which their thread runs a node of these *names*."""
    rows = autograd.rows
    wanted = autograd.row_names.matches(names)
    same = ranges.thread[rows[1:]] == ranges.thread[rows[:-1]]
    out = np.zeros(len(ranges), np.bool_)
    out[rows[:-1]] = wanted[1:] & same
    return out


def _places(node: Ints, in_node: Bools) -> tuple[Ints, Ints]:
    """For every call its place among its node's calls, and how many there are."""
    return places(np.where(in_node, node, -1))


def _by_use(ranges: Ranges, outer: Ints, node: Ints, in_node: Bools) -> tuple[CategoryColumn, CategoryColumn]:
    """In a custom node with several products: one whose result is added in place is a weight gradient, the others not.

    Failing that, the weight's product is the one that had an operand transposed just before it.
    """
    _, count = _places(node, in_node)
    several = in_node & (count >= 2) & (count <= 4)  # a compiled graph's many products say nothing by their order
    before, after = take_or_missing(ranges.before, outer), take_or_missing(ranges.after, outer)
    added = ranges.called(after, r"^aten::(add_|copy_|_foreach_add_)$")
    turned = ranges.called(before, _TRANSPOSES) | ranges.called(take_or_missing(ranges.before, before), _TRANSPOSES)
    return _decide(node, several, added), _decide(node, several, turned)


def _decide(node: Ints, several: Bools, mark: Bools) -> CategoryColumn:
    """Where some but not all products of a node are marked, those are wgrad and the rest dgrad."""
    _, number = np.unique(node, return_inverse=True)
    marked, every = (np.bincount(number, weights=weights)[number] for weights in (mark, None))
    split = several & (marked > 0) & (marked < every)
    return CategoryColumn.choose(len(node), [("wgrad", split & mark), ("dgrad", split & ~mark)])


def _outermost(ranges: Ranges, calls: Ints) -> Ints:
    """Climb to the outermost matmul op around each call: aten::matmul of aten::mm."""
    outer = calls
    for _ in range(4):  # einsum > bmm, linear > matmul > mm: never deeper
        parent = ranges.op_of[outer]
        outer = np.where(ranges.called(parent, OPS), parent, outer)
    return outer


def _met(wanted: Bools, rows: Ints) -> Bools:
    return wanted.take(rows, mode="clip") & (rows >= 0) if len(wanted) else np.zeros(len(rows), np.bool_)


def _owed(
    ranges: Ranges, calls: Ints, node: Ints, role: CategoryColumn, *, usual: Bools, paid: Bools
) -> CategoryColumn:
    """Products outside the engine, after nodes that computed only their input's gradient, pay the weight's.

    A custom node with one product computed dgrad alone: its wgrad is owed. Walking in time, each product on a thread
    outside the engine pays one while any is owed. One called the way forward products are is none. A node that also
    multiplied without an operator has *paid* already.
    """
    in_node = node >= 0
    _, count = _places(node, in_node)
    alone = in_node & (count == 1) & ~role.present
    dgrad_only = in_node & (count == 1) & role.any_of("dgrad")
    outside = ~in_node & ~role.present & ~usual
    order = np.argsort(ranges.start(calls), kind="stable")
    balance = np.cumsum(np.where((alone | dgrad_only) & ~paid, 1, 0)[order]) - np.cumsum(
        outside[order].astype(np.int64)
    )
    pays = np.zeros(len(calls), np.bool_)
    pays[order] = outside[order] & (balance >= 0)
    return CategoryColumn.choose(len(calls), [("wgrad", pays), ("dgrad", alone)])
