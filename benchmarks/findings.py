"""Cost of findings: their share of the CPU time of an analysis.

    python benchmarks/findings.py [TRACES…]

Each run is analysed in one process, a few times, and the CPU time is counted; the least counts. What
only findings need is timed where it is called: the host's activities and the operators that move
memory, which every rank measures, and the findings themselves with the changes that they predict. The
rest is the analysis without them. Exits 1 if findings add more than 10 %.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from tracekit.analysis.measure import tables
from tracekit.run.analyze import analyze

MAX_ADDED_SHARE = 0.10
"""CPU time of findings over that of the analysis without them."""
SAMPLES = ("rates", "slow-ddp", "1f1b", "megatron-moe", "interleaved")
ONLY_FOR_FINDINGS = ("measure_host_time", "find_memory_bound")
"""Functions of ``analysis.measure.tables`` that only findings need."""
REPEATS = 3


class Timed:
    """A function and the CPU seconds that its calls have taken."""

    def __init__(self, function):
        self.function = function
        self.seconds = 0.0

    def __call__(self, *args, **options):
        """Call the function."""
        start = time.process_time()
        result = self.function(*args, **options)
        self.seconds += time.process_time() - start
        return result


def measure(path):
    """Return the CPU seconds of an analysis without findings, and of what findings add to it."""
    measured = []
    for _ in range(REPEATS):
        timed = [Timed(getattr(tables, name)) for name in ONLY_FOR_FINDINGS]
        for name, function in zip(ONLY_FOR_FINDINGS, timed, strict=True):
            setattr(tables, name, function)
        start = time.process_time()
        analysis = analyze(path, workers=1)
        analyzed = time.process_time()
        len(analysis.findings)  # they are made when they are asked for
        added = time.process_time() - analyzed
        for name, function in zip(ONLY_FOR_FINDINGS, timed, strict=True):
            setattr(tables, name, function.function)
            added += function.seconds
        measured.append((time.process_time() - start - added, added))
    return min(measured)


def main():
    """Print a row for each run; return 1 if findings cost too much in one."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("traces", nargs="*", help="traces or folders; by default five samples")
    options = parser.parse_args()
    samples = Path(__file__).parents[1] / "sample_traces"
    paths = options.traces or [samples / name for name in SAMPLES]
    worst = 0.0
    for path in paths:
        rest, added = measure(path)
        share = added / rest
        worst = max(worst, share)
        print(f"{Path(path).name}: {rest:.2f} s, findings {added:.3f} s, {share:.1%} more")
    return int(worst > MAX_ADDED_SHARE)


if __name__ == "__main__":
    sys.exit(main())
