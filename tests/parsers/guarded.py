"""Run the scanner on mutated bytes that end right before memory nobody may touch.

A read or write past the buffer ends the process with a segmentation fault. Run by
test_kineto_fuzz.py.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

import numpy as np

from tests.parsers.tokens import TOKENS
from tracekit.parsers.kineto import worker
from tracekit.parsers.kineto.stream import Stream

PAGE = mmap.PAGESIZE
worker.ROWS_PER_CHUNK = 64


class Guarded:
    """Memory between two pages that may not be touched."""

    def __init__(self, size):
        self.size = -(-size // PAGE) * PAGE
        self._map = mmap.mmap(-1, self.size + 2 * PAGE)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        libc = ctypes.CDLL(None, use_errno=True)
        for page in (start, start + PAGE + self.size):
            assert libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(PAGE), 0) == 0
        self.memory = np.frombuffer(self._map, np.uint8)[PAGE : PAGE + self.size]

    def at_end(self, size):
        return self.memory[self.size - size :]

    def at_start(self, size):
        return self.memory[:size]


def mutate(raw, rng):
    data = bytearray(raw)
    for _ in range(rng.integers(0, 12)):
        if not data:
            break
        offset, kind = int(rng.integers(len(data))), rng.integers(4)
        if kind == 0:
            data[offset] = rng.integers(256)
        elif kind == 1:
            data[offset:offset] = TOKENS[rng.integers(len(TOKENS))]
        elif kind == 2:
            del data[offset : offset + int(rng.integers(1, 40))]
        else:
            other = int(rng.integers(len(data)))
            data[offset:offset] = data[other : other + int(rng.integers(1, 200))]
    return bytes(data[: int(rng.integers(len(data) + 1))] if rng.random() < 0.5 else data)


def main(path, rounds):
    raw = Stream(Path(path)).read(40_000)
    raw = raw[raw.index(b'"traceEvents"') :]
    raw = raw[raw.index(b"[") + 1 :]
    guarded = Guarded(3 * len(raw))
    rng = np.random.default_rng(1)
    fillings = [b"\0", b'"', b"9", b"\\"]
    for _ in range(rounds):
        start = int(rng.integers(0, 30_000))
        data = mutate(raw[start : start + int(rng.integers(1, 4000))], rng)
        results = set()
        for k, filling in enumerate(fillings):
            # Either no byte behind the data may be read, or what is there must not matter.
            size = len(data) if k % 2 else len(data) + 64
            buffer = (guarded.at_start, guarded.at_end)[k % 2](size)
            buffer[:] = np.frombuffer(data + filling * (size - len(data)), np.uint8)
            scanned = worker.Worker(0, stacks=True).scan(
                memoryview(buffer), 0, len(data), is_last=True
            )
            rows = [
                (c.rows, {name: p.values.tobytes() for name, p in c.columns.items()})
                for c in scanned.chunks
            ]
            results.add(
                repr(
                    (
                        scanned.status,
                        scanned.position,
                        scanned.events,
                        scanned.bad,
                        scanned.bad_values,
                        rows,
                    )
                )
            )
            assert 0 <= scanned.position <= len(data)
        assert len(results) == 1, "what lies behind the end changed the result"


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
