"""The host's operators, as far as places need them: who made which node of autograd's graph, and who called whom."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.classify.autograd import read_autograd
from tracekit.classify.host_ranges import Ranges, read_ranges

Ints = npt.NDArray[np.int64]


class Makers(msgspec.Struct, frozen=True, eq=False):
    """Operators that made a node of autograd's graph: the node's number, on which thread and when."""

    sequence: Ints
    tid: Ints
    at: Ints


_NONE = np.zeros(0, np.int64)
NO_MAKERS = Makers(_NONE, _NONE, _NONE)


class Host(msgspec.Struct, frozen=True, eq=False):
    """One rank's operators."""

    ranges: Ranges
    makers: Makers

    @classmethod
    def of(cls, events: pl.DataFrame) -> Host:
        """Read the operators of one rank's events."""
        _, ranges, launches = read_ranges(events)
        autograd = read_autograd(ranges, launches)
        rows = np.unique(autograd.differentiable[autograd.differentiable >= 0])
        rows = rows[np.argsort(ranges.start(rows), kind="stable")]
        tid = ranges.column("tid", rows).fill_null(-1).cast(pl.Int64).to_numpy()
        return cls(ranges, Makers(ranges.sequence[rows], tid, ranges.start(rows)))

    def begun(self, op_id: Ints, at: Ints, after: Ints) -> Ints:
        """Return when the host began what launched something *at* a moment: its outermost operator begun *after*.

        *op_id* is the innermost operator's event, -1 where none is known.
        """
        ids = self.ranges.column("id", np.arange(len(self.ranges))).to_numpy()
        order = np.argsort(ids, kind="stable")
        place = np.searchsorted(ids[order], op_id)
        row = np.append(order, -1)[np.minimum(place, len(order))]
        known = (row >= 0) & (op_id >= 0) & (np.append(ids, -1)[row] == op_id)
        row = np.where(known, row, -1)
        start, above = np.append(self.ranges.start(), np.iinfo(np.int64).max), np.append(self.ranges.op_of, -1)
        begun = at.copy()
        while (row >= 0).any():  # as many rounds as operators nest
            row = np.where(start[row] > after, row, -1)
            begun = np.where(row >= 0, np.minimum(begun, start[row]), begun)
            row = above[row]
        return begun
