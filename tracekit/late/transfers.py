"""Transfers over time: bandwidth of collectives by group and size, and links that are or became slow.

The member that joins an operation last does not wait in it: its duration is the transfer.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from tracekit._util.arrays import Floats
from tracekit.documents.late import SlowLink, TransferEntry
from tracekit.schema import SYMMETRIC_OPS

MIN_TRANSFERS = 12
"""Transfers of one kind from which on changes are looked for."""
MIN_SLOW_TRANSFER_RATIO = 1.3
"""Transfer time over the usual one, from which on a link is slow."""
NOISE_SCALES = 6.0
"""Median deviations of transfer times by which slow ones exceed the usual ones."""
MIN_SHARE_EACH_SIDE = 1 / 6
"""Share of the transfers that are at least on either side of a change."""
SPLITS = 24
"""Moments at which a change is looked for."""
MIN_OTHER_GROUPS = 2
"""Groups with the same transfers that a group is compared with, at least."""
MIN_BYTES = 1 << 20
"""Smallest transfers that are judged: below it latency counts, not bandwidth."""

TRANSFERS = pl.Schema(
    {
        "group": pl.Categorical(),
        "op": pl.Categorical(),
        "bytes": pl.Int64(),
        "op_id": pl.Int64(),
        "step": pl.Int64(),
        "members": pl.UInt32(),
        "transfer_ns": pl.Int64(),
        "time_ns": pl.Int64(),
    }
)


def measure_transfers(members: pl.DataFrame) -> pl.DataFrame:
    """Return the transfer of every operation whose members' durations are all known (``TRANSFERS``)."""
    symmetric = members.filter(pl.col("op").cast(pl.String).is_in(SYMMETRIC_OPS))
    complete = symmetric.filter(
        pl.col("duration_ns").is_not_null().all().over("op_id")
        & pl.col("bytes").is_not_null()
        & (pl.len().over("op_id") > 1)
    )
    return (
        complete.group_by("group", "op", "bytes", "op_id")
        .agg(
            pl.col("step").first(),
            members=pl.len(),
            transfer_ns=pl.col("duration_ns").min(),
            time_ns=pl.col("order_ns").min(),
        )
        .sort("op_id")
    )


def summarise_transfers(transfers: pl.DataFrame) -> tuple[TransferEntry, ...]:
    """Return the transfers by group, operation and size, those with most time first."""
    summary = (
        transfers.group_by("group", "op", "bytes")
        .agg(
            pl.col("members").max(),
            operations=pl.len(),
            median_ns=pl.col("transfer_ns").median(),
            total_ns=pl.col("transfer_ns").sum(),
        )
        .sort(["total_ns", "group", "bytes"], descending=[True, False, False])
    )
    entries = []
    for row in summary.iter_rows(named=True):
        median = round(row["median_ns"])
        bus = bus_bytes(str(row["op"]), row["bytes"], row["members"])
        rate = round(bus * 1e9 / median) if bus is not None and median > 0 else None
        entries.append(
            TransferEntry(
                str(row["group"]),
                row["members"],
                str(row["op"]),
                row["bytes"],
                row["operations"],
                median,
                rate,
            )
        )
    return tuple(entries)


def bus_bytes(op: str, size: int, members: int) -> float | None:
    """Return the bytes that a link must carry for an operation, as NCCL's tests count them.

    None if not defined.

    *size* is that of the smaller of input and output.

    >>> bus_bytes("all_reduce", 1000, 4), bus_bytes("all_gather", 1000, 4), bus_bytes("barrier", 1000, 4)
    (1500.0, 3000.0, None)
    """
    factors = {
        "all_reduce": 2 * (members - 1) / members,
        "all_gather": float(members - 1),
        "reduce_scatter": float(members - 1),
        "all_to_all": (members - 1) / members,
    }
    factor = factors.get(op)
    return None if factor is None else size * factor


