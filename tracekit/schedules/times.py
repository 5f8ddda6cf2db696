"""Durations of ops by kind, and of transfers between ranks."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from tracekit._util.arrays import Ints
from tracekit.errors import OptionError

if TYPE_CHECKING:
    from tracekit.schedules.schedule import Numbers, OpTable

KEYS = ("F", "I", "W", "B", "FB", "P2P")


@dataclass(frozen=True)
class Times:
    """Durations in any unit. B is I + W and FB is F + B unless given. A transfer between two ranks takes P2P.

    >>> Times(F=1, I=1, W=1).scalars()
    {'F': 1, 'I': 1, 'W': 1, 'B': 2, 'FB': 3, 'P2P': 0}
    """

    F: float = 1
    I: float = 1  # noqa: E741
    W: float = 1
    B: Any = None
    FB: Any = None
    P2P: float = 0

    def __post_init__(self) -> None:
        check_times({key: value for key, value in asdict(self).items() if value is not None}, may_be_zero=("P2P",))
        if self.B is None:
            object.__setattr__(self, "B", self.I + self.W)
        if self.FB is None:
            object.__setattr__(self, "FB", self.F + self.B)

    @classmethod
    def parse(cls, text: str) -> Times:
        """Return the times in the command line's ``F=1,I=1,W=1,FB=3,P2P=0``; what is not named keeps its default.

        >>> Times.parse("F=2,B=5").scalars()
        {'F': 2, 'I': 1, 'W': 1, 'B': 5, 'FB': 7, 'P2P': 0}
        """
        return cls(**parse_times(text, KEYS))

    def scalars(self) -> dict[str, Any]:
        """Return the times by kind, as plain data."""
        return asdict(self)

    def durations(self, table: OpTable) -> Numbers:
        """Return the duration of every op of *table*."""
        return np.array([self.F, self.I, self.W, self.B, self.FB])[table.kind]

    def latencies(self, table: OpTable, producers: Ints) -> Numbers:
        """Return the time from the end of each op's producer to the arrival of its output.

        It is 0 if both are on one rank or there is no producer (-1).
        """
        return np.where((producers >= 0) & (table.rank[producers] != table.rank), self.P2P, 0)


def parse_times(text: str, keys: tuple[str, ...]) -> dict[str, float]:
    """Parse times written as ``KEY=number,…``; *keys* are the allowed names.

    >>> parse_times("H2D=4,RELOAD=0.5", ("H2D", "BROADCAST", "RELOAD"))
    {'H2D': 4, 'RELOAD': 0.5}
    >>> parse_times("F=fast", KEYS)
    Traceback (most recent call last):
    tracekit.errors.OptionError: time 'F=fast' is not NAME=number (names: F, I, W, B, FB, P2P)
    """
    times: dict[str, float] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        key, _, number = word.partition("=")
        key = key.strip().upper()
        try:
            value = float(number)
        except ValueError:
            value = float("nan")
        if key not in keys or not math.isfinite(value):
            raise OptionError(f"time {word!r} is not NAME=number", hint=f"names: {', '.join(keys)}")
        if key in times:
            raise OptionError(f"time {key} is given twice", hint="give it once")
        times[key] = int(value) if value.is_integer() else value
    return times


def check_times(times: Mapping[str, Any], *, may_be_zero: Collection[str] = ()) -> None:
    """Raise if a time is not a positive number, or 0 where it *may_be_zero*."""
    for key, value in times.items():
        is_number = isinstance(value, Real) and math.isfinite(value)
        if not is_number or value < 0 or (value == 0 and key not in may_be_zero):
            wanted = "0 or more" if key in may_be_zero else "more than 0"
            raise OptionError(f"time {key} must be {wanted}", hint=f"got {value!r}")
