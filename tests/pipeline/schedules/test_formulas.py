"""Published bubbles, makespans and memory, at sizes the reference data does not have."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracekit.errors import DeadlockError
from tracekit.pipeline.schedules import Schedule, Times, generate, interleaved, simulate
from tracekit.pipeline.schedules.ops import overlapped

pytestmark = pytest.mark.slow

ranks = st.integers(1, 9)
rounds = st.integers(1, 5)
chunks = st.integers(1, 4)
whole = st.integers(1, 30)
quick = settings(max_examples=40, deadline=None)


def inner(done):
    """The longest rank's idle time between its first and last op: what the zero-bubble papers count."""
    return max(done.span) - done.busy[0]


@given(ranks, st.integers(1, 20), whole, whole)
@quick
def test_gpipe(p, m, f, b):
    done = simulate(generate("gpipe", pp=p, microbatches=m), Times(F=f, B=b))
    assert done.bubble == [(p - 1) * (f + b)] * p
    assert done.peak_activations == [m] * p


@given(ranks, st.integers(1, 20), whole, whole)
@quick
def test_1f1b(p, m, f, b):
    done = simulate(generate("1f1b", pp=p, microbatches=m), Times(F=f, B=b))
    assert done.peak_activations == [min(p - r, m) for r in range(p)]
    if m >= p:
        assert done.bubble == [(p - 1) * (f + b)] * p
        assert done.bubble_fraction == pytest.approx((p - 1) / (m + p - 1))


@given(ranks, rounds, chunks, whole, whole)
@quick
def test_interleaved(p, n, v, f, b):
    m = p * n
    done = simulate(generate("interleaved", pp=p, microbatches=m, virtual=v), Times(F=f, B=b))
    assert done.bubble == [(p - 1) * (f + b)] * p
    assert done.bubble_over_work == pytest.approx((p - 1) / (m * v))
    assert done.peak_activations == [
        min((v - 1) * p + 2 * (p - 1 - r) + 1, m * v) for r in range(p)
    ]


def test_interleaved_groups_as_megatron_tables_them():
    order = interleaved.chunk_order(5, 2, 3)
    assert "".join(str(i) for _, i in order) == "0120123434"
    assert "".join(str(chunk) for chunk, _ in order) == "0001110011"


@given(ranks, st.integers(2, 5), chunks, st.tuples(whole, whole), st.data())
@quick
def test_interleaved_with_overlap(p, n, v, times, data):
    f, b = times
    fb = data.draw(st.integers(max(f, b), f + b))
    m = p * n
    done = simulate(
        generate("interleaved-overlap", pp=p, microbatches=m, virtual=v), Times(F=f, B=b, FB=fb)
    )
    assert done.makespan == p * v * (f + b) + (m * v - (v - 1) * p - 1) * fb
    assert done.bubble == [(p - 1) * (f + b) - 2 * (p - 1 - r) * (f + b - fb) for r in range(p)]
    plain = simulate(generate("interleaved", pp=p, microbatches=m, virtual=v))
    assert done.peak_activations == [min(peak + 1, m * v) for peak in plain.peak_activations]


def paired(order):
    """Run each backward as one block with the forward right before it."""
    ops = []
    for op in order:
        if op.kind == "B" and ops and ops[-1].kind == "F":
            ops[-1] = overlapped(ops[-1], op)
        else:
            ops.append(op)
    return ops


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (4, 16, 1), (3, 6, 3)])
def test_pairing_without_the_extra_warmup_deadlocks(p, m, v):
    orders = [paired(order) for order in interleaved.interleaved(p, m, v, p)]
    with pytest.raises(DeadlockError, match="waits for") as caught:
        simulate(Schedule("no-extra", p, m, v, tuple(map(tuple, orders))))
    assert f"rank {p - 1} at (" in caught.value.message


@given(ranks, rounds, chunks, whole, whole)
@quick
def test_looped_bfs(p, n, v, f, b):
    m = p * n
    done = simulate(generate("looped-bfs", pp=p, microbatches=m, virtual=v), Times(F=f, B=b))
    assert done.bubble == [(p - 1) * (f + b)] * p
    assert done.peak_activations == [m * v] * p


@given(ranks, st.integers(2, 4), whole, st.data())
@quick
def test_zero_bubble_h1_and_h2(p, n, f, data):
    m = 2 * p * n
    w = data.draw(st.integers(1, f))
    h1, h2 = (
        simulate(generate(name, pp=p, microbatches=m), Times(F=f, I=f, W=w))
        for name in ("zb-h1", "zb-h2")
    )
    assert inner(h1) == (p - 1) * (f + f - w)
    assert inner(h2) == (p - 1) * (f + f - 2 * w)
    assert max(h1.peak_activations) == p
    assert max(h2.peak_activations) == 2 * p - 1


