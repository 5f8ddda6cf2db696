"""Passes, modules, layers and FLOP of training recordings whose truth stands beside them in JSON.

``NAME.truth.json`` beside ``NAME.pt.trace.json.gz`` holds what ``torch.utils.flop_counter`` counted
in one step (``forward_flop_per_step``, ``backward_flop_per_step``, ``forward_by_module``), and the
numbers of ``steps`` and ``layers``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest

from tests.kept import analysis_of
from tracekit.classify import classify
from tracekit.parsers import kineto

FOLDER = Path(__file__).parents[1] / "data/flops"
RECORDINGS = sorted(file.name.removesuffix(".truth.json") for file in FOLDER.glob("*.truth.json"))
pytestmark = pytest.mark.slow
KINDS = (("attention", r"attn$|attention$"), ("mlp", r"mlp$|ffn$"), ("head", r"head$"))


def truth_of(name):
    return json.loads((FOLDER / f"{name}.truth.json").read_text())


def analysis(name):
    return analysis_of(FOLDER / f"{name}.pt.trace.json.gz", by="layer", schedule="none")


@pytest.mark.parametrize("name", RECORDINGS)
def test_flop_are_those_counted_in_the_program(name):
    truth = truth_of(name)
    counted = truth["steps"] * (truth["forward_flop_per_step"] + truth["backward_flop_per_step"])
    assert analysis(name).rate_tables.total.flop == counted
    assert analysis(name).rate_tables.total.uncounted_ns == 0


@pytest.mark.parametrize("name", RECORDINGS)
def test_forward_flop_by_module(name):
    truth = truth_of(name)
    counted = dict.fromkeys((kind for kind, _ in KINDS), 0)
    for module, by_operator in truth["forward_by_module"].items():
        for kind, pattern in KINDS:
            if re.search(pattern, module):
                counted[kind] += truth["steps"] * sum(by_operator.values())
    products = analysis(name).rate_tables.products.filter(label="forward")
    actual = {
        row["module"]: row["flop"]
        for row in products.group_by("module").agg(pl.sum("flop")).to_dicts()
    }
    for kind, flop in counted.items():
        if flop:
            assert actual[kind] == flop


@pytest.mark.parametrize("name", RECORDINGS)
def test_each_linear_product_has_two_gradients_in_its_module(name):
    products = analysis(name).rate_tables.products.filter(
        pl.col("op").is_in(["aten::mm", "aten::addmm"])
    )
    flop = {(row["label"], row["module"]): row["flop"]
            for row in products.group_by("label", "module").agg(pl.sum("flop")).to_dicts()}  # fmt: skip
    for (label, module), forward in flop.items():
        if label == "forward":
            assert flop["dgrad", module] == flop["wgrad", module] == forward


@pytest.mark.parametrize("name", RECORDINGS)
def test_layers_are_right_or_absent(name):
    layers = truth_of(name)["layers"]
    actual = analysis(name).places.rows["layer"].drop_nulls().len()
    assert actual in (layers, 0) or not layers


@pytest.mark.parametrize("name", RECORDINGS)
def test_without_shapes_no_module_is_wrong(name):
    events = kineto.read(FOLDER / f"{name}.pt.trace.json.gz").events
    exact = classify(events).select(
        "id", pl.col("module").cast(pl.String), ns=pl.col("end_ns") - pl.col("start_ns")
    )
    bare = classify(events.with_columns(shapes=pl.lit(None, pl.Categorical()))).select(
        "id", other=pl.col("module").cast(pl.String)
    )
    both = exact.join(bare, on="id").drop_nulls()
    assert both.filter(pl.col("module") != pl.col("other"))["ns"].sum() < 0.01 * exact["ns"].sum()
