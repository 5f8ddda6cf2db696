"""The engine under what-if: programs, messages and machines small enough to count by hand."""

from __future__ import annotations

import itertools

import numpy as np
import polars as pl
import pytest

from tracekit.compare.predict.engine import Launches, run
from tracekit.compare.predict.layout import best_split, stage_layers
from tracekit.compare.predict.machine import FEWEST, UNKNOWN_SLOWDOWN, Machine, fit, match_messages
from tracekit.compare.predict.programs import POST, RUN, WAYS, Kernel, Message, Piece, Program, posted
from tracekit.compare.predict.ran import recut
from tracekit.compare.predict.runtime import AGREE, EARLY, Runtime, find_runtime
from tracekit.reconstruct.contention import CONTENTION
from tracekit.reconstruct.messages import MESSAGES
from tracekit.reconstruct.repeats import repeats
from tracekit.schedules import generate, simulate

pytestmark = pytest.mark.slow

FREE = Machine(send_ns=0, receive_ns=0, latency_ns=0)


def unit(program):
    return [{"F": 1.0, "I": 1.0, "W": 1.0, "B": 2.0}[piece.kind] for piece in program.pieces]


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "interleaved-zb", "zb-v", "v-half", "zb-h1"])
def test_with_free_messages_on_queues_of_their_own_it_is_the_simulator(name):
    plan = generate(name, pp=4, microbatches=8)
    program = posted(plan)
    free = Machine(0, 0, 0, queues="free")
    assert run(program, unit(program), free).makespan == simulate(plan).makespan


@pytest.mark.parametrize("way", WAYS)
def test_every_message_is_sent_once_and_received_once_and_nothing_gets_stuck(way):
    plan = generate("1f1b", pp=4, microbatches=8)
    program = WAYS[way](plan)
    sends = sorted(m for k in program.kernels for m in k.sends)
    receives = sorted(m for k in program.kernels for m in k.receives)
    assert sends == receives == list(range(2 * 3 * 8))
    assert run(program, unit(program), FREE).stuck == 0


def two(first, second, messages=((0, 1),)):
    """Two ranks; steps as (code, number) with pieces F of 10 each."""
    made = tuple(Message(a, b, "F", 0, n) for n, (a, b) in enumerate(messages))
    pieces = tuple(Piece("F", 0, n, n) for n in range(4))
    kernels = [Kernel(a, (n,), ()) for n, (a, _) in enumerate(messages)]
    kernels += [Kernel(b, (), (n,)) for n, (_, b) in enumerate(messages)]
    return Program((tuple(first), tuple(second)), pieces, tuple(kernels), made)


def test_a_message_arrives_latency_after_its_send_or_receive_after_its_receiver():
    program = two([(RUN, 0), (POST, 0)], [(RUN, 1), (POST, 1), (2, 1), (RUN, 2)])
    machine = Machine(send_ns=1, receive_ns=4, latency_ns=6)
    early = run(program, [10, 5, 1, 0], machine)  # receiver waits from 5 on: 10 + 6
    late = run(program, [10, 50, 1, 0], machine)  # message waits: 50 + 4
    assert [early.start[2], late.start[2]] == [16, 54]


def test_a_queue_is_in_order_so_a_receive_blocks_the_send_behind_it():
    # rank 1 posts a receive, then a send of its own that rank 0 waits for.
    messages = ((0, 1), (1, 0))
    first = [(RUN, 0), (POST, 0), (POST, 3), (2, 3), (RUN, 1)]
    second = [(POST, 2), (RUN, 2), (POST, 1), (RUN, 3)]
    program = two(first, second, messages)
    one = Machine(send_ns=1, receive_ns=1, latency_ns=2)
    work = [100, 1, 10, 1]
    assert run(program, work, one).start[1] == 100 + 2 + 2  # sent only after the receive ended at 102
    assert run(program, work, Machine(1, 1, 2, queues="way")).start[1] == 101  # there long before: receive takes 1


def test_a_link_carries_one_message_at_a_time():
    messages = ((0, 1), (0, 1))
    first = [(RUN, 0), (POST, 0), (POST, 1), (RUN, 1)]
    second = [(POST, 2), (POST, 3), (2, 3), (RUN, 2), (RUN, 3)]
    program = two(first, second, messages)
    done = run(program, [10, 1, 1, 1], Machine(send_ns=4, receive_ns=0, latency_ns=6))
    assert done.start[2] == 10 + 4 + 6


