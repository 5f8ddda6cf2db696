"""The first screen: what takes the time and what to do first, within its lines and columns."""

from __future__ import annotations

import io
import re

import pytest

from tests.kept import analysis_of
from tracekit.findings import Finding
from tracekit.metrics.budget import Budget
from tracekit.report.terminal.analysis import render
from tracekit.report.terminal.first_screen import budget_parts, saving, short_ms
from tracekit.report.terminal.screen import Screen

RUNS = ("slow-ddp", "1f1b", "megatron-moe", "rl", "reload", "rates")


def lines_of(analysis, width, **options):
    out = io.StringIO()
    screen = Screen(file=out, width=width)
    screen.columns = width
    render(analysis, screen, full=False, **options)
    return out.getvalue().rstrip("\n").split("\n")


@pytest.mark.parametrize("run", RUNS)
def test_five_lines_are_five_lines(samples, run):
    for width in (60, 80, 132):
        lines = lines_of(analysis_of(samples / run), width, brief=True)
        assert len(lines) == 5
        assert max(map(len, lines)) <= width


@pytest.mark.parametrize("run", RUNS)
def test_the_first_line_states_the_step_time_and_no_line_is_wider_than_the_terminal(samples, run):
    analysis = analysis_of(samples / run)
    for width in (60, 80, 132):
        lines = lines_of(analysis, width)
        first = lines[: next((i for i, line in enumerate(lines) if line == "Schedule"), len(lines))]
        assert max(map(len, first)) <= width
        assert short_ms(analysis.step.time_ns) in lines[0]
    assert " · · " not in lines[0]


def test_a_finding_shows_its_saving_its_share_and_its_advice(samples):
    analysis = analysis_of(samples / "slow-ddp")
    text = " ".join(" ".join(lines_of(analysis, 80)).split())
    first = analysis.findings[0]
    assert saving(first).split()[0] in text
    assert " ".join(first.advice.split()) in text


def test_an_ascii_terminal_tells_compute_from_communication(samples):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    render(analysis_of(samples / "slow-ddp"), Screen(file=out, width=80), full=False)
    out.flush()
    bar = out.buffer.getvalue().decode("ascii").split("\n")[1]
    assert re.match(r"#+=+", bar)


def test_parts_below_half_a_percent_are_not_named():
    parts = budget_parts(Budget(1000, 600, {"dp_comm": 390, "memory": 4}, 6))
    assert [name for name, *_ in parts] == ["compute", "dp_comm exposed", "idle"]


def test_further_exposed_labels_are_summed():
    parts = budget_parts(Budget(100, 40, {"dp_comm": 30, "pp_comm": 20, "tp_comm": 6, "cp_comm": 4}, 0))
    assert [(name, ns) for name, _, ns, _ in parts][-1] == ("other exposed", 10)


def test_a_finding_without_a_predicted_saving_shows_its_cost():
    finding = Finding(code="slow_kernel", cost_ns=4_000_000, share=0.2)
    assert saving(finding).split() == ["4.00", "ms", "20", "%"]


def test_full_still_prints_the_whole_answer(samples):
    out = io.StringIO()
    render(analysis_of(samples / "1f1b"), Screen(file=out, width=100), full=True)
    for topic in ("Time", "Blocked", "Exposed", "Schedule", "Waits", "Next"):
        assert re.search(rf"^{topic}\b", out.getvalue(), re.MULTILINE)
