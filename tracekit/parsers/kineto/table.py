"""Chunks of integers to the events table."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from tracekit.parsers.kineto.blocks import Scanned
from tracekit.parsers.kineto.columns import NULL, Column
from tracekit.schema import EVENTS, KINDS, conform

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
    """The events, and how many values of their text were damaged."""

    events: pl.DataFrame
    bad_text: int = 0


def build(scanned: Scanned, *, rank: int, base_ns: int) -> Table:
    """Put the chunks together, column by column, so that never more than one column is held twice."""
    return _Builder(scanned).table(rank, base_ns)


class _Builder:
    def __init__(self, scanned: Scanned) -> None:
        self._chunks = [chunk for part in scanned.parts for chunk in part.chunks]
        self._texts = [worker.texts() for worker in scanned.workers]
        self._rows = sum(chunk.rows for chunk in self._chunks)
        self.bad_text = 0
        offset = 0
        for part in scanned.parts:  # ids count on from part to part
            for chunk in part.chunks:
                ids = chunk.columns[Column.ID]
                if ids is not None:
                    chunk.columns[Column.ID] = ids + np.int64(offset)
            offset += part.complete

    def table(self, rank: int, base_ns: int) -> Table:
        n = self._rows
        start = self._take(Column.TS)
        start += base_ns
        length = self._take(Column.DUR)
        length[length == NULL] = 0
        category, names = self._codes(Column.CAT, _plain)
        kinds = np.array([KINDS.index(CATEGORIES.get(c.lower(), "other")) for c in names] + [KINDS.index("other")])
        kind = kinds[category].astype(np.uint8)
        gpu = np.isin(kind, [KINDS.index(k) for k in DEVICE_KINDS])
        frame: dict[str, pl.Series] = {
            "rank": pl.Series([rank], dtype=pl.Int32).new_from_index(0, n),
            "id": pl.Series(self._take(Column.ID)),
            "kind": pl.Series(kind).cat.to(pl.Enum(KINDS)),
            "name": self._text(Column.NAME),
            "start_ns": pl.Series(start),
            "end_ns": pl.Series(start + length),
        }
        del start, length, category
        pid, tid = self._take(Column.PID), self._take(Column.TID)
        frame["device"] = _nullable(_where(gpu, self._take(Column.DEVICE), pid), pl.Int32())
        frame["stream"] = _nullable(_where(gpu, self._take(Column.STREAM), tid))
        frame["pid"], frame["tid"] = _nullable(pid), _nullable(tid)
        del pid, tid, gpu
        frame["correlation"] = _nullable(self._take(Column.CORRELATION))
        frame["external_id"] = _nullable(self._take(Column.EXTERNAL))
        frame["sequence"] = _nullable(self._take(Column.SEQUENCE))
        frame["fwd_thread"] = _nullable(self._take(Column.FWD_THREAD))
        frame["shapes"] = self._text(Column.SHAPES, _compact)
        frame["collective"] = self._text(Column.COLLECTIVE)
        group, old = self._text(Column.GROUP), _nullable(self._take(Column.GROUP_ID))
        frame["group"] = group if old.null_count() == n else _either(group, old)
        frame["group_desc"] = self._text(Column.GROUP_DESC)
        frame["group_ranks"] = self._text(Column.GROUP_RANKS, _compact)
        frame["peer"] = _nullable(_first(self._take(Column.DST), self._take(Column.SRC)), pl.Int32())
        frame["bytes"] = _nullable(self._bytes())
        graph = _first(_no_zero(self._take(Column.GRAPH_NODE)), _no_zero(self._take(Column.GRAPH)))
        frame["graph"] = _nullable(graph)
        return Table(conform(pl.DataFrame(frame), EVENTS), self.bad_text)

    def _take(self, column: Column) -> Ints:
        """One column of all chunks, which give it up."""
        values = np.full(self._rows, NULL, np.int64)
        at = 0
        for chunk in self._chunks:
            part, chunk.columns[column] = chunk.columns[column], None
            if part is not None:
                here = values[at : at + chunk.rows]
                here[:] = part
                if part.dtype == np.int32:
                    here[part == np.iinfo(np.int32).min] = NULL
            at += chunk.rows
        return values

    def _codes(self, column: Column, decode: Callable[[bytes], str]) -> tuple[npt.NDArray[np.int32], list[str]]:
        """A text column: codes into a list of distinct strings, -1 for none."""
        values = np.full(self._rows, -1, np.int32)
        known: dict[str, int] = {}
        maps = [np.full(len(texts), -1, np.int32) for texts in self._texts]
        at = 0
        for chunk in self._chunks:
            codes, chunk.columns[column] = chunk.columns[column], None
            here = values[at : at + chunk.rows]
            at += chunk.rows
            if codes is None:
                continue
            present = codes >= 0
            used, table, texts = codes[present], maps[chunk.worker], self._texts[chunk.worker]
            for code in np.unique(used[table[used] < 0]).tolist():
                table[code] = known.setdefault(decode(texts[code]), len(known))
            here[present] = table[used]
        return values, list(known)

    def _text(self, column: Column, decode: Callable[[bytes], str] | None = None) -> pl.Series:
        codes, names = self._codes(column, decode or _plain)
        if not names:
            return pl.Series([None], dtype=pl.Categorical()).new_from_index(0, self._rows)
        damaged = np.array([_marked(name) for name in names])
        if damaged.any():
            self.bad_text += int(np.append(damaged, False)[codes].sum())
            names = [name.translate(_UNMARK) for name in names]
        categories = pl.Series(names, dtype=pl.Categorical())
        index = pl.Series(codes)
        return categories.gather(index.set(index < 0, None) if (codes < 0).any() else index)

    def _bytes(self) -> Ints:
        values = self._take(Column.BYTES)
        sent, received = self._take(Column.IN_NELEMS), self._take(Column.OUT_NELEMS)
        codes, names = self._codes(Column.DTYPE, _plain)
        sizes = np.array([ITEM_BYTES.get(name, 0) for name in names] + [0], np.int64)[codes]
        known = (sent != NULL) & (sizes > 0)
        values[known] = (np.maximum(sent, received) * sizes)[known]
        return values


def _where(gpu: npt.NDArray[np.bool_], values: Ints, fallback: Ints) -> Ints:
    """A GPU event's own value, or where the file shows it; nothing for the rest."""
    return np.where(gpu, np.where(values == NULL, fallback, values), NULL)


