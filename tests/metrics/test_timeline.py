from __future__ import annotations

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tracekit.metrics.label_intervals import timeline
from tracekit.schema import LABELS, PASSES

events = st.lists(
    st.tuples(
        st.sampled_from(LABELS),
        st.sampled_from((*PASSES, None)),
        st.integers(0, 500),
        st.integers(1, 20),
    ),
    min_size=1,
    max_size=60,
)


def frame(rows):
    return pl.DataFrame(
        [(label, which, start, start + length) for label, which, start, length in rows],
        schema={
            "label": pl.Enum(LABELS),
            "pass": pl.Enum(PASSES),
            "start_ns": pl.Int64,
            "end_ns": pl.Int64,
        },
        orient="row",
    )


@given(events, st.integers(60, 80))
def test_everything_that_ran_is_covered(rows, most):
    table = timeline(frame(rows), max_intervals=most)
    for label, which, start, length in rows:
        same = table.filter(
            (pl.col("label") == label) & pl.col("pass").eq_missing(pl.lit(which, pl.Enum(PASSES)))
        )
        assert any(
            s <= start and start + length <= e for s, e in same["start_ns", "end_ns"].iter_rows()
        )


def test_the_widest_gaps_stay_open():
    rows = [("forward", "forward", start, 1) for start in (0, 2, 4, 100, 102, 300)]
    assert timeline(frame(rows), max_intervals=3)["start_ns"].to_list() == [0, 100, 300]
