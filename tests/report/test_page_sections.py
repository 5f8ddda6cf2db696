"""Tests of the page's sections that only some runs have, in a real browser."""

from __future__ import annotations

import io
from dataclasses import replace

import polars as pl
import pytest
from rich.console import Console

from tracekit import read_analysis
from tracekit.report.html.charts import path_pieces, path_time_in_cells
from tracekit.report.html.page import render_html
from tracekit.report.sections.path import path_table
from tracekit.report.terminal.analysis import render

pytestmark = pytest.mark.slow


@pytest.fixture
def runs(analysed, pages):
    """Return a sample's analysis with its critical path, and the page of it."""
    return lambda name: (analysed(name), pages(name, path=True))


def texts(page, rows):
    return [row.split("\t") for row in page.locator(rows).all_inner_texts()]


def test_rates_of_products_communication_and_experts(look, runs):
    _, path = runs("router")
    page = look(path)
    page.locator("#rates summary").first.click()
    heads = page.locator("#rates h3").all_inner_texts()
    assert heads == [
        "How fast products ran",
        "How fast communication ran",
        "Experts: what each rank receives in the forward's dispatches",
    ]
    experts = texts(page, "#rates table:last-of-type >> nth=2 >> tbody tr")
    assert [(row[0], row[2]) for row in experts] == [
        ("0", "160.0 %"),
        ("1", "80.0 %"),
        ("2", "80.0 %"),
        ("3", "80.1 %"),
    ]
    page.locator("#rates a[data-rank='3']").click()
    page.locator("#said", has_text="timeline of rank 3").wait_for(state="attached")
    assert page.said == []


def test_one_rank_has_rates_of_its_products_alone(look, runs):
    _, path = runs("rates")
    page = look(path)
    assert page.locator("#rates h2").inner_text().split(maxsplit=1) == [
        "Rates",
        "how fast products and communication ran",
    ]
    assert page.locator("#rates h3").count() == 0  # one table needs no second heading
    page.locator("#rates summary").first.click()
    rows = texts(page, "#rates tbody tr")
    odd = next(
        row for row in rows if row[1] == "2048×1024 · 1024×4093" and row[0].startswith("forward")
    )
    assert odd[2:5] == ["bf16", "96.2", "9.7 %"]  # an odd width keeps the product off the fast path


def test_what_better_kernels_could_give_stands_under_the_gap(look, runs):
    analysis, path = runs("1f1b")
    page = look(path)
    text = page.locator("#gap p", has_text="below peak").inner_text().replace("\xa0", " ")
    assert text.startswith("Kernels below peak: products would take ")
    shorter = analysis.to_document().rates.below_peak_ns / sum(
        len(one.per_step) for one in analysis.ranks
    )
    assert f"{shorter / 1e6:.1f} ms less per rank and step" in text
    console = Console(file=io.StringIO(), width=200, highlight=False)
    render(analysis, console)
    assert (
        text[1:].removesuffix(".") in console.file.getvalue()
    )  # there without a capital, like every note


def test_the_path_lists_its_longest_segments_and_leads_to_their_ranks(look, runs):
    analysis, path = runs("1f1b")
    page = look(path)
    rows = texts(page, "#critical-path tbody tr")
    lengths = analysis.critical_path.segments.select(
        "rank",
        ns=analysis.critical_path.segments["end_ns"] - analysis.critical_path.segments["start_ns"],
    )
    longest = lengths.sort("ns", descending=True).head(10)
    assert len(rows) == 10
    assert sorted(int(row[3]) for row in rows) == sorted(longest["rank"])
    assert sorted(row[1] for row in rows) == sorted(f"{ns / 1e6:.1f} ms" for ns in longest["ns"])
    page.locator("#critical-path tbody tr").nth(1).locator("a").first.click()
    page.locator("#said", has_text=f"timeline of rank {rows[1][3]}").wait_for(state="attached")


def test_what_was_read_from_json_has_no_path(runs, tmp_path):
    runs("1f1b")[0].save(tmp_path / "run.json")
    analysis = read_analysis(tmp_path / "run.json")
    assert path_table(analysis) is None
    assert 'id="critical-path"' not in render_html(analysis)


def test_cells_on_the_path_are_marked(look, runs):
    _, path = runs("1f1b")
    page = look(path)
    page.focus("#schedule-chart")
    page.keyboard.press("n")  # rank 0's first forward, where the step begins
    assert "on the critical path: " in page.locator("#said").inner_text()
    assert "on the critical path" in page.locator("#schedule-legend").inner_text()
    assert page.said == []


