"""What compute hides: overlap and exposure by label, and the matrix of what hides what."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
from msgspec.structs import replace

from tracekit._loops.interval_sets import NEVER, measure_overlap
from tracekit._util.arrays import as_int64, group_rows
from tracekit._util.categories import CategoryColumn, CategoryColumns
from tracekit._util.columns import present, to_int64, with_nulls
from tracekit.intervals import Longs, sums
from tracekit.metrics.lanes import COMPUTE_SET, EXPOSABLE, SETS, Lanes
from tracekit.schema import LABELS

LABEL_TIMES = pl.Schema(
    {
        "part": pl.Int64(),
        "label": pl.String(),
        "ns": pl.Int64(),
        "count": pl.Int64(),
        "hidden_ns": pl.Int64(),
        "exposed_ns": pl.Int64(),
        "bytes": pl.Int64(),
    }
)
HIDDEN = pl.Schema(
    {
        "part": pl.Int64(),
        "detail": pl.Boolean(),
        "label": pl.String(),
        "pass": pl.String(),
        "by": pl.String(),
        "by_pass": pl.String(),
        "by_module": pl.String(),
        "ns": pl.Int64(),
        "of_ns": pl.Int64(),  # time of the label (and pass) in this part: the share's denominator
    }
)


TOGETHER = 512
"""Parts whose matrices are filled at once."""


def ratio(part: int, whole: int) -> float | None:
    """Return the share of *whole*; None where there is nothing to divide by.

    >>> ratio(1, 4), ratio(0, 0)
    (0.25, None)
    """
    return part / whole if whole else None


def label_times(labelled: pl.DataFrame, lanes: Lanes, *, part: str | None = None) -> pl.DataFrame:
    """Return time, count, hidden and exposed time of every label and set; hidden / ns is the share that compute hides.

    >>> events = pl.DataFrame(
    ...     {"label": ["forward", "pp_comm"], "start_ns": [0, 4], "end_ns": [6, 8], "bytes": [None, 9]})
    >>> table = label_times(events, Lanes.of(events))
    >>> table.filter(label="pp_comm").select("ns", "hidden_ns", "exposed_ns", "bytes").rows()
    [(4, 2, 2, 9)]
    """
    names = (*SETS, *LABELS)
    place = lanes.code + len(SETS)
    if part is not None:
        place = place + to_int64(labelled[part]) * len(names)
    total, under = np.zeros((2, lanes.parts, len(names)), np.int64)
    for at, name in enumerate(names):
        lane = lanes.named(name)
        if not len(lane):
            continue
        total[:, at] = under[:, at] = lane.totals_ns(lanes.parts)
        if name not in (*COMPUTE_SET, "compute"):
            shared = lanes.compute.covered_ns(lane.start_ns, lane.end_ns, lane.group)
            under[:, at] = sums(shared, lane.group, lanes.parts)
    count, size, sized = np.zeros((3, total.size), np.int64)
    count += np.bincount(place, minlength=total.size)
    if "bytes" in labelled.columns:
        moved = np.flatnonzero(present(labelled["bytes"]))
        np.add.at(size, place[moved], to_int64(labelled["bytes"])[moved])
        sized[place[moved]] = 1
    rows = np.flatnonzero((total.ravel() > 0) | (count > 0))
    return pl.DataFrame(
        {
            "part": rows // len(names),
            "label": pl.Series(names, dtype=pl.String)[rows % len(names)],
            "ns": total.ravel()[rows],
            "count": with_nulls(count[rows], count[rows] > 0),
            "hidden_ns": under.ravel()[rows],
            "exposed_ns": (total - under).ravel()[rows],
            "bytes": with_nulls(size[rows], sized[rows] > 0),
        },
        schema=LABEL_TIMES,
    )


def hidden(labelled: pl.DataFrame, *, part: str | None = None, texts: CategoryColumns | None = None) -> pl.DataFrame:
    """Return how long each compute label (with pass and module) runs beside each communication or copy label and pass.

    Two kernels that hide the same moment both count, so a row of the matrix may sum to more than the label's
    hidden time. Rows whose ``detail`` is false are the plain label × label matrix; those with true split both by pass,
    and the hiding side by module; a label and pass that nothing ran beside has one such row, with a null ``by``.

    >>> events = pl.DataFrame({"label": ["dgrad", "ep_dispatch"], "start_ns": [0, 4], "end_ns": [6, 8],
    ...                        "pass": ["backward", "forward"], "module": ["mlp", None]})
    >>> hidden(events).select("detail", "label", "pass", "by", "by_module", "ns").rows()
    [(False, 'ep_dispatch', None, 'dgrad', None, 2), (True, 'ep_dispatch', 'forward', 'dgrad', 'mlp', 2)]
    """
    time = Time.of(labelled, part)
    texts = texts or CategoryColumns(labelled)
    label, pass_, module = (texts[name] for name in ("label", "pass", "module"))
    asked = np.flatnonzero(label.map(EXPOSABLE.__contains__))
    hiding = np.flatnonzero(label.map(COMPUTE_SET.__contains__))
    if not len(asked) or not len(hiding):
        return pl.DataFrame(schema=HIDDEN)
    plain = _Kinds.of(asked, label), _Kinds.of(hiding, label)
    split = _Kinds.of(asked, label, pass_), _Kinds.of(hiding, label, pass_, module)
    pieces = [_matrix(some, *kinds, detail=kinds is split) for some in time.in_turn() for kinds in (plain, split)]
    found = {name: np.concatenate([piece[name] for piece in pieces]) for name in HIDDEN}
    order = {label: place for place, label in enumerate(LABELS)}
    keys = [*(_ranks(found[name]) for name in ("by_module", "by_pass", "by")), -found["ns"], _ranks(found["pass"])]
    keys += [np.array([order[label] for label in found["label"]]), found["detail"], found["part"]]
    at = np.lexsort(keys)
    return pl.DataFrame({name: column[at].tolist() for name, column in found.items()}, schema=HIDDEN)


class Time(msgspec.Struct, frozen=True, eq=False):
    """When events ran, and in which part."""

    start: Longs
    end: Longs
    part: Longs
    parts: range = range(1)
    """Those that are looked at."""

    @classmethod
    def of(cls, labelled: pl.DataFrame, part: str | None) -> Time:
        """Return the times of a table; *part* names its column of parts (none: all is one part)."""
        start, end = labelled["start_ns"].to_numpy(), labelled["end_ns"].to_numpy()
        return cls(start, end, labelled[part].to_numpy() if part is not None else np.zeros(len(start), np.int64))

    def in_turn(self, most: int = TOGETHER) -> Iterator[Time]:
        """Return the same times, a few parts at a time: the matrices of thousands take room."""
        parts = int(self.part.max(initial=0)) + 1
        for first in range(0, parts, most):
            yield replace(self, parts=range(first, min(first + most, parts)))

    def met(self, rows: Longs, kind: Longs, asked: int, others: int) -> tuple[Longs, Longs]:
        """Return how long each kind runs in each part, and how long each *asked* kind runs at once with the others.

        *kind* is of each of *rows*: one of the kinds asked about, or one of the others behind them.
        """
        parts = len(self.parts)
        if parts <= self.part.max(initial=0):
            here = (self.part[rows] >= self.parts.start) & (self.part[rows] < self.parts.stop)
            rows, kind = rows[here], kind[here]
        total, both = np.zeros((parts, asked + others), np.int64), np.zeros((parts, asked, others), np.int64)
        start = self.start[rows]
        if (start[1:] < start[:-1]).any():
            order = np.argsort(start, kind="stable")
            rows, kind, start = rows[order], kind[order], start[order]
        reach = np.full_like(total, NEVER)
        measure_overlap(
            as_int64(self.part[rows] - self.parts.start),
            as_int64(kind),
            as_int64(start),
            as_int64(self.end[rows]),
            reach,
            total,
            both,
        )
        return total, both


class _Kinds(msgspec.Struct, frozen=True, eq=False):
    """Rows told apart by some columns."""

    rows: Longs
    code: Longs
    names: tuple[npt.NDArray[np.object_], ...]
    """Of each column, the value of each kind, and nothing at the end."""

    @classmethod
    def of(cls, rows: Longs, *columns: CategoryColumn) -> _Kinds:
        code, first = group_rows(*(column.codes[rows] for column in columns))
        places = [np.append(column.codes[rows[first]], -1) for column in columns]
        values = (np.array([*column.values, None], object) for column in columns)
        return cls(rows, code, tuple(names[at] for names, at in zip(values, places, strict=True)))

    def __len__(self) -> int:
        return len(self.names[0]) - 1

    def named(self, code: Longs, width: int) -> list[npt.NDArray[np.object_]]:
        """Return the values of these kinds (nothing for -1), in *width* columns."""
        names = [column[code] for column in self.names]
        return names + [np.full(len(code), None, object)] * (width - len(names))


def _matrix(time: Time, asked: _Kinds, hiding: _Kinds, *, detail: bool) -> dict[str, npt.NDArray[Any]]:
    """Return the columns of HIDDEN: what *hiding* hides of *asked*; in *detail* also what nothing hides."""
    rows = np.concatenate([asked.rows, hiding.rows])
    kind = np.concatenate([asked.code, hiding.code + len(asked)])
    order = np.argsort(rows, kind="stable")  # two runs that ascend
    total, both = time.met(rows[order], kind[order], len(asked), len(hiding))
    part, of, by = np.nonzero(both)
    ns = both[part, of, by]
    if detail:
        alone = np.nonzero((total[:, : len(asked)] > 0) & ~both.any(axis=2))
        part, of = (np.concatenate([known, more]) for known, more in zip((part, of), alone, strict=True))
        none = np.zeros_like(alone[0])
        by, ns = np.concatenate([by, none - 1]), np.concatenate([ns, none])
    named = [*asked.named(of, 2), *hiding.named(by, 3)]
    columns = [part + time.parts.start, np.full(len(part), detail, np.bool_), *named, ns, total[part, of]]
    return dict(zip(HIDDEN, columns, strict=True))


def _ranks(names: npt.NDArray[np.object_]) -> Longs:
    """Return the place of each name in their order; nothing comes first."""
    place = {name: at for at, name in enumerate(sorted({name for name in names if name is not None}))}
    return np.array([place.get(name, -1) for name in names], np.int64)
