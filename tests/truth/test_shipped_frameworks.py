"""Labels and schedules of the recordings in ``tests/data/frameworks``, against what their programs ran."""

from __future__ import annotations

from collections import Counter

import polars as pl
import pytest

from tests.kept import analysis_of
from tests.truth.shipped import SHIPPED, TRUTH
from tracekit.classify import classify
from tracekit.parsers import kineto

LINEAR = ("aten::mm", "aten::addmm", "aten::_scaled_mm")
WITH_SCHEDULE = [name for name, truth in TRUTH.items() if "schedule" in truth]
WITH_PRODUCTS = [name for name, truth in TRUTH.items() if "products_a_rank_and_step" in truth]
NIGHTLY_RECORDINGS = {"ds-pipe": pytest.mark.nightly, "meg-recompute": pytest.mark.nightly}
"""Schedules that other recordings have too."""
RANK = 1
"""Every recording has it."""


def labelled(name):
    return classify(kineto.read(SHIPPED / name / f"rank{RANK}.pt.trace.json.gz").events)


def test_the_recordings_take_little_room():
    files = [file for file in SHIPPED.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 15_000_000
    assert {file.parent.name for file in files if file.suffix == ".gz"} == set(TRUTH)


@pytest.mark.parametrize("name", WITH_PRODUCTS)
def test_linear_layers_have_the_labels_of_the_program(name):
    table = labelled(name)
    is_linear = pl.col("op").cast(pl.String).is_in(LINEAR) & (pl.col("kind") == "kernel")
    labels = Counter(table.filter(is_linear)["label"].cast(pl.String).to_list())
    assert labels == TRUTH[name]["products_a_rank_and_step"]


def test_exchanges_between_attentions_are_context_parallel_and_nothing_else_is():
    table = labelled("cp-ring").with_columns(pl.col("name", "label").cast(pl.String))
    is_exchange = pl.col("name").str.contains("SendRecv")
    assert table.filter(is_exchange).height > 0
    assert table.filter(is_exchange)["label"].unique().to_list() == ["cp_comm"]
    assert table.filter(~is_exchange & (pl.col("label") == "cp_comm")).is_empty()
    assert set(table.filter(pl.col("name").str.contains("AllReduce"))["label"]) <= {
        "dp_comm",
        "comm",
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=NIGHTLY_RECORDINGS.get(name, ())) for name in WITH_SCHEDULE],
)
def test_schedules_are_those_of_the_program(name):
    truth = TRUTH[name]
    schedule = analysis_of(SHIPPED / name).to_dict()["schedule"]
    assert schedule["name"] == truth["schedule"]
    assert (schedule["pp"], schedule["microbatches"], schedule["exact"]) == (
        truth["pp"],
        truth["microbatches"],
        True,
    )


@pytest.mark.slow
def test_layers_that_run_again_take_as_long_as_the_first_time():
    total = analysis_of(SHIPPED / "meg-recompute").total
    assert 0.9 < total.label_ns["recompute"] / total.label_ns["forward"] < 1.05
