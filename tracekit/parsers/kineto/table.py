"""Tables of events and of allocations, built from the columns that the scanner filled."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import polars as pl

from tracekit._loops.event_columns import EventColumn
from tracekit._loops.json_scanner import NULL
from tracekit._util.arrays import Ints, find_sorted, take_or_missing
from tracekit._util.columns import sparse, with_nulls
from tracekit.parsers.kineto.inputs import keep_concrete_inputs, keep_strides
from tracekit.parsers.kineto.texts import DAMAGE, compact_json, decode_string, remove_blanks
from tracekit.parsers.kineto.vocabulary import CATEGORIES, ITEM_BYTES, MEMORY_COLUMNS
from tracekit.parsers.kineto.worker import ScannedPart
from tracekit.parsers.long_names import shorten_name
from tracekit.schema import EVENTS, KINDS, LATEST_NS, MEMORY, UNTIMED, conform

UNTIMED_CPU = "CPU events without usable times"
DEVICE_KINDS = ("kernel", "memcpy", "memset", "gpu_annotation")
TEXTS = {
    "name": EventColumn.NAME,
    "collective": EventColumn.COLLECTIVE,
    "group": EventColumn.GROUP,
    "group_desc": EventColumn.GROUP_DESC,
}
"""Columns of ``schema.EVENTS`` that are texts of the file."""
JSON_TEXTS: dict[str, tuple[EventColumn, Callable[[bytes], str]]] = {
    "shapes": (EventColumn.SHAPES, remove_blanks),
    "group_ranks": (EventColumn.GROUP_RANKS, remove_blanks),
    "dtypes": (EventColumn.DTYPES, compact_json),
}
"""Columns of ``schema.EVENTS`` that are JSON as text, and how the file's JSON is shortened."""
INPUT_TEXTS: dict[str, tuple[EventColumn, Callable[[str], str | None]]] = {
    "concrete": (EventColumn.CONCRETE, keep_concrete_inputs),
    "strides": (EventColumn.STRIDES, keep_strides),
}
"""Columns of ``schema.EVENTS`` that are JSON as text, and what of the file's JSON is kept."""
NUMBERS = {
    "correlation": EventColumn.CORRELATION,
    "external_id": EventColumn.EXTERNAL,
    "sequence": EventColumn.SEQUENCE,
    "fwd_thread": EventColumn.FWD_THREAD,
}
"""Columns of ``schema.EVENTS`` that are numbers of the file."""


@dataclass(slots=True)
class EventTable:
    """Events of one file, and what was damaged or left out."""

    events: pl.DataFrame
    """One row per complete event (``schema.EVENTS``)."""
    bad_texts: int = 0
    """Number of damaged texts."""
    untimed: Mapping[str, int] = field(default_factory=dict)
    """Events left out because they have no usable time, by what they are (see
    ``Source.skipped``)."""
    out_of_range: int = 0
    """Of those, events whose times are numbers, but none that a clock shows."""
    long_names: int = 0
    """Number of texts that were shortened."""


def build_memory(parts: Iterable[ScannedPart], *, rank: int, base_ns: int) -> pl.DataFrame:
    """Return the allocator's events by time (``schema.MEMORY``), without those whose time no clock shows."""
    rows = list(chain.from_iterable(part.memory for part in parts))
    if not rows:
        return MEMORY.to_frame()
    frame = (
        pl.DataFrame(np.concatenate(rows), schema=list(MEMORY_COLUMNS))
        .filter(pl.col("at_ns").is_between(*_clock_range(base_ns)))
        .with_columns(pl.when(pl.all() != NULL).then(pl.all()))
        .with_columns(
            pl.col("device_type").cast(MEMORY["device_type"], strict=False),
            pl.col("device").cast(MEMORY["device"], strict=False),
            at_ns=pl.col("at_ns") + base_ns,
            rank=pl.lit(rank, pl.Int32),
        )
    )
    return conform(frame, MEMORY).sort("at_ns", maintain_order=True)


def link_by_external_id(events: pl.DataFrame) -> pl.DataFrame:
    """Return events whose external ids are correlations as such, if the file has no correlations.

    Old recordings of AMD GPUs give each call of the runtime an external id of its own, which the
    kernel that it launches has as well. External ids of operators are counted separately there:
    they name no call.
    """
    if not events["correlation"].is_null().all() or events["external_id"].is_null().all():
        return events
    is_call = events["kind"].is_in(["runtime", "driver"])
    is_gpu = events["kind"].is_in(DEVICE_KINDS)
    calls = events["external_id"].filter(is_call).drop_nulls()
    launched = events["external_id"].filter(is_gpu).drop_nulls()
    names_one_call = (
        len(launched) > 0 and calls.is_unique().all() and launched.is_in(calls.implode()).all()
    )
    if not names_one_call:
        return events
    is_linked = is_call | is_gpu
    return events.with_columns(
        correlation=pl.when(is_linked).then("external_id"),
        external_id=pl.when(~is_linked).then("external_id"),
    )


