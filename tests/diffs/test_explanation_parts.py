"""Sentences of an explanation, each on both sides of the limits that decide it."""

from __future__ import annotations

import pytest

from tracekit.diffs import explanation
from tracekit.diffs.explanation import (
    describe_compute,
    describe_exposed,
    describe_per_unit,
    describe_products,
    describe_waiting,
)
from tracekit.documents.diff import WorkChange


def work(unit="token", *, per_gpu=False, relative=0.25, after=200.0):
    return WorkChange(
        unit, per_gpu, 100.0, after, after / 100, 0.002, 0.002 * (1 + relative), relative
    )


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (work(), "2 times the work (100 → 200 tokens): per 1,000 tokens the step is 25.0 % longer (2.0 → 2.5 ms)"),
        (
            work(per_gpu=True, relative=-0.25),
            "2 times the work (100 → 200 tokens on each GPU): per 1,000 tokens of a GPU the step is 25.0 % shorter"
            " (2.0 → 1.5 ms)",
        ),
        (
            work(relative=2.0),
            "2 times the work (100 → 200 tokens): per 1,000 tokens the step is 3 times as long (2.0 → 6.0 ms)",
        ),
        (
            work("launch"),
            "kernels of the model run 2 times as often in a step: it does another amount of work",
        ),
    ],
)  # fmt: skip
def test_the_step_is_compared_per_unit_of_work(change, sentence):
    (described,) = describe_per_unit(change, {}, {})
    assert described.replace(" ms →", " →") == sentence


@pytest.mark.parametrize(
    ("idle_after", "relative", "is_named"),
    [
        # Of 0.002 ms per token three hundredths are 0.00006 ms, of 200 tokens.
        (0.0521, 0.25, True),
        (0.0519, 0.25, False),
        (0.0279, -0.25, True),
        (0.0281, -0.25, False),
    ],
)
def test_the_part_that_changed_by_three_hundredths_of_the_step_is_named(
    idle_after, relative, is_named
):
    sentences = describe_per_unit(work(relative=relative), {"idle": 0.02}, {"idle": idle_after})
    assert len(sentences) == 1 + is_named
    if is_named:
        assert sentences[1].startswith("most of it is idle time, which ")
        assert ("grew" in sentences[1]) is (relative > 0)


@pytest.mark.parametrize(
    ("slowdown", "change", "is_said"),
    [(1.03, 1.0, True), (1.029, 1.0, False), (0.97, -1.0, True), (0.971, -1.0, False), (1.5, -1.0, False),
     (0.5, 1.0, False), (1.5, 0.0, True), (None, 1.0, False)],
)  # fmt: skip
def test_products_explain_a_change_of_the_same_direction(monkeypatch, slowdown, change, is_said):
    monkeypatch.setattr(explanation, "product_slowdown", lambda before, after: slowdown)
    assert bool(describe_products([], [], change=change)) is is_said


def grew(compute, **labels):
    return {"compute": compute, **{f"label {label}": ms for label, ms in labels.items()}}


@pytest.mark.parametrize(
    ("changes", "modules", "sentence"),
    [
        ({0: grew(10.0, forward=9.0, dgrad=1.0)}, {}, "forward grew by 9.0 ms"),
        ({0: grew(10.0, forward=8.9, dgrad=1.1)}, {}, "compute grew by 10.0 ms, 8.9 ms of it forward"),
        ({0: grew(-10.0, forward=-9.0)}, {}, "forward shrank by 9.0 ms"),
        ({0: grew(10.0)}, {}, "compute grew by 10.0 ms"),
        ({0: grew(10.0, forward=10.0)}, {"forward": ("mlp", 9.0)}, "mlp forward grew by 10.0 ms"),
        ({0: grew(10.0, forward=10.0)}, {"forward": ("mlp", 5.0)}, "forward grew by 10.0 ms, most of it in mlp"),
        ({0: grew(10.0, forward=10.0)}, {"forward": ("mlp", 4.9)}, "forward grew by 10.0 ms"),
        ({0: grew(-10.0, forward=-10.0)}, {"forward": ("mlp", 9.0)}, "forward shrank by 10.0 ms"),
        ({0: grew(0.05, other=0.05)}, {}, "other grew by 0.050 ms"),
        # Half of it on every rank is a change of all.
        ({0: grew(10.0, forward=10.0), 1: grew(5.0)}, {}, "on every rank forward grew by up to 10.0 ms"),
        ({0: grew(10.0, forward=10.0), 1: grew(4.9)}, {}, "rank 0's forward grew by 10.0 ms"),
        ({0: grew(-10.0, forward=-10.0), 1: grew(-5.0)}, {}, "on every rank forward shrank by up to 10.0 ms"),
        ({0: grew(-10.0, forward=-10.0), 1: grew(5.0)}, {}, "rank 0's forward shrank by 10.0 ms"),
    ],
)  # fmt: skip
def test_compute_that_changed_is_a_label_a_module_or_all(changes, modules, sentence):
    assert describe_compute(changes, 0, modules) == sentence


