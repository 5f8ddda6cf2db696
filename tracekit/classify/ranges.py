"""The CPU side of one rank: ops and annotations as trees, and where in them each GPU event was launched."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from tracekit._util.arrays import (
    AnyInts,
    Bools,
    Int32s,
    as_int32,
    find_sorted,
    group_rows,
    is_in_sorted,
    rank_pairs,
    take_or_missing,
)
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import NULL_INT64, ColumnReader, to_int64
from tracekit.classify._nest import ANNOTATION, OP, Ints, arrange, climb, nest
from tracekit.schema import GPU_KINDS, KINDS, PATH_SEPARATOR

_MARKS = r"^(ProfilerStep#|Optimizer\.(step|zero_grad)#|enumerate\(DataLoader\))"
"""Older files list the profiler's own annotations among the ops."""

_ASKED = ("id", "kind", "name", "start_ns", "end_ns")
"""What is asked of all events; without nulls no copy is made of it. The rest is looked up for those it is asked of."""
_ASKED_ON_GPU = (
    "kind", "name", "start_ns", "end_ns", "device", "stream", "correlation", "external_id", "collective", "group",
    "group_desc", "group_ranks", "peer", "bytes", "graph", "step",
)  # fmt: skip

NODE = "autograd::engine::evaluate_function: "


class Gpu(ColumnReader):
    """One rank's GPU events, by start."""

    @cached_property
    def names(self) -> CategoryColumn:
        """What each is called."""
        return self.text("name")

    @cached_property
    def is_kernel(self) -> Bools:
        """Which are kernels."""
        return self.text("kind").any_of("kernel")

    @cached_property
    def place(self) -> Ints:
        """Number of each one's device and stream, from 0."""
        return rank_pairs(self.int64("device"), self.int64("stream"))


@dataclass(frozen=True, eq=False, repr=False)
class Ranges:
    """Ops and annotations of every thread, sorted so that a parent comes before its children."""

    source: ColumnReader  # all events, as the file has them; few columns are ever put in order whole
    rows: Int32s  # of every range its row in the source
    name: CategoryColumn
    is_op: Bools
    thread: Int32s
    sequence: Ints  # -1 where none
    op_of: Int32s  # the op that contains this range, -1 where none
    ann_of: Int32s
    paths_of: Ints  # equal numbers are equal paths from the thread's root, of ops or of annotations
    before: Int32s  # of every op: the op before it under the same parent, -1 where none
    after: Int32s  # the op after it
    main: int  # the thread that drives the program

    def __len__(self) -> int:
        return len(self.rows)

    def start(self, rows: AnyInts | None = None) -> Ints:
        """When *rows* start, or all ranges; looked up, since few are asked for."""
        return self.source.int64_at("start_ns", self.rows if rows is None else self.rows[rows])

    def end(self, rows: AnyInts) -> Ints:
        """When *rows* end."""
        return self.source.int64_at("end_ns", self.rows[rows])

    def column(self, name: str, rows: AnyInts) -> pl.Series:
        """Pick one column of the events at *rows*."""
        return self.source.frame[name][self.rows[rows]]

    def text(self, name: str, rows: AnyInts) -> CategoryColumn:
        """One text column at *rows*; null for a negative row."""
        inside = rows >= 0
        if self.source.is_all_null(name) or not inside.any():
            return CategoryColumn.constant(None, len(rows))
        if inside.all():
            return self.source.text_at(name, self.rows[rows])
        text = self.source.text_at(name, self.rows[rows[inside]])
        codes = np.full(len(rows), -1, np.int32)
        codes[inside] = text.codes
        return CategoryColumn(text.values, codes)

    def having(self, name: str) -> Ints:
        """Ranges that have a value in a text column."""
        if self.source.is_all_null(name):
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.source.present(name).take(self.rows))

    @cached_property
    def _collectives(self) -> tuple[Ints, CategoryColumn]:
        rows = self.having("collective")
        return rows, self.text("collective", rows)

    def asking(self, *calls: str) -> Ints:
        """Ranges that ask for one of these collectives; for any where none is given."""
        rows, text = self._collectives
        return rows[text.any_of(*calls)] if calls else rows

    def collective(self, rows: Ints) -> CategoryColumn:
        """What each of *rows* asks for."""
        known, text = self._collectives
        return text.take(find_sorted(rows, known))

    def called(self, rows: AnyInts, pattern: str) -> Bools:
        """Which of *rows* have a name in which the pattern is found; a negative row has none."""
        return self.name.take(rows).matches(pattern)

    def around(self, rows: Ints, pattern: str) -> Ints:
        """For each of *rows* the nearest op at or above it whose name matches the pattern, -1 where none."""
        return climb(self.op_of, self.is_op, self.name.codes, rows, self.name.answers(pattern))

    @cached_property
    def accumulating(self) -> Ints:
        """The nodes' own ranges, inside their evaluations, that add up a parameter's gradient."""
        wanted = self.name.answers(r"AccumulateGrad\Z") & ~self.name.answers(f"^{NODE}")
        return np.flatnonzero(self.name.look_up(wanted))

    def path(self, row: int, parents: AnyInts) -> str:
        """Spell the names from the root down to *row*."""
        names: list[str] = []
        while row >= 0:
            code = int(self.name.codes[row])
            names.append(self.name.values[code] if code >= 0 else "?")
            row = int(parents[row])
        return PATH_SEPARATOR.join(reversed(names))

    def paths(self, rows: AnyInts, parents: AnyInts) -> CategoryColumn:
        """Spell the path of every row; each distinct path once."""
        inside = rows[rows >= 0]
        places, first = group_rows(self.paths_of[inside])
        codes = np.full(len(rows), -1, np.int32)
        codes[rows >= 0] = places
        return CategoryColumn(tuple(self.path(int(row), parents) for row in inside[first]), codes)


