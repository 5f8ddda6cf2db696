"""What this run shows of its machine: what messages cost, how they queue, what they cost the compute beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import polars as pl
from msgspec.structs import replace

from tracekit.reconstruct.contention import lost

FEWEST = 30
"""Kernels that must have run beside messages for their slowdown to be believed."""

UNKNOWN_SLOWDOWN = (1.0, 1.4, 2.0)
"""Where nothing ran beside messages. A kernel that fills the GPU once needs no more, or once more: 1 to 2."""

UNKNOWN_DUPLEX = (1.0, 1.3, 2.0)
"""Where no two messages crossed: a link that carries both ways at once takes no longer, or as long as both."""

OPS = ("F", "I", "W", "B", "FB")
LOW, MIDDLE, HIGH = range(3)


class Machine(msgspec.Struct, frozen=True):
    """Costs in nanoseconds of a message of this run's size, and how kernels behave beside each other."""

    send_ns: float  # a send that nobody waits for
    receive_ns: float  # from a receive's start to its end where the message was there
    latency_ns: float  # from the start of a send to the end of a receive that was waiting
    eager: bool = True  # a send ends without its receiver
    duplex: float = 1.0  # how much longer a message takes beside one the other way
    queues: str = "one"  # message kernels of a rank: "one" after another, one per "peer", or one per peer and "way";
    # "compute": among the ops; "free": receives are open from the start
    slowdown: Mapping[str, float] = {}  # by kind: time beside communication / time alone

    def free(self) -> Machine:
        """Return the machine on which messages cost nothing."""
        return replace(self, send_ns=0.0, receive_ns=0.0, latency_ns=0.0, slowdown={}, queues="way")


class Fitted(msgspec.Struct, frozen=True, eq=False):
    """Three machines: the cheapest the run allows, as measured, the costliest it allows; and what is not known."""

    machines: tuple[Machine, Machine, Machine]
    unknown: tuple[str, ...]
    messages: int
    bytes: int | None  # of a message, where all are alike


