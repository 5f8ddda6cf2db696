"""Changes that give GPU events new durations: types, kernels and calls (``metrics.alternatives``)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit._loops.critical_path import NO_LIMIT
from tracekit._util.arrays import Floats
from tracekit.graph.constants import MAX_LAUNCH_MEDIANS
from tracekit.graph.event_graph import EventGraph
from tracekit.metrics.alternatives import ALTERNATIVES

_PARTS_OF_CHANGE = {entry.change: list(entry.parts) for entry in ALTERNATIVES if entry.parts}
REMEDY_CHANGES = {
    change: rests_on
    for entry in ALTERNATIVES
    for change, rests_on in ((entry.change, entry.rests_on), *entry.parts.items())
}
"""Changes by their text, and what each rests on."""


class ChangedFactors(NamedTuple):
    """New over measured duration of each event of a graph, and of the host's time before its launch."""

    low: Floats
    likely: Floats
    high: Floats
    host: Floats


def select_remedies(graph: EventGraph, change: str) -> pl.DataFrame:
    """Return the remedies that a change makes, those of all changes that it is made of."""
    return graph.remedies.filter(pl.col("change").is_in(_PARTS_OF_CHANGE.get(change, [change])))


def change_factors(graph: EventGraph, remedies: pl.DataFrame) -> ChangedFactors:
    """Return the factors of all events of a graph; those without a remedy keep their times."""
    factors = ChangedFactors(*np.ones((4, len(graph.start))))
    event = remedies["event"].to_numpy()
    measured_ns = remedies["ns"].clip(lower_bound=1).to_numpy()
    durations = (
        ("low_ns", factors.low),
        ("likely_ns", factors.likely),
        ("high_ns", factors.high),
    )
    for name, factor in durations:
        np.multiply.at(factor, event, remedies[name].to_numpy() / measured_ns)
    np.multiply.at(factors.host, event, host_factors(graph, remedies))
    return factors


def host_factors(graph: EventGraph, remedies: pl.DataFrame) -> Floats:
    """Return what remains of the host's time before the launch of each remedy's event.

    The time since the launch before may hold other work than the launch that disappears: where it is
    many times what such launches usually take, that usual time goes.
    """
    event = remedies["event"].to_numpy()
    removed_share = 1 - remedies["host_share"].to_numpy()
    before = graph.events["launch_before"].to_numpy()[event]
    is_known = (before >= 0) & (graph.launch[event] != NO_LIMIT)
    since_ns = graph.launch[event] - graph.launch[before]
    host_ns = np.where(is_known, since_ns - graph.events["blocked_ns"].to_numpy()[event], 0)
    host_ns = np.maximum(host_ns, 0)
    removed = host_ns[(removed_share == 1) & is_known]
    usual_ns = float(np.median(removed)) if len(removed) else 0.0
    has_other_work = (removed_share == 1) & (host_ns > MAX_LAUNCH_MEDIANS * usual_ns)
    removed_ns = removed_share * np.where(has_other_work, usual_ns, host_ns)
    return 1 - np.where(host_ns > 0, removed_ns / np.maximum(host_ns, 1), 0.0)
