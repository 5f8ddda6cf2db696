"""Direction of the work of every GPU event: forward, backward, wgrad, recompute or optimizer.

The autograd engine tells first, then the roles of matrix products, then names of operators,
annotations and kernels, and last the work that was launched around an event. Neighbours are taken
in launch order over all threads: that is the order of the program, while the order on the GPU mixes
streams. A stretch of launches ends at communication, where launching passes to or from the autograd
engine's threads, and with the replay of a graph.

PyTorch's autograd engine differentiates on threads of its own. In a profile of kernels and launches
alone, the thread that launches kernels named for a backward is told from the thread that runs the
forward and the optimizer. On such a thread a product whose result is added to a gradient right
after it is the gradient of a weight; attention differentiates with the same layouts and adds
nothing. Every micro-batch launches the same sequence, so products between the same kernels are
alike: the first micro-batch, whose gradients need no adding, follows the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from tracekit._util.arrays import AnyInts, Bools, Int32s, Ints
from tracekit._util.categories import CategoryColumn
from tracekit.classify.autograd import Autograd
from tracekit.classify.host_ranges import GpuEvents, Launches, Ranges
from tracekit.classify.matmul import MATMUL_KERNELS, Matmuls, roles_by_layout
from tracekit.classify.names import KERNELS, OPERATORS, RANGES
from tracekit.classify.product_shapes import leading_size
from tracekit.classify.row_order import (
    FirstEvidence,
    agreed_values,
    codes_in,
    mask_of_rows,
    nearest_rows,
)
from tracekit.schema import PATH_SEPARATOR

FORWARD, BACKWARD, WGRAD, RECOMPUTE, OPTIMIZER = range(5)
"""Codes of directions."""
IN_BACKWARD = np.array([False, True, True, True, False, False])
"""For each direction, and last for an unknown one: whether it belongs to the backward."""

Case = tuple[str, int, Bools]
"""Evidence, direction, and the mask of launches that have it."""


class Neighbours(NamedTuple):
    """For each row the values of the nearest known rows before and after it, and whether these are in its stretch."""

    before: AnyInts  # -1 where none
    after: AnyInts
    before_in_stretch: Bools
    after_in_stretch: Bools

    @classmethod
    def find(cls, value: AnyInts, is_known: Bools, stretch: AnyInts) -> Neighbours:
        """Look at the rows in *is_known*; a known row is its own neighbour on both sides."""
        before, after = nearest_rows(is_known)
        # The appended element is what -1 (no neighbour) selects.
        value = np.append(value, -1)
        stretch_of = np.append(stretch, -1)
        return cls(
            value[before], value[after], stretch_of[before] == stretch, stretch_of[after] == stretch
        )

    def where(self, mask: Bools, other: Neighbours) -> Neighbours:
        """Return these neighbours in *mask* and those of *other* elsewhere."""
        return Neighbours(
            *(np.where(mask, own, theirs) for own, theirs in zip(self, other, strict=True))
        )


def directions_by_neighbours(
    value: Ints,
    gpu: GpuEvents,
    ranges: Ranges,
    launches: Launches,
    autograd: Autograd,
    *,
    communicates: Bools,
) -> Iterator[Case]:
    """Yield directions that events share with their neighbours.

    The first that holds for an event counts.

    What stands between two kinds of work is neither, and neighbours tell nothing on a stream
    without a known direction.

    Args:
        value: Direction code of each GPU event; -1 where unknown. Read before the first case is
            yielded.
        gpu: GPU events.
        ranges: Host ranges.
        launches: Launch of each GPU event.
        autograd: Nodes among the ranges.
        communicates: Mask of communication.
    """
    order = launches.order
    if not len(order):
        return
    # From here on: one row per launch, in launch order.
    in_engine = _engine_threads(ranges, launches, autograd)[launches.thread][order]
    without_op = (launches.op < 0)[order]
    neighbours = _find_neighbours(
        value[order], without_op, _stretches(launches, in_engine, communicates)
    )
    # A launch in an unknown annotation does something else. One in an annotation for communication
    # is no compute.
    annotation = launches.annotation_name.take(order)
    is_plain = ~annotation.present | annotation.matches(RANGES["step"])
    in_comm = annotation.matches(RANGES["communication"])
    in_graph = gpu.frame["graph"].is_not_null().to_numpy()[order]
    is_bare = without_op & ~in_comm & ~in_graph
    adds_to_parameter, copies_parameter = _parameter_work(ranges, launches, autograd)
    adds_gradients = adds_to_parameter[order] & IN_BACKWARD[neighbours.before] & is_plain
    copies_weights = copies_parameter[order] & (neighbours.before == OPTIMIZER) & is_plain
    cases = (
        ("parameters", WGRAD, adds_gradients),
        ("parameters", OPTIMIZER, copies_weights),
        *_between_agreeing(neighbours, in_engine=in_engine, is_plain=is_plain, in_comm=in_comm),
        *_at_ends(neighbours, is_bare=is_bare, is_plain=is_plain & ~in_comm),
    )
    stream_count = int(gpu.stream_number.max(initial=-1)) + 1
    stream_is_known = mask_of_rows(stream_count, gpu.stream_number[value >= 0])
    on_known_stream = stream_is_known[gpu.stream_number][order]
    for source, code, mask in cases:
        yield source, code, mask_of_rows(len(value), order, mask & on_known_stream)


def _stretches(launches: Launches, in_engine: Bools, communicates: Bools) -> Ints:
    """Return the stretch of each launch, in launch order.

    One ends at communication, where the autograd engine begins or ends to launch, and at a replay.
    """
    order = launches.order
    changes_thread = np.append(False, in_engine[1:] != in_engine[:-1])
    replay = launches.replay[order]
    changes_replay = np.diff(replay, prepend=replay[:1]) != 0
    return np.cumsum(communicates[order] | changes_thread | changes_replay, dtype=np.int64)


def _find_neighbours(direction: Ints, without_op: Bools, stretch: Ints) -> Neighbours:
    """Return the neighbours of each launch whose direction is known.

    For a launch without an operator, other such work tells more than operators do.
    """
    is_known = direction >= 0
    all_neighbours = Neighbours.find(direction, is_known, stretch)
    without_operator = Neighbours.find(direction, is_known & without_op, stretch)
    in_stretch = without_operator.before_in_stretch | without_operator.after_in_stretch
    return without_operator.where(without_op & in_stretch, all_neighbours)


def _between_agreeing(
    neighbours: Neighbours, *, in_engine: Bools, is_plain: Bools, in_comm: Bools
) -> Iterator[Case]:
    """Yield work whose two neighbours agree, and work on gradients between the backward and the optimizer."""
    before = neighbours.before
    after = neighbours.after
    after_backward = IN_BACKWARD[before]
    either = neighbours.before_in_stretch | neighbours.after_in_stretch
    both = neighbours.before_in_stretch & neighbours.after_in_stretch
    yield "between", BACKWARD, after_backward & IN_BACKWARD[after] & (either | in_engine)
    yield "between", FORWARD, (before == FORWARD) & (after == FORWARD) & either & ~in_comm
    yield "between", OPTIMIZER, (before == OPTIMIZER) & (after == OPTIMIZER) & both & is_plain
    yield "between", OPTIMIZER, after_backward & (after == OPTIMIZER) & ~in_engine & is_plain


def _at_ends(neighbours: Neighbours, *, is_bare: Bools, is_plain: Bools) -> Iterator[Case]:
    """Yield work at the ends of a stretch: its beginning leads to the known work in it, its end follows from that.

    The gradient of a weight ends its line of work: what comes after it leads to something else.
    Before a forward the program does other things, too, so of work launched by operators only the
    end of a stretch counts.
    """
    before = neighbours.before
    after = neighbours.after
    leads = neighbours.after_in_stretch & (~neighbours.before_in_stretch | (before == WGRAD))
    follows = neighbours.before_in_stretch & ~neighbours.after_in_stretch
    leads_to_forward = is_bare & leads & (after == FORWARD)
    follows_forward = (is_bare | is_plain) & follows & (before == FORWARD)
    yield "between", FORWARD, leads_to_forward | follows_forward
    yield (
        "between",
        BACKWARD,
        is_bare & ((leads & IN_BACKWARD[after]) | (follows & IN_BACKWARD[before])),
    )


def _engine_threads(ranges: Ranges, launches: Launches, autograd: Autograd) -> Bools:
    """Return for every thread, and last for no thread, whether it runs the backward and does not drive the program."""
    threads = int(max(ranges.thread.max(initial=-1), launches.thread.max(initial=-1))) + 1
    is_engine = np.zeros(threads + 1, np.bool_)
    is_engine[ranges.thread[autograd.rows]] = True
    is_engine[launches.thread[autograd.site.any_of("backward", "recompute")]] = True
    is_engine[[ranges.main_thread, -1]] = False
    return is_engine


def _parameter_work(ranges: Ranges, launches: Launches, autograd: Autograd) -> tuple[Bools, Bools]:
    """Return masks of events outside the engine that add to, and that copy, tensors of a parameter's size.

    An optimizer with weights of its own keeps gradients and weights in another type: after every
    backward it adds the gradients to its own, and after its step it copies the weights back. The
    tensors may be views of one flat buffer.
    """
    parameter_sizes = set(map(leading_size, ranges.text("shapes", ranges.accumulating).values)) - {
        0
    }

    def work_of(ops: str) -> Bools:
        is_outside = (launches.op >= 0) & (autograd.node_row < 0)
        rows = (
            np.flatnonzero(is_outside & launches.op_name.matches(ops))
            if parameter_sizes
            else np.zeros(0, np.int64)
        )
        has_size = ranges.text("shapes", launches.op[rows]).map(
            lambda text: leading_size(text) in parameter_sizes
        )
        return mask_of_rows(len(launches.op), rows, has_size)

    return work_of(OPERATORS["add_in_place"]), work_of(OPERATORS["copy"])


_DIRECTIONS = ("forward", "backward", "wgrad", "recompute", "optimizer")
"""Names of the codes ``FORWARD``, ``BACKWARD`` and so on, in the order of the codes."""


def read_directions(
    gpu: GpuEvents,
    ranges: Ranges,
    launches: Launches,
    autograd: Autograd,
    matmuls: Matmuls,
    *,
    communicates: Bools,
) -> FirstEvidence:
    """Find the direction of every GPU event that does not communicate, as far as there is evidence.

    The evidence is one of "server step", "autograd", "seed", "matmul", "name", "parameters", "between", "namesake"
    and "forward only".
    """
    names = gpu.names
    chain = launches.chain
    site = autograd.site
    compute = gpu.is_kernel & ~communicates
    without_op = compute & (launches.op < 0)
    in_optimizer = launches.annotations.map(_has_optimizer_annotation)
    directions = FirstEvidence.empty(len(gpu))

    def assign(source: str, mask: Bools, direction: int) -> None:
        directions.fill_mask(source, _DIRECTIONS[direction], mask & ~communicates)

    in_server_step = launches.annotations.map(_has_server_step)
    assign("server step", compute & in_server_step, FORWARD)
    assign("autograd", site.any_of("recompute"), RECOMPUTE)
    assign("autograd", site.any_of("backward"), BACKWARD)
    assign("autograd", site.any_of("forward"), FORWARD)
    assign(
        "seed",
        compute & chain.matches(r"^aten::ones_like > ") & _right_before_engine(launches, autograd),
        BACKWARD,
    )
    assign("matmul", matmuls.role.any_of("wgrad"), WGRAD)
    assign("matmul", matmuls.role.any_of("optimizer"), OPTIMIZER)
    assign("autograd", autograd.made_node & ~matmuls.role.present, FORWARD)
    assign("matmul", matmuls.role.any_of("forward"), FORWARD)
    assign("matmul", matmuls.role.any_of("dgrad"), BACKWARD)
    named_optimizer = names.matches(KERNELS["optimizer"])
    is_optimizer = (
        in_optimizer | chain.matches(OPERATORS["optimizer"]) | (named_optimizer & without_op)
    )
    assign("name", is_optimizer, OPTIMIZER)
    assign("name", without_op & names.matches(KERNELS["weight_gradient"]), WGRAD)
    assign("name", without_op & names.matches(KERNELS["backward"]), BACKWARD)
    assign("name", without_op & names.matches(KERNELS["forward"]), FORWARD)

    has_gradients = bool((directions.value.any_of("backward", "wgrad") & compute).any())
    if autograd.active or bool(in_optimizer.any()) or has_gradients:
        codes = codes_in(directions.value, _DIRECTIONS)
        cases = directions_by_neighbours(
            codes, gpu, ranges, launches, autograd, communicates=communicates
        )
        for source, direction, mask in cases:
            assign(source, mask, direction)
        _assign_lost_launches(directions, gpu, (launches.start_ns < 0) & ~communicates)
    else:
        # Without a backward, kernels that update many tensors at once are no optimizer.
        is_kept = ~directions.value.any_of("optimizer")
        directions = FirstEvidence(
            directions.value.where(is_kept), directions.evidence.where(is_kept)
        )
        # Without an operator or a framework's kernel nothing shows that this program runs a model.
        # A program whose kernels only fill and copy buffers, such as a parameter server, runs none.
        computes = bool((compute & ~chain.matches(OPERATORS["fill_or_copy"])).any())
        if computes and (
            bool((launches.op >= 0).any())
            or bool((names.matches(KERNELS["framework"]) & compute).any())
        ):
            assign("forward only", np.ones(len(gpu), np.bool_), FORWARD)
    return directions


def _right_before_engine(launches: Launches, autograd: Autograd) -> Bools:
    """Return the mask of launches right after which the autograd engine launches."""
    order = launches.order
    return mask_of_rows(len(launches.start_ns), order[:-1], (autograd.node_row >= 0)[order[1:]])


def _has_optimizer_annotation(path: str) -> bool:
    return any(re.search(RANGES["optimizer"], name) for name in path.split(PATH_SEPARATOR))


def _has_server_step(path: str) -> bool:
    return any(re.search(RANGES["server_step"], name) for name in path.split(PATH_SEPARATOR))


def _assign_lost_launches(directions: FirstEvidence, gpu: GpuEvents, lost: Bools) -> None:
    """Assign directions to the events whose launch the file *lost*, as far as they have none yet.

    An event has the direction of all others of its name, if these agree. Else it lies in the
    forward if both neighbours on its stream do, and is backward if both lie in the backward (as
    gradients or recomputed work).

    Args:
        directions: Directions so far; only events without one are filled in.
        gpu: GPU events.
        lost: Mask of the events to look at.
    """
    if not lost.any():
        return
    names = gpu.names
    codes = codes_in(directions.value, _DIRECTIONS)
    rows = np.flatnonzero((codes >= 0) & names.present)
    # The last element, which no event fills, is for events without a name.
    direction_of_name = agreed_values(names.codes[rows], codes[rows], len(names.values) + 1)
    directions.fill(
        "namesake", CategoryColumn(_DIRECTIONS, names.look_up(direction_of_name)).where(lost)
    )
    # The nearest event with a direction before and after each event on its stream. Rows are sorted
    # by start.
    code = pl.when(pl.col("code") >= 0).then("code")
    neighbours = pl.DataFrame(
        {"code": codes_in(directions.value, _DIRECTIONS), "stream": gpu.stream_number}
    ).select(
        before=code.forward_fill().over("stream").fill_null(-1),
        after=code.backward_fill().over("stream").fill_null(-1),
    )
    before = neighbours["before"].to_numpy()
    after = neighbours["after"].to_numpy()
    # Where there is no neighbour, -1 selects the last element of IN_BACKWARD, that of an unknown
    # direction: False.
    directions.fill_mask("between", "backward", lost & IN_BACKWARD[before] & IN_BACKWARD[after])
    directions.fill_mask("between", "forward", lost & (before == FORWARD) & (after == FORWARD))


_MAX_ENGINE_KERNELS_PER_OTHER = 10
"""The thread that runs the forward launches at least one kernel for so many of the backward's
threads."""
RECOMPUTE_RUN_LENGTH = 4
"""Kernels in a row that are the same on both threads where the forward runs again."""
MIN_ADDED_SHARE = 0.5
"""Share of products in weight layout that must be added to a gradient for that to identify
gradients of weights."""
_MAX_KERNELS_TO_SUM = 2
"""Distance of a sum from its product: at once, or after the one other product of its layer."""


def read_engine_threads(
    gpu: GpuEvents, launches: Launches, autograd: Autograd, *, communicates: Bools
) -> Autograd:
    """Fill in the pass of every kernel on a thread that runs the backward.

    Only where no operators were recorded.
    """
    kernel = gpu.is_kernel & ~communicates & (launches.thread >= 0)
    if autograd.active or bool((launches.op >= 0)[kernel].any()) or not kernel.any():
        return autograd
    names = gpu.names
    named_backward = kernel & (
        names.matches(KERNELS["backward"]) | names.matches(KERNELS["weight_gradient"])
    )
    named_forward = kernel & names.matches(KERNELS["forward"]) & ~named_backward
    named_optimizer = kernel & names.matches(KERNELS["optimizer"]) & ~named_backward
    engine = kernel & on_engine_threads(
        launches, kernel, named_backward, named_forward, named_optimizer
    )
    recompute = engine & named_forward & names.matches(KERNELS["forward_only"])
    backward = engine
    if recompute.any():
        telling = recompute | names.matches(MATMUL_KERNELS)
        repeated = (
            _repeats_of_forward(names.codes, launches, engine, kernel & ~engine, telling)
            & ~named_backward
        )
        if not (repeated & ~recompute).any():
            # The forward does not run again kernel by kernel. A kernel whose name does not tell may
            # be part of it.
            layout = roles_by_layout(names).where(engine)
            repeated = layout.any_of("forward") & ~named_backward
            backward = engine & (named_backward | layout.any_of("dgrad", "wgrad"))
        recompute |= repeated
    site = CategoryColumn.choose(len(gpu), [("recompute", recompute), ("backward", backward)])
    return replace(autograd, site=site)


def on_engine_threads(
    launches: Launches,
    kernel: Bools,
    named_backward: Bools,
    named_forward: Bools,
    named_optimizer: Bools,
) -> Bools:
    """Return the mask of events on threads that run the backward and no optimizer.

    There are none unless another thread runs other work and no backward, and enough of it: a thread
    that only prepares data does not tell who runs the backward.
    """
    threads = int(launches.thread.max(initial=-1)) + 1

    def count_per_thread(mask: Bools) -> Ints:
        return np.bincount(launches.thread[mask], minlength=threads)

    runs_backward = count_per_thread(named_backward) > 0
    is_engine = runs_backward & (count_per_thread(named_optimizer) == 0)
    is_other = ~runs_backward & (count_per_thread(named_forward | named_optimizer) > 0)
    launched = count_per_thread(kernel)
    if (
        _MAX_ENGINE_KERNELS_PER_OTHER * launched[is_other].max(initial=0)
        < launched[is_engine].sum()
    ):
        return np.zeros(len(kernel), np.bool_)
    return np.append(is_engine, False)[launches.thread]


def _repeats_of_forward(
    name: Int32s, launches: Launches, engine: Bools, forward: Bools, telling: Bools
) -> Bools:
    """Return the kernels of the *engine* that repeat a stretch of the *forward*, name by name.

    A backward shares a few kernels in a row with its forward by chance: elementwise ones, and no
    product among them. So a stretch counts only if it contains a *telling* kernel.
    """
    forward_rows = launches.by_thread(np.flatnonzero(forward))
    engine_rows = launches.by_thread(np.flatnonzero(engine))
    forward_windows = name_windows(name[forward_rows])
    engine_windows = name_windows(name[engine_rows])
    begin = engine_windows.join(forward_windows, on=forward_windows.columns[1:], how="semi")[
        "begin"
    ].to_numpy()
    is_repeated = mask_of_rows(
        len(engine_rows), (begin[:, None] + np.arange(RECOMPUTE_RUN_LENGTH)).ravel()
    )
    run = np.cumsum(np.diff(is_repeated, prepend=False) != 0)
    run_tells = np.bincount(run, weights=telling[engine_rows] & is_repeated) > 0
    return mask_of_rows(len(name), engine_rows[is_repeated & run_tells[run]])


def name_windows(name: Int32s) -> pl.DataFrame:
    """Return every stretch of ``RECOMPUTE_RUN_LENGTH`` names, and the row at which it begins."""
    count = max(len(name) - RECOMPUTE_RUN_LENGTH + 1, 0)
    columns = {f"name{k}": name[k : k + count] for k in range(RECOMPUTE_RUN_LENGTH)}
    return pl.DataFrame({"begin": np.arange(count), **columns})


def read_gradients(
    gpu: GpuEvents, launches: Launches, autograd: Autograd, matmuls: Matmuls
) -> CategoryColumn:
    """Return ``weight`` or ``input`` for every kernel of a backward that is told by its thread.

    Null elsewhere.
    """
    none = CategoryColumn.constant(None, len(gpu))
    backward = autograd.site.any_of("backward") & (launches.thread >= 0)
    role = matmuls.role.where(backward)
    if autograd.active or not role.any_of("wgrad").any() or not role.any_of("dgrad").any():
        return none
    # From here on: one row per kernel of the backward, in launch order of each thread.
    rows = np.flatnonzero(backward & gpu.is_kernel & ~(matmuls.is_gemm & ~matmuls.whole))
    rows = launches.by_thread(rows)
    is_product = matmuls.is_gemm[rows]
    is_sum = gpu.names.matches(KERNELS["add"])[rows] & ~is_product
    sum_of = sums_of_products(is_product, is_sum, launches.thread[rows])
    is_added = sum_of >= 0
    is_weight = role.any_of("wgrad")[rows]
    if is_added[is_weight].mean() < MIN_ADDED_SHARE:  # sums do not identify gradients of weights
        return none
    is_weight &= _is_mostly_added(is_added, is_weight, ~is_sum, gpu.names.codes[rows])
    weight_rows = np.concatenate([rows[is_weight], rows[sum_of[is_weight & is_added]]])
    is_weight_event = mask_of_rows(len(gpu), weight_rows)
    return CategoryColumn.choose(len(gpu), [("weight", is_weight_event), ("input", backward)])


def sums_of_products(is_product: Bools, is_sum: Bools, thread: Ints) -> Ints:
    """Return for each product the row of the sum that adds its result to a gradient; -1 where none.

    It is the first kernel after the product that is no product, if that is near and on the same
    thread.
    """
    row = np.arange(len(is_product))
    _, following = nearest_rows(~is_product)
    is_near = (
        (following >= 0) & (following - row <= _MAX_KERNELS_TO_SUM) & (thread[following] == thread)
    )
    return np.where(is_product & is_near & is_sum[following], following, -1)


def _is_mostly_added(is_added: Bools, is_weight: Bools, is_no_sum: Bools, name: Int32s) -> Bools:
    """Return whether most products of a kernel's name between the same kernels, sums left out, are added."""
    rows = np.flatnonzero(is_no_sum)
    codes = np.concatenate([[-1], name[rows], [-1]])
    kernels = pl.DataFrame(
        {"before": codes[:-2], "own": codes[1:-1], "after": codes[2:], "added": is_added[rows]}
    )
    key = ["before", "own", "after"]
    products = kernels.filter(pl.Series(is_weight[rows]))
    mostly = products.group_by(key).agg(pl.col("added").mean() >= MIN_ADDED_SHARE)
    matched = kernels.drop("added").join(mostly, on=key, how="left", maintain_order="left")
    return mask_of_rows(len(is_no_sum), rows, matched["added"].fill_null(False).to_numpy())
