"""Diagnosis of recordings: contents, available answers, findings and how to record better, as plain data.

``tracekit.report.terminal.doctor`` prints it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from tracekit._util.notebook import html_table
from tracekit._util.text import counted
from tracekit.align.steps import assign_parts, host_ranges
from tracekit.classify.names import HOST_CALLS
from tracekit.doctor.findings import (
    MIN_LAUNCHED_SHARE,
    RECIPES,
    RankFacts,
    find_extras,
    find_problems,
    for_accelerator,
)
from tracekit.documents.analysis import Budget, TimedStep
from tracekit.documents.coding import HasDocument
from tracekit.documents.doctor import DOCTOR_FORMAT, DoctorDocument, DoctorFinding
from tracekit.errors import Notice, NoticeValues
from tracekit.memory.snapshot_file import read_memory_snapshot
from tracekit.metrics.completeness import (
    add_launch_times,
    check_completeness,
    count_missing_launches,
)
from tracekit.metrics.host.events import find_calls
from tracekit.metrics.step_time import summarize_steps, timed_steps
from tracekit.parsers.rank_numbers import RankChoice, chosen_ranks
from tracekit.parsers.source_refs import SourceRef
from tracekit.parsers.steps import find_inference_steps
from tracekit.report.notices import notice_sentence
from tracekit.run.driver import check_run, find_sources
from tracekit.schema import GPU_KINDS, ProcessGroup, RankEvents
from tracekit.store.source_workers import map_sources
from tracekit.store.sources import OneRole, Paths, raise_failures, read_ref

if TYPE_CHECKING:
    from rich.console import RenderableType

INTEL_CALLS = r"^(ur|pi)Enqueue|^ze[A-Z]"
"""Calls of Intel's runtimes that put work on a GPU: Unified Runtime, the plugin interface before it, Level Zero."""
_NCCL_KERNEL = r"(?i)nccl|rccl"


