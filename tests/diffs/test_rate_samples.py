"""Rates, copies and memory as metrics: ratios of sums, and nothing where an analysis has a null or a range."""

from __future__ import annotations

from tracekit.diffs.metrics import FAMILY_BY_NAME, resolve
from tracekit.diffs.run_samples import rate_samples


def moved(label, bus, ns):
    return {"label": label, "bus_gb_s": bus, "transfer_ns": ns}


def test_bandwidths_are_weighed_by_transfer_time():
    rows = [moved("dp_comm", 10.0, 100), moved("dp_comm", 40.0, 300), moved("ep_dispatch", None, 5)]
    assert rate_samples({"rates": {"communication": rows}}) == {"bus_gb_s.dp_comm": (32.5,)}


def test_copies_are_bytes_of_all_ranks_over_their_time():
    rows = [{"label": "offload", "bytes": 100, "ns": 10}, {"label": "offload", "bytes": 300, "ns": 10}]
    assert rate_samples({"copies": rows}) == {"copy_gb_s.offload": (20.0,)}
    assert rate_samples({"copies": [*rows, {"label": "offload", "bytes": None, "ns": 5}]}) == {}


def test_a_peak_that_is_a_range_is_no_sample():
    sure, range_ = {"at_least": 2e9, "at_most": 2e9}, {"at_least": 1e9, "at_most": 3e9}
    ranks = [{"by_phase": {"forward": sure, "backward": sure}}, {"by_phase": {"forward": range_, "backward": sure}}]
    assert rate_samples({"memory": {"peak_bytes": 4e9, "ranks": ranks}}) == {
        "peak_gb": (4.0,),
        "phase_gb.backward": (2.0,),
    }


def test_uneven_experts_by_their_worst_rank_and_a_step():
    rates = {"experts": [{"over_mean": 1.6}, {"over_mean": 0.8}], "expert_cost": {"step_ns": 4_000_000}}
    document = {"rates": rates, "ranks": [{"steps": [1, 2]}]}
    assert rate_samples(document) == {"expert_over_mean": (1.6,), "expert_cost_ms": (2.0,)}


def test_an_analysis_of_an_older_version_has_none():
    assert rate_samples({"rates": None, "ranks": []}) == {}


def test_every_name_is_a_metric_known_once_a_run():
    names = ("tflop_s.total", "tflop_s.wgrad", "utilisation", "bus_gb_s.dp_comm", "copy_gb_s.onload", "peak_gb",
             "phase_gb.optimizer", "expert_over_mean", "expert_cost_ms")  # fmt: skip
    for name in names:
        assert resolve(name).once_a_run
        assert not FAMILY_BY_NAME[name.split(".", maxsplit=1)[0]].default
