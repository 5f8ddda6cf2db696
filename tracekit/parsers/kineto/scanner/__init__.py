"""The byte scanner: JSON events in a buffer to rows of integers, as native code.

One call walks one buffer. It never reads past ``end`` plus ``PAD`` bytes, which the caller must own, and never
writes past the rows and the dictionary it was given: when either is full it stops before an event, says so, and
is called again from there. Nothing here trusts the bytes: an event that is not JSON is counted and stepped over.

What is compiled is written in ``walk`` and ``pieces``, which are imported only to compile it. Of tracekit, compiled
code may use only what is in this folder and in ``_util.compiled``: these files tell whether code kept on disk is stale.
"""

from __future__ import annotations

from pathlib import Path

from tracekit._util.native import Native
from tracekit.parsers.kineto.scanner.state import END, MORE, PAD, PARTIAL, ROWS_FULL, TEXT_FULL

__all__ = [
    "END",
    "MORE",
    "PAD",
    "PARTIAL",
    "ROWS_FULL",
    "TEXT_FULL",
    "gather",
    "mark",
    "pack",
    "regrow",
    "scan",
    "translate",
    "warm_up",
]

_FOLDER = Path(__file__).parent
_WALK = "tracekit.parsers.kineto.scanner.walk"

_PIECES = "tracekit.parsers.kineto.scanner.pieces"

scan = Native(
    "int64(uint8[::1], int64, int64, uint64[::1], int64[:,::1], int64[:,::1], int64[:,::1], int64[::1], int64[::1], "
    "uint8[::1], int64[::1], int64[:,::1], int64, int64)",
    f"{_WALK}:scan",
    _FOLDER,
)
regrow = Native("void(int64[::1], int64[::1])", f"{_WALK}:regrow", _FOLDER)
pack = Native("void(int64[:,::1], int64, int64[:,::1])", f"{_PIECES}:pack", _FOLDER)
gather = Native("void(int64[:,::1], int64[::1])", f"{_PIECES}:gather", _FOLDER)
mark = Native("void(int64[:,::1], uint8[::1])", f"{_PIECES}:mark", _FOLDER)
translate = Native("void(int64[:,::1], uint32[::1], uint32[::1])", f"{_PIECES}:translate", _FOLDER)


def warm_up() -> None:
    """Load the scanner before it is needed; the first time on a machine that compiles it, and says so on stderr."""
    for function in (scan, regrow, pack, gather, mark, translate):
        function.load()
