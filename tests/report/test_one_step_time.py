"""One run has one step time: every output states the same number."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from tests.kept import analysis_of, diagnosis_of
from tracekit._util.text import ms, short_ms
from tracekit.diffs.history import history_point
from tracekit.diffs.run_samples import from_analysis
from tracekit.diffs.scalars import scalars
from tracekit.diffs.verdict import judge
from tracekit.diffs.watch_line import line
from tracekit.record.answer import answer_of
from tracekit.report.first_screen import headline
from tracekit.report.html.page import render_html
from tracekit.report.markdown import render_markdown
from tracekit.report.step_words import free_step_words
from tracekit.report.terminal.analysis import render as render_analysis
from tracekit.report.words import WORDS
from tracekit.run.watch import WatchedRecording

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]

SAMPLES = Path(__file__).parents[2] / "sample_traces"
FOLDERS = (
    "1f1b",  # a pipeline of one step
    "steps/a",  # a pipeline of several steps
    "vpp-overlap",  # virtual stages
    "slow-ddp",  # data parallelism
    pytest.param("megatron-moe", marks=pytest.mark.nightly),  # experts
    "recompute",  # one rank
    "compile",  # graphs
    "memory",  # with allocations
    "reload",  # weight updates, no marked steps
    pytest.param("checkpoint-engine", marks=pytest.mark.nightly),  # several processes per rank
    "nsys-1f1b",  # Nsight Systems
    pytest.param("nsys-meg-1f1b", marks=pytest.mark.nightly),  # Nsight Systems with messages
)
"""A sample of each kind of run and recording."""


@pytest.fixture(scope="module", params=FOLDERS)
def folder(request):
    return SAMPLES / request.param


@pytest.fixture(scope="module")
def analysis(folder):
    return analysis_of(folder)


def plain(text: str) -> str:
    """Return text with one kind of space and without escapes."""
    return re.sub(r"\s+", " ", text.replace("\u00a0", " ").replace("\u202f", " ").replace("\\", ""))


def printed(renderable) -> str:
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def test_texts_state_the_step_time(folder, analysis):
    """The one without the profiler, where that matters: the bar and its shares are of it."""
    time = headline(analysis).time
    if not analysis.role_results.iterations:
        assert short_ms(analysis.step.stated_ns) in time
    assert time in plain(render_markdown(analysis))
    assert time in plain(render_html(analysis))
    screen = Console(width=200, record=True, file=io.StringIO())
    render_analysis(analysis, screen, brief=True)
    assert time in plain(screen.export_text())
    assert time in answer_of(analysis).lines[0]
    expected = free_step_words(analysis.step) or ms(analysis.step.time_ns)
    assert f"step {expected} (" in line(WatchedRecording("run", (folder,), analysis))


def test_figures_are_the_step_time(analysis):
    time_ns = analysis.step.time_ns
    document = analysis.to_document()
    assert document.step.time_ns == time_ns
    run = from_analysis(document, name="run")
    step_ms = pytest.approx(time_ns / 1e6, abs=1e-6)
    checks = {check.metric: check for check in judge([run], [run])}
    assert checks["step_ms"].before == step_ms
    assert scalars(analysis)["tracekit/step_ms"] == step_ms
    point = history_point(run, time_s=0.0).values
    assert point["step_ms"] == step_ms
    free_ns = analysis.step.free_ns
    free_ms = None if free_ns is None else free_ns / 1e6
    assert scalars(analysis).get("tracekit/free_step_ms") == free_ms
    assert point.get("free_step_ms") == free_ms


def test_the_notebook_shows_the_step_time(analysis):
    expected = ms(analysis.step.time_ns, digits=3)
    assert f"{'step time' if analysis.step.marked else 'extent'} {expected}>" in repr(analysis)
    _, _, ranks = analysis._repr_html_().partition("<summary>Ranks</summary>")
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", ranks)
    assert cells[1] == ms(analysis.step.stated_ns, digits=3).removesuffix(" ms")


def test_doctor_states_the_step_time_of_marked_steps(folder, analysis):
    diagnosis = diagnosis_of(folder)
    if not diagnosis.to_dict()["steps"]:
        assert diagnosis.to_dict()["step_time_ns"] is None
        return
    assert diagnosis.to_dict()["step_time_ns"] == analysis.step.time_ns
    text = printed(diagnosis)
    assert re.search(rf"step time\s+{re.escape(ms(analysis.step.time_ns))}\b", text)
    assert re.search(r"recorded time\s+[\d,.]+ ms", text)


def test_changes_are_predicted_from_the_step_time(folder):
    analysis = analysis_of(folder)
    for change in analysis.changed_steps:
        assert change.measured_ns == analysis.step.time_ns


def test_what_the_schedule_span_is_stands_beside_it():
    analysis = analysis_of(SAMPLES / "1f1b")
    relation = plain(WORDS.schedule_definitions["schedule span"])
    assert "Of the step it leaves out what runs outside cells" in relation
    screen = Console(width=200, record=True, file=io.StringIO())
    render_analysis(analysis, screen, full=True)
    for text in (screen.export_text(), render_markdown(analysis), render_html(analysis)):
        assert relation in plain(text.replace("&#39;", "'"))
        assert "makespan" not in text


def test_the_budget_shows_the_step_that_shares_are_of_beside_the_recorded_spans():
    analysis = analysis_of(SAMPLES / "recompute")
    assert analysis.step.profiler_ns
    rows = [text for text in render_markdown(analysis).splitlines() if "without profiler |" in text]
    (row,) = rows
    budget = analysis.step.stated_budget
    assert f" {budget.span_ns / 1e6:.1f} ms " in row
    assert f" {budget.compute_ns / budget.span_ns:.1%} ".replace("%", " %") in row
    # A run that is as long without the profiler has no such row.
    alike = analysis_of(SAMPLES / "1f1b")
    assert not alike.step.profiler_ns
    assert "without profiler |" not in render_markdown(alike)
