"""What changed between two runs: by metric, label, module, rank, kernel and cell, the largest change first."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any

import polars as pl

from tracekit._util.above import above
from tracekit._util.html import html_table
from tracekit._util.text import json_text
from tracekit._version import __version__
from tracekit.diffs import stats
from tracekit.diffs.comparable import check_formats, obstacles
from tracekit.diffs.metrics import resolve
from tracekit.diffs.samples import Run
from tracekit.diffs.sides import Comparable, Side, side_of
from tracekit.diffs.story import story, waterfall
from tracekit.diffs.verdict import judge
from tracekit.schema import LABELS

FORMAT = "tracekit.diff/1"
Row = dict[str, Any]
_KEYS: dict[str, tuple[str, ...]] = {
    "kernels": ("name", "label"),
    "modules": ("module", "label"),
    "cells": ("rank", "op", "stage", "microbatch", "b_stage", "b_microbatch"),
}


@dataclass(frozen=True, eq=False, repr=False)
class Diff:
    """What changed from one side to the other: what ``tracekit.diff`` returns.

    >>> a = Side((Run("a", {"step_ms": (10.0,), "label_ms.forward": (4.0,)}),), {})
    >>> b = Side((Run("b", {"step_ms": (12.0,), "label_ms.forward": (6.0,)}),), {})
    >>> diff(a, b).tables["labels"]["change_ms"].to_list()
    [2.0]
    """

    before: Side
    after: Side
    changes: Mapping[str, Any]
    """Everything as plain data: what ``to_dict`` gives."""

    @property
    def story(self) -> tuple[str, ...]:
        """What happened, in sentences, the largest change first."""
        return tuple(self.changes["story"])

    @property
    def obstacles(self) -> tuple[str, ...]:
        """Why the sides should not be compared; empty where they can be."""
        return tuple(self.changes["obstacles"])

    @cached_property
    def tables(self) -> dict[str, pl.DataFrame]:
        """The changes by metric, label, rank, kernel, module and cell, the largest first."""
        names = ("metrics", "labels", "ranks", *_KEYS)
        return {name: pl.DataFrame(self.changes[name], infer_schema_length=None) for name in names}

    def to_dict(self) -> Row:
        """Return the JSON object (``format: tracekit.diff/1``) as plain data."""
        return dict(self.changes)

    def to_json(self, *, indent: int | None = 1) -> str:
        """Return ``to_dict`` as text."""
        return json_text(json.dumps(self.changes, indent=indent, ensure_ascii=False, allow_nan=False))

    def save(self, path: str | PathLike[str]) -> None:
        """Write it to *path* as its extension says: .json, .md or .html."""
        above("write_diff")(self.changes, path)

    def _repr_html_(self) -> str:
        rows = [
            (row["metric"], *(_level(row[side]) for side in ("before", "after", "change")), row["verdict"])
            for row in self.changes["metrics"]
        ]
        notes = [*(f"not comparable: {reason}" for reason in self.obstacles), *self.story]
        return html_table(repr(self)[1:-1], ("metric", "before", "after", "change", "verdict"), rows, notes=notes)

    def __repr__(self) -> str:
        names = [" + ".join(run.name for run in side.runs) for side in (self.before, self.after)]
        return f"<Diff: {names[0]} → {names[1]}>"


def _level(value: float | None) -> str:
    return "–" if value is None else f"{value:,.4g}"


def diff(before: Comparable, after: Comparable) -> Diff:
    """Return what changed from *before* to *after*: by metric, label, rank, module, kernel and cell.

    Either is a trace, a folder, a store, a saved analysis or a baseline file, by its path; an ``Analysis``; or several
    runs in a list.

    >>> from tracekit import analyze
    >>> run = analyze("sample_traces/reload", schedule="none")
    >>> {row["verdict"] for row in diff(run, run).to_dict()["metrics"]} & {"regressed", "improved"}
    set()
    """
    sides = side_of(before, what="first run"), side_of(after, what="second run")
    return Diff(*sides, _changes_between(*sides))


def _changes_between(before: Side, after: Side) -> Row:
    check_formats(after.runs, before.runs)
    differences = obstacles(after.runs, before.runs)
    tables = moved(before.runs, after.runs, most=100)
    return {
        "tracekit": __version__,
        "format": FORMAT,
        "before": _side(before),
        "after": _side(after),
        "obstacles": differences,
        "story": story(before.runs, after.runs),
        "waterfall": None if (fall := waterfall(before.runs, after.runs)) is None else fall.to_dict(),
        "timelines": _timelines(before.runs, after.runs),
        "metrics": _metrics(before, after),
        "labels": _labels(before.runs, after.runs),
        "ranks": _ranks(before.runs, after.runs),
        **tables,
    }


def _timelines(before: Sequence[Run], after: Sequence[Run]) -> Row | None:
    """Return one step's pipeline cells of both sides, to be drawn on one axis; None where a side has none."""
    sides = [next((r.tables["timeline"] for r in side if r.tables.get("timeline")), None) for side in (before, after)]
    if sides[0] is None or sides[1] is None:
        return None
    return {"before": sides[0], "after": sides[1]}


