"""Who joins late over a whole run: planted in made-up runs, and in real recordings with a known answer."""

from __future__ import annotations

import json
import random
from pathlib import Path

import polars as pl
import pytest

from tests.late.test_pipeline_order import pipeline_dumps
from tests.recorders import ddp_dumps, dump, entry, log_line, write_dumps, write_log
from tracekit.errors import InputError
from tracekit.late import late
from tracekit.late.measure import lateness_matrix
from tracekit.parsers.discovery import discover
from tracekit.run.analyze import analyze

pytestmark = pytest.mark.usefixtures("measured_once")

SAMPLES = Path(__file__).parents[2] / "sample_traces/always-on"
MS = 1_000_000
ALWAYS_ON = {"flight recorder": "late/fr_rank*", "Inspector": "late/*.log.gz", "both": "late"}


def facts(folder, **options):
    return late(folder, **options).late


def only(folder):
    (fact,) = facts(folder)
    return fact


@pytest.mark.parametrize("records", ALWAYS_ON)
def test_each_recorder_alone_and_both_find_rank_1_in_every_third_step(records):
    """Truth: the host of rank 1 sleeps 30 ms before steps 0, 3, … 24; step 0 is in warm-up."""
    run = late(str(SAMPLES / ALWAYS_ON[records]))
    (fact,) = run.late
    assert fact.ranks == (1,)
    assert (fact.kind, fact.period) == ("periodic", 3)
    assert fact.steps == (3, 6, 9, 12, 15, 18, 21, 24)
    assert (fact.since_step, fact.until_step, fact.from_beginning) == (3, None, True)
    assert abs(fact.late_ns - 30 * MS) < 2 * MS
    assert fact.at.place == 0
    assert fact.at.bytes == 8_388_608
    assert fact.cause == "host"
    assert not fact.uncertain
    assert run.steps.count == 26
    assert run.document.basis == "durations"


PROFILED = Path(__file__).parents[1] / "data/late-profiler"
"""Communication kernels, their launches and the marks of steps 21 to 26 of the same run."""


def test_the_profiler_alone_finds_rank_1_in_steps_21_and_24():
    run = late(PROFILED)
    (fact,) = run.late
    assert (fact.ranks, fact.steps) == ((1,), (21, 24))
    assert abs(fact.late_ns - 30 * MS) < 2 * MS
    assert run.steps.numbered_from == "profiler"


def test_all_three_together_give_one_answer():
    """The profiler's numbers of steps are those that the count from the start gives."""
    run = late([SAMPLES / "late", PROFILED])
    (fact,) = run.late
    assert run.document.operations == 136
    assert (fact.ranks, fact.kind, fact.period, fact.since_step) == ((1,), "periodic", 3, 3)
    assert fact.steps == (3, 6, 9, 12, 15, 18, 21, 24)
    assert fact.profiled_steps == (21, 24)
    assert run.steps.numbered_from == "profiler"
    assert not run.notices


def test_analyze_names_the_command_for_dumps_beside_the_traces(tmp_path):
    for path in [*(SAMPLES / "late").glob("*"), *PROFILED.glob("*")]:
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (notice,) = of_code(analyze(tmp_path, schedule="none"), "recordings-beside")
    assert f"`tracekit late {tmp_path}` shows who joins late, and hangs" in notice.message
    assert of_code(analyze(PROFILED, schedule="none"), "recordings-beside") == []


def of_code(analysis, code):
    return [notice for notice in analysis.notices if notice.code == code]


@pytest.mark.parametrize("missing", [["duration_ns"], ["duration_ns", "completed_by_ns"]])
def test_times_of_calls_alone_find_the_same(tmp_path, missing):
    """The recorder without TORCH_NCCL_ENABLE_TIMING.

    Then without what the watchdog saw, so without clocks.
    """
    keys = {"duration_ns": "duration_ms", "completed_by_ns": "time_discovered_completed_ns"}
    for rank, path in enumerate(sorted((SAMPLES / "late").glob("fr_rank*"))):
        from tracekit.parsers.plain_pickle import load_plain_pickle

        content = load_plain_pickle(path.read_bytes(), name=str(path))
        for made in content["entries"]:
            for column in missing:
                made.pop(keys[column], None)
        (tmp_path / f"fr_rank{rank}.json").write_text(json.dumps(content))
    run = late(tmp_path)
    (fact,) = run.late
    assert run.document.basis == ("calls" if len(missing) == 1 else "changes of calls")
    assert (fact.ranks, fact.kind, fact.period, fact.since_step) == ((1,), "periodic", 3, 3)
    assert abs(fact.late_ns - 30 * MS) < 2 * MS
    assert fact.at.place == 0


