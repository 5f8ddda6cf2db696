"""Pairing of operations that some ranks lack."""

from __future__ import annotations

import numpy as np
import pytest

from tracekit.align.pairing import OperationSequence, pair_with_references

ENDS = np.array([10, 30, 40, 70, 150, 190, 200, 290, 340, 345, 400, 480])


def sequence(first, count):
    ends = ENDS[first : first + count]
    ones = np.ones(count, np.int64)
    times = {"start": ends - 5, "end": ends, "latest_end": ends}
    return OperationSequence(**times, size=ones, others=ones, has_own_kernel=ones > 0)


@pytest.mark.parametrize(("lacking", "paired"), [(1, True), (2, True), (3, False)])
def test_sequences_of_equal_length_may_lack_two_operations_each(lacking, paired):
    """One rank lacks the first operations, the other as many of the last: operation i is number i + lacking there."""
    partners = pair_with_references(sequence(lacking, 9), [sequence(0, 9)])
    assert (partners[:4].tolist() == [lacking + i for i in range(4)]) == paired
