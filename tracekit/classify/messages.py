"""What a pipeline's messages carry: activations or gradients, by the work done between them.

A send passes on what was computed before it. Where a forward and a backward ran side by side since the last message,
both results are owed: the peer tells them apart, where the two kinds go to different ranks, else the one done first
goes first.
"""

from __future__ import annotations

import numpy as np

from tracekit._util.arrays import Bools
from tracekit._util.categories import CategoryColumn
from tracekit.classify._nest import Ints

_PASSES = ("forward", "backward")
_FEW = 4
"""One exception in so many does not count."""


def sent_passes(at: Ints, made: CategoryColumn, sends: Bools, peer: Ints, order: Ints | None = None) -> CategoryColumn:
    """Pass of every send. *made* is the pass of compute whose result may be sent, so no weight gradient's.

    *order* are the rows whose time is known, in order of time, where that has been found already.

    >>> at, made = np.array([1, 2, 3, 4]), CategoryColumn(_PASSES, np.array([0, 1, -1, -1]))
    >>> sent_passes(at, made, np.array([False, False, True, True]), np.array([-1, -1, 2, 2])).series("pass").to_list()
    [None, None, 'forward', 'backward']
    """
    out = np.full(len(at), -1, np.int64)
    if order is None:
        order = np.argsort(at, kind="stable")
        order = order[at[order] >= 0]
    rows = order[sends[order]]
    if not len(rows):
        return CategoryColumn(_PASSES, out)
    codes = _coded(made)[order]
    done = [at[order[codes == way]] for way in (0, 1)]
    count = np.stack([np.searchsorted(times, at[rows]) for times in done])  # results of each pass before each send
    fresh = (np.diff(count, axis=1, prepend=-1) > 0).any(axis=0)
    run = np.cumsum(fresh) - 1  # sends with nothing computed between them
    first = np.flatnonzero(fresh)
    new = np.diff(count[:, first], axis=1, prepend=0) > 0  # of every run: which passes ran since the run before
    last = np.stack([np.append(times, -1)[place - 1] for times, place in zip(done, count[:, first], strict=True)])
    later = np.argmax(np.where(new, last, -1), axis=0)
    known, mixed = new[0] | new[1], new[0] & new[1]
    pure = (known & ~mixed)[run]
    place, length = np.arange(len(rows)) - first[run], np.bincount(run)
    usual = _usual(length[known & ~mixed])
    both = np.where(place < usual, 1 - later[run], later[run])
    by_order = np.where(length[run] == 2 * usual, both, np.where(length[run] == usual, later[run], -1))
    certain = np.where(pure, later[run], -1)
    by_peer = _by_peer(peer[rows], certain)
    out[rows] = np.where(by_peer >= 0, by_peer, np.where(mixed[run], by_order, certain))
    return CategoryColumn(_PASSES, out)


def _coded(values: CategoryColumn) -> Ints:
    return values.look_up(np.array([*(_PASSES.index(v) if v in _PASSES else -1 for v in values.values), -1], np.int64))


def _usual(lengths: Ints) -> int:
    """How many messages one result takes: as many as most runs have."""
    return int(np.bincount(lengths).argmax()) if len(lengths) else 1


def _by_peer(peer: Ints, known: Ints) -> Ints:
    """Pass of what each peer is sent, where activations go to some ranks and gradients to others.

    Few exceptions among the *known* do not count: a message may be sent only after the next result is there.
    """
    none = np.full(len(peer), -1, np.int64)
    usable = (peer >= 0) & (known >= 0)
    size = int(peer.max(initial=-1)) + 1
    seen = np.stack([np.bincount(peer[usable & (known == way)], minlength=size) for way in (0, 1)])
    way = np.where(seen.any(axis=0), np.argmax(seen, axis=0), -1)
    apart = bool((_FEW * seen.min(axis=0) <= seen.max(axis=0)).all()) and {0, 1} <= set(way.tolist())
    return np.where(peer >= 0, np.append(way, -1)[peer], -1) if apart else none
