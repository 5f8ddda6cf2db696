"""Perfetto traces as PyTorch writes them: the same events and answers as from JSON, and damage stepped over."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import polars as pl
import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

from tests.pftrace import Writer, without_header, write_pftrace
from tests.reference import load_json
from tracekit import analyze
from tracekit.errors import InputError
from tracekit.parsers import kineto, perfetto
from tracekit.parsers.discovery import discover
from tracekit.parsers.file_type import detect_file_type
from tracekit.parsers.perfetto import packets
from tracekit.pipeline.schedules import generate
from tracekit.report.notices import error_message, notice_sentence
from tracekit.synthetic import Recipe, write_run

SAMPLES = Path(__file__).parent.parent.parent / "sample_traces"
CORPUS = Path(os.environ.get("TRACEKIT_CORPUS", "nowhere"))
SHIPPED = (
    "1f1b",
    "dualpipe",
    "megatron-moe",
    "reload",
    "memory",
    "slow-ddp",
    "compile",
    "vpp-overlap",
)
RECORDINGS = [
    *(SAMPLES / name for name in SHIPPED),
    *(
        CORPUS / "frameworks" / name
        for name in ("titan-fsdp", "graph-trees", "fp8-fsdp", "ds-pipe")
    ),
]


MAX_EVENTS = 5_000
"""Events of a recording that are written: the first ones hold every kind, and writing takes longest."""


def first_events(path, *, count=MAX_EVENTS):
    """Return a JSON trace with the first *count* of its events in time, and with all that have none."""
    raw = load_json(path)
    times = sorted(event["ts"] for event in raw["traceEvents"] if "ts" in event)
    last = times[min(count, len(times)) - 1]
    kept = [event for event in raw["traceEvents"] if "ts" not in event or event["ts"] <= last]
    return {**raw, "traceEvents": kept}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Return the first events of a recording's first rank, and the path of the same as a JSON trace."""
    target = tmp_path_factory.mktemp("recorded")

    @cache
    def write(folder):
        if not folder.is_dir():
            pytest.skip("TRACEKIT_CORPUS is not set: the recordings are not in this repository")
        source = sorted(folder.glob("*.json.gz"))[0]
        path = target / folder.name / source.name.removesuffix(".gz")
        path.parent.mkdir()
        raw = first_events(source)
        path.write_text(json.dumps(raw, default=float))
        return raw, path

    return write


def begin(packet, ts, track, name="a", **args):
    packet.timestamp, packet.trusted_packet_sequence_id = ts, 1
    packet.track_event.type, packet.track_event.track_uuid = pb.TrackEvent.TYPE_SLICE_BEGIN, track
    packet.track_event.name = name
    for key, value in args.items():
        packet.track_event.debug_annotations.add(name=key, int_value=value)


def end(packet, ts, track):
    packet.timestamp, packet.trusted_packet_sequence_id = ts, 1
    packet.track_event.type, packet.track_event.track_uuid = pb.TrackEvent.TYPE_SLICE_END, track


def read(trace, **options):
    raw = trace if isinstance(trace, bytes) else trace.SerializeToString()
    return perfetto.read(io.BytesIO(raw), **options)


def spans(rank_events):
    return rank_events.events.sort("id").select("name", "start_ns", "end_ns").rows()


def comparable(events):
    """Events in an order of their own, without PyTorch's mark of the whole recording, which it does not export."""
    text = events.drop("id").with_columns(
        pl.col(pl.Categorical).cast(pl.String), pl.col("kind").cast(pl.String)
    )
    kept = text.filter(
        ~((pl.col("kind") == "other") & pl.col("name").str.starts_with("PyTorch Profiler"))
    )
    return kept.sort(pl.all(), maintain_order=True)


@pytest.mark.parametrize("folder", RECORDINGS, ids=lambda path: path.name)
def test_a_file_has_the_same_events_as_its_json(folder, recorded, tmp_path):
    raw, path = recorded(folder)
    of_json = kineto.read(path)
    written = write_pftrace(raw, tmp_path / "trace.pftrace")
    of_packets = perfetto.read(written, rank=of_json.source.rank)
    expected, actual = comparable(of_json.events), comparable(of_packets.events)
    different = [name for name in expected.columns if not expected[name].equals(actual[name])]
    assert expected.equals(actual), different
    assert of_json.memory.sort(pl.all()).equals(of_packets.memory.sort(pl.all()))
    assert of_packets.source.notices == ()
    assert of_packets.source.pid == of_json.source.pid


