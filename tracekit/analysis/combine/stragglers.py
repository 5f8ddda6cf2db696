"""Reasons why ranks wait for a rank, and in which steps.

Where rank r arrives last, every other member i waits. Within a step the two are compared by what
delays an arrival: the time of r's kernels against the same kernels with the same shapes elsewhere
(slow GPU), its work at the usual speed of those kernels (more work), the time its GPU stood empty
or only copied to or from the host because the host launched late, the excess of its exposed
transfers over transfers of the same size (slow link), and its own waiting for ranks outside the
group. Each positive difference r − i explains as much of i's waiting; together at most all of it.
The rest is unknown. Ranks that are late together share the waiting (``align.late_together``): each
is explained by itself, and of its share as much as of its lateness.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import polars as pl

from tracekit._util.columns import concat_ranks
from tracekit.align.clocks import Clocks
from tracekit.align.waits import STRAGGLERS
from tracekit.analysis.measure.tables import RankTables
from tracekit.documents.analysis import (
    Evidence,
    Imbalance,
    ImbalanceStep,
    Lateness,
    RankLateness,
    Straggler,
    WaitCause,
)
from tracekit.documents.coding import rows
from tracekit.metrics.gpu_speed import MIN_SLOW_RATIO, usual_ns
from tracekit.metrics.lateness import KERNEL_TIMES, STEP_LATENESS, TOKENS
from tracekit.metrics.operations import divide_waits
from tracekit.schema import conform

CAUSES = ("slow_gpu", "more_work", "host_late", "slow_link", "waited_itself")
"""Causes that are looked for; what they leave is ``unknown``."""
CAUSES_WITHOUT_CLOCKS = ("slow_gpu", "more_work", "host_late")
"""Causes that rest on times of kernels and of an empty GPU, which do not depend on clocks."""
MIN_LATE_SHARE = 0.02
"""Lateness, as a share of the step, from which a rank counts as late in it: equal ranks vary by
less."""
MIN_CAUSE_SHARE = 0.1
"""Share of a rank's lateness below which a cause is left among the unknown: comparing ranks is no
more exact."""
MIN_COMPARED_COMPUTE_SHARE = 0.1
"""Share of a rank's compute in kernels that another rank runs too, for its speed to be known."""
MIN_SLOW_LINK_RATIO = 1.1
"""Transfers of a slow link take this many times as long as others of their size; equal ranks differ
by less."""
STRAGGLER_NOISE_SCALES = 3
"""Standard deviations that a difference must exceed."""
MIN_SHARE_WITHOUT_CLOCKS = 0.5
"""Share of the waiting that causes which need no clock explain, to be named where clocks do not
tell who came last."""
MIN_PIPELINE_CAUSE_SHARE = 0.25
"""Share of the waiting for a rank of a pipeline that a cause explains, to be its cause: stages also
wait by design."""
MAX_ONE_OFF_SHARE = 0.1
"""Share of steps up to which lateness in them is ``one_off``."""

LATENESS = pl.Schema(
    {
        "rank": pl.Int32(),
        "step": pl.Int64(),
        # Waiting until this rank came to collectives, mean over the ranks that were not late together with it.
        "late_ns": pl.Int64(),
        "caused_ns": pl.Int64(),  # waiting charged to this rank, sum over all other ranks
        "share": pl.Float64(),  # late_ns / duration of the step on its slowest rank
        "tokens": pl.Int64(),
        "work_ns": pl.Int64(),  # compute of the rank, had it run at the usual speed of its kernels
        "slow_ns": pl.Int64(),  # its compute beyond that
        "host_late_ns": pl.Int64(),
    }
)
IMBALANCE = pl.Schema(
    {
        "step": pl.Int64(),
        "group": pl.String(),  # ranks that reduce gradients together; null: all
        "ranks": pl.Int64(),
        "most_work_rank": pl.Int32(),
        "tokens_max": pl.Int64(),
        "tokens_mean": pl.Float64(),
        "cost_ns": pl.Int64(),  # work of the rank with the most minus the mean
        "step_ns": pl.Int64(),  # duration of the step on its slowest rank
        "share": pl.Float64(),  # cost_ns / step_ns
    }
)
RANK_TOKENS = pl.Schema({"rank": pl.Int32(), **TOKENS})
_TABLE = pl.Schema(
    {
        **STRAGGLERS,
        "kind": pl.String(),
        "steps": pl.List(pl.Int64()),
        "late_ns": pl.Int64(),
        "late_ns_by_step": pl.List(pl.Int64()),
        "worst_step": pl.Int64(),
        "worst_ns": pl.Int64(),
        **{f"{cause}_ns": pl.Int64() for cause in (*CAUSES, "unknown")},
    }
)
WAITS_BY_STEP = pl.Schema(
    {
        "rank": pl.Int32(),  # that was waited for
        "label": pl.String(),
        "step": pl.Int64(),
        "wait_ns": pl.Int64(),  # charged to it, sum over all other ranks
    }
)
_KERNEL_SPEED = pl.Schema(
    {
        "rank": pl.Int32(),
        "step": pl.Int64(),
        "sum_ns": pl.Int64(),
        "compared_ns": pl.Int64(),
        "usual_ns": pl.Float64(),
        "slower_ns": pl.Float64(),
        "ratio": pl.Float64(),
        "is_slow": pl.Boolean(),
        "kernel_ratio": pl.Float64(),
        "is_usual": pl.Boolean(),
    }
)
_PAIR = ("last_rank", "rank", "step", "label", "channel")