class Diagnosis(HasDocument, msgspec.Struct, frozen=True):
    """Facts and findings over all ranks.

    >>> diagnosis = diagnose("sample_traces/1f1b-noshapes")
    >>> diagnosis.findings[0].severity, diagnosis.to_dict()["format"]
    ('limits', 'tracekit.doctor/1')
    """

    paths: tuple[str, ...]
    facts: tuple[RankFacts, ...]
    findings: tuple[DoctorFinding, ...]
    notices: tuple[Notice, ...]

    @property
    def reader(self) -> str:
        """Tool that recorded the run: ``kineto`` or ``nsight``."""
        return self.facts[0].source.reader

    @property
    def world_size(self) -> int | None:
        """Number of ranks in the run; None if no file states it."""
        return max((fact.source.world_size or 0 for fact in self.facts), default=0) or None

    def counts(self) -> dict[str, int]:
        """Return the number of events by kind, over all ranks."""
        return dict(_sum_counts(fact.counts for fact in self.facts).most_common())

    def groups(self) -> list[ProcessGroup]:
        """Return the process groups, each once: from the files' headers, else from the events."""
        descriptions: dict[tuple[str, tuple[int, ...]], str | None] = {}
        for fact in self.facts:
            for group in fact.source.groups:
                descriptions[group.name, group.ranks] = group.description
            in_headers = {name for name, _ in descriptions}
            for name, description in fact.groups.items():
                if name not in in_headers:
                    descriptions[name, ()] = description
        return [
            ProcessGroup(name, description, ranks)
            for (name, ranks), description in sorted(descriptions.items())
        ]

    def _devices(self) -> list[str]:
        """Return the names of the GPUs, each once."""
        names: set[str] = set()
        for fact in self.facts:
            names.update(fact.source.devices)
        return sorted(names)

    def _steps(self) -> list[int]:
        """Return the numbers of the marked steps, each once."""
        numbers: set[int] = set()
        for fact in self.facts:
            numbers.update(fact.steps)
        return sorted(numbers)

    def _span_ns(self) -> int:
        """Return the time from the first event of any rank to the last; 0 without events."""
        starts = []
        ends = []
        for fact in self.facts:
            if fact.start_ns is not None and fact.end_ns is not None:
                starts.append(fact.start_ns)
                ends.append(fact.end_ns)
        return max(ends) - min(starts) if starts else 0

    def step_time_ns(self) -> int | None:
        """Return the step time of the run.

        None without marked steps, or where ranks have several roles.
        """
        if len({fact.source.role for fact in self.facts}) > 1:
            return None
        return summarize_steps({fact.rank: fact.timed_steps for fact in self.facts}).time_ns

    def to_document(self) -> DoctorDocument:
        """Return the JSON document (``format: tracekit.doctor/1``)."""
        fields = {
            "format": DOCTOR_FORMAT,
            "paths": self.paths,
            "reader": self.reader,
            "versions": _merge_versions(fact.source.versions for fact in self.facts),
            "ranks": [fact.rank for fact in self.facts],
            "world_size": self.world_size,
            "devices": self._devices(),
            "steps": self._steps(),
            "span_ns": self._span_ns(),
            "step_time_ns": self.step_time_ns(),
            "groups": self.groups(),
            "counts": self.counts(),
            "skipped": dict(_sum_counts(fact.source.skipped for fact in self.facts)),
            "by_rank": self.facts,
            "answers": available_answers(self.facts) if self.reader == "nsight" else None,
            "export_again": suggest_reexport(self.facts),
            "extras": find_extras(self.facts),
            "findings": self.findings,
            "step_findings": None,
            "warnings": self.notices,
        }
        return msgspec.convert(fields, DoctorDocument, from_attributes=True)

    def __rich__(self) -> "RenderableType":
        """Return what a terminal shows."""
        from tracekit.report.terminal.doctor import render

        roles = dict.fromkeys(
            fact.source.role for fact in self.facts if fact.source.role is not None
        )
        tool = "server" if all(fact.generates for fact in self.facts) else self.reader
        recipe = RECIPES.get(tool)
        if recipe is not None:
            recipe = for_accelerator(recipe, self.facts)
        return render(self.to_document(), roles=roles, recipe=recipe)

    def __repr__(self) -> str:
        missing = counted(len(self.findings), "finding")
        return f"<Diagnosis: {counted(len(self.facts), 'rank')}, {missing}>"

    def _repr_html_(self) -> str:
        rows = [(finding.severity, finding.problem, finding.fix) for finding in self.findings]
        title = f"{counted(len(self.facts), 'rank')}, {counted(len(rows), 'finding')}"
        heads = ("", "missing", "how to record it") if rows else ()
        return html_table(
            title, heads, rows, notes=[notice_sentence(notice) for notice in self.notices]
        )


def diagnose(
    paths: Paths | OneRole,
    *,
    ranks: RankChoice | None = None,
    file_rank: int | None = None,
    workers: int | None = None,
) -> Diagnosis:
    """Examine the traces at *paths*.

    A file that cannot be read is a finding, unless none can be read.

    Args:
        paths: Files, folders, globs or stores; of several roles by the role's name.
        ranks: Numbers of the ranks to read; by default all.
        file_rank: Rank of a single file that does not name it.
        workers: Processes that read; by default as many as pay.

    >>> [finding.code for finding in diagnose("sample_traces/1f1b-noshapes").findings]
    ['no-shapes']
    """
    ranks = chosen_ranks(ranks)
    discovery = find_sources(paths, ranks=ranks, rank=file_rank)
    results = map_sources(
        partial(_examine_ref, ranks=ranks), discovery.refs, workers=workers, progress="examining"
    )
    facts: list[RankFacts] = []
    unreadable: list[str] = []
    for result in results:
        if result.error is None:
            facts += result.unwrap()
        else:
            unreadable.append(result.error.copy(path=result.item.path).message)
    if len(unreadable) == len(results):
        raise_failures(results)
    facts.sort(key=lambda fact: (fact.source.role or "", fact.rank))
    spans = [(fact.source, fact.start_ns, fact.end_ns) for fact in facts]
    check_run(spans, ranks=ranks, failed=bool(unreadable), named=isinstance(paths, Mapping))
    findings = [
        msgspec.structs.replace(finding, fix=for_accelerator(finding.fix, facts))
        for finding in find_problems(facts, unreadable=unreadable, ranks=ranks)
    ]
    paths_read = tuple(ref.path for ref in discovery.refs)
    return Diagnosis(paths_read, tuple(facts), tuple(findings), discovery.notices)


