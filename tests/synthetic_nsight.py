"""Synthetic runs as Nsight Systems SQLite exports."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl

from tracekit.synthetic import EPOCH_NS, Recipe, rank_events

SCHEMA_VERSION = {"MAJOR": "3", "MINOR": "20", "MICRO": "3"}
"""Version of the tables of Nsight exports that is written."""


def write_nsys(recipe: Recipe, rank: int, path: Path) -> Path:
    """Write one rank as an Nsight Systems SQLite export."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript(TABLES)
        _fill_tables(database, rank_events(recipe, rank), rank)
        database.commit()
    return path


TABLES = """
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
            copies.append(
                (*common, row["bytes"], 2 if to_host else 1, *((2, 1) if to_host else (1, 2)))
            )
        elif row["kind"] == "runtime":
            calls.append(
                (start, end, 0, thread, row["correlation"], text(f"{row['name']}_v7000"), 0)
            )
        else:
            ranges.append((start, end, 59, _nvtx(row, number), thread, 0, None))
            if row["kind"] == "cpu_op" and row["collective"] in ("send", "recv"):
                ranges.append(
                    (
                        start + 10,
                        end - 10,
                        59,
                        f"nccl{row['collective'].title()}",
                        thread,
                        1,
                        _payload(row),
                    )
                )
    rows_by_table: dict[str, Sequence[tuple[Any, ...]]] = {
        "CUPTI_ACTIVITY_KIND_KERNEL": kernels,
        "CUPTI_ACTIVITY_KIND_MEMCPY": copies,
        "CUPTI_ACTIVITY_KIND_RUNTIME": calls,
        "NVTX_EVENTS (start, end, eventType, text, globalTid, domainId, jsonText)": ranges,
        "StringIds": [(i, value) for value, i in texts.items()],
        "PROCESSES": [(process, pid, "python")],
        "TARGET_INFO_SESSION_START_TIME": [(EPOCH_NS,)],
        "TARGET_INFO_GPU": [(0, "Synthetic GPU")],
        "META_DATA_EXPORT": [
            (f"EXPORT_SCHEMA_VERSION_{level}", number) for level, number in SCHEMA_VERSION.items()
        ],
    }
    for table, rows in rows_by_table.items():
        if rows:
            database.executemany(
                f"INSERT INTO {table} VALUES ({','.join('?' * len(rows[0]))})", rows
            )


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
        {
            "NCCL communicator ID": 7 + int(row["group"][2:]),
            "Message size [bytes]": 4_194_304,
            "Peer rank": peer,
        }
    )
