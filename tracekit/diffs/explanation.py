"""Explanation of a change between two runs: a few sentences and one waterfall.

Where both sides do the same amount of work, the sentences name the rank whose compute changed most,
the label and module it changed most in, and the ranks that wait for this rank; where compute takes
as long as before, they name what became exposed or idle. Where the amount of work differs, steps
are compared per unit of work.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import chain
from statistics import median
from typing import NamedTuple

from tracekit._util.text import join_with_and, ms, percent, plural, signed
from tracekit.diffs.comparability import (
    compare_work,
    find_differences,
    is_equal_work,
    product_slowdown,
)
from tracekit.diffs.runs import Run, mean_times
from tracekit.documents.analysis import Budget, RankFigures, StepTime
from tracekit.documents.diff import PartChange, Waterfall, WorkChange
from tracekit.metrics.step_time import find_unusual
from tracekit.schema import COMMUNICATION_LABELS, COMPUTE_LABELS

MIN_STEP_SHARE_TO_EXPLAIN = 0.03
"""Smallest change that is explained, as a share of the step: runs of the same code differ by this
much."""
MIN_SHARE_TO_CHANGE_TOGETHER = 0.5
"""Smallest change of a rank, as a share of the largest change, to count as changing together with
it."""
MIN_LABEL_SHARE_TO_REPLACE_COMPUTE = 0.9
"""Share of a rank's change of compute from which the sentence is about one label instead of all
compute."""
MIN_MODULE_SHARE_TO_REPLACE_LABEL = 0.9
"""Share of a label's change from which its module is named in front of it and carries its
number."""
MIN_MODULE_SHARE_TO_MENTION = 0.5
"""Share of a label's change from which the module is mentioned after it."""
MAX_RANKS_CHANGED_ALIKE = 4
"""Ranks that are named because they changed in the same way."""

_UNIT_WORDS = {
    "token": ("1,000 tokens", 1e9),
    "micro-batch": ("micro-batch", 1e6),
    "TFLOP": ("TFLOP", 1e6),
}
"""Unit of work in sentences, and nanoseconds per unit in a millisecond per unit of
``WorkChange``."""

Parts = Mapping[str, float]
"""Milliseconds per step by part: ``step``, ``compute``, ``exposed pp_comm``, ``idle``, …, and
``label forward``, …"""


def build_waterfall(before: Sequence[Run], after: Sequence[Run]) -> Waterfall | None:
    """Return the waterfall of the rank whose compute changed, else of the slowest.

    None if sides share no rank.

    Ranks that wait for a slower one take as long as it does, so the slowest rank may be one that
    only waits.
    """
    old = _parts_by_rank(before)
    new = _parts_by_rank(after)
    changes_of_ranks = _changes_by_rank(old, new)
    if not changes_of_ranks:
        return None
    changed = _rank_that_changed(changes_of_ranks, old, new)
    slowest = max(changes_of_ranks, key=lambda candidate: new[candidate]["step"])
    rank = slowest if changed is None else changed
    rows = [
        PartChange(part, round(change_ms, 6))
        for part, change_ms in changes_of_ranks[rank].items()
        if change_ms and _is_budget_part(part)
    ]
    rows.sort(key=lambda row: -abs(changes_of_ranks[rank][row.part]))
    return Waterfall(
        rank,
        round(old[rank]["step"], 6),
        round(new[rank]["step"], 6),
        rows,
        compute_changed=changed is not None,
    )


def _rank_that_changed(
    changes: Mapping[int, Parts], old: Mapping[int, Parts], new: Mapping[int, Parts]
) -> int | None:
    """Return the rank whose compute changed most.

    None if that is little, or does not explain the step's change.
    """
    min_ms, step_ms = _step_change(old, new, changes)
    most_changed = max(changes, key=lambda rank: abs(changes[rank].get("compute", 0.0)))
    compute_ms = changes[most_changed].get("compute", 0.0)
    # Work that grew does not explain a shorter step, nor work that shrank a longer one.
    is_opposite = abs(step_ms) >= min_ms and compute_ms * step_ms < 0
    return None if abs(compute_ms) < min_ms or is_opposite else most_changed


