"""Why the longest kernels have their labels, and where they ran: what a page shows without the trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.arrays import group_rows
from tracekit._util.categories import CategoryColumns

if TYPE_CHECKING:
    from tracekit.classify import RuleBook

MOST_REASONS = 32
"""Kernels that are explained by rank, and of the run: the longest."""
MOST_TEXT = 400
"""Letters kept of what stands around a launch: the innermost."""
_KEYS = ("name", "label", "module")
_OUTER = ("chain", "annotations")
_EVENT = ("step", "start_ns", "end_ns", "stream", "op", *_OUTER, "node", "fwd_op", "collective", "group_desc",
          "group_ranks", "peer", "bytes", "shapes", "dtypes")  # fmt: skip
REASONS = pl.Schema(
    {
        "rank": pl.Int32(),
        **dict.fromkeys(_KEYS, pl.String()),
        "count": pl.Int64(),
        "ns": pl.Int64(),
        "rule": pl.String(),
        "rule_ns": pl.Int64(),
        "confidence": pl.Float32(),
        "tier": pl.String(),
        "pack": pl.String(),
        "asks": pl.String(),
        "step": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "stream": pl.Int64(),
        **dict.fromkeys(("op", *_OUTER, "node", "fwd_op", "collective", "group_desc", "group_ranks"), pl.String()),
        "peer": pl.Int32(),
        "bytes": pl.Int64(),
        "shapes": pl.String(),
        "dtypes": pl.String(),
    }
)
"""A row a kernel (name, label, module) of a rank: how often and how long it ran, the rule that decided most of its
time, and its longest event with the evidence around it."""


def kernel_reasons(
    labelled: pl.DataFrame, *, rank: int, rules: RuleBook | None = None, texts: CategoryColumns | None = None
) -> pl.DataFrame:
    """Return why one rank's longest kernels have their labels; *rules* are those that came before the built-in ones.

    >>> from tracekit import load
    >>> from tracekit.classify import classify
    >>> found = kernel_reasons(classify(load("sample_traces/reload", ranks=[0]).rank(0).events), rank=0)
    >>> found.select("label", "count", "rule", "tier").row(0)
    ('broadcast', 8, 'group-reload', 'group')
    """
    if labelled.is_empty():
        return REASONS.to_frame()
    found = _longest(labelled, texts or CategoryColumns(labelled))
    row = found.pop("row")
    events = labelled.select(*_KEYS, "rule", *_EVENT)[row]
    inner = [pl.col(name).cast(pl.String).str.tail(MOST_TEXT) for name in _OUTER]
    made = events.with_columns(*(pl.Series(name, column) for name, column in found.items()), *inner)
    said = _rule_words(events["rule"].cast(pl.String).to_list(), rules)
    made = pl.concat([made.with_columns(rank=pl.lit(rank, pl.Int32)), said], how="horizontal")
    return made.select(pl.col(name).cast(dtype) for name, dtype in REASONS.items())


def _longest(labelled: pl.DataFrame, texts: CategoryColumns) -> dict[str, npt.NDArray[Any]]:
    """Return of the longest kernels: count, ns, and of the rule that decided most: rule_ns, confidence, longest row."""
    keys = [texts[name].codes for name in (*_KEYS, "rule")]
    took = labelled["end_ns"].to_numpy() - labelled["start_ns"].to_numpy()
    kind, first = group_rows(*keys)
    count, ns = np.bincount(kind), np.bincount(kind, took).astype(np.int64)
    sure, most = np.full(len(first), np.inf, np.float32), np.full(len(first), -1, np.int64)
    np.minimum.at(sure, kind, labelled["confidence"].to_numpy())
    np.maximum.at(most, kind, took)
    longest = np.flatnonzero(took == most[kind])[::-1]
    row = np.empty(len(first), np.int64)
    row[kind[longest]] = longest  # backwards: the first one stays
    order = np.lexsort((row, -ns))
    kernel, main = group_rows(*(key[first[order]] for key in keys[:-1]))
    main = order[main]
    total = np.bincount(kernel, ns[order]).astype(np.int64)
    top = np.lexsort((row[main], -total))[:MOST_REASONS]
    of = main[top]
    sums = np.bincount(kernel, count[order]).astype(np.int64)
    return {"count": sums[top], "ns": total[top], "rule_ns": ns[of], "confidence": sure[of], "row": row[of]}


def run_reasons(parts: Sequence[pl.DataFrame], kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the ranks' rows of the run's longest kernels alone, the longest first."""
    wanted = kernels.top_k(MOST_REASONS, by="ns").select(_KEYS)
    rows = pl.concat(parts) if parts else REASONS.to_frame()
    return rows.join(wanted, on=_KEYS, how="semi", nulls_equal=True).sort("ns", "rank", descending=[True, False])


def _rule_words(names: Sequence[str], rules: RuleBook | None) -> pl.DataFrame:
    """Return of each rule named the evidence it rests on, the file that holds it, and what it asks, in words."""
    from tracekit.classify import builtin_rules
    from tracekit.classify.explain import describe_conditions

    book = rules.before(builtin_rules()) if rules is not None else builtin_rules()
    known = {rule.name: rule for rule in book.rules}
    rows = [
        (one.tier, one.pack, describe_conditions(one)) if (one := known.get(name)) else (None,) * 3 for name in names
    ]
    return pl.DataFrame(rows, schema=dict.fromkeys(("tier", "pack", "asks"), pl.String), orient="row")
