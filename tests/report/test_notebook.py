"""What a notebook shows of results: the words of the terminal, nothing as a dataclass printed whole."""

import html
import re

import pytest

import tracekit
from tests.kept import analysis_of
from tracekit.errors import OptionError
from tracekit.report.notebook import NOTEBOOK_WIDTH, screen_html
from tracekit.report.terminal.first_screen import first_screen


def shown_text(page):
    """Return the text of HTML without its tags."""
    return html.unescape(re.sub(r"<[^>]*>", "", page))


def test_a_run_shows_the_first_screen_of_the_terminal(samples):
    analysis = analysis_of(samples / "1f1b")
    text = shown_text(analysis._repr_html_())
    terminal_lines = [line.plain for line in first_screen(analysis, NOTEBOOK_WIDTH)]
    *first_lines, more = terminal_lines
    assert more.strip().startswith("more: --full")
    assert [line for line in first_lines if line.rstrip() not in text] == []
    assert "--explain" not in text  # no option of the command line


def test_every_finding_is_below_it_with_its_advice(samples):
    analysis = analysis_of(samples / "1f1b")
    text = shown_text(analysis.findings._repr_html_())
    assert len(analysis.findings) > 3
    assert all(finding.text in text and finding.advice in text for finding in analysis.findings)
    assert analysis.findings._repr_html_() in analysis._repr_html_()


def test_text_of_a_recording_is_no_markup():
    page = screen_html("<script>alert(1)</script>[red]\x1b[2J")
    assert "<script>" not in page
    assert "[red]␛[2J" in shown_text(page)


def test_lateness_and_memory_show_what_the_terminal_shows(samples):
    run = tracekit.late(samples / "always-on/late")
    assert "How each rank joins" in shown_text(run._repr_html_())
    assert repr(run).startswith("<Late: Rank 1 ")
    snapshots = tracekit.memory(samples / "memory-snapshot", ranks="0")
    assert "What fills each GPU" in shown_text(snapshots._repr_html_())
    assert repr(snapshots) == "<Memory: 1 snapshot, peak 587.9 MB>"
    change = tracekit.diff_memory(samples / "memory-snapshot", samples / "memory-snapshot")
    assert "nothing changed" in shown_text(change._repr_html_())


@pytest.mark.slow
def test_a_comparison_and_a_verdict_show_what_changed_and_why(samples):
    before, after = (analysis_of(samples / "steps" / name) for name in ("a", "straggler"))
    changes = tracekit.diff(before, after)
    verdict = tracekit.gate(after, before)
    for result in (changes, verdict):
        assert "Rank 1's mlp forward grew by" in shown_text(result._repr_html_())
    assert verdict.verdict in shown_text(verdict._repr_html_())


def test_a_prediction_shows_its_step_and_what_it_rests_on(samples):
    step = analysis_of(samples / "slow-ddp").what_if("rank 2 like others")
    text = " ".join(shown_text(step._repr_html_()).split())
    assert "predicted ms" in text
    assert f"{step.predicted_ns / 1e6:,.1f}" in text
    assert step.rests_on[0] in text


def test_ranks_are_spelled_as_on_the_command_line(samples):
    assert tracekit.load(samples / "reload", ranks="0,2-3").ranks == (0, 2, 3)
    with pytest.raises(OptionError, match="is not a rank"):
        tracekit.load(samples / "reload", ranks=0)


def test_what_if_needs_no_option_before(samples):
    step = analysis_of(samples / "1f1b").what_if("no host delay")
    assert step.predicted_ns is not None
    assert step.predicted_ns <= step.measured_ns
