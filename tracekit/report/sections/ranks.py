"""Many ranks: how figures are spread over them, the ranks that differ, and a map of the mesh."""

from collections.abc import Sequence

from tracekit._util.text import counted, ms, percent
from tracekit.analysis import Analysis
from tracekit.analysis.combine.spread import MANY_RANKS, Different, Figure, Spread, spread
from tracekit.report.blocks import Block, MeshMap, Sentence
from tracekit.report.section import TERMINAL_AND_PAGE, Section
from tracekit.report.table import Column, PlacedValue, Table, make_table

MAX_DIFFERENT_RANKS_LISTED = 20
"""Ranks that differ and have a row of their own."""
MAX_DIFFERENT_RANKS_IN_A_TERMINAL = 8
FIGURE_NAMES = {
    "compute": "compute",
    "communication": "exposed comm",
    "bubble": "bubble",
    "idle": "idle",
    "span_ns": "span",
}


def spread_of_many(analysis: Analysis) -> Spread | None:
    """Return the distribution of figures over the ranks; None for a run of few ranks, each of which has a bar."""
    return spread(analysis) if len(analysis.ranks) > MANY_RANKS else None


def figure_text(name: str, number: float) -> str:
    """Return a figure as text: shares in per cent, spans in milliseconds.

    >>> figure_text("bubble", 0.25), figure_text("span_ns", 2_000_000)
    ('25.0 %', '2.0 ms')
    """
    return ms(number) if name == "span_ns" else percent(number)


def spread_table(ranks: Spread) -> Table | None:
    """Return how each figure is spread over the ranks."""
    columns = (
        Column("figure", terminal_heading=" "),
        Column("least", "figure"),
        Column("rank", "figure"),
        Column("5 % below", "figure", expendable=1),
        Column("median", "figure"),
        Column("95 % below", "figure", expendable=1),
        Column("most", "figure"),
        Column("rank", "figure"),
        Column("ranks by bin, least to most", "histogram", terminal_heading="ranks by bin"),
    )
    return make_table(columns, [_figure_row(figure) for figure in ranks.figures])


def _figure_row(figure: Figure) -> tuple[object, ...]:
    least, low, median, high, most = (
        figure_text(figure.name, value)
        for value in (figure.least, figure.low, figure.median, figure.high, figure.most)
    )
    least_rank: object = PlacedValue(figure.least_rank, figure.least_rank)
    most_rank: object = PlacedValue(figure.most_rank, figure.most_rank)
    if least == most:  # all are alike
        least_rank = most_rank = "–"
    name = FIGURE_NAMES[figure.name]
    return name, least, least_rank, low, median, high, most, most_rank, figure.counts


def different_table(ranks: Spread) -> Table | None:
    """Return the ranks that differ from those they should be like; None if none does."""
    columns = (
        Column("rank", "rank"),
        Column("figure", value=lambda row: FIGURE_NAMES[row.figure]),
        Column("is", "figure", value=lambda row: figure_text(row.figure, row.value)),
        Column("median", "figure", value=lambda row: figure_text(row.figure, row.median)),
        Column("of", value="like"),
    )
    rows: Sequence[Different] = ranks.different
    more = len(rows) - MAX_DIFFERENT_RANKS_LISTED
    notes = ["ranks that differ from those they should be like"]
    if more > 0:
        notes.append(f"{counted(more, 'more rank')} {'differs' if more == 1 else 'differ'}")
    return make_table(
        columns,
        rows[:MAX_DIFFERENT_RANKS_LISTED],
        notes=notes,
        short=range(MAX_DIFFERENT_RANKS_IN_A_TERMINAL),
        short_note=f"{MAX_DIFFERENT_RANKS_IN_A_TERMINAL} of {counted(len(rows), 'rank')}",
    )


def _build(analysis: Analysis) -> Sequence[Block | None]:
    ranks = analysis.once(spread_of_many)
    if ranks is None or not any(analysis.total.label_ns.values()):
        return []
    none_differs = Sentence("no rank differs from those it should be like", "aside")
    return [
        spread_table(ranks),
        different_table(ranks) or none_differs,
        MeshMap(ranks) if ranks.heat is not None else None,
    ]


RANKS_SECTION = Section(
    id="ranks",
    tab="Budget",
    title="Over the ranks",
    scope="shares of each rank's span",
    name="Ranks",
    about="how figures are spread over them",
    media=TERMINAL_AND_PAGE,
    build=_build,
)
