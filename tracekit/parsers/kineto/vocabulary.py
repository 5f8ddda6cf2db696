"""Words of PyTorch's profiler: keys of events, categories, element types."""

from __future__ import annotations

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
    "kernel": "kernel",
    "mtia_ccp_events": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cpu_op": "cpu_op",
    "operator": "cpu_op",
    "cuda_runtime": "runtime",
    "runtime": "runtime",
    "hip_runtime": "runtime",
    "xpu_runtime": "runtime",
    "mtia_runtime": "runtime",
    "glow_runtime": "runtime",
    "privateuse1_runtime": "runtime",
    "cuda_driver": "driver",
    "hip_driver": "driver",
    "xpu_driver": "driver",
    "privateuse1_driver": "driver",
    "user_annotation": "annotation",
    "gpu_user_annotation": "gpu_annotation",
    "python_function": "python",
    "overhead": "overhead",
    "cuda_sync": "sync",
}
"""Kind of event by the profiler's category in lower case (files of 2021 capitalise them)."""

ITEM_BYTES = {
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
    "Short": 2,
    "Half": 2,
    "BFloat16": 2,
    "Int": 4,
    "Float": 4,
    "Long": 8,
    "Double": 8,
    "ComplexHalf": 4,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
    "QInt8": 1,
    "QUInt8": 1,
    "QInt32": 4,
    "UInt16": 2,
    "UInt32": 4,
    "UInt64": 8,
    "Float8_e5m2": 1,
    "Float8_e4m3fn": 1,
    "Float8_e5m2fnuz": 1,
    "Float8_e4m3fnuz": 1,
    "Float8_e8m0fnu": 1,
}
"""Size of an element by the profiler's name of its type."""
