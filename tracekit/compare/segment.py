"""One rank's kernels cut into chunks of work: forwards, backwards and weight gradients that run apart.

What the host launched, in the order it launched it, says more than the GPU's clock. A backward walks the autograd
sequence numbers downwards, so a jump up is a new backward, and the numbers it covered are its forward's. A second walk
over the same numbers is the weight gradient of that backward. Weight gradients that run outside autograd have no
number to go by: they are counted off against the backwards that left them out, first in, first out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numba
import numpy as np
import numpy.typing as npt
import polars as pl

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NONE, FORWARD, ENGINE, LOOSE, MESSAGE = range(5)
"""What a kernel is here: nothing of ours, a forward, run by autograd, a weight gradient outside it, a p2p kernel."""

_PIPELINE_RANGE = r"PP:(\d+)([FIWB])(\d+)"
_PIPELINE_PAIR = r"PP:\((\d+)F(\d+);(\d+)B(\d+)\)"
SURE, PAIRED, COUNTED, POSITION = 1.0, 0.95, 0.7, 0.5
"""Confidence: an annotation said so; autograd tied it; counted first in, first out; only its position says so."""


@dataclass(frozen=True, eq=False)
class Segments:
    """Chunks of one rank and step, in launch order, and the rows each is made of."""

    op: list[str]  # F, I, W or B
    pair: Ints  # which forward (numbered in launch order) the chunk belongs to
    confidence: list[float]
    chunk: Ints  # of every row given: its chunk, -1 for none


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
    plain, pair = text.str.extract_groups(_PIPELINE_RANGE), text.str.extract_groups(_PIPELINE_PAIR)
    backwards = side == ENGINE

    def told(column: str, plain_group: str, forward_group: str, backward_group: str) -> pl.Expr:
        half = pl.when(backwards).then(pair.struct.field(backward_group)).otherwise(pair.struct.field(forward_group))
        found = pl.coalesce(plain.struct.field(plain_group), half).cast(pl.Int32)
        # A stage or a micro-batch alone is the classifier's count, which does not look across ranks.
        both = pl.col("stage").is_not_null() & pl.col("microbatch").is_not_null()
        return pl.coalesce(found, pl.when(both).then(pl.col(column))).alias(column)

    return (
        labelled.with_columns(
            told("stage", "1", "1", "3"),
            told("microbatch", "3", "2", "4"),
            side=side.cast(pl.Int8),
            host_ns=pl.coalesce("launch_ns", "start_ns"),
            block=text.str.extract(_PIPELINE_PAIR, 0),
            number=pl.when(pl.col("autograd_sequence").is_between(0, 2**62) & (label != "recompute")).then(
                "autograd_sequence"
            ),
        )
        .sort("host_ns", maintain_order=True)
        .with_row_index("row")
    )


def segment(rows: pl.DataFrame) -> Segments:
    """Cut the rows of one step (as ``prepare`` gives them) into chunks."""
    side, host = rows["side"].to_numpy(), rows["host_ns"].to_numpy()
    number = rows["number"].fill_null(-1).to_numpy()
    took = (rows["end_ns"] - rows["start_ns"]).to_numpy()
    is_wgrad = (rows["label"].cast(pl.String) == "wgrad").to_numpy()
    messages = host[side == MESSAGE]

    engine = np.flatnonzero(side == ENGINE)
    walk, owner = _walks(number[engine])
    in_order = np.flatnonzero((side == FORWARD) & (number >= 0))
    in_order = in_order[np.argsort(number[in_order], kind="stable")]
    view = _View(number, host, rows["name"].to_physical().to_numpy(), in_order, messages, _received(rows))
    first = _first_visits(walk, owner, number[engine])
    cut = _split_halves(_split_by_messages(walk, engine, view), engine, view, first)
    walk, owner = _rewalk(number[engine], _homes(cut, number[engine], first))
    walk = _lean_forward(walk, number[engine] >= 0, np.cumsum((side == FORWARD) | (side == MESSAGE))[engine])
    work = _Work.of(walk, owner, engine, took, is_wgrad)
    chunk_of = np.full(len(side), -1, np.int64)
    chunk_of[engine] = work.chunk[walk] if len(engine) else walk
    forward = np.flatnonzero(side == FORWARD)
    chunk_of[forward] = _forwards(number[forward], number, chunk_of, engine, work) if len(engine) else -1
    chunk_of = _leftovers(chunk_of, forward, took, view, work)
    chunk_of, guessed = _orphans(chunk_of, side, view, work)
    loose = np.flatnonzero(side == LOOSE)
    return _Assembly(chunk_of, side, host, took, is_wgrad, messages, work, guessed).finish(loose)


@dataclass(frozen=True, eq=False)
class _View:
    """The columns the cuts look at; ``forward`` lists the forward rows by sequence number."""

    number: Ints
    host: Ints
    name: npt.NDArray[np.uint32]
    forward: Ints
    messages: Ints
    received: int  # see _received


def _received(rows: pl.DataFrame) -> int:
    """Messages received by a rank with one neighbour alone; 0 for any other."""
    texts = rows.filter(pl.col("side") == MESSAGE)["p2p"].cast(pl.String).str.split(",").explode()
    peers = texts.str.split(":").list.get(1).unique().to_list()
    return int(texts.str.starts_with("recv").sum()) if len(peers) == 1 and peers != ["?"] else 0


@numba.njit(cache=True)
def _walk(number: Ints, low: np.int64, owner: Ints) -> tuple[Ints, Ints]:
    """Return number the downward walks; ``of`` is the earlier walk a walk goes over again, else itself."""
    walk = np.full(len(number), -1, np.int64)
    of = np.full(len(number) + 1, -1, np.int64)
    current, last = np.int64(-1), np.int64(-1)
    for i in range(len(number)):
        n = number[i]
        if n < 0:
            walk[i] = current
            continue
        seen = owner[n - low]
        again = seen >= 0 and (of[current] != seen or n > last) and n != last
        fresh = seen < 0 and current >= 0 and of[current] != current  # below a weight gradient: the next backward
        if current < 0 or n > last or again or fresh:
            current += 1
            of[current] = seen if again else current
        if owner[n - low] < 0:
            owner[n - low] = of[current]
        walk[i] = current
        last = n
    return walk, of[: current + 1]


def _walks(number: Ints) -> tuple[Ints, Ints]:
    known = number[number >= 0]
    if not len(known):
        return np.zeros(len(number), np.int64), np.zeros(min(1, len(number)), np.int64)
    low = known.min()
    walk, of = _walk(number, low, np.full(int(known.max() - low) + 1, -1, np.int64))
    return np.maximum(walk, 0), of  # rows before the first number join the first walk


def _split_by_messages(walk: Ints, engine: Ints, view: _View) -> Ints:
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


def _split_halves(walk: Ints, engine: Ints, view: _View, first_visit: Bools) -> Ints:
    """Two stages that follow each other on one rank exchange no message: cut a walk whose forward is one thing twice.

    Only where the kernels of the two forward halves bear the same names, and either the half is what most other walks'
    forwards are made of, or this is the end of the line (one neighbour) and yet got two messages for every walk: at an
    end either the forward or the backward of a stage has nothing to receive, so these must be two stages.
    """
    rows = np.flatnonzero(first_visit)
    if len(rows) < 2 or not len(view.forward):
        return walk
    count = int(walk.max()) + 1
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, -1, np.int64)
    np.minimum.at(low, walk[rows], view.number[engine[rows]])
    np.maximum.at(high, walk[rows], view.number[engine[rows]])
    f_number = view.number[view.forward]
    first, last = np.searchsorted(f_number, low), np.searchsorted(f_number, high, side="right")
    halves = {int(w): half for w in np.flatnonzero(last - first > 1) if (half := _half(view, first[w], last[w]))}
    if not halves:
        return walk
    whole = Counter(_names(view, first[w], last[w]) for w in range(count) if last[w] > first[w])
    usual = whole.most_common(1)[0][0]
    twice = view.received >= 1.95 * len(np.unique(walk[rows]))
    cuts = []
    for w, half in halves.items():
        if twice or half == usual:
            middle = (first[w] + last[w]) // 2
            mine = rows[walk[rows] == w]
            below = mine[view.number[engine[mine]] < f_number[middle]]
            cuts += [int(below[0])] if len(below) and len(below) < len(mine) else []
    return _cut(walk, np.array(cuts, np.int64))


def _names(view: _View, first: int, last: int) -> tuple[int, ...]:
    return tuple(sorted(view.name[view.forward[first:last]].tolist()))


def _half(view: _View, first: int, last: int) -> tuple[int, ...]:
    """Return the kernels of half a forward, where both halves have the same; else nothing."""
    middle = (first + last) // 2
    numbers = view.number[view.forward[[middle - 1, middle]]]
    half = _names(view, first, middle)
    return half if numbers[0] != numbers[1] and half == _names(view, middle, last) else ()


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


@numba.njit(cache=True)
def _rewalked(number: Ints, home: Ints) -> tuple[Ints, Ints]:
    walk, of = np.zeros(len(number), np.int64), np.full(len(number) + 1, -1, np.int64)
    seen = np.full(len(number) + 1, -1, np.int64)  # walk that stands for each home
    current, last = np.int64(-1), np.int64(-1)
    here = np.int64(-1)
    for i in range(len(number)):
        if number[i] >= 0:
            if current < 0 or home[i] != here or number[i] > last:
                current += 1
                here = home[i]
                if seen[here] < 0:
                    seen[here] = current
                of[current] = seen[here]
            last = number[i]
        walk[i] = current if current >= 0 else 0
    return walk, of[: max(current + 1, 1)]


def _rewalk(number: Ints, home: Ints) -> tuple[Ints, Ints]:
    """Return walks and owners once all cuts are known: a new walk wherever the home changes or the numbers jump up."""
    if not len(number):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    walk, of = _rewalked(number, home)
    return walk, np.where(of < 0, 0, of)


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


@dataclass(eq=False)
class _Work:
    """The engine's walks as chunks: ``chunk`` of each walk; a chunk is a backward or the weight gradient of one."""

    chunk: Ints
    pair: list[int]  # of each chunk: the chunk that stands for the pair (a backward)
    is_w: list[bool]

    @classmethod
    def of(cls, walk: Ints, owner: Ints, engine: Ints, took: Ints, is_wgrad: Bools) -> _Work:
        count = len(owner)
        total = np.bincount(walk, took[engine], count) if count else np.zeros(0)
        weight = np.bincount(walk, took[engine] * is_wgrad[engine], count) if count else np.zeros(0)
        work = cls(np.zeros(count, np.int64), [], [])
        for w in range(count):
            mine = int(owner[w])
            apart = mine != w and (weight[w] > 0.5 * total[w] or weight[mine] < 0.02 * total[mine])
            if mine == w or apart:
                work.chunk[w] = work.add(None if mine == w else int(work.chunk[mine]))
            else:  # more of the same backward
                work.chunk[w] = work.chunk[mine]
        return work

    def add(self, pair: int | None) -> int:
        index = len(self.pair)
        self.pair.append(index if pair is None else pair)
        self.is_w.append(pair is not None)
        return index

    @property
    def count(self) -> int:
        return len(self.pair)


