"""Settings of the gate: ``[tool.tracekit.gate]`` in pyproject.toml, or ``[gate]`` in tracekit.toml."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from tracekit._util.text import did_you_mean
from tracekit.diffs.verdict import Check, Rules
from tracekit.documents.coding import problem_text
from tracekit.documents.gate_config import GateSettings, Waiver
from tracekit.errors import OptionError

_LISTS = ("baseline", "require", "allow")
"""Settings that are lists of strings."""


class Config(GateSettings, frozen=True):
    """Settings of the gate, and the file they came from.

    >>> Config(require=("step_ms < +3%",), inconclusive="pass").min_steps
    5
    """

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
    active = [waiver for waiver in waivers if waiver.status(today).status == "active"]
    result = []
    for check in checks:
        matching = [waiver for waiver in active if fnmatch.fnmatchcase(check.metric.name, waiver.metric)]
        if matching and check.verdict in ("regressed", "inconclusive"):
            result.append(replace(check, waiver=matching[0].status(today)))
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
    """Return the settings in a table, in which one string may stand for a list of strings."""
    names = GateSettings.__struct_fields__
    for key in table or {}:
        if key not in names:
            hint = did_you_mean(key, names, otherwise=f"one of {', '.join(names)}")
            raise OptionError(f"{file}: the gate has no setting {key}", hint=hint)
    lists = {key: [value] for key, value in (table or {}).items() if key in _LISTS and isinstance(value, str)}
    try:
        settings = msgspec.convert({**(table or {}), **lists}, GateSettings)
    except msgspec.ValidationError as error:
        raise OptionError(f"{file}: {problem_text(error).replace('$', 'gate', 1)}", hint="see docs/gate.md") from error
    # Paths are relative to the file, unless they are addresses.
    baseline = tuple(item if "://" in item else str(file.parent / item) for item in settings.baseline)
    return Config(**asdict(settings) | {"baseline": baseline, "path": str(file)})
