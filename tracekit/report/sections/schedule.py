"""The pipeline compared with its ideal: both schedule spans, the gap by cause, and predictions for other schedules."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Literal

import msgspec
import polars as pl
from msgspec.structs import asdict, replace

from tracekit._util.text import counted, ms, signed
from tracekit.analysis import Analysis
from tracekit.analysis.combine.communication import below_peak_ns
from tracekit.documents.analysis import Difference
from tracekit.metrics.overlap import ratio
from tracekit.pipeline.against_ideal import ScheduleComparison, WhatIf
from tracekit.pipeline.schedules import Schedule, describe
from tracekit.report.blocks import Block, Folded, Listing, PipelineChart, Sentence
from tracekit.report.notices import notice_sentence
from tracekit.report.pace import beyond_noise
from tracekit.report.palette import LESS_COLOUR, MORE_COLOUR, TOTAL_COLOUR
from tracekit.report.run_facts import quoted_path
from tracekit.report.section import TERMINAL_AND_PAGE, Section
from tracekit.report.sections.changed_steps import describe_range
from tracekit.report.table import Bar, BarPart, Column, Table, make_table
from tracekit.report.text import gb_range, signed_ms
from tracekit.report.words import WORDS
from tracekit.schema import GAP_CAUSES, PHASES

LANE_PHASES = (*PHASES, "FB")
"""Phases whose hidden shares are shown; ``FB``: only inside overlapped pairs of forward and
backward."""
_HIDDEN_LABELS = ("ep_dispatch", "ep_combine", "offload", "onload")
"""Labels whose hidden share is shown by phase."""
_FIXED_CHUNKS = ("dualpipe", "dualpipev", "zb-v", "chimera")
"""Schedules that always have two chunks per rank and take no ``--virtual``."""
MAX_ALTERNATIVES = 6
"""Schedules that a terminal shows of many."""
MAX_RANKS_WITH_SPANS = 5
"""Ranks whose time outside cells a terminal shows of many."""
MAX_OPS_OF_A_RANK = 400
"""Operations of a rank's order that are listed."""


class Rung(msgspec.Struct, frozen=True):
    """One bar of the waterfall from the ideal to the run."""

    name: str
    ns: int
    low_ns: int
    high_ns: int
    kind: Literal["total", "more", "less"]
    share: float | None
    """Share of the gap."""

    @property
    def text(self) -> str:
        """Its time, with a sign where it is a difference."""
        return ms(self.ns, 2) if self.kind == "total" else signed_ms(self.ns, 2)

    def bar(self, top_ns: float) -> Bar:
        """Return it as a bar from where the one before it ends; *top_ns* fills the width."""
        colour = {"total": TOTAL_COLOUR, "more": MORE_COLOUR, "less": LESS_COLOUR}[self.kind]
        before = BarPart("", "before", self.low_ns, "")
        return Bar(
            [before, BarPart(self.name, self.kind, self.high_ns - self.low_ns, colour)], top_ns
        )


PIPELINE_FRAMEWORKS = {
    "PyTorch": r"^torch-pipelining$|\bPP:\d",
    "DeepSpeed": r"(?i)deepspeed",
    "Megatron-LM": r"(?i:\bmegatron\b)|LinearWithGradAccumulation|\bPIPELINE_MODEL_PARALLEL_GROUP\b",
}
"""Frameworks with schedules of their own, by what a recording holds of them: rules that decided, names of ranges,
operators and process groups. The first that is seen counts."""
_TELLING_COLUMNS = ("pack", "annotations", "chain", "group_desc")


def pipeline_framework(reasons: pl.DataFrame) -> str | None:
    """Return the framework whose pipeline a run shows, from the table ``reasons``; None if none is known.

    >>> pipeline_framework(pl.DataFrame({"pack": ["torch"], "annotations": ["PP:0F3"]}))
    'PyTorch'
    """
    texts = [reasons[name].drop_nulls() for name in _TELLING_COLUMNS if name in reasons.columns]
    for name, pattern in PIPELINE_FRAMEWORKS.items():
        if any(text.cast(pl.String).str.contains(pattern).any() for text in texts):
            return name
    return None


