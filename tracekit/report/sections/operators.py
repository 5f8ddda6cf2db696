"""Operators with what they were given, and the parts of a step's compute."""

from collections.abc import Iterator, Mapping

import polars as pl

from tracekit._util.text import percent, terminal
from tracekit.analysis import Analysis
from tracekit.report.section import Section
from tracekit.report.table import Column, Table, make_table
from tracekit.schema import COMMUNICATION_LABELS, COPY_LABELS

MAX_OPERATORS_IN_TABLE = 30
MIN_COMPUTE_PART_SHARE = 0.02
"""Share of compute from which a part of it is named."""
MAX_MODULES = 4
"""Parts of the model that are named, those with most time."""
MAX_PHASES = 3
"""Phases of a step that are named, or operators where there is one phase."""
MIN_KNOWN_SHARE = 0.5
"""Share of compute outside the optimizer whose part of the model is known, from which these parts are
named; of less, phases and operators are."""
MIN_SHARE_WITH_SIZES = 0.2
"""Share of compute from which an operator is named with the sizes of its largest tensor."""
MIN_SOLE_SHARE = 0.9
"""Share of a phase's time from which one operator counts as all of it."""
REST = "the rest"
"""What is not named of the exposed labels, or of the parts of compute."""
_PHASE_OF_LABEL = {"dgrad": "backward", "wgrad": "backward"}
_OPTIMIZER = "optimizer"


def operator_table(analysis: Analysis) -> Table | None:
    """Return the operators that take longest, with what they were given; None if none were recorded."""
    operators = analysis.tables["operators"].drop_nulls("op")
    rank_steps = max(1, sum(len(rank.per_step) for rank in analysis.ranks))
    span_ns = max(1.0, analysis.total.budget.span_ns / rank_steps)
    has_inputs = operators["inputs"].is_not_null().any()
    longest = operators.sort("ns", descending=True, maintain_order=True)
    if (
        has_inputs
    ):  # sums over the calls of an operator that take little time say little beside them
        longest = longest.drop_nulls("inputs")
    columns = (
        Column("operator", "code", value="op"),
        Column("time", "ms", digits=2, value="ns"),
        Column("of span", "share", value=lambda row: row["ns"] / span_ns),
        Column("inputs", value=lambda row: row["inputs"] or ""),
        Column("label", "label", expendable=1),
        Column("calls", "figure", expendable=3, value=lambda row: _figure(row["calls"])),
        Column("kernels", "figure", expendable=2, value=lambda row: _figure(row["kernels"])),
    )
    notes = ["per step; time: the sum of the durations of what an operator launches"]
    if has_inputs:
        notes.append(
            "inputs: sizes and types of the tensors, and how those lie in memory that are not contiguous"
        )
    return make_table(
        columns,
        longest.head(MAX_OPERATORS_IN_TABLE).to_dicts(),
        notes=notes,
        search=_search,
    )


def _search(row: Mapping[str, str | None]) -> str:
    """Return the search of the timeline for the calls of a row."""
    inputs = row["inputs"]
    with_inputs = f' inputs:"={inputs}"' if inputs else ""
    return f'op:"{row["op"]}" label:={row["label"]}{with_inputs}'


def _figure(number: float) -> str:
    """Return a count per step, which is a fraction where steps or ranks differ."""
    return f"{number:,.1f}".removesuffix(".0")


def compute_parts(analysis: Analysis) -> list[str]:
    """Return the largest parts of compute with their shares: parts of the model, else phases with their operators.

    Empty if neither is known, or if there is a single part.
    """
    return _parts_of_model(analysis) or _phases(analysis)


def _parts_of_model(analysis: Analysis) -> list[str]:
    """Return the parts of the model and the optimizer with their shares; empty where too little is known of them."""
    name = pl.coalesce("module", pl.when(pl.col("label") == _OPTIMIZER).then(pl.lit(_OPTIMIZER)))
    parts = _compute(analysis.tables["kernels"]).group_by(name=name).agg(pl.col("ns").sum())
    total_ns = float(parts["ns"].sum())
    of_model = parts.filter(pl.col("name").ne_missing(_OPTIMIZER))
    known_ns = float(of_model.drop_nulls("name")["ns"].sum())
    named = (
        parts.drop_nulls("name")
        .sort("ns", "name", descending=[True, False])
        .head(MAX_MODULES)
        .filter(pl.col("ns") >= MIN_COMPUTE_PART_SHARE * total_ns)
    )
    if len(named) < 2 or known_ns < MIN_KNOWN_SHARE * float(of_model["ns"].sum()):
        return []
    shares = []
    for part, ns in named.rows():
        share = f"{terminal(part)} {percent(ns, total_ns, digits=0)}"
        if part == _OPTIMIZER and ns >= MIN_SHARE_WITH_SIZES * total_ns:
            share += _main_operator(_compute(analysis.tables["operators"]), part, ns, total_ns)
        shares.append(share)
    return [*shares, *_rest(total_ns - float(named["ns"].sum()), total_ns)]