def _forwards(numbers: Ints, number: Ints, chunk_of: Ints, engine: Ints, work: _Work) -> Ints:
    """Return the backward whose numbers each forward kernel's falls among, -1 for none."""
    mine = engine[(number[engine] >= 0)]
    mine = mine[~np.array(work.is_w, bool)[chunk_of[mine]]]
    if not len(mine):
        return np.full(len(numbers), -1, np.int64)
    low, high = np.full(work.count, np.iinfo(np.int64).max), np.full(work.count, -1, np.int64)
    np.minimum.at(low, chunk_of[mine], number[mine])
    np.maximum.at(high, chunk_of[mine], number[mine])
    order = np.argsort(low, kind="stable")
    place = np.searchsorted(low[order], numbers, side="right") - 1
    found = order[np.maximum(place, 0)]
    inside = (place >= 0) & (numbers >= 0) & (numbers <= high[found])
    return np.where(inside, found, -1)


def _runs(rows: Ints, host: Ints, barrier: Ints) -> Ints:
    """Return number the runs among *rows* (in launch order) that no barrier interrupts."""
    passed = np.searchsorted(barrier, host[rows], side="right")
    return np.cumsum(np.diff(passed, prepend=passed[:1]) != 0) if len(rows) else passed


def _leftovers(chunk_of: Ints, forward: Ints, took: Ints, view: _View, work: _Work) -> Ints:
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
    run = _runs(free, host, others)
    for r in range(int(run.max()) + 1):
        rows = free[run == r]
        at = int(np.searchsorted(placed, rows[0]))
        beside = [placed[k] for k in (at - 1, at) if 0 <= k < len(placed) and forwards[placed[k]]]
        clear = [k for k in beside if not _between(messages, host[k], host[rows[0]])]
        if clear:
            chunk_of[rows] = chunk_of[clear[0]]
        elif len(owned) and took[rows].sum() < 0.3 * usual:
            near = owned[np.argmin(np.abs(host[owned] - host[rows[0]]))]
            chunk_of[rows] = chunk_of[near]
        else:
            chunk_of[rows] = work.add(None)
    return chunk_of


