"""Steps of GPU events, and the time of each step on its rank.

A step on a rank runs from the start of the first to the end of the last GPU event launched in it. The parsers stamp
each event with the step whose mark contains its launch. Without marks, a forward launched after a backward and an
optimizer begins the next step; where there is no optimizer either, the whole trace is one step, whose number is null.
Time between two steps belongs to the window, to no step. Whatever counts by step (budget, pipeline, gate) takes this
one answer.
"""

import re
from collections.abc import Iterable, Mapping

import numpy as np
import polars as pl

from tracekit._util.columns import to_int64
from tracekit._util.text import listing
from tracekit.errors import Notice, OptionError
from tracekit.schema import conform

_NUMBERS = ("step", "start_ns", "end_ns", "span_ns", "events")
STEPS = pl.Schema({**dict.fromkeys(_NUMBERS, pl.Int64()), "partial": pl.Boolean()})


_BACKWARD = ("dgrad", "wgrad", "backward", "recompute")

Steps = str | int | slice | Iterable[int]
"""Which steps: in the words of the command line, or as Python has them."""


def parse_steps(asked: Steps) -> str:
    """Return a selection of steps, checked, in its plain form.

    ``3`` is step 3, ``2:4`` steps 2 and 3 (as a Python slice: the end is left out), ``1:`` all from 1,
    ``:-1`` all but the last recorded one; commas join several.

    >>> parse_steps(" 2:4, 7")
    '2:4,7'
    >>> parse_steps(3), parse_steps([2, 5]), parse_steps(slice(2, 4))
    ('3', '2,5', '2:4')
    >>> parse_steps("two")
    Traceback (most recent call last):
    tracekit.errors.OptionError: steps: cannot read 'two' (write 3, 2:4, 1:, :-1 or 2,5)
    """
    parts = [part.strip() for part in _as_text(asked).split(",")]
    for part in parts:
        if not re.fullmatch(r"-?\d+(:(-?\d+)?)?|:-?\d+", part):
            raise OptionError(f"steps: cannot read {part!r}", hint="write 3, 2:4, 1:, :-1 or 2,5")
    return ",".join(parts)


def _as_text(asked: Steps) -> str:
    if isinstance(asked, str | int):
        return str(asked)
    if isinstance(asked, slice):
        if asked.step not in (None, 1):
            raise OptionError(f"steps: {asked} leaves steps out", hint="name the steps one by one: [2, 4, 6]")
        return ":".join("" if end is None else str(end) for end in (asked.start, asked.stop))
    return ",".join(map(str, asked))


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
            low, high = (_number(end, present) for end in part.split(":"))
            chosen |= {s for s in present if (low is None or s >= low) and (high is None or s < high)}
        else:
            chosen |= {_number(part, present)} & set(present)  # type: ignore[arg-type]
    if not chosen:
        present_steps = listing(map(str, present), most=12)
        hint = f"the trace has steps {present_steps}" if present else "the trace has no step marks: leave --steps out"
        raise OptionError(f"steps: {text} selects none", hint=hint)
    return sorted(chosen)


def _number(text: str, present: list[int]) -> int | None:
    if not text:
        return None
    value = int(text)
    if value >= 0 or not present:
        return value
    return present[max(len(present) + value, 0)]


def number_steps(labelled: pl.DataFrame) -> tuple[pl.DataFrame, list[Notice]]:
    """Return one rank's labelled events with their steps; without step marks, separated by its optimizer.

    Gradients may be scaled, stage by stage, while others still run backwards: that is not the end of a step yet.

    >>> labels = ["forward", "dgrad", "optimizer", "optimizer", "forward"]
    >>> events = pl.DataFrame({"label": labels, "start_ns": range(5), "launch_ns": range(5)})
    >>> numbered, (notice,) = number_steps(events.with_columns(step=pl.lit(None, pl.Int64)))
    >>> numbered["step"].to_list(), notice.message
    ([0, 0, 0, 0, 1], 'there are no step marks: 2 steps are told apart by their optimizer')
    """
    if labelled.is_empty() or labelled["step"].null_count() < len(labelled):
        return labelled, []
    # A GPU can run seconds behind its host, so a start is no launch. Where launches are recorded, an event without one
    # was launched before the recording began, or is placed in the step around it (``assign_parts``).
    launched = labelled["launch_ns"].is_not_null().to_numpy()
    column = "launch_ns" if launched.any() else "start_ns"
    order = labelled.select(pl.arg_sort_by(column, nulls_last=True)).to_series().to_numpy()
    order = order[: launched.sum() or len(order)]
    label = labelled["label"].cast(pl.String)
    forward, update = ((label == name).to_numpy()[order] for name in ("forward", "optimizer"))
    backward = label.is_in(_BACKWARD).to_numpy()[order]
    marked = np.flatnonzero(forward | backward | update)
    begins = marked[:-1][update[marked[:-1]] & forward[marked[1:]]] + 1
    # The optimizer runs after a backward, unless the recording begins with it: kernels of its kind between two forwards
    # copy what is gathered.
    follows_backward = np.diff(np.cumsum(backward)[begins], prepend=0) > 0
    recording_begins = np.cumsum(forward)[begins - 1] == 0
    number = np.zeros(len(order), np.int64)
    number[begins[follows_backward | recording_begins]] = 1
    number = np.cumsum(number)
    last = int(number[forward | backward].max(initial=0))
    if last == 0:
        return labelled, []
    steps = pl.Series([None] * len(labelled), dtype=pl.Int64).scatter(order, number)
    text = f"there are no step marks: {last + 1} steps are told apart by their optimizer"
    return labelled.with_columns(step=steps), [Notice("steps-by-optimizer", text)]


