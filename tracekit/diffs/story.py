"""What happened between two runs, in a few sentences and one waterfall: which rank grew, in what, who waits for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tracekit._util.text import join_with_and, signed
from tracekit.diffs.samples import Run
from tracekit.schema import COMMUNICATION_LABELS, COMPUTE_LABELS

LEAST = 0.03
"""Share of the step a change must come to before the story tells it: what equal runs differ by."""
ALIKE = 0.5
"""Ranks whose change is at least this share of the largest changed together."""

NAMED = 0.9
"""Share of a label's change from which one module's is it, and carries its number …"""
MOST = 0.5
"""… and from which it is named beside the label."""

Parts = Mapping[str, float]
"""Milliseconds per step by part: compute, ``exposed pp_comm``, idle, …; and ``label forward`` for labels."""


class Waterfall(msgspec.Struct, frozen=True):
    """The step of one rank (None: the mean of all), before and after, and the changes between: they sum to it."""

    rank: int | None
    before_ms: float
    after_ms: float
    changes_ms: Mapping[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        changes = [{"part": part, "change_ms": round(ms, 6)} for part, ms in self.changes_ms.items()]
        times = {"before_ms": round(self.before_ms, 6), "after_ms": round(self.after_ms, 6)}
        return {"rank": self.rank, **times, "changes": changes}


def waterfall(before: Sequence[Run], after: Sequence[Run]) -> Waterfall | None:
    """Return how the slowest rank's step got from before to after; None where a side does not hold its ranks."""
    old, new = _ranks(before), _ranks(after)
    common = sorted(set(old) & set(new))
    if not common:
        return None
    rank = max(common, key=lambda one: new[one]["step"])
    names = dict.fromkeys(name for side in (old, new) for name in side[rank] if _budget(name))
    changes = {name: new[rank].get(name, 0.0) - old[rank].get(name, 0.0) for name in names}
    changes = dict(sorted(changes.items(), key=lambda item: -abs(item[1])))
    return Waterfall(rank, old[rank]["step"], new[rank]["step"], {k: v for k, v in changes.items() if v})


def story(before: Sequence[Run], after: Sequence[Run]) -> list[str]:
    """Return what happened, at most three sentences; empty where nothing grew or shrank by enough of the step.

    >>> def rank(number, compute, wait):
    ...     return {"rank": number, "steps": [1], "span_ns": 10**6 * (compute + wait), "label_ns": {"forward":
    ...         10**6 * compute}, "budget_ns": {"compute": 10**6 * compute, "exposed": {"pp_comm": 10**6 * wait},
    ...         "idle": 0}}
    >>> runs = [Run(name, {}, {}, {}, {"ranks": ranks}) for name, ranks in
    ...     (("a", [rank(0, 10, 0), rank(1, 10, 0)]), ("b", [rank(0, 10, 9), rank(1, 19, 0)]))]
    >>> story(runs[:1], runs[1:])
    ["rank 1's forward grew by 9.0 ms", 'rank 0 waits for it in pp_comm (+9.0 ms)']
    """
    old, new = _ranks(before), _ranks(after)
    changes = {rank: _changes(old[rank], new[rank]) for rank in sorted(set(old) & set(new))}
    if not changes:
        return []
    least = LEAST * max(old[rank]["step"] for rank in changes)
    grown = max(changes, key=lambda rank: abs(changes[rank].get("compute", 0.0)))
    if abs(changes[grown].get("compute", 0.0)) >= least:
        return [_work(changes, grown, _modules(before, after)), *_waiting(changes, grown, least)]
    return _exposed(changes, least)


def _work(changes: Mapping[int, Parts], rank: int, modules: Mapping[str, tuple[str, float]]) -> str:
    """Name the work that changed on one rank, or on all alike."""
    whole = changes[rank]["compute"]
    sign = 1 if whole > 0 else -1
    by_label = {label: changes[rank].get(f"label {label}", 0.0) for label in (*COMPUTE_LABELS, "other")}
    label = max(by_label, key=lambda name: sign * by_label[name])
    module, moved = modules.get(label, ("", 0.0))
    every = sum(parts.get(f"label {label}", 0.0) for parts in changes.values()) / len(changes)
    share = moved / every if every and sign * moved > 0 else 0.0
    named = f"{module} {label}" if module and share >= NAMED else label
    alike = [r for r, parts in changes.items() if sign * parts.get("compute", 0.0) >= ALIKE * abs(whole)]
    together = len(alike) == len(changes) > 1
    by = _ms(by_label[label] if by_label[label] else whole)
    what = f"{named} {'grew' if sign > 0 else 'shrank'} by {'up to ' * together}{by}"
    what += f", most of it in {module}" if module and MOST <= share < NAMED else ""
    if len(changes) == 1:
        return what
    return f"on every rank {what}" if together else f"rank {rank}'s {what}"


