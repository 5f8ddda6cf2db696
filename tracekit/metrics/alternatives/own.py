"""Entries of the catalogue that users and installed packages add."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points

import msgspec
import polars as pl

from tracekit.errors import Notice, OptionError
from tracekit.metrics.alternatives.entry import FIGURES_IN_SENTENCES, Alternative
from tracekit.metrics.alternatives.remedy import REMEDIES
from tracekit.metrics.attainable import GpuRates
from tracekit.metrics.rank_work import RankWork

ENTRY_POINT_GROUP = "tracekit.advice"
"""Group of entry points under which an installed package names an entry, or a list of them."""


class OwnAdvice(msgspec.Struct, frozen=True):
    """What a user adds to the catalogue and its prices."""

    entries: tuple[Alternative, ...] = ()
    rates: GpuRates | None = None
    """Own table of what the GPU reaches."""


NO_OWN_ADVICE = OwnAdvice()
_TEXTS = ("change", "rests_on", "code", "title", "says", "advises")


def checked_advice(advice: Iterable[object]) -> tuple[Alternative, ...]:
    """Return a user's entries; raise ``OptionError`` if one is none, or lacks a text.

    >>> checked_advice([])
    ()
    """
    return tuple(_checked(entry) for entry in advice)


def _checked(entry: object) -> Alternative:
    """Return an entry whose texts can be shown."""
    if not isinstance(entry, Alternative):
        raise OptionError(
            f"advice: {entry!r} is no entry of the catalogue",
            hint="give objects of subclasses of tracekit.metrics.alternatives.Alternative",
        )
    name = type(entry).__name__
    missing = [text for text in _TEXTS if not isinstance(getattr(entry, text, None), str)]
    if missing:
        raise OptionError(f"advice: {name} has no {missing[0]}", hint="give it as an attribute")
    try:
        entry.says.format(**dict.fromkeys(FIGURES_IN_SENTENCES, ""))
    except (KeyError, IndexError, ValueError) as error:
        raise OptionError(
            f"advice: {name}.says cannot be filled in: {error}",
            hint=f"it may hold {', '.join(f'{{{name}}}' for name in FIGURES_IN_SENTENCES)}",
        ) from error
    return entry


def installed_advice() -> tuple[tuple[Alternative, ...], tuple[Notice, ...]]:
    """Return the entries of installed packages, and a notice about each that cannot be used."""
    entries: list[Alternative] = []
    notices = []
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            loaded = point.load()
            entries += checked_advice([loaded] if isinstance(loaded, Alternative) else loaded)
        except Exception as error:
            notices.append(left_out(point.value, error))
    return tuple(entries), tuple(notices)


def left_out(name: str, error: Exception, ranks: tuple[int, ...] = ()) -> Notice:
    """Return the notice that an entry is left out because it raises."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    message = f"the entry {name} of the catalogue is left out: {reason}"
    return Notice("advice-left-out", message, ranks=ranks, values={"entry": name, "reason": reason})


def own_remedies(
    rank: RankWork, advice: Iterable[Alternative], number: int
) -> Iterator[pl.DataFrame | Notice]:
    """Yield the remedies that a user's entries find in the work of rank *number*; of one that raises a notice."""
    for entry in advice:
        try:
            frames = [frame.select(REMEDIES.names()).cast(REMEDIES) for frame in entry.find(rank)]
        except Exception as error:
            yield left_out(type(entry).__name__, error, (number,))
            continue
        yield from (frame.with_columns(change=pl.lit(entry.change)) for frame in frames)
