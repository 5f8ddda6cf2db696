"""Whether two runs may be compared at all. If not, the answer is inconclusive and says what differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracekit.diffs.samples import Run
from tracekit.errors import InputError, OptionError

ASPECTS = {
    "world_size": ("world_size", "ranks"),
    "schedule": ("schedule", "pp", "microbatches", "virtual"),
    "shapes": ("shapes",),
    "gpu": ("gpu",),
}
"""What is compared, and what ``allow`` may name."""

_WORDS = {
    "world_size": "world size",
    "ranks": "number of ranks",
    "schedule": "schedule",
    "pp": "pipeline size",
    "microbatches": "number of micro-batches",
    "virtual": "number of virtual stages",
    "shapes": "model shapes",
    "gpu": "GPU",
}


def obstacles(candidate: Sequence[Run], baseline: Sequence[Run], *, allow: Sequence[str] = ()) -> list[str]:
    """Return why these runs cannot be compared, one sentence each; empty when they can.

    A fact that one side does not know is no obstacle.

    >>> obstacles([Run("a", {}, {"world_size": 8})], [Run("b", {}, {"world_size": 4})])
    ['world size differs: 4 before, 8 after']
    """
    unknown = [a for a in allow if a not in ASPECTS]
    if unknown:
        raise OptionError(f"allow: there is no {unknown[0]}", hint=f"one of {', '.join(ASPECTS)}")
    before, after = _shared(baseline), _shared(candidate)
    reasons = []
    for aspect, keys in ASPECTS.items():
        if aspect in allow:
            continue
        for key in keys:
            old, new = before.get(key), after.get(key)
            if old is None or new is None or old == new:
                continue
            words = f"{_WORDS[key]} differs: {old} before, {new} after"
            reasons.append(words if key != "shapes" else f"model shapes differ: {_apart(old, new)}")
            break  # one sentence an aspect: the rest follows from it
    return reasons


def check_formats(candidate: Sequence[Run], baseline: Sequence[Run]) -> None:
    """Refuse to compare what two profilers recorded: they time the same kernel differently.

    >>> check_formats([Run("a", {}, {"reader": "kineto"})], [Run("b", {}, {"reader": "nsight"})])
    Traceback (most recent call last):
    tracekit.errors.InputError: mixed formats: a was read by kineto, b by nsight (...
    """
    seen: dict[str, str] = {}
    for run in (*candidate, *baseline):
        reader = run.facts.get("reader")
        if reader is not None:
            seen.setdefault(str(reader), run.name)
    if len(seen) > 1:
        (one, a), (two, b) = list(seen.items())[:2]
        raise InputError(
            f"mixed formats: {a} was read by {one}, {b} by {two}",
            hint="record both sides with the same profiler",
        )


def _shared(runs: Sequence[Run]) -> dict[str, Any]:
    """Facts of a side; where its own runs disagree, all the values."""
    merged: dict[str, Any] = {}
    for key in _WORDS:
        values = [r.facts[key] for r in runs if key in r.facts]
        if key == "shapes" and values:
            merged[key] = sorted({shape for shapes in values for shape in shapes})
        elif values:
            merged[key] = values[0] if len(set(values)) == 1 else " and ".join(dict.fromkeys(map(str, values)))
    return merged


def _apart(old: Sequence[str], new: Sequence[str]) -> str:
    """Name the first shape that only one side has."""
    sides = (("before", sorted(set(old) - set(new))), ("after", sorted(set(new) - set(old))))
    return ", ".join(f"{len(only)} only {side} ({only[0]})" for side, only in sides if only)
