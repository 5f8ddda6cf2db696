"""The answer in sentences: what it says, and what it leaves out because it would say nothing."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from tracekit.metrics.bubbles import Bubble
from tracekit.metrics.budget import Budget
from tracekit.report.advice import advice
from tracekit.report.summary import sentences
from tracekit.run.analyze import analyze


@pytest.fixture(scope="module")
def small(samples):
    return replace(analyze(samples / "reload", schedule="none"), reload=None)


def run_of(small, *, ranks=1, steps=1, compute=600, exposed=None, labels=None, wait=None, late=()):
    """Every rank spans 1 ms per step, of which it computes so many µs, and is idle where nothing else is given."""
    one, exposed = small.ranks[0], exposed or {}
    idle = 1000 - compute - sum(exposed.values())

    def ns(by_label):
        return {label: us * 1000 * steps for label, us in by_label.items()}

    span, rest = 1_000_000 * steps, idle * 1000 * steps
    whole = replace(
        one.whole,
        budget=Budget(span, compute * 1000 * steps, ns(exposed), rest),
        bubble=Bubble(span, rest, 0),
        pipeline="pp_comm" in exposed,
        hidden_ns={},
        hidden_by_ns={},
        label_ns=ns(labels or exposed),
        label_count={},
        wait_ns=ns(wait or {}),
    )
    made = tuple(
        replace(one, rank=rank, steps=tuple(range(steps)), whole=whole, per_step=(whole,) * steps, idle_causes={})
        for rank in range(ranks)
    )
    rows = pl.DataFrame(list(late), schema=small.tables["stragglers"].schema, orient="row")
    return replace(small, ranks=made, tables={**small.tables, "stragglers": rows})


def test_one_gpu_and_one_step(small):
    assert sentences(run_of(small)) == ["A step takes 1.0 ms; the GPU computes for 60.0 % of it and 40.0 % is idle."]


def test_several_ranks_and_steps_are_a_mean(small):
    said = sentences(run_of(small, ranks=2, steps=3, exposed={"dp_comm": 100, "ep_combine": 200, "memory": 5}))
    assert said == [
        "A step takes 1.0 ms (mean of 2 ranks and 3 steps); the GPUs compute for 60.0 % of it, 20.0 % is exposed "
        "expert combine (ep_combine), 10.0 % is exposed data-parallel communication (dp_comm) and 9.5 % is idle."
    ]


def test_the_bubble_is_said_where_a_pipeline_runs(small):
    assert any("bubble" in line for line in sentences(run_of(small, exposed={"pp_comm": 100})))
    assert not any("bubble" in line for line in sentences(run_of(small, exposed={"dp_comm": 100})))


def test_whom_the_others_wait_for(small):
    late = [(0, "comm", 10, 1), (3, "comm", 500, 4), (1, "dp_comm", 900, 2)]
    columns = small.tables["stragglers"].columns
    rows = [
        [{"rank": r, "label": name, "caused_ns": c, "operations": n}[key] for key in columns] for r, name, c, n in late
    ]
    run = run_of(small, exposed={"comm": 200, "dp_comm": 60}, wait={"comm": 150, "dp_comm": 40}, late=rows)
    said = "75.0 % of the time in comm is waiting for another rank; rank 3 keeps the others waiting longest."
    assert sentences(run)[1] == said
    little = run_of(small, exposed={"comm": 200}, wait={"comm": 40}, late=rows)
    assert len(sentences(little)) == 1


def test_unknown_work_above_one_per_cent_is_said_first_thing(small):
    loud = run_of(small, labels={"other": 20})
    assert sentences(loud)[1] == "2.0 % of the span is work that no rule knows (other); it counts as compute."
    assert any("2.0 % of the span has no label" in line for line in advice(loud))
    quiet = run_of(small, labels={"other": 9})
    assert len(sentences(quiet)) == 1
    assert advice(quiet) == []
