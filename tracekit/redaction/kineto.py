"""A PyTorch trace rewritten as a stream, event by event, whatever the file's size; what stays is in ``allowed``.

Text is handled as Latin-1, in which every byte is a character; numbers are written as they were.
"""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from zlib_ng import gzip_ng

from tracekit.errors import InputError
from tracekit.redaction.events import Keeper, Written, written
from tracekit.redaction.text import Scrubber, names_in

CHUNK = 1 << 20
LONGEST_VALUE = 1 << 25
"""An event or header entry longer than this is damage, not data."""

_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'  # possessive: a string that never ends must not pile up choices
_ODD = re.compile(_STRING + r"|(?<=[:\[,\s])-?(?:N/A|inf|nan|Inf|INF|n/a|undefined|None)(?=[\s,\]}])", re.DOTALL)
"""Strings, and words that are not JSON but that profilers write all the same."""
_SPACE = re.compile(r"[\s,]*")
_TOKEN = re.compile(_STRING + r'|["{}\[\]]', re.DOTALL)
_NATIVE_END = re.compile(r"\n  \}(?=\s*[,\]])")


def rewrite(
    source: Path, target: Path, scrubber: Scrubber, *, compress: bool, keep: Collection[str] = ()
) -> dict[str, int]:
    """Write *source* without what is sensitive to *target*; return how much went, by kind.

    A header after the events may name hosts that the events name too: then the file is read once more.
    """
    while True:
        one = _Pass(source, scrubber, frozenset(keep))
        with _writer(target, compress=compress) as write:
            for text in one.pieces():
                write(text)
        more = scrubber.with_names(one.names)
        if more.names == scrubber.names:
            return one.dropped | {"texts replaced": scrubber.replaced}
        scrubber = more


class _Pass:
    """One reading of the file."""

    def __init__(self, source: Path, scrubber: Scrubber, keep: frozenset[str]) -> None:
        self.names: set[str] = set()
        self._keeper = Keeper(scrubber, keep)
        self.dropped = self._keeper.dropped
        self._text = _Text(source)

    def pieces(self) -> Iterator[str]:
        text = self._text
        opening = text.peek()
        if opening == "[":
            yield from self._events()
            return
        if opening != "{":
            raise text.lost("neither an object nor an array")
        text.skip(1)
        yield "{"
        separator = "\n  "
        while (sign := text.peek()) not in ("}", ""):
            if sign != '"':
                raise text.lost("no key")
            try:
                key = str(text.value()[1])
                text.expect(":")
                kept = None if key == "traceEvents" and text.peek() == "[" else self._header(key)
            except _EndedError:
                self.dropped["header entries"] += 1
                break
            if kept is not None:
                yield f"{separator}{json.dumps(key)}: {kept}"
            elif key == "traceEvents" and text.peek() == "[":
                yield f'{separator}"traceEvents": '
                yield from self._events()
            else:
                continue
            separator = ",\n  "
        yield "\n}\n"

    def _header(self, key: str) -> str | None:
        _, value = self._text.value()
        self.names.update(names_in({key: value}))
        kept = self._keeper.header(key, value)
        return None if kept is None else written(kept)

    def _events(self) -> Iterator[str]:
        text = self._text
        text.skip(1)
        separator = "[\n  "
        while text.peek() not in ("]", ""):
            try:
                raw, value = text.value()
            except _EndedError:
                self.dropped["broken events"] += 1
                text.give_up()
                break
            kept = self._keeper.event(_mended(raw) if value is None else value)
            if kept is not None:
                yield separator
                yield written(kept)
                separator = ",\n  "
        if text.peek() == "]":
            text.skip(1)
        yield "[]" if separator.startswith("[") else "\n  ]"


def _mended(raw: str) -> Any:
    """Read an event whose values are not all JSON, each such value as none; None where that does not help."""
    try:
        return _decode(_ODD.sub(lambda match: match[0] if match[0].startswith('"') else "null", raw), 0)[0]
    except (ValueError, RecursionError):
        return None


_decode = json.JSONDecoder(
    strict=False, parse_float=Written, parse_int=Written, parse_constant=lambda _: None
).raw_decode


