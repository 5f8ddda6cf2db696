"""Steps: which one each event belongs to."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.parsers.steps import assign_steps, find_generating_passes, find_server_steps
from tracekit.schema import EVENTS, conform


def table(rows):
    names = ("kind", "name", "start_ns", "end_ns", "correlation")
    return conform(
        pl.DataFrame(rows, schema=list(names), orient="row", infer_schema_length=None), EVENTS
    )


def test_by_hand():
    events = table(
        [
            ("annotation", "ProfilerStep#1", 10, 20, None),
            ("annotation", "ProfilerStep#2", 20, 30, None),
            ("gpu_annotation", "ProfilerStep#1", 15, 40, None),
            ("cpu_op", "before", 9, 12, None),
            ("cpu_op", "first", 10, 50, None),
            ("cpu_op", "on the border", 20, 21, None),
            ("cpu_op", "after", 30, 31, None),
            ("runtime", "launch", 19, 20, 1),
            ("kernel", "ends after its step", 25, 45, 1),
            ("kernel", "launch not in the file", 25, 26, 2),
            ("kernel", "no launch", 25, 26, None),
            ("runtime", "no id", 15, 16, None),
            ("driver", "late", 31, 32, 3),
            ("memcpy", "launched outside", 25, 26, 3),
        ]
    )
    assert assign_steps(events)["step"].to_list() == [
        1,
        2,
        None,
        None,
        1,
        2,
        None,
        1,
        1,
        None,
        None,
        1,
        None,
        None,
    ]


def test_marks_within_a_mark():
    events = table(
        [
            ("annotation", "ProfilerStep#1", 0, 100, None),
            ("cpu_op", "ProfilerStep#1", 10, 10, None),
            ("annotation", "ProfilerStep#2", 40, 60, None),
            ("cpu_op", "after the empty mark", 20, 21, None),
            ("cpu_op", "in the inner", 50, 51, None),
            ("cpu_op", "in the outer again", 60, 61, None),
        ]
    )
    assert assign_steps(events)["step"].to_list() == [1, 1, 2, 1, 2, 1]


def test_no_marks_no_steps():
    events = table([("cpu_op", "a", 1, 2, None), ("kernel", "b", 1, 2, 1)])
    assert assign_steps(events)["step"].to_list() == [None, None]
    assert assign_steps(events.clear()).height == 0


def test_marks_of_ones_own():
    events = table([("annotation", "ProfilerStep#9", 0, 9, None), ("cpu_op", "a", 3, 4, None)])
    marks = pl.DataFrame({"step": [5], "start_ns": [3], "end_ns": [8]})
    assert assign_steps(events, marks)["step"].to_list() == [None, 5]


times = st.integers(0, 60)


@given(
    st.lists(
        st.tuples(st.sampled_from(["cpu_op", "runtime", "kernel"]), times, st.integers(0, 4)),
        max_size=20,
    )
)
def test_equals_looking_it_up_one_by_one(rows):
    steps = [(n, 10 * n, 10 * n + 7) for n in range(1, 5)]
    marks = [("annotation", f"ProfilerStep#{n}", s, e, None) for n, s, e in steps]
    events = table([*marks, *((kind, "x", start, start + 1, c or None) for kind, start, c in rows)])

    def time_us(time):
        return next((n for n, s, e in steps if s <= time < e), None)

    launches = {c: start for kind, start, c in rows if kind == "runtime" and c}
    expected = [
        time_us(launches.get(c, -1)) if kind == "kernel" else time_us(start)
        for kind, start, c in rows
    ]
    assert assign_steps(events)["step"].to_list()[4:] == expected


def server_ranges(*rows):
    return pl.DataFrame(rows, schema=["name", "start_ns", "end_ns"], orient="row")


@pytest.mark.parametrize(
    ("name", "kind", "requests", "tokens"),
    [
        ("step[DECODE bs=32]", "decode", 32, 32),
        ("step[EXTEND bs=15 toks=15360]", "prefill", 15, 15360),
        ("step[MIXED bs=4 toks=700]", "mixed", 4, 700),
        ("step[DRAFT_EXTEND bs=4 toks=12]", None, 4, 12),
        ("step[DRAFT_LOOP raw_bs=3 bs=4 topk=1]", None, 4, None),
        (
            "step[EXTEND bs=1 toks=1025 c_sq=1025 c_sqsq=1050625 c_sqsk=1050625 c_sk=1025]",
            "prefill",
            1,
            1025,
        ),
        ("step[DECODE bs=64 g_sq=64 g_sqsq=64 g_sqsk=100032 g_sk=100032]", "decode", 64, 64),
        ("step[TARGET_VERIFY bs=2 g_sq=6 g_sqsq=18 g_sqsk=90 g_sk=30]", "decode", 2, 6),
        (
            "step[MIXED bs=66 c=2 g=64 c_sq=2048 c_sk=2048 c_sqsq=2097152 c_sqsk=2097152 "
            "g_sq=64 g_sk=65600 g_sqsq=64 g_sqsk=65600]",
            "mixed",
            66,
            2112,
        ),
        ("execute_context_2(1024)_generation_0(0)", "prefill", 2, 1024),
        (
            "execute_1030_context_2(sq1024sk4096sqsq9sqsk9)_generation_6(sq6sk99sqsq6sqsk99)",
            "mixed",
            8,
            1030,
        ),
        ("execute_context_0(0)_generation_7(7)", "decode", 7, 7),
        ("execute_new_0_cached_5", "decode", 5, 5),
        ("execute_new_2_cached_5", "mixed", 7, None),
        ("[Executor] _forward_step 12: 0 ctx reqs, 9 gen reqs", "decode", 9, 9),
        ("[Executor] _forward_step 3: 1 ctx reqs, 300 ctx tokens, 0 gen reqs", "prefill", 1, 300),
        ("execute_context_0(0)_generation_0(0)", None, 0, 0),
    ],
)
def test_marks_of_servers_tell_kind_requests_and_tokens(name, kind, requests, tokens):
    (row,) = find_server_steps(server_ranges((name, 5, 9))).rows()
    assert row == (0, 5, 9, kind, requests, tokens)


@pytest.mark.parametrize(
    "name",
    [
        "step[decode]",
        "step[DECODE bs=]",
        "step 3",
        "execute_context_1_generation_2",
        "ProfilerStep#3",
        "my step[DECODE bs=32]",
    ],
)
def test_other_ranges_are_no_steps_of_a_server(name):
    assert find_server_steps(server_ranges((name, 5, 9))).is_empty()


def test_a_mark_inside_another_is_the_same_step_and_completes_it():
    steps = find_server_steps(
        server_ranges(
            ("execute_new_1_cached_0", 0, 10),
            ("step[EXTEND bs=1 toks=512]", 2, 9),
            ("execute_new_0_cached_1", 12, 20),
        )
    )
    assert steps.rows() == [(0, 0, 10, "prefill", 1, 512), (1, 12, 20, "decode", 1, 1)]


def test_thousands_of_different_marks_are_as_many_steps_of_few_kinds():
    rows = [(f"step[EXTEND bs={n} toks={n}]", 10 * n, 10 * n + 5) for n in range(1, 3001)]
    steps = find_server_steps(server_ranges(*rows))
    assert len(steps) == 3000
    assert steps["kind"].unique().to_list() == ["prefill"]


def test_numbers_of_a_mark_that_cannot_be_counts_are_unknown():
    (row,) = find_server_steps(server_ranges((f"step[DECODE bs={'9' * 40}]", 0, 1))).rows()
    assert row == (0, 0, 1, "decode", None, None)


def test_steps_of_a_server_count_where_the_profiler_marks_steps_as_well():
    events = pl.DataFrame(
        {
            "kind": ["annotation", "annotation", "annotation", "runtime", "kernel"],
            "name": ["ProfilerStep#7", "step[DECODE bs=1]", "step[DECODE bs=1]", "launch", "k"],
            "start_ns": [0, 1, 10, 12, 30],
            "end_ns": [20, 9, 19, 13, 40],
            "correlation": [None, None, None, 5, 5],
        }
    )
    assert assign_steps(events)["step"].to_list() == [None, 0, 1, 1, 1]


def lookup(start_ns, shapes):
    return {
        "kind": "cpu_op",
        "name": "aten::embedding",
        "start_ns": start_ns,
        "end_ns": start_ns + 1,
        "shapes": shapes,
    }


GENERATING = [
    lookup(0, "[[100, 8], [2, 5], []]"),
    lookup(1, "[[16, 8], [1, 5]]"),  # positions: a smaller table
    lookup(10, "[[100, 8], [2, 1], []]"),
    lookup(20, "[[100, 8], [2, 1], []]"),
]


def passes_of(rows):
    return find_generating_passes(conform(pl.DataFrame(rows), EVENTS))


def test_a_loop_that_generates_has_a_step_for_each_pass():
    assert passes_of(GENERATING)["kind"].to_list() == ["prefill", "decode", "decode"]
    assert passes_of(GENERATING)["tokens"].to_list() == [10, 2, 2]


@pytest.mark.parametrize("name", ["ProfilerStep#4", "AddmmBackward0", "Optimizer.step#AdamW.step"])
def test_marked_steps_and_training_are_no_generation(name):
    other = {"kind": "annotation", "name": name, "start_ns": 2, "end_ns": 3, "shapes": None}
    assert passes_of([*GENERATING, other]).is_empty()


def test_passes_over_whole_sequences_alone_are_no_generation():
    assert passes_of(GENERATING[:2]).is_empty()


def test_lookups_without_shapes_tell_nothing():
    assert passes_of([lookup(start, None) for start in (0, 10, 20)]).is_empty()


@pytest.mark.parametrize("end", [lambda n: n + 2_000, lambda n: 6_000 - n])
def test_many_marks_that_overlap_or_lie_in_each_other_give_the_innermost(end):
    count = 2_000
    marks = pl.DataFrame(
        {
            "step": range(count),
            "start_ns": range(count),
            "end_ns": [end(n) for n in range(count)],
        }
    )
    times = [0, 7, count - 1, count + 500, 9_000]
    events = table([("cpu_op", "a", time, time + 1, None) for time in times])
    expected = []
    for time in times:
        around = [n for n in range(count) if n <= time < end(n)]
        expected.append(max(around, default=None))
    assert assign_steps(events, marks)["step"].to_list() == expected


def test_marks_of_a_server_that_were_cut_or_have_no_length_are_steps_without_work():
    steps = find_server_steps(
        server_ranges(
            ("step[DECODE bs=4]", 0, 10),
            ("step[DECODE bs=4]", 10, 10),
            ("step[DECODE bs=4]", 20, 30),
        )
    )
    events = table(
        [
            ("runtime", "launch", 5, 6, 1),
            ("kernel", "k", 7, 9, 1),
            ("runtime", "launch", 25, 26, 2),
            ("kernel", "k", 40, 41, 2),
        ]
    )
    numbered = assign_steps(events, steps.select("step", "start_ns", "end_ns"))
    first, *_, last = numbered["step"].to_list()
    assert (first, last) == (steps["step"][0], steps["step"][-1])


@pytest.mark.parametrize("count", [10**9 + 1, 2**63 - 1, 2**63, 10**30])
def test_a_mark_that_names_more_tokens_than_can_be_is_of_unknown_size(count):
    names = [
        f"step[EXTEND bs=1 toks={count}]",
        f"step[DECODE bs={count}]",
        f"execute_context_1({count})_generation_0(0)",
        "step[EXTEND bs=1 toks=1000000000]",
    ]
    ranges = pl.DataFrame({"name": names, "start_ns": [0, 10, 20, 30], "end_ns": [5, 15, 25, 35]})
    steps = find_server_steps(ranges)
    assert steps["kind"].to_list() == ["prefill", "decode", "prefill", "prefill"]
    assert steps["tokens"].to_list() == [None, None, None, 10**9]


def test_work_whose_launch_is_not_in_the_file_has_the_step_of_its_operator():
    events = pl.DataFrame(
        {
            "kind": ["cpu_op", "runtime", "cpu_op", "kernel", "kernel", "kernel"],
            "start_ns": [11, 12, 13, 30, 40, 50],
            "correlation": [None, 1, None, 1, 2, 3],
            "external_id": [101, 101, 102, 101, 102, 103],
        }
    )
    marks = pl.DataFrame({"step": [7], "start_ns": [10], "end_ns": [20]})
    assert assign_steps(events, marks)["step"].to_list() == [7, 7, 7, 7, 7, None]
    same_ids = events.with_columns(external_id=pl.col("correlation"))
    assert assign_steps(same_ids, marks)["step"].to_list() == [7, 7, 7, 7, None, None]
