"""Communication kernels: library, call, process group and its purpose, and peer.

Most groups have no description. A group on which hooks of parameters sum gradients is data
parallel, and so is everything else that runs on it. A kernel whose launch the file lost belongs to
the one group that its stream serves.
"""

import re
from typing import NamedTuple

import numpy as np

from tracekit._util.arrays import AnyInts, Bools, Ints, group_rows, take_or_missing
from tracekit._util.categories import MAX_SEARCHED_CHARS, CategoryColumn
from tracekit._util.columns import to_int64
from tracekit.classify.autograd import Autograd
from tracekit.classify.host_ranges import GpuEvents, Launches, Ranges
from tracekit.classify.messages import P2P_CALLS, list_ranks
from tracekit.classify.names import CALLS, CALLS_OF_KERNELS, KERNELS, LIBRARIES, OPERATORS, RANGES
from tracekit.classify.row_order import agreed_values, codes_in, mask_of_rows

MAX_FLAG_BYTES = 4096
"""Bytes up to which communication or a copy may carry a flag, a norm, a count or a name, which
proves no purpose."""
_THREAD_KEY_FACTOR = np.int64(1 << 52)
"""Factor of the thread in a key of thread and time: above the nanoseconds of any trace, which are
52 days at most."""

_SPELLINGS = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier"),
    *("gather", "scatter", "reduce"),
)
"""Collectives in one spelling; the first that a name contains without its underscores counts."""


class Collectives(NamedTuple):
    """For every GPU event that communicates: what is known about it. Null for other events."""

    library: CategoryColumn
    call: CategoryColumn  # in one spelling: all_reduce, all_gather, all_to_all, broadcast, send, recv, coalesced, …
    group: CategoryColumn
    group_desc: CategoryColumn
    group_ranks: CategoryColumn
    peer: Ints  # -1 where unknown
    seq: Ints  # number of the collective in its group; -1 where unknown
    recorded_name: CategoryColumn  # as the kernel or its host's record names it
    bytes: Ints  # as the kernel or its host's record says; -1 where unknown
    received: Ints  # the same


def normalize_call(name: str) -> str:
    """Return a collective's name in one spelling.

    >>> [normalize_call(n) for n in ("_allgather_base", "all_to_allv", "ncclReduceScatter", "nccl:all_reduce")]
    ['all_gather', 'all_to_all', 'reduce_scatter', 'all_reduce']
    """
    plain = name.lower().removeprefix("nccl:").removeprefix("c10d::").removeprefix("nccl")
    if plain != "coalesced":
        plain = plain.replace("_", "").replace("coalesced", "").replace("base", "")
    other = plain.removeprefix("i") if plain in ("isend", "irecv") else plain
    return next((spelling for spelling in _SPELLINGS if spelling.replace("_", "") in plain), other)


def _normalize_calls(names: CategoryColumn) -> CategoryColumn:
    return names.replace([normalize_call(name) for name in names.values])


def function_name(kernel: str) -> str:
    """Return a kernel's name without template arguments and parameters, which name other things.

    >>> function_name("void ns::(anonymous namespace)::run<ns::AllReduce>(ns::Args)"), function_name("_ZN2ns3runEv")
    ('void ns::run', '_ZN2ns3runEv')
    """
    searched = kernel[:MAX_SEARCHED_CHARS].replace("(anonymous namespace)::", "")
    return re.split(r"[<(]", searched, maxsplit=1)[0]


