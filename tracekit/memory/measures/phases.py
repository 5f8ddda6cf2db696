"""Phase of the host at each event of the allocator, and the peak of memory in each phase.

Allocator events carry the time at which the host asks for memory, which is when it launches work,
not when the GPU runs it. The phase of an event is therefore that of the *host*, as the launches
around it show. Where the launches on both sides disagree, the event belongs to no phase, and the
peak of a phase is a range: what was certainly allocated in it, and what may have been.
"""

from __future__ import annotations

from typing import Literal

import polars as pl

from tracekit.documents.analysis import Peak

MEMORY_PHASES = {
    "forward": "forward",
    "dgrad": "backward",
    "wgrad": "backward",
    "backward": "backward",
    "recompute": "recompute",
    "optimizer": "optimizer",
}
"""Phase of the host while it launches work of a label; for communication its pass, where known, is
the phase."""


def phase_peaks(phased: pl.DataFrame) -> dict[str, Peak]:
    """Return the peak of each phase that occurs; *phased* comes from ``add_phases``.

    >>> rows = {"phase": ["forward", None], "previous": ["forward"] * 2, "following": ["forward", "backward"],
    ...         "allocated": [10, 12], "before": [8, 10]}
    >>> phase_peaks(pl.DataFrame(rows))
    {'forward': Peak(at_least=10, at_most=12)}
    """
    levels = phased.with_columns(level=pl.max_horizontal("allocated", "before"))
    ambiguous = levels.filter(pl.col("phase").is_null())
    peaks = {}
    for phase in dict.fromkeys(MEMORY_PHASES.values()):
        certain = levels.filter(pl.col("phase") == phase)["level"]
        possible = ambiguous.filter((pl.col("previous") == phase) | (pl.col("following") == phase))[
            "level"
        ]
        if len(certain):
            at_least = _largest(certain)
            peaks[phase] = Peak(at_least, max(at_least, _largest(possible)))
    return peaks


def _largest(values: pl.Series) -> int:
    """Return the largest value; 0 if there is none."""
    return int(values.to_numpy().max(initial=0))


def add_phases(events: pl.DataFrame, labelled: pl.DataFrame, ops: pl.DataFrame) -> pl.DataFrame:
    """Return the allocator's events with the host's ``phase``, and with the phases of the launches around them.

    Inside an operator, the launches of this operator decide. Between operators the launches before
    and after must agree, on whichever thread they are. Else the phase is null.

    Args:
        events: Allocator events.
        labelled: GPU events of the rank.
        ops: CPU operators of the rank.

    """
    launches = _find_launches(labelled)
    rows = events.with_row_index("event").sort("at_ns", maintain_order=True)
    rows = _add_neighbours(rows, launches, "")
    rows = _add_neighbours(rows, launches, "own_", by="tid")
    rows = rows.sort("at_ns").join_asof(
        find_outermost_ops(ops).drop("operator"),
        left_on="at_ns",
        right_on="op_ns",
        by="tid",
        check_sortedness=False,
    )
    # Launches of the same thread before and after the event, if they are inside the operator around
    # it.
    in_op = pl.col("at_ns") <= pl.col("op_end_ns")
    op_previous = pl.when(in_op & (pl.col("own_previous_ns") >= pl.col("op_ns"))).then(
        "own_previous"
    )
    op_following = pl.when(in_op & (pl.col("own_following_ns") <= pl.col("op_end_ns"))).then(
        "own_following"
    )
    has_op_launch = op_previous.is_not_null() | op_following.is_not_null()
    op_agrees = op_previous.is_null() | op_following.is_null() | (op_previous == op_following)
    op_phase = pl.when(op_agrees).then(pl.coalesce(op_previous, op_following))
    # Launches of any thread before and after the event; the thread's own launches must not
    # contradict them.
    own_previous = pl.col("own_previous")
    own_following = pl.col("own_following")
    is_consistent = (
        (own_previous.is_null() & own_following.is_null())
        | (own_previous == pl.col("previous"))
        | (own_following == pl.col("previous"))
    ).fill_null(False)
    phase_around = pl.when((pl.col("previous") == pl.col("following")) & is_consistent).then(
        "previous"
    )
    return rows.with_columns(
        phase=pl.when(has_op_launch).then(op_phase).otherwise(phase_around)
    ).sort("event")


def _find_launches(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return time, thread and phase of the launches of work with a known phase, in order of time."""
    label = pl.col("label").cast(pl.String)
    compute_phase = label.replace_strict(MEMORY_PHASES, default=None, return_dtype=pl.String)
    comm_phase = pl.when(label != "other").then(pl.col("pass").cast(pl.String))
    launches = labelled.select(
        "launch_ns", tid="launch_tid", phase=pl.coalesce(compute_phase, comm_phase)
    )
    return launches.drop_nulls(["launch_ns", "phase"]).sort("launch_ns")


def _add_neighbours(
    rows: pl.DataFrame, launches: pl.DataFrame, prefix: str, by: str | None = None
) -> pl.DataFrame:
    """Add phase (*prefix* and ``previous``, ``following``) and time (``…_ns``) of the launches around each event.

    Args:
        rows: Allocator events, in order of time.
        launches: Launches (``_find_launches``).
        prefix: Beginning of the new columns' names.
        by: A column that must be the same in both.

    """
    neighbours: dict[str, Literal["backward", "forward"]] = {
        "previous": "backward",
        "following": "forward",
    }
    for neighbour, strategy in neighbours.items():
        time = f"{prefix}{neighbour}_ns"
        phase = f"{prefix}{neighbour}"
        renamed = launches.select(
            *([by] if by else []), pl.col("launch_ns").alias(time), pl.col("phase").alias(phase)
        )
        rows = rows.join_asof(
            renamed,
            left_on="at_ns",
            right_on=time,
            by=by,
            strategy=strategy,
            check_sortedness=False,
            coalesce=False,
        )
    return rows


def find_outermost_ops(ops: pl.DataFrame) -> pl.DataFrame:
    """Return the operators that are inside no other: thread, name, start and end."""
    spans = ops.select(
        "tid", op_ns="start_ns", op_end_ns="end_ns", operator=pl.col("name").cast(pl.String)
    )
    spans = spans.drop_nulls(["tid", "op_ns", "op_end_ns"])
    spans = spans.sort("op_ns", "op_end_ns", descending=[False, True])
    previous_end = pl.col("op_end_ns").cum_max().shift(1).over("tid")
    return spans.filter(previous_end.is_null() | (pl.col("op_ns") >= previous_end))
