"""Steps of GPU events, and the time of each step on its rank.

The *span* of a step on a rank runs from the start of the first to the end of the last GPU event
launched in it. The parsers stamp each event with the step whose mark contains its launch. Without
marks, a forward launched after a backward and an optimizer begins the next step; where there is no
optimizer either, the whole trace is one step, whose number is null.

The *step time* on a rank is what a training log says. A step begins when the host has begun it and
the GPU has finished the work before it, at its first GPU work at the latest, and ends where the next
one begins: steps follow each other without gaps and never overlap, and waiting for a batch belongs
to the step that waits for it. Where the host is the limit these are the host's own marks, where it
runs ahead of the GPU the GPU's; of the first recorded step that is seen at its end
(``add_step_intervals``). The last one, and a single one, ends when both the GPU work that was launched in
it and its host range have ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Int32s, Ints
from tracekit._util.columns import to_int64
from tracekit._util.text import counted, listing, ms, short_ms, verb
from tracekit.errors import Notice, NoticeValues, OptionError, Severity
from tracekit.schema import GPU_KINDS, conform

STEPS = pl.Schema(
    {
        "step": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "span_ns": pl.Int64(),
        "events": pl.Int64(),
        "partial": pl.Boolean(),
        "host_start_ns": pl.Int64(),  # when the host was in the step; null if that is not recorded
        "host_end_ns": pl.Int64(),
        "interval_start_ns": pl.Int64(),  # what the step time counts
        "interval_end_ns": pl.Int64(),
        "time_ns": pl.Int64(),  # the step time; null for a step that would end before it starts
    }
)
STEP_HOST_RANGES = pl.Schema(
    {"step": pl.Int64(), "host_start_ns": pl.Int64(), "host_end_ns": pl.Int64()}
)
"""When the host was in each step."""

MIN_IDLE_OF_HOST_LIMIT_NS = 20_000
"""Idle time of the GPU between two steps from which it waits for the host: a GPU with work in its queue
goes from one kernel to the next in a few µs."""
MAX_LAG_OF_HOST_LIMIT = 0.02
"""Work that the GPU still has from a step when the host begins the next one, as a share of the host's time
for the step, up to which the GPU has caught up: a kernel or two run over the mark."""
UNKNOWN_TIME = np.iinfo(np.int64).min
"""Instead of a time that is not recorded: earlier than any."""
NO_STEP = -2
"""Instead of the number of a step that has none: follows none, and none follows it."""
_HOST_CALL_KINDS = ("cpu_op", "runtime", "driver")
"""What of the host's work is a call: of an operator, or of the GPU's library."""
_BACKWARD = ("dgrad", "wgrad", "backward", "recompute")

Steps = str | int | slice | Iterable[int]
"""Which steps: in the words of the command line, or as Python has them."""


def parse_steps(selection: Steps) -> str:
    """Return a selection of steps, checked, in its plain form.

    ``3`` is step 3, ``2:4`` steps 2 and 3 (as a Python slice: the end is left out), ``1:`` all from
    1, ``:-1`` all but the last recorded one; commas join several.

    >>> parse_steps(" 2:4, 7")
    '2:4,7'
    >>> parse_steps(3), parse_steps([2, 5]), parse_steps(slice(2, 4))
    ('3', '2,5', '2:4')
    >>> parse_steps("two")
    Traceback (most recent call last):
    tracekit.errors.OptionError: steps: cannot read 'two' (write 3, 2:4, 1:, :-1 or 2,5)
    """
    parts = [part.strip() for part in _as_text(selection).split(",")]
    for part in parts:
        if not re.fullmatch(r"-?\d{1,18}(:(-?\d{1,18})?)?|:-?\d{1,18}", part):
            raise OptionError(
                f"steps: cannot read {part[:100]!r}", hint="write 3, 2:4, 1:, :-1 or 2,5"
            )
    return ",".join(parts)


def _as_text(selection: object) -> str:
    if isinstance(selection, str | int):
        return str(selection)
    if isinstance(selection, slice):
        if selection.step not in (None, 1):
            raise OptionError(
                f"steps: {selection} leaves steps out", hint="name the steps one by one: [2, 4, 6]"
            )
        first = "" if selection.start is None else selection.start
        end = "" if selection.stop is None else selection.stop
        return f"{first}:{end}"
    if not isinstance(selection, Iterable):
        return repr(selection)  # which no selection of steps is
    return ",".join(map(str, selection))


def select_steps(present: list[int], text: str | None) -> list[int]:
    """Return the steps asked for that are there, in order.

    >>> select_steps([1, 2, 3, 4], "2:4")
    [2, 3]
    >>> select_steps([1, 2, 3, 4], ":-1")
    [1, 2, 3]
    >>> select_steps([5, 6], "9")
    Traceback (most recent call last):
    tracekit.errors.OptionError: steps: 9 selects none (the trace has steps 5, 6)
    """
    if text is None:
        return present
    chosen: set[int] = set()
    for part in parse_steps(text).split(","):
        if ":" in part:
            first, end = part.split(":")
            chosen |= _steps_between(_number(first, present), _number(end, present), present)
        else:
            chosen |= {_number(part, present)} & set(present)  # type: ignore[arg-type]
    if not chosen:
        present_steps = listing(map(str, present), most=12)
        hint = f"the trace has steps {present_steps}"
        if not present:
            hint = "the trace has no step marks: leave --steps out"
        raise OptionError(f"steps: {text} selects none", hint=hint)
    return sorted(chosen)


def _steps_between(first: int | None, end: int | None, present: list[int]) -> set[int]:
    """Return the steps from *first* on and before *end*; None leaves that side open."""
    chosen = set(present)
    if first is not None:
        chosen = {step for step in chosen if step >= first}
    if end is not None:
        chosen = {step for step in chosen if step < end}
    return chosen


def _number(text: str, present: list[int]) -> int | None:
    if not text:
        return None
    value = int(text)
    if value >= 0 or not present:
        return value
    return present[max(len(present) + value, 0)]


def number_steps(labelled: pl.DataFrame) -> tuple[pl.DataFrame, list[Notice]]:
    """Return one rank's labelled events with their steps.

    Without step marks, separated by its optimizer.

    Gradients may be scaled, stage by stage, while others still run backwards: that is not the end
    of a step yet.

    >>> labels = ["forward", "dgrad", "optimizer", "optimizer", "forward"]
    >>> events = pl.DataFrame({"label": labels, "start_ns": range(5), "launch_ns": range(5)})
    >>> numbered, (notice,) = number_steps(events.with_columns(step=pl.lit(None, pl.Int64)))
    >>> numbered["step"].to_list(), notice.code, notice.values
    ([0, 0, 0, 0, 1], 'no-steps', {'case': 'by_optimizer', 'steps': 2})
    """
    if labelled.is_empty() or labelled["step"].null_count() < len(labelled):
        return labelled, []
    # A GPU can run seconds behind its host, so a start is no launch. Where launches are recorded,
    # an event without one was launched before the recording began, or is placed in the step around
    # it (``assign_parts``).
    launched = labelled["launch_ns"].is_not_null().to_numpy()
    column = "launch_ns" if launched.any() else "start_ns"
    order = labelled.select(pl.arg_sort_by(column, nulls_last=True)).to_series().to_numpy()
    order = order[: launched.sum() or len(order)]
    label = labelled["label"].cast(pl.String)
    forward = (label == "forward").to_numpy()[order]
    update = (label == "optimizer").to_numpy()[order]
    backward = label.is_in(_BACKWARD).to_numpy()[order]
    marked = np.flatnonzero(forward | backward | update)
    begins = marked[:-1][update[marked[:-1]] & forward[marked[1:]]] + 1
    # The optimizer runs after a backward, unless the recording begins with it: kernels of its kind
    # between two forwards copy what is gathered.
    follows_backward = np.diff(np.cumsum(backward)[begins], prepend=0) > 0
    recording_begins = np.cumsum(forward)[begins - 1] == 0
    number = np.zeros(len(order), np.int64)
    number[begins[follows_backward | recording_begins]] = 1
    number = np.cumsum(number)
    last = int(number[forward | backward].max(initial=0))
    if last == 0:
        return labelled, []
    steps = pl.Series([None] * len(labelled), dtype=pl.Int64).scatter(order, number)
    return labelled.with_columns(step=steps), [
        Notice(
            "no-steps",
            (f"{last + 1} steps are told apart by their optimizer: there are no step marks"),
            values={"case": "by_optimizer", "steps": last + 1},
        )
    ]


def host_ranges(events: pl.DataFrame) -> pl.DataFrame:
    """Return when the host was in each step (``STEP_HOST_RANGES``), from the events of one rank.

    A range ends where its mark ends, or where the next one begins: work of another thread may run on, and a range
    that was begun in the last step may end when the profiler has stopped. What the host does behind the last call of
    the last step counts for as long as it usually takes in the steps before: the rest is the end of the recording.

    >>> rows = [("annotation", 4, 0, 9), ("cpu_op", 4, 5, 14), ("annotation", 5, 10, 19), ("annotation", 5, 18, 90)]
    >>> events = pl.DataFrame(rows, schema=["kind", "step", "start_ns", "end_ns"], orient="row")
    >>> host_ranges(events).rows()
    [(4, 0, 10), (5, 10, 19)]
    """
    is_host = pl.col("step").is_not_null() & ~pl.col("kind").is_in([*GPU_KINDS, "gpu_annotation"])
    is_mark = (pl.col("kind") == "annotation") & (pl.col("start_ns") == pl.col("start_ns").min())
    is_call = pl.col("kind").is_in(_HOST_CALL_KINDS)
    ranges = (
        events.lazy()
        .filter(is_host)
        .group_by("step")
        .agg(
            host_start_ns=pl.col("start_ns").min(),
            host_end_ns=pl.col("end_ns").max(),
            mark_end_ns=pl.col("end_ns").filter(is_mark).max(),
            last_call_end_ns=pl.col("end_ns").filter(is_call).max(),
        )
        .sort("host_start_ns")
        .collect()
    )
    next_start = pl.col("host_start_ns").shift(-1)
    after_calls_ns = (next_start - pl.col("last_call_end_ns")).clip(lower_bound=0).median()
    end_of_last = pl.min_horizontal(
        "host_end_ns", "mark_end_ns", pl.col("last_call_end_ns") + after_calls_ns.cast(pl.Int64)
    )
    host_end = pl.when(next_start.is_null()).then(end_of_last)
    return ranges.select(
        "step",
        "host_start_ns",
        host_end_ns=host_end.otherwise(pl.min_horizontal("host_end_ns", next_start)),
    ).sort("step")


def add_step_intervals(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the steps with the interval that the step time of each counts, and with that time.

    Args:
        steps: All recorded steps, with ``rank``, ``step``, ``start_ns`` and ``end_ns`` of the GPU
            work launched in each, and ``host_start_ns`` and ``host_end_ns`` (null where the host's
            range is not known).

    Returns:
        The same rows with ``interval_start_ns``, ``interval_end_ns`` and ``time_ns``, which is null
        for a step that would end before it starts (steps that are marked one inside the other,
        say). Intervals of a rank are disjoint.

    >>> steps = pl.DataFrame({"rank": [0, 0, 0], "step": [4, 5, 6], "start_ns": [10, 30, 50], "end_ns": [20, 40, 60],
    ...                       "host_start_ns": [5, 21, 45], "host_end_ns": [21, 45, 70]})
    >>> add_step_intervals(steps)["time_ns"].to_list()
    [16, 24, 25]
    >>> add_step_intervals(steps.head(1))["time_ns"].to_list()
    [16]
    """
    ordered = steps.sort("rank", "step", nulls_last=True)
    rows = StepRows.of(ordered["rank"].to_numpy(), to_int64(ordered["step"], NO_STEP))
    begin, end = step_intervals(
        rows,
        ordered["start_ns"].to_numpy(),
        ordered["end_ns"].to_numpy(),
        to_int64(ordered["host_start_ns"], UNKNOWN_TIME),
        to_int64(ordered["host_end_ns"], UNKNOWN_TIME),
    )
    return ordered.hstack(interval_columns(begin, end))


