"""``tracekit demo``: a run whose troubles are known, from an installed package alone."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from tracekit.cli import make_app
from tracekit.errors import OutputError

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]

runner = CliRunner()


def test_the_sample_run_is_written_analysed_and_its_troubles_are_found(tmp_path):
    folder = tmp_path / "demo"
    done = runner.invoke(make_app(), ["demo", "-o", str(folder)])
    assert done.exit_code == 0, done.output
    assert sorted(file.name for file in folder.iterdir()) == [
        *(f"rank{rank}.pt.trace.json.gz" for rank in range(4)),
        "report.html",
    ]
    text = " ".join(done.stdout.split())
    assert "demo · 4 ranks · 1 step" in text
    assert "1f1b pipeline" in text
    assert "stages take unequal time" in text  # the third stage is a quarter slower
    assert "report.html" not in text  # the page is written already
    # An older sample is written over.
    assert runner.invoke(make_app(), ["demo", "-o", str(folder)]).exit_code == 0


@pytest.mark.xfail(
    strict=True, reason="the bubble of the schedule, a bound, is listed before the unequal stages"
)
def test_the_unequal_stages_of_the_sample_run_come_first(tmp_path):
    done = runner.invoke(make_app(), ["demo", "-o", str(tmp_path / "demo")])
    text = " ".join(done.stdout.split())
    first_finding = text.partition(" 1 ")[2].partition("→")[0]
    assert "stages take unequal time" in first_finding


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    done = runner.invoke(make_app(), ["demo", "-o", str(tmp_path)])
    assert isinstance(done.exception, OutputError)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]
