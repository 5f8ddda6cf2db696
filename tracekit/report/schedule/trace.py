"""A schedule as a trace that ui.perfetto.dev and chrome://tracing open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracekit._version import __version__
from tracekit.schedules.weight_reload import LANES, WeightReload

if TYPE_CHECKING:
    from tracekit.schedules import Simulation

UNIT_US = 1000.0
"""One unit of the given times is shown as a millisecond."""


def schedule_trace(done: Simulation | WeightReload) -> dict[str, Any]:
    """Turn cells into Chrome trace events: one track a rank (of a weight reload: one a buffer).

    >>> from tracekit.schedules import generate, simulate
    >>> trace = schedule_trace(simulate(generate("1f1b", pp=1, microbatches=1)))
    >>> [(e["name"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X"]
    [('0F0', 0.0, 1000.0), ('0B0', 1000.0, 2000.0)]
    """
    if isinstance(done, WeightReload):
        return _document(done.name, _reload_events(done))
    return _document(done.schedule.name, _events(done))


def _document(name: str, events: list[dict[str, Any]]) -> dict[str, Any]:
    about = {"tracekit": __version__, "schedule": name, "unit_us": UNIT_US}
    return {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}


def _named(pid: int, tid: int | None, name: str, sort: int) -> list[dict[str, Any]]:
    what, where = ("process", {"pid": pid}) if tid is None else ("thread", {"pid": pid, "tid": tid})
    return [
        {"ph": "M", "name": f"{what}_name", **where, "args": {"name": name}},
        {"ph": "M", "name": f"{what}_sort_index", **where, "args": {"sort_index": sort}},
    ]


def _span(
    name: str, category: str, track: tuple[int, int], at: tuple[float, float], args: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": at[0] * UNIT_US, "dur": (at[1] - at[0]) * UNIT_US}
    return {"ph": "X", "name": name, "cat": category, "pid": track[0], "tid": track[1], **times, "args": args}


def _events(done: Simulation) -> list[dict[str, Any]]:
    plan = done.schedule
    events = _named(0, None, f"{plan.name} · {plan.pp} ranks × {plan.microbatches} micro-batches", 0)
    for rank in range(plan.pp):
        events += _named(0, rank, f"rank {rank}", rank)
    ops = (str(op) for rank in plan.ranks for op in rank)
    for op, cell in zip(ops, done.cells.iter_rows(named=True), strict=True):
        args = {key: cell[key] for key in ("stage", "microbatch", "b_stage", "b_microbatch") if cell[key] is not None}
        events.append(_span(op, cell["op"], (0, cell["rank"]), (cell["start"], cell["end"]), args))
    return events


def _reload_events(done: WeightReload) -> list[dict[str, Any]]:
    events = []
    for rank in range(done.ranks):
        events += _named(rank, None, f"device {rank}", rank)
        for lane, name in enumerate(LANES):
            events += _named(rank, lane, name, lane)
    for cell in done.cells.iter_rows(named=True):
        args = {key: cell[key] for key in ("bucket", "round", "role") if cell[key] is not None}
        name = f"{cell['op']} {cell['bucket']}"
        track = (cell["rank"], LANES.index(cell["lane"]))
        events.append(_span(name, cell["op"], track, (cell["start"], cell["end"]), args))
    return events
