"""From paths to runs: traces and stores are analysed, saved analyses and baseline files are read.

Each argument is one run. Trace files named one by one belong together when they lie in one folder, as the ranks of a
run do.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tracekit.analysis import Analysis
from tracekit.analysis.persistence import read_document
from tracekit.analysis.result import BaseAnalysis
from tracekit.diffs import saved as baseline_file
from tracekit.diffs.floors import Noise
from tracekit.diffs.samples import Run, from_analysis
from tracekit.errors import InputError

_FORMAT = re.compile(rb'"format"\s*:\s*"(tracekit\.[a-z]+/\d+)"')
_HEAD = 1 << 18


class Side(msgspec.Struct, frozen=True):
    """One side of a comparison: its runs, and the noise that a baseline file brought along.

    >>> Side((Run("mine", {"step_ms": (10.0, 10.2)}),), {}).runs[0].name
    'mine'
    """

    runs: tuple[Run, ...]
    noise: dict[str, Noise]


One = str | os.PathLike[str] | BaseAnalysis
Comparable = One | Sequence[One] | Side
"""What can be compared: a path, an analysis, one read back from JSON, several of them, or a side made before."""


def side_of(given: Comparable, *, what: str) -> Side:
    """Return one side of a comparison; *what* (candidate or baseline) is for the errors.

    >>> from tracekit import analyze
    >>> side_of(analyze("sample_traces/reload", schedule="none"), what="candidate").runs[0].steps
    1
    """
    if isinstance(given, Side):
        return given
    several: Sequence[One] = [given] if isinstance(given, str | os.PathLike | BaseAnalysis) else given
    paths = [os.fspath(one) for one in several if not isinstance(one, BaseAnalysis)]
    runs = tuple(_run_of(one, name=what) for one in several if isinstance(one, BaseAnalysis))
    if runs and not paths:
        return Side(runs, {})
    read = read_side(paths, what=what)
    return Side((*runs, *read.runs), read.noise)


def read_side(paths: Sequence[str | Path], *, what: str) -> Side:
    """Read every run of one side; *what* (candidate or baseline) is for the errors.

    >>> read_side(["sample_traces/reload"], what="baseline").runs[0].facts["ranks"]
    4
    """
    if not paths:
        raise InputError(f"there is no {what}", hint=f"name a trace, a store or a saved analysis as the {what}")
    runs: list[Run] = []
    noise: dict[str, Noise] = {}
    for group in _grouped([str(p) for p in paths]):
        saved = saved_format(group[0]) if len(group) == 1 else None
        if saved is None:
            runs.append(_analysed(group))
        elif saved == baseline_file.FORMAT:
            more, brought = baseline_file.load(read_document(group[0]), name=group[0])
            runs += more
            noise |= brought
        else:
            runs.append(from_analysis(read_document(group[0]), name=group[0]))
    return Side(tuple(runs), noise)


def saved_format(path: str) -> str | None:
    """Return the format a JSON file of ours names, or None for a trace, a store or a folder."""
    file = Path(path)
    if "://" in path or not file.is_file() or not file.name.endswith((".json", ".json.gz")):
        return None
    try:
        with file.open("rb") as stream:
            raw = stream.read(_HEAD)
        head = zlib.decompressobj(31).decompress(raw, _HEAD) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, zlib.error):
        return None  # the trace reader says what is wrong with it
    match = _FORMAT.search(head)
    return match[1].decode() if match else None


def _grouped(paths: list[str]) -> list[list[str]]:
    groups: dict[str, list[str]] = {}
    for path in paths:
        file = Path(path)
        lone = file.is_file() and saved_format(path) is None
        groups.setdefault(f"in {file.resolve().parent}" if lone else path, []).append(path)
    return list(groups.values())


def _analysed(paths: list[str]) -> Run:
    """Analyse a trace or a store, and keep the tables that explain a change."""
    from tracekit.run.analyze import analyze

    return _run_of(analyze(paths), name=paths[0] if len(paths) == 1 else str(Path(paths[0]).parent))


def _run_of(analysis: BaseAnalysis, *, name: str) -> Run:
    """Return an analysis as the gate sees it; one read back from JSON has no cells."""
    schedule = analysis.schedule if isinstance(analysis, Analysis) else None
    return from_analysis(analysis.to_dict(), name=name, cells=_cells(schedule), timeline=_timeline(schedule))


MOST_CELLS = 3_000
"""Cells of a step up to which they are kept for drawing."""


def _timeline(schedule: Any) -> list[dict[str, Any]]:
    """Return the cells of the typical step with their times from its first; none of a very large pipeline."""
    if schedule is None or len(schedule.head.cells) > MOST_CELLS:
        return []
    import polars as pl

    keys = ["rank", "op", "stage", "microbatch", "b_stage", "b_microbatch", "start_ns", "end_ns"]
    origin = pl.col("start_ns").min()
    table = schedule.head.cells.with_columns(pl.col("start_ns", "end_ns") - origin).select(keys)
    return list(table.sort("rank", "start_ns").iter_rows(named=True))


def _cells(schedule: Any) -> list[dict[str, Any]]:
    """Typical time of each pipeline cell: the median over steps."""
    if schedule is None:
        return []
    import polars as pl

    keys = ["rank", "op", "stage", "microbatch", "b_stage", "b_microbatch"]
    table = schedule.cells.group_by(keys).agg(ns=(pl.col("end_ns") - pl.col("start_ns")).median().cast(pl.Int64))
    rows = table.sort(keys, nulls_last=True).iter_rows(named=True)
    return [{key: value for key, value in row.items() if value is not None} for row in rows]
