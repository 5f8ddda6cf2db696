"""What the host does while the GPU is idle: steps of 20 ms whose every idle millisecond can be counted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import polars as pl
import pytest

from tests.findings.conftest import Recording
from tests.written_findings import written
from tracekit import analyze, ingest, load
from tracekit.documents.analysis import ChangedStep
from tracekit.documents.findings import Place
from tracekit.findings import host
from tracekit.graph.change import parse_change
from tracekit.metrics.host.time_by_activity import MAX_PLACES
from tracekit.report.findings import bound_sign, finding_line, per_words
from tracekit.report.terminal.explain import explain_finding

MS = 1_000_000
ONE_PERCENT = 0.01
SINGLE_LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
LOADER_WITH_WORKERS = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


def launch_ten(recording, start, *, first=10.0):
    """Ten kernels of 1 ms one behind the other, all launched within half a millisecond from *first* on."""
    for number in range(10):
        begin = start + first + 0.01 + number
        recording.kernel(start + first + number * 0.05, begin, begin + 0.99)


def stopped_host(name, add="op"):
    """Return a step whose host is in *name* for 9.8 ms before it launches a backward: the GPU is idle meanwhile."""

    def fill(recording, start, _):
        getattr(recording, add)(name, start + 0.1, start + 9.9)
        recording.op("autograd::engine::evaluate_function: MmBackward0", start + 9.9, start + 10.6)
        launch_ten(recording, start)

    return fill


def host_beside_gpu(name, add="op"):
    """Return a step whose host is in *name* for as long, after it has launched: the GPU works meanwhile."""

    def fill(recording, start, _):
        for number in range(19):
            begin = start + 0.2 + number
            recording.kernel(
                start + 0.01 + number * 0.03, begin, begin + (1 if number < 18 else 1.79)
            )
        getattr(recording, add)(name, start + 2.0, start + 11.8)

    return fill


STOPS = {
    "compile": ("dynamo_timed: entire_frame_compile", "op"),
    "data_loading": (SINGLE_LOADER, "op"),
    "unused_parameters": ("torch.distributed.ddp.reducer::search_unused_parameters", "op"),
    "allocator": ("cudaMalloc", "call"),
    "host_compute": ("aten::_fused_adam_", "op"),
    "host_sync": ("cudaStreamSynchronize", "call"),
}


@pytest.mark.parametrize("code", STOPS)
def test_idle_time_belongs_to_what_the_host_does_and_its_end_is_the_saving(findings_of, code):
    finding = findings_of(stopped_host(*STOPS[code]))[code]
    assert finding.cost_ns == pytest.approx(9.8 * MS, rel=0.02)
    parts_ns = finding.evidence["idle_ns"] + finding.evidence["idle_after_ns"]
    assert finding.cost_ns == pytest.approx(parts_ns, abs=2)
    assert finding.share == pytest.approx(0.49, rel=0.02)
    assert finding.saves_ns == pytest.approx(9.8 * MS, rel=0.02)
    assert finding.evidence["calls_per_step"] == 1
    assert finding.where[0].name == STOPS[code][0]
    # The place ends where the GPU works again: 0.11 ms after the host does.
    assert finding.where[0].end_ns - finding.where[0].start_ns == pytest.approx(
        9.91 * MS, rel=0.005
    )


@pytest.mark.parametrize("code", STOPS)
def test_what_the_host_does_beside_a_busy_gpu_costs_nothing(findings_of, code):
    findings = findings_of(host_beside_gpu(*STOPS[code]))
    assert code not in findings or findings[code].share < ONE_PERCENT


def test_a_loader_with_workers_is_told_from_one_without(findings_of):
    assert findings_of(stopped_host(SINGLE_LOADER))["data_loading"].case == "no_workers"
    assert findings_of(stopped_host(LOADER_WITH_WORKERS))["data_loading"].case == "workers"


def batches_from_workers(waited):
    """Steps whose batch the main process builds itself once it waited, of tensors that the workers hand over."""

    def fill(recording, start, _):
        asked = start + 0.1
        came = asked + waited
        recording.annotation(LOADER_WITH_WORKERS, asked, came + 0.8)
        for tensor in (0, 0.4):
            recording.op("aten::set_", came + tensor + 0.3, came + tensor + 0.31)
        launch_ten(recording, start, first=came - start + 0.9)

    return fill


def test_batches_that_were_there_are_taken_over_and_not_waited_for(findings_of):
    taken = findings_of(batches_from_workers(0.5))["data_loading"]
    assert taken.case == "taken_over"
    assert "1.30 ms" in taken.text
    assert taken.saves_ns <= 1.3 * MS * 1.02
    assert "pin_memory" in taken.advice
    waited = findings_of(batches_from_workers(6))["data_loading"]
    assert waited.case == "workers"
    assert waited.cost_ns == pytest.approx(6.8 * MS, rel=0.03)


def short_wait_of_a_host_that_the_profiler_slows(recording, start, _):
    """A wait of 1 ms for a pinned batch, and 3,000 operators among ten launches in the other 19 ms."""
    recording.annotation(LOADER_WITH_WORKERS, start + 0.1, start + 1.1)
    for number in range(10):
        begin = start + 1.2 + number * 1.85
        for operator in range(300):
            recording.op("aten::empty", begin + operator * 0.006, begin + operator * 0.006 + 0.0039)
        recording.kernel(begin + 1.82, begin + 1.83, begin + 1.85)


def test_workers_that_are_too_slow_without_the_profiler_cost_more_than_the_recorded_wait(
    findings_of,
):
    loading = findings_of(short_wait_of_a_host_that_the_profiler_slows)["data_loading"]
    assert loading.case == "workers_pace"
    assert "waits 1.00 ms" in loading.text
    assert "without the profiler" in loading.text
    assert loading.saves_ns > 2 * MS


def test_what_the_host_delays_by_different_times_saves_within_a_range(analysis_of_steps):
    """The main thread prepares batches for 2 ms in two of the steps and for 9 in the others."""

    def fill(recording, start, number):
        prepared = 2 if number in (0, 3) else 9
        recording.op(SINGLE_LOADER, start + 0.1, start + 0.1 + prepared)
        launch_ten(recording, start, first=0.2 + prepared)

    findings = {finding.code: finding for finding in analysis_of_steps(fill).findings}
    least_ns, most_ns = findings["data_loading"].saves_range_ns
    assert least_ns <= 2.1 * MS
    assert most_ns >= 8.5 * MS


def test_a_look_into_the_cache_of_compiled_code_is_no_compilation(findings_of):
    assert "compile" not in findings_of(stopped_host("TorchDynamo Cache Lookup"))


def test_the_first_matching_activity_gets_the_time(findings_of):
    """A loader that allocates GPU memory is a slow loader."""

    def fill(recording, start, _):
        recording.op(SINGLE_LOADER, start + 0.1, start + 9.9)
        recording.call("cudaMalloc", start + 2, start + 8)
        launch_ten(recording, start)

    findings = findings_of(fill)
    assert findings["data_loading"].cost_ns == pytest.approx(9.8 * MS, rel=0.02)
    assert "allocator" not in findings


def test_the_host_in_no_range_is_in_python(findings_of):
    finding = findings_of(lambda recording, start, _: launch_ten(recording, start))["python"]
    assert finding.cost_ns == pytest.approx(10 * MS, rel=0.02)
    assert (finding.case, finding.where[0].name) == ("", None)


def short_stretches(length):
    """Return a step of launches with *length* ms without any range between them.

    Each kernel takes 0.1 ms.
    """

    def fill(recording, start, _):
        count = int(19 / (length + 0.02))
        for number in range(count):
            launch = start + 0.1 + number * (length + 0.02)
            recording.kernel(launch, launch + 0.01, launch + 0.11)

    return fill


def python_before_the_launch(recording, start, _):
    recording.frame("train.py(7): step", start + 0.05, start + 11.0)
    recording.frame("tokens.py(31): encode", start + 0.1, start + 9.9)
    launch_ten(recording, start)


def test_where_stacks_were_recorded_the_function_is_named(findings_of):
    finding = findings_of(python_before_the_launch, stacks=True)["python"]
    assert finding.case == "with_source"
    assert finding.text.endswith("because the CPU runs Python, in tokens.py(31): encode")
    assert [location.source for location in finding.where[:3]] == ["tokens.py(31): encode"] * 3


def test_stacks_that_cannot_be_read_any_more_are_asked_for_and_not_recorded_again(
    analysis_of_steps, tmp_path
):
    analysis = analysis_of_steps(python_before_the_launch)
    (tmp_path / "rank0.pt.trace.json").unlink()
    finding = next(finding for finding in analysis.findings if finding.code == "python")
    assert finding.case == "stacks_not_read"
    assert "with_stack" not in finding.advice


def test_stacks_are_read_when_a_finding_asks_for_them_and_events_are_measured_once(
    analysis_of_steps, monkeypatch
):
    analysis = analysis_of_steps(python_before_the_launch)
    monkeypatch.setattr("tracekit.run.measure.measure_rank", None)  # measuring again would fail
    finding = next(finding for finding in analysis.findings if finding.code == "python")
    assert finding.text.endswith("because the CPU runs Python, in tokens.py(31): encode")
    assert [location.source for location in finding.where[:3]] == ["tokens.py(31): encode"] * 3
    assert "tokens.py(31): encode" in explain_finding(
        analysis, analysis.findings.index(finding) + 1
    )


def test_stacks_in_a_store_are_read_for_a_finding_too(analysis_of_steps, tmp_path):
    analysis_of_steps(python_before_the_launch)
    store = ingest(tmp_path / "rank0.pt.trace.json", tmp_path / "store", stacks=True)
    (finding,) = (one for one in analyze(store.path).findings if one.code == "python")
    assert finding.text.endswith("because the CPU runs Python, in tokens.py(31): encode")


def test_stacks_of_a_trace_in_memory_are_used_at_once(analysis_of_steps, tmp_path):
    analysis_of_steps(python_before_the_launch)
    trace = load(tmp_path / "rank0.pt.trace.json", stacks=True)
    (finding,) = (one for one in analyze(trace).findings if one.code == "python")
    assert finding.text.endswith("because the CPU runs Python, in tokens.py(31): encode")


def test_a_call_that_waits_outside_any_operator_is_named_with_the_function_that_makes_it(
    findings_of,
):
    def fill(recording, start, _):
        for number in range(4):
            begin = start + number * 2.0
            recording.kernel(begin + 0.05, begin + 0.06, begin + 1.0)
            recording.frame("timer.py(12): stop", begin + 0.07, begin + 1.02)
            recording.call("cudaDeviceSynchronize", begin + 0.09, begin + 1.0)
        recording.kernel(start + 8.5, start + 8.51, start + 9.5)

    finding = findings_of(fill, period=11.0)["host_sync"]
    assert finding.case == "explicit"
    assert finding.text.startswith(
        "the CPU stops 4 times a step in cudaDeviceSynchronize, called from timer.py(12): stop;"
    )


def test_half_a_millisecond_without_a_range_is_python_and_less_lies_between_two_launches(
    findings_of,
):
    longer = findings_of(short_stretches(0.55))
    assert longer["python"].cost_ns > 10 * MS
    shorter = findings_of(short_stretches(0.45))
    assert shorter["launch_bound"].cost_ns > 10 * MS
    # What is left is the end of the step.
    assert longer["python"].cost_ns > 5 * shorter["python"].cost_ns


def cpu_operators(length, *, stretch=1.8):
    """Return a step whose host runs operators of *length* ms that launch nothing, and launches every *stretch* ms."""

    def fill(recording, start, _):
        recording.op("loop", start + 0.001, start + 19.999)
        recording.call("cudaEventRecord", start + 0.08, start + 0.09)
        for number in range(int(9 / stretch)):
            begin = start + 0.1 + number * (stretch + 0.03)
            for operator in range(int(stretch / length)):
                recording.op(
                    "aten::mul", begin + operator * length, begin + (operator + 1) * length
                )
            launch = begin + stretch + 0.01
            recording.kernel(launch, launch + 0.01, launch + 0.02)
        launch_ten(recording, start)

    return fill


def test_an_operator_that_launches_nothing_works_on_the_cpu_from_a_fifth_of_a_millisecond_on(
    findings_of,
):
    assert findings_of(cpu_operators(0.22))["host_compute"].cost_ns > 8 * MS
    assert "host_compute" not in findings_of(cpu_operators(0.18))


def test_short_operators_work_on_the_cpu_where_nothing_is_launched_for_two_milliseconds(
    findings_of,
):
    findings = findings_of(cpu_operators(0.05, stretch=2.2))
    assert findings["host_compute"].cost_ns > 8 * MS
    assert findings["host_compute"].evidence["name"] == "aten::mul"
    assert "host_compute" not in findings_of(cpu_operators(0.05, stretch=1.8))


def test_python_between_short_operators_of_the_cpu_is_python(findings_of):
    """100 operators of 0.05 ms with as much Python between them: a loader without its annotation."""

    def fill(recording, start, _):
        for number in range(98):
            begin = start + 0.1 + number * 0.1
            recording.op("aten::remainder", begin, begin + 0.05)
        launch_ten(recording, start)

    findings = findings_of(fill)
    assert findings["host_compute"].cost_ns == pytest.approx(4.9 * MS, rel=0.1)
    assert findings["python"].cost_ns == pytest.approx(4.9 * MS, rel=0.1)
    assert "launch_bound" not in findings or findings["launch_bound"].share < 0.02


def pageable(name):
    """Return a step that copies for 9 ms before it works.

    The call returns when the copy is through.
    """

    def fill(recording, start, _):
        recording.copy(start + 0.1, start + 9.5, start + 0.3, start + 9.3, name=name)
        launch_ten(recording, start)

    return fill


def test_copies_of_pageable_memory_cost_the_copy_and_the_hosts_wait(findings_of):
    finding = findings_of(pageable("Memcpy HtoD (Pageable -> Device)"))["pageable_copy"]
    assert 9 * MS < finding.cost_ns <= 10 * MS
    assert finding.evidence["host_ns"] == pytest.approx(9.4 * MS, rel=0.01)


def pageable_before_a_wait(recording, start, _):
    """The copy's call takes 9.4 ms, the synchronisation behind it 0.02."""
    recording.copy(start + 0.1, start + 9.5, start + 0.3, start + 9.52)
    recording.call("cudaStreamSynchronize", start + 9.51, start + 9.53)
    launch_ten(recording, start)


