"""A database file as numbered pages, and the way from a table's root to the leaves that hold its rows."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from tracekit.parsers.nsight.btree.layout import (
    DEEPEST,
    HEADER,
    INTERIOR,
    INTERIOR_HEADER,
    LEAF,
    LOCK_BYTE,
    MAGIC,
)

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


class UnusualError(Exception):
    """Something that is left to sqlite: rare, damaged, or not known here."""


class PageFile:
    """The pages of a database, read without a lock. Pages are numbered from 1."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        try:
            self.size, self.count = _geometry(self._file.read(HEADER), path.stat().st_size)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> PageFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()

    def read(self, numbers: Numbers, into: Bytes) -> Bytes:
        """Read pages one behind the other into the start of *into*; pages that are neighbours in the file at once."""
        filled = into[: len(numbers) * self.size]
        cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
        for first, last in zip([0, *cuts.tolist()], [*cuts.tolist(), len(numbers)], strict=True):
            self._file.seek((int(numbers[first]) - 1) * self.size)
            view = filled[first * self.size : last * self.size].data
            while view:
                got = self._file.readinto(view)
                if not got:
                    raise UnusualError("the file ends early")
                view = view[got:]
        return filled

    def leaves(self, root: int) -> Numbers:
        """Return the pages that hold a table's rows, in order of rowid."""
        level = self._sound(np.array([root]))
        page = np.empty(self.size, np.uint8)
        for depth in range(DEEPEST):
            first = self.read(level[:1], page)
            if first[0] == LEAF:
                empty = depth == 0 and not first[3:5].any()
                return level[:0] if empty else level
            level = np.concatenate([_children(self.read(level[i : i + 1], page)) for i in range(len(level))])
            level = self._sound(level)
        raise UnusualError("too deep")

    def _sound(self, numbers: Numbers) -> Numbers:
        """Return page *numbers* if a table can be on them: none is the first, or the one that is never used."""
        lock = LOCK_BYTE // self.size + 1
        if len(numbers) > self.count or numbers.min() < 2 or numbers.max() > self.count or (numbers == lock).any():
            raise UnusualError("pages that no table has")
        return numbers


def _geometry(head: bytes, file_bytes: int) -> tuple[int, int]:
    """Return the size and the number of pages, of a file as nearly all are.

    >>> _geometry(Path("sample_traces/nsys-1f1b/rank0.sqlite").read_bytes()[:100], 1142784)
    (4096, 279)
    """
    size = int.from_bytes(head[16:18], "big")
    size = 65536 if size == 1 else size
    # No write-ahead log, no bytes kept free on each page, the share of a page that a row may take as it must be, UTF-8.
    usual = head[:16] == MAGIC and head[18:24] == bytes([1, 1, 0, 64, 32, 32]) and head[56:60] == bytes([0, 0, 0, 1])
    if not usual or len(head) < HEADER or size < 512 or size & (size - 1):
        raise UnusualError("header")
    count = int.from_bytes(head[28:32], "big")
    if head[24:28] != head[92:96] or count * size != file_bytes:
        raise UnusualError("size")
    return size, count


def _children(page: Bytes) -> Numbers:
    """Return the pages below an interior one."""
    cells = int(page[3]) << 8 | int(page[4])
    first = INTERIOR_HEADER + 2 * cells
    if page[0] != INTERIOR or cells < 1 or first > len(page):
        raise UnusualError("no interior page")
    places: npt.NDArray[Any] = page[INTERIOR_HEADER:first].view(">u2").astype(np.int64)
    if places.min() < first or places.max() > len(page) - 5:
        raise UnusualError("cells outside their page")
    left = page[places[:, None] + np.arange(4)].view(">u4").ravel()
    return np.append(left, page[8:12].view(">u4")).astype(np.int64)