def test_a_log_without_times_finds_the_same(tmp_path):
    import gzip

    for path in sorted((SAMPLES / "late").glob("*.log.gz")):
        lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
        for line in lines:
            line["coll_perf"].pop("event_trace_ts")
        write_log(tmp_path / path.name.removesuffix(".gz"), lines)
    fact = only(tmp_path)
    assert (fact.ranks, fact.kind, fact.period, fact.since_step) == ((1,), "periodic", 3, 3)
    assert fact.cause is None  # nothing says when hosts called
    # Beside the flight recorder the two are matched by their numbers.
    for path in sorted((SAMPLES / "late").glob("fr_rank*")):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    run = late(tmp_path)
    assert run.document.operations == 136
    assert run.late[0].cause == "host"


def test_all_recorders_count_an_operation_once():
    run = late(SAMPLES / "late")
    assert run.document.operations == 136
    assert run.members["op_id"].n_unique() * 4 == run.members.height


def test_a_run_without_late_ranks_names_none(tmp_path):
    assert facts(write_dumps(tmp_path, ddp_dumps(8, 30, jitter_ms=2.0))) == ()


def test_the_hang_has_no_late_rank():
    assert facts(SAMPLES / "hang") == ()


KINDS = {
    "constant": (lambda rank, step: 10.0 * (rank == 2), "constant", None, 1, None),
    "since step 15": (lambda rank, step: 10.0 * (rank == 2 and step >= 15), "constant", None, 15, None),
    "until step 9": (lambda rank, step: 10.0 * (rank == 2 and step < 10), "constant", None, 1, 9),
    "every second": (lambda rank, step: 10.0 * (rank == 2 and step % 2 == 0), "periodic", 2, 2, None),
    "every seventh since 14": (
        lambda rank, step: 10.0 * (rank == 2 and step % 7 == 0 and step >= 14), "periodic", 7, 14, None,
    ),
    "drifting": (lambda rank, step: 1.0 * step * (rank == 2), "drifting", None, 3, None),
    "twice": (lambda rank, step: 60.0 * (rank == 2 and step in (11, 13)), "occasional", None, 11, 13),
}  # fmt: skip


@pytest.mark.parametrize("timing", [True, False])
@pytest.mark.parametrize("case", KINDS)
def test_the_pattern_in_time_is_told(tmp_path, case, timing):
    delay, kind, period, since, until = KINDS[case]
    if case == "constant" and not timing:
        pytest.skip("calls alone do not tell a rank that is always late from a clock that is")
    fact = only(
        write_dumps(tmp_path, ddp_dumps(4, 40, late_ms=delay, jitter_ms=1.0, timing=timing))
    )
    assert fact.ranks == (2,)
    assert (fact.kind, fact.period) == (kind, period)
    assert abs(fact.since_step - since) <= (6 if kind == "drifting" else 0)
    assert fact.until_step == until
    if kind == "drifting":
        assert abs(fact.growth_ns - MS) < 0.2 * MS
    else:
        assert abs(fact.late_ns - delay(2, since) * MS) < 1.2 * MS


def test_lateness_needs_no_clocks(tmp_path):
    """Clocks hours apart; the rank that is late has the earliest clock."""
    delay = lambda rank, step: 10.0 * (rank == 3 and step % 3 == 0)  # noqa: E731
    clocks = lambda rank: -3_600_000.0 * rank  # noqa: E731
    run = late(write_dumps(tmp_path, ddp_dumps(4, 30, late_ms=delay, clock_ms=clocks)))
    assert [(fact.ranks, fact.period, fact.cause) for fact in run.late] == [((3,), 3, "host")]
    clocks = {clock.rank: clock for clock in run.document.clocks}
    for rank, clock in clocks.items():
        assert (
            abs(clock.offset_ns - clocks[0].offset_ns + 3_600_000 * MS * rank)
            <= clock.uncertainty_ns
        )


