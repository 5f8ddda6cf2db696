"""Why ranks are late, and in which steps: cases counted by hand, recordings with a known cause, and mixtures."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest

from tracekit import analyze
from tracekit.align.clocks import Clocks
from tracekit.align.late_together import WAITED_FOR
from tracekit.align.waits import STRAGGLERS
from tracekit.analysis.combine.stragglers import explain_stragglers
from tracekit.metrics.lateness import KERNEL_TIMES, STEP_LATENESS, TOKENS, LatenessTables
from tracekit.schema import conform

MS = 1_000_000
STEP_MS = 100
DATA = Path(__file__).parents[1] / "data"
CORPUS = Path(os.environ.get("TRACEKIT_CORPUS", ""))
needs_corpus = pytest.mark.skipif(
    not os.environ.get("TRACEKIT_CORPUS"), reason="set TRACEKIT_CORPUS"
)


class Run:
    """A run built step by step: compute of 40 ms per rank and step in ten equal calls, and one all-reduce."""

    def __init__(self, ranks=3, steps=4, *, shapes=True, marked=True):
        self.ranks, self.steps, self.shapes, self.marked = ranks, steps, shapes, marked
        self.first_step = {}
        self.speed, self.calls, self.idle, self.tokens, self.multiprocessors = {}, {}, {}, {}, {}
        self.kernels_per_call = {}
        self.copying = {}
        self.operations = []

    def wait(
        self,
        last,
        rank,
        step,
        ms,
        *,
        label="dp_comm",
        group="dp",
        bound=False,
        what="allreduce",
        transfer=5,
        waited_for=None,
    ):
        self.operations.append(
            {
                "rank": rank, "last_rank": last, "step": step, "label": label, "group": group, "group_ranks": None,
                "what": what, "bytes": 1000, "wait_ns": round(ms * MS), "transfer_ns": round(transfer * MS),
                "start_ns": 0, "end_ns": round((ms + transfer) * MS), "hidden_ns": 0, "wait_is_bound": bound,
                "match": len(self.operations), "waited_for": waited_for,
            }
        )  # fmt: skip

    def _rank(self, rank):
        kernels, steps, tokens = [], [], []
        for step in range(self.steps):
            calls = self.calls.get((rank, step), self.calls.get(rank, 10))
            ns = round(calls * 4 * MS * self.speed.get((rank, step), self.speed.get(rank, 1.0)))
            count = round(calls * self.kernels_per_call.get(rank, 1))
            kernels.append(
                {"key": 1, "kernel": 1, "step": step, "calls": calls, "count": count, "ns": ns}
            )
            idle = round(self.idle.get((rank, step), 0) * MS)
            start_ns = (step + self.first_step.get(rank, 0)) * STEP_MS * MS
            steps.append(
                {"step": step, "span_ns": STEP_MS * MS, "start_ns": start_ns, "launch_ns": start_ns,
                 "follows": step > 0, "compute_ns": ns, "host_late_ns": idle,
                 "copy_ns": round(self.copying.get((rank, step), 0) * MS)}
            )  # fmt: skip
            tokens.append(
                {"step": step, "microbatch": 0, "tokens": self.tokens.get((rank, step), 512)}
            )
        frames = (
            conform(pl.DataFrame(kernels), KERNEL_TIMES)
            if self.shapes
            else KERNEL_TIMES.to_frame(),
            conform(pl.DataFrame(steps), STEP_LATENESS),
            conform(pl.DataFrame(tokens), TOKENS),
        )
        return SimpleNamespace(
            source=SimpleNamespace(rank=rank, multiprocessors=self.multiprocessors.get(rank)),
            lateness=LatenessTables(*frames),
            steps_marked=self.marked,
        )

    def explain(self, *, uncertain=False, charged=None):
        text = dict.fromkeys(("label", "group", "group_ranks", "what"), pl.String)
        operations = pl.DataFrame(
            self.operations,
            schema_overrides={
                **text,
                "rank": pl.Int32,
                "last_rank": pl.Int32,
                "waited_for": WAITED_FOR,
            },
        )
        table = (
            operations.filter((pl.col("rank") != pl.col("last_rank")) & (pl.col("wait_ns") > 0))
            .group_by(rank="last_rank", label="label")
            .agg(caused_ns=pl.col("wait_ns").sum(), operations=pl.len().cast(pl.Int64))
            .with_columns(uncertain=pl.lit(uncertain), candidates=pl.concat_list("rank"))
            .sort("caused_ns", "rank", descending=[True, False])
        )
        if charged is not None:
            rows = [
                {"rank": rank, "label": "dp_comm", "caused_ns": ns} for rank, ns in charged.items()
            ]
            table = pl.DataFrame(rows).with_columns(
                operations=pl.lit(1), uncertain=False, candidates=pl.concat_list("rank")
            )
        ranks = [self._rank(rank) for rank in range(self.ranks)]
        clocks = Clocks.recorded(list(range(self.ranks)))
        return explain_stragglers(conform(table, STRAGGLERS), ranks, operations, clocks)


def causes(row):
    return {reason.cause: reason.ns / MS for reason in row.why}


def test_a_slow_gpu_is_named_with_the_ratio_of_the_same_kernels():
    run = Run()
    run.speed[2] = 1.5  # 60 ms instead of 40
    for step in range(4):
        for rank in (0, 1):
            run.wait(2, rank, step, 20)
    [row] = run.explain().rows
    assert causes(row) == {"slow_gpu": 160}
    assert row.why[0].evidence.ratio == 1.5
    assert (row.kind, row.steps, row.late_ns) == ("chronic", [0, 1, 2, 3], 20 * MS)


def test_a_call_that_launches_more_kernels_does_not_make_a_gpu_slow():
    """60 ms instead of 40: in 15 kernels of 4 ms, as everywhere, for 10 calls."""
    run = Run()
    run.speed[2] = run.kernels_per_call[2] = 1.5
    for step in range(4):
        for rank in (0, 1):
            run.wait(2, rank, step, 20)
    [row] = run.explain().rows
    assert "slow_gpu" not in causes(row)


@pytest.mark.parametrize(
    ("multiprocessors", "named"),
    [
        ({0: 32, 1: 33, 2: 12}, (12, 32)),
        ({0: 12, 1: 33, 2: 12}, (None, None)),
        ({0: 32, 2: 12}, (None, None)),
    ],
)
def test_fewer_multiprocessors_are_evidence_where_every_other_rank_is_known_to_have_more(
    multiprocessors, named
):
    run = Run()
    run.multiprocessors = multiprocessors
    run.speed[2] = 1.5
    for step in range(4):
        run.wait(2, 0, step, 20)
    [row] = run.explain().rows
    evidence = row.why[0].evidence
    assert (evidence.multiprocessors, evidence.multiprocessors_of_others) == named


def test_more_work_is_told_from_a_slow_gpu_by_calls_and_tokens():
    run = Run()
    run.calls[1, 2], run.tokens[1, 2] = 15, 768  # 60 ms in one step
    run.wait(1, 0, 2, 20)
    run.wait(1, 2, 2, 20)
    result = run.explain()
    [row] = result.rows
    assert causes(row) == {"more_work": 40}
    evidence = row.why[0].evidence
    assert (evidence.ratio, evidence.tokens, evidence.tokens_of_others) == (1.5, 768, 512)
    assert (row.kind, row.steps) == ("one_off", [2])
    # Cost against the mean: 60 − (60 + 40 + 40) / 3 ms of one step of 100 ms, of four.
    assert result.imbalance_share == pytest.approx((60 - 140 / 3) / 400)


def test_tokens_of_the_others_are_their_mean_whoever_waits_how_long():
    """Rank 1 has twice the work in steps 1 and 2.

    Rank 2 has as much in step 2 and does not wait there.
    """
    run = Run()
    for rank, step, tokens in (
        (1, 1, 1024),
        (1, 2, 1024),
        (0, 1, 128),
        (2, 1, 512),
        (0, 2, 512),
        (2, 2, 1024),
    ):
        run.tokens[rank, step] = tokens
        run.calls[rank, step] = 20 if tokens == 1024 else 10
    run.wait(1, 0, 1, 40)
    run.wait(1, 2, 1, 10)
    run.wait(1, 0, 2, 40)
    run.wait(1, 0, 2, 1, group="other")
    [row] = run.explain().rows
    evidence = row.why[0].evidence
    assert row.steps == [1, 2]
    assert evidence.tokens == 1024
    assert evidence.tokens_of_others == (128 + 512 + 512 + 1024) / 4


def test_lateness_is_given_for_each_late_step():
    run = Run()
    for step, ms in ((0, 40), (2, 8)):
        run.wait(2, 0, step, ms)
        run.wait(2, 1, step, ms / 2)
    [row] = run.explain().rows
    assert (row.steps, row.late_ns_by_step) == ([0, 2], [30 * MS, 6 * MS])


def test_two_causes_at_once_share_the_wait_as_they_cause_it():
    run = Run()
    run.speed[2], run.idle[2, 1] = 1.25, 30  # 10 ms in every step, 30 ms more in one
    for step in range(4):
        for rank in (0, 1):
            run.wait(2, rank, step, 40 if step == 1 else 10)
    [row] = run.explain().rows
    assert causes(row) == {"slow_gpu": 80, "host_late": 60}
    assert row.why[1].evidence.idle_ns == 30 * MS


def test_causes_that_exceed_the_wait_are_scaled_to_it():
    run = Run()
    run.speed[2], run.idle[2, 0] = 1.5, 20
    run.speed[2, 1] = run.speed[2, 2] = run.speed[2, 3] = 1.0
    run.wait(2, 0, 0, 20)
    [row] = run.explain().rows
    assert causes(row) == {"slow_gpu": 10, "host_late": 10}


def test_ranks_that_are_late_together_are_each_late_by_their_whole_lateness():
    """Ranks 1 and 3 come 20 ms late to each of four steps, and share what ranks 0 and 2 wait."""
    run = Run(ranks=4)
    for rank in (1, 3):
        run.speed[rank] = 1.5
    parts = [{"rank": rank, "wait_ns": 10 * MS, "late_ns": 20 * MS} for rank in (1, 3)]
    for step in range(4):
        for rank in (0, 2):
            run.wait(3, rank, step, 20, waited_for=parts)
        run.wait(3, 1, step, 1, waited_for=[{"rank": 3, "wait_ns": MS, "late_ns": None}])
    explained = run.explain(charged={1: 80 * MS, 3: 84 * MS})
    rows = {row.rank: row for row in explained.rows}
    assert {rank: row.late_ns / MS for rank, row in rows.items()} == {1: 20, 3: 20}
    assert rows[1].late_ns_by_step == rows[3].late_ns_by_step == [20 * MS] * 4
    assert (rows[1].kind, rows[3].kind) == ("chronic", "chronic")
    assert causes(rows[1]) == {"slow_gpu": 80}
    assert (
        causes(rows[3])["slow_gpu"] == 80
    )  # what rank 1 waits for it, a slow GPU does not explain
    lateness = explained.lateness.filter(pl.col("step") == 0)
    assert lateness["late_ns"].to_list() == [0, 20 * MS, 0, 20 * MS]
    assert lateness["caused_ns"].to_list() == [0, 20 * MS, 0, 21 * MS]


def test_a_cause_explains_as_much_of_a_shared_wait_as_of_the_lateness():
    """The host of rank 1 explains 10 of 20 ms: half of what is charged to it."""
    run = Run(ranks=4)
    parts = [{"rank": rank, "wait_ns": 10 * MS, "late_ns": 20 * MS} for rank in (1, 3)]
    for rank in (0, 2):
        run.wait(3, rank, 0, 20, waited_for=parts)
    run.idle[1, 0] = 10
    rows = {row.rank: row for row in run.explain(charged={1: 20 * MS, 3: 20 * MS}).rows}
    assert causes(rows[1]) == {"host_late": 10, "unknown": 10}
    assert causes(rows[3]) == {"unknown": 20}


def test_copies_to_the_host_beside_an_empty_gpu_are_a_late_host():
    """A checkpoint on rank 2: its GPU is empty for 8 ms of step 1 and copies weights for 12."""
    run = Run()
    run.idle[2, 1], run.copying[2, 1] = 8, 12
    for rank in (0, 1):
        run.wait(2, rank, 1, 20)
    [row] = run.explain().rows
    assert causes(row) == {"host_late": 40}
    assert (row.why[0].evidence.idle_ns, row.why[0].evidence.copy_ns) == (8 * MS, 12 * MS)


@pytest.mark.parametrize(("copying", "named"), [(0.5, False), (4, True)])
def test_copies_are_evidence_from_a_tenth_of_the_time(copying, named):
    run = Run()
    run.idle[2, 1], run.copying[2, 1] = 20 - copying, copying
    run.wait(2, 0, 1, 20)
    [row] = run.explain().rows
    assert (row.why[0].evidence.copy_ns is not None) is named


def test_waiting_for_another_group_is_followed_to_where_it_begins():
    run = Run()
    for step in range(4):
        run.wait(0, 1, step, 15, label="tp_comm", group="tp")  # rank 1 waits for rank 0 …
        run.wait(1, 2, step, 15)  # … and is late for rank 2
    rows = {row.rank: row for row in run.explain().rows}
    assert causes(rows[1]) == {"waited_itself": 60}
    assert rows[1].why[0].evidence.chain == [1, 0]


def test_longer_transfers_of_equal_size_are_a_slow_link():
    run = Run(ranks=6)
    for step in range(4):
        for rank in range(6):
            run.wait(
                rank,
                rank,
                step,
                0,
                label="tp_comm",
                group=f"tp{rank}",
                transfer=25 if rank == 2 else 5,
            )
        run.wait(2, 0, step, 20)
    rows = {row.rank: row for row in run.explain().rows}
    assert causes(rows[2]) == {"slow_link": 80}
    assert rows[2].why[0].evidence.ratio == 5


def test_an_exchange_of_unequal_sizes_says_nothing_about_links():
    run = Run(ranks=6)
    for step in range(4):
        for rank in range(6):
            run.wait(
                rank,
                rank,
                step,
                0,
                label="ep_dispatch",
                group=f"ep{rank}",
                transfer=25 if rank == 2 else 5,
            )
            # A member of the same exchange that moves more: a different member of each group
            # decides how long it takes.
            run.operations.append(run.operations[-1] | {"rank": rank ^ 1, "bytes": 1000 + rank})
        run.wait(2, 0, step, 20)
    rows = {row.rank: row for row in run.explain().rows}
    assert causes(rows[2]) == {"unknown": 80}


@pytest.mark.parametrize(("transfer", "named"), [(219, {"unknown"}), (221, {"slow_link"})])
def test_a_link_is_slow_from_a_tenth_more_time(transfer, named):
    """Rank 2 transfers for 19 or 21 ms more than the usual 200 ms, and is late by less than that."""
    run = Run(ranks=6)
    for step in range(4):
        for rank in range(6):
            run.wait(
                rank,
                rank,
                step,
                0,
                label="tp_comm",
                group=f"tp{rank}",
                transfer=transfer if rank == 2 else 200,
            )
        run.wait(2, 0, step, 10, transfer=200)
    assert causes({row.rank: row for row in run.explain().rows}[2]).keys() == named


@pytest.mark.parametrize(("first_step", "named"), [(0, {"slow_gpu": 160}), (1, {"unknown": 160})])
def test_steps_that_ranks_without_marks_number_differently_are_not_compared(first_step, named):
    """The recording of rank 1 begins one step later: its step 0 is step 1 of the others."""
    run = Run(marked=False)
    run.first_step[1] = first_step
    run.speed[2] = 1.5
    for step in range(4):
        for rank in (0, 1):
            run.wait(2, rank, step, 20)
    explained = run.explain()
    [row] = explained.rows
    assert causes(row) == named
    assert row.kind == (None if first_step else "chronic")
    assert explained.imbalance.is_empty() == bool(first_step)


def test_equal_ranks_have_no_cause():
    run = Run()
    for step in range(4):
        run.wait(step % 3, (step + 1) % 3, step, 1)
    for row in run.explain().rows:
        assert (row.kind, row.steps) == (None, [])
        assert causes(row).keys() == {"unknown"}
        assert "2%" in row.why[0].evidence.reason


@pytest.mark.parametrize(
    ("run", "options", "reason"),
    [
        (Run(shapes=False), {}, "shapes were not recorded"),
        (Run(), {"bound": True}, "clocks are not aligned"),
        (Run(), {}, "no cause explains it"),
        (Run(), {"label": "pp_comm", "what": "p2p"}, "pipeline"),
    ],
)
def test_the_reason_is_given_where_the_cause_is_unknown(run, options, reason):
    run.operations.clear()
    run.speed[2] = 1.0 if run.shapes else 1.5
    for step in range(4):
        run.wait(2, 0, step, 20, **options)
    [row] = run.explain().rows
    assert causes(row) == {"unknown": 80}
    assert reason in row.why[0].evidence.reason


def test_a_rank_that_clocks_leave_open_is_explained_only_by_what_needs_no_clock():
    run = Run()
    for step in range(4):
        run.wait(2, 0, step, 20)
    [row] = run.explain(uncertain=True).rows
    assert "clocks" in row.why[0].evidence.reason
    assert row.uncertain
    run.speed[2] = 1.5
    [row] = run.explain(uncertain=True).rows
    assert (causes(row), row.uncertain, row.candidates) == ({"slow_gpu": 80}, False, [2])


def test_waits_that_are_bounds_are_explained_by_what_needs_no_clock():
    """Rank 2 is 20 ms slower in every step; of a wait of at most 50 ms that is less than half."""
    run = Run()
    run.speed[2] = 1.5
    for step in range(4):
        run.wait(2, 0, step, 30, bound=True)
    assert causes(run.explain().rows[0]) == {"slow_gpu": 80, "unknown": 40}
    run.operations.clear()
    for step in range(4):
        run.wait(2, 0, step, 50, bound=True)
    assert causes(run.explain().rows[0]) == {"unknown": 200}


def test_a_rank_that_is_very_late_once_and_a_little_always_has_a_worst_step():
    run = Run()
    for step, ms in enumerate((5, 5, 60, 5)):
        run.idle[2, step] = ms
        for rank in (0, 1):
            run.wait(2, rank, step, ms)
    [row] = run.explain().rows
    assert (row.kind, row.steps, row.worst_step, row.worst_ns) == (
        "chronic",
        [0, 1, 2, 3],
        2,
        60 * MS,
    )


@pytest.mark.parametrize("waits", [(15, 10, 10, 10), (0, 0, 60, 0), (60, 0, 5, 0)])
def test_there_is_no_worst_step_where_steps_are_alike_or_fewer_than_three_are_late(waits):
    run = Run()
    for step, ms in enumerate(waits):
        run.wait(2, 0, step, ms)
    [row] = run.explain().rows
    assert (row.worst_step, row.worst_ns) == (None, None)


@pytest.mark.parametrize(("slow", "named"), [(12, {"slow_gpu"}), (4, set())])
def test_the_cause_of_waiting_in_a_pipeline_is_one_that_explains_a_quarter_of_it(slow, named):
    run = Run()
    run.speed[2] = 1 + slow / 40
    for step in range(4):
        run.wait(2, 1, step, 40, label="pp_comm", what="p2p")
    result = run.explain()
    cause = result.pipeline_cause(2)
    assert ({cause.cause} if cause else set()) == named
    assert result.pipeline_cause(1) is None


def test_with_one_step_neither_the_cause_nor_whether_a_rank_is_always_late_is_known():
    run = Run(steps=1)
    run.speed[2] = 1.5
    run.wait(2, 0, 0, 20)
    [row] = run.explain().rows
    assert (row.kind, row.steps, causes(row)) == (None, [0], {"unknown": 20})
    assert "one step was recorded" in row.why[0].evidence.reason


def test_one_rank_waits_for_nobody():
    run = Run(ranks=1)
    run.wait(0, 0, 0, 0)
    result = run.explain()
    assert result.rows == ()
    assert result.late_ranks() is None


def test_lateness_of_ranks_that_only_send_messages_is_unknown():
    """Stages of a pipeline wait for each other by design: nobody is late, and nobody is shown to be on time."""
    pipeline, reduced = Run(), Run()
    pipeline.wait(1, 0, 0, 20, label="pp_comm", what="p2p")
    reduced.wait(1, 0, 0, 20, label="pp_comm", what="p2p")
    reduced.wait(1, 0, 0, 0)  # an all-reduce that nobody waits in
    assert pipeline.explain().late_ranks() is None
    assert reduced.explain().late_ranks().ranks == []


def test_the_lateness_table_has_every_rank_and_step():
    run = Run()
    run.wait(2, 0, 1, 20)
    run.wait(2, 1, 1, 10)
    lateness = run.explain().lateness
    assert lateness.shape[0] == 12
    late = (
        lateness.filter(pl.col("late_ns") > 0)
        .select("rank", "step", "late_ns", "caused_ns", "share")
        .rows()
    )
    assert late == [(2, 1, 15 * MS, 30 * MS, 0.15)]


@pytest.mark.parametrize(("ms", "late"), [(1.99, False), (2.0, True)])
def test_a_rank_is_late_from_two_percent_of_the_step(ms, late):
    run = Run()
    run.wait(2, 0, 1, ms)
    assert bool(run.explain().rows[0].steps) is late


@pytest.mark.parametrize(
    ("idle", "named"), [(0.99, {"slow_gpu"}), (1.01, {"slow_gpu", "host_late"})]
)
def test_a_cause_of_less_than_a_tenth_stays_unknown(idle, named):
    run = Run()
    run.speed[2, 1], run.idle[2, 1] = 1 + (10 - idle) / 40, idle
    run.wait(2, 0, 1, 10)
    assert causes(run.explain().rows[0]).keys() - {"unknown"} == named


@pytest.mark.parametrize(
    ("ratio", "named"), [(1.029, {"unknown"}), (1.031, {"slow_gpu", "unknown"})]
)
def test_a_gpu_is_slow_from_three_percent(ratio, named):
    run = Run()
    run.speed[2] = ratio
    for step in range(4):
        run.wait(2, 0, step, 4)
    assert causes(run.explain().rows[0]).keys() == named


@pytest.mark.parametrize(("ms", "named"), [(8.8, set()), (9.0, {"host_late"})])
def test_a_difference_must_exceed_three_deviations_of_chance(ms, named):
    """Idle times of 2, 4, 6 … ms beyond those of the other rank deviate by 2 ms: three times 1.4826 × 2 is 8.9."""
    run = Run(ranks=2, steps=5)
    for step in range(5):
        run.idle[1, step] = 2 * step
    run.idle[1, 0] = ms
    run.wait(1, 0, 0, ms)
    assert causes(run.explain().rows[0]).keys() - {"unknown"} == named


def test_what_changes_on_all_ranks_from_step_to_step_hides_no_cause():
    """All hosts are 0, 100, 200 … ms late in their steps, and that of rank 2 is 30 ms later in the first one."""
    run = Run(steps=5)
    for rank in range(3):
        for step in range(5):
            run.idle[rank, step] = 100 * step
    run.idle[2, 0] = 30
    run.wait(2, 0, 0, 30)
    assert causes(run.explain().rows[0]) == {"host_late": 30}


@pytest.mark.parametrize("seed", range(20))
def test_causes_sum_to_the_waiting_in_any_mixture(seed):
    chance = random.Random(seed)
    run = Run(ranks=4, steps=6)
    for rank in range(4):
        run.speed[rank] = chance.choice([1.0, 1.0, 1.3])
        for step in range(6):
            run.idle[rank, step] = chance.choice([0, 0, 0, 30])
            run.calls[rank, step] = chance.choice([8, 10, 14])
    for step in range(6):
        last = chance.randrange(4)
        for rank in range(4):
            if rank != last:
                run.wait(last, rank, step, chance.uniform(0, 60))
    for row in run.explain().rows:
        assert sum(reason.ns for reason in row.why) == row.caused_ns
        assert all(reason.ns >= 0 for reason in row.why)
        named = [reason.ns for reason in row.why if reason.cause != "unknown"]
        assert named == sorted(named, reverse=True)


def explained(analysis, rank):
    [row] = [row for row in analysis.stragglers if row.rank == rank]
    return row, {reason.cause: reason.ns / sum(item.ns for item in row.why) for reason in row.why}


def test_a_slow_gpu_and_a_late_host_in_one_recording_are_split():
    """Recorded on an H200: rank 2 on half the multiprocessors, and rank 1's host asleep for 80 ms before step 6."""
    analysis = analyze(DATA / "slow-once", schedule="none", workers=1)
    slow, slow_causes = explained(analysis, 2)
    late, late_causes = explained(analysis, 1)
    assert (slow.kind, slow.steps, slow.uncertain, slow.candidates) == (
        "chronic",
        [5, 7],
        False,
        [2],
    )
    assert slow_causes["slow_gpu"] > 0.9
    assert 1.6 < slow.why[0].evidence.ratio < 2.1
    assert (late.kind, late.steps) == ("one_off", [6])
    assert late_causes["host_late"] > 0.9
    assert late.why[0].evidence.idle_ns == pytest.approx(80 * MS, rel=0.1)
    assert analysis.waiting.imbalance_share == 0
    assert not any(row.steps for row in analysis.stragglers if row.rank in {0, 3})


