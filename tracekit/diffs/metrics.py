"""Every metric that can be gated: its name, unit, direction, and how small a change is too small to matter.

A metric is a family and, for most, a key: ``overlap.ep_dispatch``. ``@3`` after it means rank 3 alone. Values are
one number a step: the mean over ranks for times (the largest for ``step_ms``, as the slowest rank sets the pace), the
ratio of sums over ranks for shares.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Literal

import msgspec

from tracekit.errors import OptionError
from tracekit.metrics.memory import MEMORY_PHASES
from tracekit.schema import COMMUNICATION_LABELS, COMPUTE_LABELS, COPY_LABELS, EXPOSURE_CAUSES, GAP_CAUSES, LABELS

Direction = Literal["down", "up", "none"]
Nature = Literal["work", "pace", "waiting", "copying"]
"""What makes equal runs differ in a metric: hardly anything where the GPU does the same work (``work``), the waiting
that a step contains (``pace``), the waiting or the copying that the metric itself measures."""
KEYS_EXPOSED = ("communication", "copy", *COMMUNICATION_LABELS, *COPY_LABELS)


class Floor(msgspec.Struct, frozen=True):
    """A change smaller than the largest of these is noise or does not matter.

    *relative* is a share of the baseline's value, *absolute* in the metric's unit, *of_step* a share of the baseline's
    step time (for an overlap: of the time that became exposed).
    """

    relative: float = 0.0
    absolute: float = 0.0
    of_step: float = 0.0


class Family(msgspec.Struct, frozen=True):
    """One kind of metric."""

    name: str
    unit: Literal["ms", "ratio", "count", "TFLOP/s", "GB/s", "GB"]
    better: Direction
    about: str
    keys: tuple[str, ...] = ()
    floor: Floor = Floor()
    default: bool = False  # checked when nothing is named
    nature: Nature = "waiting"
    details: tuple[str, ...] = ()  # keys that are checked only where they are named


_PART = Floor(relative=0.05, of_step=0.01)
_WORK = Floor(relative=0.0325, of_step=0.005)
_SHARE = Floor(absolute=0.02)
_RATE = Floor(relative=0.05)
_HELD = Floor(relative=0.01)

FAMILIES = (
    Family("step_ms", "ms", "down", "span of a step on the slowest rank", floor=Floor(relative=0.0285), default=True,
           nature="pace"),
    Family("bubble_fraction", "ratio", "down", "(idle + exposed pp_comm wait) / span", floor=_SHARE, default=True),
    Family("exposed_ms", "ms", "down",
           "time of a label that no compute hides; with a cause: exposed_ms.dp_comm.same_stream",
           KEYS_EXPOSED, _PART, default=True,
           details=tuple(f"{a}.{b}" for a in KEYS_EXPOSED[2:] for b in EXPOSURE_CAUSES)),
    Family("overlap", "ratio", "up", "share of a label's time that compute hides", KEYS_EXPOSED,
           Floor(absolute=0.02, of_step=0.01), default=True),
    Family("label_ms", "ms", "down", "time a label runs (union)", LABELS, _PART, default=True, nature="work"),
    Family("compute_ms", "ms", "down", "time any compute runs (union)", floor=_WORK, default=True, nature="work"),
    Family("idle_ms", "ms", "down", "time the GPU runs nothing", floor=_PART),
    Family("wait_ms", "ms", "down", "exposed pp_comm time spent waiting for a peer", floor=_PART),
    Family("bubble_ms", "ms", "down", "idle + exposed pp_comm wait", floor=_PART),
    Family("idle_fraction", "ratio", "down", "idle / span", floor=_SHARE),
    Family("compute_fraction", "ratio", "up", "compute / span", floor=_SHARE),
    Family("other_fraction", "ratio", "down", "time labelled other / span", floor=_SHARE, nature="work"),
    Family("hidden_ms", "ms", "up", "time of a label that a compute label hides: hidden_ms.ep_dispatch.dgrad",
           tuple(f"{a}.{b}" for a in KEYS_EXPOSED[2:] for b in (*COMPUTE_LABELS, "other")), _PART),
    Family("label_count", "count", "none", "GPU events of a label in the window", LABELS, nature="work"),
    Family("makespan_ms", "ms", "down", "pipeline makespan as measured", floor=_PART, nature="pace"),
    Family("ideal_makespan_ms", "ms", "down", "the schedule's makespan from measured cell times", floor=_PART,
           nature="work"),
    Family("outside_cells", "ratio", "down", "share of ranks × makespan in no pipeline cell", floor=_SHARE),
    Family("gap_ms", "ms", "down", "measured minus ideal makespan: total, or one cause",
           ("total", *GAP_CAUSES), _PART),
    Family("tflop_s", "TFLOP/s", "up", "FLOP of matrix products over their own time: total, or of one label",
           ("total", *COMPUTE_LABELS), _RATE, nature="work"),
    Family("utilisation", "ratio", "up", "model FLOP utilisation: time of the model's FLOP at the GPU's peak / span",
           floor=_SHARE),
    Family("bus_gb_s", "GB/s", "up", "bus bandwidth of a label's matched operations, waiting apart",
           COMMUNICATION_LABELS, _RATE),
    Family("copy_gb_s", "GB/s", "up", "bytes over the union of the copies' time", ("offload", "onload"), _RATE,
           nature="copying"),
    Family("expert_over_mean", "ratio", "down", "most that a rank's experts receive, over the mean of its group",
           floor=_SHARE, nature="work"),
    Family("expert_cost_ms", "ms", "down", "what a step feels of uneven experts in the forward, at most",
           floor=_PART),
    Family("peak_gb", "GB", "down", "most that tensors held on the fullest rank", floor=_HELD, nature="work"),
    Family("phase_gb", "GB", "down", "the same while the host was in a phase",
           tuple(dict.fromkeys(MEMORY_PHASES.values())), _HELD, nature="work"),
)  # fmt: skip
BY_NAME = {f.name: f for f in FAMILIES}
_RUN_LEVEL = (
    *("outside_cells", "label_count", "hidden_ms", "tflop_s", "utilisation", "bus_gb_s", "copy_gb_s"),
    *("expert_over_mean", "expert_cost_ms", "peak_gb", "phase_gb"),
)
"""Known once per run, not once per step, in a saved analysis."""


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
        """Which way is better."""
        return self.family.better

    @property
    def nature(self) -> Nature:
        """What makes equal runs differ in it.

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
        """Whether a run gives one value, whatever its steps."""
        return self.family.name in _RUN_LEVEL


