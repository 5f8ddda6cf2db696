"""External ids of old recordings of AMD GPUs, which link a kernel to its call and not to its operator."""

from __future__ import annotations

import polars as pl

from tracekit.parsers.kineto.table import link_by_external_id
from tracekit.schema import EVENTS, conform


def events(*rows):
    columns = ("kind", "external_id", "correlation")
    return conform(pl.DataFrame([dict(zip(columns, row, strict=True)) for row in rows]), EVENTS)


def ids(frame):
    return frame.select("correlation", "external_id").rows()


def test_calls_and_kernels_with_ids_of_their_own_are_linked_and_operators_are_not():
    frame = events(
        ("cpu_op", 2, None), ("runtime", 2, None), ("runtime", 3, None), ("kernel", 3, None)
    )
    assert ids(link_by_external_id(frame)) == [(None, 2), (2, None), (3, None), (3, None)]


def test_ids_that_several_calls_share_name_their_operator():
    frame = events(
        ("cpu_op", 2, None), ("runtime", 2, None), ("runtime", 2, None), ("kernel", 2, None)
    )
    assert ids(link_by_external_id(frame)) == ids(frame)


def test_recorded_correlations_stay():
    frame = events(("cpu_op", 2, None), ("runtime", 2, 7), ("kernel", 2, 7))
    assert ids(link_by_external_id(frame)) == ids(frame)
