"""``analyze``: the one way through reading, labelling, measuring and comparing.

Each rank is a pure function of its events (``rank_tables``) that returns small tables; ``combine`` reduces them. That
is what lets the same analysis run in one process, in several, or on a cluster.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tracekit.analysis.combine import combine
from tracekit.analysis.result import Analysis, Measured, RankResult
from tracekit.analysis.sources import Options
from tracekit.analysis.tables import RankTables, rank_tables
from tracekit.errors import OptionError
from tracekit.metrics.steps import Steps, parse_steps
from tracekit.reading import failure_notices, prepare, worker_count
from tracekit.sources import Paths, check_one_run, check_strict, find, merged_notices, missing_notice
from tracekit.trace import Trace
from tracekit.workers import executor_size, run_map

if TYPE_CHECKING:
    from tracekit.classify import RuleBook

__all__ = ["Analysis", "Measured", "Options", "RankResult", "RankTables", "analyze", "combine", "rank_tables"]

MEASURE_PAYS_BYTES = 1 << 28
"""Input above which processes pay: labelling and measuring cost more than reading."""


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
    workers: int | None = None,
    lenient: bool = True,
    strict: bool = False,
    executor: Executor | None = None,
) -> Analysis:
    """Say where the step went: read (a path, folder, glob, URL, store or ``Trace``), label, measure and compare.

    *steps* selects steps (``"2:4"`` is 2 and 3, as is ``[2, 3]``), *ranks* reads only those, *rules* is a rules file
    (or a ``RuleBook``), *schedule* is ``auto``, a name, an order file or ``none``, *layout* overrides how ranks are
    arranged (``pp=4,ep=2``). Ranks are measured by *workers* processes, or by any ``concurrent.futures`` *executor*
    (*workers* is then how many it has). A rank that cannot be read is left out and listed among the notices; with
    *strict* that, and a missing rank, is an error.

    >>> found = analyze("sample_traces/reload", schedule="none")
    >>> found.reload.rounds, found.reload.buckets, found.reload.sources
    (2, 8, (0, 1, 2, 3, 0, 1, 2, 3))
    """
    if isinstance(rules, str | Path):
        from tracekit.classify import load_rules

        load_rules(rules)  # a mistake in the rules is one error, not one a rank
        rules = Path(rules).absolute()
    options = Options(
        rules=rules,
        base=str(Path.cwd()) if executor is not None else None,
        steps=None if steps is None else parse_steps(steps),
        pipeline=schedule != "none",
        ranks=_frozen(ranks),
        lenient=lenient,
    )
    reduce = partial(combine, schedule=schedule, layout=layout, what_if=what_if)
    if isinstance(traces, Trace):
        chosen = [part for part in traces.parts if ranks is None or part.source.rank in ranks]
        _check_chosen([part.source.rank for part in chosen], ranks)
        tables = [options.measure(part) for part in chosen]
        return reduce(tables, paths=[part.source.path for part in chosen], notices=traces.notices)
    refs, notices = find(traces, ranks=ranks, rank=rank)
    count = worker_count(refs, workers, pays=MEASURE_PAYS_BYTES)
    if strict:
        check_strict(notices)
    if executor is not None:
        count = workers or executor_size(executor)
    elif count > 1:
        prepare(refs)
    done = run_map(options.source_tables, refs, workers=count, executor=executor, progress="analyzing")
    failures = failure_notices(done, strict=strict)
    tables = [one for each in done if each.error is None for one in each.unwrap()]
    if not failures:
        _check_chosen([one.source.rank for one in tables], ranks)
    check_one_run([(one.source, one.steps["start_ns"].min(), one.steps["end_ns"].max()) for one in tables])  # type: ignore[misc]
    sources = [one.source for one in tables]
    missing = () if ranks is not None else missing_notice(sources)
    if strict:
        check_strict(missing)
    said = (*notices, *failures, *merged_notices(sources), *missing)
    return reduce(tables, paths=[ref.path for ref in refs], notices=said)


def _frozen(ranks: Collection[int] | None) -> frozenset[int] | None:
    return None if ranks is None else frozenset(ranks)


def _check_chosen(found: list[int], asked: Collection[int] | None) -> None:
    lost = sorted(set(asked or ()) - set(found))
    if lost or not found:
        names = ", ".join(map(str, lost[:8]))
        raise OptionError(f"ranks: there is no rank {names}", hint="leave --ranks out to see which there are")
