"""Operations of recorders matched across ranks, at their limits."""

from __future__ import annotations

import polars as pl
import pytest

from tracekit.align.recorded_clocks import align_recorded_clocks
from tracekit.align.recorded_ops import match_operations
from tracekit.schema import COLLECTIVES, conform

MS = 1_000_000


SECOND = 1_000 * MS


EPOCH = 1_700_000_000 * SECOND


def operations(times_ns, *, source="flight_recorder", ranks=(0, 1), first=1, time="enqueued_ns"):
    """All-reduces of 1 MiB at these times on all ranks."""
    rows = []
    for rank in ranks:
        for i, at_ns in enumerate(times_ns):
            rows.append(
                {
                    "rank": rank,
                    "source": source,
                    "id": i,
                    "group": "0",
                    "sequence": first + i,
                    "op": "all_reduce",
                    "is_message": False,
                    "bytes": 1 << 20,
                    time: EPOCH + at_ns,
                    "duration_ns": 5 * MS,
                    "state": "completed",
                }
            )
    return conform(pl.DataFrame(rows), COLLECTIVES)


def logged(times_ns, **options):
    """The same as an Inspector log has it, with other numbers, so that only times tell."""
    return operations(times_ns, source="nccl_inspector", first=100, **options)


def is_merged(*tables):
    _, left_out = match_operations(pl.concat(tables))
    return not left_out


@pytest.mark.parametrize(("difference_ms", "merged"), [(9.9, True), (10.1, False)])
def test_two_recorders_see_a_call_within_ten_milliseconds(difference_ms, merged):
    times = [i * SECOND for i in range(10)]
    shifted = [at_ns + round(difference_ms * MS) for at_ns in times]
    assert is_merged(operations(times), logged(shifted)) is merged


@pytest.mark.parametrize(("queued_s", "merged"), [(9.9, True), (10.1, False)])
def test_an_operation_starts_within_ten_seconds_of_its_call(queued_s, merged):
    times = [100 * i * SECOND for i in range(10)]
    started = [at_ns + round(queued_s * SECOND) for at_ns in times]
    assert is_merged(operations(times), logged(started, time="started_ns")) is merged


@pytest.mark.parametrize(("ranks", "merged"), [(4, True), (5, False)])
def test_half_of_the_members_must_agree(ranks, merged):
    """Two ranks wrote a dump: half of four, and less than half of five."""
    times = [i * SECOND for i in range(10)]
    dumped = operations(times, ranks=(0, 1))
    assert is_merged(dumped, logged(times, ranks=range(ranks))) is merged


@pytest.mark.parametrize(("matching", "merged"), [(5, True), (4, False)])
def test_half_of_the_operations_must_be_in_both(matching, merged):
    times = [i * SECOND for i in range(11)]
    others = [at_ns + (0 if i < matching else SECOND // 2) for i, at_ns in enumerate(times[:10])]
    assert is_merged(operations(times), logged(others)) is merged


@pytest.mark.parametrize(("shared", "ranks"), [(3, [0, 1]), (2, [0])])
def test_three_common_operations_give_a_clock(shared, ranks):
    times = [i * SECOND for i in range(shared)]
    table = operations(times).with_columns(completed_ns=pl.col("enqueued_ns") + 5 * MS)
    members, _ = match_operations(table)
    assert sorted(align_recorded_clocks(members)) == ranks


def test_measured_ends_give_the_offset_of_a_clock():
    """Rank 1's clock is 7 ms and 1 ns later; of four ends one is 3 ms off, which the median does not notice.

    Floats hold times since 1970 to 256 ns only.
    """
    times = [i * SECOND for i in range(4)]
    late = pl.Series([0] * 4 + [7 * MS + 1, 7 * MS + 1, 10 * MS, 7 * MS + 1])
    table = operations(times).with_columns(completed_ns=pl.col("enqueued_ns") + 5 * MS + late)
    members, _ = match_operations(table)
    clocks = align_recorded_clocks(members)
    assert clocks[0].offset_ns == 0
    assert clocks[1].offset_ns == 7 * MS + 1


def test_a_clock_that_began_with_the_machine_is_set_to_the_nanosecond():
    """Rank 1 counts from its start, 1,700,000,000 s and 3 ns after 1970."""
    times = [i * SECOND for i in range(4)]
    earlier = pl.when(pl.col("rank") == 1).then(EPOCH + 3).otherwise(0)
    table = operations(times).with_columns(
        completed_ns=pl.col("enqueued_ns") + 5 * MS - earlier,
        enqueued_ns=pl.col("enqueued_ns") - earlier,
    )
    members, _ = match_operations(table)
    assert align_recorded_clocks(members)[1].offset_ns == -(EPOCH + 3)
