"""Groups that nothing describes: labels stay, or say less; they never become another parallelism's."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pytest

from tests.classify.conftest import unannotated, undescribed
from tests.perturbations import read_run
from tracekit.classify import classify

CORPUS = Path(os.environ.get("TRACEKIT_CORPUS", "nowhere"))
SAMPLES = Path(__file__).parents[2] / "sample_traces"
FOLDERS = [SAMPLES / "megatron-moe", CORPUS / "checked/ep", CORPUS / "checked/meg-kimi"]
HONEST = ("comm", "other")
"""Labels that claim no purpose."""


def without(events, *columns):
    return events.with_columns(pl.lit(None, events.schema[name]).alias(name) for name in columns)


def no_descriptions(events):
    return undescribed(unannotated(events))


def no_groups(events):
    return without(no_descriptions(events), "group_ranks")


def uneven_tokens(events):
    """Exchanges whose sizes have nothing to do with each other."""
    exchange = pl.col("collective").cast(pl.String).str.contains("all_to_all")
    factor = 1 + pl.col("id") % 7
    sizes = [
        pl.when(exchange).then(pl.col(name) * factor).otherwise(pl.col(name)).alias(name)
        for name in ("bytes", "received")
    ]
    return no_descriptions(events).with_columns(sizes)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
@pytest.mark.parametrize("strip", [no_descriptions, no_groups, uneven_tokens])
def test_communication_keeps_its_label_or_claims_less(folder, strip):
    if not folder.is_dir():
        pytest.skip("TRACEKIT_CORPUS is not set: the captures are not in this repository")
    events = read_run(folder)[0].events
    length = pl.col("end_ns") - pl.col("start_ns")
    described = classify(events).select("id", "label", length.alias("ns"))
    label_without = classify(strip(events)).select("id", label_without="label")
    both = described.join(label_without, on="id").with_columns(pl.col(pl.Enum).cast(pl.String))
    is_wrong = (pl.col("label") != pl.col("label_without")) & ~pl.col("label_without").is_in(HONEST)
    wrong = both.filter(is_wrong, pl.col("label").str.contains("comm|ep_"))
    assert wrong.group_by("label", "label_without").agg(pl.col("ns").sum()).rows() == []
