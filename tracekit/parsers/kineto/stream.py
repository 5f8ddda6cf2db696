"""Input stream of a trace: the bytes of a plain or gzipped file, a block at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO, Self

from zlib_ng import zlib_ng  # inflates 1.6 GB/s where zlib inflates 0.7 (arm64)

from tracekit.errors import InputError

GZIP_MAGIC = b"\x1f\x8b"
_READ_BYTES = 1 << 18
"""Bytes of a gzipped file that are read at once."""
_CAREFUL_READ_BYTES = 64
"""The same after damage was met: a call that fails returns nothing, so few intact bytes may be lost
with it."""
_MAX_INFLATED_BYTES = 1 << 20
"""Bytes that one call may inflate: as many as stay in the processor's cache."""
_WBITS_GZIP = 31
"""Tells zlib to expect a gzip header and trailer."""


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
                self.file: BinaryIO = Path(source).open("rb", buffering=0)  # noqa: SIM115  (closed by close)
            except OSError as error:
                raise self._read_error(error) from None
        else:
            self.name = str(
                getattr(source, "name", None) or getattr(source, "path", None) or "trace"
            )
            self.file = source
        self._owned = isinstance(source, str | Path)
        self.restart()

    def restart(self) -> None:
        """Go back to the first byte."""
        self.restart_file(_READ_BYTES)

    def restart_file(self, read_bytes: int) -> None:
        """Go back to the first byte of the file, and read *read_bytes* of it at once from there."""
        self.file.seek(0)
        self._read_bytes = read_bytes
        self._input = self._read_file()
        self.gzipped = self._input[:2] == GZIP_MAGIC
        self.cut_short = False
        """The gzip data ends early or is damaged: what came before it was read."""
        self._decompressor: Any = zlib_ng.decompressobj(_WBITS_GZIP) if self.gzipped else None
        self._inflated_bytes = 0

    def _read_file(self, max_bytes: int = _READ_BYTES) -> bytes:
        try:
            return self.file.read(min(self._read_bytes, max_bytes)) or b""
        except OSError as error:
            raise self._read_error(error) from None

    def _read_error(self, error: OSError) -> InputError:
        """Return the error for a file that cannot be opened, went away, or lies on a failing disk."""
        return InputError(
            f"{(error.strerror or str(error)).lower()}",
            path=self.name,
            hint="give the path of a trace file",
        )

    def close(self) -> None:
        """Close the file if this object opened it."""
        if self._owned:
            self.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, size: int = _MAX_INFLATED_BYTES) -> bytes:
        """Return up to *size* bytes; fewer only at the end."""
        buffer = bytearray(size)
        return bytes(buffer[: self.fill(memoryview(buffer))])

    def fill(self, view: memoryview) -> int:
        """Fill *view* as far as the data goes; return how many bytes were written to it."""
        return self._inflate(view) if self.gzipped else self._copy(view)

    def _copy(self, view: memoryview) -> int:
        filled = min(len(self._input), len(view))
        view[:filled] = self._input[:filled]
        self._input = self._input[filled:]
        while filled < len(view) and (data := self._read_file(len(view) - filled)):
            view[filled : filled + len(data)] = data
            filled += len(data)
        return filled

    def _inflate(self, view: memoryview) -> int:
        filled = 0
        while filled < len(view) and not self.cut_short:
            if not self._input:
                self._input = self._read_file()
            if not self._input:
                self.cut_short = not self._decompressor.eof
                break
            if self._decompressor.eof:  # another gzip member may follow; anything else is padding
                if self._input[:2] != GZIP_MAGIC:
                    break
                self._decompressor = zlib_ng.decompressobj(_WBITS_GZIP)
            filled += self._inflate_once(view[filled:])
        return filled

    def _inflate_once(self, view: memoryview) -> int:
        decompressor = self._decompressor
        try:
            data = decompressor.decompress(self._input, min(len(view), _MAX_INFLATED_BYTES))
        except zlib_ng.error:  # type: ignore[misc]  # its stub declares an instance
            if self._read_bytes == _CAREFUL_READ_BYTES:
                self.cut_short = True
                return 0
            return self._inflate_up_to_damage(view)
        self._input = decompressor.unused_data if decompressor.eof else decompressor.unconsumed_tail
        view[: len(data)] = data
        self._inflated_bytes += len(data)
        return len(data)

    def _inflate_up_to_damage(self, view: memoryview) -> int:
        """Start again in small reads, skip what was returned before, and inflate what is left before the damage."""
        skip_bytes = self._inflated_bytes
        self.restart_file(_CAREFUL_READ_BYTES)
        scratch = memoryview(bytearray(_MAX_INFLATED_BYTES))
        while skip_bytes > 0 and (count := self._inflate(scratch[:skip_bytes])):
            skip_bytes -= count
        return self._inflate(view)
