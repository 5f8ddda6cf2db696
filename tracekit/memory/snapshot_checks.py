"""Checks of a memory snapshot against itself.

The allocator takes a snapshot under its lock, so that the events lead exactly to the blocks that it
lists. Files that were put together, doubled, shuffled or cut do not: their history would show leaks
and levels that never were.
"""

from __future__ import annotations

import polars as pl

from tracekit.errors import InputError

_RESERVED_CHANGES = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


def check_segments(segments: pl.DataFrame, blocks: pl.DataFrame, name: str) -> None:
    """Raise InputError if segments overlap, hold more than they have, or hold what none of their blocks does.

    Args:
        segments: ``ALLOCATOR_SEGMENTS``, by address.
        blocks: ``ALLOCATOR_BLOCKS``.
        name: What to call the file.
    """
    end = pl.col("address") + pl.col("bytes")
    overlaps = segments.select((end.shift(1) > pl.col("address")).any()).item()
    holds_more = segments.select(
        (pl.max_horizontal("allocated", "active") > pl.col("bytes")).any()
    ).item()
    state = pl.col("state")
    sums = blocks.group_by("segment").agg(
        used=pl.sum("bytes"),
        allocated_in_blocks=pl.col("bytes").filter(state == "active_allocated").sum(),
        active_in_blocks=pl.col("bytes").filter(state.str.starts_with("active")).sum(),
        first=pl.col("address").min(),
        last=(pl.col("address") + pl.col("bytes")).max(),
    )
    in_segments = sums.join(segments, left_on="segment", right_on="address", suffix="_segment")
    is_outside = (
        (pl.col("first") < pl.col("segment"))
        | (pl.col("last") > pl.col("segment") + pl.col("bytes"))
        | (pl.col("used") > pl.col("bytes"))
    )
    # The allocator sums what a segment holds over its blocks, so that a block that is not there shows.
    with_sums = segments.join(sums, left_on="address", right_on="segment", how="left")
    holds_other = pl.any_horizontal(
        pl.col(f"{amount}_in_blocks").fill_null(0) != pl.col(amount)
        for amount in ("allocated", "active")
    )
    problems = [  # the first that holds is named
        (overlaps, "segments that overlap"),
        (holds_more, "a segment that holds more than it has"),
        (in_segments.select(is_outside.any()).item(), "blocks outside of their segment"),
        (
            with_sums.select(holds_other.any()).item(),
            "blocks that do not add up to what segments hold",
        ),
    ]
    for holds, problem in problems:
        if holds:
            raise InputError(f"has {problem}", path=name, hint="write the snapshot again")


def history_contradiction(
    events: pl.DataFrame, segments: pl.DataFrame, blocks: pl.DataFrame
) -> str | None:
    """Return in which way the events contradict themselves or the segments; None if they do not.

    ``times``: they do not ascend. ``twice``: memory is allocated or freed twice in a row at one
    address. ``sizes``: it is freed with another size than it was allocated with. ``end``: what the
    events leave behind is not what the segments hold. ``reserved``: more is held than is reserved,
    or less than nothing is reserved.

    Args:
        events: ``ALLOCATOR_EVENTS``, in the order of the file.
        segments: ``ALLOCATOR_SEGMENTS``.
        blocks: ``ALLOCATOR_BLOCKS``.
    """
    if events.is_empty():
        return None
    if not events["at_ns"].is_sorted():
        return "times"
    tensors = (
        events.filter(pl.col("action").is_in(["alloc", "free_requested", "free_completed"]))
        .with_columns(pl.col("action").cast(pl.String))
        .with_columns(
            before=pl.col("action").shift(1).over("address"),
            bytes_before=pl.col("bytes").shift(1).over("address"),
            is_last=pl.int_range(pl.len()).over("address") == pl.len().over("address") - 1,
        )
    )
    # Histories can leave out kinds of events: without allocations, frees follow each other.
    has_allocations = (tensors["action"] == "alloc").any()
    if has_allocations and (tensors["action"] == tensors["before"]).any():
        return "twice"
    is_free = (pl.col("action") != "alloc") & (pl.col("before") == "alloc")
    has_other_size = is_free & (pl.col("bytes") != pl.col("bytes_before"))
    if tensors.select(has_other_size.any()).item():
        return "sizes"
    last = tensors.filter("is_last").select("address", "action")
    ends = last.join(blocks.select("address", "state"), on="address", how="left")
    is_held = pl.col("state").str.starts_with("active").fill_null(False)
    is_left = pl.col("action") == "alloc"
    is_freed = pl.col("action") == "free_completed"
    is_contradicted = (is_left & ~is_held) | (is_freed & (pl.col("state") == "active_allocated"))
    if ends.select(is_contradicted.fill_null(False).any()).item():
        return "end"
    return "reserved" if _holds_more_than_reserved(events, segments) else None


def _holds_more_than_reserved(events: pl.DataFrame, segments: pl.DataFrame) -> bool:
    """Return whether the events ever hold more than is reserved.

    What is held is a lower bound: allocations in the events alone, in the bytes that were asked
    for. What is reserved follows from the segments at the end.
    """
    action = pl.col("action").cast(pl.String)
    signed = action.replace_strict(_RESERVED_CHANGES, default=0, return_dtype=pl.Int64)
    before = pl.when(action.is_in(["alloc", "free_completed"])).then(action)
    held_change = (
        pl.when(action == "alloc")
        .then(pl.col("bytes"))
        .when((action == "free_completed") & (pl.col("allocated_before") == "alloc"))
        .then(-pl.col("bytes_before"))
        .otherwise(0)
    )
    is_tensor = action.is_in(["alloc", "free_completed"])
    levels = events.with_columns(
        allocated_before=before.shift(1).over("address", is_tensor),
        bytes_before=pl.col("bytes").shift(1).over("address", is_tensor),
    ).select(
        held=held_change.cum_sum(),
        reserved=(signed * pl.col("bytes")).cum_sum(),
    )
    first_reserved = int(segments["bytes"].sum()) - int(levels["reserved"][-1])
    reserved = levels["reserved"] + first_reserved
    return first_reserved < 0 or bool((levels["held"] > reserved).any())