def test_a_pageable_copy_is_saved_whole_though_a_wait_follows_it(findings_of):
    finding = findings_of(pageable_before_a_wait)["pageable_copy"]
    assert finding.saves_ns == pytest.approx(9.4 * MS, rel=0.05)


def computes_on_the_host(memory):
    """Return a step that copies results to the host for 2 ms, computes there for 5, and copies back for 2."""

    def fill(recording, start, _):
        to_host = f"Memcpy DtoH (Device -> {memory})"
        recording.copy(start + 0.1, start + 2.1, start + 0.2, start + 2.05, name=to_host)
        recording.op("aten::_fused_adam_", start + 2.2, start + 7.2)
        to_gpu = f"Memcpy HtoD ({memory} -> Device)"
        recording.copy(start + 7.3, start + 9.3, start + 7.4, start + 9.25, name=to_gpu)
        launch_ten(recording, start, first=9.4)

    return fill


@pytest.mark.parametrize(("memory", "saved_ms"), [("Pageable", 9), ("Pinned", 5)])
def test_work_that_leaves_the_host_takes_its_pageable_copies_with_it(findings_of, memory, saved_ms):
    finding = findings_of(computes_on_the_host(memory))["host_compute"]
    assert finding.saves_ns == pytest.approx(saved_ms * MS, rel=0.07)