class TableBuilder:
    """Builder of the table of events, column by column: a column's memory is released when it is taken."""

    def __init__(
        self,
        parts: Sequence[ScannedPart],
        texts: Iterable[list[bytes]],
        *,
        decode: Callable[[bytes], str] = decode_string,
    ) -> None:
        """Take the columns of *parts*.

        Args:
            parts: Stretches of events, in the order of the file.
            texts: Text by code of each worker that scanned.
            decode: How the file's texts are decoded.
        """
        self._parts = parts
        self._chunks = list(chain.from_iterable(part.chunks for part in parts))
        self._rows = sum(chunk.rows for chunk in self._chunks)
        self._texts: list[bytes] = []
        self._first_code: list[int] = []  # by worker: where its codes start in self._texts
        for worker_texts in texts:
            self._first_code.append(len(self._texts))
            self._texts += worker_texts
        self._decode = decode
        self._bad_texts = 0
        self._long_texts: set[str] = set()  # texts that were shortened

    def build(self, *, rank: int, base_ns: int) -> EventTable:
        """Return the table of events; *base_ns* is added to all times."""
        kinds = pl.Enum(KINDS)
        kind = self._look_up(
            EventColumn.CAT, self._decode, lambda category: CATEGORIES.get(category.lower()), kinds
        )
        kind = kind.fill_null("other")
        is_gpu = kind.is_in(DEVICE_KINDS)
        times = _event_times(
            self._series(self._take(EventColumn.TS)),
            self._series(self._take(EventColumn.DUR)),
            base_ns,
        )
        columns = {
            "kind": kind,
            "start_ns": times["start_ns"],
            "end_ns": times["end_ns"],
        }
        gpu_rows = is_gpu.arg_true().to_numpy().astype(np.int64)
        with ThreadPoolExecutor(1) as pool:  # both halves take about as long
            text_columns = pool.submit(self._text_columns)
            columns |= self._number_columns(gpu_rows)
            columns |= text_columns.result()
        with_values = {
            name: column
            for name, column in columns.items()
            if name == "kind" or column.null_count() < self._rows
        }
        events = pl.DataFrame(with_values).with_columns(rank=pl.lit(rank, pl.Int32))
        untimed: dict[str, int] = {}
        out_of_range = 0
        if not times["is_usable"].all():
            events = events.filter(times["is_usable"])
            gpu_count = int(is_gpu.filter(~times["is_usable"]).sum())
            counts = {UNTIMED: gpu_count, UNTIMED_CPU: int((~times["is_usable"]).sum()) - gpu_count}
            for key, count in counts.items():
                if count:
                    untimed[key] = count
            out_of_range = int(
                times.select(pl.col("is_number") & ~pl.col("is_usable")).to_series().sum()
            )
        return EventTable(
            link_by_external_id(conform(events, EVENTS)),
            self._bad_texts,
            untimed,
            out_of_range,
            len(self._long_texts),
        )

    def _text_columns(self) -> dict[str, pl.Series]:
        """Return the columns of texts, and those that few rows have."""
        columns = {}
        for name, column in TEXTS.items():
            columns[name] = self._look_up(column, self._decode, self._shorten)
        for name, (column, shorten) in JSON_TEXTS.items():
            columns[name] = self._look_up(column, shorten)
        for name, (column, keep) in INPUT_TEXTS.items():
            columns[name] = self._look_up(column, remove_blanks, keep)
        columns["bytes"], columns["received"] = self._bytes()
        columns["group"] = _fill_groups(
            columns["group"], self._series(self._take(EventColumn.GROUP_ID))
        )
        columns["peer"] = self._peer()
        columns["collective_seq"] = self._sparse(*self._take_present(EventColumn.COLLECTIVE_SEQ))
        node = self._take(EventColumn.GRAPH_NODE)
        graph = self._take(EventColumn.GRAPH)
        columns["graph"] = self._series(_coalesce(_zero_as_null(node), _zero_as_null(graph)))
        return columns

    def _number_columns(self, gpu_rows: Ints) -> dict[str, pl.Series]:
        """Return the columns of numbers that most rows have."""
        pid = self._take(EventColumn.PID)
        tid = self._take(EventColumn.TID)
        # GPU events without a device or stream among their arguments show them as process and
        # thread.
        device = _coalesce(_at(self._take(EventColumn.DEVICE), gpu_rows), _at(pid, gpu_rows))
        stream = _coalesce(_at(self._take(EventColumn.STREAM), gpu_rows), _at(tid, gpu_rows))
        return {
            "id": pl.Series(self._ids()),
            "device": self._sparse(gpu_rows, device, np.int32),
            "stream": self._sparse(gpu_rows, stream),
            "pid": self._series(pid),
            "tid": self._series(tid),
            **{name: self._series(self._take(column)) for name, column in NUMBERS.items()},
        }

    def _take(self, column: EventColumn, *, is_text: bool = False) -> Ints | None:
        """Return one column of all rows, ``NULL`` where there is no value; None if no row has one.

        Text is returned as indexes of ``self._texts``.
        """
        if not any(column in chunk.columns for chunk in self._chunks):
            return None
        taken = np.empty(self._rows, np.int64)
        first_row = 0
        for chunk in self._chunks:
            part = chunk.columns.pop(column, None)
            values = taken[first_row : first_row + chunk.rows]
            first_row += chunk.rows
            if part is None:
                values[:] = NULL
                continue
            first_code = self._first_code[chunk.worker] if is_text else 0
            if part.rows is None:
                np.add(part.values, first_code, out=values)
                if part.has_nulls:
                    values[part.is_null] = NULL
            else:
                values[:] = NULL
                values[part.rows] = part.values.astype(np.int64) + first_code
        return taken

    def _take_present(self, column: EventColumn) -> tuple[Ints, Ints]:
        """Return the rows that have a value in a column, and the values: for columns that few rows have."""
        rows = [np.empty(0, np.int64)]
        values = [np.empty(0, np.int64)]
        first_row = 0
        for chunk in self._chunks:
            part = chunk.columns.pop(column, None)
            if part is not None:
                present = np.flatnonzero(~part.is_null)
                rows.append(
                    first_row + (present if part.rows is None else part.rows.astype(np.int64))
                )
                values.append(part.values[present].astype(np.int64))
            first_row += chunk.rows
        return np.concatenate(rows), np.concatenate(values)

    def _ids(self) -> Ints:
        """Return the numbers of the events, which count from the start of each part, as numbers of the file."""
        numbers = self._take(EventColumn.ID)
        if numbers is None:
            return np.empty(0, np.int64)
        first_row = first_number = 0
        for part in self._parts:
            last_row = first_row + sum(chunk.rows for chunk in part.chunks)
            numbers[first_row:last_row] += first_number
            first_row = last_row
            first_number = first_number + part.complete
        return numbers

    def _look_up(
        self,
        column: EventColumn,
        decode: Callable[[bytes], str],
        convert: Callable[[str], Any] = str,
        dtype: pl.DataType | None = None,
    ) -> pl.Series:
        """Return a column of texts, each decoded and converted once. Damaged texts are counted."""
        dtype = dtype or pl.Categorical()
        codes = self._take(column, is_text=True)
        if codes is None:
            return pl.Series([None], dtype=dtype).new_from_index(0, self._rows)
        codes[codes == NULL] = len(self._texts)  # no text is at this index, and values[-1] is null
        is_used = np.zeros(len(self._texts) + 1, np.bool_)
        is_used[codes] = True
        values: list[Any] = [None] * len(is_used)
        is_damaged = np.zeros(len(is_used), np.bool_)
        for code in np.flatnonzero(is_used[:-1]).tolist():
            text = decode(self._texts[code])
            is_damaged[code] = DAMAGE in text
            values[code] = convert(text.replace(DAMAGE, ""))
        if is_damaged.any():
            self._bad_texts += int(is_damaged[codes].sum())
        return pl.Series(values, dtype=dtype).gather(codes.astype(np.uint32))

    def _shorten(self, text: str) -> str:
        """Return a text as it is, or a long one shortened and counted."""
        shortened = shorten_name(text)
        if shortened is not text:
            self._long_texts.add(shortened)
        return shortened

    def _series(self, values: Ints | None) -> pl.Series:
        """Return a column of numbers that most rows have, or of nulls."""
        return (
            self._sparse(np.empty(0, np.int64), None)
            if values is None
            else with_nulls(values, values != NULL)
        )

    def _sparse(
        self, rows: Ints, values: Ints | None, dtype: type[np.integer[Any]] = np.int64
    ) -> pl.Series:
        """Return a column of the values of some rows, without those that do not fit into *dtype*."""
        if values is None:
            rows = values = np.empty(0, np.int64)
        limits = np.iinfo(dtype)
        fits = (values != NULL) & (values >= limits.min) & (values <= limits.max)
        return sparse(self._rows, rows[fits], values[fits].astype(dtype))

    def _peer(self) -> pl.Series:
        """Return the rank a message goes to, or else the one it comes from."""
        (to_rows, destination) = self._take_present(EventColumn.DST)
        (from_rows, origin) = self._take_present(EventColumn.SRC)
        rows = np.union1d(to_rows, from_rows)
        peers = np.full(len(rows), NULL, np.int64)
        peers[np.searchsorted(rows, from_rows)] = origin
        peers[np.searchsorted(rows, to_rows)] = destination
        return self._sparse(rows, peers, np.int32)

    def _bytes(self) -> tuple[pl.Series, pl.Series]:
        """Return the bytes that events move, of collectives the larger of both directions.

        And the bytes received.
        """
        rows, moved = self._take_present(EventColumn.BYTES)
        collective_rows, sent = self._take_present(EventColumn.IN_NELEMS)
        out_rows, out_elements = self._take_present(EventColumn.OUT_NELEMS)
        item_bytes = self._look_up(EventColumn.DTYPE, self._decode, ITEM_BYTES.get, pl.Int64())
        sizes = item_bytes.gather(collective_rows).fill_null(0).to_numpy()
        if not sizes.any():
            return self._sparse(rows, moved), self._series(None)
        has_size = sizes > 0
        collective_rows = collective_rows[has_size]
        sent = sent[has_size]
        sizes = sizes[has_size]
        received = take_or_missing(out_elements, find_sorted(collective_rows, out_rows), NULL)
        all_rows = np.union1d(rows, collective_rows)
        values = np.empty(len(all_rows), np.int64)
        values[np.searchsorted(all_rows, rows)] = moved
        values[np.searchsorted(all_rows, collective_rows)] = _multiply(
            np.maximum(sent, received), sizes
        )
        received_bytes = np.where(received != NULL, _multiply(received, sizes), NULL)
        return self._sparse(all_rows, values), self._sparse(collective_rows, received_bytes)


