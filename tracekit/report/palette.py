"""One colour a label and a cell, the same in every picture, page and terminal.

The hues start from Okabe and Ito's set, which readers with any common colour blindness can tell apart; labels that
share a family share a hue and differ in lightness. DualPipe's published figure fixes four of them: orange forward,
green backward, light green backward for input, blue backward for weights.
"""

from __future__ import annotations

LABEL_COLOURS = {
    "forward": "#E69F00",
    "dgrad": "#8FD3B6",
    "wgrad": "#5B8DEF",
    "backward": "#009E73",
    "recompute": "#B8860B",
    "optimizer": "#7F6D5F",
    "ep_dispatch": "#CC79A7",
    "ep_combine": "#8E4A7B",
    "pp_comm": "#D55E00",
    "tp_comm": "#F0A37A",
    "dp_comm": "#A14A12",
    "cp_comm": "#E7C1A5",
    "comm": "#B07AA1",
    "offload": "#5B5EA6",
    "onload": "#9FA4D8",
    "broadcast": "#D98BB9",
    "reload": "#2F6C8F",
    "memory": "#9AA5B1",
    "other": "#5C6670",
}

CELL_COLOURS = {
    "F": LABEL_COLOURS["forward"],
    "B": LABEL_COLOURS["backward"],
    "I": LABEL_COLOURS["dgrad"],
    "W": LABEL_COLOURS["wgrad"],
}
"""An FB cell is drawn split: F's colour above, B's below."""

IDLE_COLOUR = "#E8EBEE"
UNRECORDED_COLOUR = "#C9CED4"

COMPUTE_COLOUR = "#0072B2"
"""All compute together, in budgets: no label's own."""
