"""Expert parallelism: which exchange is dispatch and which is combine, and in which pass.

Role and kernel differ: the backward of combine runs a dispatch kernel, and the backward of dispatch a combine kernel.
Plain all-to-alls all look alike; in a layer the forward dispatches, then combines, and the backward does the reverse.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracekit._util.arrays import Bools, rank_pairs
from tracekit._util.categories import CategoryColumn, group_by_values
from tracekit.classify._nest import Ints, walk_exchanges
from tracekit.classify.autograd import Autograd
from tracekit.classify.collectives import Collectives, own_name
from tracekit.classify.directions import Directions
from tracekit.classify.messages import sent_passes
from tracekit.classify.ranges import Gpu, Launches, Ranges

MOST_OPEN = 8
"""Calls that may be open on a group at once for its waits to be taken as answering them in turn."""
_HELPER = (
    r"(?i)notify|layout|cached|barrier|clean_low_latency|encode|prologue|planning|prepare|preprocess|sanitize|\bscan"
)
_AGAIN = 2
_FINISH = r"(?i)epilogue"
_REUSES = r"(?<!_)dispatch_impl<[^,]*,[^,]*,[^,]*, (true|\(bool\)1)|hybrid_dispatch_impl<[^,]*, (true|\(bool\)1)"
"""DeepEP's second version says in a template argument that it re-uses a layout."""


class Exchanges(NamedTuple):
    """For every GPU event that exchanges tokens with experts: its role in the model and its pass."""

    role: CategoryColumn  # "dispatch" or "combine"
    direction: CategoryColumn  # "forward" or "backward"


class Passes(NamedTuple):
    """What is known of each communication kernel's pass."""

    known: CategoryColumn
    engine: CategoryColumn  # the engine's own word
    maker: CategoryColumn  # pass of the last compute launched before it
    user: CategoryColumn  # pass of the first compute launched after the host waited for it
    compute: CategoryColumn  # of compute: its pass, where it is known of itself
    again: Bools  # of any event: it runs forward work once more, inside the backward


def comm_passes(
    ranges: Ranges, launches: Launches, autograd: Autograd, comm: Collectives, directions: Directions, *, kernel: Bools
) -> Passes:
    """Pass of every communication kernel: the engine's word, else that of what uses the result or made it."""
    site = autograd.site
    communicates = comm.library.present
    own = CategoryColumn.choose(
        len(communicates),
        [
            ("backward", communicates & site.any_of("backward", "recompute")),
            ("forward", communicates & site.any_of("forward")),
        ],
    )
    strong = directions.value.where(directions.source.any_of("autograd", "matmul", "name") & kernel)
    passes = strong.replace(
        [{"wgrad": "backward", "recompute": "backward", "optimizer": None}.get(v, v) for v in strong.values]
    )
    rows = np.flatnonzero(communicates)
    waits = _wait_times(ranges, launches, comm)[rows]
    known = launches.ordered(passes.present)
    user = passes.take(_known_after(launches.at, known, waits)).spread(rows, len(kernel))
    maker = passes.take(_known_before(launches.at, known, launches.at[rows])).spread(rows, len(kernel))
    result = passes.where(~directions.value.any_of("wgrad"))  # gradients of weights are not sent on
    sent = sent_passes(launches.at, result, comm.call.any_of("send"), comm.peer, launches.order)
    sent = sent.fill(maker.where(comm.call.any_of("all_reduce", "reduce_scatter", "reduce")))
    received = _answers(comm, sent).fill(user.where(comm.call.any_of("recv", "all_gather")))
    idle = CategoryColumn.choose(len(communicates), [("forward", communicates & directions.value.any_of("forward"))])
    again = directions.value.any_of("recompute") | site.any_of("recompute")
    return Passes(own.fill(sent).fill(received).fill(idle), own, maker, user, passes, again)


def _answers(comm: Collectives, sent: CategoryColumn) -> CategoryColumn:
    """Receives from a rank that is sent forward work alone bring gradients, and the reverse.

    Two ranks that hold several stages each may send each other both; then a receive says nothing of itself.
    """
    known = comm.peer >= 0
    send, recv = comm.call.any_of("send") & known, comm.call.any_of("recv") & known
    ahead, back = send & sent.any_of("forward"), send & sent.any_of("backward")
    size = int(comm.peer.max(initial=0)) + 1
    forward = np.bincount(comm.peer[ahead], minlength=size) > 0
    backward = np.bincount(comm.peer[back], minlength=size) > 0
    peer = np.maximum(comm.peer, 0)
    return CategoryColumn.choose(
        len(send),
        [
            ("backward", recv & forward[peer] & ~backward[peer]),
            ("forward", recv & backward[peer] & ~forward[peer]),
        ],
    )


