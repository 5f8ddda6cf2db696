"""Files users really have: each defect put into a real trace, read leniently with a count, or refused in one line."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import re
import tracemalloc

import polars as pl
import pytest

from tracekit import analyze
from tracekit.errors import InputError
from tracekit.parsers import kineto
from tracekit.parsers.kineto import blocks, header, reader
from tracekit.report.notices import error_message, notice_sentence
from tracekit.schema import DAMAGED

ROWS = 280


def read(raw, **options):
    return kineto.read(io.BytesIO(raw), **options)


def codes(got):
    return [notice.code for notice in got.source.notices]


def count(got, code):
    """The number in the notice, or 0."""
    message = next(notice_sentence(n) for n in got.source.notices if n.code == code)
    number = re.search(r"\d+", message)
    return int(number.group()) if number else 0


@pytest.fixture(scope="module")
def whole(real_bytes):
    return read(real_bytes).events


@pytest.fixture(scope="module")
def target(real_bytes):
    """The first NCCL kernel: its text, its index among all events, and its row."""
    events = json.loads(real_bytes)["traceEvents"]
    name = "ncclDevKernel_Broadcast_RING_LL"
    index = next(i for i, e in enumerate(events) if str(e.get("name")).startswith(name))
    row = sum(e.get("ph") == "X" for e in events[:index])
    start = real_bytes.index(b'{\n    "ph": "X", "cat": "kernel", "name": "' + name.encode())
    return real_bytes[start : real_bytes.index(b"\n  },", start)], index, row


KEPT = {
    # defect: (what to replace, by what, notice, how many)
    "bare inf": (b'"blocks per SM": 0.0625', b'"blocks per SM": inf', "bad-events", 1),
    "bare NaN": (b'"blocks per SM": 0.0625', b'"blocks per SM": NaN', "bad-events", 1),
    "minus inf": (b'"blocks per SM": 0.0625', b'"blocks per SM": -inf', "bad-events", 1),
    "unquoted N/A": (b'"shared memory": 103808', b'"shared memory": N/A', "bad-events", 1),
    "control character": (b"Kernel_Broadcast_RING", b"Kernel_\x01\x1f_RING", "bad-text", 1),
    "raw line break": (b"Kernel_Broadcast_RING", b"Kernel_\n_RING", "bad-text", 1),
    "bad escape": (b"Kernel_Broadcast_RING", rb"Kernel_\q\x_RING", "bad-text", 1),
    "half an escape": (b"Kernel_Broadcast_RING", rb"Kernel_\u12_RING", "bad-text", 1),
    "invalid UTF-8": (b"Kernel_Broadcast_RING", b"Kernel_\xff\xfe\xc3_RING", "bad-text", 1),
}
LOST = {
    "unescaped quotes": (b"Kernel_Broadcast_RING", b'Kernel_"Broadcast"_RING'),
    "one unescaped quote": (b"Kernel_Broadcast_RING", b'Kernel_"_RING'),
    "quotes in a list": (b'"grid": [2, 1, 1]', b'"grid": ["a "b" c", 1]'),
    "one quote in a list": (b'"grid": [2, 1, 1]', b'"grid": ["a"b", 1]'),
    "time is NaN": (b'"dur": ', b'"dur": NaN, "was": '),
    "time is N/A": (b'"ts": ', b'"ts": N/A, "was": '),
    "missing comma": (b'"pid": 0, "tid"', b'"pid": 0 "tid"'),
    "missing value": (b'"pid": 0,', b'"pid": ,'),
    "missing bracket": (b'"grid": [2, 1, 1]', b'"grid": [2, 1, 1'),
    "missing quote": (b'"cat": "kernel"', b'"cat": "kernel'),
    "missing brace": (b'"args": {', b'"args": '),
}


def damage(real_bytes, target, old, new):
    text = target[0]
    assert text.count(old) == 1
    return real_bytes.replace(text, text.replace(old, new), 1)


@pytest.mark.parametrize("defect", KEPT)
def test_damage_that_costs_no_event(real_bytes, whole, target, defect):
    old, new, code, how_many = KEPT[defect]
    raw = damage(real_bytes, target, old, new)
    got = read(raw)
    assert codes(got) == [code]
    assert count(got, code) == how_many
    assert got.events.drop("name").equals(whole.drop("name"))
    changed = (
        (got.events["name"].cast(pl.String) != whole["name"].cast(pl.String)).arg_true().to_list()
    )
    assert changed == ([target[2]] if code == "bad-text" else [])
    with pytest.raises(InputError, match="trace: is damaged") as caught:
        read(raw, lenient=False)
    assert re.search(r"damaged: \d+ (damaged event|value|name)s? ", error_message(caught.value))


@pytest.mark.parametrize("block", [1 << 22, 8000])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize(
    "first",
    [
        {"name": "a\\q"},
        {"cat": "kernel\\q"},
        {"args": {"Process Group Description": "\\q"}},
        {"args": {"dtype": "\\q"}},
    ],
)
def test_bad_texts_are_counted(monkeypatch, first, indent, block):
    """Whatever the column they are in, and however many events of other kinds and blocks come before them."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block)
    monkeypatch.setattr(header, "FIRST_READ", min(block, header.FIRST_READ))
    plain = {"ph": "X", "cat": "kernel", "name": "k", "ts": 10, "dur": 1, "pid": 0, "tid": 7}
    events = [
        {"ph": "M", "name": "process_name", "pid": 0},
        *[plain] * 300,
        {**plain, "cat": "python_function"},
    ] * 3
    events[500] = {**plain, **first}
    events[700] = {**plain, "name": "later\\q"}
    raw = json.dumps({"traceEvents": events}, indent=indent).replace("\\\\q", "\\q").encode()
    assert count(read(raw), "bad-text") == 2
    with pytest.raises(InputError, match="trace: is damaged") as caught:
        read(raw, lenient=False)
    sentence = "damaged: 2 names repaired after invalid bytes or escapes"
    assert error_message(caught.value).endswith(sentence)


