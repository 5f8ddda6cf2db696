"""Lateness over a whole run in the terminal, on the page and in files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.recorders import ddp_dumps, write_dumps
from tracekit.errors import OptionError
from tracekit.late import late
from tracekit.late.page import render_late_page
from tracekit.late.page_collectives import collective_timeline
from tracekit.late.write import check_late_output, write_late

SAMPLES = Path(__file__).parents[2] / "sample_traces/always-on"
PROFILED = Path(__file__).parents[1] / "data/late-profiler"


def test_the_page_has_a_red_cell_per_late_step():
    page = render_late_page(late(SAMPLES / "late"))
    red = re.findall(r'fill="#c8102e"[^>]*><title>rank (\d+), step (\d+)', page)
    assert [int(step) for rank, step in red if rank == "1"] == list(range(3, 25, 3))
    assert "in every third step from step 3 on" in page
    assert "<script" not in page


@pytest.mark.slow
def test_the_page_fits_a_phone(window, tmp_path):
    path = tmp_path / "late.html"
    path.write_text(render_late_page(late(SAMPLES / "late")), encoding="utf-8")
    window.set_viewport_size({"width": 390, "height": 844})
    window.goto(path.as_uri())
    assert window.evaluate("document.documentElement.scrollWidth") <= 390


def test_no_folder_of_the_user_is_on_the_page(tmp_path):
    """One rank's dump is missing, which a notice may say with the path of the others."""
    folder = tmp_path / "home/ada/run"
    folder.mkdir(parents=True)
    assert "ada" not in render_late_page(late(write_dumps(folder, ddp_dumps(2, 10))))


def test_names_from_files_are_escaped_on_the_page(tmp_path):
    dumps = ddp_dumps(2, 10)
    for content in dumps:
        for made in content["entries"]:
            made["profiling_name"] = "nccl:<script>alert(1)</script>"
    assert "<script" not in render_late_page(late(write_dumps(tmp_path, dumps)))


def test_the_page_of_a_hang_says_who_did_not_join():
    assert "<h1>Rank 2 did not join all_reduce" in render_late_page(late(SAMPLES / "hang"))


def test_files_are_written_by_extension(tmp_path):
    run = late(SAMPLES / "late")
    for name in ("run.json", "run.html", "run.csv"):
        write_late(run, tmp_path / name)
    assert json.loads((tmp_path / "run.json").read_text())["format"] == "tracekit.late/1"
    assert (tmp_path / "run.csv").read_text().splitlines()[0].startswith("rank,step,late_ns")


def test_other_extensions_are_refused():
    with pytest.raises(OptionError, match=r"cannot write \.xlsx"):
        check_late_output(Path("run.xlsx"))


def test_the_command_prints_the_answer_and_json(run_command):
    shown = run_command("late", SAMPLES / "late")
    assert shown.returncode == 0
    assert shown.stdout.startswith(
        "Rank 1 (node0) joins 30.4 ms late in every third step from step 3 on"
    )
    document = json.loads(run_command("late", SAMPLES / "late", "--json").stdout)
    assert document["late"][0]["period"] == 3


def test_analyze_on_dumps_alone_answers_as_late_does(run_command):
    shown = run_command("analyze", SAMPLES / "hang")
    assert shown.returncode == 0
    assert shown.stdout.startswith("Rank 2 did not join all_reduce")


def test_a_folder_without_records_is_one_line_and_exit_code_2(run_command, tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")
    shown = run_command("late", tmp_path)
    assert shown.returncode == 2
    assert len(shown.stderr.splitlines()) == 1


def test_the_page_draws_the_collectives_around_the_latest_step(tmp_path):
    dumps = ddp_dumps(4, 12, late_ms=lambda rank, step: 10.0 * (rank == 1 and step == 6))
    page = render_late_page(late(write_dumps(tmp_path, dumps)))
    assert "Collectives of steps 5 to 7" in page
    waiting = re.findall(
        r"<title>rank (\d), step 6, all_reduce of 4.0 MB: waits 10.0 ms, transfer 5.0 ms</title>",
        page,
    )
    assert sorted(set(waiting)) == ["0", "2", "3"]


def test_of_many_ranks_the_late_ones_are_drawn(tmp_path):
    dumps = ddp_dumps(20, 8, late_ms=lambda rank, step: 10.0 * (rank == 19))
    picture = collective_timeline(late(write_dumps(tmp_path, dumps)))
    drawn = re.findall(r">rank (\d+)</text>", picture)
    assert drawn == [*map(str, range(15)), "19"]
    assert "4 more ranks not shown" in picture
