"""Tests of the timeline of many ranks in a real browser: one line per rank, pins, areas, durations and history.

One page of 64 ranks with made-up events serves all of them. Rank 40 takes twice as long as the
others.
"""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import numpy as np
import polars as pl
import pytest
from msgspec import structs

from tests.kept import analysis_of
from tests.report.pdf_images import FORWARD_PIXEL, images_of
from tracekit.analysis.combine.spread import Figure
from tracekit.analysis.measure.rank_timeline import EVENT_TIMES, HOST_RANGES, RankTimeline
from tracekit.documents.coding import to_plain
from tracekit.documents.findings import Finding
from tracekit.metrics.causes import EVENT_CAUSES
from tracekit.report.findings import findings_of
from tracekit.report.html import charts
from tracekit.report.html.charts import PageClock, timeline_data
from tracekit.report.html.page import render_html
from tracekit.report.html.places import different_ranks

RANKS = 64
SLOW_RANK = 40
EVENTS = 100
MS = 1_000_000
"""Nanoseconds in a millisecond."""


def made_up_timeline(rank, origin_ns):
    """One rank: a kernel of 1 ms (rank 40: 2 ms) every 2.5 ms.

    Each fourth is an all-to-all, dispatch or combine.
    """
    number = np.arange(EVENTS)
    start_ns = origin_ns + number * 2 * MS + number * MS // 2
    length_ns = (2 if rank == SLOW_RANK else 1) * MS
    names = ["matmul", "alltoall", "alltoall"]
    labels = ["forward", "ep_dispatch", "ep_combine"]
    kind = np.where(number % 4 == 3, np.where(number % 12 == 3, 2, 1), 0)
    descriptions = pl.DataFrame(
        {
            "name": names,
            "label": labels,
            "pass": ["forward"] * 3,
            "module": [None] * 3,
            "annotations": [None] * 3,
            "chain": [None] * 3,
            "rule": ["made-up"] * 3,
            "source": [None] * 3,
            "inputs": [None] * 3,
            "stream": [7, 8, 8],
        },
        schema_overrides=dict.fromkeys(
            ("module", "annotations", "chain", "source", "inputs"), pl.String
        ),
    )
    columns = {
        "id": number,
        "start_ns": start_ns,
        "end_ns": start_ns + length_ns,
        "launch_ns": start_ns,
        "description": kind,
    }
    events = pl.DataFrame(columns).select(
        pl.col(name).cast(dtype) for name, dtype in EVENT_TIMES.items()
    )
    return RankTimeline(
        rank, events, descriptions, HOST_RANGES.to_frame(), 0, EVENT_CAUSES.to_frame()
    )


@pytest.fixture(scope="module")
def many(samples):
    """An analysis of 64 ranks, of which one is slow and a finding says so."""
    analysis = analysis_of(samples / "reload", schedule="none")
    first_step = analysis.tables["steps"].head(1)
    origin_ns = int(first_step["start_ns"][0])
    length_ns = EVENTS * 5 * MS // 2
    steps = pl.concat(
        first_step.with_columns(
            rank=pl.lit(rank, pl.Int32), end_ns=pl.lit(origin_ns + length_ns, pl.Int64)
        )
        for rank in range(RANKS)
    )
    one = analysis.ranks[0]
    slow = Finding(
        code="slow_rank",
        cost_ns=50 * MS,
        share=0.2,
        ranks=(SLOW_RANK,),
        evidence={"ratio": 2.0, "slower_by_ns": 50 * MS, "kernels": 100},
        text="rank 40 takes twice as long",
        advice="look for what differs on it",
    )
    run = replace(
        analysis,
        events=tuple(made_up_timeline(rank, origin_ns) for rank in range(RANKS)),
        ranks=tuple(structs.replace(one, rank=rank) for rank in range(RANKS)),
        tables={**dict(analysis.tables), "steps": steps},
        clocks=type(analysis.clocks).recorded(range(RANKS)),
        walked_path=None,
        described_path=None,
        changed_steps=(),
    )
    # Instead of what would be found in the sample's figures.
    with mock.patch("tracekit.report.findings.find", return_value=(slow,)):
        assert [finding.code for finding in findings_of(run)] == ["slow_rank"]
        yield run


@pytest.fixture(scope="module")
def page_of_many(many, tmp_path_factory):
    path = tmp_path_factory.mktemp("many") / "many.html"
    path.write_text(render_html(many), encoding="utf-8")
    return path


@pytest.fixture
def page(look, page_of_many):
    opened = look(page_of_many, width=1440, height=900)
    opened.evaluate("document.getElementById('timeline').scrollIntoView()")
    return opened


