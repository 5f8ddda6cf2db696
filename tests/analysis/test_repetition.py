"""Layers found by repetition, and silence where they are not certain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.analysis.measure.by.layers import (
    find_layers,
)


def result(text, heavy="g"):
    tokens = np.array([ord(c) for c in text], np.int64)
    return find_layers(tokens, tokens == ord(heavy), tokens == ord("n"))


def test_layers_between_an_embedding_and_a_head():
    layers = result("e" + "ngaxgb" * 4 + "zgl")
    assert (layers.first, layers.period, layers.count, layers.spare) == (1, 6, 4, 0)


def test_a_layer_that_repeats_inside_is_still_one_layer():
    assert result("e" + "gagabcgd" * 3 + "z").count == 3


def test_the_norm_that_follows_the_last_layer_leaves_open_where_layers_begin():
    layers = result("ngaxgb" * 3 + "nz")
    assert (layers.first, layers.count, layers.spare) == (0, 3, 1)


def test_an_addition_before_the_first_layer_is_not_its_first_kernel():
    # Both "bngaxg" and "ngaxgb" come three times; layers begin with a norm.
    layers = result("b" + "ngaxgb" * 3 + "z")
    assert (layers.first, layers.count, layers.spare) == (1, 3, 1)


def test_what_repeats_inside_what_repeats_is_silence():
    # Two forwards of three layers each, or two layers with a loop: nothing tells.
    assert result(("e" + "ngaxgb" * 3 + "zl") * 2) is None


@pytest.mark.parametrize("text", ["", "g", "gggg", "abcdefghij", "e" + "nab" * 9])
def test_what_does_not_repeat_or_has_no_product_has_no_layers(text):
    assert result(text) is None


def test_the_shortest_layer():
    assert result(("g" + "abc") * 3).count == 3
    assert result("gab" * 2 + "x") is None  # three kernels twice: a loop


def test_the_least_share_of_the_sequence():
    layer, others = "gabc", [chr(500 + k) for k in range(20)]
    assert result(layer * 2 + "".join(others[:8])).count == 2
    assert result(layer * 2 + "".join(others[:9])) is None


def test_nearly_one_more_layer_beside_them_is_silence():
    layer = "gabcdefhij"
    kept = 5
    assert result(layer * 3 + "Z" + layer[: kept - 1][::-1]).count == 3
    assert result(layer * 3 + "Z" + layer[:kept][::-1]) is None


@given(st.integers(4, 9), st.integers(2, 6), st.integers(0, 3), st.integers(0, 3))
def test_distinct_kernels_are_always_found(period, count, before, behind):
    tokens = np.concatenate(
        [100 + np.arange(before), np.tile(np.arange(period), count), 200 + np.arange(behind)]
    )
    layers = find_layers(tokens, tokens == 0)
    assert (layers.first, layers.period, layers.count, layers.spare) == (before, period, count, 0)


def test_a_long_sequence_of_many_kinds_is_found_among_others():
    layer = np.arange(1000) % 613
    tokens = np.concatenate([10_000 + np.arange(3000), np.tile(layer, 8), 20_000 + np.arange(3000)])
    layers = find_layers(tokens, tokens == 0)
    assert (layers.first, layers.period, layers.count) == (3000, 1000, 8)


def test_as_many_kinds_as_kernels_take_no_longer():
    assert find_layers(np.arange(20_000), np.ones(20_000, bool)) is None
