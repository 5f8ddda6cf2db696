"""CPU time of short commands: help, a small trace for the second time, the page of the demo.

    python benchmarks/look.py [--repeat 5]

Every command runs in a fresh process and is measured from its start to its end, with its workers;
the least of the repeats counts. Beside the seconds stands how often one could have started Python
and imported numpy and polars, which says more than seconds do on a machine that is shared.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SAMPLES = Path(__file__).parent.parent / "sample_traces"
TRACEKIT = ["-c", "from tracekit.cli import main; main()"]


def looks(folder):
    """Return the commands by name, each as the words after Python's."""
    return {
        "Python alone": ["-c", ""],
        "numpy and polars imported": ["-c", "import numpy, polars"],
        "`tracekit --help`": [*TRACEKIT, "--help"],
        "`tracekit analyze recompute --brief`, one rank": [
            *TRACEKIT,
            "analyze",
            str(SAMPLES / "recompute"),
            "--brief",
        ],
        "`tracekit analyze 1f1b`, four ranks": [*TRACEKIT, "analyze", str(SAMPLES / "1f1b")],
        "`tracekit demo`": [*TRACEKIT, "demo", "-o", str(folder / "demo")],
    }


def measured(words):
    """Run one command; return its CPU seconds, its workers' too, and its seconds on the clock."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, *words], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    took, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, took


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--repeat", type=int, default=5)
    repeat = options.parse_args().repeat
    best = {}
    for turn in range(repeat + 1):
        with tempfile.TemporaryDirectory(prefix="tracekit-look-") as folder:
            for name, words in looks(Path(folder)).items():
                found = measured(words)
                if turn:  # the first time compiles, and fills the file caches
                    best[name] = tuple(map(min, best.get(name, found), found))
    imports = best["numpy and polars imported"][0]
    print("| look | CPU seconds | imports of numpy and polars | seconds |\n|---|--:|--:|--:|")
    for name, (cpu, took) in best.items():
        print(f"| {name} | {cpu:.2f} | {cpu / imports:.1f} × | {took:.2f} |")


if __name__ == "__main__":
    main()
