"""What a recording lacks: only what really is missing."""

from __future__ import annotations

import gzip
import json
import random
import re
from types import SimpleNamespace

import polars as pl
import pytest
from rich.console import Console

from docsite.finding_examples import example_of
from tests.kept import analysis_of, diagnosis_of
from tracekit import analyze, diagnose
from tracekit.errors import Notice
from tracekit.findings.recording import UnexplainedIdle, WaitingUnknown
from tracekit.report.notices import notice_sentence
from tracekit.schema import ProcessGroup, Source

pytestmark = pytest.mark.usefixtures("measured_once")


def context(
    *, wait_ns=None, ranks=(0, 1), idle_ranks=(), world_size=2, notices=(), group="g", header=()
):
    """A run with 30 of 100 ns exposed; *header* are the groups that its files list."""
    results = [
        SimpleNamespace(
            rank=rank,
            whole=SimpleNamespace(budget=SimpleNamespace(span_ns=0 if rank in idle_ranks else 9)),
        )
        for rank in ranks
    ]
    sources = tuple(
        Source(f"rank{rank}", "kineto", rank, "name", world_size=world_size, groups=header)
        for rank in ranks
    )
    exposed = SimpleNamespace(exposed_ns={"dp_comm": 30})
    return SimpleNamespace(
        analysis=SimpleNamespace(
            total=SimpleNamespace(wait_ns={"dp_comm": wait_ns}, budget=exposed),
            ranks=results,
            world_size=world_size,
            sources=sources,
            notices=notices,
            tables={"operations": pl.DataFrame({"group": [group]}, schema={"group": pl.String})},
        ),
        step=SimpleNamespace(budget_ns=exposed),
        share=lambda ns: ns / 100,
    )


UNNAMED = Notice("wait-unknown", values={"case": "unnamed"})


@pytest.mark.parametrize(
    ("case", "run"),
    [
        ("ranks", {"ranks": (0,), "world_size": 3}),
        ("gpu_work", {"idle_ranks": (1,)}),
        ("one_rank", {"ranks": (0,), "world_size": None}),
        ("peers", {"notices": (UNNAMED,)}),
        ("groups", {"group": None}),
        ("sides", {"group": None, "header": (ProcessGroup("0", "default_pg", (0, 1)),)}),
        ("sides", {}),
    ],
)
def test_unknown_waits_are_explained_by_what_is_missing(case, run):
    (finding,) = WaitingUnknown.find(context(**run))
    assert (finding.case, finding.cost_ns, finding.saves_ns) == (case, 30, None)


def test_missing_ranks_are_named():
    (finding,) = WaitingUnknown.find(context(ranks=(0,), world_size=3))
    assert finding.ranks == (1, 2)
    assert finding.text() == (
        "0 µs of dp_comm is exposed (no compute beside it); how much of that is waiting is not known: "
        "only 1 of 3 ranks is here"
    )


def test_a_rank_whose_trace_has_no_gpu_work_is_not_missing():
    (finding,) = WaitingUnknown.find(context(idle_ranks=(1,)))
    assert finding.ranks == (1,)
    assert finding.text().endswith("rank 1 has no GPU work in its trace")


def test_known_waits_lack_nothing():
    assert not list(WaitingUnknown.find(context(wait_ns=4)))


def test_one_rank_of_four_lacks_the_others_and_all_four_lack_nothing(samples):
    alone = analyze(samples / "1f1b", ranks=[1])
    assert [finding.case for finding in alone.findings if finding.code == "recording"] == ["ranks"]
    assert not any(
        finding.code == "recording" for finding in analysis_of(samples / "1f1b").findings
    )


SAMPLES = [
    "1f1b",
    "1f1b-noshapes",
    "checkpoint-engine",
    "compile",
    "dualpipe",
    "interleaved",
    "layers",
    "megatron-moe",
    "memory",
    "nsys-1f1b",
    "nsys-meg-1f1b",
    "overlapped",
    "rates",
    "recompute",
    "reload",
    "router",
    "slow-ddp",
    "steps/a",
    "steps/straggler",
    "vpp-overlap",
]
REQUESTS = {
    ("recording", "ranks"): {"missing-ranks"},
    ("recording", "groups"): {"no-groups"},
    ("recording", "gpu_work"): {"no-gpu-events"},
    ("recording", "peers"): {"no-peers", "no-groups"},
    ("exposed_comm", "unknown"): {"no-launches", "no-cpu-ops"},
    ("recording", "idle_host_unknown"): {"no-launches", "no-cpu-ops"},
}
"""Problems of the doctor, one of which a trace has if a finding asks to record something."""
NOT_SEEN_BY_THE_DOCTOR = {
    ("recording", "one_rank"),
    ("recording", "capture"),
    ("recording", "sides"),
    ("recording", "idle"),
}
"""One rank of nobody knows how many, ranks that were recorded at different times, and idle time that
nothing explains."""
STACKS = "with_stack=True"


