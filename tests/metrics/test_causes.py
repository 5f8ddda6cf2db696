"""Why time is exposed: a trace of a few events for each cause, and real runs whose cause is known."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tests.kept import analysis_of, measured_tables
from tracekit import analyze
from tracekit.classify import classify
from tracekit.intervals import union
from tracekit.metrics.causes import (
    Rank,
    causes_by_event,
    cut_intervals,
    cut_where_host_waits,
    exposure_causes,
    with_peers,
)
from tracekit.metrics.host.events import NamedRows
from tracekit.metrics.host.waiting_calls import WAITING_CALLS, find_waiting_calls
from tracekit.metrics.label_intervals import COMPUTE_SET, EXPOSABLE_LABELS, Lanes
from tracekit.metrics.start_constraints import (
    CONSTRAINT_KINDS,
    find_start_constraints,
)
from tracekit.run.load import load
from tracekit.schema import EXPOSURE_CAUSES

US, MS = 1_000, 1_000_000
COMPUTE, COMM = 7, 20


@pytest.fixture
def why(labelled):
    """Return the causes of rows (label, stream, launch, start, end), in µs: {label: {cause: µs}}."""

    def find(*rows, waits=(), blocks=(), wait_us=0, is_open=False, steps=None):
        events = labelled(
            *(
                {"label": label, "stream": stream, "launch_ns": launch if launch is None else launch * US,
                 "start_ns": start * US, "end_ns": end * US, "id": i, "step": None if steps is None else steps[i]}
                for i, (label, stream, launch, start, end) in enumerate(rows)
            )
        )  # fmt: skip
        if steps is not None:
            events = events.with_columns(part=pl.col("step").rank("dense").cast(pl.Int64) - 1)
        host_calls = [
            ("cudaStreamWaitEvent", 1, time * US, time * US, False, False) for time in waits
        ]
        host_calls += [
            ("cudaStreamSynchronize", 1, time * US, end * US, True, False) for time, end in blocks
        ]
        calls = pl.DataFrame(host_calls, schema=WAITING_CALLS, orient="row").sort("start_ns")
        lanes = Lanes.of(events)
        rank = Rank.of(events, calls)
        pieces = exposure_causes(rank, lanes.exposed, parts=False)
        wait_ns = pl.lit(None if wait_us is None else wait_us * US, pl.Int64)
        peers = events.with_columns(wait_ns=wait_ns, open=pl.lit(is_open))
        result: dict[str, dict[str, int]] = {}
        for *_, label, cause, ns in with_peers({0: pieces}, peers).iter_rows():
            result.setdefault(label, {})[cause] = ns // US
        exposed = {
            label: lane.total_ns // US for label, lane in lanes.exposed.items() if lane.total_ns
        }
        assert {label: sum(causes.values()) for label, causes in result.items()} == exposed
        find.by_event = {}
        for event, cause, ns in causes_by_event(pieces, peers).iter_rows():
            find.by_event.setdefault(event, {})[cause] = ns // US
        return result

    return find


def test_a_collective_on_the_compute_stream_is_queued_there(why):
    rows = [
        ("dgrad", COMPUTE, 0, 10, 100),
        ("dp_comm", COMPUTE, 20, 102, 302),
        ("dgrad", COMPUTE, 40, 304, 400),
    ]
    assert why(*rows) == {"dp_comm": {"same_stream": 200}}
    # The end of the step changes nothing about that.
    assert why(*rows[:2]) == {"dp_comm": {"same_stream": 200}}


def test_waiting_for_a_late_peer_is_waiting_on_any_stream(why):
    rows = [
        ("dgrad", COMPUTE, 0, 10, 100),
        ("dp_comm", COMPUTE, 20, 102, 302),
        ("dgrad", COMPUTE, 40, 304, 400),
    ]
    assert why(*rows, wait_us=150) == {"dp_comm": {"peer_late": 150, "same_stream": 50}}
    assert why(*rows, wait_us=None) == {"dp_comm": {"unknown": 200}}


def test_where_members_were_not_recorded_only_the_known_wait_has_a_cause(why):
    rows = [
        ("dgrad", COMPUTE, 0, 10, 500),
        ("dp_comm", COMM, 20, 503, 1503),
        ("optimizer", COMPUTE, 40, 1507, 1600),
    ]
    assert why(*rows, waits=[15, 30], wait_us=300, is_open=True) == {
        "dp_comm": {"peer_late": 300, "unknown": 700}
    }


def test_compute_that_was_told_to_wait_at_once(why):
    """The all-gather runs on its own stream.

    The forward that needs it was launched next, with a wait before it.
    """
    rows = [
        ("forward", COMPUTE, 0, 10, 500),
        ("dp_comm", COMM, 20, 503, 1503),
        ("forward", COMPUTE, 40, 1507, 1600),
    ]
    assert why(*rows, waits=[15, 30]) == {"dp_comm": {"compute_waited": 1000}}


def test_the_wait_part_is_the_peers(why):
    rows = [
        ("forward", COMPUTE, 0, 10, 500),
        ("dp_comm", COMM, 20, 503, 1503),
        ("forward", COMPUTE, 40, 1507, 1600),
    ]
    assert why(*rows, waits=[15, 30], wait_us=700) == {
        "dp_comm": {"peer_late": 700, "compute_waited": 300}
    }
    assert why(*rows, waits=[15, 30], wait_us=None) == {"dp_comm": {"unknown": 1000}}


def test_without_a_wait_in_the_trace_it_was_the_queue(why):
    """One wait was recorded, the collective's own: nothing told the compute stream to wait, and yet it did."""
    rows = [
        ("forward", COMPUTE, 0, 10, 500),
        ("dp_comm", COMM, 20, 503, 1503),
        ("forward", COMPUTE, 40, 1507, 1600),
    ]
    assert why(*rows, waits=[15]) == {"dp_comm": {"one_queue": 1000}}
    # Where waits are never recorded the same picture is a wait as well as a queue, and a wait is
    # what people write.
    assert "one_queue" not in why(*rows)["dp_comm"]