@pytest.mark.parametrize("block", [1 << 22, 8000])
@pytest.mark.parametrize("defect", LOST)
def test_damage_that_costs_one_event(real_bytes, whole, target, monkeypatch, defect, block):  # noqa: PLR0917
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block)
    monkeypatch.setattr(header, "FIRST_READ", min(block, header.FIRST_READ))
    raw = damage(real_bytes, target, *LOST[defect])
    got = read(raw)
    assert "bad-events" in codes(got)
    assert count(got, "bad-events") == 1
    kept = whole.with_row_index().filter(pl.col("index") != target[2]).drop("index")
    unmoved = ["id", "step"]
    assert got.events.drop(unmoved).equals(kept.drop(unmoved))
    assert got.events.height + sum(got.source.skipped.values()) == raw.count(b'\n  {\n    "')
    with pytest.raises(InputError, match="trace: is damaged") as caught:
        read(raw, lenient=False)
    assert "damaged: 1 damaged event was lost" in error_message(caught.value)


@pytest.mark.parametrize("defect", LOST)
def test_the_same_on_one_line(real_bytes, whole, target, defect):
    text = json.dumps(json.loads(target[0] + b"}")).encode()
    line = json.dumps(json.loads(real_bytes)).encode()
    old, new = LOST[defect]
    assert line.count(text) == 1
    got = read(line.replace(text, text.replace(old, new, 1), 1))
    assert count(got, "bad-events") == 1
    assert got.events.height == ROWS - 1


def test_brackets_inside_text_are_text(real_bytes, whole, target):
    raw = damage(real_bytes, target, b"Kernel_Broadcast_RING", b'Kernel_]}, ] {[\\"]}_RING')
    got = read(raw, lenient=False)
    assert codes(got) == []
    assert got.events["name"][target[2]].startswith('ncclDevKernel_]}, ] {["]}_RING')
    assert got.events.drop("name").equals(whole.drop("name"))


def test_many_damaged_events(real_bytes, whole):
    raw = real_bytes.replace(
        b'"ph": "X", "cat": "cuda_runtime"', b'"ph": "X" "cat": "cuda_runtime"'
    )
    got = read(raw)
    assert count(got, "bad-events") == 203
    assert got.events.height == ROWS - 203


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8, 0.97])
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_truncated(real_bytes, whole, share, packed):
    cut = real_bytes[: int(len(real_bytes) * share)]
    begun = cut.count(b'\n  {\n    "')
    raw = gzip.compress(cut) if packed else cut
    got = read(raw)
    assert codes(got)[0] == "truncated"
    n = got.events.height
    assert 0 < n < ROWS
    # All that was whole, and nothing else.
    assert got.events.drop("step").equals(whole[:n].drop("step"))
    assert n + sum(got.source.skipped.values()) + count(got, "truncated") == begun
    with pytest.raises(InputError, match="trace: is damaged") as caught:
        read(raw, lenient=False)
    assert error_message(caught.value).endswith("the file ends before its list of events does")


