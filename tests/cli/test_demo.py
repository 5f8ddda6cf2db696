"""``tracekit demo``: two runs whose answers are known, from an installed package alone."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tracekit import analyze
from tracekit.cli import demo, make_app
from tracekit.errors import InputError, OutputError
from tracekit.pipeline.schedules import generate
from tracekit.synthetic import Recipe, write_run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]

SAMPLES = Path(__file__).parents[2] / "sample_traces"
runner = CliRunner()


def test_both_runs_are_written_and_shown_one_after_the_other(tmp_path):
    folder = tmp_path / "demo"
    done = runner.invoke(make_app(), ["demo", "-o", str(folder)])
    assert done.exit_code == 0, done.output
    assert {path.name for path in folder.iterdir()} == {
        "h100-ddp",
        "h100-ddp.html",
        "1f1b",
        "1f1b.html",
    }
    text = " ".join(done.stdout.split())
    first, _, second = text.partition("A pipeline of four stages:")
    assert "h100-ddp · 8 ranks · H100 80GB HBM3" in first
    assert "without the profiler" in first
    assert "1f1b · 4 ranks · 1 step" in second
    assert "1f1b pipeline" in second
    assert ".html" not in text  # the pages are written already
    licence = (folder / "h100-ddp" / "LICENSE").read_text(encoding="utf-8")
    assert "Keller Jordan" in licence  # it goes where the recordings go


def test_the_runs_are_written_over_those_of_an_older_demo(tmp_path):
    demo.copy_runs(SAMPLES, tmp_path / "demo")
    (tmp_path / "demo/1f1b.html").touch()
    demo.copy_runs(SAMPLES, tmp_path / "demo")
    truth = json.loads((tmp_path / "demo/1f1b/truth.json").read_text(encoding="utf-8"))
    assert truth["schedule"] == "1f1b"


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    done = runner.invoke(make_app(), ["demo", "-o", str(tmp_path)])
    assert isinstance(done.exception, OutputError)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_installed_runs_are_found_without_a_checkout(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "__file__", str(tmp_path / "lib/tracekit/cli/demo.py"))
    monkeypatch.setattr(sysconfig, "get_path", lambda *_: str(tmp_path / "env"))
    with pytest.raises(InputError, match="not installed"):
        demo.find_samples()
    installed = tmp_path / "env/share/tracekit/sample_traces"
    for name in demo.RUNS:
        (installed / name).mkdir(parents=True)
    assert demo.find_samples() == installed


@pytest.mark.parametrize(
    ("stage_factor", "first"),
    [(1.25, "leaves each stage idle"), (2.0, "its stages take unequal time")],
    ids=["a quarter slower", "twice as slow"],
)
def test_a_pipeline_begins_with_what_is_likely_to_save_most(tmp_path, stage_factor, first):
    """The third of four stages is slower: the bubble of 27 % is worth more than a quarter of it."""
    plan = generate("1f1b", pp=4, microbatches=8)
    recipe = Recipe(plan, p2p_ns=120_000, stage_factor={2: stage_factor}, jitter=0.02)
    write_run(recipe, tmp_path)
    done = runner.invoke(make_app(), ["analyze", str(tmp_path)])
    text = " ".join(done.stdout.split())
    first_finding = text.partition("at most): 1 ")[2].partition("→")[0]
    assert first in first_finding


def test_what_if_agrees_that_another_schedule_saves_more_than_equal_stages(tmp_path):
    plan = generate("1f1b", pp=4, microbatches=8)
    write_run(Recipe(plan, p2p_ns=120_000, stage_factor={2: 1.25}, jitter=0.02), tmp_path)
    run = analyze(tmp_path, what_if=True, workers=1)
    interleaved = [row.saves_ns for row in run.schedule.what_if if row.name == "interleaved"]
    assert max(interleaved) > 2 * run.what_if("balance").saves_ns
