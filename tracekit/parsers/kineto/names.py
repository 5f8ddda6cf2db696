"""Words the profiler writes, and what they mean: categories of events, types of elements."""

from __future__ import annotations

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
"""The profiler's categories, in lower case (files of 2021 capitalise them), and the kind each is."""

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
"""Size of an element, by the name the profiler gives its type."""
