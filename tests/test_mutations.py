"""Hints removed one by one from good recordings: each figure stays right, becomes a bound that holds it, or is null."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from tests.mutate import MUTATIONS, answer
from tracekit.run.load import load

pytestmark = pytest.mark.slow

SAMPLES = Path(__file__).parent.parent / "sample_traces"
CORPUS = os.environ.get("TRACEKIT_CORPUS")
ALL = tuple(MUTATIONS)
OF_STEPS = (
    "gpu-only",
    "bare-kernels",
    "no-operators",
    "no-runtime",
    "lost",
    "cut-start",
    "cut-end",
    "no-marks",
)
"""Mutations by which steps are lost or no longer known."""
HARDEST = ("gpu-only", "bare-kernels", "renamed", "lost", "cut-end", "one-rank")
CAPTURES = {
    "1f1b": ALL,  # a pipeline
    "steps/a": OF_STEPS,  # one over several steps
    "recompute": ALL,  # one rank
    "reload": HARDEST,  # weight updates
    "frameworks/hf-ddp-ckpt": HARDEST,  # data parallelism
    "frameworks/titan-ac": HARDEST,  # another framework's pipeline
}
"""Good recordings, and what is taken from each."""
SAME_WORK = (
    "no-runtime",
    "no-marks",
    "shifted",
    "drifting",
    "gpu-only",
    "bare-kernels",
    "no-operators",
    "renamed",
)
"""Mutations that leave every GPU event where it is, up to the clock."""
LOUD = {
    "lost": {"gpu-events-lost", "recording-cut"},
    "cut-start": {"recording-cut", "gpu-events-lost"},
    "cut-end": {"recording-cut", "gpu-events-lost"},
}
CLOCK = 1e-4
"""A drifting clock stretches what it measures."""


@cache
def ranks_of(name):
    folder = SAMPLES / name
    if not folder.is_dir():
        if not CORPUS:
            pytest.skip("TRACEKIT_CORPUS is not set: this capture is not in the repository")
        folder = Path(CORPUS) / name
    return list(load(sorted(map(str, folder.glob("rank*.gz")))).parts)


@cache
def truth(name):
    return answer(ranks_of(name))


@pytest.fixture(
    scope="module", params=[(c, m) for c, some in CAPTURES.items() for m in some], ids="/".join
)
def pair(request):
    """The whole run's answer, and that of the run with something gone."""
    capture, mutation = request.param
    ranks = ranks_of(capture)
    return mutation, truth(capture), answer(MUTATIONS[mutation](ranks))


def near(value, wanted, share=CLOCK):
    return abs(value - wanted) <= share * max(abs(wanted), 1)


def test_each_figure_is_right_or_a_bound_or_null(pair):
    mutation, whole, left = pair
    for one in left.rank_results:
        check_budget(mutation, whole.rank(one.rank).whole, one.whole)
        check_bubble(mutation, whole.rank(one.rank).whole, one.whole)
    check_schedule(whole, left)
    if mutation in LOUD and events(left) < events(whole):
        assert {notice.code for notice in left.notices} & LOUD[mutation], "what is gone is said"


def events(found):
    """Events on the GPU; a lost memset leaves nothing by which it could be missed."""
    return sum(count for label, count in found.total.label_count.items() if label != "memory")


def check_budget(mutation, right, found):
    assert found.budget.conserved
    if mutation in SAME_WORK or mutation == "one-rank":
        assert near(found.budget.span_ns, right.budget.span_ns)
        assert found.idle_known
        assert near(found.budget.idle_ns, right.budget.idle_ns, 1e-3)
        assert found.budget.unrecorded_ns == 0
    if mutation == "lost" and found.idle_known:
        edges = abs(right.budget.span_ns - found.budget.span_ns)
        most = found.budget.idle_ns + found.budget.unrecorded_ns + edges
        assert found.budget.idle_ns <= right.budget.idle_ns + MEMSETS_NS <= most + 2 * MEMSETS_NS


MEMSETS_NS = 5_000
"""Memsets leave no trace when they are lost: their calls have no event of their own in older
profilers."""


def check_bubble(mutation, right, found):
    if found.bubble_fraction is None:
        return
    assert found.pipeline
    if mutation.startswith("cut"):
        return  # another window: the rank's own budget is what can be checked
    if found.lower_bound:
        assert found.bubble_fraction <= right.bubble_fraction + 1e-3
        assert found.bubble.wait_ns is None or found.budget.unrecorded_ns
    else:
        assert found.bubble_fraction == pytest.approx(right.bubble_fraction, abs=2e-3)


def check_schedule(whole, left):
    held = left.schedule
    if held is None:
        said = {notice.code for notice in left.notices}
        assert whole.schedule is None or said & WHY, f"a reason for no schedule, not {said}"
        return
    assert whole.schedule is not None
    names = {
        whole.schedule.name,
        *whole.schedule.head.match.ambiguous_with,
        *held.head.match.ambiguous_with,
    }
    assert held.name in names
    assert (held.pp, held.microbatches) == (whole.schedule.pp, whole.schedule.microbatches)
    assert held.head.ideal_ns <= 1.01 * held.head.measured_ns or held.gap_ns is None
    for ns in (held.gap_ns or {}).values():
        assert abs(ns) <= held.head.measured_ns
    assert abs((held.gap_ns or {}).get("unexplained", 0)) <= 0.1 * held.head.measured_ns


WHY = {
    "no-pipeline", "order-unknown", "schedule-doubtful", "step-cut", "forward-only", "ranks-unknown",
    "pipeline-size-unknown", "stages-unknown",
}  # fmt: skip
"""Warnings that say why there is no schedule."""
