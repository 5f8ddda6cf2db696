"""SECURITY.md names a test for each promise and each line of its threat table, and each exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
REFERENCE = re.compile(r"`(tests/\S+\.py)::(test_\w+)`")


def test_every_promise_names_tests_that_exist():
    section = (ROOT / "SECURITY.md").read_text().partition("\nNot promised")[0]
    promises = re.split(r"^- ", section, flags=re.MULTILINE)[1:]
    assert len(promises) >= 8
    for promise in promises:
        references = REFERENCE.findall(promise)
        assert references, promise
        for file, name in references:
            assert f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"


def test_every_line_of_the_threat_table_names_tests_that_exist():
    table = (
        (ROOT / "SECURITY.md").read_text().partition("## Threat model")[2].partition("\nFor m")[0]
    )
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(lines) >= 8
    for line in lines:
        references = REFERENCE.findall(line)
        assert references, line
        for file, name in references:
            assert f"def {name}(" in (ROOT / file).read_text(), f"{file}::{name}"
