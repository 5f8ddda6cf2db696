"""Copies between host and device: what is offloaded and comes back, and the direction by every vendor's name."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tests.classify.conftest import ENGINE, event_row
from tracekit.classify import classify, copies
from tracekit.classify.evidence import gather_evidence


def test_small_saved_tensors_are_offloaded_too(program):
    """Statistics of a norm leave in the forward and return inside the backward.

    A loss that is read does not.
    """
    gone, back = [], []
    for i in range(3):
        program.op("aten::native_layer_norm", 20 * i, 20 * i + 10, sequence=10 + i)
        gone.append(program.copy("DtoH (Device -> Pinned)", 20 * i + 12, bytes=8192))
        program.node("NativeLayerNormBackward0", 1000 - 20 * i, 1010 - 20 * i, 10 + i)
        back.append(program.copy("HtoD (Pinned -> Device)", 1001 - 20 * i, bytes=8192, tid=ENGINE))
    loss = program.copy("DtoH (Device -> Pageable)", 2000, bytes=4)
    index = program.copy("HtoD (Pageable -> Device)", 2010, bytes=512)
    labelled = classify(program.events())
    assert {event_row(labelled, i)["label"] for i in gone} == {"offload"}
    assert {event_row(labelled, i)["label"] for i in back} == {"onload"}
    assert {event_row(labelled, i)["label"] for i in (loss, index)} == {"memory"}


@pytest.mark.parametrize(
    ("operators", "label"),
    [
        (["symm_mem::_low_contention_reduce_scatter", "aten::mean"], "comm"),
        (["symm_mem::_low_contention_reduce_scatter", "aten::sum"], "comm"),
        (["symm_mem::fused_matmul_reduce_scatter", "aten::mm"], "forward"),
        (["aten::mean"], "forward"),
    ],
)
def test_the_sum_of_a_reduction_over_symmetric_memory_is_communication(program, operators, label):
    """Whatever range is around it; a product inside the same operator is compute."""
    program.note("forward", 0, 100)
    for depth, name in enumerate(operators):
        program.op(name, 10 + depth, 50 - depth)
    kernel = program.kernel("void at::native::reduce_kernel<128, 4>", 20)
    assert event_row(classify(program.events()), kernel)["label"] == label


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("dma_request", "memory"),
        ("DMA_write", "memory"),
        ("__amd_rocclr_copyBuffer", "memory"),
        ("gemm_of_cdma_tiles", "forward"),  # the letters inside another name
    ],
)
def test_requests_of_a_dma_engine_are_copies(program, name, label):
    """An accelerator that records them as work of its own, like kernels."""
    program.note("forward", 0, 100)
    kernel = program.kernel(name, 20)
    assert event_row(classify(program.events()), kernel)["label"] == label


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("DtoH (Device -> Pinned)", "d2h"),
        ("HtoD (Pageable -> Device)", "h2d"),
        ("HtoD (Host -> Device)", "h2d"),
        ("M2D (MEMORY(Unknown) -> DEVICE)", "h2d"),
        ("D2M (DEVICE -> MEMORY(Unknown))", "d2h"),
        ("D2D (DEVICE -> DEVICE)", "d2d"),
        ("DtoD (Device -> Device)", "d2d"),
        ("PtoP (Device -> Device)", "p2p"),
    ],
)
def test_directions_of_copies_by_every_vendors_name(program, name, way):
    program.copy(name, 1, bytes=1 << 20)
    assert gather_evidence(program.events()).text("copy").strings() == [way]


@pytest.mark.parametrize(("compute_ns", "use"), [(51, "compute"), (50, "communication")])
def test_the_stream_with_more_than_half_of_the_compute_is_for_compute(compute_ns, use):
    """Communication fills the first stream; the rest of 100 ns of compute is on the second."""
    end_ns = np.array([compute_ns, 1_000, 100 - compute_ns])
    times = {"start_ns": np.zeros(3, np.int64), "end_ns": end_ns}
    gpu = SimpleNamespace(stream_number=np.array([0, 0, 1]), int64=times.__getitem__)
    communicates = np.array([False, True, False])
    uses = copies.stream_uses(gpu, np.zeros(3, np.bool_), communicates)
    assert uses.strings()[0] == use


@pytest.mark.parametrize(("copied_ns", "use"), [(800, "copy"), (700, "compute")])
def test_a_stream_is_for_copies_if_they_fill_three_quarters_of_its_busy_time(copied_ns, use):
    """Stream 0 computes for 5,000 ns; stream 1 is busy for 1,000 ns."""
    length = np.array([5_000, copied_ns, 1_000 - copied_ns])
    times = {"start_ns": np.zeros(3, np.int64), "end_ns": length}
    gpu = SimpleNamespace(stream_number=np.array([0, 1, 1]), int64=times.__getitem__)
    uses = copies.stream_uses(
        gpu, is_copy=np.array([False, True, False]), communicates=np.zeros(3, bool)
    )
    assert uses.any_of(use)[1]
