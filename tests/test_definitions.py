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


GLOSSARY = (Path(__file__).parent.parent / "docs" / "glossary.md").read_text(encoding="utf-8")


def glossary_words():
    rows = [line.split(" | ")[0].removeprefix("| ") for line in GLOSSARY.splitlines()]
    return [row for row in rows if row and not row.startswith(("#", "|--")) and row != "word"]


def test_the_glossary_has_no_word_twice():
    words = [line for line in glossary_words() if f"| {line} | " in GLOSSARY]
    assert len(words) > 50
    assert len(set(words)) == len(words)


def test_words_that_an_analysis_prints_are_in_the_glossary():
    words = " ".join(glossary_words())
    for word in ("compute", "exposed", "hidden", "idle", "wait", "bubble", "gap", "ideal", "span"):
        assert word in words
    for word in ("cell", "chunk", "piece", "part", "step", "stage", "phase", "finding", "notice"):
        assert word in words
