"""One definition of a table for every report: columns that say what they hold, and rows of plain values.

The terminal has units in the heads and leaves spare columns out where it is narrow; pages and Markdown have units in
the cells. What a table holds is decided here alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from tracekit._util.text import UNKNOWN, bare_ms, ms, percent

Value = str | int | float | None


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    >>> Column("waited", "ms").bare(1_500_000), Column("waited", "ms").shown(1_500_000), Column("waited", "ms").head
    ('1.500', '1.5 ms', 'waited ms')
    """

    name: str
    kind: str = "word"
    """``word``, ``name`` (shortened apart where it must be), ``rank``, ``label``, ``count``, ``ms``, ``MB``, ``share``,
    ``rate`` or ``figure`` (a number in words already)."""
    spare: int = 0
    """Where a terminal is narrow, columns with the highest number go first; 0 stays."""
    note: str = ""
    """What it means, where its name does not say; columns with the same note share it."""
    digits: int = field(default=1, repr=False)
    """Digits of a time with its unit: as many as make three of its table's longest, one at least."""

    @property
    def head(self) -> str:
        """Its head where cells have no units."""
        return f"{self.name} {self.kind}" if self.kind in ("ms", "MB") else self.name

    @property
    def words(self) -> bool:
        """Whether it stands to the left."""
        return self.kind in ("word", "name", "label")

    def bare(self, value: Value) -> str:
        """Return a cell whose unit stands in the head."""
        if value is None and self.words:
            return ""
        return UNKNOWN if value is None else _BARE[self.kind](value)

    def shown(self, value: Value) -> str:
        """Return a cell with its unit."""
        if self.kind in ("ms", "MB") and value is not None:
            return (
                ms(value, self.digits) if self.kind == "ms" and not isinstance(value, str) else f"{self.bare(value)} MB"
            )
        return self.bare(value)


_BARE: dict[str, Callable[[Any], str]] = {
    "word": str,
    "name": str,
    "label": str,
    "rank": str,
    "figure": str,
    "count": lambda value: f"{value:,.0f}",
    "ms": bare_ms,
    "MB": lambda value: f"{value / 1e6:,.1f}",
    "share": percent,
    "rate": lambda value: f"{value:,.1f}",
}


class Grid(msgspec.Struct, frozen=True):
    """A table: columns, rows of plain values, what to know about them, and how many rows are left out."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    notes: tuple[str, ...] = ()
    totals: frozenset[int] = frozenset()
    """Rows that sum up others."""

    def remarks(self, heads: Collection[str] | None = None) -> tuple[str, ...]:
        """Return what to know: first what the columns mean, of those whose heads are given where others are not shown.

        >>> Grid((Column("bus", note="of links"), Column("a", note="b")), (), ("and more",)).remarks(["bus"])
        ('bus: of links', 'and more')
        """
        meant: dict[str, list[str]] = {}
        for column in self.columns:
            if column.note and (heads is None or column.head in heads):
                meant.setdefault(column.note, []).append(column.name)
        said = "; ".join(f"{', '.join(names)}: {note}" for note, names in meant.items())
        return (*([said] if said else []), *self.notes)

    @property
    def kept(self) -> tuple[int, ...]:
        """Which columns say anything: one that is empty in every row does not."""
        empty = ("", UNKNOWN)
        return tuple(
            at
            for at, column in enumerate(self.columns)
            if at == 0 or any(column.bare(row[at]) not in empty for row in self.rows)
        )


def grid(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Value]],
    *,
    notes: Sequence[str] = (),
    totals: Sequence[int] = (),
) -> Grid | None:
    """Return a table without columns that say nothing; None where there are no rows.

    >>> grid([Column("rank", "rank"), Column("of link", "share")], [[0, None], [1, None]]).columns
    (Column(name='rank', kind='rank', spare=0, note=''),)
    """
    if not rows:
        return None
    whole = Grid(tuple(columns), tuple(tuple(row) for row in rows), tuple(notes), frozenset(totals))
    kept, digits = whole.kept, _digits(columns, rows)
    return Grid(
        tuple(replace(whole.columns[at], digits=digits) for at in kept),
        tuple(tuple(row[at] for at in kept) for row in whole.rows),
        whole.notes,
        whole.totals,
    )


def _digits(columns: Sequence[Column], rows: Sequence[Sequence[Value]]) -> int:
    """Return the digits of a table's times that tell short ones apart: the same in every column.

    >>> [_digits([Column("time", "ms")], [[ns], [110_000]]) for ns in (999_000, 1_000_000, 9_990_000, 10_000_000)]
    [3, 2, 2, 1]
    """
    timed = [at for at, column in enumerate(columns) if column.kind == "ms"]
    times = [abs(row[at]) for row in rows for at in timed if isinstance(row[at], int | float)]  # type: ignore[arg-type]
    longest = max(times, default=0) / 1e6
    return 1 if longest >= 10 or not longest else 2 if longest >= 1 else 3
