"""Finding the schedule of a pipeline: equal to one, near to one, or a reason why none can be named."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import msgspec
import polars as pl

from tracekit._util.text import counted
from tracekit.compare import identify
from tracekit.compare.identify import Match
from tracekit.compare.judge import ELSEWHERE, elsewhere, unit_count
from tracekit.compare.replay import Graphs
from tracekit.errors import Notice
from tracekit.reconstruct.pipeline import Pipeline, same_order
from tracekit.reconstruct.steps import Known
from tracekit.schedules import Schedule


class Finder:
    """Matches of pipelines with their schedules: an order seen before is not searched for again."""

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self.graphs = Graphs()
        self.placed: Known = {}
        self._known: dict[Hashable, tuple[Match | None, list[Notice], bool]] = {}
        self._last: Schedule | None = None

    def copy(self) -> Finder:
        """Return a finder that knows what this one does, and learns on its own."""
        other = Finder(self.wanted)
        other.graphs, other.placed = self.graphs.copy(), dict(self.placed)
        other._known, other._last = dict(self._known), self._last
        return other

    def match(self, pipeline: Pipeline) -> tuple[Match | None, list[Notice]]:
        """Return the match of this pipeline's order, and the notices about it."""
        match, notices, _ = self._find(pipeline)
        self._last = match.schedule if match else self._last
        return match, [Notice(n.code, _unknown(pipeline)) if n.code == "order-unknown" else n for n in notices]

    def named_alike(self, pipeline: Pipeline) -> bool:
        """Return whether the pipeline's ops have the names that the schedule it matches gives them."""
        return self._find(pipeline)[2]

    def _find(self, pipeline: Pipeline) -> tuple[Match | None, list[Notice], bool]:
        key = (
            len(pipeline.ranks),
            pipeline.order_key,
            tuple((at, to, n) for at, sent in pipeline.traffic.items() for to, n in sorted(sent.items())),
            (pipeline.stages_from, pipeline.weights_counted, pipeline.placement.shape, pipeline.placement.virtual),
        )
        if key not in self._known:
            match, notices = _match(pipeline, self.wanted, self._last)
            alike = match is not None and match.exact and same_order(pipeline, match.schedule)
            self._known[key] = (match, notices, alike)
        return self._known[key]


class _Search(msgspec.Struct, frozen=True):
    """One pipeline's order, ready to be compared with schedules."""

    pipeline: Pipeline
    orders: identify.Orders
    pp: int
    forwards: int

    @classmethod
    def of(cls, pipeline: Pipeline) -> _Search:
        orders = pipeline.orders()
        forwards = max(sum(op.kind in ("F", "FB") for op in order) for order in orders.values())
        return cls(pipeline, orders, len(pipeline.ranks), forwards)

    @property
    def stages_known(self) -> bool:
        return self.pipeline.stages_from != "nothing"

    def equal(self, known: Sequence[Schedule]) -> Match | None:
        """Return which of *known* has exactly this order."""
        return identify.exact_match(
            self.orders,
            known,
            traffic=self.pipeline.traffic,
            stages_known=self.stages_known,
            weights_by_count=self.pipeline.weights_counted,
        )

    def asked_for(self, wanted: str) -> tuple[Match | None, list[Notice]]:
        """Return the match of the order with the schedule that the user named."""
        named = identify.named(wanted, self.pp, self.forwards)
        options = [plan for plan in named if plan.pp == self.pp]
        if not options:
            text = f"{wanted} cannot run {self.forwards} forwards on each of {self.pp} ranks"
            if named:
                text = f"{wanted} is an order of {counted(named[0].pp, 'rank')}, and the pipeline has {self.pp}"
            return None, [Notice("schedule-other", text)]
        match = self.equal(options)
        if match is None and self.stages_known:
            match = min((identify.against(self.orders, s) for s in options), key=lambda m: m.distance)
        return match, [] if match else [Notice("order-unknown", "")]

    def any_known(self, last: Schedule | None) -> tuple[Match | None, list[Notice]]:
        """Return the schedule with this order, or the nearest; *last* is tried first."""
        if last is not None and last.pp == self.pp and (match := self.equal([last])):
            return match, []
        place = self.pipeline.placement
        likely = identify.likely(self.pp, self.forwards, place.shape, place.virtual)
        if match := self._equal_to_any(likely):
            return match, []
        if reason := _cut(self.pipeline):
            return None, [reason]
        # One rank alone is near to any schedule: only an equal order says something.
        near = identify.nearest_match(self.orders, likely) if self.stages_known and self.pp > 1 else None
        if near is None:
            return None, [Notice("order-unknown", "")]
        return (near, []) if elsewhere(self.orders, near) <= ELSEWHERE else (None, [_too_far(near, self.pipeline)])

    def _equal_to_any(self, likely: Sequence[Schedule]) -> Match | None:
        everything = identify.Lazy(lambda: identify.candidates(self.pp, self.forwards))
        match = self.equal(likely) or self.equal(everything)
        if match is None:
            return None
        blocks = any(op.kind == "FB" for order in self.orders.values() for op in order)
        return identify.with_others(
            match,
            identify.candidates(self.pp, self.forwards, searched=False),  # a searched one has no order of its own
            self.equal,
            cells=self.pp * self.forwards,
            partial=len(self.orders) < self.pp,
            blocks=blocks,
        )


