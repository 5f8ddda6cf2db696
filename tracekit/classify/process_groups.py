"""Purpose of process groups, found by their use and by their ranks.

Most groups have no description. A group on which hooks of parameters sum gradients is data parallel, and so is
everything else that runs on it. A kernel whose launch the file lost belongs to the one group that its stream serves.
"""

from __future__ import annotations

import re

import numpy as np

from tracekit._util.arrays import Bools, Ints
from tracekit._util.categories import CategoryColumn
from tracekit.classify.collectives import Collectives
from tracekit.classify.host_ranges import GpuEvents
from tracekit.classify.row_order import agreed_values, codes_in

_KINDS = ("dp", "pp", "tp", "cp", "ep")
_MESSAGE_CALLS = ("send", "recv", "coalesced")
_KINDS_WITHOUT_PIPELINE = ("tp", "cp", "ep", "dp")
"""Kinds of groups on which messages between two ranks are not a pipeline's."""
_MIN_ACTIVATION_BYTES = 1 << 20
"""Bytes from which a sum can be one of activations; losses and norms have a few bytes."""
_MAX_SUMS_PER_FORWARD_SUM = 4
"""A group shares tensors if at least one sum in so many is of activations in the forward."""


def group_shapes(group_ranks: CategoryColumn) -> CategoryColumn:
    """Return how the ranks of each group lie: ``all`` ranks, ``contiguous`` or ``strided``; null for a single rank."""
    members = [[int(rank) for rank in re.findall(r"\d{1,18}", ranks)] for ranks in group_ranks.values]
    largest = max(map(len, members), default=0)

    def shape(ranks: list[int]) -> str | None:
        if len(ranks) < 2:
            return None
        if len(ranks) == largest and min(ranks) == 0 and max(ranks) == len(ranks) - 1:
            return "all"
        return "contiguous" if max(ranks) - min(ranks) == len(ranks) - 1 else "strided"

    return group_ranks.replace([shape(ranks) for ranks in members])


def kinds_by_sums(comm: Collectives, passes: CategoryColumn, site: CategoryColumn, size: Ints) -> Ints:
    """Return for each group (by its code) the kind that its sums show: index of ``tp`` or ``dp``, or -1.

    Ranks that share tensors sum activations, in the forward as well as in the backward. Gradients are summed during or
    after the backward, so a group that sums only then connects replicas.

    Args:
        comm: Communication kernels.
        passes: Pass of each of them.
        site: Pass of each event as autograd or its thread shows it.
        size: Bytes of each event.
    """
    is_sum = comm.call.any_of("all_reduce", "reduce_scatter") & comm.group.present
    is_large = comm.call.any_of("reduce_scatter") | (size >= _MIN_ACTIVATION_BYTES)

    def count_per_group(mask: Bools) -> Ints:
        return np.bincount(comm.group.codes[mask], minlength=len(comm.group.values))

    forward_sums = count_per_group(is_sum & passes.any_of("forward") & is_large)
    backward_sums = count_per_group(is_sum & passes.any_of("backward") & ~site.present)
    shares_tensors = (forward_sums >= 2) & (_MAX_SUMS_PER_FORWARD_SUM * forward_sums >= count_per_group(is_sum))
    is_replicas = ~shares_tensors & (backward_sums > 0) & (forward_sums == 0)
    kind = np.where(shares_tensors, _KINDS.index("tp"), np.where(is_replicas, _KINDS.index("dp"), -1))
    return np.append(kind, -1).astype(np.int64)


def kinds_by_use(
    gpu: GpuEvents,
    comm: Collectives,
    described: CategoryColumn,
    *,
    sums_gradients: Bools,
    lost: Bools,
    kind_by_sums: Ints | None = None,
) -> CategoryColumn:
    """Return the kind of every communication kernel's group as its use shows; null where its description tells.

    A group that spans several ways of splitting the model has the kind of another group with the same ranks.

    Args:
        gpu: GPU events.
        comm: Their communication.
        described: Kind of each kernel's group by description; ``several`` for a group that spans several.
        sums_gradients: Mask of kernels that sum gradients for the hook of a parameter.
        lost: Mask of events whose launch is not in the file.
        kind_by_sums: Result of ``kinds_by_sums``.
    """
    group = comm.group.codes
    # Kind of each group, last of no group. A description overrides hooks, which override sums.
    kind_of_group = np.full(len(comm.group.values) + 1, -1, np.int64) if kind_by_sums is None else kind_by_sums.copy()
    kind_of_group[group[sums_gradients & (group >= 0)]] = _KINDS.index("dp")
    described_kind = codes_in(described, _KINDS)
    is_described = (described_kind >= 0) & (group >= 0)
    kind_of_group[group[is_described]] = described_kind[is_described]
    kind_of_group[-1] = -1
    same_ranks = np.where(described.any_of("several"), _kinds_of_same_ranks(comm, kind_of_group), -1)
    unknown_group = lost & (group < 0)
    if unknown_group.any():
        group = np.where(unknown_group, _groups_of_streams(gpu, comm), group)
    own = np.where(comm.library.present & ~described.present, kind_of_group[group], -1)
    return CategoryColumn(_KINDS, np.where(same_ranks >= 0, same_ranks, own))


def _kinds_of_same_ranks(comm: Collectives, kind_of_group: Ints) -> Ints:
    """Return for every event the kind of a group with the same ranks as its own group; -1 where none has a kind."""
    kind = comm.group.look_up(kind_of_group)
    usable = (kind >= 0) & comm.group_ranks.present
    kind_of_ranks = np.full(len(comm.group_ranks.values) + 1, -1, np.int64)
    kind_of_ranks[comm.group_ranks.codes[usable]] = kind[usable]
    return comm.group_ranks.look_up(kind_of_ranks)


def groups_with_pipeline_peers(comm: Collectives, described: CategoryColumn, by_use: CategoryColumn) -> CategoryColumn:
    """Return ``pp`` for communication on a group that contains a rank with which this one exchanges pipeline messages.

    A group that contains replicas, too, spans more than the pipeline and does not count.
    """
    kind = described.fill(by_use)
    is_message = comm.call.any_of(*_MESSAGE_CALLS) & ~kind.any_of(*_KINDS_WITHOUT_PIPELINE)
    peers = set(np.unique(comm.peer[is_message & (comm.peer >= 0)]).tolist())
    members = [frozenset(int(rank) for rank in re.findall(r"\d+", ranks)) for ranks in comm.group_ranks.values]
    replicas = {members[code] for code in np.unique(comm.group_ranks.codes[kind.any_of("dp")]) if code >= 0}

    def value(group: frozenset[int]) -> str | None:
        contains_replicas = any(len(other) > 1 and other <= group for other in replicas)
        return "pp" if peers & group and not contains_replicas else None

    return comm.group_ranks.replace([value(group) for group in members]).where(comm.library.present)


def _groups_of_streams(gpu: GpuEvents, comm: Collectives) -> Ints:
    """Return for every event the code of the one group that its stream's collectives use; -1 if not exactly one."""
    rows, streams = np.flatnonzero(comm.group.present), int(gpu.stream_number.max(initial=-1)) + 1
    return agreed_values(gpu.stream_number[rows], comm.group.codes[rows], streams)[gpu.stream_number]
