"""Alternative of recomputed forwards: their work goes, and what the host does around each of them.

Checkpointing takes the host time where a block runs first (it keeps the block's inputs and the state
of random numbers), and where its forward begins and ends again in the backward. What launches there
take beyond the usual goes with the recomputed work.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints
from tracekit.metrics.alternatives.entry import Alternative
from tracekit.metrics.alternatives.remedy import HOST_ALONE, REMEDIES, without_events
from tracekit.metrics.rank_work import RankWork
from tracekit.schema import COMMUNICATION_LABELS

_COLUMNS_OF_LAUNCHES = (
    "row",
    "part",
    "ns",
    "label",
    "call",
    "op",
    "name",
    "launch_ns",
    "is_backward",
)
"""Columns of a rank's events that are read: a frame of all is slow to filter."""
MIN_REPEATED_LAUNCHES = 3
"""Launches of a recomputed stretch from which it shows where the forward launched the same."""


class NoRecompute(Alternative, frozen=True, kw_only=True):
    """Forwards are computed again in the backward."""

    change = "no recompute"
    rests_on = "activations are kept and not computed again, which needs memory"
    code = "recompute"
    title = "recomputation"
    label_of_kernels = "recompute"
    training_only = True
    says = "forwards are computed again in the backward: {work}"
    advises = "keep the activations of more layers, as far as memory allows ({switch})"
    topic = "recompute"
    caveat = "Kept activations need memory."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        recomputed = pl.col("label") == "recompute"
        events = rank.events.select(_COLUMNS_OF_LAUNCHES)
        calls = events.filter(recomputed)["call"].unique()
        if calls.is_empty():
            return
        # A buffer that an operator clears before its kernel has a label of its own.
        goes = recomputed | ((pl.col("label") == "memory") & pl.col("call").is_in(calls.implode()))
        yield without_events(events.filter(goes), self.change)
        launches = (
            events.drop_nulls("launch_ns")
            .sort("part", "launch_ns")
            .select(
                "row",
                "part",
                "ns",
                "is_backward",
                goes=goes,
                kernel=pl.concat_str("op", "name", separator=" ", ignore_nulls=True).rank("dense"),
                since_ns=pl.col("launch_ns").diff().over("part"),
                communicates=pl.col("label").is_in(COMMUNICATION_LABELS),
            )
        )
        yield from _host_around(launches)


def _host_around(launches: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the remedies of launches right behind recomputed work, and where its blocks ran first.

    Args:
        launches: The launches of a rank in order: ``row``, ``part``, ``ns``, ``is_backward``, ``goes``
            (recomputed work), ``kernel`` (equal numbers for equal kernels), ``since_ns`` (since the launch before) and
            ``communicates``.
    """
    is_behind = pl.col("goes").shift(1).over("part").fill_null(value=False) & ~pl.col("goes")
    beside_message = pl.col("communicates") | pl.col("communicates").shift(1).over("part")
    marked = launches.with_columns(
        place=pl.when(pl.Series(_first_runs(launches)))
        .then(pl.lit("first run"))
        .when(is_behind)
        .then(pl.lit("behind")),
        # A message is launched where a block begins, too, whether it is recomputed or not.
        is_alone=~beside_message.fill_null(value=True),
    ).filter(pl.col("since_ns").is_not_null())
    is_usual = pl.col("place").is_null() & ~pl.col("goes")
    since = pl.col("since_ns").filter(is_usual).median()
    usual_ns = pl.coalesce(since.over("is_backward", "kernel"), since.over("is_backward"))
    around = marked.with_columns(more_ns=pl.col("since_ns") - usual_ns).filter(
        pl.col("place").is_not_null() & pl.col("is_alone")
    )
    # A single launch may have waited for something else: no more than what is usual around blocks.
    removed_ns = pl.min_horizontal("more_ns", pl.col("more_ns").median().over("place"))
    removed_share = removed_ns / pl.col("since_ns").clip(lower_bound=1)
    longer = around.with_columns(host_share=1 - removed_share).filter(pl.col("host_share") < 1)
    yield (
        longer.select(
            "row",
            "host_share",
            change=pl.lit(NoRecompute.change),
            what=pl.lit(HOST_ALONE),
            low_ns="ns",
            likely_ns="ns",
            high_ns="ns",
            waits=pl.lit(True),
        )
        .select(REMEDIES.names())
        .cast(REMEDIES)
    )


def _first_runs(launches: pl.DataFrame) -> Bools:
    """Return the mask of launches with which the forward of a recomputed stretch begins.

    The stretches of a step are recomputed in the reverse order of their forwards.
    """
    is_first = np.zeros(launches.height, np.bool_)
    indexed = launches.with_row_index("index").with_columns(
        stretch=(pl.col("goes") != pl.col("goes").shift(1).over("part"))
        .fill_null(value=True)
        .cum_sum()
    )
    for _, step in indexed.group_by("part", maintain_order=True):
        forward = step.filter(~pl.col("goes") & ~pl.col("is_backward"))
        kernels = forward["kernel"].to_numpy()
        rows = forward["index"].to_numpy()
        stretches = step.filter("goes").group_by("stretch", maintain_order=True).agg("kernel")
        behind = 0
        for stretch in reversed(stretches["kernel"].to_list()):
            start = _find_sequence(kernels[behind:], np.array(stretch))
            if start is not None:
                is_first[rows[behind + start]] = True
                behind += start + len(stretch)
    return is_first


def _find_sequence(kernels: Ints, sequence: Ints) -> int | None:
    """Return where a sequence of kernels begins first; None if it is too short to tell, or not there.

    >>> _find_sequence(np.array([1, 2, 1, 2, 3]), np.array([1, 2, 3]))
    2
    """
    count = len(sequence)
    if not MIN_REPEATED_LAUNCHES <= count <= len(kernels):
        return None
    windows = np.lib.stride_tricks.sliding_window_view(kernels, count)
    starts = np.flatnonzero(windows[:, 0] == sequence[0])
    matches = starts[(windows[starts] == sequence).all(axis=1)]
    return int(matches[0]) if len(matches) else None
