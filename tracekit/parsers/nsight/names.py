"""Names behind ids: the string table, packed process and thread ids, and names as PyTorch traces write them."""

from collections.abc import Sequence

import polars as pl

from tracekit.errors import Notice, NoticeValues
from tracekit.parsers.long_names import long_name_notice, shorten_names
from tracekit.parsers.nsight.tables import VOCABULARY, NsightExport, read_table
from tracekit.parsers.process_ranks import PID_MASK

NO_STREAM = 0xFFFFFFFF
COPY_KINDS: dict[int, list[str]] = {
    int(kind): words for kind, words in VOCABULARY["copy_kinds"].items()
}
"""copyKind → direction, and the memory at both ends where srcKind and dstKind are missing."""
NSIGHT_MEMORY_KINDS: list[str] = VOCABULARY["memory_kinds"]

Rewrite = Sequence[tuple[str, str]]
"""Patterns and their replacements."""
CALL_REWRITE: Rewrite = ((r"(?:_ptsz|_ptds)?(?:_v\d{4,5})?$", ""),)
"""Removes the version suffix of API calls."""
KERNEL_REWRITE: Rewrite = (
    (r"<unnamed>", "(anonymous namespace)"),
    (r"\(bool\)1\b", "true"),
    (r"\(bool\)0\b", "false"),
    (r"\(unsigned long\)(\d+)", "${1}ul"),
    (r"\(unsigned int\)(\d+)", "${1}u"),
    (r"\(long\)(-?\d+)", "${1}l"),
    (r"\((?:int|short|signed char|char|unsigned char)\)(-?\d+)", "$1"),
)
"""Spells template arguments of kernels as PyTorch traces do."""


def process_id(column: str) -> pl.Expr:
    """Return a packed id without its thread: machine, VM and pid, so that pids of two machines stay distinct."""
    return pl.col(column) // (1 << 24)


def thread_id(column: str) -> pl.Expr:
    """Return the thread of a packed thread id.

    >>> pl.select(g=pl.lit(281526482767071)).select(thread_id("g")).item()
    3295
    """
    return pl.col(column) & PID_MASK


class Strings:
    """The export's string table. Only strings that an event refers to become categories."""

    def __init__(self, export: NsightExport) -> None:
        strings = read_table(export, "StringIds", ["id", "value"]).unique("id", keep="first")
        # A name with bytes that are not UTF-8 would be taken for another kernel: it counts as lost.
        self._table = strings.filter(
            ~pl.col("value").str.contains("\N{REPLACEMENT CHARACTER}", literal=True)
        )
        self._long_texts: set[str] = set()  # texts that were shortened
        self._file_name = export.path.name
        self._unnamed: dict[str, tuple[int, int]] = {}  # noun → events without a name, all events

    def first_named(self, alternatives: Sequence[pl.Series]) -> pl.Series:
        """Return, row by row, the first of several ids whose string is in the table.

        If none is, the first at all.

        >>> from pathlib import Path
        >>> from tracekit.parsers.nsight.reader import open_export
        >>> strings = Strings(open_export(Path("sample_traces/nsys-1f1b/rank0.sqlite")))
        >>> strings.first_named([pl.Series("id", [-1, -1]), pl.Series("id", [1, -2])]).to_list()
        [1, -1]
        """
        named = self._table["id"].implode()
        with_string = [pl.when(ids.is_in(named)).then(ids) for ids in alternatives]
        return pl.select(id=pl.coalesce(*with_string, *alternatives)).to_series()

    def contain(self, ids: pl.Series) -> bool:
        """Return whether the table has a string for every id."""
        return bool(ids.unique().is_in(self._table["id"].implode()).fill_null(False).all())

    def texts(self, ids: pl.Series, *, noun: str) -> pl.Series:
        """Return the string of each id, null where the table has none.

        *noun* names the events in a notice.
        """
        texts = _look_up(ids, self._strings_of(ids))
        self._count_unnamed(texts, ids, noun)
        return texts

    def names(
        self, ids: pl.Series, *, unknown: str, rewrite: Rewrite = (), noun: str | None = None
    ) -> pl.Series:
        """Return the string of each id as a category, rewritten.

        *unknown* where the table has none.
        """
        strings = self._strings_of(ids)
        for pattern, replacement in rewrite:
            strings = strings.with_columns(pl.col("value").str.replace_all(pattern, replacement))
        names = _look_up(ids, strings.with_columns(pl.col("value").cast(pl.Categorical)))
        if noun is not None:
            self._count_unnamed(names, ids, noun)
        return names.fill_null(unknown)

    def notices(self) -> list[Notice]:
        """Return a notice for each kind of event that had ids without a string, and for long strings."""
        notices = []
        if self._long_texts:
            notices.append(long_name_notice(len(self._long_texts)))
        for noun, (unnamed, total) in self._unnamed.items():
            values: NoticeValues = {
                "case": "rows",
                "file": self._file_name,
                "rows": noun,
                "count": unnamed,
                "total": total,
            }
            message = (
                f"{self._file_name}: {unnamed:,} of {total:,} {noun} have no name in StringIds"
            )
            notices.append(Notice("unnamed", message, values=values))
        return notices

    def _count_unnamed(self, names: pl.Series, ids: pl.Series, noun: str) -> None:
        unnamed = names.null_count() - ids.null_count()
        if unnamed:
            previous, total = self._unnamed.get(noun, (0, 0))
            self._unnamed[noun] = previous + unnamed, max(total, len(ids))

    def shorten(self, names: pl.Series) -> pl.Series:
        """Return names of events, the long ones shortened; they are counted in a notice."""
        names, shortened = shorten_names(names)
        self._long_texts |= shortened
        return names

    def _strings_of(self, ids: pl.Series) -> pl.DataFrame:
        strings = (
            ids.unique()
            .drop_nulls()
            .rename("id")
            .to_frame()
            .join(self._table, on="id", how="inner")
        )
        return strings.with_columns(self.shorten(strings["value"]))


