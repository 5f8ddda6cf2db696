"""Speed of GPUs from the same kernels on several ranks."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.metrics.gpu_speed import gpu_slowdowns
from tracekit.pipeline.reconstruct.messages import CONTENTION


def contention(alone_ns, alone=3):
    """Kernels of one forward on a rank, each of which ran alone *alone* times and then took so long."""
    rows = {
        "op": "F",
        "size": len(alone_ns),
        "place": range(len(alone_ns)),
        "alone": alone,
        "alone_ns": alone_ns,
    }
    return pl.DataFrame({**rows, "beside": 0, "took_ns": 0, "beside_ns": 0}, schema=CONTENTION)


def test_a_gpu_is_slow_if_most_of_its_kernels_are():
    """Of 40 kernels 15 take four times as long on a rank, or 25 twice as long."""
    usual = contention([10.0] * 40)
    assert gpu_slowdowns([usual, usual, contention([40.0] * 15 + [10.0] * 25)]) == {}
    assert gpu_slowdowns([usual, usual, contention([20.0] * 25 + [10.0] * 15)]) == {2: 2.0}
    # Ten kernels after which the GPU waits for experts, as on all ranks, are most of the time, not
    # most of the kernels.
    waits = contention([900.0] * 10 + [10.0] * 30)
    assert gpu_slowdowns([waits, waits, contention([300.0] * 10 + [10.0] * 30)]) == {}


def test_of_two_gpus_the_faster_one_counts_as_usual():
    usual, slow = contention([10.0] * 40), contention([25.0] * 40)
    assert gpu_slowdowns([slow, usual]) == {0: 2.5}


def test_kernels_that_ran_alone_once_say_nothing_of_a_gpu():
    """As on a rank beside whose compute a message runs nearly all the time."""
    usual = contention([10.0] * 40)
    assert gpu_slowdowns([usual, usual, contention([20.0] * 40, alone=1)]) == {}
    assert gpu_slowdowns([usual, usual, contention([20.0] * 40, alone=2)]) == {}


def test_kernels_of_one_rank_alone_say_nothing_of_its_gpu():
    """A rank that is half as fast has 40 kernels as others do, and 60 in chunks that no other rank has."""
    usual = contention([10.0] * 40)
    slow = pl.concat([contention([20.0] * 40), contention([10.0] * 60)])
    assert gpu_slowdowns([usual, usual, slow]) == {2: 2.0}


@pytest.mark.parametrize(("kernels", "slowdowns"), [(20, {}), (29, {}), (30, {2: 2.0})])
def test_a_gpu_is_compared_by_thirty_kernels_or_more(kernels, slowdowns):
    usual = contention([10.0] * kernels)
    assert gpu_slowdowns([usual, usual, contention([20.0] * kernels)]) == slowdowns


@pytest.mark.parametrize(
    ("slow_ns", "slowdowns"),
    [(10.6, {}), (10.9, {}), (11.5, {2: 1.15}), (9.2, {}), (8.0, {2: 0.8})],
)
def test_gpus_that_differ_by_less_than_a_tenth_are_equal(slow_ns, slowdowns):
    usual = contention([10.0] * 40)
    assert gpu_slowdowns([usual, usual, contention([slow_ns] * 40)]) == pytest.approx(slowdowns)
