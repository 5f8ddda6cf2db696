"""Changes to a run: graphs of a few events whose new step can be counted, and recorded runs."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tests.kept import analysis_of
from tracekit import analyze
from tracekit.align.clocks import Clocks
from tracekit.errors import OptionError, TracekitError
from tracekit.graph.change import Scaled, parse_change
from tracekit.graph.changes import WhatIfGraph
from tracekit.graph.event_graph import EventGraph
from tracekit.graph.loadable import TableInMemory
from tracekit.graph.rank_events import HOST_WORK, find_rank_events
from tracekit.graph.walks import path_parts
from tracekit.intervals import EMPTY, union
from tracekit.metrics.causes import Rank
from tracekit.metrics.host.waiting_calls import WAITING_CALLS
from tracekit.schema import LABELLED, Source, conform

MS = 1_000_000
COMPUTE, COMM = 7, 9  # streams


def kernel(label, start, end, launch=-1.0, **more):
    """One event; times in milliseconds. A negative launch is before everything."""
    stream = COMM if label.endswith("_comm") or label.startswith("ep_") else COMPUTE
    times = {"start_ns": start, "end_ns": end, "launch_ns": launch}
    return {
        "label": label,
        "name": label,
        "stream": stream,
        **{k: int(v * MS) for k, v in times.items()},
        **more,
    }


class Tables:
    """Tables of one rank as the graph reads them.

    The host waits for the GPU in *syncs*, for room in its queue in *full_queue* and for batches in
    *loading*, in milliseconds.
    """

    def __init__(self, rank, rows, syncs=(), *, host_start_ns=None, full_queue=(), loading=()):
        self.source = Source(f"rank{rank}.json", "kineto", rank, "name")
        numbers = sorted({row.get("step", 0) for row in rows})
        start_ns = [
            min(row["start_ns"] for row in rows if row.get("step", 0) == number)
            for number in numbers
        ]
        end_ns = [
            max(row["end_ns"] for row in rows if row.get("step", 0) == number) for number in numbers
        ]
        host = {"host_start_ns": host_start_ns, "host_end_ns": None}
        self.steps = pl.DataFrame(
            {"step": numbers, "start_ns": start_ns, "end_ns": end_ns}
        ).with_columns(pl.lit(value, pl.Int64).alias(name) for name, value in host.items())
        step_index = [row.get("step", 0) - self.steps["step"][0] for row in rows]
        frame = [
            {"rank": rank, "kind": "kernel", "id": number, **row} for number, row in enumerate(rows)
        ]
        frame = [
            {key: value for key, value in row.items() if key not in ("match", "step")}
            for row in frame
        ]
        labelled = conform(pl.DataFrame(frame, infer_schema_length=None), LABELLED).with_columns(
            part=pl.Series(step_index)
        )
        calls = [
            ("cudaStreamSynchronize", None, int(start * MS), int(end * MS), True, False)
            for start, end in syncs
        ]
        calls += [
            ("cudaLaunchKernel", None, int(start * MS), int(end * MS), True, True)
            for start, end in full_queue
        ]
        waiting = pl.DataFrame(calls, schema=WAITING_CALLS, orient="row")
        waits_for_batches = (
            union(*(np.array(times, np.int64) * MS for times in zip(*loading, strict=True)))
            if loading
            else EMPTY
        )
        self.graph_events = TableInMemory(
            find_rank_events(Rank.of(labelled, waiting), None, waits_for_batches)
        )
        self.graph_host_work = None


def graph_of(*ranks, syncs=(), host_start_ns=None, **more):
    """The graph of ranks as lists of kernels.

    Communication with the same ``match`` is one operation.
    """
    rows = [
        (rank, number, row)
        for rank, events in enumerate(ranks)
        for number, row in enumerate(events)
    ]
    matched = [
        (row["match"], rank, number, row["start_ns"])
        for rank, number, row in rows
        if "match" in row
    ]
    operations = pl.DataFrame(
        [(rank, number) for _, rank, number, _ in matched],
        schema={"rank": pl.Int32, "id": pl.Int64},
        orient="row",
    )
    members = pl.DataFrame(
        [(match, row, start) for row, (match, *_, start) in enumerate(matched)],
        schema={"match": pl.Int64, "row": pl.Int64, "start_ns": pl.Int64},
        orient="row",
    ).sort("match", maintain_order=True)
    parts = [
        Tables(rank, events, syncs, host_start_ns=host_start_ns)
        for rank, events in enumerate(ranks)
    ]
    graph = EventGraph.build(parts, operations, members, Clocks.recorded(range(len(ranks))))
    return WhatIfGraph(graph, graph.measured_step_ns, **more)


def predicted_ms(graph, *changes):
    return graph.predict([parse_change(change) for change in changes]).predicted_ns / MS


def step_of_ranks(*compute_ms, transfer=5):
    """Ranks that compute for some time, then reduce their gradients together, which takes *transfer*."""
    last = max(compute_ms)
    return [
        [kernel("forward", 0, ms), kernel("dp_comm", ms, last + transfer, match=0, name="nccl")]
        for ms in compute_ms
    ]


def test_a_kernel_that_takes_half_its_time_ends_the_step_earlier():
    graph = graph_of([kernel("forward", 0, 10), kernel("wgrad", 10, 30)])
    step = graph.predict([parse_change("wgrad x0.5")])
    assert (step.measured_ns, step.predicted_ns, step.saves_ns) == (30 * MS, 20 * MS, 10 * MS)
    low, high = step.predicted_range_ns
    assert (low, high) == (
        round(20 * MS * (1 - 0.05)),
        round(20 * MS * (1 + 0.05)),
    )
    assert [(piece.label, piece.ns) for piece in step.critical_path] == [
        ("forward", 10 * MS),
        ("wgrad", 10 * MS),
    ]
    assert predicted_ms(graph, "wgrad x2") == 50


def test_host_work_before_events_that_a_rank_does_not_have_is_left_out():
    """A store's tables are checked one by one: one may name event 2 of two."""
    tables = Tables(0, [kernel("forward", 0, 10), kernel("wgrad", 10, 30)])
    rows = [(event, "data_loading", "", 5, 5, 0, 0) for event in (0, 1, 2)]
    tables.graph_host_work = TableInMemory(pl.DataFrame(rows, schema=HOST_WORK, orient="row"))
    operations = pl.DataFrame(schema={"rank": pl.Int32, "id": pl.Int64})
    members = pl.DataFrame(schema={"match": pl.Int64, "row": pl.Int64, "start_ns": pl.Int64})
    graph = EventGraph.build([tables], operations, members, Clocks.recorded([0]))
    assert graph.host_work["event"].to_list() == [0, 1]


