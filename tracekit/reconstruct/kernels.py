"""One rank's GPU events as reconstruction looks at them: in the order the host launched them, with what each is."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import present, to_int64, with_nulls
from tracekit.classify.microbatch import parse_path
from tracekit.metrics.lanes import label_codes
from tracekit.schema import LABELS

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NONE, FORWARD, ENGINE, LOOSE, MESSAGE = range(5)
"""What a kernel is here: nothing of ours, a forward, run by autograd, a weight gradient outside it, a p2p kernel."""

_SIDES = {"dgrad": ENGINE, "backward": ENGINE, "recompute": ENGINE, "forward": FORWARD, "wgrad": LOOSE}
NOT_TOLD = -(2**40)
"""No range names a stage or a micro-batch so."""
_SEQUENCES = 2**62
"""Sequence numbers lie below."""


def prepare(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that reconstruction looks at, in the order the host launched them, with what each is (``side``).

    ``code`` is the place of its label in ``LABELS``.

    >>> from tracekit.schema import LABELLED, conform
    >>> rows = [{"label": "forward", "launch_ns": 5, "start_ns": 9}, {"label": "wgrad", "launch_ns": 2, "start_ns": 9}]
    >>> prepare(conform(pl.DataFrame(rows), LABELLED))["side"].to_list()
    [3, 1]
    """
    launch = labelled["launch_ns"]
    host = np.where(present(launch), to_int64(launch), labelled["start_ns"].to_numpy())
    order = np.argsort(host, kind="stable")
    rows = labelled[order] if (np.diff(order) < 0).any() else labelled
    codes = label_codes(rows)
    side = _sides(rows, codes)
    named = names(_annotations(rows), backward=(side == ENGINE) | (side == LOOSE))
    sequence = to_int64(rows["autograd_sequence"])
    numbered = (sequence >= 0) & (sequence <= _SEQUENCES) & (codes != LABELS.index("recompute"))
    # A stage or a micro-batch alone is the classifier's count, which does not look across ranks.
    counted = {name: to_int64(rows[name]) for name in ("stage", "microbatch")}
    both = np.logical_and(*(present(rows[name]) for name in counted))
    places = []
    for name, own in counted.items():
        told = to_int64(named[name], NOT_TOLD)
        known = (told != NOT_TOLD) | both
        places.append(with_nulls(np.where(told != NOT_TOLD, told, own), known).cast(pl.Int32).alias(name))
    return rows.with_columns(
        *places,
        pl.Series("side", side),
        pl.Series("code", codes),
        named["op"].alias("told_op"),
        named["block"],
        pl.Series("host_ns", host[order]),
        with_nulls(sequence, numbered).alias("number"),
    )


def _sides(rows: pl.DataFrame, codes: Ints) -> npt.NDArray[np.int8]:
    of_label = np.array([_SIDES.get(label, NONE) for label in LABELS] + [NONE], np.int8)
    side = of_label[codes]
    side[(side == LOOSE) & present(rows["node"])] = ENGINE
    side[(codes == LABELS.index("pp_comm")) & present(rows["p2p"])] = MESSAGE
    return side


def _annotations(rows: pl.DataFrame) -> CategoryColumn:
    return CategoryColumn.from_series(rows["annotations"]).fill(CategoryColumn.from_series(rows["annotation"]))


def names(text: CategoryColumn, *, backward: Bools) -> pl.DataFrame:
    """Return what ``PP:`` ranges name the kernels in them: op, stage, micro-batch, and the block of two it is in.

    Inside a block the side tells whose a kernel is, unless a range of its own does.

    >>> ranges = pl.Series(["step > PP:2F7", "PP:(0F7;3B1)OVERLAP_F_B", "PP:(0F7;3B1)OVERLAP_F_B"])
    >>> text = CategoryColumn.from_series(ranges)
    >>> names(text, backward=np.array([False, False, True])).rows()
    [('F', 2, 7, None), ('F', 0, 7, 'PP:(0F7;3B1)'), ('B', 3, 1, 'PP:(0F7;3B1)')]
    """
    schema = {"op": pl.String(), "stage": pl.Int32(), "microbatch": pl.Int32(), "block": pl.String()}
    told = [_name(value, backward=side) for value in text.values for side in (False, True)]
    known = pl.DataFrame([*told, (None,) * len(schema)], schema=schema, orient="row")
    return known[np.where(text.present, 2 * text.codes + backward, len(told))]


def _name(path: str, *, backward: bool) -> tuple[str | None, int | None, int | None, str | None]:
    """Op, stage and micro-batch of work under a path of ranges, and the block it is in."""
    ranges = parse_path(path)
    place = ranges.place(backward=backward)
    return (place.op, place.stage, place.microbatch, ranges.block) if place else (None, None, None, ranges.block)


class Kernels(msgspec.Struct, frozen=True, eq=False):
    """Columns of ``prepare`` as arrays, so that a step's share of them costs nothing to cut out."""

    side: npt.NDArray[np.int8]
    host_ns: Ints
    took_ns: Ints
    is_wgrad: Bools
    number: Ints  # -1 where none
    name: npt.NDArray[np.uint32]
    p2p: CategoryColumn
    told_op: CategoryColumn
    stage: Ints  # -1 where none
    microbatch: Ints

    @classmethod
    def of(cls, rows: pl.DataFrame) -> Kernels:
        """From the rows of ``prepare``."""
        return cls(
            rows["side"].to_numpy(),
            rows["host_ns"].to_numpy(),
            rows["end_ns"].to_numpy() - rows["start_ns"].to_numpy(),
            rows["code"].to_numpy() == LABELS.index("wgrad"),
            to_int64(rows["number"]),
            rows["name"].to_physical().to_numpy(),
            CategoryColumn.from_series(rows["p2p"]),
            CategoryColumn.from_series(rows["told_op"]),
            to_int64(rows["stage"]),
            to_int64(rows["microbatch"]),
        )

    def __len__(self) -> int:
        return len(self.side)

    def part(self, start: int, end: int) -> Kernels:
        """Return the kernels from *start* to *end*."""
        here = slice(start, end)
        return Kernels(
            self.side[here],
            self.host_ns[here],
            self.took_ns[here],
            self.is_wgrad[here],
            self.number[here],
            self.name[here],
            CategoryColumn(self.p2p.values, self.p2p.codes[here]),
            CategoryColumn(self.told_op.values, self.told_op.codes[here]),
            self.stage[here],
            self.microbatch[here],
        )