def requests_not_shared(analysis, diagnosis):
    """Return findings that ask to record what the doctor does not miss."""
    problems = {problem.code for problem in diagnosis.findings}
    for finding in analysis.findings:
        key = (finding.code, finding.case)
        if STACKS in finding.advice and "stacks-recorded" in problems:
            yield key, STACKS
        asks = finding.code == "recording" or "doctor" in finding.advice
        if asks and key not in NOT_SEEN_BY_THE_DOCTOR and not problems & REQUESTS[key]:
            yield key, sorted(problems)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_no_finding_asks_to_record_what_is_there(samples, name):
    path = samples / name
    assert list(requests_not_shared(analysis_of(path), diagnosis_of(path))) == []


def test_the_doctor_and_the_finding_miss_the_same_ranks(samples):
    paths = [samples / f"1f1b/rank{rank}.pt.trace.json.gz" for rank in (0, 2)]
    (problem,) = diagnose(paths).findings
    (finding,) = [each for each in analyze(paths).findings if each.code == "recording"]
    assert (problem.code, finding.case) == ("missing-ranks", "ranks")
    assert problem.ranks == finding.ranks == (1, 3)


def test_the_doctor_says_what_files_hold_and_lack_alone(samples):
    diagnosis = diagnosis_of(samples / "slow-ddp")
    shown = Console(width=400)
    with shown.capture() as capture:
        shown.print(diagnosis)
    assert "Nothing is missing" in capture.get()
    assert analysis_of(samples / "slow-ddp").findings[0].advice not in capture.get()
    assert diagnosis.to_dict()["step_findings"] is None


def test_idle_time_that_nothing_explains_is_stated(analysis_of_steps):
    """Kernels that wait for each other for 10 of 20 ms although all of them were launched before."""

    def fill(recording, start, _):
        for number in range(10):
            begin = start + 0.2 + 2 * number
            recording.kernel(start + 0.01 + number * 0.01, begin, begin + 1)

    findings = analysis_of_steps(fill).findings
    (unexplained,) = [finding for finding in findings if finding.case == "idle"]
    assert unexplained.evidence["unexplained_ns"] > 0.3 * unexplained.cost_ns / unexplained.share
    assert "the recording does not show why" in unexplained.text


@pytest.mark.parametrize(
    ("unexplained_ms", "says"),
    [
        (4, "no GPU work is recorded for 4.00 ms, and the recording does not show why"),
        (
            1,
            "no GPU work is recorded for 4.00 ms; for 1.00 ms of that the recording does not show why",
        ),
    ],
)
def test_idle_time_is_called_work_that_is_not_known(unexplained_ms, says):
    """It may be time that the recording lacks; what is unexplained is given only where it is less."""
    unexplained_ns = unexplained_ms * 1_000_000
    finding = UnexplainedIdle(
        cost_ns=unexplained_ns,
        share=0.1,
        idle_ns=4_000_000,
        unexplained_ns=unexplained_ns,
        steps_marked=True,
    )
    assert finding.text() == says


def test_idle_time_that_the_host_explains_is_not_stated_again(analysis_of_steps):
    def fill(recording, start, _):
        recording.op(
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", start, start + 9
        )
        for number in range(10):
            begin = start + 9.1 + number
            recording.kernel(start + 9.05 + number * 0.01, begin, begin + 1)

    findings = analysis_of_steps(fill, period=19.1).findings
    assert not [finding for finding in findings if finding.case.startswith("idle")]


