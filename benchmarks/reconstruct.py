"""Time of reconstruction at scale: from labelled events to the gap by cause.

    python benchmarks/reconstruct.py [--ranks 64] [--cells 2000]

The target: 64 ranks of 2000 cells in under 20 s, one process. Making and labelling the events is
not counted.
"""

from __future__ import annotations

import argparse
import resource
import time

from tracekit.classify import classify
from tracekit.graph.pipeline import fit_to_comparison, with_predictions
from tracekit.pipeline.against_ideal import compare_pipelines
from tracekit.pipeline.reconstruct import rank_pipeline
from tracekit.pipeline.schedules import generate
from tracekit.schema import Source
from tracekit.synthetic import Recipe, rank_events


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--cells", type=int, default=2000)
    parser.add_argument("--schedule", default="interleaved")
    asked = parser.parse_args()
    virtual = 2 if asked.schedule == "interleaved" else None
    microbatches = -(-asked.cells // (2 * (virtual or 1)) // asked.ranks) * asked.ranks
    plan = generate(asked.schedule, pp=asked.ranks, microbatches=microbatches, virtual=virtual)
    recipe = Recipe(plan, jitter=0.03, p2p_ns=50_000, layers=1, stage_factor={3: 1.1})
    spent, tables, kernels = 0.0, [], 0
    for rank in range(asked.ranks):
        labelled = classify(rank_events(recipe, rank))
        kernels += labelled.height
        start = time.perf_counter()
        tables.append(rank_pipeline(labelled, Source(f"rank{rank}", "kineto", rank, "name")))
        spent += time.perf_counter() - start
    start = time.perf_counter()
    found, _ = compare_pipelines(tables)
    together = time.perf_counter() - start
    start = time.perf_counter()
    with_predictions(found, fit_to_comparison(found), rows=True)
    with_what_if = time.perf_counter() - start
    assert found is not None
    cells = found.cells.height
    print(f"{asked.ranks} ranks, {cells:,} cells, {kernels:,} GPU events")
    print(f"named {found.name} (exact: {found.exact}), virtual {found.virtual}")
    print(f"per rank: {spent:.2f} s in all, {spent / asked.ranks * 1e3:.0f} ms each")
    print(f"together: {together:.2f} s ({with_what_if:.2f} s with what-if)")
    print(f"reconstruction to attribution: {spent + together:.2f} s")
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MiB")


if __name__ == "__main__":
    main()
