"""Every GPU event of one rank, and the host's ranges, as compact columns for the page's timeline.

An event has its times and the number of its description; events with equal texts share a
description.
"""

from dataclasses import dataclass, field

import numpy as np
import polars as pl

from tracekit._util.arrays import group_rows
from tracekit._util.categories import CategoryColumn, CategoryColumns
from tracekit._util.columns import to_int64
from tracekit.analysis.measure.operators import input_words
from tracekit.metrics.causes import EVENT_CAUSES
from tracekit.schema import RankEvents, conform

MAX_HOST_RANGES = 50_000
"""Host ranges of one rank that are kept, the longest: about 0.4 MB in the page."""
MAX_RANKS_WITH_EVENTS = 64
"""Ranks of a run up to which single events are kept: at 100,000 events they take 4 MB a rank."""
MAX_TEXT_LETTERS = 300
"""Letters kept of a chain of operators or ranges; the innermost are at its end."""

DESCRIPTION_TEXTS = (
    *("name", "label", "pass", "module", "annotations", "chain", "rule"),
    *("source", "inputs"),
)
HOST_LANES = ("ranges", "Python", "operators", "waiting calls")
EVENT_TIMES = pl.Schema(
    {
        "id": pl.Int64(),  # as in EVENTS
        "start_ns": pl.Int64(),  # on the rank's own clock
        "end_ns": pl.Int64(),
        "launch_ns": pl.Int64(),  # null if the launch was not recorded
        "description": pl.UInt32(),  # row of the descriptions
    }
)
HOST_RANGES = pl.Schema(
    {
        "lane": pl.Enum(HOST_LANES),
        "thread": pl.Int64(),  # counted from 0 in order of the first range, over all lanes
        "name": pl.String(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
    }
)


@dataclass(frozen=True, eq=False)
class RankTimeline:
    """The events of one rank."""

    rank: int
    events: pl.DataFrame
    """``EVENT_TIMES``, sorted by start."""
    descriptions: pl.DataFrame
    """``DESCRIPTION_TEXTS`` and ``stream``; null where a text is unknown."""
    host: pl.DataFrame
    """``HOST_RANGES``, sorted by start, of equal starts the longest first: an inner range follows the one around it."""
    host_count: int
    """Host ranges before the shortest were left out."""
    causes: pl.DataFrame = field(default_factory=EVENT_CAUSES.to_frame)
    """Exposed time of each event by cause, by id (``metrics.causes.causes_by_event``)."""


def rank_timeline(
    rank: RankEvents,
    gpu_events: pl.DataFrame,
    waiting_calls: pl.DataFrame,
    frames: pl.DataFrame | None = None,
) -> RankTimeline:
    """Return the events of one rank for the page.

    Args:
        rank: All its events.
        gpu_events: Its labelled GPU events.
        waiting_calls: The host's calls that wait (``metrics.host.waiting_calls.WAITING_CALLS``).
        frames: Its Python frames, where stacks were read.

    >>> from tracekit.run.load import load
    >>> from tracekit.classify import classify
    >>> from tracekit.metrics.host.waiting_calls import WAITING_CALLS
    >>> part = load("sample_traces/reload", ranks=[0]).rank(0)
    >>> timeline = rank_timeline(part, classify(part.events), WAITING_CALLS.to_frame())
    >>> timeline.events.height > timeline.descriptions.height > 0
    True

    """
    gpu_events = gpu_events.sort("start_ns", maintain_order=True)
    texts = CategoryColumns(gpu_events)
    source_codes, source_names = _launching_lines(gpu_events, frames)
    stream = to_int64(gpu_events["stream"], -1)
    inputs = _inputs(texts)
    columns = [texts[name].codes for name in DESCRIPTION_TEXTS if name in gpu_events.columns]
    description, first_row = group_rows(*columns, source_codes, inputs.codes, stream)
    described = gpu_events[first_row]
    host, host_count = _host_ranges(rank.events, waiting_calls, frames)
    return RankTimeline(
        rank=rank.source.rank,
        events=gpu_events.with_columns(description=pl.Series(description)).select(
            pl.col(name).cast(dtype) for name, dtype in EVENT_TIMES.items()
        ),
        descriptions=described.with_columns(
            pl.col("annotations", "chain").cast(pl.String).str.tail(MAX_TEXT_LETTERS),
            source=pl.Series(
                [source_names[code] for code in source_codes[first_row]], dtype=pl.String
            ),
            inputs=inputs.take(first_row).series("inputs", pl.String()),
        ).select(
            *(pl.col(name).cast(pl.String) for name in DESCRIPTION_TEXTS),
            pl.col("stream").cast(pl.Int64),
        ),
        host=host,
        host_count=host_count,
    )


def _inputs(texts: CategoryColumns) -> CategoryColumn:
    """Return what the operator of each event was given, in words."""
    columns = [texts[name] for name in ("shapes", "dtypes", "strides")]
    combination, first_row = group_rows(*(column.codes for column in columns))
    of_combinations = zip(*(column.take(first_row).strings() for column in columns), strict=True)
    words = [input_words(*recorded) for recorded in of_combinations]
    distinct = tuple(dict.fromkeys(text for text in words if text is not None))
    number_of = {text: number for number, text in enumerate(distinct)}
    codes = np.array([-1 if text is None else number_of[text] for text in words], np.int64)
    return CategoryColumn(distinct, codes[combination])


def _launching_lines(
    gpu_events: pl.DataFrame, frames: pl.DataFrame | None
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], list[str | None]]:
    """Return the number of the innermost Python line around each launch, and the lines.

    Number -1 is None, the last.
    """
    nowhere = np.full(len(gpu_events), -1, np.int64)
    if frames is None or frames.is_empty():
        return nowhere, [None]
    from tracekit.classify.model_position import MODULE_PREFIX, Frames

    lines = Frames.of(frames.filter(~pl.col("name").cast(pl.String).str.starts_with(MODULE_PREFIX)))
    around = lines.around(
        to_int64(gpu_events["launch_tid"], -1), to_int64(gpu_events["launch_ns"], -1)
    )
    return np.append(lines.name_index, -1)[around].astype(np.int64), [*lines.names, None]