class SlowGpu(msgspec.Struct, frozen=True):
    """A rank whose GPU takes longer than the others for the same kernels, whether or not anybody waits for it."""

    rank: int
    slower_ns: int
    """Compute of one of its steps beyond what is usual for its kernels; the median of its steps."""
    evidence: Evidence


@dataclass(frozen=True, eq=False)
class Stragglers:
    """Ranks that others wait for, with reasons."""

    rows: tuple[Straggler, ...] = ()
    """By rank and label, most waiting first."""
    lateness: pl.DataFrame = field(default_factory=LATENESS.to_frame)
    """``LATENESS``: rank × step."""
    tokens: pl.DataFrame = field(default_factory=RANK_TOKENS.to_frame)
    """Tokens by rank, step and micro-batch."""
    imbalance: pl.DataFrame = field(default_factory=IMBALANCE.to_frame)
    """``IMBALANCE``: unequal work in each step and group; empty if shapes were not recorded."""
    has_compared_collectives: bool = True
    """Whether any operation beside the messages of a pipeline was compared across ranks; else
    lateness is unknown."""
    waits: pl.DataFrame = field(default_factory=WAITS_BY_STEP.to_frame)
    """``WAITS_BY_STEP``: waiting for each rank by label and step, messages included."""
    slow_gpus: tuple[SlowGpu, ...] = ()
    """Ranks whose GPUs are slower than those of the others in most steps, the slowest first."""

    @property
    def imbalance_share(self) -> float | None:
        """Work of the rank with the most above the mean, as a share of all steps.

        None if shapes were not recorded.
        """
        worst = self.imbalance.group_by("step").agg(
            pl.col("cost_ns").max(), pl.col("step_ns").max()
        )
        total_ns = int(worst["step_ns"].sum())
        return int(worst["cost_ns"].sum()) / total_ns if total_ns else None

    def imbalance_of_steps(self) -> Imbalance | None:
        """Return the imbalance of work by step; None if shapes were not recorded."""
        share = self.imbalance_share
        return None if share is None else Imbalance(share, rows(self.imbalance, ImbalanceStep))

    def late_ranks(self) -> Lateness | None:
        """Return the lateness by step of ranks that are late in any.

        None with one rank, and where it is unknown.
        """
        if self.lateness["rank"].n_unique() < 2 or not self.has_compared_collectives:
            return None
        is_late = (pl.col("share") >= MIN_LATE_SHARE).any().over("rank")
        late = self.lateness.filter(is_late).select("rank", "step", "late_ns")
        steps = self.lateness["step"].unique().sort().to_list()
        rows = {}
        for key, group in late.group_by("rank"):
            rows[key[0]] = dict(group.select("step", "late_ns").iter_rows())
        late_ranks = []
        for rank in sorted(rows):
            late_ranks.append(RankLateness(rank, [rows[rank].get(step, 0) for step in steps]))
        return Lateness(steps, late_ranks)

    def pipeline_cause(self, rank: int) -> WaitCause | None:
        """Return the main cause why the ranks of a pipeline wait for *rank*.

        None if their schedule alone may be it.
        """
        for row in self.rows:
            if (row.rank, row.label) == (rank, "pp_comm"):
                main = max(
                    (part for part in row.why if part.cause != "unknown"),
                    key=lambda p: p.ns,
                    default=None,
                )
                return (
                    main
                    if main is not None and main.ns >= MIN_PIPELINE_CAUSE_SHARE * row.caused_ns
                    else None
                )
        return None

    def tables(self) -> dict[str, Callable[[], pl.DataFrame]]:
        """Return the functions of its tables, by table name."""
        return {
            "stragglers": self._table,
            "lateness": lambda: self.lateness,
            "tokens": lambda: self.tokens,
            "imbalance": lambda: self.imbalance,
        }

    def _table(self) -> pl.DataFrame:
        """Return the stragglers as rows, with a column of nanoseconds for each cause."""
        rows = []
        for row in self.rows:
            ns = {f"{part.cause}_ns": part.ns for part in row.why}
            rows.append(
                {name: getattr(row, name) for name in row.__struct_fields__ if name != "why"} | ns
            )
        return conform(pl.DataFrame(rows, schema=_TABLE), _TABLE)


