"""JSON of rocprofv3 (``--output-format json``): one object for each process.

Kinds and operations of records are numbers, which ``strings`` names; kernels are named by ``kernel_symbols``.
"""

from pathlib import Path

import msgspec
import polars as pl

from tracekit.errors import InputError
from tracekit.parsers.rocm.recording import (
    ROCM_CALLS,
    ROCM_GPU_WORK,
    ROCM_RANGES,
    RocmRecording,
    copy_name,
)


class _Handle(msgspec.Struct):
    handle: int = 0


class _Correlation(msgspec.Struct):
    internal: int = 0


class _Dispatch(msgspec.Struct):
    agent_id: _Handle
    queue_id: _Handle
    kernel_id: int


class _KernelRecord(msgspec.Struct):
    start_timestamp: int
    end_timestamp: int
    dispatch_info: _Dispatch
    correlation_id: _Correlation
    stream_id: _Handle = msgspec.field(default_factory=_Handle)


class _CopyRecord(msgspec.Struct):
    kind: int
    operation: int
    start_timestamp: int
    end_timestamp: int
    correlation_id: _Correlation
    dst_agent_id: _Handle
    src_agent_id: _Handle
    bytes: int | None = None
    stream_id: _Handle = msgspec.field(default_factory=_Handle)


class _CallRecord(msgspec.Struct):
    kind: int
    operation: int
    start_timestamp: int
    end_timestamp: int
    correlation_id: _Correlation
    thread_id: int | None = None


class _Records(msgspec.Struct):
    kernel_dispatch: list[_KernelRecord] = []
    memory_copy: list[_CopyRecord] = []
    hip_api: list[_CallRecord] = []
    hsa_api: list[_CallRecord] = []
    rccl_api: list[_CallRecord] = []
    marker_api: list[_CallRecord] = []


class _Kind(msgspec.Struct):
    kind: str
    operations: list[str] = []


class _MarkerText(msgspec.Struct):
    key: int
    value: str


class _NumberedNames(msgspec.Struct):
    buffer_records: list[_Kind] = []
    marker_api: list[_MarkerText] = []


class _Symbol(msgspec.Struct):
    kernel_id: int
    kernel_name: str = ""
    formatted_kernel_name: str = ""


class _Agent(msgspec.Struct):
    id: _Handle
    type: int
    logical_node_type_id: int = 0
    name: str = ""
    product_name: str = ""


class _ProcessMetadata(msgspec.Struct):
    pid: int


class _RecordedProcess(msgspec.Struct):
    metadata: _ProcessMetadata
    agents: list[_Agent] = []
    strings: _NumberedNames = msgspec.field(default_factory=_NumberedNames)
    kernel_symbols: list[_Symbol] = []
    buffer_records: _Records = msgspec.field(default_factory=_Records)


class _File(msgspec.Struct):
    processes: list[_RecordedProcess] = msgspec.field(name="rocprofiler-sdk-tool")


_GPU_AGENT = 2
"""Type of an agent that is a GPU."""


def read_rocprofv3_json(content: bytes, path: Path) -> RocmRecording:
    """Return what the JSON of rocprofv3 holds."""
    try:
        file = msgspec.json.decode(content, type=_File)
    except msgspec.DecodeError as error:
        raise InputError(
            "is damaged: its JSON ends early, or lacks what rocprofv3 writes",
            path=path,
            hint="record again: rocprofv3 --sys-trace --output-format json",
        ) from error
    gpu: list[dict[str, object]] = []
    calls: list[dict[str, object]] = []
    ranges: list[dict[str, object]] = []
    gpus: dict[int, str] = {}
    for process in file.processes:
        devices = {
            agent.id.handle: agent.logical_node_type_id
            for agent in process.agents
            if agent.type == _GPU_AGENT
        }
        for agent in process.agents:
            if agent.type == _GPU_AGENT:
                gpus[agent.logical_node_type_id] = agent.product_name or agent.name
        gpu += _gpu_work(process, devices)
        calls += _calls(process)
        ranges += _ranges(process)
    copies = copy_name(pl.col("name"))
    work = pl.DataFrame(gpu, schema=ROCM_GPU_WORK)
    return RocmRecording(
        gpu=work.with_columns(name=pl.when(kind="memcpy").then(copies).otherwise("name")),
        calls=pl.DataFrame(calls, schema=ROCM_CALLS),
        ranges=pl.DataFrame(ranges, schema=ROCM_RANGES),
        gpus=gpus,
        tool="rocprofv3",
    )


