"""Identification of the schedule of a pipeline, or the reason why none is named.

A schedule is named only if at most a tenth of its units of work are elsewhere in the run, its ideal is not above the
measurement, and little of the time between them stays unexplained.
"""

from collections.abc import Hashable, Iterable, Mapping

import msgspec
import polars as pl
from msgspec.structs import replace

from tracekit._util.text import counted, ms, percent
from tracekit.compare import identify
from tracekit.compare.identify import Match, Orders
from tracekit.compare.replay import GraphCache
from tracekit.errors import Notice
from tracekit.reconstruct.pipeline import Pipeline, has_same_order
from tracekit.reconstruct.pipeline_steps import StepCache
from tracekit.schedules import Schedule
from tracekit.schedules.registry import describe

MAX_MISPLACED_SHARE = 0.1
"""Share of a schedule's units of work that may be elsewhere in the run for the schedule to be named."""
MAX_IDEAL_EXCESS = 0.01
"""Share of the measured makespan by which an ideal may be above it: mean times of cells are rounded."""
MAX_UNEXPLAINED_SHARE = 0.1
"""Share of the measured makespan that may stay unexplained, or be explained twice, for a comparison to be shown."""


class Finding(msgspec.Struct, frozen=True):
    """Result of the search for one order."""

    match: Match | None
    notices: list[Notice]
    has_schedule_names: bool  # whether the ops are named as in the schedule


class ScheduleFinder:
    """Search for the schedules of pipelines; an order seen before is not searched for again.

    The finder also keeps what else was computed for pipelines and steps that look alike: ``graphs`` and ``placed``.
    """

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted  # "auto", a schedule's name or a file of orders
        self.graphs: GraphCache = {}
        self.placed: StepCache = {}
        self._findings: dict[Hashable, Finding] = {}
        self._last_schedule: Schedule | None = None

    def find(self, pipeline: Pipeline) -> Finding:
        """Return the match of a pipeline's order, and the notices about it."""
        finding = self._find(pipeline)
        if finding.match is not None:
            self._last_schedule = finding.match.schedule
        # Another pipeline may have had this order first: the notice names the ranks of this one.
        own_notices = [
            _order_unknown(pipeline) if notice.code == "order-unknown" else notice for notice in finding.notices
        ]
        return replace(finding, notices=own_notices)

    def _find(self, pipeline: Pipeline) -> Finding:
        placement = pipeline.placement
        key = (
            len(pipeline.ranks),
            pipeline.order_key,
            tuple((sender, *message) for sender, sent in pipeline.traffic.items() for message in sorted(sent.items())),
            (pipeline.stages_from, pipeline.weights_counted, placement.shape, placement.virtual),
        )
        if key not in self._findings:
            search = OrderSearch(pipeline)
            if self.wanted == "auto":
                match, notices = search.find_any(self._last_schedule)
            else:
                match, notices = search.find_named(self.wanted)
            named = match is not None and match.exact and has_same_order(pipeline, match.schedule)
            self._findings[key] = Finding(match, notices, named)
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
            text = f"{wanted} cannot run {self.forwards} forwards on each of {self.pp} ranks"
            if named:
                text = f"{wanted} is an order of {counted(named[0].pp, 'rank')}, and the pipeline has {self.pp}"
            return None, [Notice("schedule-other", text)]
        match = self.exact_match(schedules)
        if match is None and self.stages_known:
            match = min((identify.match_with(self.orders, s) for s in schedules), key=lambda match: match.distance)
            ran = self.exact_match(self._likely())
            match = replace(match, ran=ran.schedule if ran is not None else None)
        return match, [] if match else [_order_unknown(self.pipeline)]

    def find_any(self, last: Schedule | None) -> tuple[Match | None, list[Notice]]:
        """Return the match with the schedule that has this order, or with the nearest; *last* is tried first."""
        if last is not None and last.pp == self.pp and (match := self.exact_match([last])):
            return match, []
        if match := self.exact_match(self._likely()) or self.exact_match(identify.candidates(self.pp, self.forwards)):
            return self._with_ambiguous_names(match), []
        if notice := _find_cut(self.pipeline):
            return None, [notice]
        # The order of a single rank is near to that of any schedule: only an equal one is evidence.
        nearest = identify.nearest_match(self.orders, self._likely()) if self.stages_known and self.pp > 1 else None
        if nearest is None:
            return None, [_order_unknown(self.pipeline)]
        if misplaced_share(self.orders, nearest) <= MAX_MISPLACED_SHARE:
            return nearest, []
        step, name = self.pipeline.step, nearest.schedule.name
        text = f"step {step}: its order is nearest to {name}'s, but {_misplaced_units(nearest, self.pipeline)}"
        text += ": no schedule is named; give another order with --schedule FILE"
        return None, [Notice("schedule-doubtful", text)]

    def _likely(self) -> Iterable[Schedule]:
        placement = self.pipeline.placement
        return identify.likely_candidates(self.pp, self.forwards, placement.shape, placement.virtual)

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

        Schedules whose order is searched for have no order of their own and are left out; so are large schedules,
        because generating all of them takes too long.
        """
        if self.pp * self.forwards > identify.MAX_CACHED_FORWARDS:
            return match
        ran_blocks = any(identify.count_ops(order, "FB") for order in self.orders.values())
        may_have_blocks = len(self.orders) < self.pp or match.blocks_run_apart > 0
        others: list[str] = []
        for schedule in identify.candidates(self.pp, self.forwards, searched=False):
            if schedule.name in (match.schedule.name, *others):
                continue
            if schedule.virtual == 1 and describe(schedule.name).virtual is None:
                continue  # an interleaved schedule with one chunk is the plain one
            other = self.exact_match([schedule])
            if other is None or (other.blocks_run_apart and not may_have_blocks):
                continue
            if not ran_blocks or any(identify.count_ops(order, "FB") for order in schedule.ranks):
                others.append(schedule.name)
        return replace(match, ambiguous_with=tuple(others)) if others else match


def _find_cut(pipeline: Pipeline) -> Notice | None:
    """Return a notice if the trace has only a part of the step's work."""
    cells = pipeline.detail.with_columns(pl.col("op").cast(pl.String))
    forwards = cells.filter(pl.col("op").is_in(["F", "FB"])).select("position", "pair")
    blocks = cells.filter(pl.col("op") == "FB").select("position", pair="b_pair")
    backwards = pl.concat([cells.filter(pl.col("op").is_in(["B", "I"])).select("position", "pair"), blocks])
    if backwards.is_empty():
        text = "forwards run and no backward: evaluation or inference, or the trace ends before the first backward"
        return Notice("forward-only", f"step {pipeline.step}: {text}; a training schedule cannot be named")
    signs = []
    without_backward = forwards.join(backwards, on=["position", "pair"], how="anti").height
    if without_backward:
        signs.append(f"{without_backward} forwards have no backward")
    without_forward = backwards.join(forwards, on=["position", "pair"], how="anti").height
    if without_forward:
        signs.append(f"{without_forward} backwards have no forward")
    counts = forwards.group_by("position").len()["len"].unique().sort().to_list()
    if len(counts) > 1:
        signs.append(f"the ranks ran {counts[0]} to {counts[-1]} forwards")
    if not signs:
        return None
    text = f"step {pipeline.step} is cut: {', '.join(signs)}; which schedule it was part of is not certain"
    return Notice("step-cut", text)


