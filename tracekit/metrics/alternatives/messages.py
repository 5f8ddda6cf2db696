"""Alternatives of collectives: small messages, reductions behind the backward, parameters gathered twice.

A message takes a latency and its bytes at the link's bandwidth; both follow from the shortest
durations of this run's messages by size.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from tracekit._util.arrays import Floats, Ints
from tracekit.metrics.alternatives.entry import Alternative, WorkFound
from tracekit.metrics.alternatives.remedy import REMEDIES, without_events
from tracekit.metrics.attainable import Share
from tracekit.metrics.rank_work import RankWork

MIN_MESSAGES = 8
"""Messages of one kind in a step from which they could be fewer."""
LARGE_MESSAGE_BYTES = 25 << 20
"""Bytes of a large message: DDP's buckets."""
MIN_SIZES_APART = 4
"""Largest over smallest message from which latency and bandwidth can be told apart."""
MAX_LATENCY_NS = 200_000
"""Latency of a message, at most: what takes longer waits for another rank."""
MIN_MESSAGES_OF_SIZE = 4
"""Messages of one size of which the shortest waited for nobody."""
MIN_SIZES_TO_COMPARE = 2
"""Larger over smaller size from which the time of the bytes between them tells the bandwidth."""
MAX_BANDWIDTH_FACTOR = 2.0
"""Bandwidth between two sizes over that of the larger half of messages, up to which it is believed."""
MAX_RAMP_SHARE = 0.15
"""Time by which the usual message of a size is longer than the shortest, over that of its bytes, which
is held to be that of starting it; more is waiting for another rank."""
LEAST_LATENCY_SHARE = 0.5
MOST_LATENCY_FACTOR = 1.5
"""Range of what fewer messages save: half the latencies alone, up to half as much again as is likely."""
MIN_LATE_SHARE = 0.8
"""Share of a step's reduced bytes that is launched behind the backward, from which reductions are late."""
HIDEABLE_BACKWARD = Share(0.6, 0.9, 1.0)
"""Share of the backward's time that can hide reductions: the first gradients come after its first layers."""
PARAMETERS = "parameters"
"""What is reduced, where it is not gradients."""
REDUCTIONS = "(?i)all_?reduce|reduce_?scatter"
"""Operations that sum gradients over ranks, and their kernels."""
GATHERS = "(?i)all_?gather"
BACKWARD_LABELS = ["dgrad", "wgrad", "backward"]


class LargeMessages(Alternative, frozen=True, kw_only=True):
    """Gradients, or parameters, are reduced in messages too small for the link."""

    change = "large messages"
    rests_on = "messages are joined to 25 MB or more, and their latencies go"
    code = "small_messages"
    title = "small messages"
    training_only = True
    says = (
        "gradients are reduced in {kernels_per_step} messages {per_step}, too small for the link's bandwidth "
        "({work_ns})"
    )
    advises = "join them: {switch}"
    topic = "messages"

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        reductions = rank.once(_reductions)
        for kind in reductions["collective"].unique().sort().to_list():
            of_kind = reductions.filter(pl.col("collective") == kind)
            for of_parameters, what in ((False, None), (True, PARAMETERS)):
                messages = of_kind.filter(pl.col("is_of_parameters") == of_parameters)
                yield from _large_messages(messages, what=what)

    def text(self, work: WorkFound) -> str:
        text = super().text(work)
        if work.what == PARAMETERS:
            return text.replace("gradients are reduced", "parameters are averaged")
        return text

    def advice(self, work: WorkFound) -> str:
        if work.what == PARAMETERS:
            return "join them: one flat tensor instead of one call per parameter"
        return super().advice(work)


class ReducedInBackward(Alternative, frozen=True, kw_only=True):
    """Gradients are reduced only when the backward has ended."""

    change = "reduce in backward"
    rests_on = "gradients are reduced as soon as the backward has them"
    code = "late_reduction"
    title = "late reduction of gradients"
    training_only = True
    says = "gradients are reduced only when the backward has ended: {work_ns} of communication"
    advises = "reduce them while the backward runs: {switch}"
    topic = "reduction"

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        reductions = rank.once(_reductions)
        yield from _reduce_in_backward(rank, reductions.filter(~pl.col("is_of_parameters")))


