"""The compiled scanner and the same file uncompiled.

Keys and lists that JSON allows and profilers do not write.
"""

from __future__ import annotations

import importlib.util
import io
import re
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tracekit._loops import json_scanner
from tracekit.errors import InputError
from tracekit.parsers import kineto
from tracekit.parsers.kineto.reader import scan_stream
from tracekit.parsers.kineto.stream import Stream
from tracekit.report.notices import notice_sentence
from tracekit.schema import DAMAGED

SOURCE = Path(kineto.__file__).parents[2] / "_loops/json_scanner.py"
EVENT = '{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"device": 3, "stream": 7}}'
READ_UNCOMPILED = """
import importlib.util, sys
import tracekit._loops
spec = importlib.util.spec_from_file_location("tracekit._loops.json_scanner", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = module
spec.loader.exec_module(module)
from tracekit.parsers import kineto
for name in sys.argv[3:]:
    got = kineto.read(name, stacks=True)
    got.events.write_ipc(sys.argv[2])
    print([notice.code for notice in got.source.notices], dict(got.source.skipped))
"""


def load_uncompiled():
    spec = importlib.util.spec_from_file_location("uncompiled_json_scanner", SOURCE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_constants_of_both_files_agree():
    """The .pxd holds them for compiled code, the .py for uncompiled code."""
    module, text = load_uncompiled(), SOURCE.with_suffix(".pxd").read_text()
    enum = dict(re.findall(r"^    (_[A-Z_]+) = (-?\d+)$", text, re.M))
    defines = dict(re.findall(r"#define (_\w+) (0x\w+?|\d+)U?LL$", text, re.M))
    assert len(enum) > 30
    assert len(defines) > 8
    for name, value in {**enum, **defines}.items():
        assert getattr(module, name) == int(value, 0), name
    for column in ("ID", "TS", "DUR", "TID", "BYTES", "EVENT", "NAME", "CAT"):
        assert getattr(module, f"_{column}") == json_scanner.EventColumn[column]
    expected = {status.name: status for status in json_scanner.Status} | {"NULL": json_scanner.NULL}
    for name, value in expected.items():
        assert getattr(module, f"_{name}") == value, name


def test_uncompiled_gives_the_same_table_and_says_so(real_bytes, tmp_path):
    damaged = real_bytes[:60_000].replace(b'"ph"', rb'"p\u0068"', 5) + b'{"ph": "X", broken'
    path, out = tmp_path / "rank0.json", tmp_path / "events.arrow"
    path.write_bytes(damaged)
    done = subprocess.run(
        [sys.executable, "-c", READ_UNCOMPILED, SOURCE, out, path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("runs uncompiled") == 1
    assert done.stderr.count("\n") == 1
    expected = kineto.read(path, stacks=True)
    assert expected.events.height > 50
    got = pl.read_ipc(out)
    for name in expected.events.columns:
        assert got[name].cast(pl.String).equals(expected.events[name].cast(pl.String)), name
    assert done.stdout.strip() == str(
        f"{[n.code for n in expected.source.notices]} {dict(expected.source.skipped)}"
    )


@pytest.mark.parametrize(
    "event",
    [
        EVENT.replace('"name"', r'"n\u0061me"'),
        EVENT.replace('"name"', r'"\u006E\u0061\u006d\u0065"').replace('"ph"', r'"\u0070h"'),
        EVENT.replace('"args"', r'"ar\u0067s"').replace('"stream"', r'"strea\u006d"'),
        EVENT.replace(
            '"device": 3', r'"n\\u0061me": "x", "nam\u00e9": 1, "name\u12": 2, "device": 3, "\"": 4'
        ),
    ],
)
def test_escaped_keys_are_the_keys_they_spell(event):
    expected = kineto.read(io.BytesIO(f"[{EVENT}]".encode())).events
    got = kineto.read(io.BytesIO(f"[{event}]".encode()))
    assert got.events.equals(expected)
    assert got.source.notices == ()


def test_escaped_keys_beside_the_events():
    text = rf'{{"distributed\u0049nfo": {{"rank": 3}}, "trace\u0045vents": [{EVENT}], "baseTime\u004eanoseconds": 7}}'
    got = kineto.read(io.BytesIO(text.encode()))
    assert got.source.rank == 3
    assert got.events["start_ns"].to_list() == [1007]


@pytest.mark.parametrize(
    "values", ["null", "null, 5 , true", '"]"', "[]", '["a", [{}]]', '"\\"", -1.5e3']
)
def test_a_list_that_ends_in_something_else_is_not_truncated(values):
    text = f'{{"traceEvents": [{EVENT}, {values}\n], "baseTimeNanoseconds": 7}}'.encode()
    got = kineto.read(io.BytesIO(text))
    assert [notice.code for notice in got.source.notices] == ["bad-events"]
    assert got.events["start_ns"].to_list() == [1007]
    with pytest.raises(InputError, match="is damaged") as caught:
        kineto.read(io.BytesIO(text), lenient=False)
    assert caught.value.notice.code == "bad-events"


@pytest.mark.parametrize(
    "value", ["null", "true", "-1.5e3", '"a"', '"]}"', "[]", "[[1], 2]", '["a", [{}]]']
)
@pytest.mark.parametrize("gap", ["", "\n  "])
def test_events_behind_an_element_that_is_none_are_read(value, gap):
    other = EVENT.replace('{"ph"', '{"comment": 1, "ph"')  # begins with a key that no event has
    text = f'{{"traceEvents": [{gap}{EVENT},{gap}{value},{gap}{other},{gap}{value},{gap}{value},{gap}{other}]}}'
    got = kineto.read(io.BytesIO(text.encode()))
    assert got.events.height == 3
    assert dict(got.source.skipped) == {DAMAGED: 3}


def test_what_follows_a_damaged_event_counts_as_part_of_it():
    cut = EVENT.replace('"X", "cat"', '"X"}, "cat"')  # a stray brace closes it before its time
    behind = EVENT.removeprefix('{"ph": ')  # its beginning is lost
    closed = EVENT.replace('"dur": 2', '"dur": 2}')
    for damaged in (cut, behind, closed):
        got = kineto.read(io.BytesIO(f'{{"traceEvents": [{EVENT}, {damaged}, {EVENT}]}}'.encode()))
        assert got.events["name"].to_list() == ["k", "k"], damaged
        assert dict(got.source.skipped) == {DAMAGED: 1}, damaged


@pytest.mark.parametrize("phase", ["X", r"\u0058"])
def test_an_escaped_phase_is_the_letter_it_spells(phase):
    got = kineto.read(io.BytesIO(f"[{EVENT}, {EVENT.replace('X', phase)}]".encode()))
    assert got.events.height == 2
    assert dict(got.source.skipped) == {}


@pytest.mark.parametrize("phase", ["XX", "", r"\u0158", r"\n", r"\u0000", r"X\u0058", "é"])
def test_a_phase_that_is_not_one_letter_is_counted(phase):
    got = kineto.read(io.BytesIO(f"[{EVENT}, {EVENT.replace('X', phase)}]".encode()))
    assert got.events.height == 1
    assert dict(got.source.skipped) == {"unknown phase": 1}


def names_in_one_slot(count):
    """Return names of eight bytes that lay in one slot of the hash table when the hash had no seed."""
    mix = 0x9E3779B97F4A7C15
    random = np.random.default_rng(1)
    hashes = random.integers(0, 2**64, size=5 * count, dtype=np.uint64) & ~np.uint64(
        (2**24 - 1) << 32
    )
    with np.errstate(over="ignore"):
        words = (hashes * np.uint64(pow(mix, -1, 2**64))) ^ np.uint64(8 * mix % 2**64)
    letters = words.astype("<u8").view(np.uint8).reshape(-1, 8)
    is_plain = ((letters >= ord(" ")) & (letters != ord('"')) & (letters != ord("\\"))).all(axis=1)
    names = [name.tobytes() for name in letters[is_plain][:count]]
    assert len(names) == count
    return names


def as_trace(names):
    events = [EVENT.encode().replace(b'"k"', b'"' + name + b'"') for name in names]
    return b"[" + b",".join(events) + b"]"


def test_names_chosen_for_one_slot_take_no_longer_than_others():
    chosen = names_in_one_slot(40_000)
    others = [f"name{number:04x}".encode()[::-1] for number in range(40_000)]

    def scan_s(names):
        raw, began = as_trace(names), time.process_time()
        with Stream(io.BytesIO(raw)) as stream:
            scan_stream(stream, stacks=False)
        return time.process_time() - began

    assert scan_s(chosen) < 4 * scan_s(others)  # without a seed: 20 times as long


def test_memory_for_many_short_names_grows_with_their_bytes():
    raw = as_trace(b"%06x" % number for number in range(60_000))
    kineto.read(io.BytesIO(as_trace([b"a"])))  # what importing takes is not the question
    tracemalloc.start()
    try:
        with Stream(io.BytesIO(raw)) as stream:
            scan_stream(stream, stacks=False)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10 * len(raw)


def test_a_file_that_ends_between_events_has_no_event_cut_in_two():
    got = kineto.read(io.BytesIO(f'{{"traceEvents": [{EVENT},'.encode()))
    assert notice_sentence(got.source.notices[0]) == "the file ends before its list of events does"
    got = kineto.read(io.BytesIO(f'{{"traceEvents": [{EVENT}, {EVENT[:30]}'.encode()))
    assert notice_sentence(got.source.notices[0]).startswith(
        "1 event was cut in two: the file ends"
    )