def test_a_rank_that_kept_no_events_is_left_out_of_the_graph():
    without = Tables(1, [kernel("forward", 0, 10)])
    without.graph_events = None
    operations = pl.DataFrame(schema={"rank": pl.Int32, "id": pl.Int64})
    members = pl.DataFrame(schema={"match": pl.Int64, "row": pl.Int64, "start_ns": pl.Int64})
    clocks = Clocks.recorded([0, 1])
    parts = [Tables(0, [kernel("forward", 0, 10)]), without]
    assert EventGraph.build(parts, operations, members, clocks).ranks == (0,)
    assert EventGraph.build([without], operations, members, clocks) is None


def test_a_replay_has_one_arrival_of_each_matched_operation():
    ranks = step_of_ranks(10, 20)
    second = [
        [*events, kernel("dp_comm", 30, 35, match=1, name="nccl", launch=30)] for events in ranks
    ]
    assert graph_of(*ranks).graph.replay().arrivals.shape == (2, 1)
    assert graph_of(*second).graph.replay().arrivals.shape == (2, 2)


def test_transfers_on_the_critical_path_widen_the_range():
    """Of two steps of 100, one computes.

    The other transfers for 80, which may take 15 % more or less the next time.
    """
    step_ms, transfer_ms = 100, 80
    computes = graph_of(*[[kernel("forward", 0, step_ms)]] * 2)
    transfers = graph_of(*step_of_ranks(20, 20, transfer=transfer_ms))
    for graph, margin_ms in (
        (computes, step_ms * 0.05),
        (transfers, math.hypot(step_ms * 0.05, transfer_ms * 0.15)),
    ):
        low, high = graph.predict([parse_change("forward x1")]).predicted_range_ns
        assert (low, high) == (round((step_ms - margin_ms) * MS), round((step_ms + margin_ms) * MS))