class _EndedError(Exception):
    """The file ended inside a value."""


class _Text:
    """A window on the file: values are taken from its front, chunks are added to its back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._chunks = _chunks(path)
        self._decode = _decode
        self._window = ""
        self._at = 0
        self._passed = 0
        self._more()
        if self._window.startswith("\xef\xbb\xbf"):
            self._at = 3

    def peek(self) -> str:
        """Skip blanks and commas; return the next character, empty at the end."""
        while True:
            self._at = _SPACE.match(self._window, self._at).end()  # type: ignore[union-attr]  # matches always
            if self._at < len(self._window):
                return self._window[self._at]
            if not self._more():
                return ""

    def give_up(self) -> None:
        """Go to the end: the file breaks off here."""
        self._at = len(self._window)

    def skip(self, count: int) -> None:
        self._at += count

    def expect(self, sign: str) -> None:
        if self.peek() != sign:
            raise self.lost(f"no {sign!r}")
        self.skip(1)

    def value(self) -> tuple[str, Any]:
        """Take the next value: its text, and the value itself, None where it is not quite JSON."""
        self.peek()
        while True:
            try:
                value, end = self._decode(self._window, self._at)
                if end < len(self._window) or not self._more():
                    return self._take(end), value
                continue  # a number may go on in the next chunk
            except (ValueError, RecursionError):
                closed = self._balanced()
                if closed is not None:
                    return self._take(closed), None
            if len(self._window) - self._at > LONGEST_VALUE:
                raise self.lost("a value that never ends")
            if not self._more(len(self._window) - self._at):  # twice as much each time: few tries, even for long values
                raise _EndedError

    def _balanced(self) -> int | None:
        """Return where a value that is not quite JSON ends, by its brackets; None if not in the window yet."""
        if self._window[self._at - 3 : self._at] == "\n  ":
            native = _NATIVE_END.search(self._window, self._at)
            if native:
                return native.end()
        depth = 0
        for token in _TOKEN.finditer(self._window, self._at):
            sign = token[0]
            if sign == '"':
                return None  # a string that does not end in the window
            depth += (sign in "{[") - (sign in "}]")
            if depth == 0 and sign in "}]":
                return token.end()
        return None

    def _take(self, end: int) -> str:
        text = self._window[self._at : end]
        self._at = end
        return text

    def _more(self, count: int = 1) -> bool:
        chunk = b""
        while len(chunk) < count and (piece := next(self._chunks, b"")):
            chunk += piece
        gone = max(0, self._at - 3)  # what stands before an event tells its layout
        self._passed += gone
        self._window = self._window[gone:] + chunk.decode("latin-1")
        self._at -= gone
        return bool(chunk)

    def lost(self, why: str) -> InputError:
        return InputError(
            f"{self._path}: cannot be read beyond byte {self._passed + self._at:,}: {why}",
            hint="nothing was written; record the trace again",
        )


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as probe:
        packed = probe.read(2) == b"\x1f\x8b"
    with gzip_ng.open(path, "rb") if packed else path.open("rb") as file:  # type: ignore[no-untyped-call]
        while True:
            try:
                chunk = file.read(CHUNK)
            except (EOFError, zlib.error, OSError):
                return  # a cut archive: what came before it is used, like any cut trace
            if not chunk:
                return
            yield chunk


@contextlib.contextmanager
def _writer(target: Path, *, compress: bool) -> Iterator[Any]:
    with target.open("wb") as file:
        # No name and no time in the archive's own header either.
        packed: Any = gzip_ng.GzipNGFile("", "wb", 6, file, mtime=0) if compress else file  # type: ignore[no-untyped-call]
        pieces: list[str] = []
        size = 0

        def flush() -> None:
            nonlocal size
            packed.write("".join(pieces).encode("latin-1"))
            pieces.clear()
            size = 0

        def write(text: str) -> None:
            nonlocal size
            pieces.append(text)
            size += len(text)
            if size > CHUNK:
                flush()

        yield write
        flush()
        if compress:
            packed.close()
