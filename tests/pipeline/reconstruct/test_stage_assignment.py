"""Stages of ranks from what they send and compute."""

from __future__ import annotations

import polars as pl

from tracekit.pipeline.reconstruct.messages import RANK_MESSAGES
from tracekit.pipeline.reconstruct.stage_assignment import assign_stages, forward_destinations


def chunks(text):
    """F0 F1 B0 …, launched one after another every 10 ns."""
    words = text.split()
    return pl.DataFrame({"op": [w[0] for w in words], "pair": [int(w[1:]) for w in words],
                         "last_ns": [10 * k for k in range(len(words))]})  # fmt: skip


def sent(*pairs):
    rows = [(k, to) for k, to in pairs]
    messages = [{"step": 0, "kernel": i, "send": True, "peer": to, "launch_ns": 10 * k + 5, "start_ns": 0, "end_ns": 1}
            for i, (k, to) in enumerate(rows)]  # fmt: skip
    return pl.DataFrame(messages, schema=RANK_MESSAGES)


def test_a_send_belongs_to_the_work_launched_last():
    assert forward_destinations(chunks("F0 F1 B0"), sent((0, 2), (1, 2), (2, 0))) == [2, 2]
    assert forward_destinations(chunks("F0 F1 B0 F2"), sent((0, 2), (2, 0), (2, 2), (3, 2))) == [
        2,
        2,
        2,
    ]


def test_one_stage_a_rank_is_a_line():
    result = assign_stages(
        {0: chunks("F0 F1"), 1: chunks("F0 F1")}, {0: sent((0, 1), (1, 1)), 1: sent()}, 2
    )
    assert result.shape == "line"
    assert result.places[1] == {0: (1, 0), 1: (1, 1)}


def test_the_last_rank_tells_the_chunks_of_a_loop():
    far = chunks("F0 F1 F2 F3")
    near = {
        0: sent(*((k, 1) for k in range(4))),
        1: sent(*((k, 2) for k in range(4))),
        2: sent((0, 0), (1, 0)),
    }
    result = assign_stages({0: far, 1: far, 2: far}, near, 3)
    assert (result.shape, result.virtual) == ("loop", 2)
    assert [result.places[1][k] for k in range(4)] == [(1, 0), (1, 1), (4, 0), (4, 1)]


def test_who_begins_on_the_last_rank_tells_a_v_from_two_pipelines():
    first, middle = sent((0, 1)), sent((0, 2), (1, 0))
    work = {0: chunks("F0 F1"), 1: chunks("F0 F1"), 2: chunks("F0 F1")}
    v_shape = assign_stages(work, {0: first, 1: middle, 2: sent((1, 1))}, 3)
    assert (v_shape.shape, v_shape.places[2]) == ("V", {0: (2, 0), 1: (3, 0)})
    two_way = assign_stages(work, {0: first, 1: middle, 2: sent((0, 1))}, 3)
    assert (two_way.shape, two_way.places[2]) == ("two-way", {0: (0, 1), 1: (2, 0)})


def test_what_cannot_be_told_is_said():
    nobody = sent((0, 1)).with_columns(peer=pl.lit(None, pl.Int32))
    result = assign_stages({0: chunks("F0")}, {0: nobody}, 2)
    assert (result.shape, result.places) == ("unknown", {})
    assert result.reason == "peers_unnamed"
