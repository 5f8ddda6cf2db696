"""The steps that every call over traces shares: find the sources, and check that the ranks are of one run.

``load``, ``analyze``, ``ingest`` and ``diagnose`` call ``find_sources``, ``map_sources``
(``store.source_workers``) and ``check_run`` with their own work in the middle.
"""

from collections.abc import Collection, Sequence
from typing import Literal, get_args

from tracekit._util.notices import merge_notices
from tracekit.errors import Notice, OptionError
from tracekit.parsers.discovery import Discovery
from tracekit.parsers.rank_numbers import unknown_rank_error
from tracekit.roles.assign import find_roles
from tracekit.roles.combine import check_roles
from tracekit.schema import Source
from tracekit.store.sources import (
    OneRole,
    Paths,
    check_one_run,
    check_strict,
    copied_ranks_notices,
    missing_notice,
)

Span = tuple[Source, int | None, int | None]
"""A rank's source, and its first and last time in ns."""


def find_sources(
    paths: Paths | OneRole,
    *,
    ranks: Collection[int] | None = None,
    rank: int | None = None,
    strict: bool = False,
) -> Discovery:
    """Return what to read at *paths*: one source per rank where the rank is known before reading.

    >>> [ref.rank for ref in find_sources("sample_traces/reload", ranks=[1, 3]).refs]
    [1, 3]
    """
    discovery = find_roles(paths, ranks=ranks, rank=rank)
    if strict:
        check_strict(discovery.notices)
    return discovery


def check_run(
    spans: Sequence[Span],
    *,
    ranks: Collection[int] | None = None,
    failed: bool = False,
    strict: bool = False,
    named: bool = False,
) -> tuple[Notice, ...]:
    """Return the notices of the sources, of ranks that are copies of each other, and of missing ones.

    Raise if the ranks are of different runs.

    A rank of *ranks* that was not read raises, unless sources *failed*: their own notices tell why.
    Roles, which the caller may have *named*, are checked one by one, and that they ran at the same
    time.
    """
    sources = [source for source, _, _ in spans]
    present = {source.rank for source in sources}
    absent = set(ranks or ()) - present
    if not failed and (absent or not present):
        raise unknown_rank_error(absent or ranks or (), present)
    by_role = _spans_by_role(spans)
    check_same_run(spans, named=named)
    missing: list[Notice] = []
    for role, of_role in by_role.items() if ranks is None else ():
        missing += missing_notice([source for source, _, _ in of_role], role=role)
    of_run = (*copied_ranks_notices(sources), *missing)
    if strict:
        check_strict(of_run)
    return (*merge_notices((source.rank, source.notices) for source in sources), *of_run)


def check_same_run(spans: Sequence[Span], *, named: bool = False) -> None:
    """Raise if the ranks of a role are of different runs, or if the roles did not run at the same time.

    *named* if the caller named the roles.
    """
    for of_role in _spans_by_role(spans).values():
        check_one_run(of_role)
    check_roles(spans, named=named)


def _spans_by_role(spans: Sequence[Span]) -> dict[str | None, list[Span]]:
    by_role: dict[str | None, list[Span]] = {}
    for source_span in spans:
        by_role.setdefault(source_span[0].role, []).append(source_span)
    return by_role


OnDamage = Literal["warn", "skip", "error"]
"""Treatment of damaged or missing ranks: use what can be read, with a notice (``warn``); leave out
ranks whose file is damaged, with a notice (``skip``); or raise (``error``)."""


def check_on_damage(on_damage: str) -> None:
    """Raise if there is no such treatment of damaged ranks.

    >>> check_on_damage("ignore")
    Traceback (most recent call last):
    tracekit.errors.OptionError: on_damage cannot be 'ignore' (use warn, skip or error)
    """
    if on_damage not in get_args(OnDamage):
        raise OptionError(f"on_damage cannot be {on_damage!r}", hint="use warn, skip or error")
