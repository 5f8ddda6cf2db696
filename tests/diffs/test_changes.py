"""Text of a ``Diff`` in a Python session."""

from __future__ import annotations

import pytest

from tracekit.diffs import Run, Side, diff


def side(name, step_ms, **facts):
    steps = tuple(step_ms * factor for factor in (1.0, 1.001, 0.999, 1.002, 0.998, 1.0, 1.001, 0.999))
    return Side((Run(name, {"step_ms": steps, "compute_ms": steps}, facts),), {})


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (side("a", 100.0), side("b", 110.0), "step 100 → 110 ms (+10.0 %), regressed; 2 regressed of 2 metrics"),
        (side("a", 100.0), side("b", 100.0), "step 100 → 100 ms (+0.0 %), pass; no change beyond noise"),
        (side("a", 1.0, gpu="H100"), side("b", 1.0, gpu="H200"),
         "not comparable: GPU differs: H100 before, H200 after"),
        (Side((Run("a", {}),), {}), Side((Run("b", {}),), {}), "no change beyond noise"),
    ],
)  # fmt: skip
def test_the_repr_has_the_verdict(before, after, text):
    assert repr(diff(before, after)) == f"<Diff: a → b: {text}>"
