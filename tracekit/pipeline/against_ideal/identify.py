"""Search for the known schedule that a run followed: one with exactly its order, or the nearest.

Orders are compared as units of work: a B is an I and a W, an FB is an F and a B. So a run that
fused I and W, or that ran the halves of an FB one after the other, still equals its schedule. Such
differences in granularity are counted apart.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from tracekit.documents.analysis import Difference
from tracekit.errors import ScheduleError
from tracekit.pipeline.schedules import Op, Schedule, generate, names, read_orders
from tracekit.pipeline.schedules.registry import describe, searched_names

Unit = tuple[str, int, int]
"""Unit of work: kind (F, I or W), stage (-1 if not known), micro-batch."""

MAX_COUNTED_DISTANCE = 400
"""Distance between two orders of a rank above which counting stops."""


def count_ops(order: Sequence[Op], *kinds: str) -> int:
    """Return the number of ops of these kinds.

    >>> count_ops([Op("F", 0, 0), Op("F", 0, 1), Op("B", 0, 0)], "F", "FB")
    2
    """
    return sum(op.kind in kinds for op in order)


def units(op: Op) -> list[Unit]:
    """Return the units of work of an op.

    >>> units(Op.parse("(0F7;3B2)"))
    [('F', 0, 7), ('I', 3, 2), ('W', 3, 2)]
    """
    if op.kind == "FB":
        backward = (op.b_stage, op.b_microbatch)
        return [("F", op.stage, op.microbatch), ("I", *backward), ("W", *backward)]
    kinds = ("I", "W") if op.kind == "B" else (op.kind,)
    return [(kind, op.stage, op.microbatch) for kind in kinds]


def pattern(order: Sequence[Op]) -> list[Op]:
    """Return the order with all stages 0 and micro-batches numbered by their forwards on this rank.

    >>> pattern([Op.parse(t) for t in ("3F4", "1F9", "1B9")])
    [Op(0F0), Op(0F1), Op(0B1)]
    """
    numbers: dict[tuple[int, int], int] = {}

    def number(stage: int, microbatch: int) -> int:
        return numbers.setdefault((stage, microbatch), len(numbers))

    for op in order:
        if op.kind in ("F", "FB"):
            number(op.stage, op.microbatch)
    renumbered = []
    for op in order:
        forward = number(op.stage, op.microbatch)
        if op.kind == "FB":
            renumbered.append(Op("FB", 0, forward, 0, number(op.b_stage, op.b_microbatch)))
        else:
            renumbered.append(Op(op.kind, 0, forward))
    return renumbered


def same_work(
    measured: Sequence[Op], expected: Sequence[Op], *, any_weight_gradient: bool = False
) -> bool:
    """Return whether two orders have the same units of work in the same order.

    The halves of an FB may come either way round. With *any_weight_gradient* a W equals any other
    W.

    >>> same_work([Op.parse(t) for t in ("0B0", "0F3")], [Op.parse("(0F3;0B0)")])
    True
    >>> same_work([Op.parse(t) for t in ("0I0", "0W0")], [Op.parse("0B0")])
    True
    """
    if len(measured) == len(expected) and list(measured) == list(expected):
        return True
    left = _UnitOrder(measured, any_weight_gradient)
    right = _UnitOrder(expected, any_weight_gradient)
    if len(left.units) != len(right.units):
        return False
    i = 0
    while i < len(left.units):
        if left.units[i] == right.units[i]:
            i += 1
        elif not (left.turn_block(i, right.units) or right.turn_block(i, left.units)):
            return False
    return True


class _UnitOrder:
    """An order as units of work, in which blocks FB can be turned round."""

    def __init__(self, order: Sequence[Op], any_weight_gradient: bool) -> None:
        self.units: list[Unit] = []
        self.block_starts: set[int] = set()  # blocks that may still be turned
        for op in order:
            if op.kind == "FB":
                self.block_starts.add(len(self.units))
            for unit in units(op):
                is_any_weight = any_weight_gradient and unit[0] == "W"
                self.units.append(("W", -1, -1) if is_any_weight else unit)

    def turn_block(self, i: int, other: Sequence[Unit]) -> bool:
        """Put the backward of the block at index *i* before its forward if *other* has that order there."""
        if i not in self.block_starts:
            return False
        self.block_starts.discard(i)
        forward, input_grad, weight_grad = self.units[i : i + 3]
        turned = [input_grad, weight_grad, forward]
        if list(other[i : i + 3]) != turned:
            return False
        self.units[i : i + 3] = turned
        return True


def distance(measured: Sequence[Op], expected: Sequence[Op]) -> int:
    """Return the number of units to insert and delete to turn one order into the other, at most the limit + 1.

    >>> distance([Op.parse(t) for t in ("0F0", "0F1")], [Op.parse("0F1"), Op.parse("0F0")])
    2
    """
    code_of_unit: dict[Unit, int] = {}

    def encode(order: Sequence[Op]) -> list[int]:
        codes = []
        for op in order:
            for unit in units(op):
                codes.append(code_of_unit.setdefault(unit, len(code_of_unit)))
        return codes

    return count_edits(encode(measured), encode(expected), limit=MAX_COUNTED_DISTANCE)


def count_edits(a: Sequence[int], b: Sequence[int], *, limit: int) -> int:
    """Count the insertions and deletions that turn *a* into *b* (Myers 1986, An O(ND) difference algorithm).

    *limit* + 1 if there are more than *limit*.

    >>> count_edits([1, 2, 3], [2, 3, 4], limit=9), count_edits([1], [2], limit=1)
    (2, 2)
    """
    # A diagonal holds the pairs (x, y) of positions in a and b with x - y = diagonal.
    # reach[diagonal + limit + 1] is the farthest x on it that the edits so far lead to; an edit
    # leads to a neighbouring diagonal.
    reach = [0] * (2 * limit + 3)
    for edits in range(limit + 1):
        for diagonal in range(-edits, edits + 1, 2):
            k = diagonal + limit + 1
            if diagonal == -edits or (diagonal != edits and reach[k - 1] < reach[k + 1]):
                x = reach[k + 1]  # insert an element of b
            else:
                x = reach[k - 1] + 1  # delete an element of a
            while x < len(a) and x - diagonal < len(b) and a[x] == b[x - diagonal]:
                x += 1
            reach[k] = x
            if x >= len(a) and x - diagonal >= len(b):
                return edits
    return limit + 1


def find_differences(
    position: int, measured: Sequence[Op], expected: Sequence[Op]
) -> list[Difference]:
    """Return where two orders of the rank at a *position* of the pipeline differ, apart from granularity.

    >>> find_differences(0, [Op.parse("0F1"), Op.parse("0B0")], [Op.parse("0B0"), Op.parse("0F1")])[0].expected
    ('0B0',)
    """
    measured_names = [str(op) for op in measured]
    expected_names = [str(op) for op in expected]
    matcher = SequenceMatcher(None, measured_names, expected_names, autojunk=False)
    differences = []
    for tag, first, last, expected_first, expected_last in matcher.get_opcodes():
        if tag == "equal" or same_work(
            measured[first:last], expected[expected_first:expected_last]
        ):
            continue
        names = tuple(measured_names[first:last])
        differences.append(
            Difference(position, first, names, tuple(expected_names[expected_first:expected_last]))
        )
    return differences


Orders = Mapping[int, Sequence[Op]]
"""Order of ops of each rank by position in the pipeline; ranks may be missing."""

Traffic = Mapping[int, Mapping[int, int]]
"""Number of messages by position of the sender, then of the receiver."""

MAX_CACHED_FORWARDS = 4_096
"""Forwards of a whole schedule up to which it is kept in memory for the next step."""
MAX_CHUNKS = 16
"""Chunks per rank up to which schedules are tried."""
MAX_DIFFERENCES = 20
"""Differences listed in a match."""


class Match(msgspec.Struct, frozen=True):
    """A schedule, and the distance of the run from it; 0 if they are equal up to granularity."""

    schedule: Schedule
    distance: int  # units of work to insert and delete
    differences: tuple[Difference, ...] = ()
    blocks_run_apart: int = 0  # FB blocks of the schedule that ran as F and B
    backwards_run_whole: int = 0  # split backwards of the schedule that ran as B
    # Names of other schedules with this order on the ranks with a trace.
    ambiguous_with: tuple[str, ...] = ()
    ran: Schedule | None = None  # another schedule, whose order the run has exactly

    @property
    def exact(self) -> bool:
        """Whether the run has the order of the schedule."""
        return self.distance == 0


def likely_candidates(pp: int, forwards: int, shape: str, virtual: int) -> Iterator[Schedule]:
    """Yield the schedules that place stages on ranks as the messages of the run show.

    Args:
        pp: Ranks of the pipeline.
        forwards: Forwards of a rank.
        shape: Placement of the stages (``StagePlacement.shape``); all schedules if it is not known.
        virtual: Chunks per rank of the placement.
    """

    def has_shape(schedule: Schedule) -> bool:
        fixed_virtual = describe(schedule.name).virtual
        return {
            "line": schedule.virtual == 1 and schedule.name != "chimera",
            "loop": schedule.virtual == virtual and fixed_virtual is None,
            "V": fixed_virtual == 2 and schedule.name != "dualpipe",
            "two-way": schedule.name in ("dualpipe", "chimera"),
        }.get(shape, True)

    only_virtual = {"line": 1, "loop": virtual}.get(shape)
    return filter(has_shape, candidates(pp, forwards, only_virtual=only_virtual))


def candidates(
    pp: int, forwards: int, *, only_virtual: int | None = None, searched: bool = True
) -> Iterator[Schedule]:
    """Yield every known schedule in which a rank runs so many forwards.

    Args:
        pp: Ranks of the pipeline.
        forwards: Forwards of a rank.
        only_virtual: Chunks per rank; any number if None.
        searched: Whether to include schedules whose order is found by a search. These take longest
            and come last.

    >>> sorted({s.name for s in candidates(2, 8)} & {"1f1b", "dualpipe", "interleaved"})
    ['1f1b', 'dualpipe', 'interleaved']
    """
    make = _generate_cached if pp * forwards <= MAX_CACHED_FORWARDS else _generate
    for name, microbatches, virtual, group in _sizes(pp, forwards, only_virtual, searched=searched):
        schedule = make(name, pp, microbatches, virtual, group)
        if schedule is not None and count_ops(schedule.ranks[0], "F", "FB") == forwards:
            yield schedule


def _sizes(
    pp: int, forwards: int, only_virtual: int | None, *, searched: bool
) -> Iterator[tuple[str, int, int | None, int | None]]:
    """Yield names of schedules with the micro-batches, chunks and group size (None: the default) to try."""
    for name in names():
        entry = describe(name)
        if not entry.pipeline or entry.searched:
            continue
        if entry.virtual is not None:  # a fixed number of chunks
            if only_virtual in (None, entry.virtual):
                # With two chunks a micro-batch runs one forward on a rank or two, depending on the
                # schedule.
                counts = (
                    {forwards // 2, forwards} if entry.virtual == 2 else {forwards // entry.virtual}
                )
                for microbatches in counts:
                    yield name, microbatches, None, None
            continue
        grouped = entry.default_group is not None
        for virtual in range(1 if grouped else 2, min(forwards, MAX_CHUNKS) + 1):
            if forwards % virtual or only_virtual not in (None, virtual):
                continue
            microbatches = forwards // virtual
            yield name, microbatches, virtual, None
            if grouped:
                groups = {
                    group for group in (microbatches, 2 * pp, pp + 1) if pp <= group <= microbatches
                }
                for group in groups - {pp}:
                    yield name, microbatches, virtual, group
    for name in searched_names() if searched else ():
        yield name, forwards, None, None


def _generate(
    name: str, pp: int, microbatches: int, virtual: int | None = None, group: int | None = None
) -> Schedule | None:
    """Return a schedule; None if it does not exist in this size."""
    try:
        return generate(name, pp=pp, microbatches=microbatches, virtual=virtual, group=group)
    except ScheduleError:
        return None


_generate_cached = lru_cache(maxsize=128)(_generate)


def named_candidates(name: str, pp: int, forwards: int) -> list[Schedule]:
    """Return the schedules that a user's word can mean: a name in every fitting size, or a file of orders."""
    if Path(name).suffix or "/" in name:
        return [read_orders(name)]
    full_name = describe(name).name
    return [schedule for schedule in candidates(pp, forwards) if schedule.name == full_name]


