"""The budget's bars and the tables of labels."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tracekit._util.text import bare_ms, percent
from tracekit.analysis import Analysis, Measured, RankResult
from tracekit.report.html.sections import beside
from tracekit.report.palette import IDLE_COLOUR, LABEL_COLOURS
from tracekit.report.remedies import because
from tracekit.schema import COMMUNICATION_LABELS, COMPUTE_LABELS

MANY = 12
"""Ranks above which only the worst, the median and the best are listed."""
SHOWN = 5

GLYPHS = {"compute": "█", "communication": "▓", "copy": "▒", "idle": "░"}
"""Told apart without colour too."""


def table(*columns: str, left: Sequence[str] = ()) -> Table:
    """Return an empty table in the house style: no box, numbers to the right."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False, header_style="dim")
    for name in columns:
        made.add_column(name, justify="left" if name in left else "right", no_wrap=name not in left)
    return made


def note(text: str, style: str = "dim") -> Padding:
    """Return a remark under a table, indented where it wraps too."""
    return Padding(Text(text, style=style), (0, 0, 0, 2), expand=False)


def budget(analysis: Analysis, width: int) -> RenderableType | None:
    """Draw one bar a rank: compute, exposed communication, exposed copies, idle."""
    ranks = sorted(analysis.ranks, key=_busy_share)
    chosen, remark = _chosen(ranks)
    wide = width >= 110
    columns = [
        "rank",
        "span ms",
        "",
        "compute",
        *(["communication", "copies"] if wide else ["exposed"]),
        "idle",
        *(["not recorded"] if analysis.total.budget.unrecorded_ns else []),
        *(["bubble"] if analysis.total.pipeline else []),
    ]
    made = table(*columns, left=("",))
    lost = bool(analysis.total.budget.unrecorded_ns)
    bar = _room(chosen, width, wide)
    for name, one in chosen:
        made.add_row(*_row(name, one, bar, wide, lost=lost))
    if len(ranks) > 1:
        made.add_row(*_row("mean", analysis.total, bar, wide, of=len(ranks), lost=lost), style="bold")
    legend = Text("  ")
    for name, colour in (("compute", LABEL_COLOURS["forward"]), ("communication", LABEL_COLOURS["pp_comm"]),
                         ("copy", LABEL_COLOURS["offload"]), ("idle", IDLE_COLOUR)):  # fmt: skip
        legend.append(GLYPHS[name], style=colour).append(
            f" {'exposed ' if name in ('communication', 'copy') else ''}{name}  "
        )
    parts: list[RenderableType] = [made, legend]
    if remark:
        parts.append(note(remark))
    return Group(*parts)


def _room(chosen: Sequence[tuple[str, Measured]], width: int, wide: bool) -> int:
    """Return how long a bar may be beside the names, the spans and the shares."""
    names = max(len(name) for name, _ in [*chosen, ("mean", None)])
    spans = max((len(bare_ms(one.budget.span_ns)) for _, one in chosen), default=7)
    room = width - names - spans - (59 if wide else 44)
    return max(10, min(width - (78 if wide else 58), room))


def _busy_share(one: RankResult) -> float:
    return one.whole.budget.compute_ns / one.whole.budget.span_ns if one.whole.budget.span_ns else 0.0


