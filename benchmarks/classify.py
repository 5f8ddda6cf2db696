"""Time of labelling compared with parsing: a real trace, repeated, read and labelled in one run.

    python benchmarks/classify.py                      # 812 MB of the sample
    python benchmarks/classify.py --megabytes 400 --trace my.pt.trace.json.gz

Sizes double, so that a cost that grows faster than the trace would show. Prints what a rank of the
sample costs, a table, and exits 1 if labelling the largest took longer than parsing it, by the
clock and by CPU time.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from inputs import SAMPLE, make

from tracekit.classify import classify
from tracekit.parsers import kineto


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    clock, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - clock, time.process_time() - cpu


def measure(path: Path, runs: int) -> dict[str, float]:
    """The best of several runs of each, taken in turns: on a shared machine it is the one least disturbed."""
    best: dict[str, float] = {}
    for _ in range(runs):
        events, clock, cpu = timed(lambda: kineto.read(path).events)
        labelled, label_clock, label_cpu = timed(lambda table=events: classify(table))
        taken = {"parse": clock, "parse_cpu": cpu, "label": label_clock, "label_cpu": label_cpu}
        best = {key: min(value, best.get(key, value)) for key, value in taken.items()}
    return best | {"events": len(events), "gpu": len(labelled)}


def small(runs: int) -> tuple[float, float]:
    """CPU milliseconds that labelling a small rank takes: the first in a process, and the best of those after it."""
    events = kineto.read(SAMPLE).events
    taken = [timed(lambda: classify(events))[2] * 1e3 for _ in range(runs + 1)]
    return taken[0], min(taken[1:])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=812)
    parser.add_argument("--trace", type=Path, default=SAMPLE)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args()
    first, later = small(20)  # this also loads what is compiled
    print(
        f"the sample, CPU ms: {first:.0f} for the first rank of a process, {later:.0f} for each after it\n"
    )
    print(
        "| MB | events | on the GPU | parse s (CPU) | label s (CPU) | label / parse (CPU) | peak MB |"
    )
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for share in (4, 2, 1):
            path = Path(folder) / "trace.json"
            make(path, args.megabytes // share, args.trace)
            m = measure(path, args.runs)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            ratios = m["label"] / m["parse"], m["label_cpu"] / m["parse_cpu"]
            print(
                f"| {path.stat().st_size / 1e6:.0f} | {m['events']:,} | {m['gpu']:,}"
                f" | {m['parse']:.2f} ({m['parse_cpu']:.2f}) | {m['label']:.2f} ({m['label_cpu']:.2f})"
                f" | {ratios[0]:.2f} ({ratios[1]:.2f}) | {peak} |",
                flush=True,
            )
    sys.exit(1 if min(ratios) > 1 else 0)


if __name__ == "__main__":
    main()
