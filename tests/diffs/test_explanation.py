"""The story of a diff names a label or a module only as far as its own change goes."""

from __future__ import annotations

import pytest

from tracekit.diffs.explanation import explain_change, most_changed_modules
from tracekit.diffs.runs import Run
from tracekit.documents.analysis import Bubble, Budget, RankFigures
from tracekit.documents.baseline import ModuleTime

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
