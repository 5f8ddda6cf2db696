"""The pipeline compared with its ideal: both schedule spans, the gap by cause, and predictions for other schedules."""

from collections.abc import Iterable, Sequence

import msgspec
import polars as pl
from msgspec.structs import asdict

from tracekit._util.text import counted
from tracekit.analysis import Analysis
from tracekit.documents.analysis import Difference
from tracekit.metrics.overlap import ratio
from tracekit.pipeline.against_ideal import ScheduleComparison, WhatIf
from tracekit.pipeline.schedules import Schedule
from tracekit.report.notices import notice_sentence
from tracekit.report.table import Column, Table, make_table
from tracekit.report.view.ranks import beyond_noise
from tracekit.report.words import WORDS
from tracekit.schema import GAP_CAUSES, PHASES

LANE_PHASES = (*PHASES, "FB")
"""Phases whose hidden shares are shown; ``FB``: only inside overlapped pairs of forward and
backward."""
_HIDDEN_LABELS = ("ep_dispatch", "ep_combine", "offload", "onload")
"""Labels whose hidden share is shown by phase."""
_FIXED_CHUNKS = ("dualpipe", "dualpipev", "zb-v", "chimera")
"""Schedules that always have two chunks per rank and take no ``--virtual``."""


class Rung(msgspec.Struct, frozen=True):
    """One bar of the waterfall from the ideal to the run."""

    name: str
    ns: int
    low_ns: int
    high_ns: int
    kind: str
    """``total``, ``more`` or ``less``."""
    share: float | None
    """Share of the gap."""


class WhatIfRow(WhatIf, frozen=True):
    """The prediction for another schedule, another layout, or the run without one cause of its gap."""

    command: str | None = None
    """Command that draws the schedule."""

    @property
    def title(self) -> str:
        """Name of the change, with the chunks per rank."""
        chunks = f" × {self.virtual}" if self.virtual and self.virtual > 1 else ""
        return f"{self.name}{chunks}{' (this run)' if self.ran else ''}"

    @property
    def basis(self) -> tuple[str, ...]:
        """The assumptions of the prediction, and what is not known."""
        return (*self.rests_on, *(f"not known: {text}" for text in self.unknown))


