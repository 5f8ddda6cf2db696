"""Kinds of groups from the sizes and sums of their collectives."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tracekit._util.categories import CategoryColumn
from tracekit.classify import collectives
from tracekit.classify.collectives import follows_on_thread, group_shapes


@pytest.mark.parametrize(
    ("start_ns", "follows"),
    [
        ([5, 9, 7], [False, True, False]),
        ([0, 9, 7], [False, True, False]),
        ([-1, 9, 7], [False, False, False]),  # launched at an unknown time
    ],
)
def test_what_a_thread_launches_next_follows(start_ns, follows):
    """The first two events are of one thread, the first of them is asked for."""
    start = np.array(start_ns)
    thread = np.array([0, 0, 1])
    launches = SimpleNamespace(
        start_ns=start,
        thread=thread,
        by_thread=lambda rows: rows[np.lexsort((start[rows], thread[rows]))],
    )
    mask = np.array([True, False, False])
    assert follows_on_thread(launches, mask).tolist() == follows


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


MIB = 1 << 20


def column(*values):
    return CategoryColumn.from_series(pl.Series(values, dtype=pl.String))


def kind_by_sums(forward_bytes, others=0):
    """The kind of a group with sums of these sizes in the forward, and *others* after the backward."""
    count = len(forward_bytes) + others
    comm = SimpleNamespace(call=column(*["all_reduce"] * count), group=column(*["0"] * count))
    passes = column(*["forward"] * len(forward_bytes), *["optimizer"] * others)
    size = np.array([*forward_bytes, *[MIB] * others])
    no_site = column(*[None] * count)
    (kind,) = collectives.kinds_by_sums(comm, passes, no_site, size).tolist()
    return None if kind < 0 else collectives.KINDS_OF_GROUPS[kind]


@pytest.mark.parametrize(("sums", "kind"), [(2, "tp"), (1, None)])
def test_two_sums_in_the_forward_are_of_activations(sums, kind):
    assert kind_by_sums([MIB] * sums) == kind


@pytest.mark.parametrize(("size", "kind"), [(MIB, "tp"), (MIB - 1, None)])
def test_sums_of_activations_have_a_mebibyte(size, kind):
    assert kind_by_sums([size] * 2) == kind


@pytest.mark.parametrize(("others", "kind"), [(6, "tp"), (7, None)])
def test_one_sum_in_four_is_of_activations_in_the_forward(others, kind):
    """Two of eight, and two of nine."""
    assert kind_by_sums([MIB] * 2, others) == kind
