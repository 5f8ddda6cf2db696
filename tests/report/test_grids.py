"""Tables that terminal, page and Markdown share: the same columns and rows in each, whatever the width."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import polars as pl
import pytest
from msgspec import structs
from rich.console import Console

from tests.kept import analysis_of
from tracekit.documents.analysis import HostActivity
from tracekit.report.html.charts import PageClock, timeline_data
from tracekit.report.html.page import render_html
from tracekit.report.markdown import render_markdown
from tracekit.report.sections import CORE_SECTIONS
from tracekit.report.sections.copies import copy_table
from tracekit.report.sections.idle import host_activity_table
from tracekit.report.sections.places import by_table
from tracekit.report.sections.rates import communication_table, products_table
from tracekit.report.table import Table
from tracekit.report.terminal.analysis import render

pytestmark = pytest.mark.slow

SHARED = {
    "copies": ("reload", {}),
    "experts": ("router", {}),
    "communication": ("router", {}),
    "products": ("router", {}),
    "idle": ("1f1b", {}),
    "hiding": ("1f1b", {}),
    "reload": ("reload", {}),
}
CLASSES = {
    **dict.fromkeys(("word", "label", "name"), ' class="word"'),
}


def find(section_id):
    return next(section for section in CORE_SECTIONS if section.id == section_id)


@pytest.fixture(scope="module")
def run(samples):
    return lambda name, **options: analysis_of(samples / name, **options)


def text_of(analysis, width):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    render(analysis, console)
    return console.file.getvalue()


@pytest.mark.parametrize("table", SHARED)
def test_every_column_is_in_a_wide_terminal_and_on_the_page(run, table):
    name, options = SHARED[table]
    analysis = run(name, **options)
    (shown,) = (block for block in find(table).blocks(analysis) if isinstance(block, Table))
    page, text = render_html(analysis), text_of(analysis, 200)
    heads = next(line for line in text.splitlines() if line.split()[: 1] == shown.columns[0].heading.split()[:1]
                 and all(column.heading in line for column in shown.columns))  # fmt: skip
    assert heads
    top = "".join(
        f'<th scope="col"{CLASSES.get(column.kind, "")}>{column.name}</th>'
        for column in shown.columns
    )
    assert top in re.sub(r">\s+<", "><", page)


def test_copies_say_how_much_of_the_link_they_use_everywhere(run):
    analysis = run("reload")
    assert "of link" in text_of(analysis, 80)
    page = render_html(analysis).split('id="copies"')[1].split("</section>")[0]
    assert '<th scope="col">of link</th>' in page
    assert "65.7 %" in page
    assert "Link: 63 GB/s one way" in page.replace("\N{NO-BREAK SPACE}", " ")


def test_experts_say_what_they_compute_everywhere(run):
    analysis = run("router")
    page = render_html(analysis).split('<h3 id="experts">')[1].split("</section>")[0]
    markdown = render_markdown(analysis).split("### Experts")[1].split("###")[0]
    for text in (page, markdown, text_of(analysis, 80)):
        assert "of mean time" in text
        assert "157.5 %" in text
    assert "and the step takes 1.2" in page.replace("\N{NO-BREAK SPACE}", " ")


def test_rows_that_were_asked_for_are_in_the_markdown(run):
    by = run("layers", by="layer")
    table = render_markdown(by).split("### By layer")[1].split("\n###")[0]
    rows = by_table(by).rows
    assert all(f"| {row[0]} |" in table for row in rows[:10])
    assert "every busy nanosecond in one row" in table


def test_a_note_about_a_column_goes_with_it(run):
    wide, narrow = (
        text_of(run("router"), width).split("Experts: what")[1].split("Whom")[0]
        for width in (160, 60)
    )
    assert "most in: exchanges" in wide
    assert "most in" not in narrow


def test_a_run_without_a_pipeline_has_no_phases_to_choose(run):
    phases = {
        name: timeline_data(run(name), PageClock(run(name))).ranks[0].phases
        for name in ("router", "1f1b")
    }
    assert phases["router"] == []
    assert [name for _, name, _, _ in phases["1f1b"]][:3] == ["warm-up", "steady", "cool-down"]


@pytest.mark.parametrize(("share", "shown"), [(0.0045, False), (0.0055, True)])
def test_what_the_host_hardly_did_has_no_row(run, share, shown):
    analysis = run("router")
    span = analysis.total.budget.span_ns
    little = round(share * span)
    rows = tuple(
        HostActivity("operator", name, None, ns, 1)
        for name, ns in (("aten::mm", span - little), ("aten::add", little))
    )
    first = structs.replace(analysis.ranks[0], idle_host=rows)
    others = tuple(structs.replace(one, idle_host=()) for one in analysis.ranks[1:])
    activity = host_activity_table(replace(analysis, ranks=(first, *others)))
    assert [row[3] for row in activity.rows] == ["aten::mm", "aten::add"][: 1 + shown]


def test_an_operation_is_named_once(run):
    assert communication_table(run("reload")).rows[0][0] == "broadcast × 4 (group 1)"


@pytest.mark.parametrize("width", [80, 120, 160])
def test_no_table_is_broader_than_the_terminal_and_no_label_is_cut(run, width):
    for name, options in (
        ("1f1b", {}),
        ("router", {}),
        ("reload", {}),
        ("layers", {"by": "layer"}),
    ):
        for line in text_of(run(name, **options), width).splitlines():
            assert len(line) <= width or "tracekit analyze" in line
            assert line.strip() != "■"
            assert "■ …" not in line


def test_bandwidths_that_no_link_or_memory_has_are_marked(run):
    analysis = run("router")
    rates = analysis.rate_tables
    assert not any("not plausible" in note for note in communication_table(analysis).notes)
    # An H200's memory moves 4,800 GB/s.
    fast = rates.communication.with_columns(algorithm_gb_s=pl.lit(9000.0))
    marked = replace(analysis, rate_tables=structs.replace(rates, communication=fast))
    assert any(
        "not plausible" in note and "9,000 GB/s" in note
        for note in communication_table(marked).notes
    )


def test_copies_faster_than_their_link_are_marked(run):
    analysis = run("reload")
    assert not any("faster than that link" in note for note in copy_table(analysis).notes)
    table = analysis.tables["copies"].with_columns(link_gb_s=pl.lit(0.1))
    marked = replace(analysis, tables={**analysis.tables, "copies": table})
    assert any("faster than that link" in note for note in copy_table(marked).notes)


def test_shares_of_peak_say_which_peak(run):
    assert (
        "peak of NVIDIA H200 with 32 of its 132 multiprocessors"
        in products_table(run("router")).notes[0]
    )
