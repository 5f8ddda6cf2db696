"""Tests of the page in a real browser: it loads offline, fits every viewer, and never runs text from a trace."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil

import pytest

from tracekit.report.html.page import render_html
from tracekit.run.analyze import analyze

pytestmark = pytest.mark.slow

HOSTILE = "<script>window.ran=1</script><img src=x onerror='window.ran=1'>"


def test_the_name_of_a_file_may_hold_bytes_that_are_no_text(samples, tmp_path):
    folder = tmp_path / os.fsdecode(b"run\xff")
    shutil.copytree(samples / "reload", folder)
    page = render_html(analyze(folder))
    assert re.search(r'"path":"[^"]*run\\udcff', page)


@pytest.mark.parametrize("name", ["1f1b", "vpp-overlap", "reload-overlap"])
def test_it_loads_alone_and_silently(look, pages, name):
    page = look(pages(name))
    assert page.said == []
    assert page.asked == [pages(name).as_uri()]


def test_it_fits_a_phone_in_the_dark(look, pages):
    page = look(pages("1f1b"), dark=True)
    page.set_viewport_size({"width": 390, "height": 800})
    # Charts are drawn anew a moment later.
    page.wait_for_function("document.documentElement.scrollWidth <= 390")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == "rgb(20, 25, 29)"


def test_print_is_light_and_keeps_the_legend(look, pages):
    page = look(pages("1f1b"), dark=True)
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("#schedule-legend").is_visible()
    assert not page.locator("nav").is_visible()


def test_a_viewer_without_scripts_says_so(browser, pages):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages("1f1b").as_uri())
    assert page.get_by_text("The timeline needs scripts").first.is_visible()
    assert not page.locator("#schedule-chart").is_visible()
    assert page.locator(".card h3").first.is_visible()
    context.close()


def test_a_viewer_that_cannot_unpack_says_so(browser, pages):
    page = browser.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(pages("1f1b").as_uri())
    page.get_by_text("The timeline could not be drawn in this viewer").first.wait_for()


@pytest.mark.parametrize(
    "name", ["1f1b", "reload", pytest.param("vpp-overlap", marks=pytest.mark.nightly)]
)
def test_every_link_of_the_page_leads_somewhere(pages, name):
    text = pages(name).read_text()
    links = re.findall(r'href="#(\w+)"', text)
    assert len(links) > 5
    assert [link for link in links if f'id="{link}"' not in text] == []


def test_one_rank_without_steps_or_peers_has_no_empty_parts(look, tmp_path):
    kernel = {"ph": "X", "cat": "kernel", "name": "mystery", "pid": 0, "tid": 7, "ts": 0, "dur": 2000,
              "args": {"device": 0, "stream": 7, "correlation": 1}}  # fmt: skip
    (tmp_path / "one.json").write_text(json.dumps({"traceEvents": [kernel]}))
    path = tmp_path / "page.html"
    path.write_text(render_html(analyze(tmp_path / "one.json")), encoding="utf-8")
    page = look(path)
    assert page.title() == "one · tracekit"
    assert (
        page.locator(".source").inner_text().startswith("1 rank · 2.00 ms in all (no step marks)")
    )
    assert page.locator("tr.loud").count() == 1
    # A mean of one rank would say the same again.
    assert page.locator("#budget tbody tr").count() == 1
    assert not page.locator("#timeline-ranks").is_visible()
    assert not page.locator("#timeline-phase").is_visible()


ODD = [
    "\"quoted\" & 'both'",
    "kernel 🚀 名前",
    "\N{RIGHT-TO-LEFT OVERRIDE}drawkcab<b>",
    "x" * 2048,
    "{{ 7 * 7 }}",
]


def test_odd_and_long_names_stay_whole_and_inside_the_page(look, tmp_path, kernels_named):
    trace = kernels_named(ODD)
    path = tmp_path / "page.html"
    path.write_text(render_html(analyze(trace)), encoding="utf-8")
    page = look(path)
    shown = {
        name.replace("\N{RIGHT-TO-LEFT OVERRIDE}", "\N{REPLACEMENT CHARACTER}") for name in ODD
    }
    assert set(page.locator("#kernels th.kernel").all_text_contents()) == shown
    assert {one.get_attribute("title") for one in page.locator("#kernels th.kernel").all()} == shown
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200
    page.set_viewport_size({"width": 390, "height": 800})
    # Charts are drawn anew a moment later.
    page.wait_for_function("document.documentElement.scrollWidth <= 390")
    assert page.said == []


def test_text_from_a_trace_is_shown_and_never_run(look, samples, tmp_path):
    source = samples / "recompute" / "rank0.pt.trace.json.gz"
    trace = json.loads(gzip.decompress(source.read_bytes()))
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel":
            event["name"] = HOSTILE
    (tmp_path / "rank0.json").write_text(json.dumps(trace))
    path = tmp_path / "page.html"
    path.write_text(render_html(analyze(tmp_path / "rank0.json")), encoding="utf-8")
    page = look(path)
    assert page.evaluate("window.ran") is None
    assert HOSTILE in page.locator("#kernels").inner_text()


def test_every_budget_bar_adds_up_on_the_page(pages):
    text = pages("1f1b").read_text()
    (section,) = re.findall(r'<section id="budget">.*?</section>', text, re.DOTALL)
    bars = re.findall(r'<div class="bar" role="img" aria-label="([^"]+)"', section)
    assert len(bars) == 5
    for bar in bars:
        shares = [float(share) for share in re.findall(r"([\d.]+) %", bar)]
        assert sum(shares) == pytest.approx(100, abs=0.11 * len(shares))


def test_commands_are_whole_and_copied(look, pages):
    page = look(pages("1f1b"))
    commands = [one.get_attribute("data-copy") for one in page.locator("[data-copy]").all()]
    assert any(
        re.fullmatch(r"tracekit analyze (sample_traces/)?1f1b --what-if", words)
        for words in commands
    )
    assert sum("--explain" in words for words in commands) == page.locator("[data-why]").count() > 0
    page.locator("[data-copy]").first.click()
    page.locator("#said", has_text="copied").wait_for(state="attached")


def test_what_the_predictions_rest_on_stands_below_them(look, tmp_path, analysed):
    analysis = analysed("1f1b", what_if=True)
    path = tmp_path / "page.html"
    path.write_text(render_html(analysis), encoding="utf-8")
    page = look(path)
    text = page.locator("#what-if").inner_text().replace("\xa0", " ")
    first = next(line for line in analysis.schedule.what_if if not line.ran)
    assert first.rests_on
    assert all(reason in text for reason in (*first.rests_on, *first.unknown))
    table = "document.querySelector('#what-if table').getBoundingClientRect().right"
    assert page.evaluate(table) <= 1200
