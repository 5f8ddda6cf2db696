"""Kernels by name, label and module, the reasons for their labels, and shapes of the model's operators."""

from collections.abc import Iterable, Sequence
from itertools import chain

import polars as pl

from tracekit.classify import RuleBook, builtin_rules
from tracekit.classify.explain import describe_conditions
from tracekit.schema import LABELLED

MODEL_OPERATORS = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "linear",
    "convolution",
    "embedding",
    "_grouped_mm",
    "_scaled_mm",
)
"""Operators whose input shapes are those of the model."""
MAX_SHAPES = 1000
"""Shapes that a result lists; of further ones it has the number."""
_KEYS = ("name", "label", "module")
KERNELS = pl.Schema(
    {**dict.fromkeys(_KEYS, pl.String()), "count": pl.Float64(), "ns": pl.Float64()}
)
"""GPU events per step: their number and the sum (not the union) of their durations."""
MAX_KERNELS_EXPLAINED = 32
"""Kernels that are explained, per rank and of the run: those with the most time."""
MAX_CONTEXT_LETTERS = 400
"""Letters of the operators and ranges around a launch; the innermost are kept."""
_CONTEXT = ("chain", "annotations")
_EVIDENCE = (
    "step",
    "start_ns",
    "end_ns",
    "stream",
    "op",
    *_CONTEXT,
    "node",
    "fwd_op",
    "collective",
    "group_desc",
    "group_ranks",
    "peer",
    "bytes",
    "shapes",
    "dtypes",
)
REASONS = pl.Schema(
    {
        "rank": pl.Int32(),
        **dict.fromkeys(_KEYS, pl.String()),
        "count": pl.Int64(),
        "ns": pl.Int64(),
        "rule": pl.String(),
        "rule_ns": pl.Int64(),
        "confidence": pl.Float32(),
        **dict.fromkeys(("tier", "pack", "asks"), pl.String()),
        **{
            name: LABELLED[name] if LABELLED[name].is_integer() else pl.String()
            for name in _EVIDENCE
        },
        "in_graph": pl.Boolean(),
    }
)
"""One row per kernel (name, label, module) of a rank: its number of events and their time, the rule
that decided most of that time, and the longest event of that rule with the evidence around it."""