@dataclass(frozen=True, eq=False, repr=False)
class Launches:
    """For every GPU event: the call that launched it and the ranges around that call (-1 where unknown)."""

    at: Ints
    thread: Ints  # as numbered in Ranges.thread
    tid: Ints
    op: Ints  # row of the innermost op in Ranges
    ann: Ints  # row of the innermost annotation, on the launching thread or on the one that waits for it
    op_name: CategoryColumn
    ann_name: CategoryColumn
    chain: CategoryColumn  # names of the ops around the call, from the outermost
    annotations: CategoryColumn  # names of the annotations around it
    called: Bools  # its call is in the file; else at best the op is known that launched it

    @cached_property
    def order(self) -> Ints:
        """Events whose launch is known, in the order they were launched."""
        order = np.argsort(self.at, kind="stable")
        return order[self.at[order] >= 0]

    def ordered(self, mask: Bools) -> Ints:
        """Events of *mask* whose launch is known, in the order they were launched."""
        return self.order[mask[self.order]]


def read_ranges(events: pl.DataFrame) -> tuple[Gpu, Ranges, Launches]:
    """Split *events* into its GPU rows (sorted by start), the CPU ranges, and the launches that join them."""
    source = ColumnReader(events, _ASKED)
    gpu = Gpu(events[_gpu_in_order(source)], _ASKED_ON_GPU)
    calls = _first_calls(source, gpu.int64("correlation"))
    ranges, asked = _nested(source, np.flatnonzero(_of_kind(source, "cpu_op", "annotation")), calls)
    return gpu, ranges, _attach(gpu, ranges, calls, asked)


def _of_kind(source: ColumnReader, *kinds: str) -> Bools:
    kind = source.array("kind")
    of_kind: Bools = np.logical_or.reduce([kind == KINDS.index(one) for one in kinds])
    return of_kind


def _gpu_in_order(source: ColumnReader) -> Ints:
    """Rows of GPU events by start, then id."""
    rows = np.flatnonzero(_of_kind(source, *GPU_KINDS))
    start, number = source.int64("start_ns")[rows], source.int64("id")[rows]
    if bool((number[1:] >= number[:-1]).all()):
        return rows[np.argsort(start, kind="stable")]
    return rows[np.lexsort((number, start))]


@dataclass(frozen=True, eq=False, repr=False)
class _Asked:
    """What is around each call, on its own thread and on the one that drives."""

    thread: Ints
    op: Ints
    ann: Ints
    ann_on_main: Ints


def _nested(source: ColumnReader, kept: Ints, calls: Ints) -> tuple[Ranges, _Asked]:
    """Put the ranges in order and find what is around each of them, and around each call."""
    numbers = rank_pairs(*(to_int64(source.frame[name]) for name in ("pid", "tid")))
    start, end = source.int64("start_ns"), source.int64("end_ns")
    # Of ranges with the same times an op comes before an annotation, as their kinds do.
    rows = arrange(kept, numbers, start, end, source.array("kind"), source.int64("id"))
    del kept
    at = rows.astype(np.intp)  # numpy takes three times as long with rows of 32 bits
    threads, call_threads = numbers[at], numbers[calls]
    del numbers  # memory that was used before costs less than new
    names = source.text_at("name", at)
    is_op = _of_kind(source, "cpu_op")[at]
    if names.answers(_MARKS).any():
        is_op &= ~names.matches(_MARKS)
    main = _main_thread(threads, names)
    asked = start[calls]
    # Every call is looked up on its own thread, and those of the engine on the one that drives, too.
    borrows = np.flatnonzero(_engines(threads, call_threads, names)[call_threads])
    what = np.where(is_op, np.uint8(OP), np.uint8(ANNOTATION))
    where = np.concatenate([call_threads, np.full(len(borrows), main)]), np.concatenate([asked, asked[borrows]])
    found = nest(threads, start[at], end[at], what, names.codes, *where, siblings=True)
    on_main = np.full(len(calls), -1, np.int64)
    on_main[borrows] = found.asked_ann[len(calls) :]
    sequence = source.int64_at("sequence", at)
    around = found.op_of, found.ann_of, found.path, found.before, found.after
    ranges = Ranges(source, rows, names, is_op, as_int32(threads), sequence, *around, main)
    return ranges, _Asked(call_threads, found.asked_op[: len(calls)], found.asked_ann[: len(calls)], on_main)


