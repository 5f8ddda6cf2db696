"""Changes between two runs by metric, label, module, rank, kernel and cell, the largest change first."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from os import PathLike
from typing import Any, TypeVar

import msgspec
import polars as pl
from msgspec import UNSET, UnsetType, structs

from tracekit._util.text import counted
from tracekit._version import __version__
from tracekit.analysis import Analysis
from tracekit.diffs import comparability, stats
from tracekit.diffs.explanation import build_waterfall, explain_change
from tracekit.diffs.finding_changes import check_savings, compare_findings
from tracekit.diffs.load_runs import Comparable, Side, select_role, side_of
from tracekit.diffs.runs import Key, Run, TimedRow, centre_of_runs, mean_times
from tracekit.diffs.verdict import judge
from tracekit.documents import diff as documents
from tracekit.documents.coding import HasDocument
from tracekit.documents.gate import CheckResult
from tracekit.graph.change import parse_change
from tracekit.report.ci.write import write_diff
from tracekit.report.notebook import NOTEBOOK_WIDTH, screen_html
from tracekit.report.terminal.changes import render_diff
from tracekit.schema import LABELS

_DIFF_VERDICT_ORDER = ("regressed", "improved", "inconclusive", "pass")
Change = TypeVar("Change", bound=documents.TimeChange)
Counted = TypeVar("Counted", bound=documents.CountedChange)
Times = Mapping[Key, tuple[float, float]]
"""Milliseconds and count per step, by the fields of a change that are no time and no count."""


@dataclass(frozen=True, eq=False, repr=False)
class Diff(HasDocument):
    """Changes from one side to the other, the result of ``tracekit.diff``.

    >>> from tracekit.diffs.samples import make_samples
    >>> a = Run("a", make_samples({"step_ms": (10.0,), "label_ms.forward": (4.0,)}))
    >>> b = Run("b", make_samples({"step_ms": (12.0,), "label_ms.forward": (6.0,)}))
    >>> diff(Side((a,), {}), Side((b,), {})).tables["labels"]["change_ms"].to_list()
    [2.0]
    """

    before: Side
    after: Side
    document: documents.DiffDocument
    """All changes; ``to_dict`` returns them as plain data."""

    @property
    def story(self) -> tuple[str, ...]:
        """Sentences that explain the change, the largest change first."""
        return tuple(self.document.story)

    @property
    def obstacles(self) -> tuple[str, ...]:
        """Reasons why the sides should not be compared; empty if they can be."""
        return tuple(self.document.obstacles)

    @cached_property
    def tables(self) -> dict[str, pl.DataFrame]:
        """Changes by metric, label, rank, kernel, module and cell, the largest first."""
        plain = self.to_dict()
        names = ("metrics", "labels", "ranks", "kernels", "modules", "cells")
        return {name: pl.DataFrame(plain[name], infer_schema_length=None) for name in names}

    @property
    def analyses(self) -> tuple[Analysis, Analysis] | None:
        """The first analysis of each side; None if a side was read from a file of results."""
        if not self.before.runs or not self.after.runs:
            return None
        before = self.before.runs[0].analysis
        after = self.after.runs[0].analysis
        return None if before is None or after is None else (before, after)

    def to_document(self) -> documents.DiffDocument:
        """Return the JSON document (``format: tracekit.diff/1``)."""
        return self.document

    def save(self, path: str | PathLike[str]) -> None:
        """Write the changes to *path* in the format of its extension: .json, .md or .html."""
        write_diff(self.document, path, analyses=self.analyses)

    def _repr_html_(self) -> str:
        return screen_html(render_diff(self.document, width=NOTEBOOK_WIDTH))

    @property
    def _title(self) -> str:
        return f"{self.before.name} → {self.after.name}"

    def __repr__(self) -> str:
        counts: Counter[str] = Counter(row.verdict for row in self.document.metrics)
        verdicts = [
            f"{counts[verdict]} {verdict}" for verdict in _DIFF_VERDICT_ORDER if counts[verdict]
        ]
        if self.obstacles:
            summary = f"not comparable: {self.obstacles[0]}"
        else:
            summary = ", ".join(verdicts) or "nothing to compare"
        return f"<Diff: {self._title}: {summary}>"


def diff(
    before: Comparable, after: Comparable, *, role: str | None = None, change: str | None = None
) -> Diff:
    """Return the changes from *before* to *after*: by metric, label, rank, module, kernel and cell.

    Either is a trace, a folder, a store, a saved analysis or a baseline file, by its path; an
    ``Analysis``; or several runs in a list. Where ranks have several processes, the main role is
    compared, and below ``roles`` each other one; *role* compares one alone. *change* names the
    change that was made between the runs as ``--change`` of ``analyze`` does: what was predicted for
    it is then held against what was measured.

    >>> from tracekit import analyze
    >>> run = analyze("sample_traces/reload", schedule="none")
    >>> {row["verdict"] for row in diff(run, run).to_dict()["metrics"]} & {"regressed", "improved"}
    set()
    """
    if change is not None:
        parse_change(change)
    old = side_of(before, what="first run", keep=True, changes=() if change is None else (change,))
    new = side_of(after, what="second run", keep=True)
    if role is not None:
        old, new = select_role(old, new, role)
    roles = {
        name: diff(old.of_role(name), new.of_role(name)).document
        for name in old.other_roles
        if role is None and name in new.other_roles
    }
    comparability.check_formats(new.runs, old.runs)
    work = comparability.compare_work(old.runs, new.runs)
    obstacles = comparability.find_obstacles(
        new.runs, old.runs, allow=comparability.DIFFERENCES_OF_A_DIFF
    )
    findings = compare_findings(old, new)
    savings = None
    if change is not None:
        savings = check_savings(change, findings or (), old, new)
    document = documents.DiffDocument(
        tracekit=__version__,
        format=documents.DIFF_FORMAT,
        before=side_summary(old),
        after=side_summary(new),
        obstacles=obstacles,
        same_recording=comparability.are_same_recording(new.runs, old.runs),
        story=explain_change(old.runs, new.runs),
        free_step=_free_step_change(old.runs, new.runs),
        work=work,
        waterfall=build_waterfall(old.runs, new.runs),
        timelines=_timelines(old.runs, new.runs),
        metrics=_metric_rows(old, new, work),
        labels=_label_rows(old.runs, new.runs),
        ranks=_rank_rows(old.runs, new.runs),
        findings=findings,
        savings=savings,
        **structs.asdict(largest_changes(old.runs, new.runs, max_rows=100)),
        roles=roles or UNSET,
    )
    return Diff(old, new, document)


def _free_step_change(
    before: Sequence[Run], after: Sequence[Run]
) -> documents.FreeStepChange | None:
    """Return the step without the profiler of both sides; None if one does not know it."""
    old = comparability.free_step(before)
    new = comparability.free_step(after)
    if old is None or new is None or not old.ms:
        return None
    return documents.FreeStepChange(
        before_ms=old.ms,
        after_ms=new.ms,
        before_range_ms=(old.least_ms, old.most_ms),
        after_range_ms=(new.least_ms, new.most_ms),
    )


def _timelines(before: Sequence[Run], after: Sequence[Run]) -> documents.Timelines | None:
    """Return the pipeline cells of one step of both sides, to be drawn on one axis.

    None if a side has none.
    """
    old = _first_timeline(before)
    new = _first_timeline(after)
    if not old or not new:
        return None
    return documents.Timelines(before=old, after=new)


def _first_timeline(runs: Sequence[Run]) -> list[documents.TimelineCell]:
    """Return the timeline of the first run that has one, else nothing."""
    return next((list(run.timeline) for run in runs if run.timeline), [])


def largest_changes(
    before: Sequence[Run], after: Sequence[Run], *, max_rows: int = 10
) -> documents.LargestChanges:
    """Return the kernels, modules and cells whose time changed most, and notes on what could not be compared."""
    old_kernels = _times(documents.KernelChange, [run.kernels for run in before])
    new_kernels = _times(documents.KernelChange, [run.kernels for run in after])
    old_modules = _times(documents.ModuleChange, [run.modules for run in before])
    new_modules = _times(documents.ModuleChange, [run.modules for run in after])
    old_cells = _times(documents.CellChange, [run.cells for run in before])
    new_cells = _times(documents.CellChange, [run.cells for run in after])
    notes = [
        *_missing_rows("kernels", old_kernels, new_kernels, need="traces or stores"),
        *_missing_rows("modules", old_modules, new_modules, need="traces or stores"),
        *_missing_rows("cells", old_cells, new_cells, need="traces whose pipeline can be found"),
    ]
    are_cells_comparable = None
    if old_cells and new_cells:
        obstacle = _cell_obstacle(old_cells, new_cells)
        are_cells_comparable = not obstacle
        # The pipeline of the other side was reconstructed with other cells: that is no change of
        # time.
        common = set() if obstacle else old_cells.keys() & new_cells.keys()
        left_out = len(old_cells.keys() | new_cells.keys()) - len(common)
        if left_out:
            notes.append(obstacle or f"{left_out} cells are on one side only and are left out")
        old_cells = {key: time for key, time in old_cells.items() if key in common}
        new_cells = {key: time for key, time in new_cells.items() if key in common}
    return documents.LargestChanges(
        kernels=_change_rows(documents.KernelChange, old_kernels, new_kernels)[:max_rows],
        modules=_change_rows(documents.ModuleChange, old_modules, new_modules)[:max_rows],
        cells=_change_rows(documents.CellChange, old_cells, new_cells)[:max_rows],
        comparable_cells=are_cells_comparable,
        notes=notes,
    )


def _times(
    row_type: type[documents.CountedChange], rows_of_runs: Sequence[Sequence[TimedRow]]
) -> Times:
    """Return the mean times of a side by the fields that tell rows of this type apart."""
    return mean_times(rows_of_runs, _key_fields(row_type))


def _missing_rows(table: str, old: Times, new: Times, *, need: str) -> list[str]:
    """Return the note on a table that one of the sides lacks."""
    if old and new:
        return []
    sides = {"before": old, "after": new}
    lacking = [side for side, times in sides.items() if not times]
    missing = "on both sides" if len(lacking) == 2 else lacking[0]
    return [f"no {table} to compare: none {missing}; give {need}"]


def _cell_obstacle(old: Iterable[Key], new: Iterable[Key]) -> str:
    """Return why cells of the two sides are not the same work; empty if they may be.

    The model is cut into stages, and a cell is the work of one stage on one micro-batch. With
    another number of stages, or of stages on a rank that both sides have, the same name stands for
    another part of the model.

    Args:
        old: Keys of the cells before, in the order of the fields of ``CellChange``.
        new: Keys of the cells after.
    """
    before = _stages_by_rank(old)
    after = _stages_by_rank(new)
    # Stages are numbered from 0; those of a rank without a trace are missed only if the last is
    # among them.
    old_stages = 1 + max(chain.from_iterable(before.values()), default=0)
    new_stages = 1 + max(chain.from_iterable(after.values()), default=0)
    if old_stages != new_stages:
        split = f"{counted(old_stages, 'stage')} before, {new_stages} after"
    elif any(len(before[rank]) != len(after[rank]) for rank in before.keys() & after.keys()):
        old_most = _most_stages(before)
        new_most = _most_stages(after)
        split = f"up to {counted(old_most, 'stage')} on a rank before, {new_most} after"
    else:
        return ""
    verb = "hold" if before.keys() == after.keys() else "may hold"
    return f"cells are not compared: they {verb} different parts of the model ({split})"


def _stages_by_rank(cells: Iterable[Key]) -> dict[int, set[int]]:
    """Return the stages that each rank has cells of."""
    stages: defaultdict[int, set[int]] = defaultdict(set)
    for rank, _, stage, _, b_stage, _ in cells:
        stages[rank] |= {stage, b_stage} - {UNSET}
    return stages


def _most_stages(stages_by_rank: Mapping[int, Collection[int]]) -> int:
    """Return the number of stages of the rank that has most."""
    return max(len(stages) for stages in stages_by_rank.values())


def _key_fields(row_type: type[documents.CountedChange]) -> tuple[str, ...]:
    """Return the fields by which rows of this type are told apart: all but the times and counts."""
    times_and_counts = documents.CountedChange.__struct_fields__
    return tuple(name for name in row_type.__struct_fields__ if name not in times_and_counts)


def _change_rows(row_type: type[Counted], old: Times, new: Times) -> list[Counted]:
    """Return one row per key whose time changed, the largest change first; none where a side has no times."""
    if not old or not new:
        return []
    rows = []
    for key in {**old, **new}:
        old_ms, old_count = old.get(key, (0.0, 0.0))
        new_ms, new_count = new.get(key, (0.0, 0.0))
        fields = dict(zip(_key_fields(row_type), key, strict=True))
        counts = {"count_before": round(old_count, 3), "count_after": round(new_count, 3)}
        row = row_type(**fields, **_change(old_ms, new_ms), **counts)
        if row.change_ms:
            rows.append(row)
    return _sort_by_change(rows)


def _change(old_ms: float, new_ms: float) -> dict[str, Any]:
    """Return the fields of ``TimeChange``."""
    return {
        "before_ms": round(old_ms, 6),
        "after_ms": round(new_ms, 6),
        "change_ms": round(new_ms - old_ms, 6),
        "change_relative": round((new_ms - old_ms) / old_ms, 6) if old_ms else None,
    }


def _sort_by_change(rows: list[Change]) -> list[Change]:
    return sorted(rows, key=lambda row: -abs(row.change_ms))


def _metric_rows(
    before: Side, after: Side, work: documents.WorkChange | None
) -> list[documents.MetricChange]:
    """Return every default metric with the gate's verdict.

    Regressions first, then by change over noise floor.

    Where the amount of work differs, times have no verdict; shares have.
    """

    def order(check: CheckResult) -> tuple[int, float]:
        floors = abs(check.change or 0.0) / check.floor if check.floor else 0.0
        return _DIFF_VERDICT_ORDER.index(check.verdict), -floors

    checks = judge(after.runs, before.runs, noise=before.noise)
    if work is not None and not comparability.is_equal_work(work):
        reason = f"the step does {work.ratio:.3g} times the work"
        for i, check in enumerate(checks):
            if check.unit == "ms":
                checks[i] = structs.replace(check, verdict="inconclusive", reason=reason)
    checks.sort(key=order)
    return msgspec.convert(checks, list[documents.MetricChange], from_attributes=True)


def _label_rows(before: Sequence[Run], after: Sequence[Run]) -> list[documents.LabelChange]:
    """Return time, exposed time and overlap of every label that ran on either side."""
    rows = []
    for label in LABELS:
        old_ms = centre_of_runs(before, f"label_ms.{label}")
        new_ms = centre_of_runs(after, f"label_ms.{label}")
        if not old_ms and not new_ms:
            continue
        levels: dict[str, Any] = {}
        for family in ("exposed_ms", "overlap"):
            levels[f"{family}_before"] = _rounded_centre(before, f"{family}.{label}")
            levels[f"{family}_after"] = _rounded_centre(after, f"{family}.{label}")
        rows.append(documents.LabelChange(label, **_change(old_ms or 0.0, new_ms or 0.0), **levels))
    return _sort_by_change(rows)


def _rounded_centre(runs: Sequence[Run], metric: str) -> float | None:
    """Return the centre of a metric; None if no run has it."""
    centre = centre_of_runs(runs, metric)
    return None if centre is None else round(centre, 6)


def _rank_rows(before: Sequence[Run], after: Sequence[Run]) -> list[documents.RankChange]:
    """Return the step time of each rank, and the part of its budget that changed most."""
    old_ranks = _budget_by_rank(before)
    new_ranks = _budget_by_rank(after)
    rows = []
    for rank in sorted(set(old_ranks) & set(new_ranks)):
        old = old_ranks[rank]
        new = new_ranks[rank]
        changes = {
            part: new.get(part, 0.0) - old.get(part, 0.0)
            for part in {**old, **new}
            if part != "step_ms"
        }
        most = max(changes, key=lambda part: abs(changes[part]), default=None)
        most_ms = round(changes[most], 6) if most else None
        rows.append(
            documents.RankChange(
                rank, **_change(old["step_ms"], new["step_ms"]), most=most, most_ms=most_ms
            )
        )
    return _sort_by_change(rows)


def _budget_by_rank(runs: Sequence[Run]) -> dict[int, dict[str, float]]:
    """Return step time and budget parts by rank and metric name, in milliseconds."""
    samples: defaultdict[int, defaultdict[str, list[tuple[float, ...]]]]
    samples = defaultdict(lambda: defaultdict(list))
    for run in runs:
        for rank in run.ranks:
            exposed = [f"exposed_ms.{label}" for label in rank.budget.exposed_ns]
            for name in ("step_ms", "compute_ms", "idle_ms", *exposed):
                if values := run.values(f"{name}@{rank.rank}"):
                    samples[rank.rank][name].append(values)
    return {
        rank: {name: stats.centre(values) for name, values in of_rank.items()}
        for rank, of_rank in samples.items()
    }


def side_summary(side: Side, *, calibrated: bool | UnsetType = UNSET) -> documents.SideEntry:
    """Return the runs and facts of a side."""
    runs = [documents.ComparedRun(run.name, run.recorded_or_measured_steps) for run in side.runs]
    return documents.SideEntry(
        runs=runs,
        facts=side.runs[0].facts if side.runs else documents.Facts(),
        calibrated=calibrated,
    )
