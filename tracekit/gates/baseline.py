"""Baseline files: small JSON files made to be kept in git.

Keys are sorted, numbers are rounded to five digits, and each metric has its own line, so that git shows a readable
difference between two baselines.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tracekit._util.files import atomic_write
from tracekit._util.text import counted
from tracekit._version import __version__
from tracekit.diffs import stats
from tracekit.diffs.comparability import check_formats, find_obstacles
from tracekit.diffs.load_runs import read_baseline
from tracekit.diffs.noise_thresholds import Noise, calibrate
from tracekit.diffs.run_samples import Run
from tracekit.documents.baseline import FORMAT, BaselineDocument, Facts, NoiseEntry, RunSamples, Tables
from tracekit.documents.coding import encode, to_plain
from tracekit.errors import InputError, OptionError

MIN_RUNS_TO_CALIBRATE = 3
MAX_STEPS_KEPT, MAX_ROWS_KEPT = 64, 40
"""Steps per run and rows per table that a file keeps: more of them would not change a verdict."""


def dump(runs: Sequence[Run], noise: Mapping[str, Noise] | None = None) -> str:
    """Return the text of a baseline file.

    >>> print(dump([Run("a", {"step_ms": (10.123456, 9.9)}, {"world_size": 2})]))
    {
     "facts": {"world_size": 2},
     "format": "tracekit.baseline/1",
     "noise": {},
     "runs": [
      {"name": "a",
       "samples": {
        "step_ms": [10.123, 9.9]
       }}
     ],
     "tables": {},
     "tracekit": "..."
    }
    """
    document = _build_document(runs, noise or {})
    sections = {
        "facts": _on_one_line(to_plain(document.facts)),
        "format": _on_one_line(document.format),
        "noise": _on_lines("{}", [_member(*item) for item in sorted(document.noise.items())], indent=1),
        "runs": _on_lines("[]", [_format_run(run) for run in document.runs], indent=1),
        "tables": _on_lines("{}", [_format_table(*item) for item in to_plain(document.tables).items()], indent=1),
        "tracekit": _on_one_line(document.tracekit),
    }
    return _on_lines("{}", [f'"{key}": {text}' for key, text in sections.items()], indent=0)


def _build_document(runs: Sequence[Run], noise: Mapping[str, Noise]) -> BaselineDocument:
    """Return the document, with rounded numbers and as many steps and rows as are kept."""
    tables = {name: _round(rows[:MAX_ROWS_KEPT]) for name, rows in runs[0].tables.items() if name != "timeline"}
    return BaselineDocument(
        facts=msgspec.convert(runs[0].facts, Facts),
        format=FORMAT,
        noise={metric: NoiseEntry(_round(entry.deviation), entry.df + 1) for metric, entry in noise.items()},
        runs=[RunSamples(run.name, {name: _thinned(values) for name, values in run.samples.items()}) for run in runs],
        tables=msgspec.convert(tables, Tables),
        tracekit=__version__,
    )


def write_baseline(
    path: str | os.PathLike[str], runs: Sequence[Run], *, calibrated: bool = False
) -> dict[str, tuple[Noise, float]]:
    """Write *runs* as the new baseline, or leave the old file as it was.

    Args:
        path: The baseline file.
        runs: Runs of the same code.
        calibrated: Whether to measure the noise between *runs*; otherwise that of the replaced file is kept.

    Returns:
        The noise written and the centre of the values it belongs to, by metric.
    """
    if calibrated and len(runs) < MIN_RUNS_TO_CALIBRATE:
        raise OptionError(f"--calibrate: {counted(len(runs), 'run')} cannot show how runs differ",
                          hint=f"give at least {MIN_RUNS_TO_CALIBRATE}, better 5")  # fmt: skip
    if not any(run.steps for run in runs):
        raise InputError("the runs hold no steps to make a baseline of")
    differences = find_obstacles(runs[1:], runs[:1]) if len(runs) > 1 else []
    if differences:
        raise InputError(
            f"these runs cannot make one baseline: {'; '.join(differences)}", hint="give runs of the same code"
        )
    check_formats(runs, ())
    noise = calibrate(runs) if calibrated else _read_noise(path)
    noise = {metric: entry for metric, entry in noise.items() if metric in runs[0].samples}
    text = dump(runs, noise)
    with atomic_write(path) as part:
        part.write_text(text + "\n", encoding="utf-8")
    return {
        metric: (entry, stats.centre([run.samples[metric] for run in runs if run.samples.get(metric)]))
        for metric, entry in noise.items()
    }


def _read_noise(path: str | os.PathLike[str]) -> dict[str, Noise]:
    """Return the noise of the baseline file at *path*, if any; raise InputError rather than overwrite another file."""
    file = Path(path)
    if not file.exists():
        return {}
    try:
        return read_baseline(str(path))[1]
    except InputError as error:
        raise InputError(f"{path}: exists and is not a baseline file", hint="name another, or remove it") from error


def _on_lines(brackets: str, parts: Sequence[str], *, indent: int) -> str:
    """Return a JSON object or list with one part per line; the parts are JSON already."""
    if not parts:
        return brackets
    space = " " * indent
    return f"{brackets[0]}\n" + ",\n".join(f"{space} {part}" for part in parts) + f"\n{space}{brackets[1]}"


def _member(key: str, value: Any) -> str:
    return f"{_on_one_line(key)}: {_on_one_line(value)}"


def _format_run(run: RunSamples) -> str:
    samples = _on_lines("{}", [_member(*item) for item in sorted(run.samples.items())], indent=3)
    return f'{{"name": {_on_one_line(run.name)},\n   "samples": {samples}}}'


def _format_table(name: str, rows: Sequence[Any]) -> str:
    return f"{_on_one_line(name)}: {_on_lines('[]', [_on_one_line(row) for row in rows], indent=2)}"


def _thinned(values: Sequence[float]) -> list[float]:
    """Return every n-th step of a very long run, rounded."""
    rounded: list[float] = _round(values[:: max(1, -(-len(values) // MAX_STEPS_KEPT))])
    return rounded


def _round(value: Any) -> Any:
    """Return numbers with five significant digits, whole ones as int; also those in rows."""
    if isinstance(value, Mapping):
        return {key: _round(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_round(item) for item in value]
    if not isinstance(value, float):
        return value
    short = float(f"{value:.5g}") if math.isfinite(value) else 0.0
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _on_one_line(value: Any) -> str:
    return encode(dict(sorted(value.items())) if isinstance(value, Mapping) else value, indent=None)
