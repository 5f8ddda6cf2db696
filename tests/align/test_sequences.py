"""Sequences of operations of two ranks: when one misfits another."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tracekit.align.sequences import Sequences


@pytest.mark.parametrize(
    ("sizes", "reference", "is_other"),
    [
        ([8, 8, 8], [8, 8, 8], False),
        ([8, 8, 9], [8, 8, 8], True),
        ([8, 9, 9], [8, 8, 8], False),  # every rank sends another amount
        ([8, 9, 8, 9], [8, 8, 8, 8], False),  # half of them
        ([8, 8, -1], [8, 8, 8], False),  # unknown
        ([8, 8, 8], [8, 8, -1], False),
    ],
)
def test_a_sequence_of_which_less_than_half_has_another_size_is_uneven(sizes, reference, is_other):
    count = len(sizes)
    sequences = SimpleNamespace(
        size=np.array([*reference, *sizes]),
        first=np.array([0, count]),
        length=np.array([count, count]),
    )
    sequences.count_sides = lambda sequence, mask: Sequences.count_sides(sequences, sequence, mask)
    counterpart = np.array([*range(count), *range(count)])
    sequence = np.repeat([0, 1], count)
    found = Sequences.find_other_sizes(sequences, sequence, counterpart)
    assert found.tolist() == [False, is_other]


@pytest.mark.parametrize(("ranks", "references"), [(9, 8), (10, 8), (8, 7)])
def test_a_sequence_is_compared_with_eight_others(ranks, references):
    """All have one operation, so that each is as long as the longest."""
    first = np.arange(ranks)
    ones = np.ones(ranks, np.int64)
    sequences = Sequences(first, first, ones, np.zeros(ranks, np.int64), ones)
    assert sequences.references(0, []) == list(range(1, references + 1))
