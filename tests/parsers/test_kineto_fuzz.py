"""The scanner against bytes nobody planned for, and against the reference on JSON nobody wrote."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import reference
from tests.parsers.tokens import TOKENS
from tracekit.errors import InputError
from tracekit.parsers import kineto
from tracekit.parsers.kineto import blocks, header
from tracekit.schema import EVENTS

pytestmark = pytest.mark.slow

edits = st.lists(
    st.tuples(
        st.floats(0, 1, exclude_max=True),
        st.sampled_from("swdc"),
        st.binary(max_size=6) | st.sampled_from(TOKENS),
    ),
    min_size=1,
    max_size=15,
)


def apply(raw, changes):
    data = bytearray(raw)
    for share, kind, new in changes:
        offset = int(share * len(data))
        if kind == "s":
            data[offset : offset + len(new)] = new
        elif kind == "w":
            data[offset:offset] = new
        elif kind == "d":
            del data[offset : offset + 50 * len(new)]
        else:
            del data[offset + len(data) // 2 :]
    return bytes(data)


@pytest.mark.parametrize("block", [1 << 22, 3000])
@pytest.mark.parametrize("lenient", [True, False])
def test_damaged_bytes_never_crash_or_hang(real_bytes, monkeypatch, block, lenient):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", block)
    monkeypatch.setattr(blocks, "MAX_EVENT_BYTES", 10 * block)
    monkeypatch.setattr(header, "FIRST_READ", min(block, header.FIRST_READ))
    short = real_bytes[:30_000] + real_bytes[-3000:]
    single = json.dumps(json.loads(real_bytes)).encode()[:30_000]

    @settings(
        max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
    )
    @given(st.sampled_from([short, single]), edits)
    def check(raw, changes):
        try:
            got = kineto.read(io.BytesIO(apply(raw, changes)), lenient=lenient)
        except InputError:
            return
        assert got.events.schema == EVENTS
        assert (got.events["end_ns"] >= got.events["start_ns"]).all()
        assert got.events["id"].is_sorted()
        assert got.events["id"].n_unique() == got.events.height

    check()


def test_never_reads_past_the_buffer(samples):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.parsers.guarded",
            samples / "reload/rank0.pt.trace.json.gz",
            "300",
        ],
        cwd=samples.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


text = st.text(max_size=12)
number = st.integers(-(10**6), 10**15) | st.decimals(0, 10**12, places=3).map(float)
anything = st.recursive(
    st.none() | st.booleans() | number | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
args = st.fixed_dictionaries(
    {},
    optional={
        "correlation": st.integers(0, 99),
        "External id": st.integers(-5, 2**40),
        "Sequence number": st.integers(-1, 9),
        "Fwd thread id": st.integers(0, 3),
        "Input Dims": st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3),
        "Collective name": text,
        "Process Group Name": text,
        "Process Group Description": text,
        "Dst Rank": st.integers(0, 7),
        "bytes": st.integers(0, 2**50),
        "stream": st.integers(0, 99),
        "device": st.integers(0, 7),
        "In msg nelems": st.integers(0, 2**20),
        "dtype": st.sampled_from(["Float", "BFloat16", "Nothing"]),
        "x": anything,
        "name": anything,
        "ts": anything,
    },
)
event = st.fixed_dictionaries(
    {
        "name": text,
        "ts": number,
        "pid": st.integers(0, 9) | st.just("Spans"),
        "tid": st.integers(0, 9) | st.just("stream 3"),
    },
    optional={
        "ph": st.sampled_from("XXXXsfMi"),
        "cat": st.sampled_from(
            ["kernel", "cpu_op", "cuda_runtime", "Memcpy", "user_annotation", "new"]
        ),
        "dur": st.integers(0, 10**6) | st.decimals(0, 1000, places=3).map(float),
        "args": args,
        "id": anything,
        "cname": anything,
    },
)
events = st.lists(
    event.flatmap(lambda e: st.permutations(list(e.items())).map(dict)), min_size=1, max_size=8
)
forms = st.sampled_from(
    [{}, {"indent": 1}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}]
)


@pytest.mark.parametrize("examples", [15, pytest.param(200, marks=pytest.mark.nightly)])
def test_valid_json_equals_the_reference(tmp_path, examples):
    path = tmp_path / "rank0.json"

    @settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(events, forms, st.integers(-(10**18), 10**18), st.booleans())
    def check(many, form, base, keys_first):
        data = {"baseTimeNanoseconds": base, "traceEvents": many}
        data = data if keys_first else dict(reversed(data.items()))
        path.write_text(json.dumps(data, **form), encoding="utf-8", errors="surrogatepass")
        expected = reference.read(path, rank=0)
        got = kineto.read(path, lenient=False).events
        for column in EVENTS:
            assert got[column].cast(pl.String).equals(expected[column].cast(pl.String)), column

    check()
