"""The story of a diff names a module only as far as the module's own change goes."""

from __future__ import annotations

from typing import Any

import pytest

from tracekit.diffs.explanation import explain_change
from tracekit.diffs.run_samples import Run

MS = 1_000_000


def _run(name: str, forward_ms: tuple[int, int], mlp_ms: float) -> Run:
    """Two ranks that compute nothing but forward; the mlp's part of it is a mean over them."""
    ranks: list[dict[str, Any]] = [
        {"rank": rank, "steps": [1], "span_ns": 1000 * MS, "label_ns": {"forward": ms * MS},
         "budget_ns": {"compute": ms * MS, "exposed": {}, "idle": (1000 - ms) * MS}}
        for rank, ms in enumerate(forward_ms)
    ]  # fmt: skip
    tables = {"modules": [{"module": "mlp", "label": "forward", "ns": mlp_ms * MS}]}
    return Run(name, {}, {}, tables, {"ranks": ranks})


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
