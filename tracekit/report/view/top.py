"""The top of the page: three tiles (step, what is lost, biggest saving), a card per finding, and the clocks' badge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import polars as pl

from tracekit._util.text import counted, percent, short_ms, size
from tracekit.align.clocks import Clocks
from tracekit.analysis import Analysis
from tracekit.documents.analysis import Budget
from tracekit.documents.findings import Finding
from tracekit.documents.roles import Iteration
from tracekit.graph.critical_path.path import CriticalPath
from tracekit.metrics.process_phases import TRAIN
from tracekit.metrics.step_time import StepSummary
from tracekit.report.findings import is_at_most, is_of_one_iteration, remarks_on
from tracekit.report.view.answer import origin_of_free_step, unusual_steps
from tracekit.report.words import WORDS
from tracekit.schema import LABEL_WORDS

MAX_LABELS_IN_TILE = 3
"""Exposed labels that the tile names."""
MIN_SHARE_NAMED = 0.005
"""Share of the step from which a part of it is named."""
MIN_CLOCK_ERROR_SHARE = 0.01
"""How well clocks are known, as a share of the step, from which the badge is a caveat."""
MIN_OPEN_PATH_SHARE = 0.01
"""Share of the critical path whose rank clocks leave open, from which the badge says so."""
NOTHING_TO_GAIN = "nothing to gain that this recording shows"
SECTION_OF_CODE: Mapping[str, str] = {
    "schedule_gap": "gap",
    "memory_peak": "memory",
    "out_of_memory": "memory",
    "fragmentation": "memory",
    "leak": "memory",
    "exposed_comm": "overlap",
    "exposed_copy": "overlap",
    "slow_kernel": "rates",
}
"""Section of the page that shows a finding without a place in the timeline, by its code."""
LABEL_OF_CODE: Mapping[str, str] = {"optimizer": "optimizer", "recompute": "recompute"}
"""Label whose kernels a finding is about, by its code; of transfers the evidence names it."""
MAX_SPREAD_OF_ALIKE_STEPS = 0.1
"""Difference between the longest and the shortest step, as a share of the step, up to which they
are alike."""


class Tile(msgspec.Struct, frozen=True):
    """One figure of the top, what it is, and a line about it."""

    name: str
    figure: str
    text: str
    target: str
    """Section of the page that it leads to."""
    number: int | None = None
    """Number of the finding that it shows; None for other tiles."""


class Card(msgspec.Struct, frozen=True):
    """A finding as the page shows it."""

    number: int
    finding: Finding
    figure: str
    """Saving, else cost, with its unit."""
    of_step: str
    """What the figure is, and its share of the step."""
    section: str | None
    """Section that shows it if it has no place in the timeline."""
    search: str | None
    """Search of the timeline that finds its kernels; None if it is not about one operator."""
    remarks: str = ""
    """What is to be known about its saving; empty if nothing is."""


class ClockBadge(msgspec.Struct, frozen=True):
    """How well the ranks' clocks agree."""

    text: str
    facts: tuple[str, ...]
    """What is uncertain because of it, a sentence each."""
    is_caveat: bool


def step_tile(step: StepSummary, ranks: str) -> Tile:
    """Return the tile of the step time."""
    usual = [each.time_ns for each in step.usual]
    steps = "" if step.is_marked else "no step marks: the whole recording"
    if step.unusual:
        steps = unusual_steps(step)
    elif len(usual) > 1:
        spread = (max(usual) - min(usual)) / max(step.time_ns or 0, 1)
        differ = "within" if spread <= MAX_SPREAD_OF_ALIKE_STEPS else "that differ by up to"
        noun = "recorded step" if step.profiler_ns else "step"
        steps = f"{counted(len(usual), noun)} {differ} {percent(max(spread, 0.01), digits=0)}"
    elif step.is_marked:
        steps = "one step recorded"
    figure = "unknown" if step.shown_ns is None else short_ms(step.shown_ns)
    recorded = f"without the profiler: {origin_of_free_step(step)}" if step.profiler_ns else ""
    return Tile(
        "Step" if step.is_marked else "Recording",
        figure,
        " · ".join(filter(None, (recorded, ranks, steps))),
        "budget",
    )