def test_copies_of_pinned_memory_are_exposed_copies_and_not_pageable(findings_of):
    findings = findings_of(pageable("Memcpy HtoD (Pinned -> Device)"))
    assert "pageable_copy" not in findings
    assert findings["exposed_copy"].cost_ns == pytest.approx(9 * MS, rel=0.02)


def test_a_host_that_only_launches_is_the_limit(findings_of):
    """Forty kernels of 0.1 ms, a launch every 0.48 ms: 4 ms of work in 20, some 2 of which recording took."""
    finding = findings_of(short_stretches(0.46))["launch_bound"]
    assert finding.cost_ns == pytest.approx(14 * MS, rel=0.1)
    assert finding.evidence["mean_event_ns"] == pytest.approx(0.1 * MS, rel=0.1)
    assert finding.case == ""


def test_launching_may_save_all_idle_time_of_the_longest_step(findings_of):
    """The kernels of a CUDA graph have not even the gaps that a replay without launching keeps."""
    finding = findings_of(short_stretches(0.46))["launch_bound"]
    least_ns, most_ns = finding.saves_range_ns
    assert least_ns == 0
    assert max(finding.saves_ns, finding.cost_ns) < most_ns < 1.4 * finding.cost_ns
    assert finding.may_save_more
    assert bound_sign(finding) == "~"


