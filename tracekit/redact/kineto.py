"""Redaction of a PyTorch trace, event by event, whatever the file's size.

Chunks of the file are appended to a window, and JSON values are taken from its front. Values that
profilers write although they are not JSON (``N/A``, ``inf``, backslashes that escape nothing) are
mended.
"""

import io
import json
import re
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from zlib_ng import gzip_ng

from tracekit.errors import InputError
from tracekit.redact.events import EventRedactor, to_json
from tracekit.redact.fields import NumberText
from tracekit.redact.names import NameRedactor

CHUNK_CHARACTERS = 1 << 20
MAX_VALUE_LENGTH = 1 << 25
"""Characters of an event or header entry; a longer one is damage."""

_STRING_LITERAL = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'  # possessive: a string without an end must not be tried in many ways
_NOT_JSON = re.compile(
    _STRING_LITERAL + r"|(?<=[:\[,\s])-?(?:N/A|inf|nan|Inf|INF|n/a|undefined|None)(?=[\s,\]}])",
    re.DOTALL,
)
_INVALID_ESCAPE = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
_BLANKS_AND_COMMAS = re.compile(r"[\s,]*")
_BRACKETS_AND_STRINGS = re.compile(_STRING_LITERAL + r'|["{}\[\]]', re.DOTALL)
_decode = json.JSONDecoder(
    strict=False, parse_float=NumberText, parse_int=NumberText, parse_constant=lambda _: None
).raw_decode