_RANGE_LANES = {"annotation": "ranges", "cpu_op": "operators"}
"""Lane of each kind of range of the host."""


def _host_ranges(
    events: pl.DataFrame, waiting_calls: pl.DataFrame, frames: pl.DataFrame | None
) -> tuple[pl.DataFrame, int]:
    """Return the longest ranges of the host (``HOST_RANGES``), and how many there were."""
    columns = (pl.col("tid").cast(pl.Int64), pl.col("name").cast(pl.String), "start_ns", "end_ns")
    ranges = events.select("kind", "tid", "name", "start_ns", "end_ns").filter(
        pl.col("kind").is_in(list(_RANGE_LANES))
    )
    range_lane = pl.col("kind").cast(pl.String).replace_strict(_RANGE_LANES)
    of_lanes = [
        _longest(ranges).select(range_lane.alias("lane"), *columns),
        _longest(waiting_calls.filter("blocks")).select(
            pl.lit("waiting calls").alias("lane"), *columns
        ),
    ]
    count = len(ranges) + int(waiting_calls["blocks"].sum())
    if frames is not None:
        of_lanes.append(_longest(frames).select(pl.lit("Python").alias("lane"), *columns))
        count += len(frames)
    host = _longest(pl.concat(of_lanes)).sort("start_ns", -pl.col("end_ns"), maintain_order=True)
    threads = host.unique("tid", keep="first", maintain_order=True).select("tid")
    numbered = host.join(
        threads.with_row_index("thread"), on="tid", nulls_equal=True, maintain_order="left"
    )
    return conform(numbered, HOST_RANGES), count


def _longest(ranges: pl.DataFrame) -> pl.DataFrame:
    """Return the longest ranges, at most ``MAX_HOST_RANGES``."""
    return ranges.top_k(MAX_HOST_RANGES, by=pl.col("end_ns") - pl.col("start_ns"))
