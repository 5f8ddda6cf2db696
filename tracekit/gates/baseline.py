"""Baseline files: small JSON files made to be kept in git.

Keys are sorted, numbers are rounded to five digits, and each metric has its own line, so that git shows a readable
difference between two baselines.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tracekit._util.files import atomic_write
from tracekit._util.text import counted, json_text
from tracekit._version import __version__
from tracekit.diffs import stats
from tracekit.diffs.comparability import check_formats, find_obstacles
from tracekit.diffs.load_runs import BASELINE_FORMAT, load_baseline
from tracekit.diffs.noise_thresholds import Noise, calibrate
from tracekit.diffs.run_samples import Run
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
    lines = ["{", f' "facts": {_json(runs[0].facts)},', f' "format": {_json(BASELINE_FORMAT)},']
    noise_rows = {
        metric: _json({"deviation": _round_number(entry.deviation), "runs": entry.df + 1})
        for metric, entry in sorted((noise or {}).items())
    }
    tables = {name: _format_table(rows) for name, rows in sorted(runs[0].tables.items()) if name != "timeline"}
    lines += [f' "noise": {_format_object(noise_rows)},', ' "runs": [']
    lines += [",\n".join(_format_run(run) for run in runs), " ],", f' "tables": {_format_object(tables)},']
    return "\n".join([*lines, f' "tracekit": {_json(__version__)}', "}"])


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
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: exists and is not a baseline file", hint="name another, or remove it") from error
    if not isinstance(document, dict) or document.get("format") != BASELINE_FORMAT:
        raise InputError(f"{path}: exists and is not a baseline file", hint="name another, or remove it")
    return load_baseline(document, name=str(path))[1]


def _format_object(members: Mapping[str, str]) -> str:
    """Return a JSON object with one member per line, or ``{}``; the values are JSON already."""
    if not members:
        return "{}"
    return "{\n" + ",\n".join(f"  {_json(key)}: {value}" for key, value in members.items()) + "\n }"


def _format_run(run: Run) -> str:
    rows = []
    for metric, values in sorted(run.samples.items()):
        stride = max(1, -(-len(values) // MAX_STEPS_KEPT))  # every n-th step of a very long run
        rows.append(f"    {_json(metric)}: {_json([_round_number(value) for value in values[::stride]])}")
    return f'  {{"name": {_json(run.name)},\n   "samples": {{\n' + ",\n".join(rows) + "\n   }}"


def _format_table(rows: Any) -> str:
    if isinstance(rows, list):
        return "[" + ",".join("\n   " + _json(_round_numbers(row)) for row in rows[:MAX_ROWS_KEPT]) + "\n  ]"
    return _json(_round_numbers(rows))


def _round_numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _round_numbers(item) for key, item in value.items()}
    return _round_number(value) if isinstance(value, float) else value


def _round_number(value: float) -> float | int:
    """Return five significant digits; a whole number as an int."""
    if not math.isfinite(value) or value == 0:
        return 0
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _json(value: Any) -> str:
    return json_text(json.dumps(value, ensure_ascii=False, sort_keys=True))