class StepRows(NamedTuple):
    """Which rows belong together, where each is a step of a rank, sorted by rank and step."""

    first: Ints
    """The first row of each rank."""
    is_same_rank: Bools
    """Of each row but the last: whether the row after it is of the same rank."""
    is_next: Bools
    """The same: whether it is the step after it on that rank."""

    @classmethod
    def of(cls, rank: Ints | Int32s, step: Ints) -> StepRows:
        """Return how rows belong together whose ranks and numbers of steps these are."""
        is_same_rank = rank[1:] == rank[:-1]
        is_next = is_same_rank & (step[1:] == step[:-1] + 1)
        first = np.flatnonzero(np.insert(~is_same_rank, 0, True)[: len(rank)])
        return cls(first, is_same_rank, is_next)


def step_intervals(
    rows: StepRows, start: Ints, end: Ints, mark: Ints, host_end: Ints
) -> tuple[Ints, Ints]:
    """Return when the interval of each step begins and ends (``add_step_intervals``).

    *start* and *end* are of the GPU work launched in each step, *mark* and *host_end* of its host
    range: ``UNKNOWN_TIME`` where that is not recorded.
    """
    if not len(start):
        return start, end
    is_followed = np.append(rows.is_next, False)
    is_preceded = np.insert(rows.is_next, 0, False)
    has_mark = mark != UNKNOWN_TIME
    work_end = np.maximum(end, host_end)
    gpu_end = _highest_so_far(end, rows.first)
    gpu_end_before = _before(gpu_end, rows)
    work_end_before = _before(_highest_so_far(work_end, rows.first), rows)

    # A step that follows no recorded one: its GPU may still be behind with work launched before. If it
    # has caught up when the next step begins, as when most others of the rank do, the host is the limit,
    # and the step begins with its mark; else with its first GPU work. A single step begins with its mark.
    idle_before_next_ns = start[1:] - gpu_end[:-1]
    has_both_marks = has_mark[1:] & has_mark[:-1]
    host_ns = np.where(has_both_marks, mark[1:] - np.where(has_both_marks, mark[:-1], 0), 0)
    lag_ns = gpu_end[:-1] - np.where(has_both_marks, mark[1:], 0)
    is_up_to_host = has_both_marks & (lag_ns <= MAX_LAG_OF_HOST_LIMIT * host_ns)
    is_caught_up = (idle_before_next_ns >= MIN_IDLE_OF_HOST_LIMIT_NS) | is_up_to_host
    has_caught_up = is_followed & np.append(is_caught_up, False)
    is_host_limited = _is_usual(has_caught_up, is_followed, rows.first)
    begins_by_mark = has_mark & (~is_followed | (has_caught_up & is_host_limited))
    first_begin = np.where(begins_by_mark, np.minimum(start, mark), start)
    # Any other begins when its host has begun it and the GPU has ended the work before it.
    begin = np.where(has_mark, np.minimum(start, np.maximum(mark, gpu_end_before)), start)
    begin = np.where(is_preceded, begin, np.maximum(first_begin, work_end_before))
    begin = _highest_so_far(begin, rows.first)
    next_begin = np.append(begin[1:], UNKNOWN_TIME)
    return begin, np.where(is_followed, next_begin, work_end)


