"""How a scan stops, and where it leaves its counts."""

PAD = 64
"""Bytes a buffer must own after ``end``; the scanner reads eight at a time."""

MORE, END, PARTIAL, ROWS_FULL, TEXT_FULL = range(5)
"""How a scan stops: clean at ``end``, after the closing bracket, before an event that ``end`` cuts in two, before
an event there is no row for, before an event whose text the dictionary has no room for."""

# Where the counters stand in the state array.
(
    POS,
    ROWS,
    EVENTS,
    COMPLETE,
    BAD,
    FIRST_BAD,
    BAD_VALUES,
    FIRST_BAD_VALUE,
    TEXT_COUNT,
    TEXT_BYTES,
    PYTHON,
    SEEN,
    ODD,
    LOST,
    MEMORY,
    COLUMN,
    SLOT,
    LEVEL,
    HELD,
    FILLED,
    WASTE,
) = range(21)
PHASES = 21
STATE = PHASES + 256
