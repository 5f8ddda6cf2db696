"""Baseline files: small JSON files made to be kept in git.

Keys are sorted, numbers are rounded to five digits, and each metric has its own line, so that git
shows a readable difference between two baselines.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from tracekit._util.files import atomic_write
from tracekit._util.text import counted
from tracekit._version import __version__
from tracekit.diffs.comparability import check_formats, find_obstacles
from tracekit.diffs.gate_config import parse_requirement
from tracekit.diffs.load_runs import Side, read_baseline
from tracekit.diffs.metrics import Metric, resolve
from tracekit.diffs.noise_thresholds import Noise, calibrate, noise_floor, pooled_noise
from tracekit.diffs.runs import Run, centre_of_runs
from tracekit.documents.baseline import BASELINE_FORMAT, BaselineTables
from tracekit.documents.coding import encode, to_plain
from tracekit.documents.findings import Finding
from tracekit.documents.gate import GateSettings
from tracekit.errors import InputError, OptionError

MIN_RUNS_TO_CALIBRATE = 3
FAR_ABOVE_LIMIT = 2.0
"""Factor on a limit above which a calibrated floor makes the limit void."""
MAX_STEPS_KEPT = 64
"""Steps per run that a file keeps: more of them would not change a verdict."""
MAX_ROWS_KEPT = 40
"""Rows per table that a file keeps."""


def dump(side: Side) -> str:
    """Return the text of a baseline file.

    >>> from tracekit.diffs.samples import make_samples
    >>> from tracekit.documents.diff import Facts
    >>> run = Run("a", make_samples({"step_ms": (10.123456, 9.9)}), Facts(world_size=2))
    >>> print(dump(Side((run,), {})))
    {
     "facts": {"world_size": 2},
     "format": "tracekit.baseline/1",
     "noise": {},
     "runs": [
      {
       "name": "a",
       "samples": {
        "step_ms": [10.123, 9.9]
       }
      }
     ],
     "tables": {},
     "tracekit": "..."
    }
    """
    document: dict[str, Any] = {
        **_role_data(side),
        "format": BASELINE_FORMAT,
        "tracekit": __version__,
    }
    main_role = side.runs[0].main_role
    if side.other_roles and main_role is not None:
        roles = {name: _role_data(side.of_role(name)) for name in side.other_roles}
        document |= {"main_role": main_role, "roles": roles}
    return _format(document)


def _role_data(side: Side) -> dict[str, Any]:
    """Return the runs of one role as plain data (``RoleBaseline``): numbers are rounded, long runs and tables cut."""
    first = side.runs[0]
    findings: list[Finding] | UnsetType = UNSET
    if first.findings is not None:
        findings = [_kept_finding(finding) for finding in first.findings[:MAX_ROWS_KEPT]]
    tables = BaselineTables(
        cells=list(first.cells[:MAX_ROWS_KEPT]) or UNSET,
        findings=findings,
        kernels=list(first.kernels[:MAX_ROWS_KEPT]) or UNSET,
        modules=list(first.modules[:MAX_ROWS_KEPT]) or UNSET,
    )
    noise = {
        metric: {"deviation": entry.deviation, "runs": entry.df + 1}
        for metric, entry in side.noise.items()
    }
    runs = []
    for run in side.runs:
        samples = {name: choose_steps(run.values(name)) for name in run.metric_names}
        run_data: dict[str, Any] = {"name": run.name, "samples": samples}
        if run.recorded_steps:
            run_data["recorded_steps"] = run.recorded_steps
        runs.append(run_data)
    return {
        "facts": _round(to_plain(first.facts)),
        "noise": _round(noise),
        "runs": _round(runs),
        "tables": _round(to_plain(tables)),
    }


def _kept_finding(finding: Finding) -> Finding:
    """Return what a later run needs of a finding: its cost, its predicted saving, and what it is about."""
    evidence = {
        name: finding.evidence[name] for name in ("label", "gap_part") if name in finding.evidence
    }
    return msgspec.structs.replace(finding, where=(), evidence=evidence, advice="")


def choose_steps(values: Sequence[float]) -> Sequence[float]:
    """Return a fixed random choice of a very long run's values, in order: every n-th may miss what is periodic."""
    if len(values) <= MAX_STEPS_KEPT:
        return values
    chosen = Random(len(values)).sample(range(len(values)), MAX_STEPS_KEPT)
    return [values[index] for index in sorted(chosen)]


def write_baseline(
    path: str | os.PathLike[str],
    runs: Sequence[Run],
    *,
    calibrated: bool = False,
    accept_noise: bool = False,
    settings: GateSettings = GateSettings(),  # noqa: B008 - frozen
) -> dict[str, tuple[Noise, float]]:
    """Write *runs* as the new baseline, or leave the old file as it was.

    Args:
        path: The baseline file.
        runs: Runs of the same code.
        calibrated: Whether to measure the noise between *runs*; otherwise that of the replaced file
            is kept.
        accept_noise: Whether to write noise that makes the limits void: floors of more than twice
            the limit.
        settings: Requirements and floors of the project, for the limits.

    Returns:
        The noise written and the centre of the values it belongs to, by metric.
    """
    if calibrated and len(runs) < MIN_RUNS_TO_CALIBRATE:
        problem = f"--calibrate: {counted(len(runs), 'run')} cannot show how runs differ"
        raise OptionError(problem, hint=f"give at least {MIN_RUNS_TO_CALIBRATE}, better 5")
    if not any(run.recorded_or_measured_steps for run in runs):
        raise InputError("the runs hold no steps to make a baseline of")
    check_formats(runs, ())
    measured = Side(tuple(runs), {})
    check_same_code(measured)
    with_noise = _calibrated(measured) if calibrated else _read_replaced(path)
    if calibrated and not accept_noise:
        _check_floors(with_noise, settings)
    # A file that is replaced may hold the noise of metrics that these runs do not have.
    noise = {
        metric: entry
        for metric, entry in with_noise.noise.items()
        if metric in runs[0].metric_names
    }
    text = dump(Side(measured.runs, noise, with_noise.role_noise))
    with atomic_write(path) as part:
        part.write_text(text + "\n", encoding="utf-8")
    return {metric: (entry, centre_of_runs(runs, metric) or 0.0) for metric, entry in noise.items()}


