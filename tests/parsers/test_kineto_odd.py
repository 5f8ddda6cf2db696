"""One odd value in a PyTorch trace: the rest is read, what is lost is counted, and no number is made up."""

from __future__ import annotations

import json

import pytest

import tracekit
from tracekit.errors import InputError
from tracekit.parsers import kineto
from tracekit.parsers.kineto.table import UNTIMED_CPU
from tracekit.parsers.rank_numbers import MAX_RANKS
from tracekit.report.notices import notice_sentence
from tracekit.schema import DAMAGED, LATEST_NS, UNTIMED

pytestmark = pytest.mark.slow

BASE_NS = 1_700_000_000_000_000_000


def launch(ts, correlation):
    return {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1, "ts": ts, "dur": 1,
            "args": {"correlation": correlation}}  # fmt: skip


def kernel(name, ts, dur, correlation):
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur,
            "args": {"device": 0, "stream": 7, "correlation": correlation}}  # fmt: skip


TWO = [launch(100, 1), kernel("a", 110, 10, 1), launch(101, 2), kernel("b", 130, 10, 2)]


@pytest.fixture
def write(tmp_path):
    def make(events, *, base=BASE_NS, **head):
        path = tmp_path / "trace.json"
        text = json.dumps(
            {"schemaVersion": 1, "baseTimeNanoseconds": base, **head, "traceEvents": events}
        )
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        return path

    return make


def notices(rank):
    return {notice.code: notice_sentence(notice) for notice in rank.source.notices}


BAD_TIMES = {
    "a quoted negative duration": {"dur": "-5000"},
    "a negative duration": {"dur": -5},
    "a list": {"dur": [10]},
    "an object": {"dur": {}},
    "a null": {"dur": None},
    "a list as start": {"ts": [1]},
    "a quoted word": {"ts": "soon"},
    "an end that overflows": {"dur": 9_000_000_000_000_000},
    "a start that overflows": {"ts": 9_000_000_000_000_000},
    "a start before all clocks": {"ts": -9_000_000_000_000_000},
    "a number of 40 digits": {"ts": 10**40},
}


@pytest.mark.parametrize("case", BAD_TIMES)
def test_an_event_without_a_time_is_counted_and_its_like_named(write, case):
    got = kineto.read(write([*TWO[:3], {**TWO[3], **BAD_TIMES[case]}]))
    assert got.events["name"].to_list() == ["cudaLaunchKernel", "a", "cudaLaunchKernel"]
    assert got.events["id"].to_list() == [0, 1, 2]
    assert got.source.skipped == {UNTIMED: 1}
    assert notices(got)["bad-events"] == "1 damaged event was lost, of which 1 ran on the GPU"
    with pytest.raises(InputError):
        kineto.read(write([*TWO[:3], {**TWO[3], **BAD_TIMES[case]}]), lenient=False)
    got = kineto.read(write([{**TWO[0], **BAD_TIMES[case]}, *TWO[1:]]))
    assert got.source.skipped == {UNTIMED_CPU: 1}