def _step_change(
    old: Mapping[int, Parts], new: Mapping[int, Parts], ranks: Collection[int]
) -> tuple[float, float]:
    """Return the smallest change to explain and the change of the slowest rank's step, in milliseconds."""
    old_ms = max(old[rank]["step"] for rank in ranks)
    new_ms = max(new[rank]["step"] for rank in ranks)
    return MIN_STEP_SHARE_TO_EXPLAIN * old_ms, new_ms - old_ms


def explain_change(before: Sequence[Run], after: Sequence[Run]) -> list[str]:
    """Return a few sentences about the change; empty if nothing changed by enough of the step.

    >>> from tracekit import analyze
    >>> from tracekit.diffs.run_samples import from_analysis
    >>> runs = [from_analysis(analyze(f"sample_traces/steps/{name}").to_document(), name=name)
    ...     for name in ("a", "straggler")]
    >>> explain_change(runs[:1], runs[1:])
    ["rank 1's mlp forward grew by 11.1 ms", 'rank 0 waits for rank 1 in pp_comm (+11.1 ms)']
    """
    old = _parts_by_rank(before)
    new = _parts_by_rank(after)
    work = compare_work(before, after)
    sentences = find_differences(after, before)
    if work is not None and not is_equal_work(work):
        per_unit = describe_per_unit(work, _mean_parts(old.values()), _mean_parts(new.values()))
        return [
            *sentences,
            *per_unit,
            *describe_products(before, after, change=work.change_relative),
        ]
    changes = _changes_by_rank(old, new)
    if not changes:
        return sentences
    min_ms, step_ms = _step_change(old, new, changes)
    most_changed = _rank_that_changed(changes, old, new)
    if most_changed is None:
        same_compute = all(abs(change.get("compute", 0.0)) < min_ms for change in changes.values())
        return [
            *sentences,
            *describe_exposed(changes, min_ms, step_change_ms=step_ms, same_compute=same_compute),
        ]
    compute = describe_compute(changes, most_changed, most_changed_modules(before, after))
    compute_ms = changes[most_changed].get("compute", 0.0)
    products = describe_products(before, after, change=compute_ms)
    # Time that the same rank is idle or exposed is no consequence of its own compute: if it changed
    # more, it comes first.
    of_rank = {most_changed: changes[most_changed]}
    exposed = _largest_exposed_change(of_rank, step_ms if abs(step_ms) >= min_ms else None)
    if exposed is not None and abs(exposed.change_ms) > max(abs(compute_ms), min_ms):
        leading = describe_exposed(changes, min_ms, step_change_ms=step_ms, same_compute=False)
        return [*sentences, *leading, compute, *products]
    return [*sentences, compute, *products, *describe_waiting(changes, most_changed, min_ms)]


def describe_per_unit(work: WorkChange, old: Parts, new: Parts) -> list[str]:
    """Return the sentences about the step time per unit of work, and the part that changed most in its direction.

    Args:
        work: Amounts of work.
        old: Parts of the step before, means over ranks.
        new: Parts of the step after.
    """
    if work.unit == "launch":
        return [
            f"kernels of the model run {work.ratio:.3g} times as often in a step: it does another amount of work"
        ]
    unit, scale = _UNIT_WORDS[work.unit]
    per_unit = f"{unit} of a GPU" if work.per_gpu else unit
    units = work.unit if work.unit == "TFLOP" else plural(work.unit)
    amounts = f"{work.before:,.4g} → {work.after:,.4g} {units}"
    if work.per_gpu:
        amounts += " on each GPU"
    times = f"{ms(work.ms_before * scale)} → {ms(work.ms_after * scale)}"
    if work.change_relative > 1:
        change = f"{1 + work.change_relative:.3g} times as long"
    else:
        direction = "longer" if work.change_relative > 0 else "shorter"
        change = f"{percent(abs(work.change_relative))} {direction}"
    sentences = [
        f"{work.ratio:.3g} times the work ({amounts}): per {per_unit} the step is {change} ({times})"
    ]
    before = _budget_per_unit(old, work.before)
    after = _budget_per_unit(new, work.after)
    changes = _changes(before, after)
    part = max(changes, key=lambda name: changes[name] * work.change_relative, default="")
    if abs(changes.get(part, 0.0)) >= MIN_STEP_SHARE_TO_EXPLAIN * work.ms_before:
        verb = "grew" if work.change_relative > 0 else "shrank"
        old_level = ms(before.get(part, 0.0) * scale)
        new_level = ms(after.get(part, 0.0) * scale)
        name = "idle time" if part == "idle" else part
        sentences.append(
            f"most of it is {name}, which {verb} from {old_level} to {new_level} per {per_unit}"
        )
    return sentences


