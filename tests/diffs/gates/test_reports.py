"""What the reports say, apart from the command that writes them."""

from __future__ import annotations

import json
import os
import re

import pytest
from markdown_it import MarkdownIt
from msgspec.structs import replace

from tests.changes import unusable
from tracekit.diffs import Side, diff, from_analysis, gate
from tracekit.documents.baseline import CellTime
from tracekit.report import markdown as diff_markdown
from tracekit.report import markdown as gate_markdown
from tracekit.report.ci import words
from tracekit.report.ci import write as gate_github
from tracekit.report.html import page as diff_html
from tracekit.report.terminal import changes as diff_terminal


@pytest.fixture
def sides(make, scaled):
    return [
        Side((from_analysis(make(spans), name=name),), {})
        for name, spans in (("old", scaled(1.0)), ("new", scaled(1.1)))
    ]


def test_at_most_ten_annotations(sides):
    result = gate(sides[1], sides[0]).to_document()
    lines = gate_github.github_annotations(replace(result, checks=result.checks[:1] * 30))
    assert len(lines) == 10
    assert lines[-1] == "::notice title=tracekit gate::and 21 more in the summary"


def test_annotations_cannot_be_broken_by_what_they_say():
    line = gate_github.github_annotations(unusable("a\nb%0A::"))[0]
    assert "\n" not in line
    assert line.endswith("a%0Ab%250A::")


def test_markdown_shows_before_and_after_and_what_moved(make, scaled):
    old, new = make(scaled(1.0)), make(scaled(1.1))
    new["kernels"][0]["ns"] = 30_000_000
    cells = [CellTime(rank=0, op="F", stage=0, microbatch=3, ns=1_000_000)]
    slow = [replace(cells[0], ns=1_500_000)]
    before = Side((from_analysis(old, name="old", cells=cells),), {})
    after = Side((from_analysis(new, name="new", cells=slow),), {})
    text = gate_markdown.render_gate(gate(after, before).to_document())
    text = text.replace("\N{NO-BREAK SPACE}", " ")
    assert "| ❌ regressed | step_ms | 100.0 ms | 110.0 ms | +10.0 % |" in text
    assert "| gemm&lt;a\\|b&gt;, forward | 20.00 ms | 30.00 ms | +10.00 ms (+50.0 %) |" in text
    assert "| rank 0, 0F3 | 1.000 ms | 1.500 ms | +0.500 ms (+50.0 %) |" in text


def test_names_in_a_pull_request_call_nobody_and_link_nowhere(make, scaled):
    old, new = make(scaled(1.0)), make(scaled(1.1))
    name = "![x](https://evil.example/p.png) @everyone [y](javascript:z) <img src=q>"
    old["kernels"][0]["name"] = new["kernels"][0]["name"] = name
    new["kernels"][0]["ns"] = 30_000_000
    sides = [Side((from_analysis(document, name=f"`{name}`"),), {}) for document in (old, new)]
    for text in (
        gate_markdown.render_gate(gate(sides[1], sides[0]).to_document()),
        diff_markdown.render_diff(diff(*sides).document),
    ):
        read = MarkdownIt("commonmark").enable("table").render(text)
        assert "everyone" in read
        read = re.sub("<code>.*?</code>", "", read)  # nobody is called from code
        assert not any(tag in read for tag in ("<img", "<a ", "@everyone", "https://evil"))


def test_diff_finds_label_module_rank_kernel_and_cell(make, scaled):
    old, new = make(scaled(1.0)), make(scaled(1.0), scale=1.5)
    new["kernels"] = [
        {**new["kernels"][0], "ns": 30_000_000},
        {"name": "extra", "label": "other", "module": None, "count": 1, "ns": 50},
    ]
    cells = [CellTime(rank=1, op="B", stage=1, microbatch=0, ns=2_000_000)]
    got = diff(
        Side((from_analysis(old, name="old", cells=cells),), {}),
        Side((from_analysis(new, name="new", cells=[replace(cells[0], ns=2_500_000)]),), {}),
    ).to_dict()
    assert got["labels"][0]["label"] == "forward"
    # A third of 60 ms, half as long again.
    assert got["labels"][0]["change_ms"] == pytest.approx(10.0, rel=0.01)
    assert got["modules"] == [
        {"module": "mlp", "label": "forward", "before_ms": 20.0, "after_ms": 30.0, "change_ms": 10.0,
         "change_relative": 0.5, "count_before": 1, "count_after": 1}
    ]  # fmt: skip
    assert [k["name"] for k in got["kernels"]] == ["gemm<a|b>", "extra"]
    assert got["cells"][0]["change_ms"] == 0.5
    assert [r["rank"] for r in got["ranks"]] == [0, 1]
    assert (
        next(m for m in got["metrics"] if m["metric"] == "label_ms.forward")["verdict"]
        == "regressed"
    )
    json.dumps(got, allow_nan=False)


def test_a_saved_analysis_says_what_it_cannot_show(sides):
    got = diff(sides[0], sides[1]).to_dict()
    assert got["cells"] == []
    assert any("cells" in note for note in got["notes"])


def test_renderings_hold_the_same_facts(sides):
    got = diff(sides[0], sides[1]).document
    page, text = diff_html.render_diff(got), diff_markdown.render_diff(got)
    for fragment in ("step_ms", "100.0 ms", "110.0 ms", "pp_comm", "rank 1"):
        assert fragment in page
        assert fragment in text
    assert "gemm<a|b>" not in page
    assert "://" not in page  # the page needs nothing from the network
    for width in (60, 160):
        lines = printed(diff_terminal.show_diff, got, width)
        assert "tep 100.0 ms → 110.0 ms (+10.0 %): slower" in "\n".join(lines)
        assert max(map(len, lines)) <= width


