"""The autograd engine's walks: which of its kernels are one backward, and where one ends and the next begins.

A backward walks sequence numbers downwards, so a jump up begins the next. Backwards that follow each other downwards
are cut where messages, or the same forward twice, show that they are two. A second walk over numbers already seen is
the weight gradient of that backward.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import msgspec
import numpy as np
import numpy.typing as npt

from tracekit._loops import autograd_walks
from tracekit._util.arrays import as_int64
from tracekit._util.categories import CategoryColumn
from tracekit.reconstruct.kernels import ENGINE, FORWARD, LOOSE, MESSAGE, Bools, Ints, Kernels


class View(msgspec.Struct, frozen=True, eq=False):
    """The columns the cuts look at; ``forward`` lists the forward rows by sequence number."""

    number: Ints
    host: Ints
    name: npt.NDArray[np.uint32]
    forward: Ints
    messages: Ints
    received: int  # see _received


def _received(messages: CategoryColumn) -> int:
    """Return the number of messages received by a rank with only one neighbour; 0 for any other."""
    often = np.bincount(messages.codes, minlength=len(messages.values)).tolist()
    sent = [(text, count) for text, count in zip(messages.values, often, strict=True) if count]
    words = [(word.partition(":"), count) for text, count in sent for word in text.split(",")]
    peers = {peer for (_, _, peer), _ in words}
    return sum(n for (way, _, _), n in words if way == "recv") if len(peers) == 1 and "?" not in peers else 0


def _walks(number: Ints, outside: Ints) -> tuple[Ints, Ints]:
    known = number[number >= 0]
    if not len(known):
        return np.zeros(len(number), np.int64), np.zeros(min(1, len(number)), np.int64)
    low = known.min()
    owner = np.full(int(known.max() - low) + 1, -1, np.int64)
    following, walk = np.full((2, len(number)), -1, np.int64)
    of = np.full(len(number) + 1, -1, np.int64)
    count = autograd_walks.number_walks(as_int64(number), as_int64(outside), low, owner, following, walk, of)
    return np.maximum(walk, 0), of[:count]  # rows before the first number join the first walk


def _split_by_messages(walk: Ints, engine: Ints, view: View) -> Ints:
    """Backwards run last in, first out walk on downwards: cut where they and their forwards had a message between."""
    rows = np.flatnonzero(view.number[engine] >= 0)
    if len(rows) < 2 or not len(view.messages) or not len(view.forward):
        return walk
    numbers, passed = view.number[engine[rows]], np.searchsorted(view.messages, view.host[engine[rows]])
    place = np.flatnonzero((walk[rows[1:]] == walk[rows[:-1]]) & (passed[1:] > passed[:-1]))
    f_number = view.number[view.forward]
    f_passed = np.searchsorted(view.messages, view.host[view.forward])
    before = np.searchsorted(f_number, numbers[place + 1], side="right") - 1
    after = np.searchsorted(f_number, numbers[place], side="left")
    real = (before >= 0) & (after < len(f_number))
    apart = np.zeros(len(place), bool)
    apart[real] = f_passed[after[real]] > f_passed[before[real]]
    return _cut(walk, rows[place[apart] + 1])


def _split_halves(walk: Ints, engine: Ints, view: View, first_visit: Bools) -> Ints:
    """Two stages that follow each other on one rank exchange no message: cut a walk that is one thing twice.

    Twice: its two halves run kernels of the same names in the same order. That alone may be two equal layers, so either
    the half is what most other walks are made of, or this is the end of the line (one neighbour), where every forward
    with its backward receives one message (its input or its gradient), and the cuts make as many as were received.
    """
    rows = np.flatnonzero(first_visit)
    if len(rows) < 2:
        return walk
    order = rows[np.argsort(walk[rows], kind="stable")]
    parts = split_at(order, np.flatnonzero(np.diff(walk[order])) + 1)
    names = [tuple(view.name[engine[part]].tolist()) for part in parts]
    count = Counter(names)
    usual = count.most_common(1)[0][0]
    doubles = sorted((n for n in count if _half(n)), key=len, reverse=True)
    chosen = {n for n in doubles if _half(n) == usual} | _explaining(doubles, count, view.received - len(parts))
    cuts = [int(part[len(part) // 2]) for part, n in zip(parts, names, strict=True) if n in chosen]
    return _cut(walk, np.array(cuts, np.int64))


def _half(names: tuple[int, ...]) -> tuple[int, ...]:
    """Return half of a walk's kernels, where both halves have the same; else nothing."""
    middle = len(names) // 2
    return names[:middle] if names[:middle] == names[middle:] else ()