class JsonStream:
    """The JSON values of a file, plain or gzip-compressed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._chunks = _decoded_chunks(path)
        self._window = ""
        self._start = 0
        self._characters_before = 0
        self._read_more()

    def peek(self) -> str:
        """Skip blanks and commas; return the next character, empty at the end of the file."""
        while True:
            blanks = _BLANKS_AND_COMMAS.match(self._window, self._start)
            self._start = blanks.end() if blanks else self._start
            if self._start < len(self._window):
                return self._window[self._start]
            if not self._read_more():
                return ""

    def expect(self, character: str) -> None:
        """Skip *character*, which must come next."""
        if self.peek() != character:
            raise self.damage(f"{character!r} is missing" if self.peek() else "the file ends early")
        self._start += 1

    def take_value(self) -> Any:
        """Take the next value; raise InputError where there is none that can be read."""
        self.peek()
        while True:
            try:
                value, end = _decode(self._window, self._start)
            except (ValueError, RecursionError):
                closing = self._find_end()
                if closing is not None:
                    return self._mended(closing)
            else:
                # A number may go on in the next chunk.
                if end < len(self._window) or not self._read_more():
                    self._start = end
                    return value
                continue
            length = len(self._window) - self._start
            if length > MAX_VALUE_LENGTH:
                raise self.damage("a value has no end")
            if not self._read_more(length):  # doubles the window: long values are tried few times
                raise self.damage("the file ends early")

    def skip_rest(self) -> int:
        """Read to the end of the file, which checks a compressed one.

        Return how many characters were left.
        """
        count = 0
        while self.peek():
            count += len(self._window) - self._start
            self._start = len(self._window)
        return count

    def damage(self, reason: str) -> InputError:
        """Return the error for what comes next."""
        position = self._characters_before + self._start
        problem = f"cannot be read beyond character {position:,}: {reason}"
        return InputError(
            problem, path=self._path, hint="nothing was written; record the trace again"
        )

    def _mended(self, end: int) -> Any:
        """Take a value that is not JSON, with nulls for words such as N/A."""
        text = _NOT_JSON.sub(
            lambda match: _escaped(match[0]) if match[0].startswith('"') else "null",
            self._window[self._start : end],
        )
        try:
            value = _decode(text, 0)[0]
        except (ValueError, RecursionError) as error:
            raise self.damage("an event is not JSON") from error
        self._start = end
        return value

    def _find_end(self) -> int | None:
        """Return where a value that is not JSON ends, by its brackets.

        None if that is not in the window yet.
        """
        depth = 0
        for token in _BRACKETS_AND_STRINGS.finditer(self._window, self._start):
            sign = token[0]
            if sign == '"':
                return None  # a string that does not end in the window
            depth += (sign in "{[") - (sign in "}]")
            if depth == 0 and sign in "}]":
                return token.end()
        return None

    def _read_more(self, count: int = 1) -> bool:
        chunks: list[str] = []
        while count > 0:
            try:
                chunk = next(self._chunks, "")
            except (EOFError, zlib.error, OSError) as error:
                raise self.damage(f"the compressed file is damaged ({error})") from error
            if not chunk:
                break
            chunks.append(chunk)
            count -= len(chunk)
        self._characters_before += self._start
        self._window = self._window[self._start :] + "".join(chunks)
        self._start = 0
        return bool(chunks)


def _escaped(text: str) -> str:
    return _INVALID_ESCAPE.sub(lambda match: match[0] if len(match[0]) > 1 else "\\\\", text)


def _decoded_chunks(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        is_compressed = file.peek(2)[:2] == b"\x1f\x8b"
        source: Any = gzip_ng.GzipNGFile(fileobj=file) if is_compressed else file  # type: ignore[no-untyped-call]
        text = io.TextIOWrapper(source, encoding="utf-8-sig", errors="replace", newline="")
        while chunk := text.read(CHUNK_CHARACTERS):
            yield chunk


def redact_kineto(
    source: Path, target: Path, names: NameRedactor, *, compress: bool, keep: Collection[str] = ()
) -> dict[str, int]:
    """Write the redacted trace *source* to *target*.

    Returns:
        How much was dropped or replaced, by kind.

    Raises:
        InputError: The file is damaged or ends early. What was written until then must not be used.

    """
    replaced_before = names.replaced
    events = EventRedactor(names, frozenset(keep))
    stream = JsonStream(source)
    try:
        _write(target, _redacted_pieces(stream, events), compress=compress)
    except RecursionError:
        raise stream.damage("a value is nested too deeply") from None
    characters_after = stream.skip_rest()
    replaced = names.replaced - replaced_before
    return events.dropped | {
        "texts replaced": replaced,
        "characters after the trace": characters_after,
    }


def _redacted_pieces(stream: JsonStream, events: EventRedactor) -> Iterator[str]:
    if stream.peek() == "[":
        yield from _redacted_events(stream, events)
        return
    if stream.peek() != "{":
        raise stream.damage("it is neither an object nor an array")
    stream.expect("{")
    separator = "{\n  "
    while stream.peek() == '"':
        key = str(stream.take_value())
        stream.expect(":")
        if key == "traceEvents" and stream.peek() == "[":
            yield f'{separator}"traceEvents": '
            yield from _redacted_events(stream, events)
        else:
            entry = events.header(key, stream.take_value())
            if entry is None:
                continue
            yield f"{separator}{json.dumps(entry[0])}: {to_json(entry[1])}"
        separator = ",\n  "
    stream.expect("}")
    yield "{}\n" if separator.startswith("{") else "\n}\n"


def _redacted_events(stream: JsonStream, events: EventRedactor) -> Iterator[str]:
    stream.expect("[")
    separator = "[\n  "
    while stream.peek() == "{":
        event = events.event(stream.take_value())
        if event is not None:
            yield separator
            yield to_json(event)
            separator = ",\n  "
    stream.expect("]")
    yield "[]" if separator.startswith("[") else "\n  ]"


def _write(target: Path, pieces: Iterator[str], *, compress: bool) -> None:
    """Write ASCII text in large chunks.

    A compressed file has neither name nor time in its header.
    """
    with target.open("wb") as file:
        output: Any = gzip_ng.GzipNGFile("", "wb", 6, file, mtime=0) if compress else file  # type: ignore[no-untyped-call]
        with io.TextIOWrapper(
            io.BufferedWriter(output, CHUNK_CHARACTERS), encoding="ascii", newline=""
        ) as text:
            text.writelines(pieces)
