"""Exposed communication and gradients that are reduced several times in a step."""

from __future__ import annotations

from types import SimpleNamespace

import polars as pl
import pytest

from tests.findings.conftest import Recording
from tests.kept import analysis_of
from tracekit import analyze
from tracekit.documents.analysis import ChangedStep
from tracekit.findings import communication
from tracekit.findings.communication import (
    ExposedTransfers,
    Remedy,
    RepeatedReduction,
    best_remedy,
    causes_without_profiler,
    count_repetitions,
    drop_single_sizes,
    exposed_case,
    longest_operations,
    measure_transfer,
    transfer_rate,
)
from tracekit.findings.context import Context
from tracekit.graph.change import Hidden, NoHostDelay, Scaled
from tracekit.schema import COPY_LABELS


def reduction_context(sizes, starts, forward_starts, *, steps=(0,), saves_ns=70, exposed_ns=120):
    """A run of one rank whose steps reduce *sizes* at *starts*, while forwards begin at *forward_starts*."""
    rows = []
    for step in steps:
        for size, start in zip(sizes, starts, strict=True):
            rows.append({"rank": 0, "step": step, "bytes": size, "start_ns": start + 100 * step})
    operations = pl.DataFrame(rows).with_columns(
        label=pl.lit("dp_comm"),
        what=pl.lit("all_reduce"),
        end_ns=pl.col("start_ns") + 1,
        hidden_ns=pl.lit(0),
        wait_ns=pl.lit(None, pl.Int64),
        transfer_ns=pl.lit(None, pl.Int64),
    )
    forwards = [start + 100 * step for step in steps for start in forward_starts]
    timeline = pl.DataFrame(
        {"rank": [0] * len(forwards), "label": ["forward"] * len(forwards), "start_ns": forwards}
    )
    predicted = ChangedStep("dp_comm x0.25", (), 200, saves_ns=saves_ns, saves_range_ns=(60, 80))
    return SimpleNamespace(
        analysis=SimpleNamespace(tables={"operations": operations, "timeline": timeline}),
        step=SimpleNamespace(budget_ns=SimpleNamespace(exposed_ns={"dp_comm": exposed_ns})),
        step_ns=200,
        framework="DDP",
        predict=lambda change: predicted if change == QUARTER else None,
        share=lambda ns: ns / 200,
    )


def test_the_first_place_of_transfers_is_a_long_transfer_and_of_waits_a_long_wait():
    """The first operation waits 90 of its 100, the second transfers for 30 of its 40, 20 of 50 are hidden."""
    operations = pl.DataFrame(
        {
            "label": ["dp_comm"] * 3,
            "rank": 0,
            "step": 0,
            "start_ns": [0, 200, 300],
            "end_ns": [100, 240, 350],
            "what": ["waits", "transfers", "is half hidden"],
            "hidden_ns": [0, 0, 25],
            "wait_ns": [90, 10, 0],
            "transfer_ns": [10, 30, 50],
        }
    )
    context = SimpleNamespace(analysis=SimpleNamespace(tables={"operations": operations}))
    places = longest_operations(context, "dp_comm")
    assert [location.name for location in places] == ["transfers", "is half hidden", "waits"]
    assert (places[0].start_ns, places[0].end_ns) == (210, 240)  # without its wait
    longest_wait = longest_operations(context, "dp_comm", waits=True)[0]
    assert (longest_wait.name, longest_wait.start_ns, longest_wait.end_ns) == ("waits", 0, 90)


QUARTER = Scaled("dp_comm", 0.25)
ONCE_PER_MICROBATCH = ([8, 4] * 4, [10, 12, 30, 32, 50, 52, 70, 72], [0, 20, 40, 60])


def test_gradients_reduced_after_each_of_four_micro_batches_cost_three_quarters_of_their_exposed_time():
    (finding,) = RepeatedReduction.find(reduction_context(*ONCE_PER_MICROBATCH, steps=(0, 1)))
    assert finding.times_per_step == 4
    assert finding.bytes_per_step == 48
    assert (finding.cost_ns, finding.share) == (90, 0.45)
    assert (finding.change, finding.saves_ns, finding.saves_range_ns) == (
        QUARTER,
        70,
        (60, 80),
    )