def answer(folder):
    document = json.loads(json.dumps(analyze(folder, workers=1).to_dict(), default=str))
    assert document["source"].pop("reader") in ("kineto", "perfetto")
    del document["source"]["paths"]
    return document


@pytest.fixture(params=["pipeline", "memory"])
def traces(request, tmp_path):
    """JSON traces: a small pipeline, or a rank with allocations."""
    if request.param == "memory":
        return [SAMPLES / "memory/rank0.pt.trace.json.gz"]
    plan = generate("1f1b", pp=2, microbatches=4)
    return write_run(Recipe(plan, layers=1), tmp_path / "pipeline")


@pytest.mark.slow
def test_a_run_gives_the_same_answer_as_its_json(traces, tmp_path):
    """Equal tables give equal answers, so that two runs are enough: a pipeline and one with memory."""
    (tmp_path / "json").mkdir()
    (tmp_path / "packets").mkdir()
    for path in traces:
        raw, stem = load_json(path), path.name.partition(".")[0]
        (tmp_path / "json" / f"{stem}.json").write_bytes(without_header(raw))
        write_pftrace(raw, tmp_path / "packets" / f"{stem}.pftrace")
    assert answer(tmp_path / "packets") == answer(tmp_path / "json")


@pytest.mark.parametrize("name", ["1f1b", "reload", "megatron-moe"])
def test_events_without_categories_are_told_apart_by_their_arguments(name, recorded, tmp_path):
    raw, path = recorded(SAMPLES / name)
    of_json = kineto.read(path)
    written = write_pftrace(raw, tmp_path / "trace.pftrace", layout="slices")
    of_packets = perfetto.read(written, rank=of_json.source.rank)
    expected, actual = comparable(of_json.events), comparable(of_packets.events)
    # Whether a range without arguments is an operator or an annotation is not written in this
    # layout.
    unclear = ("cpu_op", "annotation")
    for kinds in (
        [kind for kind in expected["kind"].unique().sort() if kind not in unclear],
        unclear,
    ):
        columns = pl.all() if kinds is not unclear else pl.exclude("kind", "step")
        is_of_kinds = pl.col("kind").is_in(kinds)
        expected_rows = expected.filter(is_of_kinds).select(columns).sort(pl.all())
        actual_rows = actual.filter(is_of_kinds).select(columns).sort(pl.all())
        assert expected_rows.equals(actual_rows)


def test_plain_and_gzipped_files_are_alike_and_recognised_by_content(whole, tmp_path):
    for name, data in (("rank3.bin", whole), ("rank4.bin", gzip.compress(whole))):
        (tmp_path / name).write_bytes(data)
        assert detect_file_type(data).reader == "perfetto"
    refs = discover(tmp_path).refs
    assert [(ref.reader, ref.rank) for ref in refs] == [("perfetto", 3), ("perfetto", 4)]
    plain, zipped = (perfetto.read(tmp_path / name) for name in ("rank3.bin", "rank4.bin"))
    assert plain.events.drop("rank").equals(zipped.events.drop("rank"))
    assert (plain.source.rank, plain.source.rank_from) == (3, "name")


@pytest.mark.parametrize(
    "text", [b"\n{broken", b"\nhello there\n", b"\n", b"\n\x03abc", b"\n\x02\x08\x01x", b"\n\x00x"]
)
def test_a_file_that_begins_with_a_line_break_is_no_perfetto_trace(text):
    assert detect_file_type(text).reader is None


def test_slices_of_a_group_end_in_the_order_in_which_they_began():
    # By nesting, the end at 10 would close b: PyTorch's groups tell that it closes a.
    trace = pb.Trace()
    begin(trace.packet.add(), 0, 7, "a")
    begin(trace.packet.add(), 10, 7, "b")
    begin(trace.packet.add(), 20, 7, "c")
    for ts in (10, 20, 25):
        end(trace.packet.add(), ts, 7)
    assert spans(read(trace)) == [("a", 0, 10), ("b", 10, 20), ("c", 20, 25)]


def test_slices_in_the_order_of_time_nest():
    trace = pb.Trace()
    begin(trace.packet.add(), 0, 7, "outer")
    begin(trace.packet.add(), 2, 7, "inner")
    begin(trace.packet.add(), 3, 8, "elsewhere")
    end(trace.packet.add(), 4, 7)
    end(trace.packet.add(), 5, 8)
    end(trace.packet.add(), 9, 7)
    assert spans(read(trace)) == [("outer", 0, 9), ("inner", 2, 4), ("elsewhere", 3, 5)]


