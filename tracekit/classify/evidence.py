"""Evidence per GPU event, the input of the classification rules.

``gather_evidence`` reads the host ranges, then adds one kind of evidence after the other:
communication, autograd, matrix products, direction of the work, copies, process groups and
exchanges with experts. Each becomes a column that rules can test (``rules.COLUMNS``).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from tracekit._util.arrays import Bools, Ints
from tracekit._util.categories import CategoryColumn
from tracekit.classify.autograd import Autograd, read_autograd
from tracekit.classify.collectives import Collectives, group_columns, group_shapes, read_collectives
from tracekit.classify.communication_passes import LayerMarks, find_comm_passes, read_exchanges
from tracekit.classify.copies import read_copies
from tracekit.classify.host_ranges import GpuEvents, Launches, Ranges, read_ranges
from tracekit.classify.matmul import Matmuls, read_matmuls, turns_and_halves
from tracekit.classify.model_position import Positions, find_positions
from tracekit.classify.names import KERNELS, RANGES
from tracekit.classify.pass_direction import read_directions, read_engine_threads, read_gradients
from tracekit.classify.recomputed_forward import mark_recomputed
from tracekit.classify.row_order import mask_of_rows, nearest_rows
from tracekit.classify.rules import Column, NamedKind, match_kinds

_MIN_UPLOAD_BYTES = 1 << 20
"""Bytes from which a copy to the device may hold weights; a batch of tokens has fewer."""


@dataclass(frozen=True, eq=False, repr=False)
class EventEvidence:
    """Columns of evidence, one row per GPU event in order of start, and what they were read from."""

    gpu: GpuEvents
    columns: dict[str, Column]
    ranges: Ranges
    launches: Launches
    autograd: Autograd
    collectives: Collectives
    positions: Positions

    def __len__(self) -> int:
        return len(self.gpu)

    @property
    def is_fed_from_both_ends(self) -> bool:
        """Whether forward work arrives over the pipeline from more than one rank."""
        arrives = self.text("comm_pass").any_of("forward") & self.text("call").any_of("recv")
        return len(np.unique(self.collectives.peer[arrives & (self.collectives.peer >= 0)])) > 1

    def text(self, column: str) -> CategoryColumn:
        """Return one of the text columns."""
        values = self.columns[column]
        assert isinstance(values, CategoryColumn)
        return values

    def row_values(self, row: int) -> dict[str, str | int | bool]:
        """Return the evidence of one event by column, without unknown values."""
        values: dict[str, str | int | bool] = {}
        for name, column in self.columns.items():
            value: str | int | bool | None
            value = column.value(row) if isinstance(column, CategoryColumn) else column[row].item()
            if value is not None and value != -1:
                values[name] = value
        return values


def gather_evidence(events: pl.DataFrame, group_kinds: Sequence[NamedKind] = ()) -> EventEvidence:
    """Gather the evidence for every GPU event of one rank.

    Compute has a direction, which is forward, backward, wgrad, recompute or optimizer.
    Communication has a pass, which is forward or backward: that of the work it serves.

    Args:
        events: All events of the rank.
        group_kinds: Rules that find the kind of a process group by its description.

    Returns:
        A column for each name of ``rules.COLUMNS``, with one row per GPU event in order of start.
    """
    # 1. Host ranges around each launch, and calls of communication libraries.
    gpu, ranges, launches = read_ranges(events)
    comm = read_collectives(gpu, ranges, launches)
    communicates = comm.library.present
    # 2. Autograd: its nodes, then the forward work that they run again (with the matrix products of
    # torch.compile's graphs, which are one node each). Without recorded operators the threads of
    # its engine tell instead.
    autograd, compiled_products = mark_recomputed(ranges, launches, read_autograd(ranges, launches))
    autograd = read_engine_threads(gpu, launches, autograd, communicates=communicates)
    # 3. Direction of compute, to which the roles of matrix products lead, and pass of
    # communication.
    matmuls = read_matmuls(gpu, ranges, launches, autograd, compiled_products)
    directions = read_directions(
        gpu, ranges, launches, autograd, matmuls, communicates=communicates
    )
    comm_passes = find_comm_passes(gpu, launches, autograd, comm, directions)
    in_backward = directions.value.any_of("backward", "wgrad", "recompute")
    in_training = in_backward | directions.value.any_of("optimizer")
    # If gradients of weights run outside the engine, what the engine runs is for the inputs. An
    # event whose launch is lost may have run anywhere.
    is_wgrad = matmuls.role.any_of("wgrad") | directions.value.any_of("wgrad")
    is_deferred = bool((is_wgrad & ~autograd.site.present & (launches.start_ns >= 0)).any())
    turn, half = turns_and_halves(matmuls.whole, autograd.node_row, launches.start_ns)
    # A parameter's gradient is accumulated right after; a reshaping node between may be of another
    # branch.
    feeds_parameter = autograd.followed_by(r"^AccumulateGrad$")[autograd.node_row]
    # 4. Position in the model: work of the backward is looked up through the forward work it
    # belongs to.
    is_forward = directions.value.any_of("forward") & gpu.is_kernel
    by_engine = in_backward | comm_passes.value.any_of("backward")
    positions = find_positions(
        events, gpu, launches, autograd, is_forward=is_forward, by_engine=by_engine
    )
    copies = read_copies(gpu, ranges, launches, comm, in_backward=autograd.node_row >= 0)
    columns: dict[str, Column] = {
        "modules": positions.path,
        **_launch_columns(gpu, ranges, launches),
        "class": _event_classes(gpu, communicates),
        "node": autograd.node,
        "fwd_op": autograd.fwd_op,
        "site": autograd.site,
        "feeds": CategoryColumn.choose(len(gpu), [("parameter", feeds_parameter)]),
        "gemm": matmuls.is_gemm,
        "role": matmuls.role,
        "role_from": matmuls.evidence,
        "after_role": matmuls.after,
        "visit": _second_visits(launches, autograd, matmuls, communicates),
        "gemm_turn": turn,
        "gemm_half": half,
        "gemm_share": matmuls.ratio,
        "deferred": np.full(len(gpu), is_deferred),
        "gradient": read_gradients(gpu, launches, autograd, matmuls),
        "direction": directions.value,
        "direction_from": directions.evidence,
        "library": comm.library,
        "call": comm.call,
        "group": comm.group,
        "group_desc": comm.group_desc,
        "group_ranks": comm.group_ranks,
        "group_shape": group_shapes(comm.group_ranks),
        "comm_pass": comm_passes.value,
        **copies,
        "peer": comm.peer,
        # Whether the rank trains: it has a backward or an optimizer. The same for all events.
        "trained": np.full(len(gpu), autograd.active or in_training.any()),
    }
    # 5. Kinds of process groups, found by rules on the columns above. The remaining evidence needs
    # them.
    kinds = match_kinds(columns, group_kinds, np.flatnonzero(communicates), len(gpu))
    columns |= group_columns(
        gpu, launches, autograd, comm, passes=comm_passes.value, described=kinds
    )
    is_attention = gpu.names.matches(KERNELS["attention"]) | launches.chain.matches(
        KERNELS["attention"]
    )
    # "activations" for communication of a differentiable operator, or of its node; "uploads" for a
    # broadcast of weights that were copied to the device for it.
    moves_activations = _in_differentiable_op(autograd, communicates)
    is_upload = copies["copy"].any_of("h2d") & (gpu.int64("bytes") >= _MIN_UPLOAD_BYTES)
    sends_uploads = _follows_upload(
        launches, comm.call.any_of("broadcast"), is_upload, matmuls.is_gemm
    )
    columns["moves"] = CategoryColumn.choose(
        len(gpu), [("activations", moves_activations), ("uploads", sends_uploads)]
    )
    # "attention" for communication of attention itself: a ring of keys and values, gathered ones,
    # or heads exchanged for positions.
    next_to = _next_to_attention(
        gpu, launches, comm, is_attention, matmuls.is_gemm, moves_activations
    )
    columns["next_to"] = next_to
    # 6. Exchanges of tokens with experts, and what is launched around them.
    marks = LayerMarks(is_attention, matmuls.is_gemm, kinds.any_of("ep"), next_to.present)
    exchange, exchange_pass = read_exchanges(
        gpu, launches, autograd, comm, passes=comm_passes, marks=marks
    )
    columns |= {
        "exchange": exchange,
        "exchange_pass": exchange_pass,
        # Role of the exchange that a communication prepares, as the exchange of token counts before
        # a dispatch does.
        "leads_to": _next_exchange_roles(launches, comm, exchange),
        # Pass of the next exchange on the event's stream.
        "stream_pass": _next_passes_on_stream(gpu, exchange_pass),
        # Label of communication of the same group, for a second round of rules
        # (``find_shared_labels``).
        "shared_label": CategoryColumn.constant(None, len(gpu)),
    }
    return EventEvidence(gpu, columns, ranges, launches, autograd, comm, positions)


def _launch_columns(gpu: GpuEvents, ranges: Ranges, launches: Launches) -> dict[str, Column]:
    """Return the evidence that is read from the event and from its launch."""
    is_wgrad_name = ranges.name.answers(RANGES["weight_gradient"])
    has_wgrad_annotations = bool((ranges.name.look_up(is_wgrad_name) & ~ranges.is_op).any())
    return {
        "kind": gpu.text("kind"),
        "name": gpu.names,
        "op": launches.op_name,
        "chain": launches.chain,
        "annotation": launches.annotation_name,
        "annotations": launches.annotations,
        "domain": ranges.text("domain", launches.annotation),
        "bytes": gpu.int64("bytes"),
        "stream": gpu.int64("stream"),
        "graph": gpu.int64("graph"),
        "launched": launches.start_ns >= 0,
        "wgrad_annotated": np.full(len(gpu), has_wgrad_annotations),
    }


def _event_classes(gpu: GpuEvents, communicates: Bools) -> CategoryColumn:
    """Return whether each event is communication, a copy or compute."""
    is_copy = gpu.text("kind").any_of("memcpy", "memset") | gpu.names.matches(KERNELS["copy"])
    return CategoryColumn.choose(
        len(gpu),
        [
            ("communication", communicates),
            ("copy", is_copy),
            ("compute", np.ones(len(gpu), np.bool_)),
        ],
    )


def _in_differentiable_op(autograd: Autograd, communicates: Bools) -> Bools:
    """Return the communication inside an operator that made a node, and inside that node: what it moves is no weight.

    A node that only holds a hook's communication has a forward without any.
    """
    in_forward = communicates & autograd.site.any_of("forward") & (autograd.sequence >= 0)
    has_partner = np.isin(autograd.sequence, np.unique(autograd.sequence[in_forward])) & (
        autograd.node_row >= 0
    )
    return in_forward | (communicates & has_partner)


def _follows_upload(
    launches: Launches, is_broadcast: Bools, is_upload: Bools, is_product: Bools
) -> Bools:
    """Return the broadcasts before which large data was copied to the device, since the last matrix product.

    A weight update copies weights and broadcasts them. An optimizer that broadcasts what it updated
    copies nothing; the next batch is copied after that.
    """
    order = launches.ordered(is_broadcast | is_upload | is_product)
    stretch = np.cumsum(is_product[order])
    uploads = np.cumsum(is_upload[order])
    first = np.searchsorted(stretch, stretch)  # the launch with which each one's stretch begins
    has_upload = uploads > uploads[first] - is_upload[order][first]
    return mask_of_rows(len(is_broadcast), order, is_broadcast[order] & has_upload)


def _next_to_attention(  # noqa: PLR0917 - masks of the same events
    gpu: GpuEvents,
    launches: Launches,
    comm: Collectives,
    is_attention: Bools,
    is_gemm: Bools,
    moves_activations: Bools,
) -> CategoryColumn:
    """Return ``attention`` for communication that is next to attention with no product between, on certain groups.

    Those are groups on which keys and values go round a ring, between two attention kernels, and
    groups whose all-to-alls come both right before and right after attention, as where heads are
    exchanged for positions. Exchanges with experts have products on both sides: projections, the
    router, the experts themselves. Communication whose group is not recorded counts as a group of
    its stream. On any group, activations that are gathered right before attention (and scattered
    again in the backward) are keys and values: tensor parallelism gathers before the projections.
    """
    communicates = comm.library.present
    is_attention = is_attention & ~communicates & ~is_gemm
    # From here on: one row per event, by thread and launch.
    order = launches.by_thread(launches.ordered(communicates | is_attention | is_gemm))
    thread = launches.thread[order]
    previous_work, next_work = nearest_rows((is_attention | is_gemm)[order])

    def is_beside_attention(neighbour: Ints) -> Bools:
        """Return which rows communicate and have attention of their thread as *neighbour* (-1: none)."""
        neighbour_is_attention = np.append(is_attention[order], False)[neighbour]
        neighbour_thread = np.append(thread, -1)[neighbour]
        is_beside: Bools = (
            communicates[order] & neighbour_is_attention & (neighbour_thread == thread)
        )
        return is_beside

    follows = is_beside_attention(previous_work)
    precedes = is_beside_attention(next_work)
    group = np.where(
        comm.group.present, comm.group.codes, len(comm.group.values) + gpu.stream_number
    )[order]

    def has_any(mask: Bools) -> Bools:
        """Return whether *mask* holds for any communication of the same group."""
        return (np.bincount(group[mask], minlength=int(group.max(initial=-1)) + 1) > 0)[group]

    is_all_to_all = comm.call.any_of("all_to_all")[order]
    is_between = follows & precedes
    group_exchanges_after = has_any(follows & ~precedes & is_all_to_all)
    group_exchanges_before = has_any(precedes & ~follows & is_all_to_all)
    is_gathered = moves_activations[order] & comm.call.any_of("all_gather", "reduce_scatter")[order]
    is_attentions_own = (
        has_any(is_between) | (group_exchanges_after & group_exchanges_before) | is_gathered
    )
    is_marked = is_between | ((follows | precedes) & is_attentions_own)
    return CategoryColumn.choose(len(order), [("attention", is_marked)]).spread(
        order, len(communicates)
    )


def _next_exchange_roles(
    launches: Launches, comm: Collectives, role: CategoryColumn
) -> CategoryColumn:
    """Return for communication the role of the next communication, if that is on a group of the same ranks."""
    rows = launches.ordered(comm.library.present)
    current = rows[:-1]
    following = rows[1:]
    ranks = comm.group_ranks.codes
    same_ranks = (ranks[following] == ranks[current]) & (ranks[following] >= 0)
    return role.take(np.where(same_ranks, following, -1)).spread(current, len(role))


def _next_passes_on_stream(gpu: GpuEvents, exchange_pass: CategoryColumn) -> CategoryColumn:
    """Return the pass of the next exchange on each event's stream: work before an exchange prepares it."""
    if not exchange_pass.present.any():
        return exchange_pass
    code = pl.when(pl.col("code") >= 0).then("code").backward_fill().over("stream").fill_null(-1)
    exchanges = pl.DataFrame({"code": exchange_pass.codes, "stream": gpu.stream_number})
    return CategoryColumn(exchange_pass.values, exchanges.select(code)["code"].to_numpy())


