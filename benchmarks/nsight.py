"""Time to read an Nsight export into the events table, against pandas reading the same columns.

    python benchmarks/nsight.py [--kernels 5000000] [--launches] [--formats sqlite parquetdir
    arrowdir] [--keep FOLDER]

Makes exports with the tables and all columns that nsys writes, then reads them in fresh processes.
Seconds are the best of three runs, memory is the peak above what the imports take. Exits with 1 if
an sqlite export is not read at least 4 times faster than with ``pandas.read_sql``.
"""

from __future__ import annotations

import argparse
import contextlib
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
RUNTIME = [
    "start",
    "end",
    "eventClass",
    "globalTid",
    "correlationId",
    "nameId",
    "returnValue",
    "callchainId",
]
READ = {
    "CUPTI_ACTIVITY_KIND_KERNEL": [*KERNEL[:3], *KERNEL[5:9]],
    "CUPTI_ACTIVITY_KIND_RUNTIME": RUNTIME[:6],
}
"""Columns that tracekit and pandas read."""
MIN_SPEEDUP_OVER_PANDAS = 4
"""Required ratio of seconds, for sqlite."""
PID = 281526482763776
CHUNK = 500_000


def make(path: Path, kernels: int, launches: bool) -> None:
    """Write an export of *kernels* kernels on four streams, with their launches if asked."""
    rng = np.random.default_rng(0)
    names = [f"void library::kernel_{i}<float, {i}>(float*, const float*, int)" for i in range(200)]
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode=OFF")
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute(
        "CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)"
    )
    connection.executemany(
        "INSERT INTO StringIds VALUES (?, ?)", enumerate([*names, "cudaLaunchKernel_v7000"])
    )
    connection.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)")
    connection.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000)")
    for table, columns in (
        ("CUPTI_ACTIVITY_KIND_KERNEL", KERNEL),
        ("CUPTI_ACTIVITY_KIND_RUNTIME", RUNTIME),
    ):
        connection.execute(
            f"CREATE TABLE {table} ({', '.join(f'{name} INTEGER' for name in columns)})"
        )
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
        connection.executemany(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({marks})", zip(*columns, strict=True)
        )
        if launches:
            calls = [
                start - 3000,
                start - 1000,
                number * 0,
                number * 0 + PID + 3070,
                number + 1,
                number * 0 + 200,
            ]
            connection.executemany(
                "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?, ?, 0, NULL)",
                zip(*(c.tolist() for c in calls), strict=True),
            )
    connection.commit()
    connection.close()


def convert(path: Path, folder: Path) -> None:
    """Write the tables of a sqlite export as a folder of files, in the format that its name says."""
    import adbc_driver_sqlite.dbapi as adbc
    import pyarrow as pa
    from pyarrow import parquet

    folder.mkdir()
    with adbc.connect(str(path)) as connection, connection.cursor() as cursor:
        for name in ("StringIds", "TARGET_INFO_SESSION_START_TIME", *READ):
            cursor.execute(f"SELECT * FROM {name}")
            table = cursor.fetch_arrow_table()
            if folder.suffix == ".parquetdir":
                parquet.write_table(table, folder / f"{name}.parquet")
            else:
                with pa.ipc.new_file(folder / f"{name}.arrow", table.schema) as file:
                    file.write_table(table)


def size_of(path: Path) -> float:
    """Return the megabytes of a file, or of all files of a folder."""
    return (
        sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir())) / 2**20
    )


def with_tracekit(path: str) -> dict[str, float]:
    from tracekit.parsers import nsight

    # Imports and first use.
    nsight.read(Path(__file__).parent.parent / "sample_traces" / "nsys-1f1b" / "rank0.sqlite")
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

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, busy = time.perf_counter(), time.process_time()
    frames = [_pandas(pd, Path(path), table, columns) for table, columns in READ.items()]
    seconds, cpu = time.perf_counter() - began, time.process_time() - busy
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    table = sum(frame.memory_usage().sum() for frame in frames)
    rows = sum(len(frame) for frame in frames)
    return {
        "seconds": seconds,
        "cpu": cpu,
        "rows": rows,
        "peak_mb": peak / 1024,
        "table_mb": table / 2**20,
    }