def test_slices_in_no_order_nest_after_sorting_by_time():
    trace = pb.Trace()
    end(trace.packet.add(), 9, 7)
    begin(trace.packet.add(), 2, 7, "inner")
    end(trace.packet.add(), 4, 7)
    begin(trace.packet.add(), 0, 7, "outer")
    assert sorted(spans(read(trace))) == [("inner", 2, 4), ("outer", 0, 9)]


def test_ends_without_a_begin_and_begins_without_an_end_are_counted():
    trace = pb.Trace()
    end(trace.packet.add(), 1, 7)
    begin(trace.packet.add(), 2, 7, "whole")
    end(trace.packet.add(), 3, 7)
    begin(trace.packet.add(), 4, 7, "open")
    rank_events = read(trace)
    assert spans(rank_events) == [("whole", 2, 3)]
    assert rank_events.source.skipped == {"slices without an end": 1}


def test_packets_and_events_of_other_kinds_are_skipped_and_counted():
    trace = pb.Trace()
    begin(trace.packet.add(), 2, 7)
    end(trace.packet.add(), 3, 7)
    trace.packet.add().gpu_counter_event.counters.add(counter_id=1, int_value=5)
    trace.packet.add().trace_uuid.msb = 5
    counter = trace.packet.add(timestamp=4)
    counter.track_event.type = pb.TrackEvent.TYPE_COUNTER
    instant = trace.packet.add(timestamp=4)
    instant.track_event.type, instant.track_event.name = pb.TrackEvent.TYPE_INSTANT, "mark"
    skipped = read(trace).source.skipped
    assert skipped == {"packets of other kinds": 2, "track events of other types": 1, "i": 1}


def test_numbers_of_writers_and_clocks_beyond_63_bits_are_read():
    """Protobuf keeps 32 bits of them; a file may have 64."""
    number = b"\x80" * 9 + b"\x01"  # 2 ** 63
    writer = b"\x50" + number
    forgets = writer + b"\x68\x01"
    default_clock = writer + b"\xda\x03\x0c\xd0\x03" + number
    trace = pb.Trace()
    begin(trace.packet.add(), 10, 10)
    end(trace.packet.add(), 20, 10)
    packets = trace.SerializeToString()
    for packet in (forgets, default_clock):
        packets += b"\x0a" + bytes([len(packet)]) + packet
    rank_events = perfetto.read(io.BytesIO(packets))
    assert rank_events.events["start_ns"].to_list() == [10]


def test_numbers_of_names_belong_to_a_writer_until_they_are_forgotten():
    trace = pb.Trace()
    for writer, name in ((1, "first"), (2, "other")):
        packet = trace.packet.add(trusted_packet_sequence_id=writer, sequence_flags=1)
        packet.interned_data.event_names.add(iid=5, name=name)

    def named(writer, ts):
        packet = trace.packet.add()
        begin(packet, ts, ts)
        packet.track_event.ClearField("name")
        packet.track_event.name_iid, packet.trusted_packet_sequence_id = 5, writer
        end(trace.packet.add(), ts + 1, ts)

    named(1, 10)
    named(2, 20)
    trace.packet.add(trusted_packet_sequence_id=1, sequence_flags=1)
    named(1, 30)
    trace.packet.add(trusted_packet_sequence_id=1).interned_data.event_names.add(
        iid=5, name="second"
    )
    named(1, 40)
    trace.packet.add(trusted_packet_sequence_id=2).interned_data.event_names.add(
        iid=5, name="changed"
    )
    named(2, 50)
    rank_events = read(trace)
    assert [name for name, _, _ in spans(rank_events)] == [
        "first",
        "other",
        None,
        "second",
        "changed",
    ]
    assert [(notice.code, notice.values["count"]) for notice in rank_events.source.notices] == [
        ("unnamed", 1)
    ]


def test_a_track_inherits_process_and_thread_and_a_circle_of_tracks_ends():
    trace = pb.Trace()
    process = trace.packet.add().track_descriptor
    process.uuid, process.process.pid = 1, 77
    thread = trace.packet.add().track_descriptor
    thread.uuid, thread.parent_uuid, thread.thread.pid, thread.thread.tid = 2, 1, 77, 78
    line = trace.packet.add().track_descriptor
    line.uuid, line.parent_uuid, line.name = 3, 2, "below the thread"
    for uuid, parent in ((4, 5), (5, 4), (6, 6)):
        circle = trace.packet.add().track_descriptor
        circle.uuid, circle.parent_uuid = uuid, parent
    for track in (3, 4, 6, 99):
        begin(trace.packet.add(), track, track)
        end(trace.packet.add(), track + 1, track)
    assert read(trace).events.sort("id").select("pid", "tid").rows() == [
        (77, 78),
        *[(None, None)] * 3,
    ]