def examine(part: RankEvents) -> RankFacts:
    """Return the facts about how one rank was recorded."""
    events = part.events
    kind = pl.col("kind").cast(pl.String)
    gpu = events.filter(kind.is_in(GPU_KINDS))
    launches = events.filter(kind.is_in(["runtime", "driver"]))
    is_annotated_op = kind.is_in(["cpu_op", "annotation"])
    is_message = (kind == "cpu_op") & pl.col("collective").cast(pl.String).is_in(["send", "recv"])
    # Named after the fields of ``RankFacts``.
    facts = events.select(
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        cpu_ops=(kind == "cpu_op").sum(),
        with_shapes=(is_annotated_op & pl.col("shapes").is_not_null()).sum(),
        with_sequence=pl.col("sequence").is_not_null().sum(),
        nccl_calls=(pl.col("domain").cast(pl.String) == "NCCL").sum(),
        messages=is_message.sum(),
        peers=(is_message & pl.col("peer").is_not_null()).sum(),
    )
    on_gpu = part.memory.filter(pl.col("device_type") != 0)
    gpu_events = add_launch_times(events)
    lost = check_completeness(find_calls(events), gpu_events).notices
    missing = count_missing_launches(launches, gpu)
    if missing:
        values: NoticeValues = {"case": "recorded", "count": missing, "total": gpu.height}
        lost += (
            Notice(
                "no-launches",
                (f"the launch of {missing:,} of {gpu.height:,} GPU events is not in the file"),
                values=values,
            ),
        )
    return RankFacts(
        rank=part.source.rank,
        rank_from=part.source.rank_from,
        path=part.source.path,
        events=events.height,
        source=part.source,
        lost=lost,
        counts=_count_kinds(events),
        is_xpu=_is_xpu(part.source.devices, launches),
        steps=events["step"].drop_nulls().unique().sort().to_list(),
        devices=gpu["device"].drop_nulls().unique().sort().to_list(),
        streams=gpu.select("device", "stream").n_unique(),
        gpu_events=gpu.height,
        launched=gpu.join(launches.drop_nulls("correlation"), on="correlation", how="semi").height,
        in_graphs=gpu.filter(pl.col("graph") > 0).height,
        graph_launches=_count_named(launches, HOST_CALLS["launch_graph"]),
        collectives=_count_named(gpu, _NCCL_KERNEL),
        groups=_group_descriptions(events),
        timed_steps=_time_marked_steps(events, gpu_events),
        allocations=len(on_gpu),
        with_totals=on_gpu["allocated"].count(),
        generates=not find_inference_steps(events).is_empty(),
        **facts.row(0, named=True),
    )


def _is_xpu(devices: Sequence[str], calls: pl.DataFrame) -> bool:
    """Return whether a rank's GPU is one of Intel's, by its name, else by the calls of its runtime."""
    if devices:
        return any(device.startswith("Intel") for device in devices)
    return _count_named(calls, INTEL_CALLS) > 0


def _count_kinds(events: pl.DataFrame) -> dict[str, int]:
    """Return the number of events of each kind, by its name."""
    return {str(name): count for name, count in sorted(events["kind"].value_counts().iter_rows())}


def _time_marked_steps(events: pl.DataFrame, gpu_events: pl.DataFrame) -> tuple[TimedStep, ...]:
    """Return the step time of each marked step that launched GPU work, without a budget."""
    if gpu_events["step"].null_count() == len(gpu_events):
        return ()
    _, steps, _ = assign_parts(gpu_events, host=host_ranges(events))
    return timed_steps(steps, [Budget(compute_ns=0, exposed_ns={}, idle=0)] * len(steps))


