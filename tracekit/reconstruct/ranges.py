"""Cells that a run names itself: where the work lies in ``PP:`` ranges, these are the cells, whatever ran inside."""

from __future__ import annotations

import numpy as np

from tracekit.reconstruct.chunks import SURE, Segments
from tracekit.reconstruct.kernels import ENGINE, FORWARD, LOOSE, Bools, Ints, Kernels

ENOUGH = 0.9
"""Share of the forward and of the backward kernels' time that must lie under ranges for these to decide."""

_Key = tuple[str, int, int]
"""Op, stage, micro-batch."""


def by_ranges(kernels: Kernels) -> Segments | None:
    """Return the kernels of one step cut by the ranges they were launched in; None where too many were in none.

    Weight gradients outside every range that follow a ``B`` are its own, held back to run beside its send.
    """
    if not kernels.told_op.present.any():
        return None
    side = kernels.side
    named = np.isin(side, (FORWARD, ENGINE, LOOSE)) & kernels.told_op.present
    if not all(_covered(kernels.took_ns, named, side == part) for part in (FORWARD, ENGINE)):
        return None
    at = np.flatnonzero(named)
    cells, cell_of_run, run = _named_cells(kernels, at)
    chunk = np.full(len(side), -1, np.int64)
    chunk[at] = np.array(cell_of_run, np.int64)[run]
    held_back = np.flatnonzero((side == LOOSE) & ~named)
    if len(held_back):
        if {pair for op, pair in cells if op == "I"} - {pair for op, pair in cells if op == "W"}:
            return None  # these are W that nobody named: to be counted
        backward = at[np.array([op != "F" for op, _ in cells])[chunk[at]]]
        before = np.searchsorted(backward, held_back) - 1
        owner = np.where(before >= 0, chunk[backward[np.maximum(before, 0)]], -1)
        whole = np.array([op == "B" for op, _ in cells])
        chunk[held_back] = np.where((owner >= 0) & whole[owner], owner, -1)
    return _whole_backwards(cells, chunk, kernels)


def _named_cells(kernels: Kernels, at: Ints) -> tuple[list[tuple[str, int]], list[int], Ints]:
    """(op, pair) of every cell, the cell of each run of kernels with one name, and each kernel's run."""
    key = np.stack([kernels.told_op.codes[at], kernels.stage[at], kernels.microbatch[at]])
    new = np.ones(len(at), np.bool_)
    new[1:] = (key[:, 1:] != key[:, :-1]).any(axis=0)
    runs = [(kernels.told_op.values[op], stage, batch) for op, stage, batch in key[:, new].T.tolist()]
    return *_cells(runs), np.cumsum(new) - 1


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


def _whole_backwards(cells: list[tuple[str, int]], chunk: Ints, kernels: Kernels) -> Segments:
    """A backward all of which ran under its W (as on a first stage, which owes nobody an input gradient) is a B."""
    halves = {pair for op, pair in cells if op == "I"}
    engine = np.unique(chunk[(chunk >= 0) & (kernels.side == ENGINE) & ~kernels.is_wgrad])
    whole = {c for c in engine.tolist() if cells[c][0] == "W" and cells[c][1] not in halves}
    ops = ["B" if c in whole else op for c, (op, _) in enumerate(cells)]
    return Segments(ops, np.array([pair for _, pair in cells], np.int64), [SURE] * len(cells), chunk, from_ranges=True)
