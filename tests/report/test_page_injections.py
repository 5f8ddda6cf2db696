"""Tests of the pages in a real browser with names that contain scripts, in every place a trace has for names."""

from __future__ import annotations

import contextlib
import json
import re
import threading
from pathlib import Path

import pytest

from tests.injections import MARK, trace
from tracekit.diffs import diff, read_side
from tracekit.report.html import page as diff_page
from tracekit.report.html.page import render_html
from tracekit.report.perfetto.serve import SingleDownloadServer
from tracekit.run.analyze import analyze
from tracekit.run.export import export

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    for name, scale in (
        ("a <img src=x onerror=window.PWNED=5>", 1),
        ("b</title><script>window.PWNED=6</script>", 1.5),
    ):
        run = folder / name.replace("/", "\N{DIVISION SLASH}")
        run.mkdir()
        for rank in (0, 1):
            text = trace(rank, scale=scale)
            (run / f"<svg onload=window.PWNED=7> rank{rank}.json").write_text(
                text, encoding="utf-8"
            )
    runs = sorted(path for path in folder.iterdir() if path.is_dir())
    changed = diff(*(read_side([str(run)], what="run") for run in runs)).document
    texts = {"report": render_html(analyze(runs[0])), "diff": diff_page.render_diff(changed)}
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", ["report", "diff"])
def test_nothing_that_a_trace_says_is_run(browser, pages, name):
    path = pages / f"{name}.html"
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("dialog", lambda dialog: pytest.fail(dialog.message))
    page.goto(path.as_uri())
    page.wait_for_load_state("load")
    page.wait_for_timeout(300)
    assert page.evaluate("window.PWNED") is None
    assert page.title() != MARK
    assert asked == [path.as_uri()]
    assert page.locator("a[href^='javascript:']").count() == 0
    assert page.locator("img").count() == 0
    assert MARK in page.inner_text("body")  # it is there, as text
    page.close()


def test_a_served_export_is_a_file_to_a_browser_and_json_to_a_reader(browser, pages, tmp_path):
    file = tmp_path / "<script>window.PWNED=8<\N{DIVISION SLASH}script>.json"
    export([str(next(path for path in pages.iterdir() if path.is_dir()))], file)
    names = {event["name"] for event in json.loads(file.read_text(encoding="utf-8"))["traceEvents"]}
    assert any(MARK in name for name in names)  # it is there, as text
    assert not any(re.search("[\x00-\x1f]", json.dumps(name)) for name in names)
    with SingleDownloadServer(file, port=0) as offer:
        waiting = threading.Thread(target=offer.wait, daemon=True)
        waiting.start()
        page = browser.new_page()
        page.on("dialog", lambda dialog: pytest.fail(dialog.message))
        # Goto ends where a download begins.
        with (
            page.expect_download() as download,
            contextlib.suppress(Exception),
        ):
            page.goto(offer.url)
        waiting.join(10)
        assert Path(download.value.path()).read_bytes() == file.read_bytes()
        assert page.evaluate("window.PWNED") is None
        page.close()
