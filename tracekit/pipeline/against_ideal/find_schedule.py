"""Identification of the schedule of a pipeline, or the reason why none is named, and of its size if that is unknown.

A schedule is named only if at most a tenth of its units of work are elsewhere in the run, its ideal
is not above the measurement, and little of the time between them stays unexplained.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from math import gcd

import msgspec
import polars as pl
from msgspec.structs import replace

from tracekit._util.notices import of_ranks
from tracekit._util.text import counted, listed, ms, percent
from tracekit.align.clocks import Clocks
from tracekit.errors import Notice, NoticeValues
from tracekit.pipeline.against_ideal import identify
from tracekit.pipeline.against_ideal.identify import (
    Match,
    Orders,
    candidates,
    has_other_stages,
    named_candidates,
)
from tracekit.pipeline.against_ideal.replay import GraphCache
from tracekit.pipeline.reconstruct.pipeline import Pipeline, has_same_order
from tracekit.pipeline.reconstruct.pipeline_steps import StepCache, assemble
from tracekit.pipeline.reconstruct.rank_pipeline import RankPipeline
from tracekit.pipeline.schedules import Schedule
from tracekit.pipeline.schedules.registry import describe, names

MAX_MISPLACED_SHARE = 0.1
"""Share of a schedule's units of work that may be elsewhere in the run for the schedule to be
named."""
MAX_IDEAL_EXCESS = 0.01
"""Share of the measured makespan by which an ideal may be above it: mean times of cells are
rounded."""
MAX_UNEXPLAINED_SHARE = 0.1
"""Share of the measured makespan that may stay unexplained, or be explained twice, for a comparison
to be shown."""


class ScheduleFinding(msgspec.Struct, frozen=True):
    """Result of the search for one order."""

    match: Match | None
    notices: list[Notice]
    has_schedule_names: bool  # whether the ops are named as in the schedule


class ScheduleFinder:
    """Search for the schedules of pipelines; an order seen before is not searched for again.

    The finder also keeps what else was computed for pipelines and steps that look alike: ``graphs``
    and ``placed``.
    """

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted  # "auto", a schedule's name or a file of orders
        self.graphs: GraphCache = {}
        self.placed: StepCache = {}
        self._findings: dict[Hashable, ScheduleFinding] = {}
        self._last_schedule: Schedule | None = None

    def find(self, pipeline: Pipeline) -> ScheduleFinding:
        """Return the match of a pipeline's order, and the notices about it."""
        finding = self._find(pipeline)
        if finding.match is not None:
            self._last_schedule = finding.match.schedule
        # Another pipeline may have had this order first: the notice names the ranks of this one.
        own_notices = []
        for notice in finding.notices:
            is_about_ranks = notice.values.get("case") == "order_unknown"
            own_notices.append(_order_unknown(pipeline) if is_about_ranks else notice)
        return replace(finding, notices=own_notices)

    def _find(self, pipeline: Pipeline) -> ScheduleFinding:
        placement = pipeline.placement
        sent_messages = []
        for sender, sent in pipeline.traffic.items():
            sent_messages += [(sender, *message) for message in sorted(sent.items())]
        key = (
            len(pipeline.ranks),
            pipeline.order_key,
            tuple(sent_messages),
            (pipeline.stages_from, pipeline.weights_counted, placement.shape, placement.virtual),
        )
        if key not in self._findings:
            search = OrderSearch(pipeline)
            if self.wanted == "auto":
                match, notices = search.find_any(self._last_schedule)
            else:
                match, notices = search.find_named(self.wanted)
            named = match is not None and match.exact and has_same_order(pipeline, match.schedule)
            self._findings[key] = ScheduleFinding(match, notices, named)
        return self._findings[key]