def read_collectives(gpu: GpuEvents, ranges: Ranges, launches: Launches) -> Collectives:
    """Find the communication kernels, and connect each to the call that it runs."""
    library = _find_libraries(gpu, launches)
    calls = _communication_calls(ranges)
    first, last = _calls_of_kernels(ranges, launches, calls, library)

    def column(name: str) -> CategoryColumn:
        return gpu.text(name).fill(ranges.text(name, calls).take(last)).where(library.present)

    group = column("group")
    group_desc = column("group_desc")
    group_ranks = column("group_ranks")
    call = _call_names(gpu, ranges, launches, calls, library.present, first=first, last=last)
    # Peer: as the kernel records it, else as its calls do if they agree, else as an annotation
    # spells it.
    call_peer = to_int64(ranges.column("peer", calls))
    peer = np.where(_differs(call_peer, first, last), -1, take_or_missing(call_peer, last))
    own_peer = gpu.int64("peer")
    peer = np.where(own_peer >= 0, own_peer, peer)
    peer = np.where(peer >= 0, peer, _peers_in_annotations(launches, group_ranks))
    # What only one call can say; a kernel that runs a batch of calls has the sizes and names of
    # none of them.
    only_call = np.where(first == last, last, -1)

    def number(name: str, call_of_kernel: Ints) -> Ints:
        own_number = gpu.int64(name)
        call_number = take_or_missing(to_int64(ranges.column(name, calls)), call_of_kernel)
        return np.where(library.present, np.where(own_number >= 0, own_number, call_number), -1)

    return Collectives(
        library=library,
        call=call,
        group=group,
        group_desc=group_desc,
        group_ranks=group_ranks,
        peer=np.where(library.present, peer, -1),
        seq=number("collective_seq", last),
        recorded_name=gpu.text("collective").fill(ranges.text("collective", calls).take(only_call)),
        bytes=number("bytes", only_call),
        received=number("received", only_call),
    )


def _find_libraries(gpu: GpuEvents, launches: Launches) -> CategoryColumn:
    """Return the library of every event that communicates; null for other events."""
    names = gpu.names
    is_kernel = gpu.is_kernel
    function = names.replace([function_name(name) for name in names.values])
    named_for_collective = function.matches(KERNELS["named_for_collective"])
    no_collective = function.matches(KERNELS["no_collective"])
    has_record = gpu.text("collective").present
    # What a call itself launches moves its data, whatever its name. Copies between devices run on a
    # copy engine.
    in_call = launches.op_name.matches(r"^(record_param_comms|c10d::)")
    is_peer_copy = gpu.text("kind").any_of("memcpy") & names.matches(r"(?i)PtoP|Peer")
    cases = [  # the first that holds decides
        (library, names.matches(pattern) & is_kernel) for library, pattern in LIBRARIES.items()
    ]
    is_nccl = (is_kernel & (has_record | in_call)) | (is_peer_copy & in_call)
    is_custom = named_for_collective & ~no_collective & is_kernel
    cases += [("nccl", is_nccl), ("custom", is_custom)]
    return CategoryColumn.choose(len(gpu), cases)


def _communication_calls(ranges: Ranges) -> Ints:
    """Return the ranges that call for communication, in thread and time order."""
    rows = ranges.collective_rows()
    in_domain = ranges.rows_with("domain")
    calls = rows[~ranges.collective(rows).matches(CALLS["without_data"])]
    is_nccl = ranges.text("domain", in_domain).matches(r"(?i)^nccl$")
    is_call = ranges.name_matches(in_domain, RANGES["nccl_call"])
    return np.union1d(calls, np.setdiff1d(in_domain[is_nccl & is_call], rows))


