"""What the page's timelines draw, packed small: boxes on rows as columns of integers, deflated."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.analysis import Analysis
from tracekit.intervals import union_of
from tracekit.report.palette import CELL_COLOURS, IDLE_COLOUR, LABEL_COLOURS
from tracekit.report.schedule.plot import NAMES, chunks, colour, shaded
from tracekit.report.view.lanes import labels_of, lanes_for

if TYPE_CHECKING:
    from tracekit.schedules import Schedule

MOST_LANE_RANKS = 16
"""Ranks whose lanes the page holds: the first, the last, and those that differ most."""

BOXES = pl.Schema(
    {
        "row": pl.UInt16(),
        "kind": pl.UInt8(),
        "half": pl.UInt8(),  # 0 the whole height, 1 its upper half, 2 its lower half
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "stage": pl.Int16(),
        "microbatch": pl.Int16(),
    }
)


def last_ns(table: pl.DataFrame) -> int:
    """Return the last end in a table, 1 where it is empty."""
    return int(table["end_ns"].to_numpy().max(initial=1))


def pack(boxes: pl.DataFrame) -> dict[str, Any]:
    r"""Boxes as base64 of deflated little-endian columns; starts are differences, which deflate well.

    >>> one = pl.DataFrame({name: [1] for name in BOXES}, schema=BOXES).with_columns(end_ns=pl.lit(4))
    >>> packed = pack(one)
    >>> packed["count"], zlib.decompress(base64.b64decode(packed["data"]))[:2]
    (1, b'\x01\x00')
    """
    boxes = boxes.select(pl.col(name).cast(dtype) for name, dtype in BOXES.items()).sort("row", "start_ns")
    start, length = boxes["start_ns"].to_numpy(), (boxes["end_ns"] - boxes["start_ns"]).to_numpy()
    unit = max(1, -(-last_ns(boxes) // (1 << 30)))
    columns = [
        boxes["row"].to_numpy().astype("<u2"),
        boxes["kind"].to_numpy().astype("<u1"),
        boxes["half"].to_numpy().astype("<u1"),
        np.diff(start // unit, prepend=0).astype("<i4"),
        (length // unit).astype("<i4"),
        boxes["stage"].fill_null(-1).to_numpy().astype("<i2"),
        boxes["microbatch"].fill_null(-1).to_numpy().astype("<i2"),
    ]
    raw = b"".join(column.tobytes() for column in columns)
    return {"count": len(boxes), "unit_ns": unit, "data": base64.b64encode(zlib.compress(raw, 9)).decode()}


def schedule_data(analysis: Analysis) -> dict[str, Any] | None:
    """The measured pipeline above its ideal, row by row."""
    if analysis.schedule is None:
        return None
    held = analysis.schedule.head
    cells = held.cells
    ranks = sorted(cells["rank"].unique().to_list())
    measured = cells.select(pl.exclude("start_ns", "end_ns"), "start_ns", "end_ns")
    origin = int(measured["start_ns"].to_numpy().min(initial=last_ns(measured)))
    measured = measured.with_columns(pl.col("start_ns", "end_ns") - origin)
    ideal = cells.with_columns(start_ns="ideal_start_ns", end_ns="ideal_end_ns")
    looks = _Looks.of(held.match.schedule, cells["op"].cast(pl.String).unique().to_list())
    end = max(last_ns(measured), last_ns(ideal))
    return {
        "kinds": looks.kinds(),
        "shaded": looks.count > 1,
        "rows": [f"rank {rank}" for rank in ranks],
        "end_ns": end,
        "sections": [
            {"name": "measured", "boxes": pack(_cell_boxes(measured, ranks, looks, end))},
            {"name": "ideal", "boxes": pack(_cell_boxes(ideal, ranks, looks, int(held.ideal_ns)))},
        ],
    }


@dataclass(frozen=True)
class _Looks:
    """How cells look: a kind for each op that ran and each chunk told apart, the bubble last."""

    ops: tuple[str, ...]
    chunk_of: npt.NDArray[np.int64]
    count: int

    @classmethod
    def of(cls, schedule: Schedule, ran: Sequence[str]) -> _Looks:
        there = {kind for op in ran for kind in op}
        of_stage = chunks(schedule) if shaded(schedule) else np.zeros(len(schedule.stage_ranks), np.int64)
        return cls(tuple(kind for kind in CELL_COLOURS if kind in there), of_stage, int(of_stage.max(initial=0)) + 1)

    def kinds(self) -> list[dict[str, str]]:
        cells = [(op, chunk) for op in self.ops for chunk in range(self.count)]
        bubble = _kind("bubble", IDLE_COLOUR)
        return [*(_kind(NAMES[op], colour(op, chunk, self.count)) for op, chunk in cells), bubble]

    def code(self, cells: pl.DataFrame) -> pl.Series:
        stage = cells["stage"].fill_null(0).to_numpy()
        op = cells["op"].replace_strict({op: at for at, op in enumerate(self.ops)}, return_dtype=pl.Int64).to_numpy()
        return pl.Series("kind", op * self.count + self.chunk_of[stage], dtype=pl.UInt8)

    @property
    def bubble(self) -> int:
        return len(self.ops) * self.count


def _cell_boxes(cells: pl.DataFrame, ranks: Sequence[int], looks: _Looks, end_ns: int) -> pl.DataFrame:
    row = {rank: at for at, rank in enumerate(ranks)}
    base = cells.with_columns(
        row=pl.col("rank").replace_strict(row, return_dtype=pl.UInt16), op=pl.col("op").cast(pl.String)
    )
    single = base.filter(pl.col("op") != "FB").with_columns(half=pl.lit(0, pl.UInt8))
    both = base.filter(pl.col("op") == "FB")
    upper = both.with_columns(op=pl.lit("F"), half=pl.lit(1, pl.UInt8))
    lower = both.with_columns(
        op=pl.lit("B"), half=pl.lit(2, pl.UInt8), stage=pl.col("b_stage"), microbatch=pl.col("b_microbatch")
    )
    boxes = pl.concat([single, upper, lower])
    boxes = boxes.with_columns(looks.code(boxes))
    bubbles = _bubbles(base, looks.bubble, end_ns)
    return pl.concat([boxes.select(BOXES.names()), bubbles], how="vertical_relaxed")


def _bubbles(cells: pl.DataFrame, kind: int, end_ns: int) -> pl.DataFrame:
    """Where a row has no cell between 0 and the end."""
    edges = cells.select("row").unique()
    edges = pl.concat(
        [edges.with_columns(start_ns=pl.lit(t, pl.Int64), end_ns=pl.lit(t, pl.Int64)) for t in (-1, end_ns)]
    )
    edges = edges.with_columns(end_ns=pl.col("start_ns") + 1)
    holes = union_of(pl.concat([cells.select(edges.columns), edges]), "row").gaps().to_frame()
    return holes.select(
        pl.col("group").cast(pl.UInt16).alias("row"),
        pl.lit(kind, pl.UInt8).alias("kind"),
        pl.lit(0, pl.UInt8).alias("half"),
        pl.col("start_ns").clip(0),
        pl.col("end_ns"),
        pl.lit(None, pl.Int16).alias("stage"),
        pl.lit(None, pl.Int16).alias("microbatch"),
    ).filter(pl.col("end_ns") > pl.col("start_ns"))


def lanes_data(analysis: Analysis) -> dict[str, Any] | None:
    """Some ranks' lanes in one step: computation, communication, copies."""
    table = analysis.tables["timeline"]
    if table.is_empty():
        return None
    present = labels_of(table)
    lanes = lanes_for(present)
    ranks = {rank: _rank_lanes(analysis, rank, lanes, present) for rank in _shown_ranks(analysis)}
    return {
        "kinds": [_kind(label, LABEL_COLOURS[label]) for label in present],
        "rows": list(lanes),
        "ranks": {str(rank): found for rank, found in ranks.items() if found is not None},
    }