class OrderSearch:
    """The order of one pipeline, to be compared with schedules."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.orders: Orders = pipeline.orders
        self.pp = len(pipeline.ranks)
        self.forwards = max(identify.count_ops(order, "F", "FB") for order in self.orders.values())
        self.stages_known = pipeline.stages_from != "nothing"

    def find_named(self, wanted: str) -> tuple[Match | None, list[Notice]]:
        """Return the match with the schedule that the user named."""
        named = identify.named_candidates(wanted, self.pp, self.forwards)
        schedules = [schedule for schedule in named if schedule.pp == self.pp]
        if not schedules:
            values: NoticeValues = {
                "schedule": wanted,
                "forwards": self.forwards,
                "pipeline_ranks": self.pp,
            }
            if named:
                values |= {"case": "ranks", "schedule_ranks": named[0].pp}
                order = f"{wanted} is an order of {counted(named[0].pp, 'rank')}"
                message = f"{order}, and the pipeline has {self.pp}"
            else:
                values |= {"case": "size"}
                message = f"{wanted} cannot run {self.forwards} forwards on each of {self.pp} ranks"
            return None, [Notice("schedule-other", message, values=values)]
        match = self.exact_match(schedules)
        if match is None and self.stages_known:
            match = min(
                (identify.match_with(self.orders, s) for s in schedules),
                key=lambda match: match.distance,
            )
            ran = self.exact_match(self._likely())
            match = replace(match, ran=ran.schedule if ran is not None else None)
        return match, [] if match else [_order_unknown(self.pipeline)]

    def find_any(self, last: Schedule | None) -> tuple[Match | None, list[Notice]]:
        """Return the match with the schedule that has this order, or with the nearest.

        *last* is tried first.
        """
        if last is not None and last.pp == self.pp and (match := self.exact_match([last])):
            return match, []
        if match := self.exact_match(self._likely()) or self.exact_match(
            identify.candidates(self.pp, self.forwards)
        ):
            return self._with_ambiguous_names(match), []
        if notice := _find_cut(self.pipeline):
            return None, [notice]
        # The order of a single rank is near to that of any schedule: only an equal one is evidence.
        nearest = (
            identify.nearest_match(self.orders, self._likely())
            if self.stages_known and self.pp > 1
            else None
        )
        if nearest is None:
            return None, [_order_unknown(self.pipeline)]
        if misplaced_share(self.orders, nearest) <= MAX_MISPLACED_SHARE:
            return nearest, []
        step = self.pipeline.step
        name = nearest.schedule.name
        units = _count_units(self.orders, nearest.schedule)
        message = (
            f"step {step}: its order is nearest to {name}'s, but {nearest.distance} of its {units} units of work are "
            "elsewhere: no schedule is named; give another order with --schedule FILE"
        )
        values = {"case": "order_differs", "step": step, **_distance_values(nearest, units)}
        return None, [Notice("no-schedule", message, values=values)]

    def _likely(self) -> Iterable[Schedule]:
        placement = self.pipeline.placement
        return identify.likely_candidates(
            self.pp, self.forwards, placement.shape, placement.virtual
        )

    def exact_match(self, schedules: Iterable[Schedule]) -> Match | None:
        """Return the match with the schedule that has exactly this order."""
        return identify.exact_match(
            self.orders,
            schedules,
            traffic=self.pipeline.traffic,
            stages_known=self.stages_known,
            any_weight_gradient=self.pipeline.weights_counted,
        )

    def _with_ambiguous_names(self, match: Match) -> Match:
        """Return the match with the names of other schedules that have this order.

        Schedules whose order is searched for have no order of their own and are left out; so are
        large schedules, because generating all of them takes too long.
        """
        if self.pp * self.forwards > identify.MAX_CACHED_FORWARDS:
            return match
        ran_blocks = any(identify.count_ops(order, "FB") for order in self.orders.values())
        may_have_blocks = len(self.orders) < self.pp or match.blocks_run_apart > 0
        equals = {match.schedule.name: match}
        for schedule in identify.candidates(self.pp, self.forwards, searched=False):
            if schedule.name in equals:
                continue
            if schedule.virtual == 1 and describe(schedule.name).virtual is None:
                continue  # an interleaved schedule with one chunk is the plain one
            other = self.exact_match([schedule])
            if other is None or (other.blocks_run_apart and not may_have_blocks):
                continue
            if not ran_blocks or any(identify.count_ops(order, "FB") for order in schedule.ranks):
                equals[schedule.name] = other
        if len(equals) == 1:
            return match
        likeliest = self._likeliest(match, equals.values())
        others = tuple(name for name in equals if name != likeliest.schedule.name)
        return replace(likeliest, ambiguous_with=others)

    def _likeliest(self, match: Match, equals: Iterable[Match]) -> Match:
        """Return the match to name of several that the order fits alike.

        Where ranks are missing, that is the commonest schedule: how finely backwards were split on
        the others tells nothing about the ranks that would decide.
        """
        if len(self.orders) == self.pp or not self.stages_known:
            return match
        own_stages_differ = has_other_stages(self.orders, match.schedule)
        by_name = {
            equal.schedule.name: equal
            for equal in equals
            if has_other_stages(self.orders, equal.schedule) == own_stages_differ
        }
        return next((by_name[name] for name in names() if name in by_name), match)


def _find_cut(pipeline: Pipeline) -> Notice | None:
    """Return a notice if the trace has only a part of the step's work."""
    cells = pipeline.detail.with_columns(pl.col("op").cast(pl.String))
    forwards = cells.filter(pl.col("op").is_in(["F", "FB"])).select("position", "pair")
    blocks = cells.filter(pl.col("op") == "FB").select("position", pair="b_pair")
    backwards = pl.concat(
        [cells.filter(pl.col("op").is_in(["B", "I"])).select("position", "pair"), blocks]
    )
    if backwards.is_empty():
        return Notice(
            "no-schedule",
            (
                f"step {pipeline.step}: forwards run and no backward: evaluation or "
                "inference, or the trace ends before the first backward; a training "
                "schedule cannot be named"
            ),
            values={"case": "forward_only", "step": pipeline.step},
        )
    without_backward = forwards.join(backwards, on=["position", "pair"], how="anti").height
    without_forward = backwards.join(forwards, on=["position", "pair"], how="anti").height
    counts = forwards.group_by("position").len()["len"].unique().sort().to_list()
    if not (without_backward or without_forward or len(counts) > 1):
        return None
    values: NoticeValues = {
        "case": "incomplete",
        "step": pipeline.step,
        "without_backward": without_backward,
        "without_forward": without_forward,
        "fewest_forwards": counts[0] if counts else 0,
        "most_forwards": counts[-1] if counts else 0,
    }
    signs = []
    if without_backward:
        signs.append(f"{without_backward} forwards have no backward")
    if without_forward:
        signs.append(f"{without_forward} backwards have no forward")
    if len(counts) > 1:
        signs.append(f"the ranks ran {counts[0]} to {counts[-1]} forwards")
    message = f"step {pipeline.step} is cut: {', '.join(signs)}; which schedule it was part of is not certain"
    return Notice("partial-step", message, values=values)


