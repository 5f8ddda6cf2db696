"""docs/definitions.md says what the code does."""

from __future__ import annotations

from pathlib import Path

from tracekit.metrics.label_intervals import COMPUTE_SET, EXPOSABLE_LABELS, LABEL_SETS
from tracekit.report.words import WORDS
from tracekit.schema import STEP_PHASES

TEXT = (Path(__file__).parent.parent / "docs" / "definitions.md").read_text(encoding="utf-8")


def test_the_sets_are_listed_whole():
    for name in LABEL_SETS:
        row = next(line for line in TEXT.splitlines() if line.startswith(f"| {name} |"))
        for label in LABEL_SETS[name]:
            assert f"`{label}`" in row
    assert "other" in COMPUTE_SET


def test_the_order_of_payment_is_the_code_s():
    joined = " ".join(TEXT.split())
    assert ", ".join(EXPOSABLE_LABELS) in joined


def test_every_phase_and_printed_definition_is_explained():
    for phase in STEP_PHASES:
        assert f"*{phase}*" in TEXT
    for name in WORDS.definitions:
        assert f"**{name.split('(')[0]}" in TEXT
