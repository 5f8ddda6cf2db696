"""Costs of messages on a GPU that ranks share, counted by hand or planted."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from tracekit.graph.changes import ChangedGraph
from tracekit.graph.engine import run_program
from tracekit.graph.machine import FittedMachine, Machine
from tracekit.graph.measured_ops import time_alone
from tracekit.graph.rank_programs import POST, RUN, WAIT, Message, MessageKernel, Piece, Program
from tracekit.graph.shared_gpu import SharedGpu, count_computing_ranks, fit_shared_gpu
from tracekit.pipeline.reconstruct.rank_pipeline import RankPipeline, rank_pipeline
from tracekit.schema import LABELLED, Source


def cells(*rows: tuple[int, int, int]) -> pl.DataFrame:
    """Cells of (position, start, end)."""
    return pl.DataFrame(
        list(rows), {"position": pl.Int32, "start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row"
    )


def times(*rows: tuple[int, int]) -> pl.DataFrame:
    return pl.DataFrame(list(rows), {"start_ns": pl.Int64, "end_ns": pl.Int64}, orient="row")


def test_other_ranks_count_while_they_compute_beside_a_message():
    # Rank 1 computes from 0 to 60 with a message from 40 to 80: 20 of the 100 of rank 0; rank 2 has
    # no messages.
    table = cells((0, 0, 100), (1, 0, 60), (2, 0, 100))
    beside_message, computing = count_computing_ranks(
        table, {0: times((50, 60)), 1: times((40, 80)), 2: times()}
    )
    assert beside_message.tolist() == pytest.approx([0.2, 10 / 60, 0.1 + 0.2])
    assert computing.tolist() == pytest.approx([0.4 + 1.0, 50 / 60 + 1.0, 0.9 + 0.4])


@pytest.mark.parametrize(
    ("compute_cost", "alone_ns"), [(0.0, [100.0, 100.0]), (0.5, [100 / 1.5, 100 / 1.25])]
)
def test_time_alone_leaves_out_what_the_compute_of_other_ranks_costs(compute_cost, alone_ns):
    # Rank 1 computes beside all of rank 0's cell, rank 0 for half of it without its message.
    table = cells((0, 0, 100), (1, 0, 100)).with_columns(host_ns=pl.lit(0), op=pl.lit("F"))
    machine = Machine(1.0, 1.0, 1.0, compute_cost=compute_cost)
    messages = {0: times((0, 50)), 1: times()}
    assert time_alone(table, messages, machine).to_list() == pytest.approx(alone_ns)


def planted_ops(
    *,
    slowdown: float,
    other_cost: float,
    own_share: float,
    compute_cost: float = 0.0,
    count: int = 200,
):
    """Two kinds of ops of 5 and 12 ms that took what these costs make of them, with a scatter of 3 %."""
    generator = np.random.default_rng(5)
    kind = np.arange(count) % 2
    own = generator.uniform(0.0, 2 * own_share, count)
    beside_message = generator.uniform(0.0, 2.0, count)
    computing = generator.uniform(0.0, 3.0 - beside_message)
    alone_ns = np.where(kind == 0, 5e6, 12e6) * generator.normal(1.0, 0.03, count)
    others = other_cost * beside_message + compute_cost * computing
    took_ns = alone_ns * (1 + others) / (1 - (1 - 1 / slowdown) * own)
    return kind.astype(float), took_ns, own, beside_message, computing


@pytest.mark.parametrize(
    ("slowdown", "other_cost", "compute_cost"),
    [(1.3, 0.2, 0.1), (1.6, 0.05, 0.0), (1.1, 0.0, 0.0)],
)
def test_planted_costs_are_found_whatever_was_expected(slowdown, other_cost, compute_cost):
    ops = planted_ops(
        slowdown=slowdown, other_cost=other_cost, compute_cost=compute_cost, own_share=0.45
    )
    shared = fit_shared_gpu(*ops, expected_slowdown=1.7)
    assert shared.measured
    assert shared.own_slowdown == pytest.approx(slowdown, abs=0.04)
    assert shared.other_cost == pytest.approx(other_cost, abs=0.02)
    assert shared.compute_cost == pytest.approx(compute_cost, abs=0.02)


def test_a_run_that_keeps_compute_and_messages_apart_says_nothing_of_their_costs():
    ops = planted_ops(slowdown=1.3, other_cost=0.9, own_share=0.02)
    assert fit_shared_gpu(*ops, expected_slowdown=1.5) == SharedGpu(
        1.5, pytest.approx(1 / 6), measured=False
    )


def test_the_costs_that_are_found_are_where_scatter_and_distance_from_the_expected_balance():
    """No step leads to a smaller sum: as differences of it say, which know nothing of the fit's slopes."""
    kind, took_ns, own, beside_message, computing = planted_ops(
        slowdown=1.3, other_cost=0.2, compute_cost=0.1, own_share=0.45, count=12
    )
    shared = fit_shared_gpu(kind, took_ns, own, beside_message, computing, expected_slowdown=1.25)
    found = np.array([1 - 1 / shared.own_slowdown, shared.other_cost, shared.compute_cost])
    assert (found > 0).all()  # no bound holds any of them
    expected = np.array([0.2, 0.1, 0.0])  # 1 - 1 / 1.25; half of it; nothing
    is_first = kind == 0

    def residuals(costs):
        lost, other_cost, compute_cost = costs
        others = other_cost * beside_message + compute_cost * computing
        alone = np.log(took_ns * (1 - lost * own) / (1 + others))
        return alone - np.where(is_first, alone[is_first].mean(), alone[~is_first].mean())

    weight = np.mean(residuals(found) ** 2) / 0.1**2

    def badness(costs):
        return np.sum(residuals(costs) ** 2) + weight * np.sum((costs - expected) ** 2)

    steps = 1e-4 * np.eye(3)
    slopes = [badness(found + step) - badness(found - step) for step in steps]
    assert slopes == pytest.approx([0.0] * 3, abs=1e-9)


