"""A rank's tables as one file: what ``combine`` needs of a rank, written by the worker that read its trace.

The file is a zip that any tool opens: a member per table, an Arrow stream (as small as Parquet where tables are, and
read in a fifth of the time), and ``tables.json`` for the rest. Reading it runs nothing: only the classes listed here
are built, and only from their own fields.
"""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from tracekit._version import __version__
from tracekit.analysis.stored import (
    TABLE,
    UNREADABLE,
    Later,
    Members,
    Stored,
    StoredMeasures,
    StoredPipeline,
    StoredTables,
    intervals_of,
)
from tracekit.analysis.tables import Measures, RankTables
from tracekit.errors import InputError, Notice
from tracekit.intervals import Intervals
from tracekit.metrics.budget import Budget
from tracekit.metrics.chunk_memory import ChunkMemory
from tracekit.metrics.memory import Peak, RankMemory
from tracekit.metrics.rates import Rates
from tracekit.schema import ProcessGroup, Source

FILE = "tables.zip"
FORMAT = "tracekit.tables/2"
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
            frame.write_ipc_stream(buffer, compression="zstd")
            packed.writestr(_member(f"{name}{TABLE}"), buffer.getvalue())
    return folder / FILE


def _member(name: str) -> zipfile.ZipInfo:
    """Return a member without a time: the same tables are the same bytes, and no clock is too early for the format."""
    return zipfile.ZipInfo(name)


def read_tables(folder: Path) -> StoredTables | None:
    """Return a rank's tables; None where there are none, or another version measured them: measure again.

    Tables stay in the file until they are asked for.
    """
    file = folder / FILE
    try:
        with zipfile.ZipFile(file) as packed:
            document = json.loads(packed.read(_JSON))
            if document["format"] != FORMAT or document["tracekit"] != __version__:
                return None
            if document["tables"][_KIND] != RankTables.__name__:
                return None
            tables: StoredTables = _decode(document["tables"], Members(file, packed), {})
    except UNREADABLE:
        return None  # the labelled events beside it say the same
    return tables


def _read_again(folder: Path, *, pipeline: bool = True) -> StoredTables:
    """Return the tables of a folder that had some."""
    tables = read_tables(folder)
    if tables is None:
        raise InputError(f"{folder / FILE}: cannot be read", hint="analyze the store again, where workers can reach it")
    return tables if pipeline else tables.without_pipeline()


def _pipeline_again(folder: Path) -> Any:
    return _read_again(folder).pipeline


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
        return {_KIND: "table" if isinstance(value, pl.DataFrame) else "Intervals", "at": at, "rows": len(frames[at])}
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
            field: _encode(getattr(value, field), f"{at}.{field}".lstrip("."), frames, seen)
            for field in _field_names(type(value))
        },
    }


def _field_names(cls: type[Any]) -> tuple[str, ...]:
    """Return the names of a record's fields, in order."""
    if issubclass(cls, msgspec.Struct):
        return cls.__struct_fields__
    return tuple(field.name for field in dataclasses.fields(cls))


def _decode(value: Any, members: Members, seen: dict[str, Any]) -> Any:
    if not isinstance(value, dict):
        return value
    kind = value.get(_KIND)
    if kind is None:
        return {key: _decode(item, members, seen) for key, item in value.items()}
    if kind == "tuple":
        return tuple(_decode(item, members, seen) for item in value["of"])
    if kind in _TABLES:
        frame = members.table(value["at"])
        return frame if kind == "table" else intervals_of(frame)
    return seen[value["as"]] if kind == "same" else _decode_object(kind, value, members, seen)


_TABLES = ("table", "Intervals")
_AGAIN: dict[str, tuple[type[Stored], Callable[..., Any] | None]] = {
    RankTables.__name__: (StoredTables, _read_again),
    Measures.__name__: (StoredMeasures, None),
    "RankPipeline": (StoredPipeline, _pipeline_again),
}
"""Of what has many tables: the class whose tables stay in the store, and how another process reads it (None: as part of
something else)."""


def _decode_object(kind: str, value: Any, members: Members, seen: dict[str, Any]) -> Any:
    cls, of = _classes()[kind], value["of"]
    if cls is ProcessGroup:
        made = _group(of["name"], of["description"], tuple(of["ranks"]["of"]))
    elif kind not in _AGAIN:
        made = cls(**{name: _decode(item, members, seen) for name, item in of.items()})
    else:
        stored, again = _AGAIN[kind]
        tables = {name: item for name, item in of.items() if isinstance(item, dict) and item.get(_KIND) in _TABLES}
        later = {
            name: Later(item["at"], item[_KIND] == "Intervals", item.get("rows"))
            for name, item in tables.items()
            if name != "steps"  # small, and asked for often
        }
        kept = {name: _decode(item, members, seen) for name, item in of.items() if name not in later}
        # What a store lacks that was written before a field was thought of has its default.
        made = stored.of({**_defaults(cls, of), **kept}, members=members, later=later, again=again)
    seen[value["at"]] = made
    return made


@lru_cache(maxsize=4096)
def _group(name: str, description: str | None, ranks: tuple[int, ...]) -> ProcessGroup:
    """Return a process group: the ranks of a run name the same few, each with as many ranks."""
    return ProcessGroup(name, description, ranks)


def _defaults(cls: type[Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of the fields that are not *known*."""
    return {
        field.name: field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
        for field in dataclasses.fields(cls)
        if field.name not in known
    }