def explain_stragglers(
    stragglers: pl.DataFrame, ranks: Sequence[RankTables], operations: pl.DataFrame, clocks: Clocks
) -> Stragglers:
    """Explain each row of *stragglers* (``align.waits.STRAGGLERS``).

    Args:
        stragglers: Ranks that others wait for, by label.
        ranks: Tables of all ranks.
        operations: Operations of all ranks with their waits (``metrics.operations.add_waits``).
        clocks: Clocks of the ranks.

    """
    tokens = _by_rank(ranks, "tokens", TOKENS)
    figures = _rank_steps(ranks, clocks, tokens)
    if not _numbered_alike(ranks, figures):
        reason = "without marks, the ranks' recordings begin in different steps, which cannot be compared"
        unexplained = [
            Straggler(**fields, why=[_unknown(fields["caused_ns"], reason)])
            for fields in stragglers.to_dicts()
        ]
        return Stragglers(tuple(unexplained))
    pairs = _pair_waits(operations)
    # Ranks of a pipeline wait for each other by design: apart from the rest.
    is_message = pl.col("label") == "pp_comm"
    multiprocessors = {rank.source.rank: rank.source.multiprocessors for rank in ranks}
    rows: list[Straggler] = []
    if not stragglers.is_empty():
        has_shapes = any(len(rank.lateness.kernels) for rank in ranks)
        rows = _explain_rows(
            stragglers, pairs, figures, operations, multiprocessors, has_shapes=has_shapes
        )
    is_compared_collective = ~is_message & pl.col("wait_ns").is_not_null()
    has_compared_collectives = bool(operations.select(is_compared_collective.any()).item())
    waits = pairs.group_by("label", "step", rank="last_rank").agg(pl.col("wait_ns").sum())
    return Stragglers(
        rows=tuple(rows),
        lateness=_lateness(pairs.filter(~is_message), figures),
        tokens=tokens,
        imbalance=_imbalance(figures, operations),
        has_compared_collectives=has_compared_collectives,
        waits=conform(waits, WAITS_BY_STEP),
        slow_gpus=_slow_gpus(figures, multiprocessors),
    )


def _explain_rows(
    stragglers: pl.DataFrame,
    pairs: pl.DataFrame,
    figures: pl.DataFrame,
    operations: pl.DataFrame,
    multiprocessors: Mapping[int, int | None],
    *,
    has_shapes: bool,
) -> list[Straggler]:
    """Return *stragglers*, each with when and why it is late."""
    # Waiting for a rank in a step, in messages or in collectives, as the mean of the ranks that
    # waited.
    is_message = pl.col("label") == "pp_comm"
    late_ns = _mean_lateness("rank").over("last_rank", "step", is_message)
    step_ns = figures.group_by("step").agg(step_ns=pl.col("span_ns").max())
    is_late = late_ns / pl.col("step_ns") >= MIN_LATE_SHARE
    late_pairs = pairs.join(step_ns, on="step", nulls_equal=True).filter(is_late)
    explained = _explain_pairs(late_pairs, figures, operations)
    with_figures = stragglers
    for table, key in (
        (explained.group_by(rank="last_rank", label="label").agg(_summary()), ["rank", "label"]),
        (_late_steps(explained), ["rank", "label"]),
        (_mean_tokens(pairs, explained, figures), ["rank", "label"]),
        (figures.group_by("rank").agg(recorded_steps=pl.len()), ["rank"]),
    ):
        with_figures = with_figures.join(table, on=key, how="left", maintain_order="left")
    waited_for = dict(_most_waited_for(operations).iter_rows())
    rows = []
    for row, figures_of_row in zip(stragglers.to_dicts(), with_figures.to_dicts(), strict=True):
        slow_gpu = _fewer_multiprocessors(row["rank"], multiprocessors)
        rows.append(
            Straggler(
                **row | _explanation(figures_of_row, waited_for, slow_gpu, has_shapes=has_shapes)
            )
        )
    return rows


def _slow_gpus(
    figures: pl.DataFrame, multiprocessors: Mapping[int, int | None]
) -> tuple[SlowGpu, ...]:
    """Return the ranks that are slow in most of their steps, of which there must be two or more."""
    by_rank = figures.group_by("rank").agg(
        steps=pl.len(),
        slow_steps=pl.col("is_slow").fill_null(value=False).sum(),
        ratio=pl.coalesce("kernel_ratio", "ratio").median(),
        slower_ns=pl.col("slow_ns").median(),
    )
    is_slow = 2 * pl.col("slow_steps") > pl.col("steps")
    slow = by_rank.filter(is_slow & (pl.col("steps") > 1) & (pl.col("slower_ns") > 0))
    gpus = []
    for row in slow.sort("slower_ns", "rank", descending=[True, False]).to_dicts():
        evidence = msgspec.structs.replace(
            _fewer_multiprocessors(row["rank"], multiprocessors), ratio=_rounded(row["ratio"])
        )
        gpus.append(SlowGpu(row["rank"], round(row["slower_ns"]), evidence))
    return tuple(gpus)


def _by_rank(ranks: Sequence[RankTables], name: str, schema: pl.Schema) -> pl.DataFrame:
    """Return one of the tables of ``RankLateness`` of all ranks, with their rank."""
    return concat_ranks({rank.source.rank: getattr(rank.lateness, name) for rank in ranks}, schema)


