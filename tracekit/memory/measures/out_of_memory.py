"""Running out of GPU memory: the last request that failed, why, and what would have made it fit, each with its bytes.

PyTorch writes an ``oom`` event when the GPU gives no further segment, after it has given back what
was only cached. The event carries what was free on the GPU then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl
from msgspec.structs import replace

from tracekit.documents.coding import rows
from tracekit.documents.memory import CopiedBlock, MemoryRemedy, OutOfMemory, RepeatedFunction
from tracekit.memory.measures.block_sizes import MAX_SMALL_BLOCK_BYTES
from tracekit.memory.measures.contents import bytes_by_category, contents_at, largest_lines
from tracekit.memory.measures.fragmentation import SMALL_SEGMENT_BYTES
from tracekit.memory.measures.free_memory import free_bytes_by_reason
from tracekit.memory.measures.replay import Replay
from tracekit.memory.measures.stacks import (
    Stack,
    is_compiled,
    repeated_functions,
    source_line,
    stack_origin,
)
from tracekit.schema import MemorySnapshot

LARGE_SEGMENT_BYTES = 20 << 20
"""Size of the segments that PyTorch reserves for blocks from 1 to 10 MiB (``kLargeBuffer``)."""
MIN_OWN_SEGMENT_BYTES = 10 << 20
"""Size from which a block has a segment of its own size (``kMinLargeAlloc``)."""
SEGMENT_ROUNDING_BYTES = 2 << 20
"""Multiple of which such a segment is (``kRoundLarge``)."""

MIN_SHARE_TO_BE_A_CAUSE = 0.1
"""Share of the memory that was reserved, or of the GPU's, from which what could not be used is the
cause."""
MIN_SHARE_OF_MISSING = 0.1
"""Share of the missing memory that a remedy must free to be worth naming."""
MAX_REPEATED_FUNCTIONS = 5
"""Functions in a document, those whose recomputation frees most."""
MAX_RECOMPUTED = 2
"""Functions or modules whose recomputation is proposed."""
_CONVERSION = "_to_copy"
"""Part of the names of C++ functions that convert a tensor into another type."""
MIN_COPIED_BYTES = 64 << 20
"""Size from which a request that is twice as large as a block in use may be told to be its copy."""
MAX_ROUNDING_BYTES = 2 << 20
"""Difference between sizes of blocks that rounding makes."""
_DDP_FILE = "torch/nn/parallel/distributed.py"
_COMPUTE_ORIGINS = ("forward", "backward", "recompute")
_REMEDY_OF_CAUSE = {
    "leak": "stop_leak",
    "fragmentation": "expandable_segments",
    "other_processes": "end_other_processes",
    "float32_copy": "loss_in_pieces",
    "cache": "preallocate",
}
"""Remedy that stands first, by cause."""

REPEATED_FUNCTIONS = pl.Schema(
    {
        "function": pl.String(),  # file, line of its definition unknown: "model.py forward"
        "calls": pl.Int64(),  # whose activations are in memory
        "bytes": pl.Int64(),  # of activations that it and what it calls allocated
    }
)
"""Functions of modules that run several times, with the activations that they left."""


def find_out_of_memory(
    replay: Replay,
    snapshot: MemorySnapshot,
    purposes: pl.DataFrame,
    leaks: pl.DataFrame,
    *,
    capacity_bytes: int | None,
) -> OutOfMemory | None:
    """Return the last request of a history that failed, why, and what would have made it fit; None if none did.

    Args:
        replay: Replay of the snapshot, on any clock.
        snapshot: The snapshot.
        purposes: From ``contents.find_purposes``.
        leaks: ``leaks.LEAKS``.
        capacity_bytes: Memory of the GPU; None if unknown.

    """
    failed = snapshot.events.with_row_index("row").filter(pl.col("action") == "oom")
    if failed.is_empty():
        return None
    event = failed.row(-1, named=True)
    row = int(event["row"])
    level = replay.levels.row(row, named=True)
    reserved_bytes = int(level["reserved"])
    requested_bytes = int(event["bytes"])
    needed_bytes = segment_bytes(requested_bytes)
    device_free_bytes: int | None = event["device_free"]
    missing_bytes = outside_bytes = limit_bytes = None
    if device_free_bytes is not None:
        missing_bytes = max(0, needed_bytes - device_free_bytes)
        if capacity_bytes is not None:
            outside_bytes = max(0, capacity_bytes - reserved_bytes - device_free_bytes)
        if device_free_bytes >= needed_bytes:
            most_reserved: Any = replay.levels["reserved"].head(row + 1).max()
            limit_bytes = _limit_bytes(
                reserved_bytes, needed_bytes, int(most_reserved), capacity_bytes
            )
            missing_bytes = reserved_bytes + needed_bytes - limit_bytes
    free_bytes = free_bytes_by_reason(
        replay, snapshot, row=row, requested_bytes=requested_bytes, stream=int(event["stream"])
    )
    contents = contents_at(purposes, row)
    is_left_before = pl.col("last_ns") <= int(level["at_ns"])
    stack = None if event["stack"] is None else int(event["stack"])
    repeated = _repeated_functions(contents, snapshot.stacks)
    failure = OutOfMemory(
        cause="",  # it and the remedies follow from the rest
        at_ns=int(level["at_ns"]),
        failures=len(failed),
        requested_bytes=requested_bytes,
        needed_bytes=needed_bytes,
        missing_bytes=missing_bytes,
        line=None if stack is None else source_line(snapshot.stacks[stack]),
        origin=_origin(snapshot.stacks, stack),
        capacity_bytes=capacity_bytes,
        device_free_bytes=device_free_bytes,
        outside_bytes=outside_bytes,
        reserved_bytes=reserved_bytes,
        allocated_bytes=int(level["allocated"]),
        pending_bytes=int(level["active"] - level["allocated"]),
        rounding_bytes=int(level["allocated"] - level["requested"]),
        fragmented_bytes=free_bytes["fragmented"],
        largest_piece_bytes=free_bytes["largest_piece"],
        cached_bytes=free_bytes["cached"],
        other_streams_bytes=free_bytes["other_streams"],
        private_pools_bytes=free_bytes["private_pools"],
        small_segments_bytes=free_bytes["small_segments"],
        leaked_bytes=int(leaks.filter(is_left_before)["bytes"].sum()),
        by_category=bytes_by_category(contents),
        lines=largest_lines(contents, snapshot.stacks),
        repeated=rows(repeated.head(MAX_REPEATED_FUNCTIONS), RepeatedFunction),
        remedies=[],
        limit_bytes=limit_bytes,
        copied=_copied(replay, snapshot, row=row, requested_bytes=requested_bytes, stack=stack),
    )
    cause = find_cause(failure)
    remedies = list(find_remedies(failure, cause, contents, snapshot))
    first_code = _REMEDY_OF_CAUSE.get(cause)
    remedies.sort(
        key=lambda remedy: (
            remedy.code == "raise_limit",
            remedy.code != first_code,
            not remedy.is_enough,
            -(remedy.bytes or 0),
        )
    )
    return replace(failure, cause=cause, remedies=remedies)


def _limit_bytes(
    reserved_bytes: int, needed_bytes: int, most_reserved_bytes: int, capacity_bytes: int | None
) -> int:
    """Return what a process may reserve at least that was refused a segment for which the GPU had room.

    Its limit lies between what it had ever reserved and what it was refused; the memory that the caller named
    is the limit if it lies there.

    >>> _limit_bytes(5, 3, 6, None), _limit_bytes(5, 3, 6, 7), _limit_bytes(5, 3, 6, 80)
    (6, 7, 6)
    """
    refused_bytes = reserved_bytes + needed_bytes
    least_bytes = min(max(reserved_bytes, most_reserved_bytes), refused_bytes - 1)
    if capacity_bytes is not None and least_bytes <= capacity_bytes < refused_bytes:
        return capacity_bytes
    return least_bytes


def _copied(
    replay: Replay, snapshot: MemorySnapshot, *, row: int, requested_bytes: int, stack: int | None
) -> CopiedBlock | None:
    """Return the block of which the request is a copy in a type twice as wide, as logits become float32 before a loss.

    That is the last large block that is in use, if it has half the size and the request comes from a conversion, as
    far as stacks tell.
    """
    if stack is not None:
        compiled = [frame for frame in snapshot.stacks[stack] if is_compiled(frame)]
        if compiled and not any(_CONVERSION in function for function, _, _ in compiled):
            return None
    is_in_use = pl.col("free_row").is_null() | (pl.col("free_row") > row)
    is_earlier = pl.col("alloc_row").fill_null(-1) < row
    # Smaller blocks may come between: what else the conversion, or the loss, needs.
    is_large = pl.col("bytes") >= requested_bytes // 4
    large = replay.allocations.filter(is_in_use & is_earlier & is_large).sort("alloc_row")
    if requested_bytes < MIN_COPIED_BYTES or large.is_empty():
        return None
    last = large.row(-1, named=True)
    if abs(int(last["bytes"]) - requested_bytes // 2) > MAX_ROUNDING_BYTES:
        return None
    line = None if last["stack"] is None else source_line(snapshot.stacks[last["stack"]])
    return CopiedBlock(int(last["bytes"]), line)


def _missing_bytes(failure: OutOfMemory) -> int:
    """Return what the GPU lacked for the segment; all of it where what was free is not known."""
    return failure.needed_bytes if failure.missing_bytes is None else failure.missing_bytes


def find_cause(failure: OutOfMemory) -> str:
    """Return why the request failed.

    What would have been enough by itself and could be had for nothing is the cause; else what
    filled the memory most.
    """
    free_bytes = failure.device_free_bytes
    all_bytes = failure.capacity_bytes
    if failure.limit_bytes is not None:
        free_bytes = None  # what is free beyond the limit is of no use
    if all_bytes is None and free_bytes is not None:
        all_bytes = failure.reserved_bytes + free_bytes
    if all_bytes is not None and failure.needed_bytes > all_bytes:
        return "request"
    min_reserved = MIN_SHARE_TO_BE_A_CAUSE * failure.reserved_bytes
    min_outside = MIN_SHARE_TO_BE_A_CAUSE * (failure.capacity_bytes or 0)
    pools_bytes = failure.other_streams_bytes + failure.private_pools_bytes
    candidates = [  # what it held, and from how much on it is the cause
        ("leak", failure.leaked_bytes, min_reserved),
        ("fragmentation", failure.fragmented_bytes, min_reserved),
        ("other_pools", pools_bytes, min_reserved),
        ("other_processes", failure.outside_bytes or 0, min_outside),
    ]
    enough = []
    for name, size, min_bytes in candidates:
        if size and size >= max(_missing_bytes(failure), min_bytes):
            enough.append((size, name))
    if enough:
        return max(enough)[1]
    if (
        failure.copied is not None
        and failure.needed_bytes >= MIN_SHARE_TO_BE_A_CAUSE * failure.reserved_bytes
    ):
        return "float32_copy"
    if failure.limit_bytes is not None and not failure.by_category:
        return "limit"
    return next(iter(failure.by_category), "other")


def find_remedies(
    failure: OutOfMemory, cause: str, contents: pl.DataFrame, snapshot: MemorySnapshot
) -> Iterator[MemoryRemedy]:
    """Yield what would have made memory for the request."""
    missing_bytes = _missing_bytes(failure)
    if failure.limit_bytes is not None:
        yield MemoryRemedy("raise_limit", None, None, None)
    if cause == "request":
        yield MemoryRemedy("smaller_request", missing_bytes, True, None)
        return
    activations = failure.by_category.get("activations", 0)
    gradients = failure.by_category.get("gradients", 0)
    optimizer_state = failure.by_category.get("optimizer_state", 0)
    bucket_bytes = find_bucket_bytes(contents, snapshot.stacks)
    own_share = failure.requested_bytes if failure.origin in _COMPUTE_ORIGINS else 0
    copied_bytes = failure.needed_bytes if cause == "float32_copy" else 0
    freed = [
        ("loss_in_pieces", copied_bytes, None),
        ("preallocate", failure.by_category.get("cache", 0), None),
        ("stop_leak", failure.leaked_bytes, None),
        ("end_other_processes", failure.outside_bytes or 0, None),
        ("smaller_microbatch", (activations + own_share) // 2, None),
        *(("recompute", size, name) for name, size in find_recomputable(failure, contents)),
        ("offload_activations", activations, None),
        ("offload_optimizer", optimizer_state, None),
        ("share_gradient_buckets", min(gradients, bucket_bytes), None),
    ]
    if not snapshot.expandable:
        freed.append(("expandable_segments", failure.fragmented_bytes, None))
    pools_bytes = failure.other_streams_bytes + failure.private_pools_bytes
    freed.append(("fewer_pools", pools_bytes, None))
    if failure.origin == "forward":
        freed.append(("free_gradients", gradients, None))
    for code, size, name in freed:
        if size > MIN_SHARE_OF_MISSING * missing_bytes:
            is_enough = None if failure.missing_bytes is None else size >= missing_bytes
            yield MemoryRemedy(code, size, is_enough, name)


def find_recomputable(failure: OutOfMemory, contents: pl.DataFrame) -> list[tuple[str, int]]:
    """Return functions of modules, else modules, with what recomputing them frees at most."""
    if failure.repeated:
        functions = failure.repeated[:MAX_RECOMPUTED]
        return [(each.function, each.bytes - each.bytes // each.calls) for each in functions]
    is_of_module = (pl.col("category") == "activations") & pl.col("module").is_not_null()
    by_module = contents.filter(is_of_module).group_by("module").agg(pl.sum("bytes"))
    ordered = by_module.sort("bytes", "module", descending=[True, False])
    return ordered.head(MAX_RECOMPUTED).rows()


def find_bucket_bytes(contents: pl.DataFrame, stacks: Sequence[Stack]) -> int:
    """Return the buckets into which ``DistributedDataParallel`` copies gradients."""
    communication = contents.filter(
        (pl.col("category") == "communication") & pl.col("stack").is_not_null()
    )
    by_stack = communication.group_by("stack").agg(pl.sum("bytes"))
    return sum(
        size
        for stack, size in by_stack.iter_rows()
        if any(_DDP_FILE in file for _, file, _ in stacks[stack])
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
