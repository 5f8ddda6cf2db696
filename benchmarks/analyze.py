"""Time and memory of ``tracekit analyze`` on a store of 8 ranks × 2 M events.

    python benchmarks/analyze.py [--folder FOLDER] [TRACE…]

The store is built from the 1F1B sample: each of its ranks repeated, step after step, until it holds
2 M events, and the four ranks twice; it holds what ``tracekit ingest`` writes, the measured tables
too. They are taken for all steps; where only some are asked for, the labelled events are measured.
Further paths are timed too, each as a whole command in a fresh process.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import polars as pl
from msgspec.structs import replace

from tracekit.analysis.measure.tables import label_rank, measure_rank
from tracekit.analysis.persistence import write_tables
from tracekit.classify import classify
from tracekit.rooms import ROOM_MEASURES
from tracekit.run.load import load
from tracekit.schema import LABELLED, RankEvents, conform
from tracekit.store.files import write_rank
from tracekit.store.writer import StoreWriter, replace_store

RANKS, EVENTS_A_RANK = 8, 2_000_000
SAMPLE = Path(__file__).parent.parent / "sample_traces" / "1f1b"


def repeat(frame, times, stride_ns):
    """Put *frame* after itself, as further steps."""
    times_columns = [c for c in ("start_ns", "end_ns", "launch_ns") if c in frame.columns]
    return pl.concat(
        frame.with_columns(
            *(pl.col(c) + n * stride_ns for c in times_columns), step=pl.col("step") + n
        )
        for n in range(times)
    )


def renumber(labelled, rank, schema):
    """Make a copied rank talk to its own copy of the pipeline."""
    shift = rank // 4 * 4
    old, new = [str(n) for n in range(4)], [str(n + shift) for n in range(4)]
    text = pl.col("p2p", "group_ranks").cast(pl.String).str.replace_many(old, new)
    group = pl.format("{}-{}", pl.col("group").cast(pl.String), pl.lit(shift))
    moved = labelled.with_columns(text, group=group, peer=pl.col("peer") + shift, rank=pl.lit(rank))
    return conform(moved, schema)


def build(store):
    """Write the store; classification is not what is timed here."""
    parts = load(SAMPLE).parts
    with replace_store(store) as folder:
        entries = {}
        for rank in range(RANKS):
            part = parts[rank % len(parts)]
            span = int(part.events["end_ns"].max() - part.events["start_ns"].min())
            times = EVENTS_A_RANK // len(part.events) + 1
            events = repeat(part.events, times, span + 1_000_000)
            labelled = repeat(classify(part.events), times, span + 1_000_000)
            number = pl.lit(rank, pl.Int32)
            source = replace(part.source, rank=rank, world_size=RANKS, groups=())
            whole = RankEvents(events.with_columns(rank=number), source)
            labelled = renumber(labelled, rank, LABELLED)
            tables = measure_rank(label_rank(whole, labelled=labelled), rooms=ROOM_MEASURES)
            beside = lambda place, tables=tables: write_tables(tables, place)  # noqa: E731
            entries[rank] = write_rank(folder, whole, labelled, beside=beside)
            print(f"rank {rank}: {len(events):,} events, {len(labelled):,} of them on the GPU")
        StoreWriter(folder, entries=entries, complete=True).write()


def timed(words):
    """Run one command in a fresh process.

    Return seconds, processor seconds and the peak memory of its processes.
    """
    began, before = time.perf_counter(), os.times()
    subprocess.run(
        [sys.executable, "-c", "from tracekit.cli import main; main()", *words],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    took, after = time.perf_counter() - began, os.times()
    cpu = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return took, cpu, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--folder", type=Path)
    options.add_argument("traces", nargs="*")
    wanted = options.parse_args()
    folder = wanted.folder or Path(tempfile.mkdtemp(prefix="tracekit-bench-"))
    store = folder / "store"
    if not store.exists():
        build(store)
    for path in wanted.traces:
        timed(["analyze", path])  # warm: compiled code and file caches
        best = min(timed(["analyze", path])[0] for _ in range(3))
        print(f"{path}: {best:.2f} s")
    for words in (["--schedule", "none"], [], ["--steps", "1:"]):
        took, cpu, peak = timed(["analyze", str(store), *words])
        what = " ".join(words) or "with its schedule"
        size = f"{RANKS} ranks × {EVENTS_A_RANK:,} events"
        print(f"{size}, {what}: {took:.1f} s, {cpu:.1f} CPU s, peak {peak:,.0f} MB")


if __name__ == "__main__":
    main()
