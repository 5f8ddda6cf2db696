"""The list of slow tests is about tests that there are."""

from __future__ import annotations

import re

from tests.slow import FIRST, LISTED, ROOT


def test_every_entry_names_something():
    for entry in (*LISTED, *FIRST):
        path, _, name = entry.partition("::")
        assert (ROOT / path).exists(), entry
        assert not name or re.search(rf"^def {name}\(", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE), entry


def test_the_list_is_sorted_and_holds_nothing_twice():
    assert sorted(set(LISTED)) == LISTED
    inside = [(a, b) for a in LISTED for b in LISTED if a != b and b.startswith((f"{a}/", f"{a}::"))]
    assert inside == []
