"""Strange but readable PyTorch traces: the figures are those a person counts, or the file is refused in one line."""

from __future__ import annotations

import json

import pytest

import tracekit
from tests.parsers.test_kineto_odd import BASE_NS, TWO, kernel, launch
from tracekit.errors import InputError
from tracekit.parsers import kineto
from tracekit.report.notices import notice_sentence

pytestmark = pytest.mark.slow


def step(name, ts, dur):
    return {
        "ph": "X",
        "cat": "user_annotation",
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": dur,
    }


def text(events, **head):
    return json.dumps(
        {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, **head, "traceEvents": events}
    )


def with_args(event, **args):
    return {**event, "args": {**event["args"], **args}}


def streams(count):
    return [
        event
        for k in range(count)
        for event in (
            launch(100 + k, k),
            with_args(kernel(f"k{k}", 110 + k, 10, k), stream=k),
        )
    ]


COLLECTIVE = {
    "Collective name": "allreduce",
    "Process Group Name": "0",
    "Process Group Ranks": "[0, 1, ..., 99999999999999999999]",
    "Dst Rank": 99_999_999_999,
    "Group size": 99_999_999_999,
}
GROUP = {"rank": 0, "pg_config": [{"pg_name": "0", "pg_desc": "x", "ranks": [0, 10**30]}]}
NESTED = [*TWO, *(step(f"ProfilerStep#{k}", 90 - k, 1000) for k in range(50))]
# by case: the file's text, and the span, compute, exposed communication and idle time in
# microseconds
FIGURES = {
    "a step of 23 digits": (text([*TWO, step(f"ProfilerStep#{'9' * 23}", 90, 100)]), 30, 20, 0, 10),
    "a step of 18 digits": (text([*TWO, step(f"ProfilerStep#{'9' * 18}", 90, 100)]), 30, 20, 0, 10),
    "steps inside steps": (text(NESTED), 30, 20, 0, 10),
    "a header of many brackets": (text(TWO, x="DEEP").replace('"DEEP"', "[" * 200_000 + "]" * 200_000), 30, 20, 0, 10),
    "a group of odd ranks": (text(TWO, distributedInfo=GROUP), 30, 20, 0, 10),
    "a collective of odd ranks": (
        text([*TWO[:3], with_args({**TWO[3], "name": "ncclDevKernel_AllReduce_Sum_f32_RING_LL"}, **COLLECTIVE)]),
        *(30, 10, 10, 10),
    ),
    "a stream for every kernel": (text(streams(300)), 309, 309, 0, 0),
    "a device that none is": (text([*TWO[:3], with_args(TWO[3], device=9_999_999_999, stream=-7)]), 30, 20, 0, 10),
    "a kernel eleven days later": (
        text([*TWO, launch(10**12, 3), kernel("far", 10**12, 1, 3)]),
        *(10**12 - 109, 21, 0, 10**12 - 130),
    ),
    "times before the clock's start": (
        text([launch(-100, 1), kernel("a", -90, 10, 1)], baseTimeNanoseconds=0),
        *(10, 10, 0, 0),
    ),
    "a kernel that takes no time": (text([launch(100, 1), kernel("a", 110, 0, 1)]), 0, 0, 0, 0),
    "a name with a zero byte": (text([launch(100, 1), kernel("a\0b", 110, 10, 1)]), 10, 10, 0, 0),
    "a mark of byte order": ("\ufeff" + text(TWO), 30, 20, 0, 10),
    "one kernel many times": (text([launch(100, 1), *[kernel("a", 110, 10, 1)] * 500]), 10, 10, 0, 0),
}  # fmt: skip
SAID = {
    "a step of 23 digits": "no-steps",
    "a group of odd ranks": "odd-rank",
    "one kernel many times": "repeated-events",
}


@pytest.mark.parametrize("case", FIGURES)
def test_the_figures_are_those_one_counts(tmp_path, case):
    raw, *expected = FIGURES[case]
    (tmp_path / "rank0.json").write_text(raw, encoding="utf-8")
    analysis = tracekit.analyze(tmp_path / "rank0.json", schedule="none")
    spent = analysis.to_dict()["total"]["budget_ns"]
    figures = [
        analysis.total.budget.span_ns,
        spent["compute"],
        spent["exposed"].get("comm", 0),
        spent["idle"],
    ]
    assert figures == [1000 * figure for figure in expected]
    assert (
        SAID.get(case, "no-steps") in {notice.code for notice in analysis.notices} or "step" in case
    )
    json.loads(analysis.to_json())


def test_no_event_at_all_is_refused_in_one_line(tmp_path):
    (tmp_path / "rank0.json").write_text(text([]))
    with pytest.raises(InputError, match="no GPU work was recorded") as caught:
        tracekit.analyze(tmp_path / "rank0.json")
    assert "\n" not in caught.value.message


def test_utf_16_is_refused_in_one_line(tmp_path):
    (tmp_path / "rank0.json").write_bytes(text(TWO).encode("utf-16"))
    with pytest.raises(InputError, match="not a trace") as caught:
        tracekit.analyze(tmp_path / "rank0.json")
    assert "\n" not in caught.value.message


def test_numbers_no_column_holds_are_null(tmp_path):
    (tmp_path / "rank0.json").write_text(FIGURES["a device that none is"][0])
    last = kineto.read(tmp_path / "rank0.json").events.row(3, named=True)
    assert (last["device"], last["stream"]) == (None, -7)
    (tmp_path / "rank0.json").write_text(FIGURES["a collective of odd ranks"][0])
    last = kineto.read(tmp_path / "rank0.json").events.row(3, named=True)
    assert (last["peer"], last["bytes"]) == (None, None)


@pytest.mark.parametrize(("more", "is_reported"), [(0, False), (1, True)])
def test_events_that_stand_twice_are_named_above_a_share(tmp_path, more, is_reported):
    """Of 1000 events ten may be alike, as short ones are whose times were rounded.

    Eleven were written twice.
    """
    twice = 10 + more
    once = [kernel("a", 100 + 20 * k, 10, k) for k in range(1000 - twice)]
    (tmp_path / "rank0.json").write_text(text([*once, *once[:twice]]))
    analysis = tracekit.analyze(tmp_path / "rank0.json", schedule="none")
    assert [
        notice_sentence(n).split(" GPU")[0] for n in analysis.notices if n.code == "repeated-events"
    ] == ([f"rank 0: {twice} of 1,000"] if is_reported else [])