def test_truncated_between_events(real_bytes):
    cut = real_bytes[: real_bytes.index(b"\n  },\n  {", 50_000) + 4]
    got = read(cut)
    assert codes(got) == ["truncated"]
    assert count(got, "truncated") == 0


def test_gzip_cut_or_damaged(real_bytes, whole):
    packed = gzip.compress(real_bytes)
    spoilt = bytearray(packed)
    spoilt[len(packed) // 2 : len(packed) // 2 + 40] = b"\0" * 40
    for raw in (packed[: len(packed) // 2], bytes(spoilt)):
        got = read(raw)
        assert "truncated" in codes(got)
        assert got.events.height < ROWS
        with pytest.raises(InputError):
            read(raw, lenient=False)
    wrong_sum = packed[:-8] + b"\1\2\3\4" + packed[-4:]
    assert read(wrong_sum).events.height == ROWS


def test_the_base_time_behind_a_truncated_list_is_missed():
    event = '{"ph": "X", "name": "a", "ts": 5000.5, "dur": 1}'
    got = read(f'{{"traceEvents": [{event}, {event}'.encode())
    assert codes(got) == ["truncated", "no-base-time"]
    got = read(f'{{"baseTimeNanoseconds": 7, "traceEvents": [{event}, {event}'.encode())
    assert codes(got) == ["truncated"]


def test_a_damaged_header_costs_its_key(real_bytes, whole):
    raw = real_bytes.replace(b'"record_shapes": 1', b'"record_shapes": N/A')
    got = read(raw)
    assert got.events.height == ROWS
    assert got.source.record_shapes is True  # seen in the events


# ---- files that are not traces ----


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "the file is empty"),
        (b" \n\t ", "the file is empty"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "not a PyTorch profiler trace"),
        (b"hello", "not a PyTorch profiler trace"),
        (b'"a string"', "not a PyTorch profiler trace"),
        (b"3.14", "not a PyTorch profiler trace"),
        (b"{}", "no traceEvents"),
        (b"[]", "the list of events is empty"),
        (b'{"a": 1, "b": [1, 2, {"traceEvents": 4}]}', "no traceEvents"),
        (b'{"a": ', "no traceEvents"),
        (b'{"traceEvents": 5}', "no traceEvents"),
        (b'[{"a": 1}, {"b": 2}]', "no event has a time"),
        (b"[1, 2, 3]", "not a PyTorch profiler trace"),
        (b"[" * 100 + b"]" * 100, "not a PyTorch profiler trace"),
        (b"[" * 100_000, "not a PyTorch profiler trace"),
        (b'{"a":' * 100_000, "no traceEvents"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, "no traceEvents"),
        (gzip.compress(b"", mtime=0), "the file is empty"),
        (gzip.compress(b"hello", mtime=0), "not a PyTorch profiler trace"),
        (b"\x1f\x8b\x08\x00garbage", "the file is empty"),
        (bytes(5000), "not a PyTorch profiler trace"),
    ],
    ids=itertools.count(),  # a name made of the bytes would be long, and a gzip header holds the hour
)
def test_not_a_trace(raw, words, tmp_path):
    path = tmp_path / "x.json"
    path.write_bytes(raw)
    with pytest.raises(InputError) as caught:
        kineto.read(path)
    assert words in caught.value.message
    assert caught.value.message.startswith(f"{path}: ")
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_no_such_file(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        kineto.read(tmp_path / "nothing.json")
    with pytest.raises(InputError, match="is a directory"):
        kineto.read(tmp_path)


def test_an_empty_list_of_events_is_a_trace_without_events():
    got = read(b'{"schemaVersion": 1, "traceEvents": []}')
    assert got.events.height == 0
    assert codes(got) == ["no-events"]


def test_deep_arguments_do_no_harm(event):
    deep = "[" * 20_000 + "]" * 20_000
    text = f'[{{"ph":"X","name":"a","ts":1,"dur":1,"args":{{"x":{deep},"bytes":7}}}}]'
    assert read(text.encode(), lenient=False).events["bytes"].to_list() == [7]


class Long(io.RawIOBase):
    """A file with a very long string in it, made as it is read."""

    def __init__(self, before, middle, after):
        self._parts = (before, middle, after)
        self.seek(0)

    def seek(self, position, whence=0):
        assert position == 0
        self._left = [memoryview(self._parts[0]), self._parts[1], memoryview(self._parts[2])]
        return 0

    def readinto(self, view):
        before, middle, after = self._left
        if len(before):
            take = min(len(view), len(before))
            view[:take] = before[:take]
            self._left[0] = before[take:]
        elif middle:
            take = min(len(view), middle)
            view[:take] = b"a" * take
            self._left[1] = middle - take
        else:
            take = min(len(view), len(after))
            view[:take] = after[:take]
            self._left[2] = after[take:]
        return take

    def read(self, size=-1):
        view = bytearray(size)
        return bytes(view[: self.readinto(memoryview(view))])


EVENT = b'{"ph": "X", "name": "a", "ts": 1, "dur": 1}'
PLACES = {
    "a name": (
        b'{"traceEvents": [' + EVENT + b', {"ph": "X", "name": "',
        b'", "ts": 2, "dur": 1}, ' + EVENT + b"]}",
    ),
    "a name, on lines": (
        b'{"traceEvents": [\n  {\n    "ph": "X", "name": "a", "ts": 1\n  },\n  {\n    "ph": "X", "ts": 2, "name": "',
        b'"\n  },\n  {\n    "ph": "X", "name": "a", "ts": 1\n  }\n]}',
    ),
    "an argument": (
        b"[" + EVENT + b', {"ph": "X", "ts": 2, "args": {"x": ["',
        b'"]}}, ' + EVENT + b"]",
    ),
    "a key": (b"[" + EVENT + b', {"ph": "X", "ts": 2, "', b'": 4}, ' + EVENT + b"]"),
}


@pytest.mark.parametrize("position", PLACES)
def test_a_huge_string_is_passed_over_in_bounded_memory(monkeypatch, position):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1 << 18)
    monkeypatch.setattr(blocks, "MAX_EVENT_BYTES", 1 << 20)
    before, after = PLACES[position]
    kineto.read(io.BytesIO(b"[" + EVENT + b"]"))  # what importing takes is not the question
    tracemalloc.start()
    try:
        got = kineto.read(Long(before, 100_000_000, after))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert got.events["name"].to_list() == ["a", "a"]
    assert count(got, "bad-events") == 1
    assert peak < 30_000_000