@pytest.mark.parametrize(("lost", "times"), [([0], [4]), ([0, 1], [])])
def test_a_kernel_that_one_rank_lost_does_not_hide_what_the_other_shows(lost, times):
    """Two ranks reduce four times; the first reduction is missing in the ranks of *lost*."""
    context = reduction_context(*ONCE_PER_MICROBATCH)
    operations, timeline = (
        context.analysis.tables["operations"],
        context.analysis.tables["timeline"],
    )
    both_ranks = pl.concat(
        [operations, operations.with_columns(rank=pl.lit(1, operations["rank"].dtype))]
    )
    is_lost = pl.col("rank").is_in(lost) & (pl.col("start_ns") == 10)
    context.analysis.tables["operations"] = both_ranks.filter(~is_lost)
    context.analysis.tables["timeline"] = pl.concat(
        [timeline, timeline.with_columns(rank=pl.lit(1, timeline["rank"].dtype))]
    )
    assert [finding.times_per_step for finding in RepeatedReduction.find(context)] == times


def test_buckets_of_equal_size_within_one_backward_are_no_repetition():
    assert not list(RepeatedReduction.find(reduction_context([8, 8, 8, 8], [10, 12, 14, 16], [0])))


def test_a_step_without_the_repetition_means_that_there_is_none():
    assert count_repetitions([8, 4, 8], [10, 12, 30], [0, 20]) == 1


@pytest.mark.parametrize(("single", "kept"), [(80, [30, 30, 30, 30]), (180, [30, 30, 180, 30, 30])])
def test_a_size_that_occurs_once_is_left_out_if_the_others_are_half_of_the_bytes(single, kept):
    reductions = pl.DataFrame({"bytes": [30, 30, single, 30, 30]})
    assert drop_single_sizes(reductions)["bytes"].to_list() == kept


def test_exposed_time_is_a_cost_and_hiding_it_saves_no_more(samples):
    analysis = analysis_of(samples / "slow-ddp")
    finding = next(each for each in analysis.findings if each.code == "exposed_comm")
    label = finding.evidence["label"]
    assert finding.cost_ns == analysis.step.budget_ns.exposed_ns[label]
    assert finding.saves_ns <= finding.cost_ns
    assert finding.where[0].end_ns > finding.where[0].start_ns


def test_communication_behind_compute_is_no_finding(samples):
    analysis = analysis_of(samples / "overlapped")
    hidden = {label for label, ns in analysis.step.budget_ns.exposed_ns.items() if not ns}
    assert not any(finding.evidence.get("label") in hidden for finding in analysis.findings)


ALL_REDUCE = {
    "Collective name": "allreduce", "In msg nelems": 1_000_000, "Out msg nelems": 1_000_000, "dtype": "BFloat16",
    "Group size": 2, "Process Group Name": "0", "Process Group Description": "default_pg",
    "Process Group Ranks": "[0, 1]",
}  # fmt: skip


def two_ranks(
    folder, *, compute_end=10, ranks=(0, 1), world_size=2, args=ALL_REDUCE, waits=True, keeps=None
):
    """Return by code the findings of ranks whose all-reduce runs from 10 to 18 ms of each step of 20 ms.

    They compute until *compute_end*. The host waits for the GPU if *waits*. Only events of the
    categories in *keeps* are recorded; None: all.
    """
    for rank in ranks:
        recording = Recording(rank, world_size)
        for number in range(4):
            start = number * 20.0
            recording.step(number, start, start + 20)
            recording.kernel(start + 0.1, start + 0.2, start + compute_end)
            recording.kernel(
                start + 0.3, start + 10, start + 18, op="nccl:all_reduce", stream=20, args=args,
                name="ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", **args,
            )  # fmt: skip
            recording.kernel(start + 0.5, start + 18.1, start + 19.9)
            if waits:  # The host follows the GPU.
                recording.call("cudaDeviceSynchronize", start + 0.6, start + 19.95)
        if keeps is not None:
            recording.events = [event for event in recording.events if event["cat"] in keeps]
        recording.write(folder)
    return {finding.code: finding for finding in analyze(folder).findings}


@pytest.mark.parametrize(
    ("free_share", "left_ns"),
    [
        (1.0, {"peer_late": 60, "launched_late": 10, "same_stream": 30}),
        (0.7, {"peer_late": 30, "launched_late": 10, "same_stream": 30}),
        (0.35, {"peer_late": 0, "launched_late": 5, "same_stream": 30}),
        (0.1, {"peer_late": 0, "launched_late": 0, "same_stream": 30}),
    ],
)
def test_without_the_profiler_waits_go_before_late_launches_and_transfers_stay(free_share, left_ns):
    recorded_ns = {"peer_late": 60, "launched_late": 10, "same_stream": 30}
    assert causes_without_profiler(recorded_ns, free_share) == left_ns