def _calls_of_kernels(
    ranges: Ranges, launches: Launches, calls: Ints, library: CategoryColumn
) -> tuple[Ints, Ints]:
    """Return for every communication kernel the index in *calls* of the first and the last call that it runs; -1: none.

    A call that contains the launch is run alone. Otherwise the kernel runs the batch of calls that
    its thread made since the communication kernel before.
    """
    first, last = np.full((2, len(library)), -1, np.int64)
    rows = np.flatnonzero(library.present & (launches.start_ns >= 0))
    if not len(calls) or not len(rows):
        return first, last
    rows = launches.by_thread(rows)
    thread = launches.thread[rows]
    launch = launches.start_ns[rows]
    call_thread = ranges.thread[calls]
    # The last call at or before each launch; it may be of another thread. One key orders by thread,
    # then by time.
    origin = min(int(ranges.start(calls).min()), int(launch.min()))
    call_key = call_thread * _THREAD_KEY_FACTOR + (ranges.start(calls) - origin)
    until = (
        np.searchsorted(call_key, thread * _THREAD_KEY_FACTOR + (launch - origin), side="right") - 1
    )
    has_calls = (until >= 0) & (call_thread[until] == thread)
    # The batch begins after the last call that the thread's previous kernel ran.
    is_first_of_thread = np.append(True, thread[1:] != thread[:-1])
    thread_begin = np.searchsorted(call_thread, thread, side="left")
    since = np.where(
        is_first_of_thread, thread_begin, np.maximum(np.append(-1, until[:-1]) + 1, thread_begin)
    )
    is_inside = has_calls & (ranges.end(calls[until]) > launch)
    # Two kernels may run one batch of messages. Kernels of other libraries run only the call that
    # contains them.
    is_p2p = ranges.collective(calls[until]).any_of(*P2P_CALLS)
    runs_batches = library.any_of("nccl", "mscclpp")[rows]
    has_calls &= is_inside | (runs_batches & ((since <= until) | is_p2p))
    since = np.where(is_inside, until, np.minimum(since, until))
    rows_with_calls = rows[has_calls]
    first[rows_with_calls] = since[has_calls]
    last[rows_with_calls] = until[has_calls]
    return first, last


def _call_names(
    gpu: GpuEvents,
    ranges: Ranges,
    launches: Launches,
    calls: Ints,
    communicates: Bools,
    *,
    first: Ints,
    last: Ints,
) -> CategoryColumn:
    """Return the call of everything that *communicates*: recorded, of its batch, around its launch, or in its name."""
    own = _normalize_calls(gpu.text("collective"))
    recorded = _normalize_calls(ranges.collective(calls).fill(ranges.name.take(calls)))
    last_call = recorded.take(last)
    is_mixed = last_call.any_of(*P2P_CALLS) & _differs(recorded.codes, first, last)
    batch = CategoryColumn.choose(len(gpu), [("coalesced", is_mixed)])
    call = own.fill(batch).fill(last_call)
    rows = np.flatnonzero(communicates & ~call.present)
    names = gpu.names.take(rows)
    by_name = CategoryColumn.choose(
        len(rows), [(word, names.matches(pattern)) for word, pattern in CALLS_OF_KERNELS.items()]
    )
    by_range = _calls_in_range_names(ranges, launches, rows)
    return call.where(communicates).fill(by_range.fill(by_name).spread(rows, len(gpu)))


def _calls_in_range_names(ranges: Ranges, launches: Launches, rows: Ints) -> CategoryColumn:
    """Return the call that the op or annotation around each launch is named for, as in older files."""
    op = ranges.op_around(
        launches.op[rows], r"^c10d::\w*(reduce|gather|scatter|alltoall|broadcast|barrier|send|recv)"
    )
    annotation = ranges.name.take(launches.annotation[rows]).extract(r"^nccl:(?!coalesced)(\w+)")
    return _normalize_calls(ranges.name.take(op)).fill(_normalize_calls(annotation))


def _peers_in_annotations(launches: Launches, group_ranks: CategoryColumn) -> Ints:
    """Return the peers in PyTorch's annotations of single messages; -1 where none.

    The annotations are ``nccl:send 3->0`` and ``nccl:recv 3<-0``. Ranks are numbered inside the
    group; where its ranks are known, the global rank is returned.
    """
    peer = launches.annotation_name.extract(r"^nccl:(?:send|recv) \d+(?:->|<-)(\d+)$").numbers()
    members = [list_ranks(ranks) for ranks in group_ranks.values]
    size = max(map(len, members), default=0)
    if not size:
        return peer
    # Global rank by group and number inside the group. The last row, for unknown groups, leaves
    # numbers as they are.
    global_rank = np.array(
        [*(ranks + [-1] * (size - len(ranks)) for ranks in members), list(range(size))], np.int64
    )
    is_member = (peer >= 0) & (peer < size)
    return np.where(is_member, global_rank[group_ranks.codes, np.clip(peer, 0, size - 1)], peer)


