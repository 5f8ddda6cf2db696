"""Every busy nanosecond of a rank charged to one of its events, so that parts add up to the whole.

Compute pays first: where several kernels run at once, the one that started first pays until it ends. Exposed time of
communication and copies is charged in the order of labels, as in the budget.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.intervals import Intervals
from tracekit.metrics.lanes import COMPUTE_SET, Lanes

Ints = npt.NDArray[np.int64]


def charge(labelled: pl.DataFrame, lanes: Lanes) -> Ints:
    """Return what each event pays for, in nanoseconds; *lanes* are of the same events, in one part.

    The sum is the time in which anything ran; by label it is the budget's.

    >>> rows = [("forward", 0, 6), ("forward", 2, 9), ("dp_comm", 8, 12), ("pp_comm", 10, 13)]
    >>> events = pl.DataFrame(rows, schema=["label", "start_ns", "end_ns"], orient="row")
    >>> charge(events, Lanes.of(events)).tolist()
    [6, 3, 1, 3]
    """
    paid = np.zeros(len(labelled), np.int64)
    label = labelled["label"].cast(pl.String)
    _charge(labelled, label.is_in(COMPUTE_SET), lanes.compute, paid)
    for name, exposed in lanes.paid.items():
        _charge(labelled, label == name, exposed, paid)
    return paid


def _charge(labelled: pl.DataFrame, which: pl.Series, within: Intervals, paid: Ints) -> None:
    """Charge the time of *within* to the events *which* cover it."""
    rows = np.flatnonzero(which.to_numpy())
    start, end = (labelled[c].to_numpy()[rows] for c in ("start_ns", "end_ns"))
    order = np.argsort(start, kind="stable")
    rows, start, end = rows[order], start[order], end[order]
    before = np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]])  # until when earlier ones ran
    first = np.minimum(np.maximum(start, before), end)
    paid[rows] = within.covered_ns(first, end)
