"""CPU seconds and peak memory of ``analyze`` and ``ingest`` relative to ``load``.

    python benchmarks/whole.py [--trace TRACE] [--megabytes 250 812] [--repeat 3] [--only analyze]

Inputs are made by repeating a trace (``inputs.py``), without ``--trace`` the slimmed sample. Every
command runs in a process of its own, imports and all, and the least of the repeats counts; the
first round, which warms up, does not.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from inputs import SAMPLE, make

CLI = "from tracekit.cli import main; main()"
MAX_CPU_OVER_LOAD = {"analyze": 2.2, "ingest": 2.5}
MAX_PEAK_OVER_JSON = 1.2


def commands(trace, store):
    """Return the commands by name, each as the words after Python's."""
    return {
        "load": ["-c", "import sys, tracekit; tracekit.load(sys.argv[1])", trace],
        "analyze": ["-c", CLI, "analyze", trace],
        "ingest": ["-c", CLI, "ingest", trace, "-o", store],
    }


def measured(words):
    """Run one command; return its processor seconds and its peak memory in MB."""
    # Compiled modules are kept, as in an installation: else each process compiles the package again.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    child = subprocess.Popen(
        [sys.executable, *words],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(words[2:])}: exit code {child.returncode}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss * (
        1024 if sys.platform == "linux" else 1
    ) / 1e6


def least(trace, folder, repeat, only):
    """Return the least processor seconds and peak of each command."""
    best = {}
    for turn in range(repeat + 1):
        store = folder / "store"
        for name, words in commands(str(trace), str(store)).items():
            if name == "load" or name in only:
                found = measured(words)
                if turn:
                    best[name] = tuple(map(min, best.get(name, found), found))
        shutil.rmtree(store, ignore_errors=True)
    return best


def main():
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--trace", type=Path, default=SAMPLE)
    options.add_argument("--megabytes", type=int, nargs="+", default=[250, 812])
    options.add_argument("--repeat", type=int, default=3)
    options.add_argument(
        "--only", nargs="+", choices=list(MAX_CPU_OVER_LOAD), default=list(MAX_CPU_OVER_LOAD)
    )
    args = options.parse_args()
    print(
        "| MB | command | CPU s | over `load` | peak MB | of the JSON |\n|--:|---|--:|--:|--:|--:|"
    )
    missed = []
    for megabytes in args.megabytes:
        with tempfile.TemporaryDirectory(prefix="tracekit-whole-") as folder:
            trace = Path(folder) / "trace.json"
            make(trace, megabytes, args.trace)
            size = trace.stat().st_size / 1e6
            best = least(trace, Path(folder), args.repeat, args.only)
            for name, (cpu, peak) in best.items():
                ratio = cpu / best["load"][0]
                print(
                    f"| {size:.0f} | `{name}` | {cpu:.2f} | {ratio:.2f} | {peak:.0f} | {peak / size:.2f} |",
                    flush=True,
                )
                if name in MAX_CPU_OVER_LOAD and (
                    ratio > MAX_CPU_OVER_LOAD[name] or peak > MAX_PEAK_OVER_JSON * size
                ):
                    missed.append(f"{name} on {size:.0f} MB")
    if missed:
        raise SystemExit(f"bars missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
