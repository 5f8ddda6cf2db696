"""Steps that stand out: what they do that the others do not."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest

from tests.findings.conftest import Recording
from tracekit import analyze
from tracekit.documents.analysis import StepTime, Straggler
from tracekit.findings.steps import DelayedDecode, SlowStep, cause_in_step, late_ranks_of_step
from tracekit.report.step_words import unusual_steps
from tracekit.report.terminal.first_screen import first_screen

MS = 1_000_000
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
SLOW = 3
"""Number of the slow step among six."""


def train(recording, start, *, forward=10, backward=10, from_ms=0.1):
    """Kernels of 0.5 ms: a forward and the backward that the autograd engine launches for it."""
    launch = start + from_ms
    ready = launch + 0.02
    for number in range(forward):
        args = {"Sequence number": 1000 * int(start) + number, "Fwd thread id": 0}
        recording.kernel(launch, ready, ready + 0.5, op="aten::mm", args=args)
        launch += 0.05
        ready += 0.5
    for number in reversed(range(backward)):
        sequence = {"Sequence number": 1000 * int(start) + number, "Fwd thread id": 1}
        node = "autograd::engine::evaluate_function: MmBackward0"
        recording.op(node, launch - 0.01, launch + 0.02, **sequence)
        recording.op("MmBackward0", launch - 0.008, launch + 0.018, **sequence)
        recording.kernel(launch, ready, ready + 0.5, op="aten::mm")
        launch += 0.05
        ready += 0.5
    return ready


@pytest.fixture
def slow_step_of(tmp_path):
    """Return the finding about the one step of six that takes *extra* ms longer because of ``slow_step``."""

    def find(slow_step, *, period=12.0, extra=20.0):
        recording = Recording()
        start = 0.0
        for number in range(6):
            end = start + period + (extra if number == SLOW else 0)
            recording.step(number, start, end)
            recording.op("loop", start + 0.001, end - 0.001)
            work_end = train(recording, start)
            if number == SLOW:
                slow_step(recording, work_end)
            start = end
        recording.write(tmp_path)
        return next(
            (finding for finding in analyze(tmp_path).findings if finding.code == "slow_step"), None
        )

    return find


def copies(length, name="Memcpy DtoH (Device -> Pageable)"):
    """Five copies that hold the host for *length* ms together."""

    def slow_step(recording, end):
        for number in range(5):
            begin = end + 1 + number * length / 5
            recording.copy(
                begin, begin + 0.9 * length / 5, begin + 0.01, begin + 0.8 * length / 5, name=name
            )

    return slow_step


def evaluation(count):
    def slow_step(recording, end):
        train(recording, end, forward=count, backward=0)

    return slow_step


def call(name, length):
    def slow_step(recording, end):
        recording.call(name, end + 1, end + 1 + length)

    return slow_step


def test_a_slow_steps_cost_is_its_excess_divided_by_the_recorded_steps(slow_step_of):
    finding = slow_step_of(copies(15))
    assert (finding.case, finding.steps) == ("checkpoint", (SLOW,))
    assert finding.cost_ns == pytest.approx(20 * MS / 6, rel=0.03)
    assert finding.saves_ns == finding.cost_ns
    assert finding.evidence["excess_ns"] == pytest.approx(20 * MS, rel=0.03)
    assert finding.evidence["copies_to_host"] == 5


def test_the_share_of_a_slow_step_is_of_what_the_run_spends_on_a_step(slow_step_of):
    """Six steps of 12 ms, one of which takes 200 ms longer: 33 of 45 ms, not of 12."""
    finding = slow_step_of(copies(150), extra=200.0)
    assert finding.share == pytest.approx(200 / (6 * 12 + 200), rel=0.03)


def test_steps_that_alternate_are_said_to(tmp_path):
    """Every other of six steps works twice as long."""
    recording = Recording()
    start = 0.0
    for number in range(6):
        length = 24.0 if number % 2 else 12.0
        recording.step(number, start, start + length)
        work_end = train(recording, start)
        if number % 2:
            train(recording, work_end + 0.1)
        start += length
    recording.write(tmp_path)
    analysis = analyze(tmp_path)
    short_ns, long_ns = analysis.to_dict()["step"]["in_turn_ns"]
    assert long_ns == pytest.approx(2 * short_ns, rel=0.15)
    screen = [line.plain for line in first_screen(analysis, 100)]
    assert any("steps take" in line and "in turn" in line for line in screen)


@pytest.mark.parametrize(
    ("slow", "said"), [(0, "step 0 takes 60.0 ms (the first)"), (4, "step 4 takes 60.0 ms")]
)
def test_what_only_the_first_or_the_last_step_does_may_be_start_or_end_and_no_finding(
    slow, said, tmp_path
):
    recording = Recording()
    start = 0.0
    for number in range(5):
        end = start + (60.0 if number == slow else 12.0)
        recording.step(number, start, end)
        work_end = train(recording, start)
        if number == slow:
            recording.call("cudaMalloc", work_end + 1, end)
        start = end
    recording.write(tmp_path)
    analysis = analyze(tmp_path)
    assert [step.step for step in analysis.step.unusual] == [slow]
    assert "slow_step" not in {finding.code for finding in analysis.findings}
    assert said in unusual_steps(analysis.step)


def test_the_parts_of_a_free_step_are_those_of_an_ordinary_one(tmp_path):
    """Five steps compute for 10 ms each; one of them is idle for 100 ms more, which an ordinary one is not."""
    recording = Recording()
    start = 0.0
    for number in range(5):
        end = start + (112.0 if number == SLOW else 12.0)
        recording.step(number, start, end)
        train(recording, start)
        start = end
    recording.write(tmp_path)
    step = analyze(tmp_path).step
    assert step.free_budget_ns.compute_ns == pytest.approx(10 * MS, rel=0.1)


def test_steps_whose_gpu_work_overlaps_take_no_longer_together_than_the_recording(tmp_path):
    """Each of three steps waits 19.5 ms for its batch while 5 ms of the step before still run.

    The GPU's own marks of the steps overlap: a copy on another stream begins each.
    """
    recording = Recording()
    for number in range(3):
        start = 30.0 * number
        recording.step(number, start, start + 30.0)
        recording.copy(start + 0.1, start + 0.2, start + 0.2, start + 0.3, stream=20)
        recording.op(LOADER, start + 0.5, start + 20.0)
        work_end = train(recording, start, forward=15, backward=15, from_ms=20.1)
        recording.add(
            "gpu_user_annotation", f"ProfilerStep#{number}", start + 0.2, work_end, pid=0, tid=7
        )
    recording.write(tmp_path)
    analysis = analyze(tmp_path)
    steps = analysis.tables["steps"].sort("interval_start_ns")
    ends, starts = steps["interval_end_ns"].to_list(), steps["interval_start_ns"].to_list()
    assert all(end <= start for end, start in zip(ends, starts[1:], strict=False))
    assert steps["time_ns"].sum() <= work_end * MS
    times_ns = [step.time_ns for step in analysis.step.per_step]
    assert times_ns[1:] == pytest.approx([30 * MS, 35 * MS], rel=0.02)
    # Of each wait the GPU is idle from the end of the work before it on.
    loading = next(finding for finding in analysis.findings if finding.code == "data_loading")
    assert loading.cost_ns <= 19.5 * MS
    host_time = analysis.tables["host_time"].filter(pl.col("code") == "data_loading")
    assert host_time["host_ns"].sum() <= 3 * 19.5 * MS


@pytest.mark.parametrize(("length", "is_checkpoint"), [(2.5, True), (2.0, False)])
def test_copies_to_the_host_explain_a_slow_step_from_a_tenth_of_its_excess_on(
    slow_step_of, length, is_checkpoint
):
    assert (slow_step_of(copies(length)).case == "checkpoint") is is_checkpoint


def test_copies_to_the_gpu_are_no_checkpoint(slow_step_of):
    assert slow_step_of(copies(15, "Memcpy HtoD (Pageable -> Device)")).case == "pageable_copy"


def test_copies_to_the_host_in_every_step_are_no_slow_step(analysis_of_steps):
    def fill(recording, start, _):
        end = train(recording, start)
        recording.copy(end, end + 1, end + 0.1, end + 0.9, name="Memcpy DtoH (Device -> Pageable)")

    assert all(
        finding.code != "slow_step" for finding in analysis_of_steps(fill, period=14.0).findings
    )


@pytest.mark.parametrize(("more", "is_evaluation"), [(8, True), (3, False)])
def test_half_as_many_forward_kernels_more_are_an_evaluation(slow_step_of, more, is_evaluation):
    assert (slow_step_of(evaluation(more)).case == "evaluation") is is_evaluation


def test_as_much_more_backward_is_no_evaluation(slow_step_of):
    assert slow_step_of(lambda recording, end: train(recording, end + 0.1)).case != "evaluation"


@pytest.mark.parametrize(
    ("name", "case"), [("cudaMalloc", "allocator"), ("cudaDeviceSynchronize", "host_sync")]
)
def test_what_the_host_does_longer_is_the_cause(slow_step_of, name, case):
    finding = slow_step_of(call(name, 15.0))
    assert finding.case == case
    assert finding.evidence["extra_ns"] == pytest.approx(15 * MS, rel=0.02)


@pytest.mark.parametrize(("extra_ns", "case"), [(100, "allocator"), (99, "unknown")])
def test_what_the_host_does_longer_explains_a_slow_step_from_a_tenth_of_its_excess_on(
    extra_ns, case
):
    """The step takes 1,000 ns longer."""
    scope = SimpleNamespace(
        extra_copies_to_host=lambda: 0,
        extra_host_time=lambda: {"allocator": extra_ns, "python": 7},
        events=lambda label: 10,
        usual_events=lambda label: 10,
        backward_events=lambda: (10, 10),
        context=SimpleNamespace(is_inference=False),
    )
    assert cause_in_step(scope, 1_000)[0].case == case


def test_a_step_a_fifth_longer_does_not_stand_out(slow_step_of):
    assert slow_step_of(call("cudaMalloc", 1.0), extra=2.4) is None


def context_of_ranks(*, late_step, late_ns, host_time):
    """Two ranks, six steps of 100 ms of which step 4 takes 300; *host_time* by rank, step and activity, in ms."""
    steps = [StepTime(number, (300 if number == 4 else 100) * MS) for number in range(6)]
    rows = [
        {"rank": rank, "step": step, "code": code, "host_ns": ms * MS, "name": name, "count": 5}
        for (rank, step, code, name), ms in host_time.items()
    ]
    tables = {
        "host_time": pl.DataFrame(rows),
        "host_places": pl.DataFrame(
            schema=["rank", "step", "start_ns", "end_ns", "name", "source", "idle_ns"]
        ),
    }
    late = Straggler(
        0, "dp_comm", late_ns, 1, steps=[late_step], late_ns=late_ns, late_ns_by_step=[late_ns]
    )
    return SimpleNamespace(
        analysis=SimpleNamespace(
            tables=tables,
            ranks=(),
            step_kinds=(),
            stragglers=(late,),
        ),
        is_inference=False,
        step=SimpleNamespace(time_ns=100 * MS, per_step=tuple(steps), unusual=(steps[4],)),
        usual_steps=frozenset(number for number in range(6) if number != 4),
        share=lambda ns: ns / (100 * MS),
    )


CHECKPOINT = {
    (0, 3, "pageable_copy", "Memcpy DtoH (Device -> Pageable)"): 60,
    (0, 3, "python", "loop"): 140,
    (1, 4, "host_sync", "cudaEventSynchronize"): 200,
}
"""Rank 0 writes a checkpoint at the end of step 3, and rank 1 waits for it in step 4."""


def test_a_slow_step_is_explained_by_what_the_late_rank_did_before_it():
    [finding] = SlowStep.find(context_of_ranks(late_step=4, late_ns=200 * MS, host_time=CHECKPOINT))
    assert (finding.case, finding.ranks, finding.steps) == ("checkpoint", (0,), (4,))
    assert finding.text().endswith("(checkpoint); the others wait for rank 0")


@pytest.mark.parametrize(
    ("late_step", "late_ms", "ranks"),
    [(4, 25, (0,)), (4, 15, ()), (2, 200, ())],
    ids=["an eighth of the excess", "a thirteenth", "another step"],
)
def test_a_rank_that_is_late_for_a_tenth_of_the_excess_or_more_explains_it(
    late_step, late_ms, ranks
):
    [finding] = SlowStep.find(
        context_of_ranks(late_step=late_step, late_ns=late_ms * MS, host_time=CHECKPOINT)
    )
    assert finding.ranks == ranks
    assert (finding.case == "checkpoint") is bool(ranks)


@pytest.mark.parametrize(
    ("row", "is_late"),
    [
        ({}, True),
        ({"late_ns_by_step": (500, 99)}, False),  # less than a tenth of the excess, in this step
        ({"uncertain": True}, False),
        ({"label": "pp_comm"}, False),
        ({"steps": (4, 6)}, False),
    ],
)
def test_ranks_that_come_a_tenth_of_the_excess_late_are_waited_for(row, is_late):
    usual = {
        "rank": 3,
        "uncertain": False,
        "label": "dp_comm",
        "steps": (4, 5),
        "late_ns_by_step": (0, 100),
    }
    rows = [SimpleNamespace(**{**usual, **row})]
    context = SimpleNamespace(analysis=SimpleNamespace(stragglers=rows))
    assert late_ranks_of_step(context, SimpleNamespace(step=5), 1_000) == ((3,) if is_late else ())


def scope_of(*, copied=0, host_ns=None, forward=(10, 10), backward=(10, 10), is_inference=False):
    return SimpleNamespace(
        extra_copies_to_host=lambda: copied,
        extra_host_time=lambda: host_ns or {},
        events=lambda label: forward[0],
        usual_events=lambda label: forward[1],
        backward_events=lambda: backward,
        context=SimpleNamespace(is_inference=is_inference),
    )


@pytest.mark.parametrize(
    ("scope", "case"),
    [
        ({}, "unknown"),
        ({"copied": 1, "host_ns": {"pageable_copy": 60, "python": 40}}, "checkpoint"),
        ({"copied": 1, "host_ns": {"pageable_copy": 59, "python": 40}}, "unknown"),
        ({"copied": 0, "host_ns": {"pageable_copy": 100}}, "pageable_copy"),
        ({"copied": 1, "host_ns": {"python": 100}, "is_inference": True}, "python"),
        ({"forward": (15, 10)}, "evaluation"),
        ({"forward": (14, 10)}, "unknown"),
        ({"forward": (15, 10), "backward": (15, 10)}, "unknown"),  # more of all: a longer batch
        ({"forward": (15, 10), "backward": (14, 10)}, "evaluation"),
        ({"forward": (15, 10), "is_inference": True}, "unknown"),
        ({"forward": (15, 0)}, "unknown"),  # the others have none
        ({"host_ns": {"loader": 99, "python": 100}}, "python"),
        ({"host_ns": {"loader": 99, "python": 98}}, "unknown"),
    ],
)
def test_what_a_step_of_1000_ns_more_did_beside_the_others(scope, case):
    assert cause_in_step(scope_of(**scope), 1_000)[0].case == case


@pytest.mark.parametrize(
    ("kind", "is_found"),
    [
        ({}, True),
        ({"delay_ns": 199}, False),  # less than twice the time between steps
        ({"delay_ns": None}, False),
        ({"interval_ns": None, "time_ns": 100}, True),
        ({"interval_ns": None, "time_ns": 101}, False),
        ({"kind": "prefill"}, False),
    ],
)
def test_sequences_that_wait_twice_as_long_as_a_step_of_decode_are_a_finding(kind, is_found):
    """Three steps of ten wait for 200 ns: 60 ns of each."""
    usual = {
        "kind": "decode",
        "steps": 7,
        "time_ns": 50,
        "interval_ns": 100,
        "delay_ns": 200,
        "delayed_steps": 3,
    }
    context = SimpleNamespace(
        analysis=SimpleNamespace(step_kinds=[SimpleNamespace(**{**usual, **kind})]),
        step=SimpleNamespace(per_step=[None] * 10),
        share=lambda ns: ns / 1_000,
    )
    found = list(DelayedDecode.find(context))
    assert [(finding.cost_ns, finding.share) for finding in found] == [(60, 0.06)] * is_found
