"""Redaction of a PyTorch trace, event by event, whatever the file's size."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from zlib_ng import gzip_ng

from tracekit.redaction.events import EventRedactor, to_json
from tracekit.redaction.json_stream import CHUNK_BYTES, JsonStream
from tracekit.redaction.names import NameRedactor


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
    return events.dropped | {"texts replaced": replaced, "characters after the trace": characters_after}


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
    """Write ASCII text in large chunks; a compressed file has neither name nor time in its header."""
    with target.open("wb") as file:
        output: Any = gzip_ng.GzipNGFile("", "wb", 6, file, mtime=0) if compress else file  # type: ignore[no-untyped-call]
        buffer: list[str] = []
        size = 0
        for piece in pieces:
            buffer.append(piece)
            size += len(piece)
            if size > CHUNK_BYTES:
                output.write("".join(buffer).encode("ascii"))
                buffer, size = [], 0
        output.write("".join(buffer).encode("ascii"))
        if compress:
            output.close()
