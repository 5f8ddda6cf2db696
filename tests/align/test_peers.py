"""Peers of messages: numbers inside a communicator as ranks of the run, and order and time where there are none."""

from __future__ import annotations

import itertools

import polars as pl
import pytest

from tracekit.align.peers import (
    MESSAGES,
    along_pipelines,
    by_communicator,
)
from tracekit.pipeline.schedules import Times, generate, simulate
from tracekit.schema import conform

LASTS, HOP = 10, 2


def table(rows):
    return conform(pl.DataFrame(rows, infer_schema_length=None), MESSAGES)


def chatter(order, group="7"):
    """Everyone in *order* sends to the next and hears from the one before, a different number of times each."""
    rows = []
    for position, rank in enumerate(order[:-1]):
        for k in range(position + 1):
            time = 100 * position + k
            rows.append(
                {
                    "rank": rank,
                    "group": group,
                    "send": True,
                    "peer": position + 1,
                    "launch_ns": time,
                }
            )
            rows.append(
                {
                    "rank": order[position + 1],
                    "group": group,
                    "send": False,
                    "peer": position,
                    "launch_ns": time,
                }
            )
    return rows


@pytest.mark.parametrize("order", [*itertools.permutations((1, 3, 4))])
def test_a_communicator_has_the_order_that_its_messages_bear_out(order):
    rows = chatter(order)
    peers = by_communicator(table(rows)).to_list()
    assert peers == [order[row["peer"]] for row in rows]


def test_every_communicator_counts_for_itself():
    """A pair of ranks has one of its own: both call the other by 0 or 1."""
    rows = chatter((0, 2), "a") + chatter((2, 5), "b") + chatter((0, 2, 5), "c")
    assert by_communicator(table(rows)).to_list()[:4] == [2, 0, 5, 2]


def test_a_member_without_a_trace_leaves_peers_unknown():
    rows = [row for row in chatter((0, 1, 2)) if row["rank"] != 2]
    assert by_communicator(table(rows)).to_list() == [None] * len(rows)


def test_counts_that_fit_no_order_leave_peers_unknown():
    rows = [
        {"rank": r, "group": "7", "send": True, "peer": p, "launch_ns": 0}
        for r, p in ((0, 1), (1, 0))
    ]
    assert by_communicator(table(rows)).to_list() == [None, None]


def test_ranks_in_order_where_any_order_would_do():
    rows = [
        {"rank": 4, "group": "7", "send": True, "peer": 1, "launch_ns": 0},
        {"rank": 8, "group": "7", "send": False, "peer": 0, "launch_ns": 0},
    ]
    assert by_communicator(table(rows)).to_list() == [8, 4]


# --- without any number ---


def run(lines, name="1f1b", *, microbatches=8, streams=False, **sizes):
    """Messages of pipelines that run a schedule: each is sent when its cell ends.

    Its receive was posted long before.

    One tick a cell, in the schedule's own simulated times. Returns the messages and the peers they
    had.
    """
    schedule = generate(name, pp=len(lines[0]), microbatches=microbatches, **sizes)
    rows, peers = [], []
    for number, line in enumerate(lines):
        for rank, kind, stage, end in (
            simulate(schedule, Times()).cells.select("rank", "op", "stage", "end").rows()
        ):
            last = schedule.pp * schedule.virtual - 1
            to_stage = stage + 1 if kind == "F" else stage - 1
            if kind not in ("F", "B") or not 0 <= to_stage <= last:
                continue
            to = to_stage % schedule.pp
            if to == rank:
                continue
            start = (end + number) * 100
            common = {"step": 0, "start_ns": start, "end_ns": start + LASTS}
            stream = (
                {"stream": 1000 + to if streams else 20},
                {"stream": 1000 + rank if streams else 20},
            )
            rows.append(
                {
                    "rank": line[rank],
                    "send": True,
                    "made": kind,
                    "launch_ns": start,
                    **common,
                    **stream[0],
                }
            )
            rows.append(
                {"rank": line[to], "send": False, "launch_ns": start + HOP, **common, **stream[1]}
            )
            peers += [line[to], line[rank]]
    return table(rows), peers


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(
    ("lines", "name", "sizes"),
    [
        ([[0, 1, 2, 3]], "1f1b", {}),
        ([[0, 1, 2, 3]], "gpipe", {}),
        ([[0, 1, 2, 3]], "interleaved", {"virtual": 2}),
        ([[0, 2, 4, 6], [1, 3, 5, 7]], "1f1b", {}),
        ([[0, 1, 2, 3], [4, 5, 6, 7]], "1f1b", {}),
        ([[0, 4], [1, 5], [2, 6], [3, 7]], "1f1b", {}),
        ([[0, 2, 4, 6], [1, 3, 5, 7]], "interleaved", {"virtual": 2}),
    ],
)
def test_order_and_time_tell_who_spoke_to_whom(lines, name, sizes, streams):
    messages, peers = run(lines, name, streams=streams, **sizes)
    aligned = along_pipelines(messages)
    assert aligned.pipelines == tuple(map(tuple, lines))
    assert aligned.met_share == 1.0
    if streams or name != "interleaved":
        assert aligned.peer.to_list() == peers
    else:  # two that end together may be taken for each other
        assert (aligned.peer == pl.Series(peers, dtype=pl.Int32)).mean() > 0.95