def check_same_code(side: Side) -> None:
    """Raise InputError unless the runs of each role can be compared with its first one."""
    runs_of_roles = [side.runs]
    runs_of_roles += [side.of_role(name).runs for name in side.other_roles]
    for runs in runs_of_roles:
        differences = find_obstacles(runs[1:], runs[:1]) if len(runs) > 1 else []
        if differences:
            problem = f"these runs cannot make one baseline: {'; '.join(differences)}"
            raise InputError(problem, hint="give runs of the same code")


def _check_floors(side: Side, settings: GateSettings) -> None:
    """Raise InputError if a floor of the calibrated noise is far above the limit it is to guard.

    The limits are those of the requirements on a change, or without requirements that of the step
    time; of another role always the latter.
    """
    void = _void_limits(side.runs, side.noise, settings)
    defaults = msgspec.structs.replace(settings, require=())
    for role in side.other_roles:
        void += [
            f"{role}/{problem}"
            for problem in _void_limits(side.of_role(role).runs, side.role_noise[role], defaults)
        ]
    if void:
        count = len(side.runs)
        few = "5 runs or more" if count < 5 else "more runs, or runs that differ less"
        raise InputError(
            f"--calibrate: these {counted(count, 'run')} differ too much: {'; '.join(void)}",
            hint=f"give {few}, or write it all the same with --accept-noise",
        )


def _void_limits(
    runs: Sequence[Run], noise: Mapping[str, Noise], settings: GateSettings
) -> list[str]:
    """Return, in words, the limits that a change could exceed far without being more than noise."""
    void = []
    for metric, limit, level_floor in _limits(runs, settings):
        if metric.name not in noise:
            continue
        floor = pooled_noise(metric, noise[metric.name], level_floor).floor((1, 1))
        if floor > FAR_ABOVE_LIMIT * limit:
            passed = _share_of_level(metric, floor, runs)
            accepted = _share_of_level(metric, limit, runs)
            void.append(f"{metric.name} could worsen by {passed} unseen, the limit is {accepted}")
    return void


def _limits(runs: Sequence[Run], settings: GateSettings) -> list[tuple[Metric, float, float]]:
    """Return metric, largest accepted change and noise floor of the level, for each limit on a change."""
    requirements = [
        parse_requirement(text, names_in_runs=runs[0].metric_names) for text in settings.require
    ]
    metrics = [requirement.metric for requirement in requirements] or [resolve("step_ms")]
    limits = []
    for i, metric in enumerate(metrics):
        level = centre_of_runs(runs, metric.name) or 0.0
        level_floor = noise_floor(metric, level, runs, settings.floors)
        limit = level_floor
        if requirements and requirements[i].kind == "limit":
            continue
        if requirements:
            scale = level if requirements[i].kind == "relative" else 1.0
            limit = abs(scale * requirements[i].limit)
        limits.append((metric, limit, level_floor))
    return limits


def _share_of_level(metric: Metric, amount: float, runs: Sequence[Run]) -> str:
    """Return an amount of a metric in words: in percent of its level, or in points of a share."""
    level = centre_of_runs(runs, metric.name)
    if metric.family.unit == "ratio":
        return f"{100 * amount:.1f} points"
    return f"{100 * amount / level:.1f} %" if level else f"{amount:.3g} {metric.family.unit}"


def _calibrated(side: Side) -> Side:
    """Return the runs with the noise between them, of each role."""
    role_noise = {name: calibrate(side.of_role(name).runs) for name in side.other_roles}
    return Side(side.runs, calibrate(side.runs), role_noise)


def _read_replaced(path: str | os.PathLike[str]) -> Side:
    """Return the baseline file at *path*, empty if there is none.

    Raise rather than overwrite another file.
    """
    if not Path(path).exists():
        return Side((), {})
    try:
        return read_baseline(str(path))
    except InputError as error:
        raise InputError(
            "exists and is not a baseline file", path=path, hint="name another, or remove it"
        ) from error


def _format(value: Any, indent: int = 0) -> str:
    """Return JSON with sorted keys, in which a list or object that holds no other one is on one line."""
    if isinstance(value, dict):
        items = [value[key] for key in sorted(value)]
        names = [f"{encode(key, indent=None)}: " for key in sorted(value)]
        opening = "{"
        closing = "}"
    elif isinstance(value, list):
        items = value
        names = [""] * len(value)
        opening = "["
        closing = "]"
    else:
        return encode(value, indent=None)
    is_flat = not any(isinstance(item, dict | list) for item in items)
    if is_flat:
        ordered = dict(sorted(value.items())) if isinstance(value, dict) else value
        return encode(ordered, indent=None)
    space = "\n" + " " * indent
    lines = [
        f"{space} {name}{_format(item, indent + 1)}"
        for name, item in zip(names, items, strict=True)
    ]
    return opening + ",".join(lines) + space + closing


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