def exact_match(
    orders: Orders,
    schedules: Iterable[Schedule],
    *,
    traffic: Traffic | None = None,
    stages_known: bool = False,
    any_weight_gradient: bool = False,
) -> Match | None:
    """Return the schedule whose work is in the run's order on every rank, however finely it is split.

    Names of stages do not matter (``pattern``), nor whether backwards and blocks run whole or in
    parts. Of several schedules, one with the stages of the run is preferred, then one without FB
    blocks for a run without any, then the one with the most similar numbers of FB and W.

    Args:
        orders: Orders of the run.
        schedules: Schedules to try, in this order.
        traffic: Messages of the run. A schedule with others does not match.
        stages_known: Whether *orders* has the run's stages.
        any_weight_gradient: Whether it is unknown which micro-batch a W belongs to.
    """
    run_has_blocks = any(count_ops(order, "FB") for order in orders.values())
    own_patterns = {position: pattern(order) for position, order in orders.items()}
    best: Match | None = None
    least_objection: tuple[bool, bool, int] | None = None
    for schedule in schedules:
        is_identical = stages_known and all(
            list(own) == list(schedule.ranks[i]) for i, own in orders.items()
        )
        if not is_identical and not _does_same_work(
            own_patterns, schedule, any_weight_gradient=any_weight_gradient
        ):
            continue
        if traffic and not _sends(schedule, traffic):
            continue
        match = Match(schedule, 0, (), *_granularity_losses(orders, schedule))
        runs_other_stages = stages_known and has_other_stages(orders, schedule)
        count_difference = _count_difference(orders, schedule)
        if not runs_other_stages and not count_difference:
            return match  # none can match better
        has_surplus_blocks = not run_has_blocks and match.blocks_run_apart > 0
        objection = (runs_other_stages, has_surplus_blocks, count_difference)  # in order of weight
        if least_objection is None or objection < least_objection:
            least_objection = objection
            best = match
    return best