def misplaced_share(orders: Orders, match: Match) -> float:
    """Return the share of the schedule's units of work, on the ranks with a trace, that are elsewhere in the run."""
    return match.distance / max(1, _count_units(orders, match.schedule))


def _count_units(orders: Orders, schedule: Schedule) -> int:
    """Return the schedule's units of work on the ranks with a trace: a B has two, an FB three."""
    unit_count = 0
    for position in orders:
        unit_count += sum(len(identify.units(op)) for op in schedule.ranks[position])
    return unit_count


def _distance_values(match: Match, units: int) -> NoticeValues:
    """Return how far the order of a pipeline is from the schedule's, of so many *units*, as values of a notice."""
    return {"schedule": match.schedule.name, "misplaced": match.distance, "units": units}


def order_differs_notice(match: Match, pipeline: Pipeline) -> Notice:
    """Return a notice with the distance of the order from the schedule's."""
    units = _count_units(pipeline.orders, match.schedule)
    message = (
        f"the order is not exactly {match.schedule.name}'s: {match.distance} of its {units} units of work are "
        "elsewhere"
    )
    return Notice("order-differs", message, values=_distance_values(match, units))


def _order_unknown(pipeline: Pipeline) -> Notice:
    stages_known = pipeline.stages_from != "nothing"
    stages = "" if stages_known else " and its stages are not known"
    message = (
        f"pipeline of rank(s) {listed(pipeline.ranks, most=8)}: its order is not a known schedule's{stages}; give "
        "one with --schedule FILE"
    )
    values: NoticeValues = {"case": "order_unknown", "stages_known": stages_known}
    return Notice("no-schedule", message, ranks=tuple(pipeline.ranks), values=values)


