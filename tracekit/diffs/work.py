"""Amount of work in the steps of two runs, by which steps of different size are compared.

Work is counted in tokens, micro-batches or FLOP of the model per step: the first that both sides know and that agrees
with the FLOP. FLOP do not depend on how ranks share the model, so they also compare two schedules or two layouts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tracekit.classify.product_shapes import product_dims
from tracekit.diffs import stats
from tracekit.diffs.run_samples import Run
from tracekit.documents.diff import WorkChange, WorkUnit

FACT_OF_UNIT: dict[WorkUnit, str] = {"token": "tokens", "micro-batch": "microbatches", "TFLOP": "tflop"}
"""Fact of a run that counts its work per step, by unit."""
MAX_CHANGE_OF_EQUAL_WORK = 0.01
"""Largest change of the amount of work that counts as none."""
MAX_FLOP_DISAGREEMENT = 0.05
"""Largest difference between the change of a unit and of the FLOP: attention's FLOP grow faster than its tokens."""
MIN_SHARE_OF_COMMON_PRODUCTS = 0.5
"""Share of each side's product time that products of equal shape must take for their speed to be compared."""


def compare_work(before: Sequence[Run], after: Sequence[Run]) -> WorkChange | None:
    """Return the amount of work per step of both sides, and the step time per unit of it; None if it is unknown.

    If the sides have different numbers of ranks, it is the work of one GPU.

    >>> short, long = (Run("", {"step_ms": (ms,)}, {"microbatches": count}) for ms, count in ((80.0, 8), (120.0, 16)))
    >>> work = compare_work([short], [long])
    >>> work.unit, work.ratio, work.ms_before, work.ms_after
    ('micro-batch', 2.0, 10.0, 7.5)
    """
    amounts = {unit: (_fact(before, fact), _fact(after, fact)) for unit, fact in FACT_OF_UNIT.items()}
    ratios = {unit: new / old for unit, (old, new) in amounts.items() if old and new}
    flop_ratio = ratios.get("TFLOP")
    agreeing = [
        unit for unit in ratios if flop_ratio is None or abs(ratios[unit] / flop_ratio - 1) <= MAX_FLOP_DISAGREEMENT
    ]
    step_samples = [[run.samples["step_ms"] for run in side if run.steps] for side in (before, after)]
    ranks = _fact(before, "ranks"), _fact(after, "ranks")
    if not agreeing or not all(step_samples):
        return None
    unit = agreeing[0]
    per_gpu = None not in ranks and ranks[0] != ranks[1]
    old, new = (amount / (count if per_gpu else 1) for amount, count in zip(amounts[unit], ranks, strict=True))
    old_ms, new_ms = stats.centre(step_samples[0]) / old, stats.centre(step_samples[1]) / new
    return WorkChange(unit, per_gpu, old, new, new / old, old_ms, new_ms, new_ms / old_ms - 1)


def is_equal_work(work: WorkChange | None) -> bool:
    """Return whether both sides do the same amount of work, as far as that is known."""
    return work is None or abs(work.ratio - 1) <= MAX_CHANGE_OF_EQUAL_WORK


def _fact(runs: Sequence[Run], name: str) -> Any:
    """Return a fact in which all runs of a side agree, else None."""
    values = {run.facts.get(name) for run in runs}
    return values.pop() if len(values) == 1 else None


def product_slowdown(before: Sequence[Run], after: Sequence[Run]) -> float | None:
    """Return the time per call of matrix products after / before, over products of equal label, shape and data type.

    None if too little of the products' time is in shapes that both sides have.
    """
    old, new = _times_of_products(before), _times_of_products(after)
    common = old.keys() & new.keys()
    shares = [sum(side[key][0] for key in common) / (sum(ns for ns, _ in side.values()) or 1) for side in (old, new)]
    if min(shares) < MIN_SHARE_OF_COMMON_PRODUCTS:
        return None
    # The calls of the first side in the time per call of the second.
    predicted_ns = sum(old[key][1] * new[key][0] / new[key][1] for key in common)
    return predicted_ns / sum(old[key][0] for key in common)


def _times_of_products(runs: Sequence[Run]) -> dict[tuple[Any, ...], tuple[int, int]]:
    """Return (nanoseconds, calls) of matrix products by label, rows, inner size, columns and data type."""
    times: defaultdict[tuple[Any, ...], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for run in runs:
        for row in run.tables.get("products", ()):
            sizes = product_dims(row["shapes"] or "[]")
            if any(sizes):
                key = (row["label"], *sizes, row["dtype"])
                times[key] = times[key][0] + row["ns"], times[key][1] + row["calls"]
    return times
