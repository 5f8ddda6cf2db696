"""Pass of communication kernels, forward or backward, and role of exchanges with experts, dispatch or combine.

The autograd engine tells for what runs inside it. Elsewhere a send passes on what was computed
before it, and a receive serves what is computed after the host waited for it. Where a forward and a
backward ran side by side since the last message, both results are to be sent: the peer tells them
apart if the two kinds go to different ranks, else the result that was computed first is sent first.

Role and kernel of an exchange differ: the backward of combine runs a dispatch kernel, and the
backward of dispatch runs a combine kernel. Plain all-to-alls have no role in their name; in a layer
the forward dispatches, then combines, and the backward does the reverse.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracekit._util.arrays import Bools, Ints, rank_pairs
from tracekit._util.categories import CategoryColumn, group_by_values
from tracekit.classify.autograd import Autograd
from tracekit.classify.collectives import MAX_FLAG_BYTES, Collectives, function_name
from tracekit.classify.host_ranges import GpuEvents, Launches, Ranges
from tracekit.classify.names import KERNELS
from tracekit.classify.row_order import FirstEvidence, codes_in, nearest_rows

PASSES = ("forward", "backward")
_MAX_OPEN_CALLS = 8
"""Calls that may be open on a group at once for its k-th wait to be taken as the wait for its k-th
call."""
_MIN_MESSAGES_PER_EXCEPTION = 4
"""A peer is sent one kind of result if at most one message in so many is of the other kind."""
_PASS_OF_DIRECTION = {"wgrad": "backward", "recompute": "backward", "optimizer": None}


class CommPasses(NamedTuple):
    """Evidence for the pass of each communication kernel, and the pass of compute."""

    value: CategoryColumn  # pass of each communication kernel
    engine: CategoryColumn  # as the autograd engine tells
    producer: CategoryColumn  # pass of the last compute launched before it
    consumer: CategoryColumn  # pass of the first compute launched after the host waited for it
    compute: CategoryColumn  # of compute: its pass, where that is known without its neighbours
    is_recompute: Bools  # of any event: it runs forward work again inside the backward


def find_comm_passes(
    gpu: GpuEvents,
    launches: Launches,
    autograd: Autograd,
    comm: Collectives,
    directions: FirstEvidence,
) -> CommPasses:
    """Find the pass of every communication kernel."""
    size = len(gpu)
    launch = launches.start_ns
    communicates = comm.library.present
    site = autograd.site
    direction = directions.value
    engine = site.replace([_PASS_OF_DIRECTION.get(value, value) for value in site.values]).where(
        communicates
    )
    reliable = direction.where(
        directions.evidence.any_of("autograd", "matmul", "name") & gpu.is_kernel
    )
    compute = reliable.replace([_PASS_OF_DIRECTION.get(value, value) for value in reliable.values])

    rows = np.flatnonzero(communicates)
    compute_rows = launches.ordered(compute.present)
    waits = host_wait_times(autograd.ranges, launches, comm)[rows]
    consumer = compute.take(_first_after(launch, compute_rows, waits)).spread(rows, size)
    producer = compute.take(_last_before(launch, compute_rows, launch[rows])).spread(rows, size)

    sendable = compute.where(~direction.any_of("wgrad"))  # gradients of weights are not sent on
    sent = sent_passes(launch, sendable, comm.call.any_of("send"), comm.peer)
    sent = sent.fill(producer.where(comm.call.any_of("all_reduce", "reduce_scatter", "reduce")))
    received = _received_passes(comm, sent).fill(
        consumer.where(comm.call.any_of("recv", "all_gather"))
    )
    forward_only = CategoryColumn.choose(
        size, [("forward", communicates & direction.any_of("forward"))]
    )
    value = engine.fill(sent).fill(received).fill(forward_only)
    is_recompute = direction.any_of("recompute") | site.any_of("recompute")
    return CommPasses(value, engine, producer, consumer, compute, is_recompute)


def _received_passes(comm: Collectives, sent: CategoryColumn) -> CategoryColumn:
    """Return the pass of receives: a peer that is sent forward work alone returns gradients, and the reverse.

    Two ranks that hold several stages each may send each other both. Then a receive is left open.
    """
    has_peer = comm.peer >= 0
    is_send = comm.call.any_of("send") & has_peer
    is_receive = comm.call.any_of("recv") & has_peer
    peer = np.maximum(comm.peer, 0)

    def peer_is_sent(value: str) -> Bools:
        """Return for every event whether its peer is sent work of this pass."""
        receivers = comm.peer[is_send & sent.any_of(value)]
        return (np.bincount(receivers, minlength=int(peer.max(initial=0)) + 1) > 0)[peer]

    forward, backward = (peer_is_sent(value) for value in PASSES)
    return CategoryColumn.choose(
        len(peer),
        [
            ("backward", is_receive & forward & ~backward),
            ("forward", is_receive & backward & ~forward),
        ],
    )


def host_wait_times(ranges: Ranges, launches: Launches, comm: Collectives) -> Ints:
    """Return when the host waited for each kernel: the k-th wait on a group is for its k-th call; -1 where unknown."""
    wait_of = np.full(len(launches.start_ns), -1, np.int64)
    waits = ranges.collective_rows("wait")
    rows = launches.ordered(comm.library.present)
    waits = waits[np.argsort(ranges.start(waits), kind="stable")]
    groups = group_by_values(np.arange(len(waits)), ranges.text("group", waits))
    waits_of_group = {group: waits[indices] for group, indices in groups}
    for group, calls in group_by_values(rows, comm.group):
        launch = launches.start_ns[calls]
        wait = ranges.start(waits_of_group.get(group, waits[:0]))
        # With fewer waits than calls, or many calls open at once, waits do not follow the order of
        # calls.
        if len(launch) != len(wait) or _max_open_calls(launch, wait) > _MAX_OPEN_CALLS:
            continue
        is_after = wait >= launch
        wait_of[calls[is_after]] = wait[is_after]
    return wait_of


def _max_open_calls(launch: Ints, wait: Ints) -> int:
    """Return how many calls were open at most at a wait.

    Above the limit if every wait comes before any call.
    """
    last_call = np.searchsorted(launch, wait, side="right") - 1
    open_calls = (last_call - np.arange(len(wait)))[last_call >= 0]
    return int(open_calls.max()) if len(open_calls) else _MAX_OPEN_CALLS + 1


def _first_after(time: Ints, rows: Ints, moments: Ints) -> Ints:
    """Return the first of *rows*, which are in order of *time*, after each moment.

    -1 where none or no moment.
    """
    return np.where(
        moments >= 0, np.append(rows, -1)[np.searchsorted(time[rows], moments, side="right")], -1
    )


def _last_before(time: Ints, rows: Ints, moments: Ints) -> Ints:
    """Return the last of *rows*, which are in order of *time*, before each moment.

    -1 where none or no moment.
    """
    return np.where(
        moments >= 0, np.append(-1, rows)[np.searchsorted(time[rows], moments, side="left")], -1
    )


def sent_passes(time: Ints, computed: CategoryColumn, is_send: Bools, peer: Ints) -> CategoryColumn:
    """Return the pass of what every send carries; null for other rows.

    Labels come before the chunks that ``reconstruct.messages.batch_sends`` finds what a send
    carries by: here the pass of the kernels launched before it is all there is.

    Args:
        time: Launch time of each event; -1 where unknown.
        computed: Pass of the compute whose result may be sent, so none of gradients of weights.
        is_send: Mask of sends.
        peer: Rank that each send goes to; -1 where unknown.

    >>> time, computed = np.array([1, 2, 3, 4]), CategoryColumn(PASSES, np.array([0, 1, -1, -1]))
    >>> is_send, peer = np.array([False, False, True, True]), np.array([-1, -1, 2, 2])
    >>> sent_passes(time, computed, is_send, peer).strings()
    [None, None, 'forward', 'backward']
    """
    order = np.argsort(time, kind="stable")
    order = order[time[order] >= 0]
    sends = order[is_send[order]]
    runs = _SendRuns.find(time, order, sends, codes_in(computed, PASSES))
    # A run after one pass alone carries that pass. If activations and gradients go to different
    # ranks, the peer tells; else, for a run after both passes, the order in which they computed.
    pure_pass = np.where(runs.is_pure, runs.later_pass, -1)[runs.run]
    by_peer = passes_by_peer(peer[sends], pure_pass)
    by_run = np.where(runs.is_mixed[runs.run], runs.passes_by_order(), pure_pass)
    sent = np.where(by_peer >= 0, by_peer, by_run)
    return CategoryColumn(PASSES, sent).spread(sends, len(time))


class _SendRuns(NamedTuple):
    """Runs of sends between which nothing was computed that could be sent."""

    run: Ints
    """Of each send: the number of its run."""
    position: Ints
    """Of each send: its position in the run."""
    length: Ints
    """Of each run: its number of sends."""
    is_pure: Bools
    """Of each run: whether one pass alone computed something since the run before."""
    is_mixed: Bools
    """Of each run: whether both passes did."""
    later_pass: Ints
    """Of each run: the pass, of those, whose last compute was launched later."""

    @classmethod
    def find(cls, time: Ints, order: Ints, sends: Ints, code: Ints) -> _SendRuns:
        """Divide the *sends*.

        *code* is the pass of each event as an index in ``PASSES``, *order* its launch order.
        """
        compute_times = [time[order[code[order] == index]] for index in range(len(PASSES))]
        # For each pass (row) and send (column): how much was computed before the send.
        computed_before = np.stack([np.searchsorted(times, time[sends]) for times in compute_times])
        begins_run = (np.diff(computed_before, axis=1, prepend=-1) > 0).any(axis=0)
        run = np.cumsum(begins_run) - 1
        first = np.flatnonzero(begins_run)
        # From here on: one column per run. Its last compute has the time -1 where there is none.
        computed_before = computed_before[:, first]
        is_new = np.diff(computed_before, axis=1, prepend=0) > 0
        last_computed = np.empty_like(computed_before)
        for index, times in enumerate(compute_times):
            last_computed[index] = np.append(times, -1)[computed_before[index] - 1]
        return cls(
            run=run,
            position=np.arange(len(sends)) - first[run],
            length=np.bincount(run),
            is_pure=is_new[_FORWARD] != is_new[_BACKWARD],
            is_mixed=is_new[_FORWARD] & is_new[_BACKWARD],
            later_pass=np.argmax(np.where(is_new, last_computed, -1), axis=0),
        )

    def passes_by_order(self) -> Ints:
        """Return the pass of each send if both passes computed something before its run.

        The run carries both results, in the order they were computed, if it has the messages of two
        results; and the later result if it has those of one. -1 if it has another number.
        """
        pure_lengths = self.length[self.is_pure]
        messages_per_result = int(np.bincount(pure_lengths).argmax()) if len(pure_lengths) else 1
        length = self.length[self.run]
        later = self.later_pass[self.run]
        earlier = 1 - later
        in_order = np.where(self.position < messages_per_result, earlier, later)
        carries_both = length == 2 * messages_per_result
        carries_one = length == messages_per_result
        return np.where(carries_both, in_order, np.where(carries_one, later, -1))


def passes_by_peer(peer: Ints, code: Ints) -> Ints:
    """Return the pass of what each peer is sent, if activations go to some ranks and gradients to others; else -1.

    A few exceptions do not count: a message may be sent only after the next result is computed.
    """
    usable = (peer >= 0) & (code >= 0)
    peers = int(peer.max(initial=-1)) + 1
    count = np.zeros((len(PASSES), peers), np.int64)  # messages by pass and peer
    np.add.at(count, (code[usable], peer[usable]), 1)
    pass_of_peer = np.where(count.any(axis=0), np.argmax(count, axis=0), -1)
    is_one_kind = _MIN_MESSAGES_PER_EXCEPTION * count.min(axis=0) <= count.max(axis=0)
    if not is_one_kind.all() or not {0, 1} <= set(pass_of_peer.tolist()):
        return np.full(len(peer), -1, np.int64)
    return np.where(peer >= 0, np.append(pass_of_peer, -1)[peer], -1)


ROLES = ("dispatch", "combine")
_FORWARD, _BACKWARD, _RECOMPUTE = range(3)
"""Passes of exchanges. Recompute is the forward that runs again inside the backward, in the order
of the forward."""


Exchanges = tuple[CategoryColumn, CategoryColumn]
"""For every GPU event that exchanges tokens with experts: its role ("dispatch" or "combine") and
its pass."""


class LayerMarks(NamedTuple):
    """Masks of the events that tell the parts of a layer apart."""

    attention: Bools
    product: Bools
    on_expert_group: Bools  # communication on a group that is known to be an expert group
    serves_attention: Bools  # communication of attention itself, which is no exchange with experts


def read_exchanges(
    gpu: GpuEvents,
    launches: Launches,
    autograd: Autograd,
    comm: Collectives,
    *,
    passes: CommPasses,
    marks: LayerMarks,
) -> Exchanges:
    """Find the roles of DeepEP-like kernels, and of all-to-alls on groups that are or behave like expert groups."""
    named_role, named_pass = _named_exchanges(gpu, launches, autograd, comm)
    plain_role, plain_pass = _plain_exchanges(gpu, launches, comm, passes, marks)
    return named_role.fill(plain_role), named_pass.fill(plain_pass)


def _named_exchanges(
    gpu: GpuEvents, launches: Launches, autograd: Autograd, comm: Collectives
) -> Exchanges:
    """Find the exchanges whose kernels are named dispatch or combine, with their helper kernels."""
    names = gpu.names
    is_exchange = comm.library.any_of("deepep", "nvshmem", "custom")
    kernel_role = names.replace([_role_in_name(name) for name in names.values]).where(is_exchange)
    function = names.replace([function_name(name) for name in names.values])
    is_helper = is_exchange & function.matches(KERNELS["exchange_helper"])
    is_epilogue = is_exchange & function.matches(KERNELS["exchange_epilogue"])
    is_main = kernel_role.present & ~is_helper & ~is_epilogue

    # From here on: rows are exchange kernels in launch order, or by start where the launch is lost.
    time = np.where(launches.start_ns >= 0, launches.start_ns, gpu.int64("start_ns"))
    order = np.lexsort((np.arange(len(gpu)), time))
    order = order[(is_main | is_helper | is_epilogue)[order]]
    is_main = is_main[order]
    combines = kernel_role.any_of("combine")[order] & is_main
    dispatches = is_main & ~combines
    site = autograd.site.take(order)
    reuses_layout = _dispatches_with_old_layout(names.take(order), is_main) & autograd.active
    backward = dispatches & (
        site.any_of("backward") | (~site.any_of("forward", "recompute") & reuses_layout)
    )
    backward |= _combines_of_backward(site, combines, dispatches, backward)

    # A combine kernel that runs backward is dispatch, and the reverse. Forward work that runs again
    # keeps its roles.
    is_recompute = site.any_of("recompute")
    role = np.where(
        combines != (backward & ~is_recompute), ROLES.index("combine"), ROLES.index("dispatch")
    )
    direction = (backward | is_recompute).astype(np.int64)  # index in PASSES
    # Helpers have the role of the main kernel after them, epilogues that of the one before.
    main = np.where(is_epilogue[order], *nearest_rows(is_main))
    rows = order[main >= 0]
    main = main[main >= 0]
    roles = CategoryColumn(ROLES, role[main])
    passes = CategoryColumn(PASSES, direction[main])
    return roles.spread(rows, len(gpu)), passes.spread(rows, len(gpu))


def _role_in_name(kernel: str) -> str | None:
    """Return the role in an exchange kernel's own name, not in its namespace or its arguments.

    >>> dispatch = "void mori::moe::EpDispatchIntraNodeKernel<T>(mori::moe::EpDispatchCombineArgs<T>)"
    >>> _role_in_name(dispatch), _role_in_name("barrier")
    ('dispatch', None)
    """
    match = re.search(r"(?i)dispatch|combine", function_name(kernel).rsplit("::", 1)[-1])
    return match[0].lower() if match else None


def _dispatches_with_old_layout(names: CategoryColumn, is_main: Bools) -> Bools:
    """Return which main kernels re-use a layout computed before, as those of a backward do.

    Helpers between two main kernels serve the second one.
    """
    # Number of the main kernel that each row serves.
    main_number: Ints = np.cumsum(is_main) - is_main
    has_new = (
        np.bincount(main_number, weights=names.matches(KERNELS["new_exchange_layout"]))[main_number]
        > 0
    )
    has_old = (
        np.bincount(main_number, weights=names.matches(KERNELS["old_exchange_layout"]))[main_number]
        > 0
    )
    return has_old & ~has_new


def _combines_of_backward(
    site: CategoryColumn, combines: Bools, dispatches: Bools, backward: Bools
) -> Bools:
    """Return which combine kernels run backward: as autograd tells, else as the oldest open dispatch.

    The combine closes that dispatch.
    """
    opening = np.flatnonzero(dispatches)
    closing = np.flatnonzero(combines)
    # The k-th combine closes the k-th dispatch, less the combines whose dispatch is before the
    # window.
    surplus = np.maximum.accumulate(
        np.cumsum(combines.astype(np.int64) - dispatches.astype(np.int64))
    )
    index = np.arange(len(closing)) - np.maximum(surplus, 0)[closing]
    is_matched = (index >= 0) & (index < len(opening))
    is_backward = np.zeros(len(combines), np.bool_)
    is_backward[closing[is_matched]] = backward[opening[index[is_matched]]]
    is_backward |= site.any_of("backward") & combines
    return is_backward & ~site.any_of("forward", "recompute")


def _plain_exchanges(
    gpu: GpuEvents, launches: Launches, comm: Collectives, passes: CommPasses, marks: LayerMarks
) -> Exchanges:
    """Find the roles of all-to-alls by turns: the forward dispatches, then combines.

    The backward does the reverse.

    A group without a description counts as an expert group if its exchanges of more than a few
    bytes (as counts of tokens are) come in pairs, as many in the backward as in the forward, or
    none in the backward.
    """
    exchanges_tokens = marks.on_expert_group | ~marks.serves_attention
    rows = launches.ordered(comm.call.any_of("all_to_all") & exchanges_tokens)
    if not len(rows):
        return CategoryColumn.constant(None, len(gpu)), CategoryColumn.constant(None, len(gpu))
    lane = rank_pairs(comm.group.codes[rows], gpu.int64("step")[rows])  # one group in one step
    role, direction = _assign_turns(launches, passes, marks, rows, lane)
    num_bytes = gpu.int64("bytes")[rows]
    may_move_tokens = (num_bytes < 0) | (num_bytes > MAX_FLAG_BYTES)
    forward_count = np.bincount(lane, weights=may_move_tokens & (direction == _FORWARD))[lane]
    count = np.bincount(lane, weights=may_move_tokens & (direction != _RECOMPUTE))[lane]
    is_balanced = (count == 2 * forward_count) | (count == forward_count)
    is_paired = (forward_count % 2 == 0) & is_balanced & (count >= 2)
    use = marks.on_expert_group[rows] | is_paired
    pass_code = np.minimum(direction, _BACKWARD)[use]  # what runs again does so in the backward
    roles = CategoryColumn(ROLES, role[use])
    exchange_passes = CategoryColumn(PASSES, pass_code)
    return roles.spread(rows[use], len(gpu)), exchange_passes.spread(rows[use], len(gpu))


def _assign_turns(
    launches: Launches, passes: CommPasses, marks: LayerMarks, rows: Ints, lane: Ints
) -> tuple[Ints, Ints]:
    """Return the role (index in ``ROLES``) and the pass (``_FORWARD`` and so on) of each exchange in *rows*."""
    launch = launches.start_ns

    def count_before(mask: Bools) -> Ints:
        """Return how many launches of *mask* came before each exchange."""
        return np.searchsorted(np.sort(launch[mask & (launch >= 0)]), launch[rows])

    compute = codes_in(passes.compute, PASSES)
    compute = np.where((compute >= 0) & passes.is_recompute, _RECOMPUTE, compute)
    engine = np.where(passes.is_recompute[rows], _RECOMPUTE, codes_in(passes.engine, PASSES)[rows])
    each_pass = (_FORWARD, _BACKWARD, _RECOMPUTE)
    products = np.stack([count_before(marks.product & (compute == value)) for value in each_pass])
    attention = np.stack(
        [count_before(marks.attention & (compute == value)) for value in each_pass]
    )
    # No product is recognised in this trace: roles alternate with every exchange.
    if not products[:, -1].any():
        products = np.tile(np.arange(1, len(rows) + 1), (len(each_pass), 1))
    return walk_exchanges(
        lane=lane,
        engine=engine,
        producer=codes_in(passes.producer, PASSES)[rows],
        consumer=codes_in(passes.consumer, PASSES)[rows],
        compute=count_before(compute >= 0),
        products=products,
        attention=attention,
    )


def walk_exchanges(
    *,
    lane: Ints,
    engine: Ints,
    producer: Ints,
    consumer: Ints,
    compute: Ints,
    products: Ints,
    attention: Ints,
) -> tuple[Ints, Ints]:
    """Walk exchanges in launch order and pair them within each lane and pass.

    An exchange opens a pair if it is the first of its lane and pass, or if attention ran since the
    last one. Otherwise it changes turns if a product ran since the last one: the experts' products
    run between dispatch and combine.

    Args:
        lane: Number of each exchange's group and step.
        engine: Pass of each exchange as autograd tells; -1 where unknown, as in the next two.
        producer: Pass of the last compute before it. It counts only if compute ran since the lane's
            last exchange.
        consumer: Pass of the first compute after the host waited for it.
        compute: How much compute was launched before it.
        products: For each pass (row): how many products were launched before each exchange.
        attention: The same for attention.

    Returns:
        The role (index in ``ROLES``) and the pass of each exchange.
    """
    lanes = int(lane.max(initial=-1)) + 1
    passes = len(products)
    last_compute = np.full(lanes, -1)
    # For each lane and pass: counts at the last exchange, whether there was one, and whether a pair
    # is open.
    last_products, last_attention = np.zeros((2, lanes, passes), np.int64)
    has_begun, is_open = np.zeros((2, lanes, passes), np.bool_)
    role, direction = np.zeros((2, len(lane)), np.int64)
    for i, own_lane in enumerate(lane):
        fresh_producer = producer[i] if compute[i] > last_compute[own_lane] else -1
        last_compute[own_lane] = compute[i]
        if engine[i] >= 0:
            own_pass = engine[i]
        elif fresh_producer in (consumer[i], -1) or consumer[i] < 0:
            own_pass = max(fresh_producer, consumer[i])  # they agree, or at most one is known
        else:  # they disagree: an exchange that closes an open pair of its producer's pass belongs to that
            own_pass = fresh_producer if is_open[own_lane, fresh_producer] else consumer[i]
        if own_pass < 0:
            own_pass = max(producer[i], _FORWARD)

        state = own_lane, own_pass
        if not has_begun[state] or attention[own_pass, i] > last_attention[state]:
            is_open[state] = True
        elif products[own_pass, i] > last_products[state]:
            is_open[state] = not is_open[state]
        has_begun[state] = True
        last_products[state] = products[own_pass, i]
        last_attention[state] = attention[own_pass, i]
        direction[i] = own_pass
        # The exchange that opens a pair is dispatch in the forward and combine in the backward.
        role[i] = is_open[state] if own_pass == _BACKWARD else not is_open[state]
    return role, direction