def _gpu_work(process: _RecordedProcess, devices: dict[int, int]) -> list[dict[str, object]]:
    """Return kernels and copies of a process; a copy belongs to the GPU that it writes, else to that which it reads."""
    symbols = {
        symbol.kernel_id: symbol.formatted_kernel_name or symbol.kernel_name
        for symbol in process.kernel_symbols
    }
    records = process.buffer_records
    # Streams are recorded since ROCm 7; before it all are 0, and queues tell what runs beside what.
    has_streams = any(kernel.stream_id.handle for kernel in records.kernel_dispatch)
    work: list[dict[str, object]] = []
    for kernel in records.kernel_dispatch:
        dispatch = kernel.dispatch_info
        row = _row(kernel.start_timestamp, kernel.end_timestamp, kernel.correlation_id, process)
        row["kind"] = "kernel"
        row["name"] = symbols.get(dispatch.kernel_id) or None
        row["device"] = devices.get(dispatch.agent_id.handle)
        row["stream"] = kernel.stream_id.handle if has_streams else dispatch.queue_id.handle
        work.append(row)
    for copy in records.memory_copy:
        target = devices.get(copy.dst_agent_id.handle)
        source = devices.get(copy.src_agent_id.handle)
        row = _row(copy.start_timestamp, copy.end_timestamp, copy.correlation_id, process)
        row["kind"] = "memcpy"
        row["name"] = _operation(process, copy.kind, copy.operation) or ""
        row["device"] = source if target is None else target
        row["stream"] = copy.stream_id.handle if has_streams else None
        row["bytes"] = copy.bytes
        work.append(row)
    return work


def _calls(process: _RecordedProcess) -> list[dict[str, object]]:
    records = process.buffer_records
    rows = []
    for kind, calls in (
        ("runtime", records.hip_api),
        ("driver", records.hsa_api),
        ("other", records.rccl_api),
    ):
        for call in calls:
            row = _row(call.start_timestamp, call.end_timestamp, call.correlation_id, process)
            row["kind"] = kind
            row["name"] = _operation(process, call.kind, call.operation) or kind
            row["tid"] = call.thread_id
            rows.append(row)
    return rows


def _ranges(process: _RecordedProcess) -> list[dict[str, object]]:
    """Return the ranges and instants of roctx that have a text: its other calls control the profiler."""
    texts = {message.key: message.value for message in process.strings.marker_api}
    rows = []
    for marker in process.buffer_records.marker_api:
        text = texts.get(marker.correlation_id.internal)
        if text is None:
            continue
        row = _row(marker.start_timestamp, marker.end_timestamp, marker.correlation_id, process)
        del row["correlation"]
        is_instant = marker.start_timestamp == marker.end_timestamp
        row["kind"] = "mark" if is_instant else "annotation"
        row["text"] = text
        row["tid"] = marker.thread_id
        rows.append(row)
    return rows


def _row(
    start_ns: int, end_ns: int, correlation: _Correlation, process: _RecordedProcess
) -> dict[str, object]:
    return {
        "start_ns": start_ns,
        "end_ns": end_ns,
        "correlation": correlation.internal,
        "process": process.metadata.pid,
    }


def _operation(process: _RecordedProcess, kind: int, operation: int) -> str | None:
    """Return the name of an operation, None where the file does not name it."""
    kinds = process.strings.buffer_records
    if not 0 <= kind < len(kinds) or not 0 <= operation < len(kinds[kind].operations):
        return None
    return kinds[kind].operations[operation]
