"""The table type of every report, and the text of its cells.

Columns say what they hold, and rows have plain values, places on the timeline, or bars. Terminal,
page and Markdown each render a table with one function. The terminal writes units into the headings,
leaves out expendable columns if it is narrow and most rows of a long table that says which it needs;
the page and Markdown write units into the cells. Markdown has the parts of a bar as columns.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from tracekit._util.text import UNKNOWN, ms, percent

Value = Any
"""A string, a number, None (unknown), a ``PlacedValue`` that has one of these, a ``Bar``, or shares of causes."""
PartKind = Literal[
    "compute", "exposed", "exposed_copy", "phase", "weight_update", "idle", "unrecorded",
    "before", "more", "less", "total",
]  # fmt: skip
"""What a part of a bar is. Of a bar from one time to another: ``before`` is not drawn, ``more`` or
``less`` is a difference, ``total`` a whole."""


class BarPart(msgspec.Struct, frozen=True):
    """One part of a bar."""

    name: str
    kind: PartKind
    ns: float
    colour: str
    search: str = ""
    """Search of the page's timeline that it leads to."""


class Bar(msgspec.Struct, frozen=True):
    """A time as a bar in parts, as long as its share of *whole_ns*."""

    parts: Sequence[BarPart]
    whole_ns: float
    """What fills the width."""

    @property
    def shares(self) -> dict[str, float]:
        """Share of each part that is drawn, by name."""
        return {
            part.name: part.ns / max(self.whole_ns, 1)
            for part in self.parts
            if part.kind != "before"
        }


class PlacedValue(msgspec.Struct, frozen=True):
    """A value with a place on the timeline, to which a page leads."""

    value: Any
    rank: int | None
    """None: all ranks."""
    step: int | None = None
    start_ns: int | None = None
    """Start and end on the clock that all ranks share; None: the whole step, or rank."""
    end_ns: int | None = None
    kind: str = ""
    """Kind of the critical path's piece that it is; empty for others."""
    of_rank: bool = False
    """Whether start and end are on the rank's own clock."""


class Column(msgspec.Struct, frozen=True):
    """One column of a table.

    >>> waited = Column("waited", "ms")
    >>> waited.heading, waited.bare(1_500_000), waited.shown(1_500_000)
    ('waited ms', '1.5', '1.5 ms')
    """

    name: str
    kind: str = "word"
    """What the values are: ``word``; ``name`` (a word that a narrow terminal may shorten);
    ``label``; ``iteration`` (its number); ``code`` (a word that Markdown shows as code); ``rank``;
    ``count``; ``ms`` (values are nanoseconds); ``MB`` (values are bytes); ``share`` (0 to 1); ``heat`` (a share,
    which a page colours); ``rate`` (a number with one digit); ``figure`` (a number that is text already);
    ``change`` (a figure with a sign, of which less is better); ``verdict`` (of a gate); ``causes`` (each with its
    share, words and meaning); ``bar`` (``Bar``); ``histogram`` (counts); ``command`` (which only a page has,
    to copy)."""
    expendable: int = 0
    """A narrow terminal leaves out the columns with the highest number first; those with 0 always
    stay."""
    note: str = ""
    """The meaning of the column, where its name does not say it; columns with the same note share
    it."""
    terminal_heading: str = ""
    """Heading in the terminal, where it is not the name with the unit."""
    digits: int = 1
    """Digits of a time that is shown with its unit."""
    beside_bar: bool = False
    """Whether it sums up parts of the bar beside it: left out where these parts are columns."""
    value: str | Callable[[Any], Value] = ""
    """Where an item has the value: an attribute or key (by default the column's name), or a
    function of the item."""

    @property
    def heading(self) -> str:
        """The heading for cells without units."""
        unit = self.kind if self.kind in ("ms", "MB") else ""
        return self.terminal_heading or f"{self.name} {unit}".strip()

    @property
    def words(self) -> bool:
        """Whether the column is text, which is aligned to the left."""
        return self.kind in (
            "word",
            "name",
            "label",
            "code",
            "verdict",
            "causes",
            "bar",
            "histogram",
        )

    def bare(self, value: Value) -> str:
        """Return the text of a cell whose unit is in the heading."""
        return self.shown(value).removesuffix(f" {self.kind}")

    def shown(self, value: Value) -> str:
        """Return the text of a cell with its unit."""
        if isinstance(value, PlacedValue):
            return self.shown(value.value)
        if value is None:
            return "" if self.words else UNKNOWN
        if isinstance(value, str):
            return value
        return ms(value, self.digits) if self.kind == "ms" else _FORMATS.get(self.kind, str)(value)


def cause_words(share: float, words: str) -> str:
    """Return a cause with its share."""
    return f"{percent(share, digits=0)} {words}"


def _causes(causes: Sequence[tuple[float, str, str]]) -> str:
    return "; ".join(cause_words(share, words) for share, words, _ in causes)


