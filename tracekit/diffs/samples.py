"""Samples of runs as one long table, and how the figures of each step on each rank become it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import median

import polars as pl

from tracekit.diffs.metrics import FAMILY_BY_NAME
from tracekit.documents.analysis import RankFigures, StepFigures, StepTime
from tracekit.metrics.step_time import find_unusual
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS, conform

COMPARED_LABEL_SETS = {"communication": COMMUNICATION_LABELS, "copy": COPY_LABELS}
_PREFIXES_OF_TIMES = ("exposed_ms.", "label_ms.")
_TIMES_OF_STEP = ("compute_ms", "wait_ms", "idle_ms")
_HIDDEN_PREFIX = "hidden "
_WHOLE_PREFIX = "whole "
"""In front of a label: its hidden time, and the time that this is a share of."""
SAMPLES = pl.Schema(
    {
        "run": pl.String(),
        "metric": pl.String(),  # its name without a rank
        "rank": pl.Int32(),  # null: of the whole run
        # Number of the step, or its position where a file does not tell the number; null: the one
        # value of a run.
        "step": pl.Int64(),
        "value": pl.Float64(),
    }
)
_NAME_AND_RANK = re.compile(r"(.*?)(?:@(\d{1,9}))?", re.DOTALL)


def make_samples(
    values: Mapping[str, Sequence[float]], *, steps: Sequence[int | None] | None = None
) -> pl.DataFrame:
    """Return the table of samples given by the full name of their metric: one value per step, or one per run.

    *steps* are the numbers of the steps, where they are known.

    >>> make_samples({"step_ms": (10.0, 10.2), "late_ms.rank@3": (0.5,)}).drop("run").rows()
    [('step_ms', None, 0, 10.0), ('step_ms', None, 1, 10.2), ('late_ms.rank', 3, 0, 0.5)]
    """
    rows = []
    for name, values_of_metric in values.items():
        metric, rank = split_name(name)
        family = FAMILY_BY_NAME.get(metric.partition(".")[0])
        positions: Iterable[int | None] = range(len(values_of_metric)) if steps is None else steps
        if family is not None and family.once_a_run:
            positions = [None] * len(values_of_metric)
        for step, value in zip(positions, values_of_metric, strict=True):
            rows.append((None, metric, rank, step, value))
    return pl.DataFrame(rows, schema=SAMPLES, orient="row")


def split_name(name: str) -> tuple[str, int | None]:
    """Return the name of a metric without its rank, and the rank.

    >>> split_name("late_ms.rank@3"), split_name("step_ms")
    (('late_ms.rank', 3), ('step_ms', None))
    """
    match = _NAME_AND_RANK.fullmatch(name)
    assert match is not None, "the pattern takes any text"
    return match[1], None if match[2] is None else int(match[2])


def by_full_name(samples: pl.DataFrame) -> dict[str, tuple[float, ...]]:
    """Return the values of each metric by its full name, in the order of the table."""
    groups = samples.group_by("metric", "rank", maintain_order=True).agg("value")
    return {
        metric if rank is None else f"{metric}@{rank}": tuple(values)
        for metric, rank, values in groups.iter_rows()
    }


def per_step_samples(ranks: Sequence[RankFigures], *, by_rank: bool = False) -> pl.DataFrame:
    """Return one value per step that every rank has and of which the time is known.

    The step time and its parts (compute, exposed, idle) are those of the step's interval, so that
    they sum to it. Shares of the bubble and times of labels are those of the GPU work launched in
    the step.

    Args:
        ranks: Figures of the ranks.
        by_rank: Return the samples of each rank alone instead, of all its steps.
    """
    records: list[tuple[int, StepFigures]] = []
    for rank in ranks:
        records += [(rank.rank, step) for step in rank.per_step if step.time_ns is not None]
    steps = pl.DataFrame(
        [(rank if by_rank else None, step.step, step.partial) for rank, step in records],
        schema={"rank": pl.Int32(), "step": pl.Int64(), "partial": pl.Boolean()},
        orient="row",
    ).with_row_index("record")
    ranks_needed = 1 if by_rank else len(ranks)
    of_every_rank = steps.filter(pl.len().over("rank", "step") == ranks_needed)
    # As for the step time of the run: steps that are cut off count only where there are no others.
    is_whole = ~pl.col("partial").any().over("rank", "step")
    counted = of_every_rank.with_columns(is_whole=is_whole).filter(
        pl.col("is_whole") | ~pl.col("is_whole").any().over("rank")
    )
    if counted.is_empty():
        return SAMPLES.to_frame()
    figures = _figures([records[i][1] for i in counted["record"]])
    sums = (
        counted.select("rank", "step")
        .hstack(figures)
        .group_by("rank", "step", maintain_order=True)
        .agg(
            # A figure that is not known on a rank, such as a wait without the peers' traces, is not
            # known of the step.
            *(
                pl.when(~pl.col(name).is_null().any()).then(pl.col(name).sum()).alias(name)
                for name in figures.columns
            ),
            step_ms=pl.col("time_ns").median() / pl.col("ns_per_ms").first(),
            slowest_rank_ms=pl.col("time_ns").max() / pl.col("ns_per_ms").first(),
        )
        .sort("rank", "step", nulls_last=True, maintain_order=True)
    )
    values = sums.select("rank", "step", *_metrics(figures.columns, ranks=ranks_needed))
    samples = values.unpivot(index=["rank", "step"], variable_name="metric").drop_nulls("value")
    return _with_slow_steps(conform(samples, SAMPLES))


def _figures(records: Sequence[StepFigures]) -> pl.DataFrame:
    """Return nanoseconds of each record, under the names of the metrics in milliseconds that they become.

    Beside them, of each overlap, the hidden time and the time that it is a share of. A label that
    a record lacks took no time in it.
    """
    budgets = [record.time_budget for record in records]
    exposed = _by_label([budget.exposed_ns for budget in budgets])
    for set_name, labels in COMPARED_LABEL_SETS.items():
        if not exposed.keys().isdisjoint(labels):
            members = [exposed[label] for label in labels if label in exposed]
            exposed[set_name] = [sum(times) for times in zip(*members, strict=True)]
    label_ns = _by_label([record.label_ns for record in records])
    overlaps = [_overlapping_ns(record) for record in records]
    figures: dict[str, Sequence[float | None]] = {
        # Polars multiplies by the inverse of a literal, which is less exact. The sum over ranks
        # divides a sum into the mean.
        "ns_per_ms": [1e6] * len(records),
        "time_ns": [record.time_ns for record in records],
        "span_ns": [record.span_ns for record in records],
        "compute_ms": [budget.compute_ns for budget in budgets],
        **{f"exposed_ms.{label}": ns for label, ns in exposed.items()},
        **{
            f"label_ms.{label}": ns
            for label, ns in label_ns.items()
            if label not in COMPARED_LABEL_SETS
        },
        "wait_ms": [record.bubble.wait_ns for record in records],
        "idle_ms": [budget.idle for budget in budgets],
        "bubble_ms": [_bubble_ns(record) for record in records],
        **_by_label([_exposed_by_cause(record) for record in records]),
        **_by_label(overlaps),
    }
    return pl.DataFrame(figures, schema=dict.fromkeys(figures, pl.Float64()))


def _by_label(records: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """Return the value of each label in every record, 0 where a record lacks it.

    >>> _by_label([{"forward": 2}, {"forward": 3, "pp_comm": 1}])
    {'forward': [2, 3], 'pp_comm': [0, 1]}
    """
    labels = dict.fromkeys(chain.from_iterable(records))
    return {label: [record.get(label, 0) for record in records] for label in labels}


def _exposed_by_cause(record: StepFigures) -> dict[str, int]:
    """Return exposed time under the metrics' names, by label and cause."""
    times = {}
    for label, causes in record.because_ns.items():
        for cause, ns in causes.items():
            times[f"exposed_ms.{label}.{cause}"] = ns
    return times