def test_a_slow_gpu_and_unequal_tokens_in_one_recording_are_split():
    """Recorded on an H200: rank 3 on half the multiprocessors.

    Tokens by step and rank are known.
    """
    analysis = analyze(DATA / "slow-uneven", schedule="none", workers=1)
    tokens = (
        analysis.tables["tokens"].pivot("rank", index="step", values="tokens").drop("step").rows()
    )
    assert tokens == [(512, 1024, 512, 3072), (2048, 512, 3072, 512), (1024, 3072, 512, 3072)]
    row, shares = explained(analysis, 3)
    assert row.kind == "chronic"
    assert shares.keys() <= {"slow_gpu", "more_work", "unknown"}
    assert shares["slow_gpu"] + shares["more_work"] > 0.9
    assert (
        1.6 < next(reason.evidence.ratio for reason in row.why if reason.cause == "slow_gpu") < 2.1
    )
    # In step 5 the slow rank has the fewest tokens: whatever it is late there, its work does not
    # explain.
    step_5 = analysis.tables["lateness"].filter(pl.col("step") == 5)
    work = dict(step_5.select("rank", "work_ns").iter_rows())
    assert work[3] == min(work.values())
    assert analysis.waiting.imbalance["most_work_rank"].to_list()[:2] == [3, 2]