def misplaced_share(orders: Orders, match: Match) -> float:
    """Return the share of the schedule's units of work, on the ranks with a trace, that are elsewhere in the run."""
    return match.distance / max(1, _count_units(orders, match.schedule))


def _count_units(orders: Orders, schedule: Schedule) -> int:
    """Return the schedule's units of work on the ranks with a trace: a B has two, an FB three."""
    return sum(len(identify.units(op)) for position in orders for op in schedule.ranks[position])


def _misplaced_units(match: Match, pipeline: Pipeline) -> str:
    return f"{match.distance} of its {_count_units(pipeline.orders, match.schedule)} units of work are elsewhere"


def order_differs_notice(match: Match, pipeline: Pipeline) -> Notice:
    """Return a notice with the distance of the order from the schedule's."""
    text = f"the order is not exactly {match.schedule.name}'s: {_misplaced_units(match, pipeline)}"
    return Notice("order-differs", text)


def _order_unknown(pipeline: Pipeline) -> Notice:
    ranks = ", ".join(map(str, pipeline.ranks[:8])) + (" …" if len(pipeline.ranks) > 8 else "")
    stages = " and its stages are not known" if pipeline.stages_from == "nothing" else ""
    text = f"pipeline of rank(s) {ranks}: its order is not a known schedule's{stages}; give one with --schedule FILE"
    return Notice("order-unknown", text)


def find_doubt(match: Match, *, measured_ns: int, ideal_ns: int, gap_ns: Mapping[str, int] | None) -> str | None:
    """Return the reason why a comparison should not be shown; None if there is none.

    Args:
        match: Schedule compared with.
        measured_ns: Measured makespan.
        ideal_ns: Makespan of the ideal.
        gap_ns: Parts of the gap; None if ranks are missing. Some ranks alone may be faster than the ideal of all.
    """
    if gap_ns is None:
        return None
    name = match.schedule.name
    if ideal_ns > (1 + MAX_IDEAL_EXCESS) * measured_ns:
        return f"the ideal of {name} at the run's own times, {ms(ideal_ns)}, is above the {ms(measured_ns)} measured"
    unexplained_ns = abs(gap_ns["unexplained"])
    if unexplained_ns > MAX_UNEXPLAINED_SHARE * measured_ns:
        share = percent(unexplained_ns, measured_ns)
        return f"compared with {name}, {share} of the {ms(measured_ns)} measured would stay unexplained"
    explained_twice_ns = -sum(min(0, ns) for ns in gap_ns.values())
    if explained_twice_ns > MAX_UNEXPLAINED_SHARE * measured_ns:
        share = percent(explained_twice_ns, measured_ns)
        return f"compared with {name}, {share} of the {ms(measured_ns)} measured would have two causes"
    return None
