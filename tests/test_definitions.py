"""docs/definitions.md says what the code does."""

from __future__ import annotations

import re
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


def test_words_that_an_analysis_prints_are_explained():
    bold = " ".join(re.findall(r"\*\*([^*]+)\*\*", TEXT)).lower()
    for word in ("compute", "exposed", "hidden", "idle", "wait", "bubble", "span", "step time"):
        assert word in bold
    listed = TEXT.partition("## Words")[2]
    for word in ("cell", "chunk", "piece", "part", "stage", "phase", "finding", "notice", "gap"):
        assert re.search(rf"\b{word}", listed)
