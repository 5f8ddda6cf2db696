"""Page of lateness over a whole run: the facts, a heat map of ranks and steps, and transfers over time.

The page needs no script and loads nothing: heat map and lines are SVG in the text.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from tracekit._util.notebook import html
from tracekit._util.text import ms, size
from tracekit.late import view
from tracekit.late.late_ranks import late_threshold
from tracekit.late.measure import lateness_matrix
from tracekit.late.page_collectives import (
    LABEL_WIDTH,
    PICTURE_WIDTH,
    ROW_HEIGHT,
    collective_timeline,
    scrolled_picture,
)
from tracekit.late.result import WholeRun
from tracekit.report.html.places import PathNames
from tracekit.report.html.source_paths import shorten_source_paths
from tracekit.report.notices import notice_sentence
from tracekit.report.table import Table
from tracekit.report.text import capitalize

MAX_COLUMNS = 240
"""Columns of the heat map: more steps share a column."""
MAX_LATENESS_ROWS = 128
"""Rows of the heat map: of more ranks those with most lateness are shown."""
MAX_TRANSFER_LINES = 6
"""Kinds of transfers that are drawn over time."""
LINE_HEIGHT = 60

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 64rem; padding: 0 1rem; color: #1c2330; }
h1 { font-size: 1.25rem; } h2 { font-size: 1.05rem; margin-top: 2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem .7rem .15rem 0; text-align: right; }
td { white-space: nowrap; } th { font-weight: 500; color: #667; }
td:first-child, th:first-child { text-align: left; } .note { color: #667; font-size: .9rem; }
svg text { font: 11px system-ui, sans-serif; fill: #667; }
.scroll { overflow-x: auto; max-width: 100%; }
@media (prefers-color-scheme: dark) {
  body { background: #12161d; color: #dde3ee; }
  th, .note { color: #9eabb6; } svg text { fill: #9eabb6; }
}
@media (max-width: 640px) {
  body { margin: 1rem auto; } h1 { font-size: 1.1rem; }
  .scroll svg { width: 640px; }
}
"""


def render_late_page(run: WholeRun) -> str:
    """Return the page."""
    title = capitalize(view.headline(run.document))
    names = PathNames([source.path for source in run.sources])
    notices = [
        shorten_source_paths(names.shorten(notice_sentence(notice)))
        for notice in run.document.warnings
    ]
    parts = [
        f"<h1>{html(title)}</h1>",
        list_of_lines(_fact_lines(run)),
        heat_map(run),
        collective_timeline(run),
        transfer_lines(run),
        table_of("How each rank joins", view.rank_table(run.document)),
        table_of("Waiting by group", view.group_table(run.document)),
        table_of("Transfers", view.transfer_table(run.document)),
        "<h2>Recorded</h2>",
        list_of_lines(view.record_and_clock_lines(run)),
        list_of_lines(notices),
    ]
    body = "\n".join(part for part in parts if part)
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    )
    head += f"<title>{html(title)}</title><style>{_STYLE}</style>"
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>\n{body}\n</body></html>\n'


def _fact_lines(run: WholeRun) -> list[str]:
    """Return what is known about hangs, late ranks, slow links and pipelines, a sentence each."""
    lines = [] if run.document.hang is None else list(view.hang_details(run.document.hang))
    lines += [capitalize(sentence) for sentence in view.fact_sentences(run.document)]
    return lines


