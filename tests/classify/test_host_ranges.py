"""Ranges of the host that launched an event."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tracekit.classify import host_ranges


class GpuEvents:
    """Ten GPU events, some of whose external ids are their correlations."""

    def __init__(self, equal_ids):
        correlation = range(100, 110)
        external_id = [*correlation[:equal_ids], *range(equal_ids, 10)]
        self.frame = pl.DataFrame({"correlation": correlation, "external_id": external_id})

    def __len__(self):
        return len(self.frame)

    def is_all_null(self, name):
        return bool(self.frame[name].is_null().all())


class Operators:
    """Two operators: one has the external id of the last event, the other that event's correlation."""

    is_op = np.ones(2, np.bool_)

    def __len__(self):
        return 2

    def column(self, name, rows):
        return np.array([9, 109])


@pytest.mark.parametrize(("equal_ids", "last_op"), [(9, 0), (10, -1)])
def test_external_ids_name_operators_unless_nine_in_ten_are_correlations(equal_ids, last_op):
    lost = np.ones(10, np.bool_)
    ops = host_ranges.ops_by_external_id(GpuEvents(equal_ids), Operators(), lost)
    assert ops[-1] == last_op