def op_facts(ranges: Ranges, launches: Launches) -> list[pl.Series]:
    """Return the id, input shapes and input types of the op that launched each GPU event."""
    rows = pl.Series("row", take_or_missing(ranges.rows, launches.op))
    known = pl.when(pl.lit(rows) >= 0).then(pl.lit(rows))
    facts = ranges.source.frame.select(pl.col("id", "shapes", "dtypes").gather(known))
    return facts.rename({"id": "op_id"}).get_columns()


def _first_calls(source: ColumnReader, wanted: Ints) -> Ints:
    """Rows of one call for each correlation that is *wanted*: the earliest, as driver calls sit inside runtime calls.

    They come in the order of their correlations.
    """
    rows = np.flatnonzero(_of_kind(source, "runtime", "driver"))
    number = source.int64_at("correlation", rows)
    asked = is_in_sorted(number, np.sort(wanted, kind="stable")) & (number != NULL_INT64)
    rows, number = rows[asked], number[asked]
    order = np.argsort(number, kind="stable")  # calls come nearly in the order of their numbers
    start = source.int64("start_ns")[rows]
    again = number[order][1:] == number[order][:-1]
    if bool((again & (np.diff(start[order]) < 0)).any()):
        order = np.lexsort((start, number))
    first = np.ones(len(order), np.bool_)
    first[1:] = ~again
    found: Ints = rows[order[first]]
    return found


def _main_thread(threads: Ints, names: CategoryColumn) -> int:
    """Return the main thread: the one with most ops, counting those of the autograd engine out."""
    if not len(threads):
        return -1
    weight = np.where(names.answers("Backward|AccumulateGrad"), 0, 1)
    weight[:-1][[v.startswith("ProfilerStep#") for v in names.values]] = len(threads)
    size = len(weight)
    counts = np.bincount(threads * size + (names.codes + 1))
    counts.resize((int(threads.max()) + 1) * size)
    return int((counts.reshape(-1, size) @ np.roll(weight, 1)).argmax())


def _engines(threads: Ints, call_threads: Ints, names: CategoryColumn) -> Bools:
    """Of every thread: the autograd engine runs nodes on it."""
    engine = np.zeros(int(max(threads.max(initial=-1), call_threads.max(initial=-1))) + 1, np.bool_)
    engine[threads[names.matches(f"^{NODE}")]] = True
    return engine


def _attach(gpu: Gpu, ranges: Ranges, calls: Ints, asked: _Asked) -> Launches:
    known, wanted = ranges.source.int64_at("correlation", calls), gpu.int64("correlation")
    fire = find_sorted(wanted, known)
    # The autograd engine works on threads of its own while the caller waits inside its annotation.
    ann = take_or_missing(np.where(asked.ann < 0, asked.ann_on_main, asked.ann), fire)
    at, tid = (take_or_missing(ranges.source.int64_at(name, calls), fire) for name in ("start_ns", "tid"))
    op, at, thread, tid = _by_external_id(
        gpu, ranges, take_or_missing(asked.op, fire), at, thread=take_or_missing(asked.thread, fire), tid=tid
    )
    chain, annotations = ranges.paths(op, ranges.op_of), ranges.paths(ann, ranges.ann_of)
    names = ranges.name.take(op), ranges.name.take(ann)
    return Launches(at, thread, tid, op, ann, *names, chain, annotations, fire >= 0)


def _by_external_id(
    gpu: Gpu, ranges: Ranges, op: Ints, at: Ints, *, thread: Ints, tid: Ints
) -> tuple[Ints, Ints, Ints, Ints]:
    """Find the op that an event without a call still names, unless external ids merely repeat correlations."""
    lost = at < 0
    if not lost.any() or gpu.is_all_null("external_id"):
        return op, at, thread, tid
    external = gpu.frame["external_id"]
    if int((external == gpu.frame["correlation"]).sum()) > 0.9 * len(gpu):
        return op, at, thread, tid
    ids = ranges.column("external_id", np.arange(len(ranges)))
    known = pl.DataFrame({"external_id": ids}).with_row_index("row").filter(pl.Series(ranges.is_op))
    matched = gpu.frame.select("external_id").join(
        known.unique("external_id", keep="last"), on="external_id", how="left", maintain_order="left"
    )
    row = np.where(lost, to_int64(matched["row"].cast(pl.Int64)), -1)
    use = row >= 0
    if not use.any():
        return op, at, thread, tid
    tids = to_int64(ranges.column("tid", np.arange(len(ranges))))
    return (
        np.where(use, row, op),
        np.where(use, ranges.start(row), at),
        np.where(use, ranges.thread[row], thread),
        np.where(use, tids[row], tid),
    )