class GatheredOnce(Alternative, frozen=True, kw_only=True):
    """Parameters are gathered again for the backward."""

    change = "gather once"
    rests_on = "parameters stay after the forward, which needs memory"
    code = "exposed_comm"
    case = "gathered_twice"
    title = "exposed {label}"
    section = "overlap"
    training_only = True
    says = "parameters are gathered again for the backward: {work_ns} of communication"
    advises = "keep them after the forward where memory allows (`reshard_after_forward=False`)"
    caveat = "Kept parameters need memory."

    def find(self, rank: RankWork) -> Iterator[pl.DataFrame]:
        messages = rank.once(_data_parallel_messages)
        yield _gather_once(messages.filter(pl.col("collective").str.contains(GATHERS)))


def _data_parallel_messages(rank: RankWork) -> pl.DataFrame:
    """Return the collectives of data parallelism whose bytes are known."""
    is_of_data = (pl.col("label") == "dp_comm") & (pl.col("copied_bytes") > 0)
    return rank.events.filter(is_of_data).drop_nulls("collective")


def _reductions(rank: RankWork) -> pl.DataFrame:
    """Return those that reduce, with whether they average what the optimizer updated, ``is_of_parameters``."""
    messages = rank.once(_data_parallel_messages)
    reductions = messages.filter(pl.col("collective").str.contains(REDUCTIONS))
    return reductions.with_columns(is_of_parameters=_follows_update(rank, reductions))


def _follows_update(rank: RankWork, reductions: pl.DataFrame) -> pl.Series:
    """Return the mask of reductions that are launched behind most of their step's optimizer.

    They average what it updated, the parameters; gradients are reduced before.
    """
    update = (
        rank.events.filter(pl.col("label") == "optimizer")
        .group_by("part")
        .agg(update_ns=pl.col("launch_ns").median())
    )
    joined = reductions.join(update, on="part", how="left", maintain_order="left")
    return joined.select((pl.col("launch_ns") > pl.col("update_ns")).fill_null(False)).to_series()


def _large_messages(messages: pl.DataFrame, *, what: str | None) -> Iterator[pl.DataFrame]:
    """Yield the remedies of many messages of one kind; *what* they reduce, None for gradients."""
    parts = messages["part"].n_unique()
    if messages.is_empty() or messages.height < MIN_MESSAGES * parts:
        return
    by_size = (
        messages.group_by("copied_bytes")
        .agg(pl.len(), shortest_ns=pl.col("ns").min(), usual_ns=pl.col("ns").median())
        .sort("copied_bytes")
    )
    sizes = by_size["copied_bytes"].to_numpy().astype(np.float64)
    if sizes[-1] < MIN_SIZES_APART * sizes[0] or sizes[0] >= LARGE_MESSAGE_BYTES:
        return
    # The shortest of each size waited least for other ranks.
    shortest_ns = by_size["shortest_ns"].to_numpy().astype(np.float64)
    usual_ns = by_size["usual_ns"].to_numpy().astype(np.float64)
    bytes_ns = sizes / bytes_per_ns(sizes, shortest_ns, by_size["len"].to_numpy())
    latency_ns = np.clip(shortest_ns - bytes_ns, 0.0, MAX_LATENCY_NS)
    ramp_ns = np.clip(usual_ns - shortest_ns, 0.0, MAX_RAMP_SHARE * bytes_ns)
    total_bytes = int(messages["copied_bytes"].sum()) / parts
    few = max(total_bytes / LARGE_MESSAGE_BYTES, 1.0)
    removed_share = 1 - min(few / (messages.height / parts), 1.0)
    saved = pl.DataFrame(
        {
            "copied_bytes": by_size["copied_bytes"],
            "least_ns": latency_ns * removed_share * LEAST_LATENCY_SHARE,
            "likely_ns": (latency_ns + ramp_ns) * removed_share,
            "most_ns": (latency_ns + ramp_ns) * removed_share * MOST_LATENCY_FACTOR,
        }
    )
    joined = messages.join(saved, on="copied_bytes", how="left", maintain_order="left")
    saved_ns = [pl.col(name) for name in ("most_ns", "likely_ns", "least_ns")]
    yield _shorter(joined, LargeMessages.change, *saved_ns, what=what)


