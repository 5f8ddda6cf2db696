"""What reports say of findings that changed and of predicted savings."""

from __future__ import annotations

import os
import re

import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace
from rich.console import Console

from tests.changes import unusable
from tests.diffs.test_finding_changes import MS, finding, side
from tracekit.diffs import diff, gate
from tracekit.documents.diff import KernelChange
from tracekit.report import markdown
from tracekit.report.ci import finding_words
from tracekit.report.html import page
from tracekit.report.terminal.changes import show_diff, show_gate

SECRET_CALL = "<img src=x> ![y](https://evil.example) @team #12 GH-3 ::error:: `code` |\n/close"


def result_of(before, after, change=None):
    return diff(before, after, change=change).document


def printed(show, result):
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
        console = Console(width=160, record=True, file=nowhere)
        show(result, console)
    return console.export_text()


@pytest.fixture
def mended():
    """A run whose loader waited 10 ms of 100, and the run after."""
    return side(100.0, finding(saves_ms=10)), side(90.0)


def plain(text):
    return re.sub(r"<[^>]*>|\*", "", text).replace("\N{NO-BREAK SPACE}", " ").replace("&#39;", "'")


def test_every_diff_says_predicted_and_measured_of_a_change_that_was_named(mended):
    sentence = (
        "Change 'no data loading': predicted −10.0 ms per step, measured −10.0 ms: as predicted"
    )
    compared = result_of(*mended, "no data loading")
    texts = [
        printed(show_diff, compared),
        markdown.render_diff(compared),
        page.render_diff(compared),
    ]
    for text in texts:
        assert sentence in plain(text)


def test_of_a_change_that_nobody_named_nothing_is_said_to_be_predicted(mended):
    compared = result_of(*mended)
    judged = gate(mended[1], mended[0]).to_document()
    texts = [
        printed(show_diff, compared),
        printed(show_gate, judged),
        markdown.render_diff(compared),
        markdown.render_gate(judged),
        page.render_diff(compared),
    ]
    for text in texts:
        assert "redicted" not in text
        assert "gone, 10.0 ms (10 % of the step) before: data_loading costs time" in plain(text)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ([finding(saves_ms=10)], (94.0, []), "measured −6.00 ms: less than predicted"),
        ([finding(saves_ms=10)], (80.0, []), "measured −20.0 ms: more than predicted"),
        ([finding(saves_ms=10)], (105.0, []), "measured +5.00 ms: the opposite of predicted"),
        ([finding(saves_ms=10)], (99.5, []), "not decided, because the steps vary by more than that"),
        (
            [finding(saves_ms=10, saves_range_ns=(8 * MS, 12 * MS))],
            (90.0, [finding("c", 2)]),
            "predicted −10.0 ms (−8.00 to −12.0 ms) per step, measured −10.0 ms: as predicted; "
            "new and worse findings cost 2.00 ms of it",
        ),
    ],
)  # fmt: skip
def test_predicted_against_measured_in_words(before, after, sentence):
    step_ms, findings = after
    result = result_of(side(100.0, *before), side(step_ms, *findings), "no data loading")
    assert sentence in finding_words.savings_sentence(result)


def test_too_few_steps_and_different_work_are_named():
    change = "no data loading"
    few = result_of(
        side(100.0, finding(saves_ms=10), spread=(0.0,)), side(90.0, spread=(0.0,)), change
    )
    assert finding_words.savings_sentence(few).endswith("because there are too few steps")
    other = result_of(side(100.0, finding(saves_ms=10), tokens=9), side(90.0, tokens=4), change)
    assert finding_words.savings_sentence(other).endswith("because the steps do different work")


def test_nothing_is_said_of_runs_that_cannot_be_compared(mended):
    result = replace(result_of(*mended, "no data loading"), obstacles=["world size differs"])
    assert finding_words.changed_findings(result) == []
    assert finding_words.savings_sentence(result) == ""


def test_a_range_narrower_than_a_twentieth_is_not_worth_its_words():
    for width_ms, is_shown in ((0.4, False), (0.6, True)):
        saves = finding(saves_ms=10, saves_range_ns=(10 * MS - round(width_ms * MS), 10 * MS))
        said = finding_words.savings_sentence(
            result_of(side(100.0, saves), side(90.0), "no data loading")
        )
        assert ("(−9" in said) == is_shown


def test_a_finding_that_moved_without_the_step_is_folded():
    text = markdown.render_gate(gate(side(100.0, finding()), side(100.0)).to_document())
    folded = re.search("<details>.*?</details>", text, re.DOTALL)[0]
    assert "1 finding differs, but the step time does not beyond its noise" in folded
    assert "**new**, 10.0 ms" in folded
    assert "Findings that changed" not in text