def _chosen(ranks: list[RankResult]) -> tuple[list[tuple[str, Measured]], str]:
    """Pick the ranks worth a line of their own."""
    if len(ranks) <= MANY:
        return [(str(one.rank), one.whole) for one in ranks], ""
    middle = ranks[len(ranks) // 2]
    picked = [*((str(one.rank), one.whole) for one in ranks[:SHOWN]),
              (f"{middle.rank} (median)", middle.whole), (f"{ranks[-1].rank} (best)", ranks[-1].whole)]  # fmt: skip
    shares = [_busy_share(one) for one in ranks]
    ends = [f"{share:.1%} (rank {one.rank})" for share, one in ((shares[0], ranks[0]), (shares[-1], ranks[-1]))]
    note = f"{len(ranks)} ranks: compute runs from {' to '.join(ends)} of the span"
    return picked, note


def _row(name: str, one: Measured, bar: int, wide: bool, *, of: int = 1, lost: bool = False) -> list[RenderableType]:
    span, cost = one.budget.span_ns, one.budget
    talk = sum(ns for label, ns in cost.exposed_ns.items() if label in COMMUNICATION_LABELS)
    copy = sum(cost.exposed_ns.values()) - talk
    exposed = [percent(talk, span), percent(copy, span)] if wide else [percent(talk + copy, span)]
    idle = percent(cost.idle_ns, span) if one.idle_known else "unknown"
    tail = [percent(cost.unrecorded_ns, span)] if lost else []
    tail += [one.bubble_words] if one.pipeline else []
    return [name, bare_ms(span / of), _bar(one, bar), percent(cost.compute_ns, span), *exposed, idle, *tail]


def _bar(one: Measured, width: int) -> Text:
    """Share *width* cells out by largest remainder, so that the bar is full and nothing large is lost."""
    span = one.budget.span_ns
    if not span:
        return Text("")
    parts = [("compute", LABEL_COLOURS["forward"], one.budget.compute_ns)]
    for label, ns in one.budget.exposed_ns.items():
        parts.append(("communication" if label in COMMUNICATION_LABELS else "copy", LABEL_COLOURS[label], ns))
    parts.append(("idle", IDLE_COLOUR, one.budget.idle_ns + one.budget.unrecorded_ns))
    exact = [ns * width / span for _, _, ns in parts]
    cells = [int(x) for x in exact]
    for i in sorted(range(len(parts)), key=lambda i: cells[i] - exact[i])[: width - sum(cells)]:
        cells[i] += 1
    text = Text(no_wrap=True)
    for (name, colour, _), count in zip(parts, cells, strict=True):
        text.append(GLYPHS[name] * count, style=colour)
    return text


def compute(analysis: Analysis, width: int) -> RenderableType | None:
    """List the compute labels, and what no rule knows on a line of its own."""
    total = analysis.total
    span = total.budget.span_ns
    made = table("label", "ms a rank", "of span", "kernels", left=("label",))
    rows = sorted(((x, total.label_ns[x]) for x in COMPUTE_LABELS if total.label_ns.get(x)), key=lambda r: -r[1])
    for label, ns in rows:
        made.add_row(
            _name(label), bare_ms(ns / len(analysis.ranks)), percent(ns, span), f"{total.label_count.get(label, 0):,}"
        )
    other = total.label_ns.get("other", 0)
    style = "bold red" if span and other > 0.01 * span else "dim"
    made.add_row(
        _name("other"),
        bare_ms(other / max(1, len(analysis.ranks))),
        percent(other, span),
        f"{total.label_count.get('other', 0):,}",
        style=style,
    )
    return made if rows or other else None


def exposure(analysis: Analysis, width: int) -> RenderableType | None:
    """List communication and copies, the most exposed first, with what hides them."""
    total, count = analysis.total, len(analysis.ranks)
    labels = sorted(total.budget.exposed_ns, key=lambda x: -total.budget.exposed_ns[x])
    if not labels:
        return None
    made = table(
        "label", "ms a rank", "hidden", "exposed ms", "of span", "wait ms", "because", left=("label", "because")
    )
    for label in labels:
        ns, exposed = total.label_ns.get(label, 0), total.budget.exposed_ns[label]
        wait = total.wait_ns.get(label)
        share, waited = percent(exposed, total.budget.span_ns), bare_ms(None if wait is None else wait / count)
        row = [bare_ms(ns / count), percent(total.overlap.get(label)), bare_ms(exposed / count), share, waited]
        row.append(because(total, label, most=2 if width >= 110 else 1))
        made.add_row(_name(label), *row)
    return made


def hiders(analysis: Analysis, width: int) -> RenderableType | None:
    """Return what hides each label, pass by pass: the compute label and module that run beside it."""
    rows = beside(analysis, most=4 if width < 110 else 6)
    if not rows:
        return None
    shares = "beside it, share of the label's time"
    made = table("label", "pass", "ms a rank", shares, left=("label", "pass", shares))
    for row in rows:
        made.add_row(_name(row["label"]), row["pass"] or "", bare_ms(row["ns"]), row["beside"])
    return made


def _name(label: str) -> Text:
    return Text.assemble(("■ ", LABEL_COLOURS.get(label, "")), label)
