"""The CPU side of one rank: ops and annotations as trees, and where in them each GPU event was launched."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import polars as pl

from tracekit._util.coded import Bools, Text, among, pick
from tracekit._util.columns import whole_numbers
from tracekit._util.records import dataclass
from tracekit.classify._nest import ANNOTATION, OP, Ints, inherit, nest, siblings, time_key
from tracekit.schema import GPU_KINDS, PATH_SEPARATOR

_MARKS = r"^(ProfilerStep#|Optimizer\.(step|zero_grad)#|enumerate\(DataLoader\))"
"""Older files list the profiler's own annotations among the ops."""

_COLUMNS = ("id", "kind", "name", "start_ns", "end_ns", "pid", "tid", "sequence")
"""What is asked of all CPU ranges; what few of them are asked for is looked up where it is."""

NODE = "autograd::engine::evaluate_function: "


@dataclass(frozen=True)
class Ranges:
    """Ops and annotations of every thread, sorted so that a parent comes before its children."""

    source: pl.DataFrame  # all events, as the file has them; few columns are ever put in order whole
    kept: Ints  # rows of the source that are ranges
    order: Ints  # places in *kept*, sorted
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

    def column(self, name: str, rows: Ints) -> pl.Series:
        """Pick one column of the events at *rows*."""
        return self.source[name].gather(self.kept[self.order[rows]])

    def text(self, name: str) -> Text:
        """One text column of all ranges."""
        if name not in self._texts:
            text = Text.of(self.source[name].gather(self.kept))
            self._texts[name] = Text(text.values, text.codes[self.order])
        return self._texts[name]

    @cached_property
    def _texts(self) -> dict[str, Text]:
        return {}

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
            code = int(self.name.codes[row])
            names.append(self.name.values[code] if code >= 0 else "?")
            row = int(parents[row])
        return PATH_SEPARATOR.join(reversed(names))

    def paths(self, rows: Ints, parents: Ints, path: Ints) -> Text:
        """Spell the path of every row; each distinct path once."""
        key = (id(rows), id(path))
        if key not in self._spelt:
            self._spelt[key] = (rows, self._spell(rows, parents, path))
        return self._spelt[key][1]

    @cached_property
    def _spelt(self) -> dict[tuple[int, int], tuple[Ints, Text]]:
        return {}  # the rows are kept beside their paths, so that no other array takes their place

    def _spell(self, rows: Ints, parents: Ints, path: Ints) -> Text:
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


def read_ranges(events: pl.DataFrame) -> tuple[pl.DataFrame, Ranges, Launches]:
    """Split *events* into its GPU rows (sorted by start), the CPU ranges, and the launches that join them."""
    gpu = _gpu_in_order(events)
    is_range = events["kind"].is_in(("cpu_op", "annotation"))
    kept = np.flatnonzero(is_range.to_numpy())
    source = events.select(_COLUMNS).filter(is_range)
    calls = _first_calls(events, gpu)
    threads, call_threads = _thread_numbers(source, calls)
    order = _in_order(source, threads)
    threads = threads[order]
    fire = _launch_rows(gpu, calls)
    unordered = Text.of(source["name"])
    names = Text(unordered.values, unordered.codes[order])
    is_op = (source["kind"] == "cpu_op").to_numpy()[order] & ~names.matches(_MARKS)
    main = _main_thread(threads, names)

    asked = whole_numbers(calls["start_ns"])
    start, end = whole_numbers(source["start_ns"])[order], whole_numbers(source["end_ns"])[order]
    # Every call is looked up on its own thread, and on the one that drives.
    on_main = np.full(len(calls), main, np.int64)
    what = np.where(is_op, OP, ANNOTATION)
    where = np.concatenate([call_threads, on_main]), np.concatenate([asked, asked])
    found_in = nest(threads, start, end, what, names.codes, *where)
    ranges = Ranges(
        events,
        kept,
        order,
        names,
        is_op,
        threads,
        start,
        end,
        whole_numbers(source["sequence"])[order],
        found_in.op_of,
        found_in.ann_of,
        found_in.op_path,
        found_in.ann_path,
        main,
    )
    op, ann, ann_on_main = found_in.asked_op[: len(calls)], *np.split(found_in.asked_ann, 2)
    launches = _attach(gpu, ranges, calls, fire, call_threads, op=op, ann=ann, ann_on_main=ann_on_main)
    return gpu, ranges, launches


def _gpu_in_order(events: pl.DataFrame) -> pl.DataFrame:
    """GPU events by start, then id: rows are put in order first, and the columns moved once."""
    rows = np.flatnonzero(events["kind"].is_in(GPU_KINDS).to_numpy())
    start, number = (events[c].gather(rows).to_numpy() for c in ("start_ns", "id"))
    return events[rows[np.lexsort((number, start))]]


def with_op_facts(gpu: pl.DataFrame, ranges: Ranges, launches: Launches) -> pl.DataFrame:
    """Return the GPU events with the id, input shapes and input types of the op that launched each."""
    known = launches.op >= 0
    rows = np.where(known, launches.op, 0) if len(ranges) else np.zeros(0, np.int64)
    if not len(ranges):
        return gpu.with_columns(op_id=pl.lit(None, pl.Int64))
    mask = pl.Series(known)
    facts = {name: ranges.column(name, rows) for name in ("id", "shapes", "dtypes")}
    kept = {name: pl.select(pl.when(mask).then(values)).to_series() for name, values in facts.items()}
    return gpu.with_columns(op_id=kept["id"], shapes=kept["shapes"], dtypes=kept["dtypes"])


