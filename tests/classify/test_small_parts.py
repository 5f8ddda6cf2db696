"""Parts of classification that a few values decide."""

from __future__ import annotations

import numpy as np
import pytest

from tracekit._util.categories import CategoryColumn, LinearPattern
from tracekit.classify.captured_graphs import NodeMatch, is_match_accepted
from tracekit.classify.collectives import group_shapes
from tracekit.classify.explain import condition_verb, shorten_value
from tracekit.classify.modules import Stretch
from tracekit.classify.rules import condition_problem


@pytest.mark.parametrize(
    ("column", "condition", "problem"),
    [
        ("trained", True, None),
        ("trained", "yes", "'trained' is true or false"),
        ("bytes", ">= 7", None),
        ("bytes", 7, None),
        ("bytes", "many", "'bytes' is a whole number"),
        ("annotations", "forward", None),
        ("annotations", LinearPattern("for(ward"), "'annotations' is not a regular expression"),
        ("annotations", ["a", "b"], None),
        ("annotations", ("a", "b"), None),
        ("annotations", True, None),
        ("annotations", 7, "'annotations' is a regular expression"),
        ("notes", "a", "unknown evidence 'notes'"),
    ],
)
def test_a_condition_fits_its_evidence(column, condition, problem):
    found = condition_problem(column, condition)
    assert found is None if problem is None else found.startswith(problem)


@pytest.mark.parametrize(
    ("agreement", "related", "is_accepted"),
    [
        (None, None, False),  # nothing to check it by
        (0.9, None, True),
        (0.89, None, False),
        (None, 0.8, True),
        (None, 0.79, False),
        (0.9, 0.79, False),
        (0.89, 0.8, False),
        (0.9, 0.8, True),
    ],
)
def test_a_match_of_graph_nodes_agrees_with_itself(agreement, related, is_accepted):
    match = NodeMatch(np.array([0]), agreement, related)
    assert is_match_accepted(match) is is_accepted


def test_no_match_is_none():
    assert not is_match_accepted(None)


@pytest.mark.parametrize(
    ("ranks", "shapes"),
    [
        (
            ["0, 1, 2, 3", "0, 1", "0, 2", "2, 3", "3"],
            ["all", "contiguous", "strided", "contiguous", None],
        ),
        (["0, 1", "2, 3"], ["all", "contiguous"]),
        (["1, 2", "3, 4"], ["contiguous", "contiguous"]),  # rank 0 was not recorded
        (["0, 1, 2, 4", "0, 1"], ["strided", "contiguous"]),
        ([], []),
    ],
)
def test_ranks_of_a_group_are_all_or_neighbours_or_apart(ranks, shapes):
    column = group_shapes(CategoryColumn(tuple(ranks), np.arange(len(ranks), dtype=np.int32)))
    assert column.strings() == shapes


@pytest.mark.parametrize(
    ("widths", "options", "end"),
    [
        # Projection, up, down: 8 → 32 → 8.
        ([(8, 8), (8, 32), (32, 8)], {}, 3),
        ([(8, 8), (8, 64), (32, 8)], {}, 3),  # gated: up and gate in one product
        ([(8, 8), (8, 32), (32, 8), (8, 24)], {}, 3),
        ([(8, 8), (8, 32), (32, 9)], {}, 0),
        ([(8, 8), (8, 33), (32, 8)], {}, 0),  # nothing leads there
        ([(8, 8), (8, 8)], {}, 0),
        ([(8, 8), (8, 4), (4, 8)], {}, 0),  # an adapter of low rank
        ([(8, 8), (8, 4), (4, 8)], {"has_activation": True}, 3),
        ([(8, 8), (8, 32), (32, 8)], {"after_attention": False}, 0),
        ([], {}, 0),
        ([(8, 32), (32, 8)], {}, 0),  # the first is the attention's own
    ],
)
def test_the_feed_forward_part_ends_where_its_width_comes_back(widths, options, end):
    usual = {"after_attention": True, "before_attention": True, "has_activation": False}
    assert Stretch(tuple(widths), **{**usual, **options}).feed_forward_end == end


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("forward", ("matches", "does not match")),
        (">= 7", ("is", "is not")),
        (True, ("is", "is not")),
        (["a", "b"], ("is", "is not")),
    ],
)
def test_patterns_match_and_values_are(condition, words):
    assert (condition_verb(condition), condition_verb(condition, negated=True)) == words


@pytest.mark.parametrize(
    ("value", "shown"),
    [(None, "unknown"), ("x" * 60, "x" * 60), ("x" * 61, "x" * 57 + "…"), (7, "7"), (True, "True")],
)
def test_long_values_are_cut(value, shown):
    assert shorten_value(value) == shown