def test_an_all_reduce_without_compute_beside_it_costs_its_length(tmp_path):
    finding = two_ranks(tmp_path, compute_end=10)["exposed_comm"]
    # Of a step without the profiler, which is 14 µs shorter.
    assert finding.cost_ns == pytest.approx(8_000_000, rel=1e-3)
    assert finding.share == pytest.approx(0.4, rel=0.02)
    assert {(location.end_ns - location.start_ns) for location in finding.where} == {8_000_000}


def test_an_all_reduce_beside_compute_costs_nothing(tmp_path):
    assert "exposed_comm" not in two_ranks(tmp_path, compute_end=18)


WITHOUT_GROUPS = {name: value for name, value in ALL_REDUCE.items() if "Process" not in name}


@pytest.mark.parametrize(
    "recorded",
    [
        {"args": WITHOUT_GROUPS},
        {"args": {}},
        {"keeps": ["kernel"]},
        {"keeps": ["kernel", "cuda_runtime"]},
        {"waits": False},
    ],
    ids=["no groups", "no arguments", "no host", "no operators", "no wait"],
)
def test_exposed_communication_is_a_finding_whatever_else_was_recorded(tmp_path, recorded):
    finding = two_ranks(tmp_path, **recorded)["exposed_comm"]
    assert finding.share == pytest.approx(0.4, rel=0.02)


def test_hiding_saves_nothing_for_certain_where_the_host_takes_as_long(tmp_path):
    """The host is in no operator and no call for 19 of 20 ms: it computes, or waits unrecorded."""
    finding = two_ranks(tmp_path, waits=False)["exposed_comm"]
    assert (finding.case, finding.certain) == ("host_takes_as_long", "possible")
    assert (finding.saves_ns, finding.change) == (None, None)
    # Of a step without the profiler, which is a little shorter.
    assert finding.saves_range_ns == (0, pytest.approx(8_000_000, rel=1e-3))
    assert finding.cost_ns == pytest.approx(8_000_000, rel=1e-3)


@pytest.mark.parametrize(
    ("world_size", "case", "why"),
    [(2, "ranks", "only 1 of 2 ranks is here"), (1, "one_rank", "only rank 0 is here")],
)
def test_one_rank_does_not_tell_waiting_from_transfer(tmp_path, world_size, case, why):
    findings = two_ranks(tmp_path, ranks=(0,), world_size=world_size)
    assert "exposed_comm" not in findings
    assert (findings["recording"].case, findings["recording"].cost_ns) == (case, 8_000_000)
    assert "8.00 ms of tp_comm is exposed" in findings["recording"].text
    assert findings["recording"].text.endswith(why)


@pytest.mark.parametrize(
    ("name", "codes"),
    [
        ("Memcpy HtoD (Pageable -> Device)", {"exposed_copy"}),
        ("Memcpy DtoD (Device -> Device)", set()),
    ],
)
def test_without_the_host_copies_from_it_are_exposed_and_those_on_the_device_are_not(
    findings_of, name, codes
):
    def fill(recording, start, _):
        recording.copy(start + 0.1, start + 0.2, start + 0.3, start + 9.3, name=name)
        recording.kernel(start + 0.4, start + 9.3, start + 19.9)
        recording.events = [
            event
            for event in recording.events
            if event["cat"] in ("kernel", "gpu_memcpy", "user_annotation")
        ]

    findings = findings_of(fill)
    assert {code for code in findings if "exposed" in code} == codes
    if codes:
        assert findings["exposed_copy"].share == pytest.approx(0.45, rel=0.02)


def test_hints_about_collectives_are_not_given_for_copies(findings_of):
    def fill(recording, start, _):
        recording.copy(
            start + 0.1,
            start + 0.2,
            start + 0.3,
            start + 9.3,
            name="Memcpy HtoD (Pinned -> Device)",
        )
        recording.kernel(start + 0.4, start + 9.3, start + 19.9)

    finding = findings_of(fill)["exposed_copy"]
    assert finding.evidence["label"] in COPY_LABELS
    assert "shards" not in finding.advice
    assert finding.change is None


