"""Which part of the model an event belongs to: what names say, and for matrix products their place in the layer.

A product launched right before attention, or right after it, projects to or from attention; one next to an activation
is the feed-forward part's. A backward product belongs where its forward does: the sequence number ties them.
"""

from __future__ import annotations

import numpy as np

from tracekit._util.arrays import Bools, find_sorted
from tracekit._util.categories import CategoryColumn
from tracekit.classify._nest import Ints
from tracekit.classify.engine import Decisions
from tracekit.classify.evidence import Evidence, decide
from tracekit.classify.neighbours import Sides
from tracekit.classify.rules import RuleBook

_DRAWS = ("attention", "mlp", "head", "router")
"""Parts that a neighbouring product may belong to."""


def find_modules(evidence: Evidence, decisions: Decisions, book: RuleBook) -> CategoryColumn:
    """Name the module of every compute event, null where nothing tells."""
    compute = evidence.text("class").any_of("compute")
    asked = compute & ~decisions.label.any_of("optimizer")
    spoken = decisions.module.where(asked)
    spoken = spoken.fill(decide(evidence, book.modules, np.flatnonzero(asked & ~spoken.present)))
    forward = decisions.label.any_of("forward") & compute
    gemm = np.asarray(evidence.columns["gemm"]).astype(np.bool_)
    # A layer that normalizes and multiplies in one function has both names; its products are no norm.
    spoken = spoken.where(~(gemm & spoken.any_of("norm")))
    placed = _beside(evidence, spoken, forward, forward & gemm)
    known = spoken.fill(placed)
    inherited = _through_autograd(evidence, known, forward).where(asked)
    return known.fill(inherited.where(~(gemm & inherited.any_of("norm"))))


def _beside(evidence: Evidence, module: CategoryColumn, forward: Bools, products: Bools) -> CategoryColumn:
    """Forward products without a module take the next one's, if products may belong to it, else the last one's."""
    rows = evidence.launches.ordered(forward)
    rows = rows[np.argsort(evidence.launches.thread[rows], kind="stable")]
    codes = module.codes[rows]
    sides = Sides.of(codes, codes >= 0, evidence.launches.thread[rows])
    before, after = np.where(sides.behind, sides.last, -1), np.where(sides.ahead, sides.following, -1)
    draws = module.answers(_DRAWS)
    chosen = np.where(draws[after], after, np.where(draws[before], before, -1))
    return CategoryColumn(module.values, np.where(products[rows] & (codes < 0), chosen, -1)).spread(rows, len(evidence))


def _through_autograd(evidence: Evidence, module: CategoryColumn, forward: Bools) -> CategoryColumn:
    """Backward events share the module of the forward they differentiate, where all of that is one module's."""
    sequence: Ints = evidence.autograd.sequence
    out = np.full(len(evidence), -1, np.int64)
    ahead = np.flatnonzero(forward & (sequence >= 0) & module.present)
    if not len(ahead):
        return CategoryColumn(module.values, out)
    ahead = ahead[np.argsort(sequence[ahead], kind="stable")]
    begins = np.flatnonzero(np.diff(sequence[ahead], prepend=-1))
    low, high = (way.reduceat(module.codes[ahead], begins) for way in (np.minimum, np.maximum))
    asked = np.flatnonzero(~forward & (sequence >= 0))
    agreed = np.append(np.where(low == high, low, -1), -1)
    out[asked] = agreed[find_sorted(sequence[asked], sequence[ahead[begins]])]
    return CategoryColumn(module.values, out)
