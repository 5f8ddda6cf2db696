"""Part of the model that an event belongs to: attention, mlp, norm and so on.

Names tell first. A matrix product launched right before or after attention projects to or from it; one next to an
activation is of the feed-forward part. A backward event belongs to the module of its forward, to which its sequence
number connects it.
"""

from __future__ import annotations

import numpy as np

from tracekit._util.arrays import Bools, find_sorted
from tracekit._util.categories import CategoryColumn
from tracekit.classify.evidence import Evidence
from tracekit.classify.row_order import agreed_values
from tracekit.classify.rule_matching import Decisions, match_kinds
from tracekit.classify.rules import RuleBook
from tracekit.classify.surrounding_work import Neighbours

_MODULES_WITH_PRODUCTS = ("attention", "mlp", "head", "router")
"""Modules that a neighbouring product may belong to."""


def find_modules(evidence: Evidence, decisions: Decisions, book: RuleBook) -> CategoryColumn:
    """Return the module of every compute event; null where nothing tells."""
    is_compute = evidence.text("class").any_of("compute")
    has_module = is_compute & ~decisions.label.any_of("optimizer")
    module = decisions.module.where(has_module)
    unnamed = np.flatnonzero(has_module & ~module.present)
    module = module.fill(match_kinds(evidence.columns, book.modules, unnamed, len(evidence)))
    is_forward = decisions.label.any_of("forward") & is_compute
    is_gemm = np.asarray(evidence.columns["gemm"]).astype(np.bool_)
    # A layer that normalizes and multiplies in one function has both names. Its products are no norm.
    module = module.where(~(is_gemm & module.any_of("norm")))
    module = module.fill(_modules_of_neighbours(evidence, module, is_forward, is_forward & is_gemm))
    inherited = _modules_of_forward(evidence, module, is_forward).where(has_module)
    return module.fill(inherited.where(~(is_gemm & inherited.any_of("norm"))))


def _modules_of_neighbours(
    evidence: Evidence, module: CategoryColumn, is_forward: Bools, products: Bools
) -> CategoryColumn:
    """Return for forward products without a module that of the next event, else that of the event before.

    Only modules that have products count. Neighbours are forward events of the same thread, in launch order.
    """
    rows = evidence.launches.by_thread(evidence.launches.ordered(is_forward))
    thread, codes = evidence.launches.thread[rows], module.codes[rows]
    neighbours = Neighbours.find(codes, codes >= 0, thread)
    before = np.where(neighbours.before_in_stretch, neighbours.before, -1)
    after = np.where(neighbours.after_in_stretch, neighbours.after, -1)
    has_products = module.answers(_MODULES_WITH_PRODUCTS)
    chosen = np.where(has_products[after], after, np.where(has_products[before], before, -1))
    is_open = products[rows] & (codes < 0)
    return CategoryColumn(module.values, np.where(is_open, chosen, -1)).spread(rows, len(evidence))


def _modules_of_forward(evidence: Evidence, module: CategoryColumn, is_forward: Bools) -> CategoryColumn:
    """Return for backward events the module of the forward with their sequence number, if that has only one module."""
    sequence = evidence.autograd.sequence
    forward = np.flatnonzero(is_forward & (sequence >= 0) & module.present)
    if not len(forward):
        return CategoryColumn.constant(None, len(evidence))
    numbers, index = np.unique(sequence[forward], return_inverse=True)
    agreed = np.append(agreed_values(index, module.codes[forward], len(numbers)), -1)  # last: number without forward
    backward = np.flatnonzero(~is_forward & (sequence >= 0))
    codes = agreed[find_sorted(sequence[backward], numbers)]
    return CategoryColumn(module.values, codes).spread(backward, len(evidence))
