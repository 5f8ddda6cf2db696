"""Causes of running out of GPU memory, and what would have made the request fit, each with its bytes."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from tracekit.documents import memory as documents
from tracekit.documents.coding import rows
from tracekit.metrics.memory import RankContents
from tracekit.metrics.memory.failed_request import FailedRequest

MIN_SHARE_TO_BE_A_CAUSE = 0.1
"""Share of the memory that was reserved, or of the GPU's, from which what could not be used is the
cause."""
MIN_SHARE_OF_MISSING = 0.1
"""Share of the missing memory that a remedy must free to be worth naming."""
MAX_SOURCE_LINES = 20
"""Source lines in a document, those with the most memory."""
MAX_REPEATED_FUNCTIONS = 5
"""Functions in a document, those whose recomputation frees most."""
MAX_RECOMPUTED = 2
"""Functions or modules whose recomputation is proposed."""
_DDP_FILE = "torch/nn/parallel/distributed.py"
_COMPUTE_ORIGINS = ("forward", "backward", "recompute")
_REMEDY_OF_CAUSE = {
    "leak": "stop_leak",
    "fragmentation": "expandable_segments",
    "other_processes": "end_other_processes",
    "limit": "raise_limit",
}
"""Remedy that stands first, by cause."""


def out_of_memory_document(
    contents: RankContents, capacity_bytes: int | None
) -> documents.OutOfMemory | None:
    """Return why a rank ran out of memory; None if no request failed.

    Args:
        contents: What was measured.
        capacity_bytes: Memory of the GPU; None if unknown.

    """
    failure = contents.failed_request
    if failure is None:
        return None
    outside_bytes = None
    if capacity_bytes is not None and failure.device_free_bytes is not None:
        outside_bytes = max(0, capacity_bytes - failure.reserved_bytes - failure.device_free_bytes)
    by_category = _by_category(failure)
    cause = _cause(failure, outside_bytes, capacity_bytes, by_category)
    remedies = list(_remedies(failure, contents, outside_bytes, cause, by_category))
    first_code = _REMEDY_OF_CAUSE.get(cause)
    remedies.sort(
        key=lambda remedy: (remedy.code != first_code, not remedy.is_enough, -(remedy.bytes or 0))
    )
    free = failure.free
    lines = dict(contents.stacks.select("stack", "line").iter_rows())
    return documents.OutOfMemory(
        cause=cause,
        at_ns=failure.at_ns,
        failures=failure.failures,
        requested_bytes=failure.requested_bytes,
        needed_bytes=failure.needed_bytes,
        missing_bytes=None if failure.device_free_bytes is None else failure.missing_bytes,
        line=lines.get(failure.stack),
        origin=failure.origin,
        capacity_bytes=capacity_bytes,
        device_free_bytes=failure.device_free_bytes,
        outside_bytes=outside_bytes,
        reserved_bytes=failure.reserved_bytes,
        allocated_bytes=failure.allocated_bytes,
        pending_bytes=failure.active_bytes - failure.allocated_bytes,
        rounding_bytes=failure.rounding_bytes,
        fragmented_bytes=free.fragmented_bytes,
        largest_piece_bytes=free.largest_piece_bytes,
        cached_bytes=free.cached_bytes,
        other_streams_bytes=free.other_streams_bytes,
        private_pools_bytes=free.private_pools_bytes,
        small_segments_bytes=free.small_segments_bytes,
        leaked_bytes=failure.leaked_bytes,
        by_category=by_category,
        lines=_lines(failure, contents.stacks),
        repeated=rows(failure.repeated.head(MAX_REPEATED_FUNCTIONS), documents.RepeatedFunction),
        remedies=remedies,
    )


def _by_category(failure: FailedRequest) -> dict[str, int]:
    sums = failure.contents.group_by("category").agg(pl.sum("bytes"))
    ordered = sums.sort("bytes", "category", descending=[True, False])
    return dict(ordered.cast({"category": pl.String}).iter_rows())


def _cause(
    failure: FailedRequest,
    outside_bytes: int | None,
    capacity_bytes: int | None,
    by_category: dict[str, int],
) -> str:
    """Return why the request failed.

    What would have been enough by itself and could be had for nothing is the cause; else what
    filled the memory most.
    """
    free_bytes = failure.device_free_bytes
    if free_bytes is not None and free_bytes >= failure.needed_bytes:
        return "limit"
    all_bytes = capacity_bytes
    if all_bytes is None and free_bytes is not None:
        all_bytes = failure.reserved_bytes + free_bytes
    if all_bytes is not None and failure.needed_bytes > all_bytes:
        return "request"
    min_reserved = MIN_SHARE_TO_BE_A_CAUSE * failure.reserved_bytes
    min_outside = MIN_SHARE_TO_BE_A_CAUSE * (capacity_bytes or 0)
    pools_bytes = failure.free.other_streams_bytes + failure.free.private_pools_bytes
    candidates = [  # what it held, and from how much on it is the cause
        ("leak", failure.leaked_bytes, min_reserved),
        ("fragmentation", failure.free.fragmented_bytes, min_reserved),
        ("other_pools", pools_bytes, min_reserved),
        ("other_processes", outside_bytes or 0, min_outside),
    ]
    enough = []
    for name, size, min_bytes in candidates:
        if size and size >= max(failure.missing_bytes, min_bytes):
            enough.append((size, name))
    if enough:
        return max(enough)[1]
    return next(iter(by_category), "other")


def _remedies(
    failure: FailedRequest,
    contents: RankContents,
    outside_bytes: int | None,
    cause: str,
    by_category: dict[str, int],
) -> Iterator[documents.MemoryRemedy]:
    """Yield what would have made memory for the request."""
    if cause == "limit":
        yield documents.MemoryRemedy("raise_limit", None, None, None)
        return
    if cause == "request":
        yield documents.MemoryRemedy("smaller_request", failure.missing_bytes, True, None)
        return
    activations = by_category.get("activations", 0)
    gradients = by_category.get("gradients", 0)
    own_share = failure.requested_bytes if failure.origin in _COMPUTE_ORIGINS else 0
    freed = [
        ("stop_leak", failure.leaked_bytes, None),
        ("end_other_processes", outside_bytes or 0, None),
        ("smaller_microbatch", (activations + own_share) // 2, None),
        *(("recompute", size, name) for name, size in _recomputed(failure)),
        ("offload_activations", activations, None),
        ("offload_optimizer", by_category.get("optimizer_state", 0), None),
        ("share_gradient_buckets", min(gradients, _bucket_bytes(failure, contents)), None),
    ]
    if not contents.expandable:
        freed.append(("expandable_segments", failure.free.fragmented_bytes, None))
    pools_bytes = failure.free.other_streams_bytes + failure.free.private_pools_bytes
    freed.append(("fewer_pools", pools_bytes, None))
    if failure.origin == "forward":
        freed.append(("free_gradients", gradients, None))
    for code, size, name in freed:
        if size > MIN_SHARE_OF_MISSING * failure.missing_bytes:
            is_enough = None
            if failure.device_free_bytes is not None:
                is_enough = size >= failure.missing_bytes
            yield documents.MemoryRemedy(code, size, is_enough, name)


def _recomputed(failure: FailedRequest) -> list[tuple[str, int]]:
    """Return functions of modules, else modules, with what recomputing them frees at most."""
    functions = []
    for name, calls, size in failure.repeated.head(MAX_RECOMPUTED).iter_rows():
        functions.append((name, size - size // calls))
    if functions:
        return functions
    is_of_module = (pl.col("category") == "activations") & pl.col("module").is_not_null()
    by_module = failure.contents.filter(is_of_module).group_by("module").agg(pl.sum("bytes"))
    ordered = by_module.sort("bytes", "module", descending=[True, False])
    return ordered.head(MAX_RECOMPUTED).rows()


def _bucket_bytes(failure: FailedRequest, contents: RankContents) -> int:
    """Return the buckets into which ``DistributedDataParallel`` copies gradients."""
    is_ddp = pl.col("frames").list.join("\n").str.contains(_DDP_FILE, literal=True)
    of_ddp = contents.stacks.filter(is_ddp).select("stack")
    buckets = failure.contents.join(of_ddp, on="stack")
    return int(buckets.filter(pl.col("category") == "communication")["bytes"].sum())


def _lines(failure: FailedRequest, stacks: pl.DataFrame) -> list[documents.LineMemory]:
    """Return the contents by source line and category, the largest first."""
    named = failure.contents.join(stacks.select("stack", "line"), on="stack", how="left")
    key = ["line", "category"]
    lines = named.group_by(key).agg(pl.sum("bytes", "count")).cast({"category": pl.String})
    ordered = lines.sort("bytes", *key, descending=[True, False, False], nulls_last=True)
    return rows(ordered.head(MAX_SOURCE_LINES), documents.LineMemory)
