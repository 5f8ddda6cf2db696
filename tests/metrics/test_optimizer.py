"""Optimizers that run in a loop or in parts, and what a fused one would take."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.metrics.alternatives.optimizer import FusedOptimizer
from tracekit.metrics.alternatives.remedy import REMEDIES
from tracekit.metrics.attainable import Share
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.speeds import Speeds


def rank_work(*events, bandwidth=None):
    """Work of a GPU whose memory moves as many bytes per ns, of which kernels reach the half, all or twice that."""
    works = [("memory", "*"), ("optimizer", "*")]
    speeds = Speeds({}, bandwidth, dict.fromkeys(works, Share(0.5, 1.0, 2.0)))
    frame = pl.DataFrame(list(events), infer_schema_length=None)
    missing = [pl.lit(None, pl.String).alias(name) for name in ("node",) if name not in frame]
    return RankWork(frame.with_columns(missing), pl.DataFrame(), speeds)


def remedies_of(entry, *events, bandwidth=None):
    """The remedies that an entry finds in events."""
    found = list(entry.find(rank_work(*events, bandwidth=bandwidth)))
    return pl.concat([REMEDIES.to_frame(), *found])


def optimizer(op, count, *, first=0, elements=100):
    return [
        {"row": first + n, "part": 0, "label": "optimizer", "op": op, "kind": "elementwise", "ns": 50,
         "elements": elements, "width": 4}
        for n in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("rows", "moved"),
    [
        # Parameters are 10 times 100 numbers of 4 bytes.
        (optimizer("aten::addcdiv_", 10) + optimizer("aten::mul_", 54, first=10), 7 * 4000),
        (optimizer("aten::add_", 10) + optimizer("aten::mul_", 54, first=10), 5 * 4000),
        (optimizer("aten::add_", 10) + optimizer("aten::lerp_", 54, first=10), 5 * 4000),
        (optimizer("aten::sub_", 10) + optimizer("aten::neg", 54, first=10), 3 * 4000),
        # SGD with momentum adds twice for each parameter.
        (optimizer("aten::add_", 40) + optimizer("aten::mul_", 24, first=40), 5 * 24 * 400),
        # Adam without a fused last operation.
        (optimizer("aten::sub_", 44) + optimizer("aten::sqrt", 20, first=44), 7 * 20 * 400),
        # A stray kernel of the same size is none of the loop.
        (
            optimizer("aten::add_", 32)
            + optimizer("aten::mul_", 31, first=32)
            + optimizer("aten::neg", 1, first=63),
            5 * 31 * 400,
        ),
    ],
)
def test_a_loop_over_parameters_would_move_them_once_for_each_of_its_tensors(rows, moved):
    """At 20 bytes per ns."""
    remedies = remedies_of(FusedOptimizer(), *rows, bandwidth=20.0)
    assert remedies["likely_ns"].sum() == pytest.approx(moved / 20, abs=40)  # each is rounded
    assert remedies["host_share"].to_list() == [1.0] + [0.0] * 63


def test_one_launch_of_a_fused_optimizer_replaces_128():
    remedies = remedies_of(FusedOptimizer(), *optimizer("aten::addcdiv_", 129), bandwidth=20.0)
    kept = remedies.filter(pl.col("host_share") > 0)
    assert kept["row"].to_list() == [0, 128]


def test_fewer_than_64_kernels_of_an_optimizer_are_no_loop():
    rows = optimizer("aten::addcdiv_", 63)
    assert remedies_of(FusedOptimizer(), *rows, bandwidth=1.0).is_empty()


def test_a_foreach_optimizer_takes_three_to_six_tenths_if_it_is_fused():
    remedies = remedies_of(FusedOptimizer(), *optimizer("aten::_foreach_add_", 2))
    assert remedies.select("low_ns", "likely_ns", "high_ns").rows() == [(15, 20, 30)] * 2
    fused = optimizer("aten::_fused_adam_", 1, first=2)
    adds = optimizer("aten::_foreach_add_", 2)
    assert remedies_of(FusedOptimizer(), *adds, *fused).is_empty()


def test_a_fused_norm_of_the_model_is_no_fused_optimizer():
    norm = [{**row, "label": "forward"} for row in optimizer("aten::_fused_rms_norm", 1, first=2)]
    adds = optimizer("aten::_foreach_add_", 2)
    assert remedies_of(FusedOptimizer(), *adds, *norm).height == 2


def test_a_fused_call_takes_the_host_as_long_as_those_of_a_foreach_optimizer():
    adds = optimizer("aten::_foreach_add_", 2)
    rows = [*adds, *optimizer("aten::_foreach_mul_", 4, first=2)]
    remedies = remedies_of(FusedOptimizer(), *rows)
    assert remedies["host_share"].to_list() == [1.0] * 6


def test_without_sizes_a_loop_over_parameters_keeps_its_time_on_the_gpu():
    rows = optimizer("aten::add_", 64) + optimizer("aten::add_", 1, first=64, elements=None)
    remedies = remedies_of(FusedOptimizer(), *rows, bandwidth=20.0)
    assert remedies.select("low_ns", "likely_ns", "high_ns").rows() == [(50, 50, 50)] * 65
    assert remedies["host_share"].sum() == 1.0


@pytest.mark.parametrize("op", ["aten::fill_", "aten::zero_"])
def test_kernels_that_zero_gradients_are_no_part_of_a_loop_over_parameters(op):
    rows = optimizer("aten::add_", 64) + optimizer(op, 9, first=64)
    remedies = remedies_of(FusedOptimizer(), *rows, bandwidth=20.0)
    assert remedies["row"].to_list() == list(range(64))