def _is_usual(holds: Bools, counts: Bools, first: Ints) -> Bools:
    """Return for each row whether *holds* is true of half the rows of its rank or more that count.

    >>> _is_usual(np.array([True, False, False, True]), np.array([True, True, True, True]), np.array([0, 3]))
    array([False, False, False,  True])
    """
    holding_rows = np.add.reduceat(holds.astype(np.int64), first)
    counting_rows = np.add.reduceat(counts.astype(np.int64), first)
    return np.repeat(2 * holding_rows >= counting_rows, np.diff(first, append=len(holds)))


def interval_columns(begin: Ints, end: Ints) -> pl.DataFrame:
    """Return the columns that ``add_step_intervals`` adds."""
    length_ns = pl.Series("time_ns", end - begin)
    return pl.DataFrame(
        {
            "interval_start_ns": begin,
            "interval_end_ns": end,
            "time_ns": length_ns.set(length_ns <= 0, None),
        }
    )


def _highest_so_far(values: Ints, first: Ints) -> Ints:
    """Return for each row the highest value of its rank up to it; *first* are the first rows of the ranks.

    >>> _highest_so_far(np.array([3, 1, 5, 2, 4]), np.array([0, 3]))
    array([3, 3, 5, 2, 4])
    """
    highest = np.empty_like(values)
    for begin, stop in pairwise([*first.tolist(), len(values)]):
        np.maximum.accumulate(values[begin:stop], out=highest[begin:stop])
    return highest


