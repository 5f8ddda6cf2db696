"""Words of PyTorch's profiler: keys of events, categories, element types."""

from tracekit._loops.json_scanner import Column, Level, Target

KEYS: dict[Level, dict[str, Column | Target]] = {
    Level.EVENT: {
        "ph": Target.PHASE,
        "args": Target.ARGS,
        "id": Target.IGNORED,
        "bp": Target.IGNORED,
        "s": Target.IGNORED,
        "name": Column.NAME,
        "cat": Column.CAT,
        "ts": Column.TS,
        "dur": Column.DUR,
        "pid": Column.PID,
        "tid": Column.TID,
    },
    Level.ARGS: {
        "External id": Column.EXTERNAL,
        "external id": Column.EXTERNAL,  # files of 2021
        "correlation": Column.CORRELATION,
        "Sequence number": Column.SEQUENCE,
        "Fwd thread id": Column.FWD_THREAD,
        "Src Rank": Column.SRC,
        "Dst Rank": Column.DST,
        "bytes": Column.BYTES,
        "In msg nelems": Column.IN_NELEMS,
        "Out msg nelems": Column.OUT_NELEMS,
        "device": Column.DEVICE,
        "stream": Column.STREAM,
        "graph id": Column.GRAPH,
        "graph node id": Column.GRAPH_NODE,
        "Process Group ID": Column.GROUP_ID,  # files before mid 2024
        "Seq": Column.COLLECTIVE_SEQ,
        "collective_seq_id": Column.COLLECTIVE_SEQ,
        "Input Dims": Column.SHAPES,
        "Input dims": Column.SHAPES,
        "Input type": Column.DTYPES,
        "Collective name": Column.COLLECTIVE,
        "Process Group Name": Column.GROUP,
        "Process Group Description": Column.GROUP_DESC,
        "Process Group Ranks": Column.GROUP_RANKS,
        "dtype": Column.DTYPE,
    },
    Level.MEMORY_ARGS: {
        "Bytes": Column.BYTES,
        "Total Allocated": Column.IN_NELEMS,
        "Total Reserved": Column.OUT_NELEMS,
        "Device Type": Column.STREAM,
        "Device Id": Column.DEVICE,
        "Addr": Column.EXTERNAL,
    },
}
"""Keys that the scanner looks for, and the column each fills."""

MEMORY_COLUMNS = {
    "at_ns": Column.TS,
    "pid": Column.PID,
    "tid": Column.TID,
    "device_type": Column.STREAM,
    "device": Column.DEVICE,
    "bytes": Column.BYTES,
    "allocated": Column.IN_NELEMS,
    "reserved": Column.OUT_NELEMS,
    "address": Column.EXTERNAL,
}
"""Columns of ``schema.MEMORY``, and where the scanner puts their values (see ``Level.MEMORY_ARGS``)."""

CATEGORIES = {
    **dict.fromkeys(("kernel", "mtia_ccp_events"), "kernel"),
    **dict.fromkeys(("gpu_memcpy", "memcpy"), "memcpy"),
    **dict.fromkeys(("gpu_memset", "memset"), "memset"),
    **dict.fromkeys(("cpu_op", "operator"), "cpu_op"),
    **dict.fromkeys(("runtime", "glow_runtime"), "runtime"),
    **{f"{device}_runtime": "runtime" for device in ("cuda", "hip", "xpu", "mtia", "privateuse1")},
    **{f"{device}_driver": "driver" for device in ("cuda", "hip", "xpu", "privateuse1")},
    **{"user_annotation": "annotation", "gpu_user_annotation": "gpu_annotation"},
    **{"python_function": "python", "overhead": "overhead", "cuda_sync": "sync"},
}
"""Kind of event by the profiler's category in lower case (files of 2021 capitalise them)."""

ITEM_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8"), 1),
    **{f"Float8_{layout}": 1 for layout in ("e5m2", "e4m3fn", "e5m2fnuz", "e4m3fnuz", "e8m0fnu")},
    **dict.fromkeys(("Short", "Half", "BFloat16", "UInt16"), 2),
    **dict.fromkeys(("Int", "Float", "ComplexHalf", "QInt32", "UInt32"), 4),
    **dict.fromkeys(("Long", "Double", "ComplexFloat", "UInt64"), 8),
    "ComplexDouble": 16,
}
"""Size of an element by the profiler's name of its type."""