def test_the_host_had_not_launched_the_compute(why):
    rows = [
        ("forward", COMPUTE, 0, 10, 100),
        ("dp_comm", COMM, 20, 60, 1060),
        ("forward", COMPUTE, 900, 910, 1200),
    ]
    assert why(*rows, waits=[15]) == {"dp_comm": {"launched_late": 810}}
    # A host that stood in a synchronisation meanwhile was waiting for the collective, and so was
    # the compute; what passed between the end of the synchronisation and the compute's start was
    # the host's.
    assert why(*rows, waits=[15], blocks=[(90, 880)]) == {
        "dp_comm": {"launched_late": 30, "compute_waited": 780}
    }
    halves = why(*rows, waits=[15], blocks=[(200, 300), (400, 500)])
    assert halves == {"dp_comm": {"launched_late": 610, "compute_waited": 200}}


def test_a_copy_of_pageable_memory_blocks_the_host_until_its_stream_is_there():
    """The call returns when its copy has begun, 800 µs later.

    That of pinned memory, and one in time, do not wait.
    """
    times = [(1, 100, 905), (2, 910, 915), (3, 920, 925)]
    calls = [
        ("cudaMemcpyAsync", correlation, start * US, end * US) for correlation, start, end in times
    ]
    schema = {"name": pl.String, "correlation": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
    api = pl.DataFrame(calls, schema=schema, orient="row").with_columns(tid=pl.lit(1, pl.Int64))
    pageable, pinned = "Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)"
    gpu = pl.DataFrame({"name": [pageable, pageable, pinned], "correlation": [1, 2, 3],
                        "start_ns": [900 * US, 950 * US, 921 * US]})  # fmt: skip
    waiting = find_waiting_calls(NamedRows(api), gpu)
    assert waiting.select("start_ns", "end_ns", "blocks").rows() == [(100 * US, 905 * US, True)]


def test_a_slow_launch_blocks_the_host_where_the_queue_is_full():
    """600 kernels of 1 ms are launched within 6 ms, then a launch takes 3 ms.

    So does one after they all ran.
    """
    quick = [
        ("cudaLaunchKernel", number, 10 * number * US, (10 * number + 5) * US)
        for number in range(600)
    ]
    slow = [
        ("cudaLaunchKernel", number, start_ms * MS, (start_ms + 3) * MS)
        for number, start_ms in ((600, 6), (601, 700))
    ]
    schema = {"name": pl.String, "correlation": pl.Int64, "start_ns": pl.Int64, "end_ns": pl.Int64}
    api = pl.DataFrame([*quick, *slow], schema=schema, orient="row").with_columns(
        tid=pl.lit(1, pl.Int64)
    )
    begins = [number * MS for number in range(601)] + [703 * MS]
    gpu = pl.DataFrame({"name": ["gemm"] * 602, "correlation": range(602), "start_ns": begins})
    waiting = find_waiting_calls(NamedRows(api), gpu)
    assert waiting.select("start_ns", "end_ns", "blocks").rows() == [(6 * MS, 9 * MS, True)]
    # 100 kernels had begun before the first launch.
    shallow = gpu.with_columns(pl.col("start_ns") - 100 * MS)
    assert find_waiting_calls(NamedRows(api), shallow).is_empty()


def test_an_operation_launched_after_the_host_stood_still_was_not_launched_late(why):
    """Compute ran long enough to hide the copy, but the host waited for it and could not launch the copy earlier."""
    rows = [
        ("forward", COMPUTE, 0, 10, 500),
        ("onload", COMM, 400, 410, 900),
        ("forward", COMPUTE, 420, 904, 1600),
    ]
    assert why(*rows, waits=[415], blocks=[(20, 395)]) == {"onload": {"compute_waited": 400}}


def test_an_operation_launched_beside_compute_that_could_have_hidden_more(why):
    rows = [
        ("forward", COMPUTE, 0, 10, 500),
        ("onload", COMM, 400, 410, 900),
        ("forward", COMPUTE, 420, 904, 1600),
    ]
    # 400 µs of compute ran before it began.
    assert why(*rows, waits=[415]) == {"onload": {"launched_late": 400}}
    longer = [*rows[:1], ("onload", COMM, 400, 410, 901), ("forward", COMPUTE, 420, 905, 1600)]
    # That could not have hidden all of it.
    assert why(*longer, waits=[415]) == {"onload": {"compute_waited": 401}}


def test_the_last_bucket_of_the_backward_has_nothing_to_hide_it(why):
    rows = [
        ("dgrad", COMPUTE, 0, 10, 500),
        ("dp_comm", COMM, 20, 503, 1503),
        ("optimizer", COMPUTE, 40, 1507, 1600),
    ]
    assert why(*rows, waits=[15, 30]) == {"dp_comm": {"nothing_to_hide": 1000}}
    assert why(*rows[:2], waits=[15]) == {"dp_comm": {"nothing_to_hide": 1000}}


def test_compute_launched_since_then_ran_out(why):
    """A second forward was launched behind the all-gather and hid 200 µs of it.

    The third one needs it.
    """
    rows = [("forward", COMPUTE, 0, 10, 500), ("dp_comm", COMM, 20, 503, 1503), ("forward", COMPUTE, 30, 502, 703),
            ("forward", COMPUTE, 40, 1507, 1600)]  # fmt: skip
    assert why(*rows, waits=[15, 35]) == {"dp_comm": {"nothing_to_hide": 800}}


def test_compute_of_the_next_step_does_not_count(why):
    rows = [
        ("forward", COMPUTE, 0, 10, 500),
        ("dp_comm", COMM, 20, 503, 1503),
        ("forward", COMPUTE, 40, 1507, 1600),
    ]
    assert why(*rows, waits=[15, 30], steps=[1, 1, 2]) == {"dp_comm": {"nothing_to_hide": 1000}}


def test_time_that_another_operation_holds_up_is_not_this_ones(why):
    """Compute waits for the all-gather.

    The dispatch beside it pays for the time both take, and has nothing beside.
    """
    rows = [("forward", COMPUTE, 0, 10, 500), ("ep_dispatch", 30, 18, 503, 1000), ("dp_comm", COMM, 20, 503, 1503),
            ("forward", COMPUTE, 40, 1507, 1600)]  # fmt: skip
    result = why(*rows, waits=[15, 16, 30])
    assert result == {"ep_dispatch": {"nothing_to_hide": 497}, "dp_comm": {"compute_waited": 503}}


def test_a_chain_of_holders_is_followed_back(why):
    """Compute waits for a copy that waits for the collective: the collective is what it waited for."""
    rows = [("forward", COMPUTE, 0, 10, 500), ("dp_comm", COMM, 20, 503, 1503), ("onload", COMM, 30, 1505, 1605),
            ("forward", COMPUTE, 40, 1608, 1700)]  # fmt: skip
    assert why(*rows, waits=[15, 35]) == {
        "dp_comm": {"compute_waited": 1000},
        "onload": {"compute_waited": 100},
    }


def test_without_launches_nothing_is_known(why):
    rows = [
        ("forward", COMPUTE, None, 10, 500),
        ("dp_comm", COMM, None, 503, 1503),
        ("memory", COMPUTE, None, 1505, 9),
    ]
    assert why(*rows[:2]) == {"dp_comm": {"unknown": 1000}}
    assert why(("forward", COMPUTE, None, 10, 50), ("offload", COMPUTE, None, 51, 61)) == {
        "offload": {"unknown": 10}
    }
    # One launch is lost: what that compute waited for is not known.
    lost = [
        ("forward", COMPUTE, 0, 10, 500),
        ("dp_comm", COMM, 20, 503, 1503),
        ("forward", COMPUTE, None, 1507, 1600),
    ]
    assert why(*lost, waits=[15]) == {"dp_comm": {"unknown": 1000}}


@pytest.mark.parametrize(
    ("pause", "cause"),
    [(99, "compute_waited"), (101, "unknown")],
)
def test_what_ended_long_before_did_not_hold(why, pause, cause):
    rows = [("forward", COMPUTE, 0, 10, 500), ("dp_comm", COMM, 20, 503, 1503),
            ("forward", COMPUTE, 40, 1503 + pause, 1700)]  # fmt: skip
    assert why(*rows, waits=[15, 30]) == {"dp_comm": {cause: 1000}}


@pytest.mark.parametrize(("pause", "how"), [(5_000, "stream"), (5_001, "other")])
def test_right_behind_on_its_stream_another_end_is_chance(labelled, pause, how):
    first, second = 500_000, 500_000 + pause
    events = labelled(
        {"label": "forward", "stream": 7, "launch_ns": 0, "start_ns": 10_000, "end_ns": first},
        {"label": "dp_comm", "stream": 8, "launch_ns": 0, "start_ns": 10_000, "end_ns": second - 1},
        {"label": "forward", "stream": 7, "launch_ns": 1, "start_ns": second, "end_ns": second + 9},
    )
    assert CONSTRAINT_KINDS[find_start_constraints(events).kind[2]] == how


@pytest.mark.parametrize(("ns", "cause"), [(0.9, "compute_waited"), (1.2, "same_stream")])
def test_a_few_small_kernels_make_no_compute_stream(why, ns, cause):
    """After the collective a small kernel of its own stream divides.

    Whether that is compute is a matter of share.
    """
    small = round(1000 * ns * 0.1)
    rows = [("forward", COMPUTE, 0, 10, 910), ("dp_comm", COMM, 20, 913, 1913), ("other", COMM, 30, 1914, 1914 + small),
            ("forward", COMPUTE, 40, 1917 + small, 2000 + small)]  # fmt: skip
    assert why(*rows, waits=[15, 35]) == {"dp_comm": {cause: 1000}}


@pytest.mark.parametrize(
    ("label", "us", "cause"),
    [("other", 9, "nothing_to_hide"), ("other", 11, "same_stream"), ("forward", 9, "same_stream")],
)
def test_a_process_that_only_moves_data_has_nothing_to_hide_it(why, label, us, cause):
    """A parameter server broadcasts for 1 ms and compares a flag: a kernel of no model, below 1 % of the GPU's time."""
    rows = [("broadcast", COMPUTE, 0, 10, 1010), (label, COMPUTE, 20, 1012, 1012 + us)]
    assert why(*rows) == {"broadcast": {cause: 1000}}


def test_each_event_has_the_causes_of_its_own_exposed_time(why):
    """A copy and a collective on the compute stream, and a collective that the end of the step leaves alone."""
    rows = [
        ("dgrad", COMPUTE, 0, 10, 100),
        ("onload", COMPUTE, 20, 102, 152),
        ("dp_comm", COMPUTE, 30, 154, 254),
        ("dgrad", COMPUTE, 40, 256, 400),
        ("dp_comm", COMM, 50, 402, 502),
    ]
    why(*rows, wait_us=30)
    # Only communication waits for peers; the copy's cause is known without them.
    assert why.by_event == {
        1: {"same_stream": 50},
        2: {"peer_late": 30, "same_stream": 70},
        4: {"peer_late": 30, "nothing_to_hide": 70},
    }
    why(*rows, wait_us=None)
    assert why.by_event == {1: {"same_stream": 50}, 2: {"unknown": 100}, 4: {"unknown": 100}}


def test_exposed_time_of_two_operations_at_once_belongs_to_one(why):
    rows = [
        ("dgrad", COMPUTE, 0, 10, 100),
        ("dp_comm", 20, 20, 110, 210),
        ("dp_comm", 21, 30, 150, 310),
    ]
    why(*rows)
    assert {event: sum(causes.values()) for event, causes in why.by_event.items()} == {
        1: 40,
        2: 160,
    }


@pytest.mark.parametrize(
    ("interval", "edges", "is_cut", "pieces"),
    [
        ((0, 30), [10, 20], True, [(0, 10, 0), (10, 20, 1), (20, 30, 2)]),
        ((0, 30), [10, 20], False, [(0, 30, 0)]),
        ((10, 20), [10, 20], True, [(10, 20, 1)]),  # edges at its ends cut nothing off
        ((12, 15), [10, 20], True, [(12, 15, 1)]),
        ((25, 30), [10, 20], True, [(25, 30, 2)]),
        ((0, 30), [], True, [(0, 30, 0)]),
    ],
)
def test_an_interval_is_cut_at_the_edges_inside_it(interval, edges, is_cut, pieces):
    """Beside one that is not cut: start, end and number of edges up to the start of each piece."""
    starts, ends = np.array([[interval[0], 0], [interval[1], 30]])
    cuts = cut_intervals(starts, ends, np.array(edges, np.int64), np.array([is_cut, False]))
    assert list(zip(cuts.start_ns, cuts.end_ns, cuts.edges_before, strict=True)) == [
        *pieces,
        (0, 30, 0),
    ]
    assert cuts.interval.tolist() == [0] * len(pieces) + [1]


def test_pieces_are_cut_where_the_host_begins_and_ends_to_wait_if_that_changes_their_cause():
    blocked = union([10, 40], [20, 50])
    pieces = pl.DataFrame(
        {"start_ns": [0, 42, 15], "end_ns": [30, 44, 60], "if_host_ran": ["queue", "queue", "queue"],
         "if_host_waited": ["host", "host", "queue"]}
    )  # fmt: skip
    cut = cut_where_host_waits(SimpleNamespace(blocked=blocked), pieces)
    assert cut.select("start_ns", "end_ns", "host_waited").rows() == [
        (0, 10, False),
        (10, 20, True),
        (20, 30, False),
        (42, 44, True),
        (15, 60, True),
    ]


def test_pieces_are_carried_by_the_event_that_runs(labelled):
    """Random operations on random streams: the pieces cover the exposed time and lie in events of their label."""
    rng = np.random.default_rng(3)
    for _ in range(30):
        start = rng.integers(0, 2_000, 60)
        rows = [
            {"label": str(rng.choice(["forward", "dp_comm", "onload"])), "stream": int(rng.integers(3)), "id": i,
             "start_ns": int(s), "end_ns": int(s + rng.integers(0, 90)), "launch_ns": int(s - 5)}
            for i, s in enumerate(np.sort(start))
        ]  # fmt: skip
        events = labelled(*rows)
        rank = Rank.of(events, WAITING_CALLS.to_frame())
        paid = Lanes.of(events).exposed
        pieces = exposure_causes(rank, paid, parts=False)
        for label, lane in paid.items():
            of_label = pieces.filter(pl.col("label") == label)
            assert of_label["ns"].sum() == lane.total_ns
            covered = union(
                of_label["start_ns"].to_numpy(), (of_label["start_ns"] + of_label["ns"]).to_numpy()
            )
            assert (covered - lane).total_ns == 0
            for row in of_label.iter_rows(named=True):
                event = rows[row["id"]]
                assert event["label"] == label
                assert (
                    event["start_ns"]
                    <= row["start_ns"]
                    <= row["start_ns"] + row["ns"]
                    <= event["end_ns"]
                )


def check_sums(result, name=""):
    for rank_result in result.ranks:
        for scope in (rank_result.whole, *rank_result.per_step):
            exposed = {label: ns for label, ns in scope.budget.exposed_ns.items() if ns}
            assert {label: sum(c.values()) for label, c in scope.because_ns.items()} == exposed, (
                name
            )
            assert set(scope.because_ns) <= set(EXPOSABLE_LABELS)
            assert {c for causes in scope.because_ns.values() for c in causes} <= set(
                EXPOSURE_CAUSES
            )


@pytest.mark.slow
def test_on_framework_traces_the_causes_sum_to_exposed_time(corpus):
    several_processes_per_rank = ("ckpt-engine", "rl-colocated")
    for folder in sorted(p for p in (corpus.parent / "frameworks").iterdir() if p.is_dir()):
        if folder.name in several_processes_per_rank:
            continue
        check_sums(analysis_of(folder), folder.name)


def test_a_straggler_makes_its_peer_wait(samples):
    result = analysis_of(samples / "steps/straggler")
    check_sums(result)
    causes = result.rank(0).whole.because_ns["pp_comm"]
    assert max(causes, key=causes.get) == "peer_late"
    assert causes["peer_late"] <= result.rank(0).whole.wait_ns["pp_comm"]
    # By hand: from each own start to the partner's start, where no compute runs.
    start, end, last = (
        result.tables["matched"]
        .with_columns(last_ns=pl.col("start_ns").max().over("match"))
        .filter(pl.col("label") == "pp_comm", pl.col("rank") == 0)
        .select("start_ns", "end_ns", "last_ns")
        .to_numpy()
        .T
    )
    computing = classify(load(samples / "steps/straggler").rank(0).events).filter(
        pl.col("label").is_in(COMPUTE_SET)
    )
    compute = union(computing["start_ns"].to_numpy(), computing["end_ns"].to_numpy())
    assert causes["peer_late"] == pytest.approx(
        (union(start, np.minimum(last, end)) - compute).total_ns, rel=0.01
    )


def test_ring_attention_on_the_compute_stream(corpus):
    """The program runs everything on one stream: all that is exposed is waiting for the other GPU, or queued there."""
    result = analyze(corpus / "nsight/mfu_2gpu_before.sqlite", schedule="none")
    for rank_result in result.ranks:
        assert rank_result.whole.because_ns
        for causes in rank_result.whole.because_ns.values():
            assert {"same_stream"} <= set(causes) <= {"peer_late", "same_stream"}


def test_the_tail_of_ddp_has_nothing_to_hide_it(corpus):
    """All-reduces go on for 39 ms after the last backward kernel of rank 0.

    Before it the host launched too slowly.
    """
    rank = load(corpus.parent / "frameworks/hf-ddp-ckpt").rank(0)
    events = classify(rank.events)
    last = events.filter(pl.col("pass") == "backward", pl.col("label") != "dp_comm")[
        "start_ns"
    ].max()
    pieces = measured_tables(rank, labelled=events, pipeline=False).window.exposed.filter(
        pl.col("label") == "dp_comm"
    )
    tail = pieces.filter(pl.col("start_ns") > last)
    assert tail["ns"].sum() == pytest.approx(39_100_000, rel=0.01)
    assert set(tail["cause"]) == {"nothing_to_hide"}
    before = (
        pieces.filter(pl.col("start_ns") <= last)
        .group_by("cause")
        .agg(pl.col("ns").sum())
        .sort("ns")
    )
    assert before["cause"][-1] == "launched_late"
