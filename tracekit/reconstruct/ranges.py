"""Cutting by the run's own ``PP:`` ranges: where the work lies in such ranges, these are the chunks."""

from __future__ import annotations

import numpy as np

from tracekit._util.arrays import Bools, Ints
from tracekit.reconstruct.chunks import CONFIDENCE_ANNOTATED, StepChunks
from tracekit.reconstruct.kernels import AUTOGRAD, FORWARD, LOOSE_WGRAD, Kernels

MIN_SHARE_OF_TIME_IN_RANGES = 0.9
"""Share of the time of forward kernels, and of backward kernels, that must lie in ranges for these to decide."""

_Cell = tuple[str, int]
"""Op, and the pair it belongs to."""


def cut_by_ranges(kernels: Kernels) -> StepChunks | None:
    """Cut the kernels of one step by the ranges they were launched in; return None if too many were in none.

    Weight gradients outside every range belong to the ``B`` before them: they were held back to run beside its send.
    """
    category = kernels.category
    is_named = np.isin(category, (FORWARD, AUTOGRAD, LOOSE_WGRAD)) & kernels.named_op.present
    if not all(_is_covered(kernels.duration_ns, is_named, category == part) for part in (FORWARD, AUTOGRAD)):
        return None
    named = np.flatnonzero(is_named)
    cells, cell_of_named = _find_cells(kernels, named)
    chunk = np.full(len(category), -1, np.int64)
    chunk[named] = cell_of_named
    held_back = np.flatnonzero((category == LOOSE_WGRAD) & ~is_named)
    if len(held_back):
        split = {pair for op, pair in cells if op == "I"}
        if split - {pair for op, pair in cells if op == "W"}:
            return None  # the unnamed weight gradients are W that have to be counted off
        # The named backward kernel before each of them tells the cell; only a whole backward (B) holds any back.
        backward = named[np.array([op != "F" for op, _ in cells])[cell_of_named]]
        before = np.searchsorted(backward, held_back) - 1
        owner = np.where(before >= 0, chunk[backward[np.maximum(before, 0)]], -1)
        is_whole = np.array([op == "B" for op, _ in cells])
        chunk[held_back] = np.where((owner >= 0) & is_whole[owner], owner, -1)
    return StepChunks(
        op=_rename_whole_backwards(cells, chunk, kernels),
        pair=np.array([pair for _, pair in cells], np.int64),
        confidence=[CONFIDENCE_ANNOTATED] * len(cells),
        chunk=chunk,
        from_ranges=True,
    )


def _is_covered(duration_ns: Ints, is_named: Bools, is_part: Bools) -> bool:
    """Return whether named kernels take enough of the time of a part of the kernels."""
    total = int(duration_ns[is_part].sum())
    return total > 0 and int(duration_ns[is_part & is_named].sum()) >= MIN_SHARE_OF_TIME_IN_RANGES * total


def _find_cells(kernels: Kernels, named: Ints) -> tuple[list[_Cell], Ints]:
    """Return the cells in launch order, and the cell of each of the *named* rows.

    A forward that comes back after another forward, or after its own backward, is the next iteration's.
    """
    # Kernels in a row with the same op, stage and micro-batch are one run.
    name = np.stack([kernels.named_op.codes[named], kernels.stage[named], kernels.microbatch[named]])
    begins_run = np.ones(len(named), np.bool_)
    begins_run[1:] = (name[:, 1:] != name[:, :-1]).any(axis=0)
    index_of_cell: dict[_Cell, int] = {}
    cell_of_run: list[int] = []
    pair_of: dict[tuple[int, int], int] = {}  # current pair of each stage and micro-batch
    pairs_with_backward: set[int] = set()
    pairs, last_forward = 0, None
    for code, stage, microbatch in name[:, begins_run].T.tolist():
        op, key = kernels.named_op.values[code], (stage, microbatch)
        comes_back = op == "F" and (last_forward != key or pair_of.get(key) in pairs_with_backward)
        if key not in pair_of or comes_back:
            pair_of[key] = pairs
            pairs += 1
        if op == "F":
            last_forward = key
        else:
            pairs_with_backward.add(pair_of[key])
        cell_of_run.append(index_of_cell.setdefault((op, pair_of[key]), len(index_of_cell)))
    return list(index_of_cell), np.array(cell_of_run, np.int64)[np.cumsum(begins_run) - 1]


def _rename_whole_backwards(cells: list[_Cell], chunk: Ints, kernels: Kernels) -> list[str]:
    """Return the op of each cell, B for a W without an I that ran the whole backward.

    A first stage owes nobody an input gradient, so some runtimes run its backward under the name of W.
    """
    split = {pair for op, pair in cells if op == "I"}
    with_backward = set(chunk[(chunk >= 0) & (kernels.category == AUTOGRAD) & ~kernels.is_wgrad].tolist())
    return [
        "B" if op == "W" and index in with_backward and pair not in split else op
        for index, (op, pair) in enumerate(cells)
    ]
