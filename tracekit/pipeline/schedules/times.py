"""Durations of ops: by kind, and optionally by stage, micro-batch, rank and link."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tracekit.errors import OptionError, ScheduleError
from tracekit.pipeline.schedules import schedule as s
from tracekit.pipeline.schedules.schedule import OpTable, Schedule

Table = float | tuple[float, ...] | tuple[tuple[float, ...], ...]
TIME_KEYS = ("F", "I", "W", "B", "FB", "P2P")


@dataclass(frozen=True)
class Times:
    """Durations in any unit.

    F, I, W, B and FB are numbers, one number per stage, or a table stages × micro-batches.

    B is I + W and FB is F + B unless given. ``rank_factor`` slows single ranks down. A transfer
    between two ranks takes P2P (a number, or a table from rank × to rank) plus ``p2p_bytes /
    p2p_bandwidth``.

    >>> Times(F=1, I=1, W=1).scalars()
    {'F': 1, 'I': 1, 'W': 1, 'B': 2, 'FB': 3, 'P2P': 0}
    >>> Times(F=(1, 2)).B
    2
    """

    F: Any = 1
    I: Any = 1  # noqa: E741
    W: Any = 1
    B: Any = None
    FB: Any = None
    P2P: Any = 0
    rank_factor: Any = None
    p2p_bytes: float = 0
    p2p_bandwidth: float | None = None

    def __post_init__(self) -> None:
        for key in ("F", "I", "W", "B", "FB", "P2P", "rank_factor"):
            value = getattr(self, key)
            if value is not None:
                object.__setattr__(self, key, _freeze(key, value))
        if self.B is None:
            object.__setattr__(self, "B", _freeze("B", _sum(self.I, self.W)))
        if self.p2p_bytes < 0 or (self.p2p_bandwidth is not None and self.p2p_bandwidth <= 0):
            raise OptionError(
                "p2p bytes and bandwidth must be positive", hint="bytes and bytes per unit of time"
            )
        if self.p2p_bytes and self.p2p_bandwidth is None:
            raise OptionError("p2p_bytes needs p2p_bandwidth", hint="bytes per unit of time")

    @classmethod
    def parse(cls, text: str) -> Times:
        """Return the times in the command line's ``F=1,I=1,W=1,FB=3,P2P=0``.

        What is not named keeps its default.

        >>> Times.parse("F=2,B=5").scalars()
        {'F': 2, 'I': 1, 'W': 1, 'B': 5, 'FB': 7, 'P2P': 0}
        """
        return cls(**parse_times(text, TIME_KEYS))

    def scalars(self) -> dict[str, Any]:
        """Return the times by kind, as plain data."""
        fb = _sum(self.F, self.B) if self.FB is None else self.FB
        return {"F": self.F, "I": self.I, "W": self.W, "B": self.B, "FB": fb, "P2P": self.P2P}

    def durations(self, schedule: Schedule) -> npt.NDArray[Any]:
        """Return the duration of every op of ``schedule.table``."""
        table = schedule.table
        shape = (schedule.stages, schedule.microbatches)
        grids = {key: _grid(key, getattr(self, key), shape) for key in ("F", "I", "W", "B")}
        fb = None if self.FB is None else _grid("FB", self.FB, shape)
        duration = np.zeros(
            len(table.kind), np.result_type(*grids.values(), *([] if fb is None else [fb]))
        )
        for code, key in ((s.F, "F"), (s.I, "I"), (s.W, "W"), (s.B, "B")):
            rows = table.kind == code
            duration[rows] = grids[key][table.stage[rows], table.microbatch[rows]]
        rows = table.kind == s.FB
        forward = (table.stage[rows], table.microbatch[rows])
        backward = (table.b_stage[rows], table.b_microbatch[rows])
        duration[rows] = grids["F"][forward] + grids["B"][backward] if fb is None else fb[forward]
        if self.rank_factor is not None:
            factor = np.asarray(self.rank_factor)
            if factor.shape not in ((), (schedule.pp,)):
                raise ScheduleError(
                    f"rank_factor has shape {factor.shape}", hint=f"give {schedule.pp} numbers"
                )
            duration = duration * np.broadcast_to(factor, schedule.pp)[table.rank]
        return duration

    def latencies(self, table: OpTable, producers: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the time from the end of each op's producer to the arrival of its output.

        It is 0 if both are on one rank or there is no producer (-1).
        """
        pp = len(table.offsets) - 1
        links = np.asarray(self.P2P)
        if links.shape not in ((), (pp, pp)):
            raise ScheduleError(
                f"P2P has shape {links.shape}", hint=f"give a number or a {pp}×{pp} table"
            )
        if self.p2p_bandwidth is not None:
            links = links + self.p2p_bytes / self.p2p_bandwidth
        source = table.rank[producers]
        crossing = (producers >= 0) & (source != table.rank)
        return np.where(
            crossing, np.broadcast_to(links, (pp, pp))[source, table.rank], links.dtype.type(0)
        )


def parse_times(text: str, keys: tuple[str, ...]) -> dict[str, float]:
    """Parse times written as ``KEY=number,…``; *keys* are the allowed names.

    >>> parse_times("H2D=4,RELOAD=0.5", ("H2D", "BROADCAST", "RELOAD"))
    {'H2D': 4, 'RELOAD': 0.5}
    >>> parse_times("F=fast", TIME_KEYS)
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
        _freeze(key, times[key])
    return times


@dataclass(frozen=True)
class PositiveTimes:
    """Base of times that are plain positive numbers, one per field."""

    def __post_init__(self) -> None:
        for key, value in asdict(self).items():
            if not 0 < value < math.inf:
                raise OptionError(f"time {key} must be more than 0", hint=f"got {value!r}")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the times in the command line's ``NAME=number,…``.

        What is not named keeps its default.
        """
        names = {field.name.upper(): field.name for field in fields(cls)}
        return cls(**{names[key]: value for key, value in parse_times(text, tuple(names)).items()})


def _freeze(key: str, value: Any) -> Any:
    """Check a time; return it as a number or nested tuples, so that Times stay hashable."""
    try:
        array = np.asarray(value)
        numeric = array.dtype.kind in "iuf" and array.ndim <= 2 and array.size > 0
    except ValueError:  # ragged
        numeric = False
    if not numeric:
        raise OptionError(
            f"time {key} must be a number, or a table of numbers", hint=f"got {value!r}"
        )
    smallest = array.min()
    if not np.isfinite(array).all() or smallest < 0 or (smallest == 0 and key != "P2P"):
        wanted = "0 or more" if key == "P2P" else "more than 0"
        raise OptionError(f"time {key} must be {wanted}", hint=f"got {value!r}")
    return _tuples(array.tolist())


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _sum(a: Any, b: Any) -> Any:
    """Return the sum of two times: numbers, one number per stage, or tables stages × micro-batches."""
    # Transposed: the axis that both have is the last.
    return (np.asarray(a).T + np.asarray(b).T).T.tolist()


def _grid(key: str, value: Any, shape: tuple[int, int]) -> npt.NDArray[Any]:
    """Return a time as a table of stages × micro-batches."""
    array = np.asarray(value)
    if array.shape not in ((), shape[:1], (shape[0], 1), shape):
        problem = f"time {key} has shape {array.shape}, the schedule has {shape[0]} stages and {shape[1]} micro-batches"
        raise ScheduleError(
            problem, hint="give one number, one per stage, or a table stages × micro-batches"
        )
    return np.broadcast_to(array.T, shape[::-1]).T