class WhatIfRow(WhatIf, frozen=True):
    """The prediction for another schedule, another layout, or the run without one cause of its gap."""

    command: str | None = None
    """Command that draws the schedule."""

    def is_in(self, framework: str | None) -> bool:
        """Return whether a framework has it, or is not known; the run's own schedule and layouts are in any."""
        if framework is None or self.ran or self.change != "schedule":
            return True
        frameworks = describe(self.name).frameworks
        return frameworks is None or framework in frameworks

    @property
    def title(self) -> str:
        """Name of the change, with the chunks per rank."""
        chunks = f" × {self.virtual}" if self.virtual and self.virtual > 1 else ""
        return f"{self.name}{chunks}{' (this run)' if self.ran else ''}"


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


def gap_rungs(comparison: ScheduleComparison) -> tuple[Rung, ...] | None:
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


def phases_table(analysis: Analysis) -> Table | None:
    """Return the hidden shares by phase of a run that overlaps micro-batches."""
    if analysis.comparison is not None:
        return _phases_table(analysis.comparison.lanes)
    return _phases_table(analysis.tables["lanes"]) if "lanes" in analysis.tables else None


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


def below_peak(analysis: Analysis) -> str | None:
    """Return what faster kernels could save at most, which is part of the ideal too.

    None if it is not known.
    """
    rates = analysis.rate_tables
    if rates is None or not rates.total.flop:
        return None
    shorter_ns = below_peak_ns(rates.products)
    rank_steps = sum(len(rank.per_step) for rank in analysis.ranks)
    if shorter_ns is None or not rank_steps:
        return None
    return (
        f"kernels below peak: products would take {ms(shorter_ns / rank_steps)} less per rank and step at the GPUs' "
        "peak; they are as slow in the ideal, so this is not part of the gap"
    )


def headline(comparison: ScheduleComparison) -> Sentence:
    """Return what ran, its size, and how it is compared."""
    elsewhere = f"{counted(comparison.head.match.distance, 'unit')} elsewhere"
    chunks = f" × {comparison.virtual} chunks" if comparison.virtual > 1 else ""
    name = comparison.possible_names
    facts = [
        f"{name}, same order" if comparison.exact else name,
        f"{counted(comparison.pp, 'rank')}{chunks}",
        counted(comparison.microbatches, "micro-batch"),
    ]
    if not comparison.exact:
        facts.append(f"nearest; {elsewhere}")
    if comparison.compared_with != comparison.name:
        facts.append(f"compared with {comparison.compared_with}: {elsewhere}")
    if choice := describe_choice(comparison):
        facts.append(choice)
    return Sentence(" · ".join(facts), "fact")


def differences(comparison: ScheduleComparison) -> list[str]:
    """Return what ranks ran instead of what the schedule has; empty if the schedule is what ran."""
    match = comparison.head.match
    ranks = comparison.head.pipeline.ranks
    return [_difference(row, ranks) for row in match.differences] if match.ran is None else []


def spans_table(comparison: ScheduleComparison) -> Table | None:
    """Return schedule span, time outside cells and peak activations: measured, ideal, and of each rank."""
    columns = (
        Column("schedule"),
        Column("span", "ms"),
        Column("outside cells", "share", note="share of ranks × schedule span in no cell"),
        *(Column(phase, "ms", note="time in no cell per rank") for phase in PHASES),
        Column("peak", "figure", note="most chunks held at once"),
    )
    head = comparison.head
    measured_by_phase = _mean_by_phase([bubble.measured_ns for bubble in head.bubbles])
    ideal_by_phase = _mean_by_phase([bubble.ideal_ns for bubble in head.bubbles])
    rows: list[tuple[object, ...]] = [
        ("measured", head.measured_ns, head.measured_bubble, *measured_by_phase, ""),
        ("ideal", head.ideal_ns, head.ideal_bubble, *ideal_by_phase, ""),
    ]
    for bubble in sorted(head.bubbles, key=lambda bubble: bubble.rank):
        phases = [bubble.measured_ns[phase] for phase in PHASES]
        outside = sum(phases) / max(head.measured_ns, 1)
        rows.append((f"rank {bubble.rank}", "", outside, *phases, str(bubble.peak_activations)))
    by_outside = sorted(range(2, len(rows)), key=lambda i: -float(str(rows[i][2])))
    return make_table(
        columns,
        rows,
        notes=(f"schedule span: {WORDS.schedule_definitions['schedule span']}",),
        short=[0, 1, *by_outside[:MAX_RANKS_WITH_SPANS]],
        short_note=f"the {MAX_RANKS_WITH_SPANS} worst of {counted(len(head.bubbles), 'rank')}",
    )