@needs_corpus
def test_the_slow_rank_of_a_recording():
    row, shares = explained(analyze(CORPUS / "frameworks/slow-ddp", schedule="none"), 2)
    assert (row.kind, row.steps) == ("chronic", [4, 5, 6, 7, 8, 9])
    assert shares["slow_gpu"] > 0.9
    assert row.why[0].evidence.ratio == pytest.approx(1.96, rel=0.03)


@needs_corpus
def test_the_late_host_of_a_recording_and_its_other_steps():
    folder = CORPUS / "frameworks/once-ddp"
    row, shares = explained(analyze(folder, schedule="none"), 1)
    assert (row.kind, row.steps) == ("one_off", [7])
    assert shares["host_late"] > 0.9
    others = analyze(folder, schedule="none", steps="4,5,6,8,9")
    assert {reason.cause for row in others.stragglers for reason in row.why} == {"unknown"}


@needs_corpus
def test_the_tokens_and_the_most_loaded_ranks_of_a_recording():
    truth = json.loads((CORPUS / "frameworks/truth.json").read_text())["varlen-ddp"][
        "tokens_by_step_and_rank"
    ]
    analysis = analyze(CORPUS / "frameworks/varlen-ddp", schedule="none")
    tokens = (
        analysis.tables["tokens"].pivot("rank", index="step", values="tokens").drop("step").rows()
    )
    assert tokens == [tuple(step) for step in truth]
    for row in analysis.stragglers:
        assert {reason.cause for reason in row.why} <= {"more_work", "unknown"}
    most = [max(step) for step in truth]
    loaded = zip(analysis.waiting.imbalance["most_work_rank"].to_list(), truth, most, strict=True)
    assert all(step[rank] == tokens for rank, step, tokens in loaded)
