"""A PyTorch trace rewritten as a stream: kept events are copied byte for byte, whatever the file's size.

Text is handled as Latin-1, in which every byte is a character and comes out as it went in.
"""

from __future__ import annotations

import contextlib
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zlib_ng import gzip_ng

from tracekit.errors import InputError
from tracekit.redact.text import NAMING_KEY, Scrubber

CHUNK = 1 << 20
LONGEST_VALUE = 1 << 25
"""An event or header entry longer than this is damage, not data."""

HEADER_KEYS = re.compile(
    r"schemaVersion|deviceProperties|distributedInfo|displayTimeUnit|baseTimeNanoseconds|trace_id|with_\w+"
    r"|record_shapes|profile_memory|\w+_version|traceEvents"
)
"""Header entries known to be harmless; all others go, whatever they are."""

_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'  # possessive: a string that never ends must not pile up choices
_STACK = r'"(?:Call stack|call_stack|Python stack|stack)"\s*:\s*' + _STRING
_STACK_ARG = re.compile(rf",\s*{_STACK}|{_STACK}\s*,?\s*", re.DOTALL)
_STACK_KEYS = frozenset(("Call stack", "call_stack", "Python stack", "stack"))
_PYTHON = re.compile(r'"cat"\s*:\s*"(?i:python_function)"')
_SPACE = re.compile(r"[\s,]*")
_TOKEN = re.compile(_STRING + r'|["{}\[\]]', re.DOTALL)
_NATIVE_END = re.compile(r"\n  \}(?=\s*[,\]])")


def rewrite(source: Path, target: Path, scrubber: Scrubber, *, compress: bool) -> dict[str, int]:
    """Write *source* without what is sensitive to *target*; return how much went, by kind.

    A header after the events may name hosts that the events name too: then the file is read once more.
    """
    while True:
        one = _Pass(source, scrubber)
        with _writer(target, compress=compress) as write:
            for text in one.pieces():
                write(text)
        more = scrubber.with_words(one.names)
        if more.words == scrubber.words:
            return one.dropped | {"texts replaced": scrubber.replaced}
        scrubber = more


class _Pass:
    """One reading of the file."""

    def __init__(self, source: Path, scrubber: Scrubber) -> None:
        self.dropped: dict[str, int] = {"Python frames": 0, "stacks": 0, "header entries": 0, "broken events": 0}
        self.names: set[str] = set()
        self._scrub = scrubber
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
        raw, value = self._text.value()
        if key == "traceName":
            return '"trace.json"'
        self.names.update(_names({key: value}))
        if not HEADER_KEYS.fullmatch(key):
            self.dropped["header entries"] += 1
            return None
        return self._scrub(raw)

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
            kept = self._event(raw, value)
            if kept is not None:
                yield separator
                yield kept
                separator = ",\n  "
        if text.peek() == "]":
            text.skip(1)
        yield "[]" if separator.startswith("[") else "\n  ]"

    def _event(self, raw: str, value: Any) -> str | None:
        category = value.get("cat") if isinstance(value, dict) else None
        if category == "python_function" or (value is None and _PYTHON.search(raw)):
            self.dropped["Python frames"] += 1
            return None
        args = value.get("args") if isinstance(value, dict) else None
        if (isinstance(args, dict) and not _STACK_KEYS.isdisjoint(args)) or value is None:
            raw, count = _STACK_ARG.subn("", raw)
            self.dropped["stacks"] += count
        return self._scrub(raw)


def _names(value: Any) -> Iterator[str]:
    """Yield the texts that stand under a key which names a host, a user or a job."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if isinstance(inner, str):
                if NAMING_KEY.search(key):
                    yield inner
            else:
                yield from _names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _names(inner)


class _EndedError(Exception):
    """The file ended inside a value."""


class _Text:
    """A window on the file: values are taken from its front, chunks are added to its back."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._chunks = _chunks(path)
        self._decode = json.JSONDecoder(strict=False).raw_decode
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
                raise self.lost("a value without end")
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
            f"{self._path}: cannot be followed at byte {self._passed + self._at:,}: {why}",
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
