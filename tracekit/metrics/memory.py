"""What the allocator held, when and in which phase of the step, from PyTorch's ``[memory]`` events.

Those events are stamped when the host asks for memory, which is when it launches work, not when the GPU does it. All
that is said here is therefore about the host: the phase in which the *host* was at that moment, told by what it
launched around it. Where the launches on both sides disagree, the moment belongs to no phase, and the peak of a phase
is a range: what was surely held in it, and what may have been.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import polars as pl

from tracekit.metrics.chunks import ChunkMemory, chunk_memory

MEMORY_PHASES = {
    "forward": "forward",
    "dgrad": "backward",
    "wgrad": "backward",
    "backward": "backward",
    "recompute": "recompute",
    "optimizer": "optimizer",
}
"""What the host is doing when it launches work of a label; communication counts where its pass is known."""

LINE_POINTS = 200
"""Points of a rank's line over time: of each stretch the most that was held, so that no peak is lost."""
LINE = pl.Schema({"at_ns": pl.Int64(), "allocated": pl.Int64(), "reserved": pl.Int64()})

HOST = 0  # device type of the host's own memory


class Peak(msgspec.Struct, frozen=True):
    """The most that was held in a phase: surely, and possibly."""

    at_least: int
    at_most: int


class RankMemory(msgspec.Struct, frozen=True, eq=False):
    """One rank's memory over the steps asked for, in bytes."""

    device: int
    peak_bytes: int
    """Most that tensors held at once."""
    reserved_bytes: int | None
    """Most that the allocator held of the GPU's memory, used or not."""
    first_bytes: int
    """Held before the first event."""
    by_phase: Mapping[str, Peak] = {}
    chunks: ChunkMemory | None = None
    """What a chunk of the pipeline holds; None without one."""
    line: pl.DataFrame = msgspec.field(default_factory=LINE.to_frame)
    """Over time (``LINE``), on the host's clock; each point holds until the next."""


def gpu_memory(memory: pl.DataFrame) -> pl.DataFrame:
    """Return the events of the one GPU that has most of them, with totals, and what was held ``before`` each.

    >>> rows = {"at_ns": [1, 2, 3], "device_type": [1, 1, 0], "device": [0, 0, -1], "bytes": [5, -5, 9],
    ...         "allocated": [15, 10, 9], "reserved": [20, 20, 0]}
    >>> gpu_memory(pl.DataFrame(rows)).select("at_ns", "allocated", "before").rows()
    [(1, 15, 10), (2, 10, 15)]
    """
    known = memory.filter((pl.col("device_type") != HOST) & pl.col("allocated").is_not_null())
    if known.is_empty():
        return known.with_columns(before=pl.col("allocated"))
    counts = known.group_by("device_type", "device").len().sort(["len", "device"], descending=[True, False])
    kind, device = counts.select("device_type", "device").row(0)
    own = known.filter((pl.col("device_type") == kind) & pl.col("device").eq_missing(device))
    return own.with_columns(before=pl.col("allocated") - pl.col("bytes")).sort("at_ns", maintain_order=True)


def rank_memory(
    memory: pl.DataFrame,
    labelled: pl.DataFrame,
    ops: pl.DataFrame,
    *,
    window: tuple[int, int] | None = None,
    chunks: pl.DataFrame | None = None,
) -> RankMemory | None:
    """Return one rank's memory; None where the allocator's events were not recorded.

    *labelled* are the rank's GPU events, *ops* its CPU operators, *window* the host's time of the steps asked for,
    *chunks* its work in the pipeline (``metrics.chunks``).
    """
    own = gpu_memory(memory)
    if window is not None:
        own = own.filter(pl.col("at_ns").is_between(*window))
    if own.is_empty():
        return None
    phased = with_phases(own, labelled, ops)
    most = own.select(pl.max("allocated", "before", "reserved"))
    return RankMemory(
        device=int(own["device"][0] or 0),
        peak_bytes=max(int(most["allocated"][0]), int(most["before"][0])),
        reserved_bytes=most["reserved"][0],
        first_bytes=int(own["before"][0]),
        by_phase=phase_peaks(phased),
        chunks=None if chunks is None else chunk_memory(own, chunks),
        line=line(own),
    )