def _look_up(ids: pl.Series, strings: pl.DataFrame) -> pl.Series:
    """Return the ``value`` of each id, null where *strings* has none."""
    return (
        ids.rename("id")
        .to_frame()
        .join(strings, on="id", how="left", maintain_order="left")["value"]
    )


def copy_names(copies: pl.DataFrame) -> pl.Series:
    """Return the names of copies as PyTorch writes them, from copyKind, srcKind and dstKind.

    >>> copy_names(pl.DataFrame({"copyKind": [2, 1], "srcKind": [2, None], "dstKind": [1, None]})).to_list()
    ['Memcpy DtoH (Device -> Pinned)', 'Memcpy HtoD (Unknown -> Device)']
    """
    keys = ["copyKind", "srcKind", "dstKind"]
    kinds = copies.select(keys).unique()
    names = pl.Series("name", [_copy_name(*kind) for kind in kinds.rows()], dtype=pl.String).cast(
        pl.Categorical
    )
    return copies.select(keys).join(
        kinds.with_columns(names), on=keys, how="left", nulls_equal=True, maintain_order="left"
    )["name"]


def _copy_name(copy_kind: int | None, source_kind: int | None, target_kind: int | None) -> str:
    direction, source, target = COPY_KINDS.get(copy_kind or 0, ("Unknown", "Unknown", "Unknown"))
    return f"Memcpy {direction} ({_memory_name(source_kind) or source} -> {_memory_name(target_kind) or target})"


def _memory_name(kind: int | None) -> str | None:
    return (
        NSIGHT_MEMORY_KINDS[kind]
        if kind is not None and 0 <= kind < len(NSIGHT_MEMORY_KINDS)
        else None
    )


def memset_names(memory_kinds: pl.Series) -> pl.Series:
    """Return the names of memsets as PyTorch writes them.

    >>> memset_names(pl.Series([2, None])).to_list()
    ['Memset (Device)', 'Memset (Unknown)']
    """
    by_kind = {kind: f"Memset ({name})" for kind, name in enumerate(NSIGHT_MEMORY_KINDS)}
    names = memory_kinds.replace_strict(by_kind, default="Memset (Unknown)", return_dtype=pl.String)
    return names.fill_null("Memset (Unknown)").cast(pl.Categorical)
