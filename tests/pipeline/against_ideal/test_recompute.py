"""Layers that are run again inside their backward leave the pipeline what it is."""

from __future__ import annotations

import pytest

import tracekit
from tests.truth.shipped import framework_folder

pytestmark = pytest.mark.slow

ROOT = framework_folder()


def test_a_checkpoint_that_differentiates_inside_its_node_is_one_backward():
    """Megatron-Core, 1F1B of eight micro-batches, every layer recomputed: a backward inside each layer's node."""
    analysis = tracekit.analyze(ROOT / "meg-recompute")
    schedule = analysis.to_dict()["schedule"]
    assert (schedule["name"], schedule["pp"], schedule["microbatches"], schedule["exact"]) == (
        "1f1b",
        4,
        8,
        True,
    )
    assert not {"partial-step", "pairs-by-order"} & {notice.code for notice in analysis.notices}
    recompute, forward = (analysis.total.label_ns[label] for label in ("recompute", "forward"))
    assert 0.9 < recompute / forward < 1.05