def _rank_steps(ranks: Sequence[RankTables], clocks: Clocks, tokens: pl.DataFrame) -> pl.DataFrame:
    """Return by rank and step the figures that are compared between ranks."""
    steps = clocks.align(_by_rank(ranks, "steps", STEP_LATENESS), "start_ns", "launch_ns")
    # Before the first recorded step there is no gap to measure. There, a rank whose first launch
    # came after the first event of another rank was late by that much.
    first_start = pl.col("start_ns").min().over("step")
    late_start = (
        pl.when(~pl.col("follows"))
        .then((pl.col("launch_ns") - first_start).clip(0))
        .otherwise(0)
        .fill_null(0)
    )
    steps = steps.with_columns(host_late_ns=pl.col("host_late_ns") + late_start)
    steps = steps.with_columns(host_ns=pl.col("host_late_ns") + pl.col("copy_ns"))
    keys = ["rank", "step"]
    joined = steps.join(_kernel_speed(ranks), on=keys, how="left", nulls_equal=True)
    sums = tokens.group_by(keys).agg(pl.col("tokens").sum())
    joined = joined.join(sums, on=keys, how="left", nulls_equal=True)
    # Kernels of several streams run at the same time: scale sums of durations to the time that
    # compute took. One factor for all ranks and steps, so that equal shapes are equal work.
    scale = pl.col("compute_ns").sum() / pl.col("sum_ns").sum()
    usual = pl.col("usual_ns") + (pl.col("sum_ns") - pl.col("compared_ns")) / pl.col("ratio")
    return joined.with_columns(work_ns=usual * scale, slow_ns=(pl.col("sum_ns") - usual) * scale)


def _numbered_alike(ranks: Sequence[RankTables], figures: pl.DataFrame) -> bool:
    """Return whether steps of one number ran at the same time: each for half of the shortest, in most of the steps.

    Steps without marks are counted from where a rank's recording begins.
    """
    if all(rank.steps_marked for rank in ranks):
        return True
    start = pl.col("start_ns")
    span = pl.col("span_ns")
    in_common = (start + span).min() - start.max() > span.min() / 2
    by_step = figures.group_by("step").agg(in_common=in_common)["in_common"]
    return 2 * int(by_step.sum()) > len(by_step) or by_step.is_empty()


def _kernel_speed(ranks: Sequence[RankTables]) -> pl.DataFrame:
    """Return by rank and step the time of all kernels, of work that other ranks do too, and what is usual for it.

    ``ratio`` is the time of that work over what is usual; ``kernel_ratio`` the same of kernels with
    the same name: a library may choose other kernels on a GPU with fewer multiprocessors.
    """
    tables = _by_rank(ranks, "kernels", KERNEL_TIMES)
    if tables.is_empty():
        return _KERNEL_SPEED.to_frame()
    work = tables.group_by("rank", "step", "key").agg(
        pl.col("calls").sum().alias("count"), pl.col("ns").sum()
    )
    kernels = tables.select("rank", "step", pl.col("kernel").alias("key"), "count", "ns")
    speed = _against_usual(work, work["key"])
    kernel_speed = _against_usual(kernels, _usual_kernels(tables))
    ratio = pl.col("compared_ns") / pl.col("usual_ns")
    is_known = pl.col("compared_ns") >= MIN_COMPARED_COMPUTE_SHARE * pl.col("sum_ns")
    speed = speed.with_columns(ratio=pl.when(is_known).then(ratio))
    most_is_slower = 2 * pl.col("slower_ns") > pl.col("usual_ns")
    speed = speed.with_columns(
        is_slow=most_is_slower & (pl.col("ratio") - 1 > _noise(speed, "ratio"))
    )
    # A call that launches more kernels on one rank takes longer, too. The GPU is not slow if the
    # same kernels, in most of the rank's time, take no longer than elsewhere.
    is_usual = (2 * pl.col("compared_ns") > pl.col("sum_ns")) & (ratio < MIN_SLOW_RATIO)
    kernels = kernel_speed.select("rank", "step", kernel_ratio=ratio, is_usual=is_usual)
    speed = speed.join(kernels, on=["rank", "step"], how="left", nulls_equal=True)
    return speed.with_columns(is_slow=pl.col("is_slow") & ~pl.col("is_usual"))


def _usual_kernels(tables: pl.DataFrame) -> pl.Series:
    """Return the kernels that most of the ranks use which do the same work.

    Two slow GPUs may have kernels of their own, which tell nothing about their speed.
    """
    ranks_of_work = tables.group_by("key").agg(of=pl.col("rank").n_unique())
    ranks_of_kernel = tables.group_by("kernel", "key").agg(ranks=pl.col("rank").n_unique())
    joined = ranks_of_kernel.join(ranks_of_work, on="key")
    return joined.filter(2 * pl.col("ranks") > pl.col("of"))["kernel"].unique()


def _against_usual(work: pl.DataFrame, compared: pl.Series) -> pl.DataFrame:
    """Return by rank and step: all time, time of work that other ranks do too, its usual time, and that of slower work.

    Usual for a key is the median over ranks (of two, the faster) of the median over steps of its
    mean duration. Only *compared* keys have one.
    """
    mean = pl.col("ns") / pl.col("count")
    by_rank = work.group_by("key", "rank").agg(mean.median().alias("mean_ns"))
    by_rank = by_rank.filter(pl.col("key").is_in(compared.implode()))
    usual = by_rank.group_by("key").agg(usual_ns("mean_ns").alias("usual"), ranks=pl.len())
    expected = pl.col("usual") * pl.col("count")
    return (
        work.join(usual.filter(pl.col("ranks") > 1).select("key", "usual"), on="key", how="left")
        .group_by("rank", "step")
        .agg(
            sum_ns=pl.col("ns").sum(),
            compared_ns=pl.col("ns").filter(pl.col("usual").is_not_null()).sum(),
            usual_ns=expected.sum(),
            slower_ns=expected.filter(pl.col("ns") > MIN_SLOW_RATIO * expected).sum(),
        )
    )