@pytest.mark.parametrize(("factor", "measured"), [(0.75, False), (1.33, True)])
def test_the_share_beside_messages_decides_whether_costs_are_measured(factor, measured):
    share = factor * 0.2
    kind, took_ns, _, *others = planted_ops(slowdown=1.3, other_cost=0.2, own_share=0.3)
    own_share = np.full(len(kind), share)
    shared = fit_shared_gpu(kind, took_ns, own_share, *others, expected_slowdown=1.5)
    assert shared.measured is measured


def test_kernels_that_lose_nothing_beside_messages_cost_nobody_anything():
    ops = planted_ops(slowdown=1.0, other_cost=0.0, own_share=0.4)
    assert fit_shared_gpu(*ops, expected_slowdown=1.0) == SharedGpu(1.0, 0.0)


def test_compute_is_slower_while_another_rank_computes_beside_a_message():
    """Rank 0 sends from 10 to 16 beside its second piece, rank 1 computes for 20 meanwhile."""
    kernels = (MessageKernel(0, sends=(0,)), MessageKernel(1, receives=(0,)))
    first, second = ((RUN, 0), (POST, 0), (RUN, 1)), ((RUN, 2), (POST, 1), (WAIT, 1))
    pieces = (Piece("F", 0, 0), Piece("F", 0, 1), Piece("F", 1, 0))
    program = Program((first, second), pieces, kernels, (Message(0, 1),))
    machine = Machine(send_ns=6, receive_ns=0, latency_ns=6, slowdown={"F": 2.0}, other_cost=0.5)
    outcome = run_program(program, [10, 10, 20], machine)
    assert outcome.end[1] == 10 + 6 + 7  # 3 of 10 done in the 6 beside the send
    assert outcome.end[2] == 10 + 6 + 6  # 4 of 20 done in these 6, at two thirds of the speed
    alone = run_program(program, [10, 10, 20], Machine(6, 0, 6, slowdown={"F": 2.0}))
    assert alone.end[2] == 20


def test_compute_is_slower_while_another_rank_computes():
    """Rank 0 computes for 10, rank 1 for 20: while both do, each takes a quarter longer."""
    pieces = (Piece("F", 0, 0), Piece("F", 1, 0))
    program = Program((((RUN, 0),), ((RUN, 1),)), pieces, (), ())
    outcome = run_program(program, [10, 20], Machine(0, 0, 0, compute_cost=0.25))
    assert outcome.end.tolist() == [12.5, 12.5 + 10]  # rank 1 has done 10 of 20 by then


def test_slowdowns_of_kinds_keep_their_order_and_unmeasured_costs_are_named():
    machine = Machine(1, 1, 1, slowdown={"F": 1.4, "B": 1.8})
    fitted = FittedMachine((machine, machine, machine), ("a",))
    shared = fitted.on_shared_gpu(SharedGpu(1.3, 0.2))
    assert shared.machines[1].slowdown == pytest.approx({"F": 1.2, "B": 1.4})
    assert shared.machines[1].other_cost == 0.2
    assert shared.unknown == ("a",)
    assert (
        "other ranks on the same GPU"
        in fitted.on_shared_gpu(SharedGpu(1.3, 0.2, measured=False)).unknown[1]
    )


@pytest.mark.parametrize(
    ("device", "multiprocessors", "shares"),
    [
        ("NVIDIA H200", 33, True),
        ("NVIDIA H200", 132, False),
        ("NVIDIA H200", None, False),
        ("Abacus", 33, False),
    ],
)
def test_a_process_with_a_part_of_the_multiprocessors_shares_its_gpu(
    device, multiprocessors, shares
):
    source = Source(
        rank=0,
        path="x",
        reader="kineto",
        rank_from="name",
        devices=(device,),
        multiprocessors=multiprocessors,
    )
    pipeline = rank_pipeline(pl.DataFrame(schema=LABELLED), source)
    assert isinstance(pipeline, RankPipeline)
    assert pipeline.shares_gpu is shares


def test_a_rank_without_work_of_a_kind_is_not_made_like_the_others():
    """Rank 1 has 5 of it, rank 0 nothing: no factor makes 5 of nothing."""
    graph = SimpleNamespace(ranks=[0, 1], rank_index=np.array([0, 1]))
    changed = SimpleNamespace(graph=graph, positions={})
    factors = ChangedGraph.scale_ranks(
        changed, {0}, np.zeros(2, np.int64), np.array([0, 5]), like_others=True
    )
    assert factors.tolist() == [1.0, 1.0]