def test_a_host_ahead_of_the_gpu_is_not_the_limit(findings_of):
    findings = findings_of(host_beside_gpu("loop"))
    assert "launch_bound" not in findings or findings["launch_bound"].share < ONE_PERCENT


def slow_first_call(dims_of_step):
    """Return a step of twelve calls of an operator, of which the first takes 12 ms on the host."""

    def fill(recording, start, number):
        recording.op("loop", start + 0.001, start + 19.999)
        dims = dims_of_step(number)
        shapes = {} if dims is None else {"Input Dims": [dims]}
        for call in range(12):
            begin = start + 12.5 + call * 0.4
            end = begin + 0.05
            if call == 0:
                begin, end = start + 0.2, start + 12.2
            recording.op("aten::attend", begin, end, **shapes)
            recording.kernel(end - 0.03, end + 0.01, end + 0.02, op=None)

    return fill


def test_an_operator_that_is_slow_on_each_new_shape_is_named(analysis_of_steps):
    analysis = analysis_of_steps(slow_first_call(lambda number: [1, 80 + number, 64]))
    (finding,) = [finding for finding in analysis.findings if finding.code == "launch_bound"]
    assert finding.evidence["new_shapes_op"] == "aten::attend"
    assert finding.evidence["new_shapes_ns"] == pytest.approx(12 * MS, rel=0.15)
    predicted = analysis.graph.predict([parse_change("known shapes")])
    assert predicted.saves_ns == finding.evidence["new_shapes_ns"]
    assert (finding.case, finding.change) == ("new_shapes", "known shapes")
    assert "a plan is built for each new shape: aten::attend" in finding.text
    assert "few different shapes" in finding.advice


