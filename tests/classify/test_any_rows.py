"""Whatever a file holds, every GPU event gets a label and nothing breaks."""

from __future__ import annotations

import random

import polars as pl
import pytest

from tracekit.classify import classify
from tracekit.schema import EVENTS, GPU_KINDS, LABELS, conform

pytestmark = pytest.mark.slow

NAMES = {
    "kernel": [
        "nvjet_h_TNN",
        "flash_bwd_x",
        "flash_fwd_kernel",
        "ncclDevKernel_SendRecv(x)",
        "multi_tensor_apply",
        "?",
    ],
    "memcpy": ["Memcpy PtoP (Device -> Device)", "Memcpy DtoH (Device -> Pinned)"],
    "memset": ["Memset (Device)"],
    "graph": ["graph"],
    "cpu_op": [
        "aten::mm",
        "_LinearBackward",
        "record_param_comms",
        "autograd::engine::evaluate_function: MmBackward0",
    ],
    "annotation": [
        "Optimizer.step#Adam.step",
        "PP:1F0",
        "FSDP::post_backward (x)",
        "nccl:coalesced",
    ],
    "runtime": ["cudaLaunchKernel"],
    "driver": ["cuLaunchKernel"],
}
CALLS = ["send", "recv", "all_to_all", "allreduce", "wait"]


def rows(seed):
    """Events of every kind with anything missing: names, threads, launches, numbers."""
    rng = random.Random(seed)

    def perhaps(value):
        return value if rng.random() < 0.7 else None

    for number in range(rng.randint(1, 25)):
        kind, start = rng.choice(list(NAMES)), rng.randint(0, 200)
        yield {
            "rank": 0,
            "id": number,
            "kind": kind,
            "name": perhaps(rng.choice(NAMES[kind])),
            "start_ns": start,
            "end_ns": start + rng.choice([0, 1, 30]),
            "pid": perhaps(1),
            "tid": perhaps(rng.randint(1, 3)),
            "device": perhaps(0),
            "stream": perhaps(rng.randint(7, 9)),
            "correlation": perhaps(rng.randint(0, 12)),
            "external_id": perhaps(rng.randint(0, 9)),
            "sequence": perhaps(rng.randint(0, 6)),
            "fwd_thread": perhaps(1),
            "collective": perhaps(rng.choice(CALLS)) if kind in ("cpu_op", "kernel") else None,
            "group": perhaps(rng.choice("12")),
            "peer": perhaps(rng.randint(0, 3)),
            "step": perhaps(1),
            "bytes": perhaps(1 << 20),
        }


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_anything_is_labelled(first):
    for seed in [*range(first, first + 10), 144]:
        events = conform(pl.DataFrame(list(rows(seed)), infer_schema_length=None), EVENTS)
        labelled = classify(events)
        assert len(labelled) == events["kind"].is_in(GPU_KINDS).sum()
        assert set(labelled["label"]) <= set(LABELS)


def test_nothing_is_labelled_of_nothing():
    assert classify(conform(pl.DataFrame([]), EVENTS)).is_empty()