def _bar(bar: Bar) -> str:
    return ", ".join(f"{name} {percent(share)}" for name, share in bar.shares.items())


_FORMATS: dict[str, Callable[[Any], str]] = {
    "bar": _bar,
    "causes": _causes,
    "heat": percent,
    "histogram": lambda counts: ", ".join(map(str, counts)),
    "count": "{:,.0f}".format,
    "MB": lambda value: f"{value / 1e6:,.1f} MB",
    "share": percent,
    "rate": "{:,.1f}".format,
}


class Table(msgspec.Struct, frozen=True):
    """Columns, rows of values in their order, and notes below."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    notes: tuple[str, ...] = ()
    totals: frozenset[int] = frozenset()
    """Indices of the rows that sum up others."""
    caption: str = ""
    """What the page writes above it, where its heading does not say it."""
    searches: tuple[str, ...] = ()
    """Search of the page's timeline that each row leads to, empty for none; without any, a row leads
    to what has its label and rank."""
    loud: frozenset[int] = frozenset()
    """Indices of the rows that stand out."""
    short: tuple[int, ...] = ()
    """Indices of the rows that a terminal shows of a table that is too long for it; empty: all."""
    short_note: str = ""
    """What these rows are."""
    details: tuple[Sequence[Any], ...] = ()
    """Blocks that a page unfolds below each row; text leaves them out."""

    def remarks(self, headings: Collection[str] | None = None) -> tuple[str, ...]:
        """Return the notes below the table, first what its columns mean.

        Args:
            headings: The headings that are shown, if some columns are left out; their notes are
                left out as well.

        >>> Table((Column("bus", note="of links"), Column("a", note="b")), (), ("and more",)).remarks(["bus"])
        ('bus: of links', 'and more')
        """
        names_of_note: dict[str, list[str]] = {}
        for column in self.columns:
            if column.note and (headings is None or column.heading in headings):
                names_of_note.setdefault(column.note, []).append(column.name)
        meanings = "; ".join(f"{', '.join(names)}: {note}" for note, names in names_of_note.items())
        return (meanings, *self.notes) if meanings else self.notes


def _row_of(columns: Sequence[Column], item: Any) -> tuple[Value, ...]:
    """Return the value of each column: an attribute of the item, its entry if it is a mapping, or a function of it."""
    values = []
    for column in columns:
        key = column.value or column.name
        if not isinstance(key, str):
            values.append(key(item))
        elif isinstance(item, Mapping):
            values.append(item[key])
        else:
            values.append(getattr(item, key))
    return tuple(values)


def make_table(
    columns: Sequence[Column],
    items: Iterable[Any],
    *,
    notes: Iterable[str] = (),
    totals: Iterable[int] = (),
    caption: str = "",
    search: Callable[[Any], str] | None = None,
    loud: Iterable[int] = (),
    short: Iterable[int] = (),
    short_note: str = "",
    details: Iterable[Sequence[Any]] = (),
) -> Table | None:
    """Return a table without the columns in which every value is unknown or empty.

    None if there are no rows.

    An item is a row as a tuple of values, or any object of which each column takes its value
    (``Column.value``). *search* returns the search of the timeline that an item leads to.

    The first column always stays. All times get as many digits as the longest of them needs for
    three figures.

    >>> make_table([Column("rank", "rank"), Column("of link", "share")], [(0, None), (1, None)]).columns[1:]
    ()
    """
    all_items = list(items)
    all_rows = [row if isinstance(row, tuple) else _row_of(columns, row) for row in all_items]
    if not all_rows:
        return None
    informative = []
    for i, column in enumerate(columns):
        if i == 0 or any(column.shown(row[i]) not in ("", UNKNOWN) for row in all_rows):
            informative.append(i)
    times: list[Any] = []
    for i, column in enumerate(columns):
        if column.kind == "ms":
            times += [getattr(row[i], "value", row[i]) for row in all_rows]
    digits = time_digits(times)
    shown_rows = []
    for row in all_rows:
        shown_rows.append(tuple(row[i] for i in informative))
    return Table(
        tuple(replace(columns[i], digits=digits) for i in informative),
        tuple(shown_rows),
        tuple(notes),
        frozenset(totals),
        caption=caption,
        searches=() if search is None else tuple(search(item) for item in all_items),
        loud=frozenset(loud),
        short=tuple(short),
        short_note=short_note,
        details=tuple(details),
    )


def time_digits(times_ns: Iterable[Value]) -> int:
    """Return the digits of milliseconds that give the longest time three figures: 1 to 3.

    >>> [time_digits([ns, 110_000, None]) for ns in (999_000, 1_000_000, 9_990_000, 10_000_000)]
    [3, 2, 2, 1]
    """
    longest_ms = max((abs(ns) for ns in times_ns if isinstance(ns, int | float)), default=0) / 1e6
    return 1 if longest_ms >= 10 or not longest_ms else 2 if longest_ms >= 1 else 3
