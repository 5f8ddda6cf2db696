"""The analysis as Markdown: the answer, and the tables a reviewer asks for next. Reads well in a pull request."""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec.structs import replace

from tracekit._util.text import at_least, counted, listing, markdown, ms, percent, signed_ms
from tracekit.analysis import Analysis
from tracekit.report.markdown.grid import grid_section
from tracekit.report.markdown.table import Code, folded, long_table, table
from tracekit.report.names import short_kernel
from tracekit.report.view import View, grids, view_of
from tracekit.report.view.budget import NOT_RECORDED

MOST_TEXT = 160
"""Letters of a kernel's name."""


def render_markdown(analysis: Analysis) -> str:
    """Return the whole report as text.

    >>> from tracekit import analyze
    >>> print(render_markdown(analyze("sample_traces/reload", schedule="none")).splitlines()[0])
    ## tracekit: reload, 4 ranks
    """
    view = view_of(analysis)
    return "\n\n".join(part for part in (section(view) for section in SECTIONS) if part) + "\n"


def _title(view: View) -> str:
    return f"## {markdown(view.title)}"


def _answer(view: View) -> str:
    return "\n".join(f"- **{line.topic}**: {_with_code(line.text)}" for line in view.answer if line.topic != "Next")


def _with_code(text: str) -> str:
    """Escape text, and keep the words to type as code."""
    return re.sub(r"\\`([^`]*)\\`", r"`\1`", markdown(text))


def _next(view: View) -> str:
    """What to do."""
    lines = [_with_code(one.text) for one in view.advice]
    return "**What to do next**\n\n" + "\n".join(f"{n}. {line}" for n, line in enumerate(lines, 1)) if lines else ""


_NO_LABEL = ("compute", "idle", NOT_RECORDED)
"""Parts of a budget that are not exposed labels."""


def _budget(view: View) -> str:
    bars = [view.budget.mean, *view.budget.bars]
    if not view.has_gpu:
        return ""
    parts = list(dict.fromkeys(part.name for bar in bars for part in bar.parts))
    parts.sort(key=lambda name: (name in _NO_LABEL[1:], name != "compute"))
    head = ["", "span", *(name if name in _NO_LABEL else f"exposed {name}" for name in parts)]
    head += ["bubble"] if view.pipelined else []
    rows = []
    for bar in bars if len(bars) > 2 else bars[1:]:
        share = {part.name: part.share for part in bar.parts}
        last = [at_least(percent(bar.bubble), bar.lower_bound)] if view.pipelined else []
        rows.append([bar.name, ms(bar.span_ns), *(percent(share.get(name)) for name in parts), *last])
    said = f"Shares of {'each' if len(view.analysis.rank_results) > 1 else 'the'} rank's span."
    return f"### Where the step{'s' if view.steps else ''} went\n\n{said}\n\n" + long_table(
        head, rows, right=range(1, len(head))
    )


def _overlap(view: View) -> str:
    matrix = view.matrix
    if matrix is None:
        return ""
    head = ["", "time per rank", "hidden", *(f"by {column}" for column in matrix.columns)]
    rows = [
        [row.label, ms(row.ns), percent(1 - row.exposed), *(percent(share) for share in row.cells)]
        for row in matrix.rows
    ]
    over = ", over all ranks," if len(view.analysis.rank_results) > 1 else ""
    said = f"Share of each row's own time{over} that compute covers; kernels that run at once count each."
    return f"### What hides what\n\n{said}\n\n" + long_table(head, rows, right=range(1, len(head)))


def _gap(view: View) -> str:
    found = view.schedule
    if found is None:
        return ""
    outside = {side.name: percent(side.outside_cells) for side in (found.measured, found.ideal)}
    rows = [
        [
            rung.name,
            ms(rung.ns) if rung.kind == "total" else signed_ms(rung.ns),
            "" if rung.kind == "total" else percent(rung.share),
            outside.get(rung.name, ""),
        ]
        for rung in found.gap or ()
    ] or [[side.name, ms(side.makespan_ns), "", outside[side.name]] for side in (found.ideal, found.measured)]
    head = ("", "time", "share of the gap", "outside cells")
    return f"### From the ideal to the run ({markdown(found.name)})\n\n" + table(head, rows, right=(1, 2, 3))


def _reload(view: View) -> str:
    return "### Weight reload\n\n" + table(("", ""), view.reload.facts) if view.reload is not None else ""


def _memory(view: View) -> str:
    found = view.memory
    if found is None:
        return ""
    more = ("before", "a chunk", "chunks") if found.pipelined else ()
    cells = [
        [f"rank {row.rank}", row.peak, row.reserved, *row.phases, *((row.base, row.chunk, row.chunks) if more else ())]
        for row in found.rows
    ]
    heads = ("GB", "peak", "reserved", *found.phases, *more)
    return "### Memory\n\n" + long_table(heads, cells, right=tuple(range(1, len(heads))))


def _by(view: View) -> str:
    if view.by is None:
        return ""
    named, _, unit = view.by.title.partition(" (")
    found = grids.by(view)
    if found is None:
        return f"### {markdown(named)}\n\n" + "\n".join(f"- {markdown(line)}" for line in view.by.notes)
    return grid_section(named, replace(found, notes=(unit.rstrip(")"), *found.notes)))


def _experts(view: View) -> str:
    return grid_section("Experts", grids.experts(view))


def _copies(view: View) -> str:
    return grid_section("Copies", grids.copies(view))


def _stragglers(view: View) -> str:
    if not view.stragglers:
        return ""
    cells = [[f"rank {row.rank}", row.label, ms(row.caused_ns), row.operations] for row in view.stragglers]
    said = "The rank that starts an operation last, and the others' waiting in it, summed over ranks."
    head = ("", "in", "others waited", "operations")
    return f"### Whom the others wait for\n\n{said}\n\n" + long_table(head, cells, right=(2, 3))


def _kernels(view: View) -> str:
    if not view.kernels:
        return ""
    cells = [
        [
            Code(_short(short_kernel(row.name))),
            row.label,
            row.module or "",
            f"{row.count:,.1f}".removesuffix(".0"),
            ms(row.ns, 2),
        ]
        for row in view.kernels
    ]
    inside = table(("kernel", "label", "module", "per step", "time per step"), cells, right=(3, 4))
    over = ", averaged over ranks" if len(view.analysis.rank_results) > 1 else ""
    return folded(f"The {len(view.kernels)} longest kernels{over}", inside)


def _short(name: str) -> str:
    return name if len(name) <= MOST_TEXT else name[: MOST_TEXT - 1] + "…"


def _warnings(view: View) -> str:
    if not view.warnings:
        return ""
    lines = "\n".join(f"- {markdown(note.code)}: {markdown(note.message)}" for note in view.analysis.notices)
    return folded(counted(len(view.analysis.notices), "warning"), lines)


def _source(view: View) -> str:
    paths = listing(markdown(path) for path in view.paths)
    devices = ", ".join(markdown(device) for device in view.devices) or "no device named"
    ranks = counted(len(view.analysis.rank_results), "rank")
    return f"<sub>{ranks} · {markdown(view.reader)} · {devices} · {paths}</sub>"


SECTIONS: tuple[Callable[[View], str], ...] = (
    _title, _answer, _next, _budget, _overlap, _gap, _by, _experts, _memory, _copies, _reload, _stragglers, _kernels,
    _warnings, _source,
)  # fmt: skip
