"""The PyTorch parser on good files: against the slow reference, in every dialect and layout."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests import reference
from tracekit.parsers import kineto
from tracekit.parsers.kineto import blocks, worker
from tracekit.parsers.long_names import shorten_name
from tracekit.schema import EVENTS

SAMPLES = Path(__file__).parents[2] / "sample_traces"
REAL = sorted(
    path
    for path in SAMPLES.glob("*/rank0.pt.trace.json.gz")
    if path.parent.name
    not in ("dualpipe", "interleaved", "overlapped", "reload-overlap", "slow-ddp")
)
"""Those that are left out were recorded as another one was, with the same options of the
profiler."""
PUBLIC = [
    "deepseek/train.json.gz",
    "dlrm-8ranks/worker0_step_12.1694128201545.pt.trace.json.gz",
    "dlrm-8ranks/worker7_step_12.1694128201553.pt.trace.json.gz",
    "hta/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "hta/nccl_data.json.gz",
    "hta/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "hta/rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
    "hta/rank_not_found.json.gz",
    "kineto/resnet50_num_workers_0.worker0.1623143089861.pt.trace.json.gz",
    "tracelens/qwen3_30b_a3b_B300_TP-0-DECODE.trace.json.gz",
    "tracelens/resnet_act_checkpoint.json.gz",
]


def same(actual: pl.DataFrame, expected: pl.DataFrame) -> None:
    """Both tables, row by row; on a difference, say in which column."""
    assert actual.schema == EVENTS
    assert actual.height == expected.height
    different = [
        c for c in EVENTS if not actual[c].cast(pl.String).equals(expected[c].cast(pl.String))
    ]
    assert different == []


IS_READ = (pl.col("kind") != "python") | pl.col("name").cast(pl.String).str.starts_with(
    "nn.Module: "
)
"""Events that are read by default: of Python frames only calls of modules."""


def check(path: Path) -> None:
    got = kineto.read(path)
    expected = reference.read(path, rank=got.source.rank)
    same(got.events, expected.filter(IS_READ))
    assert got.source.notices == ()
    data = reference.load_json(path)
    events = data["traceEvents"] if isinstance(data, dict) else data
    assert got.events.height + got.memory.height + sum(got.source.skipped.values()) == len(events)
    assert got.memory.equals(reference.read_memory(path, rank=got.source.rank))
    assert sum(got.source.counts.values()) == got.events.height


@pytest.mark.slow
@pytest.mark.parametrize("path", REAL, ids=lambda p: f"{p.parent.name}-{p.name[:5]}")
def test_real_traces_equal_the_reference(path):
    check(path)


@pytest.mark.slow
def test_untouched_recordings_equal_the_reference(corpus):
    for path in sorted((corpus.parent / "h200").glob("*/rank*.pt.trace.json.gz")):
        check(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLIC, ids=lambda n: n[:30])
def test_public_traces_equal_the_reference(corpus, name):
    check(corpus / name)


def test_stacks_add_only_python_frames(corpus):
    path = corpus / "tracelens/qwen3_30b_a3b_B300_TP-0-DECODE.trace.json.gz"
    without, whole = kineto.read(path), kineto.read(path, stacks=True)
    same(whole.events, reference.read(path))
    calls = without.source.counts["python"]
    assert (whole.source.counts["python"], without.source.skipped["python"]) == (2142, 2142 - calls)
    same(whole.events.filter(IS_READ), without.events)  # ids do not depend on stacks


def test_header_of_a_real_trace(samples):
    source = kineto.read(samples / "1f1b/rank2.pt.trace.json.gz").source
    assert (source.rank, source.rank_from, source.world_size) == (2, "content", 4)
    assert source.devices == ("NVIDIA H200",)
    assert dict(source.versions) == {
        "cuda_driver": "13.0",
        "cuda_runtime": "13.0",
        "cupti": "130001",
        "nccl": "2.28.9",
    }
    assert [(g.name, g.description, g.ranks) for g in source.groups] == [
        ("0", "default_pg", (0, 1, 2, 3)),
        ("1", "PIPELINE_MODEL_PARALLEL_GROUP", (0, 1, 2, 3)),
    ]
    assert source.record_shapes is True


# ---- clocks, ids, arguments: counted by hand ----


@pytest.mark.parametrize(
    ("ts", "dur", "base", "start", "end"),
    [
        ("1740461679471303", "52", 0, 1740461679471303000, 1740461679471355000),  # whole epoch µs
        # Decimal epoch µs.
        (
            "1712195495896244.499",
            "0.039",
            0,
            1712195495896244499,
            1712195495896244538,
        ),
        # relative.
        (
            "4458676983423.243",
            "41.407",
            1711964646000000000,
            1716423322983423243,
            1716423322983464650,
        ),
        ("1.0000009", "0", 0, 1000, 1000),  # under a nanosecond is cut
        ("12.5e3", "1E-3", 0, 12500000, 12500001),
        ("-3.25", "0.5", 10000, 6750, 7250),
        ('"17.5"', '"2"', 0, 17500, 19500),  # numbers in quotes
        ("0", "0.001", 0, 0, 1),
        # Past what a double holds.
        (
            "4503599627370497.001",
            "0",
            0,
            4503599627370497001,
            4503599627370497001,
        ),
    ],
)
def test_times_are_exact(ts, dur, base, start, end):
    text = f'{{"traceEvents": [{{"ph":"X","name":"a","ts":{ts},"dur":{dur}}}], "baseTimeNanoseconds": {base}}}'
    events = kineto.read(io.BytesIO(text.encode()), lenient=False).events
    assert (events["start_ns"][0], events["end_ns"][0]) == (start, end)


def test_args_of_a_collective(trace, event):
    args = {
        "Collective name": "all_to_allv",
        "In msg nelems": 10,
        "Out msg nelems": 30,
        "dtype": "BFloat16",
        "Process Group Name": "7",
        "Process Group Description": "EXPERT",
        "Process Group Ranks": "[0, 4, 8]",
        "device": 3,
        "stream": 20,
        "correlation": 99,
        "External id": 5,
        "graph node id": 0,
        "graph id": 12,
    }
    row = kineto.read(trace(event(cat="kernel", pid=3, tid=20, **args))).events.row(0, named=True)
    wanted = {
        "kind": "kernel",
        "collective": "all_to_allv",
        "bytes": 60,
        "group": "7",
        "group_desc": "EXPERT",
        "group_ranks": "[0,4,8]",
        "device": 3,
        "stream": 20,
        "correlation": 99,
        "external_id": 5,
        "graph": 12,
        "peer": None,
        "shapes": None,
        "domain": None,
    }
    assert {k: row[k] for k in wanted} == wanted


def test_args_of_cpu_ops(trace, event):
    send = event(
        **{"Collective name": "send", "Dst Rank": 3, "Sequence number": 8, "Fwd thread id": 2}
    )
    receive = event(
        **{"Collective name": "recv", "Src Rank": 1, "Input Dims": [[2, 512], [], [[4], [4]]]}
    )
    events = kineto.read(trace(send, receive)).events
    assert events["peer"].to_list() == [3, 1]
    assert events["sequence"].to_list() == [8, None]
    assert events["fwd_thread"].to_list() == [2, None]
    assert events["shapes"].to_list() == [None, "[[2,512],[],[[4],[4]]]"]
    assert events["stream"].to_list() == [None, None]


def test_dialect_of_2021(trace, event):
    step = event("ProfilerStep#4", ts=0, dur=100, cat="Operator", tid="77")
    launch = event("cudaLaunchKernel", ts=10, cat="Runtime", tid="77", correlation=5)
    kernel = event(
        "k", ts=200, cat="Kernel", pid=0, tid="stream 7", correlation=5, **{"external id": 9}
    )
    copy = event("c", ts=300, cat="Memcpy", pid=0, tid="stream 8", device=1, stream=9, bytes=64)
    events = kineto.read(trace(step, launch, kernel, copy)).events
    assert events["kind"].to_list() == ["cpu_op", "runtime", "kernel", "memcpy"]
    assert events["tid"].to_list() == [77, 77, 7, 8]
    assert events["device"].to_list() == [None, None, 0, 1]
    assert events["stream"].to_list() == [None, None, 7, 9]
    assert events["external_id"].to_list() == [None, None, 9, None]
    assert events["bytes"].to_list() == [None, None, None, 64]
    assert events["step"].to_list() == [4, 4, 4, None]  # the copy's launch is not in the file


def test_dialect_of_rocm(trace, event):
    kernel = event("Cijk", cat="kernel", pid=2, tid=0, stream="3", device=2)
    launch = event("hipMemcpy", cat="cuda_runtime", stream="0x0", bytes="2048")
    events = kineto.read(trace(kernel, launch)).events
    assert events["device"].to_list() == [2, None]
    assert events["stream"].to_list() == [3, None]
    assert events["bytes"].to_list() == [None, 2048]


def test_process_group_before_it_had_a_name(trace, event):
    events = kineto.read(
        trace(event(**{"Process Group ID": 3}), event(**{"Process Group Name": "x"}), event())
    ).events
    assert events["group"].to_list() == ["3", "x", None]


def test_other_accelerators(trace, event):
    cats = ["mtia_ccp_events", "mtia_runtime", "mtia_insight", "xpu_driver", "hpu_op", None]
    events = kineto.read(trace(*(event(cat=c) for c in cats))).events
    assert events["kind"].to_list() == ["kernel", "runtime", "other", "driver", "other", "other"]


def test_only_complete_events_become_rows(trace):
    events = [
        {"ph": "X", "name": "a", "ts": 1, "dur": 1},
        {"name": "no phase", "ts": 2},
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python", "ts": 4}},
        {"ph": "s", "name": "ac2g", "ts": 5, "id": 3},
        {"ph": "f", "name": "ac2g", "ts": 5, "id": 3, "bp": "e"},
        {"ph": "f", "name": "ac2g", "ts": 5, "id": 4, "bp": "e"},
        {"ph": "X", "cat": "python_function", "name": "f.py(1): g", "ts": 6, "dur": 1},
        {
            "ph": "X",
            "cat": "Trace",
            "name": "z",
            "ts": 7,
            "pid": "Spans",
            "tid": "PyTorch Profiler",
        },
    ]
    got = kineto.read(trace(*events))
    assert got.events["name"].to_list() == ["a", "no phase", "z"]
    assert got.events["id"].to_list() == [0, 1, 3]  # the frame that was not read keeps its place
    assert got.events["pid"].to_list() == [None, None, None]
    assert got.events["end_ns"].to_list() == [2000, 2000, 7000]
    assert dict(got.source.skipped) == {"M": 1, "s": 1, "f": 2, "python": 1}
    assert kineto.read(trace(*events), stacks=True).events["kind"].to_list() == [
        "other",
        "other",
        "python",
        "other",
    ]


def test_text_is_unescaped(trace, event):
    names = ['a "quoted" name', "tab\there", "back\\slash", "ünï 𝄞", "", "]}, {", "\u2028"]
    got = kineto.read(trace(*(event(name) for name in names)), lenient=False)
    assert got.events["name"].to_list() == names
    assert got.source.notices == ()


def test_the_last_of_two_equal_keys_counts():
    text = b'[{"ph":"X","name":"a","name":"b","ts":1,"ts":2,"dur":0,"args":{"bytes":1,"bytes":2}}]'
    row = kineto.read(io.BytesIO(text)).events.row(0, named=True)
    assert (row["name"], row["start_ns"], row["bytes"]) == ("b", 2000, 2)


def test_keys_look_alike_but_are_not():
    args = '"Correlation":1,"correlation ":2,"correlatio":3,"name":"x","External idx":4,"Sequence numbeR":5,"":6'
    text = f'[{{"ph":"X","name":"a","ts":1,"dur":0,"Name":"b","tss":3,"args":{{{args}}}}}]'
    row = kineto.read(io.BytesIO(text.encode())).events.row(0, named=True)
    assert (row["name"], row["start_ns"]) == ("a", 1000)
    assert [row[k] for k in ("correlation", "external_id", "sequence")] == [None, None, None]


# ---- layouts ----


def layouts(raw):
    data = json.loads(raw)
    events = data.pop("traceEvents")
    first = {"traceEvents": events, **data}
    yield "one line", json.dumps({**data, "traceEvents": events}).encode()
    yield "no spaces", json.dumps(first, separators=(",", ":")).encode()
    for indent in (1, 2, 4, "\t"):
        yield (
            f"indent {indent!r}",
            json.dumps({**data, "traceEvents": events}, indent=indent).encode(),
        )
    yield "header behind, indented", json.dumps(first, indent=1).encode()
    yield "windows line ends", raw.replace(b"\n", b"\r\n")
    yield "byte order mark", b"\xef\xbb\xbf" + raw
    yield "blank start", b" \n\n\t" + raw
    yield (
        "events on lines of their own",
        b'{"traceEvents": [\n'
        + b",\n".join(json.dumps(e).encode() for e in events)
        + b"\n],"
        + json.dumps(data).encode()[1:],
    )


@pytest.mark.parametrize("block", [1 << 22, 20_000])
def test_layout_does_not_matter(real_bytes, monkeypatch, block):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block)
    monkeypatch.setattr(kineto.header, "FIRST_READ", min(block, kineto.header.FIRST_READ))
    expected = kineto.read(io.BytesIO(real_bytes))
    assert expected.events.height == 280
    for name, text in layouts(real_bytes):
        got = kineto.read(io.BytesIO(text), lenient=False)
        assert got.events.equals(expected.events), name
        assert got.source.groups == expected.source.groups, name
        assert got.source.world_size == 4, name


def test_objects_nested_at_the_events_own_indent(monkeypatch):
    """A cut that looks right but lies inside an event is noticed, and the file read in order."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(kineto.header, "FIRST_READ", 1024)
    inner = ",\n".join('  {\n    "name": "inner", "ts": 5\n  }' for _ in range(40))
    one = (
        '  {\n    "ph": "X", "name": "outer", "ts": 1, "dur": 1, "args": {"list": [\n'
        + inner
        + "\n  ]}\n  }"
    )
    text = '{"traceEvents": [\n' + ",\n".join([one] * 30) + "\n]}"
    got = kineto.read(io.BytesIO(text.encode()), lenient=False)
    assert got.events["name"].to_list() == ["outer"] * 30


