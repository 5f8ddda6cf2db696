"""SECURITY.md names a test for each of its promises, and each exists."""

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
