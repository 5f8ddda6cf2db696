"""Requests that failed, with planted causes: snapshots of a model of PyTorch's allocator, which counts for itself."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import polars as pl
import pytest

import tracekit
from tests.allocator_model import (
    MIB,
    Allocator,
    OutOfMemoryError,
    Training,
    frame,
    in_block,
)
from tests.memory_snapshots import write
from tracekit.memory.measures import out_of_memory
from tracekit.memory.measures.out_of_memory import find_recomputable

GB = 1000 * MIB
LOAD = [frame("load", "data.py", 9)]


def measured(gpu, tmp_path, **options):
    path = write(tmp_path / "memory.pickle", gpu.snapshot())
    return tracekit.memory(path, **options)


def failure(gpu, tmp_path, **options):
    document = measured(gpu, tmp_path, **options).to_document()
    return document.snapshots[0].contents.out_of_memory


def remedies(found):
    return {remedy.code: remedy for remedy in found.remedies}


def test_without_a_failed_request_there_is_none(tmp_path):
    gpu = Allocator(GB)
    assert not Training(gpu).run(3)
    assert failure(gpu, tmp_path) is None
    assert measured(gpu, tmp_path).findings == ()


def test_activations_that_do_not_fit_are_the_cause_and_their_module_is_named(tmp_path):
    gpu = Allocator(600 * MIB)
    assert Training(gpu, layers=12, weight=10 * MIB, activation=40 * MIB).run(1)
    found = failure(gpu, tmp_path)
    # 12 × 10 MiB of weights, then eight layers of 40 and 20 MiB fill the 600 MiB.
    assert found.by_category == {"activations": 480 * MIB, "weights": 120 * MIB}
    assert (found.cause, found.origin, found.line) == (
        "activations",
        "forward",
        "model.py:25 forward",
    )
    assert (found.requested_bytes, found.device_free_bytes) == (40 * MIB, 0)
    # Eight calls of the block left 480 MiB; recomputed, one of them at a time is needed.
    recompute = remedies(found)["recompute"]
    assert recompute.name == "model.py forward"
    assert recompute.bytes == 480 * MIB - 60 * MIB
    assert recompute.is_enough
    assert remedies(found)["offload_activations"].bytes == 480 * MIB
    assert remedies(found)["smaller_microbatch"].bytes == (480 + 40) // 2 * MIB


def test_a_leak_that_fills_the_gpu_is_the_cause(tmp_path):
    gpu = Allocator(GB)
    training = Training(gpu, layers=4, leak=30 * MIB)
    assert training.run(40)
    found = failure(gpu, tmp_path)
    leaked = sum(
        block.size for block in gpu.blocks if block.is_used and block.requested == 30 * MIB
    )
    assert found.cause == "leak"
    # The last step's cannot be told from what the step still needs.
    assert leaked - 60 * MIB <= found.leaked_bytes <= leaked
    assert found.remedies[0].code == "stop_leak"
    (finding,) = measured(gpu, tmp_path).findings
    assert (finding.code, finding.evidence["cause"]) == ("out_of_memory", "leak")
    assert "drop what every step leaves behind" in finding.advice


def test_free_memory_in_pieces_is_the_cause(tmp_path):
    gpu = Allocator(GB)
    large = gpu.alloc(800 * MIB, LOAD)
    gpu.free(large)
    pieces = [gpu.alloc(50 * MIB, LOAD) for _ in range(16)]  # all cut from the 800 MiB
    for piece in pieces[::2]:
        gpu.free(piece)
    with pytest.raises(OutOfMemoryError):
        gpu.alloc(300 * MIB, in_block(25))
    found = failure(gpu, tmp_path)
    assert found.cause == "fragmentation"
    assert (found.fragmented_bytes, found.largest_piece_bytes) == (400 * MIB, 50 * MIB)
    assert (found.reserved_bytes, found.allocated_bytes) == (800 * MIB, 400 * MIB)
    assert found.missing_bytes == 100 * MIB
    first = found.remedies[0]
    assert (first.code, first.bytes, first.is_enough) == ("expandable_segments", 400 * MIB, True)


def test_a_little_fragmentation_is_not_the_cause_even_where_it_would_have_been_enough(tmp_path):
    gpu = Allocator(GB)
    blocks = [gpu.alloc(90 * MIB, LOAD) for _ in range(10)]
    gpu.free(blocks.pop())
    gpu.alloc(40 * MIB, LOAD)  # leaves 50 of 90 MiB
    with pytest.raises(OutOfMemoryError):
        gpu.alloc(120 * MIB, LOAD)
    found = failure(gpu, tmp_path)
    assert (found.fragmented_bytes, found.missing_bytes) == (50 * MIB, 20 * MIB)
    assert found.cause == "program"
    assert remedies(found)["expandable_segments"].is_enough


def test_other_processes_are_told_where_the_gpus_memory_is_known(tmp_path):
    gpu = Allocator(GB, others=500 * MIB)
    assert Training(gpu, layers=6).run(3)
    found = failure(gpu, tmp_path, gpu_memory_gb=GB / 1e9)
    assert (found.cause, found.outside_bytes) == ("other_processes", 500 * MIB)
    assert found.remedies[0].code == "end_other_processes"
    unknown = failure(gpu, tmp_path)
    assert (unknown.outside_bytes, unknown.capacity_bytes) == (None, None)
    assert unknown.cause == "optimizer_state"


def test_a_limit_of_the_process_is_told_from_a_full_gpu(tmp_path):
    gpu = Allocator(GB, limit=500 * MIB)
    assert Training(gpu, layers=6).run(3)
    found = failure(gpu, tmp_path)
    card = Allocator(500 * MIB)
    assert Training(card, layers=6).run(3)
    full = failure(card, tmp_path)
    # The limit is taken for the card: the same cause and remedies, and to raise it comes last.
    assert (found.cause, found.by_category) == (full.cause, full.by_category)
    *others, last = found.remedies
    assert {remedy.code for remedy in others} == {remedy.code for remedy in full.remedies}
    assert last.code == "raise_limit"
    assert full.limit_bytes is None
    assert found.reserved_bytes <= found.limit_bytes < found.reserved_bytes + found.needed_bytes
    # Who knows the limit may say it.
    named = failure(gpu, tmp_path, gpu_memory_gb=500 * MIB / 1e9)
    assert named.limit_bytes == 500 * MIB
    assert named.missing_bytes == named.reserved_bytes + named.needed_bytes - 500 * MIB


LOSS = [frame("to_float", "loss.py", 4), frame("step", "train.py", 7)]
HEAD = [frame("forward", "head.py", 3), frame("step", "train.py", 7)]


def test_a_copy_in_a_wider_type_is_called_so(tmp_path):
    """Logits of 256 MiB in bfloat16 have room, their copy in float32 has none."""
    gpu = Allocator(GB)
    gpu.alloc(300 * MIB, LOAD)
    gpu.alloc(256 * MIB, HEAD)
    with pytest.raises(OutOfMemoryError):
        gpu.alloc(512 * MIB, LOSS)
    found = failure(gpu, tmp_path)
    assert found.cause == "float32_copy"
    assert (found.copied.bytes, found.copied.line) == (256 * MIB, "head.py:3 forward")
    assert found.remedies[0].code == "loss_in_pieces"
    (finding,) = measured(gpu, tmp_path).findings
    assert "float32 copy of 268.4 MB made at head.py:3 forward" in finding.text
    # A request of another size is none.
    gpu = Allocator(GB)
    gpu.alloc(300 * MIB, LOAD)
    gpu.alloc(256 * MIB, HEAD)
    with pytest.raises(OutOfMemoryError):
        gpu.alloc(600 * MIB, LOSS)
    assert failure(gpu, tmp_path).copied is None


def test_a_cache_that_grows_by_copying_is_one_and_activations_are_not(tmp_path):
    """Keys of four layers, each replaced in every step by one that is 8 MiB longer."""
    grow = [frame("update", "cache.py", 12), frame("forward", "model.py", 25)]
    gpu = Allocator(GB)
    cache = [gpu.alloc(8 * MIB, grow) for _ in range(4)]
    with contextlib.suppress(OutOfMemoryError):
        for length in range(2, 100):
            for layer in range(4):
                longer = gpu.alloc(8 * length * MIB, grow)
                gpu.free(cache[layer])
                cache[layer] = longer
    found = failure(gpu, tmp_path)
    assert set(found.by_category) == {"cache"}
    assert "preallocate" in {remedy.code for remedy in found.remedies}
    # Activations of longer and longer inputs go before the next ones are made.
    gpu = Allocator(GB)
    with contextlib.suppress(OutOfMemoryError):
        for length in range(1, 100):
            activations = [gpu.alloc(8 * length * MIB, grow) for _ in range(4)]
            for block in activations:
                gpu.free(block)
    assert "cache" not in failure(gpu, tmp_path).by_category


def test_what_one_line_left_behind_from_several_places_is_one_leak(tmp_path):
    """Each step keeps two blocks, made in two places below the loop."""
    gpu = Allocator(GB)
    training = Training(gpu, layers=4)
    loop = frame("main", "train.py", 3)

    def leave(_):
        gpu.alloc(4 * MIB, [frame("forward", "a.py", 1), loop])
        gpu.alloc(2 * MIB, [frame("loss", "b.py", 7), loop])

    for step in range(8):
        training.run(1)
        leave(step)
    contents = measured(gpu, tmp_path).to_document().snapshots[0].contents
    (leak,) = [leak for leak in contents.leaks if leak.places > 1]
    assert (leak.line, leak.places, leak.bytes_per_step) == ("train.py:3 main", 2, 6 * MIB)


def test_a_request_larger_than_the_gpu_is_its_own_cause(tmp_path):
    gpu = Allocator(GB)
    gpu.alloc(100 * MIB, LOAD)
    with pytest.raises(OutOfMemoryError):
        gpu.alloc(1200 * MIB, LOAD)
    found = failure(gpu, tmp_path)
    assert (found.cause, found.missing_bytes) == ("request", 300 * MIB)
    assert [remedy.code for remedy in found.remedies] == ["smaller_request"]


def test_free_memory_of_another_stream_is_no_fragmentation_of_the_own(tmp_path):
    gpu = Allocator(GB)
    kept = []
    for _ in range(8):
        block = gpu.alloc(100 * MIB, LOAD, stream=7)
        gpu.free(block)
        gpu.alloc(2 * MIB, LOAD, stream=7)  # keeps the segment
        kept.append(block)
    with pytest.raises(OutOfMemoryError):
        gpu.alloc(950 * MIB, LOAD)
    found = failure(gpu, tmp_path)
    assert found.fragmented_bytes == 0
    assert found.other_streams_bytes == found.reserved_bytes - found.allocated_bytes


def test_everything_reserved_is_accounted_for(tmp_path):
    gpu = Allocator(GB)
    assert Training(gpu, layers=10, activation=70 * MIB).run(2)
    found = failure(gpu, tmp_path)
    free = (
        found.fragmented_bytes
        + found.cached_bytes
        + found.other_streams_bytes
        + found.private_pools_bytes
        + found.small_segments_bytes
    )
    assert free + found.pending_bytes + found.allocated_bytes == found.reserved_bytes
    assert found.reserved_bytes == gpu.reserved
    assert sum(found.by_category.values()) == found.allocated_bytes


def test_what_happens_after_a_failed_request_does_not_change_it(tmp_path):
    """A program may catch the error, free all and write its snapshot afterwards."""
    gpu = Allocator(600 * MIB)
    assert Training(gpu, layers=12, weight=10 * MIB, activation=40 * MIB).run(1)
    before = failure(gpu, tmp_path)
    for block in [block for block in gpu.blocks if block.is_used]:
        gpu.free(block)
    gpu.alloc(550 * MIB, LOAD, stream=3)
    after = failure(gpu, tmp_path)
    assert after.by_category == before.by_category
    assert (after.reserved_bytes, after.fragmented_bytes) == (
        before.reserved_bytes,
        before.fragmented_bytes,
    )
    assert after.cause == before.cause


def test_the_recorded_failure_is_read(snapshots):
    """The program asked an H200 for 16 TiB inside a hook; 140.7 GB were free."""
    (only,) = tracekit.memory(snapshots / "oom").to_document().snapshots
    found = only.contents.out_of_memory
    assert (found.cause, found.requested_bytes) == ("request", 16 << 40)
    assert (found.device_free_bytes, found.line) == (140650151936, "alone.py:116 hook")


NOTHING = {
    "missing_bytes": 1_000,
    "needed_bytes": 5_000,
    "requested_bytes": 0,
    "origin": None,
    "by_category": {},
    "leaked_bytes": 0,
    "outside_bytes": None,
    "repeated": (),
    "fragmented_bytes": 0,
    "other_streams_bytes": 0,
    "private_pools_bytes": 0,
    "limit_bytes": None,
}


CONTENTS = pl.DataFrame(
    schema={"category": pl.String, "module": pl.String, "stack": pl.Int64, "bytes": pl.Int64}
)


def remedies_of(monkeypatch, *, cause="model", bucket_bytes=0, expandable=False, **failure):
    monkeypatch.setattr(out_of_memory, "find_bucket_bytes", lambda contents, stacks: bucket_bytes)
    failure = SimpleNamespace(**{**NOTHING, **failure})
    snapshot = SimpleNamespace(expandable=expandable, stacks=())
    found = out_of_memory.find_remedies(failure, cause, CONTENTS, snapshot)
    return [(each.code, each.bytes, each.is_enough, each.name) for each in found]


@pytest.mark.parametrize(
    ("failure", "remedies"),
    [
        # A tenth of the 1,000 missing bytes is worth a line, all of them are enough.
        ({"leaked_bytes": 100}, []),
        ({"leaked_bytes": 101}, [("stop_leak", 101, False, None)]),
        ({"leaked_bytes": 999}, [("stop_leak", 999, False, None)]),
        ({"leaked_bytes": 1_000}, [("stop_leak", 1_000, True, None)]),
        ({"leaked_bytes": 501, "missing_bytes": None}, [("stop_leak", 501, None, None)]),
        ({"leaked_bytes": 500, "missing_bytes": None}, []),
        ({"outside_bytes": 300}, [("end_other_processes", 300, False, None)]),
        (
            {"by_category": {"activations": 400}},
            [("smaller_microbatch", 200, False, None), ("offload_activations", 400, False, None)],
        ),
        ({"requested_bytes": 400, "origin": "forward"}, [("smaller_microbatch", 200, False, None)]),
        ({"requested_bytes": 400, "origin": "optimizer"}, []),
        ({"by_category": {"optimizer_state": 300}}, [("offload_optimizer", 300, False, None)]),
        ({"by_category": {"gradients": 300}, "bucket_bytes": 200}, [("share_gradient_buckets", 200, False, None)]),
        ({"by_category": {"gradients": 150}, "bucket_bytes": 200}, [("share_gradient_buckets", 150, False, None)]),
        ({"by_category": {"gradients": 150}, "origin": "forward"}, [("free_gradients", 150, False, None)]),
        ({"fragmented_bytes": 300}, [("expandable_segments", 300, False, None)]),
        ({"fragmented_bytes": 300, "expandable": True}, []),
        ({"other_streams_bytes": 60, "private_pools_bytes": 60}, [("fewer_pools", 120, False, None)]),
        (
            {"repeated": [SimpleNamespace(function=name, bytes=400, calls=4) for name in "abc"]},
            [("recompute", 300, False, "a"), ("recompute", 300, False, "b")],
        ),
        (
            {"limit_bytes": 1_000, "leaked_bytes": 900},
            [("raise_limit", None, None, None), ("stop_leak", 900, False, None)],
        ),
        ({"cause": "request", "leaked_bytes": 900}, [("smaller_request", 1_000, True, None)]),
    ],
)  # fmt: skip
def test_what_frees_a_tenth_of_what_was_missing_is_a_remedy(monkeypatch, failure, remedies):
    assert remedies_of(monkeypatch, **failure) == remedies


USED_UP = {
    "device_free_bytes": 0,
    "needed_bytes": 100,
    "missing_bytes": 100,
    "capacity_bytes": 10_000,
    "reserved_bytes": 1_000,
    "leaked_bytes": 0,
    "fragmented_bytes": 0,
    "other_streams_bytes": 0,
    "private_pools_bytes": 0,
    "outside_bytes": None,
    "by_category": {"weights": 600, "activations": 300},
    "limit_bytes": None,
    "copied": None,
}


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        ({}, "weights"),
        ({"by_category": {}}, "other"),
        ({"device_free_bytes": 100, "limit_bytes": 1_000}, "weights"),
        ({"device_free_bytes": 100, "limit_bytes": 1_000, "by_category": {}}, "limit"),
        ({"device_free_bytes": 99}, "weights"),
        ({"device_free_bytes": None}, "weights"),
        ({"needed_bytes": 10_001}, "request"),
        ({"needed_bytes": 10_000}, "weights"),
        # Without its size the GPU holds what is reserved and free.
        ({"needed_bytes": 1_051, "device_free_bytes": 50, "capacity_bytes": None}, "request"),
        ({"needed_bytes": 1_050, "device_free_bytes": 50, "capacity_bytes": None}, "weights"),
        ({"needed_bytes": 9_999, "device_free_bytes": None, "capacity_bytes": None}, "weights"),
        # What would have been enough, and is a tenth of what was reserved.
        ({"leaked_bytes": 100}, "leak"),
        ({"leaked_bytes": 99}, "weights"),
        ({"leaked_bytes": 99, "missing_bytes": 50}, "weights"),
        ({"leaked_bytes": 100, "missing_bytes": 101}, "weights"),
        ({"leaked_bytes": 100, "missing_bytes": None}, "leak"),
        ({"fragmented_bytes": 100}, "fragmentation"),
        ({"leaked_bytes": 100, "fragmented_bytes": 101}, "fragmentation"),
        ({"other_streams_bytes": 50, "private_pools_bytes": 50}, "other_pools"),
        ({"outside_bytes": 1_000}, "other_processes"),  # a tenth of the GPU
        ({"outside_bytes": 999}, "weights"),
    ],
)
def test_what_would_have_been_enough_is_the_cause(failure, cause):
    assert out_of_memory.find_cause(SimpleNamespace(**{**USED_UP, **failure})) == cause


def test_the_two_modules_with_most_activations_are_to_be_recomputed():
    rows = {"category": "activations", "module": ["a", "b", "c", None], "bytes": [1, 3, 2, 9]}
    assert find_recomputable(SimpleNamespace(repeated=()), pl.DataFrame(rows)) == [
        ("b", 3),
        ("c", 2),
    ]


def test_of_functions_that_are_repeated_the_first_two_are_to_be_recomputed():
    """Four calls of 100 bytes each: one of them is needed at a time."""
    repeated = [SimpleNamespace(function=name, bytes=400, calls=4) for name in "abc"]
    assert find_recomputable(SimpleNamespace(repeated=repeated), pl.DataFrame()) == [
        ("a", 300),
        ("b", 300),
    ]