def _overlapping_ns(record: StepFigures) -> dict[str, float]:
    """Return the hidden time and the whole time of each label and set of which they are known and not 0."""
    label_ns: dict[str, int] = {**record.label_ns}
    for set_name, labels in COMPARED_LABEL_SETS.items():
        label_ns[set_name] = sum(record.label_ns.get(label, 0) for label in labels)
    label_ns |= record.set_ns
    times = {}
    for key, share in record.overlap.items():
        if share is not None and label_ns.get(key):
            times[f"{_HIDDEN_PREFIX}{key}"] = share * label_ns[key]
            times[f"{_WHOLE_PREFIX}{key}"] = label_ns[key]
    return times


def _bubble_ns(record: StepFigures) -> float | None:
    """Return the bubble of one rank's step; None if it is unknown, or a lower bound.

    A lower bound can show that a limit is broken, but never that it holds: it gives no sample.
    """
    bubble = record.bubble
    if bubble.fraction is None or bubble.lower_bound:
        return None
    return bubble.fraction * record.span_ns


def _metrics(figures: Sequence[str], *, ranks: int) -> list[pl.Expr]:
    """Return the metrics of a step, from its figures summed over *ranks* ranks.

    ``diffs.metrics`` says which is a mean, a median or a ratio.
    """
    times = [
        name for name in figures if name.startswith(_PREFIXES_OF_TIMES) or name in _TIMES_OF_STEP
    ]
    # Bubbles and labels lie in the span of the step's GPU work, which may be shorter than the step.
    # Without such work there is none that could have a bubble.
    means = [pl.col(name) / pl.col("ns_per_ms") for name in times]
    has_work = pl.col("span_ns") > 0
    bubble = pl.when(has_work).then(pl.col("bubble_ms") / pl.col("ns_per_ms")).alias("bubble_ms")
    shares = [
        ("compute_fraction", pl.col("compute_ms"), "time_ns"),
        ("idle_fraction", pl.col("idle_ms"), "time_ns"),
        ("bubble_fraction", pl.col("bubble_ms"), "span_ns"),
        (
            "other_fraction",
            pl.col("label_ms.other") if "label_ms.other" in figures else pl.lit(0.0),
            "span_ns",
        ),
    ]
    keys = [name.removeprefix(_WHOLE_PREFIX) for name in figures if name.startswith(_WHOLE_PREFIX)]
    shares += [
        (f"overlap.{key}", pl.col(f"{_HIDDEN_PREFIX}{key}"), f"{_WHOLE_PREFIX}{key}")
        for key in keys
    ]
    return [
        pl.col("step_ms"),
        *([pl.col("slowest_rank_ms")] if ranks > 1 else []),
        *means,
        bubble,
        *(pl.when(pl.col(of) > 0).then(part / pl.col(of)).alias(name) for name, part, of in shares),
    ]


def _with_slow_steps(samples: pl.DataFrame) -> pl.DataFrame:
    """Return the samples with those that follow from the step times (``slow_step_samples``)."""
    tables = [samples]
    step_times = samples.filter(pl.col("metric") == "step_ms")
    for _, times in step_times.group_by("rank", maintain_order=True):
        for metric, values in slow_step_samples(times["value"].to_list()).items():
            tables.append(
                times.with_columns(pl.Series("value", values, pl.Float64()), metric=pl.lit(metric))
            )
    return pl.concat(tables)


def slow_step_samples(step_ms: Sequence[float]) -> dict[str, list[float]]:
    """Return the step times again, of which the mean is compared, and by step whether it is slow (1) or not (0)."""
    if not step_ms:
        return {}
    times = [StepTime(index, round(ms * 1e6)) for index, ms in enumerate(step_ms)]
    usual_ns = median([step.time_ns for step in times])
    slow = {step.step for step in find_unusual(times) if step.time_ns > usual_ns}
    return {
        "mean_step_ms": list(step_ms),
        "slow_steps": [float(step.step in slow) for step in times],
    }
