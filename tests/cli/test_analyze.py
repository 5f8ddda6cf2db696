"""``tracekit analyze`` from the command line: what is printed, written and refused."""

from __future__ import annotations

import io
import json

import polars as pl
import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.kept import analysis_of
from tracekit.cli import make_app
from tracekit.errors import TracekitError
from tracekit.report.terminal.analysis import render
from tracekit.report.terminal.screen import Screen
from tracekit.report.write import figures

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]

runner = CliRunner()


def invoke(*words):
    done = runner.invoke(make_app(), ["analyze", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


@pytest.fixture(scope="module")
def analysis(samples):
    return analysis_of(samples / "1f1b")


def printed(analysis, width, **options):
    console = Console(width=width, file=io.StringIO(), highlight=False, **options)
    render(analysis, console)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_the_report_fits_its_terminal(analysis, width):
    text = printed(analysis, width)
    lines = [line.rstrip() for line in text.splitlines()]
    # Commands are whole.
    assert max(len(line) for line in lines if not line.startswith("     tracekit ")) <= width
    assert "Where the step went" in text
    assert "118.8" in text


def test_figures_are_never_cut(analysis):
    """A narrow terminal drops columns rather than digits."""
    text = printed(analysis, 80)
    budget = text.split("Where the step went")[1].split("Compute (all ranks)")[0]
    assert "…" not in budget
    bubble = text.split("Bubble: idle")[1].split("\n\n")[0]
    assert "…" not in bubble


def test_ranks_are_listed_in_their_order(analysis):
    lines = printed(analysis, 120).split("Where the step went")[1].splitlines()
    assert [line.split()[0] for line in lines[2:7]] == ["0", "1", "2", "3", "mean"]


def test_shares_of_a_recorded_step_say_so_where_the_step_is_stated_without_the_profiler(samples):
    with_profiler = printed(analysis_of(samples / "h100-ddp"), 120)
    assert "with the profiler a step took" in with_profiler
    assert "(shares of the recorded span" in with_profiler
    assert "(shares of the span" in printed(analysis_of(samples / "reload"), 120)


def test_bars_are_full_and_told_apart_without_colour(analysis):
    rows = printed(analysis, 120).split("Where the step went")[1].splitlines()[2:6]
    widths = {sum(line.count(glyph) for glyph in "█▒▚░") for line in rows}
    assert len(widths) == 1
    assert all("█" in line and "▒" in line and "░" in line for line in rows)


def test_the_first_screen_comes_first_and_its_beginning_alone_when_brief(analysis):
    lines = printed(analysis, 100).splitlines()
    assert lines[0].endswith("122 ms a step")
    console = Console(width=100, file=io.StringIO(), highlight=False)
    render(analysis, console, brief=True, full=False)
    brief = console.file.getvalue().splitlines()
    assert brief == lines[: len(brief)]
    assert brief[-1].strip().startswith("→")


def test_every_definition_is_printed_when_asked_for(analysis):
    assert "U(compute)" not in printed(analysis, 160)
    console = Console(width=160, file=io.StringIO(), highlight=False)
    render(analysis, console, show=["definitions"])
    text = " ".join(console.file.getvalue().split())
    for phrase in (
        "|U(X) ∩ U(compute)| / |U(X)|",
        "compute + exposed + idle = span",
        "(idle + exposed wait of pp_comm) / span",
    ):
        assert phrase in text


def test_many_ranks_are_summarised(samples):
    from dataclasses import replace

    from msgspec import structs

    one = analysis_of(samples / "reload")
    many = replace(
        one,
        ranks=tuple(structs.replace(one.ranks[n % 4], rank=n) for n in range(100)),
    )
    text = printed(many, 100)
    table = text.split("Where the step went")[1].split("\n\n")[0].splitlines()
    assert len(table) < 16
    assert "100 ranks" in text
    assert "of 100 ranks those that differ most from the mean" in text
    assert "median" in text


def test_the_command_prints_the_report_without_colour_when_asked(run_command, monkeypatch, samples):
    for name, value in {"NO_COLOR": "1", "FORCE_COLOR": "1", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    done = run_command("analyze", samples / "reload")
    assert "\x1b[38" not in done.stdout
    assert "reload" in done.stdout
    report = io.StringIO()
    render(analysis_of(samples / "reload"), Screen(file=report), full=False)
    assert done.stdout == report.getvalue()


def test_json_goes_to_stdout_alone(samples):
    done = invoke(samples / "reload", "--json", "--schedule", "none")
    assert json.loads(done.stdout)["format"] == "tracekit.analysis/2"


def test_output_by_extension(samples, tmp_path):
    paths = [tmp_path / f"x.{kind}" for kind in ("json", "csv", "parquet")]
    words = [word for path in paths for word in ("-o", path)]
    done = invoke(samples / "reload", "--schedule", "none", *words)
    assert "wrote" in done.stderr
    data = json.loads(paths[0].read_text())
    assert data["ranks"][0]["span_ns"] == 104_587_652
    csv, parquet = pl.read_csv(paths[1]), pl.read_parquet(paths[2])
    assert len(csv) == len(parquet)
    row = parquet.filter(rank=0, figure="budget", label="broadcast").row(0, named=True)
    assert (row["value"], row["unit"]) == (
        data["ranks"][0]["budget_ns"]["exposed"]["broadcast"],
        "ns",
    )


def test_figures_of_every_step(samples):
    spans = figures(analysis_of(samples / "steps/a")).filter(rank=0, figure="span")
    assert spans["step"].to_list() == [None, *range(2, 10)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--steps", "x"], "cannot read"),
        (["--steps", "77"], "selects none"),
        (["--ranks", "a"], "is not a rank"),
        (["-o", "x.docx"], "cannot write .docx"),
        (["-o", "plain"], "has no extension"),
    ],
)
def test_wrong_words_are_one_line_with_a_hint(samples, words, message):
    with pytest.raises(TracekitError, match=message) as error:
        invoke(samples / "reload", *words)
    assert error.value.hint


def test_a_failed_write_leaves_nothing(samples, tmp_path):
    with pytest.raises(TracekitError, match="no folder"):
        invoke(samples / "reload", "--schedule", "none", "-o", tmp_path / "nowhere" / "x.json")
    assert list(tmp_path.iterdir()) == []


def test_the_exit_code_for_unusable_input_is_2(run_command, tmp_path):
    done = run_command("analyze", tmp_path / "none.json")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