def test_late_launches_on_the_critical_path_widen_the_range():
    """The host launches the forward at 30: a host 20 % slower would do so at 36."""
    graph = graph_of([kernel("optimizer", 0, 10), kernel("forward", 30, 50, launch=30)])
    low, high = graph.predict([parse_change("forward x1")]).predicted_range_ns
    margin_ms = math.hypot(50 * 0.05, 30 * 0.2)
    assert (low, high) == (round((50 - margin_ms) * MS), round((50 + margin_ms) * MS))


def test_a_change_saves_at_most_the_step():
    graph = graph_of([kernel("forward", 0, 10)], clock_error_ns=30 * MS)
    assert graph.predict([parse_change("forward x0.5")]).saves_range_ns == (0, 10 * MS)


def test_a_range_begins_at_no_less_than_nothing():
    graph = graph_of([kernel("forward", 0, 10)], clock_error_ns=30 * MS)
    low, high = graph.predict([parse_change("forward x0.5")]).predicted_range_ns
    assert (low, high) == (0, round((35 + 5 * 0.05) * MS))


@pytest.mark.parametrize("name", ["dgrad", "mlp", "aten::mm", "sm90_gemm", "gemm"])
def test_labels_modules_operators_and_kernels_are_named(name):
    row = kernel("dgrad", 10, 30) | {"module": "mlp", "op": "aten::mm", "name": "sm90_gemm"}
    assert predicted_ms(graph_of([kernel("forward", 0, 10), row]), f"{name} x0.5") == 20


def test_a_straggler_like_the_others_lets_all_ranks_go_on():
    graph = graph_of(*step_of_ranks(10, 10, 30))  # 30 + 5
    step = graph.predict([parse_change("rank 2 like others")])
    assert (step.measured_ns, step.predicted_ns) == (35 * MS, 15 * MS)
    assert {piece.label for piece in step.critical_path} == {"forward", "dp_comm"}
    # (10 + 30) / 2, and rank 2 still takes 30.
    assert predicted_ms(graph, "rank 0 like others") == 35


def test_a_host_like_the_others_is_late_no_more():
    """Rank 1 launches its forward at 20, the others before the step.

    Its reduction is launched 1 later.
    """
    ranks = step_of_ranks(10, 10, 10)
    ranks[1] = [kernel("forward", 20, 30, launch=20), kernel("dp_comm", 30, 35, match=0, launch=21)]
    for rank in (0, 2):
        ranks[rank][1] = kernel("dp_comm", 10, 35, match=0)
    graph = graph_of(*ranks, host_start_ns=0)
    assert predicted_ms(graph, "rank 1 like others") == pytest.approx(15, abs=1.1)
    assert predicted_ms(graph, "no host delay") == 15


def test_a_rank_that_enters_the_step_later_is_not_late():
    """As above, but nothing shows that the host of rank 1 was in the step before 20."""
    ranks = step_of_ranks(10, 10, 10)
    ranks[1] = [kernel("forward", 20, 30, launch=20), kernel("dp_comm", 30, 35, match=0, launch=21)]
    for rank in (0, 2):
        ranks[rank][1] = kernel("dp_comm", 10, 35, match=0)
    assert graph_of(*ranks).predict([parse_change("no host delay")]).saves_ns == 0


