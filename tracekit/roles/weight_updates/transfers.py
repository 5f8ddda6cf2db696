"""Transfers of weights: the copies and broadcasts by which a process takes part in weight updates.

In an update a rank copies its shard from the host to the device (h2d), stages it in the buffer of
its broadcasts (stage), takes part in the broadcasts of all shards (broadcast), and copies what
arrived into its weights (reload).
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit.analysis.measure.room_measures import RoomMeasure
from tracekit.intervals import overlaps_any
from tracekit.metrics.process_phases import MODEL_LABELS, WEIGHT_SYNC
from tracekit.schema import conform

TRANSFER_LANES = ("h2d", "stage", "broadcast", "reload")
RELOAD_EVENTS = pl.Schema(
    {
        "rank": pl.Int32(),
        "lane": pl.String(),  # one of TRANSFER_LANES, or other
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "bytes": pl.Int64(),
    }
)


@dataclass(frozen=True, eq=False)
class UpdateProcess:
    """One process with its transfers and phases, on the run's clock.

    >>> rows = [("h2d", 0, 2), ("broadcast", 2, 3)]
    >>> transfers = pl.DataFrame(rows, schema=["lane", "start_ns", "end_ns"], orient="row")
    >>> phases = pl.DataFrame(schema={"phase": pl.String, "start_ns": pl.Int64})
    >>> len(UpdateProcess("server", 0, phases, transfers).lane("broadcast"))
    1
    """

    role: str
    rank: int
    stretches: pl.DataFrame
    """Its phases (``metrics.process_phases.STRETCHES``)."""
    transfers: pl.DataFrame
    """Its part in weight updates (``RELOAD_EVENTS``)."""

    def lane(self, *names: str) -> pl.DataFrame:
        """Return its transfers of these lanes, in order of start."""
        if self.transfers.is_empty():  # as in most runs of many ranks
            return self.transfers
        return self.transfers.filter(pl.col("lane").is_in(names))


def reload_events(
    labelled: pl.DataFrame, stretches: pl.DataFrame | None = None
) -> pl.DataFrame | None:
    """Return the events of one process's part in weight updates (``RELOAD_EVENTS``).

    None if it has none.

    A device copy of a broadcast's size on the broadcasts' own stream stages a bucket. Other work in
    the *stretches* of weight synchronisation (``metrics.process_phases``) has the lane ``other``.

    >>> rows = [("broadcast", "kernel", "k", 7, 0, 4, 8), ("reload", "memcpy", "copy", 9, 4, 6, 8)]
    >>> columns = ["label", "kind", "name", "stream", "start_ns", "end_ns", "bytes"]
    >>> gpu = pl.DataFrame(rows, schema=columns, orient="row")
    >>> reload_events(gpu)["lane"].to_list()
    ['broadcast', 'reload']
    """
    label = pl.col("label")
    broadcasts = labelled.filter(label == "broadcast")
    if broadcasts.is_empty() and labelled.filter(label == "reload").is_empty():
        return None
    is_copy = pl.col("kind") == "memcpy"
    is_from_host = pl.col("name").cast(pl.String).str.contains("(?i)HtoD|host.to.device")
    is_on_broadcast_stream = pl.col("stream").is_in(broadcasts["stream"].unique().to_list())
    has_broadcast_size = pl.col("bytes").is_null() | pl.col("bytes").is_in(
        broadcasts["bytes"].unique().to_list()
    )
    may_stage = label.is_in(["reload", "memory"])
    cases = [  # the first that holds decides
        (label == "broadcast", "broadcast"),
        (is_copy & (label == "onload") & is_from_host, "h2d"),
        (is_copy & is_on_broadcast_stream & has_broadcast_size & may_stage, "stage"),
        (label == "reload", "reload"),
        (_in_weight_sync(labelled, stretches) & ~label.is_in(MODEL_LABELS), "other"),
    ]
    lane = pl.coalesce(pl.when(condition).then(pl.lit(name)) for condition, name in cases)
    events = labelled.with_columns(lane=lane).filter(pl.col("lane").is_not_null())
    return conform(events.sort("start_ns"), RELOAD_EVENTS)


def _in_weight_sync(labelled: pl.DataFrame, stretches: pl.DataFrame | None) -> pl.Expr:
    """Return which events overlap a stretch of weight synchronisation."""
    if stretches is None:
        return pl.lit(False)
    sync = stretches.filter(phase=WEIGHT_SYNC)
    in_sync = overlaps_any(
        labelled["start_ns"].to_numpy(),
        labelled["end_ns"].to_numpy(),
        sync["start_ns"].to_numpy(),
        sync["end_ns"].to_numpy(),
    )
    return pl.lit(pl.Series(np.asarray(in_sync)))


WEIGHT_TRANSFERS = RoomMeasure(
    name="weight_transfers",
    measured_type=pl.DataFrame,
    measure=lambda steps: (reload_events(steps.gpu_events, steps.stretches), ()),
    columns={"": RELOAD_EVENTS},
)
"""Part of each rank in weight updates; None if it has none."""
