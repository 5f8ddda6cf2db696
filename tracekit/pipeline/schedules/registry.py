"""Registry of schedules by name, to which users can add their own."""

import tomllib
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tracekit._util.text import did_you_mean
from tracekit.errors import ScheduleError
from tracekit.pipeline.schedules import (
    classic,
    controllable,
    dualpipe,
    greedy,
    interleaved,
    zero_bubble,
)
from tracekit.pipeline.schedules.ops import Op, parse_orders
from tracekit.pipeline.schedules.schedule import Schedule
from tracekit.pipeline.schedules.times import Times


class Sizes(NamedTuple):
    """Sizes and times of the schedule to generate. ``group`` is 0 where the schedule has no groups.

    >>> Sizes(pp=4, microbatches=8, virtual=1, group=0, times=Times()).pp
    4
    """

    pp: int
    microbatches: int
    virtual: int
    group: int
    times: Times


Orders = Iterable[Sequence[Op] | str]
"""The order of each rank: ops, or a line in the notation."""


class Entry(msgspec.Struct, frozen=True):
    """A schedule of the registry.

    >>> from tracekit.pipeline.schedules import describe
    >>> describe("1f1b").virtual
    1
    """

    name: str
    build: Callable[[Sizes], Orders]
    summary: str
    source: str = ""
    constraint: str = ""
    """Sizes it accepts, in words: "dualpipe needs …"; empty if it accepts any."""
    holds: Callable[[Sizes], bool] = lambda _: True
    """Whether the constraint holds for some sizes."""
    virtual: int | None = 1
    """Chunks per rank; None: the user chooses (default ``DEFAULT_VIRTUAL``)."""
    default_group: Callable[[int, int], int | None] | None = None
    """Micro-batches per group for some ranks and micro-batches; None: the schedule has no
    groups."""
    pipeline: bool = True
    """Whether it is a pipeline of micro-batches; weight-reload is not."""
    searched: bool = False
    """Whether its order is searched for the given times, so that its sizes do not determine it."""
    frameworks: tuple[str, ...] | None = None
    """Frameworks of training that have it; None of a schedule that a user registered."""


_GROUP_CONSTRAINT = (
    "needs micro-batches that divide into equal groups of about pp, or a group G with pp ≤ G ≤ microbatches "
    "whose rest is 0 or at least pp micro-batches"
)


def _has_valid_group(n: Sizes) -> bool:
    """Return whether ``_GROUP_CONSTRAINT`` holds."""
    if n.group == interleaved.default_group(n.pp, n.microbatches):
        return True
    rest = n.microbatches % n.group if n.group else 1
    return n.pp <= n.group <= n.microbatches and (rest == 0 or rest >= n.pp)


_CATALOGUE_TEXTS = tomllib.loads(
    Path(__file__).with_name("catalogue.toml").read_text(encoding="utf-8")
)


def _entry(name: str, build: Callable[[Sizes], Orders], **options: Any) -> Entry:
    """Return the entry of a schedule whose texts are in ``catalogue.toml``.

    *options* are further fields.
    """
    texts = dict(_CATALOGUE_TEXTS[name])
    frameworks = tuple(texts.pop("frameworks", ()))
    return Entry(name, build, frameworks=frameworks, **texts, **options)


def _by_size(build: Callable[[int, int], Orders]) -> Callable[[Sizes], Orders]:
    """Return the builder of a schedule that ranks and micro-batches alone determine."""
    return lambda n: build(n.pp, n.microbatches)


def _grouped_entry(name: str, build: Callable[[int, int, int, int], Orders]) -> Entry:
    """Return the entry of an interleaved schedule, whose micro-batches run in groups."""
    options = {
        "holds": _has_valid_group,
        "virtual": None,
        "default_group": interleaved.default_group,
    }
    constraint = f"{name} {_GROUP_CONSTRAINT}"
    return _entry(
        name,
        lambda n: build(n.pp, n.microbatches, n.virtual, n.group),
        constraint=constraint,
        **options,
    )


