"""The CPU side of one rank: ops and annotations as trees, and where in them each GPU event was launched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from tracekit.classify._nest import ANNOTATION, OP, PROBE, Ints, inherit, nest, siblings
from tracekit.classify._text import Bools, Text
from tracekit.schema import GPU_KINDS

_MARKS = r"^(ProfilerStep#|Optimizer\.(step|zero_grad)#|enumerate\(DataLoader\))"
"""Older files list the profiler's own annotations among the ops."""

NODE = "autograd::engine::evaluate_function: "


@dataclass(frozen=True)
class Ranges:
    """Ops and annotations of every thread, sorted so that a parent comes before its children."""

    frame: pl.DataFrame
    name: Text
    is_op: Bools
    thread: Ints
    start: Ints
    end: Ints
    sequence: Ints  # -1 where none
    op_of: Ints  # the op that contains this range, -1 where none
    ann_of: Ints
    op_path: Ints  # equal numbers are equal paths from the thread's root
    ann_path: Ints
    main: int  # the thread that drives the program

    def __len__(self) -> int:
        return len(self.start)

    def nearest_op(self, own: Bools) -> Ints:
        """For every range the nearest op at or above it that is in *own*."""
        return inherit(self.op_of, own & self.is_op)

    @cached_property
    def beside(self) -> tuple[Ints, Ints]:
        """For every op the op before it and the op after it under the same parent, -1 where none."""
        return siblings(self.thread, self.op_of, self.is_op)

    def path(self, row: int, parents: Ints) -> str:
        """Spell the names from the root down to *row*."""
        names: list[str] = []
        while row >= 0:
            names.append(self.name.values[self.name.codes[row]])
            row = int(parents[row])
        return " > ".join(reversed(names))

    def paths(self, rows: Ints, parents: Ints, path: Ints) -> Text:
        """Spell the path of every row; each distinct path once."""
        inside = rows >= 0
        distinct, first, places = np.unique(path[rows[inside]], return_index=True, return_inverse=True)
        examples = rows[inside][first]
        codes = np.full(len(rows), -1, np.int64)
        codes[inside] = places
        return Text(tuple(self.path(int(r), parents) for r in examples[: len(distinct)]), codes)


@dataclass(frozen=True)
class Launches:
    """For every GPU event: the call that launched it and the ranges around that call (-1 where unknown)."""

    at: Ints
    thread: Ints  # as numbered in Ranges.thread
    tid: Ints
    op: Ints  # row of the innermost op in Ranges
    ann: Ints  # row of the innermost annotation, on the launching thread or on the one that waits for it
    api: Text  # name of the call


def _ints(series: pl.Series) -> Ints:
    return series.fill_null(-1).to_numpy().astype(np.int64)


def read_ranges(events: pl.DataFrame) -> tuple[pl.DataFrame, Ranges, Launches]:
    """Split *events* into its GPU rows (sorted by start), the CPU ranges, and the launches that join them."""
    gpu = events.filter(pl.col("kind").is_in(GPU_KINDS)).sort("start_ns", "id")
    frame = events.filter(pl.col("kind").is_in(("cpu_op", "annotation"))).sort(
        "pid", "tid", "start_ns", pl.col("end_ns").neg(), "id", nulls_last=True
    )
    calls = _first_calls(events, gpu)
    threads = _thread_numbers(frame, calls)
    fire = _launch_rows(gpu, calls)
    names = Text.of(frame["name"])
    is_op = (frame["kind"] == "cpu_op").to_numpy() & ~names.matches(_MARKS)
    main = _main_thread(threads[: len(frame)], frame)

    probes = len(calls)
    thread = np.concatenate([threads, np.full(probes, main, np.int64)])
    start = np.concatenate([_ints(frame["start_ns"]), _ints(calls["start_ns"]), _ints(calls["start_ns"])])
    end = np.concatenate([_ints(frame["end_ns"]), start[len(frame) :]])
    what = np.concatenate([np.where(is_op, OP, ANNOTATION), np.full(2 * probes, PROBE)])
    codes = np.concatenate([names.codes, np.zeros(2 * probes, np.int64)])
    op_of, ann_of, op_path, ann_path = nest(thread, start, end, what, codes)

    n = len(frame)
    ranges = Ranges(
        frame,
        names,
        is_op,
        threads[:n],
        start[:n],
        end[:n],
        _ints(frame["sequence"]),
        op_of[:n],
        ann_of[:n],
        op_path[:n],
        ann_path[:n],
        main,
    )
    here, on_main = slice(n, n + probes), slice(n + probes, None)
    launches = _attach(
        gpu, ranges, calls, fire, threads[n:], op=op_of[here], ann=ann_of[here], ann_on_main=ann_of[on_main]
    )
    return gpu, ranges, launches


