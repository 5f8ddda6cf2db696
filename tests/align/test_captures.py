"""Clocks and waits of real runs: all were recorded on one host, so that every offset is 0."""

from __future__ import annotations

import gzip
import json
import os
from functools import cache
from pathlib import Path

import polars as pl
import pytest

from tests.kept import labelled_of
from tracekit import analyze
from tracekit.align.clock_bounds import Compared
from tracekit.align.clocks import align
from tracekit.align.matching import match
from tracekit.classify import classify
from tracekit.classify.classify_events import classify_lost_kernels
from tracekit.metrics.label_intervals import Lanes
from tracekit.metrics.operations import operations
from tracekit.store.sources import find, read_ref

pytestmark = pytest.mark.slow

SAMPLES = Path(__file__).parent.parent.parent / "sample_traces"
CORPUS = Path(os.environ.get("TRACEKIT_CORPUS", "nowhere"))
SHIPPED = ["1f1b", "dualpipe", "interleaved", "overlapped", "reload", "reload-overlap", "steps/a", "steps/straggler",
           "vpp-overlap"]  # fmt: skip
CAPTURED = ["frameworks/ds-pipe", "frameworks/hf-ddp-ckpt", "frameworks/meg-moe-vpp", "frameworks/meg-recompute",
            "frameworks/nsys-meg-1f1b", "frameworks/nsys-meg-1f1b-payloads", "frameworks/titan-ac",
            "frameworks/titan-fsdp", "public/dlrm-8ranks"]  # fmt: skip
RUNS = [*(SAMPLES / name for name in SHIPPED), *(CORPUS / name for name in CAPTURED)]
SHIFT_NS = 3_000_000_000
DRIFT = 1e-5
ROUNDS, ROUND_NS = 32, 20_000_000_000
"""A capture is too short for a drift to show: it is repeated until it lasts ten minutes."""


@pytest.fixture(params=RUNS, ids=lambda path: f"{path.parent.name}/{path.name}")
def members(request):
    if not request.param.is_dir():
        pytest.skip("TRACEKIT_CORPUS is not set: the captures are not in this repository")
    return matched(request.param)


@cache
def matched(folder):
    return match(operations_of(folder)).members


def operations_of(folder):
    reports = sorted(folder.glob("rank*.sqlite"))  # a folder may hold their export to Parquet too
    ranks = [labelled_of(path) for path in reports or [folder]]
    tables = [
        operations(table, Lanes.of(table)) for by_rank in ranks for table, _ in by_rank.values()
    ]
    return pl.concat(tables).sort("rank", maintain_order=True)


def changed(table, rank, change):
    times = [
        pl.when(pl.col("rank") == rank).then(change(pl.col(c))).otherwise(c).alias(c)
        for c in ("start_ns", "end_ns")
    ]
    return table.with_columns(times)


def ranks_of(table):
    return table["rank"].unique().sort().to_list()


def fastest(table, rank):
    """The fastest transfer between *rank* and another, start of send to end of receive.

    No less than 0.1 ms.
    """
    compared = Compared.of(table)
    each = compared.table(*compared.pairs()).filter(
        (pl.col("low") == rank) | (pl.col("high") == rank)
    )
    least = [*each.filter("is_most")["most_ns"], *(-each.filter("is_least")["least_ns"])]
    durations = table.filter(pl.col("rank") == rank)["transfer_ns"]
    return max(min(least), 100_000) if least else durations.min()


def test_ranks_of_one_host_have_one_clock(members):
    clocks = align(members, ranks_of(members))
    assert set(clocks.table["offset_ns"]) == {0}
    assert set(clocks.table["drift_ppm"]) == {0.0}
    own = clocks.table["residual_ns"]
    assert own.min() <= clocks.residual_ns <= own.max() <= clocks.worst_ns


@pytest.mark.parametrize("shift_ms", [0.3, -1, 5, -3_000])
def test_a_shifted_clock_is_found_or_within_the_uncertainty(members, shift_ms):
    ranks, shift = ranks_of(members), round(shift_ms * 1e6)
    for rank in ranks[1:]:
        clocks = align(changed(members, rank, lambda time: time + shift), ranks)
        row = clocks.table.filter(rank=rank).row(0, named=True)
        assert (
            row["uncertainty_ns"] is None or abs(row["offset_ns"] - shift) <= row["uncertainty_ns"]
        )


