"""Tests of the page's first screen in a real browser: the step, findings that lead to their place, and paper."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import polars as pl
import pytest
from msgspec import structs

from tests.kept import analysis_of
from tests.report.pdf_images import FORWARD_PIXEL, images_of
from tracekit.documents.findings import Finding, Place
from tracekit.report import first_screen as content
from tracekit.report.clock_words import clock_badge
from tracekit.report.findings import main_findings
from tracekit.report.html.charts import PageClock
from tracekit.report.html.finding_links import figure_of, share_words
from tracekit.report.html.page import render_html
from tracekit.report.html.places import (
    PathNames,
    busiest_rank,
    different_ranks,
    places_on_page,
)
from tracekit.report.section import sections_of
from tracekit.rooms import all_sections


def finding_of(code="host_sync", **fields):
    return Finding(
        code=code,
        cost_ns=4_000_000,
        share=0.2,
        evidence={"calls_per_step": 2.0, "op": "aten::item"},
        **fields,
    )


# ---- findings as data


def test_the_bar_at_the_top_has_the_shares_of_the_first_screen(samples):
    """Both of the step without the profiler, which the profiler made much longer."""
    analysis = analysis_of(samples / "mi300-ddp")
    (bar,) = re.findall(
        r'class="bar" role="img" aria-label="(compute [^"]*)"', render_html(analysis)
    )[:1]
    assert bar == ", ".join(content.bar(analysis).words)


def test_a_card_says_whether_its_figure_is_saved_or_cost():
    saved, cost = finding_of(saves_ns=2_000_000), finding_of()
    bound = finding_of(saves_ns=2_000_000, saves_range_ns=(0, 2_000_000))
    assert (figure_of(saved), share_words(saved)) == ("2.00 ms", "saved, 10 % of the step")
    assert (figure_of(bound), share_words(bound)) == (
        "≤ 2.00 ms",
        "saved at most, 10 % of the step",
    )
    assert (figure_of(cost), share_words(cost)) == ("≤ 4.00 ms", "saved at most, 20 % of the step")


def test_a_place_is_on_the_pages_clock_and_only_ranks_of_the_timeline_are_led_to(samples):
    analysis = analysis_of(samples / "1f1b")
    clock = PageClock(analysis)
    start_ns = int(analysis.tables["steps"].filter(rank=2)["start_ns"][0])
    where = tuple(Place(rank, 2, start_ns, start_ns + 5_000_000, "sync") for rank in (2, 7))
    [shown] = places_on_page([finding_of(where=where)], clock, [0, 1, 2, 3])
    [location] = shown.places
    expected_ms = float(clock.steps.filter(rank=2)["start_ns"][0]) / 1e6
    assert (location.rank, location.title) == (2, "rank 2, step 2, sync, 5.0 ms")
    assert (location.from_ms, location.to_ms) == pytest.approx(
        (expected_ms, expected_ms + 5), abs=1e-3
    )


def test_a_finding_about_a_rank_leads_to_its_step(samples):
    analysis = analysis_of(samples / "1f1b")
    [shown] = places_on_page([finding_of(ranks=(3,))], PageClock(analysis), [0, 1, 2, 3])
    assert [(location.rank, location.title.split(", ")[1]) for location in shown.places] == [
        (3, "step 2")
    ]


def test_folders_above_the_traces_are_on_no_page():
    names = PathNames(["/home/ada/runs/big/a/x.json", "/home/ada/runs/big/b/y.json"])
    assert (
        names.shorten("'/home/ada/runs/big/b/y.json': ends early") == "'big/b/y.json': ends early"
    )
    assert PathNames(["https://host/x.json"]).shorten("see /etc/hosts") == "see /etc/hosts"


def cells_of(*compute_ms):
    """A pipeline whose ranks 10, 11, … compute so long in their cells, in two cells each."""
    rows = [(10 + i, i, time * 500_000) for i, time in enumerate(compute_ms) for _ in range(2)]
    cells = pl.DataFrame(rows, schema=["rank", "stage", "busy_ns"], orient="row")
    return SimpleNamespace(head=SimpleNamespace(cells=cells, pipeline=SimpleNamespace(step=2)))


def test_unequal_stages_lead_to_the_rank_that_computes_longest(samples):
    busiest = busiest_rank(cells_of(20, 30, 20))
    assert (busiest.rank, busiest.text) == (
        11,
        "stage 1: 30.0 ms of compute in a step, the median rank 20.0 ms",
    )
    assert busiest_rank(cells_of(20, 20)) is None
    assert busiest_rank(None) is None

    unequal = finding_of("schedule_gap", case="imbalance")
    on_page = structs.replace(busiest, rank=1)
    clock = PageClock(analysis_of(samples / "1f1b"))
    [shown] = places_on_page([unequal], clock, [0, 1, 2, 3], busiest=on_page)
    assert [location.title for location in shown.places] == [f"rank 1: {busiest.text}"]
    assert [remark.rank for remark in different_ranks([unequal], None, busiest=on_page)] == [1]
    assert different_ranks([finding_of()], None, busiest=on_page) == []


def test_a_saving_of_iterations_is_a_share_of_them():
    cost = Finding(
        code="rollout",
        cost_ns=25_000_000,
        share=0.25,
        saves_range_ns=(0, 25_000_000),
        evidence={"share_of": "iterations"},
    )
    assert figure_of(cost) == "≤ 25.0 ms"
    assert share_words(cost) == "saved at most, 25 % of the iterations"


def clocks_known_to(ns):
    table = pl.DataFrame({"rank": [0, 1], "uncertainty_ns": [0, ns]})
    return SimpleNamespace(residual_ns=10, table=table)


def test_the_badge_is_a_caveat_from_a_hundredth_of_the_step_on():
    assert clock_badge(clocks_known_to(900_000), 100_000_000, None).text == "clocks within 0.90 ms"
    assert clock_badge(clocks_known_to(90_000), 100_000_000, None).text == "clocks agree"
    badge = clock_badge(clocks_known_to(1_100_000), 100_000_000, None)
    assert (badge.text, badge.is_caveat) == ("ranks' clocks known to 1.10 ms", True)
    unknown = SimpleNamespace(residual_ns=None)
    assert clock_badge(unknown, 100_000_000, None).text == "clocks not compared"


@pytest.mark.parametrize(("uncertain_ns", "is_caveat"), [(6, False), (14, True)])
def test_the_badge_says_what_of_the_path_clocks_leave_open(uncertain_ns, is_caveat):
    pieces = pl.DataFrame({"start_ns": [0], "end_ns": [1000]})
    path = SimpleNamespace(candidates=(0, 1), pieces=pieces, uncertain_ns=uncertain_ns)
    badge = clock_badge(clocks_known_to(0), 100_000_000, path)
    assert badge.is_caveat == is_caveat
    assert len(badge.facts) == 1 + is_caveat


# ---- the page


@pytest.mark.slow
def test_the_navigation_has_nine_tabs_at_most_that_hold_all_sections(look, pages):
    page = look(pages("1f1b"))
    sections = page.locator("main section").evaluate_all("(all) => all.map(({ id }) => id)")
    tabs = page.locator("nav a").evaluate_all(
        "(all) => all.map((link) => [link.hash.slice(1), ...link.dataset.sections.split(' ')])"
    )
    assert 5 <= len(tabs) <= 9
    assert all(target == first for target, first, *_ in tabs)
    in_tabs = [section for _, *ids in tabs for section in ids]
    assert sorted(in_tabs) == sorted(sections)
    # Behind the timeline, what one tab holds stands together.
    last = sections.index("gap")
    assert [section for section in in_tabs if section in sections[last:]] == sections[last:]


def test_every_section_of_the_page_is_in_one_of_nine_tabs_at_most():
    placed = [section for section in sections_of(all_sections(), "page") if section.name]
    assert all(section.tab for section in placed)
    assert (
        len({section.tab for section in placed}) < 9
    )  # the findings, with which it begins, are the ninth


@pytest.mark.slow
def test_the_first_screen_holds_the_bar_findings_and_the_schedule(look, pages, analysed):
    page = look(pages("1f1b"), width=1440, height=900)
    findings = main_findings(analysed("1f1b"))
    assert "122 ms a step" in page.locator("header .source").inner_text()
    assert "compute 52 %" in page.locator("#findings > .parts").inner_text().replace(
        "\N{NO-BREAK SPACE}", " "
    )
    assert page.locator(".cards > .card").count() == min(3, len(findings))
    shown = page.locator("#finding-1 .advice").inner_text().replace("\N{NO-BREAK SPACE}", " ")
    assert shown.lower() == findings[0].advice.replace("`", "").lower()
    bottom = page.locator("#schedule-chart").bounding_box()
    assert bottom["y"] + bottom["height"] < 900
    # The navigation stays in sight below.
    page.evaluate("document.getElementById('gap').scrollIntoView()")
    assert page.locator("nav").bounding_box()["y"] == 0


@pytest.mark.slow
def test_show_opens_the_timeline_at_the_findings_place(look, pages, analysed):
    page = look(pages("1f1b"), width=1440, height=900)
    location = main_findings(analysed("1f1b"))[0].where[0]
    page.locator("#finding-1 .show").click()
    spot = page.evaluate("(({ rank, from, to }) => [rank, from, to])(tracekit.timeline.state.spot)")
    assert spot[0] == location.rank
    assert spot[2] - spot[1] == pytest.approx((location.end_ns - location.start_ns) / 1e6, abs=1e-3)
    low, high = page.evaluate("tracekit.timeline.chart.window()")
    assert high - low >= 0.05 * 120  # of a short place, a twentieth of the step is shown
    assert low <= spot[1]
    assert spot[2] <= high
    assert page.locator("#timeline-spot").inner_text().startswith("Finding 1: ")
    # The event that it is, is selected, and the other places are a click away: the next may be the
    # other side of the same message.
    selected = page.evaluate(
        "(({ rank, start }) => [rank.rank, start])(tracekit.timeline.state.selected)"
    )
    assert selected[0] == location.rank
    page.locator("#timeline-spot button", has_text="next place").click()
    following = page.evaluate("(({ rank, from }) => [rank, from])(tracekit.timeline.state.spot)")
    assert following != spot[:2]
    page.locator("#timeline-spot a").click()
    assert page.locator("#finding-1").is_visible()
    assert page.said == []


@pytest.mark.slow
def test_cards_of_an_rl_loop_have_figures_and_lead_to_their_iteration(look, pages, analysed):
    page = look(pages("rl"), width=1440, height=900)
    analysis = analysed("rl")
    findings = main_findings(analysis)
    shown = page.locator(".cards").first.locator(".figure b").all_inner_texts()
    assert shown == [figure_of(finding) for finding in findings[: len(shown)]]
    page.locator(".cards").first.locator(".show").first.click()
    low, high = page.evaluate("tracekit.timeline.chart.window()")
    location = findings[0].where[0]
    begin_ms, end_ms = PageClock(analysis).moment(location.start_ns, location.end_ns)
    assert low <= max(begin_ms, 0)
    assert high >= end_ms


@pytest.mark.slow
def test_folded_sections_open_when_they_are_led_to(look, pages):
    page = look(pages("1f1b"))
    assert not page.locator("#rates table").first.is_visible()
    page.evaluate(
        "location.hash = ''; document.body.insertAdjacentHTML('afterbegin', '<a id=to href=#rates>to</a>')"
    )
    page.locator("#to").click()
    assert page.locator("#rates table").first.is_visible()
    page.locator("#definitions summary").click()
    assert page.locator("#definitions dl").is_visible()


@pytest.mark.slow
def test_clocks_are_spoken_of_once_above_the_sections(look, pages):
    page = look(pages("1f1b", path=True))
    assert page.locator(".badge").count() == 1
    assert "clock" not in page.locator("#gap").inner_text()


@pytest.mark.slow
def test_no_absolute_path_of_the_traces_is_on_the_page(analysed, samples):
    folder = (samples / "1f1b").resolve()
    analysis = replace(analysed("1f1b"), paths=(str(folder),), sources=())
    text = render_html(analysis)
    assert str(folder.parent) not in text
    assert "tracekit analyze 1f1b --what-if" in text


@pytest.mark.slow
def test_wide_screens_have_two_columns_in_the_order_of_the_page(look, pages):
    page = look(pages("1f1b"), width=1920, height=1080)
    budget, waits = (page.locator(f"#{name}").bounding_box() for name in ("budget", "stragglers"))
    assert budget["x"] + budget["width"] <= waits["x"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 1920
    cut = page.locator("main .scroll").evaluate_all(
        "(all) => all.filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.closest('section').id)"
    )
    assert cut == []


@pytest.mark.slow
def test_lines_of_the_grid_do_not_cut_boxes(look, pages):
    """The receive that rank 3 begins with lies over several ticks: its pixels have its colour throughout."""
    page = look(pages("1f1b"), width=1440, height=900)
    colours = page.evaluate(
        """() => {
            const { chart } = tracekit.timeline;
            const row = chart.rows().find((one) => one.rank?.rank === 3 && one.name === "pipeline");
            chart.revealGroup(row.group);
            chart.render();
            const { boxes, index } = row.tracks[0];
            const length = (box) => boxes.end[box] - boxes.start[box];
            const box = [...index].reduce((a, b) => (length(a) >= length(b) ? a : b));
            const canvas = chart.element.querySelector("canvas");
            const y = chart.axisPx + row.top - chart.element.scrollTop + 1;
            const left = Math.ceil(chart.toX(boxes.start[box])) + 1, right = Math.floor(chart.toX(boxes.end[box])) - 2;
            const { data } = canvas.getContext("2d").getImageData(left, y, right - left, 1), seen = new Set();
            for (let i = 0; i < data.length; i += 4) seen.add([...data.slice(i, i + 3)].join(","));
            return [...seen];
        }"""
    )
    assert colours == ["213,94,0"]


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_schedule_and_timeline_are_drawn_on_paper(look, pages, dark):
    """Written by the browser's own print: light also where the screen is dark, with the colours of the charts."""
    page = look(pages("1f1b"), dark=dark)
    pdf = page.pdf(format="A4", print_background=True)
    images = images_of(pdf)
    assert len(images) == 2
    for pixels in images:
        count = len(pixels) // 3
        assert pixels.count(b"\xff\xff\xff") > 0.15 * count
        assert pixels.count(FORWARD_PIXEL) > 0.005 * count
        assert pixels.count(b"\0\0\0") < 0.02 * count
    # The screen is as before.
    assert (
        page.evaluate(
            "document.querySelector('#timeline-chart canvas').getBoundingClientRect().width"
        )
        <= 1200
    )
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 25, 29)" if dark else "rgb(255, 255, 255)")