def phase_peaks(phased: pl.DataFrame) -> dict[str, Peak]:
    """Return the most that was held in each phase; *phased* comes from ``with_phases``.

    >>> rows = {"phase": ["forward", None], "previous": ["forward"] * 2, "following": ["forward", "backward"],
    ...         "allocated": [10, 12], "before": [8, 10]}
    >>> phase_peaks(pl.DataFrame(rows))
    {'forward': Peak(at_least=10, at_most=12)}
    """
    held = phased.with_columns(held=pl.max_horizontal("allocated", "before"))
    sure = dict(held.drop_nulls("phase").group_by("phase").agg(pl.max("held")).iter_rows())
    unsure = held.filter(pl.col("phase").is_null())
    peaks = {}
    for phase in dict.fromkeys(MEMORY_PHASES.values()):
        if phase not in sure:
            continue
        beside = unsure.filter((pl.col("previous") == phase) | (pl.col("following") == phase))["held"].max()
        at_least = int(sure[phase])
        peaks[phase] = Peak(at_least, at_least if beside is None else max(at_least, int(beside)))  # type: ignore[arg-type]
    return peaks


def with_phases(own: pl.DataFrame, labelled: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the allocator's events with the ``phase`` of the host, and those of the launches around them.

    Inside an operator the work that this operator launches tells; between operators the launches on both sides must
    agree, whichever thread made them. Else the phase is null.
    """
    launched = _launches(labelled)
    rows = own.with_row_index("event").sort("at_ns", maintain_order=True)
    rows = _beside(rows, launched, "previous", "following")
    rows = _beside(rows, launched, "own_previous", "own_following", by="tid")
    top = _outermost(ops)
    rows = rows.sort("at_ns").join_asof(top, left_on="at_ns", right_on="op_ns", by="tid", check_sortedness=False)
    inside = pl.col("at_ns") <= pl.col("op_end_ns")
    before = pl.when(inside & (pl.col("own_previous_ns") >= pl.col("op_ns"))).then("own_previous")
    after = pl.when(inside & (pl.col("own_following_ns") <= pl.col("op_end_ns"))).then("own_following")
    by_op = pl.when(before.is_null() | after.is_null() | (before == after)).then(pl.coalesce(before, after))
    silent = pl.col("own_previous").is_null() & pl.col("own_following").is_null()
    fits = silent | (pl.col("own_previous") == pl.col("previous")) | (pl.col("own_following") == pl.col("previous"))
    around = pl.when((pl.col("previous") == pl.col("following")) & fits.fill_null(False)).then("previous")
    told = before.is_not_null() | after.is_not_null()
    return rows.with_columns(phase=pl.when(told).then(by_op).otherwise(around)).sort("event")


def _launches(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return when and on which thread the host launched work of a known phase."""
    known = pl.col("label").cast(pl.String)
    compute = known.replace_strict(MEMORY_PHASES, default=None, return_dtype=pl.String)
    rows = labelled.select(
        "launch_ns",
        tid=pl.col("launch_tid"),
        phase=pl.coalesce(compute, pl.when(known != "other").then(pl.col("pass").cast(pl.String))),
    )
    return rows.drop_nulls(["launch_ns", "phase"]).sort("launch_ns")


def _beside(rows: pl.DataFrame, launched: pl.DataFrame, previous: str, following: str, *, by: str = "") -> pl.DataFrame:
    for name, strategy in ((previous, "backward"), (following, "forward")):
        columns = {"launch_ns": f"{name}_ns", "phase": name}
        right = launched.select(*([by] if by else []), **{new: pl.col(old) for old, new in columns.items()})
        rows = rows.join_asof(
            right,
            left_on="at_ns",
            right_on=f"{name}_ns",
            by=by or None,
            strategy=strategy,  # type: ignore[arg-type]
            check_sortedness=False,
            coalesce=False,
        )
    return rows


def _outermost(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the operators that stand in no other, by thread."""
    rows = ops.select("tid", op_ns=pl.col("start_ns"), op_end_ns=pl.col("end_ns")).drop_nulls()
    rows = rows.sort("op_ns", "op_end_ns", descending=[False, True])
    ended = pl.col("op_end_ns").cum_max().shift(1).over("tid")
    return rows.filter(ended.is_null() | (pl.col("op_ns") >= ended))


def line(own: pl.DataFrame, *, points: int = LINE_POINTS) -> pl.DataFrame:
    """Return ``LINE``: the events thinned to *points* stretches of equal time, of each the most that was held.

    >>> rows = {"at_ns": [0, 1, 10], "allocated": [5, 9, 2], "reserved": [9, 9, 9]}
    >>> line(pl.DataFrame(rows), points=2).rows()
    [(0, 9, 9), (10, 2, 9)]
    """
    if len(own) <= points:
        return own.select(LINE.names()).cast(LINE)
    first, last = int(own["at_ns"][0]), int(own["at_ns"][-1])
    width = max(1, -(-(last - first + 1) // points))
    thinned = own.group_by(stretch=(pl.col("at_ns") - first) // width, maintain_order=True).agg(
        pl.first("at_ns"), pl.max("allocated", "reserved")
    )
    return thinned.select(LINE.names()).cast(LINE)
