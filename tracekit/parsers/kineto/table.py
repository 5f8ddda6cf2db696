"""Chunks of integers to the events table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit._util.columns import sparse, with_nulls
from tracekit.parsers.kineto import scanner
from tracekit.parsers.kineto.blocks import Scanned
from tracekit.parsers.kineto.names import CATEGORIES, ITEM_BYTES
from tracekit.parsers.kineto.scanner.columns import NARROW, NULL, NULL32, SPARSE, Column
from tracekit.parsers.kineto.texts import DAMAGE, compact, listed, plain
from tracekit.parsers.kineto.worker import Piece
from tracekit.schema import EVENTS, KINDS, UNTIMED, conform

Ints = npt.NDArray[np.int64]

LATEST_NS = 1 << 62
"""No clock shows a time beyond this, or before its negative (the years 1823 and 2116): such a time is damage."""
_MANY = 100_000  # rows above which a second thread pays
_NONE = 2**32 - 1  # in place of a category: no text
UNTIMED_CPU = "CPU events without usable times"
DEVICE_KINDS = ("kernel", "memcpy", "memset", "gpu_annotation")


@dataclass(slots=True)
class Table:
    """The events, how many values of their text were damaged, and the first event that holds one."""

    events: pl.DataFrame
    bad_text: int = 0
    first_bad_text: int | None = None
    untimed: Mapping[str, int] = field(default_factory=dict)
    """Events left out because they have no usable time, by what they are (see ``Source.skipped``)."""
    out_of_range: int = 0
    """Of those, events whose times are numbers, but none that a clock shows."""


def build(scanned: Scanned, *, rank: int, base_ns: int) -> Table:
    """Put the chunks together, column by column, so that never more than one column is held twice."""
    return _Builder(scanned).table(rank, base_ns)


class _Builder:
    def __init__(self, scanned: Scanned) -> None:
        self._parts = scanned.parts
        self._chunks = [chunk for part in scanned.parts for chunk in part.chunks]
        self._texts: list[bytes] = []
        self._first_code: list[int] = []  # where each worker's codes start in the common list
        for worker in scanned.workers:
            self._first_code.append(len(self._texts))
            self._texts += worker.texts()
        self._rows = sum(chunk.rows for chunk in self._chunks)
        self._bad_text = 0
        self._bad_rows: list[int] = []  # the first of each column

    def table(self, rank: int, base_ns: int) -> Table:
        n = self._rows
        frame: dict[str, pl.Series] = {"rank": pl.Series([rank], dtype=pl.Int32).new_from_index(0, n)}
        kind = self._kinds()
        gpu = np.logical_or.reduce([kind == KINDS.index(k) for k in DEVICE_KINDS])
        frame["kind"] = pl.Series(kind).cat.to(pl.Enum(KINDS))
        del kind
        start, length = self._take(Column.TS), self._take(Column.DUR)
        if start is None:
            start = np.full(n, NULL, np.int64)
        placed, out_of_range = _placed(start, length, base_ns)
        start += base_ns  # what overflows here is not placed
        end = start.copy() if length is None else np.add(start, length, out=length, where=length != NULL)
        if length is not None:
            np.copyto(end, start, where=end == NULL)
        frame["start_ns"], frame["end_ns"] = pl.Series(start), pl.Series(end)
        del start, length, end
        if n < _MANY:
            frame |= self._described() | self._numbered(gpu)
        else:
            with ThreadPoolExecutor(1) as aside:  # the two halves take other columns and take as long
                described = aside.submit(self._described)
                frame |= self._numbered(gpu)
                frame |= described.result()
        events = pl.DataFrame(frame)
        if placed is not None:
            events = events.filter(pl.Series(placed))
        untimed = {} if placed is None else _counted(gpu[~placed])
        return Table(conform(events, EVENTS), self._bad_text, self._first_bad(), untimed, out_of_range)

    def _described(self) -> dict[str, pl.Series]:
        """Take what is text, and what few rows have."""
        frame: dict[str, pl.Series] = {}
        for name, column, decode in (
            ("name", Column.NAME, plain),
            ("shapes", Column.SHAPES, compact),
            ("collective", Column.COLLECTIVE, plain),
            ("group", Column.GROUP, plain),
            ("group_desc", Column.GROUP_DESC, plain),
            ("group_ranks", Column.GROUP_RANKS, compact),
            ("dtypes", Column.DTYPES, listed),
        ):
            frame[name] = self._text(column, decode)
        frame["bytes"], frame["received"] = self._bytes()
        if not self._bad_rows:
            self._pieces(Column.EVENT)  # needed to name the first event with damaged text, and no longer
        frame["group"] = _either(frame["group"], self._series(self._take(Column.GROUP_ID)))
        frame["peer"] = self._peer()
        nodes, graphs = self._take(Column.GRAPH_NODE), self._take(Column.GRAPH)
        frame["graph"] = self._series(_first(_no_zero(nodes), _no_zero(graphs)))
        return frame

    def _numbered(self, gpu: npt.NDArray[np.bool_]) -> dict[str, pl.Series]:
        """Take the numbers that most rows have."""
        frame: dict[str, pl.Series] = {}
        frame["id"] = pl.Series(self._places(Column.ID, [part.complete for part in self._parts]))
        pid, tid = self._take(Column.PID), self._take(Column.TID)
        rows = np.flatnonzero(gpu)
        frame["device"] = self._sparse(rows, _own(self._take(Column.DEVICE), pid, rows), np.int32)
        frame["stream"] = self._sparse(rows, _own(self._take(Column.STREAM), tid, rows))
        frame["pid"], frame["tid"] = self._series(pid), self._series(tid)
        del pid, tid, rows
        for name, column in (
            ("correlation", Column.CORRELATION),
            ("external_id", Column.EXTERNAL),
            ("sequence", Column.SEQUENCE),
            ("fwd_thread", Column.FWD_THREAD),
        ):
            frame[name] = self._series(self._take(column))
        return frame

    def _pieces(self, column: Column) -> tuple[list[Piece], Ints] | None:
        """Take what the chunks hold of a column, and how compiled code is told of it; None where no row has a value.

        The chunks give it up: its memory goes back to the system when the column is put together.
        """
        pieces, rows, at = [], [], 0
        for chunk in self._chunks:
            piece, chunk.columns[column] = chunk.columns[column], None
            if piece is None:
                rows.append((at, chunk.rows, 0, SPARSE + NARROW, 0, 0, 0))
            else:
                pieces.append(piece)
                place = (piece.how, piece.address, piece.where)
                rows.append((at, chunk.rows, piece.size, *place, self._first_code[chunk.worker]))
            at += chunk.rows
        return (pieces, np.array(rows, np.int64)) if pieces else None

    def _take(self, column: Column) -> Ints | None:
        """Take one column of all chunks; None when no row has a value."""
        taken = self._pieces(column)
        if taken is None:
            return None
        values = np.empty(self._rows, np.int64)
        scanner.gather(taken[1], values)
        return values

    def _some(self, column: Column) -> tuple[Ints, Ints]:
        """Take a column that few rows have: those rows, and their values."""
        rows, values, at = [np.empty(0, np.int64)], [np.empty(0, np.int64)], 0
        for chunk in self._chunks:
            piece, chunk.columns[column] = chunk.columns[column], None
            if piece is not None:
                here, there = piece.values.astype(np.int64), piece.rows
                present = np.flatnonzero(here != (NULL32 if piece.narrow else NULL)) if there is None else there
                here = here[present] if there is None else here
                rows.append(present + np.int64(at))
                values.append(here)
            at += chunk.rows
        return np.concatenate(rows), np.concatenate(values)

    def _places(self, column: Column, counts: list[int]) -> Ints:
        """Places in the whole file: each chunk counts from its part's first, and a part holds as many as *counts*."""
        places = self._take(column)
        at = offset = 0
        for part, count in zip(self._parts, counts, strict=True):
            rows = sum(chunk.rows for chunk in part.chunks)
            if places is not None:
                places[at : at + rows] += offset
            at, offset = at + rows, offset + count
        return np.empty(0, np.int64) if places is None else places

    def _first_bad(self) -> int | None:
        """Return the first event whose text is damaged. All text has been taken."""
        if not self._bad_rows:
            return None
        return int(self._places(Column.EVENT, [part.events for part in self._parts])[min(self._bad_rows)])

    def _kinds(self) -> npt.NDArray[np.uint8]:
        """Take the categories: of each row the kind."""
        other = KINDS.index("other")

        def numbers(names: list[str]) -> list[int]:
            return [KINDS.index(CATEGORIES.get(name.lower(), "other")) for name in names]

        codes = self._codes(Column.CAT, plain, numbers, none=other)
        return np.full(self._rows, other, np.uint8) if codes is None else codes.astype(np.uint8)

    def _codes(
        self,
        column: Column,
        decode: Callable[[bytes], str],
        numbers: Callable[[list[str]], npt.ArrayLike],
        *,
        none: int = _NONE,
    ) -> npt.NDArray[np.uint32] | None:
        """Take a text column: of each row what *numbers* gives for its text, *none* where it has none.

        Counts the rows with damaged text, and takes the mark of damage off it.
        """
        taken = self._pieces(column)
        if taken is None:
            return None
        pieces = taken[1]
        used = np.zeros(len(self._texts), np.uint8)
        scanner.mark(pieces, used)
        known: dict[str, int] = {}
        codes = np.flatnonzero(used)
        at = np.array([known.setdefault(decode(self._texts[code]), len(known)) for code in codes.tolist()], np.intp)
        names = list(known)
        values = np.empty(self._rows, np.uint32)
        damaged = np.array([DAMAGE in name for name in names], np.bool_)
        if damaged.any():
            scanner.translate(pieces, _table(len(used), codes, damaged[at], 0), values)
            bad = np.flatnonzero(values)
            self._bad_text += len(bad)
            self._bad_rows.append(int(bad[0]))
            names = [name.replace(DAMAGE, "") for name in names]
        table = _table(len(used), codes, np.asarray(numbers(names), np.uint32)[at], none)
        scanner.translate(pieces, table, values)
        return values

    def _text(self, column: Column, decode: Callable[[bytes], str]) -> pl.Series:
        kept: list[pl.Series] = []  # polars forgets categories when no series is left

        def numbers(names: list[str]) -> npt.NDArray[np.uint32]:
            kept.append(pl.Series(names, dtype=pl.Categorical()))
            return kept[0].to_physical().to_numpy()

        codes = self._codes(column, decode, numbers)
        if codes is None:
            return pl.Series([None], dtype=pl.Categorical()).new_from_index(0, self._rows)
        return with_nulls(codes, codes != _NONE).cat.to(pl.Categorical())

    def _sparse(self, rows: Ints, values: Ints | None, dtype: type[np.integer[Any]] = np.int64) -> pl.Series:
        """Make a column of the values that some rows have; what *dtype* cannot hold is left out."""
        if values is None:
            rows = values = np.empty(0, np.int64)
        limits = np.iinfo(dtype)
        known = (values != NULL) & (values >= limits.min) & (values <= limits.max)
        return sparse(self._rows, rows[known], values[known].astype(dtype))

    def _series(self, values: Ints | None) -> pl.Series:
        """Make a column of the values that most rows have, or of nothing."""
        return self._sparse(np.empty(0, np.int64), None) if values is None else with_nulls(values, values != NULL)

    def _peer(self) -> pl.Series:
        """Take whom a message goes to, or where it comes from."""
        (to, receiver), (origin, sender) = self._some(Column.DST), self._some(Column.SRC)
        rows = np.union1d(to, origin)
        values = np.full(len(rows), NULL, np.int64)
        values[np.searchsorted(rows, origin)] = sender
        values[np.searchsorted(rows, to)] = receiver
        return self._sparse(rows, values, np.int32)

    def _bytes(self) -> tuple[pl.Series, pl.Series]:
        """Return what an event moves, and of collectives what comes in: *bytes* is the larger of both ways."""
        (rows, moved), (at, sent) = self._some(Column.BYTES), self._some(Column.IN_NELEMS)
        coming, received = self._some(Column.OUT_NELEMS)
        sizes = self._codes(Column.DTYPE, plain, lambda names: [ITEM_BYTES.get(name, 0) for name in names], none=0)
        known = np.zeros(0, np.int64) if sizes is None else sizes[at].astype(np.int64)
        del sizes
        if not known.any():
            return self._sparse(rows, moved), self._series(None)
        at, sent, known = at[known > 0], sent[known > 0], known[known > 0]
        back = _looked_up(at, coming, received)
        both = np.union1d(rows, at)
        values = np.empty(len(both), np.int64)
        values[np.searchsorted(both, rows)] = moved
        values[np.searchsorted(both, at)] = _product(np.maximum(sent, back), known)
        incoming = np.where(back != NULL, _product(back, known), NULL)
        return self._sparse(both, values), self._sparse(at, incoming)