@pytest.mark.parametrize(
    ("seen", "framework"),
    [
        ({"pack": "torch-pipelining", "annotations": "Schedule1F1B::step"}, None),
        ({"pack": "megatron"}, "Megatron-LM"),
        ({"chain": "MmBackward0 LinearWithGradAccumulationAndAsyncCommunication"}, "Megatron-LM"),
        ({"annotations": "FSDP::all_gather"}, "FSDP2"),
        ({"annotations": "DistributedDataParallel.forward"}, "DDP"),
    ],
)
def test_a_framework_is_one_that_the_trace_shows(seen, framework):
    names = ("group_desc", "annotations", "chain", "pack")
    row = {name: seen.get(name) for name in names}
    reasons = pl.DataFrame([row], schema=dict.fromkeys(names, pl.String))
    analysis = SimpleNamespace(
        tables={"reasons": reasons},
        step=SimpleNamespace(reference_ns=1),
        changed_steps=(),
        workload="training",
    )
    assert Context(analysis).framework == framework
    analysis.workload = "inference"
    assert Context(analysis).framework == (None if seen.keys() == {"pack"} else framework)


def found(
    monkeypatch,
    exposed_ns,
    *,
    pageable=0.0,
    free_share=1.0,
    host_copies_ns=0,
    schedule=None,
    **waits,
):
    monkeypatch.setattr(communication, "exposed_pageable_share", lambda context: pageable)
    monkeypatch.setattr(communication, "find_host_copies_ns", lambda context: host_copies_ns)
    monkeypatch.setattr(communication, "exposed_finding", lambda context, label, ns: (label, ns))
    context = SimpleNamespace(
        step=SimpleNamespace(budget_ns=SimpleNamespace(exposed_ns=exposed_ns)),
        analysis=SimpleNamespace(comparison=schedule, total=SimpleNamespace(wait_ns=waits)),
        free_exposed_share=lambda label: free_share,
    )
    return dict(ExposedTransfers.find(context))


GAP = SimpleNamespace(gap_ns=5)


NO_GAP = SimpleNamespace(gap_ns=None)


@pytest.mark.parametrize(
    ("exposed_ns", "options", "findings"),
    [
        ({"dp_comm": 100}, {}, {"dp_comm": 100}),
        ({"dp_comm": 0}, {}, {}),
        ({"dp_comm": 100}, {"free_share": 0.3}, {"dp_comm": 30}),
        ({"dp_comm": 1}, {"free_share": 0.3}, {}),
        ({"dp_comm": 100}, {"dp_comm": None}, {}),  # how much of it is waiting is not known
        ({"dp_comm": 100}, {"dp_comm": 0}, {"dp_comm": 100}),
        ({"onload": 100}, {"onload": None}, {"onload": 100}),  # a copy waits for nobody
        ({"pp_comm": 100}, {"schedule": GAP}, {}),  # the gap to the ideal tells more
        ({"pp_comm": 100}, {"schedule": NO_GAP}, {"pp_comm": 100}),
        ({"dp_comm": 100}, {"schedule": GAP}, {"dp_comm": 100}),
        ({"onload": 100}, {"pageable": 0.6}, {"onload": 40}),
        ({"onload": 100}, {"pageable": 1.0}, {}),
        ({"dp_comm": 100}, {"pageable": 0.6}, {"dp_comm": 100}),
        ({"memory": 100}, {"host_copies_ns": 70}, {"memory": 70}),
        ({"memory": 100}, {"host_copies_ns": 170}, {"memory": 100}),
        ({"memory": 100}, {}, {}),
    ],
)
def test_exposed_time_is_a_finding_where_nothing_tells_more(
    monkeypatch, exposed_ns, options, findings
):
    assert found(monkeypatch, exposed_ns, **options) == findings


@pytest.mark.parametrize(
    ("cause", "remedy", "facts", "case"),
    [
        ("same_stream", Remedy(), {}, "same_stream"),
        ("same_stream", Remedy(case="too_little_compute"), {}, "too_little_compute"),
        ("unknown", Remedy(case="host_takes_as_long"), {}, "host_takes_as_long"),
        ("unknown", Remedy(case="too_little_compute"), {}, "unclear"),
        ("unknown", Remedy(), {"has_host_calls": False}, "unknown"),
        ("launched_late", Remedy(), {"uses_cuda_graphs": True}, "launched_late_under_graphs"),
        ("launched_late", Remedy(), {}, "launched_late"),
        ("same_stream", Remedy(), {"uses_cuda_graphs": True}, "same_stream"),
    ],
)
def test_the_strongest_statement_decides_the_advice(cause, remedy, facts, case):
    context = SimpleNamespace(**{"has_host_calls": True, "uses_cuda_graphs": False, **facts})
    assert exposed_case(context, cause, remedy) == case


