"""The order of launches of kernels that ran on several streams."""

import random

import numpy as np
import pytest

from tracekit.classify.stream_merge import merge_streams


def program(layers, rng, *, side_share=0.4, max_lead=3):
    """Launches of equal layers, and their kernels as they start: some on a second stream, a few places too late.

    Returns:
        Keys of the launches, and of the kernels by start the name, the stream and the launch.

    """
    layer = [10, 11, 12, 13, 14, 15, 16]
    keys = layer * layers
    on_side = [key % 2 == 1 and rng.random() < side_share * 2 for key in layer] * layers
    starts = [i + (rng.uniform(0, max_lead) if side else 0.0) for i, side in enumerate(on_side)]
    # A stream runs in order: no kernel starts before the one in front of it.
    last_start = {False: -1.0, True: -1.0}
    for i, side in enumerate(on_side):
        starts[i] = max(starts[i], last_start[side] + 0.001)
        last_start[side] = starts[i]
    order = sorted(range(len(keys)), key=lambda i: starts[i])
    names = np.array([100 + keys[i] for i in order])
    streams = np.array([1 if on_side[i] else 0 for i in order])
    return np.array(keys), names, streams, order


@pytest.mark.parametrize("seed", range(8))
def test_interleaved_layers_are_put_in_the_order_of_their_launches(seed):
    """Each key has one kernel; words of some names are known, as of most operators."""
    rng = random.Random(seed)
    keys, names, streams, order = program(12, rng)
    related = [(key, 100 + key) for key in (10, 12, 13, 15)]
    merged = merge_streams(keys, names, streams, related)
    assert [order[row] for row in merged] == list(range(len(keys)))


def test_each_stream_keeps_its_order():
    keys, names, streams, _ = program(6, random.Random(3))
    merged = merge_streams(keys, names, streams)
    for stream in (0, 1):
        rows = [row for row in merged.tolist() if streams[row] == stream]
        assert rows == sorted(rows)
    assert sorted(merged.tolist()) == list(range(len(keys)))


def test_kernels_of_one_stream_stay_as_they_are():
    assert merge_streams(np.array([1, 2, 3]), np.array([9, 8, 7]), np.zeros(3)).tolist() == [
        0,
        1,
        2,
    ]


def finds_early_kernel(places):
    """Whether the last launch gets its kernel, which started *places* places early on a stream of its own."""
    count = 2 * places
    keys = [1] * count + [2]
    names = [101] * (count - places) + [102] + [101] * places
    streams = [0] * (count - places) + [1] + [0] * places
    merged = merge_streams(np.array(keys), np.array(names), np.array(streams), [(2, 102), (1, 101)])
    return merged.tolist()[-1] == count - places


@pytest.mark.parametrize(("places", "is_early"), [(8, True), (9, False)])
def test_a_kernel_may_start_eight_places_before_its_turn(places, is_early):
    assert finds_early_kernel(places) is is_early


def test_a_word_outweighs_what_runs_nearby():
    """Two kernels always run side by side, in the other order: only the words tell which launch is which."""
    keys = np.array([1, 2] * 6)
    names = np.array([102, 101] * 6)
    streams = np.array([1, 0] * 6)
    related = [(1, 101), (2, 102)]
    merged = merge_streams(keys, names, streams, related)
    assert names[merged].tolist() == [101, 102] * 6
    assert names[merge_streams(keys, names, streams)].tolist() == [102, 101] * 6


def test_evidence_at_the_end_decides_about_the_beginning():
    """Words are known of the last four of eight launches, whose kernels started first, each on a stream of its own.

    Until then 70 sets of four kernels fit alike, and those that started first fit the order of start
    better.
    """
    keys = np.array([1, 2, 3, 4, 5, 6, 7, 8])
    names = np.array([105, 106, 107, 108, 101, 102, 103, 104])
    related = [(key, 100 + key) for key in (5, 6, 7, 8)]
    merged = merge_streams(keys, names, np.arange(8), related)
    assert names[merged].tolist() == [101, 102, 103, 104, 105, 106, 107, 108]


def test_without_evidence_kernels_are_launched_in_the_order_of_their_start():
    keys = np.array([1, 2, 3, 4])
    assert merge_streams(keys, np.array([101, 102, 103, 104]), np.arange(4)).tolist() == [
        0,
        1,
        2,
        3,
    ]