def test_compute_beside_a_message_is_slower_while_it_runs():
    program = two([(RUN, 0), (POST, 0), (RUN, 1)], [(POST, 1), (2, 1), (RUN, 2), (RUN, 3)])
    machine = Machine(send_ns=6, receive_ns=0, latency_ns=6, slowdown={"F": 2.0})
    done = run(program, [10, 10, 1, 1], machine)
    assert done.end[1] == 10 + 6 + 7  # 3 of 10 done in the 6 beside the send


def test_a_host_that_is_late_holds_up_the_start_and_the_end():
    program = two([(RUN, 0), (RUN, 1)], [(RUN, 2), (RUN, 3)], ())
    launches = Launches(np.array([0.0, 30, 0, 0]), np.array([5.0, 90, 0, 0]), np.zeros(0))
    done = run(program, [10, 10, 1, 1], FREE, launches)
    assert (done.start[1], done.end[1]) == (30, 90)


def test_messages_on_the_compute_stream_stop_it():
    program = two([(RUN, 0), (POST, 0), (RUN, 1)], [(POST, 1), (RUN, 2), (RUN, 3)])
    machine = Machine(send_ns=7, receive_ns=1, latency_ns=9)
    assert run(program, [10, 1, 1, 1], machine).start[1] == 10
    inline = Machine(send_ns=7, receive_ns=1, latency_ns=9, queues="compute")
    assert run(program, [10, 1, 1, 1], inline).start[1] == 17


def test_what_waits_for_itself_is_stuck_and_not_endless():
    program = two([(POST, 2), (2, 2), (POST, 0), (RUN, 0)], [(POST, 3), (2, 3), (POST, 1), (RUN, 1)], ((1, 0), (0, 1)))
    assert run(program, [1, 1, 1, 1], FREE).stuck


def test_a_model_cut_again_keeps_its_work():
    values = np.array([3.0, 5.0, 4.0, 9.0])
    for stages in (1, 2, 3, 8, 16):
        assert recut(values, stages).sum() == pytest.approx(values.sum())
    assert recut(recut(np.full(4, 2.0), 8), 4).tolist() == [2.0] * 4


# what a run says about its machine


def table(rows):
    names = ("kernel", "send", "peer", "launch_ns", "start_ns", "end_ns")
    made = [dict(zip(names, row, strict=True)) | {"step": 0, "stream": 7, "inline": False} for row in rows]
    return pl.DataFrame(made, schema=MESSAGES)


def crossing(late):
    """Rank 0 sends at 100 and 200 (2 long); rank 1 receives from 0 on, and the second one from *late* on."""
    sends = table([(1, True, 1, 0, 100, 102), (2, True, 1, 1, 200, 202)])
    receives = table([(1, False, 0, 0, 0, 105), (2, False, 0, 1, late, late + 3 if late > 200 else 205)])
    return match_messages({0: sends, 1: receives})


def test_costs_are_fitted_with_waiting_taken_out():
    machine = fit(crossing(300), [], "one").machines[1]
    assert (machine.send_ns, machine.latency_ns, machine.receive_ns, machine.eager) == (2, 5, 3, True)


def test_what_no_message_shows_is_said():
    fitted = fit(crossing(150), [], "one")
    assert any("no receiver was late" in text for text in fitted.unknown)
    assert any("none crossed" in text for text in fitted.unknown)
    assert fitted.machines[1].slowdown["F"] == UNKNOWN_SLOWDOWN[1]


@pytest.mark.parametrize("kernels", [FEWEST - 1, FEWEST])
def test_a_slowdown_needs_enough_kernels(kernels):
    row = {"op": ["F"], "size": [1], "place": [0], "alone": [9], "alone_ns": [10.0], "beside": [kernels]}
    ranks = [pl.DataFrame({**row, "took_ns": [kernels * 15], "beside_ns": [kernels * 15]}, schema=CONTENTION)]
    found = fit(crossing(300), ranks, "one").machines[1].slowdown["F"]
    assert found == pytest.approx(1.5 if kernels >= FEWEST else UNKNOWN_SLOWDOWN[1])