def _does_same_work(own_patterns: Orders, schedule: Schedule, *, any_weight_gradient: bool) -> bool:
    """Return whether every rank does the work of its position in the *schedule*, in that order."""
    for position, own in own_patterns.items():
        planned = pattern(schedule.ranks[position])
        if not same_work(own, planned, any_weight_gradient=any_weight_gradient):
            return False
    return True


def has_other_stages(orders: Orders, schedule: Schedule) -> bool:
    """Return whether a rank runs forwards of other stages than the *schedule* plans for its position."""
    for position, order in orders.items():
        own_stages = forward_stages(order)
        if own_stages != forward_stages(schedule.ranks[position]):
            return True
    return False


def _count_difference(orders: Orders, schedule: Schedule) -> int:
    """Return by how much the numbers of FB and W differ from the planned ones, over all ranks."""
    difference = 0
    for position, own in orders.items():
        planned = schedule.ranks[position]
        for kind in ("FB", "W"):
            difference += abs(count_ops(own, kind) - count_ops(planned, kind))
    return difference


def forward_stages(order: Sequence[Op]) -> list[int]:
    """Return the stages of an order's forwards."""
    return [op.stage for op in order if op.kind in ("F", "FB")]


def _granularity_losses(orders: Orders, schedule: Schedule) -> tuple[int, int]:
    """Return how many blocks FB of the schedule ran as F and B, and how many of its split backwards ran as B."""
    blocks = 0
    split_backwards = 0
    for position, order in orders.items():
        planned = schedule.ranks[position]
        blocks += max(0, count_ops(planned, "FB") - count_ops(order, "FB"))
        split_backwards += max(0, count_ops(planned, "I") - count_ops(order, "I"))
    return blocks, split_backwards