def _differs(values: AnyInts, first: Ints, last: Ints) -> Bools:
    """Return whether *values* change anywhere between the indices first and last.

    False where last is negative.
    """
    changes = (
        np.concatenate([[0], np.cumsum(values[1:] != values[:-1])])
        if len(values)
        else np.zeros(1, np.int64)
    )
    has_values = last >= 0
    differs: Bools = has_values & (
        changes[np.where(has_values, first, 0)] != changes[np.where(has_values, last, 0)]
    )
    return differs


KINDS_OF_GROUPS = ("dp", "pp", "tp", "cp", "ep")
_MESSAGE_CALLS = ("send", "recv", "coalesced")
_KINDS_WITHOUT_PIPELINE = ("tp", "cp", "ep", "dp")
"""Kinds of groups on which messages between two ranks are not a pipeline's."""
_MIN_ACTIVATION_BYTES = 1 << 20
"""Bytes from which a sum can be one of activations; losses and norms have a few bytes."""
_MIN_FORWARD_SUMS = 2
"""Sums in the forward from which they are of activations: a loss is summed once."""
_MAX_SUMS_PER_FORWARD_SUM = 4
"""A group shares tensors if at least one sum in so many is of activations in the forward."""


def group_shapes(group_ranks: CategoryColumn) -> CategoryColumn:
    """Return how the ranks of each group lie: ``all`` ranks, ``contiguous`` or ``strided``.

    Null for a single rank.
    """
    members = [list_ranks(ranks) for ranks in group_ranks.values]
    largest = max(map(len, members), default=0)

    def shape(ranks: list[int]) -> str | None:
        if len(ranks) < 2:
            return None
        if len(ranks) == largest and min(ranks) == 0 and max(ranks) == len(ranks) - 1:
            return "all"
        return "contiguous" if max(ranks) - min(ranks) == len(ranks) - 1 else "strided"

    return group_ranks.replace([shape(ranks) for ranks in members])


