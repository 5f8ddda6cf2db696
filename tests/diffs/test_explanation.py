"""The story of a diff names a module only as far as the module's own change goes."""

from __future__ import annotations

import pytest

from tracekit.diffs.explanation import explain_change
from tracekit.diffs.run_samples import Run
from tracekit.documents.analysis import Bubble, Budget, RankFigures

MS = 1_000_000


def _run(name: str, forward_ms: tuple[int, int], mlp_ms: float) -> Run:
    """Two ranks that compute nothing but forward; the mlp's part of it is a mean over them."""
    ranks = tuple(
        RankFigures(
            rank=rank, steps=[1], span_ns=1000 * MS, label_ns={"forward": ms * MS}, set_ns={}, label_count={},
            weak_ns=0, weak_share=None, overlap={}, hidden_ns={}, wait_ns={}, blocking_ns={}, exposed_because_ns={},
            budget_ns=Budget(ms * MS, {}, (1000 - ms) * MS), bubble=Bubble(0, 0, None, lower_bound=False), phases=[],
            idle_host_ns=None, idle_host=[], inside_launch_ns=0, idle_causes_ns=None, per_step=[],
        )
        for rank, ms in enumerate(forward_ms)
    )  # fmt: skip
    tables = {"modules": [{"module": "mlp", "label": "forward", "ns": mlp_ms * MS}]}
    return Run(name, {}, {}, tables, ranks)


@pytest.mark.parametrize(
    ("mlp_grew_ms", "said"),
    [
        (45.0, "rank 1's mlp forward grew by 100.0 ms"),
        (44.0, "rank 1's forward grew by 100.0 ms, most of it in mlp"),
        (25.0, "rank 1's forward grew by 100.0 ms, most of it in mlp"),
        (24.0, "rank 1's forward grew by 100.0 ms"),
        (-45.0, "rank 1's forward grew by 100.0 ms"),
    ],
)
def test_a_module_has_the_labels_number_only_where_it_is_its_change(mlp_grew_ms: float, said: str) -> None:
    # Rank 1's forward grows by 100 ms, rank 0's by none: 50 ms in the mean, of which the mlp's 45 are nine tenths.
    before, after = _run("a", (200, 200), 100), _run("b", (200, 300), 100 + mlp_grew_ms)
    assert explain_change([before], [after]) == [said]


def test_where_every_rank_changed_the_number_is_the_most() -> None:
    before, after = _run("a", (200, 200), 100), _run("b", (280, 300), 100)
    assert explain_change([before], [after]) == ["on every rank forward grew by up to 100.0 ms"]