def test_bare_array_and_gzip_by_content(real_bytes, tmp_path):
    events = json.loads(real_bytes)["traceEvents"]
    path = tmp_path / "rank3_trace.txt"
    path.write_bytes(gzip.compress(json.dumps(events).encode()))
    got = kineto.read(path)
    assert got.events.height == 280
    assert (got.source.rank, got.source.rank_from) == (3, "name")
    two = gzip.compress(real_bytes[:5000]) + gzip.compress(real_bytes[5000:]) + b"\0" * 512
    assert kineto.read(io.BytesIO(two), lenient=False).events.height == 280


def test_small_rows_blocks_and_dictionary_change_nothing(samples, monkeypatch):
    path = samples / "1f1b/rank0.pt.trace.json.gz"
    expected = kineto.read(path).events
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1 << 16)
    monkeypatch.setattr(worker, "ROWS_PER_CHUNK", 7)
    monkeypatch.setattr(worker, "FIRST_TEXTS", 16)
    monkeypatch.setattr(worker, "FIRST_TEXT_BYTES", 64)
    got = kineto.read(path)
    assert got.events.equals(expected)
    assert got.source.notices == ()


def test_equal_hashes_do_not_merge_text():
    """Among 200 000 names some share the 32 bits of hash the dictionary keeps.

    Each must come back as itself.
    """
    rng = np.random.default_rng(0)
    names = [f"n{a:016x}" for a in rng.integers(0, 2**63, 200_000)]
    text = "[" + ",".join(f'{{"ph":"X","name":"{name}","ts":1,"dur":1}}' for name in names) + "]"
    assert kineto.read(io.BytesIO(text.encode())).events["name"].cast(pl.String).to_list() == names


