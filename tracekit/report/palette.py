"""Colours of labels and pipeline cells, the same in every picture, page and terminal.

The hues start from Okabe and Ito's set, which readers with any common colour blindness can tell apart. Labels of one
family share a hue and differ in lightness. Four colours follow DualPipe's published figure: orange forward, green
backward, light green backward for input, blue backward for weights.
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
"""Colour of each op; an overlapped pair (FB) is drawn split, F above B."""

IDLE_COLOUR = "#E8EBEE"
UNRECORDED_COLOUR = "#C9CED4"
COMPUTE_COLOUR = "#0072B2"
"""Compute of all labels together, in budgets."""


def mix_colours(colour: str, other: str, share: float) -> str:
    """Return *colour* mixed with a *share* (0 to 1) of *other*; both are written as #rrggbb.

    >>> mix_colours("#000000", "#ffffff", 0.0), mix_colours("#000000", "#ffffff", 1.0)
    ('#000000', '#ffffff')
    """
    channels = ((int(colour[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in channels)