def test_the_host_and_the_gpu_are_told_apart(tmp_path):
    delay = lambda rank, step: 10.0 * (rank == 1 and step % 3 == 0)  # noqa: E731
    host = only(write_dumps(tmp_path / "host", ddp_dumps(4, 20, late_ms=delay)))
    gpu = only(write_dumps(tmp_path / "gpu", ddp_dumps(4, 20, gpu_late_ms=delay)))
    assert (host.cause, gpu.cause) == ("host", "gpu")


def test_a_gpu_that_is_always_late_looks_like_a_clock_that_is_off(tmp_path):
    """The record has only bounds of ends: the cause stays open, the lateness does not."""
    fact = only(
        write_dumps(tmp_path, ddp_dumps(4, 20, gpu_late_ms=lambda rank, step: 10.0 * (rank == 1)))
    )
    assert (fact.ranks, fact.kind, fact.cause) == ((1,), "constant", None)


def test_ranks_that_are_late_together_are_one_fact(tmp_path):
    delay = lambda rank, step: 20.0 * (rank in (4, 5, 6) and step >= 9)  # noqa: E731
    fact = only(write_dumps(tmp_path, ddp_dumps(16, 30, late_ms=delay, jitter_ms=1.0)))
    assert fact.ranks == (4, 5, 6)
    assert (fact.kind, fact.since_step) == ("constant", 9)


def test_two_ranks_are_enough(tmp_path):
    delay = lambda rank, step: 10.0 * (rank == 1)  # noqa: E731
    assert only(write_dumps(tmp_path, ddp_dumps(2, 20, late_ms=delay))).ranks == (1,)


@pytest.mark.parametrize(("milliseconds", "is_named"), [(0.4, False), (1.0, True)])
def test_below_a_hundredth_of_a_step_nobody_is_late(tmp_path, milliseconds, is_named):
    """A step takes 60 ms: 0.6 ms is a hundredth."""
    delay = lambda rank, step: milliseconds * (rank == 1)  # noqa: E731
    assert bool(facts(write_dumps(tmp_path, ddp_dumps(4, 40, late_ms=delay)))) is is_named


@pytest.mark.parametrize(("milliseconds", "is_named"), [(6.0, False), (20.0, True)])
def test_a_late_step_stands_out_from_what_is_usual(tmp_path, milliseconds, is_named):
    """Ranks vary by up to 6 ms, which makes 1.5 ms of median deviation or so."""
    delay = lambda rank, step: milliseconds * (rank == 1 and step % 5 == 0)  # noqa: E731
    run = late(write_dumps(tmp_path, ddp_dumps(4, 100, late_ms=delay, jitter_ms=6.0)))
    assert [fact.period for fact in run.late] == ([5] if is_named else [])


