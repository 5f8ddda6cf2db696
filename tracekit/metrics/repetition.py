"""Layers found by repetition: a forward launches the same kernels once per layer, so its sequence has a period."""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

LEAST_KERNELS = 4
"""Kernels of the shortest layer: less is a loop inside one."""
LEAST_SHARE = 0.5
"""Share of a sequence's kernels that its repeated part must hold."""
ONE_MORE = 0.5
"""Share of a layer's kernels that, found beside the repeated part, may be one more layer that ran a little differently:
then how many there are is not known."""
CANDIDATES = 64
"""Periods tried: those at which most kernels meet their like."""
SIGNS = 16
"""Random signs by which kinds of kernels are told apart when periods are looked for."""


class Layers(msgspec.Struct, frozen=True):
    """Equal layers in a sequence: *count* of *period* kernels each, the first at *first*."""

    first: int
    period: int
    count: int
    spare: int
    """Kernels by which all of them may stand later: what follows the last looks like the start of one more."""


def find_layers(tokens: Ints, heavy: Bools, begins: Bools | None = None) -> Layers | None:
    """Return the layers of a sequence of kernels; None where it does not repeat, or not for certain.

    *tokens* number what each kernel is, *heavy* marks matrix products (a layer has one), *begins* what layers usually
    begin with: it settles where they start when that is open.

    >>> names = np.array([9, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 8])
    >>> find_layers(names, names == 2)
    Layers(first=1, period=4, count=3, spare=1)
    >>> find_layers(np.arange(20), np.ones(20, bool)) is None
    True
    """
    best: tuple[int, int, int] | None = None  # how many kernels, minus the period, where
    for period in _candidates(tokens):
        first, length = _longest(tokens[period:] == tokens[:-period])
        covered = length + period
        if length < period or not heavy[first : first + period].any():
            continue
        if best is None or (covered, -period) > best[:2]:
            best = covered, -period, first
    if best is None or best[0] < LEAST_SHARE * len(tokens):
        return None
    covered, period, first = best[0], -best[1], best[2]
    spare = covered % period
    found = Layers(_start(first, spare, begins), period, covered // period, spare)
    if _one_more(tokens, found):
        return None
    # What repeats inside a layer too may be layers inside a forward: which of both is not known.
    whole = slice(found.first, found.first + period)
    return None if find_layers(tokens[whole], heavy[whole]) is not None else found


def _candidates(tokens: Ints) -> list[int]:
    """Return the periods at which most kernels meet their like.

    Each kind of kernel stands for a few random signs: products of signs count up where kernels meet their like, and
    cancel out elsewhere. So the work does not grow with how many kinds there are.
    """
    n = len(tokens)
    if n < 2 * LEAST_KERNELS:
        return []
    kinds, place, counts = np.unique(tokens, return_inverse=True, return_counts=True)
    signs = np.random.default_rng(0).choice((-1.0, 1.0), (SIGNS, len(kinds)))
    signs[:, counts == 1] = 0.0  # what comes once meets nothing
    size = 1 << (2 * n - 1).bit_length()
    power = np.zeros(size // 2 + 1)
    for row in signs:
        power += np.abs(np.fft.rfft(row[place], size)) ** 2
    met = np.fft.irfft(power, size)[: n // 2 + 1] / SIGNS
    met[:LEAST_KERNELS] = 0
    likely = np.argsort(-met, kind="stable")[:CANDIDATES]
    return sorted(int(p) for p in likely if p >= LEAST_KERNELS)


def _longest(same: Bools) -> tuple[int, int]:
    """Return where the longest stretch of True begins, and how long it is."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], same.astype(np.int8), [0]])))
    begins, lengths = edges[::2], edges[1::2] - edges[::2]
    if not len(lengths):
        return 0, 0
    at = int(lengths.argmax())
    return int(begins[at]), int(lengths[at])


def _start(first: int, spare: int, begins: Bools | None) -> int:
    """Return where the first layer starts: at what layers begin with, if that is among the places it may be."""
    if begins is None:
        return first
    likely = np.flatnonzero(begins[first : first + spare + 1])
    return first + int(likely[0]) if len(likely) else first


def _one_more(tokens: Ints, layers: Layers) -> bool:
    """Whether what stands before or behind the layers is nearly one more of them."""
    end = layers.first + layers.period * layers.count
    layer = tokens[layers.first : layers.first + layers.period]
    return any(_shared(layer, side) >= ONE_MORE * layers.period for side in (tokens[: layers.first], tokens[end:]))


def _shared(layer: Ints, side: Ints) -> int:
    """Return how many kernels of a layer there are in *side* as well, each counted as often as in both."""
    kinds, counts = np.unique(layer, return_counts=True)
    place = np.minimum(np.searchsorted(kinds, side), len(kinds) - 1)
    beside = np.bincount(place[kinds[place] == side], minlength=len(kinds))
    return int(np.minimum(counts, beside).sum())
