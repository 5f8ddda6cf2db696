"""Tables of events, whose rows are worth something only with a start and, on a GPU, an end.

sqlite checks nothing: a time may be null, text, far too large, or an end before its start. What cannot be placed in
time is left out and counted; a guess would be a wrong number.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from tracekit.errors import Notice
from tracekit.parsers.nsight.tables import Export, read_table

LATEST_NS = 1 << 61
"""No time in a file, in nanoseconds from its start, is as large as this (73 years): a larger one is damage."""
LONGEST_NS = 86_400_000_000_000
"""Nothing occupies a GPU for a day without a pause: a longer event is damage."""


def read_events(export: Export, table: str, columns: Sequence[str], *, what: str = "events") -> pl.DataFrame:
    """Read a table of CPU events, without rows that have no usable start; an unusable end is null.

    *what* is the word for its rows in the notice that counts those left out.
    """
    frame = read_table(export, table, columns)
    if _sound(frame, needs_end=False):
        return frame
    kept = frame.filter(_in_range("start")).with_columns(end=pl.when(_usable_end()).then("end"))
    bad = frame.height - kept.height + int(kept["end"].null_count() - _absent_ends(frame))
    if bad > 0:
        _say(export, f"{bad:,} of {frame.height:,} {what} have no usable start or end")
    return kept


def read_gpu_events(
    export: Export, table: str, columns: Sequence[str], *, what: str, say: bool = True
) -> tuple[pl.DataFrame, int]:
    """Read a table of GPU events without the rows that cannot be placed in time, and count those."""
    frame = read_table(export, table, columns)
    if _sound(frame, needs_end=True):
        return frame, 0
    kept = frame.filter(_in_range("start") & _usable_end())
    lost = frame.height - kept.height
    if say:
        gone = [name for name in ("start", "end") if name not in export.columns(table)]
        why = f"{table} has no column {gone[0]!r}" if gone else "they have no usable start or end"
        _say(export, f"{lost:,} of {frame.height:,} {what} were left out: {why}")
    return kept, lost


def _sound(frame: pl.DataFrame, *, needs_end: bool) -> bool:
    """Return whether all times can be used: the usual case, told in few passes."""
    start, end = frame["start"], frame["end"]
    if start.null_count() or (needs_end and end.null_count()):
        return False
    longest = (end - start).max()
    lowest, shortest, latest = start.min(), (end - start).min(), end.max()
    if not isinstance(lowest, int) or not isinstance(shortest, int):
        return bool(_in_range_all(start))  # no rows, or none with an end
    assert isinstance(longest, int)
    assert isinstance(latest, int)
    placed = lowest > -LATEST_NS and latest < LATEST_NS and bool(_in_range_all(start))
    return placed and shortest >= 0 and (not needs_end or longest < LONGEST_NS)


def _in_range_all(times: pl.Series) -> bool:
    low, high = times.min(), times.max()
    return not (isinstance(low, int) and isinstance(high, int)) or (low > -LATEST_NS and high < LATEST_NS)


def _in_range(name: str) -> pl.Expr:
    return pl.col(name).is_between(-LATEST_NS, LATEST_NS, closed="none").fill_null(False)


def _usable_end() -> pl.Expr:
    longest = pl.col("end") - pl.col("start") < LONGEST_NS
    return _in_range("end") & (pl.col("end") >= pl.col("start")).fill_null(False) & longest.fill_null(False)


def _absent_ends(frame: pl.DataFrame) -> int:
    """Count the rows with a usable start and no end: a range that was never closed is not damage."""
    return frame.filter(_in_range("start"))["end"].null_count()


def _say(export: Export, text: str) -> None:
    export.notices.append(Notice("damaged-rows", f"{export.path.name}: {text}"))