def _waiting(changes: Mapping[int, Parts], cause: int, least: float) -> list[str]:
    """Name who waits for the rank that grew, and where."""
    grew = changes[cause]["compute"] > 0
    waits: dict[tuple[str, int], float] = {}
    for rank, parts in changes.items():
        exposed = {name: ms for name, ms in parts.items() if name.startswith("exposed ")}
        name = max(exposed, key=lambda one: exposed[one], default=None)
        if rank != cause and name is not None and grew and exposed[name] >= least:
            waits[name.removeprefix("exposed "), rank] = exposed[name]
    if not waits:
        return []
    label = max(waits, key=lambda one: waits[one])[0]
    ranks = sorted(rank for name, rank in waits if name == label)
    most = max(ms for (name, _), ms in waits.items() if name == label)
    who = f"rank {ranks[0]} waits" if len(ranks) == 1 else f"{len(ranks)} ranks wait"
    verb = "for it in" if label in COMMUNICATION_LABELS else "beside it in"
    return [f"{who} {verb} {label} ({'' if len(ranks) == 1 else 'up to '}{signed(most)} ms)"]


def _exposed(changes: Mapping[int, Parts], least: float) -> list[str]:
    """Name what became exposed or idle where the work stayed as it was."""
    rows = [
        (abs(ms), rank, name, ms)
        for rank, parts in changes.items()
        for name, ms in parts.items()
        if _budget(name) and name != "compute"
    ]
    size, rank, name, ms = max(rows, default=(0.0, 0, "", 0.0))
    if size < least:
        return []
    way = "grew" if ms > 0 else "shrank"
    where = f"rank {rank}'s " if len(changes) > 1 else ""
    sentences = [f"the work is the same; {where}{_words(name)} {way} by {_ms(ms)}"]
    others = [r for r, parts in changes.items() if r != rank and parts.get(name, 0.0) * (1 if ms > 0 else -1) >= least]
    return sentences + ([f"so {'did that' if len(others) == 1 else 'did those'} of {_named(others)}"] if others else [])


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return f"ranks {join_with_and(map(str, ranks[:4]))}" + (" …" if len(ranks) > 4 else "")


def _words(part: str) -> str:
    return "idle time" if part == "idle" else part


def _ms(ms: float) -> str:
    return f"{abs(ms):,.1f} ms" if abs(ms) >= 0.1 else f"{abs(ms):.3f} ms"


def _budget(name: str) -> bool:
    return name not in ("step",) and not name.startswith("label ")


def _changes(old: Parts, new: Parts) -> dict[str, float]:
    return {name: new.get(name, 0.0) - old.get(name, 0.0) for name in {**old, **new} if name != "step"}


def _ranks(runs: Sequence[Run]) -> dict[int, dict[str, float]]:
    """Each rank's step in parts, the mean over steps and runs."""
    total: dict[int, list[dict[str, float]]] = {}
    for run in runs:
        for entry in run.document["ranks"] if run.document else ():
            steps = entry.get("per_step") or [entry]
            count = max(1, len(entry.get("steps") or ())) if steps[0] is entry else 1
            total.setdefault(int(entry["rank"]), []).extend(_parts(step, 1e6 * count) for step in steps)
    return {
        rank: {name: sum(row.get(name, 0.0) for row in rows) / len(rows) for name in {n: 0 for r in rows for n in r}}
        for rank, rows in total.items()
    }


def _parts(entry: Mapping[str, Any], scale: float) -> dict[str, float]:
    budget = entry["budget_ns"]
    known = budget["compute"] + sum(budget["exposed"].values()) + (budget.get("not_recorded") or 0)
    idle = budget["idle"] if budget["idle"] is not None else entry["span_ns"] - known
    return {
        "step": entry["span_ns"] / scale,
        "compute": budget["compute"] / scale,
        **{f"exposed {label}": ns / scale for label, ns in budget["exposed"].items()},
        "idle": idle / scale,
        **({"not recorded": budget["not_recorded"] / scale} if budget.get("not_recorded") else {}),
        **{f"label {label}": ns / scale for label, ns in entry["label_ns"].items()},
    }


def _modules(before: Sequence[Run], after: Sequence[Run]) -> dict[str, tuple[str, float]]:
    """Of each label, the module whose time changed most, and by how much."""
    sides = [_module_times(side) for side in (before, after)]
    largest: dict[str, tuple[str, float]] = {}
    for module, label in {**sides[0], **sides[1]}:
        moved = sides[1].get((module, label), 0.0) - sides[0].get((module, label), 0.0)
        if abs(moved) > abs(largest.get(label, ("", 0.0))[1]):
            largest[label] = (module, moved)
    return largest


def _module_times(runs: Sequence[Run]) -> dict[tuple[str, str], float]:
    total: dict[tuple[str, str], float] = {}
    for run in runs:
        for row in run.tables.get("modules") or ():
            key = (str(row["module"]), str(row["label"]))
            total[key] = total.get(key, 0.0) + row["ns"] / 1e6 / len(runs)
    return total