@pytest.mark.parametrize(
    ("because_ns", "hidden_ns", "figures"),
    [
        # Of 1,000 ns of compute; figures are per step of four.
        ({"same_stream": 400}, {}, (100, 250, 0)),
        ({"same_stream": 400, "peer_late": 80, "unknown": 40}, {}, (100, 250, 0)),
        ({"same_stream": 400}, {"communication": 500, "copy": 300}, (100, 50, 50)),
        ({"same_stream": 200}, {"communication": 500, "copy": 300}, (50, 50, 0)),
        ({"same_stream": 400}, {"communication": 1_200}, (100, 0, 100)),
    ],
)
def test_what_is_no_waiting_is_transfer_that_free_compute_can_hide(
    monkeypatch, because_ns, hidden_ns, figures
):
    monkeypatch.setattr(communication, "transfer_rate", lambda context, label: None)
    total = SimpleNamespace(hidden_ns=hidden_ns, budget=SimpleNamespace(compute_ns=1_000))
    ranks = [SimpleNamespace(per_step=[None, None])] * 2
    context = SimpleNamespace(analysis=SimpleNamespace(total=total, ranks=ranks))
    assert measure_transfer(context, "dp_comm", because_ns)[:3] == figures


@pytest.mark.parametrize(
    ("rows", "gb_per_s"),
    [
        ([("dp_comm", 10.0, 1), ("dp_comm", 20.0, 3)], 17.5),
        ([("dp_comm", 10.0, 1), ("tp_comm", 20.0, 3)], 10.0),
        ([("dp_comm", None, 1), ("dp_comm", 20.0, 3)], 20.0),
        ([("dp_comm", 10.0, 0)], None),
        ([("dp_comm", 10.0, 1)], 10.0),
        ([], None),
    ],
)
def test_the_rate_of_transfers_is_a_mean_by_their_time(rows, gb_per_s):
    schema = {"label": pl.String, "algorithm_gb_s": pl.Float64, "transfer_ns": pl.Int64}
    rates = SimpleNamespace(communication=pl.DataFrame(rows, schema=schema, orient="row"))
    context = SimpleNamespace(analysis=SimpleNamespace(rate_tables=rates))
    assert transfer_rate(context, "dp_comm") == gb_per_s


def test_without_rates_that_of_transfers_is_not_known():
    assert (
        transfer_rate(SimpleNamespace(analysis=SimpleNamespace(rate_tables=None)), "dp_comm")
        is None
    )


@pytest.mark.parametrize(
    ("saves", "unhideable_ns", "remedy"),
    [
        # Saved by hiding, by halving, by a host without delay, and by both.
        ((100, 0, 0, 100), 0, Remedy(Hidden("dp_comm"), 100, (0, 100))),
        (
            (100, 101, 0, 100),
            1,
            Remedy(Scaled("dp_comm", 0.5), 101, (0, 101), "possible", case="too_little_compute"),
        ),
        ((100, 101, 0, 100), 0, Remedy(Hidden("dp_comm"), 100, (0, 100))),  # compute can hide all
        ((100, 100, 0, 100), 1, Remedy(Hidden("dp_comm"), 100, (0, 100))),
        (
            (-5, 1, 0, 0),
            1,
            Remedy(Scaled("dp_comm", 0.5), 1, (0, 1), "possible", case="too_little_compute"),
        ),
        ((-5, 0, 0, 100), 1, Remedy(None, None, (0, 100), "possible", case="host_takes_as_long")),
        ((None, 0, 0, 100), 1, Remedy()),
        # The host as it is leaves half of what one that is always ahead would save, or less.
        ((51, 0, 20, 120), 0, Remedy(Hidden("dp_comm"), 51, (0, 51))),
        ((50, 0, 20, 120), 0, Remedy(None, None, (0, 100), "possible", case="host_takes_as_long")),
        ((50, 0, 20, 520), 0, Remedy(None, None, (0, 400), "possible", case="host_takes_as_long")),
        ((0, 0, 20, 20), 0, Remedy(None, None, (0, 400), "possible", case="host_takes_as_long")),
    ],
)
def test_the_best_remedy_of_400_ns_of_exposed_transfers(saves, unhideable_ns, remedy):
    changes = (
        (Hidden("dp_comm"),),
        (Scaled("dp_comm", 0.5),),
        (NoHostDelay(),),
        (NoHostDelay(), Hidden("dp_comm")),
    )
    predicted = dict(zip(changes, saves, strict=True))

    def predict(*changes):
        saves_ns = predicted[changes]
        return None if saves_ns is None else SimpleNamespace(saves_ns=saves_ns)

    context = SimpleNamespace(predict=predict)
    assert best_remedy(context, "dp_comm", 400, unhideable_ns=unhideable_ns) == remedy
