"""What a trace holds, what it lacks, which answers that rules out, and the call that would record them.

Everything here is data; ``tracekit.report.terminal.doctor`` draws it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec
import polars as pl
from msgspec.structs import asdict

from tracekit._util.html import html_table
from tracekit._util.text import json_text
from tracekit.doctor.answers import again, answers
from tracekit.doctor.extras import extras
from tracekit.doctor.recording import Finding, RankFacts, findings
from tracekit.errors import Notice
from tracekit.metrics.completeness import add_launch_times, check_completeness
from tracekit.metrics.host_calls import find_api_calls
from tracekit.parsers.refs import SourceRef
from tracekit.run.driver import check_run, find_sources, map_sources
from tracekit.run.options import file_rank_option
from tracekit.schema import GPU_KINDS, RankEvents
from tracekit.store.reading import raise_failures, read_ref
from tracekit.store.sources import Paths

FORMAT = "tracekit.doctor/1"

_COLLECTIVE = r"(?i)nccl|rccl"
_GRAPH_LAUNCH = r"(?i)^(cuda|cu|hip)GraphLaunch"


class Diagnosis(msgspec.Struct, frozen=True):
    """Findings over all ranks, and what to do about them.

    >>> found = diagnose("sample_traces/1f1b-noshapes")
    >>> found.findings[0].severity, found.to_dict()["format"]
    ('limits', 'tracekit.doctor/1')
    """

    paths: tuple[str, ...]
    facts: tuple[RankFacts, ...]
    findings: tuple[Finding, ...]
    notices: tuple[Notice, ...]

    @property
    def reader(self) -> str:
        """The tool that recorded: ``kineto`` or ``nsight``."""
        return self.facts[0].source.reader

    @property
    def world_size(self) -> int | None:
        """Ranks of the run, where a file says."""
        return max((fact.source.world_size or 0 for fact in self.facts), default=0) or None

    def counts(self) -> dict[str, int]:
        """Events by kind, over all ranks."""
        total: Counter[str] = Counter()
        for fact in self.facts:
            total.update(fact.counts)
        return dict(total.most_common())

    def groups(self) -> list[dict[str, Any]]:
        """Process groups, each once: from the headers, else from the events."""
        known: dict[tuple[str, tuple[int, ...]], str | None] = {}
        for fact in self.facts:
            for group in fact.source.groups:
                known[group.name, group.ranks] = group.description
            named = {name for name, _ in known}
            for name, description in fact.groups.items():
                if name not in named:
                    known[name, ()] = description
        return [{"name": n, "description": d, "ranks": list(r)} for (n, r), d in sorted(known.items())]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON (``format: "tracekit.doctor/1"``)."""
        starts = [fact.start_ns for fact in self.facts if fact.start_ns is not None]
        ends = [fact.end_ns for fact in self.facts if fact.end_ns is not None]
        return {
            "format": FORMAT,
            "paths": list(self.paths),
            "reader": self.reader,
            "versions": _merged(fact.source.versions for fact in self.facts),
            "ranks": [fact.source.rank for fact in self.facts],
            "world_size": self.world_size,
            "devices": sorted({name for fact in self.facts for name in fact.source.devices}),
            "steps": sorted({step for fact in self.facts for step in fact.steps}),
            "span_ns": max(ends) - min(starts) if starts else 0,
            "groups": self.groups(),
            "counts": self.counts(),
            "skipped": _total(fact.source.skipped for fact in self.facts),
            "by_rank": [_rank_dict(fact) for fact in self.facts],
            "answers": answers(self.facts) if self.reader == "nsight" else None,
            "export_again": None if (more := again(self.facts)) is None else asdict(more),
            "extras": [{"code": one.code, "adds": one.adds, "how": one.how} for one in extras(self.facts)],
            "findings": [asdict(finding) for finding in self.findings],
            "warnings": [asdict(notice) for notice in self.notices],
        }

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return ``to_dict`` as text."""
        return json_text(json.dumps(self.to_dict(), indent=indent, ensure_ascii=False))

    def _repr_html_(self) -> str:
        rows = [(finding.severity, finding.problem, finding.fix) for finding in self.findings]
        title = f"{len(self.facts)} ranks, {'nothing is missing' if not rows else f'{len(rows)} findings'}"
        heads = ("", "missing", "how to record it") if rows else ()
        return html_table(title, heads, rows, notes=[notice.message for notice in self.notices])


def diagnose(
    paths: Paths,
    *,
    ranks: Collection[int] | None = None,
    file_rank: int | None = None,
    workers: int | None = None,
    rank: int | None = None,
) -> Diagnosis:
    """Examine the traces at *paths*. A file that cannot be read is a finding, unless none can.

    *file_rank* is the rank of a single file that does not name it; *rank* is its deprecated name.

    >>> [finding.code for finding in diagnose("sample_traces/1f1b-noshapes").findings]
    ['no-shapes']
    """
    refs, notices = find_sources(paths, ranks=ranks, rank=file_rank_option(file_rank, rank))
    done = map_sources(partial(_examine_ref, ranks=ranks), refs, workers=workers, progress="examining")
    failed = [one for one in done if one.error is not None]
    if len(failed) == len(done):
        raise_failures(done)
    facts = [fact for one in done if one.error is None for fact in one.unwrap()]
    facts.sort(key=lambda fact: fact.source.rank)
    check_run([(fact.source, fact.start_ns, fact.end_ns) for fact in facts], ranks=ranks, failed=bool(failed))
    unreadable = [(one.item.path, one.error.message) for one in failed if one.error is not None]
    asked = None if ranks is None else tuple(ranks)
    return Diagnosis(
        paths=tuple(ref.path for ref in refs),
        facts=tuple(facts),
        findings=tuple(findings(facts, unreadable=unreadable, ranks=asked)),
        notices=notices,
    )


def examine(part: RankEvents) -> RankFacts:
    """Return what one rank's events say about how it was recorded."""
    events = part.events
    kind = pl.col("kind").cast(pl.String)
    gpu = events.lazy().filter(kind.is_in(GPU_KINDS))
    launches = events.lazy().filter(kind.is_in(["runtime", "driver"]))
    known = launches.select("pid", "correlation").drop_nulls("correlation").unique("correlation")
    one = events.lazy().select(
        start=pl.col("start_ns").min(),
        end=pl.col("end_ns").max(),
        cpu_ops=(kind == "cpu_op").sum(),
        with_shapes=((kind.is_in(["cpu_op", "annotation"])) & pl.col("shapes").is_not_null()).sum(),
        with_sequence=(pl.col("sequence").is_not_null()).sum(),
    )
    on_gpu = gpu.select(
        events=pl.len(),
        streams=pl.struct("device", "stream").n_unique(),
        in_graphs=(pl.col("graph").is_not_null() & (pl.col("graph") > 0)).sum(),
    )
    launched = gpu.join(known, on="correlation", how="semi").select(pl.len())
    total, busy, joined = (frame.row(0, named=True) for frame in pl.collect_all([one, on_gpu, launched]))
    recording = check_completeness(find_api_calls(events), add_launch_times(events))
    return RankFacts(
        source=part.source,
        lost=recording.notices,
        counts={str(name): count for name, count in events["kind"].value_counts().iter_rows()},
        start_ns=total["start"],
        end_ns=total["end"],
        steps=tuple(events["step"].drop_nulls().unique().sort().to_list()),
        devices=tuple(gpu.select("device").collect()["device"].drop_nulls().unique().sort().to_list()),
        streams=busy["streams"],
        gpu_events=busy["events"],
        launched=joined["len"],
        in_graphs=busy["in_graphs"],
        graph_launches=_named(launches, _GRAPH_LAUNCH),
        cpu_ops=total["cpu_ops"],
        with_shapes=total["with_shapes"],
        with_sequence=total["with_sequence"],
        collectives=_named(gpu, _COLLECTIVE),
        groups=_groups(events),
        **_allocations(part.memory),
        **_nccl_calls(events),
    )


