"""Labels on recordings of real frameworks, held against what these ran (``truth.py``), with and without evidence."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import cycle

import polars as pl
import pytest

from tests.classify import truth
from tests.classify.conftest import renamed, unannotated, undescribed, without_shapes
from tests.truth.shipped import framework_folder
from tracekit.classify import classify
from tracekit.parsers import kineto

ROOT = framework_folder()
pytestmark = pytest.mark.slow
RANKS = [
    ("ds-pipe", 0),
    ("hf-ddp-ckpt", 0),
    ("meg-moe-vpp", 1),
    ("meg-recompute", 3),
    ("titan-ac", 1),
    ("titan-fsdp", 2),
]
GRADIENTS = {"dgrad", "wgrad", "recompute"}


@lru_cache(maxsize=1)
def recording(name, rank):
    path = ROOT / name / f"rank{rank}.pt.trace.json.gz"
    return truth.Recording(path), kineto.read(path).events


def labels(events):
    return classify(events).sort("start_ns", "correlation")["label"].to_list()


def exchanges():
    """A layer of experts sends tokens out and brings results back.

    Its backward goes the other way.
    """
    ahead, back = (
        cycle(["ep_dispatch", "ep_dispatch", "ep_combine"]),
        cycle(["ep_combine", "ep_dispatch", "ep_dispatch"]),
    )

    def label(event, stack):
        group = event["args"].get("Process Group Description", "")
        if group.startswith("EXPERT_MODEL"):
            inside = any(e["name"].startswith(truth.NODE) for e in stack)
            return {next(back if inside else ahead)}
        if "AllReduce" in event["name"] and event["args"].get("In msg nelems") == 1:
            # One number, the loss or a norm: it says nothing about what its group is for.
            return {"comm"}
        if "SendRecv" in event["name"] or group.startswith(("PIPELINE", "MODEL_PARALLEL")):
            return {"pp_comm"}
        return {"ep_dispatch"} if group.startswith("EXPERT_TENSOR_AND_MODEL") else {"dp_comm"}

    return label


def right(name, trace):
    pipeline = {"ds-pipe", "titan-ac"}
    # No replicas: what is not a message is the norm or the loss, among the pipeline's ranks.
    if name in pipeline:
        return truth.expected(trace, lambda _event, _stack: {"pp_comm"})
    return truth.expected(trace, exchanges())


def compute_alone(trace, expected):
    return [
        e if "nccl" not in k["name"].lower() else None
        for k, e in zip(trace.gpu, expected, strict=True)
    ]


@pytest.mark.parametrize(("name", "rank"), RANKS)
def test_labels_are_what_the_program_ran(name, rank):
    trace, events = recording(name, rank)
    expected, actual = right(name, trace), labels(events)
    for expected_labels, least in ((expected, 0.99), (compute_alone(trace, expected), 0.98)):
        share, wrong = truth.agreement(trace, actual, expected_labels)
        assert share > least, wrong


def ranges_renamed(events):
    """The program's own ranges under one name that says nothing."""
    name = pl.col("name").cast(pl.String)
    own = (pl.col("kind") == "annotation") & ~name.str.starts_with("ProfilerStep")
    return events.with_columns(
        name=pl.when(own).then(pl.lit("mine")).otherwise(name).cast(pl.Categorical())
    )


@pytest.mark.parametrize(("name", "rank"), RANKS)
def test_with_less_evidence_labels_get_coarser_but_not_wrong(name, rank):
    trace, events = recording(name, rank)
    exact = right(name, trace)
    coarse = [
        e and e | {"other", "comm"} | ({"backward"} if e & GRADIENTS else set()) for e in exact
    ]
    for strip in (without_shapes, renamed, undescribed, unannotated, ranges_renamed):
        actual = labels(strip(events))
        # Without sizes, gradients that the caller adds up before the optimizer look like a part of
        # it.
        least = 0.97 if (name, strip) == ("ds-pipe", without_shapes) else 0.99
        share, wrong = truth.agreement(trace, actual, compute_alone(trace, coarse))
        assert share > least, (strip.__name__, wrong)
        share, wrong = truth.agreement(trace, actual, coarse)
        assert share > 0.99, (strip.__name__, wrong)
        share, wrong = truth.agreement(trace, actual, exact)
        assert share > 0.98, (strip.__name__, wrong)


def gemms(name, rank):
    _, events = recording(name, rank)
    product = pl.col("name").cast(pl.String).str.contains("nvjet") & (pl.col("kind") == "kernel")
    return Counter(classify(events).filter(product)["label"].to_list())


def test_products_of_compiled_blocks_that_run_again():
    assert gemms("titan-fsdp", 2) == {"forward": 57, "recompute": 48, "dgrad": 57, "wgrad": 57}


def test_recomputed_layers_are_one_backward_each():
    """Eight micro-batches of two layers with four linear layers and two batched products each."""
    trace = gemms("meg-recompute", 1)
    assert trace == {"forward": 96, "recompute": 96, "dgrad": 128, "wgrad": 64}
