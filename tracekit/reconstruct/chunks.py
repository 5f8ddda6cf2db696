"""Chunks put together: forwards, backwards and the weight gradients that ran apart, in launch order."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from tracekit.reconstruct.kernels import ENGINE, FORWARD, Bools, Ints
from tracekit.reconstruct.walks import split_at

SURE, PAIRED, COUNTED, POSITION = 1.0, 0.95, 0.7, 0.5
"""Confidence: an annotation said so; autograd tied it; counted first in, first out; only its position says so."""


class Segments(msgspec.Struct, frozen=True, eq=False):
    """Chunks of one rank and step, in launch order, and the rows each is made of."""

    op: list[str]  # F, I, W or B
    pair: Ints  # which forward (numbered in launch order) the chunk belongs to
    confidence: list[float]
    chunk: Ints  # of every row given: its chunk, -1 for none
    from_ranges: bool = False  # cut by the ranges of the run itself


@dataclass(eq=False)
class Work:
    """The engine's walks as chunks: ``chunk`` of each walk; a chunk is a backward or the weight gradient of one."""

    chunk: Ints
    pair: list[int]  # of each chunk: the chunk that stands for the pair (a backward)
    is_w: list[bool]

    @classmethod
    def of(cls, walk: Ints, owner: Ints, engine: Ints, took: Ints, is_wgrad: Bools) -> Work:
        """Return a chunk for every first walk, and one for its later ones where these are mostly weight gradients.

        These may be many: an engine can be called for one group of parameters after another.
        """
        count = len(owner)
        total = np.bincount(walk, took[engine], count) if count else np.zeros(0)
        weight = np.bincount(walk, took[engine] * is_wgrad[engine], count) if count else np.zeros(0)
        again = owner != np.arange(count)
        later = np.bincount(owner[again], total[again], count) if count else total
        later_weight = np.bincount(owner[again], weight[again], count) if count else weight
        apart = (later_weight > 0.5 * later) | (weight < 0.02 * total)
        work = cls(np.zeros(count, np.int64), [], [])
        weights: dict[int, int] = {}
        for w in range(count):
            first = int(owner[w])
            if first == w:
                work.chunk[w] = work.add(None)
            elif apart[first]:
                if first not in weights:
                    weights[first] = work.add(int(work.chunk[first]))
                work.chunk[w] = weights[first]
            else:  # more of the same backward
                work.chunk[w] = work.chunk[first]
        return work

    def add(self, pair: int | None) -> int:
        """Add a chunk: a backward, or the weight gradient of the chunk *pair*. Return its index."""
        index = len(self.pair)
        self.pair.append(index if pair is None else pair)
        self.is_w.append(pair is not None)
        return index

    @property
    def count(self) -> int:
        """Return how many chunks there are."""
        return len(self.pair)


def runs(rows: Ints, host: Ints, barrier: Ints) -> Ints:
    """Return the number of each row's run: *rows* (in launch order) that no barrier interrupts are one."""
    passed = np.searchsorted(barrier, host[rows], side="right")
    return np.cumsum(np.diff(passed, prepend=passed[:1]) != 0) if len(rows) else passed


