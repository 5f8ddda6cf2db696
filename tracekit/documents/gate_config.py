"""Settings of the gate: ``[tool.tracekit.gate]`` in pyproject.toml, or ``[gate]`` in tracekit.toml."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Literal

from msgspec import Meta, Struct

from tracekit.documents.gate_result import WaiverStatus

Text = Annotated[str, Meta(min_length=1)]


class Waiver(Struct, frozen=True):
    """An accepted regression, with its reason and last day."""

    metric: Text
    """Name or pattern of metrics, such as ``exposed_ms.*``."""
    reason: Text
    """Why it is accepted."""
    until: date
    """Its last day."""

    def status(self, today: date) -> WaiverStatus:
        """Return it as a part of the gate's document: ``active`` up to and on its last day, ``expired`` after it.

        >>> Waiver("step_ms", "new kernel", date(2026, 1, 31)).status(date(2026, 2, 1)).status
        'expired'
        """
        status: Literal["active", "expired"] = "active" if today <= self.until else "expired"
        return WaiverStatus(self.metric, self.reason, self.until.isoformat(), status)


class GateSettings(Struct, frozen=True):
    """Settings of the gate. Every field can be written in the file under its own name."""

    baseline: tuple[str, ...] = ()
    """Baseline files used when the command names none."""
    require: tuple[str, ...] = ()
    """Requirements checked when the command gives none."""
    alpha: Annotated[float, Meta(gt=0, lt=0.5)] = 0.075
    """Probability of a false alarm before the floors: of the whole step, and of all its parts together."""
    min_steps: Annotated[int, Meta(ge=3)] = 5
    """With fewer steps than this on either side nothing is decided."""
    inconclusive: Literal["pass", "fail"] | None = None
    """Exit with 0 or 1 instead of 3 when nothing regressed but something could not be decided."""
    floors: Mapping[str, str | Annotated[float, Meta(ge=0)]] = {}
    """Smallest change that counts, by metric or pattern: ``"3%"``, or a number in the metric's unit."""
    allow: tuple[str, ...] = ()
    """Differences that do not stop a comparison: world_size, schedule, shapes, gpu."""
    waivers: tuple[Waiver, ...] = ()
    """Accepted regressions, each with a reason and a last day."""