def lost_tile(budget: Budget, *, idle_known: bool = True) -> Tile:
    """Return the tile of what the step loses: exposed communication and copies, or idle time if that is more.

    >>> tile = lost_tile(Budget(compute_ns=60, exposed_ns={"dp_comm": 30, "pp_comm": 4}, idle=6))
    >>> tile.name, tile.figure, tile.text
    ('Exposed', '34 %', 'data-parallel communication (dp_comm) 30 %, pipeline communication (pp_comm) 4 %; idle 6 %')
    >>> lost_tile(Budget(compute_ns=60, exposed_ns={"dp_comm": 10}, idle=30)).name
    'Idle'
    """
    span_ns = max(budget.recorded_ns, 1)
    exposed_ns = sum(budget.exposed_ns.values())
    longest = sorted(budget.exposed_ns.items(), key=lambda item: -item[1])
    named = [(label, ns) for label, ns in longest if ns >= MIN_SHARE_NAMED * span_ns]
    labels = []
    for label, ns in named:
        labels.append(
            f"{LABEL_WORDS.get(label, label)} ({label}) {percent(ns / span_ns, digits=0)}"
        )
    labels = labels[:MAX_LABELS_IN_TILE] + (
        ["and others"] if len(labels) > MAX_LABELS_IN_TILE else []
    )
    idle_share = percent(budget.idle_ns / span_ns, digits=0)
    exposed_share = percent(exposed_ns / span_ns, digits=0)
    compute = f"compute {percent(budget.compute_ns / span_ns, digits=0)}"
    if budget.idle_ns > exposed_ns:
        name = "Idle" if idle_known else "Idle or not recorded"
        return Tile(
            name, idle_share, f"the GPU runs nothing; {compute}, exposed {exposed_share}", "budget"
        )
    what = ", ".join(labels) or "communication and copies are hidden"
    idle = f"idle {idle_share}" if idle_known else ""
    return Tile("Exposed", exposed_share, "; ".join(filter(None, (what, idle))), "budget")


def role_tiles(
    iterations: Sequence[Iteration], costs: Sequence[Finding], ranks: str
) -> tuple[Tile, ...]:
    """Return the tiles of an RL loop: its iteration, what of it is training, and the biggest likely saving.

    *costs* are the findings with which the list begins.
    """
    times_ns = [iteration.end_ns - iteration.start_ns for iteration in iterations]
    total_ns = sum(times_ns)
    spread = f"{counted(len(times_ns), 'iteration')}"
    if len(times_ns) > 1:
        spread = f"mean of {spread}, {short_ms(min(times_ns))} to {short_ms(max(times_ns))}"
    phase_ns: dict[str, int] = {}
    for iteration in iterations:
        for phase, ns in iteration.phase_ns.items():
            phase_ns[phase] = phase_ns.get(phase, 0) + ns
    train_ns = phase_ns.pop(TRAIN, 0)
    longest_first = sorted(phase_ns.items(), key=lambda item: -item[1])
    others = []
    for phase, ns in longest_first:
        if ns >= MIN_SHARE_NAMED * total_ns:
            words = "no role runs" if phase == "idle" else WORDS.phases[phase]
            others.append(f"{words} {percent(ns / total_ns, digits=0)}")
    train = percent(train_ns / total_ns, digits=0)
    tiles = (
        Tile(
            "Iteration", short_ms(total_ns / len(iterations)), f"{ranks} · {spread}", "iterations"
        ),
        Tile("Training", train, ", ".join(others) or "all of the iteration", "iterations"),
    )
    return (*tiles, saving_tile(costs))


def saving_tile(findings: Sequence[Finding]) -> Tile:
    """Return the tile of the first predicted saving; without one, of the biggest cost."""
    numbered = list(enumerate(findings, start=1))
    savings = [(number, finding) for number, finding in numbered if finding.saving_ns]
    if savings:
        number, finding = savings[0]  # they are ordered by what they are likely to save
        return Tile("Biggest likely saving", figure_of(finding), finding.text, "findings", number)
    costs = [(number, finding) for number, finding in numbered if finding.cost_ns]
    if costs:
        number, finding = max(costs, key=lambda pair: pair[1].cost_ns)
        return Tile("Biggest cost", figure_of(finding), finding.text, "findings", number)
    return Tile("Biggest saving", "none", NOTHING_TO_GAIN, "findings")


