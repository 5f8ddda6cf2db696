"""The words of ``--require``: a metric, a comparison, a limit.

    bubble_fraction < 0.12          a limit on the candidate alone
    step_ms < +3%                   a limit on the change, as a share of the baseline
    overlap.ep_dispatch > -0.02     a limit on the change, in the metric's own unit

A sign makes it a change. ``%`` without a sign is a share (``bubble_fraction < 12%``) and means nothing for a time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Literal

from tracekit.diffs.limits import Requirement
from tracekit.diffs.metrics import Metric, resolve
from tracekit.errors import OptionError

_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_][A-Za-z0-9_.@]*)|(?P<op><=|>=|<|>)|(?P<number>[+\-−]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?P<unit>%|[A-Za-zµ]+)?)"
)
_SCALE = {"ms": 1.0, "us": 1e-3, "µs": 1e-3, "ns": 1e-6, "s": 1e3}


def parse(text: str, *, known: Iterable[str] = ()) -> Requirement:
    """Parse one requirement; an error shows the place with a caret.

    >>> parse("step_ms << 3")
    Traceback (most recent call last):
    tracekit.errors.OptionError: --require: a number must follow the comparison
      step_ms << 3
               ^
    """
    name, at = _take(text, 0, "name", "start with a metric, such as step_ms or overlap.ep_dispatch")
    op, after = _take(text, at, "op", "a comparison must follow the metric: <, <=, > or >=")
    number, end = _take(text, after, "number", "a number must follow the comparison")
    if text[end:].strip():
        raise _error("nothing may follow the limit; give --require again for another", text, _skip(text, end))
    metric = _metric(name[0], text, known)
    kind, limit = _limit(number, metric, text, _skip(text, after))
    return Requirement(text.strip(), metric, op[0], kind, limit)  # type: ignore[arg-type]


def check_syntax(text: str) -> None:
    """Refuse a malformed requirement before minutes of reading; a name may yet turn out to be known.

    >>> check_syntax("a_label_only_this_run_has < 3")
    """
    try:
        parse(text)
    except OptionError as error:
        if "unknown metric" not in error.message:
            raise


def _take(text: str, at: int, group: str, otherwise: str) -> tuple[tuple[str, str], int]:
    match = _TOKEN.match(text, at)
    if not match or match[group] is None:
        raise _error(otherwise, text, _skip(text, at))
    return (match[group], match["unit"] or ""), match.end()


def _metric(name: str, text: str, known: Iterable[str]) -> Metric:
    try:
        return resolve(name, known=known)
    except OptionError as error:
        raise _error(error.message, text, text.index(name), hint=error.hint) from None


def _limit(
    number: tuple[str, str], metric: Metric, text: str, at: int
) -> tuple[Literal["limit", "relative", "change"], float]:
    digits, unit = number[0].replace("−", "-"), number[1]
    signed, value = digits[0] in "+-", float(digits)
    if not math.isfinite(value):
        raise _error("a finite number must follow the comparison", text, at)
    where = at + len(digits)
    if unit == "%":
        if metric.unit == "ratio" and not signed:
            return "limit", value / 100
        if not signed:
            raise _error("a percentage of what? write +3% for a change against the baseline", text, at)
        return "relative", value / 100
    if unit and (metric.unit != "ms" or unit not in _SCALE):
        raise _error(f"{metric.name} has no unit {unit}", text, where, hint=f"its unit is {metric.unit}")
    return ("change" if signed else "limit"), value * _SCALE.get(unit, 1.0)


def _skip(text: str, at: int) -> int:
    return at + len(text[at:]) - len(text[at:].lstrip())


def _error(message: str, text: str, at: int, *, hint: str = "") -> OptionError:
    problem = f"{message}; {hint}" if hint else message
    return OptionError(f"--require: {problem}\n  {text}\n  {' ' * at}^")
