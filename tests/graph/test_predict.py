"""Prediction: programs, messages and machines small enough to compute by hand."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest

from tracekit.graph.constants import (
    HOST_SPEED_FACTOR,
    MIN_ERROR_SHARE,
    UNKNOWN_SLOWDOWN,
)
from tracekit.graph.engine import HostTimes, Outcome, run_program
from tracekit.graph.machine import (
    FittedMachine,
    Machine,
    fit_machine,
)
from tracekit.graph.measured_ops import measure_ops, recut_stages
from tracekit.graph.messages import match_messages
from tracekit.graph.predictor import Predictor
from tracekit.graph.rank_programs import (
    POST,
    RUN,
    WAIT,
    Message,
    MessageKernel,
    Piece,
    Program,
    find_queues,
    recorded_program,
    write_grouped,
    write_just_in_time,
    write_posted,
)
from tracekit.graph.schedule_rows import best_split, layers_per_stage
from tracekit.intervals import EMPTY, union
from tracekit.pipeline.reconstruct.chunk_table import count_layers
from tracekit.pipeline.reconstruct.messages import CONTENTION, RANK_MESSAGES
from tracekit.pipeline.schedules import generate, simulate

pytestmark = pytest.mark.slow

FREE = Machine(send_ns=0, receive_ns=0, latency_ns=0)


def unit_work(program):
    return [{"F": 1.0, "I": 1.0, "W": 1.0, "B": 2.0}[piece.kind] for piece in program.pieces]


@pytest.mark.parametrize(
    "name", ["gpipe", "1f1b", "interleaved", "interleaved-zb", "zb-v", "v-half", "zb-h1"]
)
def test_with_free_messages_on_queues_of_their_own_it_is_the_simulator(name):
    plan = generate(name, pp=4, microbatches=8)
    program = write_posted(plan)
    free = Machine(0, 0, 0, queues="free")
    assert run_program(program, unit_work(program), free).makespan == simulate(plan).makespan


def a_forward_and_its_backward():
    """A forward and a backward, each launched in 100 ns, 50 ns apart; each runs for 200 ns."""
    columns = {
        "op": ["F", "B"],
        "stage": [0, 0],
        "microbatch": [0, 0],
        "position": [0, 0],
        "launch_ns": [0, 150],
    }
    return pl.DataFrame(columns).with_columns(
        last_ns=pl.col("launch_ns") + 100,
        start_ns=pl.col("launch_ns") + 500,
        end_ns=pl.col("launch_ns") + 700,
        b_stage=None,
        b_microbatch=None,
        host_ns=0,
        wgrad_ns=50,
        busy_ns=100,
    )


def test_waiting_for_room_in_the_queue_is_no_time_of_the_host():
    """The forward's launches take 100 ns, 50 of them in a full queue.

    Then 50 pass to the backward, 20 of them so.
    """
    cells = a_forward_and_its_backward()
    no_lead = pl.Series([0, 0])
    for full, launch_ns, before_ns in (
        (union([20, 110], [70, 130]), 50.0, 30.0),
        (EMPTY, 100.0, 50.0),
    ):
        ops = measure_ops(cells, {}, FREE, stages=1, lead_ns=no_lead, full_queue={0: full})
        assert (ops.launch_ns["F"][0], ops.launch_ns["B"][0], ops.before_ns["B"][0]) == (
            launch_ns,
            100.0,
            before_ns,
        )


def test_splitting_a_backward_costs_its_host_a_search_before_it():
    """A backward is launched in 100 ns, 50 ns after the forward: before an I of it, 0.16 × 100 more pass."""
    cells = a_forward_and_its_backward()
    ops = measure_ops(cells, {}, FREE, stages=1, lead_ns=pl.Series([0, 0]), full_queue={})
    assert ops.before_ns["I"][0] == pytest.approx(50 + 16)


def test_a_forward_after_a_backward_takes_its_host_longer():
    """Rank 0 runs F F B F B: its forwards take 100, 100 and, after the backward, 110.

    In GPipe none comes after one.
    """
    cells = pl.DataFrame(
        {"op": ["F", "F", "B", "F", "B"], "stage": 0, "microbatch": [0, 1, 0, 2, 1], "position": 0}
    ).with_columns(
        launch_ns=pl.Series([0, 1000, 2000, 3000, 4000]),
        last_ns=pl.Series([100, 1100, 2200, 3110, 4200]),
        start_ns=pl.Series([0, 1000, 2000, 3000, 4000]),
        end_ns=pl.Series([500, 1500, 2500, 3500, 4500]),
        b_stage=None,
        b_microbatch=None,
        host_ns=0,
        wgrad_ns=0,
        busy_ns=30,
    )
    ops = measure_ops(cells, {}, FREE, stages=1, lead_ns=pl.Series([0] * 5), full_queue={})
    for name, forwards in (("gpipe", [100, 100, 100]), ("1f1b", [100, 110, 110])):
        schedule = generate(name, pp=1, microbatches=3)
        program = write_just_in_time(schedule)
        times = ops.times(program, schedule)
        launch_ns = [
            op.launch_ns
            for piece, op in zip(program.pieces, times, strict=True)
            if piece.kind == "F"
        ]
        assert launch_ns == pytest.approx(forwards)


def test_a_few_whole_backwards_among_split_ones_count_as_many_as_they_are():
    """Three backwards take 50 + 60 in halves, one takes 40 as a whole: (3 × (50 / 1.05 + 60 / 1.2) + 40) / 4."""
    cells = pl.DataFrame(
        {
            "op": ["I", "W"] * 3 + ["B"],
            "stage": 0,
            "microbatch": [0, 0, 1, 1, 2, 2, 3],
            "position": 0,
        }
    ).with_columns(
        launch_ns=pl.int_range(7) * 1000,
        last_ns=pl.int_range(7) * 1000 + 1,
        start_ns=pl.int_range(7) * 1000 + 100,
        end_ns=pl.int_range(7) * 1000 + 100 + pl.Series([50, 60] * 3 + [40]),
        b_stage=None,
        b_microbatch=None,
        host_ns=0,
        wgrad_ns=0,
        busy_ns=30,
    )
    ops = measure_ops(cells, {}, FREE, stages=1, lead_ns=pl.Series([0] * 7), full_queue={})
    assert ops.gpu_ns["B"][0] == pytest.approx((3 * (50 / 1.05 + 60 / 1.2) + 40) / 4)


def test_a_slow_gpu_stays_slow_whatever_stage_it_runs():
    """The same forward takes 10 on three ranks and 20 on the last, which in Chimera runs the first stage as well."""
    cells = pl.DataFrame(
        {
            "op": "F",
            "stage": range(4),
            "microbatch": 0,
            "position": pl.Series(range(4), dtype=pl.Int32),
        }
    ).with_columns(
        launch_ns=pl.lit(-9),
        last_ns=pl.lit(-5),
        start_ns=pl.lit(0),
        end_ns=pl.Series([10, 10, 10, 20]),
        b_stage=None,
        b_microbatch=None,
        host_ns=0,
        wgrad_ns=0,
        busy_ns=10,
    )
    lead_ns = pl.Series([0] * 4)
    ops = measure_ops(
        cells, {}, FREE, stages=4, lead_ns=lead_ns, full_queue={}, gpu_slowdowns={3: 2.0}
    )
    for name in ("gpipe", "chimera"):
        schedule = generate(name, pp=4, microbatches=4)
        program = write_just_in_time(schedule)
        work = [op.gpu_ns for op in ops.times(program, schedule)]
        numbers = {
            rank: [n for action, n in steps if action == RUN]
            for rank, steps in enumerate(program.steps)
        }
        by_rank = {
            rank: {work[n] for n in ns if program.pieces[n].kind == "F"}
            for rank, ns in numbers.items()
        }
        assert by_rank == {0: {10}, 1: {10}, 2: {10}, 3: {20}}


def test_a_host_that_runs_ahead_goes_on_when_it_has_launched_all_but_no_further_ahead_than_it_did():
    """Two forwards of two ranks: launched at 0 and 140, on GPUs that are free at 100 and 150."""
    cells = pl.DataFrame(
        {"op": "F", "stage": [0, 1], "microbatch": 0, "position": pl.Series([0, 1], dtype=pl.Int32)}
    ).with_columns(
        launch_ns=pl.Series([0, 140]),
        last_ns=pl.Series([20, 145]),
        start_ns=pl.Series([100, 150]),
        end_ns=pl.Series([130, 180]),
        b_stage=None,
        b_microbatch=None,
        host_ns=0,
        wgrad_ns=0,
        busy_ns=30,
    )
    ops = measure_ops(cells, {}, FREE, stages=2, lead_ns=pl.Series([0, 0]), full_queue={})
    schedule = generate("gpipe", pp=2, microbatches=1)
    program = write_just_in_time(schedule)
    own = ops.host_times(ops.times(program, schedule, own=True), own=True)
    assert (own.starts, own.gpu_starts) == ((-100, 40), (0, 50))
    # The first host was 100 ahead, the second 10: it has launched all 30 before the end, which is
    # not allowed again.
    assert ops.next_starts([500, 570], [450, 540]) == ([-50, 60], [0, 70])
    assert ops.next_starts([500, 570], [300, 590]) == ([-100, 90], [0, 70])


@pytest.mark.parametrize("write", [write_just_in_time, write_grouped, write_posted])
def test_every_message_is_sent_once_and_received_once_and_nothing_gets_stuck(write):
    plan = generate("1f1b", pp=4, microbatches=8)
    program = write(plan)
    sends = sorted(send for kernel in program.kernels for send in kernel.sends)
    receives = sorted(receive for kernel in program.kernels for receive in kernel.receives)
    assert sends == receives == list(range(2 * 3 * 8))
    assert run_program(program, unit_work(program), FREE).stuck == 0


def two_ranks(first, second, messages=((0, 1),)):
    """Two ranks; steps as (code, number) with pieces F of 10 each."""
    pieces = tuple(Piece("F", 0, n) for n in range(4))
    kernels = [MessageKernel(source, sends=(n,)) for n, (source, _) in enumerate(messages)]
    kernels += [MessageKernel(target, receives=(n,)) for n, (_, target) in enumerate(messages)]
    return Program(
        (tuple(first), tuple(second)),
        pieces,
        tuple(kernels),
        tuple(Message(*ends) for ends in messages),
    )


def test_a_message_arrives_latency_after_its_send_or_receive_after_its_receiver():
    program = two_ranks([(RUN, 0), (POST, 0)], [(RUN, 1), (POST, 1), (WAIT, 1), (RUN, 2)])
    machine = Machine(send_ns=1, receive_ns=4, latency_ns=6)
    early = run_program(program, [10, 5, 1, 0], machine)  # receiver waits from 5 on: 10 + 6
    late = run_program(program, [10, 50, 1, 0], machine)  # message waits: 50 + 4
    assert [early.start[2], late.start[2]] == [16, 54]


@pytest.mark.parametrize("eager", [True, False])
def test_messages_both_ways_at_once_take_longer_whoever_came_last(eager):
    """Each rank posts one kernel that sends to the other and receives from it: rank 0 at 10, rank 1 at 50."""
    kernels = (
        MessageKernel(0, sends=(0,), receives=(1,)),
        MessageKernel(1, sends=(1,), receives=(0,)),
    )
    first, second = (
        [(RUN, 0), (POST, 0), (WAIT, 0), (RUN, 1)],
        [(RUN, 2), (POST, 1), (WAIT, 1), (RUN, 3)],
    )
    pieces = tuple(Piece("F", 0, n) for n in range(4))
    program = Program(
        (tuple(first), tuple(second)), pieces, kernels, (Message(0, 1), Message(1, 0))
    )
    machine = Machine(send_ns=5, receive_ns=4, latency_ns=6, eager=eager, duplex=2.0)
    outcome = run_program(program, [10, 1, 50, 1], machine)
    assert outcome.start[1] == 50 + 2 * 6  # rank 0 waited for the message of rank 1
    assert outcome.start[3] == 50 + 2 * 5  # rank 1 takes what has come, and sends meanwhile


def test_a_queue_is_in_order_so_a_receive_blocks_the_send_behind_it():
    # rank 1 posts a receive, then a send of its own that rank 0 waits for.
    messages = ((0, 1), (1, 0))
    first = [(RUN, 0), (POST, 0), (POST, 3), (WAIT, 3), (RUN, 1)]
    second = [(POST, 2), (RUN, 2), (POST, 1), (RUN, 3)]
    program = two_ranks(first, second, messages)
    one_queue = Machine(send_ns=1, receive_ns=1, latency_ns=2)
    work = [100, 1, 10, 1]
    # Sent only after the receive ended at 102.
    assert run_program(program, work, one_queue).start[1] == 100 + 2 + 2
    assert (
        run_program(program, work, Machine(1, 1, 2, queues="direction")).start[1] == 101
    )  # there long before: receive takes 1


def test_a_link_carries_one_message_at_a_time():
    messages = ((0, 1), (0, 1))
    first = [(RUN, 0), (POST, 0), (POST, 1), (RUN, 1)]
    second = [(POST, 2), (POST, 3), (WAIT, 3), (RUN, 2), (RUN, 3)]
    program = two_ranks(first, second, messages)
    outcome = run_program(program, [10, 1, 1, 1], Machine(send_ns=4, receive_ns=0, latency_ns=6))
    assert outcome.start[2] == 10 + 4 + 6


def test_compute_beside_a_message_is_slower_while_it_runs():
    program = two_ranks([(RUN, 0), (POST, 0), (RUN, 1)], [(POST, 1), (WAIT, 1), (RUN, 2), (RUN, 3)])
    machine = Machine(send_ns=6, receive_ns=0, latency_ns=6, slowdown={"F": 2.0})
    outcome = run_program(program, [10, 10, 1, 1], machine)
    assert outcome.end[1] == 10 + 6 + 7  # 3 of 10 done in the 6 beside the send


def test_a_host_that_is_late_holds_up_the_start_and_the_end():
    program = two_ranks([(RUN, 0), (RUN, 1)], [(RUN, 2), (RUN, 3)], ())
    # The host launches the first piece from 0 to 5, the second from 30 to 85, whose end comes 5
    # after its last launch.
    host = HostTimes([0, 25, 0, 0], [5, 55, 0, 0], post_ns=0, last_launch_to_end_ns=5)
    outcome = run_program(program, [10, 10, 1, 1], FREE, host)
    assert (outcome.start[1], outcome.end[1]) == (30, 90)


def test_a_gpu_that_is_busy_with_the_step_before_starts_when_it_is_free():
    """Both hosts launch long before.

    The first rank is free at 40, the second, which waits for no message, at 0.
    """
    program = two_ranks([(RUN, 0), (RUN, 1)], [(RUN, 2), (RUN, 3)], ())
    times = {
        "post_ns": 0,
        "last_launch_to_end_ns": 0,
        "starts": [-900, -900],
        "gpu_starts": [40, 0],
    }
    outcome = run_program(program, [10, 10, 1, 1], FREE, HostTimes([0] * 4, [100] * 4, **times))
    assert outcome.start.tolist() == [40, 50, 0, 1]


@pytest.mark.parametrize(("waits", "start"), [(False, 20), (True, 36)])
def test_a_host_that_waits_for_a_message_launches_only_then(waits, start):
    """The message is there at 16, and the host needs 20 before its last launch: from 0 on, or from 16 on."""
    program = two_ranks([(RUN, 0), (POST, 0)], [(RUN, 1), (POST, 1), (WAIT, 1), (RUN, 2)])
    host = HostTimes(
        [0, 0, 20, 0], [0] * 4, post_ns=0, last_launch_to_end_ns=0, waits_for_messages=waits
    )
    outcome = run_program(
        program, [10, 5, 1, 0], Machine(send_ns=1, receive_ns=4, latency_ns=6), host
    )
    assert outcome.start[2] == start


def test_messages_on_the_compute_stream_stop_it():
    program = two_ranks([(RUN, 0), (POST, 0), (RUN, 1)], [(POST, 1), (RUN, 2), (RUN, 3)])
    machine = Machine(send_ns=7, receive_ns=1, latency_ns=9)
    assert run_program(program, [10, 1, 1, 1], machine).start[1] == 10
    inline = Machine(send_ns=7, receive_ns=1, latency_ns=9, queues="compute")
    assert run_program(program, [10, 1, 1, 1], inline).start[1] == 17


def test_what_waits_for_itself_is_stuck_and_not_endless():
    program = two_ranks(
        [(POST, 2), (WAIT, 2), (POST, 0), (RUN, 0)],
        [(POST, 3), (WAIT, 3), (POST, 1), (RUN, 1)],
        ((1, 0), (0, 1)),
    )
    assert run_program(program, [1, 1, 1, 1], FREE).stuck


def test_a_model_cut_again_keeps_its_work():
    values = np.array([3.0, 5.0, 4.0, 9.0])
    for stages in (1, 2, 3, 8, 16):
        assert recut_stages(values, stages).sum() == pytest.approx(values.sum())
    assert recut_stages(recut_stages(np.full(4, 2.0), 8), 4).tolist() == [2.0] * 4


# machine


def table(rows):
    names = ("kernel", "send", "peer", "launch_ns", "start_ns", "end_ns")
    messages = [
        dict(zip(names, row, strict=True)) | {"step": 0, "stream": 7, "inline": False}
        for row in rows
    ]
    return pl.DataFrame(messages, schema=RANK_MESSAGES)


def crossing(late):
    """Rank 0 sends at 100 and 200 (2 long).

    Rank 1 receives from 0 on, and the second one from *late* on.
    """
    sends = table([(1, True, 1, 0, 100, 102), (2, True, 1, 1, 200, 202)])
    receives = table(
        [(1, False, 0, 0, 0, 105), (2, False, 0, 1, late, late + 3 if late > 200 else 205)]
    )
    return match_messages({0: sends, 1: receives})


def test_costs_are_fitted_with_waiting_taken_out():
    machine = fit_machine(crossing(300), [], "one").machines[1]
    assert (machine.send_ns, machine.latency_ns, machine.receive_ns, machine.eager) == (
        2,
        5,
        3,
        True,
    )


def test_a_send_that_was_over_before_its_receive_says_nothing_of_sends_that_wait():
    """Three sends wait for receivers at 300, 400, 500 and end 2 after that.

    One was over before its receiver came.
    """
    sends = table(
        [(k, True, 1, k, 100 * k, end) for k, end in ((1, 302), (2, 402), (3, 502), (6, 605))]
    )
    receives = table(
        [
            (k, False, 0, k, start, start + 3)
            for k, start in ((1, 300), (2, 400), (3, 500), (6, 700))
        ]
    )
    low, middle, high = fit_machine(match_messages({0: sends, 1: receives}), [], "one").machines
    assert not middle.eager
    assert (low.send_ns, middle.send_ns, high.send_ns) == (2, 2, 2)


def test_all_messages_count_in_the_time_of_one():
    """Receivers wait for four messages: three take 2, one that shares its link with an exchange takes 14."""
    took = (2, 2, 2, 14)
    sends = table([(k, True, 1, k, 100 * k, 100 * k + 1) for k in range(1, 5)])
    receives = table([(k, False, 0, k, 0, 100 * k + ns) for k, ns in enumerate(took, start=1)])
    low, middle, high = fit_machine(match_messages({0: sends, 1: receives}), [], "one").machines
    assert (low.latency_ns, middle.latency_ns) == (2, 5)
    assert high.latency_ns == 5  # the upper quartile, also 5, is between the third and the fourth


def test_what_no_message_shows_is_said():
    fitted = fit_machine(crossing(150), [], "one")
    assert any("no receiver was late" in text for text in fitted.unknown)
    assert any("none crossed" in text for text in fitted.unknown)
    assert fitted.machines[1].slowdown["F"] == UNKNOWN_SLOWDOWN[1]


@pytest.mark.parametrize("kernels", [29, 30])
def test_a_slowdown_needs_enough_kernels(kernels):
    row = {
        "op": ["F"],
        "size": [1],
        "place": [0],
        "alone": [9],
        "alone_ns": [10.0],
        "beside": [kernels],
    }
    ranks = [
        pl.DataFrame(
            {**row, "took_ns": [kernels * 15], "beside_ns": [kernels * 15]}, schema=CONTENTION
        )
    ]
    slowdown = fit_machine(crossing(300), ranks, "one").machines[1].slowdown["F"]
    assert slowdown == pytest.approx(1.5 if kernels >= 30 else UNKNOWN_SLOWDOWN[1])


@pytest.mark.parametrize(
    ("took_ns", "low", "middle", "high"),
    [(20, 1.9, 2.0, 2.1), (30, 2.8, 3.0, 3.2), (90, 3.7, 4.0, 4.3)],
)
def test_a_slowdown_has_a_tenth_of_its_excess_as_range_and_ends_at_four(took_ns, low, middle, high):
    """Kernels that take 10 alone take two, three or nine times as long beside messages."""
    row = {
        "op": ["F"],
        "size": [1],
        "place": [0],
        "alone": [9],
        "alone_ns": [10.0],
        "beside": [100],
    }
    ranks = [
        pl.DataFrame(
            {**row, "took_ns": [100 * took_ns], "beside_ns": [100 * took_ns]}, schema=CONTENTION
        )
    ]
    machines = fit_machine(crossing(300), ranks, "one").machines
    assert [machine.slowdown["F"] for machine in machines] == pytest.approx([low, middle, high])


def test_messages_without_their_other_side_are_no_evidence():
    assert match_messages({0: table([(1, True, 1, 0, 1, 2)]), 1: table([])}) is None
    assert match_messages({0: table([(1, True, None, 0, 1, 2)])}) is None


@pytest.mark.parametrize(("count", "is_evidence"), [(20, True), (11, True), (10, False)])
def test_one_message_without_its_other_side_is_left_out_if_there_are_many(count, is_evidence):
    """Rank 1 lacks the fourth receive: one side of 39 or 21 has no other.

    Of 19 that is more than one in twenty.
    """
    sends = table([(k, True, 1, 100 * k, 100 * k, 100 * k + 2) for k in range(count)])
    receives = table([(k, False, 0, 100 * k, 100 * k, 100 * k + 3) for k in range(count) if k != 3])
    matched = match_messages({0: sends, 1: receives})
    if not is_evidence:
        assert matched is None
        return
    assert matched.height == count - 1
    assert (matched["receive_end_ns"] - matched["send_end_ns"]).unique().to_list() == [1]


# message order


CELLS = pl.DataFrame(schema={"position": pl.Int32, "launch_ns": pl.Int64, "end_ns": pl.Int64})


@pytest.mark.parametrize(("early", "queues"), [(1, "one"), (3, "free")])
def test_receives_that_wait_for_no_compute_are_seen(early, queues):
    """Rank 0 launched an op at 0 that ends at 1000.

    Of 20 receives launched after it some begin before that.
    """
    rows = [(n, False, 1, 1 + n, 500 if n < early else 2000, 3000) for n in range(20)]
    cells = pl.DataFrame({"position": [0], "launch_ns": [0], "end_ns": [1000]}, schema=CELLS.schema)
    assert (early / 20 > 0.1) == (queues == "free")
    assert find_queues({0: table(rows)}, cells) == queues


@pytest.mark.parametrize(
    ("streams_of_messages", "queues"),
    [
        ({1: [20, 20], 2: [20, 20]}, "one"),
        ({1: [20, 20], 2: [24, 24]}, "peer"),  # one stream for each peer
        ({1: [20, 24], 2: [20, 24]}, "direction"),  # each peer has both streams
    ],
)
def test_streams_tell_what_messages_wait_for_each_other(streams_of_messages, queues):
    rows = [
        (10 * peer + n, n == 0, peer, 1, 2_000, 3_000)
        for peer, streams in streams_of_messages.items()
        for n in range(len(streams))
    ]
    streams = [stream for of_peer in streams_of_messages.values() for stream in of_peer]
    messages = table(rows).with_columns(stream=pl.Series(streams, dtype=pl.Int64))
    cells = pl.DataFrame({"position": [0], "launch_ns": [0], "end_ns": [1]}, schema=CELLS.schema)
    assert find_queues({0: messages}, cells) == queues


def test_the_recorded_program_launches_and_waits_as_the_run_did():
    """Rank 0 runs a forward and sends it.

    Rank 1 receives it, runs a block FB and posts a receive it does not need.
    """
    schema = dict.fromkeys(
        ("stage", "microbatch", "b_stage", "b_microbatch", "launch_ns", "start_ns"), pl.Int64
    )
    cells = pl.DataFrame(
        [(0, "F", 0, 3, None, None, 0, 5), (1, "FB", 1, 3, 1, 2, 4, 40)],
        schema={"position": pl.Int32, "op": pl.String, **schema},
        orient="row",
    )
    messages = {
        0: table([(7, True, 1, 1, 20, 25)]),
        1: table([(3, False, 0, 2, 6, 30), (4, False, 0, 3, 30, 90)]),
    }
    program = recorded_program(cells, messages, host_waits=False)
    assert program.steps == (
        ((RUN, 0), (POST, 0)),
        ((POST, 1), (POST, 2), (WAIT, 1), (RUN, 1), (RUN, 2)),
    )
    assert program.pieces == (Piece("F", 0, 3), Piece("F", 1, 3, True), Piece("B", 1, 2, True))
    assert [(kernel.sends, kernel.receives) for kernel in program.kernels] == [
        ((0,), ()),
        ((), (0,)),
        ((), (1,)),
    ]
    waiting = recorded_program(cells, messages, host_waits=True)
    assert waiting.steps[1] == ((POST, 1), (WAIT, 1), (POST, 2), (WAIT, 2), (RUN, 1), (RUN, 2))


# layer split


@pytest.mark.parametrize("total", [5, 9, 14])
def test_the_best_split_is_no_worse_than_any_other(total):
    per_layer, extra = np.array([1.0, 1.3, 0.9, 1.0]), np.array([0.4, 0.0, 0.0, 2.1])
    slowest = {
        split: max(n * c + e for n, c, e in zip(split, per_layer, extra, strict=True))
        for split in itertools.product(range(1, total), repeat=4)
        if sum(split) == total
    }
    assert slowest[tuple(best_split(per_layer, extra, total))] == pytest.approx(
        min(slowest.values())
    )


def test_layers_are_counted_where_most_stages_show_them():
    cells = pl.DataFrame({"op": ["F"] * 4, "stage": range(4), "layers": [3, 3, 3, 1]})
    assert layers_per_stage(cells, 4).tolist() == [3, 3, 3, 3]
    assert layers_per_stage(cells.with_columns(layers=pl.lit(1)), 4) is None


@pytest.mark.parametrize(("once_ns", "layers"), [(4, 3), (8, 1)])
def test_what_comes_once_may_take_a_twentieth_of_a_chunk(once_ns, layers):
    """Three layers of 40 ns, and one kernel beside them: 4 of 124 ns is less than a twentieth, 8 of 128 more."""
    name, took = [*range(4)] * 3 + [4], [10] * 12 + [once_ns]
    assert count_layers(np.zeros(13, np.int64), np.array(name), np.array(took)).tolist() == [layers]


class FixedPredictor(Predictor):
    """A predictor whose replay is exact and whose makespans are fixed, in units of 1 % of the likely one."""

    replay_error = 0.0
    low, middle, high, without_host = 95.0, 100.0, 116.0, 100.0

    def simulate(self, program, schedule, level=1, *, host=True, **_):
        makespan = (self.low, self.middle, self.high)[level] if host else self.without_host
        return Outcome(np.array([0.0]), np.array([makespan]), 0)


class PredictorOfShortOps(FixedPredictor):
    """A predictor of ops of which a quarter take no time."""

    low = 0.0


class PredictorWithSlowHost(FixedPredictor):
    """A predictor that knows all costs, for a run in which launches take 40 % of the time."""

    low = high = 100.0
    without_host = 60.0


@pytest.mark.parametrize(
    ("kind", "ends"),
    [
        (FixedPredictor, (88, 119)),  # √(5² + 11²) = 12.08 below, √(16² + 11²) = 19.42 above
        # The host's 40 become 28.57 or 56: √(11.43² + 11²) = 15.86 below, √(16² + 11²) = 19.42
        # above.
        (PredictorWithSlowHost, (84, 119)),
        (PredictorOfShortOps, (0, 119)),  # √(100² + 11²) is more than all of it
    ],
)
def test_the_independent_parts_of_a_range_add_up_as_squares(kind, ends):
    assert (MIN_ERROR_SHARE, HOST_SPEED_FACTOR) == (0.11, 1.4)
    plan = generate("1f1b", pp=2, microbatches=2)
    prediction = kind(
        plan, FittedMachine((FREE, FREE, FREE), ()), (), 100, write_posted(plan)
    ).predict(plan)
    assert prediction.ns == 100
    assert (prediction.low_ns, prediction.high_ns) == ends