@pytest.mark.parametrize(("steps", "is_named"), [(60, True), (400, False)])
def test_one_late_step_is_told_if_it_costs_a_hundredth_of_the_record(tmp_path, steps, is_named):
    """20 ms, a third of a step, once."""
    delay = lambda rank, step: 20.0 * (rank == 1 and step == 5)  # noqa: E731
    folder = write_dumps(tmp_path, ddp_dumps(2, steps // 2, late_ms=delay))
    assert bool(facts(folder)) is is_named


@pytest.mark.parametrize(("milliseconds", "is_named"), [(20.0, False), (40.0, True)])
def test_one_stall_of_half_a_step_is_told_however_long_the_record_is(
    tmp_path, milliseconds, is_named
):
    delay = lambda rank, step: milliseconds * (rank == 1 and step == 5)  # noqa: E731
    assert bool(facts(write_dumps(tmp_path, ddp_dumps(2, 400, late_ms=delay)))) is is_named


def test_steps_of_a_ring_are_counted_from_the_first_that_is_left(tmp_path):
    delay = lambda rank, step: 10.0 * (rank == 1 and step % 3 == 0)  # noqa: E731
    run = late(write_dumps(tmp_path, ddp_dumps(4, 30, late_ms=delay, first_step=10)))
    assert run.steps.numbered_from == "first recorded"
    assert run.late[0].period == 3
    assert run.late[0].steps[0] == 2  # the run's step 12


def test_the_order_of_the_dumps_does_not_matter(tmp_path):
    delay = lambda rank, step: 10.0 * (rank == 1 and step % 3 == 0)  # noqa: E731
    dumps = ddp_dumps(4, 30, late_ms=delay)
    write_dumps(tmp_path / "a", dumps)
    for content in dumps:
        random.Random(1).shuffle(content["entries"])
    write_dumps(tmp_path / "b", dumps)
    assert facts(tmp_path / "a") == facts(tmp_path / "b")


def test_a_missing_rank_is_named_and_the_others_are_compared(tmp_path):
    delay = lambda rank, step: 10.0 * (rank == 1)  # noqa: E731
    dumps = ddp_dumps(4, 20, late_ms=delay)
    run = late(write_dumps(tmp_path, [*dumps[:3], None]))
    assert [fact.ranks for fact in run.late] == [(1,)]
    assert [notice.code for notice in run.notices] == ["missing-ranks"]


def test_dumps_of_different_times_are_named(tmp_path):
    dumps = ddp_dumps(3, 40)
    dumps[2]["entries"] = [made for made in dumps[2]["entries"] if made["collective_seq_id"] > 60]
    for rank in (0, 1):
        dumps[rank]["entries"] = [
            made for made in dumps[rank]["entries"] if made["collective_seq_id"] < 50
        ]
    run = late(write_dumps(tmp_path, dumps))
    assert [(notice.code, notice.ranks) for notice in run.notices] == [("clocks-apart", (2,))]


def test_waiting_in_another_group_is_not_blamed_on_the_rank_that_waited(tmp_path):
    """Pairs of ranks share a group, and all six another: rank 1 makes rank 0 wait, and both come late to the other."""
    entries = [[] for _ in range(6)]
    now = 0.0
    for step in range(24):
        start = now + 50
        delay = 10.0 if step % 3 == 0 else 0.0
        now = start + 31 + delay
        for rank in range(6):
            pair_delay = delay if rank < 2 else 0.0
            ready = start + (delay if rank == 1 else 0.0)
            pair_end = start + pair_delay + 1
            joined = start + 20 + pair_delay
            number = step + 1
            pair = entry(
                number,
                at_ms=ready,
                took_ms=pair_end - ready,
                sizes=(100,),
                group=str(1 + rank // 2),
            )
            large = entry(number, at_ms=joined, took_ms=now - joined, sizes=(5_000,))
            entries[rank] += [{**pair, "record_id": 2 * step}, {**large, "record_id": 2 * step + 1}]
    dumps = []
    for rank, of_rank in enumerate(entries):
        content = dump(of_rank, ranks=range(6))
        first = rank - rank % 2
        content["pg_config"][str(1 + rank // 2)]["ranks"] = f"[{first}, {first + 1}]"
        dumps.append(content)
    run = late(write_dumps(tmp_path, dumps))
    causes = {rank: fact.cause for fact in run.late for rank in fact.ranks}
    assert causes[0] == "waited_itself"
    # The watchdog looked 200 ms later: clocks are not known well.
    assert causes[1] in (
        "host",
        None,
    )


def test_inspector_hosts_are_named(tmp_path):
    for rank in range(4):
        lines = []
        for step in range(12):
            start_ms = 100.0 * step + (20.0 if rank > 1 and step > 3 else 0.0)
            took = 10.0 if rank > 1 or step <= 3 else 30.0
            lines.append(
                log_line(
                    step,
                    rank=rank,
                    ranks=4,
                    at_ms=start_ms,
                    took_ms=took,
                    host=f"node{rank // 2}",
                    pid=rank,
                )
            )
        write_log(tmp_path / f"node{rank // 2}-pid{rank}.log", lines)
    run = late(tmp_path)
    assert run.document.operations == 12
    # Half of the ranks are late: the median of a rank's three others lies with the larger half.
    assert all(fact.hosts in (("node1",), ("node0",)) for fact in run.late)


def test_no_record_is_one_clear_line(tmp_path):
    (tmp_path / "memory.pickle").write_bytes(
        __import__("pickle").dumps({"segments": [], "device_traces": []})
    )
    with pytest.raises(InputError, match="no record of collectives"):
        late(tmp_path)


def test_the_document_has_the_answer():
    document = late(SAMPLES / "late").to_dict()
    assert document["format"] == "tracekit.late/1"
    assert document["late"][0]["ranks"] == [1]
    assert [record["recorder"] for record in document["records"]] == [
        "flight_recorder",
        "nccl_inspector",
    ]
    assert document["steps"]["count"] == 26
    assert len(document["distributions"]) == 4


def test_the_matrix_has_a_row_per_rank_and_a_column_per_span_of_steps():
    run = late(SAMPLES / "late")
    ranks, steps, matrix = lateness_matrix(run, max_columns=100)
    assert ranks == [0, 1, 2, 3]
    assert steps == list(range(1, 27))
    assert [step for step, value in zip(steps, matrix[1], strict=True) if value > 20 * MS] == list(
        run.late[0].steps
    )
    _, steps, matrix = lateness_matrix(run, max_columns=10)
    assert steps == list(range(1, 27, 3))
    assert (matrix[1] > 20 * MS).sum() == 8


def test_recordings_of_the_samples_are_found():
    assert {ref.reader for ref in discover(SAMPLES / "late", need_traces=False).recordings} == {
        "flight_recorder",
        "nccl_inspector",
    }


def test_waits_are_those_until_the_last_member_joins(tmp_path):
    """Three ranks ready at 0, 4 and 10 ms: they wait 10, 6 and 0 ms.

    The last is 8 ms behind the median of others.
    """
    dumps = [
        dump([entry(1, at_ms=delay_ms, took_ms=15.0 - delay_ms)], ranks=range(3))
        for delay_ms in (0.0, 4.0, 10.0)
    ]
    members = late(write_dumps(tmp_path, dumps)).arrivals.members.sort("rank")
    assert members["wait_ns"].to_list() == [10 * MS, 6 * MS, 0]
    assert members["late_ns"].to_list() == [-7 * MS, -1 * MS, 8 * MS]
    assert members["is_last"].to_list() == [False, False, True]


def test_every_operation_is_compared_with_an_independent_count():
    """An oracle: medians and waits of the sample, one operation at a time."""
    arrivals = late(str(SAMPLES / "late/fr_rank*")).arrivals.members
    for _, rows in arrivals.group_by("op_id"):
        durations = dict(rows.select("rank", "duration_ns").iter_rows())
        for row in rows.iter_rows(named=True):
            others = sorted(-ns for rank, ns in durations.items() if rank != row["rank"])
            assert row["late_ns"] == -row["duration_ns"] - others[1]
            assert row["wait_ns"] == row["duration_ns"] - min(durations.values())
    assert arrivals.filter(pl.col("op") == "broadcast").is_empty()  # a root may leave early


@pytest.mark.parametrize(("timed", "basis"), [(10, "durations"), (9, "calls")])
def test_durations_count_if_half_of_the_operations_have_them(tmp_path, timed, basis):
    dumps = ddp_dumps(2, 10, warm_up=False)
    for content in dumps:
        assert len(content["entries"]) == 20
        for made in content["entries"][timed:]:
            del made["duration_ms"]
    assert late(write_dumps(tmp_path, dumps)).document.basis == basis


@pytest.mark.parametrize(("microbatches", "found"), [(2, True), (1, False)])
def test_four_messages_make_a_stage(tmp_path, microbatches, found):
    dumps = pipeline_dumps("gpipe", stages=2, microbatches=microbatches, steps=1)
    assert bool(late(write_dumps(tmp_path, dumps)).document.pipelines) is found