def test_ranks_are_compared_with_their_position_in_other_pipelines():
    """Rank 2 holds the second stage as rank 3 does, which takes longer than the first.

    Only rank 3 is like it.
    """
    ranks = graph_of(*step_of_ranks(10, 10, 30, 20), positions={0: 0, 1: 0, 2: 1, 3: 1})
    assert predicted_ms(ranks, "rank 2 like others") == 25


def test_equal_tokens_take_the_mean():
    assert predicted_ms(graph_of(*step_of_ranks(10, 30)), "balance") == 25


def test_experts_are_balanced_between_two_dispatches():
    """Rank 0 has the tokens of the first layer, rank 1 those of the second: 30 and 10, then 10 and 30."""
    first = [
        kernel("ep_dispatch", 0, 1, match=0),
        kernel("forward", 1, 31),
        kernel("ep_dispatch", 31, 32, match=1),
    ]
    second = [
        kernel("ep_dispatch", 0, 1, match=0),
        kernel("forward", 1, 11),
        kernel("ep_dispatch", 11, 32, match=1),
    ]
    first += [kernel("forward", 32, 42), kernel("dp_comm", 42, 67, match=2)]
    second += [kernel("forward", 32, 62), kernel("dp_comm", 62, 67, match=2)]
    assert predicted_ms(graph_of(first, second), "balance") == 1 + 20 + 1 + 20 + 5


def test_kernels_that_wait_for_the_host_run_back_to_back():
    """Four kernels of 1 ms, launched every 4 ms."""
    graph = graph_of([kernel("forward", 4 * n, 4 * n + 1, launch=4 * n) for n in range(4)])
    assert graph.measured_ns == 13 * MS
    assert predicted_ms(graph, "no host delay") == pytest.approx(4, abs=0.01)  # and usual gaps
    assert predicted_ms(graph, "forward x3") == 15  # still not late


def test_links_of_twice_the_bandwidth_halve_transfers_and_no_waiting():
    assert predicted_ms(graph_of(*step_of_ranks(10, 30, transfer=6)), "links x2") == 33


@pytest.mark.parametrize(("transfer", "step"), [(6, 10), (14, 14)])
def test_what_is_hidden_still_takes_its_own_time(transfer, step):
    assert predicted_ms(graph_of(*step_of_ranks(10, 10, transfer=transfer)), "hide dp_comm") == step


def test_no_more_is_hidden_than_there_is_compute_to_hide_it():
    """Compute of 10 ms, then 30 ms of one label and 30 ms of another: hiding one saves the 10 ms of the compute."""
    first, second = {"match": 0, "name": "reduce"}, {"match": 1, "name": "gather"}
    ranks = [
        [
            kernel("forward", 0, 10),
            kernel("dp_comm", 10, 40, **first),
            kernel("tp_comm", 40, 70, **second),
        ]
        for _ in range(2)
    ]
    assert graph_of(*ranks).predict([parse_change("hide dp_comm")]).saves_ns == 10 * MS


def test_what_compute_hides_already_saves_nothing_when_the_rest_is_hidden():
    """Of 30 ms of communication compute hides 10, and 10 ms of compute hide nothing: these are saved."""
    ranks = [
        [
            kernel("forward", 0, 10),
            kernel("backward", 10, 20),
            kernel("dp_comm", 10, 40, match=0),
        ]
        for _ in range(2)
    ]
    assert graph_of(*ranks).predict([parse_change("hide dp_comm")]).saves_ns == 10 * MS


def test_several_changes_act_together():
    graph = graph_of(*step_of_ranks(10, 10, 30, transfer=6))
    assert predicted_ms(graph, "rank 2 like others", "links x2", "forward x0.5") == 5 + 3


def test_a_host_that_waited_for_the_gpu_goes_on_earlier():
    """The host waits for the forward until 10, launches the optimizer at 12."""
    graph = graph_of(
        [kernel("forward", 0, 10), kernel("optimizer", 12, 15, launch=12)], syncs=[(1, 10)]
    )
    assert graph.measured_ns == 15 * MS
    assert predicted_ms(graph, "forward x0.5") == 5 + 2 + 3