def find_slow_links(
    transfers: pl.DataFrame, group_ranks: Mapping[str, tuple[int, ...]]
) -> tuple[SlowLink, ...]:
    """Return transfers that became slow, and groups whose transfers are slower than the same ones of other groups."""
    links = []
    large = transfers.filter(pl.col("bytes") >= MIN_BYTES)
    for (group, op, size), rows in large.group_by("group", "op", "bytes", maintain_order=True):
        if rows.height < MIN_TRANSFERS:
            continue
        change = find_slower_for_good(rows["transfer_ns"].to_numpy().astype(float))
        if change is None:
            continue
        row, usual, slow = change
        links.append(
            SlowLink(
                group=str(group),
                ranks=group_ranks.get(str(group), ()),
                op=str(op),
                bytes=size,
                kind="degraded",
                usual_ns=round(usual),
                slow_ns=round(slow),
                since_step=rows["step"][row],
                since_ns=rows["time_ns"][row],
                cost_ns=round((slow - usual) * (rows.height - row)),
            )
        )
    links += _slower_groups(large, group_ranks)
    # Transfers of several sizes of one group tell one story: the one that costs most.
    best: dict[tuple[str, str], SlowLink] = {}
    for link in sorted(links, key=lambda link: -link.cost_ns):
        best.setdefault((link.group, link.kind), link)
    return tuple(best.values())


def find_slower_for_good(times: Floats) -> tuple[int, float, float] | None:
    """Return where transfers became slower for good, and the medians before and after.

    None if they did not.
    """
    count = len(times)
    margin = max(2, round(MIN_SHARE_EACH_SIDE * count))
    splits = np.unique(np.linspace(margin, count - margin, SPLITS).astype(int))
    best: tuple[float, int] | None = None
    for split in splits:
        # The split that explains most: least deviation from the median of either side.
        before = times[:split]
        after = times[split:]
        deviation = (
            np.abs(before - np.median(before)).sum() + np.abs(after - np.median(after)).sum()
        )
        if best is None or deviation < best[0]:
            best = (float(deviation), int(split))
    assert best is not None, "there is at least one split"
    split = best[1]
    # The neighbourhood holds the exact place: the first of a run of slow transfers.
    usual = float(np.median(times[:split]))
    slow = float(np.median(times[split:]))
    noise = float(np.median(np.abs(times[:split] - usual)))
    if slow < MIN_SLOW_TRANSFER_RATIO * usual or slow - usual < NOISE_SCALES * noise:
        return None
    is_slow = times > (usual + slow) / 2
    weights = np.where(is_slow, 1, -1)
    # From the chosen row on, slow transfers outnumber others most.
    from_row = np.cumsum(weights[::-1])[::-1]
    return int(np.argmax(from_row)), usual, slow


def _slower_groups(
    transfers: pl.DataFrame, group_ranks: Mapping[str, tuple[int, ...]]
) -> list[SlowLink]:
    """Return groups whose transfers are slower than the same transfers (kind, size, members) of other groups."""
    medians = (
        transfers.group_by("op", "bytes", "members", "group")
        .agg(median=pl.col("transfer_ns").median(), count=pl.len())
        .filter(pl.col("count") >= MIN_TRANSFERS)
    )
    links = []
    for (op, size, _), rows in medians.group_by("op", "bytes", "members", maintain_order=True):
        if rows.height <= MIN_OTHER_GROUPS:
            continue
        usual = float(rows["median"].median())  # type: ignore[arg-type]
        noise = float((rows["median"] - usual).abs().median())  # type: ignore[arg-type]
        slow_rows = rows.filter(
            (pl.col("median") >= MIN_SLOW_TRANSFER_RATIO * usual)
            & (pl.col("median") - usual >= NOISE_SCALES * noise)
        )
        for row in slow_rows.iter_rows(named=True):
            links.append(
                SlowLink(
                    group=str(row["group"]),
                    ranks=group_ranks.get(str(row["group"]), ()),
                    op=str(op),
                    bytes=size,
                    kind="slower_than_others",
                    usual_ns=round(usual),
                    slow_ns=round(row["median"]),
                    since_step=None,
                    since_ns=None,
                    cost_ns=round((row["median"] - usual) * row["count"]),
                )
            )
    return links
