"""Settings of the gate: ``[tool.tracekit.gate]`` in pyproject.toml, or ``[gate]`` in tracekit.toml."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from tracekit._util.text import did_you_mean
from tracekit.diffs.verdict import Check, Rules
from tracekit.documents.gate_result import WaiverStatus
from tracekit.errors import OptionError

Policy = Literal["pass", "fail"]


class Waiver(msgspec.Struct, frozen=True):
    """An accepted regression, with its reason and last day."""

    metric: str  # a name or a pattern: "exposed_ms.*"
    reason: str
    until: date

    def status(self, today: date) -> Literal["active", "expired"]:
        """Return ``active`` up to and on its last day, ``expired`` after it.

        >>> Waiver("step_ms", "new kernel", date(2026, 1, 31)).status(date(2026, 2, 1))
        'expired'
        """
        return "active" if today <= self.until else "expired"

    def to_document(self, today: date) -> WaiverStatus:
        """Return it as a part of the gate's document, with its status on *today*."""
        return WaiverStatus(self.metric, self.reason, self.until.isoformat(), self.status(today))


class Config(msgspec.Struct, frozen=True):
    """Settings of the gate. Every field can be written in the file under its own name.

    >>> Config(require=("step_ms < +3%",), inconclusive="pass").min_steps
    5
    """

    baseline: tuple[str, ...] = ()
    """Baseline files used when the command names none."""
    require: tuple[str, ...] = ()
    """Requirements checked when the command gives none."""
    alpha: float = Rules().alpha
    """Probability of a false alarm before the floors: of the whole step, and of all its parts together."""
    min_steps: int = Rules().min_steps
    """With fewer steps than this on either side nothing is decided."""
    inconclusive: Policy | None = None
    """Exit with 0 or 1 instead of 3 when nothing regressed but something could not be decided."""
    floors: Mapping[str, str | float] = {}
    """Smallest change that counts, by metric or pattern: ``"3%"``, or a number in the metric's unit."""
    allow: tuple[str, ...] = ()
    """Differences that do not stop a comparison: world_size, schedule, shapes, gpu."""
    waivers: tuple[Waiver, ...] = ()
    """Accepted regressions, each with a reason and a last day."""
    path: str | None = None
    """The file this came from."""

    @property
    def rules(self) -> Rules:
        """Rules of the verdicts."""
        return Rules(self.alpha, self.min_steps, self.floors)


def load_config(path: str | Path | None = None, *, start: Path | None = None) -> Config:
    """Return the settings of *path*, or of the nearest file at or above *start*; the defaults if there is none.

    >>> load_config(start=Path("sample_traces")).inconclusive is None
    True
    """
    if path is not None:
        file = Path(path)
        if not file.is_file():
            raise OptionError(f"--config {file}: there is no such file")
        return _parse(_read(file), file)
    folder = (start or Path.cwd()).resolve()
    for parent in (folder, *folder.parents):
        for name in ("tracekit.toml", "pyproject.toml"):
            file = parent / name
            if file.is_file() and (table := _read(file)) is not None:
                return _parse(table, file)
        if (parent / ".git").exists():  # settings above the repository belong to another project
            break
    return Config()


def apply_waivers(checks: Sequence[Check], waivers: Iterable[Waiver], today: date) -> list[Check]:
    """Return the checks with their active waivers; a waived check keeps its verdict, but does not decide the gate."""
    active = [waiver for waiver in waivers if waiver.status(today) == "active"]
    result = []
    for check in checks:
        matching = [waiver for waiver in active if fnmatch.fnmatchcase(check.metric.name, waiver.metric)]
        if matching and check.verdict in ("regressed", "inconclusive"):
            result.append(replace(check, waiver=matching[0].to_document(today)))
        else:
            result.append(check)
    return result


def _read(file: Path) -> dict[str, Any] | None:
    """Return the gate's table of a TOML file; None if it has none."""
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"{file}: is not valid TOML: {error}") from error
    table = data if file.name != "pyproject.toml" else data.get("tool", {}).get("tracekit", {})
    gate = table.get("gate") if isinstance(table, dict) else None
    return gate if isinstance(gate, dict) else None


def _parse(table: Mapping[str, Any] | None, file: Path) -> Config:
    settings = [name for name in Config.__struct_fields__ if name != "path"]
    values: dict[str, Any] = {"path": str(file)}
    for key, value in (table or {}).items():
        if key not in settings:
            hint = did_you_mean(key, settings, otherwise=f"one of {', '.join(settings)}")
            raise OptionError(f"{file}: the gate has no setting {key}", hint=hint)
        values[key] = _check_value(key, value, file)
    return Config(**values)


def _check_value(key: str, value: Any, file: Path) -> Any:
    """Return the value of a setting in its own type; raise OptionError if it is not valid."""

    def need(valid: bool, expected: str) -> None:
        if not valid:
            raise OptionError(f"{file}: {key} must be {expected}, not {value!r}")

    if key in ("baseline", "require", "allow"):
        value = [value] if isinstance(value, str) else value
        need(isinstance(value, list) and all(isinstance(v, str) for v in value), "a list of strings")
        if key == "baseline":  # relative to the file, unless it is an address
            return tuple(item if "://" in item else str(file.parent / item) for item in value)
        return tuple(value)
    if key == "alpha":
        need(isinstance(value, float) and 0 < value < 0.5, "a number between 0 and 0.5")
    elif key == "min_steps":
        need(type(value) is int and value >= 3, "a whole number of at least 3")
    elif key == "inconclusive":
        need(value in ("pass", "fail"), '"pass" or "fail"')
    elif key == "floors":
        need(isinstance(value, dict), "a table of metric = floor")
    elif key == "waivers":
        need(isinstance(value, list), "a list of tables")
        return tuple(_parse_waiver(item, file) for item in value)
    return value


def _parse_waiver(table: Any, file: Path) -> Waiver:
    entry = table if isinstance(table, dict) else {}
    missing = [key for key in ("metric", "reason", "until") if not entry.get(key)]
    if missing:
        raise OptionError(f"{file}: a waiver lacks its {missing[0]}", hint="each needs metric, reason and until")
    until = entry["until"]  # TOML has dates and times of its own; a string is accepted too
    try:
        if isinstance(until, datetime):
            last_day = until.date()
        else:
            last_day = until if isinstance(until, date) else date.fromisoformat(until)
    except (TypeError, ValueError):
        raise OptionError(
            f"{file}: waiver of {entry['metric']}: until = {until!r} is not a date", hint="write 2026-12-31"
        ) from None
    return Waiver(str(entry["metric"]), str(entry["reason"]), last_day)
