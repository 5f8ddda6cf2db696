"""Figures of one rank that explain why other ranks wait for it: kernel times, work, late launches, tokens.

They are compared across ranks in ``analysis.stragglers``. All are by step and small: a row per
operator and shapes, a row per step, a row per micro-batch.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints, SortedGroups, group_rows
from tracekit._util.categories import CategoryColumns
from tracekit._util.columns import to_int64
from tracekit._util.shapes import is_shape, parse_list
from tracekit.classify.names import COPY_DIRECTIONS
from tracekit.intervals import union
from tracekit.metrics.label_intervals import COMPUTE_SET, has_label, label_codes
from tracekit.schema import conform

KERNEL_TIMES = pl.Schema(
    {
        "key": pl.UInt64(),  # digest of the operator (or the kernel's name) and its input shapes
        "step": pl.Int64(),
        "kernel": pl.UInt64(),  # digest of the kernel's name and those shapes
        "calls": pl.Int64(),  # calls of the operator whose first kernel this is: their sum over kernels is all calls
        "count": pl.Int64(),  # launches of the kernel
        "ns": pl.Int64(),  # sum of their durations
    }
)
STEP_LATENESS = pl.Schema(
    {
        "step": pl.Int64(),
        "span_ns": pl.Int64(),
        "start_ns": pl.Int64(),  # of the first GPU event, on the rank's own clock
        "launch_ns": pl.Int64(),  # launch of that event
        "follows": pl.Boolean(),  # the step before it was recorded too, and so the gap between the two
        "compute_ns": pl.Int64(),  # union of compute
        "host_late_ns": pl.Int64(),  # GPU empty until the host launched the next event, also before the step
        "copy_ns": pl.Int64(),  # GPU did nothing but copy to or from the host, also before the step's first work
    }
)
TOKENS = pl.Schema({"step": pl.Int64(), "microbatch": pl.Int64(), "tokens": pl.Int64()})


@dataclass(frozen=True, eq=False)
class LatenessTables:
    """Figures of one rank, by step."""

    kernels: pl.DataFrame = field(default_factory=KERNEL_TIMES.to_frame)
    """Compute kernels (``KERNEL_TIMES``); empty if input shapes were not recorded."""
    steps: pl.DataFrame = field(default_factory=STEP_LATENESS.to_frame)
    tokens: pl.DataFrame = field(default_factory=TOKENS.to_frame)
    """Tokens by step and micro-batch, from the calls of the token embedding; empty where there are
    none."""


def measure_lateness(
    events: pl.DataFrame,
    gpu_events: pl.DataFrame,
    steps: pl.DataFrame,
    idle_gaps: pl.DataFrame,
    compute_ns: Ints,
    *,
    texts: CategoryColumns | None = None,
) -> LatenessTables:
    """Measure one rank.

    Args:
        events: All its events.
        gpu_events: Labelled GPU events of the selected steps, with ``part``.
        steps: Its steps (``align.steps.STEPS``); ``part`` counts them from 0.
        idle_gaps: Idle gaps of the whole window (``metrics.budget.GAPS``).
        compute_ns: Union of compute by part.
        texts: Text columns of *gpu_events*, if they were converted already.

    """
    texts = texts or CategoryColumns(gpu_events)
    return LatenessTables(
        _kernel_times(gpu_events, steps, texts),
        _step_lateness(
            gpu_events, steps, idle_gaps, compute_ns, _copies_with_host(gpu_events, texts)
        ),
        _tokens(events, steps),
    )


def _kernel_times(
    gpu_events: pl.DataFrame, steps: pl.DataFrame, texts: CategoryColumns
) -> pl.DataFrame:
    """Return ``KERNEL_TIMES``.

    Kernels are told apart by their operator where it is known: for the same operator and shapes a
    library may choose other kernels on another GPU, and more of them.
    """
    event_rows = np.flatnonzero(has_label(label_codes(gpu_events), COMPUTE_SET))
    # From here on a row is a compute kernel, in the order of *event_rows*.
    name = texts["name"].take(event_rows)
    shapes = texts["shapes"].take(event_rows)
    if not shapes.present.any():
        return KERNEL_TIMES.to_frame()
    op = texts["op"].take(event_rows).fill(name)
    part = to_int64(gpu_events["part"])[event_rows]
    start_ns = gpu_events["start_ns"].to_numpy()[event_rows]
    end_ns = gpu_events["end_ns"].to_numpy()[event_rows]
    # The same operator on the same shapes in a step is one work, and each kernel in it one group.
    work_of_row, _ = group_rows(op.codes, shapes.codes, part)
    group_of_row, first_row_of_group = group_rows(work_of_row, name.codes)
    first_row_of_call = _first_rows_of_calls(work_of_row, gpu_events, event_rows)
    shape_texts = shapes.take(first_row_of_group).strings()
    return pl.DataFrame(
        {
            "key": _digests(op.take(first_row_of_group).strings(), shape_texts),
            "step": steps["step"].gather(part[first_row_of_group]),
            "kernel": _digests(name.take(first_row_of_group).strings(), shape_texts),
            # A call counts for the group of its first kernel alone.
            "calls": np.bincount(
                group_of_row[first_row_of_call], minlength=len(first_row_of_group)
            ),
            "count": np.bincount(group_of_row),
            "ns": np.bincount(group_of_row, end_ns - start_ns).astype(np.int64),
        },
        schema=KERNEL_TIMES,
    )


def _first_rows_of_calls(work_of_row: Ints, gpu_events: pl.DataFrame, event_rows: Ints) -> Ints:
    """Return the first row of each call of an operator; a kernel without a call is one of its own."""
    call = to_int64(gpu_events["op_id"], -1)[event_rows]
    # Its row of the table, as a negative number, stands for the call that is not known.
    call_or_row = np.where(call < 0, -1 - event_rows, call)
    return group_rows(work_of_row, call_or_row)[1]


def _digests(names: Sequence[str | None], shapes: Sequence[str | None]) -> list[int]:
    """Return a digest of each name with its shapes."""
    pairs = zip(names, shapes, strict=True)
    return [_digest(f"{name}\0{shape}") for name, shape in pairs]


def _digest(text: str) -> int:
    """Return 64 bits that are the same in every process, so that tables of ranks can be joined without the text."""
    return int.from_bytes(
        hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest(), "little"
    )


def _copies_with_host(gpu_events: pl.DataFrame, texts: CategoryColumns) -> Bools:
    """Return which GPU events copy to or from the host."""
    is_copy = texts["kind"].any_of("memcpy")
    names = texts["name"]
    return is_copy & (names.matches(COPY_DIRECTIONS["d2h"]) | names.matches(COPY_DIRECTIONS["h2d"]))


def _step_lateness(
    gpu_events: pl.DataFrame,
    steps: pl.DataFrame,
    idle_gaps: pl.DataFrame,
    compute_ns: Ints,
    is_host_copy: Bools,
) -> pl.DataFrame:
    """Return ``STEP_LATENESS``.

    What a host does between two steps, such as writing a checkpoint, delays the second one: idle
    time and copies count for the step of the next event that is no copy.
    """
    if gpu_events.is_empty():
        return STEP_LATENESS.to_frame()
    part = to_int64(gpu_events["part"])
    start = gpu_events["start_ns"].to_numpy()
    order = np.lexsort((start, part))
    first_event = order[SortedGroups.of(part[order]).first]
    number = to_int64(steps["step"])
    follows = np.diff(number, prepend=number[0] - 2) == 1
    # A gap belongs to the step of the event that ends it. One that begins before a recorded step's
    # neighbour is known to be idle time only if nothing was left out between the two.
    next_event = idle_gaps["next"].to_numpy()
    late = (idle_gaps["launch_bound_ns"] + idle_gaps["warm_up_ns"]).to_numpy()
    crosses = (start[next_event] == start[first_event][part[next_event]]) & ~follows[
        part[next_event]
    ]
    work = _Work.of(start[~is_host_copy], part[~is_host_copy], follows)
    gap_part = work.delayed_part(start[next_event], part[next_event])
    host_late = np.bincount(gap_part, np.where(crosses, 0, late), minlength=len(steps))
    end = gpu_events["end_ns"].to_numpy()
    copied = union(start[is_host_copy], end[is_host_copy])
    copying = copied - union(start[~is_host_copy], end[~is_host_copy])
    copies = np.flatnonzero(is_host_copy)
    copies = copies[np.argsort(start[copies], kind="stable")]
    own_copy = copies[np.searchsorted(start[copies], copying.start_ns, side="right") - 1]
    copy_part = work.delayed_part(copying.start_ns, part[own_copy])
    copy_ns = np.bincount(copy_part, copying.end_ns - copying.start_ns, minlength=len(steps))
    return pl.DataFrame(
        {
            "step": steps["step"],
            "span_ns": steps["span_ns"],
            "start_ns": start[first_event],
            "launch_ns": gpu_events["launch_ns"].gather(first_event),
            "follows": follows,
            "compute_ns": compute_ns,
            "host_late_ns": host_late.astype(np.int64),
            "copy_ns": copy_ns.astype(np.int64),
        },
        schema=STEP_LATENESS,
    )


@dataclass(frozen=True)
class _Work:
    """GPU events that are no copies to or from the host, in order of start."""

    start: Ints
    part: Ints
    follows: Bools
    """By part: the step before it was recorded too."""

    @classmethod
    def of(cls, start: Ints, part: Ints, follows: Bools) -> "_Work":
        order = np.argsort(start, kind="stable")
        return cls(start[order], part[order], follows)

    def delayed_part(self, time_ns: Ints, own_part: Ints) -> Ints:
        """Return the part of the first work from each time on, if that is the step after the own part.

        Else the own part: there is no work, or steps between the two were left out.
        """
        if not len(self.start):
            return own_part
        position = np.searchsorted(self.start, time_ns)
        next_part = self.part[np.minimum(position, len(self.start) - 1)]
        is_next_step = (next_part == own_part + 1) & self.follows[next_part]
        return np.where((position < len(self.start)) & is_next_step, next_part, own_part)


def _tokens(events: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return the tokens of each call of the largest embedding table, in the order of calls."""
    is_call = (
        (events["kind"] == "cpu_op")
        & (events["name"] == "aten::embedding")
        & events["shapes"].is_not_null()
    )
    calls = events.select("step", "start_ns", "shapes").filter(is_call).sort("start_ns")
    sizes = []
    for shapes in calls["shapes"].cast(pl.String).unique().to_list():
        sizes.append((shapes, *_embedding_size(shapes)))
    columns = {"shapes": pl.String, "vocabulary": pl.Int64, "tokens": pl.Int64}
    size_of_shapes = pl.DataFrame(sizes, schema=columns, orient="row")
    sized = calls.with_columns(pl.col("shapes").cast(pl.String)).join(
        size_of_shapes, on="shapes", maintain_order="left"
    )
    is_largest_table = pl.col("vocabulary") == pl.col("vocabulary").max()
    is_of_step = pl.col("step").is_in(steps["step"].implode(), nulls_equal=True)
    counted = sized.filter(is_largest_table & (pl.col("tokens") > 0) & is_of_step)
    numbered = counted.select("step", "tokens")
    return conform(numbered.with_columns(microbatch=pl.int_range(pl.len()).over("step")), TOKENS)


def _embedding_size(text: str) -> tuple[int, int]:
    """Return the rows of an embedding's table and the number of its indices.

    0 where the shapes do not tell.

    >>> _embedding_size("[[8192,2048],[2,1536],[],[],[]]")
    (8192, 3072)
    """
    shapes = parse_list(text)
    if len(shapes) < 2 or not is_shape(shapes[0]) or not is_shape(shapes[1]) or not shapes[0]:
        return 0, 0
    return shapes[0][0], prod(shapes[1])
