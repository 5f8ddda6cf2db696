"""Ids to names: the string table, packed process and thread ids, API and copy names as PyTorch traces write them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from tracekit.errors import Notice
from tracekit.parsers.nsight.tables import Export, read_table

NO_STREAM = 0xFFFFFFFF
_DENSE = 10_000_000
COPY_KINDS = {
    1: ("HtoD", "Unknown", "Device"),
    2: ("DtoH", "Device", "Unknown"),
    3: ("HtoA", "Unknown", "Array"),
    4: ("AtoH", "Array", "Unknown"),
    5: ("AtoA", "Array", "Array"),
    6: ("AtoD", "Array", "Device"),
    7: ("DtoA", "Device", "Array"),
    8: ("DtoD", "Device", "Device"),
    9: ("HtoH", "Unknown", "Unknown"),
    10: ("PtoP", "Device", "Device"),
    11: ("HtoD", "Managed", "Device"),  # 11 to 13: pages that unified memory moved
    12: ("DtoH", "Device", "Managed"),
    13: ("DtoD", "Device", "Device"),
}
MEMORY_KINDS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")

Rewrite = Sequence[tuple[str, str]]
CALL: Rewrite = ((r"(?:_ptsz|_ptds)?(?:_v\d{4,5})?$", ""),)
"""API calls without the version they carry here."""
KERNEL: Rewrite = (
    (r"<unnamed>", "(anonymous namespace)"),
    (r"\(bool\)1\b", "true"),
    (r"\(bool\)0\b", "false"),
    (r"\(unsigned long\)(\d+)", "${1}ul"),
    (r"\(unsigned int\)(\d+)", "${1}u"),
    (r"\(long\)(-?\d+)", "${1}l"),
    (r"\((?:int|short|signed char|char|unsigned char)\)(-?\d+)", "$1"),
)
"""Template arguments of kernels as a PyTorch trace spells them."""


def process(column: str) -> pl.Expr:
    """Return the packed id without its thread: machine, VM and pid, so that two machines' pids stay apart."""
    return pl.col(column) // (1 << 24)


def pid(column: str) -> pl.Expr:
    """Return the pid of a packed process or thread id.

    >>> pl.select(g=pl.lit(281526482766846)).select(pid("g")).item()
    3070
    """
    return process(column) & 0xFFFFFF


def tid(column: str) -> pl.Expr:
    """Return the thread of a packed thread id.

    >>> pl.select(g=pl.lit(281526482767071)).select(tid("g")).item()
    3295
    """
    return pl.col(column) & 0xFFFFFF


class Strings:
    """The export's string table. Only strings that an event refers to ever become categories."""

    def __init__(self, export: Export) -> None:
        self._table = read_table(export, "StringIds", ["id", "value"]).unique("id", keep="first")
        self._name = export.path.name
        self._lost: dict[str, tuple[int, int]] = {}

    def any_contains(self, part: str) -> bool:
        """Return whether *part* is in any string."""
        return bool(self._table["value"].str.contains(part, literal=True).any())

    def holds(self, ids: pl.Series) -> bool:
        """Return whether every id has its text here."""
        return not ids.null_count() and _distinct(ids).is_in(self._table["id"].implode()).all()

    def first_known(self, choices: Sequence[pl.Series]) -> pl.Series:
        """Return, row by row, the first of several ids whose text is here; where none is, the first.

        >>> from pathlib import Path
        >>> from tracekit.parsers.nsight.opening import open_export
        >>> strings = Strings(open_export(Path("sample_traces/nsys-1f1b/rank0.sqlite")))
        >>> strings.first_known([pl.Series("id", [-1, -1]), pl.Series("id", [1, -2])]).to_list()
        [1, -1]
        """
        known = self._table["id"].implode()
        ids = choices[0]
        for other in reversed(choices):
            ids = pl.select(pl.when(other.is_in(known)).then(other).otherwise(ids).alias("id")).to_series()
        return ids

    def texts(self, ids: pl.Series, *, what: str) -> pl.Series:
        """Return the text of each id, null where the file has none; *what* is the word for those in a notice."""
        return self._counted(_look_up(ids, self._known(ids)), ids, what)

    def names(self, ids: pl.Series, *, unknown: str, rewrite: Rewrite = (), what: str = "") -> pl.Series:
        """Return the text of each id as categories, with every (pattern, replacement) of *rewrite* applied."""
        known = self._known(ids)
        for pattern, replacement in rewrite:
            known = known.with_columns(pl.col("value").str.replace_all(pattern, replacement))
        named = _look_up(ids, known.with_columns(pl.col("value").cast(pl.Categorical)))
        return (self._counted(named, ids, what) if what else named).fill_null(unknown)

    def notices(self) -> list[Notice]:
        """Return which of the ids that were asked for have no text in the file."""
        return [
            Notice("unnamed", f"{self._name}: {lost:,} of {count:,} {what} have no name: StringIds lacks it")
            for what, (lost, count) in self._lost.items()
        ]

    def _counted(self, named: pl.Series, ids: pl.Series, what: str) -> pl.Series:
        lost = named.null_count() - ids.null_count()
        if lost:
            before, count = self._lost.get(what, (0, 0))
            self._lost[what] = before + lost, max(count, len(ids))
        return named

    def _known(self, ids: pl.Series) -> pl.DataFrame:
        wanted = _distinct(ids).rename("id").to_frame()
        return wanted.join(self._table, on="id", how="inner")


