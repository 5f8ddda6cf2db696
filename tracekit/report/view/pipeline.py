"""The pipeline against its ideal: both sides, the gap by cause, what another schedule would come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import polars as pl

from tracekit._util.text import counted
from tracekit.analysis import Analysis
from tracekit.compare import ScheduleComparison, StepComparison, WhatIf
from tracekit.report.view.pace import beyond_noise
from tracekit.schema import GAP_CAUSES, PHASES

LANE_PHASES = (*PHASES, "FB")
"""``FB``: inside overlapped pairs alone."""
WORTH_A_ROW = 0.001
"""Share of the makespan that one trouble less must save to have a row: less says nothing."""
_HIDDEN_LABELS = ("ep_dispatch", "ep_combine", "offload", "onload")


class Rung(msgspec.Struct, frozen=True):
    """One bar of the waterfall from the ideal to the run."""

    name: str
    ns: int
    low_ns: int
    high_ns: int
    kind: str
    """``total``, ``more`` or ``less``."""
    share: float | None
    """Of the gap."""


class Side(msgspec.Struct, frozen=True):
    """The pipeline as it ran, or its ideal."""

    name: str
    makespan_ns: int
    outside_cells: float
    """Share of ranks × makespan in no cell."""
    phase_ns: Mapping[str, float]
    """Time in no cell per rank, by phase."""


class RankSide(msgspec.Struct, frozen=True):
    """One rank of the pipeline as it ran."""

    rank: int
    outside_cells: float | None
    phase_ns: Mapping[str, int]
    peak_activations: int


class PhaseRow(msgspec.Struct, frozen=True):
    """Share of one label's time that compute hides, phase by phase; then inside overlapped pairs."""

    name: str
    shares: tuple[float | None, ...]


class WhatIfRow(msgspec.Struct, frozen=True):
    """What another schedule, or one trouble less, would come to. Savings are against the measured run."""

    name: str
    change: str
    virtual: int | None
    predicted_ns: int | None
    """On this run's machine; None where that cannot be told."""
    range_ns: tuple[int, int] | None
    """Where the prediction may lie."""
    ideal_ns: int | None
    """With free messages and balanced stages."""
    saves_ns: int | None
    slower: bool
    ran: bool
    """The run's own schedule: measured, not predicted."""
    outside_cells: float | None
    peak_activations: float | None
    peak_bytes: tuple[int, int | None] | None
    """What the fullest rank would need, between; None where memory was not recorded."""
    fits: bool | None
    """Whether that fits into the GPU; None where it cannot be told."""
    layout: str | None
    rests_on: tuple[str, ...]
    unknown: tuple[str, ...]
    command: str | None = None
    """Draws that schedule."""

    @property
    def title(self) -> str:
        """What would change, with its chunks."""
        chunks = f" × {self.virtual}" if self.virtual and self.virtual > 1 else ""
        return f"{self.name}{chunks}{' (this run)' if self.ran else ''}"

    @property
    def basis(self) -> tuple[str, ...]:
        """What the row rests on, and what could not be known."""
        return (*self.rests_on, *(f"not known: {text}" for text in self.unknown))


