"""Modules of matrix products by their shapes: the same widths repeat from layer to layer.

Between two attentions a transformer multiplies by the first one's output projection, by its feed-forward part, and by
the second one's projections of query, key and value. The feed-forward part ends with a product that returns from
another width to that of the residual stream, and one before it led to that width (twice of it, if gates are fused).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tracekit._util.arrays import Bools, Ints, group_rows
from tracekit._util.categories import CategoryColumn
from tracekit.classify.evidence import ATTENTION, Evidence
from tracekit.classify.matmul import MATMUL_OPS
from tracekit.classify.product_shapes import Dims
from tracekit.classify.row_order import agreed_values

Width = tuple[int, int]
"""Inner size and columns of a product: width of its input and of its output; zeros where unknown."""

_BATCHED = r"(^| > )aten::(bmm|baddbmm)$"
_SOFTMAX = r"(^| > )aten::_(safe_)?softmax$"


@dataclass(frozen=True, eq=False)
class Stretch:
    """Products that a forward launches between two attentions."""

    widths: tuple[Width, ...]
    after_attention: bool
    before_attention: bool
    has_activation: bool
    """An activation such as GELU runs among them."""

    @property
    def feed_forward_end(self) -> int:
        """Index behind the last product of the feed-forward part; 0 if none is proven."""
        if not self.after_attention or not self.widths:
            return 0
        hidden = self.widths[0][1]
        for i in range(len(self.widths) - 1, 0, -1):
            inner, columns = self.widths[i]
            leads_to = {(hidden, inner), (hidden, 2 * inner)} & set(self.widths[1:i])
            # Low-rank adapters lead to a smaller width and back, without an activation.
            if columns == hidden != inner and leads_to and (inner > hidden or self.has_activation):
                return i + 1
        return 0

    def modules(self, projections: tuple[Width, ...]) -> list[str | None]:
        """Return the module of each product; *projections* are those before the attention of most layers."""
        count, end = len(self.widths), self.feed_forward_end
        modules: list[str | None] = ["mlp"] * end + [None] * (count - end)
        if self.after_attention and count:
            modules[0] = "attention"
        if self.before_attention and count > max(end, self.after_attention):
            is_usual = projections and self.widths[max(end, count - len(projections)) :] == projections
            modules[-len(projections) if is_usual else -1 :] = ["attention"] * (len(projections) if is_usual else 1)
        if end:  # what reads the residual stream behind the last layer
            hidden = self.widths[0][1]
            open_products = [i for i in range(end, count) if modules[i] is None]
            is_head = all(self.widths[i][0] == hidden for i in open_products[:1])
            for i in open_products if is_head else ():
                modules[i] = "head"
        return modules


def usual_projections(stretches: Iterable[Stretch]) -> tuple[Width, ...]:
    """Return the widths of the products right before attention that most layers have; empty if none is proven."""
    between = [stretch for stretch in stretches if stretch.before_attention and stretch.feed_forward_end]
    counts = Counter(stretch.widths[stretch.feed_forward_end :] for stretch in between)
    return counts.most_common(1)[0][0] if counts else ()


@dataclass(frozen=True, eq=False)
class Products:
    """Matrix products in order of thread and launch, one row per kernel."""

    rows: Ints
    call: Ints
    """Row of the operator among the host ranges; -1 without one."""
    size: Dims

    @classmethod
    def find(cls, evidence: Evidence, is_gemm: Bools) -> Products:
        """Return the products among the events of *is_gemm*."""
        rows = evidence.launches.by_thread(evidence.launches.ordered(is_gemm))
        call = evidence.ranges.op_around(evidence.launches.op[rows], MATMUL_OPS)
        return cls(rows, call, Dims.of(evidence.ranges, call))

    def modules_of_equal_shapes(self, module: CategoryColumn, is_forward: Bools) -> CategoryColumn:
        """Return for products the module of the forward products with the same three sizes, if all have the same.

        A gradient has the sizes of its forward in another order.
        """
        sizes = np.sort(np.stack(self.size, axis=1), axis=1)
        key, first = group_rows(*sizes.T)
        forward = is_forward[self.rows] & self.size.known
        # A forward product without a module disagrees with all modules: it gets a code of its own.
        code = np.where(module.present, module.codes, len(module.values))[self.rows]
        agreed = agreed_values(key[forward], code[forward], len(first))
        agreed = np.where(self.size.known & (agreed[key] < len(module.values)), agreed[key], -1)
        return CategoryColumn(module.values, agreed).spread(self.rows, len(module))

    def modules_by_repetition(self, evidence: Evidence, module: CategoryColumn, is_forward: Bools) -> CategoryColumn:
        """Return the modules of forward products by the widths between two attentions."""
        forward = evidence.launches.by_thread(evidence.launches.ordered(is_forward))
        is_attention = _is_attention(evidence, self.rows, is_forward)
        # Number the stretches: one ends at attention, and where another thread begins.
        thread = evidence.launches.thread[forward]
        starts = is_attention[forward] | np.append(True, np.diff(thread) != 0)[: len(forward)]
        stretch_of = np.full(len(module), -1, np.int64)
        stretch_of[forward] = np.cumsum(starts) - 1
        first = forward[np.flatnonzero(starts)]
        after = is_attention[first]
        same_thread = np.append(np.diff(evidence.launches.thread[first]) == 0, False)[: len(first)]
        before = np.append(after[1:], False)[: len(first)] & same_thread
        activated = np.bincount(stretch_of[forward], module.any_of("mlp")[forward], len(first)) > 0

        # One row per operator call: helper kernels share it with the product.
        members = np.flatnonzero((stretch_of[self.rows] >= 0) & ~is_attention[self.rows])
        is_first = (self.call[members] < 0) | (np.diff(self.call[members], prepend=-2) != 0)
        number = np.cumsum(is_first) - 1  # of each kernel: its call
        calls = members[is_first]
        widths = list(zip(self.size.inner[calls].tolist(), self.size.columns[calls].tolist(), strict=True))
        of_call = stretch_of[self.rows[calls]]
        edges = [*np.flatnonzero(np.diff(of_call, prepend=-1)).tolist(), len(calls)]
        stretches = [
            Stretch(tuple(widths[begin:end]), *(bool(mask[of_call[begin]]) for mask in (after, before, activated)))
            for begin, end in pairwise(edges)
        ]
        projections = usual_projections(stretches)
        modules = [name for stretch in stretches for name in stretch.modules(projections)]
        codes = np.array([-1 if name is None else _MODULES.index(name) for name in modules], np.int64)
        projections_and_more = CategoryColumn(_MODULES, codes[number]).spread(self.rows[members], len(module))
        return CategoryColumn.choose(len(module), [("attention", is_attention)]).fill(projections_and_more)


_MODULES = ("attention", "mlp", "head")


def _is_attention(evidence: Evidence, products: Ints, is_forward: Bools) -> Bools:
    """Return the mask of attention itself: kernels and operators of that name, or two products around a softmax."""
    chain = evidence.text("chain")
    is_attention: Bools = (evidence.text("name").matches(ATTENTION) | chain.matches(ATTENTION)) & is_forward
    is_softmax = chain.matches(_SOFTMAX) & is_forward
    if is_softmax.any():
        is_product = np.zeros(len(is_forward), np.bool_)
        is_product[products] = True
        rows = evidence.launches.by_thread(evidence.launches.ordered(is_forward & (is_product | is_softmax)))
        batched = np.append((chain.matches(_BATCHED) & is_product)[rows], False)
        middle = np.flatnonzero(is_softmax[rows])
        middle = middle[batched[middle - 1] & batched[middle + 1]]
        is_attention[rows[np.concatenate([middle - 1, middle, middle + 1])]] = True
    return is_attention
