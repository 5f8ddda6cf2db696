"""Perfetto traces nobody wrote: valid ones against the JSON reader, and damaged ones against what must hold."""

from __future__ import annotations

import gzip
import io
import json
import random
from decimal import Decimal

import msgspec
import polars as pl
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from tests.fuzz.change import changed
from tests.fuzz.memory import small_memory
from tests.pftrace import Writer
from tracekit.classify import classify
from tracekit.errors import InputError
from tracekit.parsers import kineto, perfetto
from tracekit.parsers.kineto.table import LATEST_NS
from tracekit.report.notices import notice_sentence
from tracekit.schema import EVENTS, MEMORY

NAMES = (
    "aten::mm",
    "ncclDevKernel_AllReduce",
    "ProfilerStep#3",
    "",
    "é\u2028",
    "x" * 70,
    "nn.Module: A_0",
    "a\tb",
)
CATEGORIES = (
    "kernel",
    "cpu_op",
    "cuda_runtime",
    "gpu_memcpy",
    "user_annotation",
    "gpu_memset",
    "python_function",
)
NUMBERS = ("correlation", "External id", "bytes", "Dst Rank", "Sequence number", "In msg nelems")
TEXTS = ("Collective name", "Process Group Name", "Process Group Description", "dtype")
ODD_NUMBERS = (0, 1, 5, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)


def _json_event(choose: random.Random) -> dict[str, object]:
    category = choose.choice(CATEGORIES)
    is_on_gpu = category in ("kernel", "gpu_memcpy", "gpu_memset")
    args: dict[str, object] = {
        key: choose.randrange(100) for key in choose.sample(NUMBERS, choose.randrange(4))
    }
    args |= {key: choose.choice(NAMES) for key in choose.sample(TEXTS, choose.randrange(3))}
    if choose.random() < 0.3:
        rows = range(choose.randrange(3))
        args["Input Dims"] = [
            [choose.randrange(9) for _ in range(choose.randrange(4))] for _ in rows
        ]
        args["Input type"] = [choose.choice(("float", 'c10::"x"', "")) for _ in rows]
    if is_on_gpu:
        args |= {"device": 0, "stream": choose.choice((7, 9))}
    return {
        "ph": "X",
        "cat": category,
        "name": choose.choice(NAMES),
        "pid": 0 if is_on_gpu else 77,
        "tid": args["stream"] if is_on_gpu else choose.choice((1, 2)),
        "ts": choose.choice((0, 5, 7.25, choose.randrange(10**9))),
        "dur": choose.choice((0, 1, 2.5, choose.randrange(10**6))),
        "args": args,
    }


def valid(choose: random.Random) -> bytes:
    """A JSON trace, whose Perfetto trace must give the same events.

    The first event is the last in time: of slices in the order of time, which may nest, not all
    could be told apart.
    """
    last = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "last",
        "pid": 77,
        "tid": 1,
        "ts": 2 * 10**9,
        "dur": 1,
        "args": {},
    }
    events = [last, *(_json_event(choose) for _ in range(choose.randrange(1, 12)))]
    return json.dumps(
        {"baseTimeNanoseconds": choose.randrange(10**18), "traceEvents": events}
    ).encode()


def odd(choose: random.Random) -> bytes:
    """Packets of Perfetto's classes with values that have no business where they stand."""
    trace = pb.Trace()
    for _ in range(choose.randrange(1, 14)):
        packet = trace.packet.add()
        if choose.random() < 0.8:
            packet.timestamp = choose.choice((5, choose.randrange(100), *ODD_NUMBERS))
        if choose.random() < 0.5:
            packet.trusted_packet_sequence_id = choose.randrange(3)
        if choose.random() < 0.2:
            packet.sequence_flags = choose.randrange(4)
        if choose.random() < 0.1:
            packet.timestamp_clock_id = choose.choice((1, 3, 6, 64, 2**32 - 1))
        _fill(packet, choose)
    return trace.SerializeToString()