def _noise(table: pl.DataFrame, column: str) -> float:
    """Return the difference that chance makes.

    It is ``STRAGGLER_NOISE_SCALES`` robust standard deviations of a rank between its steps.

    Each rank is compared with the mean of the others in the step: a step that is longer on all
    ranks is no noise. With fewer than three steps, of the ranks within a step.
    """
    value = pl.col(column)
    center = "step"
    if table["step"].n_unique() > 2:
        others = (value.sum().over("step") - value) / (value.count().over("step") - 1)
        table = table.with_columns((value - others).fill_nan(None))
        center = "rank"
    deviation = table.select((value - value.median().over(center)).abs().median()).item()
    return STRAGGLER_NOISE_SCALES * 1.4826 * (deviation or 0.0)


def _imbalance(figures: pl.DataFrame, operations: pl.DataFrame) -> pl.DataFrame:
    """Return ``IMBALANCE``: ranks are compared within the group in which they reduce gradients."""
    groups = (
        operations.filter((pl.col("label") == "dp_comm") & pl.col("group_ranks").is_not_null())
        .group_by("rank")
        .agg(group=pl.col("group_ranks").cast(pl.String).mode().sort().first())
    )
    if groups.is_empty() and operations["label"].is_in(["pp_comm"]).any():
        return IMBALANCE.to_frame()  # stages of a pipeline differ by design
    most = pl.col("work_ns").arg_max()
    table = (
        figures.with_columns(step_ns=pl.col("span_ns").max().over("step"))
        .join(groups, on="rank", how="left")
        .filter(pl.col("work_ns").is_not_null())
        .group_by("step", "group")
        .agg(
            ranks=pl.len(),
            most_work_rank=pl.col("rank").get(most),
            tokens_max=pl.col("tokens").max(),
            tokens_mean=pl.col("tokens").mean(),
            cost_ns=(pl.col("work_ns").max() - pl.col("work_ns").mean()).round().cast(pl.Int64),
            step_ns=pl.col("step_ns").first(),
        )
        .filter(pl.col("ranks") > 1)
        .with_columns(share=pl.col("cost_ns") / pl.col("step_ns"))
    )
    return conform(table.sort("step", "group"), IMBALANCE)


def _pair_waits(operations: pl.DataFrame) -> pl.DataFrame:
    """Return by last rank, waiting rank, step, label and channel the time waited.

    ``wait_ns`` is charged to the last rank; ``until_ns`` is the time until it arrived, null where
    the waiting rank is late together with it.
    """
    waits = _with_channel(divide_waits(operations))
    has_early_waits = pl.col("until_ns").is_not_null().any()
    return waits.group_by(_PAIR).agg(
        pl.col("wait_ns").sum(),
        until_ns=pl.when(has_early_waits).then(pl.col("until_ns").sum()),
        bound=pl.col("wait_is_bound").any(),
    )


def _mean_lateness(*waiting: str) -> pl.Expr:
    """Return the time until a rank arrived, as the mean over those that waited: distinct *waiting* columns.

    A rank that is late together with it does not count; 0 if there is no other.
    """
    is_early = pl.col("until_ns").is_not_null()
    count = pl.struct(waiting).filter(is_early).n_unique()
    return pl.col("until_ns").sum() / pl.max_horizontal(count, 1)


def _with_channel(waits: pl.DataFrame) -> pl.DataFrame:
    """Add ``channel``: the group of a collective, the two ranks of a message.

    Label where the group has no name.
    """
    low = pl.min_horizontal("rank", "last_rank")
    high = pl.max_horizontal("rank", "last_rank")
    group = pl.coalesce(pl.col("group").cast(pl.String), pl.col("label").cast(pl.String))
    channel = (
        pl.when(pl.col("what").cast(pl.String) == "p2p")
        .then(pl.format("{}-{}", low, high))
        .otherwise(group)
    )
    return waits.with_columns(pl.col("label").cast(pl.String), channel=channel)


def _lateness(pairs: pl.DataFrame, figures: pl.DataFrame) -> pl.DataFrame:
    """Return ``LATENESS`` of every rank and step."""
    caused = pairs.group_by(rank="last_rank", step="step").agg(
        caused_ns=pl.col("wait_ns").sum(), late_ns=_mean_lateness("rank")
    )
    table = figures.join(caused, on=["rank", "step"], how="left", nulls_equal=True).with_columns(
        pl.col("caused_ns", "late_ns").fill_null(0)
    )
    table = table.with_columns(share=pl.col("late_ns") / pl.col("span_ns").max().over("step"))
    rounded = pl.col("late_ns", "work_ns", "slow_ns", "host_late_ns").round().cast(pl.Int64)
    return conform(table.with_columns(rounded).sort("rank", "step"), LATENESS)