def groups(page):
    """Name of each group of rows, whether it is one line, and whether it stands out."""
    return page.evaluate(
        "[...new Map(tracekit.timeline.chart.rows().map((row) => [row.group.name, row.group])).values()]"
        ".map(({ name, compact, remark }) => [name, Boolean(compact), Boolean(remark)])"
    )


def name_point(page, rank, *, star=False):
    """Return where the name of a rank, or its star, is drawn."""
    return page.evaluate(
        """([rank, star]) => {
            const { chart } = tracekit.timeline, row = chart.rows().find((one) => one.rank.rank === rank);
            chart.revealGroup(row.group);
            chart.render();
            const area = chart.element.getBoundingClientRect();
            const x = star ? (row.group.star[0] + row.group.star[1]) / 2 : 20;
            return [area.left + x, area.top + 30 + row.top - chart.element.scrollTop + row.height / 2];
        }""",
        [rank, star],
    )


@pytest.mark.slow
def test_each_of_64_ranks_is_one_line_and_the_one_that_differs_stands_first(page):
    shown = groups(page)
    assert len(shown) == RANKS
    assert shown[0] == ["rank 40", True, True]
    assert [name for name, _, stands_out in shown if stands_out] == ["rank 40"]
    assert all(is_line for _, is_line, _ in shown)
    scrolls, seen = page.evaluate(
        "(({ scrollHeight, clientHeight }) => [scrollHeight, clientHeight])(tracekit.timeline.chart.element)"
    )
    assert seen < scrolls < 64 * 20
    assert page.said == []


@pytest.mark.slow
def test_a_name_opens_its_rank_and_its_star_pins_it(page):
    page.mouse.click(*name_point(page, 3))
    assert ["rank 3", False, False] in groups(page)
    page.mouse.click(*name_point(page, 3))
    assert ["rank 3", True, False] in groups(page)
    page.mouse.click(*name_point(page, 50, star=True))
    assert [name for name, _, _ in groups(page)[:3]] == ["rank 40", "rank 50", "rank 0"]
    page.mouse.click(*name_point(page, 40, star=True))
    assert [name for name, _, _ in groups(page)[:2]] == ["rank 50", "rank 0"]
    page.locator("#timeline-open button", has_text="all rows").click()
    assert not any(is_line for _, is_line, _ in groups(page))


@pytest.mark.slow
def test_ranks_are_chosen_by_their_numbers(page):
    page.fill("#timeline-rank-field", "0-2, 40")
    page.keyboard.press("Enter")
    assert [name for name, _, _ in groups(page)] == ["rank 40", "rank 0", "rank 1", "rank 2"]
    page.fill("#timeline-rank-field", "80")
    page.keyboard.press("Enter")
    assert len(groups(page)) == 4  # there is no such rank: as before
    page.fill("#timeline-rank-field", "")
    page.keyboard.press("Enter")
    assert len(groups(page)) == RANKS


@pytest.mark.slow
def test_the_slash_leads_to_the_search_and_durations_are_found(page):
    page.locator("nav a").first.focus()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "find"
    page.keyboard.type(">1.5ms")
    page.locator("#find-summary", has_text="events of").wait_for()
    assert (
        page.locator("#find-summary").inner_text() == "100 events of 2 kernels, 200.000 ms summed"
    )
    assert page.evaluate(
        "tracekit.timeline.state.matches.list.every(({ rank }) => rank.rank === 40)"
    )
    page.fill("#find", "matmul <2ms rank:0")
    page.locator("#find-summary", has_text="75 events of 1 kernel").wait_for()
    page.fill("#find", ">1s")
    page.locator("#find-summary", has_text="nothing on the GPU").wait_for()


@pytest.mark.slow
def test_labels_of_one_kernel_are_counted_apart(page):
    page.fill("#find", "alltoall")
    page.locator("#find-summary", has_text="events of 1 kernel").wait_for()
    entries = page.locator("#find-list li").all_inner_texts()
    # 25 of 100 events are all-to-alls: number 3, 15, … are combines (9), the others dispatches
    # (16).
    assert ["ep_dispatch · 1,024 ×" in entries[0], "ep_combine · 576 ×" in entries[1]] == [
        True,
        True,
    ]


@pytest.mark.slow
def test_an_area_is_summed_up(page):
    _, y = name_point(page, 0)
    area = page.evaluate(
        "(({ left }) => left)(tracekit.timeline.chart.element.getBoundingClientRect())"
    )
    left, right = (
        area + page.evaluate(f"tracekit.timeline.chart.toX({time})") for time in (0.0, 25.0)
    )
    page.keyboard.down("Shift")
    page.mouse.move(left + 1, y - 4)
    page.mouse.down()
    page.mouse.move((left + right) / 2, y)
    page.mouse.move(right - 1, y + 17)
    page.mouse.up()
    page.keyboard.up("Shift")
    panel = page.locator("#details")
    assert panel.locator("h3").inner_text().startswith("Area: ranks 0-1, ")
    rows = [
        row.split("\t")
        for row in panel.locator("table").first.locator("tbody tr").all_inner_texts()
    ]
    # Ten kernels start within 25 ms on each of the two ranks: number 3 is a combine, 7 a dispatch.
    assert {row[0]: row[1] for row in rows} == {
        "forward": "16",
        "ep_dispatch": "2",
        "ep_combine": "2",
    }
    assert "GPUs busy 40 %" in panel.inner_text()
    page.keyboard.press("Escape")