def test_times_are_those_of_the_wall_clock_where_the_file_relates_the_clocks():
    trace = pb.Trace()
    snapshot = trace.packet.add().clock_snapshot
    for clock, time in ((6, 1_000), (1, 1_700_000_000_000_000_000), (3, 400)):
        snapshot.clocks.add(clock_id=clock, timestamp=time)
    begin(trace.packet.add(), 1_500, 7, "of the trace's clock")
    end(trace.packet.add(), 1_600, 7)
    monotonic = trace.packet.add(timestamp_clock_id=3)
    begin(monotonic, 950, 8, "of another clock")
    end(trace.packet.add(timestamp_clock_id=3), 1_000, 8)
    begin(trace.packet.add(timestamp_clock_id=64), 5, 9, "of a clock of its own")
    end(trace.packet.add(timestamp_clock_id=64), 6, 9)
    rank_events = read(trace)
    base = 1_700_000_000_000_000_000
    assert spans(rank_events) == [
        ("of the trace's clock", base + 500, base + 600),
        ("of another clock", base + 550, base + 600),
    ]
    assert (
        rank_events.source.skipped["events on a clock that the file does not relate to others"] == 1
    )


def test_defaults_of_a_writer_are_its_track_and_clock():
    trace = pb.Trace()
    defaults = trace.packet.add(trusted_packet_sequence_id=1).trace_packet_defaults
    defaults.track_event_defaults.track_uuid, defaults.timestamp_clock_id = 7, 3
    snapshot = trace.packet.add().clock_snapshot
    snapshot.clocks.add(clock_id=6, timestamp=1_000)
    snapshot.clocks.add(clock_id=3, timestamp=0)
    thread = trace.packet.add().track_descriptor
    thread.uuid, thread.thread.pid, thread.thread.tid = 7, 1, 2
    for packet, mark, ts in ((trace.packet.add(), begin, 5), (trace.packet.add(), end, 6)):
        mark(packet, ts, 7)
        packet.track_event.ClearField("track_uuid")
    assert read(trace).events.select("start_ns", "end_ns", "pid", "tid").rows() == [
        (1_005, 1_006, 1, 2)
    ]


def test_a_copy_is_named_after_its_kind():
    trace = pb.Trace()
    names = trace.packet.add(trusted_packet_sequence_id=1, sequence_flags=1).interned_data
    names.gpu_specifications.add(iid=2, name="Memcpy")
    packet = trace.packet.add(timestamp=5, trusted_packet_sequence_id=1)
    stage = packet.gpu_render_stage_event
    stage.duration, stage.stage_iid, stage.gpu_id = 3, 2, 1
    for key, value in (
        ("stream id", "9"),
        ("copy kind", "HtoD"),
        ("src kind", "pinned"),
        ("dst kind", "device"),
    ):
        stage.extra_data.add(name=key, value=value)
    columns = ("kind", "name", "device", "stream", "start_ns", "end_ns")
    assert read(trace).events.select(columns).rows() == [
        ("memcpy", "Memcpy HtoD (Pinned -> Device)", 1, 9, 5, 8)
    ]


def test_arguments_with_numbered_names_are_counted():
    trace = pb.Trace()
    begin(trace.packet.add(), 1, 7)
    trace.packet[0].track_event.debug_annotations.add(name_iid=4, int_value=5)
    end(trace.packet.add(), 2, 7)
    assert [notice.code for notice in read(trace).source.notices] == ["unnamed"]


@pytest.fixture(scope="module")
def whole():
    return Writer(load_json(SAMPLES / "reload" / "rank0.pt.trace.json.gz")).write()