def exposed(**labels):
    return {f"exposed {label}": ms for label, ms in labels.items()}


@pytest.mark.parametrize(
    ("others", "sentences"),
    [
        ([exposed(dp_comm=5.0)], ["rank 1 waits for rank 0 in dp_comm (+5.0 ms)"]),
        ([exposed(dp_comm=4.9)], []),
        ([exposed(dp_comm=5.0, tp_comm=6.0)], ["rank 1 waits for rank 0 in tp_comm (+6.0 ms)"]),
        ([exposed(offload=5.0)], ["rank 1 waits beside rank 0 in offload (+5.0 ms)"]),
        ([exposed(dp_comm=5.0), exposed(dp_comm=9.0)], ["2 ranks wait for rank 0 in dp_comm (up to +9.0 ms)"]),
        ([exposed(dp_comm=5.0), exposed(tp_comm=9.0)], ["rank 2 waits for rank 0 in tp_comm (+9.0 ms)"]),
        ([{"idle": 9.0}], []),
        ([{}], []),
    ],
)  # fmt: skip
def test_ranks_wait_five_ms_or_more_for_the_one_whose_work_grew(others, sentences):
    changes = {0: {"compute": 10.0, **exposed(dp_comm=99.0)}, **dict(enumerate(others, 1))}
    assert describe_waiting(changes, 0, 5.0) == sentences
    changes[0] = {"compute": 0.0}
    assert describe_waiting(changes, 0, 5.0) == []


@pytest.mark.parametrize(
    ("changes", "step_ms", "sentences"),
    [
        ({0: {"idle": 5.0}}, 0.0, ["idle time grew by 5.0 ms"]),
        ({0: {"idle": 4.9}}, 0.0, []),
        ({0: {"idle": -5.0}}, 0.0, ["idle time shrank by 5.0 ms"]),
        ({0: {"idle": 5.0, "exposed dp_comm": -6.0}}, 0.0, ["exposed dp_comm shrank by 6.0 ms"]),
        # A step that changed is explained by what changed as it did.
        ({0: {"idle": 5.0, "exposed dp_comm": -6.0}}, 5.0, ["idle time grew by 5.0 ms"]),
        ({0: {"idle": 5.0, "exposed dp_comm": -6.0}}, 4.9, ["exposed dp_comm shrank by 6.0 ms"]),
        ({0: {"idle": 5.0, "exposed dp_comm": -4.0}}, -5.0, []),
        ({0: {"idle": 5.0}, 1: {"idle": 7.0}}, 0.0, ["rank 1's idle time grew by 7.0 ms", "so did that of rank 0"]),
        ({0: {"idle": 4.0}, 1: {"idle": 7.0}}, 0.0, ["rank 1's idle time grew by 7.0 ms"]),
        ({0: {"idle": -5.0}, 1: {"idle": -7.0}}, 0.0, ["rank 1's idle time shrank by 7.0 ms", "so did that of rank 0"]),
        ({0: {"idle": -6.0}, 1: {"idle": 7.0}}, 0.0, ["rank 1's idle time grew by 7.0 ms"]),
        ({0: {"compute": 50.0, "label forward": 50.0}}, 0.0, []),
        ({}, 0.0, []),
    ],
)  # fmt: skip
def test_exposed_and_idle_time_of_five_ms_or_more_is_described(changes, step_ms, sentences):
    options = {"step_change_ms": step_ms, "same_compute": False}
    assert describe_exposed(changes, 5.0, **options) == sentences


def test_compute_that_did_not_change_is_said_first():
    described = describe_exposed({0: {"idle": 5.0}}, 5.0, step_change_ms=0.0, same_compute=True)
    assert described == ["compute takes as long as before; idle time grew by 5.0 ms"]