class Doubt(msgspec.Struct, frozen=True):
    """Why a comparison with a schedule should not be shown."""

    case: str
    schedule: str
    measured_ns: int
    ideal_ns: int | None = None
    share: float | None = None
    """Share of the measured makespan that it is about."""

    @property
    def text(self) -> str:
        """The doubt as the beginning of a sentence."""
        measured = f"the {ms(self.measured_ns)} measured"
        if self.case == "ideal_above":
            ideal = f"the ideal of {self.schedule} at the run's own times, {ms(self.ideal_ns)}"
            return f"{ideal}, is above {measured}"
        would = "stay unexplained" if self.case == "unexplained" else "have two causes"
        return f"compared with {self.schedule}, {percent(self.share or 0.0)} of {measured} would {would}"

    @property
    def values(self) -> NoticeValues:
        """Its figures, as the values of a notice."""
        named = msgspec.structs.asdict(self)
        return {name: value for name, value in named.items() if value is not None}


def find_doubt(
    match: Match, *, measured_ns: int, ideal_ns: int, gap_ns: Mapping[str, int] | None
) -> Doubt | None:
    """Return why a comparison should not be shown; None if it should.

    Args:
        match: Schedule compared with.
        measured_ns: Measured makespan.
        ideal_ns: Makespan of the ideal.
        gap_ns: Parts of the gap; None if ranks are missing. Some ranks alone may be faster than the
            ideal of all.
    """
    if gap_ns is None:
        return None
    name = match.schedule.name
    if ideal_ns > (1 + MAX_IDEAL_EXCESS) * measured_ns:
        return Doubt("ideal_above", name, measured_ns, ideal_ns=ideal_ns)
    unexplained_ns = abs(gap_ns["unexplained"])
    if unexplained_ns > MAX_UNEXPLAINED_SHARE * measured_ns:
        share = unexplained_ns / max(1, measured_ns)
        return Doubt("unexplained", name, measured_ns, share=share)
    explained_twice_ns = -sum(min(0, ns) for ns in gap_ns.values())
    if explained_twice_ns > MAX_UNEXPLAINED_SHARE * measured_ns:
        share = explained_twice_ns / max(1, measured_ns)
        return Doubt("two_causes", name, measured_ns, share=share)
    return None


# ---- Size of a pipeline of which some ranks have no trace and no process group is recorded.
#
# The peers of messages are a lower bound: the first rank of any pipeline exchanges messages with
# the second one only. So every size is tried, with ranks numbered as in a mesh (neighbours at equal
# distances). A size fits if all messages stay inside the pipeline and the order is a known
# schedule's at that size.


SIZES_TO_TRY = range(2, 17)
MAX_FORWARDS_TO_TRY = 2_048
"""Forwards of a whole schedule above which a size is not tried: generating all schedules of it
takes too long."""

Pipelines = tuple[tuple[int, ...], ...]
"""Ranks of each pipeline in stage order."""

Doubts = tuple[bool, bool, bool]
"""Evidence against a match, the strongest first; see ``_find_doubts``."""


