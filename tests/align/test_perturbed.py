"""Recordings with small damage: what is said about waits stays, with the hole named."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from tests.mutate import answer
from tests.perturbations import (
    communication_kernels,
    drop_args,
    enter_step_earlier,
    move_clock,
    read_run,
    remove_kernel,
    stretch_clock,
)
from tests.removals import Statements, choose_kernels, find_changes, time_in_operation

pytestmark = pytest.mark.slow

MS = 1_000_000
SAMPLES = Path(__file__).parent.parent.parent / "sample_traces"
CORPUS = Path(os.environ.get("TRACEKIT_CORPUS", "nowhere"))
RUNS = [
    pytest.param(SAMPLES / "overlapped", marks=pytest.mark.nightly),
    pytest.param(SAMPLES / "1f1b", marks=pytest.mark.nightly),
    SAMPLES / "steps/straggler",
    *(CORPUS / "frameworks" / name for name in ("once-ddp", "titan-fsdp", "ds-pipe")),
    CORPUS / "checked/meg-1f1b",
]


def spread_kernels(folder, ranks, count):
    """Return *count* kernels of a recording; of the one that is tried with every change, one."""
    return choose_kernels(ranks, 1 if folder.name == "straggler" else count)


@cache
def recorded(folder):
    if not folder.is_dir():
        pytest.skip("TRACEKIT_CORPUS is not set: the captures are not in this repository")
    return read_run(folder)


@cache
def complete(folder):
    return answer(recorded(folder))


@cache
def statements(folder):
    return Statements.of(complete(folder))


@pytest.mark.parametrize("folder", RUNS, ids=lambda path: path.name)
def test_without_one_kernel_all_other_waits_stay(folder):
    ranks = recorded(folder)
    for kernel in spread_kernels(folder, ranks, 3):
        analysis = answer(remove_kernel(ranks, kernel))
        explained_ns = time_in_operation(complete(folder), kernel)
        assert find_changes(statements(folder), Statements.of(analysis), explained_ns) == []
        named = [
            notice
            for notice in analysis.notices
            if notice.code in ("uneven-operations", "uneven-operations")
        ]
        assert any(kernel.rank in notice.ranks for notice in named)


@pytest.mark.parametrize("folder", RUNS, ids=lambda path: path.name)
def test_a_kernel_without_args_is_still_matched(folder):
    """What the host recorded tells which operation it was."""
    ranks = recorded(folder)
    for kernel in spread_kernels(folder, ranks, 2):
        after = Statements.of(answer(drop_args(ranks, kernel)))
        assert find_changes(statements(folder), after, {}) == []


@pytest.mark.parametrize("folder", RUNS, ids=lambda path: path.name)
@pytest.mark.parametrize("offset_ms", [2, -30])
def test_a_moved_clock_moves_back_or_its_uncertainty_covers_it(folder, offset_ms):
    ranks = recorded(folder)
    moved = ranks[-1].source.rank
    analysis = answer(move_clock(ranks, moved, offset_ms * MS))
    clock = analysis.clocks.table.filter(rank=moved).row(0, named=True)
    assert abs(clock["offset_ns"] - offset_ms * MS) <= clock["uncertainty_ns"]
    before, after = statements(folder), Statements.of(analysis)
    measured_waits = {key for key, ns in before.wait_ns.items() if ns is not None}
    assert {key for key, ns in after.wait_ns.items() if ns is not None} >= measured_waits


@pytest.mark.parametrize("folder", RUNS, ids=lambda path: path.name)
def test_a_clock_that_runs_fast_by_less_than_a_millisecond_changes_little(folder):
    """Ten parts in a million over a recording of a few seconds: no line disappears, and no wait becomes unknown."""
    ranks = recorded(folder)
    before = statements(folder)
    after = Statements.of(answer(stretch_clock(ranks, ranks[-1].source.rank, 1e-5)))
    assert [
        key
        for key, ns in after.wait_ns.items()
        if ns is None and before.wait_ns.get(key) is not None
    ] == []


@pytest.mark.parametrize(
    "folder", [SAMPLES / "overlapped", SAMPLES / "steps/straggler"], ids=lambda path: path.name
)
def test_a_rank_that_enters_a_step_earlier_waits_as_much_longer(folder):
    """The rank that arrives first at the first operation arrives still earlier: nobody waits for it."""
    ranks = recorded(folder)
    by_ns = 20 * MS
    first = min(
        (communication_kernels([rank])[0] for rank in ranks), key=lambda kernel: kernel.start_ns
    )
    rank = first.rank
    before = statements(folder)
    after = Statements.of(answer(enter_step_earlier(ranks, rank, by_ns)))
    grown_ns = after.wait_ns[rank, first.label] - before.wait_ns[rank, first.label]
    assert grown_ns == pytest.approx(by_ns, rel=0.05)
    assert after.offsets_ns == before.offsets_ns
    others = [key for key in before.wait_ns if key[0] != rank]
    assert {key: after.wait_ns[key] for key in others} == {
        key: before.wait_ns[key] for key in others
    }