def _before(values: Ints, rows: StepRows) -> Ints:
    """Return for each row the value of the row before it on its rank; ``UNKNOWN_TIME`` for the first."""
    return np.insert(np.where(rows.is_same_rank, values[:-1], UNKNOWN_TIME), 0, UNKNOWN_TIME)


def _amount(events: pl.DataFrame) -> NoticeValues:
    """Return how many events a notice is about, and how long they take together."""
    return {"events": len(events), "busy_ns": _busy_ns(events)}


MIN_OUTSIDE_SHARE_TO_WARN = 0.01
"""Share of the recorded GPU time, launched outside every step, from which it is worth a warning."""


def _severity(outside: pl.DataFrame, labelled: pl.DataFrame) -> Severity:
    """Return whether work *outside* every step is more than one could overlook."""
    is_much = _busy_ns(outside) >= MIN_OUTSIDE_SHARE_TO_WARN * _busy_ns(labelled)
    return "warning" if is_much else "note"


def _busy_ns(events: pl.DataFrame) -> int:
    return int((events["end_ns"] - events["start_ns"]).sum())


def assign_parts(
    labelled: pl.DataFrame, steps: str | None = None, *, host: pl.DataFrame | None = None
) -> tuple[pl.DataFrame, pl.DataFrame, list[Notice]]:
    """Return the GPU events of the steps asked for, numbered by ``part``, and the STEPS table.

    *host* are the host's ranges (``host_ranges``); without them only GPU work counts.

    An event whose launch the file lacks (a CUDA graph's kernels, say) joins the step that was
    running when it started; one launched outside every step is left out, and a notice says how much
    that was.

    >>> events = pl.DataFrame({"step": [1, 1, 2, None], "start_ns": [0, 4, 9, 5], "end_ns": [3, 8, 12, 6],
    ...                        "launch_ns": [0, 1, 2, None]})
    >>> kept, table, notices = assign_parts(events)
    >>> kept["part"].to_list()
    [0, 0, 1, 0]
    >>> table.select("step", "span_ns").rows()
    [(1, 8), (2, 3)]
    """
    notices: list[Notice] = []
    present = labelled["step"].drop_nulls().unique().sort().to_list()
    if not present:
        select_steps(present, steps)
        one_part = labelled.with_columns(part=pl.lit(0, pl.Int64))
        return one_part, _table(one_part, one_part, [], host), notices
    placed = _place_unlaunched(labelled)
    outside = placed.filter(pl.col("step").is_null())
    is_unlaunched = pl.col("launch_ns").is_null()
    first_start = placed.drop_nulls("step")["start_ns"].min()
    is_earlier = is_unlaunched & (pl.col("start_ns") < first_start)
    earlier = outside.filter(is_earlier)
    if len(earlier):
        message = (
            f"{counted(len(earlier), 'GPU event')} ({short_ms(_busy_ns(earlier))}), whose launch is not in the "
            "file, ran before the first step: counted in none"
        )
        values: NoticeValues = {"case": "before_first", **_amount(earlier)}
        notices.append(Notice("outside-steps", message, values=values, severity="note"))
    launched = outside.filter(~is_unlaunched)
    if len(launched):
        busy = ms(_busy_ns(launched), 3)
        were = verb(len(launched), "was", "were")
        events = counted(len(launched), "GPU event")
        message = f"{events} ({busy}) {were} launched outside every step: not counted"
        values = {"case": "launched", **_amount(launched)}
        notices.append(
            Notice("outside-steps", message, values=values, severity=_severity(launched, labelled))
        )
    between = outside.filter(is_unlaunched & ~is_earlier)
    if len(between):
        message = (
            f"{counted(len(between), 'GPU event')} ({short_ms(_busy_ns(between))}) ran between steps: not counted; "
            "their launch is not in the file"
        )
        values = {"case": "no_launch", **_amount(between)}
        notices.append(
            Notice("outside-steps", message, values=values, severity=_severity(between, labelled))
        )
    chosen = select_steps(present, steps)
    number = to_int64(placed["step"], min(chosen) - 1)
    part = np.minimum(np.searchsorted(chosen, number), len(chosen) - 1)
    is_chosen = np.array(chosen, np.int64)[part] == number
    kept = placed.with_columns(pl.Series("part", part))
    if not is_chosen.all():
        kept = kept.filter(pl.Series(is_chosen))
    return kept, _table(kept, placed, present, host), notices


