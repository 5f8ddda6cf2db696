"""Recordings of other tools are named for what they are, by their content, with a way out of their own."""

from __future__ import annotations

import gzip
import json
import sqlite3

import pytest

from tracekit.errors import InputError
from tracekit.parsers.discovery import discover

KERNEL = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "pid": 0, "tid": 7}


def process_name(name):
    return {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": name}}


def text(value):
    return json.dumps(value).encode()


def xplane(name):
    """An XSpace with one plane: its name, and a line of 300 bytes."""
    plane = (
        b"\x12"
        + bytes([len(name)])
        + name.encode()
        + b"\x1a\xac\x02"
        + b"\x12\xa9\x02"
        + b"x" * 297
    )
    return b"\n" + bytes([len(plane) & 127 | 128, len(plane) >> 7]) + plane


def sqlite(tmp_path, *tables):
    path = tmp_path / "made.sqlite"
    with sqlite3.connect(path) as connection:
        for table in tables:
            connection.execute(f'CREATE TABLE "{table}" (id INTEGER)')
    content = path.read_bytes()
    path.unlink()
    return content


FILES = {
    "Nsight Compute": (b"NVR\x00\x08\x00\x00\x00report", "Nsight Compute report"),
    "XPlane": (xplane("/host:metadata"), "XPlane profile"),
    "XPlane of a TPU": (xplane("/device:TPU:0"), "XPlane profile"),
    "Chakra": (b"\x07\n\x050.0.4\x0c\x08\x01\x12\x08aten::mm", "Chakra execution trace"),
    "Chakra with its schema": (
        b"\x14\x12\x10\n\x06schema\xea\x01\x051.0.1\x00",
        "Chakra execution trace",
    ),
    "Chakra as JSON": (text({"workload_graph": [{"Id": 1}]}), "Chakra execution trace"),
    "PyTorch's observer": (
        text({"schema": "1.0.2-chakra.0.0.4", "pid": 7, "nodes": []}),
        "execution trace of PyTorch",
    ),
    "JAX as JSON": (
        text({"metadata": {"highres-ticks": True}, "traceEvents": [process_name("/device:GPU:0")]}),
        "profile of JAX or TensorFlow",
    ),
    "Ascend": (text([KERNEL, process_name("Ascend Hardware")]), "Ascend NPU"),
    "Ascend, large": (
        text([KERNEL] * 9000 + [{"ph": "s", "name": "torch_to_npu", "cat": "async_npu"}]),
        "Ascend NPU",
    ),
}
ADVICE_OF_OTHERS = ("nsys export", "traceEvents", "record again", "CUDA activities")


@pytest.mark.parametrize("case", FILES)
@pytest.mark.parametrize("name", ["trace.json", "rank0.sqlite", "x"])
def test_a_recording_of_another_tool_is_named_whatever_its_name(tmp_path, run_command, case, name):
    content, what = FILES[case]
    path = tmp_path / name
    path.write_bytes(content)
    shown = run_command("analyze", path)
    assert shown.returncode == 2
    (line,) = shown.stderr.splitlines()
    assert f"{name}: is " in line
    assert what in line
    assert "tracekit does not read it" in line
    assert not any(advice in line for advice in ADVICE_OF_OTHERS)
    path.write_bytes(gzip.compress(content))
    if case != "Ascend, large":  # the end of a packed file is not looked at
        with pytest.raises(InputError, match=what):
            discover(path)


@pytest.mark.parametrize("case", FILES)
def test_what_is_left_of_a_damaged_one_is_named_as_well(tmp_path, case):
    content, what = FILES[case]
    path = tmp_path / "rank0.json"
    path.write_bytes(content[: len(content) - 2])
    with pytest.raises(InputError, match=what):
        discover(path)


def test_a_folder_without_traces_says_what_is_in_it(tmp_path):
    (tmp_path / "host.xplane.pb").write_bytes(xplane("/host:CPU"))
    with pytest.raises(InputError, match=r"1 other file: host\.xplane\.pb is an XPlane") as caught:
        discover(tmp_path)
    assert "nsys profile" in caught.value.hint


def test_a_database_of_another_tool_is_named_by_its_tables(tmp_path, run_command):
    path = tmp_path / "rank0.sqlite"
    path.write_bytes(sqlite(tmp_path, "CANN_API", "STRING_IDS"))
    with pytest.raises(InputError, match="database of an Ascend NPU's profiler"):
        discover(path)
    path.write_bytes(sqlite(tmp_path, "users", "orders"))
    shown = run_command("analyze", path)
    assert shown.returncode == 2
    assert "holds no table of a profiler; it has orders, users" in " ".join(shown.stderr.split())


NOT_FOREIGN = {
    "an annotation": {"cat": "user_annotation", "name": "/device:GPU:0"},
    "an operator's argument": {"args": {"stream": 7, "name": "CANN"}},
    "a process": process_name("python"),
}


@pytest.mark.parametrize("case", NOT_FOREIGN)
def test_words_of_other_tools_in_a_trace_of_pytorch_do_not_make_it_theirs(tmp_path, case):
    path = tmp_path / "rank0.json"
    path.write_bytes(text({"schemaVersion": 1, "traceEvents": [KERNEL | NOT_FOREIGN[case]]}))
    assert discover(path).refs[0].reader == "kineto"
