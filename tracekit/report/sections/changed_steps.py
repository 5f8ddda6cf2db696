"""Predicted step times with changes that were asked for, or that would save most."""

from collections.abc import Iterator, Mapping, Sequence

from tracekit._util.text import ms, percent, signed
from tracekit.analysis import Analysis
from tracekit.documents.analysis import ChangedStep
from tracekit.graph.change import parse_change
from tracekit.graph.changes import Lane
from tracekit.report.blocks import Box, Folded, Row, RowChart, Sentence
from tracekit.report.palette import LABEL_COLOURS
from tracekit.report.section import ALL, Section
from tracekit.report.table import Column, PlacedValue, Table, make_table
from tracekit.report.text import bare_ms, gb_range

MAX_CHANGED_RANKS_DRAWN = 8
"""Ranks whose lanes are drawn."""
MAX_PARTS_NAMED = 3
"""Parts of the new critical path that are named."""


def changes_table(analysis: Analysis) -> Table | None:
    """Return the predicted step times with changes that were asked for, or that would save most.

    None without any.
    """
    rows = analysis.changed_steps
    notes = [f"{row.change}: not answered, because {row.why_not}" for row in rows if row.why_not]
    if len(notes) < len(rows):
        step = f"{ms(rows[0].measured_ns)} as measured"
        if rows[0].free_ns is not None and analysis.step.profiler_ns:
            step = f"{ms(rows[0].free_ns)} without the profiler, {step}"
        saves = "saves: an upper bound of what the change can give"
        per_step = "time of the step"
        if max(len(analysis.step.per_step), 1) > 1:
            per_step = "time per step (all steps and the time between them / their number)"
        notes.insert(0, f"{per_step}, {step}; {saves}")
    for row in rows:
        if row.peak_bytes is not None:
            needs = f"{row.change}: the fullest rank needs {gb_range(*row.peak_bytes)} GB"
            notes.append(f"{needs}, which does not fit" if row.fits is False else needs)
    return make_table(
        _CHANGE_COLUMNS,
        rows,
        notes=notes,
        caption="Predicted by a replay of all kernels, launches, messages and collectives with the change",
    )


def assumptions(analysis: Analysis) -> list[Sentence]:
    """Return what the predictions rest on, each once."""
    texts: dict[str, None] = {}
    for row in analysis.changed_steps:
        texts |= dict.fromkeys(row.rests_on)
    return [Sentence(text, "aside") for text in texts]


def change_table(step: ChangedStep) -> Table | None:
    """Return one prediction as a table, or why there is none."""
    why_not = [f"{step.change}: not answered, because {step.why_not}"] if step.why_not else []
    return make_table(_CHANGE_COLUMNS, [step], notes=[*why_not, *step.rests_on])


def change_charts(analysis: Analysis) -> Iterator[Folded]:
    """Yield each change that can be drawn: the lanes of ranks as measured and as predicted."""
    if analysis.graph is None:
        return
    for row in analysis.changed_steps:
        if row.saves_ns is not None:
            changes = [parse_change(text) for text in row.changes]
            measured = analysis.graph.lanes((), max_ranks=MAX_CHANGED_RANKS_DRAWN)
            predicted = analysis.graph.lanes(changes, max_ranks=MAX_CHANGED_RANKS_DRAWN)
            charts = [_lanes_chart("measured", measured), _lanes_chart("predicted", predicted)]
            title = f"{row.change}: the step as measured, and as predicted"
            yield Folded(title, charts, is_open=row is analysis.changed_steps[0])


def _lanes_chart(title: str, lanes: Mapping[int, Lane]) -> RowChart:
    """Return the lanes of ranks as a chart, on the shares of the step that they have."""
    rows = []
    for rank, parts in lanes.items():
        boxes = [
            Box(start, start + width, LABEL_COLOURS[label], label)
            for label, start, width in parts
            if label
        ]
        rows.append(Row(f"rank {rank}", boxes))
    return RowChart(title, rows, 0.0, 1.0, has_times=False, heading=PlacedValue(title, None))


def describe_range(range_ns: Sequence[int] | None) -> str:
    """Return the shortest and the longest predicted time in ms; empty if there is no range.

    >>> describe_range((1_200_000, 3_400_000))
    '1.2 – 3.4'
    """
    return " – ".join(bare_ms(ns, 1) for ns in range_ns or ())


def _longest_parts(row: ChangedStep) -> str:
    """Return the longest parts of the critical path after a change."""
    parts = []
    for part in row.critical_path[:MAX_PARTS_NAMED]:
        share = percent(part.ns, row.predicted_ns, digits=0)
        parts.append(f"{part.label or 'host'} on rank {part.rank} {share}")
    return ", ".join(parts)


def _predicted_ns(row: ChangedStep) -> int | None:
    """Return the predicted step, without the profiler where that is known: what is saved is of that step."""
    return row.predicted_ns if row.free_predicted_ns is None else row.free_predicted_ns


def _predicted_range_ns(row: ChangedStep) -> tuple[int, int] | None:
    """Return the range of the predicted step.

    >>> _predicted_range_ns(ChangedStep("a", ("a",), 100, free_ns=80, free_predicted_ns=60, saves_range_ns=(10, 30)))
    (50, 70)
    """
    if row.free_predicted_ns is None or row.free_ns is None or row.saves_range_ns is None:
        return row.predicted_range_ns
    least_ns, most_ns = row.saves_range_ns
    return max(row.free_ns - most_ns, 0), max(row.free_ns - least_ns, 0)


_CHANGE_COLUMNS = (
    Column("change", "name"),
    Column("predicted", "ms", terminal_heading="predicted ms", value=_predicted_ns),
    Column("between ms", "figure", 1, value=lambda row: describe_range(_predicted_range_ns(row))),
    Column(
        "saves ms",
        "figure",
        value=lambda row: "" if row.saves_ns is None else signed(row.saves_ns / 1e6),
    ),
    Column(
        "of the step",
        "share",
        2,
        value=lambda row: row.saves_ns and row.saves_ns / max(row.free_ns or row.measured_ns, 1),
    ),
    Column("then the longest", "word", 3, value=_longest_parts),
)


CHANGE_SECTIONS = (
    Section(
        id="changes",
        tab="Critical path",
        title="What a change would give",
        name="What if",
        about="what a change would give",
        build=lambda analysis: [changes_table(analysis)],
    ),
    Section(
        id="changes-rest-on",
        title="What these predictions rest on",
        part_of="changes",
        when_asked=ALL,
        build=assumptions,
    ),
    Section(
        id="changed-lanes",
        title="The step with each change",
        part_of="changes",
        media=("page",),
        when_asked=ALL,
        build=lambda analysis: list(change_charts(analysis)),
    ),
)