def test_an_operator_that_is_slow_on_new_shapes_of_the_first_step_alone_is_not_named(findings_of):
    """What is slow on every shape when it first runs is started up, not met by new shapes in each step."""

    def fill(recording, start, number):
        recording.op("loop", start + 0.001, start + 19.999)
        for call in range(12):
            begin = start + 0.2 + call * 0.4
            end = begin + 0.05
            if call >= 2:
                begin, end = begin + 11, end + 11
            elif number == 0:
                begin, end = start + 0.2 + call * 6, start + 6 + call * 6
            dims = [1, 80 + call % 2, 64]
            recording.op("aten::attend", begin, end, **{"Input Dims": [dims]})
            recording.kernel(end - 0.03, end + 0.01, end + 0.02, op=None)

    assert "new_shapes_op" not in findings_of(fill)["launch_bound"].evidence


@pytest.mark.parametrize("dims_of_step", [lambda _: [1, 80, 64], lambda _: None])
def test_a_slow_operator_whose_shapes_are_equal_or_unknown_is_not_said_to_meet_new_ones(
    findings_of, dims_of_step
):
    finding = findings_of(slow_first_call(dims_of_step))["launch_bound"]
    assert "new_shapes_op" not in finding.evidence
    assert "shape" not in finding.text + finding.advice


def slow_after_sync(sync_ms):
    """Return a step that waits *sync_ms* for one kernel, then launches a short kernel every millisecond."""

    def fill(recording, start, _):
        recording.op("loop", start + 0.001, start + 19.999)
        recording.kernel(start + 0.05, start + 0.06, start + sync_ms)
        recording.call("cudaStreamSynchronize", start + 0.07, start + sync_ms)
        launch = sync_ms + 0.5
        while launch < 19.5:
            recording.kernel(start + launch, start + launch + 0.005, start + launch + 0.015)
            launch += 1.0

    return fill


def test_idle_time_after_a_synchronisation_is_its_cost_unless_the_host_alone_is_slow(findings_of):
    """The host needs 15 ms of its own beside 5.1 ms of GPU work, or 15.5 beside 4.6.

    Even if it took a sixth less, it would be slower than the GPU by 47 % of its idle time, or by 51
    %.
    """
    shared = findings_of(slow_after_sync(5.0))
    assert shared["host_sync"].cost_ns > 4.5 * MS
    alone = findings_of(slow_after_sync(4.5))
    assert "host_sync" not in alone or alone["host_sync"].share < ONE_PERCENT
    assert alone["launch_bound"].cost_ns > 13 * MS


@pytest.mark.parametrize("sync_ms", [4.5, 5.0])
def test_idle_time_that_is_left_without_a_synchronisation_is_launching(findings_of, sync_ms):
    """The GPU works for *sync_ms* and 0.01 ms for each of the launches behind it: all else of 20 ms is idle."""
    findings = findings_of(slow_after_sync(sync_ms))
    costs = [findings[code].cost_ns for code in ("host_sync", "launch_bound") if code in findings]
    work_ms = sync_ms - 0.06 + 0.01 * 15
    assert sum(costs) == pytest.approx((20 - work_ms) * MS, rel=0.07)


def after_sync_with_lead(lead_ms):
    """Return a step: a synchronisation, one launch *lead_ms* before its kernel starts, then idle time of 8 ms."""

    def fill(recording, start, _):
        recording.op("loop", start + 0.001, start + 19.999)
        recording.kernel(start + 0.02, start + 0.03, start + 4.0)
        recording.call("cudaStreamSynchronize", start + 0.05, start + 5.0)
        recording.kernel(start + 5.1, start + 5.2, start + 6.5)
        recording.kernel(start + 6.5 - lead_ms, start + 6.5, start + 9.0)
        recording.kernel(start + 17.0, start + 17.01, start + 19.99)

    return fill


def test_loading_costs_no_more_than_the_time_spent_in_it(findings_of):
    """A batch is there after 0.1 ms; then the host launches a short kernel every 0.4 ms and is never ahead."""

    def fill(recording, start, _):
        recording.op("loop", start + 0.001, start + 19.999)
        recording.op(LOADER_WITH_WORKERS, start + 0.1, start + 0.2)
        for number in range(24):
            launch = start + 0.3 + number * 0.4
            recording.kernel(launch, launch + 0.01, launch + 0.2)
        recording.kernel(start + 9.95, start + 9.96, start + 19.95)

    findings = findings_of(fill)
    assert "data_loading" not in findings or findings["data_loading"].cost_ns <= 0.1 * MS
    assert findings["launch_bound"].cost_ns > 4 * MS