def _table(size: int, codes: Ints, numbers: npt.NDArray[Any], none: int) -> npt.NDArray[np.uint32]:
    """Return for each code of text its number, and last what stands for none."""
    table = np.full(size + 1, none, np.uint32)
    table[codes] = numbers
    return table


def _looked_up(wanted: Ints, rows: Ints, values: Ints) -> Ints:
    """Return the values that the wanted rows have; both in order."""
    at = np.minimum(np.searchsorted(rows, wanted), max(len(rows) - 1, 0))
    if not len(rows):
        return np.full(len(wanted), NULL, np.int64)
    return np.where(rows[at] == wanted, values[at], NULL)


def _product(counts: Ints, sizes: Ints) -> Ints:
    """Return counts times sizes; nothing where 64 bits do not hold it."""
    fits = (counts >= 0) & (counts <= (2**63 - 1) // np.maximum(sizes, 1))
    return np.where(fits, np.where(fits, counts, 0) * sizes, NULL)


def _placed(start: Ints, length: Ints | None, base_ns: int) -> tuple[npt.NDArray[np.bool_] | None, int]:
    """Return which events have a place in time, None where all do; and how many have one that no clock shows.

    Sums of such times would wrap around: 64 bits hold 292 years of nanoseconds.
    """
    if not len(start):
        return None, 0
    low, high = max(-LATEST_NS - base_ns, NULL + 1), min(LATEST_NS - base_ns, 2**63 - 1)
    longest = 0 if length is None else max(0, int(length.max()))
    if int(start.min()) >= low and int(start.max()) <= high - longest:
        return None, 0
    known = start != NULL
    placed = known & (start >= low) & (start <= high)
    if length is not None:
        placed[placed] &= (length[placed] == NULL) | (length[placed] <= high - start[placed])
    return placed, int(np.count_nonzero(known & ~placed))


def _counted(gpu: npt.NDArray[np.bool_]) -> dict[str, int]:
    """Count what was left out for its time, by where it ran."""
    lost = int(np.count_nonzero(gpu))
    return {key: count for key, count in ((UNTIMED, lost), (UNTIMED_CPU, len(gpu) - lost)) if count}


def _own(values: Ints | None, fallback: Ints | None, rows: Ints) -> Ints | None:
    """Take GPU events' own values, or where the file shows them."""
    return _first(None if values is None else values[rows], None if fallback is None else fallback[rows])


def _first(values: Ints | None, fallback: Ints | None) -> Ints | None:
    if values is None or fallback is None:
        return fallback if values is None else values
    return np.where(values == NULL, fallback, values)


def _no_zero(values: Ints | None) -> Ints | None:
    if values is not None:
        values[values == 0] = NULL
    return values


def _either(group: pl.Series, old: pl.Series) -> pl.Series:
    """Take the group's name, or the number that files before mid 2024 give instead."""
    if old.null_count() == len(old):
        return group
    return pl.select(pl.coalesce(group.cast(pl.String), old.cast(pl.String)).cast(pl.Categorical())).to_series()
