"""Compiled walks over operators and helpers on columns, against plain searches."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit._loops.autograd_nodes import (
    BACKWARD_NAME,
    COMM_RECORD_NAME,
    EVALUATION_NAME,
    FORWARD,
    FORWARD_ONLY_NAME,
    MADE_NODE,
    MADE_NODE_THAT_RAN,
    NEVER_RERUN_NAME,
    NODE,
    NODE_NAME,
    RERUN,
)
from tracekit._util.arrays import find_sorted, rank_pairs
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import ColumnReader
from tracekit.classify.autograd import find_nodes, spread_flags
from tracekit.classify.host_ranges import nearest_marked_ancestor, sort_ranges
from tracekit.schema import EVENTS, conform

NAME_FLAGS = np.array(
    [
        0,
        EVALUATION_NAME | NEVER_RERUN_NAME,
        BACKWARD_NAME | NEVER_RERUN_NAME,
        COMM_RECORD_NAME,
        FORWARD_ONLY_NAME,
        NEVER_RERUN_NAME,
        NEVER_RERUN_NAME | NODE_NAME,
        0,
    ],
    np.int64,
)
"""Seven names, and none."""
OPS = st.lists(
    st.tuples(st.integers(-1, 30), st.booleans(), st.integers(-1, 6), st.integers(-1, 3)),
    min_size=1,
    max_size=25,
)


def tree(rows):
    """Columns of operators; a parent is an operator that comes before."""
    parent = []
    for i, (start, *_) in enumerate(rows):
        ops = [j for j in range(i) if rows[j][1]]
        parent.append(ops[start % len(ops)] if start >= 0 and ops else -1)
    return (
        np.array(parent, np.int64),
        np.array([r[1] for r in rows]),
        np.array([r[2] for r in rows], np.int64),
        np.array([r[3] for r in rows], np.int64),
    )


def chain(parent, row):
    while row >= 0:
        yield row
        row = int(parent[row])


@settings(deadline=None, max_examples=30)
@given(OPS)
def test_nodes_agree_with_a_search_of_the_parents(rows):
    parent, is_op, name, sequence = tree(rows)
    walk = find_nodes(parent, is_op, name, NAME_FLAGS, sequence)
    own_flags = [NAME_FLAGS[n] if op else 0 for n, op in zip(name, is_op, strict=True)]

    def node(i):
        evaluated = any(own_flags[j] & EVALUATION_NAME for j in chain(parent, i))
        return bool(
            own_flags[i] & EVALUATION_NAME or (own_flags[i] & BACKWARD_NAME and not evaluated)
        )

    nodes = [node(i) for i in range(len(rows))]
    for i in range(len(rows)):
        around = next((j for j in chain(parent, i) if nodes[j]), -1)
        assert walk.node_of[i] == around
        assert bool(walk.flags[i] & NODE) == nodes[i]
        assert bool(walk.flags[i] & FORWARD) == bool(
            own_flags[i] & FORWARD_ONLY_NAME and around < 0
        )
        evaluates = own_flags[i] & EVALUATION_NAME
        own_ranges = [
            j for j in range(len(rows)) if evaluates and parent[j] == i and own_flags[j] & NODE_NAME
        ]
        own = next((n for n in (sequence[i], *sequence[own_ranges]) if n >= 0), -1)
        assert walk.number[i] == (own if nodes[i] else -1)
    numbered = [i for i in range(len(rows)) if is_op[i] and sequence[i] >= 0 and not nodes[i]]
    assert walk.ops_outside_nodes.tolist() == [
        i for i in numbered if walk.node_of[i] < 0 and not own_flags[i] & COMM_RECORD_NAME
    ]
    assert walk.possible_reruns.tolist() == [
        i for i in numbered if walk.node_of[i] >= 0 and not own_flags[i] & NEVER_RERUN_NAME
    ]


@settings(deadline=None, max_examples=30)
@given(
    OPS,
    st.lists(
        st.sampled_from(
            [0, NODE, FORWARD, MADE_NODE_THAT_RAN, MADE_NODE, RERUN, MADE_NODE_THAT_RAN | MADE_NODE]
        ),
        min_size=25,
    ),
)
def test_marks_are_handed_down_to_what_lies_inside(rows, marks):
    parent = tree(rows)[0]
    own = np.array(marks[: len(rows)], np.uint8)
    spread = own.copy()
    answered, again = spread_flags(parent, spread)
    for i in range(len(rows)):
        above = list(chain(parent, i))
        assert answered[i] == next((j for j in above if own[j] & MADE_NODE_THAT_RAN), -1)
        stop = next((j for j in above if own[j] & (RERUN | NODE)), -1)
        assert again[i] == (stop if stop >= 0 and own[stop] & RERUN else -1)
        for mark in (FORWARD, MADE_NODE):
            assert bool(spread[i] & mark) == any(own[j] & mark for j in above)


@settings(deadline=None, max_examples=30)
@given(
    OPS, st.lists(st.integers(0, 24), max_size=12), st.lists(st.booleans(), min_size=7, max_size=7)
)
def test_climbing_finds_the_nearest_that_is_wanted(rows, queried, wanted):
    parent, is_op, name, _ = tree(rows)
    queried = [a for a in queried if a < len(rows)]
    hits = np.array([*wanted, False])
    nearest = nearest_marked_ancestor(parent, is_op & hits[name])
    assert nearest[queried].tolist() == [
        next((j for j in chain(parent, a) if is_op[j] and hits[name[j]]), -1) for a in queried
    ]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.tuples(st.integers(-2, 2**62), st.integers(-2, 3)), max_size=40))
def test_pairs_are_numbered_in_their_order(pairs):
    ranks = {pair: rank for rank, pair in enumerate(sorted(set(pairs)))}
    one, other = (np.array([p[i] for p in pairs], np.int64) for i in range(2))
    assert rank_pairs(one, other).tolist() == [ranks[p] for p in pairs]


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(-5, 30), max_size=30), st.lists(st.integers(-5, 30), max_size=20))
def test_values_are_found_where_they_first_stand(values, is_known):
    is_known.sort()
    places = find_sorted(np.array(values, np.int64), np.array(is_known, np.int64))
    assert places.tolist() == [is_known.index(v) if v in is_known else -1 for v in values]


def test_more_pairs_than_there_is_room_for_at_first():
    one = np.arange(5000) % 4999
    assert (
        rank_pairs(one, one[::-1].copy()).max()
        == len({(a, b) for a, b in zip(one, one[::-1], strict=True)}) - 1
    )


def test_a_table_reads_numbers_and_text_of_any_rows():
    frame = pl.DataFrame(
        {
            "n": [1, None, 3],
            "correlation": [None, 5, 6],
            "word": ["a", None, "b"],
            "none": [None] * 3,
        },
        schema={
            "n": pl.Int32,
            "correlation": pl.Int64,
            "word": pl.Categorical,
            "none": pl.Categorical,
        },
    )
    table = ColumnReader(frame, ("n", "word"))
    assert table.int64("n").tolist() == [1, -1, 3]
    assert table.int64("correlation")[1:].tolist() == [5, 6]
    assert table.int64("correlation")[0] < 0
    assert table.text_at("word", np.array([2, 1, 2])).strings() == ["b", None, "b"]
    assert table.present("word").tolist() == [True, False, True]
    assert table.text("none").strings() == [None] * 3


@pytest.mark.parametrize("values", [("a", "b", None), (None, None, None), ("b", "b", "a")])
def test_a_column_filled_from_another(values):
    own, other = (
        CategoryColumn.from_series(pl.Series(values, dtype=pl.String)),
        CategoryColumn.from_series(pl.Series(["b", "c", None])),
    )
    filled = [a if a is not None else b for a, b in zip(values, other.strings(), strict=True)]
    assert own.fill(other).strings() == filled
    assert len(set(own.fill(other).values)) == len(own.fill(other).values)


def test_ranges_that_start_together_come_longest_first_then_ops_then_by_id():
    rng = np.random.default_rng(3)
    events = pl.DataFrame(
        {
            "id": rng.permutation(60),
            "kind": rng.choice(["cpu_op", "annotation"], 60),
            "start_ns": rng.integers(0, 6, 60),
            "end_ns": rng.integers(6, 9, 60),
        }
    )
    source = ColumnReader(conform(events, EVENTS), ("id", "kind", "start_ns", "end_ns"))
    thread = rng.integers(0, 3, 60)
    kinds = {"cpu_op": 0, "annotation": 1}

    def key(row):
        of_row = events.row(row, named=True)
        times = (of_row["start_ns"], -of_row["end_ns"])
        return (thread[row], *times, kinds[of_row["kind"]], of_row["id"])

    assert sort_ranges(source, np.arange(60), thread).tolist() == sorted(range(60), key=key)