def kinds_by_sums(
    comm: Collectives, passes: CategoryColumn, site: CategoryColumn, size: Ints
) -> Ints:
    """Return for each group (by its code) the kind that its sums show: index of ``tp`` or ``dp``, or -1.

    Ranks that share tensors sum activations, in the forward as well as in the backward. Gradients
    are summed during or after the backward, so a group that sums only then connects replicas.

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

    in_forward = is_sum & passes.any_of("forward")
    forward_sums = count_per_group(in_forward & is_large)
    unsized_forward_sums = count_per_group(in_forward & (size < 0))
    backward_sums = count_per_group(is_sum & passes.any_of("backward") & ~site.present)
    shares_tensors = (forward_sums >= _MIN_FORWARD_SUMS) & (
        _MAX_SUMS_PER_FORWARD_SUM * forward_sums >= count_per_group(is_sum)
    )
    is_replicas = ~shares_tensors & (backward_sums > 0) & (forward_sums + unsized_forward_sums == 0)
    return np.where(
        shares_tensors,
        KINDS_OF_GROUPS.index("tp"),
        np.where(is_replicas, KINDS_OF_GROUPS.index("dp"), -1),
    )


def _may_sum_activations(comm: Collectives, passes: CategoryColumn, size: Ints) -> Bools:
    """Return the mask of communication without a group in a run that sums without a group in the forward, too.

    Ranks that share tensors sum in the backward as well, on the same stream or another: those sums
    need not be of gradients. A sum of a few bytes does not count.
    """
    no_group = comm.library.present & ~comm.group.present
    is_sum = comm.call.any_of("all_reduce", "reduce_scatter") & (
        (size < 0) | (size >= _MIN_ACTIVATION_BYTES)
    )
    forward_sums = np.count_nonzero(no_group & is_sum & passes.any_of("forward"))
    return no_group if forward_sums >= _MIN_FORWARD_SUMS else np.zeros_like(no_group)


def group_columns(
    gpu: GpuEvents,
    launches: Launches,
    autograd: Autograd,
    comm: Collectives,
    *,
    passes: CategoryColumn,
    described: CategoryColumn,
) -> dict[str, CategoryColumn]:
    """Return the evidence about process groups: kind by description and by use, and whether they hold pipeline peers.

    A group that spans several ways of splitting the model has the kind of another group with the
    same ranks.

    Args:
        gpu: GPU events.
        launches: Launch of each GPU event.
        autograd: Nodes among the host ranges.
        comm: Communication of the GPU events.
        passes: Pass of each communication.
        described: Kind of each kernel's group by description; ``several`` for a group that spans
            several.
    """
    group = _communicators(gpu, comm)
    size = gpu.int64("bytes")
    # Kind of each group, last of no group. A description overrides hooks, which override sums.
    kind_of_group = np.full(
        max(len(comm.group.values), int(group.max(initial=-1)) + 1) + 1, -1, np.int64
    )
    # No operators, but the backward's thread is known.
    if not autograd.active and autograd.site.present.any():
        kind_of_group[: len(comm.group.values)] = kinds_by_sums(comm, passes, autograd.site, size)
    kind_of_group[group[_sums_gradients(launches, autograd, comm) & (group >= 0)]] = (
        KINDS_OF_GROUPS.index("dp")
    )
    described_kind = codes_in(described, KINDS_OF_GROUPS)
    is_described = (described_kind >= 0) & (group >= 0)
    kind_of_group[group[is_described]] = described_kind[is_described]
    same_ranks = np.where(
        described.any_of("several"), _kinds_of_same_ranks(comm, kind_of_group), -1
    )
    group = np.where((launches.start_ns < 0) & (group < 0), _groups_of_streams(gpu, comm), group)
    own = np.where(comm.library.present & ~described.present, kind_of_group[group], -1)
    ambiguous = CategoryColumn.choose(
        len(gpu), [("activations", _may_sum_activations(comm, passes, size))]
    )
    by_use = CategoryColumn(KINDS_OF_GROUPS, np.where(same_ranks >= 0, same_ranks, own)).fill(
        ambiguous
    )
    holds = _groups_with_pipeline_peers(comm, described, by_use)
    return {"group_kind": described, "group_use": by_use, "group_holds": holds}


def _sums_gradients(launches: Launches, autograd: Autograd, comm: Collectives) -> Bools:
    """Return the mask of kernels that sum gradients for the hook of a parameter, or gather and scatter its shards."""
    in_hook = autograd.node.any_of("AccumulateGrad") | launches.annotations.matches(
        RANGES["gradient_hook"]
    )
    after_shard_op = follows_on_thread(launches, launches.chain.matches(OPERATORS["fill_shard"]))
    sums: Bools = in_hook & comm.call.any_of("all_reduce", "reduce_scatter", "reduce")
    return sums | (after_shard_op & comm.call.any_of("all_gather", "reduce_scatter"))


def follows_on_thread(launches: Launches, mask: Bools) -> Bools:
    """Return the events that their thread launched right after an event of *mask*."""
    if not mask.any():
        return mask
    order = launches.by_thread(np.arange(len(mask)))
    previous = order[:-1]
    current = order[1:]
    same_thread = launches.thread[current] == launches.thread[previous]
    follows = mask[previous] & same_thread & (launches.start_ns[previous] >= 0)
    return mask_of_rows(len(mask), current, follows)


def _communicators(gpu: GpuEvents, comm: Collectives) -> Ints:
    """Return the code of each communication's group.

    In a file that records no group, the number of its stream.

    A process group has a stream of its own. Communication on a stream that computes, too, may be of
    any group: -1.
    """
    if comm.group.present.any():
        return comm.group.codes.astype(np.int64)
    computes = np.zeros(int(gpu.stream_number.max(initial=-1)) + 1, np.bool_)
    computes[gpu.stream_number[gpu.is_kernel & ~comm.library.present]] = True
    return np.where(comm.library.present & ~computes[gpu.stream_number], gpu.stream_number, -1)


def _kinds_of_same_ranks(comm: Collectives, kind_of_group: Ints) -> Ints:
    """Return for every event the kind of a group with the same ranks as its own group.

    -1 where none has a kind.
    """
    kind = comm.group.look_up(kind_of_group)
    usable = (kind >= 0) & comm.group_ranks.present
    kind_of_ranks = np.full(len(comm.group_ranks.values) + 1, -1, np.int64)
    kind_of_ranks[comm.group_ranks.codes[usable]] = kind[usable]
    return comm.group_ranks.look_up(kind_of_ranks)


def _groups_with_pipeline_peers(
    comm: Collectives, described: CategoryColumn, by_use: CategoryColumn
) -> CategoryColumn:
    """Return ``pp`` for communication on a group that contains a rank with which this one exchanges pipeline messages.

    A group that contains replicas, too, spans more than the pipeline and does not count.
    """
    kind = described.fill(by_use)
    is_message = comm.call.any_of(*_MESSAGE_CALLS) & ~kind.any_of(*_KINDS_WITHOUT_PIPELINE)
    peers = set(np.unique(comm.peer[is_message & (comm.peer >= 0)]).tolist())
    members = [frozenset(list_ranks(ranks)) for ranks in comm.group_ranks.values]
    replicas = {
        members[code] for code in np.unique(comm.group_ranks.codes[kind.any_of("dp")]) if code >= 0
    }

    def value(group: frozenset[int]) -> str | None:
        contains_replicas = any(len(other) > 1 and other <= group for other in replicas)
        return "pp" if peers & group and not contains_replicas else None

    return comm.group_ranks.replace([value(group) for group in members]).where(comm.library.present)


def _groups_of_streams(gpu: GpuEvents, comm: Collectives) -> Ints:
    """Return for every event the code of the one group that its stream's collectives use.

    -1 if not exactly one.

    A stream that computes, too, is not a group's own: other groups may use it.
    """
    rows = np.flatnonzero(comm.group.present)
    streams = int(gpu.stream_number.max(initial=-1)) + 1
    group = agreed_values(gpu.stream_number[rows], comm.group.codes[rows], streams)
    group[gpu.stream_number[gpu.is_kernel & ~comm.library.present]] = -1
    return group[gpu.stream_number]


def find_shared_labels(
    gpu: GpuEvents, launches: Launches, comm: Collectives, label: CategoryColumn
) -> CategoryColumn:
    """Return for unresolved communication the label of its like, if all that are resolved have the same.

    Like it are the reductions, gathers and broadcasts of more than a few bytes on its group; for a
    kernel whose launch is lost, the kernels of its name on its stream.
    """
    is_comm = comm.library.present
    unresolved = is_comm & label.any_of("comm")
    lost = is_comm & (launches.start_ns < 0)
    group = _communicators(gpu, comm)
    shares_group = is_comm & (group >= 0) & comm.call.matches(CALLS["for_group"])
    proves = ~unresolved & ~lost & ((gpu.int64("bytes") > MAX_FLAG_BYTES) | ~shares_group)
    stream_and_name, _ = group_rows(gpu.stream_number, gpu.names.codes)
    codes = np.full(len(gpu), -1, np.int64)
    for key, likes, targets in (
        (stream_and_name, is_comm & proves, lost),
        (group, shares_group & proves, shares_group & unresolved & ~lost),
    ):
        rows = np.flatnonzero(likes)
        open_rows = np.flatnonzero(targets)
        codes[open_rows] = agreed_values(key[rows], label.codes[rows], int(key.max(initial=0)) + 1)[
            key[open_rows]
        ]
    return CategoryColumn(label.values, codes)
