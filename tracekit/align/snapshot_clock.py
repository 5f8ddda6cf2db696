"""Place of a memory snapshot on the clock of a profiler trace.

Both are written by one process and stamp its host's time, so they differ by microseconds at most,
unless they are of different processes or times. The offset is the one on which most pairs agree: of
allocations with the same address and size, where the trace has them; else of ranges with the same
name; else of allocations and the operators that make them. A snapshot is accepted only if its
allocations then lie inside operators that allocate.
"""

from __future__ import annotations

import msgspec
import numpy as np
import polars as pl

from tracekit.documents.memory import SnapshotPlace
from tracekit.schema import MemorySnapshot, RankEvents

MAX_OFFSET_NS = 1_000_000_000
"""Largest offset (1 s) between two recordings of one host whose times are dates."""
MAX_PAIRS_PER_KEY = 10_000
"""Pairs of one address and size, or of one name, from which it tells too little to be worth looking
at."""
MAX_OPERATOR_TIMES = 2_000
"""Allocations, and operators, that are compared with each other."""
AGREEMENT_NS = 20_000
"""Width of the window in which the most offsets are looked for. The two clocks differ by 3 µs as a
rule."""
MAX_DEVIATION_NS = 200_000
"""Largest deviation of a pair from the offset to agree with it: the host may be interrupted between
the two stamps."""
MIN_AGREEING_SHARE = 0.5
"""Share of the trace's allocations or ranges that must agree on the offset."""
MIN_SHARE_IN_OPERATORS = {"allocations": 0.2, "annotations": 0.2, "operators": 0.35}
"""By kind of evidence, the share of allocations that must lie inside operators that allocate. Right
snapshots have 0.44 to 0.64, those of another rank 0.04 to 0.11, about the share of time that these
operators take. Where the operators are all the evidence there is, more is asked for."""
SHIFT_NS = 2_000
"""Step by which an offset is moved to see whether allocations lie inside operators."""
MIN_ALLOCATIONS_TO_CHECK = 20
"""Allocations within the trace from which the share inside operators tells anything."""
_ALLOCATING = r"^aten::(empty|new_empty|resize)"


class SnapshotClock(msgspec.Struct, frozen=True):
    """Offset of a memory snapshot's clock from that of a trace, and what speaks for it."""

    on_trace: SnapshotPlace
    pairs: int
    """Pairs that agree on it."""
    events: int
    """Events of the snapshot within the time of the trace."""


def place_snapshot(snapshot: MemorySnapshot, rank: RankEvents) -> SnapshotClock | None:
    """Return the place of a snapshot on the clock of a rank's trace.

    None if it is not of the same process and time.
    """
    ops = rank.events.filter(pl.col("kind") == "cpu_op").select("name", "start_ns", "end_ns")
    first_ns, last_ns = rank.events.select(pl.col("start_ns").min(), pl.col("end_ns").max()).row(0)
    allocating = ops.filter(pl.col("name").cast(pl.String).str.contains(_ALLOCATING)).sort(
        "start_ns"
    )
    evidence = {
        "allocations": _allocation_pairs(snapshot, rank.memory),
        "annotations": annotation_pairs(snapshot, rank.events),
        "operators": _operator_pairs(snapshot, allocating),
    }
    times = pl.concat([snapshot.events["at_ns"], snapshot.annotations["at_ns"]])
    if times.is_empty():
        return None
    span = int(times.min()), int(times.max())  # type: ignore[arg-type]  # polars types them as any value
    for source, pairs in evidence.items():
        near = pairs.filter(pl.col("offset_ns").abs() <= MAX_OFFSET_NS)
        agreed = find_agreed_offset(near, span=span)
        if agreed is None:
            continue
        offset_ns, uncertainty_ns, agreeing = agreed
        placed = snapshot.events.filter(
            pl.col("at_ns").is_between(first_ns - offset_ns, last_ns - offset_ns)
        )
        fitted_ns = fit_to_operators(
            placed, allocating, offset_ns, min_share=MIN_SHARE_IN_OPERATORS[source]
        )
        if fitted_ns is None or placed.is_empty():
            return None
        on_trace = SnapshotPlace(fitted_ns, uncertainty_ns, source)
        return SnapshotClock(on_trace, agreeing, len(placed))
    return None


PAIRS = pl.Schema({"row": pl.Int64(), "at_ns": pl.Int64(), "offset_ns": pl.Int64()})
"""Pairs of something in the trace and the same in the snapshot: row and time in the trace, and what
that time is later than the snapshot's."""


