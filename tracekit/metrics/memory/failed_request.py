"""The request for memory that failed: what it asked for, what was there, and what could not be used.

PyTorch writes an ``oom`` event when the GPU gives no further segment, after it has given back what
was only cached. The event carries what was free on the GPU then.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import polars as pl

from tracekit.metrics.memory.block_sizes import MAX_SMALL_BLOCK_BYTES
from tracekit.metrics.memory.contents import contents_at
from tracekit.metrics.memory.fragmentation import SMALL_SEGMENT_BYTES
from tracekit.metrics.memory.free_memory import FreeMemory, measure_free_memory
from tracekit.metrics.memory.replay import Replay
from tracekit.metrics.memory.stacks import Stack, repeated_functions, stack_origin
from tracekit.schema import MemorySnapshot

LARGE_SEGMENT_BYTES = 20 << 20
"""Size of the segments that PyTorch reserves for blocks from 1 to 10 MiB (``kLargeBuffer``)."""
MIN_OWN_SEGMENT_BYTES = 10 << 20
"""Size from which a block has a segment of its own size (``kMinLargeAlloc``)."""
SEGMENT_ROUNDING_BYTES = 2 << 20
"""Multiple of which such a segment is (``kRoundLarge``)."""

REPEATED_FUNCTIONS = pl.Schema(
    {
        "function": pl.String(),  # file, line of its definition unknown: "model.py forward"
        "calls": pl.Int64(),  # whose activations are in memory
        "bytes": pl.Int64(),  # of activations that it and what it calls allocated
    }
)
"""Functions of modules that run several times, with the activations that they left."""


class FailedRequest(msgspec.Struct, frozen=True, eq=False):
    """The last request that failed, and the memory at that moment. Sizes are bytes."""

    at_ns: int
    failures: int
    """Requests that failed in the history."""
    requested_bytes: int
    needed_bytes: int
    """Segment that the allocator asked the GPU for."""
    device_free_bytes: int | None
    """Free on the GPU then; None if it is not recorded."""
    stack: int | None
    origin: str | None
    """What asked by its stack: forward, backward, recompute, optimizer, …; None if unknown."""
    allocated_bytes: int
    active_bytes: int
    reserved_bytes: int
    rounding_bytes: int
    """Of what is allocated, the bytes that nobody asked for: blocks are larger."""
    free: FreeMemory
    contents: pl.DataFrame
    """``CONTENTS`` then."""
    leaked_bytes: int
    """Left behind by steps, at least."""
    repeated: pl.DataFrame
    """``REPEATED_FUNCTIONS``, those first whose recomputation frees most."""

    @property
    def missing_bytes(self) -> int:
        """What the GPU lacked for the segment; all of it where what was free is not known."""
        return max(0, self.needed_bytes - (self.device_free_bytes or 0))


def find_failed_request(
    replay: Replay,
    snapshot: MemorySnapshot,
    purposes: pl.DataFrame,
    leaks: pl.DataFrame,
) -> FailedRequest | None:
    """Return the last request of a history that failed; None if none did.

    Args:
        replay: Replay of the snapshot, on any clock.
        snapshot: The snapshot.
        purposes: From ``contents.find_purposes``.
        leaks: ``leaks.LEAKS``.

    """
    failed = snapshot.events.with_row_index("row").filter(pl.col("action") == "oom")
    if failed.is_empty():
        return None
    event = failed.row(-1, named=True)
    row = int(event["row"])
    level = replay.levels.row(row, named=True)
    requested_bytes = int(event["bytes"])
    contents = contents_at(purposes, row)
    is_left_before = pl.col("last_ns") <= int(level["at_ns"])
    stack = None if event["stack"] is None else int(event["stack"])
    return FailedRequest(
        at_ns=int(level["at_ns"]),
        failures=len(failed),
        requested_bytes=requested_bytes,
        needed_bytes=segment_bytes(requested_bytes),
        device_free_bytes=event["device_free"],
        stack=stack,
        origin=_origin(snapshot.stacks, stack),
        allocated_bytes=int(level["allocated"]),
        active_bytes=int(level["active"]),
        reserved_bytes=int(level["reserved"]),
        rounding_bytes=int(level["allocated"] - level["requested"]),
        free=measure_free_memory(
            replay,
            snapshot,
            row=row,
            requested_bytes=requested_bytes,
            stream=int(event["stream"]),
        ),
        contents=contents,
        leaked_bytes=int(leaks.filter(is_left_before)["bytes"].sum()),
        repeated=_repeated_functions(contents, snapshot.stacks),
    )


def segment_bytes(requested_bytes: int) -> int:
    """Return the size of the segment that PyTorch reserves for a request.

    >>> [segment_bytes(size) >> 20 for size in (1 << 20, 2 << 20, 11 << 20)]
    [2, 20, 12]
    """
    if requested_bytes <= MAX_SMALL_BLOCK_BYTES:
        return SMALL_SEGMENT_BYTES
    if requested_bytes < MIN_OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-requested_bytes // SEGMENT_ROUNDING_BYTES) * SEGMENT_ROUNDING_BYTES


def _origin(stacks: Sequence[Stack], stack: int | None) -> str | None:
    """Return what asked for the memory.

    Python stacks end at the thread of the autograd engine: where others have one, a missing one
    tells a backward.
    """
    if stack is None:
        return "backward" if stacks else None
    return stack_origin(stacks[stack])


def _repeated_functions(contents: pl.DataFrame, stacks: Sequence[Stack]) -> pl.DataFrame:
    """Return ``REPEATED_FUNCTIONS`` of the activations in memory.

    A function that is recomputed needs the activations of one call at a time, so what it frees is
    in proportion to the other calls. A stack that is alive n times tells of n calls; of several
    stacks of a function the one with the most bytes decides.
    """
    activations = contents.filter(
        (pl.col("category") == "activations") & pl.col("stack").is_not_null()
    )
    by_function: dict[str, dict[int, tuple[int, int]]] = {}
    for stack, size, count in activations.group_by("stack").agg(pl.sum("bytes", "count")).rows():
        for function in repeated_functions(stacks[stack]):
            by_function.setdefault(function, {})[stack] = (size, count)
    rows = []
    for function, sizes in by_function.items():
        _, calls = max(sizes.values())
        if calls > 1:
            rows.append((function, calls, sum(size for size, _ in sizes.values())))
    table = pl.DataFrame(rows, schema=REPEATED_FUNCTIONS, orient="row")
    freed = pl.col("bytes") - pl.col("bytes") // pl.col("calls")
    return table.sort(freed, "function", descending=[True, False])
