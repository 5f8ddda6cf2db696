"""Remedies: what a change of types, kernels or calls would make of each GPU event of a rank.

Found per rank, where operators, shapes, types and kernels are at hand, and kept with the rank's
events, so that a change can be replayed with all others (``graph.change``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import polars as pl

from tracekit._util.categories import CategoryColumns
from tracekit.intervals import Intervals
from tracekit.metrics.attainable import GpuRates
from tracekit.metrics.loops import LOOPS, loop_of_events
from tracekit.metrics.rates import CONVOLUTION_BACKWARD
from tracekit.metrics.remedies.attention import attention_remedies, find_written_out, is_upcast
from tracekit.metrics.remedies.casts import cast_remedies
from tracekit.metrics.remedies.fusion import fusion_remedies
from tracekit.metrics.remedies.messages import message_remedies
from tracekit.metrics.remedies.padding import padding_remedies, with_padding
from tracekit.metrics.remedies.precision import precision_remedies
from tracekit.metrics.remedies.recompute import recompute_remedies
from tracekit.metrics.remedies.removals import removal_remedies, stall_remedies
from tracekit.metrics.remedies.rows import HOST_OPERATORS, REMEDIES, REMEDY, RankWork, without_rows
from tracekit.metrics.remedies.speeds import measure_speeds
from tracekit.metrics.remedies.work import FUSED_ATTENTION, PATTERNS, describe_work
from tracekit.metrics.sites import RankSites, find_sites

__all__ = ["REMEDIES", "REMEDY", "find_remedies", "rank_work"]

_COLUMNS = ("start_ns", "end_ns", "launch_ns", "part", "step", "stream", "op_id", "bytes")
_TEXTS = ("label", "pass", "module", "chain", "node", "collective")


class FindsRemedies(Protocol):
    """What finds remedies in a rank's work."""

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        """Yield tables of ``REMEDIES``."""


def find_remedies(
    labelled: pl.DataFrame,
    *,
    device: str | None,
    multiprocessors: int | None,
    stalls: Intervals | None = None,
    on_new_shapes: Mapping[str, Intervals] | None = None,
    loops: pl.DataFrame | None = None,
    alternatives: Sequence[FindsRemedies] = (),
    operators: pl.DataFrame | None = None,
    own: Callable[[RankWork], Iterator[pl.DataFrame]] | None = None,
    rates: GpuRates | None = None,
    texts: CategoryColumns | None = None,
    sites: RankSites | None = None,
) -> pl.Series:
    """Return the remedies of each GPU event as a list of ``REMEDY``; null where it has none.

    Args:
        labelled: The rank's GPU events with their ``part``.
        device: Name of its GPU; None if unknown.
        multiprocessors: Multiprocessors that the process may use; None if all, or unknown.
        stalls: When the host stood still (``metrics.host.stalls``).
        on_new_shapes: By operator, when it took longer because of new shapes (``new_shapes``).
        loops: Loops of its host (``metrics.loops``).
        alternatives: Entries of a catalogue (``metrics.alternatives``).
        operators: Operators of its host (``rows.HOST_OPERATORS``).
        own: What finds the remedies of a user's entries.
        rates: A user's own table of what the GPU reaches.
        texts: Text columns of *labelled*, if they were converted already.
        sites: Its sites, if they were found already.
    """
    rank = rank_work(
        labelled,
        device=device,
        multiprocessors=multiprocessors,
        loops=loops,
        operators=operators,
        rates=rates,
        texts=texts,
        sites=sites,
    )
    written_out = list(find_written_out(rank))
    attention = list(attention_remedies(rank, written_out))
    in_attention: set[int] = set()
    for frame in attention:
        in_attention.update(frame["row"].to_list())
    upcast: set[int] = set()
    for _, members in written_out:
        if is_upcast(rank, members):
            upcast.update(members["row"].to_list())
    frames = [
        *(without_rows(frame, upcast) for frame in precision_remedies(rank)),
        *cast_remedies(rank),
        *attention,
        *fusion_remedies(rank, without=in_attention),
        *recompute_remedies(rank),
        *removal_remedies(rank),
        *(without_rows(padded, in_attention) for padded in padding_remedies(rank)),
        *stall_remedies(rank, stalls, "free cpu"),
        *(
            remedies
            for op, slow in (on_new_shapes or {}).items()
            for remedies in stall_remedies(rank, slow, "known shapes", what=op)
        ),
        *message_remedies(rank),
        *(remedies for finder in alternatives for remedies in finder.find(rank)),
        *(own(rank) if own is not None else ()),
    ]
    table = pl.concat([REMEDIES.to_frame(), *frames])
    rows = table.group_by("row").agg(remedies=pl.struct([field.name for field in REMEDY.fields]))
    all_rows = pl.DataFrame({"row": pl.int_range(len(labelled), dtype=pl.Int32, eager=True)})
    return all_rows.join(rows, on="row", how="left", maintain_order="left")["remedies"]


def rank_work(
    labelled: pl.DataFrame,
    *,
    device: str | None,
    multiprocessors: int | None,
    loops: pl.DataFrame | None = None,
    operators: pl.DataFrame | None = None,
    rates: GpuRates | None = None,
    texts: CategoryColumns | None = None,
    sites: RankSites | None = None,
) -> RankWork:
    """Return the work of a rank's GPU events, and the speeds of its GPU."""
    texts = texts or CategoryColumns(labelled)
    loops = LOOPS.to_frame() if loops is None else loops
    operators = HOST_OPERATORS.to_frame() if operators is None else operators
    work = describe_work(labelled, texts=texts)
    sites = sites or find_sites(labelled, texts)
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
    return RankWork(events, calls, speeds, sites.sites, loops, operators)