def _budget_per_unit(parts: Parts, amount: float) -> dict[str, float]:
    """Return the parts that sum to the step, per unit of work."""
    return {part: value / amount for part, value in parts.items() if _is_budget_part(part)}


def describe_products(before: Sequence[Run], after: Sequence[Run], *, change: float) -> list[str]:
    """Return the sentence about products of equal shape, if their speed explains a part of *change* (of compute)."""
    slowdown = product_slowdown(before, after)
    if slowdown is None or abs(slowdown - 1) < MIN_STEP_SHARE_TO_EXPLAIN:
        return []
    is_opposite = (slowdown - 1) * change < 0
    if is_opposite:
        return []
    return [f"matrix products of equal shape take {slowdown:.2f} times as long as before"]


def _mean_parts(records: Collection[Parts]) -> dict[str, float]:
    """Return the mean of each part over some steps or ranks.

    A part that one does not have took no time there.
    """
    means = {}
    for name in dict.fromkeys(chain.from_iterable(records)):
        means[name] = sum(parts.get(name, 0.0) for parts in records) / len(records)
    return means


def describe_compute(
    changes: Mapping[int, Parts], rank: int, modules: Mapping[str, tuple[str, float]]
) -> str:
    """Return the sentence about the compute that changed, on one rank or on all together.

    Args:
        changes: Change of every part, by rank.
        rank: The rank whose compute time changed most.
        modules: Module whose time changed most and its change in milliseconds (mean over ranks), by
            label.
    """
    compute_ms = changes[rank]["compute"]
    sign = 1 if compute_ms > 0 else -1
    by_label = {
        name: changes[rank].get(f"label {name}", 0.0) for name in (*COMPUTE_LABELS, "other")
    }
    label = max(by_label, key=lambda name: sign * by_label[name])
    # The module's change is a mean over ranks, so it is compared with the label's mean change.
    module, module_ms = modules.get(label, ("", 0.0))
    label_ms = [parts.get(f"label {label}", 0.0) for parts in changes.values()]
    label_mean_ms = sum(label_ms) / len(changes)
    module_share = 0.0
    if module and label_mean_ms and sign * module_ms > 0:
        module_share = module_ms / label_mean_ms
    subject = label
    detail = ""
    if module_share >= MIN_MODULE_SHARE_TO_REPLACE_LABEL:
        subject = f"{module} {label}"
    elif module_share >= MIN_MODULE_SHARE_TO_MENTION:
        detail = f", most of it in {module}"
    label_share = by_label[label] / compute_ms
    amount = _format_ms(by_label[label])
    if label_share < MIN_LABEL_SHARE_TO_REPLACE_COMPUTE:
        # Several labels changed: the number is that of all compute, which is a part of the
        # waterfall.
        detail = f", {amount} of it {subject}" if label_share > 0 else ""
        subject = "compute"
        amount = _format_ms(compute_ms)
    verb = "grew" if sign > 0 else "shrank"
    min_together_ms = MIN_SHARE_TO_CHANGE_TOGETHER * abs(compute_ms)
    if len(changes) == 1:
        return f"{subject} {verb} by {amount}{detail}"
    if all(sign * parts.get("compute", 0.0) >= min_together_ms for parts in changes.values()):
        return f"on every rank {subject} {verb} by up to {amount}{detail}"
    return f"rank {rank}'s {subject} {verb} by {amount}{detail}"