@pytest.mark.slow
def test_a_zoom_is_undone_by_the_browsers_back(page):
    before = page.evaluate("tracekit.timeline.chart.window()")
    for span in (100, 20):
        page.evaluate(f"tracekit.timeline.chart.setWindow(10, 10 + {span})")
        page.wait_for_function(f"() => location.hash.includes('to={10 + span}.')")
    page.go_back()
    page.wait_for_function(
        "() => { const [from, to] = tracekit.timeline.chart.window(); return Math.abs(to - from - 100) < 1e-6; }"
    )
    page.go_back()
    page.wait_for_function(
        f"() => Math.abs(tracekit.timeline.chart.window()[1] - {before[1]}) < 1e-6"
    )
    page.go_forward()
    page.wait_for_function(
        "() => { const [from, to] = tracekit.timeline.chart.window(); return Math.abs(to - from - 100) < 1e-6; }"
    )


@pytest.mark.slow
def test_show_opens_the_rank_among_the_others(page):
    page.locator("#finding-1 .show").click()
    shown = groups(page)
    assert shown[0] == ["rank 40", False, True]
    assert len(shown) == RANKS


@pytest.mark.slow
def test_many_ranks_fit_a_phone_and_paper(look, page_of_many):
    page = look(page_of_many, width=390, height=844)
    long_name = ", ".join(map(str, range(RANKS)))
    page.locator("#timeline-step").evaluate(
        "(select, name) => { select.append(new Option(name)); }", long_name
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    pdf = page.pdf(format="A4", print_background=True)
    [pixels] = images_of(pdf)  # the timeline: its rows have their colours, its ground is light
    assert pixels.count(FORWARD_PIXEL) > 0.1 * len(pixels) / 3
    assert pixels.count(b"\0\0\0") < 0.02 * len(pixels) / 3


@pytest.mark.slow
def test_a_filter_without_matches_says_so(page):
    page.evaluate("for (const folded of document.querySelectorAll('details')) folded.open = true;")
    field = page.locator("input.filter").first
    field.fill("no such row")
    assert page.get_by_text("no row has “no such row”").is_visible()
    field.fill("")
    assert not page.get_by_text("no row has").first.is_visible()


# ---- data of the page


def test_a_run_without_single_events_has_a_line_for_every_rank(many, monkeypatch):
    merged = many.tables["timeline"].filter(rank=0)
    lines = pl.concat(
        [merged.with_columns(rank=pl.lit(rank, merged.schema["rank"])) for rank in range(RANKS)]
    )
    run = replace(many, events=(), tables={**dict(many.tables), "timeline": lines})
    held = to_plain(timeline_data(run, PageClock(run)))["ranks"]
    assert [entry["rank"] for entry in held] == list(range(RANKS))
    assert min(entry["events"]["count"] for entry in held) > 12
    monkeypatch.setattr(charts, "MAX_MERGED_INTERVALS", RANKS * 12)
    few = to_plain(timeline_data(run, PageClock(run)))["ranks"]
    assert max(entry["events"]["count"] for entry in few) <= 12
    monkeypatch.setattr(charts, "MAX_RANKS_ON_PAGE", 16)
    assert len(to_plain(timeline_data(run, PageClock(run)))["ranks"]) == 16


def test_ranks_that_findings_name_stand_out_unless_they_are_many():
    def finding(*ranks):
        return Finding(code="slow_rank", cost_ns=1, share=0.1, ranks=ranks, evidence={"ratio": 2.0})

    assert [remark.rank for remark in different_ranks([finding(7, 9)], None)] == [7, 9]
    assert different_ranks([finding(1, 2, 3, 4, 5)], None) == []


def test_the_shade_of_a_heat_map_is_the_distance_from_the_median():
    figure = Figure("idle", "", 0.2, 0.2, 0.5, 0.5, 0.6, 0, 1, ())
    assert figure.deviation(0.2) == pytest.approx(-1)
    assert figure.deviation(0.6) == pytest.approx(1 / 3)
    alike = Figure("idle", "", 0.495, 0.5, 0.5, 0.5, 0.505, 0, 1, ())
    assert alike.deviation(0.505) == pytest.approx(0.25)  # small differences stay faint
