"""Decode mutated pages that end right before memory nobody may touch, into columns that do.

A read or write past them ends the process with a segmentation fault. Run by test_nsight_btree_left.py.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.parsers.guarded import Guarded
from tracekit.parsers.nsight import btree

SIZE, PAGES = 512, 4


def leaves(rng):
    """The leaf pages of a table of many kinds of rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.sqlite"
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA page_size = {SIZE}")
        connection.execute("CREATE TABLE t (a INTEGER, b INTEGER, c TEXT, d INTEGER)")
        for i in range(400):
            value = int(rng.integers(-(1 << 62), 1 << 62)) >> int(rng.integers(62))
            connection.execute("INSERT INTO t VALUES (?, ?, ?, ?)", [value, i % 3, "x" * int(rng.integers(90)), None])
        connection.commit()
        connection.close()
        with btree.PageFile(path) as pages:
            numbers = pages.leaves(2)
            return pages.read(numbers, np.empty(len(numbers) * SIZE, np.uint8)).reshape(-1, SIZE)


def main(rounds):
    rng = np.random.default_rng(3)
    sound = leaves(rng)
    places = np.array([[0, 1, 2, 3], [btree.NUMBER, btree.NUMBER, btree.TEXT, btree.NUMBER]])
    guarded = [Guarded(1 << 16) for _ in range(3)]
    outcomes = set()
    for _ in range(rounds):
        first = int(rng.integers(len(sound) - PAGES))
        data = sound[first : first + PAGES].copy().ravel()
        for _ in range(rng.integers(0, 6)):
            at = int(rng.integers(PAGES)) * SIZE + int(rng.choice([rng.integers(12), rng.integers(SIZE)]))
            data[at] = rng.integers(256)
        place = (Guarded.at_end, Guarded.at_start)[int(rng.integers(2))]
        pages = place(guarded[0], len(data))
        pages[:] = data
        room = int(rng.integers(1, 100))
        values = guarded[1].at_end(4 * room * 8).view(np.int64).reshape(4, room)
        present = guarded[2].at_end(4 * room).reshape(4, room)
        present[:] = 1
        rows = btree._decode(pages, SIZE, places, values, present, np.empty(2, np.int64))
        assert -1 <= rows <= room
        outcomes.add(rows >= 0)
        if rows > 0:
            column = btree.BytesColumn()
            column.add(pages, values[2, :rows], btree._gather)
            texts = column.join([column])
            assert texts.bin.size().to_list() == (values[2, :rows] & 0xFFFFFFFF).tolist()
    assert outcomes == {True, False}


if __name__ == "__main__":
    main(int(sys.argv[1]))