@given(ranks, st.integers(2, 4), chunks, whole, st.data())
@quick
def test_interleaved_zero_bubble(p, n, v, f, data):
    m = p * n
    w = data.draw(st.integers(1, f))
    done = simulate(
        generate("interleaved-zb", pp=p, microbatches=m, virtual=v), Times(F=f, I=f, W=w)
    )
    assert inner(done) == (p - 1) * (f + f - w)
    assert max(done.peak_activations) == p * v


@given(ranks, st.integers(0, 20), whole)
@quick
def test_zb_v_has_no_bubble_at_equal_times(p, extra, t):
    done = simulate(generate("zb-v", pp=p, microbatches=2 * p + extra), Times(F=t, I=t, W=t))
    assert done.bubble_rate_zb == pytest.approx(0)
    assert done.peak_activations == [2 * p] * p


@given(st.integers(2, 8), st.integers(2, 4))
@settings(max_examples=15, deadline=None)
def test_searched_schedules_at_unit_times(p, n):
    m = 2 * p * n
    h1, one, two = (
        simulate(generate(name, pp=p, microbatches=m)) for name in ("zb-h1", "zb-1p", "zb-2p")
    )
    assert max(one.span) == max(h1.span)
    assert two.bubble_rate_zb == pytest.approx(0)
    assert max(one.peak_activations) <= p
    assert max(two.peak_activations) <= 2 * p


@given(st.integers(1, 12), st.integers(1, 30))
@quick
def test_v_half_and_v_min_keep_to_their_memory(p, m):
    half, least = (simulate(generate(name, pp=p, microbatches=m)) for name in ("v-half", "v-min"))
    assert max(half.peak_activations) <= 2 * ((p + 2) // 2)
    assert max(least.peak_activations) <= 2 * ((p + 4) // 3)
    if m >= 2 * p:  # in steady state both are busy all the time: idle time does not grow with m
        more = simulate(generate("v-half", pp=p, microbatches=m + 7))
        assert more.makespan - half.makespan <= 7 * 6 + 2


@given(st.integers(1, 6), st.integers(1, 6), whole)
@quick
def test_chimera(half, units, t):
    p = 2 * half
    m = p * units
    done = simulate(generate("chimera", pp=p, microbatches=m), Times(F=t, B=t))
    assert done.bubble_fraction == pytest.approx((p - 2) / (2 * m + p - 2))
    assert done.peak_activations == [min(p // 2 + 1 + min(r, p - 1 - r), p) for r in range(p)]


@given(st.integers(1, 6), st.integers(0, 8), whole, st.data())
@quick
def test_dualpipe(half, extra, f, data):
    w = data.draw(st.integers(1, f))
    b = f + w
    fb = data.draw(st.integers(b, f + b))
    p, m = 2 * half, 4 * half + 2 * extra
    done = simulate(generate("dualpipe", pp=p, microbatches=m), Times(F=f, I=f, W=w, FB=fb))
    assert max(done.bubble) == (half - 1) * (fb + b - 3 * w)
    assert max(done.peak_activations) == p + 1


@given(st.integers(1, 6), st.integers(0, 8), whole, st.data())
@quick
def test_dualpipev(p, extra, f, data):
    w = data.draw(st.integers(1, f))
    b = f + w
    fb = data.draw(st.integers(b, f + b))
    done = simulate(
        generate("dualpipev", pp=p, microbatches=2 * p + extra), Times(F=f, I=f, W=w, FB=fb)
    )
    assert max(done.bubble) == (p - 1) * (fb + b - 3 * w)
    assert max(done.peak_activations) == min(2 * p + 1, 2 * (2 * p + extra))


def test_deepseeks_table():
    """Bubbles of DeepSeek-V3's comparison at F=2, B=4 (W=2, I=2) and FB=5, eight ranks."""
    times = Times(F=2, I=2, W=2, FB=5)
    p, m = 8, 24
    f, b, w, fb = 2, 4, 2, 5
    assert simulate(generate("1f1b", pp=p, microbatches=m), times).bubble[0] == (p - 1) * (f + b)
    assert inner(simulate(generate("zb-h1", pp=p, microbatches=m), times)) == (p - 1) * (
        f + b - 2 * w
    )
    dual = simulate(generate("dualpipe", pp=p, microbatches=m), times)
    assert max(dual.bubble) == (p // 2 - 1) * (fb + b - 3 * w)
