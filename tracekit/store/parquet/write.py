"""A table as a Parquet file: groups of rows, each column of a group by itself, and a footer that says where all is."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import polars as pl

from tracekit._version import __version__
from tracekit.store.parquet.buffers import columns
from tracekit.store.parquet.encodings import Encoder
from tracekit.store.parquet.fields import Field
from tracekit.store.parquet.thrift import Long, structure

GROUP_ROWS = 1 << 18
_MAGIC = b"PAR1"
_VERSION = 2
_TYPE_ORDER = structure({1: {}})
"""Least and greatest values are so in the order that their type has."""


def write_parquet(frame: pl.DataFrame, path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write a table of the store, readable by whatever reads Parquet, with *metadata* in the file's own.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "table.parquet"
    >>> write_parquet(pl.DataFrame({"id": [7, 8], "name": ["a", None]}, {"id": pl.Int64, "name": pl.Categorical}), path)
    >>> pl.read_parquet(path).rows()
    [(7, 'a'), (8, None)]
    """
    fields = [Field(name, dtype) for name, dtype in frame.schema.items()]
    encoder = Encoder(min(frame.height, GROUP_ROWS))
    numbers = frame.select(pl.all().to_physical())
    with path.open("wb") as file:
        place, groups = file.write(_MAGIC), []
        for rows in numbers.iter_slices(GROUP_ROWS) if frame.height else ():
            chunks, size = [], 0
            with columns(rows.rechunk()) as parts:
                for field, part in zip(fields, parts, strict=True):
                    data, notes = field.chunk(part, encoder, place)
                    place += file.write(data)
                    size += notes[6]
                    chunks.append({2: Long(0), 3: notes})
            groups.append({1: chunks, 2: Long(size), 3: Long(rows.height)})
        keys = {**(metadata or {}), "ARROW:schema": _arrow_schema(*frame.schema.items())}
        footer = structure(
            {
                1: _VERSION,
                2: [{4: "schema", 5: len(fields)}, *(field.element() for field in fields)],
                3: Long(frame.height),
                4: groups,
                5: [{1: key, 2: value} for key, value in keys.items()],
                6: f"tracekit version {__version__}",
                7: [_TYPE_ORDER] * len(fields),
            }
        )
        file.write(footer + len(footer).to_bytes(4, "little") + _MAGIC)


@lru_cache(maxsize=8)
def _arrow_schema(*types: tuple[str, pl.DataType]) -> str:
    """Return a table's types as Arrow writes them: by these, readers make texts categories again.

    It is the first message of an Arrow stream: a mark and the length of what follows, four bytes each.
    """
    stream = io.BytesIO()
    pl.Schema(types).to_frame().write_ipc_stream(stream, compat_level=pl.CompatLevel.oldest())
    message = stream.getvalue()
    return base64.b64encode(message[: 8 + int.from_bytes(message[4:8], "little")]).decode()