def test_a_file_cut_anywhere_gives_what_is_before_the_cut(whole):
    counts = []
    for size in range(len(whole) // 40, len(whole), len(whole) // 40):
        try:
            rank_events = read(whole[:size])
        except InputError:
            continue
        counts.append(rank_events.events.height)
        assert (
            rank_events.source.notices[0].code == "truncated"
            or rank_events.source.notices[0].code == "bad-events"
        )
    assert counts == sorted(counts)
    assert counts[-1] > counts[len(counts) // 2] > 0


def test_a_cut_file_is_an_error_if_damage_is_not_accepted(whole):
    with pytest.raises(InputError, match="is damaged") as caught:
        read(whole[:-3], lenient=False)
    assert error_message(caught.value).endswith("is damaged: the file ends inside a packet")


def test_a_cut_gzip_file_is_read_as_far_as_it_goes(whole):
    rank_events = read(gzip.compress(whole)[:-2_000])
    assert rank_events.events.height > 0
    assert notice_sentence(rank_events.source.notices[0]) == "the gzip data is damaged"


def test_a_packet_of_gigabytes_is_passed_over_without_holding_it(whole, monkeypatch):
    monkeypatch.setattr(packets, "MAX_PACKET_BYTES", 1 << 20)
    long = pb.TracePacket()
    long.chrome_metadata.SetInParent()
    huge = b"\x0a" + b"\x80\x80\x80\x10" + bytes(32 << 20)  # a packet of 32 MB
    expected = read(whole)
    rank_events = read(huge + whole)
    assert rank_events.events.equals(expected.events)
    assert [notice.values["case"] for notice in rank_events.source.notices] == ["long"]


def test_a_length_of_exabytes_in_a_short_file_is_a_cut(whole):
    rank_events = read(whole + b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f")
    assert [notice.code for notice in rank_events.source.notices] == ["truncated", "bad-events"]
    assert rank_events.events.equals(read(whole).events)


def test_bytes_that_are_no_packet_end_the_file(whole):
    rank_events = read(whole + b"\x0f" * 40 + whole)
    assert (
        notice_sentence(rank_events.source.notices[0])
        == f"the file is damaged behind byte {len(whole):,}: the rest was not read"
    )


def test_a_damaged_packet_is_stepped_over():
    trace = pb.Trace()
    begin(trace.packet.add(), 1, 7)
    end(trace.packet.add(), 2, 7)
    raw = trace.SerializeToString() + b"\x0a\x03\x5a\x70\x01" + trace.SerializeToString()
    rank_events = read(raw)
    assert rank_events.events.height == 2
    assert notice_sentence(rank_events.source.notices[0]) == "1 damaged packet was lost"


@pytest.mark.parametrize(("depth", "codes"), [(20, []), (60, ["bad-events"])])
def test_an_argument_nested_without_end_is_damage(depth, codes):
    trace = pb.Trace()
    begin(trace.packet.add(), 1, 7)
    annotation = trace.packet[0].track_event.debug_annotations.add(name="Input Dims")
    for _ in range(depth):
        annotation = annotation.array_values.add()
    end(trace.packet.add(), 2, 7)
    rank_events = read(trace)
    assert rank_events.events["shapes"].to_list() == [
        "" if codes else "[" * (depth + 1) + "]" * (depth + 1)
    ]
    assert [notice.code for notice in rank_events.source.notices] == codes


@pytest.mark.parametrize(
    "raw", [b"", b"PK\x03\x04", b"\x0a", b"\xff" * 50], ids=["empty", "zip", "byte", "ones"]
)
def test_other_files_are_refused(raw):
    with pytest.raises(InputError, match="not a Perfetto trace"):
        read(raw)


READ_UNCOMPILED = """
import importlib.util, sys
import tracekit._loops
spec = importlib.util.spec_from_file_location("tracekit._loops.packet_scanner", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
spec.loader.exec_module(module)
from tracekit.parsers import perfetto
for name, out in zip(sys.argv[2::2], sys.argv[3::2]):
    perfetto.read(name).events.write_ipc(out)
"""


def test_uncompiled_gives_the_same_table(whole, tmp_path):
    source = Path(perfetto.__file__).parents[2] / "_loops/packet_scanner.py"
    words = []
    for name, raw in (
        ("rank0.pftrace", whole[:200_000]),
        ("rank1.pftrace", whole[:60_000] + b"\x0a\x03\x5a\x70\x01"),
    ):
        (tmp_path / name).write_bytes(raw)
        words += [tmp_path / name, tmp_path / f"{name}.arrow"]
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", READ_UNCOMPILED, source, *words], check=True
    )
    for path, table in zip(words[::2], words[1::2], strict=True):
        expected = perfetto.read(path).events
        assert comparable(pl.read_ipc(table)).equals(comparable(expected))
        assert expected.height > 0
