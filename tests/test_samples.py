"""Every sample analyses to its truth, is small, and holds nothing private."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import polars as pl
import pytest

from tests.kept import analysis_of, labelled_of
from tracekit.classify import classify
from tracekit.documents.coding import to_plain
from tracekit.run.load import load

pytestmark = pytest.mark.slow

SAMPLES = Path(__file__).parent.parent / "sample_traces"
GEMM = r"nvjet|gemm|cutlass"
FOLDERS = sorted(
    path.parent.relative_to(SAMPLES).as_posix() for path in SAMPLES.glob("**/truth.json")
)
PRIVATE = {
    "a home folder": (rb"/home/[A-Za-z]", rb"/Users/[A-Za-z]", rb"/root/"),
    "an environment variable": (
        rb"PATH=", rb"HOME=", rb"USER=", rb"NAME=", rb"TOKEN=", rb"SECRET=", rb"SSH_[A-Z]+=", rb"AWS_[A-Z_]+="
    ),
    "a host name": (rb"\.(?<=[a-z0-9-]\.)(?:internal|local|lan|corp|compute\.amazonaws\.com)\b",),
    "an address": (
        rb"10\.(?<!\w10\.)\d{1,3}\.\d{1,3}\b",
        rb"192\.168\.\d{1,3}\.\d{1,3}\b",
        rb"172\.(?<!\w172\.)(?:1[6-9]|2\d|3[01])\.\d{1,3}\.\d{1,3}\b",
    ),
    "a mail address": (rb"@(?<=[\w.+-]@)[\w-]+\.[a-z]{2,}",),
}  # fmt: skip
"""Patterns of what is private. Each begins with fixed characters, because a search for those is
quick."""


def truth(folder):
    return json.loads((SAMPLES / folder / "truth.json").read_text())


def analysis(folder):
    return analysis_of(SAMPLES / folder)


@cache
def labelled(folder):
    if "gemms" not in truth(folder):
        return classify(load(SAMPLES / folder, ranks=[0]).rank(0).events)
    return pl.concat([table for table, _ in labelled_of(SAMPLES / folder).values()])


def test_the_samples_are_small():
    size = sum(path.stat().st_size for path in SAMPLES.glob("**/*") if path.is_file())
    assert size < 31_000_000


def test_every_sample_is_described():
    text = (SAMPLES / "README.md").read_text()
    assert FOLDERS
    for folder in FOLDERS:
        assert f"`{folder}`" in text, folder


@pytest.mark.parametrize(
    "path", sorted(SAMPLES.glob("**/rank*")), ids=lambda p: p.relative_to(SAMPLES).as_posix()
)
def test_nothing_private_is_in_a_sample(path):
    files = [path] if path.is_file() else sorted(path.glob("*"))
    for file in files:
        raw = file.read_bytes()
        raw = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        for what, patterns in PRIVATE.items():
            for pattern in patterns:
                match = re.search(pattern, raw)
                assert match is None, f"{file.name}: {what}: {match and match[0]!r}"


@pytest.mark.parametrize(
    "folder", [f for f in FOLDERS if "gemms" in truth(f) or "rank0_counts" in truth(f)]
)
def test_gemms_are_told_apart_on_every_rank(folder):
    expected = truth(folder)
    wanted = expected.get("gemms") or {
        k: v for k, v in expected["rank0_counts"].items() if k in ("forward", "dgrad", "wgrad")
    }
    gemms = labelled(folder).filter(
        (pl.col("kind") == "kernel") & pl.col("name").cast(pl.String).str.contains(GEMM)
    )
    ranks = gemms["rank"].unique().sort().to_list() if "gemms" in expected else [0]
    assert ranks == (list(range(expected.get("world_size", 1))) if "gemms" in expected else [0])
    for rank in ranks:
        counts = dict(gemms.filter(pl.col("rank") == rank).group_by("label").len().iter_rows())
        assert counts == wanted, rank


@pytest.mark.parametrize("folder", [f for f in FOLDERS if "orders" in truth(f)])
def test_the_schedule_and_every_order_come_back(folder):
    expected, held = truth(folder), analysis(folder).comparison
    assert held is not None
    document = to_plain(held.to_document())
    assert (document["name"], document["pp"], document["microbatches"]) == (
        expected["schedule"],
        expected["pp"],
        expected["microbatches"],
    )
    assert document["exact"], document["differences"]
    # Its F and B ran one after the other here; the notice says so.
    if expected["schedule"] != "dualpipe":
        assert [halves(order) for order in document["ranks"]] == [
            halves(order) for order in expected["orders"]
        ]


def halves(order):
    """An overlapped pair and the same two ops one after the other are the same order."""
    return [op for item in order for op in item.strip("()").split(";")]


def test_the_recorded_overlap_shows_its_lanes():
    expected = truth("vpp-overlap")["rank0_counts"]
    rows = labelled("vpp-overlap").filter(pl.col("rank") == 0)
    counts = dict(
        rows.filter(pl.col("label").is_in(["ep_dispatch", "ep_combine"]))
        .group_by("label", "pass")
        .len()
        .select(pl.concat_str("label", "pass", separator=" "), "len")
        .iter_rows()
    )
    assert counts == {
        "ep_dispatch forward": expected["dispatch_forward"],
        "ep_dispatch backward": expected["dispatch_backward"],
        "ep_combine forward": expected["combine_forward"],
        "ep_combine backward": expected["combine_backward"],
    }
    copies = dict(
        rows.filter(pl.col("label").is_in(["offload", "onload"]))
        .group_by("label")
        .len()
        .iter_rows()
    )
    assert copies == {"offload": expected["offload"], "onload": expected["onload"]}
    phases = set(analysis("vpp-overlap").comparison.lanes["phase"].cast(pl.String))
    assert {"warm-up", "steady", "cool-down"} <= phases


@pytest.mark.parametrize("folder", ["reload", "reload-overlap"])
def test_the_weight_update_comes_back(folder):
    expected, reload = truth(folder), analysis(folder).reload
    assert reload is not None
    assert (reload.rounds, reload.buckets, list(reload.sources)) == (
        expected["rounds"],
        expected["buckets"],
        expected["sources"],
    )
    counts = expected.get("counts") or expected["counts_per_rank"]
    for one in analysis(folder).ranks:
        assert {label: one.whole.label_count.get(label) for label in counts} == counts


def test_products_cost_what_pytorchs_own_counter_says():
    expected, rates = truth("rates"), analysis("rates").rate_tables
    assert rates.total.flop == expected["steps"] * expected["flop_per_step"]
    by_op = {
        name: flop / expected["steps"]
        for name, flop in rates.by("op").select("op", "flop").iter_rows()
    }
    assert by_op["aten::mm"] == expected["flop_by_op"]["mm"]
    assert by_op["aten::cudnn_convolution"] == expected["flop_by_op"]["convolution"]
    assert by_op["aten::convolution_backward"] == expected["flop_by_op"]["convolution_backward"]


def test_the_odd_width_is_the_slowest_large_product():
    products = analysis("rates").rate_tables.products.filter(op="aten::mm")
    slowest = products.sort("share_of_peak").head(6)["shapes"].to_list()
    assert all("4093" in shapes for shapes in slowest)


def test_the_favoured_rank_receives_what_the_router_sent_it():
    expected, experts = truth("router"), analysis("router").rate_tables.experts
    received = {str(rank): count for rank, count in experts.select("rank", "received").iter_rows()}
    per_token = expected["steps"] * expected["bytes_per_token"]
    assert received == {
        rank: tokens * per_token for rank, tokens in expected["tokens_received_per_step"].items()
    }
    assert experts["rank"][0] == 0


def test_the_recorded_router_is_uneven_where_it_was_made_so():
    """Every second layer sends 55 % of all tokens to rank 0: 2.2 times the mean of four ranks."""
    rates = analysis("router").rate_tables
    first = rates.expert_layers.filter(pl.col("rank") == 0).sort(
        "expert_over_mean", descending=True
    )
    assert set(first["exchange"].head(2)) == {0, 2}
    assert first["received_over_mean"].round(1).head(2).to_list() == [2.2, 2.2]
    assert (first["expert_over_mean"].head(2) > 1.9).all()
    assert (first["expert_over_mean"].tail(2) < 1.1).all()
    even = rates.expert_layers.filter(pl.col("exchange").is_in([1, 3]))
    assert even["wait_ns"].sum() == 0 < rates.expert_cost.wait_ns


def test_the_slow_gpu_is_named_with_its_ratio():
    expected, first = truth("slow-ddp"), analysis("slow-ddp").to_document().stragglers[0]
    assert (first.rank, first.uncertain, first.kind, first.steps) == (
        expected["slow_rank"],
        False,
        "chronic",
        expected["steps"],
    )
    assert first.why[0].cause == "slow_gpu"
    assert first.why[0].evidence.ratio == pytest.approx(expected["slow_ratio"], rel=0.02)


def test_the_megatron_run_and_its_expert_exchanges_come_back():
    expected, document = truth("megatron-moe"), analysis("megatron-moe").to_document()
    schedule = document.schedule
    assert (
        schedule.name,
        schedule.pp,
        schedule.virtual,
        schedule.microbatches,
        schedule.exact,
    ) == (
        expected["schedule"],
        expected["pp"],
        expected["virtual"],
        expected["microbatches"],
        True,
    )
    layers_passed = expected["virtual"] * expected["layers_per_chunk"] * expected["microbatches"]
    exchanges = expected["all_to_all_per_layer_and_microbatch"]
    for rank in document.ranks:  # the exchange of expert counts is part of the dispatch
        assert rank.label_count["ep_dispatch"] == (exchanges["ep_dispatch"] + 1) * layers_passed
        assert rank.label_count["ep_combine"] == exchanges["ep_combine"] * layers_passed


def test_the_commands_that_wheels_are_tested_with_succeed(tmp_path):
    project = SAMPLES.parent
    about = tomllib.loads((project / "pyproject.toml").read_text())
    commands = about["tool"]["cibuildwheel"]["test-command"]
    ours = [words for words in commands if words.startswith("tracekit ")]
    assert len(ours) >= 3
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for words in ours:
        done = subprocess.run(
            shlex.split(words.format(project=project)),
            cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