@pytest.mark.parametrize(("captured", "is_capture"), [(30, True), (2, False)])
def test_a_recording_of_a_capture_says_nothing_of_steps(analysis_of_steps, captured, is_capture):
    """The GPU waits while the host records a graph: no reason to launch less, or to use graphs."""

    def fill(recording, start, _):
        for number in range(3):
            launch = start + 0.1 + 0.2 * number
            recording.kernel(launch, launch + 0.05, launch + 0.1)
        recording.call("cudaStreamBeginCapture", start + 1, start + 1.01)
        for number in range(captured):
            launch = start + 1.1 + 0.5 * number
            correlation = round(1000 * (start + 1)) + number + 100_000
            recording.call("cudaLaunchKernel", launch, launch + 0.4, correlation=correlation)
        recording.call("cudaStreamEndCapture", start + 18, start + 18.01)
        recording.kernel(start + 18.5, start + 18.6, start + 18.7)

    findings = analysis_of_steps(fill).findings
    cases = [(finding.code, finding.case) for finding in findings]
    assert (("recording", "capture") in cases) == is_capture
    if is_capture:
        assert cases == [("recording", "capture")]
        assert "120 launches recorded a graph" in findings[0].text
        assert "--capture" in findings[0].advice


@pytest.mark.parametrize(
    "name",
    [
        "vllm_decode_full-graph_capture_rank_0.pt.trace.json.gz",
        "vllm_piecewise-graph_capture_rank_0.pt.trace.json.gz",
        "sglang_decode-capture_bs32_rank0.json.gz",
    ],
)
def test_recordings_of_captures_by_servers_are_known(corpus, name):
    findings = analyze(corpus / "captures" / name).findings
    assert [finding.case for finding in findings if finding.matters] == ["capture"]


def without_launches(source, folder, *, share, keeps_operators):
    """Write the traces of *source* without the calls of a share of the launches, drawn by their number."""
    for file in sorted(source.glob("rank*.json.gz")):
        trace = json.loads(gzip.decompress(file.read_bytes()))
        events = []
        for event in trace["traceEvents"]:
            arguments = event.get("args", {})
            is_launch = re.search("Launch|Memcpy|Memset", event.get("name", "")) is not None
            is_call = is_launch and event.get("cat") in ("cuda_runtime", "cuda_driver")
            number = arguments.get("correlation", event.get("id"))
            is_drawn = random.Random(f"{file.name} {number}").random() < share
            if is_drawn and (is_call or event.get("cat") == "ac2g"):
                continue
            if not keeps_operators and event.get("cat") in ("kernel", "gpu_memset", "gpu_memcpy"):
                arguments.pop("External id", None)
            events.append(event)
        trace["traceEvents"] = events
        (folder / file.name).write_bytes(gzip.compress(json.dumps(trace).encode(), 1))


def test_without_launches_and_operators_no_saving_is_stated(samples, tmp_path):
    without_launches(samples / "slow-ddp", tmp_path, share=0.3, keeps_operators=False)
    analysis = analyze(tmp_path)
    (notice,) = [notice for notice in analysis.notices if notice.code == "no-launches"]
    assert notice.values["case"] == "by_time"
    assert notice.ranks == (0, 1, 2, 3)
    assert "is not in the file" in notice_sentence(notice)
    saved = [(finding.saves_ns, finding.saves_range_ns) for finding in analysis.findings]
    assert len(saved) >= 2
    assert set(saved) == {(None, None)}
    problems = {problem.code: problem for problem in diagnose(tmp_path).findings}
    assert "is not in the file" in problems["no-launches"].problem
    assert "profile(" in problems["no-launches"].fix


def test_operators_stand_in_for_launches_that_are_not_there(samples, tmp_path):
    without_launches(samples / "slow-ddp", tmp_path, share=0.3, keeps_operators=True)
    analysis = analyze(tmp_path)
    (notice,) = [notice for notice in analysis.notices if notice.code == "no-launches"]
    assert notice.values["case"] == "by_operator"
    whole = analysis_of(samples / "slow-ddp")
    saved = [(finding.code, finding.saves_ns) for finding in analysis.findings]
    assert saved == [(finding.code, finding.saves_ns) for finding in whole.findings]
    assert not [notice for notice in whole.notices if notice.code == "no-launches"]


