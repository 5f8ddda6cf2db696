"""One rank's kernels cut into chunks of work: forwards, backwards and weight gradients that run apart.

What the host launched, in the order it launched it, says more than the GPU's clock. A backward walks the autograd
sequence numbers downwards, so a jump up is a new backward, and the numbers it covered are its forward's. A second walk
over the same numbers is the weight gradient of that backward. Weight gradients that run outside autograd have no
number to go by: they are counted off against the backwards that left them out, first in, first out.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.reconstruct import ranges
from tracekit.reconstruct.chunks import Assembly, Segments, Work, between, runs
from tracekit.reconstruct.walks import ENGINE, FORWARD, LOOSE, MESSAGE, NONE, Ints, View, find_walks, split_at


def prepare(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that reconstruction looks at, in the order the host launched them, with what each is (``side``).

    >>> from tracekit.schema import LABELLED, conform
    >>> rows = [{"label": "forward", "launch_ns": 5, "start_ns": 9}, {"label": "wgrad", "launch_ns": 2, "start_ns": 9}]
    >>> prepare(conform(pl.DataFrame(rows), LABELLED))["side"].to_list()
    [3, 1]
    """
    label = pl.col("label").cast(pl.String)
    engine = pl.col("node").is_not_null()
    side = (
        pl.when(label.is_in(["dgrad", "backward", "recompute"]) | ((label == "wgrad") & engine))
        .then(ENGINE)
        .when(label == "wgrad")
        .then(LOOSE)
        .when(label == "forward")
        .then(FORWARD)
        .when((label == "pp_comm") & pl.col("p2p").is_not_null())
        .then(MESSAGE)
        .otherwise(NONE)
    )
    text = pl.coalesce(pl.col("annotations").cast(pl.String), pl.col("annotation").cast(pl.String))
    rows = labelled.with_columns(side=side.cast(pl.Int8), text=text)
    named = ranges.names(rows["text"], backward=rows["side"].is_in([ENGINE, LOOSE]))
    # A stage or a micro-batch alone is the classifier's count, which does not look across ranks.
    both = pl.col("stage").is_not_null() & pl.col("microbatch").is_not_null()
    return (
        rows.drop("text")
        .with_columns(
            *(pl.coalesce(named[n], pl.when(both).then(pl.col(n))).alias(n) for n in ("stage", "microbatch")),
            told_op=named["op"],
            block=named["block"],
            host_ns=pl.coalesce("launch_ns", "start_ns"),
            number=pl.when(pl.col("autograd_sequence").is_between(0, 2**62) & (label != "recompute")).then(
                "autograd_sequence"
            ),
        )
        .sort("host_ns", maintain_order=True)
        .with_row_index("row")
    )


def segment(rows: pl.DataFrame) -> Segments:
    """Return the chunks of one step's rows (as ``prepare`` gives them): by the run's own ranges, else by evidence."""
    return ranges.by_ranges(rows) or by_evidence(rows)


def by_evidence(rows: pl.DataFrame) -> Segments:
    """Return the chunks of one step's rows without using ranges."""
    side = rows["side"].to_numpy()
    took = (rows["end_ns"] - rows["start_ns"]).to_numpy()
    is_wgrad = (rows["label"].cast(pl.String) == "wgrad").to_numpy()
    engine = np.flatnonzero(side == ENGINE)
    walk, owner, view = find_walks(rows)
    work = Work.of(walk, owner, engine, took, is_wgrad)
    chunk_of = np.full(len(side), -1, np.int64)
    chunk_of[engine] = work.chunk[walk] if len(engine) else walk
    forward = np.flatnonzero(side == FORWARD)
    chunk_of[forward] = _forwards(forward, view.number, chunk_of, engine, work) if len(engine) else -1
    chunk_of = _leftovers(chunk_of, forward, took, view, work)
    chunk_of, guessed = _orphans(chunk_of, side, view, work)
    loose = np.flatnonzero(side == LOOSE)
    return Assembly(chunk_of, side, view.host, took, is_wgrad, view.messages, work, guessed).finish(loose)


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
    run = runs(free, host, others)
    for rows in split_at(free, np.flatnonzero(np.diff(run)) + 1):
        at = int(np.searchsorted(placed, rows[0]))
        beside = [placed[k] for k in (at - 1, at) if 0 <= k < len(placed) and forwards[placed[k]]]
        clear = [k for k in beside if not between(messages, host[k], host[rows[0]])]
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