def find_agreed_offset(
    pairs: pl.DataFrame, *, span: tuple[int, int]
) -> tuple[int, int, int] | None:
    """Return the offset that most pairs agree on, the largest deviation from it, and the number of rows that agree.

    None if fewer rows than ``MIN_AGREEING_SHARE`` agree, of those in the time of the snapshot
    (*span*).

    >>> rows = {"row": [0, 0, 1, 2], "at_ns": [10, 10, 20, 30], "offset_ns": [5, 900_000, 7, 6]}
    >>> find_agreed_offset(pl.DataFrame(rows, schema=PAIRS), span=(0, 100))
    (6, 1, 3)
    """
    if pairs.is_empty():
        return None
    ordered = np.sort(pairs["offset_ns"].to_numpy())
    behind = np.searchsorted(ordered, ordered + AGREEMENT_NS, side="right")
    counts = behind - np.arange(len(ordered))
    first = int(np.argmax(counts))
    mode_ns = int(np.median(ordered[first : first + int(counts[first])]))
    first_ns, last_ns = span
    within = pairs.filter(
        (pl.col("at_ns") - mode_ns).is_between(first_ns - AGREEMENT_NS, last_ns + AGREEMENT_NS)
    )
    nearest = within.group_by("row").agg(
        pl.col("offset_ns").sort_by((pl.col("offset_ns") - mode_ns).abs()).first()
    )
    agreeing = nearest.filter((pl.col("offset_ns") - mode_ns).abs() <= MAX_DEVIATION_NS)[
        "offset_ns"
    ].to_numpy()
    if not len(agreeing) or len(agreeing) < MIN_AGREEING_SHARE * len(nearest):
        return None
    offset_ns = int(np.median(agreeing))
    return offset_ns, int(np.abs(agreeing - offset_ns).max()), len(agreeing)


def _pairs(own: pl.DataFrame, of_trace: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Return ``PAIRS`` of all with the same key; keys with too many pairs are left out."""
    counts = own.group_by(key).len("own").join(of_trace.group_by(key).len("other"), on=key)
    usable = counts.filter(pl.col("own") * pl.col("other") <= MAX_PAIRS_PER_KEY).select(key)
    numbered = of_trace.with_row_index("row")
    joined = own.join(usable, on=key).join(numbered, on=key, suffix="_trace")
    offset_ns = pl.col("at_ns_trace") - pl.col("at_ns")
    return joined.select(pl.col("row").cast(pl.Int64), at_ns="at_ns_trace", offset_ns=offset_ns)


def _allocation_pairs(snapshot: MemorySnapshot, memory: pl.DataFrame) -> pl.DataFrame:
    """Return ``PAIRS`` of allocations with the same address and size."""
    key = ["address", "bytes"]
    own = snapshot.events.filter(pl.col("action") == "alloc").select("at_ns", *key)
    # What the trace has of frees, whose bytes are negative, finds no partner.
    of_trace = memory.filter(pl.col("device_type") != 0).select("at_ns", *key)
    return _pairs(own, of_trace.drop_nulls(), key)


def annotation_pairs(snapshot: MemorySnapshot, events: pl.DataFrame) -> pl.DataFrame:
    """Return ``PAIRS`` of starts of ranges with the same name."""
    own = snapshot.annotations.filter("is_start").select("at_ns", "name")
    ranges = events.filter(pl.col("kind") == "annotation")
    of_trace = ranges.select(pl.col("start_ns").alias("at_ns"), pl.col("name").cast(pl.String))
    return _pairs(own, of_trace, ["name"])


def _operator_pairs(snapshot: MemorySnapshot, allocating: pl.DataFrame) -> pl.DataFrame:
    """Return ``PAIRS`` of every operator that allocates and every allocation of about the same time."""
    if allocating.is_empty():
        return PAIRS.to_frame()
    starts = allocating["start_ns"].to_numpy()[:MAX_OPERATOR_TIMES]
    allocs = snapshot.events.filter(pl.col("action") == "alloc")["at_ns"]
    near = allocs.filter(
        allocs.is_between(starts[0] - MAX_OFFSET_NS // 100, starts[-1] + MAX_OFFSET_NS // 100)
    )
    times = near.to_numpy()[-MAX_OPERATOR_TIMES:]
    offsets = (starts[:, None] - times[None, :]).ravel()
    rows = np.repeat(np.arange(len(starts)), len(times))
    return pl.DataFrame(
        {"row": rows, "at_ns": np.repeat(starts, len(times)), "offset_ns": offsets}, schema=PAIRS
    )


def fit_to_operators(
    placed: pl.DataFrame, allocating: pl.DataFrame, offset_ns: int, *, min_share: float
) -> int | None:
    """Return the offset, moved by microseconds to where most allocations lie inside operators that allocate.

    None if even then too few do. The offset itself if too few allocations or operators are there to
    tell.
    """
    times = placed.filter(pl.col("action") == "alloc")["at_ns"].to_numpy() + offset_ns
    if allocating.is_empty() or len(times) < MIN_ALLOCATIONS_TO_CHECK:
        return offset_ns
    starts = allocating["start_ns"].to_numpy()
    # An operator may contain another: the latest end so far counts.
    ends = np.maximum.accumulate(allocating["end_ns"].to_numpy())
    best_share = 0.0
    best_shift_ns = 0
    for shift_ns in range(-AGREEMENT_NS // 2, AGREEMENT_NS // 2 + 1, SHIFT_NS):
        moved = times + shift_ns
        operator = np.searchsorted(starts, moved, side="right") - 1
        is_inside = (operator >= 0) & (moved <= ends[np.maximum(operator, 0)])
        share = float(is_inside.mean())
        if share > best_share:
            best_share = share
            best_shift_ns = shift_ns
    return offset_ns + best_shift_ns if best_share >= min_share else None
