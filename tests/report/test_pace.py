"""Words about ranks: how alike their steps are, which is the slowest, and why one is late."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from tests.figures import with_figures
from tests.kept import analysis_of
from tracekit.analysis.result import RoleResults, Tables
from tracekit.documents.analysis import Budget, Straggler, WaitCause
from tracekit.documents.analysis import Evidence as WaitEvidence
from tracekit.report.pace import Pace
from tracekit.report.sections.stragglers import late_rank
from tracekit.report.step_words import unusual_steps

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small(samples):
    return replace(
        analysis_of(samples / "reload"), reload=None, role_results=RoleResults(), walked_path=None
    )


def run_of(small, *, ranks=1, steps=1, compute=600, exposed=None, labels=None, wait=None, late=()):
    """Every rank spans 1 ms per step, of which it computes so many µs, and is idle where nothing else is given."""
    one, exposed = small.ranks[0], exposed or {}
    idle = 1000 - compute - sum(exposed.values())

    def ns(by_label):
        return {label: us * 1000 * steps for label, us in by_label.items()}

    span, rest = 1_000_000 * steps, idle * 1000 * steps
    whole = with_figures(
        one,
        budget=Budget(
            span_ns=span, compute_ns=compute * 1000 * steps, exposed_ns=ns(exposed), idle=rest
        ),
        exposed_wait_ns=0,
        least_wait_ns=0,
        pipeline="pp_comm" in exposed,
        hidden_ns={},
        hidden_by_ns={},
        label_ns=ns(labels or exposed),
        label_count={},
        wait_ns=ns(wait or {}),
    )
    budget = Budget(
        span_ns=1_000_000,
        compute_ns=compute * 1000,
        exposed_ns={label: us * 1000 for label, us in exposed.items()},
        idle=idle * 1000,
    )
    first_step = with_figures(
        one.per_step[0],
        **{
            name: getattr(whole, name)
            for name in ("hidden_ns", "hidden_by_ns", "label_ns", "wait_ns")
        },
        budget=budget,
        pipeline=whole.pipeline,
    )
    each = tuple(
        structs.replace(
            first_step, step=step, partial=False, time_ns=budget.span_ns, time_budget=budget
        )
        for step in range(steps)
    )
    made = tuple(
        structs.replace(whole, rank=rank, steps=tuple(range(steps)), per_step=each, idle_causes={})
        for rank in range(ranks)
    )
    rows = tuple(sorted(late, key=lambda row: -row.caused_ns))
    stragglers = replace(small.waiting, rows=rows)
    tables = Tables.of({name: table for name, table in small.tables.items() if "host" not in name})
    tables = Tables.of(
        {**tables, **{name: small.tables[name].clear() for name in ("host_time", "host_places")}}
    )
    run = replace(small, ranks=made, waiting=stragglers, tables=tables)
    return replace(run, changed_steps=(), graph=None, rate_tables=None)


def slower(run, *, by, steps=None):
    """The same run, whose rank 1 takes so much longer, in all its steps or in some."""

    def longer(measured):
        span_ns = round(measured.budget.span_ns * (1 + by))
        budget = structs.replace(measured.budget, span_ns=span_ns)
        return structs.replace(
            with_figures(measured, budget=budget), time_ns=span_ns, time_budget=budget
        )

    one = run.ranks[1]
    each = tuple(
        longer(step) if steps is None or step.step in steps else step for step in one.per_step
    )
    whole = with_figures(
        one, budget=structs.replace(one.budget, span_ns=sum(step.budget.span_ns for step in each))
    )
    longer_rank = structs.replace(whole, per_step=each)
    return replace(run, ranks=(run.ranks[0], longer_rank, *run.ranks[2:]))


def test_ranks_that_tie_are_alike_and_steps_have_a_median(small):
    run = run_of(small, ranks=2, steps=3)
    assert Pace(run).compared() == "2 ranks alike, within 0.1 %"
    assert unusual_steps(run.step) == "median of 3 steps"


def test_a_rank_is_called_the_slowest_only_beyond_noise(small):
    run = run_of(small, ranks=3, steps=3)
    assert Pace(slower(run, by=0.009)).slowest is None
    assert Pace(slower(run, by=0.012)).slowest == 1
    compared = Pace(slower(run, by=0.012)).compared()
    assert compared.startswith("3 ranks, their median steps 1.00–1.01 ms, rank 1 the slowest")
    assert Pace(slower(run, by=0.5, steps=[0])).slowest is None  # one odd step makes no rank slow


def test_two_ranks_that_tie_for_the_slowest_are_not_one(small):
    run = slower(run_of(small, ranks=3), by=0.1)
    both = replace(
        run,
        ranks=(
            run.ranks[0],
            run.ranks[1],
            structs.replace(run.ranks[1], rank=2),
        ),
    )
    assert Pace(both).slowest is None
    assert Pace(both).compared() == "3 ranks, their own steps 1.0–1.1 ms"


@pytest.mark.parametrize(
    ("cause", "evidence", "words"),
    [
        (
            "more_work",
            WaitEvidence(ratio=2.1, tokens=3072, tokens_of_others=882),
            "3,072 tokens in a step, the others 882",
        ),
        ("more_work", WaitEvidence(ratio=2.1), "2.10 times the work of the others"),
        ("host_late", WaitEvidence(idle_ns=80_000_000), "its GPU is empty for 80.0 ms"),
        ("slow_link", WaitEvidence(ratio=3.0), "3.00 times as long as others of their size"),
        ("waited_itself", WaitEvidence(chain=[3, 1, 0]), "it waits for rank 0 itself"),
        (
            "unknown",
            WaitEvidence(reason="no cause explains it"),
            "the cause is not known (no cause explains it)",
        ),
    ],
)
def test_every_cause_has_words(cause, evidence, words):
    row = Straggler(
        3, "comm", 9, 4, kind="one_off", steps=[5], late_ns=9, why=[WaitCause(cause, 9, evidence)]
    )
    assert words in late_rank(row, 4)
    assert late_rank(row, 4).startswith("rank 3 is late in step 5 (")


@pytest.mark.parametrize(
    ("late_ms", "words"),
    [
        ([30, 14], "rank 3 is late in every step (30.0 ms in step 4, 14.0 ms in step 5): "),
        ([30, 16], "rank 3 is late in every step (23.0 ms per step): "),
    ],
)
def test_two_steps_that_differ_by_more_than_twice_are_both_given(late_ms, words):
    late_ns = [value * 1_000_000 for value in late_ms]
    why = [WaitCause("host_late", 1, WaitEvidence(idle_ns=1))]
    row = Straggler(
        3, "dp_comm", 1, 1, kind="chronic", steps=[4, 5], late_ns=sum(late_ns) // 2, why=why
    )
    assert late_rank(structs.replace(row, late_ns_by_step=late_ns), 2).startswith(words)