class ScheduleView:
    """The pipeline compared with its ideal."""

    def __init__(self, comparison: ScheduleComparison) -> None:
        self.comparison = comparison
        """The comparison itself: the schedule that ran (the nearest one if not exact) and what it
        is compared with."""
        self.head = comparison.head
        """The pipeline and step that the figures describe."""
        match = comparison.head.match
        ranks = comparison.head.pipeline.ranks
        self.sizes = describe_size(comparison)
        self.which = describe_choice(comparison)
        """The step and pipeline shown, if there are several; else empty."""
        self.gap = _gap(comparison)
        """Bars from the ideal to the measured schedule span; None if the gap cannot be split by
        cause."""
        self.gap_note = _gap_note(comparison)
        """Why the gap is not split."""
        self.differences: tuple[str, ...] = ()
        if match.ran is None:
            self.differences = tuple(_difference(row, ranks) for row in match.differences)
        self.orders = tuple(zip(ranks, comparison.head.orders(), strict=True))
        self.phases = _phases_table(comparison.lanes)
        """Hidden shares of labels by phase."""
        self.what_if = tuple(_what_if(line, match.schedule) for line in comparison.what_if)

    @property
    def alternatives(self) -> tuple[WhatIfRow, ...]:
        """The what-ifs that are comparable with the run: other schedules or layouts."""
        return tuple(row for row in self.what_if if row.change in ("schedule", "layout"))

    @property
    def span_meaning(self) -> str:
        """The schedule span, and how it relates to the step."""
        return WORDS.schedule_definitions["schedule span"]

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions and unknowns of the what-ifs, each once."""
        texts: list[str] = []
        for row in self.alternatives:
            if not row.ran:
                texts += row.basis
        return tuple(dict.fromkeys(texts))


def _difference(difference: Difference, ranks: Sequence[int]) -> str:
    """Return what a rank ran instead of what the schedule has."""
    measured = " ".join(difference.measured) or "nothing"
    expected = " ".join(difference.expected) or "nothing"
    where = f"rank {ranks[difference.rank]}, cell {difference.position}"
    return f"{where}: ran {measured}, the schedule has {expected}"


def _gap_note(comparison: ScheduleComparison) -> str | None:
    """Return why the gap is not split by cause; None if it is."""
    if comparison.gap_ns is not None:
        return None
    doubts = [
        notice_sentence(notice)
        for notice in comparison.head.notices
        if notice.code == "gap-doubtful"
    ]
    present = len(comparison.head.pipeline.positions)
    ranks = len(comparison.head.pipeline.ranks)
    if doubts:
        return doubts[0]
    return f"{present} of the pipeline's {ranks} ranks are here: the gap is not split by cause"


def describe_size(comparison: ScheduleComparison) -> str:
    """Return the size of a pipeline in words: ranks, micro-batches, chunks."""
    chunks = f", {comparison.virtual} chunks per rank" if comparison.virtual > 1 else ""
    return f"{counted(comparison.pp, 'pipeline rank')}, {counted(comparison.microbatches, 'micro-batch')}{chunks}"


def describe_choice(comparison: ScheduleComparison) -> str:
    """Return the step and pipeline that are shown, in words; empty if there is one of each."""
    pipelines = len(comparison.pipelines)
    steps = len({(step.pipeline.ranks, step.pipeline.step) for step in comparison.all}) // max(
        1, pipelines
    )
    parts = []
    if steps > 1:
        parts.append(f"step {comparison.head.pipeline.step}, the median of {steps}")
    if pipelines > 1:
        number = comparison.pipelines.index(comparison.head.pipeline.ranks)
        numbers = f"0 {'and' if pipelines == 2 else 'to'} {pipelines - 1}"  # as --pipeline counts
        compared = "" if comparison.chosen else _compared_with_other_pipelines(comparison)
        parts.append(f"pipeline {number} (of {numbers}){compared}")
    return ", ".join(parts)


def _compared_with_other_pipelines(comparison: ScheduleComparison) -> str:
    """Return how the pipeline shown compares with the others: the slowest, equal to all, or nothing to say."""
    times: dict[tuple[int, ...], list[int]] = {}
    for pipeline_step in comparison.all:
        times.setdefault(tuple(pipeline_step.pipeline.ranks), []).append(pipeline_step.measured_ns)
    means = sorted((sum(ns) / len(ns) for ns in times.values()), reverse=True)
    if beyond_noise(means[0], means[1]):
        return ", the slowest"
    if beyond_noise(means[0], means[-1]):
        return ""
    return ", all alike" if len(means) > 2 else ", both alike"


def waterfall(
    first: tuple[str, int], last: tuple[str, int], changes: Iterable[tuple[str, int]]
) -> tuple[Rung, ...]:
    """Return the bars from a first to a last total, one per change, each from the level where the one before it ends.

    >>> [(rung.name, rung.low_ns, rung.high_ns) for rung in waterfall(("ideal", 5), ("measured", 9), [("late", 4)])]
    [('ideal', 0, 5), ('late', 5, 9), ('measured', 0, 9)]
    """
    rungs = [Rung(*first, 0, first[1], "total", None)]
    level_ns = first[1]
    whole_ns = last[1] - first[1]
    for name, ns in changes:
        low_ns, high_ns = sorted((level_ns, level_ns + ns))
        share = ns / whole_ns if whole_ns > 0 else None
        rungs.append(Rung(name, ns, low_ns, high_ns, "more" if ns > 0 else "less", share))
        level_ns += ns
    return (*rungs, Rung(*last, 0, last[1], "total", None))


def _gap(comparison: ScheduleComparison) -> tuple[Rung, ...] | None:
    """Return the bars from the ideal to the measured schedule span, largest cause first, the unexplained part last."""
    if comparison.gap_ns is None:
        return None
    largest_first = sorted(
        comparison.gap_ns.items(), key=lambda item: (item[0] == "unexplained", -item[1])
    )
    causes = ((GAP_CAUSES[cause], ns) for cause, ns in largest_first if ns)
    return waterfall(
        ("ideal", comparison.head.ideal_ns), ("measured", comparison.head.measured_ns), causes
    )


def unnamed_phases(analysis: Analysis) -> Table | None:
    """Return the hidden shares by phase for a run whose schedule was not recognised."""
    if analysis.schedule is not None or "lanes" not in analysis.tables:
        return None
    return _phases_table(analysis.tables["lanes"])


def _phases_table(lanes: pl.DataFrame) -> Table | None:
    """Return the shares of expert communication and copies that compute hides, by phase."""
    rows: list[tuple[str | float | None, ...]] = []
    searches: dict[str, str] = {}
    hideable = lanes.filter(pl.col("label").is_in(_HIDDEN_LABELS))
    for (label, pass_), part in hideable.group_by("label", "pass", maintain_order=True):
        name = f"{label} {pass_}" if pass_ else str(label)
        if not pass_ and hideable.filter(label=label)["pass"].n_unique() > 1:
            name = f"{label}, pass unknown"
        rows.append((name, *_shares_by_phase(part, "hidden_ns")))
        searches[name] = f"label:={label} pass:={pass_}" if pass_ else f"label:={label}"
    rows.sort(key=lambda row: str(row[0]))
    sends = lanes.filter(pl.col("label") == "pp_comm")
    if rows and sends.height:
        rows.append(("pp_comm beside wgrad", *_shares_by_phase(sends, "beside_wgrad_ns")))
    columns = [
        Column("hidden by phase"),
        *(Column(phase, "share") for phase in PHASES),
        Column("inside FB", "share"),
    ]
    note = "shares of each label's time that compute ran beside; FB: an overlapped pair of forward and backward"
    searches["pp_comm beside wgrad"] = "label:=pp_comm"
    return make_table(columns, rows, notes=(note,), search=lambda row: searches[row[0]])


def _shares_by_phase(part: pl.DataFrame, column: str) -> tuple[float | None, ...]:
    """Return the sum of *column* over that of ``total_ns`` in each of ``LANE_PHASES``."""
    shares = []
    for phase in LANE_PHASES:
        in_phase = part.filter(phase=phase)
        hidden_ns = int(in_phase[column].sum())
        shares.append(ratio(hidden_ns, int(in_phase["total_ns"].sum())))
    return tuple(shares)


def _what_if(line: WhatIf, plan: Schedule) -> WhatIfRow:
    """Return the row of a prediction, with the command that draws the schedule at the sizes of *plan*."""
    command = None
    if line.change == "schedule":
        has_option = line.virtual and line.virtual > 1 and line.name not in _FIXED_CHUNKS
        sizes = f"--pp {plan.pp} --microbatches {plan.microbatches}" + (
            f" --virtual {line.virtual}" if has_option else ""
        )
        command = f"tracekit schedule {line.name} {sizes} -o {line.name}.svg"
    return WhatIfRow(**asdict(line), command=command)
