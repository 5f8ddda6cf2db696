"""The weight reload against its published figure, its formulas and its buffers."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.errors import OptionError
from tracekit.pipeline.schedules.two_buffers import ReloadTimes, weight_reload


def test_the_published_figure():
    done = weight_reload(4, 2, ReloadTimes(H2D=4, BROADCAST=1, RELOAD=1))
    assert done.makespan == 17
    sources = done.cells.filter(role="source").sort("start")
    assert sources.select("rank", "bucket").rows() == [(g % 4, g) for g in range(8)]
    received = done.cells.filter(role="destination").group_by("bucket").len()
    assert received["len"].to_list() == [3] * 8
    beside = done.cells.filter(pl.col("rank") == 0).select("op", "bucket", "start")
    assert ("BROADCAST", 1, 5) in beside.rows()
    assert ("RELOAD", 0, 5) in beside.rows()
    assert ("H2D", 4, 8) in beside.rows()
    assert ("RELOAD", 3, 8) in beside.rows()


@given(
    st.integers(1, 9), st.integers(1, 5), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)
)
@settings(max_examples=30, deadline=None)
def test_totals(n, r, h, b, reload):
    total = weight_reload(n, r, ReloadTimes(H2D=h, BROADCAST=b, RELOAD=reload)).makespan
    if reload <= b:
        assert total == r * (h + n * b) + reload
    elif h + b >= reload:
        assert total == r * (h + b + (n - 1) * reload) + reload
    else:
        assert total > r * (h + b + (n - 1) * reload)


@given(
    st.integers(1, 6), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)
)
@settings(max_examples=25, deadline=None)
def test_a_buffer_holds_one_bucket_at_a_time(n, r, h, b, reload):
    cells = weight_reload(n, r, ReloadTimes(H2D=h, BROADCAST=b, RELOAD=reload)).cells
    for (_, lane), each in cells.group_by("rank", "lane"):
        ordered = each.sort("start")
        assert (ordered["start"].shift(-1) >= ordered["end"])[:-1].all(), lane
    moves = cells.group_by("rank", "op").len()
    assert moves.filter(op="RELOAD")["len"].to_list() == [n * r] * n
    assert moves.filter(op="H2D")["len"].to_list() == [r] * n


@pytest.mark.parametrize(
    "times", [{"H2D": 0}, {"RELOAD": -1}, {"BROADCAST": float("inf")}, {"H2D": float("nan")}]
)
def test_wrong_times(times):
    with pytest.raises(OptionError):
        ReloadTimes(**times)