def _sends(schedule: Schedule, traffic: Traffic) -> bool:
    """Return whether the schedule's messages are those of *traffic*."""
    table = schedule.table
    edges = schedule.edges
    messages = np.zeros((schedule.pp, schedule.pp), np.int64)  # [sender, receiver]
    for producers in (edges.forward, edges.backward):
        consumers = np.flatnonzero(producers >= 0)
        np.add.at(messages, (table.rank[producers[consumers]], table.rank[consumers]), 1)
    np.fill_diagonal(messages, 0)  # a rank sends itself nothing
    for sender, sent in traffic.items():
        sent_to_others = [
            0 if receiver == sender else sent.get(receiver, 0) for receiver in range(schedule.pp)
        ]
        if sent_to_others != messages[sender].tolist():
            return False
    return True


def nearest_match(orders: Orders, schedules: Iterable[Schedule]) -> Match | None:
    """Return the match with the schedule at the smallest distance.

    The stages of *orders* must be known.
    """

    def total_distance(schedule: Schedule) -> int:
        return sum(distance(order, schedule.ranks[position]) for position, order in orders.items())

    nearest = min(schedules, key=total_distance, default=None)
    return None if nearest is None else match_with(orders, nearest)


def match_with(orders: Orders, schedule: Schedule) -> Match:
    """Return the match of the run with one schedule, equal or not."""
    if max(orders, default=0) >= len(schedule.ranks):
        raise ScheduleError(
            f"{schedule.name} is for {len(schedule.ranks)} ranks, the run has {max(orders) + 1}",
            hint="name a schedule of this pipeline's size",
        )
    total = 0
    places: list[Difference] = []
    for position, order in orders.items():
        if not same_work(order, schedule.ranks[position]):
            total += distance(order, schedule.ranks[position])
            if len(places) < MAX_DIFFERENCES:
                places += find_differences(position, order, schedule.ranks[position])
    return Match(
        schedule, total, tuple(places[:MAX_DIFFERENCES]), *_granularity_losses(orders, schedule)
    )
