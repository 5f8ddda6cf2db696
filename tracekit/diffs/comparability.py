"""Comparability of two sides. Where a fact differs, the verdict is inconclusive and names the fact."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tracekit.diffs.run_samples import Run
from tracekit.errors import InputError, OptionError

ASPECTS = {
    "world_size": ("world_size", "ranks"),
    "schedule": ("schedule", "pp", "microbatches", "virtual"),
    "shapes": ("shapes",),
    "gpu": ("gpu",),
    "damage": (),
}
"""Facts compared, grouped by the names that the option ``allow`` accepts."""

_FACT_NAMES = {
    "world_size": "world size",
    "ranks": "number of ranks",
    "schedule": "schedule",
    "pp": "pipeline size",
    "microbatches": "number of micro-batches",
    "virtual": "number of virtual stages",
    "shapes": "model shapes",
    "gpu": "GPU",
}


def find_obstacles(candidate: Sequence[Run], baseline: Sequence[Run], *, allow: Sequence[str] = ()) -> list[str]:
    """Return why these runs cannot be compared, one sentence each; empty when they can.

    A fact that one side does not know is no obstacle.

    >>> find_obstacles([Run("a", {}, {"world_size": 8})], [Run("b", {}, {"world_size": 4})])
    ['world size differs: 4 before, 8 after']
    """
    unknown = [aspect for aspect in allow if aspect not in ASPECTS]
    if unknown:
        raise OptionError(f"allow: there is no {unknown[0]}", hint=f"one of {', '.join(ASPECTS)}")
    before, after = _merge_facts(baseline), _merge_facts(candidate)
    before["shapes"], after["shapes"] = _listed_shapes(before.get("shapes"), after.get("shapes"))
    reasons = []
    for aspect, keys in ASPECTS.items():
        if aspect in allow:
            continue
        differing = [key for key in keys if None not in (before.get(key), after.get(key)) and before[key] != after[key]]
        if not differing:
            continue
        key = differing[0]  # one sentence per aspect: the other differences follow from the first
        if key == "shapes":
            reasons.append(f"model shapes differ: {_differing_shapes(before[key], after[key])}")
        else:
            reasons.append(f"{_FACT_NAMES[key]} differs: {before[key]} before, {after[key]} after")
    return [*reasons, *find_damage((*baseline, *candidate), allow=allow)]


DIFFERENCES_OF_A_DIFF = ("world_size", "schedule", "shapes")
"""Aspects in which two runs that are explained side by side may differ; the explanation names them."""


def find_differences(candidate: Sequence[Run], baseline: Sequence[Run]) -> list[str]:
    """Return the schedules and numbers of ranks in which the sides differ, as one sentence.

    >>> find_differences([Run("a", {}, {"schedule": "zb-v"})], [Run("b", {}, {"schedule": "1f1b"})])
    ['schedule differs: 1f1b before, zb-v after']
    """
    allow = [aspect for aspect in ASPECTS if aspect not in ("world_size", "schedule")]
    reasons = find_obstacles(candidate, baseline, allow=allow)
    return ["; ".join(reasons)] if reasons else []


def find_damage(runs: Sequence[Run], *, allow: Sequence[str] = ()) -> list[str]:
    """Return which of these runs were not read whole, one sentence each.

    >>> find_damage([Run("a.json", {}, {"damage": ["truncated"]})])
    ['a.json was not read whole: truncated']
    """
    if "damage" in allow:
        return []
    damage = {run.name: run.facts["damage"] for run in runs if run.facts.get("damage")}
    return [f"{name} was not read whole: {', '.join(codes)}" for name, codes in damage.items()]


def check_formats(candidate: Sequence[Run], baseline: Sequence[Run]) -> None:
    """Raise InputError if the runs were recorded by two profilers, which time the same kernel differently.

    >>> check_formats([Run("a", {}, {"reader": "kineto"})], [Run("b", {}, {"reader": "nsight"})])
    Traceback (most recent call last):
    tracekit.errors.InputError: mixed formats: a was read by kineto, b by nsight (...
    """
    run_by_reader: dict[str, str] = {}
    for run in (*candidate, *baseline):
        reader = run.facts.get("reader")
        if reader is not None:
            run_by_reader.setdefault(str(reader), run.name)
    if len(run_by_reader) > 1:
        (first_reader, first_run), (second_reader, second_run) = list(run_by_reader.items())[:2]
        raise InputError(
            f"mixed formats: {first_run} was read by {first_reader}, {second_run} by {second_reader}",
            hint="record both sides with the same profiler",
        )


def _merge_facts(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the facts of a side; where its own runs disagree, all values joined."""
    merged: dict[str, Any] = {}
    for key in _FACT_NAMES:
        values = [run.facts[key] for run in runs if key in run.facts]
        if key == "shapes" and values:
            merged[key] = list(dict.fromkeys(shape for shapes in values for shape in shapes))
        elif values:
            merged[key] = values[0] if len(set(values)) == 1 else " and ".join(dict.fromkeys(map(str, values)))
    return merged


def _listed_shapes(*sides: Sequence[str] | None) -> list[Sequence[str] | None]:
    """Return as many shapes of both sides as the shorter list has, where a list ends in how many more there are."""
    ends = [len(shapes) - 1 for shapes in sides if shapes and re.match(r"\d+ more", shapes[-1])]
    return [shapes and shapes[: min(ends, default=None)] for shapes in sides]


def _differing_shapes(old: Sequence[str], new: Sequence[str]) -> str:
    """Return how many shapes only one side has, with the first of each side."""
    only_on_side = {"before": sorted(set(old) - set(new)), "after": sorted(set(new) - set(old))}
    return ", ".join(f"{len(shapes)} only {side} ({shapes[0]})" for side, shapes in only_on_side.items() if shapes)
