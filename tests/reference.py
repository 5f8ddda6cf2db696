"""An independent, slow and simple reader of PyTorch traces: the standard json module and exact decimals.

Tests hold the real parser against it. It knows nothing of the parser's code.
"""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from functools import lru_cache
from pathlib import Path

import polars as pl

from tracekit.schema import EVENTS, MEMORY, conform

KIND = {
    "kernel": "kernel",
    "mtia_ccp_events": "kernel",
    "mtia_runtime": "runtime",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cpu_op": "cpu_op",
    "operator": "cpu_op",
    "cuda_runtime": "runtime",
    "runtime": "runtime",
    "cuda_driver": "driver",
    "user_annotation": "annotation",
    "gpu_user_annotation": "gpu_annotation",
    "python_function": "python",
    "overhead": "overhead",
    "cuda_sync": "sync",
}
SIZE = {
    "Float": 4,
    "BFloat16": 2,
    "Half": 2,
    "Double": 8,
    "Int": 4,
    "Long": 8,
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
}


def load_json(path):
    return _parsed(Path(path).read_bytes())


@lru_cache(maxsize=1)
def _parsed(raw):
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    return json.loads(raw.decode("utf-8", "replace"), parse_float=Decimal, strict=False)


def read(path, rank=0):
    """The events table of one file, row for row."""
    data = load_json(path)
    base = int(data.get("baseTimeNanoseconds", 0)) if isinstance(data, dict) else 0
    events = data["traceEvents"] if isinstance(data, dict) else data
    info = data.get("distributedInfo", {}) if isinstance(data, dict) else {}
    rank = info.get("rank", rank)
    rows = [
        _row(i, e, base)
        for i, e in enumerate(e for e in events if e.get("ph", "X") == "X" and "ts" in e)
    ]
    for row in rows:
        row["group"] = None if row["group"] is None else str(row["group"])
    _link_calls(rows)
    frame = conform(
        pl.DataFrame(rows, infer_schema_length=None).with_columns(rank=pl.lit(rank)), EVENTS
    )
    return _steps(frame)


def _link_calls(rows):
    """Without any correlation, external ids link kernels and calls if every kernel has that of just one call."""
    if any(row["correlation"] is not None for row in rows):
        return
    calls = [row for row in rows if row["kind"] in ("runtime", "driver")]
    kernels = [row for row in rows if "stream" in row]
    call_ids = [row["external_id"] for row in calls if row["external_id"] is not None]
    kernel_ids = [row["external_id"] for row in kernels if row["external_id"] is not None]
    each_has_one = len(set(call_ids)) == len(call_ids) and set(kernel_ids) <= set(call_ids)
    if kernel_ids and each_has_one:
        for row in calls + kernels:
            row["correlation"] = row["external_id"]
            row["external_id"] = None


def read_memory(path, rank=0):
    """The allocator's events of one file, in the order of time."""
    data = load_json(path)
    base = int(data.get("baseTimeNanoseconds", 0)) if isinstance(data, dict) else 0
    events = data["traceEvents"] if isinstance(data, dict) else data
    info = data.get("distributedInfo", {}) if isinstance(data, dict) else {}
    rows = [
        {
            "rank": info.get("rank", rank),
            "at_ns": base + int(Decimal(e["ts"]) * 1000),
            "pid": _whole(e.get("pid")),
            "tid": _whole(e.get("tid")),
            "device_type": e["args"].get("Device Type"),
            "device": e["args"].get("Device Id"),
            "bytes": e["args"]["Bytes"],
            "allocated": e["args"].get("Total Allocated"),
            "reserved": e["args"].get("Total Reserved"),
            "address": e["args"].get("Addr"),
        }
        for e in events
        if e.get("ph") == "i"
        and e.get("name") == "[memory]"
        and "Bytes" in (e.get("args") or {})
        and "ts" in e
    ]
    frame = pl.DataFrame(rows, schema=MEMORY, infer_schema_length=None)
    return frame.sort("at_ns", maintain_order=True)