@pytest.mark.parametrize(("edge", "kept"), [(LATEST_NS, 4), (LATEST_NS + 1000, 3)])
def test_the_last_time_a_clock_shows(write, edge, kept):
    late = kernel("b", (edge - BASE_NS) // 1000 - 10, 10, 2)
    late["dur"] = (edge - BASE_NS) // 1000 - late["ts"] + (edge % 1000) / 1000
    got = kineto.read(write([*TWO[:3], late]))
    assert got.events.height == kept
    assert (got.events["end_ns"] >= got.events["start_ns"]).all()


def test_figures_that_rest_on_a_lost_kernel_are_null(write):
    many = [
        event
        for k in range(200)
        for event in (launch(100 + 20 * k, k), kernel("a", 110 + 20 * k, 10, k))
    ]
    whole = tracekit.analyze(write(many), schedule="none").to_dict()["ranks"][0]
    assert whole["budget_ns"]["idle"] is not None
    many[201]["dur"] = "-5000"
    analysis = tracekit.analyze(write(many), schedule="none")
    assert analysis.to_dict()["ranks"][0]["budget_ns"]["idle"] is None
    assert analysis.to_dict()["ranks"][0]["bubble"]["fraction"] is None
    assert {"bad-events", "gpu-events-lost"} <= {notice.code for notice in analysis.notices}
    many[203]["dur"] = many[205]["dur"] = []
    with pytest.raises(InputError, match="3 of 200 GPU events have no usable start or end"):
        tracekit.analyze(write(many), schedule="none")


def test_an_event_that_cannot_be_read_may_have_run_on_the_gpu(write):
    many = [
        event
        for k in range(200)
        for event in (launch(100 + 20 * k, k), kernel("a", 110 + 20 * k, 10, k))
    ]
    path = write(many)
    path.write_text(path.read_text().replace('"correlation": 7}', '"correlation": 7 7}'))
    got = kineto.read(path)
    assert got.source.skipped == {DAMAGED: 2}
    analysis = tracekit.analyze(path, schedule="none")
    assert analysis.to_dict()["ranks"][0]["budget_ns"]["idle"] is None


@pytest.mark.parametrize(
    ("base", "start", "code"),
    [(1.7e18, BASE_NS, None), ("1700000000000000000", BASE_NS, None), (17 * 10**21, 0, "no-base-time"),
     (0.5, 0, "no-base-time"), ([1], 0, "no-base-time"), (1 << 61, 0, "no-base-time"), (None, 0, None)],
)  # fmt: skip
def test_a_base_time_is_used_or_named(write, base, start, code):
    got = kineto.read(write(TWO, base=base))
    assert got.events["start_ns"][0] == start + 100_000
    assert [c for c in notices(got) if c == "no-base-time"] == ([code] if code else [])


def test_a_base_time_behind_damage_is_never_cut(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(
        '{"traceEvents": '
        + json.dumps(TWO)
        + ', "x": oops, "baseTimeNanoseconds": 17000000000000000000123}'
    )
    assert kineto.read(path).events["start_ns"][0] == 100_000


def test_halves_of_letters_are_replaced(write):
    head = {
        "deviceProperties": [{"name": "\ud800GPU é"}],
        "distributedInfo": {
            "rank": 0,
            "pg_config": [{"pg_name": "\ud800", "pg_desc": "\udfff", "ranks": [0, 1]}],
        },
    }
    got = kineto.read(write([*TWO[:3], {**TWO[3], "name": "x\ud800y"}], **head))
    assert got.events["name"][3] == "x\ufffdy"
    assert notices(got)["bad-text"].startswith("1 name repaired")
    assert got.source.devices == ("\ufffdGPU é",)
    assert (got.source.groups[0].name, got.source.groups[0].description) == ("\ufffd", "\ufffd")
    assert (
        kineto.read(write([{**TWO[0], "name": "\ue000 whole \U0001f600"}]))
        .events["name"][0]
        .startswith("\ue000")
    )


@pytest.mark.parametrize(
    ("raw", "dtypes"),
    [
        (rb'["\ud800"]', '["\ufffd"]'),
        (b'["\xff"]', '["\ufffd"]'),
        (b'["\xff\\ud800"]', '["\ufffd\ufffd"]'),
    ],
)
def test_half_a_letter_in_a_list_is_replaced_and_counted(write, raw, dtypes):
    op = {
        **launch(99, 1),
        "cat": "cpu_op",
        "name": "aten::mm",
        "args": {"External id": 1, "Input type": "TYPES"},
    }
    path = write([op, *TWO])
    path.write_bytes(path.read_bytes().replace(b'"TYPES"', raw))
    got = kineto.read(path)
    assert got.events["dtypes"][0] == dtypes
    assert notices(got)["bad-text"].startswith("1 name repaired")
    assert tracekit.analyze(path).total.budget.span_ns == 30_000


SHAPES = {
    "deep": "[" * 100_000 + "]" * 100_000,
    "a dimension of 40 digits": f"[[{'9' * 40},2],[2,3]]",
    "more elements than 64 bits count": "[[2000000000,2000000000,2000000000],[2000000000,3]]",
    "no list": '{"a": 1}',
}


@pytest.mark.parametrize("case", SHAPES)
def test_odd_shapes_are_no_shapes(write, case):
    op = {
        **launch(99, 1),
        "cat": "cpu_op",
        "name": "aten::mm",
        "args": {"External id": 1, "Input Dims": "SHAPE"},
    }
    path = write([op, *TWO])
    path.write_text(path.read_text().replace('"SHAPE"', SHAPES[case]))
    analysis = tracekit.analyze(path)
    assert analysis.total.budget.span_ns == 30_000


@pytest.mark.parametrize("rank", [3 * 10**9, 1 << 62, MAX_RANKS, -1, [3], "x"])
def test_a_rank_that_none_can_be_is_left_out_and_named(write, rank):
    path = write(TWO, distributedInfo={"rank": rank, "world_size": 4})
    analysis = tracekit.analyze(path)
    assert [one.rank for one in analysis.ranks] == [0]
    assert any(notice.code == "odd-rank" for notice in analysis.notices)


@pytest.mark.parametrize("size", [10**9, 1 << 62, MAX_RANKS])
def test_a_world_that_none_can_be_is_left_out_and_named(write, size):
    analysis = tracekit.analyze(write(TWO, distributedInfo={"rank": 0, "world_size": size}))
    assert analysis.world_size is None
    assert any(notice.code == "odd-rank" for notice in analysis.notices)


def test_a_large_world_is_counted_and_not_listed(write):
    analysis = tracekit.analyze(
        write(TWO, distributedInfo={"rank": 0, "world_size": MAX_RANKS - 1})
    )
    (message,) = [
        notice_sentence(notice) for notice in analysis.notices if notice.code == "missing-ranks"
    ]
    assert message == "9999998 of 9999999 ranks are not here: 1, 2, 3, 4, +9999994 more"


def test_bytes_that_overflow_are_unknown(write):
    args = {
        "Collective name": "allreduce",
        "In msg nelems": 9_223_372_036_854_775_000,
        "dtype": "Float",
    }
    got = kineto.read(
        write([launch(100, 1), {**kernel("nccl", 110, 10, 1), "args": {**args, "stream": 7}}])
    )
    assert got.events["bytes"].to_list() == [None, None]


@pytest.mark.parametrize(
    ("recorder", "free_step_ns"),
    [
        ({"free_step_ns": 15_000_000}, 15_000_000),
        ({"free_step_ns": "x"}, None),
        ({"free_step_ns": 0}, None),
        ([1], None),
    ],
)
def test_the_free_step_that_the_recorder_timed_is_read(tmp_path, recorder, free_step_ns):
    file = tmp_path / "rank0.pt.trace.json"
    event = {
        "ph": "X",
        "cat": "kernel",
        "name": "k",
        "pid": 0,
        "tid": 7,
        "ts": 1,
        "dur": 2,
        "args": {},
    }
    file.write_text(json.dumps({"schemaVersion": 1, "tracekit": recorder, "traceEvents": [event]}))
    assert tracekit.load(file).sources[0].free_step_ns == free_step_ns
