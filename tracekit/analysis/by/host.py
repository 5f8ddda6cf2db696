"""Operators of the host: those that created nodes of autograd's graph, and the operators around a launch."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.classify.autograd import read_autograd
from tracekit.classify.host_ranges import Ranges, read_ranges
from tracekit.classify.model_position import node_creators

Ints = npt.NDArray[np.int64]


class Host(msgspec.Struct, frozen=True, eq=False):
    """The operators of one rank's host."""

    ranges: Ranges
    creators: pl.DataFrame
    """Operators that created nodes of autograd's graph (``model_position.node_creators``)."""
    sync_ns: Ints
    """Times at which the host began to wait for the GPU."""

    @classmethod
    def of(cls, events: pl.DataFrame) -> Host:
        """Return the operators among one rank's events."""
        _, ranges, launches = read_ranges(events)
        waits = events.filter(
            pl.col("kind").is_in(("runtime", "driver")) & pl.col("name").cast(pl.String).str.contains("Synchronize")
        )
        return cls(ranges, node_creators(read_autograd(ranges, launches)), waits["start_ns"].sort().to_numpy())

    def outermost_start_ns(self, op_id: Ints, launch_ns: Ints, after_ns: Ints) -> Ints:
        """Return for each launch the start of the outermost operator around it that started after a given time.

        Args:
            op_id: Event of the innermost operator around the launch; -1 if not known.
            launch_ns: Time of the launch, which is returned if no operator qualifies.
            after_ns: Operators that started at or before this time do not count.

        """
        row = self._rows_of(op_id)
        # The entries appended at the end belong to row -1: no operator.
        start_ns = np.append(self.ranges.start(), np.iinfo(np.int64).max)
        operator_around = np.append(self.ranges.op_of, -1)
        outermost_ns = launch_ns.copy()
        while (row >= 0).any():  # climb all stacks of operators together, one level per round
            row = np.where(start_ns[row] > after_ns, row, -1)
            outermost_ns = np.where(row >= 0, np.minimum(outermost_ns, start_ns[row]), outermost_ns)
            row = operator_around[row]
        return outermost_ns

    def _rows_of(self, op_id: Ints) -> Ints:
        """Return the row of each operator among the ranges; -1 if it is not there."""
        ids = self.ranges.column("id", np.arange(len(self.ranges))).to_numpy()
        order = np.argsort(ids, kind="stable")
        position = np.searchsorted(ids[order], op_id)
        row = np.append(order, -1)[np.minimum(position, len(order))]
        is_match = (row >= 0) & (op_id >= 0) & (np.append(ids, -1)[row] == op_id)
        return np.where(is_match, row, -1)