def _wait_times(ranges: Ranges, launches: Launches, comm: Collectives) -> Ints:
    """When the host waited for each kernel: the k-th wait on a group answers its k-th call. -1 where it did not."""
    out = np.full(len(launches.at), -1, np.int64)
    waits = ranges.asking("wait")
    rows = launches.ordered(comm.library.present)
    if not len(waits) or not len(rows):
        return out
    waits = waits[np.argsort(ranges.start(waits), kind="stable")]
    waited = {
        group: waits[places] for group, places in group_by_values(np.arange(len(waits)), ranges.text("group", waits))
    }
    for group, calls in group_by_values(rows, comm.group):
        answers = waited.get(group, waits[:0])
        at, wait = launches.at[calls], ranges.start(answers)
        # Groups waited for less often than called on, or with many calls open at once, are not in step.
        if len(at) != len(wait) or _most_open(at, wait) > MOST_OPEN:
            continue
        after = wait >= at
        out[calls[after]] = wait[after]
    return out


def _most_open(at: Ints, wait: Ints) -> int:
    """Return how many calls were open at most when one was waited for; more than allowed where none had been made."""
    last = np.searchsorted(at, wait, side="right") - 1
    open_calls = (last - np.arange(len(wait)))[last >= 0]
    return int(open_calls.max()) if len(open_calls) else MOST_OPEN + 1


def _known_after(at: Ints, known: Ints, asked: Ints) -> Ints:
    """Return which of the *known*, in order of *at*, is the first after each moment; -1 where none."""
    return np.where(asked >= 0, np.append(known, -1)[np.searchsorted(at[known], asked, side="right")], -1)


def _known_before(at: Ints, known: Ints, asked: Ints) -> Ints:
    """Return which of the *known*, in order of *at*, is the last before each moment; -1 where none."""
    return np.where(asked >= 0, np.append(-1, known)[np.searchsorted(at[known], asked, side="left")], -1)


def read_exchanges(
    gpu: Gpu, launches: Launches, autograd: Autograd, comm: Collectives, *, passes: Passes, marks: Marks
) -> Exchanges:
    """Roles of DeepEP-like kernels, of all-to-alls on an expert group, and of such that behave as if on one."""
    named = _named_exchanges(gpu, launches, autograd, comm)
    plain = _plain_exchanges(gpu, launches, comm, passes, marks)
    return Exchanges(named.role.fill(plain.role), named.direction.fill(plain.direction))


class Marks(NamedTuple):
    """What tells a layer's parts apart."""

    attention: Bools
    product: Bools
    expert: Bools  # communication on a group that is known to be an expert group


def _named_exchanges(gpu: Gpu, launches: Launches, autograd: Autograd, comm: Collectives) -> Exchanges:
    names, none = gpu.names, CategoryColumn.constant(None, len(gpu))
    ours = comm.library.any_of("deepep", "nvshmem", "custom")
    if not ours.any():
        return Exchanges(none, none)
    spoken = names.replace([_spoken(v) for v in names.values]).where(ours)
    plain = names.replace([own_name(v) for v in names.values])
    helper, finish = ours & plain.matches(_HELPER), ours & plain.matches(_FINISH)
    main = spoken.present & ~helper & ~finish
    order = np.lexsort((np.arange(len(gpu)), np.where(launches.at >= 0, launches.at, gpu.int64("start_ns"))))
    order = order[(main | helper | finish)[order]]
    if not len(order):
        return Exchanges(none, none)
    is_main = main[order]
    combines = spoken.any_of("combine")[order] & is_main
    dispatches = is_main & ~combines
    reuses = names.matches(_REUSES)[order]
    fresh = names.matches(r"(?i)(?<!cached_)notify_dispatch|dispatch_layout")[order]
    cached = names.matches(r"(?i)cached_notify")[order] | reuses
    rerun = autograd.site.any_of("recompute")[order]
    backward = _dispatch_backward(autograd, order, is_main, dispatches, fresh=fresh, cached=cached)
    backward = _match_combines(autograd, order, combines, dispatches, backward)
    # A combine kernel running backward is dispatch, and the reverse; the forward run again keeps its roles.
    role = np.where(combines != (backward & ~rerun), 1, 0)
    serves = np.where(finish[order], _last_main(is_main), _next_main(is_main))
    ok = serves >= 0
    out_role, out_pass = np.full(len(gpu), -1, np.int64), np.full(len(gpu), -1, np.int64)
    out_role[order[ok]] = role[serves[ok]]
    out_pass[order[ok]] = (backward | rerun)[serves[ok]]
    return Exchanges(
        CategoryColumn(("dispatch", "combine"), out_role), CategoryColumn(("forward", "backward"), out_pass)
    )


def _spoken(kernel: str) -> str | None:
    """What an exchange kernel's own name says, not its namespace or its arguments.

    >>> _spoken("void mori::moe::EpDispatchIntraNodeKernel<T>(mori::moe::EpDispatchCombineArgs<T>)"), _spoken("barrier")
    ('dispatch', None)
    """
    match = re.search(r"(?i)dispatch|combine", own_name(kernel).rsplit("::", 1)[-1])
    return match[0].lower() if match else None


