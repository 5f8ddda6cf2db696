"""Products by pass and module, and communication, of recordings of frameworks: counts known from the programs."""

from __future__ import annotations

from collections import Counter

import polars as pl
import pytest

from tests.truth import raw
from tests.truth.shipped import framework_folder
from tracekit.classify import classify
from tracekit.parsers import kineto

pytestmark = pytest.mark.slow
LINEAR = ("aten::mm", "aten::addmm", "aten::_scaled_mm")


@pytest.fixture
def labelled():
    def read(name, rank):
        path = framework_folder() / name / f"rank{rank}.pt.trace.json.gz"
        return path, classify(kineto.read(path).events)

    return read


def products(table, *keys):
    rows = table.filter((pl.col("kind") == "kernel") & pl.col("op").cast(pl.String).is_in(LINEAR))
    return Counter(rows.select(pl.col(keys).cast(pl.String)).rows())


# Each layer has query, key, value and output, gate, up and down. Recomputation stops before the
# last product of a checkpointed block, whose result nothing needs.
LLAMAS = {"titan-fsdp": (8, 1, 1), "hf-ddp-ckpt": (6, 1, 1), "titan-ac": (2, 8, 0)}
"""Layers, passes and heads of a rank."""


@pytest.mark.parametrize("name", LLAMAS)
def test_modules_of_gated_layers(labelled, name):
    layers, passes, heads = LLAMAS[name]
    each = {"attention": 4 * layers * passes, "mlp": 3 * layers * passes}
    expected = {
        (label, module): count
        for label in ("forward", "dgrad", "wgrad")
        for module, count in each.items()
    }
    expected |= {(label, "head"): heads for label in ("forward", "dgrad", "wgrad") if heads}
    expected |= {
        ("recompute", "attention"): each["attention"],
        ("recompute", "mlp"): 2 * layers * passes,
    }
    assert products(labelled(name, 0)[1], "label", "module") == expected


@pytest.mark.parametrize("rank", range(4))
def test_gradients_in_float8_whose_shapes_coincide(labelled, rank):
    """2,048 tokens of width 2,048: 4 blocks of 4 linear layers, and the head, in each of two steps."""
    table = labelled("fp8-fsdp", rank)[1]
    steps = table["step"].drop_nulls().unique().to_list()
    expected = {(label, str(step)): 17 for step in steps for label in ("forward", "dgrad", "wgrad")}
    assert products(table, "label", "step") == expected


@pytest.mark.parametrize("rank", range(4))
def test_keys_and_values_go_round_between_attentions(labelled, rank):
    path, table = labelled("cp-ring", rank)
    exchanges = [e for e in raw.Recording(path).gpu if "SendRecv" in e["name"]]
    context = table.filter(label="cp_comm")
    assert context.height == len(exchanges)
    assert context["name"].cast(pl.String).str.contains("SendRecv").all()


def test_packed_gradients_are_memory_of_the_backward(labelled):
    for name in ("titan-fsdp", "fp8-fsdp"):
        table = labelled(name, 0)[1]
        packing = table.filter(pl.col("name").cast(pl.String).str.contains("chunk_cat"))
        assert set(packing.select(pl.col("label", "pass").cast(pl.String)).rows()) == {
            ("memory", "backward")
        }
