"""A rank's tables that stay in the store: each is read when it is asked for, and not kept.

A thousand ranks have more tables than memory should hold, and most questions need few of them. What is kept of a rank
is what is no table, and where in its file each table lies.
"""

from __future__ import annotations

import dataclasses
import struct
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from tracekit.analysis.tables import Measures, RankTables
from tracekit.errors import InputError
from tracekit.intervals import Intervals
from tracekit.reconstruct import RankPipeline

UNREADABLE = (OSError, ValueError, KeyError, TypeError, struct.error, zipfile.BadZipFile, pl.exceptions.PolarsError)
TABLE = ".arrows"
"""What the name of a table's member ends with: it is an Arrow stream."""
_HEADER = struct.Struct("<4s22xHH")
"""Of a member of a zip: what it begins with, and how long its name and what else stands before its bytes are."""


class Members:
    """The members of a file of tables: where each lies, as long as the file is the one that was opened."""

    def __init__(self, file: Path, packed: zipfile.ZipFile) -> None:
        self.file = file.absolute()
        self._places = {info.filename: (info.header_offset, info.file_size) for info in packed.infolist()}
        self._seen = _stamp(file)

    def table(self, at: str, columns: list[str] | None = None) -> pl.DataFrame:
        """Return one table, or some of its columns."""
        try:
            if _stamp(self.file) != self._seen:
                raise OSError("it was written again since")
            return pl.read_ipc_stream(self._bytes(f"{at}{TABLE}"), columns=columns)
        except UNREADABLE as error:
            raise InputError(f"{self.file}: cannot be read: {error}", hint="analyze the store again") from error

    def _bytes(self, name: str) -> bytes:
        offset, size = self._places[name]
        with self.file.open("rb", buffering=0) as opened:
            opened.seek(offset)
            mark, name_bytes, more_bytes = _HEADER.unpack(opened.read(_HEADER.size))
            if mark != b"PK\x03\x04":
                raise ValueError("its members are not where they were")
            opened.seek(name_bytes + more_bytes, 1)
            return opened.read(size)


def _stamp(file: Path) -> tuple[int, int, int]:
    seen = file.stat()
    return seen.st_ino, seen.st_mtime_ns, seen.st_size


def intervals_of(frame: pl.DataFrame) -> Intervals:
    """Return intervals that were written as a table."""
    return Intervals(frame["group"].to_numpy(), frame["start_ns"].to_numpy(), frame["end_ns"].to_numpy())


class Later(NamedTuple):
    """A table that is read when it is asked for: where it is, whether it is intervals, and how many rows it has."""

    at: str
    intervals: bool
    rows: int | None


class Stored:
    """What makes a class's tables stay in the store: fields of ``later`` are read each time they are asked for."""

    members: Members
    later: Mapping[str, Later]
    again: Callable[..., Any] | None
    """What reads it anew from its folder, in another process; None: it is part of something that does."""

    @classmethod
    def of(cls, fields: Mapping[str, Any], **kept: Any) -> Any:
        """Return an object with these fields; *kept* are the attributes above."""
        made = cls.__new__(cls)
        made.__dict__.update(fields, **kept)
        return made

    def __getattr__(self, name: str) -> Any:
        later = self.__dict__.get("later", {}).get(name)
        if later is None:
            raise AttributeError(name)
        table = self.members.table(later.at)
        return intervals_of(table) if later.intervals else table

    def __reduce__(self) -> Any:
        """What travels to another process is where the tables are: it reads what it needs."""
        if self.__dict__.get("again") is None:  # fields were replaced: it is whole
            return object.__reduce_ex__(self, 2)
        return self.again, (self.members.file.parent,)


class StoredMeasures(Stored, Measures):
    """Measures whose tables stay in the store."""


_COMPARED = ("chunks", "messages", "stalls")


class StoredPipeline(Stored, RankPipeline):
    """A rank's part of the pipeline whose tables stay in the store."""

    @property
    def has_work(self) -> bool:
        """Whether any forward or backward was found."""
        rows = self.later["chunks"].rows if "later" in self.__dict__ else None
        return super().has_work if rows is None else rows > 0

    def loaded(self) -> RankPipeline:
        """Return it with the tables that a comparison asks for several times in memory."""
        made: RankPipeline = StoredPipeline.of(self.__dict__, **{name: getattr(self, name) for name in _COMPARED})
        return made

    @property
    def peers(self) -> tuple[int | None, ...]:
        """Whom it exchanged messages with."""
        if "later" not in self.__dict__:
            return super().peers
        return tuple(self.members.table(self.later["messages"].at, ["peer"])["peer"].unique().to_list())


class StoredTables(Stored, RankTables):
    """A rank's tables that stay in the store."""

    def without_pipeline(self) -> StoredTables:
        """Return the tables for an analysis that asks for no schedule."""
        again = None if self.again is None else partial(self.again, pipeline=False)
        made: StoredTables = StoredTables.of(self.__dict__ | {"pipeline": None, "again": again})
        return made

    def whole(self) -> RankTables:
        """Return the tables in memory: they need no store any more."""
        made: RankTables = _whole(self)
        return made


def _whole(value: Any) -> Any:
    kind = _PLAIN.get(type(value))
    if kind is None:
        return value
    seen: dict[int, Any] = {}
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
    return kind(**{name: seen.setdefault(id(item), _whole(item)) for name, item in fields.items()})


_PLAIN: dict[type, type[Any]] = {StoredTables: RankTables, StoredMeasures: Measures, StoredPipeline: RankPipeline}
