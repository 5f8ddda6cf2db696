"""Which known schedule a run followed: exactly, or the nearest with what differs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from tracekit.compare.orders import Difference, differences, distance, grain, pattern, same_work
from tracekit.errors import ScheduleError
from tracekit.schedules import Op, Schedule, Times, generate, names, read_orders
from tracekit.schedules.registry import describe, searched_names

Orders = Mapping[int, Sequence[Op]]
"""The order each rank ran, by its position in the pipeline; ranks may be missing."""


class Match(msgspec.Struct, frozen=True):
    """A schedule, how far the run is from it (0: equal up to grain), and where."""

    schedule: Schedule
    distance: int
    differences: tuple[Difference, ...] = ()
    unfused: int = 0  # FB blocks of the schedule that ran as F and B
    fused: int = 0  # split backwards of the schedule that ran as B
    also: tuple[str, ...] = ()  # names of others that have this order too, on the ranks there are

    @property
    def exact(self) -> bool:
        """Whether the order is the schedule's."""
        return self.distance == 0


class Lazy(Sequence[Schedule]):
    """Schedules made one by one as they are looked at."""

    def __init__(self, make: Callable[[], Iterator[Schedule]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Schedule]:
        return self._make()

    def __len__(self) -> int:
        return sum(1 for _ in self._make())

    def __getitem__(self, index: Any) -> Any:
        return list(self._make())[index]


def likely(pp: int, forwards: int, shape: str, virtual: int) -> Lazy:
    """Return the schedules that place stages the way the messages show; all of them where that is not known."""

    def fits(schedule: Schedule) -> bool:
        if shape == "line":
            return schedule.virtual == 1 and schedule.name != "chimera"
        if shape == "loop":
            return schedule.virtual == virtual and describe(schedule.name).virtual is None
        if shape == "V":
            return describe(schedule.name).virtual == 2 and schedule.name != "dualpipe"
        return schedule.name in ("dualpipe", "chimera") if shape == "two-way" else True

    only = {"line": 1, "loop": virtual}.get(shape)
    return Lazy(lambda: (s for s in candidates(pp, forwards, only_virtual=only) if fits(s)))


def candidates(
    pp: int, forwards: int, times: Times | None = None, *, only_virtual: int | None = None, searched: bool = True
) -> Iterator[Schedule]:
    """Every known schedule in which a rank of *pp* runs so many forwards, the plain ones first.

    Those whose order is searched for, which takes longest, come last, or are left out.

    >>> sorted({s.name for s in candidates(2, 8)} & {"1f1b", "dualpipe", "interleaved"})
    ['1f1b', 'dualpipe', 'interleaved']
    """
    for name in names():
        entry = describe(name)
        if not entry.pipeline or entry.searched:
            continue
        for virtual, group in _shapes(entry.virtual, entry.default_group is not None, pp, forwards):
            if only_virtual not in (None, virtual):
                continue
            for microbatches in {forwards // virtual, forwards} if entry.virtual == 2 else {forwards // virtual}:
                own = None if entry.virtual else virtual
                yield from _try(name, pp, microbatches, virtual=own, group=group, forwards=forwards)
    for name in searched_names() if searched else ():
        yield from _try(name, pp, forwards, forwards=forwards, times=times)


def _shapes(virtual: int | None, grouped: bool, pp: int, forwards: int) -> Iterator[tuple[int, int | None]]:
    if virtual is not None:
        yield virtual, None
        return
    for v in range(1 if grouped else 2, min(forwards, 16) + 1):
        if forwards % v == 0:
            yield v, None
            m = forwards // v
            for group in {g for g in (m, 2 * pp, pp + 1) if grouped and pp <= g <= m} - {pp}:
                yield v, group


def _try(
    name: str,
    pp: int,
    microbatches: int,
    *,
    virtual: int | None = None,
    group: int | None = None,
    forwards: int,
    times: Times | None = None,
) -> Iterator[Schedule]:
    make = _kept if pp * forwards <= KEPT_CELLS and times is None else _made
    made = make(name, pp=pp, microbatches=microbatches, virtual=virtual, group=group, times=times)
    if made is not None and sum(op.kind in ("F", "FB") for op in made.ranks[0]) == forwards:
        yield made


KEPT_CELLS = 4_096
"""Forwards of a schedule up to which it is kept for the next step that asks for it."""


def _made(name: str, **sizes: Any) -> Schedule | None:
    try:
        return generate(name, **sizes)
    except ScheduleError:
        return None


_kept = lru_cache(maxsize=128)(_made)


Traffic = Mapping[int, Mapping[int, int]]
"""Messages each rank sent, by position: ``traffic[from][to]``."""


class _Equal:
    """One run's order, to be compared with many schedules: each rank's pattern is made once."""

    def __init__(self, orders: Orders, traffic: Traffic | None, *, stages_known: bool, weights_by_count: bool) -> None:
        self.orders = orders
        self.traffic = traffic
        self.stages_known = stages_known
        self.weights_by_count = weights_by_count
        self.apart = not any(op.kind == "FB" for order in orders.values() for op in order)
        self._kinds = {rank: _kinds(order) for rank, order in orders.items()}
        self._patterns: dict[int, list[Op]] = {}

    def same(self, schedule: Schedule) -> bool:
        """Return whether the run is the schedule to the letter, stages and micro-batches too."""
        ranks = schedule.ranks
        return self.stages_known and all(list(own) == list(ranks[rank]) for rank, own in self.orders.items())

    def explains(self, schedule: Schedule) -> bool:
        """Return whether the schedule's messages are those that were sent, where that is known."""
        return not self.traffic or _explains(schedule, self.traffic)

    def fits(self, schedule: Schedule) -> bool:
        """Return whether every rank's order has the schedule's pattern."""
        return all(self._rank_fits(rank, schedule.ranks[rank]) for rank in self.orders)

    def _rank_fits(self, rank: int, planned: Sequence[Op]) -> bool:
        own, other = self._kinds[rank], _kinds(planned)
        if own is not None and other is not None and own != other:
            return False
        if rank not in self._patterns:
            self._patterns[rank] = pattern(self.orders[rank])
        return same_work(self._patterns[rank], pattern(planned), weights_by_count=self.weights_by_count)

    def match(self, schedule: Schedule) -> tuple[tuple[bool, bool, int], Match]:
        """Return a fitting schedule as a match, and how well it fits: the smaller, the better."""
        own, ranks = self.orders, schedule.ranks
        lost = [grain(own[r], ranks[r]) for r in own]
        other = self.stages_known and not all(_same_stages(own[r], ranks[r]) for r in own)
        off = sum(abs(_blocks(own[r]) - _blocks(ranks[r])) + abs(_split(own[r]) - _split(ranks[r])) for r in own)
        match = Match(schedule, 0, (), sum(g["FB"] for g in lost), sum(g["I"] for g in lost))
        return (other, self.apart and match.unfused > 0, off), match


def exact_match(
    orders: Orders,
    known: Sequence[Schedule],
    *,
    traffic: Traffic | None = None,
    stages_known: bool = False,
    weights_by_count: bool = False,
) -> Match | None:
    """Return the schedule that has every rank's pattern of forwards, backwards and pairs.

    Of several, the one that explains who sent how much to whom, then the one with the stages that were found, then the
    one nearest in grain. A schedule that contradicts the messages is none. Where the run had no block at all, a
    schedule of blocks comes last.
    """
    run = _Equal(orders, traffic, stages_known=stages_known, weights_by_count=weights_by_count)
    fitting: list[tuple[tuple[bool, bool, int], Match]] = []
    for schedule in known:
        if run.same(schedule) and run.explains(schedule):
            return Match(schedule, 0)
        if not run.fits(schedule) or not run.explains(schedule):
            continue
        rank, match = run.match(schedule)
        if not rank[0] and not rank[2]:
            return match
        fitting.append((rank, match))
    return min(fitting, key=lambda m: m[0])[1] if fitting else None


def with_others(
    match: Match,
    known: Iterable[Schedule],
    equal: Callable[[Sequence[Schedule]], Match | None],
    *,
    cells: int,
    partial: bool,
    blocks: bool,
) -> Match:
    """Return the match with the names of the others of *known* that have this order too.

    One chunk of an interleaved schedule is the plain one: it does not count, nor does one without blocks where the run
    had some (*blocks*), or one with them where all ranks are there and ran none (not *partial*). Large schedules take
    too long to make them all for this.
    """
    if cells > KEPT_CELLS:
        return match
    seen = {match.schedule.name}
    also = []
    for other in known:
        plain = other.virtual == 1 and describe(other.name).virtual is None
        fits = equal([other]) if other.name not in seen and not plain else None
        if fits and (partial or match.unfused or not fits.unfused) and blocks <= any(map(_blocks, other.ranks)):
            seen.add(other.name)
            also.append(other.name)
    return replace(match, also=tuple(also)) if also else match


def _kinds(order: Sequence[Op]) -> str | None:
    """Return the kinds of an order's units of work, as one text; None where blocks may stand either way round.

    >>> _kinds([Op("F", 0, 0), Op("B", 0, 0)])
    'FIW'
    """
    kinds = [op[0] for op in order]
    return None if "FB" in kinds else "".join(kinds).replace("B", "IW")


def _blocks(order: Sequence[Op]) -> int:
    return sum(op.kind == "FB" for op in order)


def _split(order: Sequence[Op]) -> int:
    return sum(op.kind == "W" for op in order)


def _explains(schedule: Schedule, traffic: Traffic) -> bool:
    """Whether the schedule's messages are those that were sent."""
    table, edges = schedule.table, schedule.edges
    count = np.zeros((schedule.pp, schedule.pp), np.int64)
    for producers in (edges.forward, edges.backward):
        to = np.flatnonzero(producers >= 0)
        np.add.at(count, (table.rank[producers[to]], table.rank[to]), 1)
    return all(
        sent.get(to, 0) == count[at, to] for at, sent in traffic.items() for to in range(schedule.pp) if to != at
    )


def _same_stages(measured: Sequence[Op], expected: Sequence[Op]) -> bool:
    own, other = ([op.stage for op in order if op.kind in ("F", "FB")] for order in (measured, expected))
    return own == other


def nearest_match(orders: Orders, known: Iterable[Schedule]) -> Match | None:
    """Return the schedule with the fewest units of work to move; stages and micro-batches must be known."""
    best: tuple[int, Schedule] | None = None
    for schedule in known:
        limit = 400 if best is None else best[0]
        total = 0
        for rank, order in orders.items():
            total += distance(order, schedule.ranks[rank], limit=min(400, limit - total) if best else 400)
            if best is not None and total >= best[0]:
                break
        else:
            best = (total, schedule)
    if best is None:
        return None
    return against(orders, best[1], known_distance=best[0])


def against(orders: Orders, schedule: Schedule, *, known_distance: int | None = None) -> Match:
    """Return the match of the run with one schedule, equal or not."""
    for rank in orders:
        if rank >= len(schedule.ranks):
            raise ScheduleError(
                f"{schedule.name} is for {len(schedule.ranks)} ranks, the run has {max(orders) + 1}",
                hint="name a schedule of this pipeline's size",
            )
    off = {rank: order for rank, order in orders.items() if not same_work(order, schedule.ranks[rank])}
    total = sum(distance(order, schedule.ranks[rank]) for rank, order in off.items())
    places: list[Difference] = []
    for rank, order in off.items():
        places += differences(rank, order, schedule.ranks[rank], most=max(1, 20 - len(places)))
        if len(places) >= 20:
            break
    lost = [grain(orders[r], schedule.ranks[r]) for r in orders]
    return Match(
        schedule,
        total if off else 0,
        tuple(places),
        sum(g["FB"] for g in lost),
        sum(g["I"] for g in lost),
    )


def named(name: str, pp: int, forwards: int, times: Times | None = None) -> list[Schedule]:
    """Return the schedules a user's word can mean here: a name in every fitting size, or a file of orders."""
    if Path(name).suffix or "/" in name:
        return [read_orders(name)]
    wanted = describe(name).name
    return [s for s in candidates(pp, forwards, times) if s.name == wanted]