@pytest.mark.parametrize(("offset_us", "is_found"), [(0, False), (0.5, True)])
def test_idle_time_within_the_resolution_of_the_times_is_no_finding(tmp_path, offset_us, is_found):
    # Between two kernels of 9 us lies 1 us: in whole microseconds that may be rounding, in finer times it is not.
    events = []
    for number in range(200):
        place = {"ph": "X", "dur": 2, "args": {"correlation": number}}
        call = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
        events.append({**place, **call, "ts": 100 + 3 * number})
        args = {"correlation": number, "device": 0, "stream": 7}
        kernel = {"cat": "kernel", "name": "k", "pid": 0, "tid": 7, "args": args}
        start = 1_000 + 10 * number + offset_us
        events.append({**place, **kernel, "ts": start, "dur": 9})
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    cases = [finding.case for finding in analyze(path).findings if finding.code == "recording"]
    assert bool(cases) == is_found


def idle_context(
    *,
    free_idle_ns=None,
    has_host_calls=True,
    has_stacks=False,
    has_unread_stacks=False,
    has_doubtful_clock=False,
    found=(),
    **total,
):
    """A step of 1,000 ns, 100 of them idle."""
    known = {"pipeline": False, "idle_known": True, **total}
    free_budget = None if free_idle_ns is None else SimpleNamespace(idle_ns=free_idle_ns)
    return SimpleNamespace(
        analysis=SimpleNamespace(
            total=SimpleNamespace(**known),
            role_results=SimpleNamespace(roles=known.pop("roles", ())),
            tables={"steps": pl.DataFrame({"rank": [0], "start_ns": [1], "end_ns": [1_002]})},
        ),
        step=SimpleNamespace(
            budget_ns=SimpleNamespace(idle_ns=100), free_budget_ns=free_budget, marked=True
        ),
        has_host_calls=has_host_calls,
        has_stacks=has_stacks,
        has_unread_stacks=has_unread_stacks,
        found=found,
        captured_launches=0,
        has_doubtful_clock=has_doubtful_clock,
        share=lambda ns: ns / 1_000,
    )


def host_finding(code, cost_ns):
    return example_of(code, cost_ns=cost_ns, share=cost_ns / 1_000)


@pytest.mark.parametrize(
    ("context", "findings", "stated"),
    [
        ({}, [], ("idle", 100)),
        ({"has_host_calls": False}, [], ("idle_host_unknown", 100)),
        ({"has_stacks": True}, [], ("idle_with_stacks", 100)),
        ({"has_unread_stacks": True}, [], ("idle_with_stacks", 100)),
        ({}, [host_finding("compile", 49)], ("idle", 51)),
        ({}, [host_finding("compile", 50)], None),  # a twentieth of the step is left
        ({}, [host_finding("compile", 200)], None),
        ({}, [host_finding("slow_kernel", 90)], ("idle", 100)),  # not about the host
        ({"pipeline": True}, [], None),
        ({"roles": ("actor",)}, [], None),
        ({"idle_known": False}, [], None),
        ({"has_doubtful_clock": True}, [], None),  # its notice says so
        ({"free_idle_ns": 51}, [], ("idle", 51)),  # without the profiler
        ({"free_idle_ns": 50}, [], None),
    ],
)
def test_idle_time_beyond_a_twentieth_that_no_finding_explains_is_stated(context, findings, stated):
    found = list(UnexplainedIdle.find(idle_context(**context, found=findings)))
    assert [(finding.case, finding.cost_ns) for finding in found] == (
        [] if stated is None else [stated]
    )


def source(**facts):
    return Source("rank0.json", "kineto", 0, "name", **facts)


def test_of_65_ranks_without_a_trace_64_are_named():
    result = SimpleNamespace(rank=0, whole=SimpleNamespace(budget=SimpleNamespace(span_ns=100)))
    budget = SimpleNamespace(exposed_ns={"dp_comm": 10})
    analysis = SimpleNamespace(
        total=SimpleNamespace(wait_ns={"dp_comm": None}, budget=budget),
        sources=[source(world_size=66)],
        world_size=66,
        ranks=[result],
        notices=(),
        tables={"operations": pl.DataFrame({"group": ["0"]})},
    )
    context = SimpleNamespace(
        analysis=analysis, step=SimpleNamespace(budget_ns=budget), share=lambda ns: ns / 100
    )
    (finding,) = WaitingUnknown.find(context)
    assert (finding.case, finding.ranks) == ("ranks", tuple(range(1, 65)))
