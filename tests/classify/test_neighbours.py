"""Neighbours decide where they agree; elsewhere nothing is made up."""

from __future__ import annotations

import polars as pl
import pytest

from tests.classify.conftest import ENGINE
from tracekit.classify import classify


def label(program, wanted):
    return dict(classify(program.events()).select("id", "label").rows())[wanted]


def forward(program, start):
    """An operator with its kernel, and the node that differentiates it much later."""
    program.op("aten::mm", start, start + 5, sequence=start)
    program.op("aten::view", start + 6, start + 7, sequence=start + 1)
    program.node("MmBackward0", 5000 + start, 5005 + start, start)
    program.kernel("gemm", 5001 + start, tid=ENGINE)
    return program.kernel("gemm", start + 1)


def test_between_forwards_it_is_forward_but_not_in_a_range_for_messages(program):
    forward(program, 10)
    program.op("aten::fill_", 20, 25)
    between = program.kernel("fill", 21)
    program.note("PP:0RECV_F1", 28, 34)
    received = program.kernel("renamed_message", 30)
    forward(program, 40)
    assert label(program, between) == "forward"
    assert label(program, received) == "other"


@pytest.mark.parametrize(
    ("note", "expected"), [(None, "optimizer"), ("## NEMetric:update ##", "other")]
)
def test_what_the_caller_does_before_the_optimizer_is_its_unless_a_range_says_something_else(
    program, note, expected
):
    forward(program, 10)
    if note:
        program.note(note, 6000, 6050)
    program.op("aten::mul", 6010, 6020)
    scaled = program.kernel("mul", 6011)
    program.note("Optimizer.step#Adam.step", 6100, 6200)
    program.kernel("adam", 6101)
    assert label(program, scaled) == expected


def test_between_backwards_which_gradient_it_is_stays_open(program):
    forward(program, 10)
    forward(program, 40)
    between = program.kernel("add", 5030, tid=ENGINE)
    assert label(program, between) == "backward"


def test_between_a_backward_and_a_forward_it_is_neither(program):
    forward(program, 10)
    program.op("aten::mul", 5500, 5510)
    scaled = program.kernel("mul", 5501)
    program.op("aten::mm", 5600, 5605, sequence=70)
    program.op("aten::view", 5606, 5607, sequence=71)
    program.kernel("gemm", 5601)
    assert label(program, scaled) == "other"


def test_nothing_is_said_of_a_stream_on_which_nothing_is_known(program):
    forward(program, 10)
    other = program.kernel("renamed_message", 21, stream=99)
    same = program.kernel("fill", 24)
    forward(program, 40)
    assert (label(program, other), label(program, same)) == ("other", "forward")


def test_an_operator_that_only_a_forward_calls_is_forward_without_any_number(program):
    """As in recordings of PyTorch 1.8, which has no sequence numbers.

    A layout in the kernel's name does not count.
    """
    program.op("aten::cudnn_convolution", 0, 10)
    ahead = program.kernel("volta_sgemm_128x64_nt", 1)
    program.node("CudnnConvolutionBackward", 50, 60)
    program.kernel("dgrad_engine", 51, tid=ENGINE)
    program.note("Optimizer.step#SGD.step", 80, 90)
    program.kernel("sgd", 81)
    program.op("aten::cudnn_convolution", 100, 110)
    later = program.kernel("volta_sgemm_128x64_nt", 101)
    assert (label(program, ahead), label(program, later)) == ("forward", "forward")


def test_the_profilers_own_sample_of_version_1_8(corpus, load):
    """ResNet-50 with SGD: the convolutions' own calls and the optimizer's ranges say what is true."""
    (path,) = corpus.glob("kineto/kineto_autogradapi*")
    labelled = classify(load(path))
    took_ms = (pl.col("end_ns") - pl.col("start_ns")).sum() / 1e6
    times = dict(labelled.group_by("label").agg(took_ms).rows())
    assert 340 < times["forward"] < 350
    assert 7 < times["optimizer"] < 9
    assert times.get("other", 0) < 1
