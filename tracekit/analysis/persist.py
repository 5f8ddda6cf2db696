"""A rank's tables as one file: what ``combine`` needs of a rank, written by the worker that read its trace.

The file is a zip that any tool opens: a Parquet member per table, and ``tables.json`` for the rest. Reading it
runs nothing: only the classes listed here are built, and only from their own fields.
"""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

from tracekit._version import __version__
from tracekit.analysis.tables import Measures, RankTables
from tracekit.errors import InputError, Notice
from tracekit.intervals import Intervals
from tracekit.metrics.budget import Budget
from tracekit.metrics.chunks import ChunkMemory
from tracekit.metrics.memory import Peak, RankMemory
from tracekit.metrics.rates import Rates
from tracekit.schema import ProcessGroup, Source

FILE = "tables.zip"
FORMAT = "tracekit.tables/1"
_JSON = "tables.json"
_KIND = "$"
"""Marks an object that JSON has no word for; no field of ours begins so."""


def write_tables(tables: RankTables, folder: Path) -> Path:
    """Write a rank's tables into its folder of a store; return the file.

    >>> import tempfile
    >>> from tracekit.run.measure import Options
    >>> from tracekit.store.sources import find
    >>> made = Options().source_tables(find("sample_traces/reload", ranks=[0])[0][0])[0]
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = write_tables(made, folder)
    >>> read_tables(folder).operations.equals(made.operations)
    True
    """
    frames: dict[str, pl.DataFrame] = {}
    value = _encode(tables, "", frames, {})
    document = {"format": FORMAT, "tracekit": __version__, "tables": value}
    with zipfile.ZipFile(folder / FILE, "w") as packed:
        packed.writestr(_member(_JSON), json.dumps(document))
        for name, frame in frames.items():
            buffer = io.BytesIO()
            frame.write_parquet(buffer, compression="zstd", statistics=False)
            packed.writestr(_member(f"{name}.parquet"), buffer.getvalue())
    return folder / FILE


def _member(name: str) -> zipfile.ZipInfo:
    """Return a member without a time: the same tables are the same bytes, and no clock is too early for the format."""
    return zipfile.ZipInfo(name)


LATER = ("path",)
"""Fields of a rank that are read each time they are asked for, and not kept: two thirds of a rank's tables."""
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile, pl.exceptions.PolarsError)


class StoredTables(RankTables):
    """A rank's tables in a store; those of ``LATER`` stay there until they are asked for."""

    file: Path
    later: Mapping[str, Any]

    def __getattr__(self, name: str) -> Any:
        if name not in LATER:
            raise AttributeError(name)
        try:
            with zipfile.ZipFile(self.file) as packed:
                return _decode(self.later[name], packed, {})
        except _UNREADABLE as error:
            raise InputError(f"{self.file}: is damaged: {error}", hint="ingest the traces again") from error

    def without_pipeline(self) -> StoredTables:
        """Return the tables for an analysis that asks for no schedule."""
        return _stored(self.__dict__ | {"pipeline": None})

    def __reduce__(self) -> tuple[Any, ...]:
        names = [field.name for field in dataclasses.fields(RankTables)]
        return _whole, (dict(zip(names, (getattr(self, name) for name in names), strict=True)),)


def _whole(fields: dict[str, Any]) -> RankTables:
    """Return tables that need no store: what travels to another process takes everything along."""
    return RankTables(**fields)


def read_tables(folder: Path) -> StoredTables | None:
    """Return a rank's tables; None where there are none, or another version measured them: measure again."""
    try:
        with zipfile.ZipFile(folder / FILE) as packed:
            document = json.loads(packed.read(_JSON))
            if document["format"] != FORMAT or document["tracekit"] != __version__:
                return None
            value = document["tables"]
            if value[_KIND] != RankTables.__name__:
                return None
            later = {name: value["of"].pop(name) for name in LATER}
            seen: dict[str, Any] = {}
            # What a store lacks that was written before a field was thought of has its default.
            known = RankTables(**{name: _decode(item, packed, seen) for name, item in value["of"].items()})
    except _UNREADABLE:
        return None  # the labelled events beside it say the same
    kept = {name: item for name, item in vars(known).items() if name not in LATER}
    return _stored({**kept, "file": folder / FILE, "later": later})


def _stored(fields: dict[str, Any]) -> StoredTables:
    made = StoredTables.__new__(StoredTables)
    made.__dict__.update(fields)
    return made


@cache
def _classes() -> dict[str, type[Any]]:
    from tracekit.reconstruct import RankPipeline

    known = (
        RankTables,
        Measures,
        Budget,
        Rates,
        RankMemory,
        Peak,
        ChunkMemory,
        Source,
        ProcessGroup,
        Notice,
        RankPipeline,
    )
    return {cls.__name__: cls for cls in known}


def _encode(value: Any, at: str, frames: dict[str, pl.DataFrame], seen: dict[int, str]) -> Any:
    """Return *value* as JSON data; tables go to *frames* under their place, *at*."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, pl.DataFrame | Intervals):
        frames[at] = value if isinstance(value, pl.DataFrame) else value.to_frame()
        return {_KIND: "table" if isinstance(value, pl.DataFrame) else "Intervals", "at": at}
    if isinstance(value, tuple):
        return {_KIND: "tuple", "of": [_encode(item, f"{at}.{i}", frames, seen) for i, item in enumerate(value)]}
    if isinstance(value, Mapping):
        return {str(key): _encode(item, f"{at}.{key}", frames, seen) for key, item in value.items()}
    return _encode_object(value, at, frames, seen)


def _encode_object(value: Any, at: str, frames: dict[str, pl.DataFrame], seen: dict[int, str]) -> Any:
    if id(value) in seen:  # a run of one step measures its window and its step as one
        return {_KIND: "same", "as": seen[id(value)]}
    name = type(value).__name__
    assert name in _classes(), f"{at}: {name} has no place in a store"
    seen[id(value)] = at
    return {
        _KIND: name,
        "at": at,
        "of": {
            field.name: _encode(getattr(value, field.name), f"{at}.{field.name}".lstrip("."), frames, seen)
            for field in dataclasses.fields(value)
        },
    }


def _decode(value: Any, packed: zipfile.ZipFile, seen: dict[str, Any]) -> Any:
    if not isinstance(value, dict):
        return value
    kind = value.get(_KIND)
    if kind is None:
        return {key: _decode(item, packed, seen) for key, item in value.items()}
    if kind == "tuple":
        return tuple(_decode(item, packed, seen) for item in value["of"])
    if kind in ("table", "Intervals"):
        frame = pl.read_parquet(packed.read(f"{value['at']}.parquet"), hive_partitioning=False)
        return frame if kind == "table" else _intervals(frame)
    return seen[value["as"]] if kind == "same" else _decode_object(kind, value, packed, seen)


def _intervals(frame: pl.DataFrame) -> Intervals:
    return Intervals(frame["group"].to_numpy(), frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy())


def _decode_object(kind: str, value: Any, packed: zipfile.ZipFile, seen: dict[str, Any]) -> Any:
    made = _classes()[kind](**{name: _decode(item, packed, seen) for name, item in value["of"].items()})
    seen[value["at"]] = made
    return made
