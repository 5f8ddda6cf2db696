"""Copies between host and device: direction, kind of host memory, and purpose.

A copy may move a tensor away from the device or back (offloading), serve a broadcast of weights, or
be merely input.
"""

import numpy as np

from tracekit._util.arrays import Bools, Ints, is_in_sorted
from tracekit._util.categories import CategoryColumn
from tracekit.classify.collectives import MAX_FLAG_BYTES, Collectives
from tracekit.classify.host_ranges import GpuEvents, Launches, Ranges
from tracekit.classify.names import COPY_DIRECTIONS, HOST_CALLS
from tracekit.classify.row_order import mask_of_rows

MIN_TENSOR_BYTES = 1 << 18
"""Bytes below which a copy is a scalar, an index or a flag rather than a tensor."""
_MIN_STREAM_SHARE = 0.75
"""Share of a stream's busy time above which the stream is named for what fills it."""
_MIN_HOME_SHARE = 0.5
"""Share of all compute time above which a stream is the compute stream."""


def read_copies(
    gpu: GpuEvents, ranges: Ranges, launches: Launches, comm: Collectives, *, in_backward: Bools
) -> dict[str, CategoryColumn]:
    """Find the purpose of every copy; *in_backward* are the events that autograd nodes launched.

    Returns:
        Columns for all GPU events, null for those that copy nothing: ``copy``, the direction;
        ``host``, the kind of host memory; ``copy_use``, the purpose. ``stream_use`` is what the
        stream of any event mostly does.
    """
    names = gpu.names
    is_copy = gpu.text("kind").any_of("memcpy")
    direction = CategoryColumn.choose(
        len(gpu),
        [(value, is_copy & names.matches(pattern)) for value, pattern in COPY_DIRECTIONS.items()],
    )
    host = CategoryColumn.choose(
        len(gpu),
        [(kind, is_copy & names.matches(f"(?i){kind}")) for kind in ("pinned", "pageable")],
    )
    to_host = direction.any_of("d2h")
    to_device = direction.any_of("h2d")
    size = gpu.int64("bytes")
    is_tensor = size >= MIN_TENSOR_BYTES
    both_ways = np.intersect1d(size[to_host & is_tensor], size[to_device & is_tensor])
    saved = _saved_tensor_sizes(size, to_host & ~in_backward, to_device & in_backward)
    is_round_trip = is_in_sorted(size, np.union1d(both_ways, saved))
    staged, loaded = _copies_around_broadcasts(launches, comm, direction)
    for_broadcast = _copies_for_broadcasts(
        launches, comm, size, to_device & (size > MAX_FLAG_BYTES)
    )
    shared = _copies_from_shared_memory(gpu, ranges, launches, direction.any_of("d2d", "p2p"))
    use = CategoryColumn.choose(
        len(gpu),
        [
            ("shared", shared),
            ("broadcast", for_broadcast),
            ("leaves", to_host & is_round_trip),
            ("returns", to_device & is_round_trip),
            ("small", is_copy & (size >= 0) & ~is_tensor),
            ("loaded", loaded),
            ("staged", staged),
        ],
    )
    stream_use = stream_uses(gpu, is_copy, comm.library.present)
    return {"copy": direction, "host": host, "copy_use": use, "stream_use": stream_use}


def _saved_tensor_sizes(size: Ints, leaving: Bools, fetched: Bools) -> Ints:
    """Return the sizes of which the backward fetches as many as left before it: saved tensors, of any size.

    The window may cut a step short on either side, so that one count may be up to half again the
    other.
    """
    left_sizes, left_count = np.unique(size[leaving & (size > 0)], return_counts=True)
    fetched_sizes, fetched_count = np.unique(size[fetched & (size > 0)], return_counts=True)
    common, in_left, in_fetched = np.intersect1d(left_sizes, fetched_sizes, return_indices=True)
    counts = np.stack([left_count[in_left], fetched_count[in_fetched]])
    saved_sizes: Ints = common[2 * counts.max(axis=0) <= 3 * counts.min(axis=0)]
    return saved_sizes


