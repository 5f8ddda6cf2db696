"""How long labelling takes: a real trace repeated until it has as many events as asked for.

python benchmarks/classify.py [EVENTS] [TRACE]
"""

import resource
import sys
import time
from pathlib import Path

import polars as pl

from tracekit.classify import classify

SAMPLE = Path(__file__).parent.parent / "sample_traces" / "overlapped" / "rank0.pt.trace.json.gz"


def repeat(events: pl.DataFrame, times: int) -> pl.DataFrame:
    """Lay *times* copies end to end, each with numbers of its own for everything that is joined on."""
    span = events["end_ns"].max() - events["start_ns"].min() + 1000
    shift = {"start_ns": span, "end_ns": span, "id": len(events), "step": 1000}
    for column in ("correlation", "external_id", "sequence"):
        shift[column] = (events[column].max() or 0) + 1
    return pl.concat(
        events.with_columns((pl.col(name) + by * k).alias(name) for name, by in shift.items()) for k in range(times)
    )


def main() -> None:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    path = Path(sys.argv[2]) if len(sys.argv) > 2 else SAMPLE
    from tracekit.parsers.kineto import read

    one = read(path).events
    classify(one)  # compile
    for size in (wanted // 4, wanted // 2, wanted):
        table = repeat(one, max(size // len(one), 1))
        before, cpu = time.perf_counter(), time.process_time()
        labelled = classify(table)
        took, used = time.perf_counter() - before, time.process_time() - cpu
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
        sizes = f"{len(table):>10,} events, {len(labelled):>9,} on the GPU"
        print(f"{sizes}: {took:6.2f} s ({used:.2f} s of CPU), peak {peak:.1f} GB")


if __name__ == "__main__":
    main()
