"""``analyze``: the one way through reading, labelling, measuring and comparing."""

from __future__ import annotations

import os
from collections.abc import Collection
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracekit.align.steps import Steps, parse_steps
from tracekit.analysis import Analysis
from tracekit.analysis.combine import combine
from tracekit.analysis.tables import RankTables
from tracekit.errors import OptionError
from tracekit.parsers.ranks import unknown_rank
from tracekit.reconstruct.roles import split_layout
from tracekit.run.driver import MEASURE_PAYS_BYTES, Span, check_run, find_sources, map_sources, spread_over
from tracekit.run.measure import Options
from tracekit.store.reading import failure_notices
from tracekit.store.sources import Paths
from tracekit.store.trace import Trace

if TYPE_CHECKING:
    from tracekit.classify import RuleBook


def analyze(
    traces: Paths | Trace,
    *,
    steps: Steps | None = None,
    ranks: Collection[int] | None = None,
    rank: int | None = None,
    rules: str | Path | RuleBook | None = None,
    schedule: str = "auto",
    layout: str | None = None,
    what_if: bool = False,
    critical_path: bool = False,
    by: str | None = None,
    pipeline: int | None = None,
    store: str | os.PathLike[str] | None = None,
    resume: bool = False,
    workers: int | None = None,
    executor: Executor | None = None,
    lenient: bool = True,
    strict: bool = False,
) -> Analysis:
    """Return where the step went: read (a path, folder, glob, URL, store or ``Trace``), label, measure and compare.

    *steps* selects steps (``"2:4"`` is 2 and 3, as is ``[2, 3]``), *ranks* reads only those, *rules* is a rules file
    (or a ``RuleBook``), *schedule* is ``auto``, a name, an order file or ``none``, *layout* overrides how ranks are
    arranged (``pp=4,ep=2``; ``node=8``: ranks per machine), *critical_path* adds the path across ranks, *by* the step
    by ``layer``, ``module``, ``annotation`` or ``shape`` (``result.by``), *pipeline* is the one to show (else: the
    slowest). Ranks are measured by *workers* processes, or by any ``concurrent.futures`` *executor* (*workers* is then
    how many it has). A rank that cannot be read is left out and listed among the notices; with *strict* that, and a
    missing rank, is an error. With *store* what is read is kept there, and *resume* goes on with a store that was
    interrupted.

    >>> result = analyze("sample_traces/reload", schedule="none")
    >>> result.reload.rounds, result.reload.buckets, result.reload.sources
    (2, 8, (0, 1, 2, 3, 0, 1, 2, 3))
    """
    if by is not None:
        from tracekit.analysis.by import check_kind

        check_kind(by)
    split_layout(layout)
    rules = _checked_rules(rules)
    if store is not None:
        if isinstance(traces, Trace) or not (rules is None or isinstance(rules, Path)):
            raise OptionError("a store is made from files", hint="give paths, and a rules file")
        common: dict[str, Any] = {"ranks": ranks, "workers": workers, "executor": executor}
        reading: dict[str, Any] = {"rank": rank, "rules": rules, "lenient": lenient, "strict": strict, "resume": resume}
        from tracekit.run.ingest import ingest

        kept, _ = ingest(traces, store, **reading, **common)
        asked: dict[str, Any] = {"what_if": what_if, "critical_path": critical_path, "pipeline": pipeline, "by": by}
        result = analyze(kept.path, steps=steps, schedule=schedule, layout=layout, **asked, **common)
        return replace(result, paths=tuple(ref.path for ref in find_sources(traces, ranks=ranks, rank=rank)[0]))
    if resume:
        raise OptionError("--resume needs a store to go on with", hint="name one with --store")
    options = Options(
        rules=rules,
        base=str(Path.cwd()) if executor is not None else None,
        steps=None if steps is None else parse_steps(steps),
        pipeline=schedule != "none",
        ranks=None if ranks is None else frozenset(ranks),
        lenient=lenient,
        by=by,
    )
    reduce = partial(
        combine,
        schedule=schedule,
        layout=layout,
        what_if=what_if,
        path=critical_path,
        show=pipeline,
        spread=spread_over(workers, executor),
    )
    if isinstance(traces, Trace):
        chosen = [part for part in traces.parts if ranks is None or part.source.rank in ranks]
        if absent := set(ranks or ()) - {part.source.rank for part in chosen}:
            raise unknown_rank(absent, traces.ranks)
        tables = [options.measure(part) for part in chosen]
        return reduce(tables, paths=[part.source.path for part in chosen], notices=traces.notices)
    refs, notices = find_sources(traces, ranks=ranks, rank=rank, strict=strict)
    done = map_sources(
        options.source_tables, refs, workers=workers, executor=executor, progress="analyzing", pays=MEASURE_PAYS_BYTES
    )
    failures = failure_notices(done, strict=strict)
    tables = [one for each in done if each.error is None for one in each.unwrap()]
    checked = check_run([_span(one) for one in tables], ranks=ranks, failed=bool(failures), strict=strict)
    return reduce(tables, paths=[ref.path for ref in refs], notices=(*notices, *failures, *checked))


def _checked_rules(rules: str | Path | RuleBook | None) -> Path | RuleBook | None:
    """Return the rules, a file's path made absolute: a mistake in it is one error, not one per rank."""
    if not isinstance(rules, str | Path):
        return rules
    from tracekit.classify import load_rules

    load_rules(rules)
    return Path(rules).absolute()


def _span(tables: RankTables) -> Span:
    steps = tables.steps
    return tables.source, steps["start_ns"].min(), steps["end_ns"].max()  # type: ignore[return-value]
