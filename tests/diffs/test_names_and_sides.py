"""Runs of a side, names of metrics and units of work: small cases with one difference each."""

from __future__ import annotations

import pytest

from tracekit.diffs import Side, gate, make_samples
from tracekit.diffs.baseline import check_same_code
from tracekit.diffs.changes import Diff
from tracekit.diffs.comparability import find_obstacles
from tracekit.diffs.metrics import resolve
from tracekit.diffs.runs import Run
from tracekit.diffs.watch_line import regression_mark, verdict_of
from tracekit.documents.diff import Facts
from tracekit.errors import InputError, OptionError


def run(name, *step_ms, **facts):
    return Run(name, make_samples({"step_ms": step_ms}), Facts(**facts))


def test_a_run_alone_need_not_be_whole_to_make_a_baseline():
    cut = run("a.json", 10.0, 10.1, damage=["truncated"])
    check_same_code(Side((cut,), {}))
    with pytest.raises(InputError, match=r"a\.json was not read whole"):
        check_same_code(Side((run("b.json", 10.0), cut), {}))


def test_names_that_begin_with_what_was_asked_for_are_suggested():
    with pytest.raises(OptionError) as raised:
        resolve("hid", names_in_runs=["hidden.all_of_it"])
    assert raised.value.hint is not None
    assert raised.value.hint.startswith("did you mean hid")


@pytest.mark.parametrize(
    ("fact", "units"), [({"tflop": 10.0}, "10 TFLOP before"), ({"tokens": 10}, "10 tokens before")]
)
def test_tflop_have_no_plural(fact, units):
    more = {name: 3 * amount for name, amount in fact.items()}
    (difference,) = find_obstacles([run("new", 60.0, **more)], [run("old", 10.0, **fact)])
    assert units in difference
    assert difference.endswith("the step takes 2 times as long")


def test_the_first_recording_has_no_verdict():
    first = run("first", *[10.0, 10.1] * 10)
    assert verdict_of(first, first) is None
    assert verdict_of(run("second", *[10.0, 10.1] * 10), first) == "pass"


@pytest.mark.parametrize(
    ("step_ms", "mark"),
    [(10.0, ""), (20.0, "  << slower than first, both as recorded: step_ms")],
)
def test_only_a_slower_recording_is_marked(step_ms, mark):
    first = run("first", *[10.0, 10.1] * 10)
    later = run("second", *[step_ms, step_ms + 0.1] * 10)
    assert regression_mark(later, first) == mark


def test_a_side_without_runs_has_no_analysis():
    nothing = Side((), {})
    assert Diff(before=nothing, after=nothing, document=None).analyses is None


@pytest.mark.parametrize(
    ("requirement", "verdict"),
    [("step_ms < +3%", "pass"), ("step_ms < 11", "pass"), ("step_ms < 9", "fail")],
)
def test_a_requirement_is_a_limit_or_a_change(requirement, verdict):
    """Both runs take 10 ms a step."""
    before, after = (run(name, *[10.0, 10.1] * 10) for name in ("old", "new"))
    judged = gate(Side((after,), {}), Side((before,), {}), require=[requirement])
    assert (judged.verdict == "pass") is (verdict == "pass")
