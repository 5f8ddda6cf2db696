"""Size of the page and time until it is there, at 64 ranks × 2000 cells, in a headless Chromium.

    python benchmarks/page.py

The analysis is a real one blown up: its pipeline is 1F1B on 64 ranks with 1000 micro-batches, every
rank's lanes are as long as they get.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
from msgspec import structs
from playwright.sync_api import sync_playwright

from tracekit.metrics.label_intervals import MAX_TIMELINE_INTERVALS
from tracekit.pipeline.schedules import Times, generate, simulate
from tracekit.report.html.page import render_html
from tracekit.run.analyze import analyze
from tracekit.schema import LABELS, PASSES

SAMPLES = Path(__file__).parent.parent / "sample_traces"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def blown_up(ranks, cells):
    """Return an analysis of so many ranks with so many cells each."""
    found = analyze(SAMPLES / "1f1b")
    noise = np.random.default_rng(0)
    plan = generate("1f1b", pp=ranks, microbatches=cells // 2)
    done = simulate(plan, Times(F=1_000_000, B=2_000_000))
    table = done.cells.with_row_index()
    late = pl.Series(noise.integers(0, 300_000, table.height))
    big = table.select(
        pl.col("rank"), pl.lit(2, pl.Int64).alias("step"), "op", "stage", "microbatch", "b_stage", "b_microbatch",
        (pl.col("start").cast(pl.Int64) + late).alias("start_ns"),
        (pl.col("end").cast(pl.Int64) + late).alias("end_ns"),
        pl.lit(0, pl.Int64).alias("busy_ns"), pl.lit(1.0, pl.Float32).alias("confidence"),
        pl.col("start").cast(pl.Int64).alias("ideal_start_ns"), pl.col("end").cast(pl.Int64).alias("ideal_end_ns"),
        late.alias("shift_ns"),
    )  # fmt: skip
    match = structs.replace(found.comparison.head.match, schedule=plan)
    head = structs.replace(
        found.comparison.head, cells=big, match=match, ideal_ns=int(done.makespan)
    )
    one = found.ranks[0]
    span = int(done.makespan)
    tables = dict(found.tables)
    tables["steps"] = pl.concat(
        [found.tables["steps"].head(1).with_columns(rank=pl.lit(r, pl.Int32), start_ns=pl.lit(0, pl.Int64),
                                                    end_ns=pl.lit(span, pl.Int64)) for r in range(ranks)]
    )  # fmt: skip
    tables["timeline"] = pl.concat([_lanes(r, span, noise) for r in range(ranks)])
    return replace(
        found,
        ranks=tuple(structs.replace(one, rank=r) for r in range(ranks)),
        tables=tables,
        comparison=structs.replace(found.comparison, head=head),
    )


def _lanes(rank, span, noise):
    start = np.sort(noise.integers(0, span, MAX_TIMELINE_INTERVALS))
    label = noise.integers(0, len(LABELS), MAX_TIMELINE_INTERVALS)
    return pl.DataFrame(
        {
            "rank": pl.Series([rank] * MAX_TIMELINE_INTERVALS, dtype=pl.Int32),
            "label": pl.Series([LABELS[i] for i in label], dtype=pl.Enum(LABELS)),
            "pass": pl.Series([PASSES[i % 2] for i in label], dtype=pl.Enum(PASSES)),
            "start_ns": start,
            "end_ns": start + span // MAX_TIMELINE_INTERVALS,
        }
    )


def measure(file, times):
    """Return milliseconds until the first paint and until the page says it is ready, of several loads."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    paint, ready = [], []
    with sync_playwright() as p:
        for _ in range(times):
            browser = p.chromium.launch(executable_path=chromium, args=FLAGS)
            page = browser.new_page(viewport={"width": 1200, "height": 900})
            page.goto(file.as_uri())
            page.wait_for_selector("html[data-ready=true]")
            ready.append(page.evaluate("performance.now()"))
            page.wait_for_timeout(300)
            paint.append(
                page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
            )
            browser.close()
    return paint, ready


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--cells", type=int, default=2000, help="a rank")
    parser.add_argument("--times", type=int, default=3)
    args = parser.parse_args()
    found = blown_up(args.ranks, args.cells)
    began = time.perf_counter()
    page = render_html(found)
    made = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page, encoding="utf-8")
        print(
            f"{args.ranks} ranks × {args.cells} cells: {file.stat().st_size / 1e6:.2f} MB, made in {made:.1f} s"
        )
        paint, ready = measure(file, args.times)
    middle = [round(statistics.median(taken)) for taken in (paint, ready)]
    print(f"first paint {middle[0]} ms, ready {middle[1]} ms, median of {args.times}")
    print(
        f"  paint {[round(ms) for ms in paint]}, ready {[round(ms) for ms in ready]}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