def test_diff_command(command, save, scaled, tmp_path):
    old, new = save("old.json"), save("new.json", scaled(1.1))
    code, out, err = command("diff", old, new, "-o", "d.html", "-o", "d.md", "-o", "d.json")
    assert code == 0, err
    assert "slower" in out
    assert err.count("wrote d.") == 3
    assert json.loads((tmp_path / "d.json").read_text())["format"] == "tracekit.diff/1"
    code, out, _ = command("diff", old, new, "--json")
    assert json.loads(out)["metrics"][0]["verdict"] == "regressed"
    assert command("diff", old, "nowhere.json")[0] == 2
    assert command("diff", old, new, "-o", "d.pdf")[0] == 2


def test_every_rendering_says_first_what_became_of_the_step(sides):
    got = diff(sides[0], sides[1]).document
    sentence = "Typical recorded step 100.0 ms → 110.0 ms (+10.0 %): slower"
    page, text = (
        diff_html.render_diff(got).replace("\N{NO-BREAK SPACE}", " "),
        diff_markdown.render_diff(got),
    )
    assert text.splitlines()[2] == f"**{sentence}**"
    assert page.index(sentence) < page.index("<table")
    assert "Content-Security-Policy" in page


def printed(show, result, width=160):
    """Return the lines that a terminal of this width prints."""
    from rich.console import Console

    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
        console = Console(width=width, record=True, file=nowhere)
        show(result, console)
    return console.export_text().splitlines()


def test_too_few_steps_are_inconclusive_in_every_rendering(make):
    before, after = (Side((from_analysis(make((ms,)), name="x"),), {}) for ms in (100.0, 150.0))
    got = diff(before, after).document
    outcome = (
        "Recorded step 100.0 ms → 150.0 ms (+50.0 %): "
        "inconclusive (1 step before, 1 after; at least 5 are needed)"
    )
    terminal_text = "\n".join(printed(diff_terminal.show_diff, got))
    for text in (terminal_text, diff_markdown.render_diff(got), diff_html.render_diff(got)):
        lines = [
            line for line in text.replace("\N{NO-BREAK SPACE}", " ").splitlines() if line.strip()
        ]
        first = next(i for i, line in enumerate(lines) if outcome in line)
        assert "What differs:" in lines[first + 1]
        assert "grew by" in lines[first + 2]


def test_a_gate_names_both_sides_and_every_limit(sides):
    lines = printed(diff_terminal.show_gate, gate(sides[1], sides[0]).to_document())
    assert lines[0].rstrip() == "before: old (8 steps) · after: new (8 steps)"
    assert lines[1].startswith("regressed: step_ms")
    rows = {line.split()[1]: line for line in lines if line.startswith(("regressed ", "pass "))}
    assert re.search(
        r"\+10\.0 %  +\+2\.9 %  +\+\d+\.\d … \+\d+\.\d %  worse by more than 2\.9 %",
        rows["step_ms"],
    )


def test_on_80_columns_names_of_metrics_are_whole_and_reasons_stand_below(sides):
    result = gate(sides[1], sides[0]).to_document()
    lines = printed(diff_terminal.show_gate, result, width=80)
    rows = {line.split()[1] for line in lines if line.startswith(("regressed ", "pass "))}
    assert {check.metric for check in result.checks if check.verdict == "regressed"} <= rows
    text = " ".join(" ".join(lines).split())
    assert re.search(r"step_ms[\w., ]*: worse by more than 2\.9 %", text)
    assert all(len(line.rstrip()) <= 80 for line in lines)


def test_below_110_columns_a_pass_without_reasons_keeps_its_likely_ranges(sides):
    lines = printed(diff_terminal.show_gate, gate(sides[0], sides[0]).to_document(), width=105)
    assert re.search(r"limit +likely range$", lines[2].rstrip())
    assert not any(line.startswith("  step_ms: ") for line in lines)


@pytest.mark.parametrize(
    ("factor", "reason"), [(1.02, "worse, within the limit"), (1.0, ""), (0.98, "")]
)
def test_a_pass_says_that_it_got_worse(make, scaled, factor, reason):
    """Compute time has a floor of 3.25 % and steps that vary by half a percent: 2 % are certain, and accepted."""
    sides = [Side((from_analysis(make(scaled(scale)), name="x"),), {}) for scale in (1.0, factor)]
    result = gate(sides[1], sides[0]).to_dict()
    compute = next(check for check in result["checks"] if check["metric"] == "compute_ms")
    assert (compute["verdict"], compute["reason"]) == ("pass", reason)


@pytest.mark.parametrize(
    ("requirement", "limit", "limit_on", "text"),
    [
        ("step_ms < +3%", 3.0, "change", "+3.0 %"),
        ("step_ms < +2ms", 2.0, "change", "+2.0 %"),
        ("step_ms < 120", 120.0, "level", "120.0 ms"),
        ("overlap.pp_comm > -0.02", -0.02, "change", "−2.0 points"),
        ("bubble_fraction < 90%", 0.9, "level", "90.0 %"),
    ],
)
def test_the_limit_is_that_of_the_requirement(make, requirement, limit, limit_on, text):
    side = Side((from_analysis(make((100.0,) * 8), name="x"),), {})
    check = gate(side, side, require=[requirement]).checks[0]
    assert (check.limit, check.limit_on) == (pytest.approx(limit), limit_on)
    assert words.limit(check) == text


def test_a_gate_without_a_baseline_names_the_candidate_alone(sides):
    result = gate(sides[1], require=["step_ms < 200"]).to_document()
    assert printed(diff_terminal.show_gate, result)[0].rstrip() == "after: new (8 steps)"
