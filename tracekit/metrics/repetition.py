"""Layers found by repetition: a forward launches the same kernels once per layer, so its sequence has a period."""

from collections import Counter

import msgspec
import numpy as np

from tracekit._util.arrays import Bools, Ints

MIN_LAYER_KERNELS = 4
"""Kernels of the shortest layer; a shorter period is a loop inside a layer."""
MIN_REPEATED_SHARE = 0.5
"""Share of a sequence's kernels that its repeated part must contain."""
MAX_SHARE_BESIDE = 0.5
"""Share of a layer's kernels that, found before or after the repeated part, may be one more layer that ran a little
differently: the number of layers is then unknown."""
MAX_CANDIDATE_PERIODS = 64
"""Periods tried: those at which most kernels equal the kernel one period later."""
RANDOM_SIGNS = 16
"""Random signs per kind of kernel in the search for periods; more make chance agreement less likely."""


class Layers(msgspec.Struct, frozen=True):
    """Equal layers in a sequence: *count* layers of *period* kernels each, the first at index *first*."""

    first: int
    period: int
    count: int
    spare: int
    """Kernels by which all layers may be shifted: what follows the last one looks like the start of another."""


def find_layers(tokens: Ints, heavy: Bools, begins: Bools | None = None) -> Layers | None:
    """Return the layers of a sequence of kernels; None where it does not repeat, or is ambiguous.

    Args:
        tokens: Number of each kernel's kind.
        heavy: Mask of matrix products; every layer has one.
        begins: Mask of kernels that layers usually begin with; it decides where layers start where that is open.

    >>> names = np.array([9, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 8])
    >>> find_layers(names, names == 2)
    Layers(first=1, period=4, count=3, spare=1)
    >>> find_layers(np.arange(20), np.ones(20, bool)) is None
    True

    """
    covered, period, first = _find_period(tokens, heavy)
    if covered < MIN_REPEATED_SHARE * len(tokens) or not covered:
        return None
    spare = covered % period
    layers = Layers(_choose_start(first, spare, begins), period, covered // period, spare)
    if _may_have_one_more(tokens, layers):
        return None
    # If a layer repeats inside as well, the outer period may be whole forwards and the inner one the layers.
    layer = slice(layers.first, layers.first + period)
    return None if find_layers(tokens[layer], heavy[layer]) is not None else layers


def _find_period(tokens: Ints, heavy: Bools) -> tuple[int, int, int]:
    """Return the number of kernels in the longest repeated part, its period and its first kernel; zeros if none.

    Of several parts as long, the one with the shortest period counts.
    """
    best = (0, 0, 0)
    for period in _candidate_periods(tokens):
        first, length = _longest_run(tokens[period:] == tokens[:-period])
        covered = length + period
        if length >= period and heavy[first : first + period].any() and covered > best[0]:
            best = (covered, period, first)
    return best


def _candidate_periods(tokens: Ints) -> list[int]:
    """Return the periods at which most kernels equal the kernel one period later, ascending.

    Each kind of kernel is replaced by a random sign. The autocorrelation of the signs counts up where equal kernels
    meet and cancels out elsewhere; an FFT computes it for all periods at once. So the work does not grow with the
    number of kinds. The mean over several choices of signs reduces chance agreement.
    """
    count = len(tokens)
    if count < 2 * MIN_LAYER_KERNELS:
        return []
    kinds, kind, occurrences = np.unique(tokens, return_inverse=True, return_counts=True)
    signs = np.random.default_rng(0).choice((-1.0, 1.0), (RANDOM_SIGNS, len(kinds)))
    signs[:, occurrences == 1] = 0.0  # a kind that occurs once equals no other kernel
    size = 1 << (2 * count - 1).bit_length()
    power = np.zeros(size // 2 + 1)
    for sign_of_kind in signs:
        power += np.abs(np.fft.rfft(sign_of_kind[kind], size)) ** 2
    agreement = np.fft.irfft(power, size)[: count // 2 + 1] / RANDOM_SIGNS
    agreement[:MIN_LAYER_KERNELS] = 0
    likely = np.argsort(-agreement, kind="stable")[:MAX_CANDIDATE_PERIODS]
    return sorted(int(period) for period in likely if period >= MIN_LAYER_KERNELS)


def _longest_run(mask: Bools) -> tuple[int, int]:
    """Return start and length of the longest run of True; zeros if there is none."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    if not len(lengths):
        return 0, 0
    longest = int(lengths.argmax())
    return int(starts[longest]), int(lengths[longest])


def _choose_start(first: int, spare: int, begins: Bools | None) -> int:
    """Return the start of the first layer: the first possible one that layers usually begin with, if there is one."""
    if begins is None:
        return first
    likely = np.flatnonzero(begins[first : first + spare + 1])
    return first + int(likely[0]) if len(likely) else first


def _may_have_one_more(tokens: Ints, layers: Layers) -> bool:
    """Return whether the kernels before or after the layers are nearly one more layer."""
    end = layers.first + layers.period * layers.count
    layer = tokens[layers.first : layers.first + layers.period]
    sides = (tokens[: layers.first], tokens[end:])
    return any(_count_shared(layer, side) >= MAX_SHARE_BESIDE * layers.period for side in sides)


def _count_shared(layer: Ints, side: Ints) -> int:
    """Return how many kernels of a layer occur in *side* too; a kind counts as often as it occurs in both."""
    shared = Counter(layer.tolist()) & Counter(side.tolist())
    return shared.total()
