"""Findings about memory: each from facts that can be counted by hand, and from recordings with planted causes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from tests.kept import analysis_of
from tracekit.documents.analysis import AllocatorMemory, Memory, MemoryLine
from tracekit.documents.memory import (
    MemoryContents,
    MemoryFragmentation,
    MemoryLeak,
    MemoryPeak,
    MemoryRemedy,
    ModuleMemory,
    OutOfMemory,
)
from tracekit.findings.collect import find
from tracekit.memory.findings import (
    MemoryFinding,
)

PEAK = 1_000_000


def the_contents(**changes):
    peak = MemoryPeak(PEAK, 5, PEAK, PEAK, PEAK, 3, "B", 1, 2, "backward", "aten::mm")
    contents = MemoryContents(
        source="snapshot",
        clock=None,
        peak=peak,
        by_category={"activations": 600_000, "weights": 400_000},
        activations=[],
        lines=[],
        modules=[],
        in_flight=4,
        ideal_in_flight=4,
        microbatch_bytes=(100_000, 110_000),
        outlived_bytes=0,
        leaks=[],
        fragmentation=None,
        steps=[],
        end_allocated_bytes=0,
        end_active_bytes=0,
        end_difference_bytes=0,
        failed_request_bytes=None,
    )
    return replace(contents, **changes)


def findings_with(*, capacity=10 * PEAK, reserved=PEAK, **changes):
    rank = AllocatorMemory(
        rank=1,
        device=0,
        capacity_bytes=capacity,
        peak_bytes=PEAK,
        reserved_bytes=reserved,
        first_bytes=0,
        by_phase={},
        base_bytes=None,
        chunk_bytes=None,
        chunks=None,
        ideal_chunks=4,
        line=MemoryLine([], [], []),
        contents=the_contents(**changes),
    )
    memory = Memory(PEAK, [rank])
    context = SimpleNamespace(analysis=SimpleNamespace(memory=memory))
    return [finding.to_document() for finding in MemoryFinding.find(context)]


def cases(**options):
    return [(finding.code, finding.case) for finding in findings_with(**options)]


def test_a_run_with_room_and_its_schedules_memory_has_no_finding():
    assert findings_with() == []


@pytest.mark.parametrize(("share", "is_found"), [(0.9, True), (0.81, False)])
def test_a_gpu_is_nearly_full_by_what_is_reserved(share, is_found):
    capacity = round(PEAK / share)
    assert cases(capacity=capacity) == [("memory_peak", "nearly_full")] * is_found
    assert cases(capacity=None) == []


def the_failure(**changes):
    failure = OutOfMemory(
        cause="activations",
        at_ns=9,
        failures=1,
        requested_bytes=777,
        needed_bytes=800,
        missing_bytes=700,
        line="model.py:25 forward",
        origin="forward",
        capacity_bytes=10 * PEAK,
        device_free_bytes=100,
        outside_bytes=50,
        reserved_bytes=PEAK,
        allocated_bytes=PEAK,
        pending_bytes=0,
        rounding_bytes=0,
        fragmented_bytes=0,
        largest_piece_bytes=0,
        cached_bytes=0,
        other_streams_bytes=0,
        private_pools_bytes=0,
        small_segments_bytes=0,
        leaked_bytes=0,
        by_category={"activations": 600_000, "weights": 400_000},
        lines=[],
        repeated=[],
        remedies=[
            MemoryRemedy("recompute", 500_000, True, "model.py forward"),
            MemoryRemedy("expandable_segments", 300, False, None),
        ],
    )
    return replace(failure, **changes)


def test_a_request_that_failed_stands_for_a_full_gpu():
    (finding,) = findings_with(capacity=PEAK, out_of_memory=the_failure())
    assert (finding.code, finding.cost_bytes) == ("out_of_memory", 777)
    assert finding.text == (
        "rank 1 ran out of memory: 777 bytes were asked for by the forward at model.py:25 forward while "
        "1.0 MB were in use and 100 bytes free; most of it activations (600.0 kB)"
    )
    assert finding.advice == (
        "recompute model.py forward (`torch.utils.checkpoint`): up to 500.0 kB; or set "
        "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`: up to 300 bytes, not enough alone"
    )


@pytest.mark.parametrize(
    ("cause", "words"),
    [
        ("limit", "a limit of this process or of the driver stopped it"),
        ("request", "more than this process could have had at all"),
        ("leak", "steps left 5.0 kB behind"),
        ("fragmentation", "4.0 kB were free, but in pieces of at most 1.0 kB"),
        ("other_pools", "3.0 kB were free, but belong to other streams or graphs"),
        ("other_processes", "other processes (and CUDA itself) hold 50 bytes of 10.0 MB"),
        ("optimizer_state", "most of it optimizer state (600.0 kB)"),
    ],
)
def test_each_cause_has_its_words(cause, words):
    failed = the_failure(
        cause=cause,
        leaked_bytes=5_000,
        fragmented_bytes=4_000,
        largest_piece_bytes=1_000,
        other_streams_bytes=2_000,
        private_pools_bytes=1_000,
    )
    (finding,) = findings_with(out_of_memory=failed)
    assert finding.text.endswith(words)


def test_more_micro_batches_in_flight_than_the_schedule_asks_for_are_a_finding():
    (finding,) = findings_with(in_flight=6)
    assert (finding.case, finding.cost_bytes) == ("above_schedule", 200_000)
    assert cases(in_flight=3) == []
    assert cases(in_flight=6, ideal_in_flight=None) == []


@pytest.mark.parametrize(("factor", "is_found"), [(1.01, True), (0.9, False)])
def test_activations_that_outlive_their_backward_are_a_finding(factor, is_found):
    outlived = round(factor * 0.05 * PEAK)
    assert cases(outlived_bytes=outlived) == [("memory_peak", "outlived")] * is_found


def the_leak(bytes_per_step):
    return MemoryLeak(
        "model.py:40 forward",
        "aten::linear",
        "mlp",
        "forward",
        1,
        (2,),
        4 * bytes_per_step,
        bytes_per_step,
        (0, 1),
    )


@pytest.mark.parametrize(("factor", "is_found"), [(1.01, True), (0.9, False)])
def test_a_leak_is_a_finding_if_it_grows_fast_enough(factor, is_found):
    leak = the_leak(round(factor * 0.001 * PEAK))
    assert cases(leaks=[leak]) == [("leak", "")] * is_found


def test_a_leak_names_its_place_and_when_the_gpu_is_full():
    (finding,) = findings_with(leaks=[the_leak(100_000)], outlived_bytes=PEAK)
    assert finding.cost_bytes == 100_000
    assert finding.evidence["steps_until_full"] == 90
    assert "model.py:40 forward" in finding.text
    assert "micro-batch 2 on stage 1" in finding.text
    assert finding.where[0].source == "model.py:40 forward"


def fragmented(size, *, forced=1):
    return MemoryFragmentation(5, PEAK, PEAK - size, 0, 0, size, forced, 20, 300, 400, "a.py:1 f")


@pytest.mark.parametrize(
    ("factor", "forced", "is_found"), [(1.01, 1, True), (0.9, 1, False), (1.01, 0, False)]
)
def test_fragmentation_is_a_finding_if_it_is_large_and_forced_a_segment(factor, forced, is_found):
    size = round(factor * 0.1 * PEAK)
    assert (
        cases(fragmentation=fragmented(size, forced=forced)) == [("fragmentation", "")] * is_found
    )


def test_the_advice_names_the_module_whose_recomputation_is_cheapest():
    cheap = ModuleMemory("norm", 50_000, 60_000, 1_000_000, 50_000.0, None, None)
    dear = ModuleMemory("mlp", 90_000, 90_000, 9_000_000, 10_000.0, None, None)
    (finding,) = findings_with(capacity=PEAK, modules=[dear, cheap])
    assert "recompute norm" in finding.advice


@pytest.mark.slow
@pytest.mark.parametrize(
    ("run", "expected"),
    [
        ("leak", [("leak", (1,))]),
        ("fragmentation", [("fragmentation", (0,))]),
        ("zbv", []),
        ("fsdp", []),
    ],
)
def test_recordings_have_the_findings_that_were_planted(snapshots, run, expected):
    findings = find(analysis_of(snapshots / run))
    assert [(finding.code, finding.ranks) for finding in findings if finding.cost_bytes] == expected