class _FittingSize(msgspec.Struct, frozen=True):
    """A size at which the order is a known schedule's."""

    size: int
    names: tuple[str, ...]  # of the schedules
    pipelines: Pipelines
    doubts: Doubts


def pipeline_of(rank: int, size: int, stride: int) -> tuple[int, ...]:
    """Return the ranks of the pipeline that contains a rank of a regular mesh.

    >>> pipeline_of(5, size=4, stride=2)
    (1, 3, 5, 7)
    """
    block = size * stride
    first = rank // block * block + rank % stride
    return tuple(range(first, first + block, stride))


def find_pipeline_size(
    ranks: Sequence[RankPipeline], wanted: str
) -> tuple[Pipelines, list[Notice]]:
    """Find the pipelines of ranks by the size that explains their order best.

    Args:
        ranks: Tables of the ranks.
        wanted: ``auto``, or the schedule that the user named.

    Returns:
        The pipelines, none if no size or several fit best, and notices about them.
    """
    fits = list(_fitting_sizes(ranks, wanted))
    numbers = tuple(rank.rank for rank in ranks)
    unsaid = f"{of_ranks(numbers)}nothing in the trace says how many ranks the pipeline has"
    if not fits:
        values: NoticeValues = {
            "case": "none_fits",
            "schedule": None if wanted == "auto" else wanted,
            "smallest": SIZES_TO_TRY[0],
            "largest": SIZES_TO_TRY[-1],
        }
        return (), [
            Notice(
                "no-schedule",
                f"{unsaid}, and {'no known schedule' if wanted == 'auto' else wanted} of {SIZES_TO_TRY[0]} to "
                f"{SIZES_TO_TRY[-1]} ranks has this order: no schedule is named; give more of its ranks, or "
                "--layout pp=N",
                ranks=numbers,
                values=values,
            )
        ]
    least_doubts = min(fit.doubts for fit in fits)
    best: list[_FittingSize] = []
    others: list[_FittingSize] = []
    for fit in fits:
        group = best if fit.doubts == least_doubts else others
        group.append(fit)
    schedules, sizes = _sizes_by_schedule(best)
    fitting: NoticeValues = {"case": "size", "schedules": schedules, "sizes": sizes}
    fitting_text = _schedules_with_sizes(schedules, sizes)
    if len(best) > 1:
        values = {**fitting, "case": "several_fit"}
        message = (
            f"{unsaid}, and the order is that of {fitting_text}: no schedule is named; give more of its ranks, or "
            "--layout pp=N"
        )
        return (), [Notice("no-schedule", message, ranks=numbers, values=values)]
    if not others:
        message = f"{unsaid}; its order is that of {fitting_text} and of no other size tried; override with --layout"
        notice = Notice("size-from-order", message, ranks=numbers, values=fitting)
        return best[0].pipelines, [notice]
    other_schedules, other_sizes = _sizes_by_schedule(others)
    values = {
        **fitting,
        "other_schedules": other_schedules,
        "other_sizes": other_sizes,
    }
    others_text = _schedules_with_sizes(other_schedules, other_sizes)
    message = (
        f"{unsaid}; its order is that of {fitting_text}, and less likely (blocks run apart, or other stages than the "
        f"ranges say) of {others_text}; traces of more ranks, or --layout, would decide it"
    )
    notice = Notice("schedule-ambiguous", message, ranks=numbers, values=values)
    return best[0].pipelines, [notice]


def _schedules_with_sizes(schedules: Sequence[str], sizes: Sequence[Sequence[int]]) -> str:
    """Return names of schedules with the sizes at which they fit.

    >>> _schedules_with_sizes(["1f1b", "gpipe"], [[4], [2, 3]])
    '1f1b of 4 ranks, gpipe of 2, 3 ranks'
    """
    pairs = zip(schedules, sizes, strict=True)
    return ", ".join(f"{schedule} of {listed(fitting)} ranks" for schedule, fitting in pairs)