def resolve(name: str, *, known: Iterable[str] = ()) -> Metric:
    """Return the metric called *name*; *known* adds names that a run really has.

    >>> resolve("overlap.ep_dispach")
    Traceback (most recent call last):
    tracekit.errors.OptionError: unknown metric overlap.ep_dispach (did you mean overlap.ep_dispatch or ...
    """
    match = re.fullmatch(r"([A-Za-z_]+)(?:\.([A-Za-z0-9_.]+))?(?:@(\d+))?", name)
    family = BY_NAME.get(match[1]) if match else None
    if match and family:
        key = match[2]
        listed = key in family.keys or key in family.details
        fits = (listed or f"{family.name}.{key}" in known) if key else not family.keys
        if fits:
            return Metric(name, family, key, int(match[3]) if match[3] else None)
    raise OptionError(f"unknown metric {name}", hint=_nearest(name, known))


def names() -> list[str]:
    """Every metric name, families in order.

    >>> names()[:3]
    ['step_ms', 'bubble_fraction', 'exposed_ms.communication']
    """
    return [n for f in FAMILIES for n in ([f"{f.name}.{k}" for k in (*f.keys, *f.details)] if f.keys else [f.name])]


def _nearest(name: str, known: Iterable[str]) -> str:
    every = list(dict.fromkeys([*names(), *known]))
    bare = name.split("@", maxsplit=1)[0]
    close = difflib.get_close_matches(bare, every, n=3, cutoff=0.6)
    close += [n for n in every if bare and (n.startswith(bare) or n.endswith(f".{bare}"))][: 3 - len(close)]
    if not close:
        return "names: " + ", ".join(f"{f.name}.LABEL" if f.keys else f.name for f in FAMILIES[:7]) + ", …"
    return "did you mean " + " or ".join(dict.fromkeys(close)) + "?"