def kernel_table(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return the ``KERNELS`` of one rank, the means over its steps.

    >>> events = pl.DataFrame({"name": ["k", "k"], "label": ["forward", "forward"], "module": ["mlp", "mlp"],
    ...     "step": [2, 3], "start_ns": [0, 10], "end_ns": [4, 16]})
    >>> kernel_table(events).rows()
    [('k', 'forward', 'mlp', 1.0, 5.0)]
    """
    steps = max(labelled["step"].unique().drop_nulls().len(), 1)
    duration_ns = pl.col("end_ns") - pl.col("start_ns")
    table = labelled.group_by(_KEYS).agg(count=pl.len() / steps, ns=duration_ns.sum() / steps)
    return table.cast(KERNELS).sort(_KEYS)


def mean_kernels(tables: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """Return the mean of the ranks' ``KERNELS``, most time first."""
    # In a fixed order, so that the sums of fractions do not depend on which worker finished first.
    grouped = pl.concat(tables).group_by(_KEYS, maintain_order=True)
    return grouped.agg(pl.sum("count", "ns") / len(tables)).sort(
        "ns", *_KEYS, descending=[True, False, False, False]
    )


def shape_list(events: pl.DataFrame) -> tuple[str, ...]:
    """Return the distinct input shapes of the model's operators, as text.

    >>> shape_list(pl.DataFrame({"kind": ["cpu_op"], "name": ["aten::mm"], "shapes": ["[[8,4],[4,2]]"]}))
    ('mm [[8,4],[4,2]]',)
    """
    of_model = (pl.col("kind") == "cpu_op") & pl.col("name").is_in(
        [f"aten::{name}" for name in MODEL_OPERATORS]
    )
    rows = (
        events.select("kind", "name", "shapes")
        .filter(of_model & pl.col("shapes").is_not_null())
        .select("name", "shapes")
        .unique()
        .cast(pl.String)
    )
    return tuple(
        sorted(f"{name.removeprefix('aten::')} {shapes}" for name, shapes in rows.iter_rows())
    )


def all_shapes(shapes_by_rank: Iterable[Sequence[str]]) -> list[str]:
    """Return the distinct shapes of all ranks.

    Of more than ``MAX_SHAPES``, the first and the number of the others.

    >>> all_shapes([["mm [[1]]"], ["mm [[1]]", "bmm [[2]]"]])
    ['bmm [[2]]', 'mm [[1]]']
    """
    distinct = sorted(set(chain.from_iterable(shapes_by_rank)))
    if len(distinct) <= MAX_SHAPES:
        return distinct
    return [*distinct[: MAX_SHAPES - 1], f"{len(distinct) - MAX_SHAPES + 1} more"]


def kernel_reasons(
    labelled: pl.DataFrame, *, rank: int, rules: RuleBook | None = None
) -> pl.DataFrame:
    """Return the ``REASONS`` of one rank; *rules* are those that came before the built-in ones.

    >>> from tracekit import load
    >>> from tracekit.classify import classify
    >>> reasons = kernel_reasons(classify(load("sample_traces/reload", ranks=[0]).rank(0).events), rank=0)
    >>> reasons.select("label", "count", "rule", "tier").row(0)
    ('broadcast', 8, 'group-reload', 'group')
    """
    if labelled.is_empty():
        return REASONS.to_frame()
    kernels = _longest_kernels(labelled)
    # Kernels that one call launched ran in a CUDA graph, even where the profiler does not number
    # graphs.
    in_graph = pl.col("graph").is_not_null() | (
        (pl.col("correlation") > 0) & pl.col("correlation").is_duplicated()
    )
    events = labelled.select(*_KEYS, "rule", *_EVIDENCE, in_graph=in_graph)[
        kernels["row"].to_numpy()
    ]
    context = [pl.col(name).cast(pl.String).str.tail(MAX_CONTEXT_LETTERS) for name in _CONTEXT]
    rule_texts = _rule_texts(events["rule"].cast(pl.String).to_list(), rules)
    reasons = pl.concat(
        [events.with_columns(context), kernels.drop("row"), rule_texts], how="horizontal"
    )
    return reasons.with_columns(rank=pl.lit(rank)).select(
        pl.col(name).cast(dtype) for name, dtype in REASONS.items()
    )


def _longest_kernels(labelled: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels with the most time: ``count, ns, rule_ns, confidence, row``.

    ``rule_ns`` and ``confidence`` (the lowest) are of the rule that decided most of a kernel's
    time; ``row`` is the longest event of that rule.
    """
    events = labelled.select(*_KEYS, "rule", "confidence", ns=pl.col("end_ns") - pl.col("start_ns"))
    by_rule = (
        events.with_row_index("row")
        .group_by(*_KEYS, "rule")
        .agg(
            count=pl.len().cast(pl.Int64),
            rule_ns=pl.col("ns").sum(),
            confidence=pl.col("confidence").min(),
            row=pl.col("row").get(pl.col("ns").arg_max()),
        )
    )
    # Of equal times the kernel or rule whose longest event comes first in the trace wins.
    by_rule = by_rule.sort("rule_ns", "row", descending=[True, False])
    by_kernel = by_rule.group_by(_KEYS, maintain_order=True).agg(
        pl.col("count").sum(),
        pl.col("rule_ns").sum().alias("ns"),
        pl.col("rule_ns", "confidence", "row").first(),
    )
    by_kernel = by_kernel.sort("ns", "row", descending=[True, False]).head(MAX_KERNELS_EXPLAINED)
    return by_kernel.select("count", "ns", "rule_ns", "confidence", "row")


def run_reasons(reasons_by_rank: Sequence[pl.DataFrame], kernels: pl.DataFrame) -> pl.DataFrame:
    """Return the ranks' ``REASONS`` of the kernels with the most time in the run, most time first."""
    longest = kernels.top_k(MAX_KERNELS_EXPLAINED, by="ns").select(_KEYS)
    reasons = pl.concat(reasons_by_rank)
    return reasons.join(longest, on=_KEYS, how="semi", nulls_equal=True).sort(
        "ns", "rank", descending=[True, False]
    )


def _rule_texts(names: Sequence[str], rules: RuleBook | None) -> pl.DataFrame:
    """Return for each rule its tier of evidence, the file it is in, and its conditions in words.

    Null if unknown.
    """
    book = rules.before(builtin_rules()) if rules is not None else builtin_rules()
    rule_of_name = {rule.name: rule for rule in book.rules}
    rows = []
    for name in names:
        rule = rule_of_name.get(name)
        rows.append(
            (None, None, None)
            if rule is None
            else (rule.tier, rule.pack, describe_conditions(rule))
        )
    return pl.DataFrame(
        rows, schema=dict.fromkeys(("tier", "pack", "asks"), pl.String), orient="row"
    )
