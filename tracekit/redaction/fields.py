"""Keys of a PyTorch trace that stay in a redacted copy, and the values that may stand under them.

A key that is not listed is dropped with its value. Numbers stay under listed keys if they are in range for that key, so
that a phone or card number cannot pass for a rank or an id.
"""

import json
import re
from typing import Any

from tracekit.parsers.kineto.vocabulary import CATEGORIES as READ_CATEGORIES

KEEP_OPTIONS = ("annotations", "arguments", "frames", "header", "metadata")
"""What ``--keep`` accepts: texts of ranges, all arguments, Python frames and stacks, header entries, and events without
a duration such as names of processes and threads."""

CATEGORIES = frozenset(READ_CATEGORIES) | {"ac2g", "fwdbwd", "async_cpu_to_gpu", "async_gpu", "trace"}
GPU_CATEGORIES = frozenset(("kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset", "mtia_ccp_events"))
"""Categories whose names are written by compilers and runtimes."""
PHASES = frozenset("XsftBE")
"""Complete events, flows, and pairs of begin and end. Other phases hold names of processes, threads and hosts."""
ALLOCATOR_EVENT = "[memory]"
"""Name of the allocator's events, the only instants that stay."""
STACK_KEYS = frozenset(
    ("call stack", "call_stack", "python stack", "stack", "python parent id", "python id", "python module id")
)

SMALL, ID, SIZE, ANY = 10**6, 1 << 32, 10**12, 1 << 64
"""Upper bounds of ranks, devices and launch settings; of ids; of bytes and elements; of what 64 bits hold."""
MAX_NUMBER_AS_TEXT = 10**9
"""Bound of numbers written as text: one with ten digits is more likely a phone number."""
EVENT_NUMBERS = frozenset(("pid", "tid", "ts", "dur", "id"))
ARGUMENT_NUMBERS = {
    **dict.fromkeys(("External id", "external id", "correlation", "Sequence number", "Fwd thread id", "stream"), ID),
    **dict.fromkeys(
        ("graph id", "graph node id", "Ev Idx", "Record function id", "Seq", "Op count", "wait_on_stream"), ID
    ),
    **dict.fromkeys(
        ("wait_on_cuda_event_record_corr_id", "wait_on_cuda_event_id", "grid", "Input Dims", "Input dims"), ID
    ),
    **dict.fromkeys(("bytes", "In msg nelems", "Out msg nelems", "In split size", "Out split size", "Bytes"), SIZE),
    **dict.fromkeys(("Total Allocated", "Total Reserved", "memory bandwidth (GB/s)"), SIZE),
    **dict.fromkeys(("Src Rank", "Dst Rank", "device", "Process Group ID", "Process Group Ranks", "Group size"), SMALL),
    **dict.fromkeys(("Rank", "Global rank start", "Global rank stride", "Device Type", "Device Id", "context"), SMALL),
    **dict.fromkeys(("block", "registers per thread", "shared memory", "blocks per SM", "warps per SM"), SMALL),
    **dict.fromkeys(("est. achieved occupancy %", "priority", "num_warps", "num_stages", "cbid", "queued"), SMALL),
}
"""Arguments that are numbers or lists of numbers, also written as text."""
ARGUMENT_TEXTS = frozenset(
    ("Collective name", "Process Group Name", "Process Group Description", "dtype", "Input type")
)

HEADER_NUMBERS = {
    **dict.fromkeys(
        ("schemaVersion", "with_flops", "with_modules", "with_stack", "record_shapes", "profile_memory"), SMALL
    ),
    **dict.fromkeys(("cuda_driver_version", "cuda_runtime_version", "cupti_version"), SMALL),
    **dict.fromkeys(("hip_driver_version", "hip_runtime_version"), 100_000_000),
}
HEADER_VERSIONS = frozenset(
    (
        *("nccl_version", "rccl_version", "torch_version", "pytorch_version", "kineto_version"),
        *("roctracer_version", "rocprofiler_version"),
    )
)
DEVICE_NUMBERS = {
    **dict.fromkeys(("id", "computeMajor", "computeMinor", "numSms", "warpSize", "maxThreadsPerBlock"), SMALL),
    **dict.fromkeys(("maxThreadsPerMultiprocessor", "regsPerBlock", "regsPerMultiprocessor"), SMALL),
    **dict.fromkeys(("sharedMemPerBlock", "sharedMemPerBlockOptin", "sharedMemPerMultiprocessor"), SMALL),
    "totalGlobalMem": SIZE,
}
DISTRIBUTED_NUMBERS = dict.fromkeys(("rank", "world_size", "pg_count"), SMALL)
GROUP_NUMBERS = dict.fromkeys(("pg_size", "ranks"), SMALL)
GROUP_TEXTS = frozenset(("pg_name", "pg_desc", "backend_config"))

MAX_VERSION_DIGITS = 6
_VERSION = re.compile(r"\d{1,3}(?:\.\d{1,3}){1,2}(?:a0|rc\d)?(?:\+(?:cu\d{2,3}|rocm\d\.\d|cpu))?|\d{4,5}", re.ASCII)
_NUMBER = re.compile(r"-?\d{1,20}(?:\.\d{1,20})?(?:[eE][-+]?\d{1,3})?", re.ASCII)
_NUMBERS = re.compile(r"\[[-\d\s,.\[\]]*\]", re.ASCII)


class NumberText(str):
    """A JSON number as it is spelled in the file, so that it is written unchanged."""

    __slots__ = ()


def is_number(value: Any, limit: int) -> bool:
    """Return whether *value* is a number below *limit*, or lists of such numbers, also as text; null counts.

    >>> is_number([["1", 2.5], []], 10), is_number("[0, 1]", 10), is_number("5-1", 10), is_number(41555, 1000)
    (True, True, False, False)
    """
    if isinstance(value, NumberText):
        return abs(float(value)) < limit
    if isinstance(value, list):
        return all(is_number(item, limit) for item in value)
    if isinstance(value, str):
        if _NUMBERS.fullmatch(value):
            try:
                return is_number(json.loads(value), limit)
            except (ValueError, RecursionError):
                return False
        return _NUMBER.fullmatch(value) is not None and abs(float(value)) < min(limit, MAX_NUMBER_AS_TEXT)
    return value is None or (isinstance(value, bool | int | float) and abs(value) < limit)


def is_event_number(value: Any) -> bool:
    """Return whether *value* is a time or an id of an event; files of 2021 write ids of threads as text."""
    if isinstance(value, NumberText) or value is None:
        return True
    return isinstance(value, str) and value.isascii() and value.isdecimal() and int(value[:20]) < ID


def is_base_time(value: Any) -> bool:
    """Return whether *value* can be the start of a profiler's clock: 0, or nanoseconds since 1970 from 2001 on."""
    return is_number(value, ANY) and not isinstance(value, list) and (value == "0" or float(value or 0) >= 10**18)


def is_version(value: Any) -> bool:
    """Return whether *value* is a release such as 2.9.0+cu128: two or three numbers with at most six digits.

    >>> is_version("2.9.0+cu128"), is_version("2.9.0+acme"), is_version("10.1.2.3"), is_version("415.555.1234")
    (True, False, False, False)
    """
    if not isinstance(value, str) or not _VERSION.fullmatch(value):
        return False
    return sum(map(str.isdecimal, value.partition("+")[0])) <= MAX_VERSION_DIGITS
