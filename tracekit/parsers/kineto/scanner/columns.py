"""What the scanner looks for in an event: each wanted key, where it stands, and the column it fills.

The scanner writes one row of ``WIDTH`` 64-bit integers per kept event. A text column holds a code into the
scanner's dictionary, ``NULL`` stands for "not there".
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import numpy.typing as npt

NULL = -(2**63) + 2**31
"""Not there. Its low 32 bits are the least int32, so a narrowed column keeps its nulls."""


NULL32 = -(2**31)
"""The same in a column narrowed to 32 bits."""


NOTHING, NARROW, WIDE = range(3)
"""How a column of a chunk is kept: not at all, in 32 bits or in 64 …"""
SPARSE = 4
"""… added to that: only the rows that have a value, and their numbers."""


class Column(IntEnum):
    """The scanner's row."""

    ID = 0
    TS = 1
    DUR = 2
    PID = 3
    TID = 4
    EXTERNAL = 5
    CORRELATION = 6
    SEQUENCE = 7
    FWD_THREAD = 8
    SRC = 9
    DST = 10
    BYTES = 11
    IN_NELEMS = 12
    OUT_NELEMS = 13
    DEVICE = 14
    STREAM = 15
    GRAPH = 16
    GRAPH_NODE = 17
    GROUP_ID = 18
    EVENT = 19
    NAME = 20
    CAT = 21
    SHAPES = 22
    COLLECTIVE = 23
    GROUP = 24
    GROUP_DESC = 25
    GROUP_RANKS = 26
    DTYPE = 27
    DTYPES = 28


FIRST_TEXT = int(Column.NAME)
TEXTS = len(Column) - FIRST_TEXT
WIDTH = len(Column)

PHASE = 100  # one letter, kept apart: it decides whether the event becomes a row
ARGS = 101  # the object whose keys are looked up too
KNOWN = 102  # a key that only events have: not kept, but it helps to find the next event after damage

EVENT_KEYS: dict[str, int] = {
    "ph": PHASE,
    "args": ARGS,
    "id": KNOWN,
    "bp": KNOWN,
    "s": KNOWN,
    "name": Column.NAME,
    "cat": Column.CAT,
    "ts": Column.TS,
    "dur": Column.DUR,
    "pid": Column.PID,
    "tid": Column.TID,
}
ARG_KEYS: dict[str, int] = {
    "External id": Column.EXTERNAL,
    "external id": Column.EXTERNAL,  # files of 2021
    "correlation": Column.CORRELATION,
    "Sequence number": Column.SEQUENCE,
    "Fwd thread id": Column.FWD_THREAD,
    "Src Rank": Column.SRC,
    "Dst Rank": Column.DST,
    "bytes": Column.BYTES,
    "In msg nelems": Column.IN_NELEMS,
    "Out msg nelems": Column.OUT_NELEMS,
    "device": Column.DEVICE,
    "stream": Column.STREAM,
    "graph id": Column.GRAPH,
    "graph node id": Column.GRAPH_NODE,
    "Process Group ID": Column.GROUP_ID,  # files before mid 2024
    "Input Dims": Column.SHAPES,
    "Input dims": Column.SHAPES,
    "Input type": Column.DTYPES,
    "Collective name": Column.COLLECTIVE,
    "Process Group Name": Column.GROUP,
    "Process Group Description": Column.GROUP_DESC,
    "Process Group Ranks": Column.GROUP_RANKS,
    "dtype": Column.DTYPE,
}
MEMORY_KEYS: dict[str, int] = {
    "Bytes": Column.BYTES,
    "Total Allocated": Column.IN_NELEMS,
    "Total Reserved": Column.OUT_NELEMS,
    "Device Type": Column.STREAM,
    "Device Id": Column.DEVICE,
    "Addr": Column.EXTERNAL,
}
"""Arguments of the allocator's events, which are read a second time with these keys: the row lends its columns."""

MEMORY_NAME = "[memory]"
MEMORY_COLUMNS = {
    "at_ns": Column.TS,
    "pid": Column.PID,
    "tid": Column.TID,
    "device_type": Column.STREAM,
    "device": Column.DEVICE,
    "bytes": Column.BYTES,
    "allocated": Column.IN_NELEMS,
    "reserved": Column.OUT_NELEMS,
    "address": Column.EXTERNAL,
}
"""The row of an event of the allocator: what it is called in ``schema.MEMORY``, and where the scanner reads it."""

SLOTS = 128  # of the key table; a power of two, at most half full
SLOT_WIDTH = 6  # length and level, four words of the key, its column
KEY_BYTES = 32  # no wanted key is longer
MIX = 0x9E3779B97F4A7C15  # 2**64 / golden ratio: spreads keys over the table

POWERS = SLOTS * SLOT_WIDTH  # of ten: they ride behind the keys, for the scanner's numbers
GAPS = POWERS + 9  # what stood between two values before, see ``gaps``
GAP_WIDTH = 8  # length, next key and level; the first word, the last, and up to four between; which to replace
GAP_WAYS = 4  # that are remembered for each key
GAP_LEAST, GAP_MOST = 8, 48  # bytes
START = SLOTS  # in place of a slot: no key yet
UNKNOWN = SLOTS + 1  # a key that no column wants, on each of the levels
KEYS = GAPS + (UNKNOWN + 3) * GAP_WAYS * GAP_WIDTH  # words of all that


def key_slot(first_word: int, length: int, level: int) -> int:
    """Where the search for a key starts: the scanner computes the same."""
    tag = length | level << 8
    return ((first_word ^ tag) * MIX & 2**64 - 1) >> 57


def key_table() -> npt.NDArray[np.uint64]:
    """Lay the wanted keys out as an open-addressing table the scanner can probe without a string in sight.

    >>> taken = key_table()[:POWERS:SLOT_WIDTH] > 0
    >>> int(taken.sum()) == len(EVENT_KEYS) + len(ARG_KEYS) + len(MEMORY_KEYS)
    True
    """
    table = np.zeros(KEYS, np.uint64)
    table[POWERS:GAPS] = 10 ** np.arange(9)
    for level, keys in enumerate((EVENT_KEYS, ARG_KEYS, MEMORY_KEYS)):
        for key, column in keys.items():
            raw = key.encode()
            words = np.frombuffer(raw.ljust(KEY_BYTES, b"\0"), "<u8")
            slot = key_slot(int(words[0]), len(raw), level)
            while table[slot * SLOT_WIDTH]:
                slot = (slot + 1) % SLOTS
            entry = table[slot * SLOT_WIDTH : (slot + 1) * SLOT_WIDTH]
            entry[0] = len(raw) | level << 8
            entry[1:5] = words
            entry[5] = column
    return table
