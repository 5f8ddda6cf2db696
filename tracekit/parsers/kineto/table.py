"""Chunks of integers to the events table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.parsers.kineto.blocks import Scanned
from tracekit.parsers.kineto.scanner.columns import NULL, NULL32, Column
from tracekit.parsers.kineto.worker import Chunk, Piece
from tracekit.schema import EVENTS, KINDS, UNTIMED, conform

Ints = npt.NDArray[np.int64]

CATEGORIES = {
    "kernel": "kernel",
    "mtia_ccp_events": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
    "cpu_op": "cpu_op",
    "operator": "cpu_op",
    "cuda_runtime": "runtime",
    "runtime": "runtime",
    "hip_runtime": "runtime",
    "xpu_runtime": "runtime",
    "mtia_runtime": "runtime",
    "glow_runtime": "runtime",
    "privateuse1_runtime": "runtime",
    "cuda_driver": "driver",
    "hip_driver": "driver",
    "xpu_driver": "driver",
    "privateuse1_driver": "driver",
    "user_annotation": "annotation",
    "gpu_user_annotation": "gpu_annotation",
    "python_function": "python",
    "overhead": "overhead",
    "cuda_sync": "sync",
}
"""The profiler's categories, in lower case (files of 2021 capitalise them), and the kind each is."""

LATEST_NS = 1 << 62
"""No clock shows a time beyond this, or before its negative (the years 1823 and 2116): such a time is damage."""
UNTIMED_CPU = "CPU events without usable times"
DEVICE_KINDS = ("kernel", "memcpy", "memset", "gpu_annotation")

