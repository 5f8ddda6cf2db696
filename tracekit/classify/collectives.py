"""Communication kernels: which library, which call, which process group, which peer."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracekit._util.arrays import AnyInts, Bools, take_or_missing
from tracekit._util.categories import CategoryColumn
from tracekit._util.columns import to_int64
from tracekit.classify._nest import Ints, time_key
from tracekit.classify.ranges import Gpu, Launches, Ranges

LIBRARIES = (
    (
        "deepep",
        r"(deep_?|hybrid_|nixl_|nccl_)ep(::|\d)|(dpsk|uccl)::(ep|layout|intranode|internode)|^kernel_cutlass_kernel_moonep"
        r"|::(intranode|internode|internode_ll)::\w*(dispatch|combine|notify)",
    ),
    ("nccl", r"(?i)^(void )?(nccl|rccl|msccl|mccl|hccl)\w*Kernel|ncclKernel_|^hcom_|oneccl"),
    ("nvshmem", r"(?i)(nv|roc)shmem|_on_stream_kernel"),
    ("mscclpp", r"(?i)mscclpp"),
    (
        "custom",
        r"(?i)cross_device_reduce|one_shot_push|multimem_\w*(reduce|gather)|symmetric_memory::(barrier|\w+_signal)"
        r"|userbuffers_|\bquickreduce|low_latency_(dispatch|combine)|a2a_?(prepare|sanitize)?_?(dispatch|combine|expert)"
        r"|Ep(Dispatch|Combine)\w*Kernel",
    ),
)
"""Whose kernel it is, by name. Each pattern is tried in turn."""

_WORDS = r"(?i)all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
_NO_WORDS = r"(?i)^triton_|gemm|matmul|(block|warp)_?all_?reduce"
"""A function named for a collective is one, but for a compiler's kernel, whose name lists what it takes part in, a
product that reduces as it goes, and a reduction inside one block."""

_SPOKEN = (  # what a kernel's name says about the collective, where nothing better does
    ("all_reduce", r"(?i)all_?reduce|cross_device_reduce|quickreduce|one_shot_push"),
    ("reduce_scatter", r"(?i)reduce_?scatter"),
    ("all_gather", r"(?i)all_?gather"),
    ("all_to_all", r"(?i)all_?to_?all"),
    ("broadcast", r"(?i)broadcast"),
    ("reduce", r"(?i)_reduce_|DevKernel_Reduce|ncclReduce(Ring|Tree)"),
    ("sendrecv", r"(?i)send_?recv"),
    ("send", r"pp_send_impl"),
    ("recv", r"pp_recv_impl"),
)
_TALK = r"^(wait|barrier_wait|startcoalesced|endcoalesced|init|bootstrap|part)$"
_NCCL_RANGES = r"^nccl(AllReduce|AllGather|ReduceScatter|Broadcast|Bcast|Reduce|Send|Recv|AlltoAll|Gather|Scatter)"
_P2P = ("send", "recv", "isend", "irecv")


class Collectives(NamedTuple):
    """What is known of every GPU event that communicates; null elsewhere."""

    library: CategoryColumn
    call: CategoryColumn  # one spelling each: all_reduce, all_gather, all_to_all, broadcast, send, recv, coalesced, …
    group: CategoryColumn
    group_desc: CategoryColumn
    group_ranks: CategoryColumn
    peer: Ints  # -1 where unknown


def normal(name: str) -> str:
    """One spelling for each collective.

    >>> [normal(n) for n in ("_allgather_base", "all_to_allv", "ncclReduceScatter", "nccl:all_reduce")]
    ['all_gather', 'all_to_all', 'reduce_scatter', 'all_reduce']
    """
    plain = name.lower().removeprefix("nccl:").removeprefix("c10d::").removeprefix("nccl")
    plain = plain.replace("_", "").replace("coalesced", "").replace("base", "") if plain != "coalesced" else plain
    for word in (
        "allreduce",
        "allgather",
        "reducescatter",
        "alltoall",
        "broadcast",
        "barrier",
        "gather",
        "scatter",
        "reduce",
    ):
        if word in plain:
            spelt = {"allreduce": "all_reduce", "allgather": "all_gather", "reducescatter": "reduce_scatter"}
            return spelt.get(word, {"alltoall": "all_to_all"}.get(word, word))
    for word in ("send", "recv"):
        if plain in (word, f"i{word}"):
            return word
    return plain


def own_name(kernel: str) -> str:
    """Name of the function alone, without template arguments and parameters, which speak of other things.

    >>> own_name("void ns::(anonymous namespace)::run<ns::AllReduce>(ns::Args)"), own_name("_ZN2ns3runEv")
    ('void ns::run', '_ZN2ns3runEv')
    """
    return re.split(r"[<(]", kernel.replace("(anonymous namespace)::", ""), maxsplit=1)[0]


def read_collectives(gpu: Gpu, ranges: Ranges, launches: Launches) -> Collectives:
    """Join every communication kernel to the call that asked for it."""
    names, kernel = gpu.names, gpu.is_kernel
    own = gpu.text("collective").present
    named = [(lib, names.matches(p) & kernel) for lib, p in LIBRARIES]
    plain = names.replace([own_name(v) for v in names.values])
    # What the call itself launches moves its data, whatever it is named; copies between devices are a copy engine's.
    asked = launches.op_name.matches(r"^(record_param_comms|c10d::)")
    copied = gpu.text("kind").any_of("memcpy") & names.matches(r"(?i)PtoP|Peer") & asked
    library = CategoryColumn.choose(
        len(gpu),
        [
            *named,
            ("nccl", (kernel & (own | asked)) | copied),
            ("custom", plain.matches(_WORDS) & ~plain.matches(_NO_WORDS) & kernel),
        ],
    )
    calls = _calls(ranges)
    first, last = _batches(ranges, launches, calls, library)

    def column(name: str) -> CategoryColumn:
        return gpu.text(name).fill(ranges.text(name, calls).take(last)).where(library.present)

    group, group_desc, group_ranks = column("group"), column("group_desc"), column("group_ranks")
    call = _named(gpu, ranges, launches, calls, library.present, first=first, last=last)
    peer = _peers(gpu, ranges, calls, first, last)
    peer = np.where(peer >= 0, peer, _spelt_peers(launches, group_ranks))
    return Collectives(library, call, group, group_desc, group_ranks, np.where(library.present, peer, -1))


def _calls(ranges: Ranges) -> Ints:
    """Ranges that ask for communication, in thread and time order."""
    rows, marked = ranges.asking(), ranges.having("domain")
    calls = rows[~ranges.collective(rows).matches(_TALK)]
    if not len(marked):
        return calls
    nccl = ranges.text("domain", marked).matches(r"(?i)^nccl$") & ranges.called(marked, _NCCL_RANGES)
    return np.union1d(calls, np.setdiff1d(marked[nccl], rows))


def _batches(ranges: Ranges, launches: Launches, calls: Ints, library: CategoryColumn) -> tuple[Ints, Ints]:
    """For every communication kernel, the first and last place in *calls* that it answers; -1 where none.

    A call that contains the launch answers alone. Otherwise the batch is what was asked on the launching thread
    since the communication kernel before.
    """
    rows = np.flatnonzero(library.present & (launches.at >= 0))
    first, last = np.full(len(library), -1, np.int64), np.full(len(library), -1, np.int64)
    if not len(calls) or not len(rows):
        return first, last
    rows = rows[np.lexsort((launches.at[rows], launches.thread[rows]))]
    origin = min(int(ranges.start(calls).min()), int(launches.at[rows].min()))
    until = (
        np.searchsorted(
            time_key(ranges.thread[calls], ranges.start(calls) - origin),
            time_key(launches.thread[rows], launches.at[rows] - origin),
            side="right",
        )
        - 1
    )
    same = (until >= 0) & (ranges.thread[calls[until]] == launches.thread[rows])
    # Calls up to the previous kernel of the thread have been answered already.
    before = np.concatenate([[-1], until[:-1]])
    fresh = np.concatenate([[True], launches.thread[rows][1:] != launches.thread[rows][:-1]])
    thread_start = np.searchsorted(ranges.thread[calls], launches.thread[rows], side="left")
    since = np.where(fresh, thread_start, np.maximum(before + 1, thread_start))
    inside = same & (ranges.end(calls[until]) > launches.at[rows])
    # Two kernels may answer one batch. Other libraries' kernels answer only what they were launched in.
    batched = ranges.collective(calls[until]).any_of(*_P2P)
    ours = library.any_of("nccl", "mscclpp")[rows]
    same &= inside | (ours & ((since <= until) | batched))
    since = np.minimum(since, until)
    since = np.where(inside, until, since)
    first[rows[same]], last[rows[same]] = since[same], until[same]
    return first, last


def _named(
    gpu: Gpu, ranges: Ranges, launches: Launches, calls: Ints, communicates: Bools, *, first: Ints, last: Ints
) -> CategoryColumn:
    """Name the call of everything that *communicates*."""
    own = gpu.text("collective")
    own = own.replace([normal(v) for v in own.values])
    raw = ranges.collective(calls).fill(ranges.name.take(calls))
    asked = raw.replace([normal(v) for v in raw.values])
    end = asked.take(last)
    mixed = _differs(asked.codes, first, last)
    batch = CategoryColumn.choose(len(gpu), [("coalesced", end.any_of(*_P2P) & mixed)])
    known = own.fill(batch).fill(end)
    rows = np.flatnonzero(communicates & ~known.present)
    names = gpu.names.take(rows)
    spoken = CategoryColumn.choose(len(rows), [(word, names.matches(p)) for word, p in _SPOKEN])
    return known.where(communicates).fill(_around(ranges, launches, rows).fill(spoken).spread(rows, len(gpu)))


def _around(ranges: Ranges, launches: Launches, rows: Ints) -> CategoryColumn:
    """Older files name the collective only in the op or annotation around the launch."""
    asks = ranges.around(launches.op[rows], r"^c10d::\w*(reduce|gather|scatter|alltoall|broadcast|barrier|send|recv)")
    op_name = ranges.name.take(asks)
    annotation = ranges.name.take(launches.ann[rows]).extract(r"^nccl:(?!coalesced)(\w+)")
    return op_name.replace([normal(v) for v in op_name.values]).fill(
        annotation.replace([normal(v) for v in annotation.values])
    )


def _peers(gpu: Gpu, ranges: Ranges, calls: Ints, first: Ints, last: Ints) -> Ints:
    own = gpu.int64("peer")
    asked = to_int64(ranges.column("peer", calls))
    from_call = take_or_missing(asked, last)
    return np.where(own >= 0, own, np.where(_differs(asked, first, last), -1, from_call))


def _spelt_peers(launches: Launches, members: CategoryColumn) -> Ints:
    """Peers as PyTorch spells them in the annotation of a single message: ``nccl:send 3->0``, ``nccl:recv 3<-0``.

    They are counted inside the group; where its ranks are known, the peer's global rank is looked up.
    """
    spelt = launches.ann_name.extract(r"^nccl:(?:send|recv) \d+(?:->|<-)(\d+)$").numbers()
    ranks = [[int(n) for n in re.findall(r"\d+", v)] for v in members.values]
    width = max((len(r) for r in ranks), default=0)
    if not width or not (spelt >= 0).any():
        return spelt
    table = np.array([*(r + [-1] * (width - len(r)) for r in ranks), list(range(width))], np.int64)
    inside = (spelt >= 0) & (spelt < width)
    return np.where(inside, table[members.codes, np.clip(spelt, 0, width - 1)], spelt)


def _differs(values: AnyInts, first: Ints, last: Ints) -> Bools:
    """Whether *values* change anywhere between first and last."""
    changes = np.concatenate([[0], np.cumsum(values[1:] != values[:-1])]) if len(values) else np.zeros(1, np.int64)
    known = last >= 0
    differs: Bools = known & (changes[np.where(known, first, 0)] != changes[np.where(known, last, 0)])
    return differs
