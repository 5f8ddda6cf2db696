"""Alternatives of Fourier transforms."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from tracekit.metrics.alternatives.entry import Alternative
from tracekit.metrics.alternatives.remedy import new_durations
from tracekit.metrics.attainable import Share
from tracekit.metrics.rank_work import RankWork
from tracekit.metrics.sites import Inputs, count_elements
from tracekit.metrics.speeds import MIN_KERNEL_NS

TRANSFORM = r"^aten::_fft_(r2c|c2r|c2c)$"
LARGEST_GOOD_FACTOR = 7
"""Largest prime factor of a length for which libraries have a direct algorithm."""
COMPLEX_BYTES = 8
TRANSFORM_PASSES = Share(1.6, 2.0, 3.0)
"""Times that a direct transform reads and writes its complex values for each dimension, at the usual speed of
memory."""


class AwkwardLength(Alternative, frozen=True, kw_only=True):
    """A Fourier transform of a length with a large prime factor is computed as longer ones."""

    change = "good lengths of transforms"
    rests_on = "lengths of Fourier transforms have no prime factor above 7"
    code = "transform_length"
    case = ""
    title = "lengths of transforms"
    says = (
        "the data of Fourier transforms have {what}, which has a large prime factor, so that each is computed as "
        "several longer ones: {work}"
    )
    advises = "pad or cut the data to a length of small prime factors (`scipy.fft.next_fast_len`)"
    caveat = "Padding changes the frequencies; for a convolution it is harmless."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        bandwidth = rank.speeds.bandwidth
        if bandwidth is None:
            return
        for site in rank.sites.filter(pl.col("op").str.contains(TRANSFORM)).iter_rows(named=True):
            lengths = _lengths(site)
            awkward = [
                length for length in lengths if _largest_factor(length) > LARGEST_GOOD_FACTOR
            ]
            if not awkward:
                continue
            events = rank.events.filter(pl.col("site") == site["site"])
            moved = count_elements(Inputs.of(site).size(0)) * COMPLEX_BYTES * len(lengths)
            names = dict(zip(("low_ns", "likely_ns", "high_ns"), TRANSFORM_PASSES, strict=True))
            usual = rank.speeds.share("memory").likely
            columns = {
                name: pl.lit(max(moved * passes / bandwidth / usual, float(MIN_KERNEL_NS)))
                for name, passes in names.items()
            }
            what = f"length {awkward[0]:,} (better {next_good_length(awkward[0]):,})"
            yield new_durations(
                events.with_columns(**columns, group="call"),
                self.change,
                what=what,
                keeps_first=True,
            )


def _lengths(site: dict[str, Any]) -> list[int]:
    """Return the lengths of a transform along each of its dimensions; empty if they were not recorded."""
    inputs = Inputs.of(site)
    size = inputs.size(0)
    dimensions = inputs.value(1)
    if not size or not isinstance(dimensions, list):
        return []
    lengths = [
        size[int(dimension)] for dimension in dimensions if -len(size) <= dimension < len(size)
    ]
    last = inputs.value(3)
    if site["op"] == "aten::_fft_c2r" and lengths and type(last) is int:
        lengths[-1] = last
    return lengths


def _largest_factor(number: int) -> int:
    """Return the largest prime factor.

    >>> _largest_factor(4093), _largest_factor(4096), _largest_factor(360)
    (4093, 2, 5)
    """
    largest = 1
    factor = 2
    while factor * factor <= number:
        while number % factor == 0:
            largest = factor
            number //= factor
        factor += 1
    return max(largest, number)


def next_good_length(number: int) -> int:
    """Return the least length from *number* on that has no large prime factor.

    >>> next_good_length(16381), next_good_length(509)
    (16384, 512)
    """
    return next(
        length
        for length in range(number, 2 * number + 1)
        if _largest_factor(length) <= LARGEST_GOOD_FACTOR
    )
