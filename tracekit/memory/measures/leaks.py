"""Leaks: allocations that every step leaves behind and nothing frees.

Gradients live into the next step, and a first step allocates what the whole run keeps. So an
allocation counts only if it was still there two starts of steps later and at the end, and if
several steps left one behind from the same place.
"""

from __future__ import annotations

import polars as pl

from tracekit.memory.measures.contents import MIN_STEPS_TO_BE_KEPT
from tracekit.schema import conform

MAX_LEAKS = 10
"""Leaks in a document, the largest."""
MIN_STEPS_OF_LEAK = 2
"""Steps that must leave something behind from the same place."""
MIN_SHARE_OF_STEPS = 0.5
"""Share of the steps since the first leak, as far as they can tell, that must leave something
behind."""

LEAKS = pl.Schema(
    {
        "stack": pl.Int32(),  # of the allocations; null without stacks
        "operator": pl.String(),  # outermost operator around them; null if unknown
        "module": pl.String(),
        "phase": pl.String(),
        "pairs": pl.List(pl.Int64()),  # forwards of a pipeline that left them, within their step
        "bytes": pl.Int64(),  # left behind in all
        "bytes_per_step": pl.Int64(),
        "steps": pl.List(pl.Int64()),  # that left something behind
        "first_ns": pl.Int64(),  # host time of the first of these allocations
        "last_ns": pl.Int64(),
    }
)
"""One row per place that leaks, the largest first."""


def find_leaks(purposes: pl.DataFrame, step_starts: pl.DataFrame) -> pl.DataFrame:
    """Return ``LEAKS``.

    *purposes* come from ``contents.find_purposes``, step starts are in order of time.
    """
    rows = _leaking_places(_left_behind(purposes, step_starts), step_starts)
    count = pl.col("steps").list.len()
    rows = rows.with_columns(bytes=pl.col("total"), bytes_per_step=pl.col("total") // count)
    return conform(rows.sort("bytes", "first_ns", descending=[True, False]), LEAKS)


def find_leaked_rows(purposes: pl.DataFrame, step_starts: pl.DataFrame) -> pl.Series:
    """Return the events of the allocations that ``LEAKS`` counts."""
    leaked = _left_behind(purposes, step_starts)
    places = _leaking_places(leaked, step_starts).select(_LEAKING_PLACE)
    return leaked.join(places, on=_LEAKING_PLACE, how="semi", nulls_equal=True)[
        "alloc_row"
    ].drop_nulls()


_LEAKING_PLACE = ["stack", "place", "bytes"]
"""Columns that tell where an allocation was made. Without stacks the operator around it tells its
place, without a trace its size alone."""


def _telling_steps(step_starts: pl.DataFrame) -> list[int]:
    """Return the steps that end early enough to tell whether what they left behind is freed in time."""
    steps = step_starts["step"].to_list()
    return steps[: max(0, len(steps) - MIN_STEPS_TO_BE_KEPT)]


def _left_behind(purposes: pl.DataFrame, step_starts: pl.DataFrame) -> pl.DataFrame:
    """Return the allocations that were there two steps later and at the end, with their ``place``."""
    telling_steps = _telling_steps(step_starts)
    operator = pl.when(pl.col("stack").is_null()).then("operator")
    placed = purposes.with_columns(place=operator)
    if len(telling_steps) < MIN_STEPS_OF_LEAK:
        return placed.clear()
    last_start_ns = int(step_starts["start_ns"][-1])
    is_there_at_end = pl.col("free_ns").is_null() | (pl.col("free_ns") > last_start_ns)
    is_of_step = pl.col("step").is_in(telling_steps) & (
        pl.col("free_row").is_null() | (pl.col("free_row") >= 0)
    )
    return placed.filter(
        is_there_at_end & is_of_step & (pl.col("steps_survived") >= MIN_STEPS_TO_BE_KEPT)
    )


def _leaking_places(leaked: pl.DataFrame, step_starts: pl.DataFrame) -> pl.DataFrame:
    """Return the places that left something behind in enough of the steps since their first."""
    telling_steps = _telling_steps(step_starts)
    rows = leaked.group_by(_LEAKING_PLACE).agg(
        pl.col("operator", "module", "phase").drop_nulls().first(),
        pairs=pl.col("pair").drop_nulls().unique().sort(),
        total=pl.col("bytes").sum(),
        steps=pl.col("step").unique().sort(),
        first_ns=pl.col("alloc_ns").min(),
        last_ns=pl.col("alloc_ns").max(),
    )
    order = pl.DataFrame(
        {"step": telling_steps, "index": range(len(telling_steps))},
        schema={"step": pl.Int64(), "index": pl.Int64()},
    )
    first_index = (
        rows["steps"].list.first().replace_strict(order["step"], order["index"], default=0)
    )
    possible_steps = len(telling_steps) - first_index
    count = pl.col("steps").list.len()
    return rows.filter(
        (count >= MIN_STEPS_OF_LEAK) & (count >= MIN_SHARE_OF_STEPS * possible_steps)
    )
