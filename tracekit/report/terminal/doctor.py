"""A diagnosis as people read it: on the terminal, at 80 columns, or as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tracekit._util.text import format_ranges, listing, terminal
from tracekit.doctor.diagnose import Diagnosis
from tracekit.doctor.recording import RECIPES, Finding
from tracekit.report.terminal.screen import Screen

TOOLS = {"kineto": "PyTorch profiler", "nsight": "Nsight Systems"}
PHASES = {"M": "metadata", "s": "flow starts", "f": "flow ends", "i": "instants", "python": "Python frames"}
_MARKS = {"blocks": ("✗", "bold red"), "limits": ("!", "bold yellow"), "note": ("·", "dim")}


def show(diagnosis: Diagnosis, console: Console | None = None) -> None:
    """Print the diagnosis."""
    (console or Screen()).print(render(diagnosis))


def render(diagnosis: Diagnosis) -> RenderableType:
    """Return what was found, what is missing, and how to record better."""
    parts: list[RenderableType] = [Text("Found", style="bold"), Padding(_found(diagnosis), (0, 0, 1, 2))]
    if not diagnosis.findings:
        whole = Text("Nothing is missing: every answer can be had from these traces.", style="bold green")
        return Group(*parts, whole, *_extras(diagnosis))
    parts += _answers(diagnosis)
    parts.append(Text("Missing, and what it costs", style="bold"))
    parts += [Padding(_finding(finding, len(diagnosis.facts)), (0, 0, 1, 2)) for finding in diagnosis.findings]
    if diagnosis.reader in RECIPES and any(finding.severity != "note" for finding in diagnosis.findings):
        parts.append(Text("A recording with everything", style="bold"))
        parts.append(Padding(Text(RECIPES[diagnosis.reader], style="cyan"), (0, 0, 0, 2)))
    return Group(*parts, *_extras(diagnosis))


def _extras(diagnosis: Diagnosis) -> list[RenderableType]:
    """Return what could be recorded beyond what most answers need."""
    found = diagnosis.to_dict()["extras"]
    if not found:
        return []
    told = Table.grid(padding=(0, 1))
    for one in found:
        told.add_row(Text("+", style="dim"), Text(f"{one['adds']}\n{one['how']}", style="dim"))
    return [Text(""), Text("Could be recorded too", style="bold"), Padding(told, (0, 0, 0, 2))]


def _answers(diagnosis: Diagnosis) -> list[RenderableType]:
    """Return what an Nsight recording answers as it is, and what exporting it again would add."""
    facts = diagnosis.to_dict()
    if not facts["answers"]:
        return []
    lines = Text("\n".join(f"✓ {answer}" for answer in facts["answers"]))
    parts: list[RenderableType] = [Text("Answered as it is", style="bold"), Padding(lines, (0, 0, 1, 2))]
    if more := facts["export_again"]:
        told = Text(f"{more['option']}: {more['gives']}\n")
        told.append(terminal(more["command"]), style="cyan")
        parts += [Text("One option more at the export, without a new run", style="bold"), Padding(told, (0, 0, 1, 2))]
    return parts


def _found(diagnosis: Diagnosis) -> Table:
    facts = diagnosis.to_dict()
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    for name, value in _rows(diagnosis, facts):
        if value:
            rows.add_row(name, Text(terminal(value)))
    return rows


def _rows(diagnosis: Diagnosis, facts: dict[str, Any]) -> Iterable[tuple[str, str]]:
    versions = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts["versions"].items())
    size = facts["world_size"]
    came = sorted({fact.source.rank_from for fact in diagnosis.facts})
    per_rank = [f"{fact.streams}" for fact in diagnosis.facts]
    yield "tool", TOOLS.get(facts["reader"], facts["reader"])
    yield "versions", versions
    known = f"world size {size}" if size else "world size unknown"
    yield "ranks", f"{format_ranges(facts['ranks'])} (rank from {listing(came)}; {known})"
    yield "steps", format_ranges(facts["steps"])
    yield "span", f"{facts['span_ns'] / 1e6:,.1f} ms"
    yield "GPUs", ", ".join(facts["devices"])
    yield "streams", f"{listing(per_rank, most=16)} (by rank)"
    yield "groups", "; ".join(_group(group) for group in facts["groups"][:8]) + _more(len(facts["groups"]) - 8)
    yield "events", ", ".join(f"{count:,} {kind}" for kind, count in facts["counts"].items())
    yield "left out", ", ".join(f"{count:,} {PHASES.get(kind, kind)}" for kind, count in facts["skipped"].items())
    for notice in diagnosis.notices:
        yield "note", notice.message


def _group(group: dict[str, Any]) -> str:
    described = group["description"] or "no description"
    return f"{group['name']} “{described}”" + (f" [{format_ranges(group['ranks'])}]" if group["ranks"] else "")


def _more(count: int) -> str:
    return f"; +{count} more" if count > 0 else ""


def _finding(finding: Finding, total: int) -> Table:
    mark, style = _MARKS[finding.severity]
    lines = Text(terminal(finding.problem), style="bold" if finding.severity == "blocks" else "")
    if finding.ranks and len(finding.ranks) < total:
        lines.append(f"  (rank {format_ranges(list(finding.ranks))})", style="dim")
    if finding.rules_out:
        lines.append("\nrules out: ", style="dim")
        lines.append("; ".join(finding.rules_out))
    if finding.fix:
        lines.append("\nbetter: ", style="dim")
        lines.append(finding.fix, style="cyan")
    table = Table.grid(padding=(0, 1))
    table.add_column(style=style, no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(mark, lines)
    return table
