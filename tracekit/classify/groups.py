"""What a process group is for, told by how it is used: the gradients that are summed on it, or the calls beside it.

Nobody describes most groups. One on which hooks of parameters sum gradients is data parallel, and so is whatever else
is asked on it. A kernel whose launch the file lost belongs to the one group its stream serves.
"""

from __future__ import annotations

import re

import numpy as np

from tracekit._util.arrays import Bools
from tracekit._util.categories import CategoryColumn
from tracekit.classify._nest import Ints
from tracekit.classify.collectives import Collectives
from tracekit.classify.ranges import Gpu

_KINDS = ("dp", "pp", "tp", "cp", "ep")
_ONE_TO_ONE = ("send", "recv", "coalesced")
_NO_PEERS = ("tp", "cp", "ep", "dp")
"""Kinds of groups whose messages between two ranks are not a pipeline's."""


_LARGE = 1 << 20
"""Bytes of a sum that can be one of activations; losses and norms are a few."""
_OFTEN = 4
"""One sum in so many must be in the forward for a group to share tensors."""


def reducing_groups(comm: Collectives, passes: CategoryColumn, site: CategoryColumn, size: Ints) -> Ints:
    """Return the kind of each group (by its code) that sums show where nothing describes it: tensor, data, or -1.

    Ranks that share tensors sum activations, in the forward as well as in the backward. Gradients are summed when the
    backward is under way or over, so a group that sums only then is of replicas.
    """
    groups = len(comm.group.values)
    sums = comm.call.any_of("all_reduce", "reduce_scatter") & comm.group.present
    scatters = comm.call.any_of("reduce_scatter")
    forward, backward = passes.any_of("forward"), passes.any_of("backward")
    ahead = sums & forward & (scatters | (size >= _LARGE))

    def count(mask: Bools) -> Ints:
        return np.bincount(comm.group.codes[mask], minlength=groups)

    shares = (count(ahead) >= 2) & (_OFTEN * count(ahead) >= count(sums))
    replicas = ~shares & (count(sums & backward & ~site.present) > 0) & (count(ahead) == 0)
    kind = np.where(shares, _KINDS.index("tp"), np.where(replicas, _KINDS.index("dp"), -1))
    return np.append(kind, -1).astype(np.int64)


def group_uses(
    gpu: Gpu, comm: Collectives, kinds: CategoryColumn, *, summed: Bools, lost: Bools, reducing: Ints | None = None
) -> CategoryColumn:
    """Kind of every communication kernel's group as its use shows; null where the group's own description speaks.

    *summed* are the kernels that sum gradients for a parameter's hook, *lost* those whose launch is not in the file,
    *reducing* the kinds that sums show. A group that spans several ways of splitting the model is of the kind of
    another group with the same ranks.
    """
    nowhere = lost & (comm.group.codes < 0)
    group = np.where(nowhere, _stream_groups(gpu, comm), comm.group.codes) if nowhere.any() else comm.group.codes
    known = np.full(len(comm.group.values) + 1, -1, np.int64) if reducing is None else reducing.copy()
    known[comm.group.codes[summed & (comm.group.codes >= 0)]] = _KINDS.index("dp")
    kind = kinds.look_up(np.array([*(_KINDS.index(v) if v in _KINDS else -1 for v in kinds.values), -1], np.int64))
    described = (kind >= 0) & (comm.group.codes >= 0)
    known[comm.group.codes[described]] = kind[described]
    known[-1] = -1
    alike = np.where(kinds.any_of("several"), _same_ranks(comm, known), -1)
    own = np.where(comm.library.present & ~kinds.present, known[group], -1)
    return CategoryColumn(_KINDS, np.where(alike >= 0, alike, own))


def _same_ranks(comm: Collectives, known: Ints) -> Ints:
    """For every event the kind of a group with the same ranks as its own, -1 where none is *known*."""
    of_ranks = np.full(len(comm.group_ranks.values) + 1, -1, np.int64)
    kinds = comm.group.look_up(known)
    usable = (kinds >= 0) & comm.group_ranks.present
    of_ranks[comm.group_ranks.codes[usable]] = kinds[usable]
    of_ranks[-1] = -1
    return comm.group_ranks.look_up(of_ranks)


def group_holds(comm: Collectives, kinds: CategoryColumn, uses: CategoryColumn) -> CategoryColumn:
    """``pp`` for communication on a group that holds a rank this one exchanges a pipeline's messages with.

    Not on a group that holds replicas too: it spans more than the pipeline.
    """
    kind = kinds.fill(uses)
    messages = comm.call.any_of(*_ONE_TO_ONE) & ~kind.any_of(*_NO_PEERS)
    peers = {int(peer) for peer in np.unique(comm.peer[messages & (comm.peer >= 0)])}
    members = [frozenset(int(n) for n in re.findall(r"\d+", v)) for v in comm.group_ranks.values]
    replicas = {members[code] for code in np.unique(comm.group_ranks.codes[kind.any_of("dp")]) if code >= 0}
    spans = [any(len(other) > 1 and other <= group for other in replicas) for group in members]
    holds = ["pp" if peers & group and not wide else None for group, wide in zip(members, spans, strict=True)]
    return comm.group_ranks.replace(holds).where(comm.library.present)


def _stream_groups(gpu: Gpu, comm: Collectives) -> Ints:
    """For every event the one group that its stream's collectives belong to, -1 where there is not exactly one."""
    rows = np.flatnonzero(comm.group.present)
    low, high = np.full((2, int(gpu.place.max(initial=-1)) + 1), -1, np.int64)
    np.maximum.at(high, gpu.place[rows], comm.group.codes[rows])
    low[:] = high
    np.minimum.at(low, gpu.place[rows], comm.group.codes[rows])
    return np.where(low == high, high, -1)[gpu.place]
