"""Section of the page of an analysis about the whole run, from dumps and logs beside the traces.

Heat map of lateness, timeline of collectives and transfers over time are SVG in the text; late
steps that the traces show lead to the page's timeline.
"""

from __future__ import annotations

from collections.abc import Collection

from markupsafe import Markup

from tracekit._util.notebook import html
from tracekit.analysis import Analysis
from tracekit.late import view
from tracekit.late.page import heat_map, list_of_lines, table_of, transfer_lines
from tracekit.late.page_collectives import collective_timeline
from tracekit.late.result import WholeRun
from tracekit.report.text import capitalize


def whole_run_section(analysis: Analysis, lanes: Collection[int]) -> Markup | None:
    """Return the section about the whole run; None if there are no dumps or logs.

    Args:
        analysis: The analysis.
        lanes: Ranks on the page's timeline.

    """
    run = analysis.whole_run
    if run is None:
        return None
    sentences = [view.headline(run.document)]
    if run.document.hang is not None:
        sentences += view.hang_details(run.document.hang)
    sentences += view.fact_sentences(run.document)
    parts = [
        list_of_lines([capitalize(sentence) for sentence in dict.fromkeys(sentences)]),
        profiled_links(run, lanes),
        heat_map(run, level=3),
        collective_timeline(run, level=3),
        transfer_lines(run, level=3),
        table_of("How each rank joins", view.rank_table(run.document), level=3),
        table_of("Waiting by group", view.group_table(run.document), level=3),
        table_of("Transfers", view.transfer_table(run.document), level=3),
        f"<h3>Recorded</h3>{list_of_lines(view.record_and_clock_lines(run))}",
    ]
    body = "\n".join(part for part in parts if part)
    return Markup(body)  # all texts in it are escaped where they are put in


def profiled_links(run: WholeRun, lanes: Collection[int]) -> str:
    """Return links from the late steps that the traces show to the page's timeline."""
    links = []
    for fact in run.document.late:
        for rank in fact.ranks:
            if rank not in lanes:
                continue
            for step in fact.profiled_steps:
                text = f"rank {rank}, step {step}"
                links.append(
                    f'<a href="#timeline" data-rank="{rank}" data-step="{step}">{html(text)}</a>'
                )
    if not links:
        return ""
    return f'<p class="note">Late steps on the timeline of the traces: {", ".join(links)}.</p>'
