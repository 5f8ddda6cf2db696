"""Reading a baseline file back into the runs it keeps; ``gate.baseline`` writes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracekit.diffs.floors import Noise
from tracekit.diffs.samples import Run
from tracekit.errors import InputError

FORMAT = "tracekit.baseline/1"


def load(document: Mapping[str, Any], *, name: str) -> tuple[list[Run], dict[str, Noise]]:
    """Read a baseline file's data back into runs and noise."""
    try:
        facts, tables = document["facts"], document["tables"]
        runs = [
            Run(f"{name}:{r['name']}", {k: tuple(map(float, v)) for k, v in r["samples"].items()}, facts, tables)
            for r in document["runs"]
        ]
        noise = {k: Noise(float(n["deviation"]), int(n["runs"]) - 1) for k, n in document["noise"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"{name}: is not a complete baseline file ({error})", hint="write it again with --update-baseline"
        ) from error
    if not runs or not any(r.steps for r in runs):
        raise InputError(f"{name}: the baseline is empty", hint="write it again with --update-baseline")
    return runs, noise
