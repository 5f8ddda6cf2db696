"""Matches of a capture with replays, at their limits."""

from __future__ import annotations

import numpy as np
import pytest

from tracekit.classify.captured_graphs import NodeMatch, is_match_accepted


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
