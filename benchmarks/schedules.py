"""Time to generate, simulate and draw schedules.

python benchmarks/schedules.py
"""

import argparse
import tempfile
import time
from pathlib import Path

from tracekit.pipeline.schedules import generate, simulate
from tracekit.report.schedule.write import write_schedule

NAMES = (
    "1f1b",
    "interleaved",
    "interleaved-overlap",
    "interleaved-zb",
    "zb-v",
    "chimera",
    "dualpipe",
    "dualpipev",
)
RANKS = 64
HEADS = (
    ("micro-batches", 13),
    ("cells", 8),
    ("generate", 9),
    ("simulate", 9),
    ("replay", 7),
    ("µs/cell", 8),
)


def timed(work):
    """What *work* returns, and its processor seconds."""
    began = time.process_time()
    result = work()
    return result, time.process_time() - began


def everything(done):
    return done.makespan, done.bubble, done.peak_activations, done.idle_by_phase, done.cells


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(f"{RANKS} ranks, processor seconds")
    heads = "".join(f" {head:>{width}}" for head, width in HEADS)
    print(f"{'schedule':<20}{heads}")
    for name in NAMES:
        for microbatches in (256, 512, 1024):
            plan, generating = timed(
                lambda n=name, m=microbatches: generate(n, pp=RANKS, microbatches=m)
            )
            done, simulating = timed(lambda p=plan: simulate(p))
            _, reading = timed(lambda d=done: everything(d))
            _, replaying = timed(lambda p=plan: simulate(p))
            cells, total = len(done.start), simulating + reading
            numbers = f"{cells:>8} {generating:>9.2f} {total:>9.2f} {replaying:>7.2f} {total / cells * 1e6:>8.2f}"
            print(f"{name:<20} {microbatches:>13} {numbers}")
    with tempfile.TemporaryDirectory() as folder:
        large = simulate(generate("interleaved-overlap", pp=RANKS, microbatches=256))
        for kind in ("svg", "png", "html", "json", "trace.json"):
            _, drawing = timed(lambda k=kind: write_schedule(large, Path(folder) / f"x.{k}"))
            print(f"write {RANKS} × 256 × 2 as .{kind:<11} {drawing:>6.2f} s")


if __name__ == "__main__":
    main()