def _pandas(pd, path: Path, table: str, columns: list[str]):
    if path.suffix == ".parquetdir":
        return pd.read_parquet(path / f"{table}.parquet", columns=columns)
    if path.suffix == ".arrowdir":
        return pd.read_feather(path / f"{table}.arrow", columns=columns)
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        return pd.read_sql(f"SELECT {', '.join(columns)} FROM {table}", connection)


def measure(reader: str, path: Path, times: int) -> dict[str, float]:
    """Read *path* in fresh processes and return the fastest run."""
    runs = []
    for _ in range(times):
        process = subprocess.run(
            [sys.executable, __file__, "--task", reader, "--keep", str(path)],
            capture_output=True,
            check=True,
        )
        runs.append(json.loads(process.stdout))
    return min(runs, key=lambda run: run["seconds"])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kernels", type=int, default=5_000_000)
    parser.add_argument("--launches", action="store_true", help="with an API call for each kernel")
    parser.add_argument("--formats", nargs="+", default=["sqlite", "parquetdir", "arrowdir"])
    parser.add_argument(
        "--keep", type=Path, help="write the exports here and keep them; read them if they exist"
    )
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--task", choices=["make", "convert", "tracekit", "pandas"], help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.task == "make":
        make(options.keep, options.kernels, options.launches)
    elif options.task == "convert":
        convert(options.keep.with_suffix(".sqlite"), options.keep)
    elif options.task:
        print(
            json.dumps(
                {"tracekit": with_tracekit, "pandas": with_pandas}[options.task](str(options.keep))
            )
        )
    else:
        with tempfile.TemporaryDirectory() as folder:
            return compare(options, options.keep or Path(folder))
    return 0


def compare(options: argparse.Namespace, folder: Path) -> int:
    """Make the exports that do not exist yet, print the times for each format, and return the exit code."""
    size = ["--kernels", str(options.kernels), *(["--launches"] if options.launches else [])]
    speedups = {}
    for suffix in dict.fromkeys(["sqlite", *options.formats]):
        path = folder / f"report.{suffix}"
        if not path.exists():
            # In a process of its own: the peak memory of a process counts as its children's.
            task = ["--task", "make", *size] if suffix == "sqlite" else ["--task", "convert"]
            subprocess.run([sys.executable, __file__, "--keep", str(path), *task], check=True)
        if suffix in options.formats:
            speedups[suffix] = show(path, options.repeat)
    return 0 if speedups.get("sqlite", MIN_SPEEDUP_OVER_PANDAS) >= MIN_SPEEDUP_OVER_PANDAS else 1


def show(path: Path, repeat: int) -> float:
    """Print times and memory of both readers, and return how many times faster tracekit is."""
    print(f"{size_of(path):,.0f} MB of {path.suffix[1:]}")
    runs = {"tracekit": measure("tracekit", path, repeat), "pandas": measure("pandas", path, 1)}
    for name, run in runs.items():
        print(
            f"{name:16} {run['seconds']:6.2f} s, {run['cpu']:6.2f} s of CPU  {run['rows']:,} rows  "
            f"peak {run['peak_mb']:,.0f} MB  table {run['table_mb']:,.0f} MB  "
            f"peak/table {run['peak_mb'] / run['table_mb']:.2f}"
        )
    seconds_ratio, cpu_ratio = (
        runs["pandas"][unit] / runs["tracekit"][unit] for unit in ("seconds", "cpu")
    )
    print(f"pandas / tracekit: {seconds_ratio:.1f} in seconds, {cpu_ratio:.1f} in CPU seconds")
    return seconds_ratio


if __name__ == "__main__":
    sys.exit(main())
