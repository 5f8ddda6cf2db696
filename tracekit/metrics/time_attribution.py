"""Attribution of every busy nanosecond of a rank to one of its events, so that parts add up to the whole.

Compute comes first: where several kernels run at once, the time belongs to the one that started first, until it ends.
Exposed time of communication and copies is attributed in the order of labels, as in the budget.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints
from tracekit.intervals import Intervals
from tracekit.metrics.label_intervals import COMPUTE_SET, Lanes


def attribute_time(labelled: pl.DataFrame, lanes: Lanes) -> Ints:
    """Return the nanoseconds attributed to each event; *lanes* are of the same events, in one part.

    The sum is the busy time; by label it is the budget's.

    >>> rows = [("forward", 0, 6), ("forward", 2, 9), ("dp_comm", 8, 12), ("pp_comm", 10, 13)]
    >>> events = pl.DataFrame(rows, schema=["label", "start_ns", "end_ns"], orient="row")
    >>> attribute_time(events, Lanes.of(events)).tolist()
    [6, 3, 1, 3]
    """
    attributed_ns = np.zeros(len(labelled), np.int64)
    label = labelled["label"].cast(pl.String)
    _attribute(labelled, label.is_in(COMPUTE_SET).to_numpy(), lanes.compute, attributed_ns)
    for name, exposed in lanes.exposed.items():
        _attribute(labelled, (label == name).to_numpy(), exposed, attributed_ns)
    return attributed_ns


def _attribute(labelled: pl.DataFrame, selected: Bools, within: Intervals, attributed_ns: Ints) -> None:
    """Attribute the time of *within* to the *selected* events that cover it; write it to *attributed_ns*."""
    rows = np.flatnonzero(selected)
    rows = rows[np.argsort(labelled["start_ns"].to_numpy()[rows], kind="stable")]
    start, end = (labelled[name].to_numpy()[rows] for name in ("start_ns", "end_ns"))
    # An event gets only the time after the latest end of all events that started before it.
    earlier_end = np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]])
    own_start = np.minimum(np.maximum(start, earlier_end), end)
    attributed_ns[rows] = within.covered_ns(own_start, end)