@dataclass(eq=False)
class Assembly:
    """Rows with their chunks so far; ``finish`` places the loose weight gradients and lists the chunks."""

    chunk_of: Ints
    side: npt.NDArray[np.int8]
    host: Ints
    took: Ints
    is_wgrad: Bools
    messages: Ints
    work: Work
    guessed: set[int]  # pairs by position alone
    absorbed: set[int] = field(default_factory=set)  # backwards that loose weight gradients joined

    def finish(self, loose: Ints) -> Segments:
        """Place the loose weight gradients, number the pairs by their forwards, and list the chunks in launch order."""
        pieces = self._pieces()
        weights = self._loose(loose, pieces)
        entries: list[tuple[int, str, int, Ints, float]] = []
        split = {pair for pair, _, _ in weights} | {
            self.work.pair[c] for c in range(self.work.count) if self.work.is_w[c] and c in pieces[ENGINE]
        }
        for c, rows in pieces[FORWARD].items():
            sure = PAIRED if c in pieces[ENGINE] and c not in self.guessed else POSITION
            entries.append((int(self.host[rows[0]]), "F", c, rows, sure))
        for c, rows in pieces[ENGINE].items():
            pair = self.work.pair[c]
            op = "W" if self.work.is_w[c] else "I" if pair in split else "B"
            entries.append((int(self.host[rows[0]]), op, pair, rows, POSITION if pair in self.guessed else PAIRED))
        for pair, rows, confidence in weights:
            entries.append((int(self.host[rows[0]]), "W", pair, rows, confidence))
        entries.sort(key=lambda e: e[0])
        names = self._names(entries)
        chunk = np.full(len(self.side), -1, np.int64)
        for index, (_, _, _, rows, _) in enumerate(entries):
            chunk[rows] = index
        return Segments(
            [e[1] for e in entries],
            np.array([names[e[2]] for e in entries], np.int64),
            [e[4] for e in entries],
            chunk,
        )

    def _pieces(self) -> dict[int, dict[int, Ints]]:
        """Rows of every chunk, its forward and its engine part apart."""
        pieces: dict[int, dict[int, Ints]] = {FORWARD: {}, ENGINE: {}}
        for side, parts in pieces.items():
            rows = np.flatnonzero((self.side == side) & (self.chunk_of >= 0))
            order = rows[np.argsort(self.chunk_of[rows], kind="stable")]
            if not len(order):
                continue
            chunks, first = np.unique(self.chunk_of[order], return_index=True)
            parts.update(zip(chunks.tolist(), split_at(order, first[1:]), strict=True))
        return pieces

    def _loose(self, loose: Ints, pieces: dict[int, dict[int, Ints]]) -> list[tuple[int, Ints, float]]:
        """(pair, rows, confidence) of the weight gradients that ran outside autograd."""
        if not len(loose):
            return []
        barrier = np.sort(np.concatenate([self.host[self.chunk_of >= 0], self.messages]))
        run = runs(loose, self.host, barrier)
        apart = self._absorb(split_at(loose, np.flatnonzero(np.diff(run)) + 1), pieces)
        waiting = self._without_weights(apart, pieces)
        parts = _even_parts(apart, len(waiting))
        taken: list[tuple[int, Ints, float]] = []
        placed = self.host[self.chunk_of >= 0]
        for rows in parts:
            at = self.host[rows[0]]
            ready = next((k for k, c in enumerate(waiting) if self.host[pieces[ENGINE][c][0]] < at), None)
            if ready is not None:
                c = waiting.pop(ready)
                taken.append((c, rows, PAIRED if self._at_once(at, c, pieces, placed) else COUNTED))
        return taken

    def _without_weights(self, runs: list[Ints], pieces: dict[int, dict[int, Ints]]) -> list[int]:
        """Backwards that left weight gradients out, in the order they ended: those with far less inside than outside.

        Norms and sums of gradients stay inside autograd, so a few kernels there are not a sign.
        """
        backwards = [c for c in pieces[ENGINE] if not self.work.is_w[c] and c not in self.absorbed]
        inside = {c: float(self.took[rows][self.is_wgrad[rows]].sum()) for c, rows in pieces[ENGINE].items()}
        outside = float(sum(self.took[rows].sum() for rows in runs))
        candidates = backwards
        for _ in range(2):
            candidates = [c for c in backwards if inside[c] < 0.5 * outside / max(1, len(candidates))]
        return sorted(candidates, key=lambda c: int(self.host[pieces[ENGINE][c][-1]]))

    def _at_once(self, at: np.int64, c: int, pieces: dict[int, dict[int, Ints]], placed: Ints) -> bool:
        """Whether weight gradients launched *at* follow directly on a backward, so that they can only be its own."""
        last = self.host[pieces[ENGINE][c][-1]]
        own = self.host[pieces[FORWARD].get(c, pieces[ENGINE][c][:0])]
        return _between(placed, last, at) == _between(own, last, at)

    def _absorb(self, runs: list[Ints], pieces: dict[int, dict[int, Ints]]) -> list[Ints]:
        """Return the runs left: one launched in a backward's middle is part of it, and so is the one at its end."""
        spans = [(int(self.host[rows[0]]), int(self.host[rows[-1]]), c) for c, rows in pieces[ENGINE].items()]
        if not spans:
            return runs
        low, high, chunks = (np.array(values, np.int64) for values in zip(*sorted(spans), strict=True))
        kept, tails = [], []
        for rows in runs:
            at = self.host[rows[0]]
            inside = np.flatnonzero((low < at) & (at < high))
            if len(inside):
                self._join(rows, int(chunks[inside[-1]]), pieces)
            else:
                tails.append(rows)
        placed = np.flatnonzero(self.chunk_of >= 0)
        for rows in tails:
            owner = self._neighbour(rows, placed)
            if owner is None:
                kept.append(rows)
            else:
                self._join(rows, owner, pieces)
        return kept

    def _neighbour(self, rows: Ints, placed: Ints) -> int | None:
        """Return the chunk that a run at its very end, or at the very start of an engine's W, is part of."""
        after = int(np.searchsorted(placed, rows[0]))
        for at, first in ((after - 1, False), (after, True)):
            if not 0 <= at < len(placed) or self.side[placed[at]] != ENGINE:
                continue
            chunk = int(self.chunk_of[placed[at]])
            if self.work.is_w[chunk] or (chunk in self.absorbed and not first):
                return chunk
        return None

    def _join(self, rows: Ints, chunk: int, pieces: dict[int, dict[int, Ints]]) -> None:
        self.absorbed.add(chunk)
        pieces[ENGINE][chunk] = np.sort(np.concatenate([pieces[ENGINE][chunk], rows]))

    def _names(self, entries: list[tuple[int, str, int, Ints, float]]) -> dict[int, int]:
        """Pairs numbered in the order of their forwards; those without one after them."""
        order = [e[2] for e in entries if e[1] == "F"]
        rest = [e[2] for e in entries]
        return {pair: index for index, pair in enumerate(dict.fromkeys(order + rest))}


def _between(launches: Ints, after: np.int64, before: np.int64) -> int:
    """Return how many of these (in order) lie between two moments."""
    return max(0, int(np.searchsorted(launches, before) - np.searchsorted(launches, after, side="right")))


def _even_parts(runs: list[Ints], wanted: int) -> list[Ints]:
    """Several weight gradients in a row look like one long run: cut runs to the usual length, drop stray kernels."""
    total = sum(len(r) for r in runs)
    if not wanted or not total:
        return []
    unit = total / wanted
    parts: list[Ints] = []
    for rows in runs:
        pieces = min(round(len(rows) / unit), len(rows))
        if pieces:
            parts += np.array_split(rows, pieces)
    return parts
