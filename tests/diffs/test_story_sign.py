"""The story of a diff has the sign of the step's change."""

from __future__ import annotations

from msgspec.structs import replace

from tests.kept import analysis_of
from tracekit.diffs.explanation import explain_change
from tracekit.diffs.run_samples import from_analysis


def run_with(samples, *, compute_ms, exposed_ms):
    """One step of `steps/a` on each rank with this compute and this exposed dp_comm, and nothing else."""
    run = from_analysis(analysis_of(samples / "steps/a").to_document(), name="x")

    def changed(figures):
        budget = replace(
            figures.budget,
            compute_ns=compute_ms * 10**6,
            exposed_ns={"dp_comm": exposed_ms * 10**6},
            idle=0,
        )
        span_ns = (compute_ms + exposed_ms) * 10**6
        labels = {"optimizer": compute_ms * 10**6, "dp_comm": exposed_ms * 10**6}
        return replace(figures, span_ns=span_ns, budget=budget, label_ns=labels)

    def changed_step(figures):
        step = changed(figures)
        return replace(step, time_ns=step.span_ns, time_budget=step.budget)

    ranks = [
        replace(changed(rank), per_step=tuple(map(changed_step, rank.per_step)))
        for rank in run.ranks
    ]
    return replace(run, ranks=ranks)


def test_a_shorter_step_is_not_explained_by_work_that_grew(samples):
    before = run_with(samples, compute_ms=10, exposed_ms=90)
    after = run_with(samples, compute_ms=15, exposed_ms=30)
    first = explain_change([before], [after])[0]
    assert "exposed dp_comm shrank by 60.0 ms" in first
    assert "grew" not in first
    assert "as long as before" not in first


def test_a_longer_step_is_explained_by_the_work_that_grew(samples):
    before = run_with(samples, compute_ms=10, exposed_ms=90)
    after = run_with(samples, compute_ms=40, exposed_ms=90)
    assert "optimizer grew by up to 30.0 ms" in explain_change([before], [after])[0]