def test_work_of_another_stream_is_waited_for():
    """The copy starts when the forward has ended, the optimizer when the copy has."""
    copy = kernel("offload", 10, 14) | {"stream": 8}
    graph = graph_of([kernel("forward", 0, 10), copy, kernel("optimizer", 14, 15)])
    assert predicted_ms(graph, "forward x0.5") == 10
    assert predicted_ms(graph, "offload x0.5") == 13


def test_time_between_steps_that_follow_each_other_counts():
    """Steps of 10 ms; the host is late by 20 ms before each."""
    rows = [kernel("forward", ms, ms + 10, launch=ms, step=3 + ms // 30) for ms in (0, 30, 60)]
    graph = graph_of(rows)
    assert graph.measured_ns == 30 * MS
    assert predicted_ms(graph, "no host delay") == pytest.approx(10, abs=0.01)


def test_other_numbers_of_microbatches_are_another_amount_of_work():
    graph = graph_of(
        *step_of_ranks(10, 10),
        microbatches=lambda count: (count * MS, 2 * count * MS, 3 * count * MS),
    )
    step = graph.predict([parse_change("microbatches 4")])
    assert (step.predicted_ns, step.saves_ns) == (23 * MS, None)
    assert (
        step.predicted_range_ns[0]
        < 15 * MS + 4 * MS
        < 15 * MS + 12 * MS
        < step.predicted_range_ns[1]
    )


def test_the_memory_of_another_number_of_microbatches_is_told_even_where_the_time_is_not():
    graph = graph_of(
        *step_of_ranks(10, 10), microbatches=lambda _: "no", memory=lambda n: ((n, 2 * n), n < 5)
    )
    step = graph.predict([parse_change("microbatches 8")])
    assert (step.predicted_ns, step.why_not, step.peak_bytes, step.fits) == (
        None,
        "no",
        (8, 16),
        False,
    )
    both = graph.predict([parse_change("microbatches 4"), parse_change("microbatches 8")])
    assert both.peak_bytes is None


@pytest.mark.parametrize(
    ("ranks", "change", "reason"),
    [
        ([[kernel("forward", 0, 1)]], "rank 0 like others", "no other rank"),
        ([[kernel("forward", 0, 1)]], "balance", "no other rank"),
        ([[kernel("forward", 0, 1)], [kernel("forward", 0, 2)]], "balance", "matched"),
        ([[kernel("forward", 0, 1)]], "links x2", "no communication"),
        ([[kernel("forward", 0, 1)]], "microbatches 4", "no pipeline"),
        ([[kernel("dp_comm", 0, 1)]], "links x2", "how much of this communication is waiting"),
        ([[kernel("dp_comm", 0, 1)]], "dp_comm x0.5", "how much of this communication is waiting"),
        ([[kernel("dp_comm", 0, 1)]], "hide dp_comm", "how much of this communication is waiting"),
        ([[kernel("forward", 0, 1) | {"launch_ns": None}]], "no host delay", "no launches"),
    ],
)
def test_what_the_trace_cannot_show_is_refused_with_the_reason(ranks, change, reason):
    step = graph_of(*ranks).predict([parse_change(change)])
    assert reason in step.why_not
    assert (step.predicted_ns, step.predicted_range_ns, step.saves_ns) == (None, None, None)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ("tp_comm x0.5", "labels dp_comm, forward"),
        ("hide tp_comm", "labels dp_comm, forward"),
        ("hide nothing", "labels dp_comm, forward"),
        ("rank 7 like others", "ranks 0, 1"),
    ],
)
def test_an_unknown_name_is_answered_with_the_names_there_are(change, names):
    with pytest.raises(OptionError) as raised:
        graph_of(*step_of_ranks(10, 10)).predict([parse_change(change)])
    assert names in raised.value.hint


@pytest.mark.parametrize(
    "text", ["", "faster", "links", "rank two like others", "links x-1", "links x0", "hide"]
)
def test_what_is_no_change_is_refused_before_any_work(text):
    with pytest.raises(OptionError):
        parse_change(text)


