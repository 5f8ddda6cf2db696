"""How fast an Nsight sqlite export becomes the events table, beside pandas.read_sql of the same columns.

    python benchmarks/nsight.py [--kernels 5000000] [--launches] [--keep FILE]

Makes an export with the tables and all columns that nsys writes, then reads it in fresh processes: seconds are the
best of three, memory is the peak above what the imports take.
"""

from __future__ import annotations

import argparse
import json
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

KERNEL = """
    start end deviceId contextId greenContextId streamId correlationId globalPid demangledName shortName mangledName
    launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory
    dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted graphNodeId
    sharedMemoryLimitConfig
""".split()  # noqa: SIM905
RUNTIME = ["start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue", "callchainId"]
READ = {
    "CUPTI_ACTIVITY_KIND_KERNEL": [*KERNEL[:3], *KERNEL[5:9]],
    "CUPTI_ACTIVITY_KIND_RUNTIME": RUNTIME[:6],
}
"""The columns that both ways read."""
PID = 281526482763776
CHUNK = 500_000


def make(path: Path, kernels: int, launches: bool) -> None:
    """Write an export of *kernels* kernels on four streams, with their launches if asked."""
    rng = np.random.default_rng(0)
    names = [f"void library::kernel_{i}<float, {i}>(float*, const float*, int)" for i in range(200)]
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=OFF")
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", enumerate([*names, "cudaLaunchKernel_v7000"]))
    connection.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)")
    connection.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000)")
    for table, columns in (("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL), ("CUPTI_ACTIVITY_KIND_RUNTIME", RUNTIME)):
        connection.execute(f"CREATE TABLE {table} ({', '.join(f'{name} INTEGER' for name in columns)})")
    for first in range(0, kernels, CHUNK):
        count = min(CHUNK, kernels - first)
        number = np.arange(first, first + count)
        start = number * 5000 + rng.integers(0, 20000, count)
        filler = {name: np.full(count, 1) for name in KERNEL}
        kernel = filler | {
            "start": start,
            "end": start + rng.integers(1000, 20000, count),
            "deviceId": np.zeros(count, int),
            "streamId": 7 + number % 4,
            "correlationId": number + 1,
            "globalPid": np.full(count, PID),
            "demangledName": rng.integers(0, 200, count),
            "gridId": number,
            "localMemoryTotal": np.full(count, 60817408),
        }
        columns = [kernel[name].tolist() for name in KERNEL]
        columns[KERNEL.index("graphNodeId")] = [None] * count
        marks = ", ".join("?" * len(KERNEL))
        connection.executemany(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks})", zip(*columns, strict=True))
        if launches:
            calls = [start - 3000, start - 1000, number * 0, number * 0 + PID + 3070, number + 1, number * 0 + 200]
            connection.executemany(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?, 0, NULL)",
                zip(*(c.tolist() for c in calls), strict=True),
            )
    connection.commit()
    connection.close()


def with_tracekit(path: str) -> dict[str, float]:
    from tracekit.parsers import nsight

    nsight.read(Path(__file__).parent.parent / "sample_traces" / "nsys-1f1b" / "rank0.sqlite")  # imports and first use
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, busy = time.perf_counter(), time.process_time()
    (rank,) = nsight.read(path)
    seconds, cpu = time.perf_counter() - began, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    table = rank.events.estimated_size()
    return {
        "seconds": seconds,
        "cpu": cpu,
        "rows": rank.events.height,
        "peak_mb": peak / 1024,
        "table_mb": table / 2**20,
    }


def with_pandas(path: str) -> dict[str, float]:
    import pandas as pd

    began, busy = time.perf_counter(), time.process_time()
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    frames = [pd.read_sql(f"SELECT {', '.join(columns)} FROM {table}", connection) for table, columns in READ.items()]
    seconds, cpu = time.perf_counter() - began, time.process_time() - busy
    connection.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    table = sum(frame.memory_usage().sum() for frame in frames)
    rows = sum(len(frame) for frame in frames)
    return {"seconds": seconds, "cpu": cpu, "rows": rows, "peak_mb": peak / 1024, "table_mb": table / 2**20}


def measure(way: str, path: Path, times: int) -> dict[str, float]:
    """Run fresh processes and keep the best."""
    runs = []
    for _ in range(times):
        done = subprocess.run(
            [sys.executable, __file__, "--way", way, "--keep", str(path)], capture_output=True, check=True
        )
        runs.append(json.loads(done.stdout))
    return min(runs, key=lambda run: run["seconds"])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--kernels", type=int, default=5_000_000)
    options.add_argument("--launches", action="store_true", help="with an API call for each kernel")
    options.add_argument("--keep", type=Path, help="write the export here and keep it; read it if it is there")
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument("--way", choices=["make", "tracekit", "pandas"], help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.way == "make":
        make(chosen.keep, chosen.kernels, chosen.launches)
        return
    if chosen.way:
        print(json.dumps({"tracekit": with_tracekit, "pandas": with_pandas}[chosen.way](str(chosen.keep))))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = chosen.keep or Path(folder) / "report.sqlite"
        if not path.exists():
            # In a process of its own: what a parent once held counts as its children's peak.
            size = ["--kernels", str(chosen.kernels), *(["--launches"] if chosen.launches else [])]
            subprocess.run([sys.executable, __file__, "--way", "make", "--keep", str(path), *size], check=True)
        print(f"{path.stat().st_size / 2**20:,.0f} MB of sqlite")
        ours = measure("tracekit", path, chosen.repeat)
        theirs = measure("pandas", path, 1)
    for name, run in (("tracekit", ours), ("pandas.read_sql", theirs)):
        print(
            f"{name:16} {run['seconds']:6.2f} s, {run['cpu']:6.2f} s of CPU  {run['rows']:,} rows  "
            f"peak {run['peak_mb']:,.0f} MB  table {run['table_mb']:,.0f} MB  "
            f"peak/table {run['peak_mb'] / run['table_mb']:.2f}"
        )
    faster, lighter = (theirs[what] / ours[what] for what in ("seconds", "cpu"))
    print(f"{faster:.1f} times faster, on {lighter:.1f} times less CPU")


if __name__ == "__main__":
    main()