def many_small_waits_and_a_long_one(recording, start, _):
    """Nine values read in 0.02 ms each, and one call outside any operator that waits 4 ms."""
    recording.op("loop", start + 0.001, start + 1.4)
    recording.kernel(start + 1.2, start + 1.25, start + 6.0)
    for number in range(9):
        begin = start + 0.1 + number * 0.1
        recording.op("aten::item", begin, begin + 0.05)
        recording.op("aten::_local_scalar_dense", begin + 0.01, begin + 0.04)
        recording.call("cudaStreamSynchronize", begin + 0.015, begin + 0.035)
    recording.call("cudaDeviceSynchronize", start + 2.0, start + 6.1)
    launch_ten(recording, start, first=9.0)


def test_the_call_that_waited_is_named_and_not_the_operators_that_hardly_did(findings_of):
    evidence = findings_of(many_small_waits_and_a_long_one)["host_sync"].evidence
    assert (evidence["name"], evidence["op"]) == ("cudaDeviceSynchronize", None)
    assert evidence["calls_per_step"] == 1


def test_a_wait_outside_any_operator_is_told_by_the_range_that_it_is_in(findings_of):
    """A framework waits for an event in its own callback, and no operator is open."""

    def fill(recording, start, _):
        recording.op("loop", start + 0.001, start + 0.9)
        recording.annotation("Framework::after_backward", start + 1.0, start + 9.5)
        recording.call("cudaEventSynchronize", start + 1.2, start + 9.4)
        launch_ten(recording, start)

    finding = findings_of(fill)["host_sync"]
    assert (finding.case, finding.where[0].source) == ("in_range", "Framework::after_backward")
    assert "in cudaEventSynchronize, inside Framework::after_backward" in finding.text
    assert "timers: use events" not in finding.advice


def test_the_place_that_is_named_is_one_of_the_call_that_waited():
    """The GPU is idle longest behind a value that is read, though the host waits longest elsewhere."""
    places = [
        Place(0, 1, 0, 9, "aten::item", "train.py(3): log"),
        Place(0, 1, 10, 15, "cudaDeviceSynchronize", "train.py(7): step"),
    ]
    evidence = {"name": "cudaDeviceSynchronize", "op": None, "calls_per_step": 1.0}
    finding = written("host_sync", "explicit", where=tuple(places), evidence=evidence)
    assert "cudaDeviceSynchronize, called from train.py(7): step" in finding.text


def test_a_wait_belongs_to_the_operator_that_asks_for_a_value(findings_of):
    """The synchronisation comes after an operator that has ended, inside two that ask for the value."""

    def fill(recording, start, _):
        recording.op("aten::item", start + 0.1, start + 9.9)
        recording.op("aten::_local_scalar_dense", start + 0.2, start + 9.8)
        recording.op("aten::empty", start + 0.3, start + 0.4)
        recording.call("cudaStreamSynchronize", start + 0.5, start + 9.7)
        launch_ten(recording, start)

    evidence = findings_of(fill)["host_sync"].evidence
    assert (evidence["name"], evidence["op"]) == ("cudaStreamSynchronize", "aten::item")


@pytest.mark.parametrize(
    "name", ["aten::detach", "aten::empty_strided", "aten::view", "aten::item"]
)
def test_bookkeeping_operators_are_launching_and_not_computing(findings_of, name):
    """Nodes of the engine that only make views, in 9.8 ms in which nothing is launched."""

    def fill(recording, start, _):
        recording.op("loop", start + 0.001, start + 19.999)
        for number in range(98):
            begin = start + 0.1 + number * 0.1
            recording.op("ViewBackward0", begin, begin + 0.09)
            recording.op(name, begin + 0.01, begin + 0.02)
        launch_ten(recording, start)

    findings = findings_of(fill)
    assert "host_compute" not in findings
    assert findings["launch_bound"].cost_ns > 9 * MS


def test_a_host_that_launched_a_millisecond_ahead_has_regained_its_lead(findings_of):
    """Idle time before is the synchronisation's (0.2 ms after it), the 8 ms behind are the host's own slowness."""
    regained = findings_of(after_sync_with_lead(1.1))
    not_regained = findings_of(after_sync_with_lead(0.9))
    assert regained["launch_bound"].cost_ns > 7 * MS
    assert not_regained["host_sync"].cost_ns > regained["host_sync"].cost_ns + 3.5 * MS


def test_a_finding_names_the_five_longest_places(findings_of):
    finding = findings_of(stopped_host(*STOPS["allocator"]), count=14)["allocator"]
    assert MAX_PLACES == 5
    assert len(finding.where) == 5