def _explain_pairs(
    pairs: pl.DataFrame, figures: pl.DataFrame, operations: pl.DataFrame
) -> pl.DataFrame:
    """Return the pairs with the part of their waiting that each cause explains."""
    keys = ["rank", "step"]
    links = _excess_transfer(operations)
    waited = _waited(operations)
    totals = waited.group_by(keys).agg(all_waited_ns=pl.col("waited_ns").sum())
    columns = (
        "slow_ns", "work_ns", "host_ns", "host_late_ns", "copy_ns", "kernel_ratio", "is_slow", "tokens"
    )  # fmt: skip
    figures = figures.select(*keys, *columns)
    for table in (links, totals):
        figures = figures.join(table, on=keys, how="left", nulls_equal=True)
    figures = figures.with_columns(pl.col("link_ns", "all_waited_ns").fill_null(0))
    last = figures.rename({name: f"last_{name}" for name in figures.columns if name != "step"})
    joined = pairs.join(figures, on=keys, how="left", nulls_equal=True).join(
        last, on=["last_rank", "step"], how="left", nulls_equal=True
    )
    for prefix in ("", "last_"):
        in_channel = waited.rename({"waited_ns": f"{prefix}in_channel_ns", "rank": f"{prefix}rank"})
        joined = joined.join(
            in_channel, on=[f"{prefix}rank", "step", "channel"], how="left", nulls_equal=True
        )
    differences = {
        "slow_gpu": pl.when("last_is_slow").then(pl.col("last_slow_ns") - pl.col("slow_ns")),
        "more_work": pl.col("last_work_ns") - pl.col("work_ns"),
        "host_late": _beyond_noise(figures, "host_ns"),
        "slow_link": pl.when(
            pl.col("last_link_ratio") >= MIN_SLOW_LINK_RATIO * pl.col("link_ratio")
        ).then(_beyond_noise(figures, "link_ns")),
        "waited_itself": _waited_elsewhere("last_") - _waited_elsewhere(""),
    }
    parts = [
        difference.fill_null(0).clip(0).alias(cause) for cause, difference in differences.items()
    ]
    joined = joined.with_columns(parts)
    # Causes that together exceed the lateness share it. Where several ranks share a wait, a cause
    # explains as much of the rank's part as it does of its lateness.
    lateness = pl.coalesce("until_ns", "wait_ns")
    factor = pl.min_horizontal(1.0, lateness / pl.sum_horizontal(CAUSES)).fill_nan(0)
    charged_share = pl.min_horizontal(1.0, pl.col("wait_ns") / lateness)
    return joined.with_columns(pl.col(cause) * factor * charged_share for cause in CAUSES)


def _beyond_noise(figures: pl.DataFrame, column: str) -> pl.Expr:
    """Return the difference between the last rank and the waiting one where chance does not explain it."""
    difference = pl.col(f"last_{column}") - pl.col(column)
    return pl.when(difference > _noise(figures, column)).then(difference)


def _waited_elsewhere(prefix: str) -> pl.Expr:
    """Return the exposed waiting of a rank outside the channel of the pair."""
    return pl.col(f"{prefix}all_waited_ns") - pl.col(f"{prefix}in_channel_ns").fill_null(0)


def _exposed(column: str) -> pl.Expr:
    """Return the part of a wait or transfer that compute cannot have hidden."""
    return pl.min_horizontal(column, pl.col("end_ns") - pl.col("start_ns") - pl.col("hidden_ns"))


def _waited(operations: pl.DataFrame) -> pl.DataFrame:
    """Return by rank, step and channel the exposed waiting."""
    waits = _with_channel(operations.filter(pl.col("wait_ns") > 0))
    return waits.group_by("rank", "step", "channel").agg(waited_ns=_exposed("wait_ns").sum())


def _most_waited_for(operations: pl.DataFrame) -> pl.DataFrame:
    """Return for each rank the rank that it waited for longest."""
    waits = operations.filter((pl.col("wait_ns") > 0) & (pl.col("last_rank") != pl.col("rank")))
    sums = (
        waits.group_by("rank", "last_rank")
        .agg(pl.col("wait_ns").sum())
        .sort("wait_ns", "last_rank")
    )
    return sums.group_by("rank", maintain_order=True).agg(pl.col("last_rank").last())


def _excess_transfer(operations: pl.DataFrame) -> pl.DataFrame:
    """Return by rank and step how much longer exposed transfers took than the median of equal ones.

    An exchange takes as long as its largest part: where members move unequal sizes, their own ones
    tell nothing.
    """
    usual = pl.col("transfer_ns").median().over("what", "bytes")
    excess = (pl.col("transfer_ns") - usual).clip(0).alias("excess_ns")
    is_equal = pl.col("bytes").n_unique().over("match") == 1
    sized = operations.filter(
        is_equal & pl.col("bytes").is_not_null() & pl.col("transfer_ns").is_not_null()
    )
    return (
        sized.with_columns(excess, usual_ns=usual)
        .group_by("rank", "step")
        .agg(
            link_ns=_exposed("excess_ns").sum(),
            link_ratio=pl.col("transfer_ns").sum() / pl.col("usual_ns").sum(),
        )
    )


