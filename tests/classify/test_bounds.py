"""Bounds in rules, each held from both sides: at the bound one rule decides, a byte beyond it another."""

from __future__ import annotations

import polars as pl
import pytest

from tests.classify.conftest import Program
from tests.classify.examples.every import EXAMPLES
from tracekit.classify import classify


@pytest.mark.parametrize(
    ("rule", "last", "first_beyond"),
    [
        ("expert-counts", 262_144, 262_145),
        ("group-expert-counts", 262_144, 262_145),
        ("pipeline-scalar", 4_096, 4_097),
        ("megatron-region-counts", 4_096, 4_097),
        ("scalar", 64, 65),
        ("broadcast", 4_097, 4_096),
        ("forward-reduction", 1_048_576, 1_048_575),
    ],
)
def test_a_rule_decides_up_to_its_bound(rule, last, first_beyond):
    program = Program()
    target = EXAMPLES[rule](program)
    for size, decides in ((last, True), (first_beyond, False)):
        rows = pl.col("id") == target
        events = program.events().with_columns(
            bytes=pl.when(rows).then(size).otherwise(pl.col("bytes"))
        )
        winner = classify(events).filter(rows)["rule"].item()
        assert (winner == rule) is decides, f"{size} bytes: {winner}"
