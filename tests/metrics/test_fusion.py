"""Chains of kernels that could be one."""

from __future__ import annotations

import numpy as np
import pytest

from tracekit.metrics.alternatives.fusion import number_chains


@pytest.mark.parametrize(
    ("elements", "chains"),
    [
        ([4, 8], [1, 1]),
        ([8, 4], [1, 1]),
        ([8, 5], [1, 2]),  # no multiple
        ([0, 8], [1, 2]),  # what has no elements is no neighbour
        ([8, 0], [1, 2]),
    ],
)
def test_neighbours_of_a_multiple_of_the_elements_are_a_chain(elements, chains):
    links = np.array([True, True])
    numbered = number_chains(links, np.array(elements), np.array([False, True]))
    assert numbered.tolist() == chains


def test_a_change_of_stream_part_or_pass_ends_a_chain():
    links = np.array([True, True, True])
    numbered = number_chains(links, np.array([8, 8, 8]), np.array([False, True, False]))
    assert numbered.tolist() == [1, 1, 2]