MAX_DISTANCE_OF_UNLAUNCHED = 0.05
"""Largest distance of an event whose launch is not in the file from the GPU work of its step, in
steps."""


def _place_unlaunched(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return the events.

    Those with neither step nor launch get the step whose GPU work surrounds their start, or is
    nearest to it: the first and last events of a step may be among those whose launch is missing.
    """
    lost = pl.col("step").is_null() & pl.col("launch_ns").is_null()
    if not labelled.select(lost.any()).item():
        return labelled
    spans = (
        labelled.filter(pl.col("step").is_not_null())
        .group_by(surrounding="step")
        .agg(first_ns=pl.col("start_ns").min(), until=pl.col("end_ns").max())
        .sort("first_ns")
    )
    median_ns = spans.select((pl.col("until") - pl.col("first_ns")).median()).item()
    reach_ns = round(MAX_DISTANCE_OF_UNLAUNCHED * median_ns)
    # Between two steps, the middle divides what is near to both. What runs before the first one was
    # launched before the recording began.
    end_before = pl.col("until").shift(1)
    gap_ns = (pl.col("first_ns") - end_before).fill_null(0).clip(0, 2 * reach_ns)
    spans = spans.with_columns(start_ns=pl.col("first_ns") - gap_ns // 2).sort("start_ns")
    is_near = lost & (pl.col("start_ns") < pl.col("until") + reach_ns)
    return (
        labelled.with_row_index("_row")
        .sort("start_ns")
        .join_asof(spans, on="start_ns", strategy="backward")
        .with_columns(step=pl.when(is_near).then("surrounding").otherwise("step"))
        .sort("_row")
        .drop("_row", "surrounding", "until", "first_ns")
    )


def _table(
    kept: pl.DataFrame, recorded: pl.DataFrame, present: list[int], host: pl.DataFrame | None
) -> pl.DataFrame:
    """Return the STEPS table of the events *kept*.

    A first or last step with under half the usual events is partial.

    *recorded* are the events of all steps: the step after the last one asked for tells when that
    one ended.
    """
    table = kept.group_by("part").agg(
        pl.col("step").first(),
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        events=pl.len().cast(pl.Int64),
    )
    table = table.sort("part").with_columns(span_ns=pl.col("end_ns") - pl.col("start_ns"))
    at_edge = pl.col("step").is_in(present[:1] + present[-1:]) if present else pl.lit(False)
    few = pl.col("events") * 2 < pl.col("events").median() if len(table) > 2 else pl.lit(False)
    intervals = _intervals(recorded, table if len(table) == len(present) else None, host)
    timed = table.with_columns(partial=at_edge & few).join(
        intervals, on="step", how="left", nulls_equal=True, maintain_order="left"
    )
    return conform(timed, STEPS)


def _intervals(
    recorded: pl.DataFrame, table: pl.DataFrame | None, host: pl.DataFrame | None
) -> pl.DataFrame:
    """Return the intervals of all recorded steps.

    *table* holds their bounds, if all of them were asked for.
    """
    if table is None:
        is_counted = (
            pl.col("step").is_not_null()
            if recorded["step"].null_count() < len(recorded)
            else pl.lit(True)
        )
        bounds = (
            recorded.filter(is_counted)
            .group_by("step")
            .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
        )
    else:
        bounds = table.select("step", "start_ns", "end_ns")
    ranges = STEP_HOST_RANGES.to_frame() if host is None else host
    of_rank = bounds.join(ranges, on="step", how="left").with_columns(rank=pl.lit(0))
    if len(bounds) == 1:
        of_rank = _behind_earlier_work(of_rank, recorded)
    return add_step_intervals(of_rank).drop("rank", "start_ns", "end_ns")


def _behind_earlier_work(step: pl.DataFrame, recorded: pl.DataFrame) -> pl.DataFrame:
    """Return a single step whose host range begins when the GPU has ended the work of no step before it.

    What that work takes is no part of the step, though the host was in it already.

    >>> step = pl.DataFrame({"step": [3], "start_ns": [50], "end_ns": [80], "host_start_ns": [10]})
    >>> work = pl.DataFrame({"step": [None, 3], "start_ns": [0, 50], "end_ns": [40, 80]})
    >>> _behind_earlier_work(step, work)["host_start_ns"].item()
    40
    """
    first_ns = step["start_ns"].item()
    is_earlier = pl.col("step").is_null() & (pl.col("start_ns") < first_ns)
    end_ns = recorded.filter(is_earlier)["end_ns"].max()
    if end_ns is None or step["step"].item() is None:
        return step
    earlier_end = min(end_ns, first_ns)
    return step.with_columns(pl.col("host_start_ns").clip(lower_bound=earlier_end))
