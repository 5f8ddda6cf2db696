"""Explanation of a change between two runs: a few sentences and one waterfall.

Where both sides do the same amount of work, the sentences name the rank whose compute changed most,
the label and module it changed most in, and the ranks that wait for this rank; where compute takes
as long as before, they name what became exposed or idle. Where the amount of work differs, steps
are compared per unit of work.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from statistics import median

from tracekit._util.text import join_with_and, ms, percent, plural, signed
from tracekit.diffs.comparability import (
    compare_work,
    find_differences,
    is_equal_work,
    product_slowdown,
)
from tracekit.diffs.run_samples import Run, mean_times
from tracekit.documents.analysis import Budget, RankFigures
from tracekit.documents.diff import PartChange, Waterfall, WorkChange
from tracekit.metrics.step_time import StepTime, find_unusual
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
    old, new = _parts_by_rank(before), _parts_by_rank(after)
    common = sorted(set(old) & set(new))
    if not common:
        return None
    changed = _rank_that_changed(
        {rank: _changes(old[rank], new[rank]) for rank in common}, old, new
    )
    slowest = max(common, key=lambda candidate: new[candidate]["step"])
    rank = slowest if changed is None else changed
    changes = {
        part: ms
        for part, ms in _changes(old[rank], new[rank]).items()
        if ms and _is_budget_part(part)
    }
    largest_first = sorted(changes.items(), key=lambda item: -abs(item[1]))
    rows = [PartChange(part, round(ms, 6)) for part, ms in largest_first]
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
    min_ms = MIN_STEP_SHARE_TO_EXPLAIN * max(old[rank]["step"] for rank in changes)
    step_ms = max(new[rank]["step"] for rank in changes) - max(
        old[rank]["step"] for rank in changes
    )
    most_changed = max(changes, key=lambda rank: abs(changes[rank].get("compute", 0.0)))
    compute_ms = changes[most_changed].get("compute", 0.0)
    # Work that grew does not explain a shorter step, nor work that shrank a longer one.
    is_opposite = abs(step_ms) >= min_ms and compute_ms * step_ms < 0
    return None if abs(compute_ms) < min_ms or is_opposite else most_changed


def explain_change(before: Sequence[Run], after: Sequence[Run]) -> list[str]:
    """Return a few sentences about the change; empty if nothing changed by enough of the step.

    >>> from tracekit import analyze
    >>> from tracekit.diffs.run_samples import from_analysis
    >>> runs = [from_analysis(analyze(f"sample_traces/steps/{name}").to_document(), name=name)
    ...     for name in ("a", "straggler")]
    >>> explain_change(runs[:1], runs[1:])
    ["rank 1's mlp forward grew by 11.1 ms", 'rank 0 waits for rank 1 in pp_comm (+11.1 ms)']
    """
    old, new = _parts_by_rank(before), _parts_by_rank(after)
    work = compare_work(before, after)
    sentences = find_differences(after, before)
    if work is not None and not is_equal_work(work):
        per_unit = _describe_per_unit(work, _mean_parts(old.values()), _mean_parts(new.values()))
        return [
            *sentences,
            *per_unit,
            *_describe_products(before, after, change=work.change_relative),
        ]
    changes = {rank: _changes(old[rank], new[rank]) for rank in sorted(set(old) & set(new))}
    if not changes:
        return sentences
    min_ms = MIN_STEP_SHARE_TO_EXPLAIN * max(old[rank]["step"] for rank in changes)
    step_ms = max(new[rank]["step"] for rank in changes) - max(
        old[rank]["step"] for rank in changes
    )
    most_changed = _rank_that_changed(changes, old, new)
    if most_changed is None:
        same_compute = all(abs(change.get("compute", 0.0)) < min_ms for change in changes.values())
        return [
            *sentences,
            *_describe_exposed(changes, min_ms, step_ms=step_ms, same_compute=same_compute),
        ]
    compute = _describe_compute(changes, most_changed, _most_changed_modules(before, after))
    products = _describe_products(before, after, change=changes[most_changed].get("compute", 0.0))
    return [*sentences, compute, *products, *_describe_waiting(changes, most_changed, min_ms)]


def _describe_per_unit(work: WorkChange, old: Parts, new: Parts) -> list[str]:
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
    amounts = f"{work.before:,.4g} → {work.after:,.4g} {units}" + (
        " on each GPU" if work.per_gpu else ""
    )
    times = f"{ms(work.ms_before * scale)} → {ms(work.ms_after * scale)}"
    if work.change_relative > 1:
        change = f"{1 + work.change_relative:.3g} times as long"
    else:
        change = f"{percent(abs(work.change_relative))} {'longer' if work.change_relative > 0 else 'shorter'}"
    sentences = [
        f"{work.ratio:.3g} times the work ({amounts}): per {per_unit} the step is {change} ({times})"
    ]
    before = {part: value / work.before for part, value in old.items() if _is_budget_part(part)}
    after = {part: value / work.after for part, value in new.items() if _is_budget_part(part)}
    changes = _changes(before, after)
    part = max(changes, key=lambda name: changes[name] * work.change_relative, default="")
    if abs(changes.get(part, 0.0)) >= MIN_STEP_SHARE_TO_EXPLAIN * work.ms_before:
        verb = "grew" if work.change_relative > 0 else "shrank"
        levels = [ms(side.get(part, 0.0) * scale) for side in (before, after)]
        name = "idle time" if part == "idle" else part
        sentences.append(
            f"most of it is {name}, which {verb} from {levels[0]} to {levels[1]} per {per_unit}"
        )
    return sentences


def _describe_products(before: Sequence[Run], after: Sequence[Run], *, change: float) -> list[str]:
    """Return the sentence about products of equal shape, if their speed explains a part of *change* (of compute)."""
    slowdown = product_slowdown(before, after)
    if (
        slowdown is None
        or abs(slowdown - 1) < MIN_STEP_SHARE_TO_EXPLAIN
        or (slowdown - 1) * change < 0
    ):
        return []
    return [f"matrix products of equal shape take {slowdown:.2f} times as long as before"]


def _mean_parts(records: Collection[Parts]) -> dict[str, float]:
    """Return the mean of each part over some steps or ranks.

    A part that one does not have took no time there.
    """
    names = {name: None for parts in records for name in parts}
    return {name: sum(parts.get(name, 0.0) for parts in records) / len(records) for name in names}


def _describe_compute(
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
        label: changes[rank].get(f"label {label}", 0.0) for label in (*COMPUTE_LABELS, "other")
    }
    label = max(by_label, key=lambda name: sign * by_label[name])
    # The module's change is a mean over ranks, so it is compared with the label's mean change.
    module, module_ms = modules.get(label, ("", 0.0))
    label_mean_ms = sum(parts.get(f"label {label}", 0.0) for parts in changes.values()) / len(
        changes
    )
    module_share = (
        module_ms / label_mean_ms if module and label_mean_ms and sign * module_ms > 0 else 0.0
    )
    subject, detail = label, ""
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
        subject, amount = "compute", _format_ms(compute_ms)
    verb = "grew" if sign > 0 else "shrank"
    min_together_ms = MIN_SHARE_TO_CHANGE_TOGETHER * abs(compute_ms)
    if len(changes) == 1:
        return f"{subject} {verb} by {amount}{detail}"
    if all(sign * parts.get("compute", 0.0) >= min_together_ms for parts in changes.values()):
        return f"on every rank {subject} {verb} by up to {amount}{detail}"
    return f"rank {rank}'s {subject} {verb} by {amount}{detail}"


def _describe_waiting(changes: Mapping[int, Parts], cause: int, min_ms: float) -> list[str]:
    """Return the sentence about the ranks that wait for rank *cause*.

    Empty if its work did not grow or none waits.
    """
    if changes[cause]["compute"] <= 0:
        return []
    waits: dict[tuple[str, int], float] = {}  # (label, rank): milliseconds
    for rank, parts in changes.items():
        exposed = {
            part.removeprefix("exposed "): ms
            for part, ms in parts.items()
            if part.startswith("exposed ")
        }
        label = max(exposed, key=lambda name: exposed[name], default=None)
        if rank != cause and label is not None and exposed[label] >= min_ms:
            waits[label, rank] = exposed[label]
    if not waits:
        return []
    label, _ = max(waits, key=lambda wait: waits[wait])
    wait_ms = {rank: ms for (name, rank), ms in waits.items() if name == label}
    where = f"{'for' if label in COMMUNICATION_LABELS else 'beside'} rank {cause} in {label}"
    longest = f"{signed(max(wait_ms.values()))} ms"
    if len(wait_ms) == 1:
        return [f"rank {min(wait_ms)} waits {where} ({longest})"]
    return [f"{len(wait_ms)} ranks wait {where} (up to {longest})"]


def _describe_exposed(
    changes: Mapping[int, Parts], min_ms: float, *, step_ms: float, same_compute: bool
) -> list[str]:
    """Return the sentences about the exposed or idle time that changed most, in the direction of the step."""
    candidates = [
        (abs(ms), rank, part, ms)
        for rank, parts in changes.items()
        for part, ms in parts.items()
        if _is_budget_part(part)
        and part != "compute"
        and (abs(step_ms) < min_ms or ms * step_ms > 0)
    ]
    size_ms, rank, part, ms = max(candidates, default=(0.0, 0, "", 0.0))
    if size_ms < min_ms:
        return []
    sign, verb = (1, "grew") if ms > 0 else (-1, "shrank")
    owner = f"rank {rank}'s " if len(changes) > 1 else ""
    compute = "compute takes as long as before; " if same_compute else ""
    sentences = [
        f"{compute}{owner}{'idle time' if part == 'idle' else part} {verb} by {_format_ms(ms)}"
    ]
    others = [
        other
        for other, parts in changes.items()
        if other != rank and sign * parts.get(part, 0.0) >= min_ms
    ]
    if len(others) == 1:
        sentences.append(f"so did that of rank {others[0]}")
    elif others:
        sentences.append(
            f"so did those of ranks {join_with_and(map(str, others[:4]))}"
            + " …" * (len(others) > 4)
        )
    return sentences


def _format_ms(ms: float) -> str:
    return f"{abs(ms):,.1f} ms" if abs(ms) >= 0.1 else f"{abs(ms):.3f} ms"


def _is_budget_part(part: str) -> bool:
    """Return whether *part* belongs to the budget, whose parts sum to the step."""
    return part != "step" and not part.startswith("label ")


def _changes(old: Parts, new: Parts) -> dict[str, float]:
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
            rank.span_ns, rank.budget_ns, rank.label_ns, steps=max(1, len(rank.steps))
        )
    times = [StepTime(step.step, step.time_ns or 0) for step in timed]
    unusual = {step.step for step in find_unusual(times)}
    usual = [step for step in timed if step.step not in unusual]
    records = [
        _budget_parts(step.time_ns or 0, step.time_budget_ns, step.label_ns, steps=1)
        for step in usual
    ]
    mean = _mean_parts(records)
    step_ms = median([step.time_ns for step in times]) / 1e6
    # Times of labels are no part of the budget and stay what they are.
    factor = step_ms / mean["step"]
    return {part: ms if part.startswith("label ") else ms * factor for part, ms in mean.items()}


def _budget_parts(
    time_ns: int, budget: Budget, label_ns: Mapping[str, int], *, steps: int
) -> dict[str, float]:
    """Return the parts of *time_ns*, which this budget divides, and the times of labels, in milliseconds per step."""
    not_recorded = budget.not_recorded or 0
    idle = budget.idle
    if idle is None:  # unknown: the rest of the time
        idle = time_ns - budget.compute - sum(budget.exposed.values()) - not_recorded
    parts = {"step": time_ns, "compute": budget.compute}
    parts |= {f"exposed {label}": ns for label, ns in budget.exposed.items()} | {"idle": idle}
    if not_recorded:
        parts["not recorded"] = not_recorded
    parts |= {f"label {label}": ns for label, ns in label_ns.items()}
    return {part: ns / 1e6 / steps for part, ns in parts.items()}


def _most_changed_modules(
    before: Sequence[Run], after: Sequence[Run]
) -> dict[str, tuple[str, float]]:
    """Return, by label, the module whose time changed most, and its change in milliseconds per step."""
    old, new = (mean_times(side, "modules", ("module", "label")) for side in (before, after))
    largest: dict[str, tuple[str, float]] = {}
    for module, label in {**old, **new}:
        (old_ms, _), (new_ms, _) = (times.get((module, label), (0.0, 0.0)) for times in (old, new))
        change_ms = new_ms - old_ms
        if abs(change_ms) > abs(largest.get(label, ("", 0.0))[1]):
            largest[label] = (module, change_ms)
    return largest
