"""Ranks that share one GPU: what messages of a rank cost its own compute and that of the others, measured in the run.

Processes that were given a part of a GPU's multiprocessors still share the rest of it. A kernel
that gets fewer multiprocessors than it needs, because a message kernel of its rank holds some,
holds up the kernels of other processes behind it. So the compute of a rank takes longer beside a
message of its own, and also while other ranks compute beside theirs. Schedules that hide messages
pay for it, those that leave compute and messages apart do not. Ranks that only compute share the
caches, the memory and the power of the GPU, which costs less. Ranks with GPUs of their own have the
first cost alone.
"""

from collections.abc import Mapping

import msgspec
import numpy as np
import polars as pl

from tracekit._util.arrays import Floats
from tracekit.graph.constants import (
    MAX_FIT_ROUNDS,
    MAX_SLOWDOWN,
    MIN_SHARE_BESIDE_MESSAGES_TO_MEASURE,
    UNKNOWN_COST_TO_OTHER_RANKS,
)
from tracekit.intervals import union, union_of


class SharedGpu(msgspec.Struct, frozen=True):
    """Cost of messages to compute on a GPU that ranks share."""

    own_slowdown: float
    """Time of compute beside a message of its own rank / time alone."""
    other_cost: float
    """Additional time for each other rank that computes beside a message of its own, as a share of
    the time alone."""
    compute_cost: float = 0.0
    """The same for each other rank that computes with no message beside it."""
    measured: bool = True
    """Whether the run shows the costs, or they are what is expected beforehand."""


def count_computing_ranks(
    cells: pl.DataFrame, messages: Mapping[int, pl.DataFrame]
) -> tuple[Floats, Floats]:
    """Return for each cell how many other ranks computed during it, the mean over its time.

    Those that computed beside a message of theirs are the first array, the others the second.

    Args:
        cells: Cells of a step, with position, start and end.
        messages: Messages of each position.
    """
    position = cells["position"].to_numpy()
    start = cells["start_ns"].to_numpy()
    end = cells["end_ns"].to_numpy()
    length_ns = np.maximum(end - start, 1).astype(np.float64)
    computing = np.zeros(len(start))
    computing_beside_message = np.zeros(len(start))
    for other, table in messages.items():
        is_of_other = position == other
        compute = union(start[is_of_other], end[is_of_other])
        beside_message = compute & union_of(table)
        rest = ~is_of_other
        window = (start[rest], end[rest])
        computing[rest] += compute.covered_ns(*window) / length_ns[rest]
        computing_beside_message[rest] += beside_message.covered_ns(*window) / length_ns[rest]
    return computing_beside_message, computing - computing_beside_message


def fit_shared_gpu(
    equal_ops: Floats,
    took_ns: Floats,
    own_share: Floats,
    beside_message: Floats,
    computing: Floats,
    *,
    expected_slowdown: float,
) -> SharedGpu:
    """Estimate the costs from equal ops that ran beside more or fewer messages and computing ranks.

    An op takes ``alone * (1 + other_cost * beside_message + compute_cost * computing) / (1 - lost *
    own_share)``, where ``lost`` is the part of the time beside an own message that would not have
    been needed without it. Least squares of the logarithms, ops of one stage and kind compared with
    each other only. Beforehand the own cost is taken to be *expected_slowdown*, that of another
    rank beside its message ``UNKNOWN_COST_TO_OTHER_RANKS`` of it, and that of one which only
    computes nothing; the surer a cost can be told from the run, the less that counts. A run whose
    compute hardly ever runs beside messages keeps it.

    Args:
        equal_ops: Number of the kind and stage of each op.
        took_ns: Time that it took, above 0.
        own_share: Share of that time beside a message of its own rank.
        beside_message: Other ranks that computed beside their messages
            (``count_computing_ranks``).
        computing: Other ranks that computed with no message beside it.
        expected_slowdown: Time of kernels beside a message of their rank / time alone.
    """
    expected_loss = 1 - 1 / max(expected_slowdown, 1.0)
    uncertainty = UNKNOWN_COST_TO_OTHER_RANKS * expected_loss
    expected = np.array([expected_loss, UNKNOWN_COST_TO_OTHER_RANKS * expected_loss, 0.0])
    if not expected_loss:
        return SharedGpu(1.0, 0.0)
    if (
        not len(took_ns)
        or np.average(own_share, weights=took_ns) < MIN_SHARE_BESIDE_MESSAGES_TO_MEASURE
    ):
        return SharedGpu(max(expected_slowdown, 1.0), float(expected[1]), measured=False)
    upper = np.array([1 - 1 / MAX_SLOWDOWN, MAX_SLOWDOWN, MAX_SLOWDOWN])
    log_ns = np.log(took_ns)
    costs = expected.copy()
    for _ in range(MAX_FIT_ROUNDS):
        lost, other_cost, compute_cost = costs
        others = other_cost * beside_message + compute_cost * computing
        alone = log_ns + np.log(1 - lost * own_share) - np.log1p(others)
        residuals = _centre(alone, equal_ops)
        slopes = np.column_stack(
            [
                _centre(own_share / (1 - lost * own_share), equal_ops),
                _centre(beside_message / (1 + others), equal_ops),
                _centre(computing / (1 + others), equal_ops),
            ]
        )
        variance = float(np.mean(np.square(residuals)))
        weight = variance / uncertainty**2
        moments = slopes.T @ slopes + weight * np.eye(3)
        step = (
            np.linalg.solve(moments, slopes.T @ residuals + weight * (expected - costs))
            if weight
            else np.zeros(3)
        )
        costs = np.clip(costs + step, 0.0, upper)
    lost, other_cost, compute_cost = costs.tolist()
    return SharedGpu(1 / (1 - lost), other_cost, compute_cost)


def _centre(values: Floats, groups: Floats) -> Floats:
    """Return values less the mean of their group."""
    _, index = np.unique(groups, return_inverse=True)
    means: Floats = np.bincount(index, values) / np.bincount(index)
    centred: Floats = values - means[index]
    return centred
