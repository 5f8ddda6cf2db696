"""One row of what-if: another schedule, layout or size, or one trouble less."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import asdict


class WhatIf(msgspec.Struct, frozen=True):
    """One line: what would change, what it would come to, and what that rests on.

    ``predicted_ns`` is simulated with this run's messages and machine, ``ideal_ns`` with free messages and balanced
    stages. ``saves_ns`` is the measured makespan less the predicted; below 0 it would be slower.
    """

    change: str  # "schedule", "without", "layout", "microbatches" or "chunks"
    name: str
    virtual: int | None = None
    ideal_ns: int | None = None
    predicted_ns: int | None = None
    predicted_range_ns: tuple[int, int] | None = None
    saves_ns: int | None = None
    outside_cells: float | None = None  # share of ranks × predicted makespan in no cell
    peak_activations: float | None = None  # most a rank holds, in micro-batches of all its layers
    least_activations: float | None = None  # the same if an input gradient already freed all
    peak_bytes: tuple[int, int | None] | None = None  # most a rank needs, between; None: not known
    fits: bool | None = None  # into the GPU's memory; None: cannot be told
    ran: bool = False  # this run's own: measured, not predicted
    microbatches: int | None = None
    layout: str | None = None  # for Megatron-Core's --pipeline-model-parallel-layout
    rests_on: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()

    @property
    def slower(self) -> bool:
        """Whether it would take longer than the run did."""
        return self.saves_ns is not None and self.saves_ns < 0

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        made = asdict(self) | {"slower": self.slower}
        return {key: list(value) if isinstance(value, tuple) else value for key, value in made.items()}


TWO_WEIGHTS = "every rank holds two stages' weights"
"""What a row rests on whose schedule flows both ways: how much memory that adds is not known."""