def moved(before: Sequence[Run], after: Sequence[Run], *, most: int = 10) -> Row:
    """Return the kernels, modules and cells whose time changed most, and what could not be compared."""
    changes: Row = {}
    notes = []
    for table, keys in _KEYS.items():
        old, new = _average(before, table, keys), _average(after, table, keys)
        if not old or not new:
            missing = "on both sides" if not old and not new else "before" if not old else "after"
            need = "traces whose pipeline can be found" if table == "cells" else "traces or stores"
            notes.append(f"no {table} to compare: none {missing}; give {need}")
            changes[table] = []
            continue
        if table == "cells":  # a cell that one side lacks is another reading of the pipeline, not a change of time
            apart = len(old.keys() ^ new.keys())
            notes += [f"{apart} cells are on one side only and are left out"] if apart else []
            old, new = ({k: v for k, v in side.items() if k in old and k in new} for side in (old, new))
        changes[table] = _changes(old, new, keys)[:most]
    return {**changes, "notes": notes}


def _average(runs: Sequence[Run], table: str, keys: tuple[str, ...]) -> dict[tuple[Any, ...], tuple[float, float]]:
    """(ms, count) by key, averaged over the runs that hold the table."""
    holding = [r.tables[table] for r in runs if r.tables.get(table)]
    total: dict[tuple[Any, ...], tuple[float, float]] = {}
    for rows in holding:
        for row in rows:
            key = tuple(row.get(k) for k in keys)
            ms, count = total.get(key, (0.0, 0.0))
            total[key] = (ms + row["ns"] / 1e6 / len(holding), count + (row.get("count") or 1) / len(holding))
    return total


def _changes(
    old: Mapping[tuple[Any, ...], tuple[float, float]],
    new: Mapping[tuple[Any, ...], tuple[float, float]],
    keys: tuple[str, ...],
) -> list[Row]:
    rows = []
    for key in {**old, **new}:
        (a, n), (b, m) = old.get(key, (0.0, 0.0)), new.get(key, (0.0, 0.0))
        named = {k: v for k, v in zip(keys, key, strict=True) if v is not None}
        rows.append({**named, **_change(a, b), "count_before": round(n, 3), "count_after": round(m, 3)})
    return _largest([r for r in rows if r["change_ms"]])


def _change(a: float, b: float) -> Row:
    return {
        "before_ms": round(a, 6),
        "after_ms": round(b, 6),
        "change_ms": round(b - a, 6),
        "change_relative": round((b - a) / a, 6) if a else None,
    }


def _largest(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda r: -abs(r["change_ms"]))


def _metrics(before: Side, after: Side) -> list[Row]:
    """Every default metric with the gate's own verdict, the telling ones first."""
    order = {"regressed": 0, "improved": 1, "inconclusive": 2, "pass": 3}
    checks = judge(after.runs, before.runs, noise=before.noise)
    rows = [c.to_dict() for c in checks]
    rows.sort(key=lambda r: (order[r["verdict"]], -_weight(r)))
    keep = ("metric", "unit", "better", "verdict", "reason", "before", "after", "change", "change_relative", "interval")
    return [{k: r[k] for k in keep} for r in rows]


def _weight(row: Row) -> float:
    """Past how many floors the change is: the one scale that milliseconds and shares have in common."""
    return abs(row["change"] or 0.0) / row["floor"] if row["floor"] else 0.0


def _labels(before: Sequence[Run], after: Sequence[Run]) -> list[Row]:
    def value(runs: Sequence[Run], name: str) -> float | None:
        values = [r.samples[name] for r in runs if r.samples.get(name)]
        return stats.centre(values) if values else None

    rows = []
    for label in LABELS:
        times = [value(side, f"label_ms.{label}") for side in (before, after)]
        if not any(times):
            continue
        row: Row = {"label": label, **_change(times[0] or 0.0, times[1] or 0.0)}
        for family in ("exposed_ms", "overlap"):
            old, new = (value(side, f"{family}.{label}") for side in (before, after))
            row |= {f"{family}_before": _rounded(old), f"{family}_after": _rounded(new)}
        rows.append(row)
    return _largest(rows)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _ranks(before: Sequence[Run], after: Sequence[Run]) -> list[Row]:
    """Step time by rank, and which part of the budget moved."""
    sides = [_by_rank(side) for side in (before, after)]
    rows = []
    for rank in sorted(set(sides[0]) & set(sides[1])):
        old, new = sides[0][rank], sides[1][rank]
        parts = {part: new.get(part, 0.0) - old.get(part, 0.0) for part in {**old, **new} if part != "step_ms"}
        cause = max(parts, key=lambda p: abs(parts[p]), default=None)
        row = {"rank": rank, **_change(old["step_ms"], new["step_ms"])}
        rows.append({**row, "most": cause, "most_ms": round(parts[cause], 6) if cause else None})
    return _largest(rows)


def _by_rank(runs: Sequence[Run]) -> dict[int, dict[str, float]]:
    samples: dict[int, dict[str, list[tuple[float, ...]]]] = {}
    for run in runs:
        for entry in run.document["ranks"] if run.document else ():
            rank = int(entry["rank"])
            names = ["step_ms", "compute_ms", "idle_ms", *(f"exposed_ms.{k}" for k in entry["budget_ns"]["exposed"])]
            for name in names:
                values = run.values(resolve(f"{name}@{rank}", known=[name]))
                if values:
                    samples.setdefault(rank, {}).setdefault(name, []).append(values)
    centre: Callable[[list[tuple[float, ...]]], float] = stats.centre
    return {rank: {name: centre(values) for name, values in by.items()} for rank, by in samples.items()}


def _side(side: Side) -> Row:
    return {
        "runs": [{"name": r.name, "steps": r.steps} for r in side.runs],
        "facts": dict(side.runs[0].facts) if side.runs else {},
    }