def _first_calls(events: pl.DataFrame, gpu: pl.DataFrame) -> pl.DataFrame:
    """Keep one call for every correlation of a GPU event: the earliest, as driver calls sit inside runtime calls."""
    asked = events["kind"].is_in(("runtime", "driver")) & events["correlation"].is_not_null()
    rows = np.flatnonzero(asked.to_numpy())
    number, start = (events[c].gather(rows).to_numpy() for c in ("correlation", "start_ns"))
    order = np.lexsort((start, number))  # calls come nearly in the order of their numbers
    number = number[order]
    first = np.ones(len(rows), np.bool_)
    first[1:] = number[1:] != number[:-1]
    first &= among(number, np.sort(gpu["correlation"].drop_nulls().to_numpy(), kind="stable"))
    return events.select("correlation", "start_ns", "pid", "tid")[rows[order[first]]]


def _launch_rows(gpu: pl.DataFrame, calls: pl.DataFrame) -> Ints:
    """For every GPU event the row of its call, -1 where the file has none."""
    known, asked = calls["correlation"].to_numpy(), whole_numbers(gpu["correlation"])
    return np.where(
        among(asked, known) & gpu["correlation"].is_not_null().to_numpy(), np.searchsorted(known, asked), -1
    )


def _thread_numbers(source: pl.DataFrame, calls: pl.DataFrame) -> tuple[Ints, Ints]:
    """Number the threads of both tables, in the order of their process and thread ids."""
    pid, tid = (np.concatenate([whole_numbers(source[c]), whole_numbers(calls[c])]) for c in ("pid", "tid"))
    change = np.ones(len(pid), np.bool_)  # neighbours in a file mostly share their thread
    change[1:] = (pid[1:] != pid[:-1]) | (tid[1:] != tid[:-1])
    place = pl.DataFrame({"pid": pid[change], "tid": tid[change]})
    number = place.select(pl.struct("pid", "tid").rank("dense").cast(pl.Int64) - 1).to_series().to_numpy()
    numbers = number[np.cumsum(change) - 1]
    return numbers[: len(source)], numbers[len(source) :]


def _in_order(source: pl.DataFrame, threads: Ints) -> Ints:
    """Rows by thread, then start, the longer first; an op before an annotation that equals it."""
    start = whole_numbers(source["start_ns"])
    key = time_key(threads, start - start.min(initial=0))
    order = np.argsort(key, kind="stable")
    if bool((np.diff(key[order]) > 0).all()):
        return order
    kind = source["kind"].to_physical().to_numpy().astype(np.int64)
    return np.lexsort((whole_numbers(source["id"]), kind, -whole_numbers(source["end_ns"]), key))


def _main_thread(threads: Ints, names: Text) -> int:
    """Return the main thread: the one with most ops, counting those of the autograd engine out."""
    if not len(threads):
        return -1
    weight = np.where(names.matches("Backward|AccumulateGrad"), 0.0, 1.0)
    weight[names.map(lambda v: v.startswith("ProfilerStep#"))] = len(threads)
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
    engine = np.zeros(int(max(ranges.thread.max(initial=-1), call_threads.max(initial=-1))) + 1, np.bool_)
    engine[ranges.thread[ranges.name.map(lambda v: v.startswith(NODE))]] = True
    borrowed = engine[call_threads] & (ann < 0)
    ann = np.where(borrowed, ann_on_main, ann)

    at, thread, tid = (
        pick(v, fire) for v in (whole_numbers(calls["start_ns"]), call_threads, whole_numbers(calls["tid"]))
    )
    ops = pick(op, fire)
    ops, at, thread, tid = _by_external_id(gpu, ranges, ops, at, thread=thread, tid=tid)
    return Launches(at, thread, tid, ops, pick(ann, fire))


def _by_external_id(
    gpu: pl.DataFrame, ranges: Ranges, op: Ints, at: Ints, *, thread: Ints, tid: Ints
) -> tuple[Ints, Ints, Ints, Ints]:
    """Find the op that an event without a call still names, unless external ids merely repeat correlations."""
    lost = at < 0
    external = gpu["external_id"]
    repeats = int((external == gpu["correlation"]).sum()) > 0.9 * len(gpu)
    if not lost.any() or external.null_count() == len(gpu) or repeats:
        return op, at, thread, tid
    ids = ranges.column("external_id", np.arange(len(ranges)))
    known = pl.DataFrame({"external_id": ids}).with_row_index("row").filter(pl.Series(ranges.is_op))
    matched = gpu.select("external_id").join(
        known.unique("external_id", keep="last"), on="external_id", how="left", maintain_order="left"
    )
    row = np.where(lost, whole_numbers(matched["row"].cast(pl.Int64)), -1)
    use = row >= 0
    if not use.any():
        return op, at, thread, tid
    tids = whole_numbers(ranges.column("tid", np.arange(len(ranges))))
    return (
        np.where(use, row, op),
        np.where(use, ranges.start[row], at),
        np.where(use, ranges.thread[row], thread),
        np.where(use, tids[row], tid),
    )
