"""Recordings as they land."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import polars as pl
import pytest
from msgspec import structs

from tracekit._util.text import percent
from tracekit.diffs.samples import make_samples
from tracekit.diffs.scalars import prometheus, scalars
from tracekit.diffs.watch_line import line, run_of
from tracekit.errors import InputError
from tracekit.run.query import query
from tracekit.run.watch import SETTLED_S, watch
from tracekit.schema import RUN_TABLE

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]

STEPS = Path(__file__).parents[2] / "sample_traces" / "steps"


def aged(path, seconds):
    os.utime(path, (time.time() - seconds,) * 2)


def test_a_slower_recording_is_marked_and_an_equal_one_is_not():
    landed = {one.name: one for one in watch(STEPS, idle_s=0)}
    first = run_of(landed["a"])
    assert "slower" not in line(landed["b"], first=first)
    assert "slower than a" in line(landed["straggler"], first=first)


def test_a_rank_that_turns_slow_is_named(tmp_path):
    """The same recording twice, of which the first is a run without the slow rank's steps: only the second names it."""
    data = Path(__file__).parents[1] / "data" / "slow-once"
    shutil.copytree(data, tmp_path / "slow")
    [landed] = watch(tmp_path, idle_s=0)
    run = run_of(landed)
    assert "is late" not in line(landed, first=run)
    on_time = run.samples.filter(pl.col("metric") != "late_ms.rank")
    before = structs.replace(run, name="before", samples=on_time)
    text = line(landed, first=before)
    assert "<< rank 1 is late in step 6" in text
    assert "its host launches late" in text
    late = make_samples({"late_ms.rank@1": (0.0, 77.0, 0.0)})
    also_late = structs.replace(before, samples=pl.concat([on_time, late]))
    assert "<< rank 2 is late in 2 of 3 steps" in line(landed, first=also_late)


def test_a_file_still_being_written_waits(tmp_path):
    for rank in (0, 1):
        shutil.copy(STEPS / "a" / f"rank{rank}.pt.trace.json.gz", tmp_path)
    aged(tmp_path / "rank0.pt.trace.json.gz", 60)
    aged(tmp_path / "rank1.pt.trace.json.gz", 0)
    assert list(watch(tmp_path, idle_s=0)) == []
    aged(tmp_path / "rank1.pt.trace.json.gz", SETTLED_S + 1)
    assert [one.name for one in watch(tmp_path, idle_s=0)] == [tmp_path.name]