def _summary() -> list[pl.Expr]:
    """Return the aggregates of a straggler's pairs: time by cause and evidence."""

    def weighted(value: pl.Expr, cause: str) -> pl.Expr:
        return (value * pl.col(cause)).sum() / pl.col(cause).filter(value.is_not_null()).sum()

    return [
        pl.col("wait_ns").sum(),
        pl.col("bound").any(),
        *(pl.col(cause).sum() for cause in CAUSES),
        _mean_lateness("rank", "step").alias("late_ns"),
        weighted(pl.col("last_kernel_ratio"), "slow_gpu").alias("slow_ratio"),
        weighted(pl.col("last_work_ns") / pl.col("work_ns"), "more_work").alias("work_ratio"),
        weighted(pl.col("last_link_ratio") / pl.col("link_ratio"), "slow_link").alias("link_ratio"),
        *(
            weighted(
                (pl.col(f"last_{column}") - pl.col(column)).cast(pl.Float64), "host_late"
            ).alias(name)
            for name, column in (("idle_ns", "host_late_ns"), ("copy_ns", "copy_ns"))
        ),
    ]


def _late_steps(explained: pl.DataFrame) -> pl.DataFrame:
    """Return by rank and label the late steps, the lateness in each, and the worst of them.

    In the worst step the rank is later than in all others together. With two late steps one of them
    always is: three are needed.
    """
    late_ns = _mean_lateness("rank").round().cast(pl.Int64)
    by_step = (
        explained.group_by("step", rank="last_rank", label="label")
        .agg(late_ns=late_ns)
        .sort("step")
    )
    is_worst = (2 * pl.col("late_ns") > pl.col("late_ns").sum()) & (pl.len() > 2)
    return by_step.group_by("rank", "label").agg(
        steps=pl.col("step"),
        late_ns_by_step=pl.col("late_ns"),
        worst_step=pl.col("step").filter(is_worst).first(),
        worst_ns=pl.col("late_ns").filter(is_worst).first(),
    )


def _mean_tokens(
    pairs: pl.DataFrame, explained: pl.DataFrame, figures: pl.DataFrame
) -> pl.DataFrame:
    """Return by rank and label its tokens per step and those of the others, as means over the steps it is late in.

    The others are all ranks that ever wait for it in the label and are not late together with it:
    in a step, one with as much work may not wait at all.
    """
    tokens = figures.select("rank", "step", "tokens")
    late_steps = explained.select("last_rank", "label", "step").unique()
    is_early = pl.col("until_ns").is_not_null()
    others = pairs.filter(is_early).select("last_rank", "label", "rank").unique()
    own = late_steps.join(
        tokens, left_on=["last_rank", "step"], right_on=["rank", "step"], nulls_equal=True
    )
    of_others = others.join(late_steps, on=["last_rank", "label"]).join(
        tokens, on=["rank", "step"], nulls_equal=True
    )
    own_mean = own.group_by("last_rank", "label").agg(pl.col("tokens").mean())
    others_mean = of_others.group_by("last_rank", "label").agg(
        tokens_of_others=pl.col("tokens").mean()
    )
    return own_mean.join(others_mean, on=["last_rank", "label"], how="left").rename(
        {"last_rank": "rank"}
    )


def _fewer_multiprocessors(rank: int, multiprocessors: Mapping[int, int | None]) -> Evidence:
    """Return the multiprocessors of a rank, if every other rank is known to have more."""
    own = multiprocessors[rank]
    others = [count or 0 for other, count in multiprocessors.items() if other != rank]
    if own is None or min(others, default=0) <= own:
        return Evidence()
    return Evidence(multiprocessors=own, multiprocessors_of_others=min(others))


def _explanation(
    row: Mapping[str, Any], waited_for: Mapping[int, int], slow_gpu: Evidence, *, has_shapes: bool
) -> dict[str, Any]:
    """Return when one straggler is late (kind, steps, late_ns, worst step) and why.

    Causes that need no clock also settle that it came last (``uncertain``, ``candidates``).

    Args:
        row: The straggler's figures: ``STRAGGLERS``, ``_summary``, ``_late_steps``,
            ``_mean_tokens`` and recorded_steps. ``caused_ns`` is the waiting for it in all steps,
            ``wait_ns`` that in the steps in which it is clearly late (None without any).
        waited_for: The rank for which each rank waited longest.
        slow_gpu: What its trace tells about the speed of its GPU.
        has_shapes: Whether any rank recorded input shapes.

    """
    caused_ns = row["caused_ns"]
    if row["wait_ns"] is None:
        reason = f"never later than others by {MIN_LATE_SHARE:.0%} of a step"
        return {"why": [_unknown(caused_ns, reason)]}
    named_causes = _named_causes(row)
    clock_free_ns = sum(named_causes.get(cause, 0) for cause in CAUSES_WITHOUT_CLOCKS)
    reason_to_name_none = _reason_to_name_none(row, clock_free_ns)
    if reason_to_name_none is not None:
        return {**_late_when(row), "why": [_unknown(caused_ns, reason_to_name_none)]}
    evidence = _evidence_by_cause(row, waited_for, slow_gpu)
    why = []
    for cause, ns in named_causes.items():
        why.append(WaitCause(cause, ns, evidence[cause]))  # type: ignore[arg-type]
    why.sort(key=lambda part: -part.ns)
    unexplained_ns = caused_ns - sum(named_causes.values())
    if unexplained_ns > 0:  # each cause is rounded, so that they may sum to a nanosecond more
        why.append(
            _unknown(unexplained_ns, _reason_without_cause(row["label"], has_shapes=has_shapes))
        )
    explanation = {**_late_when(row), "why": why}
    if row["label"] != "pp_comm" and clock_free_ns >= MIN_SHARE_WITHOUT_CLOCKS * caused_ns:
        explanation |= {"uncertain": False, "candidates": [row["rank"]]}
    return explanation