def _examine_ref(ref: SourceRef, *, ranks: Collection[int] | None) -> list[RankFacts]:
    return [
        examine(part) for part in read_ref(ref, ranks=ranks, read_snapshot=read_memory_snapshot)
    ]


def _count_named(rows: pl.DataFrame, pattern: str) -> int:
    """Return how many rows have a name that matches.

    The pattern is tried once per distinct name.
    """
    names = rows.group_by("name").len().with_columns(pl.col("name").cast(pl.String))
    return int(names.filter(pl.col("name").str.contains(pattern))["len"].sum())


def _group_descriptions(events: pl.DataFrame) -> dict[str, str | None]:
    rows = events.filter(pl.col("group").is_not_null()).select("group", "group_desc").unique()
    text = rows.with_columns(pl.all().cast(pl.String)).sort("group", "group_desc", nulls_last=False)
    return dict(text.iter_rows())


def _merge_versions(mappings: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the versions over all ranks; values that differ are joined."""
    values: dict[str, set[str]] = {}
    for mapping in mappings:
        for key, value in mapping.items():
            values.setdefault(key, set()).add(value)
    return {key: " / ".join(sorted(versions)) for key, versions in sorted(values.items())}


def _sum_counts(mappings: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for mapping in mappings:
        total.update(mapping)
    return total


EXPORT_OPTION = "--include-blobs=true"


def _has_launches(fact: RankFacts) -> bool:
    return fact.gpu_events > 0 and fact.launched >= MIN_LAUNCHED_SHARE * fact.gpu_events


ANSWERS: dict[str, Callable[[RankFacts], bool]] = {
    "where GPU time went: compute, exposed communication and copies, idle": lambda f: (
        f.gpu_events > 0
    ),
    "forward, dgrad, wgrad and optimizer: by operators and autograd's numbers": (
        lambda f: _has_launches(f) and f.with_sequence > 0
    ),
    "forward, dgrad, wgrad and optimizer: by launching threads, kernel names and sums of gradients": (
        lambda f: _has_launches(f) and f.with_sequence == 0
    ),
    "pipeline cells, schedule and ideal": lambda f: _has_launches(f) and f.messages > 0,
    "waits and the bubble: both sides of each message, by the recorded peers": lambda f: (
        f.messages > 0 and f.peers > 0
    ),
    "waits and the bubble: messages matched by their order along the pipeline, where all ranks are here": (
        lambda f: f.messages > 0 and f.peers == 0
    ),
    "steps, by marks": lambda f: bool(f.steps),
    "steps, by the optimizer at their end": lambda f: f.gpu_events > 0 and not f.steps,
}
"""Answers in the order they are reported, and the condition under which a rank's events can give
each."""


def available_answers(facts: Sequence[RankFacts]) -> list[str]:
    """Return the answers that are available for every rank."""
    if not facts:
        return []
    answers = []
    for text, is_available in ANSWERS.items():
        if all(is_available(fact) for fact in facts):
            answers.append(text)
    return answers


def _lacks_communicators(fact: RankFacts) -> bool:
    """Return whether an Nsight report has NCCL's kernels and calls, but no communicators."""
    is_report = fact.source.reader == "nsight"
    has_nccl = fact.collectives > 0 and fact.nccl_calls > 0
    return is_report and has_nccl and not fact.groups


def suggest_reexport(facts: Sequence[RankFacts]) -> dict[str, str] | None:
    """Return option, benefit and command of an export that adds NCCL's communicators.

    None if it adds nothing.
    """
    lacking = [fact for fact in facts if _lacks_communicators(fact)]
    if not lacking:
        return None
    path = PurePath(lacking[0].source.path)
    report = path.with_suffix(".nsys-rep")
    gives = "communicators, sizes and peers of NCCL calls: groups told apart, waits of collectives, bandwidths"
    if len(lacking) > 1:
        gives += f" (on each of {len(lacking)} ranks)"
    command = f"nsys export --type=sqlite {EXPORT_OPTION} --force-overwrite=true {report}"
    return {"option": EXPORT_OPTION, "gives": gives, "command": command}
