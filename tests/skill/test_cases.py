"""The skill's questions: the call that it names for each gives the answer that is known from the program that ran."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kept import analysis_of, kept
from tracekit.documents.findings import MIN_SHARE_TO_SHOW
from tracekit.report.write import render_json

ROOT = Path(__file__).parents[2]
CASES = json.loads(Path(__file__).with_name("cases.json").read_text(encoding="utf-8"))
EVERYDAY = json.loads((ROOT / "tests/data/everyday/truth.json").read_text(encoding="utf-8"))["runs"]


def answer_to(case):
    """Return the JSON that the case's call prints; the analysis is shared with other tests."""
    command, trace, *options = case["call"]
    assert (command, trace, options[-1]) == ("analyze", "TRACE", "--json")
    has_what_if = "--what-if" in options
    path = ROOT / case["trace"]

    def document():
        analysis = analysis_of(path, what_if=True) if has_what_if else analysis_of(path)
        return json.loads(render_json(analysis))

    return kept(f"skill {path} {has_what_if}", document)


def value_at(document, path):
    """Return a value by a path such as ``evidence.op``, or ``findings.code=slow_rank.0``: the first of these rows."""
    value = document
    for key in path.split("."):
        if "=" in key:
            name, _, wanted = key.partition("=")
            value = [row for row in value if row[name] == wanted]
        elif isinstance(value, list):
            value = value[int(key)]
        else:
            value = value[key]
    return value


def shown_codes(document):
    rows = document["findings"]
    return {row["code"] for row in rows if row["share"] >= MIN_SHARE_TO_SHOW}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_call_of_a_question_gives_the_known_answer(case):
    document = answer_to(case)
    selected = value_at(document, case["read"]) if "read" in case else None
    for path, expected in case.get("expect", {}).items():
        assert value_at(selected, path) == expected
    for path, (low, high) in case.get("between", {}).items():
        assert low <= value_at(selected, path) <= high
    for path, text in case.get("contains", {}).items():
        assert text in value_at(selected, path)
    for path, true_value in case.get("holds", {}).items():
        low, high = value_at(selected, path)
        assert low <= true_value <= high
    for path, name in case.get("largest", {}).items():
        parts = value_at(selected, path)
        assert max(parts, key=parts.get) == name
    if "only_codes_above_1_percent" in case:
        assert shown_codes(document) <= set(case["only_codes_above_1_percent"])
    assert set(case.get("codes", ())) <= shown_codes(document)


def test_there_are_ten_questions_and_each_checks_something():
    assert len(CASES) == 10
    checks = {"expect", "between", "contains", "holds", "largest", "only_codes_above_1_percent"}
    assert all(checks & set(case) for case in CASES)
    assert all((ROOT / case["trace"]).exists() for case in CASES)


def test_expected_codes_of_everyday_runs_are_those_of_the_planted_faults():
    for case in CASES:
        folder, _, run = case["trace"].rpartition("/")
        if folder == "tests/data/everyday":
            assert case.get("expect", {}).get("code") == EVERYDAY[run]["code"]
