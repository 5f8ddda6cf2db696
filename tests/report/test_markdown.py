"""The report as Markdown, read back with a Markdown parser: its tables are whole whatever a trace calls its kernels."""

from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import tracekit
from tests.kept import analysis_of
from tracekit._util.text import terminal
from tracekit.report.first_screen import first_screen
from tracekit.report.markdown import render_markdown
from tracekit.report.text import markdown, markdown_code
from tracekit.report.words import short_kernel

pytestmark = pytest.mark.slow

READER = MarkdownIt("commonmark").enable(["table", "strikethrough"])


class Seen(HTMLParser):
    """Tags, and the cells of every table."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.tables, self._cell = [], [], None
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self._cell = ""

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.tables[-1][-1].append(self._cell)
            self._cell = None


@pytest.fixture(scope="module")
def analysis(samples):
    return analysis_of(samples / "1f1b")


@pytest.fixture(scope="module")
def seen(analysis):
    return Seen(READER.render(render_markdown(analysis)))


def test_the_first_screen_comes_first(analysis):
    lines = render_markdown(analysis).splitlines()
    blocks = first_screen(analysis)
    assert lines[0] == f"## tracekit: {blocks[0].text}"
    assert lines[2].endswith(" · ".join(blocks[1].words))
    numbers = [line.partition(".**")[0] for line in lines if line.startswith("**")]
    assert numbers[1:4] == ["**1", "**2", "**3"]


def test_the_budget_table_has_every_rank_and_its_shares(seen, analysis):
    budget = seen.tables[0]
    assert budget[0] == [
        "rank",
        "span",
        "compute",
        "exposed pp_comm",
        "exposed memory",
        "idle",
        "bubble",
    ]
    assert [row[0] for row in budget[1:]] == ["0", "1", "2", "3", "mean"]
    for row, one in zip(budget[1:-1], analysis.ranks, strict=True):
        assert row[1] == f"{one.whole.budget.span_ns / 1e6:.1f} ms"
        assert row[2] == f"{one.whole.budget.compute_ns / one.whole.budget.span_ns:.1%}".replace(
            "%", " %"
        )
        shares = [float(cell.split()[0]) for cell in row[2:-1]]
        assert sum(shares) == pytest.approx(100, abs=0.2)


def test_the_gap_table_adds_up(seen, analysis):
    gap = next(table for table in seen.tables if table[0][1:3] == ["time", "of the gap"])
    times = [float(row[1].replace(" ms", "").replace("−", "-")) for row in gap[1:]]
    assert times[0] + sum(times[1:-1]) == pytest.approx(times[-1], abs=0.1 * len(times))
    assert times[-1] == pytest.approx(analysis.comparison.head.measured_ns / 1e6, abs=0.06)


def test_further_findings_warnings_and_kernels_are_folded(seen, analysis):
    folds = seen.tags.count("details")
    # Further findings, kernels, operators, and warnings.
    assert folds == (4 if analysis.notices else 3)
    assert seen.tags.count("summary") == folds


def test_every_row_is_as_wide_as_its_head(seen):
    assert len(seen.tables) >= 5
    for table in seen.tables:
        assert {len(row) for row in table} == {len(table[0])}


HOSTILE = [
    "<script>alert(1)</script>",
    "a|b|c",
    "`x` `` y ```",
    "</details></td></table><img src=x onerror=alert(1)>",
    "[link](javascript:alert(1)) ![i](http://x/y.png)",
    "**bold** _it_ ~~gone~~ # head",
    "ends in a backslash \\",
    "two\nlines | --- |",
    "@everyone #12 https://evil.example",
]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """A trace whose kernels, device and path all carry such names."""
    folder = tmp_path_factory.mktemp("md") / "a|`b`_c_"
    folder.mkdir()
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": 100 * i, "dur": 50,
         "args": {"device": 0, "stream": 7, "correlation": i + 1}}
        for i, name in enumerate(HOSTILE)
    ]  # fmt: skip
    device = {"id": 0, "name": "<b>GPU</b> | *x*"}
    document = {"schemaVersion": 1, "deviceProperties": [device], "traceEvents": events}
    (folder / "rank0.json").write_text(json.dumps(document))
    return tracekit.analyze(folder)


def test_text_of_a_trace_stays_text(hostile):
    text = render_markdown(hostile)
    seen = Seen(READER.render(text))
    ours = {
        "h2",
        "h3",
        "ul",
        "li",
        "ol",
        "strong",
        "p",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "details",
        "summary",
        "sub",
        "code",
    }
    assert set(seen.tags) <= ours
    for table in seen.tables:
        assert {len(row) for row in table} == {len(table[0])}
    kernels = next(table for table in seen.tables if table[0][0] == "kernel")
    assert {row[0].strip() for row in kernels[1:]} == {
        terminal(short_kernel(name)) for name in HOSTILE
    }
    assert seen.tags.count("details") == text.count("<details>")


@given(st.text(max_size=60))
def test_plain_text_reads_back_as_itself(text):
    html = READER.render("| h | i |\n| --- | --- |\n| " + markdown(text) + " | end |")
    seen = Seen(html)
    assert seen.tags == ["table", "thead", "tr", "th", "th", "tbody", "tr", "td", "td"]
    cells = seen.tables[0][1]
    assert cells[1] == "end"
    assert cells[0].replace("\u200b", "") == terminal(text)


@given(st.text(max_size=60))
def test_code_reads_back_as_itself(text):
    seen = Seen(READER.render("| h | i |\n| --- | --- |\n| " + markdown_code(text) + " | end |"))
    cells = seen.tables[0][1]
    assert cells[1] == "end"
    assert cells[0].strip() == terminal(text)
