"""One typed view of an analysis (``view_of``), which terminal, page, Markdown and plots render."""

from __future__ import annotations

import re
import shlex
from weakref import WeakKeyDictionary

from tracekit._util.text import capitalize, counted
from tracekit.analysis import Analysis
from tracekit.analysis.spread import MANY_RANKS, spread
from tracekit.report.advice import advice, asked
from tracekit.report.definitions import DEFINITIONS, SCHEDULE_DEFINITIONS
from tracekit.report.view.answer import Advice, answer
from tracekit.report.view.budget import beside, budget_view, label_rows, matrix_of
from tracekit.report.view.by import by_view
from tracekit.report.view.memory import memory_view
from tracekit.report.view.model import View
from tracekit.report.view.notices import few_alike
from tracekit.report.view.path import path_view
from tracekit.report.view.pipeline import schedule_view, unnamed_phases
from tracekit.report.view.ranks import MOST_BUBBLES, bubble_rows, clock_note, steps_view, stragglers
from tracekit.report.view.rates import rates_view
from tracekit.report.view.why import hiding_view, instead_view
from tracekit.report.view.work import copies, reload_view

__all__ = ["View", "view_of"]

_BUILT: WeakKeyDictionary[Analysis, View] = WeakKeyDictionary()


def view_of(analysis: Analysis) -> View:
    """Return what every report of *analysis* shows; built once for each analysis.

    >>> from tracekit import analyze
    >>> view = view_of(analyze("sample_traces/reload", schedule="none"))
    >>> view.title, view.ranks, view.steps_named
    ('tracekit: reload, 4 ranks', '4 ranks', 'step 2')
    """
    known = _BUILT.get(analysis)
    if known is None:
        known = _BUILT[analysis] = _build(analysis)
    return known


def _build(analysis: Analysis) -> View:
    pipeline, path = analysis.total.pipeline, asked(analysis)
    labels, late, held = label_rows(analysis), stragglers(analysis), schedule_view(analysis)
    todo = tuple(Advice(capitalize(line), _command(line, path)) for line in advice(analysis))
    bubbles = bubble_rows(analysis)
    return View(
        title=_title(analysis, path),
        ranks=_ranks(analysis),
        steps_named=_steps_named(analysis),
        devices=tuple(sorted({device for source in analysis.sources for device in source.devices})),
        reader="+".join(sorted({source.reader for source in analysis.sources})),
        paths=tuple(analysis.paths or (source.path for source in analysis.sources)),
        asked=path,
        has_gpu=bool(analysis.total.budget.span_ns),
        pipelined=pipeline,
        answer=answer(analysis, labels=labels, schedule=held, stragglers=late, advice=todo, pipeline=pipeline),
        advice=todo,
        budget=budget_view(analysis),
        labels=labels,
        matrix=matrix_of(analysis),
        beside=beside(analysis),
        bubbles=bubbles[:MOST_BUBBLES],
        more_bubbles=max(0, len(bubbles) - MOST_BUBBLES),
        schedule=held,
        phases=unnamed_phases(analysis),
        critical=path_view(analysis),
        by=by_view(analysis),
        rates=rates_view(analysis),
        instead=instead_view(analysis),
        hiding=hiding_view(analysis),
        memory=memory_view(analysis),
        stragglers=late,
        clock_note=clock_note(analysis),
        steps=steps_view(analysis),
        copies=copies(analysis),
        reload=reload_view(analysis),
        fleet=spread(analysis) if len(analysis.rank_results) > MANY_RANKS else None,
        warnings=tuple(few_alike(analysis.notices)),
        definitions=(*DEFINITIONS, *SCHEDULE_DEFINITIONS) if held is not None else DEFINITIONS,
        analysis=analysis,
    )


def _title(analysis: Analysis, path: str | None) -> str:
    ranks = counted(len(analysis.rank_results), "rank")
    if analysis.schedule is not None:
        return f"tracekit: {analysis.schedule.name} on {ranks}"
    name = (path or "").rstrip("/").rpartition("/")[2].partition("?")[0]
    return f"tracekit: {name}, {ranks}" if name.strip(".") else f"tracekit: {ranks}"


def _ranks(analysis: Analysis) -> str:
    count, world = len(analysis.rank_results), analysis.world_size
    return f"{count:,} of {counted(world, 'rank')}" if world and world != count else counted(count, "rank")


def _steps_named(analysis: Analysis) -> str:
    steps = sorted({step for one in analysis.rank_results for step in one.steps})
    if not steps:
        return "no step marks"
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]}–{steps[-1]}"


def _command(line: str, path: str | None) -> str | None:
    """Return the whole command a line of advice names in backticks, to copy.

    >>> _command("`--what-if` ranks the schedules", "runs/a b")
    "tracekit analyze 'runs/a b' --what-if"
    >>> _command("record again (`tracekit doctor` says how)", "runs/a")
    'tracekit doctor runs/a'
    """
    named = re.search("`(tracekit [a-z]+|--[^`]+)`", line)
    if named is None or path is None:
        return None
    words, where = named[1], shlex.quote(path)
    return f"{words} {where}" if words.startswith("tracekit") else f"tracekit analyze {where} {words}"
