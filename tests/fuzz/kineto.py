"""PyTorch traces nobody wrote: valid ones against the independent reader, and damaged ones against what must hold."""

from __future__ import annotations

import copy
import io
import json
import random

import msgspec
import polars as pl

from tests import reference
from tests.fuzz.change import changed
from tests.fuzz.listed import count_listed
from tests.fuzz.memory import small_memory
from tracekit.classify import classify
from tracekit.errors import InputError
from tracekit.parsers import kineto
from tracekit.schema import EVENTS, LATEST_NS, MEMORY

WORDS = (
    "aten::mm",
    "ncclDevKernel_AllReduce",
    "ProfilerStep#3",
    "",
    "a\tb",
    "é\u2028",
    "x" * 70,
    '"\\/',
    "nccl:send 0->1",
)
CATEGORIES = (
    "kernel",
    "cpu_op",
    "cuda_runtime",
    "Memcpy",
    "user_annotation",
    "gpu_memset",
    "python_function",
    "new",
)
ODD = (
    *(
        None,
        True,
        "",
        "x",
        "-5000",
        "9" * 30,
        [],
        [1],
        {},
        {"a": []},
        -1,
        -(2**63),
        2**63,
        2**64,
        10**40,
        1e308,
        0.1,
    ),
    *("\ud800", "\x00", "[" * 500, [[[[[1]]]]], "stream 7", "inf", 1.5e-300, 2**31, -(2**31) - 1),
)
ARGS = (
    *(
        "correlation",
        "External id",
        "Sequence number",
        "Fwd thread id",
        "Input Dims",
        "Collective name",
        "bytes",
    ),
    *(
        "Process Group Name",
        "Process Group Description",
        "Process Group Ranks",
        "Dst Rank",
        "Src Rank",
        "stream",
    ),
    *(
        "device",
        "In msg nelems",
        "Out msg nelems",
        "dtype",
        "graph id",
        "graph node id",
        "Process Group ID",
        "Input type",
    ),
    *("Bytes", "Total Allocated", "Total Reserved", "Device Type", "Device Id", "Addr"),
)


def valid(choose: random.Random) -> tuple[bytes, int]:
    """A trace that both readers must understand alike, and its base time."""
    events = [_event(choose) for _ in range(choose.randrange(1, 9))]
    base = choose.choice((0, 1_700_000_000_000_000_000, choose.randrange(-(10**17), 10**17)))
    pairs = [("baseTimeNanoseconds", base), ("traceEvents", events), ("displayTimeUnit", "ms")]
    choose.shuffle(pairs)
    form = choose.choice(
        ({}, {"indent": 1}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False})
    )
    return json.dumps(dict(pairs), **form).encode(), base


def _allocation(choose: random.Random) -> dict[str, object]:
    """An event of the allocator, some arguments missing."""
    numbers = {
        "Bytes": -64,
        "Total Allocated": 2**40,
        "Total Reserved": 0,
        "Device Type": 1,
        "Device Id": -1,
        "Addr": 9,
    }
    args: dict[str, object] = {
        key: numbers[key] for key in choose.sample(list(numbers), choose.randrange(1, 7))
    }
    return {
        "ph": "i",
        "name": "[memory]",
        "pid": 1,
        "tid": "stream 3",
        "ts": choose.randrange(10**12),
        "args": args,
    }


def _event(choose: random.Random) -> dict[str, object]:
    if choose.random() < 0.1:
        return _allocation(choose)
    one: dict[str, object] = {
        "ph": choose.choice("XXXXXsfMi"),
        "cat": choose.choice(CATEGORIES[:6]),
        "name": choose.choice(WORDS),
        "pid": choose.choice((0, 1, 7, "Spans")),
        "tid": choose.choice((0, 7, "stream 3")),
        "ts": choose.choice((0, 5, 1.5, 1e3, 123456789.125, choose.randrange(10**12))),
    }
    if choose.random() < 0.9:
        one["dur"] = choose.choice((0, 1, 2.25, choose.randrange(10**6)))
    args: dict[str, object] = {}
    for key in choose.sample(
        ("correlation", "External id", "stream", "device", "bytes", "Dst Rank"), choose.randrange(5)
    ):
        args[key] = choose.randrange(100)
    for key in choose.sample(
        ("Collective name", "Process Group Name", "Process Group Description"), choose.randrange(3)
    ):
        args[key] = choose.choice(WORDS)
    if choose.random() < 0.3:
        args["Input Dims"] = [
            [choose.randrange(9) for _ in range(choose.randrange(4))]
            for _ in range(choose.randrange(3))
        ]
    if args or choose.random() < 0.5:
        one["args"] = args
    pairs = list(one.items())
    choose.shuffle(pairs)
    return dict(pairs)


def _odd(choose: random.Random) -> object:
    # What is put into it must not be in the next input too.
    return copy.deepcopy(choose.choice(ODD))


