"""Traces of the capture of CUDA or HIP graphs: how to tell one, and the kernels that its launches name.

While a graph is captured, launches run nothing: the trace has launches and next to no GPU events.
"""

import math
import re
from typing import Any

import msgspec
import polars as pl

from tracekit.parsers.kineto.stream import Stream
from tracekit.schema import CAPTURED_KERNELS, KERNEL_BLOCKS

MAX_GPU_EVENTS_PER_LAUNCH = 0.5
"""GPU events per launch up to which a trace with a capture is taken for one of the capture
alone."""
MAX_BLOCKS = 2**63
"""Exclusive bound of the thread blocks of a kernel: three sizes of which the first has 31 bits and
the others 16."""
_CHUNK_BYTES = 1 << 24
_OVERLAP_BYTES = 256
"""Bytes of a chunk that are looked at again with the next: a key and its value may lie in both."""
_GPU_EVENT = re.compile(rb'"cat"\s*:\s*"(?:kernel|gpu_memcpy|gpu_memset)"')
# Bounded, so that a long name is not tried in all the ways to divide it. The longest beginnings are
# hipExtModule and hipModule, the longest middle is Cooperative.
_LAUNCH = re.compile(rb'"name"\s*:\s*"\w{0,32}Launch\w{0,32}Kernel')
_CAPTURE = re.compile(rb'"name"\s*:\s*"\w{0,32}StreamBeginCapture')


def holds_capture(path: str) -> bool:
    """Return whether a trace is one of a capture: it begins a capture, and most of its launches ran nothing."""
    gpu_events = launches = captures = 0
    with Stream(path) as stream:
        rest = b""
        while chunk := stream.read(_CHUNK_BYTES):
            text = rest + chunk
            # Matches that begin in the overlap are counted with the next chunk, which has all of
            # them.
            limit = len(text) - _OVERLAP_BYTES if len(chunk) == _CHUNK_BYTES else len(text)
            gpu_events += _count(_GPU_EVENT, text, limit)
            launches += _count(_LAUNCH, text, limit)
            captures += _count(_CAPTURE, text, limit)
            rest = text[limit:]
    return captures > 0 and gpu_events <= MAX_GPU_EVENTS_PER_LAUNCH * launches


def _count(pattern: re.Pattern[bytes], text: bytes, limit: int) -> int:
    """Return how many matches begin before *limit*."""
    return sum(match.start() < limit for match in pattern.finditer(text))


class _Args(msgspec.Struct):
    kernel: Any = None
    correlation: Any = None
    grid: Any = None


class _CaptureEvent(msgspec.Struct):
    ph: Any = None
    cat: Any = None
    args: _Args | None = None


class _CaptureTrace(msgspec.Struct):
    traceEvents: list[_CaptureEvent] = []  # noqa: N815 - the key of the format


def _read_events(path: str) -> list[_CaptureEvent]:
    """Return the events of a trace; none if the file is damaged."""
    parts = []
    with Stream(path) as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            parts.append(chunk)
    try:
        return msgspec.json.decode(b"".join(parts), type=_CaptureTrace).traceEvents
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []


def read_kernel_blocks(path: str) -> pl.DataFrame:
    """Return the thread blocks of a trace's kernels (``KERNEL_BLOCKS``).

    None if the file is damaged.
    """
    rows = []
    complete_events = (event for event in _read_events(path) if event.ph == "X")
    for number, event in enumerate(complete_events):
        blocks = None if event.args is None else _count_blocks(event.args.grid)
        if event.cat == "kernel" and blocks is not None:
            rows.append((number, blocks))
    return pl.DataFrame(rows, schema=KERNEL_BLOCKS, orient="row")


def _is_id(value: Any) -> bool:
    """Return whether a value is an integer of 64 bits."""
    return isinstance(value, int) and -(2**63) <= value < 2**63


def _count_blocks(grid: Any) -> int | None:
    """Return the thread blocks of a grid; None if it is not one.

    >>> _count_blocks([4, 3, 2]), _count_blocks([2**40] * 3), _count_blocks("4")
    (24, None, None)
    """
    if not isinstance(grid, list) or not all(isinstance(size, int) for size in grid):
        return None
    blocks = math.prod(grid)
    return blocks if 0 <= blocks < MAX_BLOCKS else None


def read_launched_kernels(path: str) -> pl.DataFrame:
    """Return the names of the kernels that launches record (``CAPTURED_KERNELS``).

    None if the file is damaged.
    """
    rows = []
    for event in _read_events(path):
        args = event.args
        if args is None or not isinstance(args.kernel, str) or not _is_id(args.correlation):
            continue
        # Not a set: in a damaged file a category may be a list.
        if event.cat in ("cuda_runtime", "cuda_driver"):
            rows.append((args.correlation, args.kernel))
    table = pl.DataFrame(rows, schema=CAPTURED_KERNELS, orient="row")
    return table.unique("correlation", keep="first", maintain_order=True)
