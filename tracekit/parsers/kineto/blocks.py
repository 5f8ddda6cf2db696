"""Scan of a whole file, block by block: on threads if it can be cut between events, else in order."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import polars as pl

from tracekit._loops.json_scanner import Status
from tracekit.errors import InputError
from tracekit.parsers.kineto.header import TAIL_LIMIT
from tracekit.parsers.kineto.stream import Stream
from tracekit.parsers.kineto.worker import ScannedPart, Worker

BLOCK_BYTES = 4 << 20
MAX_THREADS = 8
"""Most threads that scan one file; fewer where polars may use fewer, as in a worker process beside
others."""
MAX_EVENT_BYTES = 32 << 20
"""Longer events are not read; arguments of real ones have been seen at a few MB."""
_MIN_PATIENCE_BYTES = 1 << 16
_CONTEXT_BYTES = 64
_MAX_SPACE_BEFORE_EVENT = 200
"""Bytes within which the first event must start behind the bracket: a line break and its indent."""


class OtherLayoutError(InputError):
    """The events are not laid out so that the file can be cut without reading them."""

    def __init__(self) -> None:
        super().__init__("the events are not laid out so that the file can be cut")


@dataclass(slots=True)
class Scanned:
    """Result of a scan."""

    parts: list[ScannedPart]
    """All stretches of events, in the order of the file."""
    workers: list[Worker]
    """Owners of the texts in the parts."""
    tail: bytes
    """What follows the list of events, up to ``TAIL_LIMIT`` bytes; as many if more may follow."""

    @property
    def is_closed(self) -> bool:
        """Whether the list of events ends before the file does."""
        return self.parts[-1].status == Status.END

    @property
    def is_event_cut(self) -> bool:
        """Whether the file ends inside an event."""
        return self.parts[-1].status == Status.PARTIAL


def find_separator(head: bytes, start: int) -> bytes | None:
    r"""Return the bytes between two events, if each starts on a line of its own.

    The indent of the first event is assumed to be that of all; where it is not, scanning notices
    it.

    Args:
        head: First bytes of the file.
        start: Position behind the ``[`` that opens the list of events.

    Returns:
        End of an event and start of the next; None if the first event is not near, or not on a line
        of its own.

    >>> find_separator(b'{"traceEvents": [\n  {\n    "ph": "X"\n  },', 17)
    b'\n  },\n  {'
    """
    brace = head.find(b"{", start, start + _MAX_SPACE_BEFORE_EVENT)
    if brace < 0:
        return None
    space = head[start:brace]
    if b"\n" not in space or space.strip():
        return None
    indent = space.rpartition(b"\n")[2]
    return b"\n" + indent + b"},\n" + indent + b"{"


@dataclass(slots=True)
class TextBlock:
    """Bytes that hold whole events, ``buffer[start:end]``."""

    index: int
    buffer: bytearray
    start: int
    end: int
    is_last: bool


class BlockReader:
    """Reader of blocks, each cut behind its last whole event; threads take turns."""

    def __init__(self, stream: Stream, head: bytes, start: int, separator: bytes) -> None:
        self._stream = stream
        self._start = start
        self._separator = separator
        self._carry = head  # read, and not yet part of a block
        self._lock = threading.Lock()
        self._blocks = 0
        self._is_done = False

    def stop(self) -> None:
        """Give out no more blocks."""
        self._is_done = True

    def read(self, buffer: bytearray) -> TextBlock | None:
        """Return the next block, in *buffer* or in a larger one; None behind the last."""
        with self._lock:
            if self._is_done:
                return None
            block = self._fill(buffer)
            self._start = 0
            self._blocks += 1
            self._is_done |= block.is_last
            return block

    def _fill(self, buffer: bytearray) -> TextBlock:
        while True:
            if len(self._carry) > len(buffer) // 2:
                buffer = bytearray(2 * len(self._carry))
            end = len(self._carry)
            buffer[:end] = self._carry
            end += self._stream.fill(memoryview(buffer)[end:])
            if end < len(buffer):
                return TextBlock(self._blocks, buffer, self._start, end, is_last=True)
            cut = buffer.rfind(self._separator, self._start, end)
            if cut >= 0:
                cut += self._separator.index(b",") + 1
                self._carry = bytes(buffer[cut:end])
                return TextBlock(self._blocks, buffer, self._start, cut, is_last=False)
            if len(buffer) >= MAX_EVENT_BYTES:
                raise OtherLayoutError
            self._carry = bytes(buffer)


def scan_parallel(
    stream: Stream, head: bytes, start: int, separator: bytes, *, stacks: bool
) -> Scanned:
    """Scan blocks on threads.

    Each thread reads its own blocks, which are then still in the cache of its core.

    Raises:
        OtherLayoutError: A block was not cut between events.

    """
    reader = BlockReader(stream, head, start, separator)
    parts: dict[int, ScannedPart] = {}
    tails: list[bytes] = []

    def work(worker: Worker) -> None:
        buffer = bytearray(BLOCK_BYTES)
        try:
            while (block := reader.read(buffer)) is not None:
                buffer = block.buffer
                part = worker.scan(memoryview(buffer), block.start, block.end, is_last=True)
                parts[block.index] = part
                if block.is_last:
                    tails.append(
                        bytes(buffer[part.position : min(block.end, part.position + TAIL_LIMIT)])
                    )
                elif part.status != Status.MORE:
                    raise OtherLayoutError
        except BaseException:
            reader.stop()
            raise

    workers = [
        Worker(index, stacks=stacks) for index in range(min(MAX_THREADS, pl.thread_pool_size()))
    ]
    with ThreadPoolExecutor(max(len(workers) - 1, 1)) as pool:
        others = [pool.submit(work, worker) for worker in workers[1:]]
        work(workers[0])  # in this thread, the only one that Ctrl-C interrupts
        for other in others:
            other.result()
    return _finish([parts[index] for index in sorted(parts)], workers, tails[0])


def scan_in_order(stream: Stream, head: bytes, start: int, *, stacks: bool) -> Scanned:
    """Scan a file of any layout in one thread: an event that a block cuts in two is carried over to the next block.

    An event that grows beyond a limit ("patience") is taken for damage if another event starts
    inside it. An event longer than ``MAX_EVENT_BYTES`` is passed over with no more than one block
    of it in memory.
    """
    worker = Worker(0, stacks=stacks)
    parts: list[ScannedPart] = []
    buffer = bytearray(max(BLOCK_BYTES, 2 * len(head)))
    end = len(head)
    buffer[:end] = head
    carried = 0
    patience = MAX_EVENT_BYTES
    is_passing_over = False
    while True:
        end += stream.fill(memoryview(buffer)[end:])
        is_last = end < len(buffer)
        is_damaged = is_passing_over or carried >= patience
        part = worker.scan(memoryview(buffer), start, end, is_last=is_last or is_damaged)
        parts.append(part)
        if is_passing_over:
            # The byte put in front counts as a damaged event, which was counted before.
            part.bad -= 1
            part.events -= 1
            is_passing_over = part.status == Status.MORE and part.events == 0 and not is_last
        start = part.position
        if part.status == Status.END:
            return _finish(parts, [worker], _read_tail(stream, bytes(buffer[start:end])))
        if is_last:
            return _finish(parts, [worker], b"")
        if carried >= patience and part.bad:
            # Many such events must not each cost as much.
            patience = max(patience // 4, _MIN_PATIENCE_BYTES)
        carried = end - start
        if carried >= MAX_EVENT_BYTES and not is_passing_over:
            part.bad += 1
            part.events += 1
            is_passing_over = True
        if is_passing_over:
            # No event starts with this byte, so the scanner looks for the next one; some bytes
            # before it help.
            buffer[:_CONTEXT_BYTES] = b"x" + buffer[end - _CONTEXT_BYTES + 1 : end]
            start = 0
            end = _CONTEXT_BYTES
            carried = 0
        else:
            rest = buffer[start:end]
            if carried > len(buffer) // 2:
                buffer = bytearray(2 * len(buffer))
            buffer[:carried] = rest
            start = 0
            end = carried


def _finish(parts: list[ScannedPart], workers: list[Worker], tail: bytes) -> Scanned:
    last = parts[-1]
    scanned = Scanned(parts, workers, tail if last.status == Status.END else b"")
    if scanned.is_event_cut:
        last.bad += 1
        last.events += 1
    return scanned


def _read_tail(stream: Stream, start: bytes) -> bytes:
    pieces = [start]
    size = len(start)
    while size < TAIL_LIMIT and (block := stream.read(1 << 20)):
        pieces.append(block)
        size += len(block)
    return b"".join(pieces)
