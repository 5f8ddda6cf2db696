"""Host ranges of one rank (ops and annotations), and the place in them at which each GPU event was launched."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._loops import nesting
from tracekit._loops.nesting import ANNOTATION, OP
from tracekit._util.arrays import (
    AnyInts,
    Bools,
    Int32s,
    Ints,
    as_flags,
    as_int32,
    as_int64,
    find_sorted,
    group_rows,
    is_in_sorted,
    rank_pairs,
    take_or_missing,
)
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import NULL_INT64, ColumnReader, to_int64
from tracekit.classify.names import RANGES
from tracekit.classify.row_order import mask_of_rows
from tracekit.schema import GPU_KINDS, KINDS, PATH_SEPARATOR

MIN_GRAPH_EVENTS = 8
"""GPU events of one launch call from which on the call replays a graph; other calls launch one or
two."""


class Nested(NamedTuple):
    """Innermost op and annotation around each range and each point; -1 where none."""

    op_of: Int32s
    ann_of: Int32s
    path: Ints  # hash of the names from the outermost op down to an op; for an annotation, of the annotations
    previous_op: (
        Int32s  # of an op: the op before it in the same op; empty unless siblings were asked for
    )
    next_op: Int32s
    point_op: Ints
    point_annotation: Ints


def nest(
    *,
    thread: Ints,
    start: Ints,
    end: Ints,
    kind: npt.NDArray[Any],
    name: AnyInts,
    point_thread: Ints,
    point_time: Ints,
    siblings: bool = False,
) -> Nested:
    """Find what is around every range and every point, on its own thread.

    A range contains the moment at which it starts, not the one at which it ends.

    Args:
        thread: Thread of each range. Ranges are sorted by thread, then start, the longer first.
        start: Start of each range.
        end: End of each range.
        kind: ``OP`` or ``ANNOTATION``.
        name: Code of each range's name.
        point_thread: Thread of each point. Points come in any order.
        point_time: Time of each point.
        siblings: Find the op before and after each op, too.

    >>> same = np.zeros(2, np.int64)
    >>> nested = nest(thread=same, start=np.array([0, 2]), end=np.array([9, 5]), kind=np.array([OP, OP]), name=same,
    ...     point_thread=np.zeros(1, np.int64), point_time=np.array([3]))
    >>> nested.op_of.tolist(), nested.point_op.tolist(), nested.point_annotation.tolist()
    ([-1, 0], [1], [-1])
    """
    ranges = len(start)
    order = np.lexsort((point_time, point_thread))
    op_of = np.empty(ranges, np.int32)
    ann_of = np.empty(ranges, np.int32)
    path = np.empty(ranges, np.uint64)
    neighbours = np.empty((2, ranges if siblings else 0), np.int32)
    sorted_op, sorted_annotation = np.full((2, len(order)), -1, np.int64)
    nesting.nest(
        thread=as_int64(thread),
        start=as_int64(start),
        end=as_int64(end),
        kind=np.ascontiguousarray(kind, np.uint8),
        name=as_int32(name),
        point_thread=as_int64(point_thread[order]),
        point_time=as_int64(point_time[order]),
        stacks=np.empty((3, ranges + 1), np.int32),
        op_around=op_of,
        annotation_around=ann_of,
        path_hash=path,
        siblings=neighbours,
        op_around_point=sorted_op,
        annotation_around_point=sorted_annotation,
    )
    # The loop visits points in sorted order: put its results back into the caller's order.
    point_op, point_annotation = np.empty((2, len(order)), np.int64)
    point_op[order] = sorted_op
    point_annotation[order] = sorted_annotation
    return Nested(
        op_of=op_of,
        ann_of=ann_of,
        path=path.view(np.int64),
        previous_op=neighbours[0],
        next_op=neighbours[1],
        point_op=point_op,
        point_annotation=point_annotation,
    )


def nearest_marked_ancestor(parent: AnyInts, marked: Bools) -> Int32s:
    """Return for every row the nearest *marked* row at or above it; -1 where none.

    Parents come before children.

    >>> nearest_marked_ancestor(np.array([-1, 0, 1]), np.array([False, True, False])).tolist()
    [-1, 1, 1]
    """
    nearest = np.full(len(parent), -1, np.int32)
    nesting.find_nearest_marked(as_int32(parent), as_flags(marked), nearest)
    return nearest


def compose_paths(
    names: CategoryColumn, parents: AnyInts, path_hash: Ints, rows: AnyInts
) -> CategoryColumn:
    """Join the names from the outermost range down to each of *rows*; null for a negative row.

    Each distinct path, known by its *path_hash*, is built once.
    """

    def path(row: int) -> str:
        names_inwards: list[str] = []
        while row >= 0:
            name = names.value(row)
            names_inwards.insert(0, "?" if name is None else name)
            row = int(parents[row])
        return PATH_SEPARATOR.join(names_inwards)

    inside = np.flatnonzero(rows >= 0)
    code, first = group_rows(path_hash[rows[inside]])
    texts = tuple(path(int(row)) for row in rows[inside[first]])
    return CategoryColumn(texts, code).spread(inside, len(rows))


EVALUATE_NODE = "autograd::engine::evaluate_function: "
"""Prefix of the range in which the autograd engine evaluates one node."""
_EVENT_COLUMNS = ("id", "kind", "name", "start_ns", "end_ns")
"""Columns read for all events. Other columns are looked up for the few rows that need them."""
_GPU_COLUMNS = (
    "kind",
    "name",
    "start_ns",
    "end_ns",
    "device",
    "stream",
    "correlation",
    "external_id",
    "collective",
    "group",
    "group_desc",
    "group_ranks",
    "peer",
    "bytes",
    "received",
    "graph",
    "step",
    "collective_seq",
)
_MAX_EQUAL_IDS_SHARE = 0.9
"""Share of GPU events whose external id equals their correlation, above which external ids name no
ops."""


class GpuEvents(ColumnReader):
    """GPU events of one rank, sorted by start."""

    @cached_property
    def names(self) -> CategoryColumn:
        """Name of each event."""
        return self.text("name")

    @cached_property
    def is_kernel(self) -> Bools:
        """Mask of kernels."""
        return self.text("kind").any_of("kernel")

    @cached_property
    def stream_number(self) -> Ints:
        """Number of each event's device and stream, from 0."""
        return rank_pairs(self.int64("device"), self.int64("stream"))


