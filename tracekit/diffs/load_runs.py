"""Loading of the runs to compare: traces and stores are analysed, saved analyses and baseline files are read.

Each argument is one run. Trace files named one by one form one run if they lie in the same folder,
as the ranks of a run do.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import polars as pl
from msgspec import UNSET, structs

from tracekit._util.arguments import checked_paths
from tracekit._util.values import without_none
from tracekit.analysis import Analysis
from tracekit.analysis.saved import find_contradiction
from tracekit.diffs.noise_thresholds import Noise
from tracekit.diffs.run_samples import from_analysis, from_whole_run, samples_of_whole_run
from tracekit.diffs.runs import Run
from tracekit.diffs.samples import SAMPLES, make_samples, slow_step_samples
from tracekit.documents.analysis import AnalysisDocument
from tracekit.documents.baseline import BASELINE_FORMAT, BaselineDocument, CellTime, RoleBaseline
from tracekit.documents.coding import read_document, rows, saved_format
from tracekit.documents.diff import TimelineCell
from tracekit.documents.late import LATE_FORMAT, LateDocument
from tracekit.errors import InputError, OptionError
from tracekit.parsers.remote import public_url
from tracekit.report.write import document_of

MAX_TIMELINE_CELLS = 3_000  # of one step; a larger pipeline is not drawn
_CELL_KEYS = ["rank", "op", "stage", "microbatch", "b_stage", "b_microbatch"]


class Side(msgspec.Struct, frozen=True):
    """One side of a comparison: its runs, and the noise calibrated in a baseline file.

    >>> Side((Run("nightly", make_samples({"step_ms": (10.0, 10.2)})),), {}).samples["value"].to_list()
    [10.0, 10.2]
    """

    runs: tuple[Run, ...]
    noise: dict[str, Noise]
    role_noise: dict[str, dict[str, Noise]] = {}  # of the roles beside the main one

    @property
    def name(self) -> str:
        """The names of its runs."""
        return " + ".join(run.name for run in self.runs)

    @property
    def samples(self) -> pl.DataFrame:
        """The samples of all its runs (``runs.SAMPLES``)."""
        return pl.concat([SAMPLES.to_frame(), *(run.samples for run in self.runs)])

    def of_role(self, role: str) -> Side:
        """Return the side of one role, with the runs that have it."""
        runs = []
        for run in self.runs:
            if role in run.roles:
                runs.append(run.roles[role])
            elif run.main_role == role:
                runs.append(run)
        is_main = any(run.main_role == role for run in self.runs)
        noise = self.noise if is_main else self.role_noise.get(role, {})
        return Side(tuple(runs), noise)

    @property
    def other_roles(self) -> tuple[str, ...]:
        """The roles beside the main one that all its runs have."""
        if not self.runs:
            return ()
        common = set(self.runs[0].roles).intersection(*(run.roles for run in self.runs))
        return tuple(sorted(common))


def select_role(before: Side, after: Side, role: str) -> tuple[Side, Side]:
    """Return both sides of one role; raise if one does not have it."""
    for side in (before, after):
        if side.runs and not side.of_role(role).runs:
            names = [*side.other_roles, side.runs[0].main_role]
            hint = f"there are: {', '.join(sorted(filter(None, names))) or 'none'}"
            raise OptionError(f"--role {role}: {side.runs[0].name} has no such role", hint=hint)
    return before.of_role(role), after.of_role(role)


RunSource = str | os.PathLike[str] | Analysis
Comparable = RunSource | Sequence[RunSource] | Side
"""Input of a comparison: a path, an analysis (also one read back from JSON), several of them, or a
``Side``."""


def side_of(
    source: Comparable, *, what: str, keep: bool = False, changes: Sequence[str] = ()
) -> Side:
    """Return *source* as one side of a comparison.

    *what* (candidate or baseline) is for the errors.

    With *keep* the runs hold their analyses, which predict *changes* where traces are read.

    >>> from tracekit import analyze
    >>> side_of(analyze("sample_traces/reload", schedule="none"), what="candidate").runs[0].steps
    1
    """
    if isinstance(source, Side):
        return source
    paths: list[str] = []
    analysed = []
    for run in _several(source):
        if isinstance(run, Analysis):
            analysed.append(_run_from_analysis(run, name=what, keep=keep))
        else:
            paths += [os.fspath(path) for path in checked_paths(run, what)]
    if analysed and not paths:
        return Side(tuple(analysed), {})
    read = read_side(paths, what=what, keep=keep, changes=changes)
    return structs.replace(read, runs=(*analysed, *read.runs))


def _several(source: object) -> list[object]:
    """Return the runs of one side as a list, whether it is one run or several."""
    if isinstance(source, str | os.PathLike | Analysis) or not isinstance(source, Iterable):
        return [source]
    return list(source)


def read_side(
    paths: Sequence[str | Path], *, what: str, keep: bool = False, changes: Sequence[str] = ()
) -> Side:
    """Read every run of one side from *paths*; *what* (candidate or baseline) is for the errors.

    >>> read_side(["sample_traces/reload"], what="baseline").runs[0].facts.ranks
    4
    """
    if not paths:
        raise InputError(
            f"there is no {what}", hint=f"name a trace, a store or a saved analysis as the {what}"
        )
    side = Side((), {})
    for run_paths in _group_by_run([str(path) for path in paths]):
        saved_as = saved_format(run_paths[0]) if len(run_paths) == 1 else None
        if saved_as is None:
            read = Side((_analyze_run(run_paths, keep=keep, changes=changes),), {})
        elif saved_as == BASELINE_FORMAT:
            read = read_baseline(run_paths[0])
        elif saved_as == LATE_FORMAT:
            whole_run = read_document(run_paths[0], LateDocument, hint="run tracekit late again")
            read = Side((from_whole_run(whole_run, name=run_paths[0]),), {})
        else:
            document = read_document(
                run_paths[0], AnalysisDocument, hint="analyze the traces again"
            )
            contradiction = find_contradiction(document)
            if contradiction is not None:
                raise InputError(contradiction, path=run_paths[0], hint="analyze the traces again")
            read = Side((from_analysis(document, name=run_paths[0]),), {})
        side = Side(
            (*side.runs, *read.runs), side.noise | read.noise, side.role_noise | read.role_noise
        )
    for run in side.runs:
        if min(run.values("step_ms"), default=1.0) <= 0:
            raise InputError(
                "a step takes no time, or less", path=run.name, hint="analyze the traces again"
            )
    return side


def read_baseline(path: str) -> Side:
    """Return the runs and the noise of a baseline file, which ``gates.baseline`` writes."""
    hint = "write it again with --update-baseline"
    document = read_document(path, BaselineDocument, hint=hint)
    main = _side_of_baseline(document, path)
    if not any(run.steps or run.values("run_step_ms") for run in main.runs):
        raise InputError("the baseline is empty", path=path, hint=hint)
    roles = {name: _side_of_baseline(role, path) for name, role in (document.roles or {}).items()}
    role_noise = {name: role.noise for name, role in roles.items()}
    runs = []
    for i, run in enumerate(main.runs):
        run_of_role = {name: role.runs[i] for name, role in roles.items() if i < len(role.runs)}
        runs.append(structs.replace(run, main_role=document.main_role or None, roles=run_of_role))
    return Side(tuple(runs), main.noise, role_noise)


def _side_of_baseline(document: RoleBaseline, path: str) -> Side:
    """Return the runs of one role and their noise."""
    tables = document.tables  # of the first run
    runs = []
    for run in document.runs:
        # A file that an earlier version wrote has no samples of mean and slow steps, which follow
        # from the step times, and no findings.
        samples = {**slow_step_samples(run.samples.get("step_ms", ())), **run.samples}
        runs.append(
            Run(
                f"{path}:{run.name}",
                make_samples(samples),
                document.facts,
                kernels=tables.kernels or (),
                modules=tables.modules or (),
                cells=tables.cells or (),
                recorded_steps=run.recorded_steps or 0,
                findings=None if tables.findings is UNSET else tuple(tables.findings),
            )
        )
    noise = {
        metric: Noise(entry.deviation, entry.runs - 1) for metric, entry in document.noise.items()
    }
    return Side(tuple(runs), noise)


def _group_by_run(paths: list[str]) -> list[list[str]]:
    """Group trace files by their folder; every other path is a run of its own."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        file = Path(path)
        is_trace_file = file.is_file() and saved_format(path) is None
        group = f"in {file.resolve().parent}" if is_trace_file else path
        groups.setdefault(group, []).append(path)
    return list(groups.values())


