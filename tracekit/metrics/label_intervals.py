"""One rank's GPU time as interval sets: one set per label, and the sets compute, communication and copy.

compute = forward … optimizer, and kernels without a known label (``other`` occupies the GPU;
reports list it on its own line); communication = ep_dispatch … comm, broadcast; copy = offload,
onload, reload, memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints
from tracekit._util.columns import to_int64
from tracekit.intervals import EMPTY, Intervals, union
from tracekit.schema import (
    COMMUNICATION_LABELS,
    COMPUTE_LABELS,
    COPY_LABELS,
    LABELLED,
    LABELS,
    PASSES,
)

COMPUTE_SET = (*COMPUTE_LABELS, "other")
LABEL_SETS: Mapping[str, tuple[str, ...]] = {
    "compute": COMPUTE_SET,
    "communication": COMMUNICATION_LABELS,
    "copy": COPY_LABELS,
}
EXPOSABLE_LABELS = tuple(label for label in LABELS if label not in COMPUTE_SET)
"""Communication and copy labels. Exposed time covered by two of them is attributed to the one that
comes first here."""
MIN_STRONG_CONFIDENCE = 0.65
"""Confidence below which a label rests on weak evidence: neighbours and order alone give less,
names and operators more."""

_LABEL_DTYPE = LABELLED["label"]


def _set_indices() -> Ints:
    """Return for each label the index in ``LABEL_SETS`` of the set that it is in."""
    index_of_label: dict[str, int] = {}
    for index, labels in enumerate(LABEL_SETS.values()):
        index_of_label |= dict.fromkeys(labels, index)
    return np.array([index_of_label[label] for label in LABELS])


_SET_INDEX_OF_LABEL = _set_indices()


def label_codes(labelled: pl.DataFrame) -> Ints:
    """Return the index of each event's label in ``LABELS``.

    >>> label_codes(pl.DataFrame({"label": ["forward", "wgrad"]})).tolist()
    [0, 2]
    """
    label = labelled["label"]
    return to_int64(
        (label if label.dtype == _LABEL_DTYPE else label.cast(_LABEL_DTYPE)).to_physical()
    )


def has_label(codes: Ints, labels: Iterable[str]) -> Bools:
    """Return which of the label codes belong to *labels*.

    >>> has_label(np.array([0, 2]), ["wgrad", "other"]).tolist()
    [False, True]
    """
    selected = np.zeros(len(LABELS), np.bool_)
    selected[[LABELS.index(label) for label in labels]] = True
    return selected[codes]


@dataclass(frozen=True, eq=False)
class Lanes:
    """Interval sets of one rank by label and by label set.

    The group of every interval is its part (step).

    >>> events = pl.DataFrame({"label": ["forward", "pp_comm", "forward"], "start_ns": [0, 4, 9], "end_ns": [6, 8, 12]})
    >>> lanes = Lanes.of(events)
    >>> lanes.label("pp_comm"), lanes.compute
    (Intervals([4, 8)), Intervals([0, 6), [9, 12)))
    >>> lanes.busy.gaps()
    Intervals([8, 9))
    """

    parts: int
    """Number of parts; they are numbered from 0."""
    by_label: Mapping[str, Intervals]
    """Only labels that occur."""
    compute: Intervals
    communication: Intervals
    copy: Intervals
    busy: Intervals
    """Time in which any GPU event runs."""
    code: Ints
    """Index of each event's label in ``LABELS``."""

    @classmethod
    def of(cls, labelled: pl.DataFrame, *, parts: int = 1, part: str | None = None) -> Lanes:
        """Build the sets from a labelled table.

        Args:
            labelled: GPU events with label, start_ns and end_ns.
            parts: Number of parts.
            part: Column with each event's part, 0 to *parts* - 1; None if all events form one part.

        """
        start = labelled["start_ns"].to_numpy()
        end = labelled["end_ns"].to_numpy()
        event_part = (
            labelled[part].to_numpy() if part is not None else np.zeros(len(start), np.int64)
        )
        code = label_codes(labelled)

        def unions(index: Ints, names: Sequence[str]) -> dict[str, Intervals]:
            """Return the union of the events of each name.

            *index* is the index of each event's name.
            """
            # One pass with a group for every (name, part); then each name's groups are cut out.
            combined = union(start, end, index * parts + event_part)
            return {
                name: combined.section(i * parts, (i + 1) * parts) for i, name in enumerate(names)
            }

        by_label = {label: lane for label, lane in unions(code, LABELS).items() if len(lane)}
        sets = unions(_SET_INDEX_OF_LABEL[code], tuple(LABEL_SETS))
        return cls(parts, by_label, **sets, busy=union(start, end, event_part), code=code)

    @cached_property
    def idle(self) -> Intervals:
        """Time in which nothing runs, between the first start and the last end of each part."""
        return self.busy.gaps()

    @cached_property
    def exposed(self) -> Mapping[str, Intervals]:
        """Exposed time by communication and copy label.

        Time covered by several labels belongs to the first.
        """
        unattributed = self.busy - self.compute
        exposed = {}
        for label in EXPOSABLE_LABELS:
            if label in self.by_label:
                exposed[label] = self.by_label[label] & unattributed
                unattributed = unattributed - self.by_label[label]
        return exposed

    def label(self, name: str) -> Intervals:
        """Return one label's union; empty if no event has the label."""
        return self.by_label.get(name, EMPTY)

    def named(self, name: str) -> Intervals:
        """Return the union of a label or of a label set (``communication``, ``copy``, ``compute``)."""
        return getattr(self, name) if name in LABEL_SETS else self.label(name)


