"""Baseline files: small JSON that lives well in git.

Keys are sorted, numbers rounded to five digits, one metric a line: a new baseline shows as a readable difference.
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
from tracekit.diffs.comparable import check_formats, obstacles
from tracekit.diffs.floors import Noise, calibrate
from tracekit.diffs.samples import Run
from tracekit.diffs.saved import FORMAT, load
from tracekit.errors import InputError, OptionError

FEWEST_RUNS = 3
MOST_STEPS, MOST_ROWS = 64, 40
"""What a file keeps of a long run: more steps and smaller kernels would not change a verdict."""


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
    lines = ["{", f' "facts": {_json(runs[0].facts)},', f' "format": {_json(FORMAT)},']
    rows = [
        f"  {_json(k)}: {_json({'deviation': _round(n.deviation), 'runs': n.df + 1})}"
        for k, n in sorted((noise or {}).items())
    ]
    lines += [' "noise": {' + ("\n" + ",\n".join(rows) + "\n }" if rows else "}") + ",", ' "runs": [']
    lines += [",\n".join(_run(run) for run in runs), " ],"]
    tables = {k: _table(v) for k, v in sorted(runs[0].tables.items()) if k != "timeline"}
    lines += [
        ' "tables": {'
        + ("\n" + ",\n".join(f"  {_json(k)}: {t}" for k, t in tables.items()) + "\n }" if tables else "}")
        + ","
    ]
    return "\n".join([*lines, f' "tracekit": {_json(__version__)}', "}"])


def save(path: str | os.PathLike[str], runs: Sequence[Run], noise: Mapping[str, Noise] | None = None) -> None:
    """Write a baseline file, or leave the old one as it was."""
    text = dump(runs, noise)
    with atomic_write(path) as part:
        part.write_text(text + "\n", encoding="utf-8")


def update(
    path: str | os.PathLike[str], runs: Sequence[Run], *, calibrated: bool = False
) -> dict[str, tuple[Noise, float]]:
    """Write *runs* as the new baseline; noise is measured anew if *calibrated*, else kept from the file it replaces.

    Returns the noise written and the value it is about, by metric.
    """
    if calibrated and len(runs) < FEWEST_RUNS:
        raise OptionError(f"--calibrate: {counted(len(runs), 'run')} cannot show how runs differ",
                          hint=f"give at least {FEWEST_RUNS}, better 5")  # fmt: skip
    if not any(run.steps for run in runs):
        raise InputError("the runs hold no steps to make a baseline of")
    differences = obstacles(runs[1:], runs[:1]) if len(runs) > 1 else []
    if differences:
        raise InputError(
            f"these runs cannot make one baseline: {'; '.join(differences)}", hint="give runs of the same code"
        )
    check_formats(runs, ())
    noise = calibrate(runs) if calibrated else _noise_of(path)
    noise = {name: one for name, one in noise.items() if name in runs[0].samples}
    save(path, runs, noise)
    return {
        name: (one, stats.centre([r.samples[name] for r in runs if r.samples.get(name)])) for name, one in noise.items()
    }


def _noise_of(path: str | os.PathLike[str]) -> dict[str, Noise]:
    """Return what an older file at *path* knew of noise; a file that is not a baseline is not overwritten."""
    file = Path(path)
    if not file.exists():
        return {}
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: exists and is not a baseline file", hint="name another, or remove it") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"{path}: exists and is not a baseline file", hint="name another, or remove it")
    return load(document, name=str(path))[1]


def _run(run: Run) -> str:
    rows = (f"    {_json(k)}: {_json([_round(x) for x in _thin(v)])}" for k, v in sorted(run.samples.items()))
    return f'  {{"name": {_json(run.name)},\n   "samples": {{\n' + ",\n".join(rows) + "\n   }}"


def _thin(values: tuple[float, ...]) -> Sequence[float]:
    """Every n-th step of a very long run."""
    stride = -(-len(values) // MOST_STEPS)
    return values[::stride] if stride > 1 else values


def _table(rows: Any) -> str:
    if isinstance(rows, list):
        return "[" + ",".join("\n   " + _json(_rounded(r)) for r in rows[:MOST_ROWS]) + "\n  ]"
    return _json(_rounded(rows))


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _rounded(v) for k, v in value.items()}
    return _round(value) if isinstance(value, float) else value


def _round(value: float) -> float | int:
    """Five significant digits, and whole numbers as such."""
    if not math.isfinite(value) or value == 0:
        return 0
    short = float(f"{value:.5g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def _json(value: Any) -> str:
    return json_text(json.dumps(value, ensure_ascii=False, sort_keys=True))