def test_a_long_name_is_read_whole_before_it_is_shortened(trace, event):
    name = "x" * 3_000_000  # longer than a block; the digest at the end is of all of it
    names = kineto.read(trace(event(name), event("y"))).events["name"].to_list()
    assert names == [shorten_name(name), "y"]


# ---- rank, privacy ----


@pytest.mark.parametrize(
    ("name", "info", "option", "expected"),
    [
        ("rank5.json", {"rank": 2}, 9, (2, "content")),
        ("rank-5_trace.json", {"backend": "nccl"}, 9, (5, "name")),
        ("trace_8_rank_1.json", None, None, (1, "name")),
        ("host_123.456.pt.trace.json", None, 9, (9, "option")),
        ("host_123.456.pt.trace.json", {"rank": None, "world_size": None}, None, (0, "only file")),
    ],
)
def test_where_the_rank_comes_from(tmp_path, event, name, info, option, expected):  # noqa: PLR0917
    path = tmp_path / name
    path.write_text(
        json.dumps({"traceEvents": [event()], **({"distributedInfo": info} if info else {})})
    )
    got = kineto.read(path, rank=option)
    assert (got.source.rank, got.source.rank_from) == expected
    assert got.events["rank"].to_list() == [expected[0]]


def test_nothing_private_reaches_the_source(trace, event):
    keys = {
        "username": "SECRET",
        "host_name": "SECRET",
        "mast_job_version": "SECRET",
        "PYTORCH_ENV": {"A": "SECRET"},
        "traceName": "/home/SECRET/x.json",
        "distributedInfo": {"rank": 0, "backend": "SECRET", "nccl_version": "2.28.9"},
        "deviceProperties": [{"name": "NVIDIA H200", "uuid": "SECRET"}],
    }
    source = kineto.read(trace(event(), **keys)).source
    assert "SECRET" not in repr(source)
    assert source.devices == ("NVIDIA H200",)
