"""Two pipelines on one time axis as inline SVG: a row per rank, a rectangle per cell. No scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracekit._util.text import html
from tracekit.report.palette import CELL_COLOURS
from tracekit.report.schedule.page import ticks
from tracekit.report.schedule.plot import NAMES

WIDTH, LEFT, ROW, GAP = 1100, 64, 22, 30
MOST_ROWS = 32
NUMBER = 14
"""Pixels a cell needs for its micro-batch's number."""


def two_timelines(sides: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Return the drawing: before above after, both from their first cell, to one scale."""
    end = max((cell["end_ns"] for rows in sides.values() for cell in rows), default=0) / 1e6
    if not end:
        return ""
    scale, y, out, cells_of = (WIDTH - LEFT - 8) / end, 16, [], []
    for name, cells in sides.items():
        ranks = sorted({cell["rank"] for cell in cells})[:MOST_ROWS]
        out.append(f'<text x="0" y="{y}" class="name">{html(name)}</text>')
        last = (max(cell["end_ns"] for cell in cells) if cells else 0) / 1e6 * scale
        row = {rank: y + 6 + at * ROW for at, rank in enumerate(ranks)}
        for rank, top in row.items():
            out.append(f'<text x="0" y="{top + 14}">rank {rank}</text>')
            out.append(f'<rect x="{LEFT}" y="{top}" width="{last:.1f}" height="{ROW - 3}" class="idle"/>')
        cells_of += [_cell(cell, row[cell["rank"]], scale) for cell in cells if cell["rank"] in row]
        y += len(ranks) * ROW + GAP
    for tick in ticks(end):
        x = LEFT + tick * scale
        out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="{y - 16}" class="tick"/>')
        out.append(f'<text x="{x:.1f}" y="{y - 4}" text-anchor="middle">{tick:g}</text>')
    out.append(f'<text x="{WIDTH / 2}" y="{y + 12}" text-anchor="middle">time (ms) from each step\'s first cell</text>')
    shape = f'viewBox="0 0 {WIDTH} {y + 18}" width="{WIDTH}"'
    out += cells_of  # above the lines of time
    label = "Pipeline cells before and after, on one time axis"
    return f'<div class="scroll"><svg {shape} role="img" aria-label="{label}">{"".join(out)}</svg></div>{_key(sides)}'


def _cell(cell: Mapping[str, Any], top: int, scale: float) -> str:
    start, end = cell["start_ns"] / 1e6, cell["end_ns"] / 1e6
    x, wide = LEFT + start * scale, max((end - start) * scale, 0.5)
    name = f"{cell['stage']}{cell['op']}{cell['microbatch']}"
    parts = [(cell["op"], cell["microbatch"], 0.0, 1.0)]
    if cell["op"] == "FB":
        name = f"({cell['stage']}F{cell['microbatch']};{cell['b_stage']}B{cell['b_microbatch']})"
        parts = [("F", cell["microbatch"], 0.0, 0.5), ("B", cell["b_microbatch"], 0.5, 0.5)]
    drawn = [f"<title>{html(name)} · rank {cell['rank']} · {start:.3f} to {end:.3f} ms</title>"]
    for op, microbatch, above, tall in parts:
        y, height = top + above * (ROW - 3), tall * (ROW - 3)
        fill = CELL_COLOURS[op]
        drawn.append(f'<rect x="{x:.2f}" y="{y:.1f}" width="{wide:.2f}" height="{height:.1f}" fill="{fill}"/>')
        if wide >= NUMBER:
            at = f'x="{x + wide / 2:.1f}" y="{y + height / 2 + 4:.1f}"'
            drawn.append(f'<text {at} text-anchor="middle" class="on">{microbatch}</text>')
    return f"<g>{''.join(drawn)}</g>"


def _key(sides: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    ops = {op for rows in sides.values() for cell in rows for op in cell["op"]}
    keys = [f'<li><i style="background:{CELL_COLOURS[op]}"></i>{NAMES[op]}</li>' for op in CELL_COLOURS if op in ops]
    return f'<ul class="legend">{"".join(keys)}<li><i class="idle"></i>outside cells</li></ul>'
