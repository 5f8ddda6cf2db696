"""Colours of labels and pipeline cells, the same in every picture, page and terminal.

The hues start from Okabe and Ito's set, which readers with any common colour blindness can tell
apart. Labels of one family share a hue and differ in lightness. Four colours follow DualPipe's
published figure: orange forward, green backward, light green backward for input, blue backward for
weights.
"""

import tomllib
from pathlib import Path

LABEL_COLOURS: dict[str, str] = tomllib.loads(
    Path(__file__).with_name("palette.toml").read_text("utf-8")
)["labels"]


LABEL_OF_OP = {"F": "forward", "B": "backward", "I": "dgrad", "W": "wgrad"}
CELL_COLOURS = {op: LABEL_COLOURS[label] for op, label in LABEL_OF_OP.items()}
"""Colour of each op; an overlapped pair (FB) is drawn split, F above B."""

IDLE_COLOUR = "#E8EBEE"
UNRECORDED_COLOUR = "#C9CED4"
COMPUTE_COLOUR = "#0072B2"
"""Compute of all labels together, in budgets."""
MORE_COLOUR = LABEL_COLOURS["pp_comm"]
LESS_COLOUR = LABEL_COLOURS["wgrad"]
TOTAL_COLOUR = LABEL_COLOURS["memory"]
"""Bars of a waterfall: longer, shorter, and the times at its ends."""
MEMORY_COLOURS = {
    "weights": LABEL_COLOURS["optimizer"],
    "gradients": LABEL_COLOURS["wgrad"],
    "optimizer_state": LABEL_COLOURS["recompute"],
    "activations": LABEL_COLOURS["forward"],
    "cache": LABEL_COLOURS["ep_combine"],
    "communication": LABEL_COLOURS["dp_comm"],
    "workspace": LABEL_COLOURS["memory"],
    "program": LABEL_COLOURS["ep_dispatch"],
    "before_recording": UNRECORDED_COLOUR,
    "other": LABEL_COLOURS["other"],
}
"""Colour of what memory is for."""
LEAK_COLOUR = "#D55E00"
"""Memory that steps leave behind."""


GOOD = "green"
"""Words in a terminal that something is right, or became better."""
BAD = "red"
"""Words in a terminal that something is wrong, or became worse."""
UNSURE = "yellow"
"""Words in a terminal that an answer is missing, limited or not certain."""
TO_TYPE = "cyan"
"""Words in a terminal that are to be typed or copied: commands, options and code."""


def mix_colours(colour: str, other: str, share: float) -> str:
    """Return *colour* mixed with a *share* (0 to 1) of *other*; both are written as #rrggbb.

    >>> mix_colours("#000000", "#ffffff", 0.0), mix_colours("#000000", "#ffffff", 1.0)
    ('#000000', '#ffffff')
    """
    channels = ((int(colour[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5))
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in channels)