def _mean_by_phase(times_of_ranks: Sequence[Mapping[str, int]]) -> list[float]:
    """Return the mean over ranks of the time in each phase, in the order of ``PHASES``."""
    return [mean(phase_ns[phase] for phase_ns in times_of_ranks) for phase in PHASES]


def orders_table(comparison: ScheduleComparison) -> Table | None:
    """Return the order of every rank as text."""
    rows = []
    for rank, order in zip(comparison.head.pipeline.ranks, comparison.head.orders(), strict=True):
        more = f" … {len(order) - MAX_OPS_OF_A_RANK} more" if len(order) > MAX_OPS_OF_A_RANK else ""
        rows.append((rank, " ".join(order[:MAX_OPS_OF_A_RANK]) + more))
    meaning = "stage, op, micro-batch: 0F3 is stage 0's forward of micro-batch 3"
    return make_table((Column("rank", "rank"), Column("order")), rows, notes=(meaning,))


def gap_table(comparison: ScheduleComparison) -> Table | None:
    """Return the way from the ideal to the measured schedule span; None if it cannot be split by cause."""
    rungs = gap_rungs(comparison)
    if rungs is None:
        rungs = waterfall(
            ("ideal", comparison.head.ideal_ns), ("measured", comparison.head.measured_ns), ()
        )
    top_ns = max(1, *(rung.high_ns for rung in rungs))
    columns = (
        Column("cause", value="name"),
        Column("time", "figure", value="text"),
        Column("of the gap", "share", value=lambda rung: rung.share),
        Column(
            "from the ideal to the run",
            "bar",
            terminal_heading=" ",
            value=lambda rung: rung.bar(top_ns),
        ),
    )
    note = (
        "each cause replayed by itself on the run's own times; causes add up along the chain of cells that the "
        "schedule span follows; exposed times are of each rank"
    )
    if comparison.gap_ns is None:
        note = _gap_note(comparison) or ""
    totals = [i for i, rung in enumerate(rungs) if rung.kind == "total"]
    return make_table(columns, rungs, notes=(note,), totals=totals)


def alternatives(comparison: ScheduleComparison) -> list[WhatIfRow]:
    """Return the what-ifs that are comparable with the run: other schedules, the best first, and layouts."""
    rows = [_what_if(line, comparison.head.match.schedule) for line in comparison.what_if]
    schedules = [row for row in rows if row.change == "schedule"]
    return [*schedules, *(row for row in rows if row.change == "layout")]


def what_if_table(
    rows: Sequence[WhatIfRow],
    heading: str = "what if",
    *,
    notes_of: Sequence[WhatIfRow] | None = None,
) -> Table | None:
    """Return predictions for other schedules, the best first, with their assumptions below; None without any.

    Args:
        rows: The predictions.
        heading: What the table is of.
        notes_of: Rows whose assumptions stand below, if not these; without any, nothing does.
    """
    saves = "against this run as measured (− would be slower)"
    columns: tuple[Column, ...] = (
        Column(heading, "name", value="title"),
        Column("predicted", "ms", value="predicted_ns"),
        Column(
            "between ms",
            "figure",
            value=lambda row: "" if row.ran else describe_range(row.predicted_range_ns),
        ),
        Column("ideal", "ms", 1, "free messages, balanced stages", value="ideal_ns"),
        Column("saves ms", "figure", note=saves, value=_savings),
        Column("outside cells", "share", 3, value="outside_cells"),
        Column("peak", "figure", 2, "micro-batches held", value=_peak_activations),
        Column("draw it", "command", value=lambda row: "" if row.ran else row.command or ""),
    )
    if notes_of is not None and not notes_of:
        columns = tuple(replace(column, note="") for column in columns)
    totals = [i for i, row in enumerate(rows) if row.ran]
    schedules = [i for i, row in enumerate(rows) if row.change == "schedule"]
    others = [i for i, row in enumerate(rows) if row.change != "schedule"]
    return make_table(
        columns,
        rows,
        notes=_what_if_notes(rows if notes_of is None else notes_of),
        totals=totals,
        short={*totals, *schedules[:MAX_ALTERNATIVES], *others},
        short_note=f"the best of {counted(len(schedules), 'schedule')}",
    )


def _peak_activations(row: WhatIfRow) -> str:
    return "" if row.peak_activations is None else f"{row.peak_activations:g}"