def _row(index, event, base):
    args = event.get("args") or {}
    kind = KIND.get(str(event.get("cat", "")).lower(), "other")
    start = base + int(Decimal(event["ts"]) * 1000)
    gpu = kind in ("kernel", "memcpy", "memset", "gpu_annotation")
    external = args.get("External id", args.get("external id"))
    row = {
        "id": index,
        "kind": kind,
        "name": str(event["name"]),
        "start_ns": start,
        "end_ns": start + int(Decimal(event.get("dur", 0)) * 1000),
        "pid": _whole(event.get("pid")),
        "tid": _whole(event.get("tid")),
        "correlation": args.get("correlation"),
        "external_id": external,
        "sequence": args.get("Sequence number"),
        "fwd_thread": args.get("Fwd thread id"),
        "collective": args.get("Collective name"),
        "group": args.get("Process Group Name", args.get("Process Group ID")),
        "group_desc": args.get("Process Group Description"),
        "group_ranks": args["Process Group Ranks"].replace(" ", "")
        if "Process Group Ranks" in args
        else None,
        "peer": args.get("Dst Rank", args.get("Src Rank")),
        "bytes": int(args["bytes"]) if "bytes" in args else None,
        "graph": args.get("graph node id") or args.get("graph id") or None,
        "shapes": json.dumps(args["Input Dims"], separators=(",", ":"))
        if "Input Dims" in args
        else None,
        "dtypes": json.dumps(args["Input type"], separators=(",", ":"))
        if "Input type" in args
        else None,
        **_input_values(str(event["name"]), args),
    }
    if gpu:
        row["device"] = _whole(args.get("device", event["pid"]))
        row["stream"] = _whole(args.get("stream", event["tid"]))
    if "In msg nelems" in args and args.get("dtype") in SIZE:
        nelems = max(int(args["In msg nelems"]), int(args.get("Out msg nelems", 0)))
        row["bytes"] = nelems * SIZE[args["dtype"]]
        if "Out msg nelems" in args:
            row["received"] = int(args["Out msg nelems"]) * SIZE[args["dtype"]]
    return row


VIEWS = set()
"""Operators whose inputs are not read: views, allocations and calls of another operator."""
for line in (
    "alias as_strided detach detach_ empty empty_like empty_permuted empty_strided expand expand_as",
    "flatten lift_fresh linear matmul new_empty new_empty_strided numpy_T ones_like permute reshape",
    "_reshape_alias resize_ resolve_conj resolve_neg result_type set_ squeeze t transpose unflatten",
    "_unsafe_view unsqueeze view view_as view_as_real zeros_like",
):
    VIEWS.update(line.split())


def _input_values(name, args):
    """Concrete inputs and strides, of operators with a namespace that are no views."""
    namespace, _, operator = name.partition("::")
    if not operator or namespace == "torch" or (namespace == "aten" and operator in VIEWS):
        return {"concrete": None, "strides": None}
    values = [_spelled(value) for value in args.get("Concrete Inputs", ())]
    strides = args.get("Input Strides")
    if strides is not None:
        strides = [None if len(each) > 16 else each for each in strides]
    return {
        "concrete": json.dumps(values, separators=(",", ":"))
        if "Concrete Inputs" in args
        else None,
        "strides": None if strides is None else json.dumps(strides, separators=(",", ":")),
    }


def _spelled(text):
    """The number, boolean or list of at most 16 that PyTorch spells so."""
    if text.startswith("[") and text.endswith("]"):
        items = [_spelled(item.strip()) for item in text[1:-1].split(",") if item.strip()]
        return None if None in items or len(items) > 16 else items
    if text in ("True", "False"):
        return text == "True"
    try:
        number = Decimal(text)
    except ArithmeticError:
        return None
    if not number.is_finite():
        return None
    if "." not in text and "e" not in text:
        return int(number) if abs(number) < 10**9 else None
    number = float(f"{float(number):.6g}")
    return int(number) if number == int(number) and abs(number) < 10**9 else number


def _whole(value):
    """A number, or a string that is one; a thread of 2021 may be called "stream 7"."""
    text = str(value).removeprefix("stream ")
    return int(text) if text.lstrip("-").isdigit() else None


def _steps(frame):
    """A CPU event belongs to the innermost ProfilerStep around its start, a GPU event to that of its launch."""
    marks = [
        (r["start_ns"], r["end_ns"], int(r["name"].split("#")[1]))
        for r in frame.filter(pl.col("kind").is_in(["annotation", "cpu_op"])).iter_rows(named=True)
        if r["name"].startswith("ProfilerStep#")
    ]

    def step_at(time):
        around = [(s, -e, n) for s, e, n in marks if s <= time < e]
        return max(around)[2] if around else None

    launch = {
        r["correlation"]: r["start_ns"]
        for r in frame.filter(pl.col("kind").is_in(["runtime", "driver"])).iter_rows(named=True)
        if r["correlation"] is not None
    }
    steps = [
        step_at(launch.get(r["correlation"], -1) if r["stream"] is not None else r["start_ns"])
        for r in frame.iter_rows(named=True)
    ]
    return frame.with_columns(step=pl.Series(steps, dtype=pl.Int64))
