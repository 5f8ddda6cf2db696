"""The budget of every capture is conserved: compute, exposed and idle time are its span, on every rank and step."""

from __future__ import annotations

import re

import polars as pl
import pytest

from tests.kept import analysis_of
from tests.reference import read
from tracekit.errors import InputError
from tracekit.intervals import union
from tracekit.run.analyze import analyze

pytestmark = pytest.mark.slow

GPU = ["kernel", "memcpy", "memset"]


def reference_span(path):
    events = read(path).filter(pl.col("kind").is_in(GPU))
    return int(events["end_ns"].max() - events["start_ns"].min())


SAMPLES = ["1f1b", "1f1b-noshapes", "interleaved", "dualpipe", "overlapped", "vpp-overlap", "reload", "reload-overlap",
           "recompute", "compile", "steps/a", "nsys-1f1b"]  # fmt: skip


@pytest.mark.parametrize("name", SAMPLES)
def test_the_budget_is_conserved_on_every_rank_and_step(run, name):
    analysis = run(name)
    assert analysis.ranks
    for one in analysis.ranks:
        for scope in (one.whole, *one.per_step):
            assert scope.budget.span_ns > 0
            assert scope.budget.conserved
            exposed = {label: ns for label, ns in scope.budget.exposed_ns.items() if ns}
            assert {
                label: sum(causes.values()) for label, causes in scope.because_ns.items()
            } == exposed
        assert sum(one.idle_causes.values()) == one.whole.budget.idle_ns
        assert [s.step for s in one.per_step] == list(one.steps) or one.steps == ()
    assert analysis.total.budget.conserved
    assert analysis.total.budget.span_ns == sum(one.whole.budget.span_ns for one in analysis.ranks)


def test_public_traces_conserve_too(corpus):
    for path in sorted(p for p in corpus.glob("*/*") if p.suffix in (".gz", ".sqlite")):
        try:
            analysis = analysis_of(path)
        except InputError as error:
            # A recording of the host alone, or a timeline that no profiler wrote.
            if not re.search("no GPU work was recorded|is a timeline of operations", error.message):
                raise
            continue
        for one in analysis.ranks:
            for scope in (one.whole, *one.per_step):
                assert scope.budget.conserved, path
                exposed = {label: ns for label, ns in scope.budget.exposed_ns.items() if ns}
                assert {
                    label: sum(causes.values()) for label, causes in scope.because_ns.items()
                } == exposed, path


def test_intervals_of_the_reference_reader_agree(samples):
    """An independent reader and a plain union give the same span and busy time."""
    path = samples / "1f1b" / "rank2.pt.trace.json.gz"
    events = read(path).filter(pl.col("kind").is_in(GPU))
    busy = union(events["start_ns"].to_numpy(), events["end_ns"].to_numpy()).total_ns
    one = analyze(path, schedule="none").rank(2).whole
    assert one.budget.span_ns == reference_span(path)
    assert one.budget.span_ns - one.budget.idle_ns == busy
