"""Memory of recorded runs, held against what the programs that recorded them asked the allocator while they ran.

``truth_rankN.json`` has the peaks of each step (``torch.cuda.memory_stats``), the allocated bytes
around each cell, and kind and address of every tensor of the model when the snapshot was written.
"""

from __future__ import annotations

import gzip
import json
import pickle
from functools import cache
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest

from tests.kept import analysis_of

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parent.parent / "data/memory"
SAMPLE = Path(__file__).parent.parent.parent / "sample_traces/memory-snapshot"
MIB = 1 << 20
TRUE_KINDS = {"weight": "weights", "gradient": "gradients", "optimizer_state": "optimizer_state"}


@cache
def truth(run, rank):
    return json.loads(gzip.decompress((FOLDER / run / f"truth_rank{rank}.json.gz").read_bytes()))


def memory_of(run):
    return analysis_of(FOLDER / run).memory.ranks


def measured_of(run, rank):
    """The tables behind what fills a rank's memory."""
    return analysis_of(FOLDER / run).allocations.contents[rank.rank]


def block_bytes(size):
    """What a tensor takes: blocks are multiples of 512 bytes."""
    return -(-size // 512) * 512


def true_bytes(run, rank, kind):
    return sum(
        block_bytes(row["bytes"]) for row in truth(run, rank)["tensors"] if row["kind"] == kind
    )


def bytes_by_category(contents):
    table = contents.contents.group_by("category").agg(pl.sum("bytes"))
    return dict(zip(table["category"].to_list(), table["bytes"].to_list(), strict=True))


@pytest.mark.parametrize(
    ("run", "steps"), [("zbv", [3]), ("leak", [2, 3, 4, 5]), ("fsdp", [3, 4, 5])]
)
def test_peaks_are_the_allocators_own(run, steps):
    for rank in memory_of(run):
        counted = [truth(run, rank.rank)["steps"][step] for step in steps]
        assert rank.peak_bytes == max(step["allocated_peak"] for step in counted)
        contents = measured_of(run, rank)
        assert contents.figures.source == "snapshot"
        assert contents.figures.peak.bytes == rank.peak_bytes == contents.contents["bytes"].sum()
        assert contents.figures.end_difference_bytes == 0


@pytest.mark.parametrize("run", ["zbv", "leak"])
def test_weights_and_optimizer_state_are_the_models_own(run):
    for rank in memory_of(run):
        category_bytes = bytes_by_category(measured_of(run, rank))
        assert category_bytes["weights"] == true_bytes(run, rank.rank, "weight")
        # AdamW's step counts are on the host.
        assert category_bytes["optimizer_state"] == true_bytes(run, rank.rank, "optimizer_state")
        # At the peak of a pipeline its gradients are there, and messages with gradients of other
        # micro-batches.
        gradients = true_bytes(run, rank.rank, "gradient")
        assert gradients <= category_bytes["gradients"] <= 1.35 * gradients


def test_what_was_there_before_the_history_began_is_not_guessed():
    for rank in memory_of("fsdp"):
        category_bytes = bytes_by_category(measured_of("fsdp", rank))
        kept = sum(
            true_bytes("fsdp", rank.rank, kind) for kind in ("weight", "optimizer_state", "input")
        )
        workspaces = 2 * 32 * MIB  # of cuBLAS, one per thread
        assert category_bytes["before_recording"] == kept + workspaces
        assert "weights" not in category_bytes
        # One layer's weights are gathered for its backward; another's are on their way.
        assert category_bytes["communication"] >= 2 * 24 * MIB
        assert category_bytes["activations"] > 300 * MIB


def test_activations_in_flight_are_what_zbv_asks_for():
    """Counted around each cell by the program: a forward leaves about 64 MiB, and eight are there at most."""
    for rank in memory_of("zbv"):
        cells = [row for row in truth("zbv", rank.rank)["cells"] if row["step"] == 3]
        grown = [row["after"] - row["before"] for row in cells if row["op"] == "forward_one_chunk"]
        activations = measured_of("zbv", rank).activations
        assert len(activations) == len(grown) == 16
        for measured, counted in zip(activations["bytes"].to_list(), grown, strict=True):
            assert abs(measured - counted) <= 6 * MIB  # messages and losses are not activations
        in_memory = most = 0
        for row in cells:
            in_memory += row["op"] == "forward_one_chunk"
            in_memory -= row["op"] == "backward_weight_one_chunk" or (
                row["op"] == "backward_one_chunk" and row["full"]
            )
            most = max(most, in_memory)
        assert measured_of("zbv", rank).figures.in_flight == rank.ideal_chunks == most == 8


def test_the_peak_is_in_the_cell_that_the_program_was_in():
    names = {"forward_one_chunk": "F", "backward_one_chunk": "BI", "backward_weight_one_chunk": "W"}
    for run in ("zbv", "leak"):
        for rank in memory_of(run):
            peak = measured_of(run, rank).figures.peak
            inside = [
                row
                for row in truth(run, rank.rank)["cells"]
                if row["start_ns"] <= peak.at_ns <= row["end_ns"]
            ]
            assert [row["step"] for row in inside] == [peak.step]
            assert peak.op in names[inside[0]["op"]]
            shown = rank.contents.peak
            assert (shown.stage, shown.microbatch) == (inside[0]["stage"], inside[0]["microbatch"])


def test_activations_at_the_peak_are_named_by_stage_and_micro_batch():
    """Those whose forward ended before the peak, and whose backward, with its weight gradients, did not."""
    for rank in memory_of("zbv"):
        at_ns = rank.contents.peak.at_ns
        cells = [row for row in truth("zbv", rank.rank)["cells"] if row["step"] == 3]
        cell_key = lambda row: (row["stage"], row["microbatch"])  # noqa: E731
        begun = {
            cell_key(row)
            for row in cells
            if row["op"] == "forward_one_chunk" and row["start_ns"] < at_ns
        }
        ended = set()
        for row in cells:
            is_last = row["op"] == "backward_weight_one_chunk" or (
                row["op"] == "backward_one_chunk" and row["full"]
            )
            if is_last and row["end_ns"] < at_ns:
                ended.add(cell_key(row))
        shown = {(cell.stage, cell.microbatch): cell.bytes for cell in rank.contents.activations}
        # Outputs that the last stage keeps are 2 MiB.
        large = {key for key, size in shown.items() if size > 16 * MIB}
        assert large == begun - ended


def test_the_planted_leak_is_found_with_its_line_and_micro_batch():
    first, second = memory_of("leak")
    assert measured_of("leak", first).leaks.is_empty()
    (leak,) = measured_of("leak", second).leaks.rows(named=True)
    kept = [row["bytes"] for row in truth("leak", 1)["tensors"] if row["kind"] == "leak"]
    # Six steps left one behind; the last two cannot tell yet.
    assert (leak["bytes_per_step"], len(leak["steps"])) == (kept[0], len(kept) - 2)
    lines = measured_of("leak", second).stacks.filter(pl.col("stack") == leak["stack"])
    assert lines["line"].item().startswith("model.py:")
    assert leak["module"] == "mlp"
    assert leak["phase"] == "forward"
    # The model keeps the third of every four calls, and the first call only infers shapes:
    # micro-batch 1.
    assert leak["pairs"] == [1]
    (shown,) = second.contents.leaks
    assert (shown.stage, shown.microbatches, shown.bytes_per_step) == (1, (1,), kept[0])
    assert shown.line.startswith("model.py:")
    first_bytes = [step.first_bytes for step in second.contents.steps]
    growth = [after - before for before, after in pairwise(first_bytes)][1:]
    assert growth[:5] == [kept[0]] * 5


def test_the_planted_fragmentation_is_found():
    """120 tensors of 5 MiB, three of four freed.

    Then 400 MiB asked for, with more than that free in pieces.
    """
    (rank,) = memory_of("fragmentation")
    fragmentation = measured_of("fragmentation", rank).figures.fragmentation
    assert fragmentation.largest_request_bytes == 400 * MIB
    assert fragmentation.largest_request_free_bytes >= 400 * MIB
    assert fragmentation.reserved_bytes == max(
        step["reserved_peak"] for step in truth("fragmentation", 0)["steps"]
    )
    planted = truth("fragmentation", 0)
    assert planted["reserved_after_large"] - planted["reserved_before_large"] == 400 * MIB
    assert fragmentation.fragmented_bytes > 0.2 * fragmentation.reserved_bytes
    assert fragmentation.largest_request_line.endswith(" fragment")


@pytest.mark.parametrize(("rank", "in_flight"), [(0, 4), (1, 3), (2, 2), (3, 1)])
def test_the_sample_holds_what_1f1b_asks_for(rank, in_flight):
    """Counted from the snapshot alone: bytes that forwards of recorded steps allocated, while they were allocated."""
    content = pickle.loads(gzip.decompress((SAMPLE / f"memory_rank{rank}.pickle.gz").read_bytes()))
    marks = {
        row["name"]: row["time_us"]
        for row in content["external_annotations"]
        if row["stage"] == "START"
    }
    living: dict[int, int] = {}
    most = 0
    for row in content["device_traces"][0]:
        names = [frame["name"] for frame in row.get("frames", [])]
        if marks["ProfilerStep#3"] <= row["time_us"] < marks["ProfilerStep#4"]:
            if row["action"] == "alloc" and "forward_one_chunk" in names:
                living[row["addr"]] = row["size"]
            elif row["action"] == "free_requested":
                living.pop(row["addr"], None)
        most = max(most, sum(living.values()))
    memory = analysis_of(SAMPLE).allocations
    shown = memory.figures.ranks[rank]
    assert (shown.contents.in_flight, shown.ideal_chunks) == (in_flight, in_flight)
    microbatch = memory.contents[rank].activations["bytes"].median()
    assert 64 * MIB <= microbatch <= 69 * MIB
    # What a forward frees again, and outputs that the last stage keeps, are a few MiB.
    assert abs(most - in_flight * microbatch) <= 20 * MIB


def test_the_sample_peaks_in_the_backward_that_the_trace_shows():
    """Counted without tracekit: at the time of most memory the trace's host is in operators of the backward."""
    for rank in analysis_of(SAMPLE).memory.ranks:
        content = pickle.loads(
            gzip.decompress((SAMPLE / f"memory_rank{rank.rank}.pickle.gz").read_bytes())
        )
        trace = json.loads(
            gzip.decompress((SAMPLE / f"rank{rank.rank}.pt.trace.json.gz").read_bytes())
        )
        base_us = trace["baseTimeNanoseconds"] / 1000
        marks = {
            row["name"]: row["time_us"]
            for row in content["external_annotations"]
            if row["stage"] == "START"
        }
        level = most = at_us = 0
        for row in content["device_traces"][0]:
            change = {"alloc": 1, "free_requested": -1}.get(row["action"], 0)
            level += change * row["size"]
            if level > most and marks["ProfilerStep#3"] <= row["time_us"] < marks["ProfilerStep#4"]:
                most, at_us = level, row["time_us"]
        around = []
        for event in trace["traceEvents"]:
            start_us = event.get("ts", 0) + base_us
            if event.get("cat") == "cpu_op" and start_us <= at_us <= start_us + event["dur"]:
                around.append(event["name"])
        assert any("Backward" in name for name in around)
        peak = rank.contents.peak
        assert (peak.phase, peak.op) == ("backward", "B")
        assert peak.requested_bytes == most
        assert abs(peak.at_ns / 1000 - at_us) < 130
