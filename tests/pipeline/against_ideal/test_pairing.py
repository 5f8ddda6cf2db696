"""Backwards tied to their forwards by who sends what: several stages per rank, and nothing recorded that ties them."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.pipeline.reconstruct.messages import find_senders
from tracekit.pipeline.reconstruct.segment import CONFIDENCE_COUNTED, CONFIDENCE_POSITION
from tracekit.pipeline.reconstruct.stage_assignment import (
    StagePlacement,
    assign_stages,
    pair_by_messages,
)
from tracekit.pipeline.schedules import generate


def recorded(name="interleaved", *, pp=4, microbatches=8, virtual=2, sure=CONFIDENCE_POSITION):
    """Chunks and messages of every rank as they are without sequence numbers: backwards tied first in, first out."""
    schedule = generate(name, pp=pp, microbatches=microbatches, virtual=virtual)
    last = pp * virtual - 1
    chunks, messages = {}, {}
    for position, order in enumerate(schedule.ranks):
        rows, sent, counts = [], [], {"F": 0, "B": 0}
        for k, op in enumerate(order):
            time = 10 * k
            row = {"op": op.kind, "pair": counts[op.kind], "launch_ns": time, "last_ns": time + 5}
            rows.append(row | {"confidence": 1.0 if op.kind == "F" else sure})
            counts[op.kind] += 1
            to = op.stage + 1 if op.kind == "F" else op.stage - 1
            if 0 <= to <= last:
                sent.append({"send": True, "peer": to % pp, "launch_ns": time + 6, "kernel": k})
        chunks[position] = pl.DataFrame(rows)
        messages[position] = pl.DataFrame(sent, schema_overrides={"peer": pl.Int32})
    return schedule, chunks, messages


@pytest.mark.parametrize(("pp", "microbatches", "virtual"), [(4, 8, 2), (2, 4, 2), (4, 8, 3)])
def test_every_backward_finds_its_forward(pp, microbatches, virtual):
    schedule, chunks, messages = recorded(pp=pp, microbatches=microbatches, virtual=virtual)
    placement = assign_stages(chunks, messages, pp)
    assert placement.shape == "loop"
    tied = pair_by_messages(chunks, messages, placement, pp)
    for position, order in enumerate(schedule.ranks):
        places = placement.places[position]
        places_of_chunks = [places[pair] for pair in tied[position]["pair"].to_list()]
        assert places_of_chunks == [(op.stage, op.microbatch) for op in order]
        backs = tied[position].filter(pl.col("op") == "B")
        assert backs["confidence"].unique().to_list() == [CONFIDENCE_COUNTED]


def test_what_autograd_tied_stays():
    _, chunks, messages = recorded(sure=0.95)
    assert pair_by_messages(chunks, messages, assign_stages(chunks, messages, 4), 4) is chunks


def test_one_stage_a_rank_stays_first_in_first_out():
    _, chunks, messages = recorded()
    assert pair_by_messages(chunks, messages, StagePlacement("line", 1, {}), 4) is chunks


def test_without_the_first_rank_nothing_is_tied():
    _, chunks, messages = recorded()
    placement = assign_stages(chunks, messages, 4)
    rest = {position: table for position, table in chunks.items() if position}
    assert pair_by_messages(rest, messages, placement, 4) is rest


def test_a_rank_that_ran_another_number_of_backwards_leaves_all_as_they_are():
    _, chunks, messages = recorded()
    placement = assign_stages(chunks, messages, 4)
    chunks[2] = chunks[2][:-1]
    assert pair_by_messages(chunks, messages, placement, 4) is chunks


def test_a_send_carries_what_was_launched_last_and_two_at_once_one_each():
    work = pl.DataFrame({"last_ns": [10, 20, 30]})
    assert find_senders(work, pl.DataFrame({"launch_ns": [5, 12, 35, 35]})).tolist() == [
        -1,
        0,
        1,
        2,
    ]