@dataclass(frozen=True, eq=False, repr=False)
class Ranges:
    """Ops and annotations of all threads, sorted so that a parent comes before its children."""

    source: ColumnReader  # all events in the order of the file
    rows: Int32s  # row of each range in the source
    name: CategoryColumn
    is_op: Bools
    thread: Int32s  # number of each range's process and thread
    sequence: Ints  # autograd sequence number, -1 where none
    op_of: Int32s  # row of the op around this range, -1 where none
    ann_of: Int32s  # row of the annotation around this range, -1 where none
    path: Ints  # equal for equal names from the thread's outermost op (or annotation) down to this one
    previous_op: Int32s  # of an op: the op before it in the same op, -1 where none
    next_op: Int32s
    main_thread: int  # number of the thread that drives the program

    def __len__(self) -> int:
        return len(self.rows)

    def start(self, rows: AnyInts | None = None) -> Ints:
        """Return the start of *rows*, or of all ranges."""
        return self.source.int64_at("start_ns", self.rows if rows is None else self.rows[rows])

    def end(self, rows: AnyInts) -> Ints:
        """Return the end of *rows*."""
        return self.source.int64_at("end_ns", self.rows[rows])

    def column(self, name: str, rows: AnyInts) -> pl.Series:
        """Return one column of the events at *rows*."""
        return self.source.frame[name][self.rows[rows]]

    def text(self, name: str, rows: AnyInts) -> CategoryColumn:
        """Return one text column at *rows*; null for a negative row."""
        is_row = np.flatnonzero(rows >= 0)
        return self.source.text_at(name, self.rows[rows[is_row]]).spread(is_row, len(rows))

    def rows_with(self, name: str) -> Ints:
        """Return the ranges that have a value in a text column."""
        return np.flatnonzero(self.source.present(name).take(self.rows))

    @cached_property
    def _collectives(self) -> tuple[Ints, CategoryColumn]:
        rows = self.rows_with("collective")
        return rows, self.text("collective", rows)

    def collective_rows(self, *calls: str) -> Ints:
        """Return the ranges that call one of these collectives; any collective if none is named."""
        rows, text = self._collectives
        return rows[text.any_of(*calls)] if calls else rows

    def collective(self, rows: Ints) -> CategoryColumn:
        """Return the collective that each of *rows* calls."""
        all_rows, text = self._collectives
        return text.take(find_sorted(rows, all_rows))

    def name_matches(self, rows: AnyInts, pattern: str) -> Bools:
        """Return which of *rows* have a name in which *pattern* is found.

        A negative row has no name.
        """
        return self.name.take(rows).matches(pattern)

    def op_around(self, rows: Ints, pattern: str) -> Ints:
        """Return for each of *rows* the nearest op at or above it whose name matches *pattern*.

        -1 where none.
        """
        wanted = self.name.answers(pattern)
        if not wanted.any():
            return np.full(len(rows), -1, np.int64)
        nearest = nearest_marked_ancestor(self.op_of, self.is_op & self.name.look_up(wanted))
        return take_or_missing(nearest, rows)

    @cached_property
    def accumulating(self) -> Ints:
        """Ranges of ``AccumulateGrad`` nodes inside their evaluations.

        Each adds up one parameter's gradient.
        """
        wanted = self.name.answers(r"AccumulateGrad\Z") & ~self.name.answers(f"^{EVALUATE_NODE}")
        return np.flatnonzero(self.name.look_up(wanted))

    def paths(self, rows: AnyInts, parents: AnyInts) -> CategoryColumn:
        """Return the path of names of each of *rows*; null for a negative row."""
        return compose_paths(self.name, parents, self.path, rows)