def _savings(row: WhatIfRow) -> str:
    return "" if row.saves_ns is None or row.ran else signed(row.saves_ns / 1e6)


def _what_if_notes(rows: Sequence[WhatIfRow]) -> list[str]:
    """Return the memory that the rows need, then their assumptions and unknowns, each once."""
    notes = ["× n: chunks per rank"] if any((row.virtual or 1) > 1 for row in rows) else []
    needs: list[str] = []
    assumptions: list[str] = []
    unknowns: list[str] = []
    for row in rows:
        if row.peak_bytes is not None:
            verdict = " does not fit" if row.fits is False else ""
            needs.append(f"{row.title} {gb_range(*row.peak_bytes)}{verdict}")
        if not row.ran:
            assumptions += row.rests_on
            unknowns += row.unknown
    if needs:
        notes.append(f"memory of the fullest rank, GB: {', '.join(needs)}")
    if assumptions:
        notes.append("rests on: " + "; ".join(dict.fromkeys(assumptions)))
    if unknowns:
        notes.append("not known: " + "; ".join(dict.fromkeys(unknowns)))
    return notes


def what_if_hint(analysis: Analysis) -> Sentence | None:
    """Return that other schedules can be predicted, or why not.

    None without a schedule, or if they were predicted.
    """
    schedule = analysis.comparison
    if schedule is None or schedule.what_if:
        return None
    if schedule.no_prediction_reason:
        return Sentence(
            f"other schedules cannot be predicted for this run: {schedule.no_prediction_reason}"
        )
    path = quoted_path(analysis)
    command = "" if path is None else f"tracekit analyze {path} --what-if"
    return Sentence("`--what-if` predicts other schedules", command=command)


def _chart(analysis: Analysis) -> Sequence[Block | None]:
    comparison = analysis.comparison
    if comparison is None:
        return []
    other_order = differences(comparison)
    title = f"{counted(len(other_order), 'difference')} from {comparison.name}"
    return [
        headline(comparison),
        PipelineChart(comparison),
        Folded(title, [Listing(other_order)]) if other_order else None,
    ]


def _gap_blocks(analysis: Analysis) -> Sequence[Block | None]:
    comparison = analysis.comparison
    if comparison is None:
        return []
    faster_kernels = below_peak(analysis)
    return [
        gap_table(comparison),
        spans_table(comparison),
        Sentence(faster_kernels, "aside") if faster_kernels else None,
        what_if_hint(analysis),
    ]


def _what_if_blocks(analysis: Analysis) -> Sequence[Block | None]:
    if analysis.comparison is None:
        return []
    rows = alternatives(analysis.comparison)
    framework = pipeline_framework(analysis.tables["reasons"])
    foreign = [row for row in rows if not row.is_in(framework)]
    if not foreign:
        return [what_if_table(rows)]
    own = [row for row in rows if row.is_in(framework)]
    return [
        what_if_table(own, f"what if, in {framework}", notes_of=()),
        what_if_table(foreign, f"not in {framework}", notes_of=rows),
    ]


def _orders_blocks(analysis: Analysis) -> Sequence[Block | None]:
    return [] if analysis.comparison is None else [orders_table(analysis.comparison)]


SCHEDULE_SECTIONS = (
    Section(
        id="schedule",
        tab="Schedule",
        title="Schedule",
        name="Schedule",
        about="measured above its ideal",
        in_short=True,
        picture=3,
        build=_chart,
    ),
    Section(
        id="orders",
        title="The order of every rank as text",
        part_of="schedule",
        media=("page",),
        folded=("page",),
        build=_orders_blocks,
    ),
    Section(
        id="gap",
        tab="Schedule",
        title="From the ideal to the run",
        name="Gap",
        about="to the ideal, by cause",
        part_of="schedule",
        build=_gap_blocks,
    ),
    Section(
        id="what-if",
        tab="Schedule",
        title="What other schedules would take",
        name="Other schedules",
        about="what they would take",
        part_of="schedule",
        asked_for=lambda analysis: (
            analysis.comparison is not None and bool(analysis.comparison.what_if)
        ),
        build=_what_if_blocks,
    ),
    Section(
        id="phases",
        tab="Schedule",
        title="Micro-batches overlap: what compute hides, by phase",
        name="Phases",
        about="micro-batches overlap: what compute hides, by phase",
        part_of="schedule",
        media=TERMINAL_AND_PAGE,
        build=lambda analysis: [phases_table(analysis)],
    ),
)
