"""Metrics that can be compared and gated, and requirements on them.

A metric has a name, a unit, a direction and a noise floor. It consists of a family and, for most families, a key:
``overlap.ep_dispatch``. A suffix ``@3`` selects rank 3 alone. A run has one value per step: the mean over ranks for
times (the maximum for ``step_ms``, because the slowest rank sets the pace), the ratio of sums over ranks for shares.
"""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from tracekit.errors import OptionError
from tracekit.metrics.memory import MEMORY_PHASES
from tracekit.schema import COMMUNICATION_LABELS, COMPUTE_LABELS, COPY_LABELS, EXPOSURE_CAUSES, GAP_CAUSES, LABELS

Direction = Literal["down", "up", "none"]
Nature = Literal["work", "pace", "waiting", "copying"]
"""Reason why runs of the same code differ in a metric.

``work``: the GPU repeats the same work, so they hardly differ. ``pace``: the step contains waiting. ``waiting`` and
``copying``: the metric itself measures time spent waiting or copying.
"""
EXPOSED_KEYS = ("communication", "copy", *COMMUNICATION_LABELS, *COPY_LABELS)


class Floor(msgspec.Struct, frozen=True):
    """Noise floor of a metric: a change below the largest of its three parts does not count."""

    relative: float = 0.0  # share of the baseline's value
    absolute: float = 0.0  # in the metric's unit
    of_step: float = 0.0  # share of the baseline's step time; for an overlap, of the time that became exposed


class Family(msgspec.Struct, frozen=True):
    """A kind of metric, with the keys it can be measured for."""

    name: str
    unit: Literal["ms", "ratio", "count", "TFLOP/s", "GB/s", "GB"]
    better: Direction
    about: str
    keys: tuple[str, ...] = ()
    floor: Floor = Floor()
    default: bool = False  # checked when the user names no metric
    nature: Nature = "waiting"
    details: tuple[str, ...] = ()  # further keys, checked only where the user names them


_TIME_FLOOR = Floor(relative=0.05, of_step=0.01)
_COMPUTE_FLOOR = Floor(relative=0.0325, of_step=0.005)
_SHARE_FLOOR = Floor(absolute=0.02)
_RATE_FLOOR = Floor(relative=0.05)
_MEMORY_FLOOR = Floor(relative=0.01)

FAMILIES = (
    Family("step_ms", "ms", "down", "span of a step on the slowest rank", floor=Floor(relative=0.0285), default=True,
           nature="pace"),
    Family("bubble_fraction", "ratio", "down", "(idle + exposed pp_comm wait) / span", floor=_SHARE_FLOOR,
           default=True),
    Family("exposed_ms", "ms", "down",
           "time of a label that no compute hides; with a cause: exposed_ms.dp_comm.same_stream",
           EXPOSED_KEYS, _TIME_FLOOR, default=True,
           details=tuple(f"{label}.{cause}" for label in EXPOSED_KEYS[2:] for cause in EXPOSURE_CAUSES)),
    Family("overlap", "ratio", "up", "share of a label's time that compute hides", EXPOSED_KEYS,
           Floor(absolute=0.02, of_step=0.01), default=True),
    Family("label_ms", "ms", "down", "time a label runs (union)", LABELS, _TIME_FLOOR, default=True, nature="work"),
    Family("compute_ms", "ms", "down", "time any compute runs (union)", floor=_COMPUTE_FLOOR, default=True,
           nature="work"),
    Family("idle_ms", "ms", "down", "time the GPU runs nothing", floor=_TIME_FLOOR),
    Family("wait_ms", "ms", "down", "exposed pp_comm time spent waiting for a peer", floor=_TIME_FLOOR),
    Family("bubble_ms", "ms", "down", "idle + exposed pp_comm wait", floor=_TIME_FLOOR),
    Family("idle_fraction", "ratio", "down", "idle / span", floor=_SHARE_FLOOR),
    Family("compute_fraction", "ratio", "up", "compute / span", floor=_SHARE_FLOOR),
    Family("other_fraction", "ratio", "down", "time labelled other / span", floor=_SHARE_FLOOR, nature="work"),
    Family("hidden_ms", "ms", "up", "time of a label that a compute label hides: hidden_ms.ep_dispatch.dgrad",
           tuple(f"{label}.{compute}" for label in EXPOSED_KEYS[2:] for compute in (*COMPUTE_LABELS, "other")),
           _TIME_FLOOR),
    Family("label_count", "count", "none", "GPU events of a label in the window", LABELS, nature="work"),
    Family("makespan_ms", "ms", "down", "pipeline makespan as measured", floor=_TIME_FLOOR, nature="pace"),
    Family("ideal_makespan_ms", "ms", "down", "the schedule's makespan from measured cell times", floor=_TIME_FLOOR,
           nature="work"),
    Family("outside_cells", "ratio", "down", "share of ranks × makespan in no pipeline cell", floor=_SHARE_FLOOR),
    Family("gap_ms", "ms", "down", "measured minus ideal makespan: total, or one cause",
           ("total", *GAP_CAUSES), _TIME_FLOOR),
    Family("tflop_s", "TFLOP/s", "up", "FLOP of matrix products over their own time: total, or of one label",
           ("total", *COMPUTE_LABELS), _RATE_FLOOR, nature="work"),
    Family("utilisation", "ratio", "up", "model FLOP utilisation: time of the model's FLOP at the GPU's peak / span",
           floor=_SHARE_FLOOR),
    Family("bus_gb_s", "GB/s", "up", "bus bandwidth of a label's matched operations, waiting apart",
           COMMUNICATION_LABELS, _RATE_FLOOR),
    Family("copy_gb_s", "GB/s", "up", "bytes over the union of the copies' time", ("offload", "onload"), _RATE_FLOOR,
           nature="copying"),
    Family("expert_over_mean", "ratio", "down", "most that a rank's experts receive, over the mean of its group",
           floor=_SHARE_FLOOR, nature="work"),
    Family("expert_cost_ms", "ms", "down", "what a step feels of uneven experts in the forward, at most",
           floor=_TIME_FLOOR),
    Family("late_ms", "ms", "down", "waiting for the latest rank in a step, mean of the ranks that wait; of rank 3: @3",
           ("rank",), _TIME_FLOOR),
    Family("imbalance", "ratio", "down", "work of the rank with most minus the mean / step time", floor=_SHARE_FLOOR,
           nature="work"),
    Family("peak_gb", "GB", "down", "most that tensors held on the fullest rank", floor=_MEMORY_FLOOR, nature="work"),
    Family("phase_gb", "GB", "down", "the same while the host was in a phase",
           tuple(dict.fromkeys(MEMORY_PHASES.values())), _MEMORY_FLOOR, nature="work"),
)  # fmt: skip
FAMILY_BY_NAME = {f.name: f for f in FAMILIES}
_RUN_LEVEL_FAMILIES = (
    *("outside_cells", "label_count", "hidden_ms", "tflop_s", "utilisation", "bus_gb_s", "copy_gb_s"),
    *("expert_over_mean", "expert_cost_ms", "peak_gb", "phase_gb"),
)
"""Families with one value per run, not one per step, in a saved analysis."""


