"""Prefill and decode steps of inference: how long each kind takes, and how that grows with tokens.

A step's time is that of the GPU work launched in it (the union of its events), because the host of
a server runs ahead: a mark may end long before its work does, or wait for the step before. What a
client feels is the interval from the end of the step before to the end of the step.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from tracekit.documents.analysis import Budget, StepKind
from tracekit.parsers.steps import find_inference_steps
from tracekit.schema import conform

KINDS_OF_STEPS = ("prefill", "mixed", "decode")
"""Kinds in the order in which they are shown."""
TAIL_QUANTILE = 0.95
"""Quantile of the steps of a kind that is its tail."""
MIN_STEPS_FOR_TAIL = 5
"""Steps of a kind from which it has a tail."""
MIN_STEPS_FOR_GROWTH = 4
"""Steps of a kind from which the growth with tokens is fitted, if …"""
MIN_TOKEN_RATIO_FOR_GROWTH = 1.5
"""… the largest has at least as many times the tokens of the smallest."""
STEP_KINDS = pl.Schema(
    {
        "step": pl.Int64(),
        "kind": pl.String(),
        "requests": pl.Int64(),
        "tokens": pl.Int64(),
        "gpu_ns": pl.Int64(),  # union of the GPU work launched in the step
        "interval_ns": pl.Int64(),  # from the end of the step before; null without one
        "gap_ns": pl.Int64(),  # from the end of all work before to the step's own; null without one
    }
)
"""Steps of one rank that a server marked as prefill, decode or both."""


def measure_step_kinds(
    events: pl.DataFrame, steps: pl.DataFrame, budgets: Sequence[Budget]
) -> pl.DataFrame:
    """Return the steps of a rank by kind (``STEP_KINDS``); empty if it does not generate.

    Args:
        events: All events of the rank, with the marks of a server among them.
        steps: Selected steps (``align.steps.STEPS``).
        budgets: Budget of the GPU work launched in each of them.
    """
    marks = find_inference_steps(events)
    if marks.is_empty() or len(budgets) != len(steps):
        return STEP_KINDS.to_frame()
    gpu_ns = [budget.span_ns - budget.idle_ns - budget.unrecorded_ns for budget in budgets]
    is_preceded = pl.col("step").shift(1) == pl.col("step") - 1
    since_last_ns = pl.col("end_ns") - pl.col("end_ns").shift(1)
    # Work of several steps before may still run: the latest of all ends counts.
    since_all_ns = (pl.col("start_ns") - pl.col("end_ns").cum_max().shift(1)).clip(lower_bound=0)
    timed = (
        steps.with_columns(pl.Series("gpu_ns", gpu_ns, pl.Int64))
        .sort("step")
        .with_columns(
            interval_ns=pl.when(is_preceded & (since_last_ns > 0)).then(since_last_ns),
            gap_ns=pl.when(is_preceded).then(since_all_ns),
        )
    )
    kinds = marks.drop_nulls("kind").select("step", "kind", "requests", "tokens")
    return conform(timed.join(kinds, on="step"), STEP_KINDS)


def summarize_step_kinds(ranks: Sequence[pl.DataFrame]) -> tuple[StepKind, ...]:
    """Return each kind of step of a run: ranks take the median, then steps do.

    >>> rank = pl.DataFrame({"step": [0, 1, 2], "kind": ["prefill", "decode", "decode"], "requests": [2, 2, 2],
    ...                      "tokens": [512, 2, 2], "gpu_ns": [900, 90, 110], "interval_ns": [None, 120, 200],
    ...                      "gap_ns": [None, 30, 90]})
    >>> [(kind.kind, kind.steps, kind.time_ns, kind.interval_ns) for kind in summarize_step_kinds([rank])]
    [('prefill', 1, 900, None), ('decode', 2, 100, 160)]
    """
    if all(rank.is_empty() for rank in ranks):
        return ()
    times = pl.col("gpu_ns", "interval_ns", "gap_ns").median()
    marks = pl.col("kind", "requests", "tokens").first()
    steps = pl.concat(ranks).group_by("step").agg(marks, times).sort("step")
    steps = _with_delays(steps)
    kinds = []
    for kind in KINDS_OF_STEPS:
        of_kind = steps.filter(pl.col("kind") == kind)
        if len(of_kind):
            kinds.append(_summarize(kind, of_kind))
    return tuple(kinds)


def _with_delays(steps: pl.DataFrame) -> pl.DataFrame:
    """Return the steps with ``delay_ns``: what the sequences of a decode step wait for the steps since the last one.

    Null for other steps, for a decode step right after another, and where a step between has no
    interval.

    >>> steps = pl.DataFrame({"step": [0, 1, 2, 3], "kind": ["decode", "prefill", "mixed", "decode"],
    ...                       "interval_ns": [10.0, 300.0, 40.0, 11.0]})
    >>> _with_delays(steps)["delay_ns"].to_list()
    [None, None, None, 340.0]
    """
    is_decode = pl.col("kind") == "decode"
    # Steps between two decodes form a group with the second of them; those before the first one
    # have no number.
    since_decode = is_decode.cum_sum().shift(1, fill_value=0)
    between = (
        steps.with_columns(is_decode=is_decode, group=since_decode)
        .filter(pl.col("group") > 0)
        .group_by("group")
        .agg(
            step=pl.col("step").filter("is_decode").last(),
            others=(~pl.col("is_decode")).sum(),
            untimed=(pl.col("interval_ns").is_null() & ~pl.col("is_decode")).sum(),
            delay_ns=pl.col("interval_ns").filter(~pl.col("is_decode")).sum(),
        )
        .filter((pl.col("others") > 0) & (pl.col("untimed") == 0) & pl.col("step").is_not_null())
    )
    return steps.join(between.select("step", "delay_ns"), on="step", how="left").sort("step")


def _summarize(kind: str, steps: pl.DataFrame) -> StepKind:
    """Return the figures of the steps of one kind."""
    with_interval = steps.drop_nulls("interval_ns")
    interval_ns = float(with_interval["interval_ns"].sum())
    busy_share = None
    tokens_per_s = None
    if interval_ns:
        busy_share = min(float(with_interval["gpu_ns"].sum()) / interval_ns, 1.0)
        if not with_interval["tokens"].has_nulls():
            tokens_per_s = float(with_interval["tokens"].sum()) / interval_ns * 1e9
    return StepKind(
        kind=kind,
        steps=len(steps),
        time_ns=_median(steps["gpu_ns"]) or 0,
        time_tail_ns=_tail(steps["gpu_ns"]),
        interval_ns=_median(with_interval["interval_ns"]),
        interval_tail_ns=_tail(with_interval["interval_ns"]),
        gap_ns=_median(steps["gap_ns"]),
        delayed_steps=steps["delay_ns"].count(),
        delay_ns=_median(steps["delay_ns"]),
        gpu_busy=busy_share,
        requests=_median(steps["requests"]),
        tokens=_median(steps["tokens"]),
        tokens_per_s=tokens_per_s,
        ns_per_token=_growth(steps),
    )


def _median(values: pl.Series) -> int | None:
    """Return the median, rounded; None if there are no values."""
    median = values.drop_nulls().cast(pl.Float64).median()
    return None if median is None else round(median)  # type: ignore[arg-type]  # polars types it as any value


def _tail(values: pl.Series) -> int | None:
    """Return the tail of some times; None if there are too few."""
    if len(values) < MIN_STEPS_FOR_TAIL:
        return None
    return round(float(np.quantile(values.to_numpy(), TAIL_QUANTILE)))


def _growth(steps: pl.DataFrame) -> float | None:
    """Return the time that each further token adds, by least squares; None if steps are too few or too alike."""
    counted = steps.drop_nulls("tokens")
    tokens = counted["tokens"].to_numpy().astype(np.float64)
    if len(tokens) < MIN_STEPS_FOR_GROWTH:
        return None
    if tokens.max() < MIN_TOKEN_RATIO_FOR_GROWTH * max(tokens.min(), 1.0):
        return None
    slope, _ = np.polyfit(tokens, counted["gpu_ns"].to_numpy().astype(np.float64), 1)
    return round(float(slope), 6)  # rounding errors are no growth
