"""History of a run: the data of the page that ``watch -o`` and ``gate --history`` write, from which it is read back."""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

HISTORY_FORMAT: Literal["tracekit.history/1"] = "tracekit.history/1"


class HistoryPoint(Struct, frozen=True):
    """One recording, or the candidate of one gate."""

    name: str
    """Name of the recording."""
    time: str
    """When it was recorded or judged, as ISO 8601 in UTC."""
    values: Mapping[str, float]
    """Figures by metric name; unknown ones are left out."""
    commit: str | None = None
    """Commit that a build server named."""
    verdict: str | None = None
    """Verdict of the gate."""
    report: str | None = None
    """Address of its page, relative to the history."""


class HistoryDocument(Struct, frozen=True):
    """Points of a history, oldest first."""

    format: Literal["tracekit.history/1"]
    """Name and number of the format."""
    points: list[HistoryPoint]
    """The points."""
    colours: Mapping[str, str]
    """Colour of each label on the page."""