def list_of_lines(lines: Sequence[str]) -> str:
    """Return lines as a list; empty without any."""
    items = "".join(f"<li>{html(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if items else ""


def table_of(title: str, table: Table | None) -> str:
    """Return a table below its heading; empty without a table."""
    if table is None:
        return ""
    heads = "".join(f"<th>{html(column.heading)}</th>" for column in table.columns)
    rows = []
    for row in table.rows:
        cells = ""
        for column, value in zip(table.columns, row, strict=True):
            cells += f"<td>{html(column.bare(value))}</td>"
        rows.append(f"<tr>{cells}</tr>")
    notes = "".join(f'<p class="note">{html(note)}</p>' for note in table.remarks())
    body = f"<tr>{heads}</tr>{''.join(rows)}"
    return f'<h2>{html(title)}</h2><div class="scroll"><table>{body}</table></div>{notes}'


def heat_map(run: WholeRun) -> str:
    """Return lateness as a picture: a row per rank, a column per step or span of steps."""
    if run.lateness.table.is_empty() or run.lateness.step_ns is None:
        return ""
    ranks, steps, matrix = lateness_matrix(run, max_columns=MAX_COLUMNS)
    shown = np.sort(np.argsort(-matrix.sum(axis=1), kind="stable")[:MAX_LATENESS_ROWS])
    width = (PICTURE_WIDTH - LABEL_WIDTH) / len(steps)
    threshold = late_threshold(run.lateness)
    darkest = max(float(matrix.max()), threshold)
    cells = []
    for line, row in enumerate(shown):
        cells.append(f'<text x="0" y="{line * ROW_HEIGHT + 11}">rank {ranks[row]}</text>')
        for column in np.flatnonzero(matrix[row] > 0):
            late_ns = int(matrix[row, column])
            opacity = late_ns / darkest
            if opacity < 0.02:
                continue
            colour = "#c8102e" if late_ns >= threshold else "#7a869a"
            x = LABEL_WIDTH + column * width
            text = f"rank {ranks[row]}, step {steps[column]}: {ms(late_ns)} late"
            cells.append(
                f'<rect x="{x:.1f}" y="{line * ROW_HEIGHT}" width="{max(width, 1):.1f}" height="{ROW_HEIGHT - 1}" '
                f'fill="{colour}" fill-opacity="{opacity:.2f}"><title>{html(text)}</title></rect>'
            )
    height = len(shown) * ROW_HEIGHT + 16
    ends = f'<text x="{LABEL_WIDTH}" y="{height - 3}">step {steps[0]}</text>'
    ends += f'<text x="{PICTURE_WIDTH}" y="{height - 3}" text-anchor="end">step {int(run.lateness.steps[-1])}</text>'
    note = f"red: late by more than is usual in this run ({ms(threshold)} in a step); the stronger, the later"
    left_out = len(ranks) - len(shown)
    if left_out:
        note += f"; {left_out} ranks with less lateness are not shown"
    svg = scrolled_picture("".join(cells) + ends, height)
    return f'<h2>Lateness by rank and step</h2>{svg}<p class="note">{html(note)}</p>'


def transfer_lines(run: WholeRun) -> str:
    """Return the time of transfers over the record, one line per kind and size."""
    pictures = []
    for entry in run.document.transfers[:MAX_TRANSFER_LINES]:
        rows = run.transfer_times.filter(
            (pl.col("group") == entry.group)
            & (pl.col("op") == entry.op)
            & (pl.col("bytes") == entry.bytes)
        )
        times = rows["transfer_ns"].to_numpy().astype(float)
        if len(times) < 3:
            continue
        highest = float(times.max()) or 1.0
        stride = max(1, len(times) // (2 * PICTURE_WIDTH))
        step = (PICTURE_WIDTH - LABEL_WIDTH) / max(len(times) - 1, 1)
        points = []
        for i in range(0, len(times), stride):
            x = LABEL_WIDTH + i * step
            y = LINE_HEIGHT - 4 - times[i] / highest * (LINE_HEIGHT - 18)
            points.append(f"{x:.1f},{y:.1f}")
        label = f"{entry.op} of {size(entry.bytes)}, group {entry.group}: up to {ms(highest)}"
        pictures.append(
            scrolled_picture(
                f'<text x="0" y="10">{html(label)}</text>'
                f'<polyline points="{" ".join(points)}" fill="none" stroke="#1f77b4" stroke-width="1"/>',
                LINE_HEIGHT,
            )
        )
    return f"<h2>Transfers over time</h2>{''.join(pictures)}" if pictures else ""
