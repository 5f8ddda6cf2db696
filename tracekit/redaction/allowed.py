"""What stays in a redacted trace: keys and values that an analysis reads, each with what may stand there.

Nothing else does. A key that is not here goes, whatever it holds; text is cut down to words that name no one.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

KEEPS = ("annotations", "arguments", "frames", "header", "metadata")
"""What ``--keep`` names: ranges' own words, all arguments, Python frames and stacks, header entries, names of processes
and threads with other events that have no duration."""

EVENT_KEYS = frozenset(("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "bp", "s"))
CATEGORIES = frozenset(
    (
        *("kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset", "cpu_op", "operator", "cuda_runtime", "runtime"),
        *("hip_runtime", "xpu_runtime", "mtia_runtime", "glow_runtime", "privateuse1_runtime", "cuda_driver"),
        *("hip_driver", "xpu_driver", "privateuse1_driver", "user_annotation", "gpu_user_annotation", "overhead"),
        *("cuda_sync", "mtia_ccp_events", "ac2g", "fwdbwd", "async_cpu_to_gpu", "async_gpu"),
    )
)
GPU_CATEGORIES = frozenset(("kernel", "gpu_memcpy", "memcpy", "gpu_memset", "memset", "mtia_ccp_events"))
"""Names of what runs on the GPU are the compiler's."""
CALL = re.compile(r"(?:cu|cuda|hip|hsa|ze|xpu|sycl|nccl)[A-Z]\w{0,80}|INVALID")
"""A call of the driver or its runtime, such as ``cudaLaunchKernel``."""
LIBRARIES = "aten|prims?|c10d?|torch|torchvision|autograd|inductor|quantized|symm_mem|fsdp|nccl|pipelining"
"""Whose operators are known to all: ``aten::mm`` stays a word wherever it stands."""
PHASES = frozenset("XsftBE")
"""Complete events, flows, pairs of begin and end; other phases hold names of processes, threads, hosts, and values."""
ALLOCATOR = "[memory]"
"""Name of the allocator's events, the only instants that analysis reads: numbers alone."""

NUMBER_ARGS = frozenset(
    (
        *("External id", "external id", "correlation", "Sequence number", "Fwd thread id", "Src Rank", "Dst Rank"),
        *("bytes", "In msg nelems", "Out msg nelems", "device", "stream", "graph id", "graph node id", "context"),
        *("Process Group ID", "Group size", "Rank", "Global rank start", "Global rank stride", "Seq", "cbid", "queued"),
        *("Ev Idx", "Record function id", "registers per thread", "shared memory", "blocks per SM", "warps per SM"),
        *(
            "grid",
            "block",
            "est. achieved occupancy %",
            "memory bandwidth (GB/s)",
            "priority",
            "Input Dims",
            "Input dims",
        ),
        *("Input dims", "Input Strides", "In split size", "Out split size", "Process Group Ranks", "wait_on_stream"),
        *("Op count", "wait_on_cuda_event_record_corr_id", "wait_on_cuda_event_id", "num_warps", "num_stages"),
        *("Device Type", "Device Id", "Bytes", "Total Allocated", "Total Reserved"),
    )
)
"""Arguments that are numbers, or lists of them, also written as text."""
TEXT_ARGS = frozenset(
    ("Collective name", "Process Group Name", "Process Group Description", "dtype", "Input type", "event_type")
)
"""Arguments that are words: of these, known words stay."""

HEADER_NUMBERS = frozenset(
    (
        *("schemaVersion", "baseTimeNanoseconds", "with_flops", "with_modules", "with_stack", "record_shapes"),
        *("profile_memory", "cuda_driver_version", "cuda_runtime_version", "cupti_version", "hip_driver_version"),
        *("hip_runtime_version", "roctracer_version", "rocprofiler_version"),
    )
)
HEADER_VERSIONS = frozenset(("nccl_version", "rccl_version", "torch_version", "pytorch_version", "kineto_version"))
DEVICE_NUMBERS = frozenset(
    (
        *("id", "totalGlobalMem", "computeMajor", "computeMinor", "maxThreadsPerBlock", "maxThreadsPerMultiprocessor"),
        *("regsPerBlock", "regsPerMultiprocessor", "warpSize", "sharedMemPerBlock", "sharedMemPerBlockOptin", "numSms"),
        *("sharedMemPerMultiprocessor",),
    )
)
GROUP_NUMBERS = frozenset(("pg_size", "ranks"))
GROUP_TEXTS = frozenset(("pg_name", "pg_desc", "backend_config"))

VERSION = re.compile(r"\d+(?:\.\d+){0,4}(?:[a-z]{1,3}\d{0,8})?(?:[+-](?:cu|rocm|git|nv|cpu)?[0-9a-f.]{0,12})?")
NUMBERS = re.compile(r"[\s\d\[\](),.+\-eE]*")
"""A number or a list of them, as text."""
OPERATOR = re.compile(r"[A-Za-z_][\w.]*(?:::~?[A-Za-z_][\w.<>]*)+(?:: \w+)?")
"""An operator with its library, such as ``aten::mm``: code's own name for itself."""
GPU_MODEL = re.compile(r"[A-Z]{1,3}\d{2,4}[A-Za-z]{0,3}|\d{2,4}[A-Z]{0,2}|\d{1,3}GB")


@cache
def vocabulary() -> frozenset[str]:
    """Return the words that name no one: those of profilers, frameworks and models."""
    listed = Path(__file__).with_name("words.txt").read_text(encoding="ascii")
    return frozenset(listed.split())


def is_number(value: object) -> bool:
    """Return whether a value is a number, or lists of numbers, also as text.

    >>> is_number([[1, 2.5], []]), is_number("[0, 1]"), is_number("x"), is_number({"a": 1}), is_number(None)
    (True, True, False, False, True)
    """
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, list):
            todo += one
        elif isinstance(one, str):
            if not NUMBERS.fullmatch(one):
                return False
        elif not (one is None or isinstance(one, bool | int | float)):
            return False
    return True