@dataclass(frozen=True, eq=False, repr=False)
class Launches:
    """For every GPU event: the call that launched it, and the ranges around that call.

    -1 where unknown.
    """

    start_ns: Ints  # start of the call
    thread: Ints  # as numbered in ``Ranges.thread``
    tid: Ints
    op: Ints  # row of the innermost op in ``Ranges``
    annotation: Ints  # row of the innermost annotation, on the launching thread or on the one that waits for it
    op_name: CategoryColumn
    annotation_name: CategoryColumn
    chain: CategoryColumn  # names of the ops around the call, outermost first
    annotations: CategoryColumn  # names of the annotations around the call, outermost first
    has_call: Bools  # False if the file lacks the call; then at best the launching op is known

    @cached_property
    def order(self) -> Ints:
        """Events whose launch is known, in launch order."""
        order = np.argsort(self.start_ns, kind="stable")
        return order[self.start_ns[order] >= 0]

    @cached_property
    def replay(self) -> Ints:
        """Number that the events of one replay of a graph share, as do the launches between two replays."""
        start_ns = self.start_ns[self.order]
        begins_call = np.diff(start_ns, prepend=start_ns[:1] - 1) != 0
        call = np.cumsum(begins_call) - 1
        in_graph = (np.bincount(call) >= MIN_GRAPH_EVENTS)[call]
        begins_replay = begins_call & (in_graph | np.append(False, in_graph)[:-1])
        number = np.full(len(self.start_ns), -1, np.int64)
        number[self.order] = np.cumsum(begins_replay)
        return number

    def ordered(self, mask: Bools) -> Ints:
        """Return the events of *mask* whose launch is known, in launch order."""
        return self.order[mask[self.order]]

    def by_thread(self, rows: Ints) -> Ints:
        """Return *rows* by launching thread, then launch time."""
        return rows[np.lexsort((self.start_ns[rows], self.thread[rows]))]


