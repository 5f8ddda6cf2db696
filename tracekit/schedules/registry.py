"""Registry of schedules by name, to which users can add their own."""

from __future__ import annotations

from collections.abc import Callable

from tracekit._util.text import did_you_mean
from tracekit.errors import ScheduleError
from tracekit.schedules.catalogue import CATALOGUE, Entry, Orders, Sizes
from tracekit.schedules.ops import parse_orders
from tracekit.schedules.schedule import Schedule
from tracekit.schedules.times import Times

MAX_FORWARDS = 4_000_000
"""Forwards of a schedule; more would take too much memory."""

_ENTRIES: dict[str, Entry] = {entry.name: entry for entry in CATALOGUE}


def register(
    name: str,
    build: Callable[[Sizes], Orders],
    *,
    summary: str,
    source: str = "",
    constraint: str = "",
    holds: Callable[[Sizes], bool] = lambda _: True,
    virtual: int | None = 1,
    default_group: Callable[[int, int], int | None] | None = None,
    replace: bool = False,
) -> Entry:
    """Add a schedule of your own; *build* takes the sizes and returns one order per rank.

    >>> _ = register("one-by-one", lambda n: [" ".join(f"{r}F{i} {r}B{i}" for i in range(n.microbatches))
    ...     for r in range(n.pp)], summary="no pipelining at all", replace=True)
    >>> generate("one-by-one", pp=2, microbatches=2).orders()
    [['0F0', '0B0', '0F1', '0B1'], ['1F0', '1B0', '1F1', '1B1']]
    >>> unregister("one-by-one")
    """
    if name in _ENTRIES and not replace:
        raise ScheduleError(f"there is already a schedule called {name}", hint="pass replace=True to take its place")
    entry = Entry(name, build, summary, source, constraint, holds, virtual, default_group)
    _ENTRIES[name] = entry
    return entry


def unregister(name: str) -> None:
    """Remove a schedule.

    >>> _ = register("idle", lambda n: [""] * n.pp, summary="nothing runs")
    >>> unregister("idle")
    >>> "idle" in names()
    False
    """
    _ENTRIES.pop(describe(name).name)


def names() -> list[str]:
    """Return the names of all schedules.

    >>> "dualpipe" in names()
    True
    """
    return list(_ENTRIES)


def searched_names() -> list[str]:
    """Return the names of the schedules whose order is searched for the given times.

    >>> searched_names()
    ['zb-1p', 'zb-2p']
    """
    return [name for name, entry in _ENTRIES.items() if entry.searched]


def describe(name: str) -> Entry:
    """Return the entry of a schedule; the error for an unknown name suggests the nearest one.

    >>> describe("1f1b").summary
    'one forward, one backward: warm up, alternate, drain'
    >>> describe("dualpip")
    Traceback (most recent call last):
    tracekit.errors.ScheduleError: no schedule is called 'dualpip' (did you mean dualpipe?)
    """
    wanted = name.strip().lower().replace("_", "-")
    if wanted in _ENTRIES:
        return _ENTRIES[wanted]
    hint = did_you_mean(wanted, _ENTRIES, otherwise=f"known: {', '.join(_ENTRIES)}", cutoff=0.5)
    raise ScheduleError(f"no schedule is called {name!r}", hint=hint)


def generate(
    name: str,
    *,
    pp: int,
    microbatches: int,
    virtual: int | None = None,
    group: int | None = None,
    times: Times | None = None,
) -> Schedule:
    """Return a schedule with the order of every rank. Only searched schedules depend on *times*.

    >>> generate("1f1b", pp=2, microbatches=2).orders()
    [['0F0', '0F1', '0B0', '0B1'], ['1F0', '1B0', '1F1', '1B1']]
    >>> generate("dualpipe", pp=8, microbatches=12)
    Traceback (most recent call last):
    tracekit.errors.ScheduleError: dualpipe needs an even number of ranks and at least 2×pp micro-batches; got pp=8, \
microbatches=12
    """
    entry = describe(name)
    if not entry.pipeline:
        raise ScheduleError(f"{entry.name} is not a pipeline schedule", hint="use tracekit.schedules.weight_reload")
    for size, value in (("pp", pp), ("microbatches", microbatches), ("virtual", virtual), ("group", group)):
        if value is not None and value < 1:
            raise ScheduleError(f"{size} must be 1 or more; got {value}")
    sizes = Sizes(
        pp=pp,
        microbatches=microbatches,
        virtual=_choose_virtual(entry, virtual),
        group=_choose_group(entry, pp, microbatches, group),
        times=times or Times(),
    )
    if pp * microbatches * sizes.virtual > MAX_FORWARDS:
        raise ScheduleError(
            f"pp={pp} × microbatches={microbatches} × virtual={sizes.virtual} is more than {MAX_FORWARDS:,} forwards",
            hint="use smaller sizes",
        )
    if not entry.holds(sizes):
        raise _constraint_error(entry, sizes, group)
    ranks = tuple(parse_orders(rank) if isinstance(rank, str) else tuple(rank) for rank in entry.build(sizes))
    if len(ranks) != pp:
        raise ScheduleError(f"{entry.name}: its generator made {len(ranks)} ranks, not {pp}")
    return Schedule(entry.name, pp, microbatches, sizes.virtual, ranks, sizes.group or None)


def _choose_virtual(entry: Entry, virtual: int | None) -> int:
    """Return the chunks per rank; raise if the schedule does not have as many as requested."""
    if entry.virtual is None:
        return 2 if virtual is None else virtual
    if virtual not in (None, entry.virtual):
        raise ScheduleError(f"{entry.name} has virtual={entry.virtual}; got virtual={virtual}", hint="leave it out")
    return entry.virtual


def _choose_group(entry: Entry, pp: int, microbatches: int, group: int | None) -> int:
    """Return the micro-batches per group, 0 if there are no groups; raise if the schedule has none."""
    if entry.default_group is None:
        if group is not None:
            raise ScheduleError(f"{entry.name} has no groups; got group={group}", hint="leave it out")
        return 0
    return entry.default_group(pp, microbatches) or 0 if group is None else group


def _constraint_error(entry: Entry, sizes: Sizes, group: int | None) -> ScheduleError:
    requested = f"pp={sizes.pp}, microbatches={sizes.microbatches}"
    requested += f", virtual={sizes.virtual}" if entry.virtual is None else ""
    requested += f", group={group}" if group is not None else ""
    return ScheduleError(f"{entry.constraint}; got {requested}")
