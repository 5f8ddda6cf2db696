"""One typed view of an analysis (``view_of``), which terminal, page, Markdown and plots render."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from tracekit._util.text import capitalize, counted, ranks_named
from tracekit.analysis import Analysis
from tracekit.analysis.spread import MANY_RANKS, spread
from tracekit.errors import Notice
from tracekit.parsers.ranks import missing_ranks
from tracekit.report.advice import Advice, advise
from tracekit.report.definitions import DEFINITIONS, SCHEDULE_DEFINITIONS
from tracekit.report.evidence import MAX_MISSING_NAMED, collect_evidence, relevant_notices
from tracekit.report.role_words import role_advice
from tracekit.report.view.answer import answer
from tracekit.report.view.breakdown import by_view
from tracekit.report.view.budget import beside, budget_view, hiding_table, label_rows, matrix_of
from tracekit.report.view.copies import copies, reload_view
from tracekit.report.view.lateness import imbalance_table, lateness_map, slowdown_table
from tracekit.report.view.memory import memory_view
from tracekit.report.view.model import View
from tracekit.report.view.path import path_view
from tracekit.report.view.pipeline import schedule_view, unnamed_phases
from tracekit.report.view.ranks import MAX_BUBBLES, bubble_rows, clock_note, host_activity_view, steps_view, stragglers
from tracekit.report.view.rates import rates_view
from tracekit.report.view.roles import roles_view
from tracekit.report.view.what_if import changes_view

__all__ = ["View", "shorten_notices", "view_of"]

MAX_NOTICES_OF_A_KIND = 5
"""Warnings of one kind that are shown one by one."""
_VIEWS: WeakKeyDictionary[Analysis, View] = WeakKeyDictionary()


def view_of(analysis: Analysis) -> View:
    """Return the content of every report of *analysis*; built once for each analysis.

    >>> from tracekit import analyze
    >>> view = view_of(analyze("sample_traces/reload", schedule="none"))
    >>> view.title, view.ranks, view.steps_named
    ('tracekit: reload, 4 ranks', '4 ranks', 'step 2')
    """
    if analysis not in _VIEWS:
        _VIEWS[analysis] = _build(analysis)
    return _VIEWS[analysis]


def _build(analysis: Analysis) -> View:
    path, labels, evidence = input_path(analysis), label_rows(analysis), collect_evidence(analysis)
    waited_for, schedule, bubbles = stragglers(analysis), schedule_view(analysis), bubble_rows(analysis)
    quoted_path = None if path is None else shlex.quote(path)
    advice = [Advice(text) for text in role_advice(analysis)] or advise(evidence, path=quoted_path)
    next_steps = tuple(Advice(capitalize(line.text), line.command) for line in advice)
    return View(
        title=_title(analysis, path),
        ranks=_ranks(analysis),
        steps_named=_steps_named(analysis),
        devices=tuple(sorted({device for source in analysis.sources for device in source.devices})),
        reader="+".join(sorted({source.reader for source in analysis.sources})),
        paths=tuple(analysis.paths or (source.path for source in analysis.sources)),
        input_path=path,
        has_gpu=bool(analysis.total.budget.span_ns),
        pipelined=analysis.total.pipeline,
        answer=answer(analysis, labels=labels, schedule=schedule, stragglers=waited_for, advice=next_steps),
        advice=next_steps,
        budget=budget_view(analysis),
        labels=labels,
        matrix=matrix_of(analysis),
        beside=beside(analysis),
        bubbles=bubbles[:MAX_BUBBLES],
        more_bubbles=max(0, len(bubbles) - MAX_BUBBLES),
        schedule=schedule,
        phases=unnamed_phases(analysis),
        critical=path_view(analysis),
        changes=changes_view(analysis),
        by=by_view(analysis),
        rates=rates_view(analysis),
        instead=host_activity_view(analysis),
        hiding=hiding_table(analysis),
        memory=memory_view(analysis),
        stragglers=waited_for,
        lateness=lateness_map(analysis),
        imbalance=imbalance_table(analysis),
        slowdown=slowdown_table(analysis),
        clock_note=clock_note(analysis),
        steps=steps_view(analysis),
        copies=copies(analysis),
        reload=reload_view(analysis),
        roles=roles_view(analysis),
        fleet=spread(analysis) if len(analysis.rank_results) > MANY_RANKS else None,
        warnings=tuple(shorten_notices(relevant_notices(analysis))),
        definitions=DEFINITIONS if schedule is None else (*DEFINITIONS, *SCHEDULE_DEFINITIONS),
        analysis=analysis,
    )


def shorten_notices(notices: Sequence[Notice]) -> list[Notice]:
    """Return the first notices of each kind and how many more there are; failed ranks are all listed.

    >>> [note.message for note in shorten_notices([Notice("cut", f"rank {n} ends early") for n in range(7)])][-2:]
    ['rank 4 ends early', '2 more like this']
    """
    shown: list[Notice] = []
    count_of: dict[str, int] = {}
    for notice in notices:
        count_of[notice.code] = count_of.get(notice.code, 0) + 1
        if count_of[notice.code] <= MAX_NOTICES_OF_A_KIND or notice.code == "rank-failed":
            shown.append(notice)
    shortened = []
    last_of_kind = {notice.code: i for i, notice in enumerate(shown)}
    for i, notice in enumerate(shown):
        shortened.append(notice)
        more = count_of[notice.code] - MAX_NOTICES_OF_A_KIND
        if more > 0 and i == last_of_kind[notice.code] and notice.code != "rank-failed":
            shortened.append(Notice(notice.code, f"{more} more like this"))
    return shortened


def _title(analysis: Analysis, path: str | None) -> str:
    ranks = _ranks(analysis)
    if analysis.schedule is not None:
        return f"tracekit: {analysis.schedule.name} on {ranks}"
    name = (path or "").rstrip("/").rpartition("/")[2].partition("?")[0]
    return f"tracekit: {name}, {ranks}" if name.strip(".") else f"tracekit: {ranks}"


def _ranks(analysis: Analysis) -> str:
    """Return the number of ranks, and which of them are missing or damaged."""
    results, world = analysis.rank_results, analysis.world_size
    whole = [result.rank for result in results if result.whole.budget.span_ns]
    empty = [result.rank for result in results if not result.whole.budget.span_ns]
    missing_count, missing = missing_ranks([*whole, *empty], world or 0, most=MAX_MISSING_NAMED)
    more = f" and {missing_count - len(missing)} more" if missing_count > len(missing) else ""
    remarks = [
        f"{ranks_named(missing)}{more} missing" if missing else "",
        f"{ranks_named(empty)} without GPU events" if empty and whole else "",
        *(_cut_files(notice.message) for notice in analysis.notices if notice.code == "truncated"),
    ]
    of_world = f" of {world:,}" if world and world != len(whole) else ""
    count = f"{len(whole):,}{of_world} {'rank' if (world or len(whole)) == 1 else 'ranks'}"
    remark = "; ".join(dict.fromkeys(filter(None, remarks)))
    return f"{count} ({remark})" if remark and whole else count if whole else counted(len(results), "rank")


def _cut_files(message: str) -> str:
    """Return which ranks a notice of a truncated file is about."""
    ranks, _, rest = message.partition(":")
    return f"{ranks} truncated" if rest and ranks.startswith("rank") else "a file truncated"


def _steps_named(analysis: Analysis) -> str:
    steps = sorted({step for rank in analysis.rank_results for step in rank.steps})
    if not steps:
        return "no step marks"
    return f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]}–{steps[-1]}"


def input_path(analysis: Analysis) -> str | None:
    """Return the input as one path: the only one, or the folder that holds them all; None if there is none.

    >>> from tracekit import analyze
    >>> input_path(analyze("sample_traces/reload", schedule="none"))
    'sample_traces/reload'
    """
    paths = dict.fromkeys(analysis.paths)
    folders = {path.rpartition("/")[0] for path in paths}
    if len(paths) == 1:
        return next(iter(paths))
    if analysis.role_results.roles and len(folders) > 1:  # a folder per role
        folders = {folder.rpartition("/")[0] for folder in folders}
    return (folders.pop() or ".") if len(folders) == 1 else None