def read_ranges(events: pl.DataFrame) -> tuple[GpuEvents, Ranges, Launches]:
    """Split *events* into GPU events, host ranges, and the launches that connect them."""
    source = ColumnReader(_begin_behind_closures(events), _EVENT_COLUMNS)
    gpu = GpuEvents(events[_sort_gpu_rows(source)], _GPU_COLUMNS)
    calls = _launch_calls(source, gpu.int64("correlation"))
    range_rows = np.flatnonzero(_is_kind(source, "cpu_op", "annotation"))
    ranges, call_sites = _nest_ranges(source, range_rows, calls)
    return gpu, ranges, _connect_launches(gpu, ranges, call_sites)


def _begin_behind_closures(events: pl.DataFrame) -> pl.DataFrame:
    """Let an optimizer's annotation begin behind the last backward inside it.

    ``optimizer.step(closure)`` runs the forward and the backward itself, as Lightning does with every
    optimizer: what it updates comes last.
    """
    names = events["name"].unique().drop_nulls()
    texts = names.cast(pl.String)
    of_optimizer = names.filter(texts.str.contains(RANGES["optimizer"]))
    of_nodes = names.filter(texts.str.starts_with(EVALUATE_NODE))
    if of_optimizer.is_empty() or of_nodes.is_empty():
        return events
    name = pl.col("name")
    times = pl.col("start_ns", "end_ns")
    is_mark = (pl.col("kind") == "annotation") & name.is_in(of_optimizer.implode())
    marks = events.lazy().with_row_index().filter(is_mark).select("index", times).collect()
    if marks.is_empty():
        return events
    is_node = (pl.col("kind") == "cpu_op") & name.is_in(of_nodes.implode())
    by_end = events.lazy().filter(is_node).select(times).sort("end_ns").collect()
    node_ends_ns = by_end["end_ns"].to_numpy()
    if not len(node_ends_ns):
        return events
    last = np.searchsorted(node_ends_ns, marks["end_ns"].to_numpy()) - 1
    last_start_ns = by_end["start_ns"].gather(np.maximum(last, 0))
    last_end_ns = pl.Series(node_ends_ns[np.maximum(last, 0)])
    has_closure = pl.Series(last >= 0) & (last_start_ns >= marks["start_ns"])
    start_ns = events["start_ns"].scatter(
        marks["index"].filter(has_closure), last_end_ns.filter(has_closure)
    )
    return events.with_columns(start_ns)


def ranges_around_calls(events: pl.DataFrame, calls: Ints) -> tuple[Ranges, Ints]:
    """Return the host ranges of *events*, and the innermost op around each of the *calls* (rows); -1 where none."""
    source = ColumnReader(events, _EVENT_COLUMNS)
    range_rows = np.flatnonzero(_is_kind(source, "cpu_op", "annotation"))
    ranges, call_sites = _nest_ranges(source, range_rows, calls)
    return ranges, call_sites.op


def _is_kind(source: ColumnReader, *kinds: str) -> Bools:
    """Return the mask of events of one of these kinds."""
    kind_code = source.array("kind")
    mask: Bools = np.logical_or.reduce([kind_code == KINDS.index(kind) for kind in kinds])
    return mask


def _sort_gpu_rows(source: ColumnReader) -> Ints:
    """Return the rows of GPU events by start, then id."""
    rows = np.flatnonzero(_is_kind(source, *GPU_KINDS))
    return rows[np.lexsort((source.int64("id")[rows], source.int64("start_ns")[rows]))]


def _launch_calls(source: ColumnReader, correlations: Ints) -> Ints:
    """Return one call for each of the *correlations* that the file has calls of, in the order of correlations.

    Of several calls with one correlation it is the earliest, because driver calls lie inside
    runtime calls.
    """
    rows = np.flatnonzero(_is_kind(source, "runtime", "driver"))
    number = source.int64_at("correlation", rows)
    is_wanted = is_in_sorted(number, np.sort(correlations, kind="stable")) & (number != NULL_INT64)
    rows = rows[is_wanted]
    number = number[is_wanted]
    order = np.lexsort((source.int64("start_ns")[rows], number))
    is_earliest = np.append(True, np.diff(number[order]) != 0)[: len(order)]
    first_calls: Ints = rows[order[is_earliest]]
    return first_calls


