"""A writer of Perfetto traces from PyTorch's JSON traces, in the two layouts that PyTorch has used.

It follows ``torch/profiler/_cuspy/trace.py`` and ``cuspy_pftrace.cpp`` (layout "stages"), and the
first version of ``monitor_pftrace.cpp`` (layout "slices"), with Perfetto's own classes for the
messages. Unlike PyTorch it writes all arguments of a recording and the names of copies, so that
nothing of the JSON trace is lost but its header.
"""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from tests.reference import load_json

STAGES = {"kernel": 1, "gpu_memcpy": 2, "gpu_memset": 3, "gpu_user_annotation": 4}
STAGE_NAMES = ("Kernel", "Memcpy", "Memset", "Annotation")
FIRST_QUEUE = 100
EXTRA_NAMES = {"device": "device id", "stream": "stream id", "context": "context id"}
WITHOUT_CATEGORY = ("cuda_sync", "overhead")
HEADER_KEYS = (
    *(
        "distributedInfo",
        "deviceProperties",
        "cuda_runtime_version",
        "cuda_driver_version",
        "record_shapes",
    ),
    *(
        "profile_memory",
        "with_stack",
        "with_flops",
        "with_modules",
        "trace_id",
        "host_name",
        "tracekit",
    ),
)
"""Keys of a JSON trace that PyTorch does not write to a Perfetto trace."""


def without_header(raw):
    """A JSON trace without what a Perfetto trace cannot say of its run."""
    kept = {key: value for key, value in raw.items() if key == "traceEvents" or not _is_header(key)}
    return json.dumps(kept, default=float).encode()


def _is_header(key):
    return key in HEADER_KEYS or key.endswith("_version")


def write_pftrace(source, target, *, layout="stages", compress=True):
    """Write the events of a JSON trace (a path, or parsed with exact decimals) as a Perfetto trace."""
    raw = load_json(source) if isinstance(source, str | Path) else source
    data = Writer(raw, layout).write()
    Path(target).write_bytes(gzip.compress(data, 1, mtime=0) if compress else data)
    return Path(target)


def nanoseconds(value):
    return int(Decimal(value) * 1000)