def _second_visits(
    launches: Launches, autograd: Autograd, matmuls: Matmuls, communicates: Bools
) -> CategoryColumn:
    """Return ``second`` for work of nodes that run a second time for the weights, ``beside`` for launches next to it.

    Products must show that the second run is for the weights: a graph that is kept and run through
    twice does not count.
    """
    size = len(launches.start_ns)
    node = autograd.node_row
    in_node = node >= 0
    is_second = autograd.ran_before[node]
    has_one_product = (
        np.bincount(node[matmuls.is_gemm & in_node], minlength=len(autograd.node_of)) == 1
    )
    computes_wgrad = (
        is_second & matmuls.role.any_of("wgrad") & np.append(has_one_product, False)[node]
    )
    if not computes_wgrad.any():
        return CategoryColumn.constant(None, size)
    # A stretch of the program's own launches ends at autograd's work and at communication. It is
    # beside the second run if that is at one of its ends.
    order = launches.order
    ends_stretch = (autograd.site.present | communicates)[order]
    second = np.append(is_second[order], False)
    before, after = nearest_rows(ends_stretch)
    is_end = second[before] | second[after]
    beside = mask_of_rows(size, order, ~ends_stretch & is_end)
    return CategoryColumn.choose(size, [("second", is_second), ("beside", beside)])
