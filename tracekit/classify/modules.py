"""Which part of the model an event belongs to: what names say, and for matrix products their place in the layer.

A product launched right before attention, or right after it, projects to or from attention; one next to an activation
is the feed-forward part's. A backward product belongs where its forward does: the sequence number ties them.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit._util.coded import Bools, Text
from tracekit.classify._nest import Ints
from tracekit.classify.engine import Decisions
from tracekit.classify.evidence import Evidence, decide
from tracekit.classify.rules import RuleBook

_DRAWS = ("attention", "mlp", "head", "router")
"""Parts that a neighbouring product may belong to."""


def find_modules(evidence: Evidence, decisions: Decisions, book: RuleBook) -> Text:
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


def _beside(evidence: Evidence, module: Text, forward: Bools, products: Bools) -> Text:
    """Forward products without a module take the next one's, if products may belong to it, else the last one's."""
    rows = evidence.launches.ordered(forward)
    rows = rows[np.argsort(evidence.launches.thread[rows], kind="stable")]
    codes = np.where(module.codes[rows] >= 0, module.codes[rows], -1)
    known = pl.when(pl.col("code") >= 0).then("code")
    table = pl.DataFrame({"code": codes, "thread": evidence.launches.thread[rows]}).select(
        before=known.forward_fill().over("thread").fill_null(-1),
        after=known.backward_fill().over("thread").fill_null(-1),
    )
    draws = np.array([*(v in _DRAWS for v in module.values), False], np.bool_)
    before, after = table["before"].to_numpy(), table["after"].to_numpy()
    chosen = np.where(draws[after], after, np.where(draws[before], before, -1))
    out = np.full(len(evidence), -1, np.int64)
    missing = products[rows] & (codes < 0)
    out[rows[missing]] = chosen[missing]
    return Text(module.values, out)


def _through_autograd(evidence: Evidence, module: Text, forward: Bools) -> Text:
    """Backward events share the module of the forward they differentiate, where all of that is one module's."""
    sequence: Ints = evidence.autograd.sequence
    ahead = np.flatnonzero(forward & (sequence >= 0))
    code = pl.col("code").filter(pl.col("code") >= 0)
    table = (
        pl.DataFrame({"sequence": sequence[ahead], "code": module.codes[ahead]})
        .group_by("sequence")
        .agg(pl.when(code.n_unique() == 1).then(code.first()))
        .drop_nulls()
    )
    asked = pl.DataFrame({"sequence": np.where(forward, -1, sequence)})
    inherited = asked.join(table, on="sequence", how="left", maintain_order="left")["code"].fill_null(-1)
    return Text(module.values, inherited.to_numpy().astype(np.int64))
