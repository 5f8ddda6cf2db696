"""Weight updates counted by hand: two ranks, two buckets of 1,000 bytes, one from each rank."""

from dataclasses import replace

import polars as pl
import pytest

from tracekit.metrics.process_phases import DECODE_STEPS, STRETCHES
from tracekit.roles.processes import Process
from tracekit.roles.weight_updates import find_weight_updates
from tracekit.roles.weight_updates.transfers import RELOAD_EVENTS
from tracekit.schema import conform


def process(role, rank, *transfers, stretches=()):
    """Return a process with transfers (lane, start, end, bytes) and stretches (phase, start, end)."""
    columns = ["lane", "start_ns", "end_ns", "bytes"]
    table = pl.DataFrame(list(transfers), schema=columns, orient="row", infer_schema_length=None)
    phases = pl.DataFrame(list(stretches), schema=["phase", "start_ns", "end_ns"], orient="row")
    return Process(
        role,
        rank,
        conform(
            phases.cast({"phase": pl.String}).with_columns(busy_ns=0, annotated=False), STRETCHES
        ),
        conform(table.with_columns(rank=pl.lit(rank)), RELOAD_EVENTS),
        DECODE_STEPS.to_frame(),
        shapes_recorded=False,
    )


def two_ranks(*, late=0):
    """Return servers and workers of two ranks; rank 1 enters the second broadcast *late*."""
    one = process(
        "server", 0, ("h2d", 0, 10, 1000), ("stage", 10, 11, 1000), ("broadcast", 12, 22, 1000),
        ("broadcast", 30, 40 + late, 1000),
    )  # fmt: skip
    two = process(
        "server", 1, ("h2d", 0, 8, 1000), ("broadcast", 12, 22, 1000), ("stage", 24, 25, 1000),
        ("broadcast", 30 + late, 40 + late, 1000),
    )  # fmt: skip
    end = 44 + late
    workers = [
        process(
            "worker",
            rank,
            ("reload", 23, 24, 600),
            ("reload", 24, 26, 400),
            ("reload", 42 + late, end, 1000),
        )
        for rank in (0, 1)
    ]
    return [one, two, *workers]


def test_an_update_from_the_first_copy_to_the_last_reload():
    (update,), notices = find_weight_updates(two_ranks())
    assert notices == []
    assert (update.start_ns, update.end_ns, update.bytes, update.buckets) == (0, 44, 2000, 2)
    assert (update.server, update.worker, update.sources, update.reloaded_bytes) == (
        "server",
        "worker",
        (0, 1),
        2000,
    )
    assert update.h2d_ns == 9  # 10 and 8 on two ranks
    assert (update.broadcast_ns, update.reload_ns) == (20, 5)
    assert update.gb_s == pytest.approx(2000 / 44, abs=1e-3)


def test_the_ideal_has_the_measured_times_of_each_bucket():
    (update,), _ = find_weight_updates(two_ranks())
    # H2D 10, broadcast 10, broadcast 10 beside the first reload (3), then the second reload (2).
    assert update.ideal_ns == 32
    assert update.ideal[-1] == ("RELOAD", 1, 30, 32)


def test_the_causes_of_the_gap_sum_to_it():
    (update,), _ = find_weight_updates(two_ranks(late=5))
    assert sum(update.gap_ns.values()) == update.measured_ns - update.ideal_ns
    assert update.gap_ns["late_rank"] == 5
    assert update.late_rank == 1
    # Idle: 10-12, 22-23, 26-30 and 45-47; waiting lasts from 30 to 35.
    assert update.gap_ns["host_and_rpc"] == 2 + 1 + 4 + 2
    # The first reload runs beside nothing (3), the last is exposed in the ideal too (2).
    assert update.gap_ns["reload_not_overlapped"] == 3
    assert update.gap_ns["serial_h2d"] == 0


def test_only_buckets_that_all_ranks_have_are_counted():
    """Rank 1 lacks the second bucket, so rank 0's copy (13 to 29), broadcast and reload for it are left out."""
    full, cut, *workers = two_ranks()
    copy = full.transfers.filter(lane="h2d").with_columns(
        start_ns=pl.lit(13, pl.Int64), end_ns=pl.lit(29, pl.Int64)
    )
    full = replace(full, transfers=pl.concat([full.transfers, copy]).sort("start_ns"))
    cut = replace(cut, transfers=cut.transfers.filter(pl.col("start_ns") < 24))
    (update,), notices = find_weight_updates([full, cut, *workers])
    assert (update.start_ns, update.end_ns, update.bytes, update.buckets) == (0, 26, 1000, 1)
    assert (update.h2d_ns, update.broadcast_ns, update.reload_ns, update.reloaded_bytes) == (
        9,
        10,
        3,
        1000,
    )
    assert update.host_ns == 3  # 11-12 on rank 0, which copies up to 29; 8-12 and 22-23 on rank 1
    assert sum(update.gap_ns.values()) == update.measured_ns - update.ideal_ns
    assert notices == []


def test_copies_after_the_last_broadcast_are_no_part_of_the_update():
    late_copy = process("server", 0, ("broadcast", 0, 5, 10), ("h2d", 7, 9, 10))
    assert find_weight_updates([late_copy])[0] == []
    (update,), _ = find_weight_updates([late_copy, process("worker", 0, ("reload", 6, 7, 10))])
    assert (update.start_ns, update.end_ns, update.h2d_ns, update.gb_s) == (
        0,
        7,
        0,
        round(10 / 7, 3),
    )


