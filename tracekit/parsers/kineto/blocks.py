"""From a stream to parts: threads that scan blocks cut between events, or one that walks them in order."""

from __future__ import annotations

import threading

import msgspec
import numpy as np

from tracekit._util.machine import cores
from tracekit.parsers.kineto import scanner
from tracekit.parsers.kineto.header import TAIL_LIMIT
from tracekit.parsers.kineto.stream import Stream
from tracekit.parsers.kineto.worker import Part, Worker

BLOCK = 4 << 20
LONGEST_EVENT = 32 << 20
"""An event longer than this is not read; an argument of a real one has been seen at a few MB."""
_CONTEXT = 64


class OtherLayoutError(Exception):
    """The events are not laid out so that they can be cut without reading them."""


class Scanned(msgspec.Struct):
    """All parts in the file's order, the workers that hold their text, and how the list of events ended."""

    parts: list[Part]
    workers: list[Worker]
    closed: bool = False
    cut_event: bool = False  # the file ends inside an event
    tail: bytes = b""
    tail_cut: bool = False  # there was more behind the events than is worth reading


def separator(head: bytes, at: int) -> bytes | None:
    r"""Find the bytes between two events, if every event starts on a line of its own: the first one's indent tells.

    >>> separator(b'{"traceEvents": [\n  {\n    "ph": "X"\n  },', 17)
    b'\n  },\n  {'
    """
    brace = head.find(b"{", at, at + 200)
    indent = head[at:brace]
    newline = indent.rfind(b"\n")
    if brace < 0 or newline < 0 or indent.strip():
        return None
    indent = indent[newline + 1 :]
    return b"\n" + indent + b"},\n" + indent + b"{"


class _Block(msgspec.Struct):
    index: int
    buffer: bytearray
    start: int
    end: int
    last: bool


class _Reader:
    """Fills buffers, one at a time, and cuts each after its last whole event."""

    def __init__(self, stream: Stream, head: bytes, at: int, mark: bytes) -> None:
        self._stream = stream
        self._carry = head
        self._start = at
        self._mark = mark
        self._turn = threading.Lock()
        self._index = 0
        self._ended = False
        self.stopped = False
        """Set by whoever wants no more."""

    def block(self, buffer: bytearray) -> _Block | None:
        """Return the next block, in this buffer or in a larger one; None behind the last."""
        with self._turn:
            if self.stopped or self._ended:
                return None
            block = self._filled(buffer)
            self._start, self._ended = 0, block.last
            self._index += 1
            return block

    def _filled(self, buffer: bytearray) -> _Block:
        while True:
            carry, room = self._carry, len(buffer) - scanner.PAD
            if len(carry) > room // 2:
                room = 2 * len(carry)
                buffer = bytearray(room + scanner.PAD)
            buffer[: len(carry)] = carry
            end = len(carry)
            end += self._stream.fill(memoryview(buffer)[end:room])
            if end < room:
                return _Block(self._index, buffer, self._start, end, last=True)
            cut = buffer.rfind(self._mark, self._start, end)
            if cut >= 0:
                cut += self._mark.index(b",") + 1
                self._carry = bytes(buffer[cut:end])
                return _Block(self._index, buffer, self._start, cut, last=False)
            if room >= LONGEST_EVENT:
                raise OtherLayoutError
            self._carry = bytes(buffer[:end])


def scan_parallel(stream: Stream, head: bytes, at: int, mark: bytes, *, stacks: bool) -> Scanned:
    """Scan blocks on threads, this one among them, that each read their own: it is still in their core's memory then.

    Raises ``OtherLayoutError`` if a cut was not between events.
    """
    count = min(3 if stream.gzipped else 2, cores())  # inflating is a third of scanning
    workers = [Worker(k, stacks=stacks) for k in range(count)]
    reader = _Reader(stream, head, at, mark)
    parts: dict[int, Part] = {}
    tails: list[bytes] = []
    failures: list[BaseException] = []

    def work(worker: Worker) -> None:
        buffer = bytearray(BLOCK + scanner.PAD)
        try:
            while (block := reader.block(buffer)) is not None:
                buffer = block.buffer
                part = worker.run(np.frombuffer(buffer, np.uint8), block.start, block.end, trust=True)
                parts[block.index] = part
                if part.status != scanner.MORE and not block.last:
                    raise OtherLayoutError
                if block.last:
                    tails.append(bytes(buffer[part.position : min(block.end, part.position + TAIL_LIMIT)]))
        except BaseException as error:
            failures.append(error)
            reader.stopped = True

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in workers[1:]]
    for thread in threads:
        thread.start()
    work(workers[0])  # in this thread, which alone sees that the user interrupts
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    ordered = [parts[k] for k in sorted(parts)]
    return _finish(ordered, workers, tails[0])


def scan_in_order(stream: Stream, head: bytes, at: int, *, stacks: bool) -> Scanned:
    """Walk a file of any layout: an event that a block cuts in two is carried over to the next.

    An event that grows past ``patience`` is damage if another starts inside it; one past ``LONGEST_EVENT`` is passed
    over, with no more of it in memory than one block.
    """
    worker = Worker(0, stacks=stacks)
    parts: list[Part] = []
    buffer = bytearray(max(BLOCK, 2 * len(head)) + scanner.PAD)
    buffer[: len(head)] = head
    start, end, carried, patience, passing = at, len(head), 0, LONGEST_EVENT, False
    while True:
        room = len(buffer) - scanner.PAD
        end += stream.fill(memoryview(buffer)[end:room])
        last = end < room
        trust = last or passing or carried >= patience
        part = worker.run(np.frombuffer(buffer, np.uint8), start, end, trust=trust)
        if passing:  # the junk byte in front, counted as an event
            part.bad, part.events = part.bad - 1, part.events - 1
            passing = part.status == scanner.MORE and part.events == 0 and not last
        parts.append(part)
        start = part.position
        if part.status == scanner.END:
            return _finish(parts, [worker], _rest(stream, bytes(buffer[start:end])))
        if last:
            return _finish(parts, [worker], b"")
        if carried >= patience and part.bad:
            patience = max(patience // 4, 1 << 16)  # a file of many such events must not cost as much for each
        carried = end - start
        if carried >= LONGEST_EVENT and not passing:
            part.bad, part.events = part.bad + 1, part.events + 1
            passing = True
        if passing:
            # No event starts with this byte, so the scanner looks for the next; a few bytes of context help it.
            buffer[:_CONTEXT] = b"x" + buffer[end - _CONTEXT + 1 : end]
            start, end, carried = 0, _CONTEXT, 0
        elif carried > room // 2:
            bigger = bytearray(2 * room + scanner.PAD)
            bigger[:carried] = buffer[start:end]
            buffer, start, end = bigger, 0, carried
        else:
            buffer[:carried] = buffer[start:end]
            start, end = 0, carried


def _finish(parts: list[Part], workers: list[Worker], tail: bytes) -> Scanned:
    last = parts[-1].status
    cut = last == scanner.PARTIAL
    if cut:
        parts[-1].bad, parts[-1].events = parts[-1].bad + 1, parts[-1].events + 1
    if last != scanner.END:
        return Scanned(parts, workers, cut_event=cut)
    return Scanned(parts, workers, closed=True, tail=tail, tail_cut=len(tail) >= TAIL_LIMIT)


def _rest(stream: Stream, start: bytes) -> bytes:
    pieces, size = [start], len(start)
    while size < TAIL_LIMIT and (block := stream.read(1 << 20)):
        pieces.append(block)
        size += len(block)
    return b"".join(pieces)
