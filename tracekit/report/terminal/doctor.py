"""The diagnosis of ``doctor`` in the terminal."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tracekit._util.text import format_ranges, listing, ms, terminal
from tracekit.documents.doctor import DoctorDocument, DoctorFinding
from tracekit.report.notices import notice_sentence
from tracekit.report.palette import BAD, GOOD, TO_TYPE, UNSURE
from tracekit.schema import ProcessGroup

TOOL_NAMES = {
    "kineto": "PyTorch profiler",
    "perfetto": "PyTorch profiler",
    "nsight": "Nsight Systems",
    "rocm": "ROCm's profilers",
}
SKIPPED_KINDS = {
    "M": "metadata",
    "s": "flow starts",
    "f": "flow ends",
    "i": "instants",
    "python": "Python frames",
}
MAX_GROUPS = 8
_MARKS = {"blocks": ("✗", f"bold {BAD}"), "limits": ("!", f"bold {UNSURE}"), "note": ("·", "dim")}


def render(
    diagnosis: DoctorDocument, *, roles: Iterable[str] = (), recipe: str | None = None
) -> RenderableType:
    """Return what the files contain, what is missing, and how to record better.

    Args:
        diagnosis: The diagnosis.
        roles: Names of the roles, where ranks have several processes.
        recipe: Code that makes a whole recording with the tool that was used.
    """
    facts = _facts(diagnosis, roles)
    contents = _grid(
        ((name, Text(terminal(value))) for name, value in facts if value), style="dim", gap=2
    )
    parts: list[RenderableType] = [Text("Found", style="bold"), Padding(contents, (0, 0, 1, 2))]
    if not diagnosis.findings:
        complete = Text(
            "Nothing is missing that labels, budget, overlap and waits need.", style=f"bold {GOOD}"
        )
        return Group(*parts, complete, *_extras(diagnosis))
    parts += _answers(diagnosis)
    parts.append(Text("Missing, and what it costs", style="bold"))
    for finding in diagnosis.findings:
        parts.append(Padding(_finding(finding, len(diagnosis.by_rank)), (0, 0, 1, 2)))
    is_more_than_noted = any(finding.severity != "note" for finding in diagnosis.findings)
    if recipe is not None and is_more_than_noted:
        parts.append(Text("A recording with everything", style="bold"))
        parts.append(Padding(Text(recipe, style=TO_TYPE), (0, 0, 0, 2)))
    return Group(*parts, *_extras(diagnosis))


def _extras(diagnosis: DoctorDocument) -> list[RenderableType]:
    """Return what could be recorded beyond what most answers need."""
    if not diagnosis.extras:
        return []
    rows = [("+", Text(f"{extra.adds}\n{extra.how}", style="dim")) for extra in diagnosis.extras]
    lines = _grid(rows, style="dim")
    return [
        Text(""),
        Text("Not recorded, and needed only for", style="bold"),
        Padding(lines, (0, 0, 0, 2)),
    ]


def _grid(rows: Iterable[tuple[str, Text]], *, style: str, gap: int = 1) -> Table:
    """Return rows of a mark or name, in this style, and a text that wraps beside it."""
    grid = Table.grid(padding=(0, gap))
    grid.add_column(style=style, no_wrap=True)
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return grid


def _answers(diagnosis: DoctorDocument) -> list[RenderableType]:
    """Return what an Nsight recording answers as it is, and what another export of it would add."""
    if not diagnosis.answers:
        return []
    lines = Text("\n".join(f"✓ {answer}" for answer in diagnosis.answers))
    parts: list[RenderableType] = [
        Text("Answered as it is", style="bold"),
        Padding(lines, (0, 0, 1, 2)),
    ]
    if diagnosis.export_again is not None:
        advice = Text(f"{diagnosis.export_again.option}: {diagnosis.export_again.gives}\n")
        advice.append(terminal(diagnosis.export_again.command), style=TO_TYPE)
        parts += [
            Text("One option more at the export, without a new run", style="bold"),
            Padding(advice, (0, 0, 1, 2)),
        ]
    return parts


def _facts(diagnosis: DoctorDocument, roles: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Yield name and value of each fact about the files; the value is empty if it is not known."""
    rank_sources = listing(sorted({rank.rank_from for rank in diagnosis.by_rank}))
    world_size = f"world size {diagnosis.world_size or 'unknown'}"
    groups = diagnosis.groups
    more_groups = f"; +{len(groups) - MAX_GROUPS} more" if len(groups) > MAX_GROUPS else ""
    yield "tool", TOOL_NAMES.get(diagnosis.reader, diagnosis.reader)
    versions = [f"{name.replace('_', ' ')} {value}" for name, value in diagnosis.versions.items()]
    yield "versions", ", ".join(versions)
    yield "roles", ", ".join(roles)
    yield (
        "ranks",
        f"{format_ranges(sorted(set(diagnosis.ranks)))} (rank from {rank_sources}; {world_size})",
    )
    yield "steps", format_ranges(diagnosis.steps)
    yield "step time", "" if diagnosis.step_time_ns is None else ms(diagnosis.step_time_ns)
    yield "recorded time", ms(diagnosis.span_ns)
    yield "GPUs", ", ".join(diagnosis.devices)
    yield (
        "streams",
        f"{listing((str(rank.streams) for rank in diagnosis.by_rank), most=16)} (by rank)",
    )
    yield "groups", "; ".join(_group(group) for group in groups[:MAX_GROUPS]) + more_groups
    yield "events", ", ".join(f"{count:,} {kind}" for kind, count in diagnosis.counts.items())
    skipped = [
        f"{count:,} {SKIPPED_KINDS.get(kind, kind)}" for kind, count in diagnosis.skipped.items()
    ]
    yield "left out", ", ".join(skipped)
    for notice in diagnosis.warnings:
        yield "note", notice_sentence(notice)


def _group(group: ProcessGroup) -> str:
    ranks = f" [{format_ranges(group.ranks)}]" if group.ranks else ""
    return f"{group.name} “{group.description or 'no description'}”{ranks}"


def _finding(finding: DoctorFinding, total: int) -> Table:
    mark, style = _MARKS[finding.severity]
    lines = Text(terminal(finding.problem), style="bold" if finding.severity == "blocks" else "")
    if finding.ranks and len(finding.ranks) < total:
        lines.append(f"  (rank {format_ranges(list(finding.ranks))})", style="dim")
    if finding.rules_out:
        lines.append("\nrules out: ", style="dim")
        lines.append("; ".join(finding.rules_out))
    if finding.fix:
        lines.append("\nbetter: ", style="dim")
        lines.append(finding.fix, style=TO_TYPE)
    return _grid([(mark, lines)], style=style)
