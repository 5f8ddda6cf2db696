"""Words that a pattern needs: whatever the pattern is found in holds one of them, so nothing is missed."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit._util.categories import CategoryColumn
from tracekit._util.literals import needed
from tracekit._util.patterns import Own
from tracekit.classify.rules import builtin_rules

NAMES = (Path(__file__).parent / "kernel_names.txt").read_text().splitlines()

_LETTERS = st.sampled_from(["a", "b", "ab", "B", "_", r"\d", r"\.", "[ab]", "[^b]", ".", "^", "$", r"\b", "x"])
_OFTEN = st.sampled_from(["", "", "", "?", "*", "+", "{0,2}", "{1,2}", "??", "+?"])


def _grown(inner):
    groups = st.sampled_from(["(", "(?:", "(?i:", "(?-i:", "(?=", "(?!", "(?<!", "(?P<n>"])
    bracketed = st.builds(lambda group, body: (group, f"{group}{body})"), groups, inner)
    repeated = st.builds(
        lambda pair, often: pair[1] + ("" if pair[0] in ("(?=", "(?!", "(?<!") else often), bracketed, _OFTEN
    )
    return st.one_of(
        repeated,
        st.builds(lambda one, other: one + other, inner, inner),
        st.builds(lambda one, other: f"{one}|{other}", inner, inner),
    )


def _letter(piece, often):
    return piece if piece in ("^", "$", r"\b") else piece + often


PATTERNS = st.recursive(st.builds(_letter, _LETTERS, _OFTEN), _grown, max_leaves=8)


@settings(deadline=None, max_examples=300)
@given(PATTERNS, st.booleans(), st.lists(st.text("abB_x1. ", max_size=8), min_size=1, max_size=8))
def test_what_matches_holds_a_word_that_is_needed(pattern, either_case, texts):
    pattern = f"(?i){pattern}" if either_case else pattern
    try:
        search = re.compile(pattern).search
    except re.error:  # a group named twice, a look-behind of no fixed width
        return
    words = needed(pattern)
    for text in texts:
        if search(text):
            assert not words or any(word in text.lower() for word in words), (pattern, words, text)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("gemm", ("gemm",)),
        ("(?i)GEMM|nvjet", ("gemm", "nvjet")),
        ("all_?reduce", ("reduce",)),
        ("^aten::(mm|bmm)$", ("aten::",)),
        ("^a(convolution|linear)_b", ("convolution", "linear")),
        ("(foo)?barr", ("barr",)),
        ("(?!foo)bar", ("bar",)),
        ("foo|", ()),
        ("[ab]+", ()),
        (r"\x41BC", ()),
        ("(?x)a b", ()),
        ("(?i)ſ", ()),
    ],
)
def test_the_longest_that_every_match_holds(pattern, words):
    assert needed(pattern) == words


def test_our_own_patterns_find_the_same_with_and_without_looking_first():
    book = builtin_rules()
    tables = [table for rule in book.rules for table in (rule.when, rule.unless)]
    patterns = {c for table in tables for c in table.values() if isinstance(c, Own)}
    names = CategoryColumn.from_series(pl.Series(NAMES))
    screened = 0
    for pattern in patterns:
        search = re.compile(pattern).search
        assert names.matches(pattern).tolist() == [search(name) is not None for name in NAMES], pattern
        screened += bool(needed(pattern))
    assert screened > 0.9 * len(patterns)


def test_letters_with_another_spelling_are_tried():
    """Python's engine takes a long s, and the sign of a kelvin, for the letters they look like."""
    assert CategoryColumn.from_series(pl.Series(["pa\u017fs", "\u212aernel"])).matches("(?i)pass|kernel").tolist() == [
        True,
        True,
    ]
