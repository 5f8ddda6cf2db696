"""Tests of the history page: it grows, its points lead to reports, and a file that is none is refused."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from tracekit.cli import make_app
from tracekit.diffs import Run, make_samples
from tracekit.diffs.history import history_point
from tracekit.errors import InputError, OptionError
from tracekit.report.html.history import add_to_history, check_history, read_history

pytestmark = pytest.mark.usefixtures("measured_once")


def run_of(name, step_ms, **samples):
    values = {"step_ms": step_ms, **samples}
    return Run(name, make_samples({key.replace("__", "."): [ms] for key, ms in values.items()}))


def test_points_are_added_in_order_of_time_and_replaced_if_the_same(tmp_path):
    path = tmp_path / "history.html"
    add_to_history(path, [history_point(run_of("late", 3.0), time_s=2_000)])
    add_to_history(
        path, [history_point(run_of("early", 2.0, exposed_ms__pp_comm=0.5), time_s=1_000)]
    )
    add_to_history(path, [history_point(run_of("late", 4.0), time_s=2_000, verdict="regressed")])
    points = read_history(path)
    assert [(point.name, point.values["step_ms"]) for point in points] == [
        ("early", 2.0),
        ("late", 4.0),
    ]
    assert points[0].values["exposed_ms.pp_comm"] == 0.5
    assert points[0].time == "1970-01-01T00:16:40+00:00"
    assert points[1].verdict == "regressed"


def test_a_file_that_is_no_history_is_refused(tmp_path):
    path = tmp_path / "notes.html"
    path.write_text("<p>mine</p>")
    with pytest.raises(InputError, match="not a history"):
        check_history(path)
    assert path.read_text() == "<p>mine</p>"
    with pytest.raises(OptionError, match="a history is a page"):
        check_history(tmp_path / "history.json")


def test_watch_and_gate_add_to_one_page(samples, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_SHA", "0123456789abcdef")
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    path, runner = tmp_path / "history.html", CliRunner()
    watched = runner.invoke(
        make_app(), ["watch", str(samples / "steps"), "--idle", "0", "-o", str(path)]
    )
    assert watched.exit_code == 0, watched.output
    judged = runner.invoke(
        make_app(),
        [
            "gate",
            str(samples / "steps/straggler"),
            "--baseline",
            str(samples / "steps/a"),
            "--history",
            str(path),
        ],
    )
    assert judged.exit_code == 1
    points = read_history(path)
    assert {point.name for point in points[:3]} == {"a", "b", "straggler"}
    verdicts = {point.name: point.verdict for point in points[:3]}
    assert verdicts["straggler"] == "regressed"  # against the first that landed
    assert verdicts["a"] is None
    assert points[3].verdict == "regressed"
    assert points[3].commit == "0123456789abcdef"
    # Half way between the two in the middle of eight steps (26.519 and 26.766 ms, means of two ranks).
    assert points[3].values["step_ms"] == pytest.approx(26.643, abs=0.001)
    for point in points:
        report = tmp_path / point.report
        assert 'id="timeline"' in report.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("width", [1440, 390])
def test_a_point_leads_to_its_report(look, tmp_path, width):
    path = tmp_path / "history.html"
    figures = {"exposed_ms__pp_comm": 0.5, "bubble_fraction": 0.2, "utilisation": 0.4}
    runs = [run_of(f"run {i} <b>", 10 + i, **figures) for i in range(12)]
    points = [
        history_point(
            run, time_s=1e9 + 20 * i, report=f"r{i}.html", verdict="regressed" if i == 7 else None
        )
        for i, run in enumerate(runs)
    ]
    add_to_history(path, points)
    (tmp_path / "r3.html").write_text("<p>report 3</p>")
    page = look(path, width=width)
    assert page.said == []
    assert page.locator("#curves h2").all_inner_texts() == [
        "Step time", "Exposed time by label", "Bubble", "Model FLOP utilisation"
    ]  # fmt: skip
    assert page.locator("#curves section").first.locator("circle").count() == 12
    assert page.locator("#curves section").first.locator("rect.regressed").count() == 1
    ticks = page.locator("#curves svg").first.locator("text").all_text_contents()
    assert any(re.fullmatch(r"0(\.0+)? ms", text) for text in ticks)  # the axis starts at zero
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # 20 s apart: minutes alone would be the same below several points.
    axis = [
        text
        for text in page.locator("#curves svg").first.locator("text").all_text_contents()
        if ":" in text
    ]
    assert len(set(axis)) == len(axis) >= 2
    point = page.locator("#curves section").first.locator("a").nth(3)
    point.hover()
    assert page.locator("#tip").inner_text().startswith("run 3 <b>")
    point.click()
    assert page.locator("p").inner_text() == "report 3"
