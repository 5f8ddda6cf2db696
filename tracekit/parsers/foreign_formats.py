"""Recordings of other tools that are not read: what each is, and what writes a recording that is read.

A file is recognised by its first bytes, and by its last bytes where they can be read without
inflating, whatever its name.
"""

import re

import msgspec

SQLITE = b"SQLite format 3\x00"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ForeignFormat(msgspec.Struct, frozen=True):
    """A format that is recognised and not read."""

    what: str
    """What a file of it is, as the rest of a sentence that begins with its path."""
    hint: str
    """What writes a recording that is read, or that there is nothing."""
    pattern: re.Pattern[bytes]
    """What the first bytes of a file begin with, or what its first or last bytes hold."""


_RECORD_ON_GPU = (
    "tracekit does not read it; record the program with `nsys profile --trace=cuda,nvtx` on NVIDIA's GPUs, "
    "or `rocprofv3 --sys-trace --output-format json` on AMD's"
)

BINARY_FORMATS = (
    ForeignFormat(
        "is an Nsight Compute report: counters of single kernels, not what ran when",
        "tracekit does not read it; record with torch.profiler or `nsys profile` to see where a step's time goes",
        re.compile(rb"NVR\x00"),
    ),
    ForeignFormat(
        "is an XPlane profile, as JAX and TensorFlow write",
        _RECORD_ON_GPU,
        # The first plane of an XSpace: its length, perhaps its id, and its name.
        re.compile(
            rb"\n[\x80-\xff]{0,9}[\x00-\x7f](?:\x08[\x80-\xff]{0,9}[\x00-\x7f])?"
            rb"\x12[\x01-\x7f](?:/(?:host|device|task):|Task Environment)"
        ),
    ),
    ForeignFormat(
        "is a Chakra execution trace: operations and what they depend on, without what ran when on a GPU",
        "tracekit does not read it; give the profiler's trace of the same run, which it was made from",
        # The first message, behind its length, is the metadata: a version, or an attribute named schema.
        re.compile(
            rb"[\x80-\xff]{0,4}[\x00-\x7f](?:\n[\x03-\x20]\d+\.\d+\.\d+|\x12[\x08-\x7f]\n\x06schema)"
        ),
    ),
)
"""Formats by how their files begin."""

JSON_FORMATS = (
    ForeignFormat(
        "is a profile of JAX or TensorFlow, written for Chrome's trace viewer",
        _RECORD_ON_GPU,
        # The names of its processes.
        re.compile(rb'"args"\s*:\s*\{\s*"name"\s*:\s*"/(?:host|device):'),
    ),
    ForeignFormat(
        "is a trace of an Ascend NPU (torch_npu or msprof)",
        "tracekit does not read it; Ascend's msprof-analyze does",
        re.compile(
            rb'"args"\s*:\s*\{\s*"name"\s*:\s*"(?:Ascend Hardware|CANN|Overlap Analysis)"'
            rb'|"cat"\s*:\s*"async_npu"'
        ),
    ),
    ForeignFormat(
        "is an execution trace of PyTorch (ExecutionTraceObserver): operators and their tensors, without what ran "
        "when on a GPU",
        "tracekit does not read it; give the profiler's trace of the same run, which export_chrome_trace writes",
        re.compile(rb'^\{\s*"schema"\s*:\s*"[\d.]+(?:-chakra[\d.]*)?"\s*,\s*"pid"\s*:'),
    ),
    ForeignFormat(
        "is a Chakra execution trace: operations and what they depend on, without what ran when on a GPU",
        "tracekit does not read it; give the profiler's trace of the same run, which it was made from",
        re.compile(rb'^\{\s*"workload_graph"\s*:'),
    ),
)
"""Formats by what the text of their files holds."""

SQLITE_FORMATS = (
    ForeignFormat(
        "is a database of an Ascend NPU's profiler (msprof)",
        "tracekit does not read it; Ascend's msprof-analyze does",
        re.compile(rb"CANN_API$|COMPUTE_TASK_INFO$|PYTORCH_API$"),
    ),
)
"""Formats of SQLite files by how the name of one of their tables begins."""

_CREATED_TABLE = re.compile(rb'CREATE TABLE\s+["`\[]?(\w{1,64})')


def created_tables(head: bytes) -> list[bytes]:
    """Return the names of the tables whose definition stands in the first bytes of an SQLite file."""
    return _CREATED_TABLE.findall(head)


def find_foreign_format(head: bytes, tail: bytes = b"") -> ForeignFormat | None:
    r"""Return the format of another tool that a file has, from its first and last bytes; None if it has none of them.

    >>> find_foreign_format(b"NVR\x00\x08").what
    'is an Nsight Compute report: counters of single kernels, not what ran when'
    >>> find_foreign_format(b'{"workload_graph": [').what[:32]
    'is a Chakra execution trace: ope'
    >>> find_foreign_format(b'{"traceEvents": [') is None
    True
    """
    if head.startswith(SQLITE):
        tables = created_tables(head)
        matches = (known for known in SQLITE_FORMATS if any(map(known.pattern.match, tables)))
    elif (text := head.removeprefix(_BYTE_ORDER_MARK).lstrip())[:1] in (b"{", b"["):
        matches = (
            known
            for known in JSON_FORMATS
            if known.pattern.search(text) or known.pattern.search(tail)
        )
    else:
        matches = (known for known in BINARY_FORMATS if known.pattern.match(head))
    return next(matches, None)
