"""Which tests are slow: ``tests/slow.txt``, and examples in docstrings that read a sample."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LISTED = [
    line for line in (ROOT / "tests" / "slow.txt").read_text(encoding="utf-8").splitlines() if line and line[0] != "#"
]
FIRST = ("tests/test_fleet.py", "tests/faults", "tests/test_notebooks.py", "tests/test_mutations.py")
"""What takes longest in one piece: begun first, so that no worker is left alone with it at the end."""


def is_listed(name):
    """Return whether a test, by its id without parameters, or a file is in the list.

    >>> is_listed("tests/faults/test_kills.py"), is_listed("tests/metrics/test_budget.py")
    (True, False)
    """
    return any(name == entry or name.startswith((f"{entry}/", f"{entry}::", f"{entry}[")) for entry in LISTED)


def is_slow(item):
    """Return whether a collected test is slow."""
    if isinstance(item, pytest.DoctestItem):
        return "sample_traces" in item.dtest.docstring
    return is_listed(item.nodeid)


def ordered(items):
    """Return the tests with the longest files first; the rest stay as they are."""
    return sorted(items, key=lambda item: not item.nodeid.startswith(FIRST))
