"""Tests of the page's kernels and memory in a real browser: explanations and links to moments."""

from __future__ import annotations

import re

import polars as pl
import pytest

from tracekit import load
from tracekit.classify import classify
from tracekit.report.html.charts import PageClock
from tracekit.report.html.page import render_html
from tracekit.report.sections.kernels import kernels
from tracekit.run.analyze import analyze

pytestmark = pytest.mark.slow


def test_a_kernel_opens_and_closes_its_explanation(look, pages, analysed):
    page = look(pages("1f1b"))
    rows = kernels(analysed("1f1b"))
    assert page.locator("#kernels [data-why]").count() == len(rows) == 20
    button, row = page.locator("[data-why='2']"), page.locator("#why-2")
    assert not row.is_visible()
    button.click()
    assert row.is_visible()
    assert button.get_attribute("aria-expanded") == "true"
    text, kernel = row.inner_text().replace("\N{NO-BREAK SPACE}", " "), rows[1]
    assert kernel.name in text
    facts = dict(kernel.facts)
    assert facts["label"].startswith(f"{kernel.label}, module {kernel.module}: by rule ")
    assert re.search(r"by rule \S+ \(\w+ evidence, [\w-]+ rules\), confidence 0\.\d\d", text)
    assert "aten::mm" in facts["launched by"]
    assert re.fullmatch(r"\d+×\d+ · \d+×\d+( BFloat16)?", facts["shapes"])
    button.click()
    assert not row.is_visible()


def test_where_a_kernel_ran_leads_to_its_longest_event_in_the_lanes(look, pages, analysed):
    analysis = analysed("1f1b")
    kernel = kernels(analysis)[1]
    page = look(pages("1f1b"))
    page.locator("[data-why='2']").click()
    page.locator("#why-2 [data-from]").nth(1).click()
    location = kernel.places[1]
    assert page.evaluate("[...tracekit.timeline.state.ranks]") == [location.rank]
    times = PageClock(analysis).moment_on(location.rank, location.start_ns, location.end_ns)
    margin = (times[1] - times[0]) / 2
    assert page.evaluate("tracekit.timeline.chart.window()") == pytest.approx(
        [times[0] - margin, times[1] + margin], abs=0.001
    )


def test_places_and_rules_are_those_of_the_events(samples, analysed):
    """Counted again from the labelled events themselves."""
    events = classify(load(samples / "1f1b", ranks=[1]).rank(1).events)
    kernel = kernels(analysed("1f1b"))[1]
    own = events.filter(
        (pl.col("name") == kernel.name)
        & (pl.col("label") == kernel.label)
        & (pl.col("module") == kernel.module)
    )
    location = next(row for row in kernel.places if row.rank == 1)
    took = own["end_ns"] - own["start_ns"]
    longest_ns = location.end_ns - location.start_ns
    assert (location.count, location.ns, longest_ns) == (len(own), took.sum(), took.max())
    decided = (
        own.group_by("rule")
        .agg(ns=(pl.col("end_ns") - pl.col("start_ns")).sum())
        .sort("ns")["rule"][-1]
    )
    assert f"by rule {decided} " in dict(kernel.facts)["label"]


def test_a_rule_of_ones_own_and_no_rule_at_all_are_said(tmp_path, kernels_named):
    trace = kernels_named(["my_kernel", "mystery"])
    rules = tmp_path / "mine.toml"
    rules.write_text('[[rule]]\nname = "mine"\nlabel = "forward"\nwhen = { name = "^my_kernel" }\n')
    facts = {row.name: dict(row.facts) for row in kernels(analyze(trace, rules=rules))}
    assert (
        facts["my_kernel"]["label"]
        == "forward: by rule mine (name evidence, mine rules), confidence 0.90"
    )
    assert facts["my_kernel"]["the rule asks"] == "name matches ^my_kernel"
    assert facts["mystery"]["label"] == "other: no rule knows it"


def test_without_scripts_every_explanation_is_open(browser, pages):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(pages("reload").as_uri())
    assert page.locator("tr.why").first.is_visible()
    context.close()


@pytest.mark.parametrize("width", [390, 1024])
def test_an_open_explanation_fits_the_window(look, pages, width):
    page = look(pages("1f1b"), width=width)
    page.locator("[data-why='2']").click()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    box = page.locator("#why-2 .facts").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width


def test_a_page_without_memory_has_no_empty_line(look, pages):
    page = look(pages("1f1b"))
    assert page.evaluate("tracekit.timeline.chart.rows().filter((row) => row.line).length") == 0
    assert page.locator("#timeline-lanes button").all_inner_texts() == [
        "critical path",
        "cells",
        "host",
    ]


def test_explanations_are_text_whatever_a_trace_says(tmp_path, kernels_named):
    trace = kernels_named(["<img src=x onerror=alert(1)>"])
    assert "<img" not in render_html(analyze(trace)).split("<main")[1].split("<script")[0]
