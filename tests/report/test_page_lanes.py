"""Tests of the page's lanes in a real browser: choice of rank, step and label, and links to moments."""

from __future__ import annotations

import re

import numpy as np
import polars as pl
import pytest

pytestmark = pytest.mark.slow


def lanes_window(page):
    look = "echarts.getInstanceByDom(document.getElementById('lanes-chart')).getOption().dataZoom[0]"
    return page.evaluate(f"[{look}.start, {look}.end]")


def test_what_is_switched_off_stays_off_on_another_rank(look, pages):
    page = look(pages("vpp-overlap"))
    button = page.locator("#lanes-legend button", has_text=re.compile("^pp_comm$"))
    button.click()
    page.select_option("#lanes-rank", "3")
    page.wait_for_timeout(300)
    assert button.get_attribute("aria-pressed") == "false"
    selected = "echarts.getInstanceByDom(document.getElementById('lanes-chart')).getOption().legend[0].selected.pp_comm"
    assert page.evaluate(selected) is False
    button.click()
    assert page.evaluate(selected) is True


def test_lanes_follow_the_chosen_rank(look, pages):
    page = look(pages("vpp-overlap"))
    chart = page.locator("#lanes-chart")
    before = chart.screenshot()
    page.select_option("#lanes-rank", "3")
    page.wait_for_timeout(300)
    assert chart.screenshot() != before
    page.select_option("#lanes-phase", label="steady")
    look = "echarts.getInstanceByDom(document.getElementById('lanes-chart')).getOption().dataZoom[0]"
    assert page.evaluate(f"{look}.start") > 0


def test_a_cell_opens_its_moment_in_the_lanes_and_says_what_it_waited_for(look, pages, analysed):
    page = look(pages("1f1b"))
    page.focus("#schedule-chart")
    page.keyboard.press("ArrowDown")  # rank 1: outside cells until its first forward
    page.keyboard.press("n")
    said = page.locator("#said").inner_text()
    assert re.search(r"forward · rank 1 · measured\s+stage 1, micro-batch 0", said)
    assert "after 0F0 on rank 0" in said
    page.keyboard.press("Enter")
    page.locator("#said", has_text="lanes of rank 1").wait_for(state="attached")
    assert page.input_value("#lanes-rank") == "1"
    start, end = lanes_window(page)
    held = analysed("1f1b").schedule.head
    cell = held.cells.filter(rank=1).sort("start_ns").row(0, named=True)
    share = 100 * 2 * (cell["end_ns"] - cell["start_ns"]) / held.measured_ns  # the cell and half of it on both sides
    assert end - start == pytest.approx(share, rel=0.1)


def test_every_rank_on_the_page_opens_its_lanes(look, pages):
    page = look(pages("1f1b"))
    for section in ("#budget", "#stragglers", "#idle"):
        link = page.locator(f"{section} a[data-rank]").last
        rank = link.get_attribute("data-rank")
        link.click()
        page.locator("#said", has_text=f"lanes of rank {rank}").wait_for(state="attached")
        assert page.input_value("#lanes-rank") == rank
        page.evaluate("document.getElementById('said').textContent = ''")
    assert lanes_window(page) == [0, 100]


def test_lanes_of_every_step_can_be_chosen_and_a_step_leads_to_its_own(look, pages):
    page = look(pages("steps/a"))
    assert page.locator("#lanes-step option").all_inner_texts() == [str(step) for step in range(2, 10)]
    shown = page.locator("#schedule-which option").first.inner_text()  # the one the numbers are of
    assert page.locator("#lanes-step option:checked").inner_text() == shown.removeprefix("step ")
    page.locator("#steps a[data-step='7']").click()
    page.locator("#said", has_text=re.compile(r"lanes of rank \d, step 7")).wait_for(state="attached")
    assert page.locator("#lanes-step option:checked").inner_text() == "7"
    before = page.locator("#lanes-chart").screenshot()
    page.select_option("#lanes-step", label="8")
    page.wait_for_function(
        "echarts.getInstanceByDom(document.getElementById('lanes-chart')).getOption().xAxis[0].max"
        " !== null && document.getElementById('lanes-step').selectedOptions[0].text === '8'"
    )
    page.wait_for_timeout(100)
    assert page.locator("#lanes-chart").screenshot() != before
    assert page.said == []


def test_a_cell_of_any_step_opens_its_moment(look, pages, analysed):
    page = look(pages("steps/a"))
    page.select_option("#schedule-which", label="step 6")
    page.wait_for_timeout(200)
    page.focus("#schedule-chart")
    page.keyboard.press("n")
    page.keyboard.press("Enter")
    page.locator("#said", has_text="lanes of rank 0, step 6").wait_for(state="attached")
    found = analysed("steps/a")
    held = next(one for one in found.schedule.all if one.pipeline.step == 6)
    cell = held.cells.filter(rank=0).sort("start_ns").row(0, named=True)
    step = found.tables["steps"].filter(rank=0, step=6).row(0, named=True)
    start = held.pipeline.clocks.to_recorded(0, np.array([cell["start_ns"]]))[0] - step["start_ns"]
    length, span = cell["end_ns"] - cell["start_ns"], step["end_ns"] - step["start_ns"]
    wanted = [100 * max(0, start - length / 2) / span, 100 * (start + 1.5 * length) / span]
    assert lanes_window(page) == pytest.approx(wanted, abs=0.5)


def test_a_label_is_shown_alone_in_the_lanes(look, pages):
    page = look(pages("1f1b"))
    page.locator("#overlap a[data-label='pp_comm']").click()
    page.locator("#said", has_text="lanes of rank 0: pp_comm alone").wait_for(state="attached")
    pressed = page.locator("#lanes-legend button[aria-pressed=true]").all_inner_texts()
    assert pressed == ["pp_comm"]


def test_a_segment_of_the_path_opens_its_moment(look, pages, analysed):
    page = look(pages("1f1b", path=True))
    rows = page.locator("#path tbody tr")
    link = rows.nth(4).locator("a").first
    rank = link.get_attribute("data-rank")
    link.click()
    page.locator("#said", has_text=f"lanes of rank {rank}").wait_for(state="attached")
    start, end = lanes_window(page)
    step = analysed("1f1b").tables["steps"].filter(rank=int(rank)).row(0, named=True)
    moment = [float(link.get_attribute(name)) for name in ("data-from", "data-to")]
    span = (step["end_ns"] - step["start_ns"]) / 1e6
    assert end - start == pytest.approx(100 * 2 * (moment[1] - moment[0]) / span, rel=0.1)
    cell = rows.nth(4).locator("td").last.inner_text()
    found = analysed("1f1b").schedule.head.cells.filter(
        (pl.col("rank") == int(rank))
        & (pl.format("{}{}{}", "stage", pl.col("op").cast(pl.String), "microbatch") == cell)
    )
    assert moment[1] - moment[0] == pytest.approx((found["end_ns"] - found["start_ns"])[0] / 1e6, rel=0.05)