def step_times(spans: Mapping[int, Mapping[int | None, int]]) -> dict[int | None, tuple[int, int]]:
    """Return, for each step that every rank has, how long it took on its slowest rank, and which that is.

    *spans* gives each rank's spans by step, in nanoseconds.

    >>> step_times({0: {2: 90, 3: 80}, 1: {2: 70, 3: 95, 4: 10}})
    {2: (90, 0), 3: (95, 1)}
    """
    if not spans:
        return {}
    common = set.intersection(*(set(of) for of in spans.values()))
    ordered = sorted(common, key=lambda step: (step is None, step or 0))
    return {step: max((of[step], rank) for rank, of in spans.items()) for step in ordered}


def assign_parts(labelled: pl.DataFrame, steps: str | None = None) -> tuple[pl.DataFrame, pl.DataFrame, list[Notice]]:
    """Return the GPU events of the steps asked for, numbered by ``part``, and the STEPS table.

    An event whose launch the file lacks (a CUDA graph's kernels, say) joins the step that was running when it
    started; one launched outside every step is left out, and a notice says how much that was.

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
        whole = labelled.with_columns(part=pl.lit(0, pl.Int64))
        return whole, _table(whole, []), notices
    placed = _place_unlaunched(labelled)
    outside = placed.filter(pl.col("step").is_null())
    if len(outside):
        busy = int((outside["end_ns"] - outside["start_ns"]).sum())
        text = f"{len(outside)} GPU events ({busy / 1e6:.3f} ms) were launched outside every step: not counted"
        notices.append(Notice("outside-steps", text))
    chosen = select_steps(present, steps)
    number = to_int64(placed["step"], min(chosen) - 1)
    part = np.minimum(np.searchsorted(chosen, number), len(chosen) - 1)
    is_chosen = np.array(chosen, np.int64)[part] == number
    kept = placed.with_columns(pl.Series("part", part))
    kept = kept if is_chosen.all() else kept.filter(pl.Series(is_chosen))  # else nothing need be moved
    return kept, _table(kept, present), notices


def _place_unlaunched(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return the events; those with neither step nor launch get the step whose GPU work surrounds their start."""
    lost = pl.col("step").is_null() & pl.col("launch_ns").is_null()
    if not labelled.select(lost.any()).item():
        return labelled
    spans = (
        labelled.filter(pl.col("step").is_not_null())
        .group_by(surrounding="step")
        .agg(pl.col("start_ns").min(), until=pl.col("end_ns").max())
        .sort("start_ns")
    )
    is_inside = lost & (pl.col("start_ns") < pl.col("until"))
    return (
        labelled.with_row_index("_row")
        .sort("start_ns")
        .join_asof(spans, on="start_ns", strategy="backward")
        .with_columns(step=pl.when(is_inside).then("surrounding").otherwise("step"))
        .sort("_row")
        .drop("_row", "surrounding", "until")
    )


def _table(kept: pl.DataFrame, present: list[int]) -> pl.DataFrame:
    """Return the STEPS table; a first or last recorded step with under half the usual events is partial."""
    table = kept.group_by("part").agg(
        pl.col("step").first(), pl.col("start_ns").min(), pl.col("end_ns").max(), events=pl.len().cast(pl.Int64)
    )
    table = table.sort("part").with_columns(span_ns=pl.col("end_ns") - pl.col("start_ns"))
    at_edge = pl.col("step").is_in(present[:1] + present[-1:]) if present else pl.lit(False)
    few = pl.col("events") * 2 < pl.col("events").median() if len(table) > 2 else pl.lit(False)
    return conform(table.with_columns(partial=at_edge & few), STEPS)
