"""Tests of the exported trace, field by field, against the rules of Perfetto's JSON reader and the trace itself.

The rules are those of Perfetto's documentation of the Chrome JSON format and of its importer:
numbers of processes and threads in 32 bits, threads looked up by number, microseconds, slices of a
thread that nest.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from decimal import Decimal

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tracekit
from tests.kept import analysis_of
from tracekit.errors import InputError, OptionError, OutputError
from tracekit.report.notices import notice_sentence
from tracekit.report.perfetto import export as perfetto
from tracekit.report.perfetto.events import nesting_lines
from tracekit.run.export import export
from tracekit.schema import GPU_KINDS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]

OWN = ("label", "cell_measured", "cell_ideal", "critical_path", "phase", "finding")


def read(path):
    raw = path.read_bytes()
    text = gzip.decompress(raw) if path.suffix == ".gz" else raw
    return json.loads(text, parse_float=Decimal)


def ns(value):
    whole = Decimal(value) * 1000
    assert whole == int(whole), f"{value} is finer than a nanosecond"
    return int(whole)


@pytest.fixture(scope="module")
def exported(samples, tmp_path_factory):
    out = tmp_path_factory.mktemp("export") / "1f1b.json.gz"
    done = export(samples / "1f1b", out)
    return done, read(out)


@pytest.fixture(scope="module")
def analysis(samples):
    return analysis_of(samples / "1f1b")


def names(events, what):
    return {(e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["name"] == what}


def owners(events):
    return {pid: name for (pid, _), name in names(events, "process_name").items()}


def check_rules(events):
    """What the reader asks for, event by event."""
    processes, threads = names(events, "process_name"), names(events, "thread_name")
    assert len({tid for _, tid in threads}) == len(threads), "a thread's number names it alone"
    for event in events:
        assert event["ph"] in "MXisf"
        assert isinstance(event["pid"], int)
        assert 0 < event["pid"] < 2**32
        assert (event["pid"], None) in processes
        if event["ph"] == "M":
            assert event["name"] in (
                "process_name", "process_sort_index", "process_labels", "thread_name", "thread_sort_index",
            )  # fmt: skip
            value = event["args"].get("name", event["args"].get("sort_index"))
            assert value not in (None, "")
            continue
        assert isinstance(event["tid"], int)
        assert 0 < event["tid"] < 2**32
        assert (event["pid"], event["tid"]) in threads
        assert isinstance(event["name"], str)
        assert isinstance(event["cat"], str)
        assert event["cat"]
        assert ns(event["ts"]) >= 0
        assert round(float(event["ts"]) * 1000) == ns(event["ts"]), (
            "a reader of doubles loses a nanosecond"
        )
        if event["ph"] == "X":
            assert ns(event["dur"]) >= 0
        elif event["ph"] == "i":
            assert event["s"] == "t"
        else:
            assert isinstance(event["id"], int)
            assert event["ph"] == "s" or event["bp"] == "e"
    check_nesting(events)


def check_nesting(events):
    """Slices of a thread nest, and stand in the file so that one comes before those inside it."""
    open_ends = defaultdict(list)
    last = {}
    for event in (e for e in events if e["ph"] == "X"):
        start, end = ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])
        track = event["tid"]
        assert start >= last.get(track, 0), "slices of a thread are in order"
        last[track] = start
        ends = open_ends[track]
        while ends and ends[-1] <= start:
            ends.pop()
        assert not ends or end <= ends[-1], f"{event['name']} overlaps another slice in part"
        ends.append(end)


def test_places_of_findings_are_on_a_track_with_their_advice(exported, analysis):
    document = exported[1]
    events = document["traceEvents"]
    threads, base = names(events, "thread_name"), document["baseTimeNanoseconds"]
    shown = {
        (
            threads[e["pid"], e["tid"]],
            e["name"],
            ns(e["ts"]) + base,
            ns(e["dur"]),
            e["args"]["advice"],
        )
        for e in events
        if e.get("cat") == "finding"
    }
    expected = {  # all clocks of this run are alike
        (
            f"rank {location.rank}",
            finding.text,
            location.start_ns,
            location.end_ns - location.start_ns,
            finding.advice,
        )
        for finding in analysis.findings
        for location in finding.where
        if finding.share >= 0.01
    }
    assert {(rank.split(" (")[0], *rest) for rank, *rest in shown} == expected
    assert len(expected) >= 5


def test_every_event_keeps_the_rules_of_the_format(exported):
    check_rules(exported[1]["traceEvents"])
    assert exported[1]["displayTimeUnit"] in ("ms", "ns")


def test_every_event_of_the_trace_is_there_with_its_exact_times(exported, samples):
    done, document = exported
    base = document["baseTimeNanoseconds"]
    events = document["traceEvents"]
    shown, whose = defaultdict(Counter), owners(events)
    for e in events:
        if e["ph"] in "Xi" and e["cat"] not in OWN:
            rank = int(whose[e["pid"]].split()[1])
            start = ns(e["ts"]) + base
            shown[rank][e["name"], start, start + ns(e.get("dur", 0))] += 1
    trace = tracekit.load(samples / "1f1b")
    assert done.events == trace.events.height
    for rank in trace.ranks:
        columns = trace.rank(rank).events.select(
            pl.col("name").cast(pl.String), "start_ns", "end_ns"
        )
        assert shown[rank] == Counter(columns.iter_rows())


def test_details_of_a_kernel_carry_its_label_and_rule(exported):
    kernels = [e for e in exported[1]["traceEvents"] if e.get("cat") == "kernel"]
    assert all(
        {"label", "rule", "confidence", "correlation", "stream", "step"} <= set(e["args"])
        for e in kernels
    )
    assert all(v is not None for e in kernels for v in e["args"].values())


def test_label_tracks_add_up_to_the_time_of_each_label(exported, analysis):
    events = exported[1]["traceEvents"]
    times, whose = Counter(), owners(events)
    for e in events:
        if e.get("cat") == "label":
            times[int(whose[e["pid"]].split()[1]), e["name"]] += ns(e["dur"])
    for one in analysis.ranks:
        for label, count in one.whole.label_count.items():
            if count:
                assert times[one.rank, label] == one.whole.label_ns[label]


@pytest.mark.parametrize("which", ["measured", "ideal"])
def test_cells_stand_where_the_comparison_has_them(exported, analysis, which):
    document = exported[1]
    events, base = document["traceEvents"], document["baseTimeNanoseconds"]
    threads = names(events, "thread_name")
    cells = analysis.comparison.cells
    origin = cells["start_ns"].min()
    start, end = (
        ("start_ns", "end_ns") if which == "measured" else ("ideal_start_ns", "ideal_end_ns")
    )
    shift = 0 if which == "measured" else origin
    expected = {
        (
            f"rank {r['rank']}",
            f"{r['stage']}{r['op']}{r['microbatch']}",
            r[start] + shift,
            r[end] + shift,
        )
        for r in cells.iter_rows(named=True)
    }
    shown = {
        (
            threads[e["pid"], e["tid"]],
            e["name"],
            ns(e["ts"]) + base,
            ns(e["ts"]) + ns(e["dur"]) + base,
        )
        for e in events
        if e.get("cat") == f"cell_{which}"
    }
    assert shown == expected


def test_the_pipeline_stands_above_the_ranks(exported):
    first = [e["args"]["name"] for e in exported[1]["traceEvents"] if e["name"] == "process_name"]
    assert first[:5] == [
        "pipeline · measured",
        "pipeline · ideal",
        "critical path",
        "findings",
        "rank 0 · labels",
    ]


def test_arrows_lead_from_a_launch_to_what_it_launched(exported):
    events = exported[1]["traceEvents"]
    slices = defaultdict(list)
    for e in events:
        if e["ph"] == "X" and "correlation" in e["args"]:
            slices[e["tid"], ns(e["ts"])].append(e)
    ends = defaultdict(dict)
    for e in events:
        if e["ph"] in "sf" and e["cat"] != "critical_path":
            ends[e["id"]][e["ph"]] = e
    assert len(ends) > 1000
    for pair in ends.values():
        launches, works = (slices[pair[ph]["tid"], ns(pair[ph]["ts"])] for ph in "sf")
        assert any(
            a["args"]["correlation"] == b["args"]["correlation"]
            and a["cat"].startswith("cuda_")
            and b["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
            for a in launches
            for b in works
        )


@pytest.mark.parametrize(
    "file",
    [
        *(f"{sample}/rank0.pt.trace.json.gz" for sample in ("vpp-overlap", "reload", "compile")),
        "nsys-1f1b/rank0.sqlite",
    ],
)
def test_other_traces_keep_the_rules_too(samples, tmp_path, file):
    out = tmp_path / "t.json"
    done = export(samples / file, out)
    events = read(out)["traceEvents"]
    check_rules(events)
    assert sum(e["ph"] in "Xi" and e["cat"] not in OWN for e in events) == done.events
    kinds = {e["cat"] for e in events if e["ph"] == "X"}
    assert "kernel" in kinds
    assert ("cell_ideal" in kinds) == (done.cells > 0)


def test_ranks_that_were_given_are_not_asked_for(samples, tmp_path):
    """Two of four ranks are written.

    The other two were read, so that nothing is unknown for want of them.
    """
    done = export(samples / "1f1b", tmp_path / "a.json", ranks=[0, 1])
    assert done.ranks == (0, 1)
    assert not [
        notice_sentence(notice)
        for notice in done.notices
        if "add rank" in notice_sentence(notice) or "give" in notice_sentence(notice)
    ]
    with pytest.raises(InputError, match="rank 9"):
        export(samples / "1f1b", tmp_path / "b.json", ranks=[9])


def test_a_store_is_exported_as_it_is(samples, tmp_path):
    from tracekit import ingest

    ingest(samples / "reload", tmp_path / "store", ranks=[1, 2])
    export(tmp_path / "store", tmp_path / "a.json", ranks=[2])
    shown = owners(read(tmp_path / "a.json")["traceEvents"]).values()
    assert {name.split(" · ")[0] for name in shown} == {"critical path", "rank 2", "weight updates"}


HOSTILE = ["</script><script>alert(1)</script>", 'a"b\\c', "line\nbreak\t\u2028", "日本 🚀", "\x01"]


def synthetic(path, spans):
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": end - start,
         "args": {"device": 0, "stream": 7, "correlation": i + 1}}
        for i, (name, start, end) in enumerate(spans)
    ]  # fmt: skip
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_names_are_kept_whatever_they_hold(tmp_path):
    trace = synthetic(
        tmp_path / "rank0.json", [(name, 10 * i, 10 * i + 5) for i, name in enumerate(HOSTILE)]
    )
    export(trace, tmp_path / "out.json")
    kernels = [
        e["name"] for e in read(tmp_path / "out.json")["traceEvents"] if e.get("cat") == "kernel"
    ]
    assert kernels == HOSTILE


def test_kernels_that_overlap_on_a_stream_are_drawn_beside_each_other(tmp_path):
    trace = synthetic(
        tmp_path / "rank0.json", [("a", 0, 10), ("b", 5, 15), ("c", 11, 20), ("d", 12, 13)]
    )
    export(trace, tmp_path / "out.json")
    events = read(tmp_path / "out.json")["traceEvents"]
    check_rules(events)
    threads = names(events, "thread_name")
    where = {e["name"]: threads[e["pid"], e["tid"]] for e in events if e.get("cat") == "kernel"}
    assert where == {"a": "stream 7", "b": "stream 7 (2)", "c": "stream 7", "d": "stream 7"}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 12), st.integers(0, 8)), max_size=14))
def test_lines_nest_and_none_is_opened_in_vain(rows):
    track, start, length = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    line = nesting_lines(track, start, start + length)
    for i in range(len(rows)):
        same = [j for j in range(len(rows)) if track[j] == track[i]]
        assert line[i] == 0 or any(line[j] == line[i] - 1 for j in same)
        for j in same:
            if line[j] == line[i] and start[i] < start[j] < start[i] + length[i]:
                assert start[j] + length[j] <= start[i] + length[i]


@pytest.mark.parametrize("name", ["x.txt", "x.pftrace", "x"])
def test_other_extensions_are_refused_before_any_work(tmp_path, name):
    with pytest.raises(OptionError, match=r"use \.json, \.json\.gz or \.tar"):
        export(tmp_path / "nowhere", tmp_path / name)


def test_a_failure_leaves_nothing_behind(samples, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(perfetto, "event_lines", full)
    with pytest.raises(OutputError, match="the disk is full"):
        export(samples / "reload", tmp_path / "x.json.gz")
    assert list(tmp_path.iterdir()) == []


def test_gpu_kinds_have_a_track_of_their_own(exported):
    events = exported[1]["traceEvents"]
    whose = owners(events)
    gpu = {"kernel", "gpu_memcpy", "gpu_memset", "gpu_graph"}
    assert len(gpu) == len(GPU_KINDS)
    for e in events:
        if e["ph"] == "X" and e["cat"] not in OWN:
            assert ("· GPU" in whose[e["pid"]]) == (e["cat"] in {*gpu, "gpu_user_annotation"})
