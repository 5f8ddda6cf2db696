"""Copies between host and device: what leaves and comes back, what feeds a broadcast, what is merely input."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tracekit._util.arrays import Bools, is_in_sorted
from tracekit._util.categories import CategoryColumn
from tracekit.classify._nest import Ints
from tracekit.classify.collectives import Collectives
from tracekit.classify.ranges import Gpu, Launches

_WAYS = (
    ("d2h", r"(?i)DtoH|D2[HM]\b|DeviceToHost|Device -> (Pinned|Pageable|Host|Memory)|Device-to-Host"),
    ("h2d", r"(?i)HtoD|\b[HM]2D|HostToDevice|(Pinned|Pageable|Host|Memory) -> Device|Host-to-Device"),
    ("p2p", r"(?i)PtoP|Peer"),
    ("d2d", r"(?i)DtoD|\bD2D|DeviceToDevice|Device -> Device|Device-to-Device|CopyDevice"),
)
LARGE = 1 << 18
"""Bytes below which a copy is a scalar, an index or a flag rather than a tensor worth moving away."""


class Copies(NamedTuple):
    """For every GPU event: how and why it copies; null where it does not."""

    way: CategoryColumn  # "d2h", "h2d", "d2d", "p2p"
    host: CategoryColumn  # "pinned" or "pageable"
    use: CategoryColumn  # "leaves", "returns", "staged", "loaded", "small"
    stream: CategoryColumn  # of every event: what its stream mostly does: "compute", "communication", "copy"


def read_copies(gpu: Gpu, launches: Launches, comm: Collectives, *, engine: Bools) -> Copies:
    """Find what every copy is for; *engine* are the events that the backward launched."""
    names, copy = gpu.names, gpu.text("kind").any_of("memcpy")
    way = CategoryColumn.choose(len(gpu), [(w, copy & names.matches(p)) for w, p in _WAYS])
    host = CategoryColumn.choose(
        len(gpu),
        [("pinned", copy & names.matches(r"(?i)pinned")), ("pageable", copy & names.matches(r"(?i)pageable"))],
    )
    out, back = way.any_of("d2h"), way.any_of("h2d")
    size = gpu.int64("bytes")
    both = np.intersect1d(size[out & (size >= LARGE)], size[back & (size >= LARGE)])
    round_trip = is_in_sorted(size, np.union1d(both, _saved(size, out & ~engine, back & engine)))
    staged, loaded = _around_broadcasts(launches, comm, way)
    use = CategoryColumn.choose(
        len(gpu),
        [
            ("leaves", out & round_trip),
            ("returns", back & round_trip),
            ("small", copy & (size >= 0) & (size < LARGE)),
            ("loaded", loaded),
            ("staged", staged),
        ],
    )
    return Copies(way, host, use, _streams(gpu, copy, comm))


def _saved(size: Ints, out: Bools, back: Bools) -> Ints:
    """Sizes of which the backward fetches as many as left before it: saved tensors of any size, kept on the host.

    The window may cut a step short on either side, so one may be up to half again as many as the other.
    """
    left, left_count = np.unique(size[out & (size > 0)], return_counts=True)
    fetched, fetched_count = np.unique(size[back & (size > 0)], return_counts=True)
    common, a, b = np.intersect1d(left, fetched, return_indices=True)
    few, many = np.minimum(left_count[a], fetched_count[b]), np.maximum(left_count[a], fetched_count[b])
    return common[2 * many <= 3 * few]


def _around_broadcasts(launches: Launches, comm: Collectives, way: CategoryColumn) -> tuple[Bools, Bools]:
    """Device copies launched just before a broadcast stage it; those launched just after one load what it brought."""
    none = np.zeros(len(way), np.bool_)
    cast, device = comm.call.any_of("broadcast"), way.any_of("d2d", "p2p")
    if not cast.any() or not device.any():
        return none, none
    order = launches.ordered(comm.library.present | way.present)
    is_cast, is_device = cast[order], device[order]
    after = is_device & np.concatenate([[False], is_cast[:-1]])
    before = is_device & ~after & np.concatenate([is_cast[1:], [False]])
    staged, loaded = none.copy(), none.copy()
    staged[order[before]] = True
    loaded[order[after]] = True
    return staged, loaded


def _streams(gpu: Gpu, copy: Bools, comm: Collectives) -> CategoryColumn:
    """Name a stream for what fills three quarters of its busy time; the one with most of the compute is compute's.

    Slow communication that runs on the compute stream fills it, and what is computed there is no part of it.
    """
    duration, number = gpu.int64("end_ns") - gpu.int64("start_ns"), gpu.place
    if not len(number):
        return CategoryColumn.constant(None, 0)
    total = np.bincount(number, weights=duration)

    computed = np.bincount(number, weights=np.where(copy | comm.library.present, 0, duration), minlength=len(total))
    home = (computed > 0.5 * computed.sum())[number]

    def mostly(mask: Bools) -> Bools:
        if not mask.any():
            return mask
        filled = np.bincount(number, weights=np.where(mask, duration, 0), minlength=len(total)) > 0.75 * total
        chosen: Bools = ~home & filled[number]
        return chosen

    return CategoryColumn.choose(
        len(gpu),
        [
            ("communication", mostly(comm.library.present)),
            ("copy", mostly(copy)),
            ("compute", np.ones(len(gpu), np.bool_)),
        ],
    )