class Writer:
    def __init__(self, raw, layout="stages"):
        self.base_ns = int(raw.get("baseTimeNanoseconds") or 0)
        self.layout = layout
        events = raw["traceEvents"]
        self.complete = [
            event for event in events if event.get("ph") == "X" and event.get("cat") != "Trace"
        ]
        self.allocations = [
            event for event in events if event.get("ph") == "i" and event.get("name") == "[memory]"
        ]
        self.trace = pb.Trace()
        self.names, self.categories, self.kernels = {}, {}, {}
        self.tracks, self.queues = {}, {}

    def write(self):
        """The packets in PyTorch's order: clock, tracks, names, slices by group, render stages."""
        stages = (
            [event for event in self.complete if event["cat"] in STAGES]
            if self.layout == "stages"
            else []
        )
        slices = [
            event
            for event in self.complete
            if self.layout != "stages" or event["cat"] not in STAGES
        ]
        groups = {}
        for event in slices:
            apart = event["cat"] in ("cuda_runtime", "cuda_driver", *WITHOUT_CATEGORY, *STAGES)
            groups.setdefault(event["cat"] if apart else "cpu", []).append(event)
        body = pb.Trace()
        for group in groups.values():
            self._write_slices(body, group)
        stages.sort(key=lambda event: STAGES[event["cat"]])
        for number, event in enumerate(stages, 1):
            self._write_stage(body, event, number)
        for event in self.allocations:
            self._write_allocation(body, event)
        clock = self.trace.packet.add(timestamp=self.base_ns, trusted_packet_sequence_id=1)
        clock.clock_snapshot.clocks.add(clock_id=6, timestamp=self.base_ns)
        clock.clock_snapshot.clocks.add(clock_id=1, timestamp=self.base_ns)
        self._write_tracks()
        self._write_names()
        return self.trace.SerializeToString() + body.SerializeToString()

    def _write_slices(self, body, group):
        for event in group:
            packet = body.packet.add(
                timestamp=self._start(event), trusted_packet_sequence_id=1, sequence_flags=2
            )
            slice_ = packet.track_event
            slice_.type = pb.TrackEvent.TYPE_SLICE_BEGIN
            slice_.track_uuid = self._track(event)
            slice_.name_iid = _number(self.names, str(event.get("name", "")))
            if self.layout == "stages" and event["cat"] not in WITHOUT_CATEGORY:
                slice_.category_iids.append(_number(self.categories, event["cat"]))
            for key, value in (event.get("args") or {}).items():
                _set(slice_.debug_annotations.add(name=key), value)
        for event in group:
            packet = body.packet.add(timestamp=self._end(event), trusted_packet_sequence_id=1)
            packet.track_event.type = pb.TrackEvent.TYPE_SLICE_END
            packet.track_event.track_uuid = self._track(event)

    def _write_stage(self, body, event, number):
        packet = body.packet.add(
            timestamp=self._start(event), trusted_packet_sequence_id=1, sequence_flags=2
        )
        stage, args = packet.gpu_render_stage_event, dict(event.get("args") or {})
        stage.event_id = number
        stage.duration = self._end(event) - self._start(event)
        stage.gpu_id = args.get("device", event["pid"])
        stage.hw_queue_iid = FIRST_QUEUE + _number(
            self.queues, (stage.gpu_id, args.get("stream", event["tid"]))
        )
        stage.stage_iid = STAGES[event["cat"]]
        stage.context = 1
        stage.name_iid = _number(self.names, str(event["name"]))
        grid, block = args.pop("grid", None), args.pop("block", None)
        if event["cat"] == "kernel" and grid and block:
            stage.kernel_iid = _number(self.kernels, str(event["name"]))
            for size, numbers in (
                (stage.launch.grid_size, grid),
                (stage.launch.workgroup_size, block),
            ):
                size.x, size.y, size.z = (int(value) for value in numbers)
        if "stream" not in args:
            args["stream"] = event["tid"]
        for key, value in args.items():
            text = (
                value
                if isinstance(value, str)
                else json.dumps(value, separators=(",", ":"), default=float)
            )
            stage.extra_data.add(name=EXTRA_NAMES.get(key, key), value=text)

    def _write_allocation(self, body, event):
        packet = body.packet.add(
            timestamp=self._start(event), trusted_packet_sequence_id=1, sequence_flags=2
        )
        packet.track_event.type = pb.TrackEvent.TYPE_INSTANT
        packet.track_event.track_uuid = self._track(event)
        packet.track_event.name_iid = _number(self.names, "[memory]")
        for key, value in event["args"].items():
            _set(packet.track_event.debug_annotations.add(name=key), value)

    def _write_tracks(self):
        for (pid, tid), uuid in self.tracks.items():
            packet = self.trace.packet.add()
            packet.track_descriptor.uuid = uuid
            if tid is None:
                packet.track_descriptor.process.pid = _int32(pid)
                packet.track_descriptor.process.process_name = self._process_name(pid)
            else:
                packet.track_descriptor.parent_uuid = self.tracks[pid, None]
                packet.track_descriptor.thread.pid = _int32(pid)
                packet.track_descriptor.thread.tid = _int32(tid)
                packet.track_descriptor.thread.thread_name = f"thread {tid}"

    def _process_name(self, pid):
        events = [event["cat"] for event in self.complete if event["pid"] == pid][:1]
        if events and events[0] in STAGES:
            return f"GPU {pid}"
        return "Overhead" if events and events[0] == "overhead" else "python"

    def _write_names(self):
        packet = self.trace.packet.add(trusted_packet_sequence_id=1, sequence_flags=1)
        interned = packet.interned_data
        for name, number in self.names.items():
            interned.event_names.add(iid=number, name=name)
        for name, number in self.categories.items():
            interned.event_categories.add(iid=number, name=name)
        for number, name in enumerate(STAGE_NAMES, 1):
            interned.gpu_specifications.add(iid=number, name=name)
        for (_, stream), number in self.queues.items():
            interned.gpu_specifications.add(
                iid=FIRST_QUEUE + number, name=f"[{stream:04}] stream {stream}"
            )
        raw = b""
        for (
            name,
            number,
        ) in self.kernels.items():  # field 1000, which Perfetto's Python classes do not know
            kernel = pb.InternedComputeKernel(iid=number, demangled_name=name).SerializeToString()
            raw += b"\xc2\x3e" + _varint(len(kernel)) + kernel
        interned.MergeFromString(raw)

    def _track(self, event):
        pid, tid = event["pid"], event["tid"]
        for key in ((pid, None), (pid, tid)):
            if key not in self.tracks:
                self.tracks[key] = len(self.tracks) + 1
        return self.tracks[pid, tid]

    def _start(self, event):
        return self.base_ns + nanoseconds(event["ts"])

    def _end(self, event):
        return self._start(event) + nanoseconds(event.get("dur", 0))


def _number(table, text):
    return table.setdefault(text, len(table) + 1)


def _varint(value):
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def _int32(value):
    return value if isinstance(value, int) and -(2**31) <= value < 2**31 else hash(value) % 2**31


def _set(annotation, value):
    """Write a JSON value as PyTorch does (``emitJsonValue``)."""
    if isinstance(value, dict):
        for key, inner in value.items():
            _set(annotation.dict_entries.add(name=key), inner)
    elif isinstance(value, list):
        for inner in value:
            _set(annotation.array_values.add(), inner)
    elif isinstance(value, bool):
        annotation.bool_value = value
    elif isinstance(value, int):
        annotation.int_value = value
    elif isinstance(value, Decimal | float):
        annotation.double_value = float(value)
    else:
        annotation.string_value = "null" if value is None else value