@pytest.mark.parametrize(
    "text",
    [
        "void foo<float, at::native::X> x0.5",
        "void foo<float, 3> x0.5, hide dp_comm",
        "ranks 1, 3 like others, links of rank 0 like others, no data loading",
        "links x2, balance, bf16, microbatches 16, no host delay, no launch delay, schedule zb-v",
    ],
)
def test_a_change_prints_the_text_that_it_is_parsed_from(text):
    change = parse_change(text)
    assert str(change) == text
    assert parse_change(f"  {text.replace(' ', '  ')} ") == change


def test_a_comma_in_the_name_of_a_kernel_ends_no_change():
    kernel_name = "void foo<float, at::native::X>"
    (scaled,) = parse_change(f"{kernel_name} x0.5").parts
    assert (scaled.name, scaled.factor) == (kernel_name, 0.5)
    graph = graph_of([kernel("wgrad", 0, 20, name=f"{kernel_name}(int)")])
    assert graph.predict([scaled]).saves_ns == 10 * MS
    with pytest.raises(OptionError, match="'nothing known'"):
        parse_change("hide dp_comm, nothing known")


def test_the_changes_that_save_most_come_first():
    rows = graph_of(*step_of_ranks(10, 10, 30)).best_changes()
    assert [row.change for row in rows][:2] == ["rank 2 like others", "balance"]
    assert [row.saves_ns for row in rows] == sorted((row.saves_ns for row in rows), reverse=True)
    assert all(row.saves_ns > 0 for row in rows)


def test_lanes_of_the_changed_step_are_drawn_on_the_measured_scale():
    lanes = graph_of([kernel("forward", 0, 10), kernel("wgrad", 10, 30)]).lanes(
        [Scaled("wgrad", 0.5)], max_ranks=1
    )
    drawn = [(label, round(start, 2), round(width, 2)) for label, start, width in lanes[0]]
    assert drawn == [("forward", 0.0, 0.33), ("wgrad", 0.33, 0.33), (None, 0.67, 0.33)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["1f1b", "overlapped", "router", "reload", "steps/a", "nsys-1f1b"])
def test_an_unchanged_run_replays_to_the_nanosecond_and_nothing_faster_makes_it_slower(
    samples, name
):
    analysis = analysis_of(samples / name, what_if=True)
    graph = analysis.graph.graph
    replay = graph.replay()
    assert np.array_equal(replay.start, graph.start)
    assert np.array_equal(replay.end, graph.end)
    faster = graph.replay(np.full(len(graph.start), 0.5))
    assert (faster.start <= graph.start).all()
    bounds = graph.measured_bounds
    # The path ends where the last rank does, and begins where the rank that it starts on began the
    # step.
    last = bounds.sort("end_ns").group_by("step").last()
    longest = (last["end_ns"] - last["start_ns"]).mean()
    assert path_parts(graph, replay, bounds)["ns"].sum() == pytest.approx(longest, rel=0.05)
    assert graph.measured_step_ns == analysis.step.time_ns


@pytest.mark.slow
def test_an_equal_rank_is_predicted_from_a_slow_one(corpus):
    """The same model with rank 2 on a tenth of the GPU, and with equal ranks (but one late step)."""
    frameworks = corpus.parent / "frameworks"
    equal = analyze(frameworks / "once-ddp", steps="4,5,6,8,9", what_if=True).graph.measured_ns
    step = analyze(frameworks / "slow-ddp", what_if=True).what_if("rank 2 like others")
    assert step.predicted_ns == pytest.approx(equal, rel=0.05)
    assert step.predicted_range_ns[0] < equal < step.predicted_range_ns[1]
    late = analyze(frameworks / "once-ddp", what_if=True).what_if("rank 1 like others")
    assert late.predicted_ns == pytest.approx(equal, rel=0.02)


def exposed_transfer(compute=30, transfer=40):
    """A step that computes, then transfers alone with another rank that does the same."""
    return [
        [
            kernel("forward", 0, compute),
            kernel("dp_comm", compute, compute + transfer, match=0, name="nccl"),
        ]
        for _ in range(2)
    ]


