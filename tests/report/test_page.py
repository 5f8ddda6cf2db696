"""The page in a real browser: it loads alone, it answers to the hand, and text from a trace never runs."""

from __future__ import annotations

import gzip
import json
import re
import shutil

import pytest

from tracekit.analysis import analyze
from tracekit.report.html import render_html

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HOSTILE = "<script>window.ran=1</script><img src=x onerror='window.ran=1'>"


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as p:
        running = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory, samples):
    folder = tmp_path_factory.mktemp("pages")

    def write(name):
        path = folder / f"{name}.html"
        if not path.exists():
            path.write_text(render_html(analyze(samples / name)), encoding="utf-8")
        return path

    return write


def opened(browser, path, **options):
    page = browser.new_page(viewport={"width": 1200, "height": 900}, **options)
    page.said, page.asked = [], []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready=true]")
    return page


@pytest.mark.parametrize("name", ["1f1b", "vpp-overlap", "reload-overlap"])
def test_it_loads_alone_and_silently(browser, pages, name):
    page = opened(browser, pages(name))
    assert page.said == []
    assert page.asked == [pages(name).as_uri()]
    page.close()


def test_hovering_a_cell_tells_its_facts(browser, pages):
    page = opened(browser, pages("1f1b"))
    chart = page.locator("#schedule-chart")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 85, box["y"] + 45)  # rank 0's first forward
    tip = page.locator("#tip")
    tip.wait_for(state="visible")
    assert re.match(r"forward · rank 0 · measured\nstage 0, micro-batch 0\n0\.000 to ", tip.inner_text())
    page.close()


def zoom_of(page):
    look = "echarts.getInstanceByDom(document.getElementById('schedule-chart')).getOption().dataZoom[0]"
    return page.evaluate(f"[{look}.start, {look}.end]")


def test_keys_zoom_both_schedules_together(browser, pages):
    page = opened(browser, pages("1f1b"))
    assert zoom_of(page) == [0, 100]
    page.focus("#schedule-chart")
    page.keyboard.press("+")
    start, end = zoom_of(page)
    assert 0 < start < end < 100
    extents = page.evaluate(
        "(() => { const c = echarts.getInstanceByDom(document.getElementById('schedule-chart'));"
        "return [0, 1].map(i => c.convertFromPixel({xAxisIndex: i}, 300)); })()"
    )
    assert extents[0] == pytest.approx(extents[1], abs=0.2)  # a pixel is 0.07 ms
    page.keyboard.press("0")
    assert zoom_of(page) == [0, 100]
    page.close()


def test_the_wheel_zooms(browser, pages):
    page = opened(browser, pages("1f1b"))
    chart = page.locator("#schedule-chart")
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + 500, box["y"] + 60)
    page.mouse.wheel(0, -400)
    page.wait_for_timeout(200)
    start, end = zoom_of(page)
    assert end - start < 100
    page.close()


def test_the_legend_switches_cells_off(browser, pages):
    page = opened(browser, pages("1f1b"))
    chart = page.locator("#schedule-chart")
    before = chart.screenshot()
    button = page.locator("#schedule-legend button", has_text=re.compile("^forward$"))
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    page.wait_for_timeout(100)
    without = chart.screenshot()
    assert without != before
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    page.close()


def test_lanes_follow_the_chosen_rank(browser, pages):
    page = opened(browser, pages("vpp-overlap"))
    chart = page.locator("#lanes-chart")
    before = chart.screenshot()
    page.select_option("#lanes-rank", "3")
    page.wait_for_timeout(300)
    assert chart.screenshot() != before
    page.select_option("#lanes-phase", label="steady")
    look = "echarts.getInstanceByDom(document.getElementById('lanes-chart')).getOption().dataZoom[0]"
    assert page.evaluate(f"{look}.start") > 0
    page.close()


def test_it_fits_a_phone_in_the_dark(browser, pages):
    page = opened(browser, pages("1f1b"), color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(20, 25, 29)"
    page.close()


def test_text_from_a_trace_is_shown_and_never_run(browser, samples, tmp_path):
    source = samples / "recompute" / "rank0.pt.trace.json.gz"
    trace = json.loads(gzip.decompress(source.read_bytes()))
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel":
            event["name"] = HOSTILE
    (tmp_path / "rank0.json").write_text(json.dumps(trace))
    path = tmp_path / "page.html"
    path.write_text(render_html(analyze(tmp_path / "rank0.json")), encoding="utf-8")
    page = opened(browser, path)
    assert page.evaluate("window.ran") is None
    assert HOSTILE in page.locator("#kernels").inner_text()
    page.close()


def test_every_budget_bar_adds_up_on_the_page(pages):
    text = pages("1f1b").read_text()
    for bar in re.findall(r'<div class="bar" role="img" aria-label="([^"]+)"', text):
        shares = [float(share) for share in re.findall(r"([\d.]+) %", bar)]
        assert sum(shares) == pytest.approx(100, abs=0.11 * len(shares))