def figure_of(finding: Finding) -> str:
    """Return what a finding is likely to save, behind ≤ at most, as the terminal says it.

    >>> figure_of(Finding(code="host_sync", cost_ns=4_000_000, share=0.2, saves_ns=3_000_000))
    '3.00 ms'
    >>> figure_of(Finding(code="host_sync", cost_ns=4_000_000, share=0.2))
    '≤ 4.00 ms'
    >>> figure_of(Finding(code="leak", cost_ns=0, cost_bytes=8_388_608, share=0.0))
    '8.4 MB'
    >>> figure_of(Finding(code="hang", cost_ns=3_000_000_000, share=54.0))
    '3.00 s'
    """
    if finding.cost_bytes and not finding.cost_ns:
        return size(finding.cost_bytes)
    return f"{'≤ ' if is_at_most(finding) else ''}{short_ms(finding.effect_ns)}"


def cards(findings: Sequence[Finding], budget: Budget) -> list[Card]:
    """Return a card for each finding, in their order; *budget* holds the parts of the step."""
    numbered_cards = []
    for number, finding in enumerate(findings, start=1):
        numbered_cards.append(
            Card(
                number,
                finding,
                figure_of(finding),
                _of_step(finding),
                section=SECTION_OF_CODE.get(finding.code),
                search=_search(finding),
                remarks=remarks_on(finding, number, budget),
            )
        )
    return numbered_cards


def _search(finding: Finding) -> str | None:
    """Return the search for the operator or the label that a finding is about.

    None if it is about something else.

    >>> _search(Finding(code="slow_kernel", cost_ns=1, share=0.1, evidence={"op": "aten::mm"}))
    'op:"aten::mm"'
    >>> _search(Finding(code="optimizer", cost_ns=1, share=0.1))
    'label:=optimizer'
    """
    operator = finding.evidence.get("op")
    if finding.code == "slow_kernel" and operator:
        return f'op:"{operator}"'
    label = LABEL_OF_CODE.get(finding.code, finding.evidence.get("label"))
    return f"label:={label}" if label else None


def _of_step(finding: Finding) -> str:
    """Return what a card's figure is, and its share of the step, or of what else it is a share of.

    >>> _of_step(Finding(code="x", cost_ns=4, share=0.2, saves_ns=3, saves_range_ns=(0, 3)))
    'saved at most, 15 % of the step'
    >>> _of_step(Finding(code="x", cost_ns=4, share=0.2, evidence={"steps_marked": False}))
    'saved at most, 20 % of the recording'
    """
    if finding.cost_bytes and not finding.cost_ns:
        return "of memory"
    if finding.code == "hang":
        return "waited at least"
    default = "recording" if finding.evidence.get("steps_marked") is False else "step"
    whole = finding.evidence.get("share_of", default)
    saved = "saved at most" if is_at_most(finding) else "saved"
    if is_of_one_iteration(finding):
        return f"{saved}, once"
    return f"{saved}, {percent(finding.effect_share, digits=0)} of the {whole}"


def badge_of(analysis: Analysis) -> ClockBadge | None:
    """Return how well clocks agree; None for one rank."""
    if len(analysis.rank_results) < 2:
        return None
    return clock_badge(analysis.clocks, analysis.step.time_ns or 0, analysis.walked_path)


def clock_badge(clocks: Clocks, step_ns: int, path: CriticalPath | None) -> ClockBadge:
    """Return how well clocks agree in a run with steps of *step_ns*, and what that leaves open of the critical path."""
    facts = _open_because_of_clocks(path)
    error_ns = clocks.residual_ns
    if error_ns is None:
        first = "Nothing ties the clocks of these ranks together: what waits for whom is not known."
        return ClockBadge("clocks not compared", (first, *facts), is_caveat=True)
    uncertainty_ns = clocks.table["uncertainty_ns"].max()
    known_ns = max(error_ns, uncertainty_ns) if isinstance(uncertainty_ns, int) else error_ns
    is_caveat = known_ns > MIN_CLOCK_ERROR_SHARE * step_ns or bool(facts)
    text = f"ranks' clocks known to {short_ms(known_ns)}" if is_caveat else "clocks agree"
    first = (
        f"Operations that ranks took part in together end within {short_ms(error_ns)} of each other (median);"
        f" each rank's clock is known to {short_ms(known_ns)} or better."
    )
    return ClockBadge(text, (first, *facts), is_caveat)


def _open_because_of_clocks(path: CriticalPath | None) -> tuple[str, ...]:
    """Return what is not certain because clocks are not known better, a sentence each."""
    if path is None or len(path.candidates) < 2:
        return ()
    path_ns = int(path.pieces.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item())
    if path.uncertain_ns < MIN_OPEN_PATH_SHARE * path_ns:
        return ()
    share = percent(path.uncertain_ns, path_ns, digits=0)
    return (f"For {share} of the critical path it is open which rank it follows.",)