def _orphans(chunk_of: Ints, side: npt.NDArray[np.int8], view: _View, work: _Work) -> tuple[Ints, set[int]]:
    """Backwards whose numbers no forward has: tied to forwards without a backward by position, first in, first out.

    So it is with traces without sequence numbers, and with recomputed layers, whose backward walks over new numbers.
    One backward is then what no forward and no message interrupts.
    """
    engine, forward = side == ENGINE, side == FORWARD
    owned = set(np.unique(chunk_of[forward & (chunk_of >= 0)]).tolist())
    kept = np.array([work.is_w[c] or c in owned for c in range(work.count)], bool)
    orphan = np.flatnonzero(engine & (chunk_of >= 0) & ~kept[chunk_of]) if work.count else np.zeros(0, np.int64)
    with_backward = set(np.unique(chunk_of[engine & (chunk_of >= 0)]).tolist())
    first_launch = {c: int(view.host[forward & (chunk_of == c)][0]) for c in owned - with_backward}
    lonely = sorted(first_launch, key=lambda c: first_launch[c])
    if not len(orphan) or not lonely:
        return chunk_of, set()
    others = engine.copy()
    others[orphan] = False
    barrier = np.sort(np.concatenate([view.host[forward | others], view.messages]))
    run = _runs(orphan, view.host, barrier)
    tied, guessed = chunk_of.copy(), set()
    for rows in np.split(orphan, np.flatnonzero(np.diff(run)) + 1):
        ready = [c for c in lonely if first_launch[c] < view.host[rows[0]]]
        if ready:
            lonely.remove(ready[0])
            guessed.add(ready[0])
            tied[rows] = ready[0]
    return tied, guessed


