"""Throughput of reading a PyTorch trace into a table, compared with other libraries in one run.

    python benchmarks/parse.py                                  # tracekit and json.loads
    python -m venv /tmp/hta && /tmp/hta/bin/pip install traceinsight
    python benchmarks/parse.py --hta /tmp/hta/bin/python        # HTA's loader too (minutes, 4 GB)

Every measurement is a process of its own, so that memory is its own too. Times leave out imports
unless the row says "from start". The best of several runs counts: on a shared machine it is the one
least disturbed.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from inputs import SAMPLE, make

TAIL = """
import json, resource
used = resource.getrusage(resource.RUSAGE_SELF)
cpu = used.ru_utime + used.ru_stime - before
print(json.dumps({"seconds": seconds, "cpu": cpu, "rss": used.ru_maxrss * 1024, "rows": rows}))
"""
CHILDREN = {
    "tracekit": """
import sys, time
from tracekit.parsers import kineto
from tracekit.parsers.kineto import table
start, before = time.perf_counter(), time.process_time()
rows = kineto.read(sys.argv[1]).events.height
seconds = time.perf_counter() - start
""",
    "json": """
import json, sys, time
raw = open(sys.argv[1], "rb").read()
start, before = time.perf_counter(), time.process_time()
rows = len(json.loads(raw)["traceEvents"])
seconds = time.perf_counter() - start
""",
    "hta": """
import sys, time
from hta.common.trace_parser import parse_trace_dataframe
from hta.configs.parser_config import ParserConfig
start, before = time.perf_counter(), time.process_time()
rows = len(parse_trace_dataframe(sys.argv[1], ParserConfig.get_default_cfg())[1])
seconds = time.perf_counter() - start
""",
}


def measure(which, path, *, runs=1, python=sys.executable):
    """The best of *runs* processes: seconds, peak memory, rows."""
    best = None
    for _ in range(runs):
        done = subprocess.run(
            [python, "-W", "ignore", "-c", CHILDREN[which] + TAIL, str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{which} failed on {path}:\n{done.stderr[-2000:]}")
        result = json.loads(done.stdout.splitlines()[-1])
        if best is None or result["seconds"] < best["seconds"]:
            best = {**result, "rss": max(result["rss"], best["rss"] if best else 0)}
    return best


def from_start(path, *, runs=3):
    """Wall time of a whole process that loads *path*, imports and all."""
    code = "import sys; from tracekit.parsers import kineto; kineto.read(sys.argv[1])"
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code, str(path)], check=True)
        times.append(time.perf_counter() - start)
    return min(times)


def bar(name, value, limit, *, least=False, unit=""):
    met = value >= limit if least else value <= limit
    sign = "≥" if least else "≤"
    print(f"| {name} | {value:.2f}{unit} | {sign} {limit}{unit} | {'yes' if met else 'NO'} |")
    return met


def run(folder, args):
    big, packed, middle, small = (
        folder / n for n in ("big.json", "big.json.gz", "middle.json", "small.json")
    )
    make(big, args.megabytes, args.trace)
    make(middle, 50, args.trace)
    make(small, 1, folder / "reload.json")
    # As hard as PyTorch's profiler packs its own.
    with (
        big.open("rb") as source,
        gzip.open(packed, "wb") as target,
    ):
        shutil.copyfileobj(source, target, 1 << 20)
    size = big.stat().st_size
    plain = measure("tracekit", big, runs=args.runs)
    zipped = measure("tracekit", packed, runs=args.runs)
    medium = measure("tracekit", middle, runs=args.runs)
    loads = measure("json", big)
    # Before and after, so that a busy spell does not decide.
    again = measure("tracekit", big, runs=args.runs)
    plain = min(plain, again, key=lambda r: r["seconds"])
    hta = measure("hta", big, python=args.hta) if args.hta else None
    if hta:
        plain = min(plain, measure("tracekit", big, runs=args.runs), key=lambda r: r["seconds"])
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{machine}; {size / 1e6:.0f} MB of JSON\n")
    print("| way | seconds | CPU seconds | peak MB | rows |\n|---|---|---|---|---|")
    ways = {
        "tracekit": plain,
        "tracekit, .json.gz": zipped,
        "tracekit, 50 MB": medium,
        "json.loads": loads,
        "HTA": hta,
    }
    for name, result in ways.items():
        if result:
            times = f"{result['seconds']:.2f} | {result['cpu']:.2f}"
            print(f"| {name} | {times} | {result['rss'] / 1e6:.0f} | {result['rows']} |")
    print("\n| bar | measured | limit | met |\n|---|---|---|---|")
    met = [
        bar("peak memory / size of the JSON", plain["rss"] / size, 0.8),
        bar(".json.gz / plain", zipped["seconds"] / plain["seconds"], 1.25),
        bar("50 MB after import", medium["seconds"], 0.3, unit=" s"),
        bar("json.loads / tracekit", loads["seconds"] / plain["seconds"], 15, least=True),
        bar("1 MB from process start", from_start(small), 1, unit=" s"),
    ]
    if hta:
        met.append(bar("HTA / tracekit", hta["seconds"] / plain["seconds"], 40, least=True))
    return all(met)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=800)
    parser.add_argument("--trace", type=Path, default=SAMPLE, help="the real trace to repeat")
    parser.add_argument("--hta", help="a Python that has traceinsight")
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "reload.json"
        copy.write_bytes(
            gzip.decompress((SAMPLE.parent.parent / "reload/rank0.pt.trace.json.gz").read_bytes())
        )
        raise SystemExit(0 if run(Path(folder), args) else 1)


if __name__ == "__main__":
    main()