def test_without_events_of_the_host_nothing_is_said_about_it(findings_of):
    def fill(recording, start, _):
        launch_ten(recording, start)
        recording.events = [
            event for event in recording.events if event["cat"] in ("kernel", "user_annotation")
        ]

    assert not set(findings_of(fill)) & {*STOPS, "python", "launch_bound", "pageable_copy"}


def short_loader_before_slow_launches(recording, start, _):
    """A batch that comes within 0.3 ms, then a launch every 0.45 ms of kernels of 0.1 ms."""
    recording.op(LOADER_WITH_WORKERS, start + 0.05, start + 0.35)
    for number in range(40):
        launch = start + 0.5 + number * 0.47
        recording.op("loop", launch - 0.4, launch)
        recording.kernel(launch, launch + 0.01, launch + 0.11)


def test_waiting_for_a_batch_costs_no_more_than_the_wait(findings_of):
    findings = findings_of(short_loader_before_slow_launches)
    assert "data_loading" not in findings or findings["data_loading"].cost_ns <= 0.3 * MS


def test_without_marks_of_steps_the_recording_is_spoken_of(tmp_path):
    recording = Recording()
    recording.call("cudaMalloc", 0.1, 9.9)
    recording.kernel(0.0, 0.02, 0.05)
    launch_ten(recording, 0.0)
    recording.write(tmp_path)
    findings = {finding.code: finding for finding in analyze(tmp_path).findings}
    allocations = findings["allocator"]
    assert allocations.case == "start_up"
    assert "a step" not in allocations.text
    assert "in the recording" in allocations.text
    assert "empty_cache" not in allocations.advice
    assert not [line for line in map(finding_line, findings.values()) if "per step" in line]
    assert all(finding.evidence["steps_marked"] is False for finding in findings.values())
    assert per_words(allocations) == "of the recording"


def test_a_program_without_operators_is_not_said_to_run_python(tmp_path):
    """Kernels and their launches alone, 8 ms apart: a program in C++ looks the same."""
    recording = Recording()
    for number in range(4):
        start = 10.0 * number
        recording.step(number, start, start + 10)
        recording.kernel(start + 8, start + 8.02, start + 9.9, op=None, name="saxpy")
    recording.write(tmp_path)
    python = [finding for finding in analyze(tmp_path).findings if finding.code == "python"]
    assert [finding.case for finding in python] == ["no_operators"]
    assert "Python" not in python[0].text


class Means:
    """A step of 1,000 ns with 600 of GPU work; each activity's host time, idle time and idle time behind it."""

    def __init__(
        self, activities, *, time_ns=1_000, gpu_ns=600, pageable_ns=0, launching_idle_ns=0
    ):
        self.time_ns = time_ns
        self.gpu_ns = gpu_ns
        self.pageable_ns = pageable_ns
        self.launching_idle_ns = launching_idle_ns
        names = ("host_ns", "idle_ns", "idle_after_ns")
        self.rows = {
            code: {**dict(zip(names, figures, strict=True)), "count": 1.0, "name": "n", "op": None}
            for code, figures in activities.items()
        }

    def value(self, code, column):
        return float(self.rows[code][column]) if code in self.rows else 0.0


class Cost(NamedTuple):
    code: str
    cost_ns: int

    @property
    def share(self):
        return self.cost_ns / 1_000


def costs(monkeypatch, means, *, idle_known=True, confirmed_ns=None):
    """What each finding costs; at most *confirmed_ns* of an activity are what the replay without it saves."""
    monkeypatch.setattr(host, "StepMeans", lambda context: means)
    monkeypatch.setattr(
        host.LaunchBound, "of", lambda context, means, ns, **_: Cost("launch_bound", round(ns))
    )
    unused_parameters = Cost("unused_parameters", 0)
    monkeypatch.setattr(host.SearchBesideWork, "of", lambda context, means: unused_parameters)

    def offence(context, means, code, ns, gpu_ns):
        cost_ns = ns if confirmed_ns is None else min(ns, confirmed_ns)
        return Cost(code, round(cost_ns)) if cost_ns > 0 else None

    monkeypatch.setattr(host, "find_activity", offence)
    analysis = SimpleNamespace(
        total=SimpleNamespace(idle_known=idle_known), tables={"host_time": pl.DataFrame({"a": [1]})}
    )
    return dict(host.HostFinding.find(SimpleNamespace(analysis=analysis)))


