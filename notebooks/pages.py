"""Pictures of the pages for docs/page.md, docs/gallery.md and the README, taken with headless Chromium.

python notebooks/pages.py [runs]
"""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

import tracekit
from tracekit.cli import make_app
from tracekit.report.html.page import render_html

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs/img"
SELECT_LONGEST_SEND = (
    "document.getElementById('path-longest').click(), tracekit.timeline.chart.setWindow(0, 330)"
)
SHOW_TIMELINE = "document.getElementById('timeline').scrollIntoView()"


HEIGHT_OF_RUN = {
    "sample_traces/h100-ddp": 1250,
    "tests/data/everyday/loader": 800,
    "sample_traces/rl": 700,
}
"""Runs whose page is shown from its top, and how much of it."""


def main() -> None:
    """Write the pages of a few samples and take their pictures; with ``runs``, only those of the gallery's runs."""
    os.chdir(ROOT)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for path, height in HEIGHT_OF_RUN.items():
            show_run(browser, path, height)
        browser.close()
    if "runs" not in sys.argv[1:]:
        show_pages()


def show_run(browser: Browser, path: str, height: int) -> None:
    """Take a picture of the first screen of a run's page."""
    page = browser.new_page(viewport={"width": 1240, "height": height})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(render_html(tracekit.analyze(path)), encoding="utf-8")
        page.goto(file.as_uri())
        page.wait_for_selector("html[data-ready=true]")
        page.wait_for_timeout(500)
        shown = page.screenshot()
    page.close()
    target = PICTURES / f"run-{Path(path).name}.png"
    Image.open(io.BytesIO(shown)).convert("RGB").save(target, optimize=True)


def show_pages() -> None:
    """Take the pictures of the page, the timeline, a diff and a history."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        pages = Path(folder)
        dualpipe = tracekit.analyze("sample_traces/dualpipe")
        (pages / "page.html").write_text(render_html(dualpipe), encoding="utf-8")
        tracekit.diff("sample_traces/steps/a", "sample_traces/steps/straggler").save(
            pages / "diff.html"
        )
        run_command(
            "watch", "sample_traces/steps", "--idle", "0", "-o", str(pages / "history.html")
        )
        baseline = ("--baseline", "sample_traces/steps/a")
        run_command(
            "gate",
            "sample_traces/steps/straggler",
            *baseline,
            "--history",
            str(pages / "history.html"),
        )

        def take(name: str, height: int, *, show: str = "", part: str = "") -> None:
            page = browser.new_page(viewport={"width": 1240, "height": height})
            page.goto(
                (
                    pages / f"{name.rsplit('-', maxsplit=1)[-1].replace('timeline', 'page')}.html"
                ).as_uri()
            )
            page.wait_for_selector("html[data-ready=true]")
            # The navigation that stays in sight would cover a part of a high section.
            page.add_style_tag(content="nav { position: static !important; }")
            if show:
                page.evaluate(show)
            page.wait_for_timeout(500)
            shown = page.locator(part).screenshot() if part else page.screenshot()
            # No palette: it would merge the colours of small marks.
            Image.open(io.BytesIO(shown)).convert("RGB").save(
                PICTURES / f"{name}.png", optimize=True
            )
            page.close()

        take("page", 1250)
        take("page-timeline", 1100, show=SELECT_LONGEST_SEND, part="#timeline")
        take("page-diff", 1000, show=SHOW_TIMELINE, part="#timeline")
        take("page-history", 930)
        browser.close()


def run_command(*arguments: str) -> None:
    """Run a command of tracekit; a gate that fails is what the picture shows."""
    make_app()(arguments, standalone_mode=False)


if __name__ == "__main__":
    main()