class ScheduleView(msgspec.Struct, frozen=True):
    """The pipeline against its ideal."""

    name: str
    exact: bool
    distance: int
    pp: int
    microbatches: int
    virtual: int
    sizes: str
    which: str
    """Which step and pipeline, where there are several; else empty."""
    measured: Side
    ideal: Side
    by_rank: tuple[RankSide, ...]
    gap: tuple[Rung, ...] | None
    """None where ranks are missing, so that causes cannot be told apart."""
    differences: tuple[str, ...]
    orders: tuple[tuple[int, Sequence[str]], ...]
    phases: tuple[PhaseRow, ...]
    what_if: tuple[WhatIfRow, ...]

    @property
    def alternatives(self) -> tuple[WhatIfRow, ...]:
        """The what-ifs that can be compared with the run: other schedules, another layout, one trouble less."""
        least = WORTH_A_ROW * self.measured.makespan_ns
        rows = (row for row in self.what_if if row.change in ("schedule", "layout", "without"))
        return tuple(row for row in rows if row.change != "without" or abs(row.saves_ns or 0) >= least)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the what-ifs rest on or could not know, each once."""
        return tuple(dict.fromkeys(text for row in self.alternatives if not row.ran for text in row.basis))


def schedule_view(analysis: Analysis) -> ScheduleView | None:
    """Return how the run compares with its ideal; None where no schedule was found."""
    found = analysis.schedule
    if found is None:
        return None
    held, plan = found.head, found.head.match.schedule
    ranks = held.pipeline.ranks
    return ScheduleView(
        name=found.name,
        exact=found.exact,
        distance=held.match.distance,
        pp=found.pp,
        microbatches=found.microbatches,
        virtual=found.virtual,
        sizes=sizes(found),
        which=which(found),
        measured=_side(held, "measured", held.measured_ns, held.measured_bubble),
        ideal=_side(held, "ideal", held.ideal_ns, held.ideal_bubble),
        by_rank=tuple(
            RankSide(
                one.rank,
                sum(one.measured_ns.values()) / held.measured_ns if held.measured_ns else None,
                one.measured_ns,
                one.peak_activations,
            )
            for one in held.bubbles
        ),
        gap=waterfall(held.ideal_ns, held.measured_ns, found.gap_ns),
        differences=tuple(
            f"rank {ranks[one.rank]}, cell {one.position}: ran {' '.join(one.measured) or 'nothing'}, "
            f"the schedule has {' '.join(one.expected) or 'nothing'}"
            for one in held.match.differences
        ),
        orders=tuple(zip(ranks, held.orders(), strict=True)),
        phases=_phases(found.lanes),
        what_if=tuple(_what_if(line, pp=plan.pp, microbatches=plan.microbatches) for line in found.what_if),
    )


def sizes(found: ScheduleComparison) -> str:
    """Return how large a pipeline is: ranks, micro-batches, chunks."""
    chunks = f", {found.virtual} chunks per rank" if found.virtual > 1 else ""
    return f"{counted(found.pp, 'pipeline rank')}, {counted(found.microbatches, 'micro-batch')}{chunks}"


def which(found: ScheduleComparison) -> str:
    """Return which step and pipeline is shown, where there are several; else nothing."""
    runs = {(one.pipeline.ranks, one.pipeline.step) for one in found.all}
    pipelines = len({ranks for ranks, _ in runs})
    steps = len(runs) // max(1, pipelines)
    said = [f"step {found.head.pipeline.step}, the median of {steps}"] if steps > 1 else []
    if pipelines > 1:
        number = found.pipelines.index(found.head.pipeline.ranks)
        of = f"of 0 {'and' if pipelines == 2 else 'to'} {pipelines - 1}"  # as --pipeline counts
        said.append(f"pipeline {number} ({of}){'' if found.chosen else _slower(found)}")
    return ", ".join(said)


def _slower(found: ScheduleComparison) -> str:
    """Return how the pipeline shown compares with the others: the slowest only where it is so beyond noise."""
    took: dict[tuple[int, ...], list[int]] = {}
    for one in found.all:
        took.setdefault(tuple(one.pipeline.ranks), []).append(one.measured_ns)
    means = sorted((sum(times) / len(times) for times in took.values()), reverse=True)
    if beyond_noise(means[0], means[1]):
        return ", the slowest"
    return f", {'all' if len(means) > 2 else 'both'} alike" if not beyond_noise(means[0], means[-1]) else ""


def _side(held: StepComparison, name: str, makespan_ns: int, outside: float) -> Side:
    count = max(1, len(held.bubbles))
    rows: list[Mapping[str, int]] = [one.measured_ns if name == "measured" else one.ideal_ns for one in held.bubbles]
    return Side(name, makespan_ns, outside, {phase: sum(row[phase] for row in rows) / count for phase in PHASES})


def waterfall(ideal_ns: int, measured_ns: int, gap_ns: Mapping[str, int] | None) -> tuple[Rung, ...] | None:
    """Return the way from the ideal to the measured makespan, the largest cause first, what is unexplained last.

    >>> [(rung.name, rung.low_ns, rung.high_ns) for rung in waterfall(5, 9, {"host": 1, "p2p": 3, "offload": 0}) or ()]
    [('ideal', 0, 5), ('pipeline transfer and its wait', 5, 8), ('late launches', 8, 9), ('measured', 0, 9)]
    """
    if gap_ns is None:
        return None
    rungs = [Rung("ideal", ideal_ns, 0, ideal_ns, "total", None)]
    at, gap = ideal_ns, measured_ns - ideal_ns
    for cause, ns in sorted(gap_ns.items(), key=lambda item: (item[0] == "unexplained", -item[1])):
        if ns:
            low, high = sorted((at, at + ns))
            share = ns / gap if gap > 0 else None
            rungs.append(Rung(GAP_CAUSES[cause].words, ns, low, high, "more" if ns > 0 else "less", share))
            at += ns
    return (*rungs, Rung("measured", measured_ns, 0, measured_ns, "total", None))


def unnamed_phases(analysis: Analysis) -> tuple[PhaseRow, ...]:
    """Return what was hidden by phase on ranks whose schedule could not be named."""
    if analysis.schedule is not None or "lanes" not in analysis.tables:
        return ()
    return _phases(analysis.tables["lanes"])


def paired(rows: Sequence[PhaseRow]) -> bool:
    """Return whether anything ran inside overlapped pairs: without them there is nothing to say of them.

    >>> paired([PhaseRow("offload", (0.5, 0.5, None, None))]), paired([PhaseRow("offload", (None, 0.5, 0.1, 1.0))])
    (False, True)
    """
    return any(row.shares[-1] is not None for row in rows)


def _phases(lanes: pl.DataFrame) -> tuple[PhaseRow, ...]:
    """Return the share of expert communication and copies that compute hides, phase by phase."""
    rows = []
    table = lanes.filter(pl.col("label").is_in(_HIDDEN_LABELS))
    for (label, way), part in table.group_by("label", "pass", maintain_order=True):
        passes = f" {way}" if way else ", pass unknown" if table.filter(label=label)["pass"].n_unique() > 1 else ""
        rows.append(PhaseRow(f"{label}{passes}", _shares(part, "hidden_ns")))
    rows.sort(key=lambda row: row.name)
    sends = lanes.filter(pl.col("label") == "pp_comm")
    if rows and sends.height:
        rows.append(PhaseRow("pp_comm beside wgrad", _shares(sends, "beside_wgrad_ns")))
    return tuple(rows)


def _shares(part: pl.DataFrame, by: str) -> tuple[float | None, ...]:
    sums = [part.filter(phase=phase).select(pl.col(by, "total_ns").sum()).row(0) for phase in LANE_PHASES]
    return tuple(hidden / total if total else None for hidden, total in sums)


def _what_if(line: WhatIf, *, pp: int, microbatches: int) -> WhatIfRow:
    """Return one line with what it saves against the measured run, whatever it changes."""
    command = None
    if line.change == "schedule":
        chunks = f" --virtual {line.virtual}" if line.virtual and line.virtual > 1 and line.name not in _FIXED else ""
        command = f"tracekit schedule {line.name} --pp {pp} --microbatches {microbatches}{chunks} -o {line.name}.svg"
    return WhatIfRow(
        name=line.name,
        change=line.change,
        virtual=line.virtual,
        predicted_ns=line.predicted_ns,
        range_ns=line.predicted_range_ns,
        ideal_ns=line.ideal_ns,
        saves_ns=line.saves_ns,
        slower=line.slower,
        ran=line.ran,
        outside_cells=line.outside_cells,
        peak_activations=line.peak_activations,
        peak_bytes=line.peak_bytes,
        fits=line.fits,
        layout=line.layout,
        rests_on=line.rests_on,
        unknown=line.unknown,
        command=command,
    )


_FIXED = ("dualpipe", "dualpipev", "zb-v", "chimera")
"""Schedules that are always of two chunks and take no ``--virtual``."""