class Metric(msgspec.Struct, frozen=True):
    """A metric by its full name.

    >>> resolve("overlap.ep_dispatch").better
    'up'
    >>> resolve("step_ms@3").rank
    3
    """

    name: str
    family: Family
    key: str | None = None
    rank: int | None = None

    @property
    def unit(self) -> str:
        """``ms``, ``ratio``, ``count``, ``TFLOP/s``, ``GB/s`` or ``GB``."""
        return self.family.unit

    @property
    def better(self) -> Direction:
        """Direction in which the metric improves."""
        return self.family.better

    @property
    def nature(self) -> Nature:
        """Reason why runs of the same code differ in this metric.

        >>> resolve("label_ms.forward").nature, resolve("label_ms.pp_comm").nature, resolve("label_ms.offload").nature
        ('work', 'waiting', 'copying')
        """
        label = (self.key or "").split(".", maxsplit=1)[0]
        if self.unit == "ms" and label in ("communication", *COMMUNICATION_LABELS):
            return "waiting"
        if self.unit == "ms" and label in ("copy", *COPY_LABELS):
            return "copying"
        return self.family.nature

    @property
    def once_a_run(self) -> bool:
        """Whether a run has one value, however many steps it has."""
        return self.family.name in _RUN_LEVEL_FAMILIES


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Requirement(msgspec.Struct, frozen=True):
    """A limit on the candidate alone, or on the change against the baseline.

    >>> from tracekit.gates.config import parse_requirement
    >>> requirement = parse_requirement("step_ms < +3%")
    >>> requirement.metric.name, requirement.kind, requirement.limit, requirement.worse
    ('step_ms', 'relative', 0.03, 'up')
    """

    text: str
    metric: Metric
    op: Literal["<", "<=", ">", ">="]
    kind: Literal["limit", "relative", "change"]  # on the level; on the change as a share, or in the metric's unit
    limit: float

    @property
    def worse(self) -> Literal["up", "down"]:
        """Direction that breaks the requirement."""
        return "up" if self.op[0] == "<" else "down"

    def holds(self, value: float) -> bool:
        """Return whether *value* (a level, or a change for the signed kinds) satisfies the requirement.

        >>> from tracekit.gates.config import parse_requirement
        >>> parse_requirement("overlap.ep_dispatch > -0.02").holds(-0.01)
        True
        """
        return _COMPARISONS[self.op](value, self.limit)


def resolve(name: str, *, known: Iterable[str] = ()) -> Metric:
    """Return the metric called *name*; *known* adds names that occur in a run.

    >>> resolve("overlap.ep_dispach")
    Traceback (most recent call last):
    tracekit.errors.OptionError: unknown metric overlap.ep_dispach (did you mean overlap.ep_dispatch or ...
    """
    match = re.fullmatch(r"([A-Za-z_]+)(?:\.([A-Za-z0-9_.]+))?(?:@(\d+))?", name)
    family = FAMILY_BY_NAME.get(match[1]) if match else None
    if match and family:
        key = match[2]
        listed = key in family.keys or key in family.details or f"{family.name}.{key}" in known
        if listed if key else not family.keys:
            return Metric(name, family, key, int(match[3]) if match[3] else None)
    raise OptionError(f"unknown metric {name}", hint=_suggest(name, known))


def metric_names() -> list[str]:
    """Return every metric name, in the order of the families.

    >>> metric_names()[:3]
    ['step_ms', 'bubble_fraction', 'exposed_ms.communication']
    """
    names = []
    for family in FAMILIES:
        names += [f"{family.name}.{key}" for key in (*family.keys, *family.details)] if family.keys else [family.name]
    return names


def _suggest(name: str, known: Iterable[str]) -> str:
    """Return the hint for an unknown metric: the nearest names, or a list of families."""
    candidates = list(dict.fromkeys([*metric_names(), *known]))
    bare = name.split("@", maxsplit=1)[0]
    close = difflib.get_close_matches(bare, candidates, n=3, cutoff=0.6)
    close += [c for c in candidates if bare and (c.startswith(bare) or c.endswith(f".{bare}"))][: 3 - len(close)]
    if not close:
        families = (f"{family.name}.LABEL" if family.keys else family.name for family in FAMILIES[:7])
        return "names: " + ", ".join(families) + ", …"
    return "did you mean " + " or ".join(dict.fromkeys(close)) + "?"
