"""Time of the interval code: union and intersection of two label sets, 10 groups, 200 steps.

    python benchmarks/intervals.py [--hta]

``--hta`` also runs Holistic Trace Analysis's own overlap (``pip install traceinsight``) on the 5 M
set.
"""

from __future__ import annotations

import argparse
import resource
import time
from types import SimpleNamespace

import numpy as np

from tracekit.intervals import union

GROUPS, STEPS = 10, 200


def data(n, *, shuffled):
    """Two label sets on ten streams.

    Trace-like (each stream in order of time) or in random order.
    """
    rng = np.random.default_rng(0)
    start = np.sort(rng.integers(0, n * 500, n))
    end = start + rng.integers(100, 9_000, n)
    group, compute = rng.integers(0, GROUPS, n), rng.random(n) < 0.5
    step = (np.arange(n) * STEPS // n).astype(np.int64)
    order = rng.permutation(n) if shuffled else np.arange(n)
    return start[order], end[order], group[order], step[order], compute[order]


def work(start, end, group, step, compute):
    """Both unions and their intersection, by group and step."""
    keys = GROUPS * STEPS
    swept = union(start, end, group * STEPS + step + compute * keys)  # both label sets in one sweep
    a, b = swept.section(0, keys), swept.section(keys, 2 * keys)
    both = a & b
    return a.totals_ns(GROUPS * STEPS), b.totals_ns(GROUPS * STEPS), both.totals_ns(GROUPS * STEPS)


def hta(start, end, group, compute):
    """HTA's own computation-communication overlap, with the ten groups as ten ranks."""
    import pandas as pd
    from hta.analyzers.communication_analysis import CommunicationAnalysis

    names = ["ncclDevKernel_AllReduce", "gemm"]
    frame = pd.DataFrame(
        {"ts": start, "dur": end - start, "name": compute.astype(int), "stream": 7}
    )
    table = SimpleNamespace(get_sym_table=lambda: names)
    ranks = {g: frame[group == g] for g in range(GROUPS)}
    return CommunicationAnalysis.get_comm_comp_overlap(
        SimpleNamespace(symbol_table=table, traces=ranks), visualize=False
    )


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--hta", action="store_true")
    wanted = options.parse_args()
    for n in (5_000_000, 20_000_000):
        for shuffled in (False, True):
            columns = data(n, shuffled=shuffled)
            began = time.perf_counter()
            work(*columns)
            took = time.perf_counter() - began
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(
                f"{n:>11,} intervals {'shuffled' if shuffled else 'in order'}: {took:.2f} s, peak {peak:,.0f} MB"
            )
            if wanted.hta and n == 5_000_000 and not shuffled:
                began = time.perf_counter()
                start, end, group, _, compute = columns
                hta(start, end, group, compute)
                theirs = time.perf_counter() - began
                print(f"  HTA: {theirs:.1f} s, {theirs / took:.0f} times as long")


if __name__ == "__main__":
    main()
