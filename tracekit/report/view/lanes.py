"""The lanes of a timeline and the labels they show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS, LABELS

LANES: Mapping[str, Mapping[str, int]] = {
    "Computation": {label: 0 for label in LABELS if label not in (*COMMUNICATION_LABELS, *COPY_LABELS)},
    "Communication": {label: 1 if label.startswith("ep_") else 2 for label in COMMUNICATION_LABELS},
    "Offload": {label: 2 if label == "onload" else 1 for label in COPY_LABELS},
}
"""Labels of each lane and the part of it they are drawn in (0: the whole, 1 and 2: a half), so that labels that run at
once do not cover each other."""

RELOAD_LANES: Mapping[str, Mapping[str, int]] = {
    "H2D": {"onload": 0, "offload": 0, "memory": 0},
    "Broadcast": dict.fromkeys(COMMUNICATION_LABELS, 0),
    "Reload": {"reload": 0},
    "Computation": LANES["Computation"],
}


def labels_of(table: pl.DataFrame) -> list[str]:
    """Return the labels that occur in a table, in the order of the label list."""
    present = set(table["label"].unique().to_list())
    return [label for label in LABELS if label in present]


def lanes_for(present: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
    """Return the lanes on which something runs; a copy lane without copies to or from the host is called "Copies".

    >>> list(lanes_for(["forward", "pp_comm", "offload"])), list(lanes_for(["forward", "memory"]))
    (['Computation', 'Communication', 'Offload'], ['Computation', 'Copies'])
    """
    lanes = RELOAD_LANES if "reload" in present else LANES
    used = {name: halves for name, halves in lanes.items() if any(label in halves for label in present)}
    copies_to_host = "offload" in present or "onload" in present
    return {"Copies" if name == "Offload" and not copies_to_host else name: halves for name, halves in used.items()}
