"""Finding the schedule of a pipeline: equal to one, near to one, or a reason why none can be named."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import polars as pl

from tracekit._util.text import counted
from tracekit.compare import identify
from tracekit.compare.identify import Match
from tracekit.compare.orders import units
from tracekit.errors import Notice
from tracekit.reconstruct.pipeline import Pipeline
from tracekit.schedules import Op, Schedule

NEAR = 0.5
"""Share of the units of work that may stand elsewhere for a schedule to be called the nearest."""
NEAR_CUT = 0.1
"""The same where the trace begins or ends inside the step, so that any short order is near to it."""


class Finder:
    """Matches of pipelines with their schedules: an order seen before is not searched for again."""

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self._known: dict[Hashable, tuple[Match | None, list[Notice]]] = {}
        self._last: Schedule | None = None

    def match(self, pipeline: Pipeline) -> tuple[Match | None, list[Notice]]:
        """Return the match of this pipeline's order, and what is to be said about it."""
        key = (
            len(pipeline.ranks),
            tuple((at, *order) for at, order in pipeline.orders().items()),
            tuple((at, to, n) for at, sent in pipeline.traffic.items() for to, n in sorted(sent.items())),
            (pipeline.stages_from, pipeline.weights_counted, pipeline.placement.shape, pipeline.placement.virtual),
        )
        if key not in self._known:
            self._known[key] = _match(pipeline, self.wanted, self._last)
        match, notices = self._known[key]
        self._last = match.schedule if match else self._last
        return match, [Notice(n.code, _unknown(pipeline)) if n.code == "order-unknown" else n for n in notices]


def _match(pipeline: Pipeline, wanted: str, last: Schedule | None) -> tuple[Match | None, list[Notice]]:
    orders = pipeline.orders()
    pp = len(pipeline.ranks)
    forwards = max(sum(op.kind in ("F", "FB") for op in order) for order in orders.values())
    stages_known = pipeline.stages_from != "nothing"

    def equal(known: Sequence[Schedule]) -> Match | None:
        return identify.exact_match(
            orders,
            known,
            traffic=pipeline.traffic,
            stages_known=stages_known,
            weights_by_count=pipeline.weights_counted,
        )

    if wanted != "auto":
        named = identify.named(wanted, pp, forwards)
        options = [one for one in named if one.pp == pp]
        if not options:
            text = f"{wanted} cannot run {forwards} forwards on each of {pp} ranks"
            if named:
                text = f"{wanted} is an order of {counted(named[0].pp, 'rank')}, and the pipeline has {pp}"
            return None, [Notice("schedule-other", text)]
        found = equal(options)
        if found is None and stages_known:
            found = min((identify.against(orders, s) for s in options), key=lambda m: m.distance)
        return found, [] if found else [Notice("order-unknown", "")]
    if last is not None and last.pp == pp and (found := equal([last])):
        return found, []
    likely = identify.likely(pp, forwards, pipeline.placement.shape, pipeline.placement.virtual)
    everything = identify.Lazy(lambda: identify.candidates(pp, forwards))
    if found := equal(likely) or equal(everything):
        blocks = any(op.kind == "FB" for order in orders.values() for op in order)
        partial = len(orders) < pp
        found = identify.with_others(found, everything, equal, cells=pp * forwards, partial=partial, blocks=blocks)
        return found, []
    reason = _cut(pipeline)
    # One rank alone is near to any schedule: only an equal order says something.
    near = _nearest(orders, likely, NEAR_CUT if reason else NEAR) if stages_known and pp > 1 else None
    return near, [reason] if reason else [] if near else [Notice("order-unknown", "")]


def _nearest(orders: identify.Orders, likely: Sequence[Schedule], limit: float) -> Match | None:
    found = identify.nearest_match(orders, likely)
    return found if found and found.distance <= limit * _units(orders, found) else None


def _units(orders: identify.Orders, match: Match) -> int:
    """Return the units of work of both orders: so many stand elsewhere where they have nothing in common."""
    return sum(_count(order) + _count(match.schedule.ranks[at]) for at, order in orders.items())


def _count(order: Sequence[Op]) -> int:
    return sum(len(units(op)) for op in order)


def _cut(pipeline: Pipeline) -> Notice | None:
    """Return what shows that the trace holds only a part of the step's work; None where nothing does."""
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
    said = [f"{open_} forwards have no backward"] * bool(open_) + [f"{lost} backwards no forward"] * bool(lost)
    if len(counts) > 1:
        said.append(f"the ranks ran {counts[0]} to {counts[-1]} forwards")
    text = f"step {pipeline.step} is cut: {', '.join(said)}; what schedule it was part of cannot be told for certain"
    return Notice("step-cut", text)


def orders_differ(match: Match, pipeline: Pipeline) -> Notice:
    """Return how far the order is from the schedule's."""
    whole = _units(pipeline.orders(), match) // 2
    text = f"the order is not exactly {match.schedule.name}'s: {match.distance} units of work of about {whole}"
    return Notice("order-differs", f"{text} stand elsewhere")


def _unknown(pipeline: Pipeline) -> str:
    named = ", ".join(map(str, pipeline.ranks[:8])) + (" …" if len(pipeline.ranks) > 8 else "")
    stages = " and its stages cannot be told" if pipeline.stages_from == "nothing" else ""
    return f"pipeline of rank(s) {named}: its order is no known schedule's{stages}; --schedule FILE gives another order"
