"""Comparability of two sides.

Where a fact differs, the verdict is inconclusive and names the fact.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import NamedTuple

import numpy as np
from msgspec import UNSET

from tracekit._util.text import listing, percent
from tracekit.classify.product_shapes import product_dims
from tracekit.diffs.runs import Key, Run, centre_of_runs, mean_times
from tracekit.documents.diff import WorkChange, WorkUnit
from tracekit.errors import InputError, OptionError
from tracekit.schema import PYTORCH_READERS

ASPECTS = {
    "world_size": {"world_size": "world size", "ranks": "number of ranks"},
    "schedule": {
        "schedule": "schedule",
        "pp": "pipeline size",
        "microbatches": "number of micro-batches",
        "virtual": "number of virtual stages",
    },
    "shapes": {"shapes": "model shapes"},
    "gpu": {"gpu": "GPU"},
    "recording": {"options": "options of the profiler"},
    "work": {},
    "damage": {},
}
"""Facts compared and their names, grouped by the names that the option ``allow`` accepts."""


def find_obstacles(
    candidate: Sequence[Run], baseline: Sequence[Run], *, allow: Sequence[str] = ()
) -> list[str]:
    """Return why these runs cannot be compared, one sentence each; empty when they can.

    A fact that one side does not know is no obstacle.

    >>> from tracekit.documents.diff import Facts
    >>> find_obstacles([Run("a", facts=Facts(world_size=8))], [Run("b", facts=Facts(world_size=4))])
    ['world size differs: 4 before, 8 after']
    """
    unknown = [aspect for aspect in allow if aspect not in ASPECTS]
    if unknown:
        raise OptionError(f"allow: there is no {unknown[0]}", hint=f"one of {', '.join(ASPECTS)}")
    reasons = []
    for aspect, fact_names in ASPECTS.items():
        if aspect in allow:
            continue
        # One sentence per aspect: the other differences follow from the first.
        if aspect == "shapes":
            reasons += _differing_shapes(baseline, candidate)
        elif (difference := _first_difference(baseline, candidate, fact_names)) is not None:
            before, after = difference.before, difference.after
            if aspect == "recording":
                reasons.append(_differing_options(baseline, candidate, difference))
            else:
                reasons.append(
                    f"{fact_names[difference.fact]} differs: {before} before, {after} after"
                )
    if "work" not in allow:
        reasons += _different_work(baseline, candidate, allow)
    return [*reasons, *find_damage((*baseline, *candidate), allow=allow)]


class _DifferingFact(NamedTuple):
    """A fact in which the sides differ, in words."""

    fact: str
    before: str
    after: str


def _first_difference(
    before: Sequence[Run], after: Sequence[Run], fact_names: Iterable[str]
) -> _DifferingFact | None:
    """Return the first of these facts that both sides know and that differs; None if there is none."""
    for name in fact_names:
        difference = _DifferingFact(name, _in_words(before, name), _in_words(after, name))
        if difference.before and difference.after and difference.before != difference.after:
            return difference
    return None


def _in_words(runs: Sequence[Run], fact: str) -> str:
    """Return a fact of a side; where its own runs disagree, all values joined, and nothing where none knows it."""
    values = [getattr(run.facts, fact) for run in runs]
    return " and ".join(dict.fromkeys(str(value) for value in values if value is not UNSET))


def _differing_options(before: Sequence[Run], after: Sequence[Run], options: _DifferingFact) -> str:
    """Return the sentence about runs that were recorded with different options of the profiler."""
    named = f"recorded with different options: {options.before} before, {options.after} after"
    free_before = _free_step_in_words(free_step(before))
    free_after = _free_step_in_words(free_step(after))
    return f"{named}; without the profiler a step takes {free_before} before, {free_after} after"


def are_same_recording(candidate: Sequence[Run], baseline: Sequence[Run]) -> bool:
    """Return whether each run of one side is a run of the other: equal in every step to the nanosecond.

    >>> from tracekit.diffs.samples import make_samples
    >>> a, copy = (Run(name, make_samples({"step_ms": (10.0, 10.1)})) for name in ("a", "copy"))
    >>> are_same_recording([copy], [a]), are_same_recording([], [a])
    (True, False)
    """
    before = [run.samples.drop("run") for run in baseline if run.steps]
    after = [run.samples.drop("run") for run in candidate if run.steps]
    if not after:
        return False
    return all(any(samples.equals(other) for other in before) for samples in after)


class FreeStepOfSide(NamedTuple):
    """The step without the profiler, and the range in which it lies."""

    ms: float
    least_ms: float
    most_ms: float


def free_step(runs: Sequence[Run]) -> FreeStepOfSide | None:
    """Return the step of a side without the profiler; None if a run does not know it."""
    times = []
    for run in runs:
        if run.facts.free_ms is UNSET or run.facts.free_range_ms is UNSET:
            return None
        times.append(FreeStepOfSide(run.facts.free_ms, *run.facts.free_range_ms))
    if not times:
        return None
    return FreeStepOfSide(
        median(time.ms for time in times),
        min(time.least_ms for time in times),
        max(time.most_ms for time in times),
    )


def _free_step_in_words(step: FreeStepOfSide | None) -> str:
    if step is None:
        return "an unknown time"
    return f"{step.ms:.3g} ms ({step.least_ms:.3g}–{step.most_ms:.3g})"


def differing_free_steps(
    candidate: Sequence[Run], baseline: Sequence[Run]
) -> tuple[FreeStepOfSide, FreeStepOfSide] | None:
    """Return the free steps before and after, if the sides differ in the profiler's options and both are known.

    None: recorded times are compared, or nothing can be.
    """
    if _first_difference(baseline, candidate, ASPECTS["recording"]) is None:
        return None
    before = free_step(baseline)
    after = free_step(candidate)
    return None if before is None or after is None else (before, after)


def _different_work(before: Sequence[Run], after: Sequence[Run], allow: Sequence[str]) -> list[str]:
    """Return the sentence about different or unknown amounts of work per step; empty if they are equal."""
    work = compare_work(before, after)
    if work is None or work.unit in ("micro-batch", "launch"):
        # FLOP and tokens would tell another model or size; these do not.
        unknown = unknown_work(before, after)
        if unknown is not None:
            return [f"work per step unknown: {unknown}"]
    if work is None or is_equal_work(work) or work.per_gpu:
        return []
    # Another number of micro-batches is named with the schedule, and may be allowed with it.
    if work.unit == "micro-batch":
        return []
    if work.unit == "launch":
        return [
            f"work differs: every kernel of the model runs {work.ratio:.3g} times as often in a step as before"
        ]
    per_unit = f"per {work.unit} the step takes {1 + work.change_relative:.3g} times as long"
    units = work.unit if work.unit == "TFLOP" else f"{work.unit}s"
    return [
        f"work per step differs: {work.before:,.4g} {units} before, {work.after:,.4g} after; {per_unit}"
    ]


DIFFERENCES_OF_A_DIFF = ("world_size", "schedule", "shapes", "work")
"""Aspects in which two runs that are explained side by side may differ; the explanation names
them."""


def find_differences(candidate: Sequence[Run], baseline: Sequence[Run]) -> list[str]:
    """Return the schedules and numbers of ranks in which the sides differ, as one sentence.

    >>> from tracekit.documents.diff import Facts
    >>> find_differences([Run("a", facts=Facts(schedule="zb-v"))], [Run("b", facts=Facts(schedule="1f1b"))])
    ['schedule differs: 1f1b before, zb-v after']
    """
    allow = [aspect for aspect in ASPECTS if aspect not in ("world_size", "schedule")]
    reasons = find_obstacles(candidate, baseline, allow=allow)
    return ["; ".join(reasons)] if reasons else []


MAX_STEPS_NAMED = 8
"""Most steps that a sentence names one by one."""


def find_damage(runs: Sequence[Run], *, allow: Sequence[str] = ()) -> list[str]:
    """Return which of these runs were not read whole or lack steps on some ranks, one sentence each.

    >>> from tracekit.documents.diff import Facts
    >>> find_damage([Run("a.json", facts=Facts(damage=["truncated"]))])
    ['a.json was not read whole: truncated']
    >>> find_damage([Run("a.json", facts=Facts(steps_not_common=[8, 9]))])
    ['a.json: not every rank recorded steps 8, 9']
    """
    if "damage" in allow:
        return []
    sentences = []
    for run in runs:
        damage = run.facts.damage
        steps = run.facts.steps_not_common
        if damage:
            sentences.append(f"{run.name} was not read whole: {', '.join(damage)}")
        if steps:
            named = listing(map(str, steps), most=MAX_STEPS_NAMED)
            sentences.append(
                f"{run.name}: not every rank recorded {'step' if len(steps) == 1 else 'steps'} {named}"
            )
    return list(dict.fromkeys(sentences))


def check_formats(candidate: Sequence[Run], baseline: Sequence[Run]) -> None:
    """Raise InputError if the runs were recorded by two profilers, which time the same kernel differently.

    >>> from tracekit.documents.diff import Facts
    >>> check_formats([Run("a", facts=Facts(reader="kineto"))], [Run("b", facts=Facts(reader="nsight"))])
    Traceback (most recent call last):
    tracekit.errors.InputError: mixed formats: a was read by kineto, b by nsight (...
    """
    run_by_reader: dict[str, str] = {}
    for run in (*candidate, *baseline):
        reader = run.facts.reader
        if reader is not UNSET:
            # One profiler writes both formats.
            profiler = "kineto" if reader in PYTORCH_READERS else reader
            run_by_reader.setdefault(profiler, run.name)
    if len(run_by_reader) > 1:
        (first_reader, first_run), (second_reader, second_run) = list(run_by_reader.items())[:2]
        problem = f"mixed formats: {first_run} was read by {first_reader}, {second_run} by {second_reader}"
        raise InputError(problem, hint="record both sides with the same profiler")


def _differing_shapes(before: Sequence[Run], after: Sequence[Run]) -> list[str]:
    """Return the sentence about shapes that only one side has: how many, with the first of each side."""
    old = _shapes(before)
    new = _shapes(after)
    # A list that was cut tells nothing of what is not listed.
    count = min(_listed_count(old), _listed_count(new))
    only_on_side = {
        "before": sorted(set(old[:count]) - set(new[:count])),
        "after": sorted(set(new[:count]) - set(old[:count])),
    }
    if not old or not new or old[:count] == new[:count]:
        return []
    counts = [
        f"{len(shapes)} only {side} ({shapes[0]})"
        for side, shapes in only_on_side.items()
        if shapes
    ]
    return [f"model shapes differ: {', '.join(counts)}"]


def _shapes(runs: Sequence[Run]) -> list[str]:
    """Return the shapes of all runs of a side."""
    return list(dict.fromkeys(chain.from_iterable(run.facts.shapes or () for run in runs)))


def _listed_count(shapes: Sequence[str]) -> int:
    """Return how many shapes are listed: a list that was cut ends in how many more there are."""
    is_cut = bool(shapes) and re.match(r"\d+ more", shapes[-1]) is not None
    return len(shapes) - 1 if is_cut else sys.maxsize


# ---- Amount of work in the steps of two runs, by which steps of different size are compared.
#
# Work is counted in tokens, micro-batches or FLOP of the model per step: the first that both sides
# know and that agrees with the FLOP. FLOP do not depend on how ranks share the model, so they also
# compare two schedules or two layouts.


FACT_OF_UNIT: dict[WorkUnit, str] = {
    "token": "tokens",
    "micro-batch": "microbatches",
    "TFLOP": "tflop",
}
"""Fact of a run that counts its work per step, by unit."""
MAX_CHANGE_OF_EQUAL_WORK = 0.01
"""Largest change of the amount of work that counts as none."""
MAX_FLOP_DISAGREEMENT = 0.05
"""Largest difference between the change of a unit and of the FLOP: attention's FLOP grow faster
than its tokens."""
COMPARED_KERNEL_LABELS = frozenset({"forward", "dgrad", "wgrad", "backward", "recompute", "other"})
"""Labels of work that grows with the tokens of a step; an optimizer's does not."""
MIN_SHARE_OF_COMMON_KERNELS = 0.5
"""Share of each side's kernel time that kernels of equal name and label must take, for their number
to tell whether a step does the same work."""
MAX_CHANGE_OF_EQUAL_COUNT = 0.05
"""Largest difference of two ratios of launches that counts as none."""
MIN_SHARE_OF_EQUAL_RATIO = 0.8
"""Share of the common kernels' time in kernels that run more often by one factor, to take it for
that of work."""
MIN_SHARE_OF_UNCHANGED_COUNTS = 0.5
"""Share of the common kernels' time in kernels that run as often as before, for the work to be the
same."""
MIN_SHARE_OF_COMMON_PRODUCTS = 0.5
"""Share of each side's product time that products of equal shape must take for their speed to be
compared."""


def compare_work(before: Sequence[Run], after: Sequence[Run]) -> WorkChange | None:
    """Return the amount of work per step of both sides, and the step time per unit of it.

    None if it is unknown.

    If the sides have different numbers of ranks, it is the work of one GPU.

    >>> from tracekit.diffs.samples import make_samples
    >>> from tracekit.documents.diff import Facts
    >>> short = Run("short", make_samples({"step_ms": [80.0]}), Facts(microbatches=8))
    >>> long = Run("long", make_samples({"step_ms": [120.0]}), Facts(microbatches=16))
    >>> work = compare_work([short], [long])
    >>> work.unit, work.ratio, work.ms_before, work.ms_after
    ('micro-batch', 2.0, 10.0, 7.5)
    """
    old_step_ms = centre_of_runs(before, "step_ms")
    new_step_ms = centre_of_runs(after, "step_ms")
    if old_step_ms is None or new_step_ms is None:
        return None
    amounts = _common_amounts(before, after)
    if amounts is None:
        ratio = launch_ratio(before, after)
        if ratio is None:
            return None
        return _work_change("launch", False, (1.0, ratio), (old_step_ms, new_step_ms))
    unit, old_amount, new_amount = amounts
    old_ranks = _amount(before, "ranks")
    new_ranks = _amount(after, "ranks")
    is_per_gpu = old_ranks is not None and new_ranks is not None and old_ranks != new_ranks
    if old_ranks is not None and new_ranks is not None and is_per_gpu:
        old_amount /= old_ranks
        new_amount /= new_ranks
    return _work_change(unit, is_per_gpu, (old_amount, new_amount), (old_step_ms, new_step_ms))


def _common_amounts(
    before: Sequence[Run], after: Sequence[Run]
) -> tuple[WorkUnit, float, float] | None:
    """Return the first unit of work that both sides know and that agrees with the FLOP, and both amounts."""
    amounts: dict[WorkUnit, tuple[float, float]] = {}
    for unit, fact in FACT_OF_UNIT.items():
        old = _amount(before, fact)
        new = _amount(after, fact)
        if old and new:
            amounts[unit] = (old, new)
    ratios = {unit: new / old for unit, (old, new) in amounts.items()}
    flop_ratio = ratios.get("TFLOP")
    for unit, ratio in ratios.items():
        if flop_ratio is None or abs(ratio / flop_ratio - 1) <= MAX_FLOP_DISAGREEMENT:
            return unit, *amounts[unit]
    return None


def _work_change(
    unit: WorkUnit, per_gpu: bool, amounts: tuple[float, float], step_ms: tuple[float, float]
) -> WorkChange:
    """Return the change of work and of the step time per unit; both pairs are (before, after)."""
    old, new = amounts
    old_ms = step_ms[0] / old
    new_ms = step_ms[1] / new
    return WorkChange(
        unit=unit,
        per_gpu=per_gpu,
        before=old,
        after=new,
        ratio=new / old,
        ms_before=old_ms,
        ms_after=new_ms,
        change_relative=new_ms / old_ms - 1,
    )


@dataclass(frozen=True)
class _CommonKernels:
    """Kernels of the model that both sides have, and how many times as often they run in a step."""

    share_of_time: float
    """Of the model's kernel time, on the side where it is smaller."""
    typical_ratio: float
    """Launches after / before; the median by time before."""
    share_of_typical: float
    """Share of their time in kernels with about that ratio."""
    share_unchanged: float
    """Share of their time in kernels that run about as often as before."""


def common_kernels(before: Sequence[Run], after: Sequence[Run]) -> _CommonKernels | None:
    """Return what the sides' kernels have in common; None if a side lists none."""
    old = _model_kernels(before)
    new = _model_kernels(after)
    if not old or not new:
        return None
    rows = []
    for key in old.keys() & new.keys():
        old_ms, old_count = old[key]
        new_ms, new_count = new[key]
        rows.append((new_count / old_count, old_ms, new_ms))
    if not rows:
        return _CommonKernels(0.0, 1.0, 0.0, 0.0)
    ratios, old_times, new_times = np.array(sorted(rows)).T
    elapsed = np.cumsum(old_times)
    typical = ratios[np.searchsorted(elapsed, elapsed[-1] / 2)]
    is_typical = np.abs(ratios / typical - 1) <= MAX_CHANGE_OF_EQUAL_COUNT
    is_unchanged = np.abs(ratios - 1) <= MAX_CHANGE_OF_EQUAL_COUNT
    return _CommonKernels(
        share_of_time=float(
            min(
                old_times.sum() / sum(ms for ms, _ in old.values()),
                new_times.sum() / sum(ms for ms, _ in new.values()),
            )
        ),
        typical_ratio=float(typical),
        share_of_typical=float(old_times[is_typical].sum() / elapsed[-1]),
        share_unchanged=float(old_times[is_unchanged].sum() / elapsed[-1]),
    )


def launch_ratio(before: Sequence[Run], after: Sequence[Run]) -> float | None:
    """Return how many times as often the kernels of the model run in a step, if it is the same factor for most of them.

    None if kernels are not known, run as often as before, or changed each in its own way.
    """
    kernels = common_kernels(before, after)
    if kernels is None or kernels.share_of_time < MIN_SHARE_OF_COMMON_KERNELS:
        return None
    is_unchanged = kernels.share_unchanged >= MIN_SHARE_OF_UNCHANGED_COUNTS
    if is_unchanged or kernels.share_of_typical < MIN_SHARE_OF_EQUAL_RATIO:
        return None
    return kernels.typical_ratio


def unknown_work(before: Sequence[Run], after: Sequence[Run]) -> str | None:
    """Return why the sides' kernels do not tell whether their steps do the same work; None if they do.

    Kernels under other names may be a change of the code or another model, and a step that is
    marked more often is no faster, also where some kernels were split or fused at the same time.
    """
    kernels = common_kernels(before, after)
    if kernels is None:
        return None
    if kernels.share_of_time < MIN_SHARE_OF_COMMON_KERNELS:
        return f"too few kernels in common ({percent(kernels.share_of_time)} of the model's kernel time)"
    has_one_ratio = kernels.share_of_typical >= MIN_SHARE_OF_EQUAL_RATIO
    is_unchanged = kernels.share_unchanged >= MIN_SHARE_OF_UNCHANGED_COUNTS
    is_balanced = abs(kernels.typical_ratio - 1) <= MAX_CHANGE_OF_EQUAL_COUNT
    if has_one_ratio or is_unchanged or is_balanced:
        return None
    changed = percent(1 - kernels.share_unchanged)
    return f"{changed} of the model's kernel time is in kernels that run more or less often, by different factors"


def _model_kernels(runs: Sequence[Run]) -> dict[Key, tuple[float, float]]:
    """Return (milliseconds, count) per step of the kernels of forward and backward, by name and label."""
    model_kernels = {}
    for key, (ms, count) in mean_times([run.kernels for run in runs], ("name", "label")).items():
        _, label = key
        if label in COMPARED_KERNEL_LABELS and ms and count:
            model_kernels[key] = (ms, count)
    return model_kernels


def is_equal_work(work: WorkChange | None) -> bool:
    """Return whether both sides do the same amount of work, as far as that is known."""
    return work is None or abs(work.ratio - 1) <= MAX_CHANGE_OF_EQUAL_WORK


def _amount(runs: Sequence[Run], fact: str) -> float | None:
    """Return an amount in which all runs of a side agree, else None."""
    amounts = {getattr(run.facts, fact) for run in runs}
    return (amounts.pop() or None) if len(amounts) == 1 else None


def product_slowdown(before: Sequence[Run], after: Sequence[Run]) -> float | None:
    """Return the time per call of matrix products after / before, over products of equal label, shape and data type.

    None if too little of the products' time is in shapes that both sides have.
    """
    old = _times_of_products(before)
    new = _times_of_products(after)
    common = old.keys() & new.keys()
    if min(_share_of_time(old, common), _share_of_time(new, common)) < MIN_SHARE_OF_COMMON_PRODUCTS:
        return None
    # The calls of the first side in the time per call of the second.
    old_ns = 0
    predicted_ns = 0.0
    for product in common:
        ns, calls = old[product]
        new_ns, new_calls = new[product]
        old_ns += ns
        predicted_ns += calls * new_ns / new_calls
    return predicted_ns / old_ns


def _share_of_time(times: Mapping[Key, tuple[int, int]], chosen: Collection[Key]) -> float:
    """Return the share of the time of all products that the *chosen* take; 0 if there are none."""
    total_ns = sum(ns for ns, _ in times.values())
    chosen_ns = sum(times[product][0] for product in chosen)
    return chosen_ns / (total_ns or 1)


def _times_of_products(runs: Sequence[Run]) -> dict[Key, tuple[int, int]]:
    """Return (nanoseconds, calls) of matrix products by label, rows, inner size, columns and data type."""
    times: defaultdict[Key, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for run in runs:
        for row in run.products:
            sizes = product_dims(row.shapes or "[]")
            if any(sizes):
                key = (row.label, *sizes, row.dtype)
                ns, calls = times[key]
                times[key] = (ns + row.ns, calls + row.calls)
    return times
