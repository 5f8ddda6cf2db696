"""Small Nsight exports, built table by table as each version of the exporter writes them."""

from __future__ import annotations

import sqlite3
from contextlib import closing

VERSIONS = (
    "none",
    "2.9.1",
    "3.0.0",
    "3.7.2",
    "3.11.1",
    "3.13.2",
    "3.20.3",
    "3.24.14",
    "3.25.0",
    "3.28.1",
)
EPOCH = 1_700_000_000_000_000_000
NONE = 4294967295  # how the exporter writes "no stream"


def packed(pid, tid=0, machine=1):
    """A global id as the exporter packs it: machine, VM, pid, thread.

    Signed, as sqlite holds it.
    """
    value = machine << 56 | 1 << 48 | pid << 24 | tid
    return value - (1 << 64) if value >= 1 << 63 else value


def _since(version, first):
    return version != "none" and tuple(map(int, version.split("."))) >= first


def columns(version):
    """Which tables and columns a version writes (those that matter to a reader, and some that do not)."""
    gpu = "start end deviceId contextId streamId correlationId globalPid"
    if _since(version, (3, 11)):
        gpu += " greenContextId"
    tables = {
        "StringIds": "id value",
        "CUPTI_ACTIVITY_KIND_KERNEL": f"{gpu} demangledName shortName mangledName gridX registersPerThread graphNodeId",
        "CUPTI_ACTIVITY_KIND_MEMCPY": f"{gpu} bytes copyKind srcKind dstKind graphNodeId",
        "CUPTI_ACTIVITY_KIND_MEMSET": f"{gpu} value bytes graphNodeId memKind",
        "CUPTI_ACTIVITY_KIND_RUNTIME": "start end eventClass globalTid correlationId nameId returnValue callchainId",
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{gpu} syncType eventId",
        "NVTX_EVENTS": "start end eventType rangeId color text globalTid endGlobalTid textId domainId jsonText",
        "PROCESSES": "globalPid pid name",
        "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime localTime",
        "TARGET_INFO_GPU": "id name cuDevice",
        "TARGET_INFO_SYSTEM_ENV": "name value",
        "ProcessStreams": "globalPid filenameId contentId",
    }
    if _since(version, (2, 9)):
        tables["ANALYSIS_DETAILS"] = "globalVid duration startTime stopTime"
        tables["TARGET_INFO_CUDA_DEVICE"] = "gpuId cudaId pid"
        tables["EXPORT_META_DATA" if version.startswith("2.") else "META_DATA_EXPORT"] = (
            "name value"
        )
    if _since(version, (3, 0)):
        tables["META_DATA_CAPTURE"] = "name value"
        tables["CUPTI_ACTIVITY_KIND_GRAPH_TRACE"] = f"{gpu} graphId graphExecId"
    if _since(version, (3, 7)):
        tables["NVTX_EVENTS"] += " jsonTextId binaryData"
        tables["NVTX_PAYLOAD_SCHEMAS"] = (
            "domainId schemaId name type flags numEntries payloadSize alignTo"
        )
        tables["NVTX_PAYLOAD_SCHEMA_ENTRIES"] = (
            "domainId schemaId idx flags type name description offset"
        )
        tables["DIAGNOSTIC_EVENT"] = "timestamp timestampType source severity text globalPid"
    if _since(version, (3, 24)):
        tables["CUPTI_ACTIVITY_KIND_KERNEL"] += " graphId clusterX"
        tables["TARGET_INFO_SESSION_START_TIME"] += " systemClockNs"
    return {table: names.split() for table, names in tables.items()}