def _distinct(ids: pl.Series) -> pl.Series:
    """Return every id once, without null: counted, where the ids are small."""
    if ids.null_count() or _largest(ids) is None:
        return ids.unique().drop_nulls()
    return pl.Series(np.flatnonzero(np.bincount(ids.to_numpy())), dtype=ids.dtype)


def _largest(ids: pl.Series) -> int | None:
    """Return the largest id; None where a table of all ids up to it would be too large, or there is none."""
    low, high = ids.min(), ids.max()
    dense = isinstance(low, int) and isinstance(high, int) and low >= 0 and high < _DENSE
    return high if dense and isinstance(high, int) else None


def _look_up(ids: pl.Series, known: pl.DataFrame) -> pl.Series:
    """Replace ids by values: through a dense table, three times as fast as a join, where the ids are small."""
    largest = _largest(ids)
    if largest is None:
        return ids.rename("id").to_frame().join(known, on="id", how="left", maintain_order="left")["value"]
    dense = pl.int_range(largest + 1, dtype=pl.Int64, eager=True).alias("id").to_frame()
    return dense.join(known, on="id", how="left", maintain_order="left")["value"].gather(ids.rename("value"))


def copy_names(frame: pl.DataFrame) -> pl.Series:
    """Names of copies as PyTorch writes them, from copyKind, srcKind and dstKind.

    >>> copy_names(pl.DataFrame({"copyKind": [2, 1], "srcKind": [2, None], "dstKind": [1, None]})).to_list()
    ['Memcpy DtoH (Device -> Pinned)', 'Memcpy HtoD (Unknown -> Device)']
    """
    kinds = frame.select("copyKind", "srcKind", "dstKind").unique()
    named = kinds.with_columns(
        name=pl.Series([_copy_name(*row) for row in kinds.rows()], dtype=pl.String).cast(pl.Categorical)
    )
    keys = ["copyKind", "srcKind", "dstKind"]
    return frame.select(keys).join(named, on=keys, how="left", nulls_equal=True, maintain_order="left")["name"]


def _copy_name(copy: int | None, source: int | None, target: int | None) -> str:
    short, default_source, default_target = COPY_KINDS.get(copy or 0, ("Unknown", "Unknown", "Unknown"))
    return f"Memcpy {short} ({_memory(source) or default_source} -> {_memory(target) or default_target})"


def _memory(kind: int | None) -> str | None:
    return MEMORY_KINDS[kind] if kind is not None and 0 <= kind < len(MEMORY_KINDS) else None


def set_names(frame: pl.DataFrame) -> pl.Series:
    """Names of memsets as PyTorch writes them.

    >>> set_names(pl.DataFrame({"memKind": [2, None]})).to_list()
    ['Memset (Device)', 'Memset (Unknown)']
    """
    table = {kind: f"Memset ({name})" for kind, name in enumerate(MEMORY_KINDS)}
    named = frame["memKind"].replace_strict(table, default="Memset (Unknown)", return_dtype=pl.String)
    return named.fill_null("Memset (Unknown)").cast(pl.Categorical).rename("name")
