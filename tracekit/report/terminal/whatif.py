"""What something else would have bought, in the terminal: predicted, ideal, and what it saves or costs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from tracekit._util.text import bare_ms, percent, signed_ms
from tracekit.report.terminal.table import note, table
from tracekit.report.view.pipeline import WhatIfRow

ALTERNATIVES = 6
"""Schedules shown; the rest are in the JSON."""

HEAD = "what if"


def render_what_if(lines: Sequence[WhatIfRow]) -> RenderableType | None:
    """Return the rows as a table, the best prediction first, with what they rest on below."""
    if not lines:
        return None
    made = table(
        "what if", "predicted ms", "between", "ideal ms", "saves ms", "outside cells", "peak", left=("what if",)
    )
    schedules = [line for line in lines if line.change == "schedule"]
    shown = schedules[:ALTERNATIVES] + [line for line in schedules[ALTERNATIVES:] if line.ran]
    for line in [*shown, *(line for line in lines if line.change in ("layout", "without"))]:
        made.add_row(*_cells(line))
    return Group(made, *(note(text) for text in _notes(shown)))


def _cells(line: WhatIfRow) -> list[Text | str]:
    name = line.name + (f" × {line.virtual} chunks" if line.virtual and line.virtual > 1 else "")
    name += " (this run)" if line.ran else ""
    between = "" if line.ran or line.range_ns is None else " – ".join(map(_ms, line.range_ns))
    saves = "" if line.saves_ns is None or line.ran else signed_ms(line.saves_ns)
    peak = "" if line.peak_activations is None else f"{line.peak_activations:g}"
    return [
        name,
        _ms(line.predicted_ns),
        between,
        _ms(line.ideal_ns),
        Text(saves + " slower" if line.slower else saves, style="dim" if line.slower else ""),
        "" if line.outside_cells is None else percent(line.outside_cells),
        peak,
    ]


def _ms(ns: int | None) -> str:
    return "" if ns is None else bare_ms(ns, 1)


def _notes(shown: Sequence[WhatIfRow]) -> list[str]:
    """Return what the columns mean, and what the first rows rest on and could not know, each said once."""
    said = ["saves: against this run as measured; ideal: free messages, balanced stages; peak: micro-batches held"]
    other = [line for line in shown if not line.ran]
    rests = list(dict.fromkeys(text for line in other for text in line.rests_on))
    if rests:
        said.append("rests on: " + "; ".join(rests))
    unknown = list(dict.fromkeys(text for line in other for text in line.unknown))
    if unknown:
        said.append("not known: " + "; ".join(unknown))
    return said
