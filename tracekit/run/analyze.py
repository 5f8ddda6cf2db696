"""The ``analyze`` call: traces read, labelled, measured and compared."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace as replace_fields

from tracekit._util.arguments import checked_path, checked_text, checked_words
from tracekit._util.workers import ItemResult, map_items
from tracekit.align.steps import Steps, parse_steps
from tracekit.analysis import Analysis
from tracekit.analysis.combine.combine_ranks import combine
from tracekit.analysis.measure.tables import RankTables
from tracekit.classify import RuleBook
from tracekit.errors import InputError, Notice, OptionError
from tracekit.graph.change import parse_change
from tracekit.late.find_recordings import recordings_beside
from tracekit.memory.combine import combine_memory
from tracekit.metrics.alternatives import Alternative
from tracekit.metrics.alternatives.own import OwnAdvice, checked_advice, installed_advice
from tracekit.metrics.attainable import read_gpu_rates
from tracekit.metrics.peaks import check_gpu
from tracekit.parsers.rank_numbers import RankChoice, chosen_ranks, unknown_rank_error
from tracekit.parsers.source_refs import SourceRef
from tracekit.pipeline.reconstruct.parallel_groups import split_layout
from tracekit.results import AnalysisResult
from tracekit.roles.combine import combine_roles, main_role
from tracekit.run import driver
from tracekit.run.measure import SourceWorker
from tracekit.run.source_lines import SourceLines
from tracekit.schema import has_read_stacks
from tracekit.store.source_workers import map_sources, pipeline_map
from tracekit.store.sources import OneRole, PathList, Paths, attach_named_capture, failure_notices
from tracekit.store.trace import Trace


def analyze(
    traces: Paths | OneRole | Trace,
    *,
    steps: Steps | None = None,
    ranks: RankChoice | None = None,
    file_rank: int | None = None,
    rules: str | Path | RuleBook | None = None,
    capture: PathList | None = None,
    schedule: str = "auto",
    layout: str | None = None,
    what_if: bool = False,
    changes: Sequence[str] = (),
    by: str | None = None,
    pipeline: int | None = None,
    gpu: str | None = None,
    gpu_rates: str | Path | None = None,
    advice: Sequence[Alternative] = (),
    timeline: bool = True,
    stacks: bool = False,
    store: str | os.PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    workers: int | None = None,
    executor: Executor | None = None,
    on_damage: driver.OnDamage = "warn",
) -> AnalysisResult:
    """Read, label, measure and compare traces; return where the time of a step went.

    Args:
        traces: A path, folder, glob, URL or store, several of them, or a ``Trace``. For ranks with
            several processes also the paths of each role by its name: ``{"trainer": "a/",
            "rollout": "b/"}``.
        steps: Steps to analyse: ``"2:4"`` is steps 2 and 3, as is ``[2, 3]``; by default all.
        ranks: Numbers of the ranks to read; by default all.
        file_rank: Rank of a single file that does not name it.
        rules: Rules file (or ``RuleBook``) to label with, before the built-in rules.
        capture: Trace of the capture of the CUDA or HIP graphs that the traces replay, or a folder
            with one per rank: replayed kernels get the operators, shapes and modules that were
            captured. A capture in the folder of the traces is found without it.
        schedule: Ideal to compare with: ``auto`` for the schedule that is recognised, a schedule's
            name, an order file, or ``none`` for no comparison.
        layout: Arrangement of ranks, such as ``pp=4,ep=2``, instead of the one derived from the
            traces; ``node=8`` is the number of ranks per machine.
        what_if: Predict this run under other schedules (``result.schedule.what_if``).
        changes: Changes to predict the run with: ``dp_comm x0.5``, ``links x2``, ``rank 2 like
            others``, ``no host delay``, ``hide dp_comm``, ``balance`` or ``microbatches 16``
            (``result.changed_steps``); by default those that would save most.
        by: Add the step's time by ``layer``, ``module``, ``annotation`` or ``shape``
            (``result.by``).
        pipeline: Pipeline to show, counted from 0; by default the slowest.
        gpu: Name of the GPU for traces that do not name it, such as ``"H100"`` (rates and slow
            kernels).
        gpu_rates: Table of what the GPU reaches, which ``benchmarks/atlas.py`` writes: savings are
            priced by it where the run does not show its own rates.
        advice: Entries of one's own beside the catalogue of findings (subclasses of
            ``tracekit.metrics.alternatives.Alternative``); one that raises is left out with a notice.
        timeline: Keep single events for the timeline of the page, in runs of up to 64 ranks;
            without them a page has no timeline, and less time and memory is needed.
        stacks: Read Python frames of all events, for the source lines on the page; takes as long again
            where stacks were recorded. Without it they are read when a finding that names a
            function is shown, of the ranks of its places.
        store: Store to write the traces to, as ``ingest`` does, and to analyse.
        resume: Continue a store that was interrupted.
        overwrite: Replace the store that is there.
        workers: Number of worker processes, or of the executor's workers; by default as many as
            pay.
        executor: Any ``concurrent.futures`` executor to measure ranks on; it stays open.
        on_damage: ``warn`` uses what can be read of damaged files and leaves out missing and
            unreadable ranks, with notices; ``skip`` leaves out damaged ranks as well; ``error``
            raises.

    >>> result = analyze("sample_traces/reload", schedule="none")
    >>> result.reload.rounds, result.reload.buckets, result.reload.sources
    (2, 8, [0, 1, 2, 3, 0, 1, 2, 3])

    """
    ranks = chosen_ranks(ranks)
    parsed_changes = tuple(map(parse_change, checked_words(changes, "changes")))
    schedule = checked_text(schedule, "schedule")
    _check_options(by=by, layout=layout, gpu=gpu, on_damage=on_damage)
    _check_inputs(traces, store=store, resume=resume, capture=capture)
    installed, advice_notices = installed_advice()
    own_advice = OwnAdvice(
        entries=(*installed, *checked_advice(advice)),
        rates=None if gpu_rates is None else read_gpu_rates(gpu_rates),
    )
    run_input = _RunInput(
        traces=traces,
        file_rank=file_rank,
        rules=traces.rules
        if rules is None and isinstance(traces, Trace)
        else _checked_rules(rules),
        on_damage=on_damage,
    )
    if store is not None:
        run_input = _through_store(
            run_input,
            store,
            ranks=ranks,
            workers=workers,
            executor=executor,
            stacks=stacks,
            resume=resume,
            overwrite=overwrite,
        )
    worker = SourceWorker(
        rules=run_input.rules,
        # An executor's workers may run in another folder.
        base=None if executor is None else str(Path.cwd()),
        steps=None if steps is None else parse_steps(steps),
        with_pipeline=schedule != "none",
        ranks=None if ranks is None else frozenset(ranks),
        lenient=run_input.on_damage == "warn",
        by=by,
        keep_events=timeline,
        stacks=stacks,
        gpu=gpu,
        advice=own_advice,
    )
    roles_named_by_caller = isinstance(traces, Mapping)
    measured = _measure_run(
        run_input,
        worker,
        capture=capture,
        workers=workers,
        executor=executor,
        named=roles_named_by_caller,
    )
    combine_tables = partial(
        combine,
        paths=run_input.original_paths or measured.paths,
        combine_memory=combine_memory,
        result_type=AnalysisResult,
        map_function=pipeline_map(workers, executor),
    )
    # The caller's options describe the main role (schedule, layout, pipeline) or ask about it
    # (changes, what-if): its figures are the result's own. Notices from reading
    # are listed once, with them. Every other role is compared with the schedule that is
    # recognised in it, unless no comparison is wanted at all.
    run = _combine_by_role(
        measured.ranks,
        combine_main=partial(
            combine_tables,
            notices=(*measured.notices, *advice_notices),
            schedule=schedule,
            layout=layout,
            what_if=what_if,
            changes=parsed_changes,
            pipeline=pipeline,
        ),
        combine_other=partial(combine_tables, schedule="none" if schedule == "none" else "auto"),
        named=roles_named_by_caller,
        read_lines=not stacks,
    )
    result = replace(run, advice=own_advice)
    assert isinstance(result, AnalysisResult)
    return result


def _check_options(
    *,
    by: str | None,
    layout: str | None,
    gpu: str | None,
    on_damage: driver.OnDamage,
) -> None:
    """Raise OptionError if an option is wrong, before any work is done."""
    if by is not None:
        from tracekit.analysis.measure.by import check_kind

        check_kind(by)
    split_layout(layout)
    driver.check_on_damage(on_damage)
    if gpu is not None:
        check_gpu(gpu)


def _check_inputs(
    traces: Paths | OneRole | Trace,
    *,
    store: str | os.PathLike[str] | None,
    resume: bool,
    capture: PathList | None,
) -> None:
    """Raise OptionError if traces, store and capture cannot be used together."""
    if resume and store is None:
        raise OptionError("resume needs a store to go on with", hint="name one: store=")
    if capture is not None and (store is not None or isinstance(traces, Trace)):
        raise OptionError("a capture is joined with trace files", hint="give paths, and no store")


@dataclass(frozen=True, slots=True)
class _RunInput:
    """What is read and how: the caller's traces, or the store that was written from them."""

    traces: Paths | OneRole | Trace
    file_rank: int | None
    rules: Path | RuleBook | None
    on_damage: driver.OnDamage
    original_paths: list[str] | None = None
    """Paths of the traces that a store was written from; None without a store."""