def _rank_lanes(
    analysis: Analysis, rank: int, lanes: Mapping[str, Mapping[str, int]], present: Sequence[str]
) -> dict[str, Any] | None:
    steps = analysis.tables["steps"].filter(pl.col("rank") == rank)
    wanted = analysis.schedule.head.pipeline.step if analysis.schedule is not None else None
    step = steps.filter(pl.col("step") == wanted) if wanted is not None else steps.head(1)
    if step.is_empty():
        step = steps.head(1)
    if step.is_empty():
        return None  # nothing ran on this rank's GPU
    begin, end = step["start_ns"][0], step["end_ns"][0]
    rows = analysis.tables["timeline"].filter(
        (pl.col("rank") == rank) & (pl.col("end_ns") > begin) & (pl.col("start_ns") < end)
    )
    if rows.is_empty():
        return None
    place = {label: (at, half) for at, halves in enumerate(lanes.values()) for label, half in halves.items()}
    label = pl.col("label").cast(pl.String)
    boxes = rows.select(
        label.replace_strict({k: v[0] for k, v in place.items()}, return_dtype=pl.UInt16).alias("row"),
        label.replace_strict({k: i for i, k in enumerate(present)}, return_dtype=pl.UInt8).alias("kind"),
        label.replace_strict({k: v[1] for k, v in place.items()}, return_dtype=pl.UInt8).alias("half"),
        pl.col("start_ns").clip(begin) - begin,
        pl.col("end_ns").clip(None, end) - begin,
        pl.col("pass").to_physical().cast(pl.Int16).alias("stage"),  # the page reads it back as the pass
        pl.lit(None, pl.Int16).alias("microbatch"),
    )
    return {"end_ns": end - begin, "boxes": pack(boxes), "phases": _phases(analysis, rank, step["step"][0])}


def _phases(analysis: Analysis, rank: int, step: int | None) -> list[dict[str, Any]]:
    table = analysis.tables["phases"].filter((pl.col("rank") == rank) & pl.col("step").eq_missing(step))
    ends = table["span_ns"].cum_sum().to_list()
    return [
        {"name": name, "start_ns": end - span, "end_ns": end}
        for name, span, end in zip(table["phase"], table["span_ns"], ends, strict=True)
    ]


def _shown_ranks(analysis: Analysis) -> list[int]:
    """The first and last rank, then those whose bubble is furthest from the median."""
    ranks = [one.rank for one in analysis.ranks]
    if len(ranks) <= MOST_LANE_RANKS:
        return ranks
    bubbles = np.array([one.whole.bubble_fraction or 0.0 for one in analysis.ranks])
    far = [ranks[i] for i in np.argsort(-np.abs(bubbles - np.median(bubbles)), kind="stable")]
    return sorted(list(dict.fromkeys([ranks[0], ranks[-1], *far]))[:MOST_LANE_RANKS])


def _kind(name: str, colour: str) -> dict[str, str]:
    return {"name": name, "colour": colour}
