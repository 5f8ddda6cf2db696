"""Which labels a timeline's lanes show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS, LABELS

LANES: Mapping[str, Mapping[str, int]] = {
    "Computation": {label: 0 for label in LABELS if label not in (*COMMUNICATION_LABELS, *COPY_LABELS)},
    "Communication": {label: 1 if label.startswith("ep_") else 2 for label in COMMUNICATION_LABELS},
    "Offload": {label: 2 if label == "onload" else 1 for label in COPY_LABELS},
}
"""Which labels a lane shows, and in which half of it, so that what runs at once can be told apart."""

RELOAD_LANES: Mapping[str, Mapping[str, int]] = {
    "H2D": {"onload": 0, "offload": 0, "memory": 0},
    "Broadcast": dict.fromkeys(COMMUNICATION_LABELS, 0),
    "Reload": {"reload": 0},
    "Computation": LANES["Computation"],
}


def labels_of(table: pl.DataFrame) -> list[str]:
    """Labels that occur in a table, in the order of the label list."""
    found = set(table["label"].unique().to_list())
    return [label for label in LABELS if label in found]


def lanes_for(present: Sequence[str]) -> Mapping[str, Mapping[str, int]]:
    """Return the lanes on which something runs; copies that move nothing to or from the host are called just that.

    >>> list(lanes_for(["forward", "pp_comm", "offload"])), list(lanes_for(["forward", "memory"]))
    (['Computation', 'Communication', 'Offload'], ['Computation', 'Copies'])
    """
    lanes = RELOAD_LANES if "reload" in present else LANES
    used = {name: halves for name, halves in lanes.items() if any(label in halves for label in present)}
    moved = "offload" in present or "onload" in present
    return {"Copies" if name == "Offload" and not moved else name: halves for name, halves in used.items()}
