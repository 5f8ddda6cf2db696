"""Rates, copies and memory as metrics: ratios of sums, and nothing where an analysis has a null or a range."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from tracekit.diffs.metrics import FAMILY_BY_NAME, resolve
from tracekit.diffs.run_samples import rate_values
from tracekit.documents.analysis import (
    AllocatorMemory,
    AnalysisDocument,
    Bandwidth,
    Copy,
    ExpertCost,
    ExpertLoad,
    Memory,
    MemoryLine,
    Peak,
    Rates,
)


@pytest.fixture
def document(make):
    """An analysis of two steps on two ranks without rates, copies and memory."""
    return msgspec.convert(make([10.0, 10.0]), AnalysisDocument)


def rates(**fields):
    """Rates of which nothing is known but *fields*."""
    lists = ("by_label", "by_module", "products", "communication", "experts", "expert_layers")
    return Rates(**dict.fromkeys(Rates.__struct_fields__) | {name: [] for name in lists} | fields)


def moved(label, bus, ns):
    return Bandwidth(label, "all_reduce", None, 2, None, "", 1, 1, ns, 0, None, bus, None)


def copied(size):
    return Copy(0, "offload", 1, size, 10, None, None, None, 0, None, 0, 0)


def held(**by_phase):
    line = MemoryLine([], [], [])
    return AllocatorMemory(
        0, 0, None, 4_000_000_000, None, 0, by_phase, None, None, None, None, line
    )


def test_bandwidths_are_weighed_by_transfer_time(document):
    rows = [moved("dp_comm", 10.0, 100), moved("dp_comm", 40.0, 300), moved("ep_dispatch", None, 5)]
    assert rate_values(replace(document, rates=rates(communication=rows))) == {
        "bus_gb_s.dp_comm": 32.5
    }


def test_copies_are_bytes_of_all_ranks_over_their_time(document):
    rows = [copied(100), copied(300)]
    assert rate_values(replace(document, copies=rows)) == {"copy_gb_s.offload": 20.0}
    assert rate_values(replace(document, copies=[*rows, copied(None)])) == {}


def test_a_peak_that_is_a_range_is_no_sample(document):
    sure, between = Peak(2_000_000_000, 2_000_000_000), Peak(1_000_000_000, 3_000_000_000)
    ranks = [held(forward=sure, backward=sure), held(forward=between, backward=sure)]
    assert rate_values(replace(document, memory=Memory(4_000_000_000, ranks))) == {
        "peak_gb": 4.0,
        "peak_bytes": 4e9,
        "phase_gb.backward": 2.0,
    }


def test_uneven_experts_by_their_worst_rank_and_a_step(document):
    loads = [ExpertLoad(rank, None, 1, None, load, 0, None) for rank, load in enumerate((1.6, 0.8))]
    uneven = rates(experts=loads, expert_cost=ExpertCost(1, None, 0, 4_000_000))
    assert rate_values(replace(document, rates=uneven)) == {
        "expert_over_mean": 1.6,
        "expert_cost_ms": 2.0,
    }


def test_an_analysis_without_them_has_none(document):
    assert rate_values(document) == {}


def test_every_name_is_a_metric_known_once_a_run():
    names = ("tflop_s.total", "tflop_s.wgrad", "utilisation", "bus_gb_s.dp_comm", "copy_gb_s.onload", "peak_gb",
             "phase_gb.optimizer", "expert_over_mean", "expert_cost_ms")  # fmt: skip
    for name in names:
        assert resolve(name).family.once_a_run
        assert not FAMILY_BY_NAME[name.split(".", maxsplit=1)[0]].default