def _phases(analysis: Analysis) -> list[str]:
    """Return the phases that compute longest, each with its main operator; the operators of a single phase."""
    operators = _compute(analysis.tables["operators"]).with_columns(
        phase=pl.col("label").replace(_PHASE_OF_LABEL)
    )
    total_ns = float(operators["ns"].sum())
    min_ns = MIN_COMPUTE_PART_SHARE * total_ns
    phases = (
        operators.filter(pl.col("label") != "other")
        .group_by("phase")
        .agg(pl.col("ns").sum())
        .filter(pl.col("ns") >= min_ns)
        .sort("ns", "phase", descending=[True, False])
        .head(MAX_PHASES)
    )
    if len(phases) == 1:
        return _operators_of_one_phase(operators, total_ns)
    parts = []
    for phase, ns in phases.rows():
        share = f"{phase} {percent(ns, total_ns, digits=0)}"
        parts.append(share + _main_operator(operators, phase, ns, total_ns))
    named_ns = float(phases["ns"].sum())
    return [*parts, *_rest(total_ns - named_ns, total_ns)] if len(parts) > 1 else []


def _main_operator(operators: pl.DataFrame, phase: str, ns: float, total_ns: float) -> str:
    """Return in brackets the operator that takes most of a phase's time *ns*; empty if none is known."""
    of_phase = operators.filter(pl.col("label").replace(_PHASE_OF_LABEL) == phase)
    main = next(_longest_operators(of_phase), None)
    if main is None:
        return ""
    op, op_ns = main
    share = "" if op_ns >= MIN_SOLE_SHARE * ns else f"{percent(op_ns, total_ns, digits=0)} "
    return f" ({share}{_operator_words(of_phase.filter(op=op), op, op_ns, total_ns)})"


def _operators_of_one_phase(operators: pl.DataFrame, total_ns: float) -> list[str]:
    """Return the operators that take longest with their shares."""
    parts = []
    named_ns = 0.0
    for op, ns in list(_longest_operators(operators))[:MAX_PHASES]:
        if ns >= MIN_COMPUTE_PART_SHARE * total_ns:
            words = _operator_words(operators.filter(op=op), op, ns, total_ns)
            parts.append(f"{words} {percent(ns, total_ns, digits=0)}")
            named_ns += ns
    return [*parts, *_rest(total_ns - named_ns, total_ns)] if len(parts) > 1 else []


def _longest_operators(operators: pl.DataFrame) -> Iterator[tuple[str, float]]:
    """Yield operators and their time, the longest first."""
    by_op = operators.drop_nulls("op").group_by("op").agg(pl.col("ns").sum())
    yield from by_op.sort("ns", "op", descending=[True, False]).rows()


def _operator_words(calls: pl.DataFrame, op: str, ns: float, total_ns: float) -> str:
    """Return an operator's name, with the sizes of its largest tensor where it matters and most calls have them."""
    name = terminal(op.removeprefix("aten::"))
    by_size = calls.drop_nulls("largest").group_by("largest").agg(pl.col("ns").sum())
    main = by_size.filter(pl.col("ns") > ns / 2)["largest"].to_list()
    if not main or ns < MIN_SHARE_WITH_SIZES * total_ns:
        return name
    return f"{name} on {main[0]}"


def _compute(table: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a table that compute."""
    return table.filter(~pl.col("label").is_in([*COMMUNICATION_LABELS, *COPY_LABELS]))


def _rest(ns: float, total_ns: float) -> list[str]:
    """Return what no part has, if it is worth naming."""
    return (
        [f"{REST} {percent(ns, total_ns, digits=0)}"]
        if ns >= MIN_COMPUTE_PART_SHARE * total_ns
        else []
    )


OPERATORS_SECTION = Section(
    id="operators",
    tab="Kernels",
    title="Operators and what they were given",
    name="Operators",
    about="by the sizes, types and strides of their inputs",
    folded=("markdown",),
    when_asked=("terminal",),
    build=lambda analysis: [operator_table(analysis)],
)