def test_an_update_ends_with_its_last_broadcast_if_the_reload_of_it_is_missing():
    server = process(
        "server", 0, ("broadcast", 0, 5, 10), ("h2d", 8, 9, 10), ("broadcast", 10, 15, 10)
    )
    (update,), _ = find_weight_updates([server, process("worker", 0, ("reload", 6, 7, 10))])
    assert (update.start_ns, update.end_ns) == (8, 15)


def test_copies_are_taken_from_the_bucket_their_bytes_lie_in():
    (update,), _ = find_weight_updates(two_ranks())
    reloads = [
        (cell.bucket, cell.start_ns, cell.end_ns) for cell in update.cells if cell.op == "RELOAD"
    ]
    assert reloads == [(0, 23, 26), (1, 42, 44)] * 2
    held = {(cell.op, cell.bucket): cell.held_until_ns for cell in update.cells if cell.rank == 0}
    assert held["H2D", 0] == 11  # until it is staged
    assert held["BROADCAST", 0] == 26  # until it is reloaded


def test_tensors_that_are_padded_in_their_bucket():
    server = process(
        "server", 0, ("h2d", 0, 5, 512), ("broadcast", 6, 8, 512), ("broadcast", 20, 22, 256)
    )
    copies = [("reload", 9, 10, 100), ("reload", 10, 11, 256), ("reload", 23, 24, 200)]
    (update,), notices = find_weight_updates([server, process("worker", 0, *copies)])
    assert [cell.bucket for cell in update.cells if cell.op == "RELOAD"] == [0, 1]
    assert (update.bytes, update.reloaded_bytes) == (768, 556)
    assert [notice.code for notice in notices] == ["weight-updates-differ"]


def test_weights_that_were_not_reloaded_are_those_of_an_update_that_lacks_more_than_padding():
    transfers = []
    copies = []
    for start, reloaded in ((0, 995), (100, 500)):
        transfers.append(("h2d", start, start + 2, 1000))
        transfers.append(("broadcast", start + 3, start + 5, 1000))
        copies.append(("reload", start + 6, start + 7, reloaded))
    server = process("trainer", 0, *transfers, stretches=[("train", 50, 90)])
    updates, (notice,) = find_weight_updates([server, process("rollout", 0, *copies)])
    assert [update.reloaded_bytes for update in updates] == [995, 500]
    assert notice.values == {"case": "not_reloaded", "reloaded_bytes": 500, "bytes": 1000}


@pytest.mark.parametrize(("reloaded", "is_padding"), [(991, True), (990, False)])
def test_less_than_a_hundredth_of_the_bytes_may_be_padding(reloaded, is_padding):
    server = process("trainer", 0, ("h2d", 0, 2, 1000), ("broadcast", 3, 5, 1000))
    _, notices = find_weight_updates([server, process("rollout", 0, ("reload", 6, 7, reloaded))])
    assert (notices == []) is is_padding


def test_training_separates_two_updates():
    first = [("h2d", 0, 2, 10), ("broadcast", 3, 5, 10)]
    second = [("h2d", 100, 102, 10), ("broadcast", 103, 105, 10)]
    server = process("trainer", 0, *first, *second, stretches=[("train", 50, 90)])
    worker = process("rollout", 0, ("reload", 6, 7, 10), ("reload", 106, 107, 10))
    updates, _ = find_weight_updates([server, worker])
    assert [(update.start_ns, update.end_ns, update.buckets) for update in updates] == [
        (0, 7, 1),
        (100, 107, 1),
    ]


def test_barriers_separate_updates_that_repeat_their_buckets():
    rows = [("h2d", 0, 1, 10), ("broadcast", 1, 2, 10), ("broadcast", 3, 4, 20), ("other", 5, 6, 0)]
    again = [(lane, start + 10, end + 10, size) for lane, start, end, size in rows]
    updates, _ = find_weight_updates([process("server", 0, *rows, *again)])
    assert [update.buckets for update in updates] == [2, 2]
    once = [("h2d", 0, 1, 10), ("broadcast", 1, 2, 10), ("other", 2, 3, 0), ("broadcast", 3, 4, 10)]
    assert len(find_weight_updates([process("server", 0, *once)])[0]) == 1


def test_ranks_with_another_number_of_updates_are_left_out():
    first = [("h2d", 0, 2, 10), ("broadcast", 3, 5, 10)]
    second = [("h2d", 100, 102, 20), ("broadcast", 103, 105, 20)]
    cut = process("server", 0, *second)  # its recording began after the first update
    whole = [
        process("server", rank, *first, *second, stretches=[("train", 50, 90)]) for rank in (1, 2)
    ]
    updates, notices = find_weight_updates([cut, *whole])
    assert [(update.start_ns, update.end_ns, update.bytes) for update in updates] == [
        (0, 5, 10),
        (100, 105, 20),
    ]
    assert [notice.code for notice in notices] == ["role-missing", "weight-updates-differ"]


def test_without_workers_reloads_are_unknown_and_said_to_be():
    servers = two_ranks()[:2]
    (update,), notices = find_weight_updates(servers)
    assert (update.bytes, update.buckets) == (2000, 2)
    assert update.reload_ns is None
    assert update.ideal_ns is None
    assert update.gap_ns is None
    assert [notice.code for notice in notices] == ["role-missing"]


def test_broadcasts_that_carry_no_weights_are_no_update():
    assert find_weight_updates([process("trainer", 0, ("broadcast", 0, 5, 8192))]) == ([], [])
