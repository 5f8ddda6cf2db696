"""One rank's kernels cut into chunks of work: forwards, backwards and weight gradients that run apart.

What the host launched, in the order it launched it, says more than the GPU's clock. A backward walks the autograd
sequence numbers downwards, so a jump up is a new backward, and the numbers it covered are its forward's. A second walk
over the same numbers is the weight gradient of that backward. Weight gradients that run outside autograd have no
number to go by: they are counted off against the backwards that left them out, first in, first out.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.columns import present
from tracekit.reconstruct.chunks import Assembly, Segments, Work, runs
from tracekit.reconstruct.kernels import ENGINE, FORWARD, LOOSE, Ints, Kernels
from tracekit.reconstruct.ranges import by_ranges
from tracekit.reconstruct.walks import View, find_walks, split_at


def segment(kernels: Kernels) -> Segments:
    """Return the chunks of one step's kernels: by the run's own ranges, else by evidence."""
    return by_ranges(kernels) or by_evidence(kernels)


def by_evidence(kernels: Kernels) -> Segments:
    """Return the chunks of one step's kernels without using ranges."""
    side, took, is_wgrad = kernels.side, kernels.took_ns, kernels.is_wgrad
    engine = np.flatnonzero(side == ENGINE)
    walk, owner, view = find_walks(kernels)
    work = Work.of(walk, owner, engine, took, is_wgrad)
    chunk_of = np.full(len(side), -1, np.int64)
    chunk_of[engine] = work.chunk[walk] if len(engine) else walk
    forward = np.flatnonzero(side == FORWARD)
    chunk_of[forward] = _forwards(forward, view.number, chunk_of, engine, work) if len(engine) else -1
    chunk_of = _leftovers(chunk_of, forward, took, view, work)
    chunk_of, guessed = _orphans(chunk_of, side, view, work)
    loose = np.flatnonzero(side == LOOSE)
    return Assembly(chunk_of, side, view.host, took, is_wgrad, view.messages, work, guessed).finish(loose)


def segment_steps(rows: pl.DataFrame) -> list[tuple[int, Ints, Segments]]:
    """Return for each step, in order, its number, the places of its rows (as ``prepare`` gives them) and its chunks."""
    known = np.flatnonzero(present(rows["step"]))
    steps = rows["step"].to_numpy()[known].astype(np.int64)
    order = np.argsort(steps, kind="stable")
    at, steps = known[order], steps[order]
    kernels = Kernels.of(rows if len(at) == len(rows) and (np.diff(at) == 1).all() else rows[at])
    edges = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), len(steps)]
    return [(int(steps[a]), at[a:b], segment(kernels.part(a, b))) for a, b in pairwise(edges) if b > a]


def _forwards(forward: Ints, number: Ints, chunk_of: Ints, engine: Ints, work: Work) -> Ints:
    """Return the backward whose numbers each forward kernel's falls among, -1 for none."""
    numbers = number[forward]
    numbered = engine[(number[engine] >= 0)]
    numbered = numbered[~np.array(work.is_w, bool)[chunk_of[numbered]]]
    if not len(numbered):
        return np.full(len(numbers), -1, np.int64)
    low, high = np.full(work.count, np.iinfo(np.int64).max), np.full(work.count, -1, np.int64)
    np.minimum.at(low, chunk_of[numbered], number[numbered])
    np.maximum.at(high, chunk_of[numbered], number[numbered])
    order = np.argsort(low, kind="stable")
    place = np.searchsorted(low[order], numbers, side="right") - 1
    nearest = order[np.maximum(place, 0)]
    inside = (place >= 0) & (numbers >= 0) & (numbers <= high[nearest])
    return np.where(inside, nearest, -1)


def _leftovers(chunk_of: Ints, forward: Ints, took: Ints, view: View, work: Work) -> Ints:
    """Forward kernels without a backward: what no message parts from a forward is part of it, and so are small bits.

    The rest is a forward whose backward is not in the trace; it gets a pair of its own here.
    """
    chunk_of, host, messages = chunk_of.copy(), view.host, view.messages
    free = forward[chunk_of[forward] < 0]
    if not len(free):
        return chunk_of
    owned = forward[chunk_of[forward] >= 0]
    placed = np.flatnonzero(chunk_of >= 0)
    forwards = np.zeros(len(chunk_of), bool)
    forwards[owned] = True
    usual = np.median(np.bincount(chunk_of[owned], took[owned])[np.unique(chunk_of[owned])]) if len(owned) else 0
    others = np.sort(np.concatenate([host[placed], messages]))
    begun = np.full(work.count, np.iinfo(np.int64).max)  # when each pair's backward was first launched
    back = placed[~forwards[placed]]
    np.minimum.at(begun, chunk_of[back], host[back])
    passed = np.searchsorted(messages, host)  # messages launched before each
    pieces = split_at(free, np.flatnonzero(np.diff(runs(free, host, others))) + 1)
    after = np.searchsorted(placed, [rows[0] for rows in pieces]).tolist()
    for at, rows in zip(after, pieces, strict=True):
        beside = [placed[k] for k in (at - 1, at) if 0 <= k < len(placed) and forwards[placed[k]]]
        clear = [k for k in beside if passed[k] == passed[rows[0]]]
        if clear:
            chunk_of[rows] = chunk_of[clear[0]]
        elif len(owned) and took[rows].sum() < 0.3 * usual:
            near = owned[np.argmin(np.abs(host[owned] - host[rows[0]]))]
            if host[rows[0]] < begun[chunk_of[near]]:  # else gradients that are scaled at the end of the step, say
                chunk_of[rows] = chunk_of[near]
        else:
            chunk_of[rows] = work.add(None)
    return chunk_of


def _orphans(chunk_of: Ints, side: npt.NDArray[np.int8], view: View, work: Work) -> tuple[Ints, set[int]]:
    """Backwards whose numbers no forward has: tied to forwards without a backward by position, first in, first out.

    So it is with traces without sequence numbers, and with recomputed layers, whose backward walks over new numbers.
    One backward is then what no forward and no message interrupts.
    """
    engine, forward = side == ENGINE, side == FORWARD
    owned = set(np.unique(chunk_of[forward & (chunk_of >= 0)]).tolist())
    kept = np.array([work.is_w[c] or c in owned for c in range(work.count)], bool)
    orphan = np.flatnonzero(engine & (chunk_of >= 0) & ~kept[chunk_of]) if work.count else np.zeros(0, np.int64)
    with_backward = set(np.unique(chunk_of[engine & (chunk_of >= 0)]).tolist())
    placed = np.flatnonzero(forward & (chunk_of >= 0))
    chunks, first = np.unique(chunk_of[placed], return_index=True)
    launched = {c: int(at) for c, at in zip(chunks.tolist(), view.host[placed[first]], strict=True)}
    lonely = deque(sorted(owned - with_backward, key=lambda c: launched[c]))
    if not len(orphan) or not lonely:
        return chunk_of, set()
    others = engine.copy()
    others[orphan] = False
    barrier = np.sort(np.concatenate([view.host[forward | others], view.messages]))
    run = runs(orphan, view.host, barrier)
    tied, guessed = chunk_of.copy(), set()
    for rows in split_at(orphan, np.flatnonzero(np.diff(run)) + 1):
        if lonely and launched[lonely[0]] < view.host[rows[0]]:
            guessed.add(lonely[0])
            tied[rows] = lonely.popleft()
    return tied, guessed