def match_sets(operations):
    """The members of each match, as events of ranks; of a message with its direction."""
    members = (
        match(operations).members.group_by("match").agg(pl.struct("rank", "id", "sends", "peer"))
    )
    return {
        frozenset(tuple(member.values()) for member in match) for match in members["rank"].to_list()
    }


REMOVED = [(SAMPLES / "overlapped", True), (SAMPLES / "router", True), (SAMPLES / "1f1b", False),
           (SAMPLES / "steps/straggler", False),
           *((CORPUS / "frameworks" / name, True) for name in ("titan-fsdp", "once-ddp", "meg-recompute")),
           (CORPUS / "frameworks/ds-pipe", False)]  # fmt: skip


@pytest.mark.parametrize(
    ("folder", "is_clear"), REMOVED, ids=lambda value: getattr(value, "name", None)
)
def test_without_one_event_the_others_keep_their_partners_or_have_none(folder, is_clear):
    """Every 9th operation is removed in turn, also from the host's calls.

    Sizes and times tell which one is missing.
    """
    if not folder.is_dir():
        pytest.skip("TRACEKIT_CORPUS is not set: the captures are not in this repository")
    operations = operations_of(folder)
    complete = match_sets(operations)
    for row in range(0, len(operations), 9):
        event = operations.row(row, named=True)
        kept = {
            frozenset(m for m in match if m[:2] != (event["rank"], event["id"]))
            for match in complete
        }
        others = {match for match in kept if len({member[0] for member in match}) > 1}
        remaining = match_sets(operations.filter(pl.int_range(pl.len()) != row))
        if is_clear:
            assert remaining == others
        else:
            assert all(any(match <= true_match for true_match in others) for match in remaining)
            assert len(others - remaining) <= 4


LOST = [*(SAMPLES / name for name in ("1f1b", "steps/straggler", "reload", "router")),
        pytest.param(SAMPLES / "interleaved", marks=pytest.mark.nightly),
        *(CORPUS / "frameworks" / name for name in ("ds-pipe", "titan-ac", "cp-ring", "meg-recompute"))]  # fmt: skip