def _fill(packet: pb.TracePacket, choose: random.Random) -> None:
    kind = choose.randrange(7)
    if kind <= 2:
        event = packet.track_event
        event.type = choose.choice((1, 1, 1, 2, 2, 2, 3, 4))
        event.track_uuid = choose.choice((1, 2, *ODD_NUMBERS))
        if choose.random() < 0.5:
            event.name_iid = choose.choice((1, 2, *ODD_NUMBERS))
        else:
            event.name = choose.choice(NAMES)
        event.category_iids.extend(choose.choice(((), (1,), (1, 2), (2**64 - 1,))))
        for _ in range(choose.randrange(3)):
            _annotate(event.debug_annotations.add(), choose, 0)
    elif kind == 3:
        stage = packet.gpu_render_stage_event
        stage.duration = choose.choice((3, *ODD_NUMBERS))
        stage.gpu_id = choose.choice((0, -1, 2**31 - 1))
        stage.stage_iid = choose.choice((1, *ODD_NUMBERS))
        stage.extra_data.add(
            name=choose.choice((*NUMBERS, *TEXTS, "stream id")),
            value=choose.choice(("7", "-", "x")),
        )
    elif kind == 4:
        names = packet.interned_data
        for table in (names.event_names, names.event_categories, names.gpu_specifications):
            if choose.random() < 0.7:
                table.add(
                    iid=choose.choice((1, 2, *ODD_NUMBERS)),
                    name=choose.choice((*NAMES, *CATEGORIES)),
                )
    elif kind == 5:
        track = packet.track_descriptor
        track.uuid = choose.choice((1, 2, *ODD_NUMBERS))
        track.parent_uuid = choose.choice((1, 2, *ODD_NUMBERS))
        track.thread.pid = choose.choice((1, -1, 2**31 - 1))
        track.thread.tid = choose.choice((1, -(2**63), 2**63 - 1))
    else:
        for clock in choose.sample((1, 3, 6, 64), choose.randrange(4)):
            packet.clock_snapshot.clocks.add(
                clock_id=clock, timestamp=choose.choice((0, 10**18, *ODD_NUMBERS))
            )


def _annotate(annotation: pb.DebugAnnotation, choose: random.Random, depth: int) -> None:
    if depth == 0:
        annotation.name = choose.choice((*NUMBERS, *TEXTS, "Input Dims", "Input type", "grid", ""))
    kind = choose.randrange(7)
    if kind == 0:
        annotation.int_value = choose.choice((5, -5, 2**63 - 1, -(2**63)))
    elif kind == 1:
        annotation.uint_value = choose.choice(ODD_NUMBERS)
    elif kind == 2:
        annotation.string_value = choose.choice((*NAMES, "17", "-3", "9" * 30))
    elif kind == 3:
        annotation.double_value = choose.choice((0.5, float("nan"), float("inf"), 1e300))
    elif kind == 4:
        annotation.bool_value = choose.random() < 0.5
    elif depth < 5:
        values = annotation.array_values if kind == 5 else annotation.dict_entries
        for _ in range(choose.randrange(3)):
            _annotate(values.add(name="" if kind == 5 else "key"), choose, depth + 1)


def make(choose: random.Random) -> bytes:
    """One input of any kind; the first byte says which."""
    kind = choose.randrange(4)
    if kind == 0:
        return b"V" + valid(choose)
    if kind == 1:
        return b"O" + odd(choose)
    raw = (
        odd(choose)
        if choose.random() < 0.5
        else Writer(json.loads(valid(choose), parse_float=Decimal)).write()
    )
    raw = gzip.compress(raw, mtime=0) if choose.random() < 0.1 else raw
    return b"D" + changed(raw, choose, times=choose.randrange(1, 8))


def _comparable(events: pl.DataFrame) -> pl.DataFrame:
    return (
        events.drop("id")
        .with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
        .sort(pl.all())
    )


def check(raw: bytes, folder) -> None:
    """Read an input; raise where anything that must hold does not."""
    kind, data = raw[:1], raw[1:]
    packets = Writer(json.loads(data, parse_float=Decimal)).write() if kind == b"V" else data
    try:
        with small_memory():
            got = perfetto.read(io.BytesIO(packets), lenient=kind != b"V")
    except InputError:
        assert kind != b"V", "a valid trace was refused"
        return
    events = got.events
    assert events.schema == EVENTS
    assert (events["end_ns"] >= events["start_ns"]).all()
    assert events["start_ns"].is_between(-LATEST_NS, LATEST_NS).all()
    assert got.memory.schema == MEMORY
    assert events["id"].n_unique() == events.height
    msgspec.json.encode(got.source)
    for notice in got.source.notices:
        assert "another version" not in notice_sentence(notice)
    if kind == b"V":
        expected = kineto.read(io.BytesIO(data)).events
        assert _comparable(events).equals(_comparable(expected)), "other events than from JSON"
    if len(data) % 64 == 0:  # labelling takes ten times as long as reading
        assert classify(events)["label"].null_count() == 0