def _match(pipeline: Pipeline, wanted: str, last: Schedule | None) -> tuple[Match | None, list[Notice]]:
    search = _Search.of(pipeline)
    return search.any_known(last) if wanted == "auto" else search.asked_for(wanted)


def _too_far(match: Match, pipeline: Pipeline) -> Notice:
    text = f"step {pipeline.step}: its order is nearest to {match.schedule.name}'s, but {_places(match, pipeline)}"
    return Notice("schedule-doubtful", f"{text}: no schedule is named; give another order with --schedule FILE")


def _places(match: Match, pipeline: Pipeline) -> str:
    whole = sum(unit_count(match.schedule.ranks[at]) for at in pipeline.orders())
    return f"{match.distance} of its {whole} units of work are elsewhere"


def _cut(pipeline: Pipeline) -> Notice | None:
    """Return a notice of what shows that the trace has only part of the step's work; None where nothing does."""
    cells = pipeline.detail.with_columns(pl.col("op").cast(pl.String))
    forth = cells.filter(pl.col("op").is_in(["F", "FB"])).select("position", "pair")
    block = cells.filter(pl.col("op") == "FB").select("position", pair="b_pair")
    back = pl.concat([cells.filter(pl.col("op").is_in(["B", "I"])).select("position", "pair"), block])
    if back.is_empty():
        text = "forwards run and no backward: evaluation or inference, or the trace ends before the first backward"
        return Notice("forward-only", f"step {pipeline.step}: {text}; a training schedule cannot be named")
    open_, lost = (a.join(b, on=["position", "pair"], how="anti").height for a, b in ((forth, back), (back, forth)))
    counts = forth.group_by("position").len()["len"].unique().sort().to_list()
    if not open_ and not lost and len(counts) == 1:
        return None
    signs = [f"{open_} forwards have no backward"] * bool(open_) + [f"{lost} backwards have no forward"] * bool(lost)
    if len(counts) > 1:
        signs.append(f"the ranks ran {counts[0]} to {counts[-1]} forwards")
    text = f"step {pipeline.step} is cut: {', '.join(signs)}; which schedule it was part of is not certain"
    return Notice("step-cut", text)


def orders_differ(match: Match, pipeline: Pipeline) -> Notice:
    """Return a notice of how far the order is from the schedule's."""
    return Notice("order-differs", f"the order is not exactly {match.schedule.name}'s: {_places(match, pipeline)}")


def _unknown(pipeline: Pipeline) -> str:
    named = ", ".join(map(str, pipeline.ranks[:8])) + (" …" if len(pipeline.ranks) > 8 else "")
    stages = " and its stages are not known" if pipeline.stages_from == "nothing" else ""
    return f"pipeline of rank(s) {named}: its order is not a known schedule's{stages}; give one with --schedule FILE"
