"""Metrics that can be compared and gated, and requirements on them.

A metric has a name, a unit, a direction and a noise floor. It consists of a family and, for most
families, a key: ``overlap.ep_dispatch``. A suffix ``@3`` selects rank 3 alone. A run has one value
per step: the mean over ranks for times (the median for ``step_ms``, as in the step time of the
run), the ratio of sums over ranks for shares.
"""

import difflib
import operator
import re
import tomllib
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Literal

import msgspec

from tracekit.diffs.stats import Level
from tracekit.errors import OptionError
from tracekit.memory.measures import MEMORY_PHASES
from tracekit.schema import (
    COMMUNICATION_LABELS,
    COMPUTE_LABELS,
    COPY_LABELS,
    EXPOSURE_CAUSES,
    GAP_CAUSES,
    LABELS,
)

Direction = Literal["down", "up", "none"]
Nature = Literal["work", "pace", "waiting", "copying"]
"""Reason why runs of the same code differ in a metric.

``work``: the GPU repeats the same work, so they hardly differ. ``pace``: the step contains waiting.
``waiting`` and ``copying``: the metric itself measures time spent waiting or copying.
"""
_SETS = {
    "LABELS": LABELS,
    "COMMUNICATION": COMMUNICATION_LABELS,
    "COPIES": COPY_LABELS,
    "COMPUTE": COMPUTE_LABELS,
    "HIDING": (*COMPUTE_LABELS, "other"),
    "EXPOSURE_CAUSES": EXPOSURE_CAUSES,
    "GAP_CAUSES": GAP_CAUSES,
    "MEMORY_PHASES": dict.fromkeys(MEMORY_PHASES.values()),
}
"""Sets that keys in ``metrics.toml`` name."""


class Floor(msgspec.Struct, frozen=True):
    """Noise floor of a metric: a change below the largest of its three parts does not count."""

    relative: float = 0.0
    absolute: float = 0.0
    of_step: float = 0.0


