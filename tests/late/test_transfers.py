"""Transfers over time, and links that became slow."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from tests.recorders import ddp_dumps, dump, entry, write_dumps
from tracekit.late import late, transfers

MS = 1_000_000
LARGE = (2_000_000,)


def test_a_transfer_is_the_duration_on_the_rank_that_joined_last(tmp_path):
    dumps = ddp_dumps(4, 20, late_ms=lambda rank, step: 10.0 * (rank == 1), sizes=LARGE)
    (transfer,) = [
        entry
        for entry in late(write_dumps(tmp_path, dumps)).document.transfers
        if entry.op == "all_reduce"
    ]
    assert transfer.median_ns == 5 * MS
    assert transfer.operations == 20
    # 8,000,000 bytes, 2 * 3/4 of them over a link, in 5 ms.
    assert transfer.bus_bytes_per_s == 2_400_000_000


def test_a_link_that_became_slow_is_dated(tmp_path):
    dumps = ddp_dumps(4, 40, transfer_ms=lambda step: 5.0 if step < 25 else 9.0, sizes=LARGE)
    run = late(write_dumps(tmp_path, dumps))
    (link,) = run.document.slow_links
    assert link.kind == "degraded"
    assert (link.usual_ns, link.slow_ns) == (5 * MS, 9 * MS)
    assert link.since_step == 25
    assert link.cost_ns == 16 * 4 * MS
    assert run.late == ()


@pytest.mark.parametrize(("factor", "found"), [(1.2, False), (1.5, True)])
def test_a_link_is_slow_from_thirty_percent_on(tmp_path, factor, found):
    dumps = ddp_dumps(
        2, 40, transfer_ms=lambda step: 5.0 if step < 20 else 5.0 * factor, sizes=LARGE
    )
    assert bool(late(write_dumps(tmp_path, dumps)).document.slow_links) is found


@pytest.mark.parametrize(("steps", "found"), [(10, False), (20, True)])
def test_a_dozen_transfers_are_needed(tmp_path, steps, found):
    dumps = ddp_dumps(
        2, steps, transfer_ms=lambda step: 5.0 if step < steps / 2 else 20.0, sizes=LARGE
    )
    assert bool(late(write_dumps(tmp_path, dumps)).document.slow_links) is found


@pytest.mark.parametrize(("elements", "found"), [(200_000, False), (400_000, True)])
def test_transfers_below_a_megabyte_are_not_judged(tmp_path, elements, found):
    dumps = ddp_dumps(2, 40, transfer_ms=lambda step: 5.0 if step < 20 else 20.0, sizes=(elements,))
    assert bool(late(write_dumps(tmp_path, dumps)).document.slow_links) is found


def test_noise_is_no_slow_link(tmp_path):
    dumps = ddp_dumps(2, 60, transfer_ms=lambda step: 5.0 + 3.0 * (step * 7 % 10) / 10, sizes=LARGE)
    assert late(write_dumps(tmp_path, dumps)).document.slow_links == ()


def pairs(folder, slow_ms):
    """Four pairs of ranks with the same all-reduces, of which the third pair's take *slow_ms*."""
    dumps = []
    for rank in range(8):
        group = str(rank // 2 + 1)
        took = slow_ms if rank // 2 == 2 else 5.0
        entries = [
            entry(n + 1, at_ms=50.0 * n, took_ms=took, sizes=LARGE, group=group) for n in range(20)
        ]
        content = dump(entries)
        content["pg_config"][group]["ranks"] = str([rank - rank % 2, rank - rank % 2 + 1])
        dumps.append(content)
    return late(write_dumps(folder, dumps)).document.slow_links


@pytest.mark.parametrize(("slow_ms", "found"), [(6.0, False), (8.0, True)])
def test_a_group_slower_than_the_others_is_named(tmp_path, slow_ms, found):
    links = pairs(tmp_path, slow_ms)
    assert [(link.kind, link.ranks) for link in links] == (
        [("slower_than_others", (4, 5))] if found else []
    )


@pytest.mark.parametrize(("slow", "found"), [(161.0, True), (159.0, False)])
def test_a_slow_link_stands_out_from_its_noise_by_six_deviations(slow, found):
    times = np.array([90.0, 110.0] * 12 + [slow] * 24)
    assert (transfers.find_slower_for_good(times) is not None) is found


@pytest.mark.parametrize(("slow", "found"), [(5, True), (4, False)])
def test_a_change_has_a_sixth_of_the_transfers_on_either_side(slow, found):
    """Of 48 transfers the last 8 are one side at least: 5 slow ones are most of them, 4 are not."""
    times = np.array([100.0] * (48 - slow) + [300.0] * slow)
    assert (transfers.find_slower_for_good(times) is not None) is found


@pytest.mark.parametrize(("groups", "found"), [(2, False), (3, True)])
def test_a_group_is_compared_with_two_others(groups, found):
    rows = []
    for group in range(groups):
        for i in range(12):
            rows.append(
                (
                    str(group),
                    "all_reduce",
                    1 << 20,
                    100 * group + i,
                    i,
                    2,
                    300 if group == 0 else 100,
                    i,
                )
            )
    table = pl.DataFrame(rows, schema=transfers.TRANSFERS, orient="row")
    assert bool(transfers.find_slow_links(table, {})) is found