def match_messages(parts: Mapping[int, pl.DataFrame]) -> pl.DataFrame | None:
    """Return one row per message of one step: when its send and its receive ran (s0, s1, r0, r1), on one clock.

    *parts* are each position's messages with peers as positions. None where some cannot be matched.
    """
    tables = [table.with_columns(rank=pl.lit(at, pl.Int32)) for at, table in parts.items() if table.height]
    if not tables:
        return None
    rows = pl.concat(tables)
    if rows["peer"].null_count():
        return None
    rows = rows.with_columns(
        source=pl.when("send").then("rank").otherwise("peer"),
        target=pl.when("send").then("peer").otherwise("rank"),
        both=pl.col("send").n_unique().over("rank", "kernel") > 1,
        of=pl.len().over("rank", "kernel"),
    ).sort("launch_ns")
    rows = rows.with_columns(n=pl.int_range(pl.len()).over("source", "target", "send"))
    sent, received = rows.filter("send"), rows.filter(~pl.col("send"))
    joined = sent.join(received, on=["source", "target", "n"], suffix="_r")
    if joined.height < max(sent.height, received.height):
        return None
    return joined.select(
        "source",
        "target",
        pl.col("start_ns").alias("s0"),
        pl.col("end_ns").alias("s1"),
        pl.col("start_ns_r").alias("r0"),
        pl.col("end_ns_r").alias("r1"),
        grouped=pl.col("both") | pl.col("both_r"),
        bytes=pl.coalesce(pl.col("bytes") // pl.col("of"), pl.col("bytes_r") // pl.col("of_r")),
    )


def fit(messages: pl.DataFrame, contention: Sequence[pl.DataFrame], queues: str) -> Fitted:
    """Return what *messages* (as ``match_messages`` gives them) and the ranks' contention say.

    >>> rows = {"source": [0, 0], "target": [1, 1], "s0": [10, 30], "s1": [12, 32], "r0": [0, 40], "r1": [15, 44]}
    >>> rows |= {"grouped": [False, False], "bytes": [None, None]}
    >>> fitted = fit(pl.DataFrame(rows), [], "one").machines[1]
    >>> fitted.send_ns, fitted.latency_ns, fitted.receive_ns, fitted.eager
    (2.0, 5.0, 4.0, True)
    """
    single = messages.filter(~pl.col("grouped"))
    rows = single if single.height else messages
    unknown: list[str] = []
    waiting = rows.filter(pl.col("r0") <= pl.col("s0"))
    latency = _three(waiting if waiting.height else rows, pl.col("r1") - pl.max_horizontal("s0", "r0"))
    late = rows.filter(pl.col("r0") >= pl.col("s0") + latency[MIDDLE])
    receive = _three(late, pl.col("r1") - pl.col("r0")) if late.height else latency
    eager = _mostly(late["s1"] <= late["r0"])
    alone = single.filter(pl.col("s1") <= pl.max_horizontal("s0", "r0") + latency[MIDDLE])
    if not late.height:
        unknown.append("whether a send waits for its receiver: no receiver was late")
        eager = True
    begun = pl.col("s0") if eager else pl.max_horizontal("s0", "r0")
    send = _three(alone, pl.col("s1") - begun) if alone.height else latency
    duplex = _duplex(messages.filter("grouped"), latency[MIDDLE])
    if duplex is None:
        unknown.append("what messages both ways at once cost each other: none crossed")
        duplex = UNKNOWN_DUPLEX
    slow, slowdown_known = _slowdown(contention)
    if not slowdown_known:
        unknown.append("what messages cost the compute beside them: hardly any ran beside it")
    sizes = messages["bytes"].drop_nulls().unique()
    made = [
        Machine(send[k], receive[k], latency[k], eager, duplex[k], queues, {op: slow[op][k] for op in slow})
        for k in (LOW, MIDDLE, HIGH)
    ]
    return Fitted((made[0], made[1], made[2]), tuple(unknown), messages.height, sizes[0] if len(sizes) == 1 else None)


def _three(rows: pl.DataFrame, took: pl.Expr) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile, none below 0."""
    quartiles = rows.select(took.clip(0).quantile(q, "linear").alias(str(q)) for q in (0.25, 0.5, 0.75)).row(0)
    return float(quartiles[0]), float(quartiles[1]), float(quartiles[2])


def _duplex(crossed: pl.DataFrame, latency: float) -> tuple[float, float, float] | None:
    """Return how much longer a message took whose receiver waited while it sent one itself."""
    rows = crossed.filter(pl.col("s0") >= pl.col("r0"))
    if not rows.height or not latency:
        return None
    low, middle, high = (t / latency for t in _three(rows, pl.col("r1") - pl.col("s0")))
    return max(1.0, low), max(1.0, middle), max(1.0, high)


def _slowdown(contention: Sequence[pl.DataFrame]) -> tuple[dict[str, tuple[float, float, float]], bool]:
    """Return by kind of op how much longer its kernels took beside messages; where too few did, what all did."""
    by_op = {str(op): row for op, *row in lost(contention).rows()}
    every = [sum(row[k] for row in by_op.values()) for k in range(3)] if by_op else [0, 0, 0]
    pooled = _factor(*every)
    factors = {op: _factor(*by_op.get(op, (0, 0, 0))) or pooled or UNKNOWN_SLOWDOWN for op in OPS}
    return factors, pooled is not None


def _factor(kernels: int, beside_ns: int, lost_ns: int) -> tuple[float, float, float] | None:
    if kernels < FEWEST or beside_ns <= 0:
        return None
    middle = max(1.0, beside_ns / max(beside_ns - lost_ns, beside_ns / 4))
    return 1 + 0.9 * (middle - 1), middle, 1 + 1.1 * (middle - 1)


def _mostly(values: pl.Series) -> bool:
    return len(values) > 0 and int(values.sum()) * 2 > len(values)