class _CallSites(NamedTuple):
    """Launch calls, and what is around each on its thread."""

    row: Ints
    """Row of the call in the source."""
    thread: Ints
    op: Ints
    """Row of the innermost op in ``Ranges``; -1 where none."""
    annotation: Ints
    """Row of the innermost annotation, of a call of the autograd engine on the thread that waits
    for it."""


def _nest_ranges(source: ColumnReader, range_rows: Ints, calls: Ints) -> tuple[Ranges, _CallSites]:
    """Sort the ranges, and find what is around each range and each call.

    The autograd engine works on threads of its own while the caller waits inside its annotation.
    """
    thread_of_event = rank_pairs(to_int64(source.frame["pid"]), to_int64(source.frame["tid"]))
    rows = sort_ranges(source, range_rows, thread_of_event)
    threads = thread_of_event[rows]
    names = source.text_at("name", rows)
    is_op = _is_kind(source, "cpu_op")[rows]
    if names.answers(RANGES["profiler_mark"]).any():
        is_op &= ~names.matches(RANGES["profiler_mark"])
    main_thread = _find_main_thread(threads, names)

    # Every call is looked up on its own thread. Calls of the autograd engine are looked up on the
    # main thread, too.
    start = source.int64("start_ns")
    call_start = start[calls]
    call_threads = thread_of_event[calls]
    engine_calls = np.flatnonzero(_engine_threads(threads, call_threads, names)[call_threads])
    nested = nest(
        thread=threads,
        start=start[rows],
        end=source.int64("end_ns")[rows],
        kind=np.where(is_op, np.uint8(OP), np.uint8(ANNOTATION)),
        name=names.codes,
        point_thread=np.concatenate([call_threads, np.full(len(engine_calls), main_thread)]),
        point_time=np.concatenate([call_start, call_start[engine_calls]]),
        siblings=True,
    )
    annotation, main_annotation = np.split(nested.point_annotation, [len(calls)])
    engine_annotation = annotation[engine_calls]
    annotation[engine_calls] = np.where(engine_annotation < 0, main_annotation, engine_annotation)
    ranges = Ranges(
        source=source,
        rows=as_int32(rows),
        name=names,
        is_op=is_op,
        thread=as_int32(threads),
        sequence=source.int64_at("sequence", rows),
        op_of=nested.op_of,
        ann_of=nested.ann_of,
        path=nested.path,
        previous_op=nested.previous_op,
        next_op=nested.next_op,
        main_thread=main_thread,
    )
    return ranges, _CallSites(calls, call_threads, nested.point_op[: len(calls)], annotation)


def sort_ranges(source: ColumnReader, range_rows: Ints, thread_of_event: Ints) -> Ints:
    """Return the rows of ranges by thread and start, the longest first.

    Of equal times an op before an annotation.
    """
    start_ns = source.int64("start_ns")[range_rows]
    thread = thread_of_event[range_rows]
    order = np.lexsort((start_ns, thread))
    # Few ranges start together on a thread: only these are compared further.
    start_ns = start_ns[order]
    thread = thread[order]
    starts_with_next = (start_ns[1:] == start_ns[:-1]) & (thread[1:] == thread[:-1])
    is_tied = np.append(False, starts_with_next) | np.append(starts_with_next, False)
    tied = np.flatnonzero(is_tied)
    rows = range_rows[order[tied]]
    keys = (  # the last one is compared first
        source.int64("id")[rows],
        source.array("kind")[rows],
        -source.int64("end_ns")[rows],
        start_ns[tied],
        thread[tied],
    )
    sorted_rows = range_rows[order]
    sorted_rows[tied] = rows[np.lexsort(keys)]
    return sorted_rows