def _sizes_by_schedule(
    fits: Sequence[_FittingSize],
) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Return the schedules that fit, and for each the sizes at which it does."""
    sizes: dict[str, list[int]] = {}
    for fit in fits:
        for name in fit.names:
            sizes.setdefault(name, []).append(fit.size)
    return tuple(sizes), tuple(tuple(fitting) for fitting in sizes.values())


def _fitting_sizes(ranks: Sequence[RankPipeline], wanted: str) -> Iterator[_FittingSize]:
    """Yield the sizes at which messages and orders of all ranks fit."""
    by_rank = {rank.rank: rank for rank in ranks}
    peers_of_rank: dict[int, set[int]] = {}
    stride = 0
    world_size = 0
    for rank in ranks:
        peers = set(rank.messages["peer"].drop_nulls().to_list()) - {rank.rank}
        peers_of_rank[rank.rank] = peers
        for peer in peers:
            stride = gcd(stride, peer - rank.rank)
        # What divides the world sizes of all ranks divides their greatest common divisor.
        world_size = gcd(world_size, rank.world_size or 0)
    if not stride:
        return
    for size in SIZES_TO_TRY:
        if world_size % (size * stride):
            continue
        pipelines = _pipelines_with_peers(peers_of_rank, size, stride)
        if pipelines is None:
            continue
        names: list[str] = []
        doubts: list[Doubts] = []
        for pipeline in pipelines:
            matched = _match_fullest_step(by_rank, pipeline, wanted)
            if matched is not None:
                match, match_doubts = matched
                names.append(match.schedule.name)
                doubts.append(match_doubts)
        if len(names) == len(pipelines):
            yield _FittingSize(size, tuple(dict.fromkeys(names)), pipelines, max(doubts))


def _pipelines_with_peers(
    peers_of_rank: Mapping[int, set[int]], size: int, stride: int
) -> Pipelines | None:
    """Return the pipelines that ranks are in, of one size; None if a rank has peers outside its own."""
    pipelines: dict[tuple[int, ...], None] = {}  # in the order of their first rank
    for rank, peers in peers_of_rank.items():
        pipeline = pipeline_of(rank, size, stride)
        if not peers.issubset(pipeline):
            return None
        pipelines[pipeline] = None
    return tuple(pipelines)


def _match_fullest_step(
    by_rank: Mapping[int, RankPipeline], pipeline_ranks: Sequence[int], wanted: str
) -> tuple[Match, Doubts] | None:
    """Return the schedule that the step with the most chunks follows, and the doubts.

    None if there is none.
    """
    ranks = [by_rank[rank] for rank in pipeline_ranks if rank in by_rank]
    steps = set.intersection(*(set(rank.by_step) for rank in ranks))
    if not steps:
        return None
    step = max(sorted(steps), key=lambda step: ranks[0].by_step[step][0].height)
    search = OrderSearch(assemble(by_rank, pipeline_ranks, step, Clocks.recorded([])))
    if search.pp * search.forwards > MAX_FORWARDS_TO_TRY:
        return None
    schedules = candidates(search.pp, search.forwards, searched=False)
    if wanted != "auto":
        named = named_candidates(wanted, search.pp, search.forwards)
        schedules = (schedule for schedule in named if schedule.pp == search.pp)
    match = search.exact_match(schedules)
    return (match, _find_doubts(match, search.pipeline)) if match else None


def _find_doubts(match: Match, pipeline: Pipeline) -> Doubts:
    """Return whether the stages differ from those of the ranges, blocks ran apart, and split backwards ran whole."""
    kinds = set(pipeline.detail["op"].cast(pl.String))
    other_stages = pipeline.stages_from == "annotations" and has_other_stages(
        pipeline.orders, match.schedule
    )
    blocks_apart = match.blocks_run_apart > 0 and "FB" not in kinds
    backwards_whole = match.backwards_run_whole > 0 and "W" not in kinds
    return other_stages, blocks_apart, backwards_whole
