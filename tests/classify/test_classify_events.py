"""Labels of whole events: the first row and lost kernels are no exceptions."""

from __future__ import annotations

import polars as pl
import pytest

from tests.classify.conftest import Program
from tracekit.classify import classify
from tracekit.classify.classify_events import classify_with_lost


def test_the_event_with_the_number_0_stays_beside_kernels_that_were_lost(program):
    program.kernel("gemm", 0, launched=False)
    program.op("record_param_comms", 10, 19, collective="send", peer=2)
    program.add("runtime", "cudaLaunchKernel", 12, 13, tid=1, correlation=77)
    recorded, lost = classify_with_lost(program.events())
    assert recorded["id"].to_list() == [0]
    assert lost["id"].to_list() == [-1]


@pytest.mark.parametrize("is_first", [True, False])
def test_what_an_operator_launches_is_not_told_by_its_name_alone(program, is_first):
    """``fused_wgrad_kernel`` computes weight gradients where no operator says what it is."""
    if not is_first:
        program.op("aten::relu", 0, 1)
    program.op("aten::add", 10, 20)
    program.kernel("fused_wgrad_kernel", 11)
    program.trained()
    assert classify(program.events())["label"].to_list() != ["wgrad"]


def test_backward_calls_are_micro_batches_from_0_on(program):
    """Forwards with the numbers 1 to 3 and 4 to 6, and a backward through each."""
    for number in range(1, 7):
        program.op("aten::mul", 10 * number, 10 * number + 5, sequence=number)
        program.kernel("mul", 10 * number + 1)
    for i, number in enumerate([3, 2, 1, 6, 5, 4]):
        start = 100 + 10 * i
        program.node("MulBackward0", start, start + 5, number)
        program.kernel("mul_backward", start + 1, tid=2)
    table = classify(program.events()).filter(pl.col("name").cast(pl.String) == "mul_backward")
    assert table["microbatch"].to_list() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("size", "use"), [((1 << 18) - 1, "host-read"), (1 << 18, "offload-stream")]
)
def test_a_copy_of_a_quarter_of_a_mebibyte_is_no_longer_a_scalar(size, use):
    """LARGE, on a stream of its own."""
    program = Program()
    program.copy("DtoH (Device -> Pinned)", 1, bytes=size, stream=30)
    assert classify(program.events())["rule"].to_list() == [use]