def _find_main_thread(threads: Ints, names: CategoryColumn) -> int:
    """Return the thread with most ranges, not counting autograd nodes.

    One with profiler steps wins; -1 if none.
    """
    if not len(threads):
        return -1
    weight = np.where(names.answers("Backward|AccumulateGrad"), 0, 1)
    weight[:-1][[name.startswith("ProfilerStep#") for name in names.values]] = len(threads)
    return int(np.bincount(threads, weights=names.look_up(weight)).argmax())


def _engine_threads(threads: Ints, call_threads: Ints, names: CategoryColumn) -> Bools:
    """Return for every thread whether the autograd engine evaluates nodes on it."""
    count = int(max(threads.max(initial=-1), call_threads.max(initial=-1))) + 1
    return mask_of_rows(count, threads[names.matches(f"^{EVALUATE_NODE}")])


def _connect_launches(gpu: GpuEvents, ranges: Ranges, call_sites: _CallSites) -> Launches:
    """Find the call of every GPU event, and from it the thread, the op and the annotation."""
    source = ranges.source
    calls = call_sites.row
    call = find_sorted(gpu.int64("correlation"), source.int64_at("correlation", calls))
    start_ns = take_or_missing(source.int64_at("start_ns", calls), call)
    tid = take_or_missing(source.int64_at("tid", calls), call)
    thread = take_or_missing(call_sites.thread, call)
    op = take_or_missing(call_sites.op, call)
    annotation = take_or_missing(call_sites.annotation, call)
    named_op = ops_by_external_id(gpu, ranges, start_ns < 0)
    is_named = named_op >= 0
    if is_named.any():  # what the op says stands in for the lost call
        tid_of_range = to_int64(ranges.column("tid", np.arange(len(ranges))))
        start_ns = np.where(is_named, ranges.start(named_op), start_ns)
        tid = np.where(is_named, tid_of_range[named_op], tid)
        thread = np.where(is_named, ranges.thread[named_op], thread)
        op = np.where(is_named, named_op, op)
    return Launches(
        start_ns=start_ns,
        thread=thread,
        tid=tid,
        op=op,
        annotation=annotation,
        op_name=ranges.name.take(op),
        annotation_name=ranges.name.take(annotation),
        chain=ranges.paths(op, ranges.op_of),
        annotations=ranges.paths(annotation, ranges.ann_of),
        has_call=call >= 0,
    )


def ops_by_external_id(gpu: GpuEvents, ranges: Ranges, lost: Bools) -> Ints:
    """Return the op that each *lost* event names by its external id; -1 where none.

    Some files write the correlation into the external id. Then it names no op.
    """
    none = np.full(len(gpu), -1, np.int64)
    if not lost.any() or gpu.is_all_null("external_id"):
        return none
    if int(
        (gpu.frame["external_id"] == gpu.frame["correlation"]).sum()
    ) > _MAX_EQUAL_IDS_SHARE * len(gpu):
        return none
    ids = ranges.column("external_id", np.arange(len(ranges)))
    ops = pl.DataFrame({"external_id": ids}).with_row_index("row").filter(pl.Series(ranges.is_op))
    matched = gpu.frame.select("external_id").join(
        ops.unique("external_id", keep="last"), on="external_id", how="left", maintain_order="left"
    )
    return np.where(lost, to_int64(matched["row"].cast(pl.Int64)), -1)


def launching_op_columns(ranges: Ranges, launches: Launches) -> list[pl.Series]:
    """Return the id and the recorded inputs of the op that launched each GPU event."""
    rows = pl.Series("row", take_or_missing(ranges.rows, launches.op))
    row_or_null = pl.when(pl.lit(rows) >= 0).then(pl.lit(rows))
    columns = ranges.source.frame.select(
        pl.col("id", "shapes", "dtypes", "concrete", "strides").gather(row_or_null)
    )
    return columns.rename({"id": "op_id"}).get_columns()
