"""Size, opening time and frame time of the page's timeline at 8 ranks × 200,000 events, in a headless Chromium.

    python benchmarks/timeline.py
    python benchmarks/timeline.py --events 20000              # the bar: 95 % of frames within 50 ms
    python benchmarks/timeline.py --ranks 64 --events 20000   # a line per rank

The events are made up: a step of layers on a compute stream with communication beside it, durations
and gaps drawn at random, 400 kernel names, operator chains and ranges that name the layer. Frames
are measured while panning and zooming from the whole step down to single kernels, while all events
are on the screen, and while ranks are scrolled during a search.
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

from tracekit.analysis.measure.rank_timeline import (
    EVENT_TIMES,
    HOST_LANES,
    HOST_RANGES,
    RankTimeline,
)
from tracekit.metrics.causes import EVENT_CAUSES
from tracekit.report.html.page import render_html
from tracekit.run.analyze import analyze
from tracekit.schema import EXPOSURE_CAUSES

SAMPLES = Path(__file__).parent.parent / "sample_traces"
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
LAYERS = 60
MAX_PAGE_MB, MAX_OPEN_S, MAX_FRAME_MS = 25, 2, 50
"""Limits: size of the page, time until it answers (of the sample), time of a frame."""
MAX_EVENTS_FOR_LIMIT = 160_000
"""Events on the page up to which 95 % of frames are to be within the limit; of more, the median
is."""


def synthetic_timeline(rank: int, count: int, base_ns: int) -> RankTimeline:
    """Return one rank's made-up events."""
    noise = np.random.default_rng(rank)
    duration = np.minimum(noise.lognormal(9.2, 1.1, count), 5e6).astype(np.int64) + 900
    start = base_ns + np.cumsum(duration + noise.integers(0, 4000, count))
    labels = np.array(["forward", "dgrad", "wgrad", "dp_comm", "ep_dispatch", "pp_comm"])
    names = [f"void kernel_{i}<float, {i % 7}>(float*, int)" for i in range(400)]
    layer = np.arange(count) * LAYERS * 2 // count % LAYERS
    name = noise.zipf(1.4, count) % 400
    label = np.where(name % 23 == 0, 3 + name % 3, (np.arange(count) * 3 // count))
    kind, number = np.unique(np.stack([name, label, layer]), axis=1, return_inverse=True)
    descriptions = pl.DataFrame(
        {
            "name": [names[i] for i in kind[0]],
            "label": labels[kind[1]],
            "pass": ["forward"] * kind.shape[1],
            "module": ["mlp"] * kind.shape[1],
            "annotations": [f"model.layers.{i}.mlp" for i in kind[2]],
            "chain": [f"aten::linear > aten::op_{i}" for i in kind[0]],
            "rule": ["torch-forward"] * kind.shape[1],
            "source": [None] * kind.shape[1],
            "stream": 7 + kind[1],
        },
        schema_overrides={"source": pl.String},
    )
    launch = start - noise.integers(5_000, 400_000, count)
    columns = {"id": np.arange(count), "start_ns": start, "end_ns": start + duration, "launch_ns": launch,
               "description": number.reshape(-1)}  # fmt: skip
    events = pl.DataFrame(columns).select(
        pl.col(name).cast(dtype) for name, dtype in EVENT_TIMES.items()
    )
    host_start = start[:: max(1, count // 5000)]
    host = pl.DataFrame({"start_ns": host_start, "end_ns": host_start + 3000}).with_columns(
        lane=pl.lit(HOST_LANES[1]), name=pl.lit("aten::linear")
    )
    host = host.select(pl.col(name).cast(dtype) for name, dtype in HOST_RANGES.items())
    exposed = np.flatnonzero(label >= 3)  # all communication, in two causes each
    causes = {
        "id": np.repeat(exposed, 2),
        "cause": np.tile(EXPOSURE_CAUSES[:2], len(exposed)),
        "ns": np.repeat(duration[exposed] // 2, 2),
    }
    return RankTimeline(
        rank, events, descriptions, host, len(host), pl.DataFrame(causes, schema=EVENT_CAUSES)
    )


def synthetic_analysis(ranks: int, count: int):
    """Return an analysis whose timeline has so many made-up events on so many ranks."""
    analysis = analyze(SAMPLES / "reload", schedule="none")
    base_ns = int(analysis.tables["steps"]["start_ns"].min())
    timelines = tuple(synthetic_timeline(rank, count, base_ns) for rank in range(ranks))
    first_step = analysis.tables["steps"].head(1)
    steps = [
        first_step.with_columns(
            rank=pl.lit(timeline.rank, pl.Int32),
            end_ns=pl.lit(int(timeline.events["end_ns"].max()), pl.Int64),
        )
        for timeline in timelines
    ]
    one_rank = analysis.ranks[0]
    return replace(
        analysis,
        events=timelines,
        ranks=tuple(structs.replace(one_rank, rank=rank) for rank in range(ranks)),
        tables={**dict(analysis.tables), "steps": pl.concat(steps)},
    )


WIDE_WINDOW = """() => {
  const { chart } = tracekit.timeline, [from, to] = chart.window();
  chart.setWindow(from, from + (to - from) * 0.7);
}"""
PAN = """async (wide) => {
  const { chart } = tracekit.timeline, [from, to] = chart.window(), frames = [];
  const frame = () => new Promise(requestAnimationFrame);
  let span = wide ? to - from : (to - from) / 4, start = from;
  for (let i = 0; i < 40; i++) {
    start += span * 0.05;
    if (!wide) span *= 0.85;
    chart.setWindow(start, start + span);
    await frame(); await frame();
    frames.push(chart.frameMs());
  }
  chart.setWindow(from, to);
  return frames;
}"""


SCROLL = """async () => {
  const { chart } = tracekit.timeline, { element } = chart, frames = [];
  const frame = () => new Promise(requestAnimationFrame);
  tracekit.timeline.find("label:forward >0.01ms");
  for (let i = 0; i < 20; i++) {
    element.scrollTop = (i * 37) % Math.max(1, element.scrollHeight - element.clientHeight);
    chart.invalidate();
    await frame(); await frame();
    frames.push(chart.frameMs());
  }
  tracekit.timeline.find("");
  return frames;
}"""


def measure(file: Path, times: int) -> dict[str, list[float]]:
    """Return seconds until the page answers, and ms of each frame: panning over everything, zooming in, scrolling."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    result: dict[str, list[float]] = {"open_s": [], "pan_ms": [], "zoom_ms": [], "scroll_ms": []}
    with sync_playwright() as p:
        for _ in range(times):
            browser = p.chromium.launch(executable_path=chromium, args=FLAGS)
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            page.goto(file.as_uri())
            page.wait_for_selector("html[data-ready=true]", timeout=120_000)
            result["open_s"].append(page.evaluate("performance.now()") / 1e3)
            page.evaluate("document.getElementById('timeline').scrollIntoView()")
            page.wait_for_timeout(300)
            # Not quite everything, so that panning moves; the first frames make the bins.
            page.evaluate(WIDE_WINDOW)
            page.evaluate(PAN, True)
            result["pan_ms"] += page.evaluate(PAN, True)
            result["zoom_ms"] += page.evaluate(PAN, False)
            result["scroll_ms"] += page.evaluate(SCROLL)
            browser.close()
    return result


def report(name: str, file: Path, times: int, *, events: int) -> bool:
    """Print the figures of one page; return whether they are within the limits."""
    measured = measure(file, times)
    size = file.stat().st_size / 1e6
    opened, pan, zoom = (
        statistics.median(measured[key]) for key in ("open_s", "pan_ms", "zoom_ms")
    )
    frames = sorted(measured["pan_ms"] + measured["zoom_ms"] + measured["scroll_ms"])
    most_frames = frames[int(0.95 * (len(frames) - 1))]
    print(f"{name}: {size:.2f} MB, answers after {opened:.2f} s, frame {pan:.1f} ms panning, {zoom:.1f} ms zooming"
          f" (median), 95 % of frames within {most_frames:.1f} ms, slowest {frames[-1]:.1f} ms")  # fmt: skip
    frame_ms = most_frames if events <= MAX_EVENTS_FOR_LIMIT else max(pan, zoom)
    return size <= MAX_PAGE_MB and frame_ms <= MAX_FRAME_MS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--events", type=int, default=200_000, help="a rank")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--page", type=Path, help="measure this page instead")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = args.page or Path(folder) / "page.html"
        if args.page is None:
            began = time.perf_counter()
            file.write_text(
                render_html(synthetic_analysis(args.ranks, args.events)), encoding="utf-8"
            )
            print(f"made in {time.perf_counter() - began:.1f} s", file=sys.stderr)
        name = str(args.page) if args.page else f"{args.ranks} ranks × {args.events:,} events"
        if not report(name, file, args.times, events=args.ranks * args.events):
            sys.exit(1)


if __name__ == "__main__":
    main()
