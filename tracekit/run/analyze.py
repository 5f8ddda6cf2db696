"""The ``analyze`` call: traces read, labelled, measured and compared."""

from __future__ import annotations

import os
from collections.abc import Collection
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.align.steps import Steps, parse_steps
from tracekit.analysis import Analysis
from tracekit.analysis.combine import combine
from tracekit.analysis.tables import RankTables
from tracekit.errors import OptionError
from tracekit.parsers.ranks import unknown_rank
from tracekit.reconstruct.parallel_groups import split_layout
from tracekit.run.driver import (
    MEASURE_BYTES_FOR_PROCESSES,
    Span,
    check_run,
    find_sources,
    map_sources,
    pipeline_map,
)
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
    """Read, label, measure and compare traces; return where the time of a step went.

    Args:
        traces: A path, folder, glob, URL or store, several of them, or a ``Trace``.
        steps: Steps to analyse: ``"2:4"`` is steps 2 and 3, as is ``[2, 3]``; by default all.
        ranks: Ranks to read; by default all.
        rank: Rank of a single file that does not name it.
        rules: Rules file (or ``RuleBook``) to label with, before the built-in rules.
        schedule: Ideal to compare with: ``auto``, a schedule's name, an order file or ``none``.
        layout: How ranks are arranged, instead of what was found: ``pp=4,ep=2``; ``node=8`` is ranks per machine.
        what_if: Rank the schedules that this run could use.
        critical_path: Add the critical path across ranks.
        by: Rows of ``result.by``: ``layer``, ``module``, ``annotation`` or ``shape``.
        pipeline: Pipeline to show, counted from 0; by default the slowest.
        store: Store to keep what is read in, as ``ingest`` does.
        resume: Continue a store that was interrupted.
        workers: Number of worker processes, or of the executor's workers; by default as many as pay.
        executor: Any ``concurrent.futures`` executor to measure ranks on; it stays open.
        lenient: Use what can be read of a damaged file.
        strict: Raise if a rank is missing or cannot be read; by default it is left out and listed among the notices.

    >>> result = analyze("sample_traces/reload", schedule="none")
    >>> result.reload.rounds, result.reload.buckets, result.reload.sources
    (2, 8, (0, 1, 2, 3, 0, 1, 2, 3))

    """
    if by is not None:
        from tracekit.analysis.by import check_kind

        check_kind(by)
    split_layout(layout)  # raises if it is wrong, before any work is done
    rules = _checked_rules(rules)
    if store is not None:
        if isinstance(traces, Trace) or not (rules is None or isinstance(rules, Path)):
            raise OptionError("a store is made from files", hint="give paths, and a rules file")
        from tracekit.run.ingest import ingest

        written, _ = ingest(
            traces,
            store,
            ranks=ranks,
            rank=rank,
            rules=rules,
            workers=workers,
            executor=executor,
            lenient=lenient,
            strict=strict,
            resume=resume,
        )
        result = analyze(
            written.path,
            steps=steps,
            ranks=ranks,
            schedule=schedule,
            layout=layout,
            what_if=what_if,
            critical_path=critical_path,
            by=by,
            pipeline=pipeline,
            workers=workers,
            executor=executor,
        )
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
    combine_ranks = partial(
        combine,
        schedule=schedule,
        layout=layout,
        what_if=what_if,
        path=critical_path,
        show=pipeline,
        spread=pipeline_map(workers, executor),
    )
    if isinstance(traces, Trace):
        parts = [part for part in traces.parts if ranks is None or part.source.rank in ranks]
        if absent := set(ranks or ()) - {part.source.rank for part in parts}:
            raise unknown_rank(absent, traces.ranks)
        tables = [options.measure(part) for part in parts]
        return combine_ranks(tables, paths=[part.source.path for part in parts], notices=traces.notices)
    refs, notices = find_sources(traces, ranks=ranks, rank=rank, strict=strict)
    results = map_sources(
        options.source_tables,
        refs,
        workers=workers,
        executor=executor,
        progress="analyzing",
        bytes_for_processes=MEASURE_BYTES_FOR_PROCESSES,
    )
    failures = failure_notices(results, strict=strict)
    tables = [rank_tables for result in results if result.error is None for rank_tables in result.unwrap()]
    run_notices = check_run(
        [_span(rank_tables) for rank_tables in tables], ranks=ranks, failed=bool(failures), strict=strict
    )
    return combine_ranks(tables, paths=[ref.path for ref in refs], notices=(*notices, *failures, *run_notices))


def _checked_rules(rules: str | Path | RuleBook | None) -> Path | RuleBook | None:
    """Return the rules, a file as an absolute path; raise here if it is wrong, not once per rank."""
    if not isinstance(rules, str | Path):
        return rules
    from tracekit.classify import load_rules

    load_rules(rules)
    return Path(rules).absolute()


def _span(tables: RankTables) -> Span:
    steps = tables.steps
    return tables.source, steps["start_ns"].min(), steps["end_ns"].max()  # type: ignore[return-value]
