"""Bytes in: a plain or gzipped file, a block at a time, with what went wrong on the way."""

from __future__ import annotations

import importlib
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from tracekit.errors import InputError

GZIP = b"\x1f\x8b"
_STEP = 1 << 18  # of a gzipped file; what is left of it is copied at each step
_BITE = 64  # of a damaged one: a step that fails gives nothing of what was whole in it
_WITH_HEADER = 31


@dataclass(frozen=True, slots=True)
class Inflater:
    """A library that inflates as ``zlib`` does, and the bytes it may make at once: as many as stay in fast memory."""

    module: str
    room: int

    def start(self) -> Any:
        """Return what inflates one member of a gzip file."""
        return importlib.import_module(self.module).decompressobj(_WITH_HEADER)

    def reader(self, file: BinaryIO) -> Any:
        """Return what inflates a file from its first byte, straight into memory that it is given; None without such.

        The libraries keep it to themselves, for their own ``GzipFile``, which copies what it reads once more.
        """
        made = getattr(importlib.import_module(self.module), "_GzipReader", None)
        if made is None:
            return None
        file.seek(0)
        return made(file, _STEP)

    def error(self) -> type[Exception]:
        """Return what it raises at damage."""
        raised: type[Exception] = importlib.import_module(self.module).error
        return raised


INFLATERS = {"isa-l": Inflater("isal.isal_zlib", 1 << 18), "zlib-ng": Inflater("zlib_ng.zlib_ng", 1 << 20)}


@cache
def inflater() -> Inflater:
    """Return the faster one here: ISA-L is written in x86-64's own instructions, and slower than zlib-ng elsewhere."""
    return INFLATERS["isa-l" if platform.machine().lower() in ("x86_64", "amd64") else "zlib-ng"]


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

    def restart(self, *, step: int | None = None, whole: bool = True) -> None:
        """Go back to the first byte; *step*: bytes of the file to fetch at once. Not *whole*: damage was met in it."""
        self._file.seek(0)
        self._step = step or _STEP
        self._input = self._fetch()
        self.gzipped = self._input[:2] == GZIP
        self.cut_short = False
        """The gzip data ends early or is damaged: what came before it was read."""
        self._engine = inflater().start() if self.gzipped else None
        self._inflated = 0
        self._whole: Any = None
        """Inflates a file of ours as long as it is whole."""
        if self.gzipped and self._owned and whole:
            self._whole = inflater().reader(self._file)

    def _fetch(self) -> bytes:
        try:
            return self._file.read(self._step) or b""
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
        if self._whole is not None:
            return self._inflate_whole(view)
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

    def _inflate_whole(self, view: memoryview) -> int:
        done = 0
        try:
            while done < len(view) and (got := self._whole.readinto(view[done:])):
                done += got
        except (OSError, EOFError, inflater().error()):
            known = self._inflated + done
            self.restart(whole=False)
            self._pass_over(known)
            return done + self._inflate(view[done:])
        self._inflated += done
        return done

    def _pass_over(self, known: int) -> None:
        """Inflate what was read before."""
        scratch = memoryview(bytearray(inflater().room))
        while known > 0 and (done := self._inflate(scratch[:known])):
            known -= done

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
                engine = self._engine = inflater().start()
            done += self._bite(engine, view[done:])
        return done

    def _bite(self, engine: Any, view: memoryview) -> int:
        try:
            data = engine.decompress(self._input, min(len(view), inflater().room))
        except inflater().error():
            if self._step == _BITE:
                self.cut_short = True
                return 0
            return self._carefully(view)
        self._input = engine.unused_data if engine.eof else engine.unconsumed_tail
        view[: len(data)] = data
        self._inflated += len(data)
        return len(data)

    def _carefully(self, view: memoryview) -> int:
        """Inflate up to the damage: once more from the start, in bites of which none holds much that is whole."""
        known = self._inflated
        self.restart(step=_BITE, whole=False)
        self._pass_over(known)
        return self._inflate(view)