def _copies_around_broadcasts(
    launches: Launches, comm: Collectives, direction: CategoryColumn
) -> tuple[Bools, Bools]:
    """Return masks of the device copies launched just before a broadcast, which stage it, and just after it."""
    is_broadcast = comm.call.any_of("broadcast")
    is_device_copy = direction.any_of("d2d", "p2p")
    order = launches.ordered(comm.library.present | direction.present)
    broadcast = is_broadcast[order]
    device_copy = is_device_copy[order]
    after = device_copy & np.append(False, broadcast[:-1])[: len(order)]
    before = device_copy & ~after & np.append(broadcast[1:], False)[: len(order)]
    return mask_of_rows(len(direction), order[before]), mask_of_rows(len(direction), order[after])


def _copies_for_broadcasts(
    launches: Launches, comm: Collectives, size: Ints, to_device: Bools
) -> Bools:
    """Return the mask of copies from the host (*to_device*) that together fill what is broadcast later."""
    broadcast_sizes = np.unique(size[comm.call.any_of("broadcast")])
    if not len(broadcast_sizes) or not to_device.any():
        return np.zeros(len(to_device), np.bool_)
    # A bucket may be copied in several parts: neighbours among the launches of copies from the host
    # and communication.
    order = launches.ordered(comm.library.present | to_device)
    copied = to_device[order]
    run = np.cumsum(np.append(True, copied[1:] != copied[:-1])) - 1 if len(order) else order
    total = np.bincount(run, weights=np.where(copied, size[order], 0)).astype(np.int64)
    return mask_of_rows(len(to_device), order[copied & np.isin(total, broadcast_sizes)[run]])


def _copies_from_shared_memory(
    gpu: GpuEvents, ranges: Ranges, launches: Launches, device_copy: Bools
) -> Bools:
    """Return the mask of the device copies between opening another process's memory and closing it, or computing."""
    names = ranges.source.text("name")
    opens = np.sort(
        ranges.source.int64("start_ns")[names.matches(HOST_CALLS["open_shared_memory"])]
    )
    closes = np.sort(
        ranges.source.int64("start_ns")[names.matches(HOST_CALLS["close_shared_memory"])]
    )
    if not len(opens):
        return np.zeros(len(gpu), np.bool_)
    launch = launches.start_ns
    computes = np.sort(launch[gpu.is_kernel & (launch >= 0)])
    ends = np.sort(np.concatenate([closes, computes]))
    # A copy belongs to the last opening before it, if nothing ended that in between.
    opened = np.searchsorted(opens, launch, side="right") - 1
    last_open = np.where(opened >= 0, opens[opened], np.iinfo(np.int64).max)
    ended = np.searchsorted(ends, launch, side="right") > np.searchsorted(
        ends, last_open, side="right"
    )
    shared: Bools = device_copy & (launch >= 0) & (opened >= 0) & ~ended
    return shared


def stream_uses(gpu: GpuEvents, is_copy: Bools, communicates: Bools) -> CategoryColumn:
    """Return what each event's stream is for: what fills most of its busy time, else compute.

    The stream with most of the compute is for compute, even if slow communication fills it.
    """
    stream = gpu.stream_number
    uses = ("compute", "communication", "copy")
    busy_ns = np.zeros((len(uses), int(stream.max(initial=0)) + 1), np.int64)  # by use and stream
    use = np.select([communicates, is_copy], [1, 2])
    np.add.at(busy_ns, (use, stream), gpu.int64("end_ns") - gpu.int64("start_ns"))
    is_home = busy_ns[0] > _MIN_HOME_SHARE * busy_ns[0].sum()
    fills = ~is_home & (busy_ns > _MIN_STREAM_SHARE * busy_ns.sum(axis=0))
    return CategoryColumn(uses, np.select([fills[1], fills[2]], [1, 2])[stream])
