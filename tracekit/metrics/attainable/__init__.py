"""Rates that work reaches on a GPU, by kind and type: a user's own table, those measured on some GPUs, usual ones.

A table is CSV: ``work`` (one of ``WORKS``), ``type`` (bf16, tf32, …; ``*``: all), ``unit`` (``share`` of the
vendor's peak, ``TFLOP/s`` or ``GB/s``), and the least, the likely and the most that is reached.
``benchmarks/atlas.py`` measures one. A table that this package has is named after its GPU.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from tracekit.errors import OptionError

COLUMNS = ("work", "type", "unit", "low", "likely", "high")
ANY_TYPE = "*"
WORKS = {
    "product": ("share", "TFLOP/s"),
    "attention": ("share", "TFLOP/s"),
    "convolution": ("share", "TFLOP/s"),
    "full_attention": ("share", "TFLOP/s"),
    "memory": ("share", "GB/s"),
    "batch_norm": ("share", "GB/s"),
    "optimizer": ("share", "GB/s"),
}
"""Kinds of work, and the units of their rates: matrix products; attention in one kernel, behind a causal mask (its
FLOP are counted by half) and of all pairs of tokens; convolutions; elementwise kernels; batch norms with channels
last, forward and backward; fused optimizers."""
_TABLES = Path(__file__).parent
USUAL = "usual"
"""Name of the table of usual shares, of GPUs that have none of their own."""
OWN = "own"
"""Name of a user's table."""


class Share(NamedTuple):
    """A share of a peak: the least, the likely and the most that is reached."""

    low: float
    likely: float
    high: float


class ReachedRate(NamedTuple):
    """A rate that work reaches, in a unit."""

    unit: str
    reached: Share


class GpuRates(msgspec.Struct, frozen=True):
    """Rates by work and type."""

    rates: Mapping[tuple[str, str], ReachedRate]
    name: str = OWN
    """GPU that it was measured on, ``OWN`` or ``USUAL``."""

    def share(self, work: str, dtype: str = ANY_TYPE, *, peak: float | None = None) -> Share | None:
        """Return the share of a peak that work of a type reaches; None if the table does not say.

        Args:
            work: Kind of work.
            dtype: Its type; rates of all types count where it has none of its own.
            peak: Vendor's peak in the unit of the table; without it the most that is reached is the peak.
        """
        rate = self.rates.get((work, dtype)) or self.rates.get((work, ANY_TYPE))
        if rate is None:
            return None
        if rate.unit == "share":
            return rate.reached
        whole = peak or rate.reached.high
        return Share(*(min(value / whole, 1.0) for value in rate.reached))

    def most(self, work: str) -> dict[str, float]:
        """Return the most that work reaches by type, of rates that are no shares.

        >>> GpuRates({("product", "bf16"): ReachedRate("TFLOP/s", Share(500, 600, 700))}).most("product")
        {'bf16': 700}
        """
        return {
            dtype: rate.reached.high
            for (of_work, dtype), rate in self.rates.items()
            if of_work == work and rate.unit != "share"
        }


def read_gpu_rates(path: str | Path) -> GpuRates:
    """Read a table of rates; raise ``OptionError`` with the place of what is wrong."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(
            f"cannot be read: {error}", path=path, hint="give a table of rates"
        ) from None
    rows = list(csv.reader(text.splitlines()))
    if not rows or tuple(rows[0]) != COLUMNS:
        raise OptionError(
            f"{path}, line 1: the columns are not {','.join(COLUMNS)}", hint=_HINT_OF_TABLES
        )
    rates: dict[tuple[str, str], ReachedRate] = {}
    for line, row in enumerate(rows[1:], start=2):
        if not row:
            continue
        try:
            work, dtype, rate = _read_row(row)
        except ValueError as error:
            raise OptionError(f"{path}, line {line}: {error}", hint=_HINT_OF_TABLES) from None
        rates[work, dtype] = rate
    return GpuRates(rates)


_HINT_OF_TABLES = "benchmarks/atlas.py writes such a table"


def _read_row(row: list[str]) -> tuple[str, str, ReachedRate]:
    """Return work, type and rate of a row; raise ``ValueError`` if it is none."""
    if len(row) != len(COLUMNS):
        raise ValueError(f"{len(row)} values instead of {len(COLUMNS)}")
    work, dtype, unit = row[:3]
    if work not in WORKS:
        raise ValueError(f"work is {work!r}, not one of {', '.join(WORKS)}")
    if unit not in WORKS[work]:
        raise ValueError(f"unit is {unit!r}, not {' or '.join(WORKS[work])}")
    try:
        reached = Share(*map(float, row[3:]))
    except ValueError:
        raise ValueError(f"{', '.join(row[3:])} are not three numbers") from None
    if not 0 < reached.low <= reached.likely <= reached.high < float("inf"):
        raise ValueError(f"{', '.join(row[3:])} are not rising numbers above 0")
    if unit == "share" and reached.high > 1:
        raise ValueError(f"a share of {row[5]} is above 1")
    return work, dtype, ReachedRate(unit, reached)


@cache
def _shipped_tables() -> Mapping[str, GpuRates]:
    """Return the tables of this package by their names."""
    tables = [(path.stem, read_gpu_rates(path)) for path in sorted(_TABLES.glob("*.csv"))]
    return {name: GpuRates(table.rates, name) for name, table in tables}


def usual_rates() -> GpuRates:
    """Return the usual rates.

    >>> usual_rates().share("product")
    Share(low=0.5, likely=0.65, high=0.8)
    """
    return _shipped_tables()[USUAL]


def rates_of_gpu(device: str | None) -> GpuRates:
    """Return the rates that were measured on a GPU; the usual ones if none were.

    >>> rates_of_gpu("NVIDIA H200").name, rates_of_gpu("NVIDIA GH200 480GB").name, rates_of_gpu(None).name
    ('H200', 'usual', 'usual')
    """
    tables = _shipped_tables()
    names = re.findall(r"\w+", device or "")
    return next((tables[name] for name in names if name in tables), tables[USUAL])
