"""Expert parallelism: dispatch or combine, and the pass, of every exchange of tokens.

Role and kernel differ: the backward of combine runs a dispatch kernel, and the backward of dispatch runs a combine
kernel. Plain all-to-alls have no role in their name; in a layer the forward dispatches, then combines, and the backward
does the reverse.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from tracekit._util.arrays import Bools, Ints, rank_pairs
from tracekit._util.categories import CategoryColumn
from tracekit.classify.autograd import Autograd
from tracekit.classify.collectives import Collectives, function_name
from tracekit.classify.communication_passes import PASSES, CommPasses
from tracekit.classify.host_ranges import GpuEvents, Launches
from tracekit.classify.row_order import codes_in, nearest_at_or_after, nearest_at_or_before

ROLES = ("dispatch", "combine")
_HELPER_KERNELS = (
    r"(?i)notify|layout|cached|barrier|clean_low_latency|encode|prologue|planning|prepare|preprocess|sanitize|\bscan"
)
"""Kernels that prepare the exchange after them."""
_EPILOGUE_KERNELS = r"(?i)epilogue"
"""Kernels that finish the exchange before them."""
_NEW_LAYOUT = r"(?i)(?<!cached_)notify_dispatch|dispatch_layout"
_CACHED_LAYOUT = r"(?i)cached_notify"
_REUSES_LAYOUT = r"(?<!_)dispatch_impl<[^,]*,[^,]*,[^,]*, (true|\(bool\)1)|hybrid_dispatch_impl<[^,]*, (true|\(bool\)1)"
"""DeepEP's second version has a template argument for whether a dispatch re-uses a layout."""
_FORWARD, _BACKWARD, _RECOMPUTE = range(3)
"""Passes of exchanges. Recompute is the forward that runs again inside the backward, in the order of the forward."""


class Exchanges(NamedTuple):
    """For every GPU event that exchanges tokens with experts: its role in the model and its pass."""

    role: CategoryColumn  # "dispatch" or "combine"
    comm_pass: CategoryColumn  # "forward" or "backward"


class LayerMarks(NamedTuple):
    """Masks of the events that tell the parts of a layer apart."""

    attention: Bools
    product: Bools
    on_expert_group: Bools  # communication on a group that is known to be an expert group


def read_exchanges(
    gpu: GpuEvents, launches: Launches, autograd: Autograd, comm: Collectives, *, passes: CommPasses, marks: LayerMarks
) -> Exchanges:
    """Find the roles of DeepEP-like kernels, and of all-to-alls on groups that are or behave like expert groups."""
    named = _named_exchanges(gpu, launches, autograd, comm)
    plain = _plain_exchanges(gpu, launches, comm, passes, marks)
    return Exchanges(named.role.fill(plain.role), named.comm_pass.fill(plain.comm_pass))


def _named_exchanges(gpu: GpuEvents, launches: Launches, autograd: Autograd, comm: Collectives) -> Exchanges:
    """Find the exchanges whose kernels are named dispatch or combine, with their helper kernels."""
    names, none = gpu.names, CategoryColumn.constant(None, len(gpu))
    is_exchange = comm.library.any_of("deepep", "nvshmem", "custom")
    if not is_exchange.any():
        return Exchanges(none, none)
    kernel_role = names.replace([_role_in_name(name) for name in names.values]).where(is_exchange)
    function = names.replace([function_name(name) for name in names.values])
    is_helper = is_exchange & function.matches(_HELPER_KERNELS)
    is_epilogue = is_exchange & function.matches(_EPILOGUE_KERNELS)
    is_main = kernel_role.present & ~is_helper & ~is_epilogue

    # From here on: rows are exchange kernels in launch order, or by start where the launch is lost.
    time = np.where(launches.start_ns >= 0, launches.start_ns, gpu.int64("start_ns"))
    order = np.lexsort((np.arange(len(gpu)), time))
    order = order[(is_main | is_helper | is_epilogue)[order]]
    if not len(order):
        return Exchanges(none, none)
    is_main = is_main[order]
    combines = kernel_role.any_of("combine")[order] & is_main
    dispatches = is_main & ~combines
    site = autograd.site.take(order)
    reuses_layout = _dispatches_with_old_layout(names.take(order), is_main) & autograd.active
    backward = dispatches & (site.any_of("backward") | (~site.any_of("forward", "recompute") & reuses_layout))
    backward |= _combines_of_backward(site, combines, dispatches, backward)

    # A combine kernel that runs backward is dispatch, and the reverse. Forward work that runs again keeps its roles.
    is_recompute = site.any_of("recompute")
    role = np.where(combines != (backward & ~is_recompute), ROLES.index("combine"), ROLES.index("dispatch"))
    direction = (backward | is_recompute).astype(np.int64)  # index in PASSES
    # Helpers have the role of the main kernel after them, epilogues that of the one before.
    main = np.where(is_epilogue[order], nearest_at_or_before(is_main), nearest_at_or_after(is_main))
    rows, main = order[main >= 0], main[main >= 0]
    return Exchanges(
        CategoryColumn(ROLES, role[main]).spread(rows, len(gpu)),
        CategoryColumn(PASSES, direction[main]).spread(rows, len(gpu)),
    )


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
    main_number: Ints = np.cumsum(is_main) - is_main  # number of the main kernel that each row serves
    reuses = names.matches(_CACHED_LAYOUT) | names.matches(_REUSES_LAYOUT)
    has_new, has_old = (
        np.bincount(main_number, weights=mask)[main_number] > 0 for mask in (names.matches(_NEW_LAYOUT), reuses)
    )
    return has_old & ~has_new


