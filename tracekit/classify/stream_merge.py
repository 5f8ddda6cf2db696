"""The order in which kernels on several streams were launched, from what each launch is known to be.

Kernels of one stream ran in the order of their launches; those of different streams overlap. Each
launch has a key: launches of one key are the same kernel. Which kernel that is has to be found
together with the order. The search alternates between the two, as expectation maximisation does:

1. guess the kernel of each key from what ran around the places of its launches, and from words that
   the names of operator and kernel share;
2. find the interleaving of the streams that fits the guess best (dynamic programming over the sets
   of kernels that have been launched);
3. take the kernels that this interleaving gives to each key as the next guess, until nothing
   changes.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from tracekit._util.arrays import AnyInts, Ints

NEARBY_KERNELS = 8
"""Kernels before and after a launch's place among which its own is looked for at first, and by
which a kernel that started early may be ahead of its launch."""
MAX_ROUNDS = 8
"""Rounds of guess and search."""
_UNSEEN_SCORE = math.log(1e-3)
"""Score, as a logarithm, of a kernel that was not seen for a key. A word that the names of the
launch's operator and of the kernel share makes up for it."""
_SCORE_DIGITS = 9
"""Digits up to which scores are compared: sums of the same terms in another order are equal."""

_Scores = dict[int, dict[int, float]]


class _State(NamedTuple):
    """An interleaving up to some launch."""

    score: float
    leads: int  # sum over launches of the kernels that started earlier and are launched later
    heads: tuple[int, ...]  # the next kernel of each stream, by start
    last: int  # the kernel taken last; -1 at the beginning
    before: "_State | None"

    @property
    def rank(self) -> tuple[float, int]:
        """Key to compare interleavings by: of those that fit alike, that in order of start is best."""
        return round(self.score, _SCORE_DIGITS), -self.leads


def merge_streams(
    keys: AnyInts, names: AnyInts, streams: AnyInts, related: Collection[tuple[int, int]] = ()
) -> Ints:
    """Return the kernels in the order of their launches: one per launch.

    Args:
        keys: Key of each launch, in order.
        names: Name of each kernel, by start; as many as launches.
        streams: Stream of each kernel.
        related: Pairs of key and name that share a word.

    >>> keys, names, streams = np.array([1, 2, 1, 2]), np.array([7, 8, 8, 7]), np.array([0, 1, 1, 0])
    >>> merge_streams(keys, names, streams, related=[(1, 7), (2, 8)]).tolist()
    [0, 1, 3, 2]
    """
    launch_keys: list[int] = keys.tolist()
    kernel_names: list[int] = names.tolist()
    kernel_streams: list[int] = streams.tolist()
    if len(set(kernel_streams)) < 2:
        return np.arange(len(launch_keys))
    scores = _add_bonus(_guess_from_places(launch_keys, kernel_names), related)
    order: list[int] = []
    for _ in range(MAX_ROUNDS):
        better_order = _best_interleaving(launch_keys, kernel_names, kernel_streams, scores)
        if better_order == order:
            break
        order = better_order
        names_in_order = [kernel_names[row] for row in order]
        scores = _add_bonus(_scores_of_order(launch_keys, names_in_order), related)
    return np.array(order, np.int64)


def _guess_from_places(keys: list[int], names: list[int]) -> _Scores:
    """Return the score of each name for each key: in how many of the key's places it is nearby, against chance."""
    places = Counter(keys)
    nearby: dict[int, Counter[int]] = defaultdict(Counter)
    anywhere: Counter[int] = Counter()
    for i, key in enumerate(keys):
        around = set(names[max(0, i - NEARBY_KERNELS) : i + NEARBY_KERNELS + 1])
        nearby[key].update(around)
        anywhere.update(around)
    scores: _Scores = {}
    for key, counts in nearby.items():
        scores[key] = {}
        for name, count in counts.items():
            share = count / places[key]
            chance = anywhere[name] / len(keys)
            scores[key][name] = 2 * math.log(share) - math.log(chance) / 2
    return scores


def _scores_of_order(keys: list[int], names: list[int]) -> _Scores:
    """Return the logarithm of the share of each name among a key's launches."""
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for key, name in zip(keys, names, strict=True):
        counts[key][name] += 1
    scores: _Scores = {}
    for key, of_key in counts.items():
        total = sum(of_key.values())
        scores[key] = {name: math.log(count / total) for name, count in of_key.items()}
    return scores


def _add_bonus(scores: _Scores, related: Collection[tuple[int, int]]) -> _Scores:
    """Return the scores, those of related pairs raised."""
    for key, name in related:
        of_key = scores.setdefault(key, {})
        of_key[name] = of_key.get(name, _UNSEEN_SCORE) - _UNSEEN_SCORE
    return scores


def _best_interleaving(
    keys: list[int], names: list[int], streams: list[int], scores: _Scores
) -> list[int]:
    """Return the interleaving of the streams with the best sum of scores.

    A kernel is at most ``NEARBY_KERNELS`` ahead of the first that is still to be launched. So no more
    than 2 to that power different sets of kernels can have been launched at any time, and of the
    interleavings that launched the same set only the best goes on.
    """
    following: dict[int, int] = {}  # the next kernel on the same stream
    last_on_stream: dict[int, int] = {}
    first_kernels = []
    for row, stream in enumerate(streams):
        if stream in last_on_stream:
            following[last_on_stream[stream]] = row
        else:
            first_kernels.append(row)
        last_on_stream[stream] = row
    states = [_State(0.0, 0, tuple(first_kernels), -1, None)]
    for key in keys:
        of_key = scores.get(key, {})
        extended: dict[tuple[int, ...], _State] = {}  # the best of those that took the same kernels
        for state in states:
            heads = state.heads
            for i, row in enumerate(heads):
                if row > heads[0] + NEARBY_KERNELS:
                    break
                rest = heads[:i] + heads[i + 1 :]
                if row in following:
                    rest = tuple(sorted((*rest, following[row])))
                total = state.score + of_key.get(names[row], _UNSEEN_SCORE)
                candidate = _State(total, state.leads + i, rest, row, state)
                if rest not in extended or extended[rest].rank < candidate.rank:
                    extended[rest] = candidate
        states = list(extended.values())
    order: list[int] = []
    state = max(states, key=lambda state: state.rank)
    while state.before is not None:
        order.append(state.last)
        state = state.before
    order.reverse()
    return order
