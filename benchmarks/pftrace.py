"""Processor time per event of the JSON reader, the Perfetto reader and Perfetto's own Python classes.

    python -m benchmarks.perfetto sample_traces/megatron-moe/rank7.pt.trace.json.gz …

The Perfetto trace is written from the JSON trace (``tests/pftrace.py``). Perfetto's classes parse
it, and the values that the reader needs are taken from them, without building a table. The readers
build their tables; all inflate gzip.
"""

import argparse
import gzip
import tempfile
import time
from functools import partial
from pathlib import Path

from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from tests.pftrace import write_pftrace
from tracekit.parsers import kineto, perfetto
from tracekit.parsers.perfetto.vocabulary import PACKET_TARGETS

ROUNDS = 5
KEYS = {key for keys in PACKET_TARGETS.values() for key in keys}


def read_with_classes(path):
    trace = pb.Trace.FromString(gzip.decompress(path.read_bytes()))
    rows = []
    for packet in trace.packet:
        if packet.HasField("track_event"):
            event = packet.track_event
            values = {}
            for annotation in event.debug_annotations:
                if annotation.name in KEYS:
                    kind = annotation.WhichOneof("value")
                    values[annotation.name] = (
                        str(annotation) if kind is None else getattr(annotation, kind)
                    )
            rows.append((packet.timestamp, event.type, event.track_uuid, event.name_iid, values))
        elif packet.HasField("gpu_render_stage_event"):
            stage = packet.gpu_render_stage_event
            values = {extra.name: extra.value for extra in stage.extra_data if extra.name in KEYS}
            rows.append((packet.timestamp, stage.duration, stage.gpu_id, stage.name_iid, values))
    return rows


def best_time(function):
    times = []
    for _ in range(ROUNDS):
        began = time.process_time()
        function()
        times.append(time.process_time() - began)
    return min(times)


def main(paths):
    print(
        f"{'recording':44} {'events':>8} {'JSON':>10} {'Perfetto':>10} {'classes':>10}   ns per event, best of {ROUNDS}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for path in map(Path, paths):
            written = write_pftrace(path, Path(folder) / "rank0.pftrace")
            events = perfetto.read(written).events.height
            json_s = best_time(partial(kineto.read, path))
            packets_s = best_time(partial(perfetto.read, written))
            classes_s = best_time(partial(read_with_classes, written))
            figures = " ".join(
                f"{seconds / events * 1e9:10,.0f}" for seconds in (json_s, packets_s, classes_s)
            )
            ratios = f"Perfetto/JSON {packets_s / json_s:.2f}, classes/Perfetto {classes_s / packets_s:.1f}"
            print(f"{str(path)[-44:]:44} {events:8,} {figures}   {ratios}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", help="PyTorch traces as JSON")
    main(parser.parse_args().paths)