def test_a_layout_that_is_given_is_taken():
    messages, peers = run([[0, 1, 2, 3]])
    aligned = along_pipelines(messages, [[0, 1, 2, 3]])
    assert aligned.peer.to_list() == peers
    assert along_pipelines(messages, [[3, 2, 1, 0]]).pipelines == ()


def shifted(share, by, *, microbatches=20):
    """A share of the receives, every so many, moved in time."""
    messages, _ = run([[0, 1]], microbatches=microbatches)
    receives = pl.col("send").not_()
    every = pl.int_range(pl.len()).over("send") < share * pl.len().over("send")
    moved = pl.when(receives & every).then(by).otherwise(0)
    return messages.with_columns(pl.col("start_ns", "end_ns") + moved)


def test_sides_that_did_not_meet_are_not_believed():
    late = 3 * LASTS
    assert along_pipelines(shifted(0.45, late)).pipelines
    assert not along_pipelines(shifted(0.55, late)).pipelines


def test_messages_that_arrive_before_they_were_sent_are_not_believed():
    assert along_pipelines(shifted(0.03, -20 * LASTS)).pipelines
    assert not along_pipelines(shifted(0.11, -20 * LASTS)).pipelines
    assert along_pipelines(shifted(0.05, -20 * LASTS, microbatches=40)).pipelines  # four of 80
    assert not along_pipelines(shifted(0.06, -20 * LASTS, microbatches=40)).pipelines  # five


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_without_one_message_the_others_keep_their_peers_or_have_none(name):
    messages, peers = run([[0, 1, 2]], name, microbatches=6)
    # A message takes 1 ms.
    messages = messages.with_columns(pl.col("launch_ns", "start_ns", "end_ns") * 100_000)
    for row in range(len(messages)):
        kept = [index for index in range(len(messages)) if index != row]
        named = along_pipelines(messages[kept])
        assert named.pipelines == ((0, 1, 2),)
        pairs = [*zip(named.peer.to_list(), [peers[index] for index in kept], strict=True)]
        assert all(peer in (None, true_peer) for peer, true_peer in pairs)
        # The other side of the one that is missing.
        assert sum(peer is None for peer, _ in pairs) <= 1


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_a_send_has_no_peer_where_nothing_tells_what_it_carries(name):
    messages, peers = run([[0, 1, 2]], name, microbatches=6)
    # A message takes 1 ms.
    messages = messages.with_columns(pl.col("launch_ns", "start_ns", "end_ns") * 100_000)
    for row in messages["send"].arg_true():
        named = along_pipelines(
            messages.with_columns(pl.when(pl.int_range(pl.len()) != row).then("made"))
        )
        assert named.pipelines == ((0, 1, 2),)
        assert named.peer[row] is None
        pairs = [*zip(named.peer.to_list(), peers, strict=True)]
        assert all(peer in (None, true_peer) for peer, true_peer in pairs)
        # The receive of that send may have none either.
        assert sum(peer is None for peer, _ in pairs) <= 2


def test_of_two_ranks_each_sends_to_the_other_whatever_it_carries():
    messages, peers = run([[0, 1]])
    assert (
        along_pipelines(messages.with_columns(made=pl.lit(None, pl.String))).peer.to_list() == peers
    )


@pytest.mark.parametrize("streams", [False, True])
def test_a_message_that_was_only_launched_keeps_its_place_in_the_order(streams):
    messages, peers = run([[0, 1, 2]], microbatches=6, streams=streams)
    for row in range(len(messages)):
        is_lost = pl.int_range(pl.len()) == row
        lost = messages.with_columns(pl.when(~is_lost).then(pl.col("start_ns", "end_ns", "stream")))
        assert along_pipelines(lost).peer.to_list() == peers


def test_many_messages_without_another_side_say_nothing():
    messages, _ = run([[0, 1, 2, 3]])
    named = along_pipelines(messages.filter(pl.int_range(pl.len()) % 10 != 0))
    assert named.pipelines == ()
    assert named.peer.null_count() == len(named.peer)


@pytest.mark.parametrize("order", [(1, 3, 4), (4, 1, 3)])
def test_a_communicator_that_lacks_one_message_keeps_its_order(order):
    rows = [row for copy in range(8) for row in chatter(order)]
    for lost in range(len(rows) // 8):
        kept = rows[:lost] + rows[lost + 1 :]
        assert by_communicator(table(kept)).to_list() == [order[row["peer"]] for row in kept]


@pytest.mark.parametrize(("count", "aligned"), [(7, True), (8, False)])
def test_up_to_seven_members_every_order_is_tried(count, aligned):
    """MAX_MEMBERS_TO_PERMUTE: of eight in another order than their ranks nothing is said."""
    order = (1, 0, *range(2, count))
    rows = chatter(order)
    expected = [order[row["peer"]] for row in rows] if aligned else [None] * len(rows)
    assert by_communicator(table(rows)).to_list() == expected
