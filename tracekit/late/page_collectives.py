"""Timeline of collectives around the latest step: SVG with a row per rank and a bar per collective."""

from __future__ import annotations

import polars as pl

from tracekit._util.notebook import html
from tracekit._util.text import counted, ms, size
from tracekit.late.result import WholeRun
from tracekit.late.timeline import collective_bars
from tracekit.report.text import capitalize

PICTURE_WIDTH = 960
"""Width of the pictures about a whole run, in the units of their view box."""
ROW_HEIGHT = 14
LABEL_WIDTH = 60
MAX_TIMELINE_ROWS = 16
"""Ranks on the timeline of collectives: of more the late ones and those with the lowest numbers are
shown."""
BAR_ROW_HEIGHT = 20
OP_COLOURS = {
    "all_reduce": "#0072B2",
    "all_gather": "#009E73",
    "reduce_scatter": "#E69F00",
    "all_to_all": "#CC79A7",
    "broadcast": "#56B4E9",
}
"""Colours of collectives; others share one."""
OTHER_COLOUR = "#7a869a"


def picture_attributes(height: int) -> str:
    """Return the attributes of a picture: its size, and text in the page's own colour."""
    return f'viewBox="0 0 {PICTURE_WIDTH} {height}" width="100%" role="img" font-size="11" fill="currentColor"'


def scrolled_picture(content: str, height: int, *, name: str = "") -> str:
    """Return a picture of this content; it scrolls where a screen is too narrow for its texts."""
    attributes = f'class="{name}" ' if name else ""
    return (
        f'<div class="scroll"><svg {attributes}{picture_attributes(height)}>{content}</svg></div>'
    )


def collective_timeline(run: WholeRun) -> str:
    """Return the collectives around the latest step as a picture: a row per rank, a bar per collective.

    The pale part of a bar is waiting for the last member; a line marks the host's call.
    """
    bars = collective_bars(run)
    if bars.is_empty():
        return ""
    present = sorted(bars["rank"].unique().to_list())
    ranks: dict[int, None] = {}  # late ranks first
    for late_ranks in run.document.late:
        ranks |= dict.fromkeys(late_ranks.ranks)
    ranks |= dict.fromkeys(present)
    shown = sorted([rank for rank in ranks if rank in present][:MAX_TIMELINE_ROWS])
    times = bars.select(
        first=pl.min_horizontal(pl.col("called_ns", "joined_ns", "end_ns").min()),
        last=pl.max_horizontal(pl.col("called_ns", "end_ns").max()),
    )
    first_ns, last_ns = times.row(0)
    per_ns = (PICTURE_WIDTH - LABEL_WIDTH) / max(last_ns - first_ns, 1)
    pieces = []
    for line, rank in enumerate(shown):
        top = line * BAR_ROW_HEIGHT
        pieces.append(f'<text x="0" y="{top + 13}">rank {rank}</text>')
        for bar in bars.filter(pl.col("rank") == rank).iter_rows(named=True):
            pieces += _bar_pieces(bar, top=top, first_ns=first_ns, per_ns=per_ns)
    height = len(shown) * BAR_ROW_HEIGHT + ROW_HEIGHT
    pieces.append(f'<text x="{LABEL_WIDTH}" y="{height - 3}">0</text>')
    pieces.append(
        f'<text x="{PICTURE_WIDTH}" y="{height - 3}" text-anchor="end">{html(ms(last_ns - first_ns))}</text>'
    )
    steps = sorted(bars["step"].drop_nulls().unique().to_list())
    title = f"Collectives of steps {steps[0]} to {steps[-1]}" if steps else "The last collectives"
    left_out = len(present) - len(shown)
    more = f"; {counted(left_out, 'more rank')} not shown" if left_out else ""
    note = f"a bar per collective, pale while it waits for the last rank to join; a line where the host called it{more}"
    svg = scrolled_picture("".join(pieces), height, name="collectives")
    return f'<h2>{html(title)}</h2>{svg}<p class="note">{html(capitalize(note))}.</p>'


def _bar_pieces(bar: dict[str, object], *, top: int, first_ns: int, per_ns: float) -> list[str]:
    """Return the SVG of one member of a collective: waiting, transfer and the host's call."""
    joined, all_joined, end, called = (
        bar[name] for name in ("joined_ns", "all_joined_ns", "end_ns", "called_ns")
    )
    colour = OP_COLOURS.get(str(bar["op"]), OTHER_COLOUR)
    pieces = []
    if isinstance(joined, int) and isinstance(all_joined, int) and isinstance(end, int):
        what = (
            f"{bar['op']} of {size(bar['bytes'])}"
            if isinstance(bar["bytes"], int)
            else str(bar["op"])
        )
        step = "" if bar["step"] is None else f", step {bar['step']}"
        waited = f": waits {ms(all_joined - joined)}, transfer {ms(end - all_joined)}"
        text = f"rank {bar['rank']}{step}, {what}{waited}"
        title = f"<title>{html(text)}</title>"
        for start_ns, end_ns, opacity in ((joined, all_joined, 0.3), (all_joined, end, 0.9)):
            x = LABEL_WIDTH + (start_ns - first_ns) * per_ns
            width = max((end_ns - start_ns) * per_ns, 0.0)
            if width > 0:
                pieces.append(
                    f'<rect x="{x:.1f}" y="{top + 3}" width="{width:.2f}" height="{BAR_ROW_HEIGHT - 8}" '
                    f'fill="{colour}" fill-opacity="{opacity}">{title}</rect>'
                )
    if isinstance(called, int):
        x = LABEL_WIDTH + (called - first_ns) * per_ns
        pieces.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top + 1}" y2="{top + BAR_ROW_HEIGHT - 3}" '
            'stroke="currentColor" stroke-width="0.7"/>'
        )
    return pieces