def _late_when(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return in which steps a straggler is late, how regularly, and by how much."""
    return {
        "kind": _kind(len(row["steps"]), row["recorded_steps"] or 0),
        "steps": row["steps"],
        "late_ns": round(row["late_ns"]),
        "late_ns_by_step": row["late_ns_by_step"],
        "worst_step": row["worst_step"],
        "worst_ns": row["worst_ns"],
    }


def _named_causes(row: Mapping[str, Any]) -> dict[str, int]:
    """Return the waiting that each cause explains, in nanoseconds, without causes that explain little."""
    named_causes = {}
    for cause in CAUSES:
        if row[cause] >= MIN_CAUSE_SHARE * row["wait_ns"]:
            named_causes[cause] = round(row[cause])
    return named_causes


def _reason_to_name_none(row: Mapping[str, Any], clock_free_ns: int) -> str | None:
    """Return why no cause can be named for a straggler; None if causes can.

    Args:
        row: The straggler's figures.
        clock_free_ns: Waiting that ``CAUSES_WITHOUT_CLOCKS`` explain. Where it is most of the
            waiting, the rank was late even if clocks alone leave open which one came last.

    """
    is_message = row["label"] == "pp_comm"
    min_share = MIN_PIPELINE_CAUSE_SHARE if is_message else MIN_SHARE_WITHOUT_CLOCKS
    needs_clocks = clock_free_ns < min_share * row["wait_ns"]
    if needs_clocks and (row["bound"] or row["uncertain"]):
        return "clocks are not aligned well enough to tell which rank came last"
    if (row["recorded_steps"] or 0) < 2:
        return "one step was recorded: a cause cannot be told from chance; record more steps"
    return None


def _evidence_by_cause(
    row: Mapping[str, Any], waited_for: Mapping[int, int], slow_gpu: Evidence
) -> dict[str, Evidence]:
    """Return what each cause of a straggler rests on, by cause."""
    return {
        "slow_gpu": msgspec.structs.replace(slow_gpu, ratio=_rounded(row["slow_ratio"])),
        "more_work": Evidence(
            ratio=_rounded(row["work_ratio"]),
            tokens=_whole(row["tokens"]),
            tokens_of_others=_whole(row["tokens_of_others"]),
        ),
        "host_late": _host_evidence(row),
        "slow_link": Evidence(ratio=_rounded(row["link_ratio"])),
        "waited_itself": Evidence(chain=_chain(row["rank"], waited_for)),
    }


def _reason_without_cause(label: str, *, has_shapes: bool) -> str:
    """Return why some waiting for a straggler in operations of *label* has no known cause."""
    if label == "pp_comm":
        return "ranks of a pipeline wait for each other: the schedule tells how long they have to"
    if not has_shapes:
        return "input shapes were not recorded: a slow GPU and more work cannot be told apart"
    return "no cause explains it"


def _host_evidence(row: Mapping[str, Any]) -> Evidence:
    """Return how long a rank's GPU was empty, and how long it only copied if that is a tenth of both or more."""
    idle_ns = _whole(row["idle_ns"])
    copy_ns = _whole(row["copy_ns"]) or 0
    has_copies = copy_ns > 0 and copy_ns >= MIN_CAUSE_SHARE * ((idle_ns or 0) + copy_ns)
    return Evidence(idle_ns=idle_ns, copy_ns=copy_ns if has_copies else None)


def _unknown(ns: int, reason: str) -> WaitCause:
    return WaitCause("unknown", ns, Evidence(reason=reason))


def _rounded(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round(value, 3)


def _whole(value: float | None) -> int | None:
    return None if value is None or math.isnan(value) else round(value)


def _kind(late: int, steps: int) -> str | None:
    """Return whether a rank that is late in some of its steps is so mostly, rarely or in between.

    None for one step.

    >>> _kind(5, 5), _kind(1, 5), _kind(2, 5), _kind(8, 100), _kind(1, 1)
    ('chronic', 'one_off', 'mixed', 'one_off', None)
    """
    if steps < 2:
        return None
    if 2 * late > steps:
        return "chronic"
    return "one_off" if late <= max(1, MAX_ONE_OFF_SHARE * steps) and steps > 2 else "mixed"


def _chain(rank: int, waited_for: Mapping[int, int]) -> list[int]:
    """Return the ranks from *rank* to the one where the waiting begins: each waited longest for the next.

    >>> _chain(3, {3: 2, 2: 0})
    [3, 2, 0]
    """
    chain = [rank]
    while (previous := waited_for.get(chain[-1])) is not None and previous not in chain:
        chain.append(previous)
    return chain
