"""Operators on images that a change of their layout or type makes slower, from ``layouts.toml``."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
import polars as pl

from tracekit.metrics.alternatives.remedy import REMEDIES, SLOWER_OPERATORS, new_durations


class SlowerOperators(msgspec.Struct, frozen=True):
    """Time of operators with a change over that without it."""

    operators: tuple[str, ...]
    low: float
    likely: float
    high: float


class _LayoutsFile(msgspec.Struct, frozen=True):
    slower: tuple[SlowerOperators, ...]
    slower_in_16_bits: tuple[SlowerOperators, ...]


_LAYOUTS = msgspec.convert(
    tomllib.loads(Path(__file__).with_name("layouts.toml").read_text(encoding="utf-8")),
    _LayoutsFile,
)
SLOWER_WITH_CHANNELS_LAST = _LAYOUTS.slower
SLOWER_IN_16_BITS = _LAYOUTS.slower_in_16_bits
"""Of images whose channels are first."""


def slower_remedies(
    events: pl.DataFrame, slower: tuple[SlowerOperators, ...], change: str
) -> pl.DataFrame:
    """Return the remedies of events that take longer with a change: it pays for these."""
    frames = [REMEDIES.to_frame()]
    for factors in slower:
        of_operators = events.filter(pl.col("op").is_in(factors.operators)).with_columns(
            group="row",
            low_ns=pl.col("ns") * factors.low,
            likely_ns=pl.col("ns") * factors.likely,
            high_ns=pl.col("ns") * factors.high,
        )
        remedies = new_durations(of_operators, change, what=SLOWER_OPERATORS, may_be_longer=True)
        frames.append(remedies)
    return pl.concat(frames)
