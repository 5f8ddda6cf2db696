"""What something else would have bought, in the terminal: predicted, ideal, and what it saves or costs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit._util.text import bare_ms, percent, signed
from tracekit.report.terminal.table import fitted, note
from tracekit.report.view.memory import between as gb_between
from tracekit.report.view.pipeline import WhatIfRow

ALTERNATIVES = 6
"""Schedules shown; the rest are in the JSON."""

COLUMNS = ("what if", "predicted ms", "between ms", "ideal ms", "saves ms", "outside cells", "peak")


def render_what_if(lines: Sequence[WhatIfRow], width: int) -> RenderableType | None:
    """Return the rows as a table, the best prediction first, with what they rest on below."""
    if not lines:
        return None
    schedules = [line for line in lines if line.change == "schedule"]
    shown = schedules[:ALTERNATIVES] + [line for line in schedules[ALTERNATIVES:] if line.ran]
    rows = [_cells(line) for line in (*shown, *(line for line in lines if line.change != "schedule"))]
    made = fitted(COLUMNS, rows, width, left=COLUMNS[:1], names=COLUMNS[0], spare=("outside cells", "peak", "ideal ms"))
    heads = [str(column.header) for column in made.columns]
    return Group(made, *(note(text) for text in _notes(shown, heads)))


def _cells(line: WhatIfRow) -> list[Text | str]:
    between = "" if line.ran or line.range_ns is None else " – ".join(map(_ms, line.range_ns))
    saves = "" if line.saves_ns is None or line.ran else signed(line.saves_ns / 1e6)
    peak = "" if line.peak_activations is None else f"{line.peak_activations:g}"
    return [
        line.title,
        _ms(line.predicted_ns),
        between,
        _ms(line.ideal_ns),
        Text(saves, style="dim" if line.slower else ""),
        "" if line.outside_cells is None else percent(line.outside_cells),
        peak,
    ]


def _memory(shown: Sequence[WhatIfRow]) -> list[str]:
    """Return one line of what the fullest rank would need, with a word where that does not fit the GPU."""
    sized = [(line, line.peak_bytes) for line in shown if line.peak_bytes is not None]
    if not sized:
        return []
    parts = [f"{line.title} {gb_between(*needs)}{' does not fit' * (line.fits is False)}" for line, needs in sized]
    return [f"memory of the fullest rank, GB: {', '.join(parts)}"]


def _ms(ns: int | None) -> str:
    return "" if ns is None else bare_ms(ns, 1)


def _notes(shown: Sequence[WhatIfRow], heads: Sequence[str]) -> list[str]:
    """Return what the columns mean, and what the first rows rest on and could not know, each said once."""
    meant = ["saves: against this run as measured (− would be slower)", "× n: chunks per rank"]
    meant += ["peak: micro-batches held"] if "peak" in heads else []
    meant += ["ideal: free messages, balanced stages"] if "ideal ms" in heads else []
    said = ["; ".join(meant)]
    said += _memory(shown)
    other = [line for line in shown if not line.ran]
    rests = list(dict.fromkeys(text for line in other for text in line.rests_on))
    if rests:
        said.append("rests on: " + "; ".join(rests))
    unknown = list(dict.fromkeys(text for line in other for text in line.unknown))
    if unknown:
        said.append("not known: " + "; ".join(unknown))
    return said