@pytest.mark.parametrize(
    ("activities", "options", "found"),
    [
        ({"compile": (100, 80, 0)}, {}, {"compile": 80}),
        ({"compile": (0, 80, 0)}, {}, {}),  # only in steps that stand out
        ({"compile": (100, 0, 0)}, {}, {}),
        # 60 ns of idle time while launching follow from two activities, two to one.
        (
            {"compile": (200, 10, 40), "data_loading": (200, 10, 20)},
            {"launching_idle_ns": 60},
            {"compile": 50, "data_loading": 30},
        ),
        # More than follows from them is launching's own.
        (
            {"compile": (400, 10, 40)},
            {"launching_idle_ns": 100},
            {"compile": 50, "launch_bound": 60},
        ),
        # A batch costs no more than the wait for it.
        ({"data_loading": (30, 40, 0)}, {}, {"data_loading": 30}),
        ({"compile": (30, 40, 0)}, {}, {"compile": 40}),
        ({"pageable_copy": (30, 40, 0)}, {"pageable_ns": 25}, {"pageable_copy": 65}),
        ({"compile": (30, 40, 0)}, {"pageable_ns": 25}, {"compile": 40}),
        ({"unused_parameters": (30, 0, 0)}, {}, {"unused_parameters": 0}),
        ({"compile": (100, 80, 0)}, {"time_ns": 0}, {}),
    ],
)
def test_an_activity_costs_its_idle_time_and_its_share_of_what_follows(
    monkeypatch, activities, options, found
):
    assert costs(monkeypatch, Means(activities, **options)) == found


@pytest.mark.parametrize(
    ("confirmed_ns", "found"),
    [
        (50, {"compile": 50, "launch_bound": 60}),
        (30, {"compile": 30, "launch_bound": 80}),
        (0, {"launch_bound": 100}),
    ],
)
def test_idle_time_behind_an_activity_that_is_left_without_it_is_launching(
    monkeypatch, confirmed_ns, found
):
    """Of 100 ns of idle time while launching 40 follow from the activity, in which the GPU is idle for 10."""
    means = Means({"compile": (400, 10, 40)}, launching_idle_ns=100)
    assert costs(monkeypatch, means, confirmed_ns=confirmed_ns) == found


def test_a_host_that_is_slower_than_the_gpu_by_itself_is_bound_by_launching(monkeypatch):
    """It needs 990 ns for itself, 600 for the GPU's work: whatever else it does, launching is the limit."""
    means = Means({"compile": (10, 5, 40)}, launching_idle_ns=300)
    assert costs(monkeypatch, means) == {"compile": 5, "launch_bound": 300}


def test_nothing_is_said_where_idle_time_is_not_known(monkeypatch):
    assert costs(monkeypatch, Means({"compile": (100, 80, 0)}), idle_known=False) == {}


def offence(monkeypatch, cost_ns, *, can_replay=False, saves=None, gpu_ns=600):
    monkeypatch.setattr(host, "longest_places", lambda context, code: ())
    predicted = None
    if saves is not None:
        predicted = ChangedStep("a", ("a",), 1_000, saves_ns=saves, saves_range_ns=(0, 0))
    context = SimpleNamespace(
        analysis=SimpleNamespace(graph=None),
        predict=lambda change: predicted,
        can_replay=can_replay,
        runs_pytorch=True,
        has_unread_stacks=False,
        step=SimpleNamespace(marked=True),
        share=lambda ns: ns / 1_000,
    )
    means = Means({"compile": (300, 80, 0)})
    found = host.find_activity(context, means, "compile", cost_ns, gpu_ns)
    return found and (
        found.cost_ns,
        found.saves_ns,
        found.saves_range_ns,
        found.idle_after_ns,
    )


def test_without_a_prediction_the_rest_of_the_step_bounds_what_is_saved(monkeypatch):
    """Without 300 of 1,000 ns at least 700 are left, and 600 of GPU work in any case."""
    assert offence(monkeypatch, 0) is None
    assert offence(monkeypatch, 200) == (200, None, (200, 200), 120)
    assert offence(monkeypatch, 350) == (350, None, (300, 350), 270)
    assert offence(monkeypatch, 500) == (500, None, (300, 400), 420)
    assert offence(monkeypatch, 500, gpu_ns=800) == (500, None, (200, 200), 420)


def test_what_never_holds_a_launch_back_costs_nothing(monkeypatch):
    assert offence(monkeypatch, 200, can_replay=True) is None


@pytest.mark.parametrize(
    ("saves", "cost", "saved"), [(150, 150, 150), (50, 80, 50), (300, 200, 300), (-5, 80, 0)]
)
def test_idle_time_behind_an_activity_counts_as_far_as_it_is_saved(monkeypatch, saves, cost, saved):
    """Of 200 ns are 80 idle in it."""
    found = offence(monkeypatch, 200, saves=saves)
    assert found[:2] == (cost, saved)
