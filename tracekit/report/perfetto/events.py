"""Trace events as lines of Chrome's JSON, built column by column.

Times are microseconds with three digits, so that no nanosecond is lost.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

import polars as pl

_NAMES: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))
EVENT_DETAILS = _NAMES["details"]
"""Columns of an event that its details show, and their names: those of PyTorch's traces where they have one."""


def event_lines(events: pl.DataFrame, base_ns: int, *, details: Mapping[str, str] = EVENT_DETAILS) -> pl.Series:
    r"""Return one line of JSON per event.

    Args:
        events: Columns ``kind`` (the category), ``name``, ``start_ns``, ``end_ns``, ``to_pid`` and ``to_tid``, and any
            of *details*. Events of kind ``mark`` are instants.
        base_ns: Time that is 0 in the file.
        details: Column → name of a detail; nulls are left out.

    >>> event = pl.DataFrame({"kind": ["kernel"], "name": ['a"b'], "start_ns": [1_000_001_234],
    ...                       "end_ns": [1_000_001_239], "to_pid": [1], "to_tid": [2], "bytes": [7]})
    >>> print(event_lines(event, 1_000_000_000)[0])
    {"ph":"X","cat":"kernel","name":"a\"b","pid":1,"tid":2,"ts":1.234,"dur":0.005,"args":{"bytes":7}}
    """
    kind = pl.col("kind").cast(pl.String)
    is_instant = kind == "mark"
    duration = _microseconds((pl.col("end_ns") - pl.col("start_ns")).clip(0))
    details_text = pl.concat_str(
        [pl.lit(""), *(_detail(events[column], name) for column, name in details.items() if column in events.columns)]
    )
    line = pl.concat_str(
        pl.when(is_instant).then(pl.lit('{"ph":"i","cat":"')).otherwise(pl.lit('{"ph":"X","cat":"')),
        kind.replace(_NAMES["categories"]),
        pl.lit('","name":'),
        pl.lit(_as_json(events["name"])),
        *_track_and_time("to_pid", "to_tid", pl.col("start_ns") - base_ns),
        pl.lit(","),
        pl.when(is_instant).then(pl.lit('"s":"t"')).otherwise(pl.concat_str(pl.lit('"dur":'), duration)),
        pl.lit(',"args":{'),
        details_text.str.strip_prefix(","),
        pl.lit("}}"),
    )
    return events.select(line=line)["line"]


def arrow_lines(
    arrows: pl.DataFrame, base_ns: int, *, first_id: int, category: str = "ac2g", name: str = "ac2g"
) -> pl.Series:
    r"""Return two lines per arrow: its start and its end.

    Args:
        arrows: Columns ``from_ns``, ``from_pid`` and ``from_tid`` of the start; ``start_ns``, ``to_pid`` and ``to_tid``
            of the end.
        base_ns: Time that is 0 in the file.
        first_id: Number of the first arrow.
        category: Category of all arrows; PyTorch's for arrows from a launch to what it launched.
        name: Name of all arrows.

    >>> arrow = pl.DataFrame({"from_ns": [5], "from_pid": [1], "from_tid": [2], "start_ns": [7],
    ...                       "to_pid": [3], "to_tid": [4]})
    >>> print(*arrow_lines(arrow, 0, first_id=9), sep="\n")
    {"ph":"s","cat":"ac2g","name":"ac2g","id":9,"pid":1,"tid":2,"ts":0.005}
    {"ph":"f","bp":"e","cat":"ac2g","name":"ac2g","id":9,"pid":3,"tid":4,"ts":0.007}
    """
    common = f',"cat":{json.dumps(category)},"name":{json.dumps(name)},"id":'
    start = _track_and_time("from_pid", "from_tid", pl.col("from_ns") - base_ns)
    end = _track_and_time("to_pid", "to_tid", pl.col("start_ns") - base_ns)
    lines = [
        pl.concat_str(pl.lit(opening + common), "id", *track_and_time, pl.lit("}"))
        for opening, track_and_time in (('{"ph":"s"', start), ('{"ph":"f","bp":"e"', end))
    ]
    numbered = arrows.with_row_index("id", offset=first_id)
    return numbered.select(line=pl.concat_list(lines))["line"].explode()


def _track_and_time(pid: str, tid: str, time_ns: pl.Expr) -> list[pl.Expr]:
    """Return the text of process, thread and time, to be joined; *pid* and *tid* are columns."""
    return [
        pl.lit(',"pid":'), pl.col(pid), pl.lit(',"tid":'), pl.col(tid), pl.lit(',"ts":'), _microseconds(time_ns)
    ]  # fmt: skip


def _detail(values: pl.Series, name: str) -> pl.Expr:
    """Return ``,"name":value`` for each value, nothing for null."""
    if values.dtype.is_float():
        text = values.round(3).cast(pl.String)
    elif values.dtype.is_numeric():
        text = values.cast(pl.String)
    else:
        text = _as_json(values)
    return (pl.lit(f",{json.dumps(name)}:") + pl.lit(text)).fill_null("")


def _as_json(texts: pl.Series) -> pl.Series:
    """Return texts as JSON strings, each distinct text converted once."""
    texts = texts.cast(pl.String)
    distinct = texts.unique().drop_nulls()
    # Letters are not escaped: Perfetto does not decode all escapes.
    quoted = pl.Series([json.dumps(text, ensure_ascii=False) for text in distinct], dtype=pl.String)
    return texts.replace_strict(distinct, quoted, default=None)


def _microseconds(ns: pl.Expr) -> pl.Expr:
    """Return non-negative nanoseconds as microseconds with three digits."""
    return pl.concat_str(ns // 1000, pl.lit("."), (ns % 1000).cast(pl.String).str.zfill(3))
