"""One rank's GPU time as sets of intervals: one lane per label, and the three sets every definition is made of.

compute = forward … optimizer, and what no rule knows (``other`` occupies the GPU; reports give it a line of its own);
communication = ep_dispatch … comm, broadcast; copy = offload, onload, reload, memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from tracekit._util.records import dataclass
from tracekit.intervals import EMPTY, Intervals, union
from tracekit.schema import COMMUNICATION_LABELS, COMPUTE_LABELS, COPY_LABELS, LABELS

COMPUTE_SET = (*COMPUTE_LABELS, "other")
SETS: Mapping[str, tuple[str, ...]] = {
    "compute": COMPUTE_SET,
    "communication": COMMUNICATION_LABELS,
    "copy": COPY_LABELS,
}
EXPOSABLE = tuple(label for label in LABELS if label not in COMPUTE_SET)
"""Communication and copy labels, in the order that settles who pays for time two of them cover."""


@dataclass(frozen=True, slots=True)
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

    @classmethod
    def of(cls, labelled: pl.DataFrame, *, parts: int = 1, part: str | None = None) -> Lanes:
        """Return the lanes of a labelled table; *part* names the column of step indices (none: all is one part)."""
        code = labelled["label"].cast(pl.Enum(LABELS)).to_physical().to_numpy().astype(np.int64)
        group = code * parts
        if part is not None:
            group = group + labelled[part].to_numpy()
        swept = union(labelled["start_ns"].to_numpy(), labelled["end_ns"].to_numpy(), group)
        sections = {label: swept.section(i * parts, (i + 1) * parts) for i, label in enumerate(LABELS)}
        by_label = {label: lane for label, lane in sections.items() if len(lane)}
        sets = {name: _join([by_label[x] for x in labels if x in by_label]) for name, labels in SETS.items()}
        return cls(parts, by_label, **sets, busy=_join(list(sets.values())))

    def label(self, name: str) -> Intervals:
        """Return one label's union; empty when nothing carries it."""
        return self.by_label.get(name, EMPTY)

    def named(self, name: str) -> Intervals:
        """Return the union of a label or of a set (``communication``, ``copy``, ``compute``)."""
        return getattr(self, name) if name in SETS else self.label(name)


def _join(sets: list[Intervals]) -> Intervals:
    if not sets:
        return EMPTY
    if len(sets) == 1:
        return sets[0]
    return union(*(np.concatenate([getattr(s, c) for s in sets]) for c in ("start_ns", "end_ns", "group")))
