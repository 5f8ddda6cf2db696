"""The story of a diff names a label or a module only as far as its own change goes."""

from __future__ import annotations

import pytest

from tracekit.diffs import explanation
from tracekit.diffs.explanation import (
    describe_compute,
    describe_exposed,
    describe_per_unit,
    describe_products,
    describe_waiting,
    explain_change,
    most_changed_modules,
)
from tracekit.diffs.runs import Run
from tracekit.documents.analysis import Bubble, Budget, RankFigures
from tracekit.documents.baseline import ModuleTime
from tracekit.documents.diff import WorkChange

MS = 1_000_000


def _rank(rank: int, label_ms: dict[str, int], exposed_ms: int, step_ms: int = 1000) -> RankFigures:
    """Return a rank whose step of *step_ms* has these labels one after the other, exposed pp_comm, then nothing."""
    label_ns = {label: ms * MS for label, ms in label_ms.items()}
    compute_ns, exposed_ns = sum(label_ns.values()), exposed_ms * MS
    return RankFigures(
        rank=rank, steps=[1], span_ns=step_ms * MS, label_ns=label_ns, set_ns={}, label_count={}, weak_ns=0,
        weak_share=None, overlap={}, hidden_by_ns={}, wait_ns={}, blocking_ns={}, because_ns={},
        budget=Budget(
            compute_ns=compute_ns, exposed_ns={"pp_comm": exposed_ns}, idle=step_ms * MS - compute_ns - exposed_ns
        ),
        bubble=Bubble(idle_ns=0, wait_ns=0, fraction=None, lower_bound=False),
        phases=(), idle_host_ns=None, idle_host=[], inside_launch_ns=0,
        idle_causes=None, per_step=[],
    )  # fmt: skip


def _run(name: str, forward_ms: tuple[int, int], mlp_ms: float) -> Run:
    """Return two ranks that compute nothing but forward.

    The mlp's part of it is a mean over them.
    """
    ranks = tuple(_rank(rank, {"forward": ms}, 0) for rank, ms in enumerate(forward_ms))
    return Run(name, modules=[ModuleTime("mlp", "forward", mlp_ms * MS)], ranks=ranks)


@pytest.mark.parametrize(
    ("mlp_grew_ms", "sentence"),
    [
        (45.0, "rank 1's mlp forward grew by 100.0 ms"),
        (44.0, "rank 1's forward grew by 100.0 ms, most of it in mlp"),
        (25.0, "rank 1's forward grew by 100.0 ms, most of it in mlp"),
        (24.0, "rank 1's forward grew by 100.0 ms"),
        (-45.0, "rank 1's forward grew by 100.0 ms"),
    ],
)
def test_a_module_has_the_labels_number_only_where_it_is_its_change(
    mlp_grew_ms: float, sentence: str
) -> None:
    # Rank 1's forward grows by 100 ms, rank 0's by none: 50 ms in the mean, of which the mlp's 45
    # are nine tenths.
    before, after = _run("a", (200, 200), 100), _run("b", (200, 300), 100 + mlp_grew_ms)
    assert explain_change([before], [after]) == [sentence]


def test_where_every_rank_changed_the_number_is_the_most() -> None:
    before, after = _run("a", (200, 200), 100), _run("b", (280, 300), 100)
    assert explain_change([before], [after]) == ["on every rank forward grew by up to 100.0 ms"]


@pytest.mark.parametrize(
    ("grew_ms", "sentence"),
    [
        ((40, 30, 30), "rank 1's compute grew by 100.0 ms, 40.0 ms of it dgrad"),
        ((89, 11, 0), "rank 1's compute grew by 100.0 ms, 89.0 ms of it dgrad"),
        ((90, 10, 0), "rank 1's dgrad grew by 90.0 ms"),
        ((-40, -30, -30), "rank 1's compute shrank by 100.0 ms, 40.0 ms of it dgrad"),
    ],
)
def test_labels_that_changed_together_are_summed(
    grew_ms: tuple[int, int, int], sentence: str
) -> None:
    base = dict.fromkeys(("dgrad", "wgrad", "forward"), 100)
    changed = {label: ms + more for (label, ms), more in zip(base.items(), grew_ms, strict=True)}
    before, after = (
        Run("", ranks=(_rank(0, base, 0), _rank(1, labels, 0))) for labels in (base, changed)
    )
    assert explain_change([before], [after]) == [sentence]


@pytest.mark.parametrize(
    ("waiting", "sentence"),
    [([0], "rank 0 waits for rank 3 in pp_comm (+50.0 ms)"),
     ([0, 1, 2], "3 ranks wait for rank 3 in pp_comm (up to +50.0 ms)")],
)  # fmt: skip
def test_ranks_wait_for_a_rank_that_is_named(waiting: list[int], sentence: str) -> None:
    before = [_rank(rank, {"dgrad": 100}, 10) for rank in range(4)]
    after = [_rank(rank, {"dgrad": 100}, 60 if rank in waiting else 10) for rank in range(3)]
    after.append(_rank(3, {"dgrad": 150}, 10))
    runs = [Run("", ranks=tuple(ranks)) for ranks in (before, after)]
    assert explain_change(runs[:1], runs[1:]) == ["rank 3's dgrad grew by 50.0 ms", sentence]


def test_the_module_that_changed_most_is_named_wherever_it_stands():
    def run(mlp_ms, attention_ms, norm_ms):
        times = {"mlp": mlp_ms, "attention": attention_ms, "norm": norm_ms}
        rows = [ModuleTime(module, "forward", ms * MS) for module, ms in times.items()]
        return Run("run", modules=rows)

    assert most_changed_modules([run(10, 5, 1)], [run(16, 6, 1)]) == {"forward": ("mlp", 6.0)}
    assert most_changed_modules([run(10, 5, 9)], [run(9, 6, 5)]) == {"forward": ("norm", -4.0)}


def test_idle_time_that_changed_more_than_compute_comes_first() -> None:
    before = Run("a", ranks=(_rank(0, {"forward": 10}, 0, step_ms=100),))
    after = Run("b", ranks=(_rank(0, {"forward": 4}, 0, step_ms=6),))
    assert explain_change([before], [after]) == [
        "idle time shrank by 88.0 ms",
        "forward shrank by 6.0 ms",
    ]


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
