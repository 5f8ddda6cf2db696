"""Model of the machine a run was recorded on: cost of messages, queues, and slowdown of compute beside messages."""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import polars as pl

from tracekit.graph.constants import (
    HIGH,
    LOW,
    MAX_SLOWDOWN,
    MIDDLE,
    MIN_KERNELS_TO_MEASURE_SLOWDOWN,
    QUANTILES,
    SLOWDOWN_SPREAD,
    UNKNOWN_DUPLEX,
    UNKNOWN_SLOWDOWN,
    Estimate,
)
from tracekit.graph.shared_gpu import SharedGpu
from tracekit.pipeline.reconstruct.messages import contention_losses
from tracekit.pipeline.schedules.ops import OP_KINDS

Queues = Literal["one", "peer", "direction", "compute", "free"]
"""Queues of a rank's message kernels.

``one`` for all, one per ``peer``, one per peer and ``direction``; ``compute``: the compute stream
itself; ``free``: receives start at once and wait for nothing, sends are queued per peer.
"""


class Machine(msgspec.Struct, frozen=True):
    """Costs in nanoseconds of a message of this run's size, and the effect of kernels on each other."""

    send_ns: float  # duration of a send that waits for nobody
    receive_ns: float  # duration of a receive whose message has arrived
    latency_ns: float  # from the start of a send to the end of a receive that waited for it
    eager: bool = True  # whether a send ends without its receiver
    duplex: float = 1.0  # latency beside a message in the other direction / latency alone
    queues: Queues = "one"
    slowdown: Mapping[str, float] = {}  # by op kind: time beside messages / time alone
    # Additional time for each other rank on the same GPU that computes beside a message, and for
    # each that computes with none.
    other_cost: float = 0.0
    compute_cost: float = 0.0

    @property
    def ranks_share_gpu(self) -> bool:
        """Whether the compute of other ranks costs time."""
        return self.other_cost > 0 or self.compute_cost > 0

    @property
    def pooled_slowdown(self) -> float:
        """Mean over op kinds of the slowdown beside messages."""
        return sum(self.slowdown.values()) / len(self.slowdown) if self.slowdown else 1.0


class FittedMachine(msgspec.Struct, frozen=True, eq=False):
    """Machines with low, likely and high costs, and the properties that the run does not show."""

    machines: tuple[Machine, Machine, Machine]
    unknown: tuple[str, ...]

    def on_shared_gpu(self, shared: SharedGpu) -> "FittedMachine":
        """Return the same for ranks that share one GPU: slowdowns as measured there, and what ranks cost each other."""
        pooled = self.machines[MIDDLE].pooled_slowdown
        ratio = (shared.own_slowdown - 1) / (pooled - 1) if pooled > 1 else 0.0

        def on_shared(machine: Machine) -> Machine:
            slowdown = {kind: 1 + ratio * (factor - 1) for kind, factor in machine.slowdown.items()}
            return msgspec.structs.replace(
                machine,
                slowdown=slowdown,
                other_cost=shared.other_cost,
                compute_cost=shared.compute_cost,
            )

        low = on_shared(self.machines[LOW])
        middle = on_shared(self.machines[MIDDLE])
        high = on_shared(self.machines[HIGH])
        unknown = self.unknown
        if not shared.measured:
            unknown += (
                "what messages beside compute cost other ranks on the same GPU: hardly any ran beside it",
            )
        return FittedMachine((low, middle, high), unknown)