def _examine_ref(ref: SourceRef, *, ranks: Collection[int] | None) -> list[RankFacts]:
    return [examine(part) for part in read_ref(ref) if ranks is None or part.source.rank in ranks]


def _named(rows: pl.LazyFrame, pattern: str) -> int:
    """Count rows by name; the pattern is tried once for each distinct name."""
    names = rows.group_by("name").len().with_columns(pl.col("name").cast(pl.String))
    return int(names.filter(pl.col("name").str.contains(pattern)).select(pl.col("len").sum()).collect().item())


def _allocations(memory: pl.DataFrame) -> dict[str, int]:
    on_gpu = memory.filter(pl.col("device_type") != 0)
    return {"allocations": len(on_gpu), "with_totals": on_gpu["allocated"].count()}


def _nccl_calls(events: pl.DataFrame) -> dict[str, int]:
    """Count the calls of NCCL's own, the sends and receives among them, and those that say to whom."""
    domain, collective = (pl.col(name).cast(pl.String) for name in ("domain", "collective"))
    message = collective.is_in(["send", "recv"]) & (pl.col("kind").cast(pl.String) == "cpu_op")
    asked = events.lazy().select(
        nccl_calls=(domain == "NCCL").sum(),
        messages=message.sum(),
        peers=(message & pl.col("peer").is_not_null()).sum(),
    )
    return asked.collect().row(0, named=True)


def _groups(events: pl.DataFrame) -> dict[str, str | None]:
    rows = events.lazy().filter(pl.col("group").is_not_null()).select("group", "group_desc").unique()
    text = rows.with_columns(pl.all().cast(pl.String)).sort("group", "group_desc", nulls_last=False).collect()
    return dict(text.iter_rows())


def _rank_dict(fact: RankFacts) -> dict[str, Any]:
    return {
        "rank": fact.source.rank,
        "rank_from": fact.source.rank_from,
        "path": fact.source.path,
        "events": sum(fact.counts.values()),
        "gpu_events": fact.gpu_events,
        "launched": fact.launched,
        "streams": fact.streams,
        "devices": list(fact.devices),
        "steps": list(fact.steps),
        "counts": dict(fact.counts),
    }


def _merged(mappings: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Join mappings; values that differ between ranks are all shown."""
    values: dict[str, set[str]] = {}
    for mapping in mappings:
        for key, value in mapping.items():
            values.setdefault(key, set()).add(value)
    return {key: " / ".join(sorted(several)) for key, several in sorted(values.items())}


def _total(mappings: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for mapping in mappings:
        total.update(mapping)
    return dict(total)
