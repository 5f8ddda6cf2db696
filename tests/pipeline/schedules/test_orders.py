"""Orders and times against the reference data."""

from __future__ import annotations

import pytest

from tracekit.pipeline.schedules import Times, generate, simulate

pytestmark = pytest.mark.slow


def make(case, times=None):
    sizes = {key: case[key] for key in ("pp", "microbatches", "virtual")}
    return generate(case["schedule"], **sizes, group=case.get("group"), times=times)


def test_order_is_the_published_one(exact_case):
    assert [" ".join(rank) for rank in make(exact_case).orders()] == exact_case["ranks"]


def test_times_are_the_published_ones(timed_case):
    wanted = timed_case["simulated"]
    done = simulate(make(timed_case), Times(**wanted["durations"]))
    assert done.makespan == wanted["makespan"]
    assert done.bubble == wanted["bubble_per_rank"]
    assert done.bubble_fraction == pytest.approx(wanted["bubble_fraction"], abs=1e-12)
    assert done.peak_activations == wanted["peak_act_chunks"]
    assert max(done.span) == wanted["longest_stage_span"]
    inner = [span - busy for span, busy in zip(done.span, done.busy, strict=True)]
    assert inner == wanted["inner_bubble_per_rank"]
    cells = [tuple(cell) for rank in wanted["start_end"] for cell in rank]
    assert list(zip(done.start.tolist(), done.end.tolist(), strict=True)) == cells


def test_searched_orders_are_no_worse(searched_case):
    wanted = searched_case["simulated"]
    times = Times(**wanted["durations"])
    done = simulate(make(searched_case, times), times)
    assert done.makespan <= wanted["makespan"] + 1e-9
    assert max(done.span) <= wanted["longest_stage_time"] + 1e-9
    assert all(
        mine <= theirs
        for mine, theirs in zip(done.peak_activations, wanted["peak_act_chunks"], strict=True)
    )


@pytest.mark.parametrize(
    ("name", "rate"),
    [("1f1b", 0.2431), ("zb-h1", 0.1585), ("zb-h2", 0.1083), ("zb-1p", 0.1585), ("zb-2p", 0.0433)],
)
def test_the_zero_bubble_papers_rates(name, rate):
    times = Times(F=18.522, I=18.086, W=9.337, P2P=0.601)
    done = simulate(generate(name, pp=8, microbatches=24, times=times), times)
    assert round(done.bubble_rate_zb, 4) == rate


def test_dualpipe_as_published():
    done = simulate(generate("dualpipe", pp=8, microbatches=20), Times(F=1, I=1, W=1, B=2, FB=3))
    assert done.makespan == 66
    assert done.bubble == [6] * 8
    first = [int(done.start[done.schedule.table.offsets[r]]) for r in range(8)]
    assert first == [0, 1, 2, 3, 3, 2, 1, 0]
    rank0 = """F0 F1 F2 F3 F4 F5 F6 F0′ I0′ W0′ F1′ I1′ W1′ F2′ I2′ W2′ F3′ F7&B3′ F4′&B0 F8&B4′ F5′&B1 F9&B5′ F6′&B2
    B6′ F7′&B3 B7′ F8′&B4 B8′ F9′&B5 B9′ I6 W6 I7 W7 I8 W8 I9 W9"""
    assert [primed(op) for op in done.schedule.ranks[0]] == rank0.split()


def primed(op):
    """An op of DualPipe 8×20 as the figure names it: the other direction's micro-batches with a prime."""
    name = lambda kind, i: f"{kind}{i % 10}" + "′" * (i >= 10)  # noqa: E731
    if op.kind == "FB":
        return f"{name('F', op.microbatch)}&{name('B', op.b_microbatch)}"
    return name(op.kind, op.microbatch)


def test_kimi_k2s_figure():
    plan = generate("interleaved-overlap", pp=4, microbatches=8, virtual=2)
    warmups = [next(k for k, op in enumerate(rank) if op.kind == "FB") for rank in plan.ranks]
    assert warmups == [11, 9, 7, 5]
    assert " ".join(map(lettered, plan.ranks[0])) == (
        "F1a F2a F3a F4a F1b F2b F3b F4b F5a F6a F7a 8a/1b 5b/2b 6b/3b 7b/4b 8b/1a "
        "B2a B3a B4a B5b B6b B7b B8b B5a B6a B7a B8a"
    )
    assert " ".join(map(lettered, plan.ranks[3])) == (
        "F1a F2a F3a F4a F1b 2b/1b 3b/2b 4b/3b 5a/4b 6a/1a 7a/2a 8a/3a 5b/4a 6b/5b 7b/6b 8b/7b B8b B5a B6a B7a B8a"
    )


def lettered(op):
    """An op as Kimi K2's figure names it: micro-batches from 1, chunks as letters."""
    name = lambda stage, i: f"{i + 1}{'ab'[stage // 4]}"  # noqa: E731
    if op.kind == "FB":
        return f"{name(op.stage, op.microbatch)}/{name(op.b_stage, op.b_microbatch)}"
    return op.kind + name(op.stage, op.microbatch)
