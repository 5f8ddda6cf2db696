"""Files of synthetic runs: PyTorch profiler JSON and Nsight Systems SQLite."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl

from tracekit._util.files import atomic_write, output_folder
from tracekit.errors import OutputError
from tracekit.schedules import generate
from tracekit.synthetic.emit import rank_events
from tracekit.synthetic.recipe import EPOCH_NS, Recipe

_CATEGORY = {
    "cpu_op": "cpu_op",
    "runtime": "cuda_runtime",
    "kernel": "kernel",
    "memcpy": "gpu_memcpy",
    "annotation": "user_annotation",
}
SCHEMA_VERSION = {"MAJOR": "3", "MINOR": "20", "MICRO": "3"}
"""Version of the tables of Nsight exports that is written."""


def groups(recipe: Recipe, rank: int) -> list[dict[str, Any]]:
    """Return the process groups a rank's file lists."""
    position, replica = divmod(rank, recipe.replicas)
    pipeline = [recipe.rank(other, replica) for other in range(recipe.schedule.pp)]
    listed = [{"pg_name": f"pp{replica}", "pg_desc": "PIPELINE_MODEL_PARALLEL_GROUP", "ranks": pipeline}]
    if recipe.replicas > 1:
        experts = [recipe.rank(position, r) for r in range(recipe.replicas)]
        listed.append({"pg_name": f"ep{position}", "pg_desc": "EXPERT_MODEL_PARALLEL_GROUP", "ranks": experts})
    return listed


def write_kineto(recipe: Recipe, rank: int, path: str | os.PathLike[str]) -> Path:
    """Write one rank as a PyTorch profiler trace (compressed if the name ends in ``.gz``).

    >>> import tempfile
    >>> from tracekit.schedules import generate
    >>> recipe = Recipe(generate("1f1b", pp=2, microbatches=2))
    >>> write_kineto(recipe, 0, tempfile.mkdtemp() + "/rank0.json.gz").name
    'rank0.json.gz'
    """
    file = Path(path)
    data = {
        "schemaVersion": 1,
        "baseTimeNanoseconds": EPOCH_NS,
        "record_shapes": int(recipe.shapes),
        "distributedInfo": {
            "backend": "nccl",
            "rank": rank,
            "world_size": recipe.world_size,
            "pg_config": groups(recipe, rank),
        },
        "traceEvents": [_event(row) for row in rank_events(recipe, rank).iter_rows(named=True)],
    }
    text = json.dumps(data).encode()
    with atomic_write(file) as temporary:
        Path(temporary).write_bytes(gzip.compress(text, mtime=0) if file.suffix == ".gz" else text)
    return file


def _event(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of events as an event of the PyTorch profiler."""
    args: dict[str, Any] = {}
    if row["stream"] is not None:
        args |= {"device": row["device"], "stream": row["stream"]}
    names = {
        "correlation": "correlation",
        "sequence": "Sequence number",
        "fwd_thread": "Fwd thread id",
        "collective": "Collective name",
        "group": "Process Group Name",
        "group_desc": "Process Group Description",
        "group_ranks": "Process Group Ranks",
    }
    args |= {key: row[name] for name, key in names.items() if row[name] is not None}
    if row["shapes"]:
        args["Input Dims"] = json.loads(row["shapes"])
    if row["peer"] is not None:
        args["Dst Rank" if row["collective"] == "send" else "Src Rank"] = row["peer"]
    if row["bytes"] is not None and row["kind"] == "memcpy":
        args["bytes"] = row["bytes"]
    return {
        "ph": "X",
        "cat": _CATEGORY[row["kind"]],
        "name": row["name"],
        "pid": row["pid"],
        "tid": row["tid"],
        "ts": (row["start_ns"] - EPOCH_NS) / 1000,
        "dur": (row["end_ns"] - row["start_ns"]) / 1000,
        "args": args,
    }


def write_nsys(recipe: Recipe, rank: int, path: str | os.PathLike[str]) -> Path:
    """Write one rank as an Nsight Systems SQLite export.

    >>> import tempfile
    >>> from tracekit.schedules import generate
    >>> recipe = Recipe(generate("1f1b", pp=2, microbatches=2))
    >>> write_nsys(recipe, 0, tempfile.mkdtemp() + "/rank0.sqlite").name
    'rank0.sqlite'
    """
    file = Path(path)
    events = rank_events(recipe, rank)
    with atomic_write(file) as temporary:
        Path(temporary).unlink(missing_ok=True)
        with closing(sqlite3.connect(temporary)) as database:
            database.executescript(_TABLES)
            _fill_tables(database, events, rank)
            database.commit()
    return file


_TABLES = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER,
  dstKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,
  correlationId INTEGER, nameId INTEGER, returnValue INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, rangeId INTEGER, category INTEGER,
  color INTEGER, text TEXT, globalTid INTEGER, endGlobalTid INTEGER, textId INTEGER, domainId INTEGER,
  jsonText TEXT, binaryData BLOB);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
"""


def _fill_tables(database: sqlite3.Connection, events: pl.DataFrame, rank: int) -> None:
    """Insert the events of a rank into the tables of an Nsight export."""
    pid = 1000 + rank
    process = pid << 24
    texts: dict[str, int] = {}

    def text(value: str) -> int:
        return texts.setdefault(value, len(texts) + 1)

    kernels, copies, calls = [], [], []
    ranges: list[tuple[Any, ...]] = [(0, None, 75, "NCCL", process | 100, 1, None)]
    for number, row in enumerate(events.iter_rows(named=True)):
        start, end = row["start_ns"] - EPOCH_NS, row["end_ns"] - EPOCH_NS
        thread = process | (row["tid"] or 0)
        common = (start, end, 0, 1, row["stream"], row["correlation"], process)
        if row["kind"] == "kernel":
            kernels.append((*common, text(row["name"]), text(row["name"])))
        elif row["kind"] == "memcpy":
            to_host = "DtoH" in row["name"]
            copies.append((*common, row["bytes"], 2 if to_host else 1, *((2, 1) if to_host else (1, 2))))
        elif row["kind"] == "runtime":
            calls.append((start, end, 0, thread, row["correlation"], text(f"{row['name']}_v7000"), 0))
        else:
            ranges.append((start, end, 59, _nvtx(row, number), thread, 0, None))
            if row["kind"] == "cpu_op" and row["collective"] in ("send", "recv"):
                ranges.append((start + 10, end - 10, 59, f"nccl{row['collective'].title()}", thread, 1, _payload(row)))
    rows_by_table: dict[str, Sequence[tuple[Any, ...]]] = {
        "CUPTI_ACTIVITY_KIND_KERNEL": kernels,
        "CUPTI_ACTIVITY_KIND_MEMCPY": copies,
        "CUPTI_ACTIVITY_KIND_RUNTIME": calls,
        "NVTX_EVENTS (start, end, eventType, text, globalTid, domainId, jsonText)": ranges,
        "StringIds": [(i, value) for value, i in texts.items()],
        "PROCESSES": [(process, pid, "python")],
        "TARGET_INFO_SESSION_START_TIME": [(EPOCH_NS,)],
        "TARGET_INFO_GPU": [(0, "Synthetic GPU")],
        "META_DATA_EXPORT": [(f"EXPORT_SCHEMA_VERSION_{part}", number) for part, number in SCHEMA_VERSION.items()],
    }
    for table, rows in rows_by_table.items():
        if rows:
            database.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows)


