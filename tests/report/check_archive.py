"""Check an archive for Perfetto, packet by packet, without tracekit: ``python check_archive.py run.tar SOURCE…``.

The sources are the ranks' own files in the order of their ranks. Checked is what Perfetto's
documentation of the manifest (version 1) demands, that members are the ranks' files, that their
packets are whole, and that every measured cell of the pipeline begins and ends with a kernel of its
rank once all files are on one clock. Prints counts as JSON.
"""

from __future__ import annotations

import bisect
import gzip
import json
import sys
import tarfile
from decimal import Decimal
from pathlib import Path

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

MANIFEST = "perfetto_manifest.json"
RESULTS = "tracekit.json"
CLOCKS = {
    "REALTIME",
    "REALTIME_COARSE",
    "MONOTONIC",
    "MONOTONIC_COARSE",
    "MONOTONIC_RAW",
    "BOOTTIME",
}


def check_manifest(raw, members):
    """Check the manifest against its documentation; returns each file's offset to the first."""
    assert "".join(raw.decode().split()).startswith('{"perfetto_manifest"')
    document = json.loads(raw)
    assert set(document) == {"perfetto_manifest"}
    manifest = document["perfetto_manifest"]
    assert set(manifest) <= {"version", "trace_time", "files", "attributes"}
    assert manifest["version"] == 1
    for key, value in manifest.get("attributes", {}).items():
        assert key
        assert isinstance(value, str | int)
    paths = [file["path"] for file in manifest["files"]]
    assert len(set(paths)) == len(paths)
    assert set(paths) == members - {MANIFEST}
    offsets = {}
    machines = []
    for file in manifest["files"]:
        assert set(file) <= {"path", "machine", "clocks"}
        assert set(file["machine"]) == {"name"}
        machines.append(file["machine"]["name"])
        if "clocks" not in file:
            offsets[file["path"]] = 0
            continue
        clocks = file["clocks"]
        assert set(clocks) <= {"clock", "sync_to", "offset_ns"}
        assert set(clocks["sync_to"]) <= {"file", "clock"}
        assert clocks["sync_to"]["file"] == paths[0]
        # A trace of packets has a clock of its own and names it; JSON has none.
        for path, named in ((file["path"], clocks), (paths[0], clocks["sync_to"])):
            assert ("clock" in named) == path.endswith(".pftrace")
            assert named.get("clock", "BOOTTIME") in CLOCKS
        assert type(clocks["offset_ns"]) is int
        assert abs(clocks["offset_ns"]) < 2**63
        offsets[file["path"]] = clocks["offset_ns"]
    assert len(set(machines)) == len(machines)
    assert all(machines)
    assert list(offsets.values()).count(0) >= 1
    return offsets


def read_packets(raw):
    """Kernels of a Perfetto trace as (start, end) on its own clock; every packet is checked."""
    trace = pb.Trace.FromString(raw)
    assert trace.SerializeToString() == raw
    names, stages, opened, kernels = set(), {}, {}, []
    for packet in trace.packet:
        for entry in packet.interned_data.event_names:
            names.add(entry.iid)
        for entry in packet.interned_data.gpu_specifications:
            stages[entry.iid] = entry.name
        if packet.HasField("track_event"):
            event = packet.track_event
            assert packet.timestamp > 0
            if event.type == pb.TrackEvent.TYPE_SLICE_BEGIN:
                assert event.name_iid in names
                opened[event.track_uuid] = opened.get(event.track_uuid, 0) + 1
            elif event.type == pb.TrackEvent.TYPE_SLICE_END:
                opened[event.track_uuid] -= 1
        elif packet.HasField("gpu_render_stage_event"):
            stage = packet.gpu_render_stage_event
            assert stage.name_iid in names
            if stages[stage.stage_iid] in ("Kernel", "Memcpy", "Memset"):
                kernels.append((packet.timestamp, packet.timestamp + stage.duration))
    assert set(opened.values()) <= {0}
    return kernels, len(trace.packet)


def read_json(raw):
    """GPU events of a JSON trace as (start, end) in ns on its own clock."""
    trace = json.loads(raw, parse_float=Decimal)
    kernels = []
    for event in trace["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            start = int(Decimal(event["ts"]) * 1000)
            kernels.append((start, start + int(Decimal(event["dur"]) * 1000)))
    return kernels, len(trace["traceEvents"])


def check_results(raw, offset, kernels_by_rank):
    """Check that measured cells begin and end with kernels of their rank.

    Returns how many events each track has.
    """
    trace = json.loads(raw, parse_float=Decimal)
    assert trace["otherData"]["tracekit"]
    names = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "M" and event["name"] == "thread_name":
            names[event["pid"], event["tid"]] = event["args"]["name"]
    counts = {}
    for event in trace["traceEvents"]:
        if event["ph"] != "X":
            continue
        counts[event["cat"]] = counts.get(event["cat"], 0) + 1
        if event["cat"] != "cell_measured":
            continue
        rank = int(names[event["pid"], event["tid"]].split()[1])
        start = int(Decimal(event["ts"]) * 1000) + offset
        end = start + int(Decimal(event["dur"]) * 1000)
        starts, ends = kernels_by_rank[rank]
        assert starts[bisect.bisect_left(starts, start)] == start, (
            f"rank {rank}: no kernel starts with the cell"
        )
        assert ends[bisect.bisect_left(ends, end)] == end, (
            f"rank {rank}: no kernel ends with the cell"
        )
    return counts


def main(archive, sources):
    with tarfile.open(archive) as tar:
        contents = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}
    offsets = check_manifest(contents[MANIFEST], set(contents))
    packets, kernels_by_rank = {}, {}
    ranks = [name for name in offsets if name != RESULTS]
    for rank, (name, source) in enumerate(zip(ranks, sources, strict=True)):
        raw = Path(source).read_bytes()
        assert contents[name] == (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
        kernels, packets[name] = (read_packets if name.endswith(".pftrace") else read_json)(
            contents[name]
        )
        starts = sorted(start + offsets[name] for start, _ in kernels)
        kernels_by_rank[rank] = starts, sorted(end + offsets[name] for _, end in kernels)
    counts = check_results(contents[RESULTS], offsets[RESULTS], kernels_by_rank)
    assert not any(module.split(".")[0] == "tracekit" for module in sys.modules)
    json.dump({"packets": packets, "tracks": counts, "offsets": offsets}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
