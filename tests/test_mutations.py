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
HARDEST = ("gpu-only", "bare-kernels", "renamed", "lost", "cut-end", "one-rank")
CAPTURES = {
    "steps/a": HARDEST,  # a pipeline over several steps
    "recompute": ALL,  # one rank
}
"""Good recordings, and what is taken from each."""
NIGHTLY_CAPTURES = {
    "steps/a": tuple(mutation for mutation in ALL if mutation not in HARDEST),
    "1f1b": ALL,  # a pipeline of four ranks
    "reload": HARDEST,  # weight updates
    "frameworks/hf-ddp-ckpt": HARDEST,  # data parallelism
    "frameworks/titan-ac": HARDEST,  # another framework's pipeline
}
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


def pairs(captures):
    return [(capture, mutation) for capture in captures for mutation in captures[capture]]


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


@pytest.mark.parametrize(
    ("capture", "mutation"),
    [
        *pairs(CAPTURES),
        *(pytest.param(*pair, marks=pytest.mark.nightly) for pair in pairs(NIGHTLY_CAPTURES)),
    ],
)
def test_each_figure_is_right_or_a_bound_or_null(capture, mutation):
    whole = truth(capture)
    left = answer(MUTATIONS[mutation](ranks_of(capture)))
    for result in left.ranks:
        check_budget(mutation, whole.rank(result.rank).whole, result.whole)
        check_bubble(mutation, whole.rank(result.rank).whole, result.whole)
    check_schedule(whole, left)
    if mutation in LOUD and events(left) < events(whole):
        assert {notice.code for notice in left.notices} & LOUD[mutation], "no notice of the loss"


def near(value, wanted, share=CLOCK):
    return abs(value - wanted) <= share * max(abs(wanted), 1)


def events(analysis):
    """Events on the GPU; a lost memset leaves nothing by which it could be missed."""
    return sum(count for label, count in analysis.total.label_count.items() if label != "memory")


def check_budget(mutation, right, actual):
    assert actual.budget.conserved
    if mutation in SAME_WORK or mutation == "one-rank":
        assert near(actual.budget.span_ns, right.budget.span_ns)
        assert actual.idle_known
        assert near(actual.budget.idle_ns, right.budget.idle_ns, 1e-3)
        assert actual.budget.unrecorded_ns == 0
    if mutation == "lost" and actual.idle_known:
        edges = abs(right.budget.span_ns - actual.budget.span_ns)
        most = actual.budget.idle_ns + actual.budget.unrecorded_ns + edges
        assert actual.budget.idle_ns <= right.budget.idle_ns + MEMSETS_NS <= most + 2 * MEMSETS_NS


MEMSETS_NS = 5_000
"""Memsets leave no trace when they are lost: their calls have no event of their own in older
profilers."""


def check_bubble(mutation, right, actual):
    if actual.bubble_fraction is None:
        return
    assert actual.pipeline
    if mutation.startswith("cut"):
        return  # another window: the rank's own budget is what can be checked
    if actual.lower_bound:
        assert actual.bubble_fraction <= right.bubble_fraction + 1e-3
        assert actual.bubble.wait_ns is None or actual.budget.unrecorded_ns
    else:
        assert actual.bubble_fraction == pytest.approx(right.bubble_fraction, abs=2e-3)


def check_schedule(whole, left):
    held = left.comparison
    if held is None:
        codes = {notice.code for notice in left.notices}
        assert whole.schedule is None or codes & WHY, f"a reason for no schedule, not {codes}"
        return
    assert whole.schedule is not None
    names = {
        whole.schedule.name,
        *whole.comparison.head.match.ambiguous_with,
        *held.head.match.ambiguous_with,
    }
    assert held.name in names
    assert (held.pp, held.microbatches) == (whole.schedule.pp, whole.schedule.microbatches)
    assert held.head.ideal_ns <= 1.01 * held.head.measured_ns or held.gap_ns is None
    for ns in (held.gap_ns or {}).values():
        assert abs(ns) <= held.head.measured_ns
    assert abs((held.gap_ns or {}).get("unexplained", 0)) <= 0.1 * held.head.measured_ns


WHY = {
    "no-pipeline", "no-schedule", "partial-step", "stages-unknown",
}  # fmt: skip
"""Warnings that say why there is no schedule."""