def _nvtx(row: dict[str, Any], number: int) -> str:
    """Return the text of the NVTX range that PyTorch emits for an operator or annotation."""
    if row["kind"] == "annotation":
        return str(row["name"])
    parts = [str(row["name"])]
    if row["sequence"] is not None:
        parts.append(f"seq = {row['sequence']}")
    parts.append(f"op_id = {number}")
    if row["shapes"]:
        parts.append(f"sizes = {json.dumps(json.loads(row['shapes']))}")
    return ", ".join(parts)


def _payload(row: dict[str, Any]) -> str | None:
    """Return the payload of NCCL's NVTX range; its peer is counted within the communicator."""
    if row["peer"] is None:
        return None
    peer = json.loads(row["group_ranks"]).index(row["peer"])
    return json.dumps(
        {"NCCL communicator ID": 7 + int(row["group"][2:]), "Message size [bytes]": 4_194_304, "Peer rank": peer}
    )


def write_run(
    recipe: Recipe, folder: str | os.PathLike[str], *, reader: str = "kineto", ranks: Iterable[int] | None = None
) -> list[Path]:
    """Write a run into *folder*, one rank after another, so that thousands of ranks take little memory.

    >>> import tempfile
    >>> from tracekit.schedules import generate
    >>> recipe = Recipe(generate("1f1b", pp=2, microbatches=2))
    >>> [file.name for file in write_run(recipe, tempfile.mkdtemp())]
    ['rank0.pt.trace.json.gz', 'rank1.pt.trace.json.gz']
    """
    write, ending = (write_nsys, "sqlite") if reader == "nsight" else (write_kineto, "pt.trace.json.gz")
    wanted = range(recipe.world_size) if ranks is None else ranks
    with output_folder(folder) as target:
        return [write(recipe, rank, target / f"rank{rank}.{ending}") for rank in wanted]


def sample_recipe() -> Recipe:
    """Return the recipe: 1F1B on four ranks whose third stage is slow, with transfers and a host that launches late.

    >>> sample_recipe().world_size
    4
    """
    plan = generate("1f1b", pp=4, microbatches=8)
    return Recipe(plan, p2p_ns=120_000, stage_factor={2: 1.25}, jitter=0.02, host_ns=60_000)


def write_sample(folder: str | os.PathLike[str]) -> list[Path]:
    """Write the sample run into *folder*, which must be empty or contain only an older sample.

    >>> import tempfile
    >>> len(write_sample(tempfile.mkdtemp()))
    4
    """
    target = Path(folder)
    wanted = {f"rank{rank}.pt.trace.json.gz" for rank in range(sample_recipe().world_size)} | {"report.html"}
    if target.exists() and (not target.is_dir() or any(file.name not in wanted for file in target.iterdir())):
        raise OutputError(f"{target}: already exists and contains other files", hint="name another folder with -o")
    return write_run(sample_recipe(), target)
