"""Verdict of the gate: ``tracekit gate --json``."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from tracekit.documents.diff import (
    FindingChange,
    LargestChanges,
    MetricChange,
    SideEntry,
)

GATE_FORMAT: Literal["tracekit.gate/1"] = "tracekit.gate/1"


class Counts(Struct, frozen=True):
    """Numbers of both sides."""

    before: int
    """Baseline."""
    after: int
    """Candidate."""


Text = Annotated[str, Meta(min_length=1)]


class Waiver(Struct, frozen=True):
    """An accepted regression, with its reason and last day."""

    metric: Text
    """Name or pattern of metrics, such as ``exposed_ms.*``."""
    reason: Text
    """Why it is accepted."""
    until: date
    """Its last day."""

    def status_on(self, today: date) -> WaiverStatus:
        """Return it as a part of the gate's document: ``active`` up to and on its last day, ``expired`` after it.

        >>> Waiver("step_ms", "new kernel", date(2026, 1, 31)).status_on(date(2026, 2, 1)).status
        'expired'
        """
        status: Literal["active", "expired"] = "active" if today <= self.until else "expired"
        return WaiverStatus(self.metric, self.reason, self.until, status)


class WaiverStatus(Waiver, frozen=True):
    """An accepted regression."""

    status: Literal["active", "expired"]
    """Whether it still holds."""


class CheckResult(MetricChange, frozen=True):
    """Verdict on one metric, with the numbers it rests on.

    The interval of a limit is one of the level.
    """

    requirement: str | None
    """The requirement that was checked; null for a default metric."""
    floor: float | None
    """Smallest change that counts."""
    p: float | None
    """p-value of a change for the worse, adjusted for the number of metrics."""
    method: str | None
    """Statistical test."""
    steps: Counts
    """Steps."""
    runs: Counts
    """Runs."""
    waiver: WaiverStatus | None
    """The waiver that applies."""
    limit: float | None
    """Largest change that is accepted, in the metric's unit; for a limit on the level, that
    level."""
    limit_on: Literal["change", "level"]
    """Whether the limit is one on the change or on the level of the candidate."""


class Settings(Struct, frozen=True):
    """Settings that were used."""

    alpha: float
    """Probability of a false alarm."""
    min_steps: int
    """Fewest steps that decide."""
    inconclusive: Literal["pass", "fail"] | None
    """Exit code policy of an inconclusive verdict."""
    allow: list[str]
    """Differences that do not stop a comparison."""
    file: str | None
    """The file they came from."""


class GateDocument(Struct, frozen=True, kw_only=True):
    """Verdict on a candidate.

    If the input could not be used, ``error`` says why and the last keys are absent.
    """

    tracekit: str
    """Version that wrote it."""
    format: Literal["tracekit.gate/1"]
    """Name and number of the format."""
    name: str | UnsetType = UNSET
    """Name of the gate, where a project has several."""
    verdict: Literal["pass", "regressed", "inconclusive", "error"]
    """The verdict."""
    exit_code: int
    """Exit code of the command."""
    error: str | UnsetType = UNSET
    """Why the input could not be used."""
    obstacles: list[str]
    """Reasons why the sides should not be compared."""
    same_recording: bool = False
    """Whether both sides are the same files: equal in every step."""
    checks: list[CheckResult]
    """Verdict on each metric."""
    waivers: list[WaiverStatus]
    """All waivers of the settings."""
    before: SideEntry | UnsetType = UNSET
    """The baseline."""
    after: SideEntry | UnsetType = UNSET
    """The candidate."""
    story: list[str] | UnsetType = UNSET
    """Sentences that explain the change."""
    findings: list[FindingChange] | UnsetType | None = UNSET
    """Findings that changed; null if a side has no record of them."""
    moved: LargestChanges | UnsetType = UNSET
    """Kernels, modules and cells whose time changed most."""
    settings: Settings | UnsetType = UNSET
    """Settings that were used."""


# ---- Settings of the gate: ``[tool.tracekit.gate]`` in pyproject.toml, or ``[gate]`` in tracekit.toml.


class GateSettings(Struct, frozen=True):
    """Settings of the gate. Every field can be written in the file under its own name."""

    baseline: tuple[str, ...] = ()
    """Baseline files used when the command names none."""
    require: tuple[str, ...] = ()
    """Requirements checked when the command gives none."""
    alpha: Annotated[float, Meta(gt=0, lt=0.5)] = 0.02
    """Probability of a false alarm before the floors: of the whole step, and of all its parts
    together."""
    min_steps: Annotated[int, Meta(ge=3)] = 5
    """With fewer steps than this on either side nothing is decided."""
    inconclusive: Literal["pass", "fail"] | None = None
    """Exit with 0 or 1 instead of 3 when nothing regressed but something could not be decided."""
    floors: Mapping[str, str | Annotated[float, Meta(ge=0)]] = {}
    """Smallest change that counts, by metric or pattern: ``"3%"``, or a number in the metric's
    unit."""
    allow: tuple[str, ...] = ()
    """Differences that do not stop a comparison: world_size, schedule, shapes, gpu."""
    waivers: tuple[Waiver, ...] = ()
    """Accepted regressions, each with a reason and a last day."""
    name: str = ""
    """Name of the gate in its reports, where a project has several."""
