"""Bytes in: a plain or gzipped file, a block at a time, with what went wrong on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from tracekit.errors import InputError

GZIP = b"\x1f\x8b"
_STEP = 1 << 18  # of a gzipped file; what is left of it is copied at each step
_ROOM = 1 << 20  # what a step may inflate: more would be taken from the system, and given back, each time
_BITE = 64


class _Inflater(Protocol):
    unconsumed_tail: bytes
    unused_data: bytes
    eof: bool

    def decompress(self, data: bytes, max_length: int = ..., /) -> bytes: ...
    def copy(self) -> _Inflater: ...


def _inflater() -> _Inflater:
    from zlib_ng import zlib_ng

    made: Any = zlib_ng.decompressobj(31)
    return cast(_Inflater, made)


def _errors() -> type[Exception]:
    from zlib_ng import zlib_ng

    return cast(type[Exception], zlib_ng.error)


class Stream:
    """A trace's bytes, inflated if need be. The first bytes decide the format, never the name.

    >>> import io
    >>> Stream(io.BytesIO(b"[]")).read(10)
    b'[]'
    """

    def __init__(self, source: str | Path | BinaryIO) -> None:
        if isinstance(source, str | Path):
            self.name = str(source)
            try:
                self._file: BinaryIO = Path(source).open("rb", buffering=0)  # noqa: SIM115  (closed by close)
            except OSError as error:
                raise InputError(
                    f"{source}: {(error.strerror or str(error)).lower()}", hint="give the path of a trace file"
                ) from None
        else:
            self.name = str(getattr(source, "name", None) or getattr(source, "path", None) or "trace")
            self._file = source
        self._owned = isinstance(source, str | Path)
        self.restart()

    def restart(self) -> None:
        """Go back to the first byte."""
        self._file.seek(0)
        self._input = self._fetch()
        self.gzipped = self._input[:2] == GZIP
        self.cut_short = False
        """The gzip data ends early or is damaged: what came before it was read."""
        self._engine = _inflater() if self.gzipped else None

    def _fetch(self) -> bytes:
        try:
            return self._file.read(_STEP) or b""
        except OSError as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: OSError) -> InputError:
        """Return what to say of a file that went away, or of a disk that failed, while it was read."""
        return InputError(
            f"{self.name}: {(error.strerror or str(error)).lower()}", hint="give the path of a trace file"
        )

    def close(self) -> None:
        """Close the file if this object opened it."""
        if self._owned:
            self._file.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, size: int) -> bytes:
        """Up to *size* bytes; fewer only at the end."""
        buffer = bytearray(size)
        return bytes(buffer[: self.fill(memoryview(buffer))])

    def fill(self, view: memoryview) -> int:
        """Fill *view* as far as the data goes; returns how many bytes are in it."""
        return self._inflate(view) if self._engine else self._copy(view)

    def _copy(self, view: memoryview) -> int:
        done = min(len(self._input), len(view))
        view[:done] = self._input[:done]
        self._input = self._input[done:]
        readinto = getattr(self._file, "readinto", None)
        while done < len(view):
            try:
                if readinto is not None:
                    got = readinto(view[done:]) or 0
                else:
                    data = self._file.read(min(_STEP, len(view) - done))
                    got = len(data)
                    view[done : done + got] = data
            except OSError as error:
                raise self._unreadable(error) from None
            if not got:
                break
            done += got
        return done

    def _inflate(self, view: memoryview) -> int:
        done = 0
        while done < len(view) and not self.cut_short:
            if not self._input:
                self._input = self._fetch()
            engine = self._engine
            if engine is None:
                break
            if not self._input:
                self.cut_short = not engine.eof
                break
            if engine.eof:  # another member may follow; anything else is padding
                if self._input[:2] != GZIP:
                    break
                engine = self._engine = _inflater()
            done += self._step(engine, view[done:])
        return done

    def _step(self, engine: _Inflater, view: memoryview) -> int:
        before = engine.copy()
        try:
            data = engine.decompress(self._input, min(len(view), _ROOM))
        except _errors():
            return self._salvage(before, view)
        self._input = engine.unused_data if engine.eof else engine.unconsumed_tail
        view[: len(data)] = data
        return len(data)

    def _salvage(self, engine: _Inflater, view: memoryview) -> int:
        """Inflate up to the damage in small bites: a big one that fails gives nothing."""
        done, self._engine = 0, engine
        while done < len(view) and self._input:
            bite, self._input = self._input[:_BITE], self._input[_BITE:]
            try:
                data = engine.decompress(bite, len(view) - done)
            except _errors():
                self.cut_short = True
                break
            self._input = engine.unconsumed_tail + self._input
            view[done : done + len(data)] = data
            done += len(data)
        return done
