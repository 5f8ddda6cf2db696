"""Bytes of a plain or gzipped file, read in blocks."""

from __future__ import annotations

import importlib
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from tracekit.errors import InputError

GZIP_MAGIC = b"\x1f\x8b"
_STEP_BYTES = 1 << 18  # of a gzipped file, read at once
_SMALL_STEP_BYTES = 64  # of a damaged one: a step that fails gives nothing of what was whole in it
_GZIP_WINDOW_BITS = 31  # 15, and 16 for a gzip header


@dataclass(frozen=True, slots=True)
class Inflater:
    """A module with the functions of ``zlib``."""

    module: str
    max_output_bytes: int
    """Bytes to inflate at once: as many as stay in the cache."""

    def start(self) -> Any:
        """Return an object that inflates one member of a gzip file."""
        return importlib.import_module(self.module).decompressobj(_GZIP_WINDOW_BITS)

    def error(self) -> type[Exception]:
        """Return the exception raised for damaged data."""
        error: type[Exception] = importlib.import_module(self.module).error
        return error


INFLATERS = {"isa-l": Inflater("isal.isal_zlib", 1 << 18), "zlib-ng": Inflater("zlib_ng.zlib_ng", 1 << 20)}


@cache
def inflater() -> Inflater:
    """Return the faster one: ISA-L is written for x86-64 and slower than zlib-ng elsewhere."""
    return INFLATERS["isa-l" if platform.machine().lower() in ("x86_64", "amd64") else "zlib-ng"]


class Stream:
    """Bytes of a trace, inflated if its first bytes are those of gzip, whatever its name.

    >>> import io
    >>> Stream(io.BytesIO(b"[]")).read(10)
    b'[]'
    """

    def __init__(self, source: str | Path | BinaryIO) -> None:
        self._is_owner = isinstance(source, str | Path)
        if isinstance(source, str | Path):
            self.name = str(source)
            try:
                self._file: BinaryIO = Path(source).open("rb", buffering=0)  # noqa: SIM115  (closed by close)
            except OSError as error:
                raise self._read_error(error) from None
        else:
            self.name = str(getattr(source, "name", None) or getattr(source, "path", None) or "trace")
            self._file = source
        self.restart()

    def restart(self, *, step_bytes: int | None = None) -> None:
        """Go back to the first byte; *step_bytes*: bytes of the file to read at once."""
        self._file.seek(0)
        self._step_bytes = step_bytes or _STEP_BYTES
        self._input = self._read_step()
        self.gzipped = self._input[:2] == GZIP_MAGIC
        self.cut_short = False
        """Whether the gzip data ends early or is damaged; what precedes the damage is read."""
        self._engine = inflater().start() if self.gzipped else None
        self._inflated_bytes = 0

    def close(self) -> None:
        """Close the file if this object opened it."""
        if self._is_owner:
            self._file.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, size: int) -> bytes:
        """Return up to *size* bytes; fewer only at the end."""
        buffer = bytearray(size)
        return bytes(buffer[: self.fill(memoryview(buffer))])

    def fill(self, view: memoryview) -> int:
        """Fill *view* as far as the data goes; returns the number of bytes."""
        return self._inflate(view) if self._engine else self._copy(view)

    def _read_step(self) -> bytes:
        try:
            return self._file.read(self._step_bytes) or b""
        except OSError as error:
            raise self._read_error(error) from None

    def _read_error(self, error: OSError) -> InputError:
        return InputError(
            f"{self.name}: {(error.strerror or str(error)).lower()}", hint="give the path of a trace file"
        )

    def _copy(self, view: memoryview) -> int:
        size = min(len(self._input), len(view))
        view[:size] = self._input[:size]
        self._input = self._input[size:]
        readinto = getattr(self._file, "readinto", None)  # files of other libraries may have none
        while size < len(view):
            try:
                if readinto is not None:
                    added = readinto(view[size:]) or 0
                else:
                    data = self._file.read(min(_STEP_BYTES, len(view) - size))
                    added = len(data)
                    view[size : size + added] = data
            except OSError as error:
                raise self._read_error(error) from None
            if not added:
                break
            size += added
        return size

    def _inflate(self, view: memoryview) -> int:
        size = 0
        while size < len(view) and not self.cut_short:
            if not self._input:
                self._input = self._read_step()
            engine = self._engine
            if engine is None:
                break
            if not self._input:
                self.cut_short = not engine.eof
                break
            if engine.eof:  # another member may follow; anything else is padding
                if self._input[:2] != GZIP_MAGIC:
                    break
                engine = self._engine = inflater().start()
            size += self._inflate_step(engine, view[size:])
        return size

    def _inflate_step(self, engine: Any, view: memoryview) -> int:
        try:
            data = engine.decompress(self._input, min(len(view), inflater().max_output_bytes))
        except inflater().error():
            if self._step_bytes == _SMALL_STEP_BYTES:
                self.cut_short = True
                return 0
            return self._inflate_up_to_damage(view)
        self._input = engine.unused_data if engine.eof else engine.unconsumed_tail
        view[: len(data)] = data
        self._inflated_bytes += len(data)
        return len(data)

    def _inflate_up_to_damage(self, view: memoryview) -> int:
        """Inflate once more from the start, in steps so small that the one that fails holds little that is whole."""
        to_skip = self._inflated_bytes
        self.restart(step_bytes=_SMALL_STEP_BYTES)
        scratch = memoryview(bytearray(inflater().max_output_bytes))
        while to_skip > 0 and (size := self._inflate(scratch[:to_skip])):
            to_skip -= size
        return self._inflate(view)