def test_a_recording_whose_file_grows_is_read_again_and_said_so(tmp_path):
    file = tmp_path / "rank0.pt.trace.json.gz"
    whole = (STEPS / "a" / file.name).read_bytes()
    # half-written, and quiet for longer than a file may take to settle.
    file.write_bytes(whole[: len(whole) // 3])
    aged(file, 60)
    landed = watch(tmp_path, every_s=0.01, idle_s=5)
    half = next(landed)
    assert not half.read_again
    assert "read again" not in line(half)
    file.write_bytes(whole)
    aged(file, 30)
    again = next(landed)
    assert again.read_again
    assert len(again.analysis.ranks) == 1
    assert "(read again, a file has changed)" in line(again)


def test_a_file_from_the_future_is_read_once_it_is_quiet(tmp_path, monkeypatch):
    monkeypatch.setattr("tracekit.run.watch.SETTLED_S", 0.2)
    shutil.copy(STEPS / "a" / "rank0.pt.trace.json.gz", tmp_path)
    aged(tmp_path / "rank0.pt.trace.json.gz", -3600)
    landed = list(watch(tmp_path, every_s=0.05, idle_s=2))
    assert [recording.error for recording in landed] == [None]


def test_files_of_one_rank_are_recordings_one_after_another(tmp_path):
    for n, name in enumerate(("a", "b")):
        for rank in (0, 1):
            file = tmp_path / f"rank{rank}.{n}.pt.trace.json.gz"
            shutil.copy(STEPS / name / f"rank{rank}.pt.trace.json.gz", file)
            aged(file, 60 - n)
    landed = list(watch(tmp_path, idle_s=0))
    assert [len(one.files) for one in landed] == [2, 2]
    assert [one.name.partition(" ")[2] for one in landed] == ["#1", "#2"]


def test_recordings_of_two_formats_are_all_told(tmp_path):
    """A recording of another profiler cannot be compared with the first, and does not end the watch."""
    for number, sample in enumerate(("steps/a", "nsys-1f1b", "steps/b")):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        file = (
            STEPS.parent
            / sample
            / ("rank0.sqlite" if sample == "nsys-1f1b" else "rank0.pt.trace.json.gz")
        )
        shutil.copy(file, folder)
        aged(folder / file.name, 100 - number)
    recordings = list(watch(tmp_path, idle_s=0))
    first = run_of(recordings[0])
    lines = [line(recording, first=first) for recording in recordings]
    assert [text.partition(":")[0] for text in lines] == ["0", "1", "2"]
    assert "not compared: mixed formats" in lines[1]


def test_what_cannot_be_read_is_a_line(tmp_path):
    broken = tmp_path / "rank0.json"
    broken.write_text("{")
    aged(broken, 60)
    [landed] = watch(tmp_path, idle_s=0)
    assert landed.analysis is None
    assert "rank0.json" in line(landed)


def test_a_watched_folder_with_hostile_files_ends_and_each_is_one_line(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "nothing.json").symlink_to("missing")
    hostile = tmp_path / "b\x1b[31m\n::error::rank0.json"
    hostile.write_text("x")
    aged(hostile, 60)
    lines = [line(recording) for recording in watch(tmp_path, idle_s=0)]
    assert any("::error::rank0.json: is not a trace" in text for text in lines)
    assert not [text for text in lines if "\n" in text or "\x1b" in text]


def test_of_a_damaged_recording_the_last_good_figures_stay(tmp_path, run_command):
    whole = (STEPS / "a" / "rank0.pt.trace.json.gz").read_bytes()
    figures = tmp_path / "figures.prom"
    (tmp_path / "runs").mkdir()
    good, cut = (tmp_path / "runs" / name for name in ("1-rank0.json.gz", "2-rank0.json.gz"))
    good.write_bytes(whole)
    aged(good, 60)
    words = ["watch", tmp_path / "runs", "--idle", "0", "--prometheus", figures]
    assert "damaged" not in run_command(*words).stdout
    before = figures.read_text()
    cut.write_bytes(whole[: len(whole) * 2 // 3])
    aged(cut, 30)
    _, line_of_cut = run_command(*words).stdout.splitlines()
    assert "damaged, its figures are not used" in line_of_cut
    assert "compute" not in line_of_cut
    assert figures.read_text() == before


def test_the_line_and_the_figures_have_one_base():
    """Shares in the line are of the recorded step, as are the figures; both name the step without the profiler."""
    [landed] = [one for one in watch(STEPS, idle_s=0) if one.name == "a"]
    figures = scalars(landed.analysis)
    budget = landed.analysis.step.budget_ns
    share = f"compute {percent(budget.compute_ns, budget.span_ns)}"
    assert share in line(landed)
    assert figures["tracekit/step_ms"] == landed.analysis.step.time_ns / 1e6
    free_ns = landed.analysis.step.free_ns
    assert figures.get("tracekit/free_step_ms") == (None if free_ns is None else free_ns / 1e6)


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="no such folder"):
        list(watch(tmp_path / "none"))


def test_labels_of_prometheus_hold_no_quotes():
    assert (
        prometheus({'tracekit/overlap.a"b': 1.0}).splitlines()[1]
        == 'tracekit_overlap{of="a_b"} 1.0'
    )


def test_recordings_become_rows_of_a_table_that_sql_reads(tmp_path, run_command):
    table = tmp_path / "runs.parquet"
    watched = tmp_path / "traces"
    shutil.copytree(STEPS / "a", watched / "a")
    for _ in range(2):  # a recording that is there already is not added again
        assert run_command("watch", watched, "--idle", "0", "-o", table).returncode == 0
    rows = pl.read_parquet(table)
    assert rows.schema == RUN_TABLE
    landed = next(watch(watched, idle_s=0)).analysis
    assert rows.select("run", "time_ns", "free_ns", "code").rows() == [
        ("a", landed.step.time_ns, landed.step.free_ns, landed.findings[0].code)
    ]
    shutil.copytree(STEPS / "straggler", watched / "straggler")
    assert run_command("watch", watched, "--idle", "0", "-o", table).returncode == 0
    slower = query(table, "select run from runs order by time_ns desc")
    assert slower["run"].to_list() == ["straggler", "a"]


@pytest.mark.parametrize("content", [b"PAR1", b"", b"no table"])
def test_a_file_that_is_no_table_of_runs_is_refused_before_any_recording(
    content, tmp_path, run_command
):
    table = tmp_path / "runs.parquet"
    table.write_bytes(content)
    for command in (("watch", STEPS, "--idle", "0", "-o", table), ("query", table, "select 1")):
        result = run_command(*command)
        assert (result.returncode, result.stdout) == (2, "")
        assert f"{table}: is no table of runs" in result.stderr
    assert table.read_bytes() == content


def test_a_table_with_other_columns_is_no_table_of_runs(tmp_path):
    pl.DataFrame({"run": ["a"]}).write_parquet(tmp_path / "runs.parquet")
    with pytest.raises(InputError, match="has other columns than a table of runs"):
        query(tmp_path / "runs.parquet", "select 1")