def fit_machine(
    messages: pl.DataFrame, contention: Sequence[pl.DataFrame], queues: Queues
) -> FittedMachine:
    """Estimate the costs of messages from those of the run.

    Args:
        messages: Matched messages, as ``messages.match_messages`` returns them.
        contention: Contention tables of the ranks.
        queues: Queues of the run's message kernels.

    >>> rows = {"send_start_ns": [10, 30], "send_end_ns": [12, 32], "receive_start_ns": [0, 40],
    ...     "receive_end_ns": [15, 44], "grouped": [False, False]}
    >>> machine = fit_machine(pl.DataFrame(rows), [], "one").machines[1]
    >>> machine.send_ns, machine.latency_ns, machine.receive_ns, machine.eager
    (2.0, 5.0, 4.0, True)
    """
    send_start = pl.col("send_start_ns")
    send_end = pl.col("send_end_ns")
    receive_start = pl.col("receive_start_ns")
    receive_end = pl.col("receive_end_ns")
    both_started = pl.max_horizontal(send_start, receive_start)
    unknown: list[str] = []
    # A kernel that carries several messages ends with the slowest: others are better evidence.
    ungrouped = messages.filter(~pl.col("grouped"))
    rows = ungrouped if ungrouped.height else messages

    waited_for = rows.filter(receive_start <= send_start)
    telling = waited_for if waited_for.height else rows
    latency = _mean_with_quartiles(telling, receive_end - both_started)

    receiver_late = rows.filter(receive_start >= send_start + latency[MIDDLE])
    receive = latency
    eager = True
    if receiver_late.height:
        # A message that is there takes no longer than one that is still to be sent.
        measured = _mean_with_quartiles(receiver_late, receive_end - receive_start)
        receive = (
            min(measured[LOW], latency[LOW]),
            min(measured[MIDDLE], latency[MIDDLE]),
            min(measured[HIGH], latency[HIGH]),
        )
        ended_before_receive = receiver_late.select((send_end <= receive_start).sum()).item()
        eager = ended_before_receive * 2 > receiver_late.height
    else:
        unknown.append("whether a send waits for its receiver: no receiver was late")

    # A send that waits for its receiver takes time from there on; one that was over before shows
    # nothing of that time. The median, because some sends wait for their receiver where most do
    # not.
    begin = send_start if eager else both_started
    prompt = ungrouped.filter(send_end > begin, send_end <= both_started + latency[MIDDLE])
    send = _quartiles(prompt, send_end - begin) if prompt.height else latency

    duplex = _duplex_factor(messages.filter("grouped"), latency[MIDDLE])
    if duplex is None:
        unknown.append("what messages both ways at once cost each other: none crossed")
        duplex = UNKNOWN_DUPLEX
    slowdown, slowdown_known = _slowdown_by_kind(contention)
    if not slowdown_known:
        unknown.append("what messages cost the compute beside them: hardly any ran beside it")

    def machine(level: int) -> Machine:
        slowdown_at_level = {kind: estimate[level] for kind, estimate in slowdown.items()}
        return Machine(
            send[level],
            receive[level],
            latency[level],
            eager,
            duplex[level],
            queues,
            slowdown_at_level,
        )

    return FittedMachine((machine(LOW), machine(MIDDLE), machine(HIGH)), tuple(unknown))


def _quartiles(rows: pl.DataFrame, duration: pl.Expr) -> Estimate:
    """Return lower quartile, median and upper quartile of a duration, none below 0."""
    low, middle, high = rows.select(
        duration.clip(0).quantile(share, "linear").alias(str(share)) for share in QUANTILES
    ).row(0)
    return float(low), float(middle), float(high)


def _mean_with_quartiles(rows: pl.DataFrame, duration: pl.Expr) -> Estimate:
    """Return quartiles around the mean: of receives all count, also the few beside an exchange between experts."""
    low, _, high = _quartiles(rows, duration)
    mean = float(rows.select(duration.clip(0).mean()).item())
    return min(low, mean), mean, max(high, mean)


def _duplex_factor(grouped: pl.DataFrame, latency_ns: float) -> Estimate | None:
    """Return the latency of messages whose receiver waited while it sent as well, over the latency of one alone."""
    rows = grouped.filter(pl.col("send_start_ns") >= pl.col("receive_start_ns"))
    if not rows.height or not latency_ns:
        return None
    low, middle, high = _quartiles(rows, pl.col("receive_end_ns") - pl.col("send_start_ns"))
    return max(1.0, low / latency_ns), max(1.0, middle / latency_ns), max(1.0, high / latency_ns)


def _slowdown_by_kind(contention: Sequence[pl.DataFrame]) -> tuple[dict[str, Estimate], bool]:
    """Return the slowdown beside messages by op kind, and whether the run shows any.

    A kind with too few kernels beside messages gets the slowdown of all kinds together.
    """
    sums_by_kind = {str(kind): sums for kind, *sums in contention_losses(contention).rows()}
    slowdown_of_all = None
    if sums_by_kind:
        sums_of_all = [sum(column) for column in zip(*sums_by_kind.values(), strict=True)]
        slowdown_of_all = slowdown_of_kernels(*sums_of_all)
    slowdown: dict[str, Estimate] = {}
    for kind in OP_KINDS:
        own = slowdown_of_kernels(*sums_by_kind[kind]) if kind in sums_by_kind else None
        slowdown[kind] = own or slowdown_of_all or UNKNOWN_SLOWDOWN
    return slowdown, slowdown_of_all is not None


def slowdown_of_kernels(kernels: int, beside_ns: int, lost_ns: int) -> Estimate | None:
    """Return the slowdown of kernels that lost *lost_ns* in *beside_ns* beside messages.

    None if they are too few.
    """
    if kernels < MIN_KERNELS_TO_MEASURE_SLOWDOWN or beside_ns <= 0:
        return None
    without_messages_ns = max(beside_ns - lost_ns, beside_ns / MAX_SLOWDOWN)
    middle = max(1.0, beside_ns / without_messages_ns)
    low = 1 + (1 - SLOWDOWN_SPREAD) * (middle - 1)
    high = 1 + (1 + SLOWDOWN_SPREAD) * (middle - 1)
    return low, middle, high