def _multiply(counts: Ints, sizes: Ints) -> Ints:
    """Return counts times sizes, ``NULL`` where 64 bits do not hold it."""
    fits = (counts >= 0) & (counts <= (2**63 - 1) // np.maximum(sizes, 1))
    return np.where(fits, np.where(fits, counts, 0) * sizes, NULL)


def _clock_range(base_ns: int) -> tuple[int, int]:
    """Return the earliest and the latest time that a clock shows, less *base_ns*."""
    return max(-LATEST_NS - base_ns, NULL + 1), min(LATEST_NS - base_ns, 2**63 - 1)


def _event_times(start: pl.Series, duration: pl.Series, base_ns: int) -> pl.DataFrame:
    """Return ``start_ns`` and ``end_ns``, whether the start ``is_number``, and whether both times are ``is_usable``.

    A clock shows them then. Sums of other times would wrap around: 64 bits hold 292 years of
    nanoseconds.
    """
    earliest, latest = _clock_range(base_ns)
    start_ns = pl.col("start") + base_ns
    is_usable = pl.col("start").is_between(earliest, latest) & (
        pl.col("duration") <= latest - pl.col("start")
    )
    return pl.DataFrame({"start": start, "duration": duration.fill_null(0)}).select(
        start_ns=start_ns,
        end_ns=start_ns + pl.col("duration"),
        is_number=pl.col("start").is_not_null(),
        is_usable=is_usable.fill_null(False),
    )


def _at(values: Ints | None, rows: Ints) -> Ints | None:
    return None if values is None else values[rows]


def _coalesce(values: Ints | None, fallback: Ints | None) -> Ints | None:
    """Return *values*, and *fallback* where they are null."""
    if values is None or fallback is None:
        return fallback if values is None else values
    return np.where(values == NULL, fallback, values)


def _zero_as_null(values: Ints | None) -> Ints | None:
    if values is not None:
        values[values == 0] = NULL
    return values


def _fill_groups(names: pl.Series, numbers: pl.Series) -> pl.Series:
    """Return the groups' names, or else the numbers that files before mid 2024 have instead."""
    if numbers.null_count() == len(numbers):
        return names
    return pl.select(
        pl.coalesce(names.cast(pl.String), numbers.cast(pl.String)).cast(pl.Categorical())
    ).to_series()