def _through_store(
    run_input: _RunInput,
    store: str | os.PathLike[str],
    *,
    ranks: Collection[int] | None,
    workers: int | None,
    executor: Executor | None,
    stacks: bool,
    resume: bool,
    overwrite: bool,
) -> _RunInput:
    """Write the traces into a store; return the store as the input in their place."""
    traces = run_input.traces
    rules = run_input.rules
    if isinstance(traces, Trace) or isinstance(rules, RuleBook):
        raise OptionError("a store is made from files", hint="give paths, and a rules file")
    from tracekit.run.ingest import ingest

    file_rank = run_input.file_rank
    original_refs = driver.find_sources(traces, ranks=ranks, rank=file_rank).refs
    written = ingest(
        traces,
        store,
        rules=rules,
        ranks=ranks,
        file_rank=file_rank,
        workers=workers,
        executor=executor,
        stacks=stacks,
        resume=resume,
        overwrite=overwrite,
        on_damage=run_input.on_damage,
    )
    # The store has the ranks and labels of the traces, and their damage was dealt with.
    return _RunInput(
        traces=written.path,
        file_rank=None,
        rules=None,
        on_damage="warn",
        original_paths=[ref.path for ref in original_refs],
    )


class MeasuredRank(NamedTuple):
    """One rank, measured by itself."""

    role: str | None
    tables: RankTables
    ref: SourceRef | None
    """Where it was read; None for a trace in memory."""