def _analyze_run(paths: list[str], *, keep: bool, changes: Sequence[str]) -> Run:
    """Analyse a trace or a store; of dumps and logs alone, the whole run that they tell about."""
    from tracekit.late import late
    from tracekit.late.find_recordings import has_recordings_alone
    from tracekit.late.run import late_beside_traces
    from tracekit.run.analyze import analyze

    name = public_url(paths[0]) if len(paths) == 1 else str(Path(paths[0]).parent)
    if has_recordings_alone(paths):
        return from_whole_run(late(paths).to_document(), name=name)
    analysis = analyze(paths, timeline=keep, changes=changes)
    run = _run_from_analysis(analysis, name=name, keep=keep)
    if not any(notice.code == "recordings-beside" for notice in analysis.notices):
        return run
    try:
        whole_run = late_beside_traces(paths, analysis)
    except InputError:  # a check of their figures is then inconclusive
        return run
    if whole_run is None:
        return run
    samples = pl.concat([run.samples, samples_of_whole_run(whole_run.document)])
    return structs.replace(run, samples=samples)


def _run_from_analysis(analysis: Analysis, *, name: str, keep: bool) -> Run:
    """Return the run of an analysis; one read back from JSON has no cells."""
    cells: list[CellTime] = []
    timeline: list[TimelineCell] = []
    if analysis.comparison is not None:
        typical_step = analysis.comparison.head.cells
        cells = _median_cells(analysis.comparison.cells)
        if len(typical_step) <= MAX_TIMELINE_CELLS:
            timeline = _timeline(typical_step)
    run = from_analysis(document_of(analysis), name=name, cells=cells, timeline=timeline)
    if keep:
        return structs.replace(run, analysis=analysis)
    return run


def _timeline(cells: pl.DataFrame) -> list[TimelineCell]:
    """Return the cells of one step with their times counted from the start of the first."""
    origin = pl.col("start_ns").min()
    table = cells.with_columns(pl.col("start_ns", "end_ns") - origin)
    return rows(table.sort("rank", "start_ns"), TimelineCell)


def _median_cells(cells: pl.DataFrame) -> list[CellTime]:
    """Return the median time of each pipeline cell over the steps, without keys that do not apply to it."""
    duration = pl.col("end_ns") - pl.col("start_ns")
    table = (
        cells.group_by(_CELL_KEYS)
        .agg(ns=duration.median().cast(pl.Int64))
        .sort(_CELL_KEYS, nulls_last=True)
    )
    return [CellTime(**without_none(row)) for row in table.iter_rows(named=True)]