def _first(values: Ints, fallback: Ints) -> Ints:
    return np.where(values == NULL, fallback, values)


def _no_zero(values: Ints) -> Ints:
    values[values == 0] = NULL
    return values


def _either(group: pl.Series, old: pl.Series) -> pl.Series:
    pair = pl.DataFrame({"new": group, "old": old})
    return pair.select(
        pl.coalesce(pl.col("new").cast(pl.String), pl.col("old").cast(pl.String)).cast(pl.Categorical())
    )["new"]


def _nullable(values: Ints, dtype: pl.DataType | None = None) -> pl.Series:
    series = pl.Series(values)
    missing = values == NULL
    if missing.any():
        series = series.set(pl.Series(missing), None)
    return series.cast(dtype, strict=False) if dtype else series


_DAMAGE = "\ue000"
_UNMARK = {ord(_DAMAGE): None}


def _marked(text: str) -> bool:
    return _DAMAGE in text


def _plain(raw: bytes) -> str:
    """A JSON string's text. Damage (bad bytes, escapes, control characters) is read as it stands, and marked."""
    try:
        text = raw.decode()
        return str(json.loads(f'"{text}"')) if "\\" in text or not text.isprintable() else text
    except ValueError:
        return _repair(raw)


def _repair(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    try:
        return json.loads(f'"{text}"', strict=False) + _DAMAGE
    except ValueError:
        return text + _DAMAGE


def _compact(raw: bytes) -> str:
    """Numbers in brackets without the spaces."""
    text = raw.decode("utf-8", "replace")
    return "".join(text.split()) if '"' not in text else text