def weak_ns(labelled: pl.DataFrame, *, parts: int = 1, part: str | None = None) -> tuple[int, ...]:
    """Return the time in each part whose label rests on weak evidence.

    Time labelled ``other`` does not count.

    >>> events = pl.DataFrame(
    ...     {"label": ["forward", "backward", "other"], "confidence": [0.9, 0.6, 0.0], "start_ns": [0, 4, 8],
    ...      "end_ns": [4, 7, 9]})
    >>> weak_ns(events)
    (3,)
    """
    weak = labelled["confidence"].to_numpy() < np.float32(MIN_STRONG_CONFIDENCE)
    rows = np.flatnonzero(weak & (label_codes(labelled) != LABELS.index("other")))
    event_part = labelled[part].to_numpy()[rows] if part is not None else None
    weak_time = union(
        labelled["start_ns"].to_numpy()[rows], labelled["end_ns"].to_numpy()[rows], event_part
    )
    return tuple(weak_time.totals_ns(parts).tolist())


# ---- Attribution of every busy nanosecond of a rank to one of its events, so that parts add up to the whole.
#
# Compute comes first: where several kernels run at once, the time belongs to the one that started
# first, until it ends. Exposed time of communication and copies is attributed in the order of
# labels, as in the budget.


def attribute_time(labelled: pl.DataFrame, lanes: Lanes) -> Ints:
    """Return the nanoseconds attributed to each event; *lanes* are of the same events, in one part.

    The sum is the busy time; by label it is the budget's.

    >>> rows = [("forward", 0, 6), ("forward", 2, 9), ("dp_comm", 8, 12), ("pp_comm", 10, 13)]
    >>> events = pl.DataFrame(rows, schema=["label", "start_ns", "end_ns"], orient="row")
    >>> attribute_time(events, Lanes.of(events)).tolist()
    [6, 3, 1, 3]
    """
    attributed_ns = np.zeros(len(labelled), np.int64)
    label = labelled["label"].cast(pl.String)
    _attribute(labelled, label.is_in(COMPUTE_SET).to_numpy(), lanes.compute, attributed_ns)
    for name, exposed in lanes.exposed.items():
        _attribute(labelled, (label == name).to_numpy(), exposed, attributed_ns)
    return attributed_ns


def _attribute(
    labelled: pl.DataFrame, selected: Bools, within: Intervals, attributed_ns: Ints
) -> None:
    """Attribute the time of *within* to the *selected* events that cover it.

    Write it to *attributed_ns*.
    """
    rows = np.flatnonzero(selected)
    rows = rows[np.argsort(labelled["start_ns"].to_numpy()[rows], kind="stable")]
    start = labelled["start_ns"].to_numpy()[rows]
    end = labelled["end_ns"].to_numpy()[rows]
    # An event gets only the time after the latest end of all events that started before it.
    earlier_end = np.concatenate([start[:1], np.maximum.accumulate(end)[:-1]])
    own_start = np.minimum(np.maximum(start, earlier_end), end)
    attributed_ns[rows] = within.covered_ns(own_start, end)


# ---- Timeline of a rank for drawings: intervals by label and pass, few enough to draw.


MAX_TIMELINE_INTERVALS = 3000
"""Intervals kept for one rank; a screen cannot resolve more."""

TIMELINE = pl.Schema(
    {
        "label": pl.Enum(LABELS),
        "pass": pl.Enum(PASSES),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
    }
)


def timeline(
    labelled: pl.DataFrame, *, max_intervals: int = MAX_TIMELINE_INTERVALS
) -> pl.DataFrame:
    """Return unions by label and pass (``TIMELINE``).

    If there are more than *max_intervals*, nearest ones are joined.

    Joining covers gaps, so this table is for drawing, never for measuring.

    >>> events = pl.DataFrame(
    ...     {"label": ["forward"] * 3, "pass": ["forward"] * 3, "start_ns": [0, 5, 100], "end_ns": [4, 9, 109]},
    ...     schema_overrides={"label": pl.Enum(LABELS), "pass": pl.Enum(PASSES)},
    ... )
    >>> timeline(events, max_intervals=2)["start_ns", "end_ns"].rows()
    [(0, 9), (100, 109)]
    """
    # One group for every (label, pass); the last pass stands for none.
    passes = len(PASSES) + 1
    label = labelled["label"].to_physical().to_numpy().astype(np.int64)
    pass_ = labelled["pass"].to_physical().fill_null(len(PASSES)).to_numpy().astype(np.int64)
    intervals = union(
        labelled["start_ns"].to_numpy(), labelled["end_ns"].to_numpy(), label * passes + pass_
    )
    group = intervals.group
    start = intervals.start_ns
    end = intervals.end_ns
    if len(start) > max_intervals:
        # Keep the max_intervals - 1 widest gaps (gaps between groups are infinite) and draw over
        # the others.
        gap = np.where(group[1:] == group[:-1], start[1:] - end[:-1], np.iinfo(np.int64).max)
        widest_closed = np.partition(gap, len(gap) - max_intervals)[len(gap) - max_intervals]
        first = np.flatnonzero(np.concatenate(([True], gap > widest_closed)))
        last = np.append(first[1:] - 1, len(end) - 1)
        group = group[first]
        start = start[first]
        end = end[last]
    return pl.DataFrame(
        {
            "label": _decode(group // passes, LABELS),
            "pass": _decode(group % passes, (*PASSES, None)),
            "start_ns": start,
            "end_ns": end,
        },
        schema=TIMELINE,
    ).sort("start_ns")


def _decode(code: Ints, names: Sequence[str | None]) -> pl.Series:
    """Return the names at some indices as an Enum column."""
    return pl.Series(names, dtype=pl.Enum([name for name in names if name]))[code]