def test_a_finding_that_moved_against_the_step_is_said_to(mended):
    """The step became faster by one finding; another one is new."""
    result = result_of(*mended)
    findings = [*result.findings, replace(result.findings[0], kind="new", step_agrees=False)]
    note = finding_words.undecided_note(replace(result, findings=findings))
    assert note == "1 finding differs the other way than the step time"


def test_names_from_a_trace_are_data_in_every_report():
    bad = finding(text=SECRET_CALL, advice=SECRET_CALL)
    judged = gate(side(120.0, bad), side(100.0)).to_document()
    text = markdown.render_gate(judged)
    html = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    without_code = re.sub("<code>.*?</code>", "", html)
    for word in ("<img", "<a ", "@team", "#12", "GH-3", "https://evil"):
        assert word not in without_code
    assert not re.search(r"(?m)^(/|::)", text)
    shown = page.render_diff(result_of(side(100.0), side(120.0, bad)))
    assert "<img src=x>" not in shown


def test_code_in_advice_is_code_on_the_page_of_a_diff():
    advised = finding(advice="call `torch.compile`")
    shown = page.render_diff(result_of(side(100.0), side(120.0, advised)))
    assert "call <code>torch.<wbr>compile</code>" in shown


def test_a_long_sentence_is_cut_at_300_characters():
    line = finding_words.changed_findings(
        result_of(side(100.0), side(120.0, finding(text="x" * 301)))
    )
    assert line[0].text == "x" * 299 + "…"
    line = finding_words.changed_findings(
        result_of(side(100.0), side(120.0, finding(text="x" * 300)))
    )
    assert line[0].text == "x" * 300


def test_eight_findings_are_seen_and_the_rest_is_folded():
    many = [finding(f"code{i}", 3) for i in range(10)]
    text = markdown.render_gate(gate(side(120.0, *many), side(100.0)).to_document())
    before_fold = text.partition("<details>")[0]
    assert before_fold.count("**new**") == 8
    assert "<summary>2 more findings</summary>" in text


def hostile_result():
    """A verdict whose every text is as long as a trace can make it."""
    many = [finding(f"code{i}", 3, text="|@a " * 500, advice="<b>" * 500) for i in range(300)]
    result = gate(side(120.0, *many), side(100.0)).to_document()
    kernel = KernelChange(
        name="k" * 4000,
        label="other",
        before_ms=1.0,
        after_ms=2.0,
        change_ms=1.0,
        change_relative=1.0,
        count_before=1,
        count_after=1,
    )
    moved = replace(result.moved, kernels=[kernel] * 200, cells=[], notes=["n" * 5000] * 50)
    return replace(result, moved=moved, story=["s" * 100] * 30, waivers=[])


def test_a_verdict_is_shorter_than_60_000_characters_and_begins_with_the_verdict():
    text = markdown.render_gate(hostile_result())
    assert len(text) <= 60_000
    assert text.startswith("## ❌ tracekit gate: regressed: step_ms")
    assert "<sub>left out: " in text
    assert text.count("<details>") == text.count("</details>")
    assert text.count("\n- S") == 5
    hostile = hostile_result()
    moved = replace(hostile.moved, kernels=[], cells=[], notes=["n" * 31_000])
    roomy = replace(hostile, findings=[], moved=moved)
    assert "n" * 31_000 in markdown.render_gate(roomy)


def test_a_long_error_is_cut_after_600_characters():
    for length, text in ((5000, "e" * 560), (500, "e" * 500)):
        said = markdown.render_gate(unusable("e" * length))
        assert text in said
        assert len(said) < 700


def test_a_comment_gives_each_reason_once():
    few = gate(side(110.0, spread=(0.0,) * 3), side(100.0)).to_document()
    text = markdown.render_gate(few)
    assert text.partition("<details>")[0].count("at least 5 are needed") == 1
    broken = gate(side(110.0), side(100.0), require=["step_ms < +3%"]).to_document()
    text = markdown.render_gate(broken)
    assert "breaks" not in text
    assert "| step_ms &lt; +3% |" in text


def test_metrics_of_runs_that_cannot_be_compared_are_folded():
    other = gate(side(110.0, world_size=8), side(100.0, world_size=4)).to_document()
    visible = markdown.render_gate(other).partition("<details>")[0]
    assert "world size differs: 4 before, 8 after" in visible
    assert "|" not in visible
    assert "ecorded step" not in visible
