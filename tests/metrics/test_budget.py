"""The budget adds up, and equals what painting every nanosecond gives."""

from __future__ import annotations

import numpy as np
import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from tracekit.documents.analysis import Budget
from tracekit.metrics.budget import budgets
from tracekit.metrics.label_intervals import COMPUTE_SET, EXPOSABLE_LABELS, LABEL_SETS, Lanes
from tracekit.metrics.overlap import hidden, label_times, ratio
from tracekit.schema import LABELS

WIDTH = 50
rows = st.lists(
    st.tuples(
        st.sampled_from(LABELS), st.integers(0, 1), st.integers(0, WIDTH), st.integers(0, 15)
    ),
    min_size=1,
    max_size=25,
)


def table(raw):
    return pl.DataFrame(
        {
            "label": [r[0] for r in raw],
            "part": [r[1] for r in raw],
            "start_ns": [r[2] for r in raw],
            "end_ns": [r[2] + r[3] for r in raw],
            "pass": ["forward" if r[3] % 2 else "backward" for r in raw],
            "module": ["mlp" if r[2] % 2 else None for r in raw],
            "bytes": [r[3] for r in raw],
        }
    )


def painted(raw, labels, part):
    canvas = np.zeros(WIDTH + 16, bool)
    for label, p, start, length in raw:
        if label in labels and p == part:
            canvas[start : start + length] = True
    return canvas


@given(rows)
def test_budget_is_what_painting_gives_and_adds_up(raw):
    result = budgets(Lanes.of(table(raw), parts=2, part="part"))
    for group, budget in enumerate(result):
        every = painted(raw, LABELS, group)
        where = np.flatnonzero(every)
        span = int(where[-1] - where[0] + 1) if len(where) else 0
        taken = painted(raw, COMPUTE_SET, group)
        assert (budget.span_ns, budget.compute_ns) == (span, taken.sum())
        for label in EXPOSABLE_LABELS:
            own = painted(raw, (label,), group)
            assert budget.exposed_ns.get(label, 0) == (own & ~taken).sum()
            taken |= own
        assert budget.idle_ns == span - every.sum()
        assert budget.conserved


@given(rows)
def test_times_hidden_and_exposed_by_label_and_set(raw):
    events = table(raw)
    times = label_times(events, Lanes.of(events, parts=2, part="part"), part="part")
    for row in times.iter_rows(named=True):
        own = painted(raw, LABEL_SETS.get(row["label"], (row["label"],)), row["part"])
        compute = painted(raw, COMPUTE_SET, row["part"])
        assert row["ns"] == own.sum()
        assert row["hidden_ns"] == (own & compute).sum()
        assert row["exposed_ns"] == (own & ~compute).sum()
        if row["label"] not in LABEL_SETS:
            assert row["count"] == sum(r[0] == row["label"] and r[1] == row["part"] for r in raw)
            assert row["bytes"] == sum(
                r[3] for r in raw if r[0] == row["label"] and r[1] == row["part"]
            )


def test_label_sets_have_no_events_and_no_bytes_of_their_own():
    """One event of 4 ns and 9 bytes: its label has both, the sets that it belongs to have the time alone."""
    events = table([("pp_comm", 0, 0, 9)]).with_columns(start_ns=pl.lit(0), end_ns=pl.lit(4))
    times = label_times(events, Lanes.of(events, parts=2, part="part"), part="part")
    figures = {row["label"]: (row["ns"], row["count"], row["bytes"]) for row in times.to_dicts()}
    assert figures == {"pp_comm": (4, 1, 9), "communication": (4, None, None)}


@given(rows)
def test_the_matrix_is_pairwise_intersection(raw):
    result = hidden(table(raw), part="part")
    plain = {
        (r["part"], r["label"], r["by"]): r["ns"]
        for r in result.filter(~pl.col("detail")).iter_rows(named=True)
    }
    for group in (0, 1):
        for label in EXPOSABLE_LABELS:
            for by in COMPUTE_SET:
                both = painted(raw, (label,), group) & painted(raw, (by,), group)
                assert plain.get((group, label, by), 0) == both.sum()


@given(rows)
def test_the_detailed_matrix_splits_by_pass_and_module(raw):
    keys = [
        (r[0], r[1], "forward" if r[3] % 2 else "backward", "mlp" if r[2] % 2 else None)
        for r in raw
    ]

    def canvas(label, part, which, module=...):
        wanted = [
            row
            for row, key in zip(raw, keys, strict=True)
            if key[:3] == (label, part, which) and module in (..., key[3])
        ]
        return painted(wanted, LABELS, part)

    for r in hidden(table(raw), part="part").filter("detail").iter_rows(named=True):
        exposable = canvas(r["label"], r["part"], r["pass"])
        hiding = canvas(r["by"], r["part"], r["by_pass"], r["by_module"])
        assert r["ns"] == (exposable & hiding).sum()


def test_the_matrix_of_thousands_of_parts():
    parts = [0, 512, 1537]
    columns = {
        "label": ["dgrad", "pp_comm"],
        "start_ns": [0, 4],
        "end_ns": [6, 8],
        "pass": None,
        "module": None,
    }
    events = pl.concat([pl.DataFrame({**columns, "part": [group] * 2}) for group in parts])
    result = hidden(events, part="part").filter(~pl.col("detail"))
    assert result.select("part", "label", "by", "ns", "of_ns").rows() == [
        (p, "pp_comm", "dgrad", 2, 4) for p in parts
    ]


def test_time_under_two_exposed_labels_goes_to_the_first():
    events = pl.DataFrame({"label": ["offload", "pp_comm"], "start_ns": [0, 5], "end_ns": [10, 20]})
    assert budgets(Lanes.of(events))[0] == Budget(
        span_ns=20, compute_ns=0, exposed_ns={"pp_comm": 15, "offload": 5}, idle=0
    )


def test_what_no_rule_knows_counts_as_compute():
    events = pl.DataFrame(
        {"label": ["other", "ep_combine"], "start_ns": [0, 5], "end_ns": [10, 20]}
    )
    assert budgets(Lanes.of(events))[0] == Budget(
        span_ns=20, compute_ns=10, exposed_ns={"ep_combine": 10}, idle=0
    )


def test_overlapping_kernels_are_not_counted_twice():
    events = pl.DataFrame({"label": ["forward", "forward"], "start_ns": [0, 5], "end_ns": [10, 15]})
    assert budgets(Lanes.of(events))[0].compute_ns == 15


def test_nothing_at_all():
    events = pl.DataFrame(schema={"label": pl.String, "start_ns": pl.Int64, "end_ns": pl.Int64})
    assert budgets(Lanes.of(events)) == [Budget(compute_ns=0, exposed_ns={}, idle=0)]
    assert ratio(0, 0) is None
