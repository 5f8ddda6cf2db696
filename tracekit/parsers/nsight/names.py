"""Ids to names: the string table, packed process and thread ids, API and copy names as PyTorch traces write them."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

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
        self._table = read_table(export, "StringIds", ["id", "value"])

    def any_contains(self, part: str) -> bool:
        """Tell whether *part* is in any string."""
        return bool(self._table["value"].str.contains(part, literal=True).any())

    def texts(self, ids: pl.Series) -> pl.Series:
        """Return the text of each id, null where the file has none."""
        return _look_up(ids, self._known(ids))

    def names(self, ids: pl.Series, *, unknown: str, rewrite: Rewrite = ()) -> pl.Series:
        """Return the text of each id as categories, with every (pattern, replacement) of *rewrite* applied."""
        known = self._known(ids)
        for pattern, replacement in rewrite:
            known = known.with_columns(pl.col("value").str.replace_all(pattern, replacement))
        return _look_up(ids, known.with_columns(pl.col("value").cast(pl.Categorical))).fill_null(unknown)

    def _known(self, ids: pl.Series) -> pl.DataFrame:
        wanted = ids.unique().drop_nulls().rename("id").to_frame()
        return wanted.join(self._table.unique("id", keep="first"), on="id", how="inner")


def _look_up(ids: pl.Series, known: pl.DataFrame) -> pl.Series:
    """Replace ids by values: through a dense table, three times as fast as a join, where the ids are small."""
    low, high = ids.min(), ids.max()
    if not isinstance(low, int) or not isinstance(high, int) or low < 0 or high >= _DENSE:
        return ids.rename("id").to_frame().join(known, on="id", how="left", maintain_order="left")["value"]
    dense = pl.int_range(high + 1, dtype=pl.Int64, eager=True).alias("id").to_frame()
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