def describe_waiting(changes: Mapping[int, Parts], cause: int, min_ms: float) -> list[str]:
    """Return the sentence about the ranks that wait for rank *cause*.

    Empty if its work did not grow or none waits.
    """
    if changes[cause]["compute"] <= 0:
        return []
    waits_by_label: dict[str, dict[int, float]] = {}  # milliseconds by rank
    for rank, parts in changes.items():
        exposed = {
            part.removeprefix("exposed "): change_ms
            for part, change_ms in parts.items()
            if part.startswith("exposed ")
        }
        longest_label = max(exposed, key=lambda name: exposed[name], default=None)
        if rank != cause and longest_label is not None and exposed[longest_label] >= min_ms:
            waits_by_label.setdefault(longest_label, {})[rank] = exposed[longest_label]
    if not waits_by_label:
        return []
    label = max(waits_by_label, key=lambda name: max(waits_by_label[name].values()))
    wait_ms = waits_by_label[label]
    preposition = "for" if label in COMMUNICATION_LABELS else "beside"
    where = f"{preposition} rank {cause} in {label}"
    longest = f"{signed(max(wait_ms.values()))} ms"
    if len(wait_ms) == 1:
        return [f"rank {min(wait_ms)} waits {where} ({longest})"]
    return [f"{len(wait_ms)} ranks wait {where} (up to {longest})"]


def describe_exposed(
    changes: Mapping[int, Parts], min_change_ms: float, *, step_change_ms: float, same_compute: bool
) -> list[str]:
    """Return the sentences about the exposed or idle time that changed most, in the direction of the step."""
    direction_ms = step_change_ms if abs(step_change_ms) >= min_change_ms else None
    largest = _largest_exposed_change(changes, direction_ms)
    if largest is None or abs(largest.change_ms) < min_change_ms:
        return []
    grew = largest.change_ms > 0
    verb = "grew" if grew else "shrank"
    owner = f"rank {largest.rank}'s " if len(changes) > 1 else ""
    what = "idle time" if largest.part == "idle" else largest.part
    compute = "compute takes as long as before; " if same_compute else ""
    sentences = [f"{compute}{owner}{what} {verb} by {_format_ms(largest.change_ms)}"]
    changed_alike = []
    for rank, parts in changes.items():
        change_ms = parts.get(largest.part, 0.0)
        is_alike = (change_ms if grew else -change_ms) >= min_change_ms
        if rank != largest.rank and is_alike:
            changed_alike.append(rank)
    if changed_alike:
        sentences.append(_so_did(changed_alike))
    return sentences


class _RankPartChange(NamedTuple):
    """Change of one part of a rank's budget."""

    rank: int
    part: str
    change_ms: float


def _largest_exposed_change(
    changes: Mapping[int, Parts], direction_ms: float | None
) -> _RankPartChange | None:
    """Return the largest change of exposed or idle time; with a direction, of those that have its sign."""
    candidates = []
    for rank, parts in changes.items():
        for part, change_ms in parts.items():
            is_exposed_or_idle = _is_budget_part(part) and part != "compute"
            explains_step = direction_ms is None or change_ms * direction_ms > 0
            if is_exposed_or_idle and explains_step:
                candidates.append(_RankPartChange(rank, part, change_ms))
    return max(
        candidates,
        key=lambda change: (abs(change.change_ms), change.rank, change.part),
        default=None,
    )


def _so_did(ranks: Sequence[int]) -> str:
    """Return the sentence about further ranks that changed in the same way.

    >>> _so_did([3]), _so_did([1, 2, 3, 4, 5])
    ('so did that of rank 3', 'so did those of ranks 1, 2, 3 and 4 …')
    """
    if len(ranks) == 1:
        return f"so did that of rank {ranks[0]}"
    ellipsis = " …" if len(ranks) > MAX_RANKS_CHANGED_ALIKE else ""
    return f"so did those of ranks {join_with_and(map(str, ranks[:MAX_RANKS_CHANGED_ALIKE]))}{ellipsis}"


