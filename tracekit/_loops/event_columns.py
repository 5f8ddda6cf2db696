"""Columns of events in scanned JSON, which the scanners fill and the readers take."""

from __future__ import annotations

from enum import IntEnum


class EventColumn(IntEnum):
    """Columns of a row: numbers first, then texts."""

    ID = 0  # number of the complete event, from 0
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
    COLLECTIVE_SEQ = 19
    EVENT = 20  # number of the event, complete or not, from 0
    NAME = 21
    CAT = 22
    SHAPES = 23
    COLLECTIVE = 24
    GROUP = 25
    GROUP_DESC = 26
    GROUP_RANKS = 27
    DTYPE = 28
    DTYPES = 29
    CONCRETE = 30  # values of inputs that are no tensors
    STRIDES = 31