def test_a_huge_string_beside_the_events(monkeypatch):
    monkeypatch.setattr(header, "HEAD_LIMIT", 4 << 20)
    for module in (blocks, reader):
        monkeypatch.setattr(module, "TAIL_LIMIT", 1 << 20)
    with pytest.raises(InputError, match="no traceEvents in the first 4 MB"):
        kineto.read(Long(b'{"x": "', 100_000_000, b'", "traceEvents": [' + EVENT + b"]}"))
    got = kineto.read(
        Long(
            b'{"traceEvents": [' + EVENT + b'], "x": "',
            100_000_000,
            b'", "distributedInfo": {"rank": 1}}',
        )
    )
    assert got.events.height == 1
    assert "bad-events" in codes(got)


# --- events behind the end of their list ---

FOUR = ", ".join(
    f'{{"ph": "X", "cat": "kernel", "name": "k", "ts": {at}, "dur": 1}}' for at in range(4)
)
BEHIND = {
    "a bracket too many": FOUR.replace("}, {", "}], {", 1).join(('{"traceEvents": [', "]}")),
    "a second list": f'{{"traceEvents": [{FOUR}], "traceEvents": [{FOUR}]}}',
    "a second trace": f'{{"traceEvents": [{FOUR}]}}\n{{"traceEvents": [{FOUR}]}}',
}


@pytest.mark.parametrize(("case", "lost"), list(zip(BEHIND, (3, 4, 4), strict=True)))
def test_events_behind_the_end_of_their_list_are_counted(tmp_path, case, lost):
    path = tmp_path / "rank0.json"
    path.write_text(BEHIND[case])
    got = kineto.read(path)
    assert got.source.skipped[DAMAGED] == lost
    (message,) = [notice_sentence(note) for note in got.source.notices if note.code == "bad-events"]
    assert message == f"{lost} events behind the end of the list of events: not read"
    with pytest.raises(InputError, match="is damaged") as caught:
        kineto.read(path, lenient=False)
    assert "behind the end" in error_message(caught.value)
    with pytest.raises(InputError, match=f"{lost} of {lost + got.events.height} events"):
        analyze(path, schedule="none")


def test_phases_in_a_sound_key_behind_the_events_are_none():
    text = f'{{"traceEvents": [{FOUR}], "note": {{"ph": "X"}}, "traceName": "x"}}'
    assert kineto.read(io.BytesIO(text.encode()), lenient=False).source.skipped == {}