def test_messages_without_their_other_side_are_no_evidence():
    assert match_messages({0: table([(1, True, 1, 0, 1, 2)]), 1: table([])}) is None
    assert match_messages({0: table([(1, True, None, 0, 1, 2)])}) is None


# how a run ordered its messages


def issue(program, rank, swap=()):
    """Return a rank's messages as the program posts them, one kernel after another; *swap* exchanges two kernels."""
    kernels = [program.kernels[at] for code, at in program.steps[rank] if code == POST]
    for a in swap:
        kernels[a], kernels[a + 1] = kernels[a + 1], kernels[a]
    rows = []
    for n, kernel in enumerate(kernels):
        rows += [(n, True, program.messages[m].target, 10 * n, 10 * n, 10 * n + 5) for m in kernel.sends]
        rows += [(n, False, program.messages[m].source, 10 * n, 10 * n, 10 * n + 5) for m in kernel.receives]
    return table(rows)


CELLS = pl.DataFrame(schema={"position": pl.Int32, "launch_ns": pl.Int64, "end_ns": pl.Int64})


@pytest.mark.parametrize(("name", "way"), [("gpipe", "just-in-time"), ("1f1b", "grouped"), ("zb-v", "posted")])
def test_the_way_messages_were_ordered_is_found(name, way):
    plan = generate(name, pp=4, microbatches=8)
    program = WAYS[way](plan)
    ran = {rank: issue(program, rank) for rank in range(4)}
    assert find_runtime(plan, ran, CELLS) == Runtime(way, "one")


@pytest.mark.parametrize(("swaps", "found"), [([0], "posted"), ([0, 4, 8, 12, 16, 20], None)])
def test_an_order_counts_as_known_up_to_a_tenth_elsewhere(swaps, found):
    plan = generate("zb-v", pp=4, microbatches=8)
    program = posted(plan)
    ran = {rank: issue(program, rank, swaps if rank == 2 else ()) for rank in range(4)}
    kernels = len(program.issued(2))
    assert (2 * len(swaps) / kernels < 1 - AGREE) == (found is not None)
    assert find_runtime(plan, ran, CELLS).way == found


@pytest.mark.parametrize(("early", "queues"), [(1, "one"), (3, "free")])
def test_receives_that_wait_for_no_compute_are_seen(early, queues):
    """Rank 0 launched an op at 0 that ends at 1000; of 20 receives launched after it some begin before that."""
    plan = generate("1f1b", pp=2, microbatches=2)
    rows = [(n, False, 1, 1 + n, 500 if n < early else 2000, 3000) for n in range(20)]
    cells = pl.DataFrame({"position": [0], "launch_ns": [0], "end_ns": [1000]}, schema=CELLS.schema)
    assert (early / 20 > EARLY) == (queues == "free")
    assert find_runtime(plan, {0: table(rows)}, cells).queues == queues


# layers over stages


@pytest.mark.parametrize("total", [5, 9, 14])
def test_the_best_split_is_no_worse_than_any_other(total):
    per_layer, extra = np.array([1.0, 1.3, 0.9, 1.0]), np.array([0.4, 0.0, 0.0, 2.1])
    slowest = {
        split: max(n * c + e for n, c, e in zip(split, per_layer, extra, strict=True))
        for split in itertools.product(range(1, total), repeat=4)
        if sum(split) == total
    }
    assert slowest[tuple(best_split(per_layer, extra, total))] == pytest.approx(min(slowest.values()))


def test_layers_are_counted_where_most_stages_show_them():
    cells = pl.DataFrame({"op": ["F"] * 4, "stage": range(4), "layers": [3, 3, 3, 1]})
    assert stage_layers(cells, 4).tolist() == [3, 3, 3, 3]
    assert stage_layers(cells.with_columns(layers=pl.lit(1)), 4) is None


@pytest.mark.parametrize(("once_ns", "layers"), [(4, 3), (8, 1)])
def test_what_comes_once_may_take_a_twentieth_of_a_chunk(once_ns, layers):
    """Three layers of 40 ns, and one kernel beside them: 4 of 124 ns is less than a twentieth, 8 of 128 more."""
    name, took = [*range(4)] * 3 + [4], [10] * 12 + [once_ns]
    assert repeats(np.zeros(13, np.int64), np.array(name), np.array(took)).tolist() == [layers]