def _format_ms(ms: float) -> str:
    return f"{abs(ms):,.1f} ms" if abs(ms) >= 0.1 else f"{abs(ms):.3f} ms"


def _is_budget_part(part: str) -> bool:
    """Return whether *part* belongs to the budget, whose parts sum to the step."""
    return part != "step" and not part.startswith("label ")


def _changes_by_rank(
    old: Mapping[int, Parts], new: Mapping[int, Parts]
) -> dict[int, dict[str, float]]:
    """Return the change of each part of the step, on every rank that both sides have."""
    common = sorted(old.keys() & new.keys())
    return {rank: _changes(old[rank], new[rank]) for rank in common}


def _changes(old: Parts, new: Parts) -> dict[str, float]:
    """Return the change of each part of the step."""
    return {
        part: new.get(part, 0.0) - old.get(part, 0.0) for part in {**old, **new} if part != "step"
    }


def _parts_by_rank(runs: Sequence[Run]) -> dict[int, dict[str, float]]:
    """Return the parts of each rank's step time, the mean over runs."""
    parts_of_runs: defaultdict[int, list[dict[str, float]]] = defaultdict(list)
    for run in runs:
        for rank in run.ranks:
            parts_of_runs[rank.rank].append(_rank_parts(rank))
    return {number: _mean_parts(rows) for number, rows in parts_of_runs.items()}


def _rank_parts(rank: RankFigures) -> dict[str, float]:
    """Return the parts of one rank's step time: means over steps that do not stand out, scaled to the median step."""
    timed = [step for step in rank.per_step if step.time_ns is not None]
    timed = [step for step in timed if not step.partial] or timed
    if not timed:  # one record covers all steps
        return _budget_parts(
            rank.span_ns, rank.budget, rank.label_ns, steps=max(1, len(rank.steps))
        )
    times = [StepTime(step.step, step.time_ns or 0) for step in timed]
    unusual = {step.step for step in find_unusual(times)}
    records = [
        _budget_parts(time.time_ns, step.time_budget, step.label_ns, steps=1)
        for step, time in zip(timed, times, strict=True)
        if step.step not in unusual
    ]
    mean = _mean_parts(records)
    step_ms = median([time.time_ns for time in times]) / 1e6
    # Times of labels are no part of the budget and stay what they are.
    factor = step_ms / mean["step"]
    return {
        part: part_ms if part.startswith("label ") else part_ms * factor
        for part, part_ms in mean.items()
    }


def _budget_parts(
    time_ns: int, budget: Budget, label_ns: Mapping[str, int], *, steps: int
) -> dict[str, float]:
    """Return the parts of *time_ns*, which this budget divides, and the times of labels, in milliseconds per step."""
    idle_ns = budget.idle
    if idle_ns is None:  # unknown: the rest of the time
        exposed_ns = sum(budget.exposed_ns.values())
        idle_ns = time_ns - budget.compute_ns - exposed_ns - budget.unrecorded_ns
    parts = {"step": time_ns, "compute": budget.compute_ns}
    for label, ns in budget.exposed_ns.items():
        parts[f"exposed {label}"] = ns
    parts["idle"] = idle_ns
    if budget.unrecorded_ns:
        parts["not recorded"] = budget.unrecorded_ns
    for label, ns in label_ns.items():
        parts[f"label {label}"] = ns
    return {part: ns / 1e6 / steps for part, ns in parts.items()}


def most_changed_modules(
    before: Sequence[Run], after: Sequence[Run]
) -> dict[str, tuple[str, float]]:
    """Return, by label, the module whose time changed most, and its change in milliseconds per step."""
    old = mean_times([run.modules for run in before], ("module", "label"))
    new = mean_times([run.modules for run in after], ("module", "label"))
    largest: dict[str, tuple[str, float]] = {}
    for module, label in {**old, **new}:
        old_ms, _ = old.get((module, label), (0.0, 0.0))
        new_ms, _ = new.get((module, label), (0.0, 0.0))
        change_ms = new_ms - old_ms
        if abs(change_ms) > abs(largest.get(label, ("", 0.0))[1]):
            largest[label] = (module, change_ms)
    return largest
