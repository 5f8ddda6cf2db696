"""Cells that a run names itself: where the work lies in ``PP:`` ranges, these are the cells, whatever ran inside."""

from __future__ import annotations

import numpy as np
import polars as pl

from tracekit.classify.pipeline_ranges import parse_path
from tracekit.reconstruct.chunks import SURE, Segments
from tracekit.reconstruct.walks import ENGINE, FORWARD, LOOSE, Bools, Ints

ENOUGH = 0.9
"""Share of the forward and of the backward kernels' time that must lie under ranges for these to decide."""

_Key = tuple[str, int, int]
"""Op, stage, micro-batch."""


def names(text: pl.Series, *, backward: pl.Series) -> pl.DataFrame:
    """Return what ``PP:`` ranges name the kernels in them: op, stage, micro-batch, and the block of two it is in.

    Inside a block the side tells whose a kernel is, unless a range of its own does.

    >>> text = pl.Series(["step > PP:2F7", "PP:(0F7;3B1)OVERLAP_F_B", "PP:(0F7;3B1)OVERLAP_F_B", "PP:2SEND_F7"])
    >>> names(text, backward=pl.Series([False, False, True, False])).rows()[:3]
    [('F', 2, 7, None), ('F', 0, 7, 'PP:(0F7;3B1)'), ('B', 3, 1, 'PP:(0F7;3B1)')]
    """
    known = pl.DataFrame(
        [(value, side, *_name(value, backward=side)) for value in text.unique().drop_nulls() for side in (False, True)],
        schema={
            "text": text.dtype, "backward": pl.Boolean(), "op": pl.String(), "stage": pl.Int32(),
            "microbatch": pl.Int32(), "block": pl.String(),
        },
        orient="row",
    )  # fmt: skip
    rows = pl.DataFrame({"text": text, "backward": backward})
    return rows.join(known, on=("text", "backward"), how="left", maintain_order="left").drop("text", "backward")


def _name(path: str, *, backward: bool) -> tuple[str | None, int | None, int | None, str | None]:
    """Op, stage and micro-batch of work under a path of ranges, and the block it is in."""
    ranges = parse_path(path)
    place = ranges.place(backward=backward)
    return (place.op, place.stage, place.microbatch, ranges.block) if place else (None, None, None, ranges.block)


def by_ranges(rows: pl.DataFrame) -> Segments | None:
    """Return the rows of one step cut by the ranges they were launched in; None where too many were in none.

    Weight gradients outside every range that follow a ``B`` are its own, held back to run beside its send.
    """
    side = rows["side"].to_numpy()
    named = np.isin(side, (FORWARD, ENGINE, LOOSE)) & rows["told_op"].is_not_null().to_numpy()
    took = (rows["end_ns"] - rows["start_ns"]).to_numpy()
    if not all(_covered(took, named, side == part) for part in (FORWARD, ENGINE)):
        return None
    at = np.flatnonzero(named)
    columns = ("told_op", "stage", "microbatch")
    keys = rows[at].select(pl.struct(*columns).rle_id().alias("run"), *columns)
    first = keys.unique("run", keep="first", maintain_order=True).select(columns).rows()
    cells, cell_of_run = _cells(first)
    chunk = np.full(len(side), -1, np.int64)
    chunk[at] = np.array(cell_of_run, np.int64)[keys["run"].to_numpy()]
    held_back = np.flatnonzero((side == LOOSE) & ~named)
    if len(held_back):
        if {pair for op, pair in cells if op == "I"} - {pair for op, pair in cells if op == "W"}:
            return None  # these are W that nobody named: to be counted
        backward = at[np.array([op != "F" for op, _ in cells])[chunk[at]]]
        before = np.searchsorted(backward, held_back) - 1
        owner = np.where(before >= 0, chunk[backward[np.maximum(before, 0)]], -1)
        whole = np.array([op == "B" for op, _ in cells])
        chunk[held_back] = np.where((owner >= 0) & whole[owner], owner, -1)
    return _whole_backwards(cells, chunk, rows, side)


def _covered(took: Ints, named: Bools, part: Bools) -> bool:
    whole = int(took[part].sum())
    return whole > 0 and int(took[part & named].sum()) >= ENOUGH * whole


def _cells(runs: list[_Key]) -> tuple[list[tuple[str, int]], list[int]]:
    """(op, pair) of every cell in launch order, and each run's cell.

    A forward that comes back after another forward, or after its own backward, is the next iteration's.
    """
    cells: list[tuple[str, int]] = []
    cell_of_run: list[int] = []
    pair_of: dict[tuple[int, int], int] = {}
    known: dict[tuple[str, int], int] = {}
    gone_back: set[int] = set()
    pairs, last_forward = 0, None
    for op, stage, microbatch in runs:
        place = (stage, microbatch)
        again = op == "F" and (last_forward != place or pair_of.get(place) in gone_back)
        if place not in pair_of or again:
            pair_of[place] = pairs
            pairs += 1
        if op == "F":
            last_forward = place
        else:
            gone_back.add(pair_of[place])
        cell = (op, pair_of[place])
        if cell not in known:
            known[cell] = len(cells)
            cells.append(cell)
        cell_of_run.append(known[cell])
    return cells, cell_of_run


def _whole_backwards(cells: list[tuple[str, int]], chunk: Ints, rows: pl.DataFrame, side: Ints) -> Segments:
    """A backward all of which ran under its W (as on a first stage, which owes nobody an input gradient) is a B."""
    halves = {pair for op, pair in cells if op == "I"}
    engine = np.unique(chunk[(chunk >= 0) & (side == ENGINE) & (rows["label"].cast(pl.String) != "wgrad").to_numpy()])
    whole = {c for c in engine.tolist() if cells[c][0] == "W" and cells[c][1] not in halves}
    ops = ["B" if c in whole else op for c, (op, _) in enumerate(cells)]
    return Segments(ops, np.array([pair for _, pair in cells], np.int64), [SURE] * len(cells), chunk, from_ranges=True)