@pytest.mark.parametrize("folder", LOST, ids=lambda path: path.name)
def test_a_kernel_that_was_not_recorded_changes_no_other_match(folder):
    """Communication kernels are removed from the recording in turn.

    The host's calls say which operation they were.
    """
    if not folder.is_dir():
        pytest.skip("TRACEKIT_CORPUS is not set: the captures are not in this repository")
    events_of_rank = read_events(folder)
    operations_of_rank = all_operations(folder)
    everything = pl.concat(operations_of_rank.values())
    complete = match_sets(everything)
    for row in range(3, len(everything), len(everything) // 3):
        rank, event = everything.select("rank", "id").row(row)
        kept = {frozenset(m for m in match if m[:2] != (rank, event)) for match in complete}
        less = operations_with_lost(events_of_rank[rank].filter(pl.col("id") != event))
        remaining = match_sets(pl.concat((operations_of_rank | {rank: less}).values()))
        assert remaining == {match for match in kept if len({member[0] for member in match}) > 1}


@pytest.mark.parametrize("name", ["1f1b", "overlapped"])
def test_two_ranks_that_each_lack_another_kernel_keep_all_other_matches(name):
    events_of_rank = read_events(SAMPLES / name)
    operations_of_rank = all_operations(SAMPLES / name)
    complete = match_sets(pl.concat(operations_of_rank.values()))
    (first, *_), (*_, second) = (operations_of_rank[rank]["id"][2:9] for rank in (1, 2))
    removed = {1: first, 2: second}
    less = {
        rank: operations_with_lost(events_of_rank[rank].filter(pl.col("id") != event))
        for rank, event in removed.items()
    }
    kept = {frozenset(m for m in match if m[1] != removed.get(m[0])) for match in complete}
    remaining = match_sets(pl.concat((operations_of_rank | less).values()))
    assert remaining == {match for match in kept if len({member[0] for member in match}) > 1}


@cache
def read_events(folder):
    """Return the events of each rank of a run, by rank."""
    refs = find([str(folder)]).refs
    ranks = [rank for ref in refs for rank in read_ref(ref)]
    return {rank.source.rank: rank.events for rank in ranks}


@cache
def all_operations(folder):
    """Return the operations of each rank of a run, those that were not recorded included, by rank."""
    return {rank: operations_with_lost(events) for rank, events in read_events(folder).items()}


def operations_with_lost(events):
    tables = [classify(events), classify_lost_kernels(events)]
    return pl.concat([operations(table, Lanes.of(table)) for table in tables]).filter(
        pl.col("step").is_not_null()
    )


def kernels_in_steps(path):
    """Start, duration and group of the file's NCCL kernels that were launched within a step."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    steps = [
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if e.get("cat") == "user_annotation" and "Step#" in e["name"]
    ]
    launch = {
        e["args"].get("correlation"): e["ts"]
        for e in events
        if e.get("cat") in ("cuda_runtime", "cuda_driver")
    }
    for event in sorted(
        (e for e in events if e.get("cat") == "kernel" and "nccl" in e["name"]),
        key=lambda e: e["ts"],
    ):
        args = event["args"]
        launched = launch.get(args.get("correlation"), -1)
        if any(start <= launched <= end for start, end in steps):
            yield (
                event["ts"],
                event["dur"],
                (args.get("Collective name"), args.get("Process Group Name")),
            )


@pytest.mark.parametrize("name", ["titan-fsdp", "slow-ddp", "once-ddp", "varlen-ddp", "fp8-fsdp"])
def test_waits_are_those_of_arrival_times_in_the_file(name):
    """Arrivals from the raw JSON: the nth kernels of a group on all ranks are one operation."""
    if not (CORPUS / "frameworks" / name).is_dir():
        pytest.skip("TRACEKIT_CORPUS is not set: the captures are not in this repository")
    kernels: dict[tuple[str | None, str | None], dict[int, list[tuple[float, float]]]] = {}
    for rank, path in enumerate(sorted((CORPUS / "frameworks" / name).glob("*.gz"))):
        for start, duration, key in kernels_in_steps(path):
            kernels.setdefault(key, {}).setdefault(rank, []).append((start, duration))
    waited_us = 0.0
    for by_rank in kernels.values():
        for operation in zip(*by_rank.values(), strict=True):
            last = max(start for start, _ in operation)
            waited_us += sum(min(last - start, duration) for start, duration in operation)
    waits = analyze(CORPUS / "frameworks" / name, schedule="none").total.wait_ns
    assert sum(waits.values()) == pytest.approx(waited_us * 1e3, rel=0.05)


@pytest.mark.parametrize("shift", [SHIFT_NS, -SHIFT_NS])
def test_a_shifted_rank_is_found_to_within_the_fastest_transfer(members, shift):
    ranks = ranks_of(members)
    for rank in {ranks[1], ranks[len(ranks) // 2], ranks[-1]}:
        offset = align(changed(members, rank, lambda time: time + shift), ranks).offset_ns
        assert abs(offset[rank] - shift) <= fastest(members, rank)
        assert abs(offset[0]) == 0


def test_if_the_first_rank_is_shifted_all_others_are(members):
    ranks = ranks_of(members)
    offset = align(changed(members, ranks[0], lambda time: time + SHIFT_NS), ranks).offset_ns
    assert offset[ranks[0]] == 0
    assert {offset[rank] for rank in ranks[1:]} == {offset[ranks[1]]}
    assert abs(offset[ranks[1]] + SHIFT_NS) <= fastest(members, ranks[0])


def test_a_drifting_rank_is_found_to_within_the_fastest_transfer(members):
    count = members["match"].max() + 1
    longer = pl.concat(
        [
            members.with_columns(
                pl.col("match") + n * count, pl.col("start_ns", "end_ns") + n * ROUND_NS
            )
            for n in range(ROUNDS)
        ]
    )
    ranks, first = ranks_of(members), members["start_ns"].min()
    straight = align(longer, ranks).table
    assert (straight["offset_ns"].abs() <= straight["uncertainty_ns"]).all()
    rank = ranks[len(ranks) // 2]
    drifted = changed(
        longer, rank, lambda time: time + ((time - first) * DRIFT).round().cast(pl.Int64) + SHIFT_NS
    )
    back = align(drifted, ranks).align(drifted, "end_ns")
    off = (back["end_ns"] - longer["end_ns"]).filter(longer["rank"] == rank).abs().max()
    assert off <= fastest(members, rank)
