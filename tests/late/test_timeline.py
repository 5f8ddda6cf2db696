"""Collectives of a few steps over time."""

from __future__ import annotations

import polars as pl

from tests.recorders import ddp_dumps, dump, entry, write_dumps
from tracekit.late import late
from tracekit.late.timeline import MAX_OPERATIONS, collective_bars, shown_steps

MS = 1_000_000


def test_steps_around_the_latest_one_are_shown(tmp_path):
    late_ms = lambda rank, step: (20.0 if step == 9 else 10.0) * (rank == 1 and step % 3 == 0)  # noqa: E731
    run = late(write_dumps(tmp_path, ddp_dumps(4, 24, late_ms=late_ms)))
    assert shown_steps(run) == (8, 10)
    assert sorted(collective_bars(run)["step"].unique().to_list()) == [8, 9, 10]


def test_without_late_ranks_the_last_steps_are_shown(tmp_path):
    run = late(write_dumps(tmp_path, ddp_dumps(4, 24)))
    assert shown_steps(run) == (23, 24)


def test_a_late_rank_joins_when_all_have_joined_and_the_others_wait(tmp_path):
    run = late(
        write_dumps(
            tmp_path, ddp_dumps(4, 12, late_ms=lambda rank, step: 10.0 * (rank == 1 and step == 6))
        )
    )
    bars = collective_bars(run).filter(pl.col("step") == 6)
    first = bars.filter(pl.col("op_id") == bars["op_id"].min()).sort("rank")
    waits = (first["all_joined_ns"] - first["joined_ns"]).to_list()
    transfers = (first["end_ns"] - first["all_joined_ns"]).to_list()
    # All wait 10 ms for rank 1, then the transfer takes 5 ms.
    assert [round(wait / MS, 3) for wait in waits] == [10.0, 0.0, 10.0, 10.0]
    assert [round(transfer / MS, 3) for transfer in transfers] == [5.0] * 4


def test_calls_are_on_one_clock(tmp_path):
    dumps = ddp_dumps(4, 12, clock_ms=lambda rank: 1_000.0 * rank)
    bars = collective_bars(late(write_dumps(tmp_path, dumps)))
    spread = bars.group_by("op_id").agg(
        spread=pl.col("called_ns").max() - pl.col("called_ns").min()
    )
    assert spread["spread"].max() < 60 * MS  # seen through what the clocks may be off, not seconds


def test_without_durations_only_calls_are_shown(tmp_path):
    bars = collective_bars(late(write_dumps(tmp_path, ddp_dumps(2, 12, timing=False))))
    assert bars["called_ns"].null_count() == 0
    assert bars["joined_ns"].null_count() == bars.height


def test_of_many_operations_the_last_are_shown(tmp_path):
    entries = [
        entry(number, at_ms=number * number, sizes=(number,), took_ms=1.0)
        for number in range(1, 400)
    ]
    run = late(write_dumps(tmp_path, [dump(entries), dump(entries)]))
    assert shown_steps(run) is None  # sizes never repeat
    bars = collective_bars(run)
    assert bars["op_id"].n_unique() == MAX_OPERATIONS == 160
    assert bars["bytes"].max() == 4 * 399
