"""Parts of classification that a few values decide: conditions of rules, and memory that is shared for a while."""

from __future__ import annotations

import pytest

from tracekit.classify.rules import _condition_problem


@pytest.mark.parametrize(
    ("column", "condition", "problem"),
    [
        ("trained", True, None),
        ("trained", "yes", "'trained' is true or false"),
        ("bytes", ">= 7", None),
        ("bytes", 7, None),
        ("bytes", "many", "'bytes' is a whole number"),
        ("annotations", "forward", None),
        ("annotations", "for(ward", "'annotations' is not a regular expression"),
        ("annotations", ["a", "b"], None),
        ("annotations", ("a", "b"), None),
        ("annotations", True, None),
        ("annotations", 7, "'annotations' is a regular expression"),
        ("notes", "a", "unknown evidence 'notes'"),
    ],
)
def test_a_condition_fits_its_evidence(column, condition, problem):
    found = _condition_problem(column, condition)
    assert found is None if problem is None else found.startswith(problem)
