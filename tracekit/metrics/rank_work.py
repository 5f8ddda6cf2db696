"""The work of a rank: its GPU events, calls of products, operator sites and loops, and the speeds of its GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
import polars as pl

from tracekit._util.categories import CategoryColumns
from tracekit.intervals import EMPTY, Intervals
from tracekit.metrics.attainable import GpuRates
from tracekit.metrics.event_work import FUSED_ATTENTION, PATTERNS, describe_work
from tracekit.metrics.flop import CONVOLUTION_BACKWARD
from tracekit.metrics.loops import LOOPS, loop_of_events
from tracekit.metrics.padding import with_padding
from tracekit.metrics.sites import SITES, RankSites, find_sites
from tracekit.metrics.speeds import Speeds, measure_speeds

_COLUMNS = ("start_ns", "end_ns", "launch_ns", "part", "step", "stream", "op_id", "bytes")
_TEXTS = ("label", "pass", "module", "chain", "node", "collective")
_Found = TypeVar("_Found")

HOST_OPERATORS = pl.Schema(
    {
        "name": pl.Categorical(),
        "tid": pl.Int64(),
        "step": pl.Int64(),
        "start_ns": pl.Int64(),
        "end_ns": pl.Int64(),
        "shapes": pl.Categorical(),
        "concrete": pl.Categorical(),
        "sequence": pl.Int64(),
    }
)
"""Operators of one rank, those that launch nothing among them."""


class RankWork(msgspec.Struct, frozen=True, eq=False):
    """One rank's GPU events with their work, and the speeds of its GPU."""

    events: pl.DataFrame
    """``event_work.WORK`` beside ``ns``, start, end, launch, part, label, pass, stream, op_id, module, chain,
    node and bytes of a copy."""
    calls: pl.DataFrame
    """Calls of products, convolutions and attention: kind, op, dtype, flop, ns, whether PyTorch ``keeps_precision``
    of them, and the ``call`` that ``events`` have as well."""
    speeds: Speeds
    sites: pl.DataFrame = msgspec.field(default_factory=SITES.to_frame)
    """``sites.SITES``; events have the ``site`` of each."""
    loops: pl.DataFrame = msgspec.field(default_factory=LOOPS.to_frame)
    """``loops.LOOPS``; events have the ``loop`` that launched each, or whose backward it is; null: none."""
    operators: pl.DataFrame = msgspec.field(default_factory=HOST_OPERATORS.to_frame)
    """``HOST_OPERATORS`` of the rank, in the order of the file."""

    stalls: Intervals = EMPTY
    """When its host stood still (``metrics.host.stalls``)."""
    on_new_shapes: Mapping[str, Intervals] = {}
    """By operator, when it took longer because of new shapes (``metrics.host.new_shapes``)."""
    _found: dict[Any, Any] = msgspec.field(default_factory=dict)

    def once(self, find: Callable[[RankWork], _Found]) -> _Found:
        """Return what a function finds in this work: it is called once, whoever asks."""
        if find not in self._found:
            self._found[find] = find(self)
        return self._found[find]  # type: ignore[no-any-return]

    def operators_named(self, pattern: str) -> pl.DataFrame:
        """Return the operators whose names match, with their ``part``: that of the GPU events of their step."""
        names = self.operators["name"].unique()
        matching_names = names.filter(names.cast(pl.String).str.contains(pattern))
        matching = self.operators.filter(pl.col("name").is_in(matching_names.implode()))
        parts = self.events.select("step", "part").unique("step")
        return matching.join(parts, on="step", how="inner", nulls_equal=True, maintain_order="left")


def describe_rank_work(
    labelled: pl.DataFrame,
    *,
    device: str | None,
    multiprocessors: int | None,
    loops: pl.DataFrame | None = None,
    operators: pl.DataFrame | None = None,
    rates: GpuRates | None = None,
    texts: CategoryColumns | None = None,
    sites: RankSites | None = None,
    stalls: Intervals = EMPTY,
    on_new_shapes: Mapping[str, Intervals] | None = None,
) -> RankWork:
    """Return the work of a rank's GPU events, and the speeds of its GPU.

    Args:
        labelled: The rank's GPU events with their ``part``.
        device: Name of its GPU; None if unknown.
        multiprocessors: Multiprocessors that the process may use; None if all, or unknown.
        loops: Loops of its host (``metrics.loops``).
        operators: Operators of its host (``HOST_OPERATORS``).
        rates: A user's own table of what the GPU reaches.
        texts: Text columns of *labelled*, if they were converted already.
        sites: Its sites, if they were found already.
        stalls: When the host stood still.
        on_new_shapes: By operator, when it took longer because of new shapes.
    """
    texts = texts or CategoryColumns(labelled)
    loops = LOOPS.to_frame() if loops is None else loops
    operators = HOST_OPERATORS.to_frame() if operators is None else operators
    sites = sites or find_sites(labelled, texts)
    work = describe_work(labelled, texts=texts, sites=sites)
    op_id = pl.col("op_id")
    events = work.with_columns(
        *(labelled[name].alias("copied_bytes" if name == "bytes" else name) for name in _COLUMNS),
        *(labelled[name].cast(pl.String) for name in _TEXTS),
        sites.of_event,
        loop_of_events(labelled, loops),
        ns=labelled["end_ns"] - labelled["start_ns"],
    ).with_columns(
        # An event without an operator is a call of its own; its number is below those of operators.
        call=pl.when(op_id >= 0).then(op_id).otherwise(-1 - pl.col("row").cast(pl.Int64)),
        is_backward=pl.col("node").is_not_null() | (pl.col("pass") == "backward").fill_null(False),
    )
    multiplies = pl.col("kind").is_in(["product", "convolution", FUSED_ATTENTION])
    calls = (
        events.filter(multiplies)
        .sort("ns", descending=True)
        .group_by("call", maintain_order=True)
        .agg(
            pl.col("kind", "op", "name", "shapes", "dtype").first(),
            pl.col("ns").sum(),
            is_weight_gradient=(pl.col("label") == "wgrad").any(),
            keeps_precision=(
                pl.col("node").str.contains(PATTERNS["full_precision_node"])
                | pl.col("chain").str.contains(PATTERNS["full_precision_operator"])
                | pl.col("op").str.contains(PATTERNS["vector_product"])
            )
            .fill_null(value=False)
            .any(),
            # The backward of a convolution computes two gradients; its FLOP are those of one.
            flop=pl.col("flop").first()
            * pl.when(pl.col("op").first() == CONVOLUTION_BACKWARD)
            .then(pl.col("label").filter(pl.col("label").is_in(["dgrad", "wgrad"])).n_unique())
            .otherwise(1)
            .clip(lower_bound=1),
        )
    )
    calls = with_padding(calls)
    speeds = measure_speeds(
        calls, events, device=device, multiprocessors=multiprocessors, rates=rates
    )
    return RankWork(
        events, calls, speeds, sites.sites, loops, operators, stalls, on_new_shapes or {}
    )