def test_the_timelines_path_is_that_of_the_analysis(look, runs):
    analysis, path = runs("1f1b")
    page = look(path)
    by_rank = page.evaluate(
        "(() => { const { path } = tracekit.timeline.sources[0]; return [...path.byRank].map(([rank, list]) =>"
        "[rank, list.reduce((sum, i) => sum + path.end[i] - path.start[i], 0)]); })()"
    )
    expected = {
        int(rank): ns / 1e6 for rank, ns in analysis.critical_path.totals()["by_rank"].items()
    }
    assert dict(map(tuple, by_rank)) == pytest.approx(expected, abs=1e-4)


def test_the_marked_cells_are_those_of_the_path(runs):
    analysis, _ = runs("1f1b")
    held, segments = analysis.comparison.head, analysis.critical_path.segments.filter(kind="cell")
    marked = held.cells.with_columns(path_time_in_cells(analysis.critical_path, held)).filter(
        pl.col("path_ns") > 0
    )
    names = {
        f"{stage}{op}{batch}"
        for stage, op, batch in marked.select("stage", "op", "microbatch").iter_rows()
    }
    assert names == set(segments["what"])
    assert marked["path_ns"].sum() == (segments["end_ns"] - segments["start_ns"]).sum()
    assert path_time_in_cells(None, held).sum() == 0


def test_the_pages_path_sums_to_each_ranks_part_of_it(runs):
    analysis, _ = runs("1f1b")
    pieces = path_pieces(analysis.critical_path)
    for rank, ns in analysis.critical_path.totals()["by_rank"].items():
        own = pieces.filter(rank=int(rank))
        assert (own["end_ns"] - own["start_ns"]).sum() == ns


def test_a_phones_captions_stand_above_their_tables(look, runs):
    page = look(runs("1f1b")[1])
    page.set_viewport_size({"width": 390, "height": 800})
    boxes = page.evaluate(
        """[...document.querySelectorAll('.scroll > table > caption')].filter((one) => one.offsetParent).map((one) =>
            [one.getBoundingClientRect(), one.parentElement.tHead?.getBoundingClientRect()]
            .map((box) => box && { top: box.top, bottom: box.bottom, right: box.right }))"""
    )
    assert len(boxes) > 5
    for caption, head in boxes:
        assert caption["right"] <= 390
        assert head is None or caption["bottom"] <= head["top"] + 1


def test_paper_cuts_no_table(look, runs):
    page = look(runs("1f1b")[1], width=718, height=1040, media="print")  # A4 within its margins
    wide = "[...document.querySelectorAll('main table')].filter((t) => t.getBoundingClientRect().right > 719).length"
    assert page.evaluate(wide) == 0


def test_what_a_rank_without_a_named_schedule_hid_by_phase(look, runs, tmp_path):
    columns = ("label", "pass", "phase", "hidden_ns", "total_ns", "beside_wgrad_ns")
    rows = [
        ("ep_combine", "forward", "steady", 30, 40, 0),
        ("ep_combine", "forward", "cool-down", 0, 10, 0),
    ]
    analysis, _ = runs("1f1b")
    lanes = pl.DataFrame(rows, schema=columns, orient="row")
    path = tmp_path / "one.html"
    unnamed = replace(analysis, comparison=None, tables={**analysis.tables, "lanes": lanes})
    path.write_text(render_html(unnamed), encoding="utf-8")
    page = look(path)
    # None of pairs.
    assert texts(page, "#phases thead tr") == [["hidden by phase", "steady", "cool-down"]]
    assert texts(page, "#phases tbody tr") == [["ep_combine forward", "75.0 %", "0.0 %"]]


def test_on_a_phone_the_names_that_stay_leave_room_for_the_figures(look, pages):
    window = look(pages("vpp-overlap"), width=390)
    window.evaluate(
        "for (const folded of document.querySelectorAll('details')) folded.open = true;"
    )
    widths = window.evaluate(
        "[...document.querySelectorAll('.scroll th[scope=row]')].map((one) => one.getBoundingClientRect().width)"
    )
    assert len(widths) > 20
    assert max(widths) < 0.6 * 390
    table = window.locator("#rates .scroll", has_text="operation")
    table.evaluate("(one) => { one.scrollLeft = 120; }")
    first = table.locator("tbody th").first.bounding_box()
    # It stays while the figures pass.
    assert first["x"] == pytest.approx(table.bounding_box()["x"], abs=1)


def test_the_phases_of_roles_fit_a_phone(look, pages):
    page = look(pages("rl"), width=390)
    [drawing] = [one for one in page.locator("#iterations svg").all() if one.is_visible()]
    box = drawing.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    heights = drawing.locator("text").evaluate_all(
        "(all) => all.map((one) => one.getBoundingClientRect().height)"
    )
    assert min(heights) >= 8  # readable
