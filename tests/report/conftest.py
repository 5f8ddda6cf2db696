"""What several reports are tried on: samples analysed once, and one browser with one window for all pages."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.kept import analysis_of
from tracekit.report.html.page import render_html

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def browser():
    """A Chromium without windows."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium on this machine (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as p:
        running = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@pytest.fixture(scope="session")
def window(browser):
    """The one window that most pages are opened in, with what it said and asked for since the last was."""
    page = browser.new_page()
    page.said, page.asked = [], []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    page.on("request", lambda request: page.asked.append(request.url))
    return page


@pytest.fixture
def look(window):
    """Open a page in the window, as if for the first time, and return the window."""

    def opened(path, *, width=1200, height=900, dark=False, media="screen"):
        window.said.clear()
        window.asked.clear()
        window.set_viewport_size({"width": width, "height": height})
        window.emulate_media(media=media, color_scheme="dark" if dark else "light")
        window.mouse.move(0, 0)
        window.goto(path.as_uri())
        window.wait_for_selector("html[data-ready=true]")
        return window

    return opened


@pytest.fixture(scope="session")
def analysed(samples):
    """Analyse a sample with its critical path, once for all tests."""
    return lambda name, **options: analysis_of(samples / name, **options)


@pytest.fixture(scope="session")
def pages(tmp_path_factory, analysed):
    """Write the page of a sample, once; without its critical path unless asked for."""
    folder = tmp_path_factory.mktemp("pages")

    def write(name, *, path=False):
        target = folder / f"{name.replace('/', '-')}{'-path' * path}.html"
        if not target.exists():
            analysis = analysed(name)
            target.write_text(
                render_html(analysis),
                encoding="utf-8",
            )
        return target

    return write


@pytest.fixture
def kernels_named(tmp_path):
    """Write a trace whose kernels have these names, one after the other, and return its path."""

    def write(names):
        events = [
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 1000 * i, "dur": 900,
             "args": {"device": 0, "stream": 7, "correlation": i + 1}}
            for i, name in enumerate(names)
        ]  # fmt: skip
        path = tmp_path / "odd.json"
        path.write_text(json.dumps({"traceEvents": events}))
        return path

    return write
