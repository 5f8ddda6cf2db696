"""One weight update by rank and lane, and its one ideal, counted by hand."""

import polars as pl
import pytest

from tests.kept import analysis_of
from tracekit.documents.analysis import ReloadLane
from tracekit.metrics.process_phases import STRETCHES
from tracekit.roles.weight_updates import UpdateProcess, reload_events
from tracekit.roles.weight_updates.summary import summarize_longest_update
from tracekit.roles.weight_updates.transfers import RELOAD_EVENTS
from tracekit.schema import conform


def process(rank, *transfers):
    """Return a process with transfers (lane, start, end), each of one byte."""
    table = pl.DataFrame(list(transfers), schema=["lane", "start_ns", "end_ns"], orient="row").sort(
        "start_ns"
    )
    transfers = conform(table.with_columns(rank=pl.lit(rank), bytes=pl.lit(1)), RELOAD_EVENTS)
    return UpdateProcess("", rank, STRETCHES.to_frame(), transfers)


def two_rounds(rank):
    """Return the transfers of two rounds of two owners: H2D 4, broadcast 2, reload 1.

    A rank stages its own bucket.
    """
    rows = []
    now = 0
    for _ in range(2):
        rows.append(("h2d", now, now + 4))
        now += 4
        for owner in range(2):
            if owner == rank:
                rows.append(("stage", now, now))
            rows.append(("broadcast", now, now + 2))
            rows.append(("reload", now + 2, now + 3))
            now += 2
    return process(rank, *rows)


def test_a_summary_is_put_together_from_its_ranks():
    summary = summarize_longest_update([two_rounds(0), two_rounds(1)])
    assert (summary.rounds, summary.buckets, summary.owners) == (2, 4, 2)
    assert summary.sources == [0, 1, 0, 1]
    assert summary.time_ns == {"H2D": 4, "BROADCAST": 2, "RELOAD": 1}
    assert summary.ideal_ns == summary.measured_ns == 2 * (4 + 2 * 2) + 1
    # Every other one is under an H2D, or last.
    assert [rank.reload_under_broadcast for rank in summary.hidden] == [0.5, 0.5]
    of_rank_1 = {row.lane: (row.count, row.bytes, row.ns) for row in summary.lanes[4:]}
    assert of_rank_1 == {
        "h2d": (2, 2, 8),
        "stage": (2, 2, 0),
        "broadcast": (4, 4, 8),
        "reload": (4, 4, 4),
    }


def test_a_broadcast_lasts_until_the_last_rank_has_the_bucket():
    """The source leaves the broadcast at 6, but rank 1 has the bucket at 9 only: nothing can be saved.

    An ideal from the shortest participant (2) would end at 7, two before rank 1 has what it is to
    reload.
    """
    source = process(0, ("h2d", 0, 4), ("stage", 4, 4), ("broadcast", 4, 6), ("reload", 9, 10))
    destination = process(1, ("h2d", 0, 4), ("broadcast", 4, 9), ("reload", 9, 10))
    summary = summarize_longest_update([source, destination])
    assert summary.time_ns["BROADCAST"] == 5
    assert summary.ideal_ns == summary.measured_ns == 10


def test_waiting_for_the_last_member_is_no_part_of_a_broadcast():
    """Rank 1 comes 6 late to a broadcast of 2: the ideal is 6 shorter than the measured time."""
    source = process(0, ("h2d", 0, 4), ("stage", 4, 4), ("broadcast", 4, 12), ("reload", 12, 13))
    destination = process(1, ("h2d", 0, 4), ("broadcast", 10, 12), ("reload", 12, 13))
    summary = summarize_longest_update([source, destination])
    assert summary.time_ns["BROADCAST"] == 2
    assert (summary.measured_ns, summary.ideal_ns) == (13, 4 + 2 + 1)


def test_an_update_is_measured_from_the_first_copy_of_any_rank_to_the_last_reload_of_any():
    """Each rank alone takes 9 and 8.

    The update takes 10, from rank 0's copy at 0 to rank 1's reload at 10.
    """
    first = process(0, ("h2d", 0, 4), ("stage", 4, 4), ("broadcast", 6, 8), ("reload", 8, 9))
    second = process(1, ("h2d", 2, 6), ("broadcast", 6, 8), ("reload", 8, 10))
    assert summarize_longest_update([first, second]).measured_ns == 10


def test_of_several_updates_the_longest_is_summarized():
    """Training at 20 separates an update of 9 from one of 14."""
    rows = [
        ("h2d", 0, 4),
        ("broadcast", 4, 8),
        ("reload", 8, 9),
        ("h2d", 30, 34),
        ("broadcast", 34, 42),
        ("reload", 42, 44),
    ]
    phases = pl.DataFrame(
        {"phase": ["train"], "start_ns": [20], "end_ns": [25], "busy_ns": [5], "annotated": [False]}
    )
    parts = [UpdateProcess("", 0, conform(phases, STRETCHES), process(0, *rows).transfers)]
    summary = summarize_longest_update(parts)
    assert (summary.measured_ns, summary.rounds, summary.buckets) == (14, 1, 1)
    (broadcast,) = (lane for lane in summary.lanes if lane.lane == "broadcast")
    assert broadcast == ReloadLane(0, "broadcast", 1, 1, 8, 1 / 8)


def test_no_summary_where_nothing_is_reloaded(labelled):
    assert reload_events(labelled(("forward", 0, 5))) is None
    assert summarize_longest_update([process(0, ("h2d", 0, 4), ("broadcast", 5, 9))]) is None
    assert summarize_longest_update([]) is None


@pytest.mark.parametrize("sample", ["reload", "reload-overlap"])
def test_one_json_has_one_ideal(samples, sample):
    document = analysis_of(samples / sample).to_dict()
    (update,) = document["weight_updates"]
    assert document["reload"]["ideal_ns"] == update["ideal_ns"]
    assert document["reload"]["measured_ns"] == update["end_ns"] - update["start_ns"]
    assert document["reload"]["sources"] == list(update["sources"])


def test_lanes_are_told_from_labels_kinds_and_streams(labelled):
    copy = {"kind": "memcpy", "bytes": 8}
    events = labelled(
        {"label": "onload", "name": "Memcpy HtoD", "stream": 9, "start_ns": 0, "end_ns": 4, **copy},
        {"label": "memory", "name": "Memcpy DtoD", "stream": 7, "start_ns": 4, "end_ns": 5, **copy},
        {"label": "broadcast", "name": "nccl", "stream": 7, "start_ns": 5, "end_ns": 7, "bytes": 8},
        {"label": "reload", "name": "Memcpy DtoD", "stream": 8, "start_ns": 7, "end_ns": 8, **copy},
        {"label": "memory", "name": "Memcpy DtoD", "stream": 8, "start_ns": 8, "end_ns": 9, **copy},
    )
    assert reload_events(events)["lane"].to_list() == ["h2d", "stage", "broadcast", "reload"]
    sync = pl.DataFrame({"phase": ["weight_sync"], "start_ns": [0], "end_ns": [9]})
    assert reload_events(events, sync)["lane"].to_list() == [
        "h2d",
        "stage",
        "broadcast",
        "reload",
        "other",
    ]