CATALOGUE = (
    _entry("gpipe", _by_size(classic.gpipe)),
    _entry("1f1b", _by_size(classic.one_f_one_b)),
    _grouped_entry("interleaved", interleaved.interleaved),
    _grouped_entry("interleaved-overlap", partial(interleaved.interleaved, overlap=True)),
    _entry(
        "looped-bfs",
        lambda n: interleaved.looped_bfs(n.pp, n.microbatches, n.virtual),
        virtual=None,
    ),
    _entry("zb-h1", lambda n: zero_bubble.zb_h(n.pp, n.microbatches, h=1)),
    _entry("zb-h2", lambda n: zero_bubble.zb_h(n.pp, n.microbatches, h=2)),
    _entry(
        "zb-1p", lambda n: greedy.search(n.pp, n.microbatches, n.times, limit=n.pp), searched=True
    ),
    _entry(
        "zb-2p",
        lambda n: greedy.search(n.pp, n.microbatches, n.times, limit=2 * n.pp),
        searched=True,
    ),
    _grouped_entry("interleaved-zb", interleaved.interleaved_zero_bubble),
    _entry("zb-v", _by_size(zero_bubble.zb_v), virtual=2),
    _entry("v-half", _by_size(controllable.v_half), virtual=2),
    _entry("v-min", _by_size(controllable.v_min), virtual=2),
    _entry(
        "chimera",
        _by_size(classic.chimera),
        holds=lambda n: n.pp % 2 == 0 and n.microbatches % n.pp == 0,
    ),
    _entry(
        "dualpipe",
        _by_size(dualpipe.dualpipe),
        holds=lambda n: n.pp % 2 == 0 and n.microbatches >= 2 * n.pp,
        virtual=2,
    ),
    _entry(
        "dualpipev",
        _by_size(dualpipe.dualpipev),
        holds=lambda n: n.microbatches >= 2 * n.pp,
        virtual=2,
    ),
    _entry("weight-reload", lambda _: (), pipeline=False),
)
"""In the order ``names()`` lists them: of schedules that some ranks cannot tell apart, the first is the commonest."""


DEFAULT_VIRTUAL = 2
"""Chunks per rank of a schedule whose user chooses them, and did not."""
MAX_FORWARDS = 500_000
"""Forwards of a schedule; more would take minutes, and gigabytes of memory."""

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
        raise ScheduleError(
            f"there is already a schedule called {name}", hint="pass replace=True to take its place"
        )
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
        raise ScheduleError(
            f"{entry.name} is not a pipeline schedule",
            hint="use tracekit.weight_reload",
        )
    for size, value in (
        ("pp", pp),
        ("microbatches", microbatches),
        ("virtual", virtual),
        ("group", group),
    ):
        if value is not None and value < 1:
            raise ScheduleError(f"{size} must be 1 or more; got {value}")
    chosen_group = _choose_group(entry, pp, microbatches, group)
    sizes = Sizes(pp, microbatches, _choose_virtual(entry, virtual), chosen_group, times or Times())
    if pp * microbatches * sizes.virtual > MAX_FORWARDS:
        product = f"pp={pp} × microbatches={microbatches} × virtual={sizes.virtual}"
        raise ScheduleError(
            f"{product} is more than {MAX_FORWARDS:,} forwards", hint="use smaller sizes"
        )
    if not entry.holds(sizes):
        raise _constraint_error(entry, sizes, group)
    ranks = [
        parse_orders(order) if isinstance(order, str) else tuple(order)
        for order in entry.build(sizes)
    ]
    if len(ranks) != pp:
        raise ScheduleError(f"{entry.name}: its generator made {len(ranks)} ranks, not {pp}")
    return Schedule(entry.name, pp, microbatches, sizes.virtual, tuple(ranks), sizes.group or None)


def _choose_virtual(entry: Entry, virtual: int | None) -> int:
    """Return the chunks per rank; raise if the schedule does not have as many as requested."""
    if entry.virtual is None:
        return DEFAULT_VIRTUAL if virtual is None else virtual
    if virtual not in (None, entry.virtual):
        raise ScheduleError(
            f"{entry.name} has virtual={entry.virtual}; got virtual={virtual}", hint="leave it out"
        )
    return entry.virtual


def _choose_group(entry: Entry, pp: int, microbatches: int, group: int | None) -> int:
    """Return the micro-batches per group, 0 if there are no groups.

    Raise if the schedule has none.
    """
    if entry.default_group is None:
        if group is not None:
            raise ScheduleError(
                f"{entry.name} has no groups; got group={group}", hint="leave it out"
            )
        return 0
    return entry.default_group(pp, microbatches) or 0 if group is None else group


def _constraint_error(entry: Entry, sizes: Sizes, group: int | None) -> ScheduleError:
    requested = f"pp={sizes.pp}, microbatches={sizes.microbatches}"
    requested += f", virtual={sizes.virtual}" if entry.virtual is None else ""
    requested += f", group={group}" if group is not None else ""
    return ScheduleError(f"{entry.constraint}; got {requested}")