class Report:
    """Rows as a program would have caused them; ``save`` writes the tables."""

    def __init__(self):
        self.rows = {"TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": EPOCH, "utcTime": "then"}]}
        self.strings = {}
        self.add("TARGET_INFO_GPU", id=0, name="NVIDIA Toy", cuDevice=0)
        self.add("ANALYSIS_DETAILS", duration=1000)

    def add(self, table, **row):
        self.rows.setdefault(table, []).append(row)
        return self

    def string(self, text):
        return self.strings.setdefault(text, len(self.strings) + 10)

    def kernel(
        self, name, start, end, *, corr=None, pid=100, device=0, stream=7, machine=1, **more
    ):
        row = {
            "correlationId": corr,
            "globalPid": packed(pid, machine=machine),
            "deviceId": device,
            "streamId": stream,
        }
        names = {
            "demangledName": self.string(name),
            "shortName": self.string(name),
            "mangledName": self.string("_Z" + name),
        }
        return self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=end, **row, **{**names, **more}
        )

    def copy(
        self,
        start,
        end,
        *,
        kind,
        src=None,
        dst=None,
        corr=None,
        pid=100,
        device=0,
        stream=8,
        size=64,
    ):
        row = {
            "correlationId": corr,
            "globalPid": packed(pid),
            "deviceId": device,
            "streamId": stream,
            "bytes": size,
        }
        return self.add(
            "CUPTI_ACTIVITY_KIND_MEMCPY",
            start=start,
            end=end,
            copyKind=kind,
            srcKind=src,
            dstKind=dst,
            **row,
        )

    def memset(self, start, end, *, memory=2, corr=None, pid=100, device=0):
        row = {
            "correlationId": corr,
            "globalPid": packed(pid),
            "deviceId": device,
            "streamId": 7,
            "bytes": 4,
        }
        return self.add("CUPTI_ACTIVITY_KIND_MEMSET", start=start, end=end, memKind=memory, **row)

    def graph(self, start, end, *, corr=None, pid=100, graph=5):
        row = {
            "correlationId": corr,
            "globalPid": packed(pid),
            "deviceId": 0,
            "streamId": 7,
            "graphId": graph,
        }
        return self.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=start, end=end, **row)

    def call(self, name, start, end, *, corr=None, pid=100, tid=1, driver=0, machine=1):
        row = {
            "globalTid": packed(pid, tid, machine),
            "correlationId": corr,
            "nameId": self.string(name),
        }
        return self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, eventClass=driver, **row
        )

    def range(
        self, text, start, end, *, pid=100, tid=1, domain=0, kind=59, registered=False, **more
    ):
        text_columns = {"textId": self.string(text)} if registered else {"text": text}
        row = {"globalTid": packed(pid, tid), "domainId": domain, "eventType": kind}
        return self.add("NVTX_EVENTS", start=start, end=end, **row, **text_columns, **more)

    def mark(self, text, at, **more):
        return self.range(text, at, None, kind=34, **more)

    def domain(self, name, number, *, pid=100):
        return self.range(name, 0, None, pid=pid, domain=number, kind=75)

    def save(self, path, version="3.20.3", *, without=(), reverse=False):
        """Write the file as *version* does; *without* drops tables ("T") or columns ("T.c")."""
        meta = "EXPORT_META_DATA" if version.startswith("2.") else "META_DATA_EXPORT"
        rows = {
            **self.rows,
            "StringIds": [{"id": i, "value": text} for text, i in self.strings.items()],
        }
        rows[meta] = [
            {"name": "EXPORT_PRODUCT_VERSION", "value": "2099.1"},
            {"name": "EXPORT_SCHEMA_VERSION", "value": version},
            {"name": "EXPORT_PARAM_INPUT_FILE", "value": "SECRET-input"},
            *self.rows.get(meta, []),
        ]
        with closing(sqlite3.connect(path)) as connection, connection:
            for table, names in columns(version).items():
                if table in without:
                    continue
                kept = [name for name in names if f"{table}.{name}" not in without]
                connection.execute(f'CREATE TABLE "{table}" ({", ".join(map(_declare, kept))})')
                marks = ", ".join("?" * len(kept))
                data = [[row.get(name) for name in kept] for row in rows.get(table, [])]
                connection.executemany(
                    f'INSERT INTO "{table}" VALUES ({marks})', data[::-1] if reverse else data
                )
        return path


def _declare(name):
    text = (
        "text",
        "value",
        "name",
        "jsonText",
        "binaryData",
        "utcTime",
        "localTime",
        "description",
    )
    return f'"{name}" {"TEXT" if name in text else "INTEGER"}'


def training(report=None):
    """A forward and a backward op with a kernel each, a copy and a memset: what every version can say."""
    report = report or Report()
    report.range("aten::mm, seq = 5, op_id = 1, sizes = [[2, 3], [3, 4]]", 10, 20, tid=1)
    report.call("cudaLaunchKernel_v7000", 12, 14, corr=1, tid=1).kernel("gemm_f", 30, 40, corr=1)
    report.range("autograd::engine::evaluate_function: MmBackward0, op_id = 2", 50, 70, tid=2)
    report.range("MmBackward0, seq = 5, op_id = 3, sizes = [[2, 4]]", 51, 69, tid=2)
    report.call("cuLaunchKernelEx", 55, 56, corr=2, tid=2, driver=1).kernel(
        "gemm_b", 60, 75, corr=2
    )
    report.call("cudaMemcpyAsync_v3020", 71, 72, corr=3).copy(80, 90, kind=2, src=2, dst=1, corr=3)
    report.call("cudaMemsetAsync_ptsz_v7000", 73, 74, corr=4).memset(95, 96, corr=4)
    return report