@dataclass(frozen=True, slots=True)
class _MeasuredRanks:
    """The tables of every rank, before ranks are compared with each other."""

    ranks: list[MeasuredRank]
    paths: list[str]
    """Paths the ranks were read from."""
    notices: tuple[Notice, ...]


def _measure_run(
    run_input: _RunInput,
    worker: SourceWorker,
    *,
    capture: PathList | None,
    workers: int | None,
    executor: Executor | None,
    named: bool,
) -> _MeasuredRanks:
    """Read and measure every rank, by itself.

    *named* if the caller of ``analyze`` named the roles.
    """
    if isinstance(run_input.traces, Trace):
        return _ranks_of_trace(run_input.traces, worker)
    strict = run_input.on_damage == "error"
    discovery = driver.find_sources(
        run_input.traces, ranks=worker.ranks, rank=run_input.file_rank, strict=strict
    )
    refs = attach_named_capture(discovery.refs, capture)
    results = _tables_of_sources(
        worker.for_ranks(len(refs)), refs, workers=workers, executor=executor
    )
    ranks, run_notices = _check_results(results, worker.ranks, strict=strict, named=named)
    _check_capture_used(capture, ranks)
    return _MeasuredRanks(
        ranks=ranks,
        paths=[ref.path for ref in refs],
        notices=(*discovery.notices, *run_notices, *recordings_beside(discovery)),
    )


def _tables_of_sources(
    worker: SourceWorker,
    refs: Sequence[SourceRef],
    *,
    workers: int | None,
    executor: Executor | None,
) -> list[ItemResult[SourceRef, list[RankTables]]]:
    """Return the tables of every source: those of a store that holds them, the others measured on workers."""
    stored = worker.stored_tables(refs)
    others = [index for index in range(len(refs)) if index not in stored]
    results = []
    if others:
        measured = map_sources(
            worker.measure,
            [refs[index] for index in others],
            workers=workers,
            executor=executor,
            progress="analyzing",
            measures=True,
        )
        results += [replace(result, index=others[result.index]) for result in measured]

    def as_asked_for(index: int) -> list[RankTables]:
        return [worker.as_asked_for(stored[index], refs[index])]

    for result in map_items(as_asked_for, list(stored), workers=1):
        index = result.item
        results.append(ItemResult(index, refs[index], result.value, result.error))
    return sorted(results, key=lambda result: result.index)