class Family(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of metric, with the keys it can be measured for; see the head of ``metrics.toml``."""

    name: str
    unit: Literal["ms", "ratio", "count", "TFLOP/s", "GB/s", "GB", "bytes"]
    better: Direction
    about: str
    keys: tuple[str, ...] = ()
    floor: Floor = Floor()
    default: bool = False
    nature: Nature = "waiting"
    details: tuple[str, ...] = ()
    once_a_run: bool = False
    level: Level = "pseudomedian"


def _read_families() -> tuple[Family, ...]:
    """Return the families of ``metrics.toml``, with their floors and all members of the sets that keys name."""
    tables = tomllib.loads(Path(__file__).with_name("metrics.toml").read_text(encoding="utf-8"))
    for family in tables["families"]:
        if "floor" in family:
            family["floor"] = tables["floors"][family["floor"]]
        for name in ("keys", "details"):
            keys = []
            for pattern in family.get(name, ()):
                keys += _expand_key(pattern)
            family[name] = keys
    return msgspec.convert(tables["families"], tuple[Family, ...])


def _expand_key(pattern: str) -> list[str]:
    """Return the keys that a pattern such as ``LABELS.EXPOSURE_CAUSES`` stands for.

    >>> _expand_key("total"), _expand_key("COPIES")
    (['total'], ['offload', 'onload', 'reload', 'memory'])
    """
    choices = [_SETS.get(word, (word,)) for word in pattern.split(".")]
    return [".".join(words) for words in product(*choices)]


FAMILIES = _read_families()
FAMILY_BY_NAME = {family.name: family for family in FAMILIES}


class Metric(msgspec.Struct, frozen=True):
    """A metric by its full name.

    >>> resolve("overlap.ep_dispatch").family.better
    'up'
    >>> resolve("step_ms@3").rank
    3
    """

    name: str
    family: Family
    key: str | None = None
    rank: int | None = None

    @property
    def nature(self) -> Nature:
        """Reason why runs of the same code differ in this metric.

        >>> resolve("label_ms.forward").nature, resolve("label_ms.pp_comm").nature, resolve("label_ms.offload").nature
        ('work', 'waiting', 'copying')
        """
        label = (self.key or "").split(".", maxsplit=1)[0]
        if self.family.unit == "ms" and label in ("communication", *COMMUNICATION_LABELS):
            return "waiting"
        if self.family.unit == "ms" and label in ("copy", *COPY_LABELS):
            return "copying"
        return self.family.nature


MAX_SUGGESTIONS = 3
"""Most metrics that the error about an unknown one suggests."""
_COMPARISONS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


class Requirement(msgspec.Struct, frozen=True):
    """A limit on the candidate alone, or on the change against the baseline.

    >>> from tracekit.diffs.gate_config import parse_requirement
    >>> requirement = parse_requirement("step_ms < +3%")
    >>> requirement.metric.name, requirement.kind, requirement.limit, requirement.worse
    ('step_ms', 'relative', 0.03, 'up')
    """

    text: str
    metric: Metric
    op: Literal["<", "<=", ">", ">="]
    # On the level; on the change as a share, or in the metric's unit.
    kind: Literal["limit", "relative", "change"]
    limit: float

    @property
    def worse(self) -> Literal["up", "down"]:
        """Direction that breaks the requirement."""
        return "up" if self.op[0] == "<" else "down"

    def holds(self, value: float) -> bool:
        """Return whether *value* (a level, or a change for the signed kinds) satisfies the requirement.

        >>> from tracekit.diffs.gate_config import parse_requirement
        >>> parse_requirement("overlap.ep_dispatch > -0.02").holds(-0.01)
        True
        """
        return bool(_COMPARISONS[self.op](value, self.limit))


class UnknownMetricError(OptionError):
    """A metric that tracekit does not define; it may occur in the runs."""


def resolve(name: str, *, names_in_runs: Iterable[str] = ()) -> Metric:
    """Return the metric called *name*; *names_in_runs* adds names that occur in a run.

    >>> resolve("overlap.ep_dispach")
    Traceback (most recent call last):
    tracekit.diffs.metrics.UnknownMetricError: unknown metric overlap.ep_dispach (did you mean ...
    """
    match = re.fullmatch(r"([A-Za-z_]+)(?:\.([A-Za-z0-9_.]+))?(?:@(\d{1,9}))?", name)
    family = FAMILY_BY_NAME.get(match[1]) if match else None
    if match and family:
        key = match[2]
        if key:
            is_listed = key in family.keys or key in family.details
            exists = is_listed or f"{family.name}.{key}" in names_in_runs
        else:
            exists = not family.keys
        if exists:
            return Metric(name, family, key, int(match[3]) if match[3] else None)
    raise UnknownMetricError(f"unknown metric {name}", hint=_suggest(name, names_in_runs))


def metric_names() -> list[str]:
    """Return every metric name, in the order of the families.

    >>> metric_names()[:3]
    ['step_ms', 'slowest_rank_ms', 'mean_step_ms']
    """
    names = []
    for family in FAMILIES:
        if family.keys:
            names += [f"{family.name}.{key}" for key in (*family.keys, *family.details)]
        else:
            names.append(family.name)
    return names


def _suggest(name: str, names_in_runs: Iterable[str]) -> str:
    """Return the hint for an unknown metric: the nearest names, or a list of families."""
    candidates = list(dict.fromkeys([*metric_names(), *names_in_runs]))
    bare = name.split("@", maxsplit=1)[0]
    close = difflib.get_close_matches(bare, candidates, n=MAX_SUGGESTIONS, cutoff=0.6)
    for candidate in candidates:
        if len(close) >= MAX_SUGGESTIONS:
            break
        if bare and (candidate.startswith(bare) or candidate.endswith(f".{bare}")):
            close.append(candidate)
    if not close:
        families = [
            f"{family.name}.LABEL" if family.keys else family.name for family in FAMILIES[:7]
        ]
        return "names: " + ", ".join(families) + ", …"
    return "did you mean " + " or ".join(dict.fromkeys(close)) + "?"