def _first_calls(events: pl.DataFrame, gpu: pl.DataFrame) -> pl.DataFrame:
    """Keep one call for every correlation of a GPU event: the earliest, as driver calls sit inside runtime calls."""
    wanted = gpu.select("correlation").drop_nulls().unique()
    calls = events.filter(pl.col("kind").is_in(("runtime", "driver")) & pl.col("correlation").is_not_null())
    return (
        calls.select("correlation", "start_ns", "pid", "tid", "name")
        .join(wanted, on="correlation", how="semi")
        .sort("start_ns")
        .unique("correlation", keep="first", maintain_order=True)
    )


def _launch_rows(gpu: pl.DataFrame, calls: pl.DataFrame) -> Ints:
    """For every GPU event the row of its call, -1 where the file has none."""
    rows = gpu.select("correlation").join(
        calls.select("correlation").with_row_index("row"), on="correlation", how="left", maintain_order="left"
    )
    return _ints(rows["row"].cast(pl.Int64))


def _thread_numbers(frame: pl.DataFrame, calls: pl.DataFrame) -> Ints:
    both = pl.concat([frame.select("pid", "tid"), calls.select("pid", "tid")])
    number = pl.struct("pid", "tid").rank("dense").cast(pl.Int64) - 1
    return both.select(number.alias("n"))["n"].to_numpy().astype(np.int64)


def _main_thread(threads: Ints, frame: pl.DataFrame) -> int:
    """Find the thread that drives: the one with most ops, counting those of the autograd engine out."""
    if not len(threads):
        return -1
    weight = np.ones(len(threads))
    weight[frame["name"].cast(pl.String).str.contains("Backward|AccumulateGrad").fill_null(False).to_numpy()] = 0
    marks = frame["name"].cast(pl.String).str.starts_with("ProfilerStep#").fill_null(False).to_numpy()
    weight[marks] = len(threads)
    return int(np.bincount(threads, weights=weight).argmax())


def _attach(
    gpu: pl.DataFrame,
    ranges: Ranges,
    calls: pl.DataFrame,
    fire: Ints,
    call_threads: Ints,
    *,
    op: Ints,
    ann: Ints,
    ann_on_main: Ints,
) -> Launches:
    # The autograd engine works on threads of its own while the caller waits inside its annotation.
    engine = np.unique(ranges.thread[ranges.name.map(lambda v: v.startswith(NODE))])
    borrowed = np.isin(call_threads, engine) & (ann < 0)
    ann = np.where(borrowed, ann_on_main, ann)

    def spread(values: Ints, missing: int = -1) -> Ints:
        return np.where(fire >= 0, np.append(values, missing)[fire], missing)

    at, thread, tid = spread(_ints(calls["start_ns"])), spread(call_threads), spread(_ints(calls["tid"]))
    ops = spread(op)
    ops, at, thread, tid = _by_external_id(gpu, ranges, ops, at, thread=thread, tid=tid)
    return Launches(at, thread, tid, ops, spread(ann), Text.of(calls["name"]).take(fire))


def _by_external_id(
    gpu: pl.DataFrame, ranges: Ranges, op: Ints, at: Ints, *, thread: Ints, tid: Ints
) -> tuple[Ints, Ints, Ints, Ints]:
    """Find the op that an event without a call still names, unless external ids merely repeat correlations."""
    lost = at < 0
    external = gpu["external_id"]
    repeats = int((external == gpu["correlation"]).sum()) > 0.9 * len(gpu)
    if not lost.any() or external.null_count() == len(gpu) or repeats:
        return op, at, thread, tid
    known = ranges.frame.select("external_id").with_row_index("row").filter(pl.Series(ranges.is_op))
    found = gpu.select("external_id").join(
        known.unique("external_id", keep="last"), on="external_id", how="left", maintain_order="left"
    )
    row = np.where(lost, _ints(found["row"].cast(pl.Int64)), -1)
    use = row >= 0
    if not use.any():
        return op, at, thread, tid
    tids = _ints(ranges.frame["tid"])
    return (
        np.where(use, row, op),
        np.where(use, ranges.start[row], at),
        np.where(use, ranges.thread[row], thread),
        np.where(use, tids[row], tid),
    )
