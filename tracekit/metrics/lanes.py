"""One rank's GPU time as sets of intervals: one lane per label, and the three sets every definition is made of.

compute = forward … optimizer, and what no rule knows (``other`` occupies the GPU; reports give it a line of its own);
communication = ep_dispatch … comm, broadcast; copy = offload, onload, reload, memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.columns import to_int64
from tracekit.intervals import EMPTY, Intervals, Longs, union
from tracekit.schema import COMMUNICATION_LABELS, COMPUTE_LABELS, COPY_LABELS, LABELLED, LABELS

COMPUTE_SET = (*COMPUTE_LABELS, "other")
SETS: Mapping[str, tuple[str, ...]] = {
    "compute": COMPUTE_SET,
    "communication": COMMUNICATION_LABELS,
    "copy": COPY_LABELS,
}
EXPOSABLE = tuple(label for label in LABELS if label not in COMPUTE_SET)
"""Communication and copy labels, in the order that settles who pays for time two of them cover."""
_LABEL = LABELLED["label"]
_SET_OF = np.array([next(at for at, labels in enumerate(SETS.values()) if label in labels) for label in LABELS])


def label_codes(labelled: pl.DataFrame) -> Longs:
    """Return the place of each event's label in ``LABELS``.

    >>> label_codes(pl.DataFrame({"label": ["forward", "wgrad"]})).tolist()
    [0, 2]
    """
    label = labelled["label"]
    return to_int64((label if label.dtype == _LABEL else label.cast(_LABEL)).to_physical())


def among_labels(codes: Longs, labels: Iterable[str]) -> npt.NDArray[np.bool_]:
    """Return which of the *codes* are of these *labels*.

    >>> among_labels(np.array([0, 2]), ["wgrad", "other"]).tolist()
    [False, True]
    """
    wanted = np.zeros(len(LABELS), np.bool_)
    wanted[[LABELS.index(label) for label in labels]] = True
    return wanted[codes]


@dataclass(frozen=True, eq=False)
class Lanes:
    """Unions by label and by set; the group of every interval is its part (step), 0 … parts − 1.

    >>> events = pl.DataFrame({"label": ["forward", "pp_comm", "forward"], "start_ns": [0, 4, 9], "end_ns": [6, 8, 12]})
    >>> lanes = Lanes.of(events)
    >>> lanes.label("pp_comm"), lanes.compute
    (Intervals([4, 8)), Intervals([0, 6), [9, 12)))
    >>> lanes.busy.gaps()
    Intervals([8, 9))
    """

    parts: int
    by_label: Mapping[str, Intervals]
    compute: Intervals
    communication: Intervals
    copy: Intervals
    busy: Intervals
    code: Longs
    """The place of each event's label in ``LABELS``."""

    @classmethod
    def of(cls, labelled: pl.DataFrame, *, parts: int = 1, part: str | None = None) -> Lanes:
        """Return the lanes of a labelled table; *part* names the column of step indices (none: all is one part)."""
        start, end = labelled["start_ns"].to_numpy(), labelled["end_ns"].to_numpy()
        group = labelled[part].to_numpy() if part is not None else np.zeros(len(start), np.int64)
        code = label_codes(labelled)

        def swept(kind: Longs, names: Iterable[str]) -> dict[str, Intervals]:
            """Return the union of each kind, by part."""
            both = union(start, end, kind * parts + group)
            return {name: both.section(at * parts, (at + 1) * parts) for at, name in enumerate(names)}

        by_label = {label: lane for label, lane in swept(code, LABELS).items() if len(lane)}
        return cls(parts, by_label, **swept(_SET_OF[code], SETS), busy=union(start, end, group), code=code)

    @cached_property
    def idle(self) -> Intervals:
        """The gaps of each part, in which nothing ran."""
        return self.busy.gaps()

    @cached_property
    def paid(self) -> Mapping[str, Intervals]:
        """For each communication and copy label, the exposed time that it pays for: of two at once the first does."""
        left, paid = self.busy - self.compute, {}
        for label in EXPOSABLE:
            if label in self.by_label:
                paid[label] = self.by_label[label] & left
                left = left - self.by_label[label]
        return paid

    def label(self, name: str) -> Intervals:
        """Return one label's union; empty when nothing carries it."""
        return self.by_label.get(name, EMPTY)

    def named(self, name: str) -> Intervals:
        """Return the union of a label or of a set (``communication``, ``copy``, ``compute``)."""
        return getattr(self, name) if name in SETS else self.label(name)
