"""Settings of the gate: ``[tool.tracekit.gate]`` in pyproject.toml, or ``[gate]`` in tracekit.toml."""

import fnmatch
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec.structs import asdict, replace

from tracekit._util.text import did_you_mean
from tracekit.diffs.metrics import Metric, Requirement, UnknownMetricError, resolve
from tracekit.documents.coding import problem_text
from tracekit.documents.gate import CheckResult, GateSettings, Waiver
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


def load_config(path: str | Path | None = None, *, start: Path | None = None) -> Config:
    """Return the settings of *path*, or of the nearest file at or above *start*.

    The defaults if there is none.

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


def apply_waivers(
    checks: Sequence[CheckResult], waivers: Iterable[Waiver], today: date
) -> list[CheckResult]:
    """Return the checks with their active waivers.

    A waived check keeps its verdict, but does not decide the gate.
    """
    active = [waiver for waiver in waivers if waiver.status_on(today).status == "active"]
    return [_apply_waiver(check, active, today) for check in checks]


def _apply_waiver(check: CheckResult, active: Sequence[Waiver], today: date) -> CheckResult:
    """Return a check that does not pass with the first active waiver of its metric."""
    if check.verdict not in ("regressed", "inconclusive"):
        return check
    for waiver in active:
        if fnmatch.fnmatchcase(check.metric, waiver.metric):
            return replace(check, waiver=waiver.status_on(today))
    return check


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
    values = dict(table or {})
    for key, value in values.items():
        if key not in names:
            hint = did_you_mean(key, names, otherwise=f"one of {', '.join(names)}")
            raise OptionError(f"{file}: the gate has no setting {key}", hint=hint)
        if key in _LISTS and isinstance(value, str):
            values[key] = [value]
    try:
        settings = msgspec.convert(values, GateSettings)
    except msgspec.ValidationError as error:
        raise OptionError(
            f"{file}: {problem_text(error).replace('$', 'gate', 1)}", hint="see docs/gate.md"
        ) from error
    # Paths are relative to the file, unless they are addresses.
    baseline = [item if "://" in item else str(file.parent / item) for item in settings.baseline]
    return Config(**asdict(settings) | {"baseline": tuple(baseline), "path": str(file)})


# ---- Parser of ``--require`` expressions: a metric, a comparison, a limit.
#
#     bubble_fraction < 0.12          a limit on the candidate alone
#     step_ms < +3%                   a limit on the change, as a share of the baseline
#     overlap.ep_dispatch > -0.02     a limit on the change, in the metric's own unit
#
# A sign makes it a change. ``%`` without a sign is a share (``bubble_fraction < 12%``) and means
# nothing for a time.


_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_][A-Za-z0-9_.@]*)|(?P<op><=|>=|<|>)|(?P<number>[+\-−]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?P<unit>%|[A-Za-zµ]+)?)"
)
_MS_PER_UNIT = {"ms": 1.0, "us": 1e-3, "µs": 1e-3, "ns": 1e-6, "s": 1e3}


def parse_requirement(text: str, *, names_in_runs: Iterable[str] = ()) -> Requirement:
    """Parse one requirement; an error marks the position with a caret.

    Args:
        text: The expression.
        names_in_runs: Metric names that occur in the runs, beside those that tracekit defines.

    >>> parse_requirement("step_ms << 3")
    Traceback (most recent call last):
    tracekit.errors.OptionError: --require: a number must follow the comparison
      step_ms << 3
               ^
    """
    name = _match_token(
        text, 0, "name", "start with a metric, such as step_ms or overlap.ep_dispatch"
    )
    op = _match_token(text, name.end(), "op", "a comparison must follow the metric: <, <=, > or >=")
    number = _match_token(text, op.end(), "number", "a number must follow the comparison")
    if text[number.end() :].strip():
        position = _skip_spaces(text, number.end())
        raise _error(
            "nothing may follow the limit; give --require again for another", text, position
        )
    try:
        metric = resolve(name["name"], names_in_runs=names_in_runs)
    except UnknownMetricError as error:
        raise _error(
            error.message,
            text,
            name.start("name"),
            hint=error.hint,
            error_type=UnknownMetricError,
        ) from None
    kind, limit = _parse_limit(number, metric, text)
    return Requirement(text.strip(), metric, op["op"], kind, limit)  # type: ignore[arg-type]


def check_syntax(text: str) -> None:
    """Raise OptionError if *text* is malformed, before minutes of reading traces.

    An unknown metric is accepted: it may occur in the runs.

    >>> check_syntax("a_label_only_this_run_has < 3")
    """
    with suppress(UnknownMetricError):
        parse_requirement(text)


def _match_token(text: str, start: int, group: str, otherwise: str) -> re.Match[str]:
    """Return the next token if it is of the kind *group*, else raise with the message *otherwise*."""
    match = _TOKEN.match(text, start)
    if not match or match[group] is None:
        raise _error(otherwise, text, _skip_spaces(text, start))
    return match


def _parse_limit(
    number: re.Match[str], metric: Metric, text: str
) -> tuple[Literal["limit", "relative", "change"], float]:
    """Return the kind of limit and its value, in the metric's unit or as a share."""
    position = number.start("number")
    digits = number["number"].replace("−", "-")
    unit = number["unit"] or ""
    is_change = digits[0] in "+-"
    value = float(digits)
    if not math.isfinite(value):
        raise _error("a finite number must follow the comparison", text, position)
    if unit == "%":
        if is_change:
            return "relative", value / 100
        if metric.family.unit == "ratio":
            return "limit", value / 100
        raise _error(
            "a percentage of what? write +3% for a change against the baseline", text, position
        )
    if unit and (metric.family.unit != "ms" or unit not in _MS_PER_UNIT):
        hint = f"its unit is {metric.family.unit}"
        raise _error(f"{metric.name} has no unit {unit}", text, number.start("unit"), hint=hint)
    return ("change" if is_change else "limit"), value * _MS_PER_UNIT.get(unit, 1.0)


def _skip_spaces(text: str, position: int) -> int:
    return len(text) - len(text[position:].lstrip())


def _error(
    message: str,
    text: str,
    position: int,
    *,
    hint: str = "",
    error_type: type[OptionError] = OptionError,
) -> OptionError:
    problem = f"{message}; {hint}" if hint else message
    return error_type(f"--require: {problem}", quote=(text, f"{' ' * position}^"))
