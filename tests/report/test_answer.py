"""The answer in sentences: what it says, and what it leaves out because it would say nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from tests.figures import with_figures
from tests.kept import analysis_of
from tracekit.analysis.result import RoleResults, Tables
from tracekit.documents.analysis import Budget, Straggler, WaitCause
from tracekit.documents.analysis import Evidence as WaitEvidence
from tracekit.report.view import view_of
from tracekit.report.view.ranks import Pace
from tracekit.report.view.stragglers import late_rank

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def small(samples):
    return replace(
        analysis_of(samples / "reload"), reload=None, role_results=RoleResults(), walked_path=None
    )


UNEXPLAINED = (
    "No GPU work is recorded for 0.40 ms, and the recording does not show why: look at the longest gaps in the "
    "timeline (`-o report.html`); stacks (`with_stack=True`) tell what the CPU does in them"
)


def run_of(small, *, ranks=1, steps=1, compute=600, exposed=None, labels=None, wait=None, late=()):
    """Every rank spans 1 ms per step, of which it computes so many µs, and is idle where nothing else is given."""
    one, exposed = small.rank_results[0], exposed or {}
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
    stragglers = replace(small.stragglers, rows=rows)
    tables = Tables.of({name: table for name, table in small.tables.items() if "host" not in name})
    tables = Tables.of(
        {**tables, **{name: small.tables[name].clear() for name in ("host_time", "host_places")}}
    )
    run = replace(small, rank_results=made, stragglers=stragglers, tables=tables)
    return replace(run, changed_steps=(), replay_graph=None, rates=None)


def sentences_of(run):
    """The answer by topic."""
    return {line.topic: line.text for line in view_of(run).answer}


def test_one_gpu_and_one_step(small):
    assert sentences_of(run_of(small)) == {
        "Time": "A step takes 1.0 ms: 60.0 % compute and 40.0 % idle.",
        "Next": UNEXPLAINED,
    }


def slower(run, *, by, steps=None):
    """The same run, whose rank 1 takes so much longer, in all its steps or in some."""

    def longer(measured):
        span_ns = round(measured.budget.span_ns * (1 + by))
        budget = structs.replace(measured.budget, span_ns=span_ns)
        return structs.replace(
            with_figures(measured, budget=budget), time_ns=span_ns, time_budget=budget
        )

    one = run.rank_results[1]
    each = tuple(
        longer(step) if steps is None or step.step in steps else step for step in one.per_step
    )
    whole = with_figures(
        one, budget=structs.replace(one.budget, span_ns=sum(step.budget.span_ns for step in each))
    )
    longer_rank = structs.replace(whole, per_step=each)
    return replace(run, rank_results=(run.rank_results[0], longer_rank, *run.rank_results[2:]))


def test_ranks_that_tie_are_alike_and_steps_have_a_median(small):
    run = run_of(small, ranks=2, steps=3, exposed={"dp_comm": 100, "ep_combine": 200, "memory": 5})
    assert sentences_of(run)["Time"] == (
        "A step takes 1.0 ms (2 ranks alike, within 0.1 %; median of 3 steps): 60.0 % compute, 30.5 % exposed "
        "communication or copies and 9.5 % idle."
    )
    assert sentences_of(run)["Exposed"] == (
        "Expert combine (ep_combine) 0.2 ms per step (20.0 %); "
        "data-parallel communication (dp_comm) 0.1 ms per step (10.0 %)."
    )


def test_a_rank_is_called_the_slowest_only_beyond_noise(small):
    run = run_of(small, ranks=3, steps=3)
    assert Pace(slower(run, by=0.009)).slowest is None
    assert Pace(slower(run, by=0.012)).slowest == 1
    assert (
        "(3 ranks, their median steps 1.00–1.01 ms, rank 1 the slowest"
        in sentences_of(slower(run, by=0.012))["Time"]
    )
    assert Pace(slower(run, by=0.5, steps=[0])).slowest is None  # one odd step makes no rank slow


def test_two_ranks_that_tie_for_the_slowest_are_not_one(small):
    run = slower(run_of(small, ranks=3), by=0.1)
    both = replace(
        run,
        rank_results=(
            run.rank_results[0],
            run.rank_results[1],
            structs.replace(run.rank_results[1], rank=2),
        ),
    )
    assert Pace(both).slowest is None
    assert "(3 ranks, their own steps 1.0–1.1 ms)" in sentences_of(both)["Time"]


def test_only_what_is_exposed_is_called_exposed(small):
    assert "exposed copies" in sentences_of(run_of(small, exposed={"memory": 5}))["Time"]
    assert (
        "exposed communication and" in sentences_of(run_of(small, exposed={"dp_comm": 5}))["Time"]
    )


def test_the_bubble_is_said_where_a_pipeline_runs(small):
    assert "Bubble" in sentences_of(run_of(small, exposed={"pp_comm": 100}))["Exposed"]
    assert "ubble" not in str(sentences_of(run_of(small, exposed={"dp_comm": 100})))


def test_whom_the_others_wait_for(small):
    rows = [
        Straggler(0, "comm", 10, 1),
        Straggler(3, "comm", 500_000, 4),
        Straggler(1, "dp_comm", 900_000, 2),
    ]
    run = run_of(
        small, exposed={"comm": 200, "dp_comm": 60}, wait={"comm": 150, "dp_comm": 40}, late=rows
    )
    assert sentences_of(run)["Waits"] == (
        "75.0 % of the time in comm is waiting for another rank; "
        "the others wait longest for rank 3 (0.5 ms summed over them, in 4 operations)."
    )
    rows[0] = Straggler(0, "comm", 460_000, 1)  # within a tenth of the first
    both = run_of(small, exposed={"comm": 200}, wait={"comm": 150}, late=rows)
    assert sentences_of(both)["Waits"].endswith(
        "the others wait longest for rank 3 (0.5 ms summed over them, in 4 operations) "
        "and rank 0 (0.5 ms summed over them, in 1 operation)."
    )
    rows[0] = Straggler(0, "comm", 440_000, 1)
    one = run_of(small, exposed={"comm": 200}, wait={"comm": 150}, late=rows)
    assert sentences_of(one)["Waits"].endswith("rank 3 (0.5 ms summed over them, in 4 operations).")
    little = run_of(small, exposed={"comm": 200}, wait={"comm": 9}, late=rows)
    assert "Waits" not in sentences_of(little)


def test_why_a_rank_is_late(small):
    slow = WaitCause("slow_gpu", 800_000, WaitEvidence(ratio=1.96))
    unknown = WaitCause("unknown", 100_000, WaitEvidence(reason="no cause explains it"))
    row = Straggler(
        3, "comm", 900_000, 4, kind="chronic", steps=[0, 1], late_ns=54_000_000, why=[slow, unknown]
    )  # fmt: skip
    run = run_of(small, steps=2, exposed={"comm": 200}, wait={"comm": 150}, late=[row])
    assert sentences_of(run)["Waits"] == (
        "75.0 % of the time in comm is waiting for another rank; rank 3 is late in every step (54.0 ms per step): "
        "its GPU runs the same kernels 1.96 times slower."
    )


def test_ranks_of_which_clocks_do_not_tell_the_latest_are_all_named_if_the_cause_of_each_is_known(
    small,
):
    def late(rank, step, **more):
        why = [WaitCause("host_late", 900_000, WaitEvidence(idle_ns=50_000_000))]
        return Straggler(
            rank, "comm", 900_000, 4, kind="one_off", steps=[step], late_ns=53_000_000, why=why, **more
        )  # fmt: skip

    rows = [late(1, 0, uncertain=True, candidates=[1, 3]), late(3, 1)]
    waits = sentences_of(
        run_of(small, steps=2, exposed={"comm": 200}, wait={"comm": 150}, late=rows)
    )["Waits"]
    assert "rank 1 is late in step 0 (53.0 ms)" in waits
    assert "rank 3 is late in step 1 (53.0 ms)" in waits
    waits = sentences_of(
        run_of(small, steps=2, exposed={"comm": 200}, wait={"comm": 150}, late=rows[:1])
    )["Waits"]
    assert "rank 1 or rank 3" in waits


@pytest.mark.parametrize(
    ("why", "words"),
    [
        (
            WaitCause("slow_gpu", 400_000, WaitEvidence(ratio=2.0)),
            "in 4 operations): its GPU runs the same kernels",
        ),
        (WaitCause("slow_gpu", 100_000, WaitEvidence(ratio=2.0)), "in 4 operations)."),
        (
            WaitCause("waited_itself", 400_000, WaitEvidence(chain=[3, 0])),
            "), which waits for rank 0 itself: it has",
        ),
    ],
)
def test_the_rank_that_a_pipeline_waits_for_has_its_cause_where_that_is_not_the_schedule(
    small, why, words
):
    rows = [Straggler(3, "pp_comm", 900_000, 4, kind="chronic", steps=[0, 1], late_ns=9, why=[why])]
    root = [WaitCause("more_work", 300_000, WaitEvidence(ratio=2.0))]
    rows.append(
        Straggler(0, "pp_comm", 600_000, 4, kind="chronic", steps=[0, 1], late_ns=9, why=root)
    )
    run = run_of(small, steps=2, exposed={"pp_comm": 200}, wait={"pp_comm": 150}, late=rows)
    assert words in sentences_of(run)["Waits"]


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


def test_unknown_work_above_one_per_cent_is_said_first_thing(small):
    loud = run_of(small, labels={"other": 20})
    assert sentences_of(loud)["Time"].endswith(
        "2.0 % of the span is work that no rule knows (other), counted as compute."
    )
    quiet = run_of(small, labels={"other": 9})
    assert "other" not in str(sentences_of(quiet))
    assert [advice.text for advice in view_of(quiet).advice] == [UNEXPLAINED]


def test_what_to_do_next_is_the_first_advice(samples):
    view = view_of(analysis_of(samples / "1f1b"))
    assert [line.topic for line in view.answer] == [
        "Time",
        "Blocked",
        "Exposed",
        "Schedule",
        "Waits",
        "Next",
    ]
    assert view.answer[-1].text == view.advice[0].text
    # Other tests may have named it from another folder.
    assert (samples / "1f1b").samefile(view.input_path)


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