@pytest.mark.parametrize("changes", [("links x2", "hide dp_comm"), ("hide dp_comm", "links x2")])
def test_faster_links_and_hiding_are_made_together_in_any_order(changes):
    """40 of transfer become 20, which the 30 of compute hide: 30 are left; alone they leave 50 and 40."""
    graph = graph_of(*exposed_transfer())
    assert predicted_ms(graph, "links x2") == 50
    assert predicted_ms(graph, "hide dp_comm") == 40
    assert predicted_ms(graph, *changes) == 30


def test_a_saving_without_its_range_is_that_of_the_whole_prediction():
    changes = [parse_change("links x2"), parse_change("hide dp_comm")]
    whole = graph_of(*exposed_transfer()).predict(changes)
    saving = graph_of(*exposed_transfer()).predict_saving(changes)
    assert (saving.saves_ns, saving.predicted_ns) == (whole.saves_ns, whole.predicted_ns)
    assert saving.saves_range_ns is None
    assert whole.saves_range_ns is not None


def test_compute_hides_one_label_or_the_other():
    """10 of compute and two transfers of 8: hiding one leaves 18, both 16, since only 10 can be hidden."""
    rows = [
        [
            kernel("forward", 0, 10),
            kernel("dp_comm", 10, 18, match=0, name="reduce"),
            kernel("tp_comm", 18, 26, match=1, name="gather"),
        ]
        for _ in range(2)
    ]
    graph = graph_of(*rows)
    assert predicted_ms(graph, "hide dp_comm") == 18
    assert predicted_ms(graph, "hide dp_comm", "hide tp_comm") == 16
    assert predicted_ms(graph, "hide dp_comm", "hide dp_comm") == 18


def test_a_rank_that_was_made_like_others_is_not_made_so_again():
    graph = graph_of(*step_of_ranks(10, 10, 10, 20))
    assert predicted_ms(graph, "rank 3 like others") == 15
    assert predicted_ms(graph, "rank 3 like others", "balance") == 15


def test_changes_that_work_against_each_other_are_refused():
    graph = graph_of(*step_of_ranks(10, 10))
    step = graph.predict([parse_change("forward x0.5"), parse_change("dp_comm x4")])
    assert step.predicted_ns is None
    assert step.why_not == "'forward x0.5' alone is faster: these changes work against each other"


def test_a_run_has_one_number_of_microbatches():
    graph = graph_of([kernel("forward", 0, 10)])
    assert graph.predict(
        [parse_change("microbatches 4"), parse_change("microbatches 8")]
    ).why_not.startswith("a run has one")


def test_a_wait_followed_by_short_calls_still_releases_the_host(samples):
    """Timers synchronise several times after the one call that waits for the reductions."""
    run = analysis_of(samples / "slow-ddp", what_if=True)
    step = run.what_if("links x2")
    exposed_ns = run.step.budget_ns.exposed_ns["dp_comm"]
    # Twice as fast, at least a third of the exposed transfers is saved.
    assert step.measured_ns - step.predicted_ns > exposed_ns / 3


def test_another_schedule_is_a_change(samples):
    """The run's own schedule changes nothing; a slower one states no saving."""
    run = analyze(samples / "1f1b", changes=["schedule 1f1b", "schedule zb-v"])
    own, other = run.changed_steps[:2]
    assert (own.predicted_ns, own.saves_ns) == (own.measured_ns, 0)
    assert other.predicted_ns > other.measured_ns
    assert (other.saves_ns, other.saves_range_ns) == (None, None)
    low_ns, high_ns = other.predicted_range_ns
    assert low_ns <= other.predicted_ns <= high_ns