def _combines_of_backward(site: CategoryColumn, combines: Bools, dispatches: Bools, backward: Bools) -> Bools:
    """Return which combine kernels run backward: as autograd tells, else as the oldest open dispatch.

    The combine closes that dispatch.
    """
    opening, closing = np.flatnonzero(dispatches), np.flatnonzero(combines)
    # The k-th combine closes the k-th dispatch, less the combines whose dispatch is before the window.
    surplus = np.maximum.accumulate(np.cumsum(combines.astype(np.int64) - dispatches.astype(np.int64)))
    index = np.arange(len(closing)) - np.maximum(surplus, 0)[closing]
    is_matched = (index >= 0) & (index < len(opening))
    is_backward = np.zeros(len(combines), np.bool_)
    is_backward[closing[is_matched]] = backward[opening[index[is_matched]]]
    is_backward |= site.any_of("backward") & combines
    return is_backward & ~site.any_of("forward", "recompute")


def _plain_exchanges(
    gpu: GpuEvents, launches: Launches, comm: Collectives, passes: CommPasses, marks: LayerMarks
) -> Exchanges:
    """Find the roles of all-to-alls by turns: the forward dispatches, then combines; the backward does the reverse.

    A group without a description counts as an expert group if its exchanges come in pairs, as many in the backward as
    in the forward, or none in the backward.
    """
    rows = launches.ordered(comm.call.any_of("all_to_all"))
    if not len(rows):
        none = CategoryColumn.constant(None, len(gpu))
        return Exchanges(none, none)
    lane = rank_pairs(comm.group.codes[rows], gpu.int64("step")[rows])  # one group in one step
    role, direction = _assign_turns(launches, passes, marks, rows, lane)
    forward_count = np.bincount(lane, weights=direction == _FORWARD)[lane]
    count = np.bincount(lane, weights=direction != _RECOMPUTE)[lane]
    is_balanced = (count == 2 * forward_count) | (count == forward_count)
    is_paired = (forward_count % 2 == 0) & is_balanced & (count >= 2)
    use = marks.on_expert_group[rows] | is_paired
    pass_code = np.minimum(direction, _BACKWARD)[use]  # what runs again does so in the backward
    return Exchanges(
        CategoryColumn(ROLES, role[use]).spread(rows[use], len(gpu)),
        CategoryColumn(PASSES, pass_code).spread(rows[use], len(gpu)),
    )


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
    attention = np.stack([count_before(marks.attention & (compute == value)) for value in each_pass])
    if not products[:, -1].any():  # no product is recognised in this trace: roles alternate with every exchange
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
    *, lane: Ints, engine: Ints, producer: Ints, consumer: Ints, compute: Ints, products: Ints, attention: Ints
) -> tuple[Ints, Ints]:
    """Walk exchanges in launch order and pair them within each lane and pass.

    An exchange opens a pair if it is the first of its lane and pass, or if attention ran since the last one. Otherwise
    it changes turns if a product ran since the last one: the experts' products run between dispatch and combine.

    Args:
        lane: Number of each exchange's group and step.
        engine: Pass of each exchange as autograd tells; -1 where unknown, as in the next two.
        producer: Pass of the last compute before it. It counts only if compute ran since the lane's last exchange.
        consumer: Pass of the first compute after the host waited for it.
        compute: How much compute was launched before it.
        products: For each pass (row): how many products were launched before each exchange.
        attention: The same for attention.

    Returns:
        The role (index in ``ROLES``) and the pass of each exchange.
    """
    lanes, passes = int(lane.max(initial=-1)) + 1, len(products)
    last_compute = np.full(lanes, -1)
    # For each lane and pass: counts at the last exchange, whether there was one, and whether a pair is open.
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
        last_products[state], last_attention[state] = products[own_pass, i], attention[own_pass, i]
        direction[i] = own_pass
        # The exchange that opens a pair is dispatch in the forward and combine in the backward.
        role[i] = is_open[state] if own_pass == _BACKWARD else not is_open[state]
    return role, direction