def _explaining(doubles: list[tuple[int, ...]], count: Counter[tuple[int, ...]], missing: int) -> set[tuple[int, ...]]:
    """Return the longest walks that, each cut in two, make up for the *missing* ones; none if they do not come out."""
    for taken in range(1, len(doubles) + 1):
        if sum(count[n] for n in doubles[:taken]) == missing:
            return set(doubles[:taken])
    return set()


def _cut(walk: Ints, places: Ints) -> Ints:
    """Return the walks numbered anew, with a new one at each of the places."""
    cuts = np.zeros(len(walk), np.int64)
    cuts[places] = 1
    return walk + np.cumsum(cuts)


def _first_visits(walk: Ints, owner: Ints, number: Ints) -> Bools:
    """Rows whose walk goes over its numbers for the first time."""
    return (number >= 0) & (owner[walk] == walk) if len(owner) else np.zeros(len(walk), bool)


def _homes(walk: Ints, number: Ints, first: Bools) -> Ints:
    """Per row the (cut) walk that went over its number first; -1 where it has no number."""
    home = np.full(len(walk), -1, np.int64)
    known = np.flatnonzero(number >= 0)
    if not len(known):
        return home
    low = number[known].min()
    of_number = np.full(int(number[known].max() - low) + 1, -1, np.int64)
    visits = np.flatnonzero(first)
    of_number[number[visits] - low] = walk[visits]
    home[known] = of_number[number[known] - low]
    return home


def _rewalk(number: Ints, home: Ints, begun: Ints) -> tuple[Ints, Ints]:
    """Return walks and owners once all cuts are known: a new walk where one was *begun* or the home changes."""
    if not len(number):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    walk = np.zeros(len(number), np.int64)
    of, seen = np.full((2, len(number) + 1), -1, np.int64)
    count = autograd_walks.renumber_walks(as_int64(number), as_int64(home), as_int64(begun), walk, of, seen)
    return walk, np.where(of < 0, 0, of)[:count]


def _lean_forward(walk: Ints, numbered: Bools, passed: Ints) -> Ints:
    """Give kernels without a number to the walk after them where forwards or messages part them from the one before.

    A backward begins with a few (its seed of ones); *passed* counts forwards and messages up to each kernel.
    """
    known = np.flatnonzero(numbered)
    loose = np.flatnonzero(~numbered)
    if not len(known) or not len(loose):
        return walk
    after = np.searchsorted(known, loose)
    follows = np.minimum(after, len(known) - 1)
    before = np.maximum(after - 1, 0)
    parted = (after == 0) | (passed[known[before]] != passed[loose])
    joined = (after < len(known)) & (passed[known[follows]] == passed[loose])
    moved = walk.copy()
    moved[loose[parted & joined]] = walk[known[follows[parted & joined]]]
    return moved


def split_at(rows: Ints, cuts: Ints) -> list[Ints]:
    """Return *rows* cut before each of the places, as ``np.split`` does but with no work for each piece.

    >>> [part.tolist() for part in split_at(np.arange(4), np.array([1]))]
    [[0], [1, 2, 3]]
    """
    edges = [0, *cuts.tolist(), len(rows)]
    return [rows[a:b] for a, b in pairwise(edges)]


def find_walks(kernels: Kernels) -> tuple[Ints, Ints, View]:
    """Return the walk of every engine kernel (in launch order), each walk's owner, and the columns looked at.

    The owner of a walk is the walk that went over its numbers first: itself, or the backward it is the W of.
    """
    side, host, number = kernels.side, kernels.host_ns, kernels.number
    forward = np.flatnonzero((side == FORWARD) & (number >= 0))
    forward = forward[np.argsort(number[forward], kind="stable")]
    message = side == MESSAGE
    received = _received(CategoryColumn(kernels.p2p.values, kernels.p2p.codes[message]))
    view = View(number, host, kernels.name, forward, host[message], received)
    engine = np.flatnonzero(side == ENGINE)
    walk, owner = _walks(number[engine], np.cumsum(side == LOOSE)[engine])
    first = _first_visits(walk, owner, number[engine])
    cut = _split_halves(_split_by_messages(walk, engine, view), engine, view, first)
    walk, owner = _rewalk(number[engine], _homes(cut, number[engine], first), walk)
    barriers = np.cumsum((side == FORWARD) | message)[engine]
    return _lean_forward(walk, number[engine] >= 0, barriers), owner, view