def test_an_unknown_change_names_the_nearest_three(run_command, samples):
    with pytest.raises(OptionError) as error:
        parse_change("fused optimiser")
    assert "the nearest are: fused optimizer, " in str(error.value)
    assert str(error.value).count(",") == 2
    with pytest.raises(TracekitError, match="zb-v"):
        parse_change("schedule zbv")
    listed = run_command("analyze", "--list-changes")
    assert listed.returncode == 0
    assert {"schedule NAME", "fused optimizer", "balance"} <= {
        line.partition("  ")[0] for line in listed.stdout.splitlines()
    }


def test_fewer_reductions_leave_gathers_as_they_are():
    """Each rank gathers for 6, computes for 10 and reduces for 8: at half the time the step is 4 shorter."""
    ranks = [
        [
            kernel("dp_comm", 0, 6, match=0, name="ncclDevKernel_AllGather_RING_LL"),
            kernel("forward", 6, 16),
            kernel("dp_comm", 16, 24, match=1, name="ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL"),
        ]
        for _ in range(2)
    ]
    graph = graph_of(*ranks)
    assert predicted_ms(graph, "dp_comm x0.5") == pytest.approx(17, abs=0.01)
    assert predicted_ms(graph, "dp_comm reductions x0.5") == pytest.approx(20, abs=0.01)


def test_reductions_that_kernels_do_not_name_are_refused():
    row = graph_of(*step_of_ranks(10, 20)).predict([parse_change("dp_comm reductions x0.5")])
    assert "do not tell reductions apart" in row.why_not


def margin_ns(replayed_ns=0, *, times_ns=(1_000, 1_000, 1_000), **path_ns):
    """Half width of a range of steps with these times, with this time on the critical path by label."""
    bounds = pl.DataFrame({"step": range(len(times_ns)), "time_ns": times_ns})
    predicting = SimpleNamespace(graph=SimpleNamespace(measured_bounds=bounds), clock_error_ns=0)
    predicting.deviation_of_steps = WhatIfGraph.deviation_of_steps.func(predicting)
    labels = [None if label == "host" else label for label in path_ns]
    parts = pl.DataFrame(
        {"label": labels, "ns": list(path_ns.values())},
        schema={"label": pl.String, "ns": pl.Int64},
    )
    return WhatIfGraph.range_margin_ns(predicting, replayed_ns, parts)


@pytest.mark.parametrize(("measured_ns", "left_ns"), [(400, 160), (600, 240), (700, 340)])
def test_a_graph_of_longer_steps_than_the_runs_takes_off_the_same_share(measured_ns, left_ns):
    """Of the graph's steps of 600 ns the replay leaves 240."""
    graph = SimpleNamespace(measured_step_ns=600, step_ns=lambda _: 240)
    predicting = SimpleNamespace(graph=graph, measured_ns=measured_ns)
    assert WhatIfGraph.replayed_ns(predicting, pl.DataFrame()) == left_ns


def test_a_prediction_is_uncertain_by_a_twentieth_at_least():
    assert margin_ns(1_000) == pytest.approx(50)


def test_one_slow_step_among_four_does_not_widen_the_range_of_the_others():
    assert margin_ns(1_000, times_ns=[1_000, 1_000, 1_000, 10_000]) == pytest.approx(50)
    assert margin_ns(1_000, times_ns=[800, 900, 1_100, 1_200]) == pytest.approx(150)


def test_transfers_vary_by_fifteen_percent_and_hosts_by_twenty():
    assert margin_ns(dp_comm=1_000) == pytest.approx(150)
    assert margin_ns(host=1_000) == pytest.approx(200)
    assert margin_ns(dp_comm=1_000, host=1_000) == pytest.approx(250)  # 3, 4 and 5


@pytest.mark.parametrize(("saves_ns", "is_proposed"), [(10, False), (11, True)])
def test_a_change_that_saves_more_than_a_hundredth_is_proposed(saves_ns, is_proposed):
    row = SimpleNamespace(saves_ns=saves_ns, measured_ns=1_000, free_ns=None)
    predicting = SimpleNamespace(_candidates=lambda: ["balance"], predict=lambda changes: row)
    assert bool(WhatIfGraph.best_changes(predicting)) is is_proposed