ITEM_BYTES = {
    "Byte": 1,
    "Char": 1,
    "Bool": 1,
    "Short": 2,
    "Half": 2,
    "BFloat16": 2,
    "Int": 4,
    "Float": 4,
    "Long": 8,
    "Double": 8,
    "ComplexHalf": 4,
    "ComplexFloat": 8,
    "ComplexDouble": 16,
    "QInt8": 1,
    "QUInt8": 1,
    "QInt32": 4,
    "UInt16": 2,
    "UInt32": 4,
    "UInt64": 8,
    "Float8_e5m2": 1,
    "Float8_e4m3fn": 1,
    "Float8_e5m2fnuz": 1,
    "Float8_e4m3fnuz": 1,
    "Float8_e8m0fnu": 1,
}
"""Size of an element, by the name the profiler gives its type."""


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
        category, names = self._codes(Column.CAT, _plain)
        kinds = np.array([KINDS.index(CATEGORIES.get(c.lower(), "other")) for c in [*names, ""]], np.uint8)
        kind = kinds[category] if category is not None else np.full(n, KINDS.index("other"), np.uint8)
        del category
        gpu = np.isin(kind, [KINDS.index(k) for k in DEVICE_KINDS])
        start, length = self._take(Column.TS), self._take(Column.DUR)
        if start is None:
            start = np.full(n, NULL, np.int64)
        placed, out_of_range = _placed(start, length, base_ns)
        start += base_ns  # what overflows here is not placed
        end = start.copy() if length is None else np.add(start, length, out=length, where=length != NULL)
        if length is not None:
            np.copyto(end, start, where=end == NULL)
        untimed = {} if placed is None else _counted(gpu[~placed])
        frame: dict[str, pl.Series] = {
            "rank": pl.Series([rank], dtype=pl.Int32).new_from_index(0, n),
            "id": pl.Series(self._places(Column.ID, [part.complete for part in self._parts])),
            "kind": pl.Series(kind).cat.to(pl.Enum(KINDS)),
            "name": self._text(Column.NAME),
            "start_ns": pl.Series(start),
            "end_ns": pl.Series(end),
        }
        del start, length, end
        pid, tid = self._take(Column.PID), self._take(Column.TID)
        frame["device"] = self._series(_where(gpu, self._take(Column.DEVICE), pid), pl.Int32())
        frame["stream"] = self._series(_where(gpu, self._take(Column.STREAM), tid))
        frame["pid"], frame["tid"] = self._series(pid), self._series(tid)
        del pid, tid, gpu
        for name, column in (
            ("correlation", Column.CORRELATION),
            ("external_id", Column.EXTERNAL),
            ("sequence", Column.SEQUENCE),
            ("fwd_thread", Column.FWD_THREAD),
        ):
            frame[name] = self._series(self._take(column))
        frame["shapes"] = self._text(Column.SHAPES, _compact)
        frame["collective"] = self._text(Column.COLLECTIVE)
        frame["group"] = _either(self._text(Column.GROUP), self._series(self._take(Column.GROUP_ID)))
        frame["group_desc"] = self._text(Column.GROUP_DESC)
        frame["group_ranks"] = self._text(Column.GROUP_RANKS, _compact)
        frame["peer"] = self._series(_first(self._take(Column.DST), self._take(Column.SRC)), pl.Int32())
        moved, received = self._bytes()
        frame["bytes"], frame["received"] = self._series(moved), self._series(received)
        frame["dtypes"] = self._text(Column.DTYPES, _list)
        nodes, graphs = self._take(Column.GRAPH_NODE), self._take(Column.GRAPH)
        frame["graph"] = self._series(_first(_no_zero(nodes), _no_zero(graphs)))
        events = pl.DataFrame(frame)
        if placed is not None:
            events = events.filter(pl.Series(placed))
        return Table(conform(events, EVENTS), self._bad_text, self._first_bad(), untimed, out_of_range)

    def _take(self, column: Column) -> Ints | None:
        """Take one column of all chunks, which give it up; None when no row has a value."""
        if all(chunk.columns[column] is None for chunk in self._chunks):
            return None
        values = np.full(self._rows, NULL, np.int64)
        for _, rows, piece in self._pieces(column):
            here = values[rows]
            if piece.where is not None:
                here[piece.where] = piece.values
                continue
            here[:] = piece.values
            if not piece.full and piece.values.dtype == np.int32:
                here[piece.values == NULL32] = NULL
        return values

    def _pieces(self, column: Column) -> Iterator[tuple[Chunk, slice, Piece]]:
        """Yield what each chunk holds of a column, and which rows that is of; the chunks give it up."""
        at = 0
        for chunk in self._chunks:
            piece, chunk.columns[column] = chunk.columns[column], None
            rows = slice(at, at + chunk.rows)
            at += chunk.rows
            if piece is not None:
                yield chunk, rows, piece

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
        if not self._bad_rows:
            return None
        return int(self._places(Column.EVENT, [part.events for part in self._parts])[min(self._bad_rows)])

    def _codes(self, column: Column, decode: Callable[[bytes], str]) -> tuple[npt.NDArray[np.int32] | None, list[str]]:
        """Take a text column: codes into a list of distinct strings, -1 for none."""
        if all(chunk.columns[column] is None for chunk in self._chunks):
            return None, []
        none = len(self._texts)
        values = np.full(self._rows, -1, np.int32)
        table = np.full(none + 1, -1, np.int32)
        known: dict[str, int] = {}
        for chunk, rows, piece in self._pieces(column):
            codes = piece.values + np.int32(self._first_code[chunk.worker])
            if not piece.full and piece.where is None:
                codes[piece.values == NULL32] = none
            numbers = table[codes]
            if (numbers < 0).any():
                new = np.zeros(none + 1, np.bool_)
                new[codes[numbers < 0]] = True
                for code in np.flatnonzero(new[:none]).tolist():
                    table[code] = known.setdefault(decode(self._texts[code]), len(known))
                numbers = table[codes]
            here = values[rows]
            here[slice(None) if piece.where is None else piece.where] = numbers
        return values, self._repaired(values, list(known))

    def _repaired(self, codes: npt.NDArray[np.int32], names: list[str]) -> list[str]:
        """Count the rows with damaged text, and take its mark off."""
        damaged = np.array([*(_DAMAGE in name for name in names), False])
        if not damaged.any():
            return names
        bad = np.flatnonzero(damaged[codes])
        self._bad_text += len(bad)
        self._bad_rows.append(int(bad[0]))
        return [name.replace(_DAMAGE, "") for name in names]

    def _text(self, column: Column, decode: Callable[[bytes], str] | None = None) -> pl.Series:
        codes, names = self._codes(column, decode or _plain)
        if codes is None:
            return pl.Series([None], dtype=pl.Categorical()).new_from_index(0, self._rows)
        categories = pl.Series(names, dtype=pl.Categorical())  # polars forgets them when no series is left
        physical = categories.to_physical().to_numpy()
        series = pl.Series(np.append(physical, physical[:1])[codes])
        missing = codes < 0
        if missing.any():
            series = series.set(pl.Series(missing), None)
        text = series.cat.to(pl.Categorical())
        del categories
        return text

    def _series(self, values: Ints | None, dtype: pl.DataType | None = None) -> pl.Series:
        if values is None:
            return pl.Series([None], dtype=dtype or pl.Int64()).new_from_index(0, self._rows)
        series = pl.Series(values)
        missing = values == NULL
        if missing.any():
            series = series.set(pl.Series(missing), None)
        return series.cast(dtype, strict=False) if dtype else series

    def _bytes(self) -> tuple[Ints | None, Ints | None]:
        """Return what an event moves, and of collectives what comes in: *bytes* is the larger of both ways."""
        values = self._take(Column.BYTES)
        sent, received = self._take(Column.IN_NELEMS), self._take(Column.OUT_NELEMS)
        codes, names = self._codes(Column.DTYPE, _plain)
        if sent is None or codes is None:
            return values, None
        if values is None:
            values = np.full(self._rows, NULL, np.int64)
        sizes = np.array([ITEM_BYTES.get(name, 0) for name in names] + [0], np.int64)[codes]
        known = (sent != NULL) & (sizes > 0)
        most = sent[known] if received is None else np.maximum(sent[known], received[known])
        values[known] = _product(most, sizes[known])
        incoming = None if received is None else np.where(known & (received != NULL), _product(received, sizes), NULL)
        return values, incoming


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