def _dispatch_backward(
    autograd: Autograd, order: Ints, is_main: Bools, dispatches: Bools, *, fresh: Bools, cached: Bools
) -> Bools:
    """Return which dispatches re-use a layout computed before: those run backward."""
    since: Ints = np.cumsum(is_main) - is_main  # helpers between two main kernels serve the second
    prepared = np.zeros(len(order) + 1, np.bool_)
    reused = np.zeros(len(order) + 1, np.bool_)
    np.logical_or.at(prepared, since[fresh], True)
    np.logical_or.at(reused, since[cached], True)
    site = autograd.site.take(order)
    engine = site.any_of("backward")
    ahead = site.any_of("forward", "recompute")
    return dispatches & (engine | (~ahead & autograd.active & reused[since] & ~prepared[since]))


def _match_combines(autograd: Autograd, order: Ints, combines: Bools, dispatches: Bools, backward: Bools) -> Bools:
    """Give each combine kernel the pass of the oldest open dispatch kernel, which it closes."""
    opened, closed = np.flatnonzero(dispatches), np.flatnonzero(combines)
    excess = np.maximum.accumulate(np.cumsum(combines.astype(np.int64) - dispatches.astype(np.int64)))
    early = np.maximum(excess, 0)[closed] if len(closed) else closed  # combines whose dispatch the window lacks
    place = np.arange(len(closed)) - early
    ok = (place >= 0) & (place < len(opened))
    out = backward.copy()
    matched = opened[np.where(ok, place, 0)] if len(opened) else np.zeros(len(closed), np.int64)
    out[closed] = np.where(ok & bool(len(opened)), backward[matched], False)
    site = autograd.site.take(order)
    out |= site.any_of("backward") & combines
    out &= ~(site.any_of("forward", "recompute") & combines)
    return out


def _next_main(is_main: Bools) -> Ints:
    n = len(is_main)
    place = np.minimum.accumulate(np.where(is_main, np.arange(n), n)[::-1])[::-1]
    return np.where(place < n, place, -1)


def _last_main(is_main: Bools) -> Ints:
    return np.maximum.accumulate(np.where(is_main, np.arange(len(is_main)), -1))


def _plain_exchanges(gpu: Gpu, launches: Launches, comm: Collectives, passes: Passes, marks: Marks) -> Exchanges:
    """All-to-alls take turns: the forward dispatches, then combines; the backward combines, then dispatches.

    A group that nobody describes counts as an expert group when its exchanges come in pairs, as many in the
    backward as in the forward.
    """
    rows = launches.ordered(comm.call.any_of("all_to_all"))
    none = CategoryColumn.constant(None, len(gpu))
    if not len(rows):
        return Exchanges(none, none)
    lane = rank_pairs(comm.group.codes[rows], gpu.int64("step")[rows])
    turn, direction = _take_turns(launches, passes, marks, rows, lane)
    ahead = np.bincount(lane, weights=direction == 0)[lane]
    every = np.bincount(lane, weights=direction != _AGAIN)[lane]
    paired = (ahead % 2 == 0) & ((every == 2 * ahead) | (every == ahead)) & (every >= 2)
    use = marks.expert[rows] | paired
    role, way = np.full(len(gpu), -1, np.int64), np.full(len(gpu), -1, np.int64)
    role[rows[use]], way[rows[use]] = turn[use], np.minimum(direction, 1)[use]
    return Exchanges(CategoryColumn(("dispatch", "combine"), role), CategoryColumn(("forward", "backward"), way))


def _take_turns(launches: Launches, passes: Passes, marks: Marks, rows: Ints, lane: Ints) -> tuple[Ints, Ints]:
    """Walk the exchanges in launch order: role (0 dispatch, 1 combine) and pass of each.

    Passes are 0 forward, 1 backward, and 2 for the forward run again inside the backward, in the forward's order.
    """

    def coded(values: CategoryColumn) -> Ints:
        return np.array([*({"forward": 0, "backward": 1}.get(v, -1) for v in values.values), -1], np.int64)[
            values.codes
        ]

    def count(mask: Bools) -> Ints:
        """How many launches of *mask* came before each exchange."""
        return np.searchsorted(np.sort(launches.at[np.flatnonzero(mask & (launches.at >= 0))]), launches.at[rows])

    compute = coded(passes.compute)
    compute = np.where((compute >= 0) & passes.again, _AGAIN, compute)
    engine = np.where(passes.again[rows], _AGAIN, coded(passes.engine)[rows])
    known = np.flatnonzero((compute >= 0) & (launches.at >= 0))
    maker = coded(passes.maker)[rows]
    fresh = np.searchsorted(np.sort(launches.at[known]), launches.at[rows])
    products = np.stack([count(marks.product & (compute == way)) for way in range(3)])
    attention = np.stack([count(marks.attention & (compute == way)) for way in range(3)])
    if not products[:, -1].any():  # no product is recognised in this trace: every exchange changes turns
        products = np.tile(np.arange(1, len(rows) + 1), (3, 1))
    lanes = int(lane.max()) + 1
    turn, direction = walk_exchanges(lane, lanes, engine, maker, coded(passes.user)[rows], fresh, products, attention)
    return turn, direction
