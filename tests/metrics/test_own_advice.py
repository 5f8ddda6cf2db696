"""Entries that users add to the catalogue, and tables of rates of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.findings.conftest import Recording
from tests.metrics.test_alternatives import BF16, Calls
from tracekit import analyze
from tracekit.errors import OptionError
from tracekit.metrics.alternatives import NOTHING, Alternative, own
from tracekit.metrics.attainable import read_gpu_rates


class NoGelu(Alternative, frozen=True):
    """A house that has no GELU."""

    change = "no gelu"
    rests_on = "GELU is left out"
    code = "house_gelu"
    case = ""
    title = "GELU"
    says = "GELU takes {work_ns}"
    advises = "use ReLU"

    def find(self, rank):
        sites = rank.sites.filter(rank.sites["op"] == "aten::gelu")["site"]
        yield self.of_sites(rank, dict.fromkeys(sites, NOTHING))


class Raises(NoGelu, frozen=True):
    change = "raises"

    def find(self, rank):
        raise KeyError(rank.sites.height)


@pytest.fixture
def steps(tmp_path):
    """Four steps of 10 ms: a product of 8 ms and a GELU of 1 ms each."""
    recording = Recording()
    for number in range(4):
        start = number * 10.0
        recording.step(number, start, start + 10.0)
        calls = Calls(recording, start)
        sizes = [[16384, 16384], [16384, 16384]]
        calls.add("aten::mm", sizes, 8_000_000, types=["float", "float"], name="simt_sgemm")
        calls.add("aten::gelu", [[4096, 4096]], 1_000_000, types=[BF16])
        calls.wait()
    recording.write(tmp_path)
    return tmp_path


def test_a_users_entry_is_found_as_those_of_the_catalogue(steps):
    analysis = analyze(steps, schedule="none", advice=[NoGelu()])
    (finding,) = [finding for finding in analysis.findings if finding.code == "house_gelu"]
    assert finding.saves_ns == pytest.approx(1_000_000, rel=0.05)
    assert finding.text == "GELU takes 1.00 ms"
    assert finding.change == "no gelu"
    without = analyze(steps, schedule="none").findings
    assert [finding.code for finding in without if finding.code == "house_gelu"] == []


def test_an_entry_that_raises_is_left_out_with_a_notice_that_names_it(steps):
    analysis = analyze(steps, schedule="none", advice=[Raises(), NoGelu()])
    (notice,) = [notice for notice in analysis.notices if notice.code == "advice-left-out"]
    assert "Raises" in notice.message
    assert "KeyError" in notice.message
    assert "house_gelu" in {finding.code for finding in analysis.findings}


class Untitled(Alternative, frozen=True):
    change = "untitled"


class Unfillable(NoGelu, frozen=True):
    says = "takes {time}"


@pytest.mark.parametrize(
    ("entry", "message"),
    [("no entry", "'no entry'"), (Untitled(), "has no rests_on"), (Unfillable(), "'time'")],
)
def test_what_is_no_entry_is_refused(steps, entry, message):
    with pytest.raises(OptionError, match=message):
        analyze(steps, advice=[entry])


class Point:
    """An entry point of an installed package."""

    def __init__(self, loaded):
        self.value = "house.advice:entries"
        self.loaded = loaded

    def load(self):
        return self.loaded


@pytest.mark.parametrize(
    ("loaded", "is_used"), [([NoGelu()], True), (NoGelu(), True), (["x"], False)]
)
def test_entries_of_installed_packages_are_added(steps, monkeypatch, loaded, is_used):
    points = {"tracekit.advice": [Point(loaded)]}
    monkeypatch.setattr(own, "entry_points", lambda group: points[group])
    analysis = analyze(steps, schedule="none")
    assert ("house_gelu" in {finding.code for finding in analysis.findings}) is is_used
    left_out = [notice for notice in analysis.notices if notice.code == "advice-left-out"]
    assert len(left_out) == (not is_used)


def test_the_entry_that_the_documentation_shows_is_one(steps):
    page = (Path(__file__).parents[2] / "docs" / "findings.md").read_text(encoding="utf-8")
    names = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)
    analysis = analyze(steps, schedule="none", advice=[names["DebugCopies"]()])
    assert "advice-left-out" not in {notice.code for notice in analysis.notices}


HEAD = "work,type,unit,low,likely,high\n"


def test_a_users_table_prices_what_the_run_does_not_show(steps, tmp_path):
    """16384³ × 2 FLOP are 8.8 TFLOP: in bf16 at 400 TFLOP/s 22 ms, at 900 9.8."""
    table = tmp_path / "rates.csv"
    saved = []
    for rate in (2000, 3000):
        table.write_text(f"{HEAD}product,bf16,TFLOP/s,{rate},{rate},{rate}\n")
        analysis = analyze(steps, schedule="none", gpu_rates=table, changes=["bf16"])
        saved.append(analysis.changed_steps[0].saves_ns)
    flop_ns = 2 * 16384**3 / 989.4e3
    assert saved[0] == saved[1]  # above the vendor's peak: all of it
    assert saved[0] == pytest.approx(max(8_000_000 - flop_ns, 0), abs=400_000)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("work,type\n", "line 1: the columns are not"),
        (HEAD + "product,bf16,TFLOP/s,1,2\n", "line 2: 5 values instead of 6"),
        (HEAD + "\nproducts,bf16,TFLOP/s,1,2,3\n", "line 3: work is 'products'"),
        (HEAD + "memory,*,TFLOP/s,1,2,3\n", "line 2: unit is 'TFLOP/s'"),
        (HEAD + "memory,*,GB/s,1,x,3\n", "line 2: 1, x, 3 are not three numbers"),
        (HEAD + "memory,*,GB/s,3,2,1\n", "line 2: 3, 2, 1 are not rising"),
        (HEAD + "memory,*,share,0.5,0.9,1.2\n", "line 2: a share of 1.2 is above 1"),
    ],
)
def test_a_malformed_table_is_refused_with_its_place(tmp_path, text, message):
    table = tmp_path / "rates.csv"
    table.write_text(text)
    with pytest.raises(OptionError, match=message):
        read_gpu_rates(table)


def test_a_table_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(OptionError, match="cannot be read"):
        read_gpu_rates(tmp_path / "none.csv")