def _where(gpu: npt.NDArray[np.bool_], values: Ints | None, fallback: Ints | None) -> Ints | None:
    """Take a GPU event's own value, or where the file shows it; nothing for the rest."""
    own = _first(values, fallback)
    return None if own is None or not gpu.any() else np.where(gpu, own, NULL)


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


_DAMAGE = "\udfff"  # half of a letter: text that is whole never holds it
_HALVES = re.compile("[\ud800-\udfff]")


def _plain(raw: bytes) -> str:
    """Read a JSON string's text. Damage (bad bytes, escapes, control characters) is read as it stands, and marked."""
    try:
        text = raw.decode()
        return _whole(str(json.loads(f'"{text}"'))) if "\\" in text or not text.isprintable() else text
    except ValueError:
        return _repair(raw)


def _repair(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    try:
        return _whole(str(json.loads(f'"{text}"', strict=False))) + _DAMAGE
    except ValueError:
        return text + _DAMAGE


def _list(raw: bytes) -> str:
    """A list of words without the spaces between them; what is not JSON stays as it is."""
    text = raw.decode("utf-8", "replace")
    try:
        return json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _whole(text: str) -> str:
    r"""Mark and replace halves of letters: JSON can spell them, no text can hold them.

    >>> _whole("a\ud800").removesuffix(_DAMAGE)
    'a\ufffd'
    """
    if text.isascii():
        return text
    clean = _HALVES.sub("\N{REPLACEMENT CHARACTER}", text)
    return text if clean == text else clean + _DAMAGE


def _compact(raw: bytes) -> str:
    """Numbers in brackets without the spaces."""
    text = raw.decode("utf-8", "replace")
    return "".join(text.split()) if '"' not in text else text