def odd(choose: random.Random) -> bytes:
    """Valid JSON with values that have no business where they stand."""
    events = [_event(choose) for _ in range(choose.randrange(1, 9))]
    head: dict[str, object] = {"baseTimeNanoseconds": choose.choice((0, 5, *ODD))}
    for one in events:
        if choose.random() < 0.3:  # a key first that no event has
            moved = dict(one)
            one.clear()
            one.update({"comment": _odd(choose)}, **moved)
        while choose.random() < 0.5:
            if choose.random() < 0.5:
                one[choose.choice(("ph", "cat", "name", "pid", "tid", "ts", "dur", "args"))] = _odd(
                    choose
                )
            elif isinstance(one.get("args"), dict):
                one["args"][choose.choice(ARGS)] = _odd(choose)
    info = {
        key: choose.choice((0, 2, *ODD))
        for key in ("rank", "world_size", "pg_config", "nccl_version")
    }
    info["pg_config"] = choose.choice(([{"pg_name": _odd(choose), "ranks": _odd(choose)}], *ODD))
    head["distributedInfo"] = choose.choice((info, *ODD))
    head["deviceProperties"] = choose.choice(([{"name": _odd(choose)}], *ODD))
    elements: list[object] = list(events)
    while choose.random() < 0.3:  # elements that are no events
        elements.insert(choose.randrange(len(elements) + 1), _odd(choose))
    pairs = [*head.items(), ("traceEvents", elements if choose.random() < 0.9 else _odd(choose))]
    if choose.random() < 0.5:
        pairs.reverse()
    form = choose.choice(({}, {"indent": 1}, {"separators": (",", ":")}))
    raw = json.dumps(dict(pairs), **form).encode()
    if choose.random() < 0.3:
        raw = raw.replace(b'"X"', rb'"\u0058"', choose.randrange(1, 4))
    return raw


def cut(choose: random.Random) -> bytes:
    """A trace that ends early: the list of events comes first, so that an independent reader can count them."""
    events = [_event(choose) for _ in range(choose.randrange(1, 9))]
    form = choose.choice(({}, {"indent": 1}, {"indent": 2}, {"separators": (",", ":")}))
    raw = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, **form).encode()
    return raw[: choose.randrange(len(raw))]


def damaged(choose: random.Random) -> bytes:
    """A trace whose bytes were changed here and there."""
    raw = valid(choose)[0] if choose.random() < 0.7 else odd(choose)
    return changed(raw, choose, times=choose.randrange(1, 8))


def broken(choose: random.Random) -> bytes:
    """A trace one event of which is damaged by a byte.

    The first byte says how many events it lists.

    The byte is no opening brace: behind a comma, another event would seem to start there.
    """
    events = [_event(choose) for _ in range(choose.randrange(3, 9))]
    form = choose.choice(({}, {"indent": 1}, {"separators": (",", ":")}))
    texts = [json.dumps(event, **form) for event in events]
    which = choose.randrange(len(texts))
    text = texts[which]
    offset = choose.randrange(1, len(text) - 1)
    kept = choose.choice((0, 0, 1))  # whether the byte comes in addition
    texts[which] = text[:offset] + choose.choice(("", *'x}[]",:0 \\')) + text[offset + 1 - kept :]
    separator = ",\n" if "indent" in form else ", "
    return f'{len(texts)}{{"traceEvents": [{separator.join(texts)}]}}'.encode()


def make(choose: random.Random) -> bytes:
    """One input of any kind; the first byte says which."""
    makers = {"V": lambda one: valid(one)[0], "O": odd, "D": damaged, "C": cut, "B": broken}
    kind = choose.choice("VODDCB")
    return kind.encode() + makers[kind](choose)


def check(raw: bytes, folder) -> None:
    """Read an input; raise where anything that must hold does not."""
    kind, text = raw[:1], raw[1:]
    listed = None
    if kind == b"B":
        listed, text = int(text[:1]), text[1:]
    try:
        with small_memory():
            got = kineto.read(io.BytesIO(text), lenient=kind != b"V")
    except InputError as error:
        is_of_several = "several processes" in error.message or "one process" in error.message
        if kind == b"V" and not is_of_several:
            raise AssertionError("a valid trace was refused") from error
        return
    events = got.events
    assert events.schema == EVENTS
    assert (events["end_ns"] >= events["start_ns"]).all()
    assert events["start_ns"].is_between(-LATEST_NS, LATEST_NS).all()
    assert got.memory.schema == MEMORY
    assert got.memory["at_ns"].is_between(-LATEST_NS, LATEST_NS).all()
    assert events["id"].n_unique() == events.height
    lost = sum(
        got.source.skipped.get(key, 0)
        for key in got.source.skipped
        if "usable" in key or "damaged" in key
    )
    codes = {notice.code for notice in got.source.notices}
    assert not lost or "bad-events" in codes, "events were lost without a word"
    listed = listed or count_listed(text)
    if listed is not None:
        was_cut = sum(
            n.values.get("cut_event", False) for n in got.source.notices if n.code == "truncated"
        )
        behind = sum(
            int(n.values["count"]) for n in got.source.notices if n.values.get("case") == "behind"
        )
        accounted = (
            events.height + got.memory.height + sum(got.source.skipped.values()) + was_cut - behind
        )
        assert accounted == listed, f"{accounted} events read, skipped or lost of {listed} listed"
        counts = (
            sum(int(n.values["count"]) for n in got.source.notices if n.code == "bad-events")
            - behind
        )
        assert counts == lost - behind, f"the notice says {counts} lost, and {lost - behind} are"
    msgspec.json.encode(got.source)
    if kind == b"V":
        path = folder / "rank0.json"
        path.write_bytes(text)
        expected = reference.read(path, rank=0).filter(pl.col("kind") != "python")
        assert got.memory.equals(reference.read_memory(path)), "the allocator's events differ"
        for column in EVENTS:
            if column != "id":
                same = events[column].cast(pl.String).equals(expected[column].cast(pl.String))
                assert same, f"{column} differs from the independent reader"
    if len(text) % 64 == 0:  # labelling takes ten times as long as reading
        assert classify(events)["label"].null_count() == 0