def _between(messages: Ints, a: np.int64, b: np.int64) -> bool:
    low, high = np.searchsorted(messages, [min(a, b), max(a, b)])
    return bool(high > low)


@dataclass(eq=False)
class _Assembly:
    chunk_of: Ints
    side: npt.NDArray[np.int8]
    host: Ints
    took: Ints
    is_wgrad: Bools
    messages: Ints
    work: _Work
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
        found: dict[int, dict[int, Ints]] = {FORWARD: {}, ENGINE: {}}
        for side, parts in found.items():
            rows = np.flatnonzero((self.side == side) & (self.chunk_of >= 0))
            order = rows[np.argsort(self.chunk_of[rows], kind="stable")]
            if not len(order):
                continue
            chunks, first = np.unique(self.chunk_of[order], return_index=True)
            for c, part in zip(chunks.tolist(), np.split(order, first[1:]), strict=True):
                parts[int(c)] = part
        return found

    def _loose(self, loose: Ints, pieces: dict[int, dict[int, Ints]]) -> list[tuple[int, Ints, float]]:
        """(pair, rows, confidence) of the weight gradients that ran outside autograd."""
        if not len(loose):
            return []
        barrier = np.sort(np.concatenate([self.host[self.chunk_of >= 0], self.messages]))
        run = _runs(loose, self.host, barrier)
        runs = self._absorb(np.split(loose, np.flatnonzero(np.diff(run)) + 1), pieces)
        waiting = self._without_weights(runs, pieces)
        parts = _even_parts(runs, len(waiting))
        taken: list[tuple[int, Ints, float]] = []
        for rows in parts:
            ready = [c for c in waiting if self.host[pieces[ENGINE][c][0]] < self.host[rows[0]]]
            if ready:
                waiting.remove(ready[0])
                taken.append((ready[0], rows, PAIRED if self._at_once(rows, ready[0], pieces) else COUNTED))
        return taken

    def _without_weights(self, runs: list[Ints], pieces: dict[int, dict[int, Ints]]) -> list[int]:
        """Backwards that left weight gradients out, in the order they ended: those with far less inside than outside.

        Norms and sums of gradients stay inside autograd, so a little is no sign.
        """
        backwards = [c for c in pieces[ENGINE] if not self.work.is_w[c] and c not in self.absorbed]
        inside = {c: float(self.took[rows][self.is_wgrad[rows]].sum()) for c, rows in pieces[ENGINE].items()}
        outside = float(sum(self.took[rows].sum() for rows in runs))
        found = backwards
        for _ in range(2):
            found = [c for c in backwards if inside[c] < 0.5 * outside / max(1, len(found))]
        return sorted(found, key=lambda c: int(self.host[pieces[ENGINE][c][-1]]))

    def _at_once(self, rows: Ints, c: int, pieces: dict[int, dict[int, Ints]]) -> bool:
        """Whether weight gradients follow directly on a backward, so that they can only be its own."""
        last = self.host[pieces[ENGINE][c][-1]]
        others = self.host[(self.chunk_of >= 0) & (self.chunk_of != c)]
        return not ((others > last) & (others < self.host[rows[0]])).any()

    def _absorb(self, runs: list[Ints], pieces: dict[int, dict[int, Ints]]) -> list[Ints]:
        """Return runs launched in the middle of a backward are part of it, and so is the one right at its end."""
        spans = [
            (int(self.host[rows[0]]), int(self.host[rows[-1]]), c)
            for c, rows in pieces[ENGINE].items()
            if not self.work.is_w[c]
        ]
        if not spans:
            return runs
        low, high, chunks = (np.array(values, np.int64) for values in zip(*sorted(spans), strict=True))
        kept, tails = [], []
        for rows in runs:
            at = self.host[rows[0]]
            inside = np.flatnonzero((low < at) & (at < high))
            if len(inside):
                self._join(rows, int(chunks[inside[0]]), pieces)
            else:
                tails.append(rows)
        placed = np.flatnonzero(self.chunk_of >= 0)
        for rows in tails:
            before = int(np.searchsorted(placed, rows[0])) - 1
            last = placed[before] if before >= 0 else -1
            follows = last >= 0 and self.side[last] == ENGINE and int(self.chunk_of[last]) in self.absorbed
            if follows:
                self._join(rows, int(self.chunk_of[last]), pieces)
            else:
                kept.append(rows)
        return kept

    def _join(self, rows: Ints, chunk: int, pieces: dict[int, dict[int, Ints]]) -> None:
        self.absorbed.add(chunk)
        pieces[ENGINE][chunk] = np.sort(np.concatenate([pieces[ENGINE][chunk], rows]))

    def _names(self, entries: list[tuple[int, str, int, Ints, float]]) -> dict[int, int]:
        """Pairs numbered in the order of their forwards; those without one after them."""
        order = [e[2] for e in entries if e[1] == "F"]
        rest = [e[2] for e in entries]
        return {pair: index for index, pair in enumerate(dict.fromkeys(order + rest))}


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