def bytes_per_ns(sizes: Floats, shortest_ns: Floats, count: Ints) -> float:
    """Return the bandwidth that large messages reach, from the shortest durations by size (ascending).

    That is the most that one of the larger half reaches, or that the bytes between two sizes add:
    a latency is in both and drops out. A single message of a size may have waited, so that sizes need a few.
    """
    is_large = sizes * 2 >= sizes[-1]
    bandwidth = float((sizes[is_large] / shortest_ns[is_large]).max())
    repeated = count >= MIN_MESSAGES_OF_SIZE
    sizes = sizes[repeated]
    shortest_ns = shortest_ns[repeated]
    smaller, larger = np.triu_indices(len(sizes), 1)
    more_ns = shortest_ns[larger] - shortest_ns[smaller]
    is_apart = (sizes[larger] >= MIN_SIZES_TO_COMPARE * sizes[smaller]) & (more_ns > 0)
    added = (sizes[larger] - sizes[smaller])[is_apart] / more_ns[is_apart]
    # More than this is an outlier: the smaller message waited.
    believed = added[added <= MAX_BANDWIDTH_FACTOR * bandwidth]
    return max(bandwidth, float(believed.max(initial=0.0)))


def _reduce_in_backward(rank: RankWork, reductions: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Yield the remedies of reductions that are launched behind the backward of their step."""
    backward = (
        rank.events.filter(pl.col("label").is_in(BACKWARD_LABELS))
        .group_by("part")
        .agg(last_launch_ns=pl.col("launch_ns").max(), backward_ns=pl.col("ns").sum())
        .drop_nulls()
    )
    joined = reductions.join(backward, on="part", how="inner")
    is_late = pl.col("launch_ns") > pl.col("last_launch_ns")
    late_bytes = (pl.col("copied_bytes") * is_late).sum().over("part")
    all_bytes = pl.col("copied_bytes").sum().over("part")
    late = joined.filter(is_late & (late_bytes >= MIN_LATE_SHARE * all_bytes))
    if late.is_empty():
        return
    total_ns = pl.col("ns").sum().over("part")
    # The last bucket of gradients is reduced when the backward has ended, whatever is done.
    share_of_bucket = LARGE_MESSAGE_BYTES / pl.col("copied_bytes").clip(LARGE_MESSAGE_BYTES)
    last_ns = (pl.col("ns") * share_of_bucket).max().over("part")
    hideable_ns = total_ns - last_ns
    saved = []
    for share in HIDEABLE_BACKWARD[::-1]:
        hidden_ns = pl.min_horizontal(hideable_ns, pl.col("backward_ns") * share)
        saved.append(pl.col("ns") * hidden_ns / total_ns)
    yield _shorter(late, ReducedInBackward.change, *saved)


def _gather_once(gathers: pl.DataFrame) -> pl.DataFrame:
    """Return the remedies of parameters that are gathered again for the backward."""
    in_forward = gathers.filter(~pl.col("is_backward")).select("part", "copied_bytes").unique()
    again = gathers.filter("is_backward").join(in_forward, on=["part", "copied_bytes"], how="semi")
    return without_events(again, GatheredOnce.change)


def _shorter(
    events: pl.DataFrame,
    change: str,
    most_ns: pl.Expr,
    likely_ns: pl.Expr,
    least_ns: pl.Expr,
    *,
    what: str | None = None,
) -> pl.DataFrame:
    """Return the remedies of events that take so much less: at most, likely and at least."""
    return events.select(
        "row",
        change=pl.lit(change),
        what=pl.lit(what, pl.String()),
        low_ns=(pl.col("ns") - most_ns).clip(lower_bound=0).round(),
        likely_ns=(pl.col("ns") - likely_ns).clip(lower_bound=0).round(),
        high_ns=(pl.col("ns") - least_ns).clip(lower_bound=0).round(),
        host_share=pl.lit(1.0),
        waits=pl.lit(True),
    ).cast(REMEDIES)