def _combine_by_role(
    ranks: Sequence[MeasuredRank],
    *,
    combine_main: Callable[..., Analysis],
    combine_other: Callable[..., Analysis],
    named: bool,
    read_lines: bool,
) -> Analysis:
    """Combine the ranks of each role, then the roles.

    Args:
        ranks: Role and tables of every rank.
        combine_main: ``combine`` with the options for the main role.
        combine_other: ``combine`` with the options for every other role.
        named: Whether the caller of ``analyze`` named the roles.
        read_lines: Read the lines of the program at the places of findings when these are made.

    """
    tables_by_role: dict[str, list[RankTables]] = {}
    refs_by_role: dict[str, dict[int, SourceRef]] = {}
    for role, tables, ref in ranks:
        tables_by_role.setdefault(role or "", []).append(tables)
        if ref is not None:
            refs_by_role.setdefault(role or "", {})[tables.source.rank] = ref
    main = main_role(tables_by_role)
    analyses = {
        role: combine_other(tables, best_changes=False)
        for role, tables in tables_by_role.items()
        if role != main
    }
    # A role alone does not show what the others would hold back.
    is_only_role = not analyses
    analyses[main] = combine_main(tables_by_role[main], best_changes=is_only_role)
    for role, refs in refs_by_role.items() if read_lines else ():
        analyses[role] = replace(analyses[role], read_lines=SourceLines.of(refs))
    return combine_roles(analyses, tables_by_role, main=main, named=named)


def _check_capture_used(capture: PathList | None, ranks: Sequence[MeasuredRank]) -> None:
    """Raise if the caller named a capture and it fits the replays of no rank."""
    if capture is None:
        return
    notices: list[Notice] = []
    for rank in ranks:
        notices += rank.tables.notices
    if any(notice.code == "capture-joined" for notice in notices):
        return
    for notice in notices:
        if notice.code == "capture-unused":
            hint = "give the trace of this run's own capture, with its batch size"
            of_any_rank = replace_fields(notice, ranks=())
            raise InputError("the capture fits no replay", hint=hint, notice=of_any_rank)
    raise InputError("the traces replay no graph", hint="leave --capture out")


def _ranks_of_trace(trace: Trace, worker: SourceWorker) -> _MeasuredRanks:
    """Return the measured ranks of a trace in memory."""
    parts = [
        part for part in trace.parts if worker.ranks is None or part.source.rank in worker.ranks
    ]
    requested = worker.ranks or frozenset()
    if absent := requested.difference(trace.ranks):
        raise unknown_rank_error(absent, trace.ranks)
    worker = worker.for_ranks(len(parts))
    ranks: list[MeasuredRank] = []
    for part in parts:
        # What is in memory is not read again: its stacks, if it has them, are of use at once.
        of_part = replace(worker, stacks=worker.stacks or has_read_stacks(part.source))
        ranks.append(MeasuredRank(part.source.role, of_part.measure_events(part), ref=None))
    return _MeasuredRanks(
        ranks=_without_copies(ranks, trace.notices),
        paths=[part.source.path for part in parts],
        notices=trace.notices,
    )


def _check_results(
    results: Sequence[ItemResult[SourceRef, list[RankTables]]],
    ranks: Collection[int] | None,
    *,
    strict: bool,
    named: bool,
) -> tuple[list[MeasuredRank], tuple[Notice, ...]]:
    """Return the ranks that could be measured, and notices.

    *named* if the caller of ``analyze`` named the roles.
    """
    failures = failure_notices(results, strict=strict)
    measured: list[MeasuredRank] = []
    for result in results:
        if result.error is None:
            ref = result.item
            measured += [MeasuredRank(ref.role, tables, ref) for tables in result.unwrap()]
    spans: list[driver.Span] = []
    for role, tables, _ in measured:
        first = tables.steps["start_ns"].min()
        last = tables.steps["end_ns"].max()
        spans.append((msgspec.structs.replace(tables.source, role=role), first, last))  # type: ignore[arg-type]
    run_notices = driver.check_run(
        spans, ranks=ranks, failed=bool(failures), strict=strict, named=named
    )
    return _without_copies(measured, run_notices), (*failures, *run_notices)


def _without_copies(ranks: Sequence[MeasuredRank], notices: Sequence[Notice]) -> list[MeasuredRank]:
    """Return the ranks without those that a notice calls copies of each other; raise if none is left."""
    copied_files: set[object] = set()
    for notice in notices:
        if notice.code == "copied-ranks":
            copied_files.update(notice.values["files"])  # type: ignore[arg-type]
    originals = [rank for rank in ranks if rank.tables.source.path not in copied_files]
    if ranks and not originals:
        first = next(notice for notice in notices if notice.code == "copied-ranks")
        hint = "name the file that each rank's profiler wrote"
        raise InputError("no rank is left", hint=hint, notice=first)
    return originals


def _checked_rules(rules: str | Path | RuleBook | None) -> Path | RuleBook | None:
    """Return the rules, a file as an absolute path.

    Raise here if it is wrong, not once per rank.
    """
    from tracekit.classify import RuleBook, load_rules

    if rules is None or isinstance(rules, RuleBook):
        return rules
    file = checked_path(rules, "rules")
    load_rules(file)
    return file.absolute()
