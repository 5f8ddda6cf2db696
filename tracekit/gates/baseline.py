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
from tracekit.diffs.load_runs import Side, read_baseline
from tracekit.diffs.noise_thresholds import Noise, calibrate
from tracekit.diffs.run_samples import Run
from tracekit.documents.baseline import FORMAT, Facts, NoiseEntry, Tables
from tracekit.documents.coding import encode, to_plain
from tracekit.errors import InputError, OptionError

MIN_RUNS_TO_CALIBRATE = 3
MAX_STEPS_KEPT, MAX_ROWS_KEPT = 64, 40
"""Steps per run and rows per table that a file keeps: more of them would not change a verdict."""


def dump(side: Side) -> str:
    """Return the text of a baseline file.

    >>> print(dump(Side((Run("a", {"step_ms": (10.123456, 9.9)}, {"world_size": 2}),), {})))
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
    members = _role_members(side, indent=1) | {"format": _on_one_line(FORMAT), "tracekit": _on_one_line(__version__)}
    main_role = side.runs[0].main_role
    if side.other_roles and main_role is not None:
        roles = {
            name: _on_lines("{}", _role_members(side.of_role(name), indent=3), indent=2) for name in side.other_roles
        }
        members |= {"main_role": _on_one_line(main_role), "roles": _on_lines("{}", roles, indent=1)}
    return _on_lines("{}", members, indent=0)


def _role_members(side: Side, *, indent: int) -> dict[str, str]:
    """Return the JSON text of each key of ``RoleBaseline``: numbers are rounded, long runs and tables are cut.

    Args:
        side: The runs of one role.
        indent: Spaces before the keys.
    """
    runs = side.runs
    kept = {name: rows[:MAX_ROWS_KEPT] for name, rows in runs[0].tables.items() if name in Tables.__struct_fields__}
    tables = to_plain(msgspec.convert(_round(kept), Tables))
    noise = {metric: NoiseEntry(_round(entry.deviation), entry.df + 1) for metric, entry in side.noise.items()}
    row_texts = {name: [_on_one_line(row) for row in rows] for name, rows in tables.items()}
    return {
        "facts": _on_one_line(to_plain(msgspec.convert(_round(runs[0].facts), Facts))),
        "noise": _on_lines("{}", {name: _on_one_line(entry) for name, entry in noise.items()}, indent=indent),
        "runs": _on_lines("[]", [_format_run(run, indent + 1) for run in runs], indent=indent),
        "tables": _on_lines(
            "{}", {name: _on_lines("[]", rows, indent=indent + 1) for name, rows in row_texts.items()}, indent=indent
        ),
    }


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
    check_formats(runs, ())
    side = Side(tuple(runs), {})
    for role_runs in (runs, *(side.of_role(name).runs for name in side.other_roles)):
        differences = find_obstacles(role_runs[1:], role_runs[:1]) if len(runs) > 1 else []
        if differences:
            raise InputError(
                f"these runs cannot make one baseline: {'; '.join(differences)}", hint="give runs of the same code"
            )
    if calibrated:
        role_noise = {name: calibrate(side.of_role(name).runs) for name in side.other_roles}
        side = Side(side.runs, calibrate(runs), role_noise)
    else:
        replaced = _read_replaced(path)
        side = Side(side.runs, replaced.noise, replaced.role_noise)
    noise = {metric: entry for metric, entry in side.noise.items() if metric in runs[0].samples}
    text = dump(msgspec.structs.replace(side, noise=noise))
    with atomic_write(path) as part:
        part.write_text(text + "\n", encoding="utf-8")
    return {
        metric: (entry, stats.centre([run.samples[metric] for run in runs if run.samples.get(metric)]))
        for metric, entry in noise.items()
    }


def _read_replaced(path: str | os.PathLike[str]) -> Side:
    """Return the baseline file at *path*, empty if there is none; raise rather than overwrite another file."""
    if not Path(path).exists():
        return Side((), {})
    try:
        return read_baseline(str(path))
    except InputError as error:
        raise InputError(f"{path}: exists and is not a baseline file", hint="name another, or remove it") from error


def _on_lines(brackets: str, parts: Sequence[str] | Mapping[str, str], *, indent: int) -> str:
    """Return a JSON list, or an object with sorted keys, with one part per line; the parts are JSON already."""
    if isinstance(parts, Mapping):
        parts = [f"{_on_one_line(key)}: {text}" for key, text in sorted(parts.items())]
    if not parts:
        return brackets
    space = " " * indent
    return f"{brackets[0]}\n" + ",\n".join(f"{space} {part}" for part in parts) + f"\n{space}{brackets[1]}"


def _format_run(run: Run, indent: int) -> str:
    # Of a very long run every n-th step is kept.
    kept = {name: values[:: max(1, -(-len(values) // MAX_STEPS_KEPT))] for name, values in run.samples.items()}
    lines = {name: _on_one_line(_round(values)) for name, values in kept.items()}
    samples = _on_lines("{}", lines, indent=indent + 1)
    return f'{{"name": {_on_one_line(run.name)},\n{" " * (indent + 1)}"samples": {samples}}}'


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
