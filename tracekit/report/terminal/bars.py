"""Bars in the terminal, and the legend of their parts, which have one fill each in all texts."""

from collections.abc import Iterable, Mapping

from rich.text import Text

from tracekit.report.palette import COMPUTE_COLOUR, IDLE_COLOUR, LABEL_COLOURS, UNRECORDED_COLOUR
from tracekit.report.table import Bar, PartKind

FILLS: Mapping[PartKind, str] = {
    "compute": "█",
    "exposed": "▒",
    "exposed_copy": "▚",
    "phase": "▓",
    "weight_update": "▞",
    "idle": "░",
    "unrecorded": "┄",
    "before": " ",
    "more": "█",
    "less": "█",
    "total": "█",
}
"""Fill of each kind of part, which has one meaning in all texts; they can be told apart without colour."""
ASCII_FILLS: Mapping[PartKind, str] = {
    "compute": "#",
    "exposed": "=",
    "exposed_copy": "-",
    "phase": "%",
    "weight_update": "+",
    "idle": ".",
    "unrecorded": "?",
}
LEGEND: Mapping[PartKind, tuple[str, str]] = {
    "compute": ("compute", COMPUTE_COLOUR),
    "exposed": ("exposed communication", LABEL_COLOURS["pp_comm"]),
    "exposed_copy": ("exposed copy", LABEL_COLOURS["offload"]),
    "idle": ("idle", IDLE_COLOUR),
    "unrecorded": ("not recorded", UNRECORDED_COLOUR),
}
"""Name and colour of the kinds of parts that a legend explains."""


def draw_bar(bar: Bar, length: int, *, fills: Mapping[PartKind, str] = FILLS) -> Text:
    """Draw the parts of a bar, each as long as its share of *length*.

    A difference between two times is at least one character long.
    """
    whole_ns = max(bar.whole_ns, 1)
    parts = [(part.ns / whole_ns, fills[part.kind], part.colour) for part in bar.parts]
    if bar.parts and bar.parts[0].kind == "before":
        shortest = 1 / length
        (before, blank, no_colour), (share, fill, colour) = parts
        if 0 < share < shortest:
            parts = [(min(before, 1 - shortest), blank, no_colour), (shortest, fill, colour)]
    return stacked_bar(parts, length)


def stacked_bar(parts: Iterable[tuple[float, str, str]], length: int) -> Text:
    """Draw parts one after the other, each as long as its share of *length*.

    Ends are rounded, not lengths, so that the parts together are as long as their sum.

    Args:
        parts: Share, character and colour of each part.
        length: Characters of the whole.

    >>> stacked_bar([(0.55, "█", ""), (0.25, "▒", ""), (0.2, "░", "")], 10).plain
    '██████▒▒░░'
    """
    bar = Text(no_wrap=True)
    reached = 0.0
    for share, character, colour in parts:
        reached += share
        bar.append(character * (round(length * reached) - len(bar)), style=colour)
    return bar


def legend_of(bars: Iterable[Bar]) -> Text | None:
    """Return the fill and the name of the kinds of parts in these bars; None if there is one kind."""
    kinds = {part.kind for bar in bars for part in bar.parts if part.ns}
    if len(kinds & LEGEND.keys()) < 2:
        return None
    legend = Text("  ")
    for kind, (name, colour) in LEGEND.items():
        if kind in kinds:
            legend.append(FILLS[kind], style=colour).append(f" {name}  ")
    return legend
