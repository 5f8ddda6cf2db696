"""``tracekit schedule`` as people type it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from tracekit.cli import main


@pytest.fixture
def tracekit(monkeypatch, capsys):
    """Run the command in this process; return its exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["tracekit", "schedule", *words])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return Run(left.value.code or 0, out, err)

    return run


class Run(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def test_installed_command(tmp_path):
    command = [
        Path(sys.executable).parent / "tracekit",
        "schedule",
        "dualpip",
        "--pp",
        "2",
        "--microbatches",
        "4",
    ]
    run = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert run.returncode == 2
    assert run.stderr == "error: no schedule is called 'dualpip'; did you mean dualpipe?\n"
    assert run.stdout == ""


def test_json_and_files_at_once(tmp_path, tracekit):
    outputs = [
        tmp_path / f"d{end}" for end in (".svg", ".png", ".html", ".json", ".trace.json", ".txt")
    ]
    words = [word for path in outputs for word in ("-o", str(path))]
    run = tracekit("dualpipe", "--pp", "4", "--microbatches", "8", "--json", *words)
    assert run.returncode == 0, run.stderr
    data = json.loads(run.stdout)
    assert (data["format"], data["makespan"], data["bubble"]) == (
        "tracekit.schedule/1",
        26,
        [2] * 4,
    )
    assert run.stderr.splitlines() == [f"Wrote {path}" for path in outputs]
    assert all(path.stat().st_size for path in outputs)
    again = tracekit(str(tmp_path / "d.txt"), "--json")
    assert json.loads(again.stdout)["ranks"] == data["ranks"]
    assert json.loads(again.stdout)["makespan"] == 26


def test_text_times_and_lanes(tracekit):
    run = tracekit("1f1b", "--pp", "2", "--microbatches", "2", "--time", "F=1,B=2,P2P=0.5")
    assert "makespan  10" in run.stdout
    assert "1: 1F0 1B0 1F1 1B1" in run.stdout
    run = tracekit(
        "interleaved-overlap",
        "--pp",
        "4",
        "--microbatches",
        "8",
        "--lanes",
        "--block-time",
        "dispatch=4",
    )
    assert run.returncode == 0
    assert "FB=" in run.stdout


def test_weight_reload(tracekit):
    run = tracekit(
        "weight-reload", "--ranks", "4", "--rounds", "2", "--time", "H2D=4,BROADCAST=1,RELOAD=1"
    )
    assert "makespan  17" in run.stdout
    run = tracekit("weight-reload", "--ranks", "4", "--rounds", "2", "--json")
    assert json.loads(run.stdout)["makespan"] == 17


def test_list(tracekit):
    text = tracekit("--list").stdout
    data = json.loads(tracekit("--list", "--json").stdout)
    assert len(data) >= 17
    assert all(entry["name"] in text for entry in data)
    assert set(data[0]) == {"name", "summary", "source", "constraint"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "dualpip --pp 4 --microbatches 8",
            "no schedule is called 'dualpip'; did you mean dualpipe?",
        ),
        (
            "dualpipe --pp 8 --microbatches 12",
            "at least 2×pp micro-batches; got pp=8, microbatches=12",
        ),
        ("1f1b --pp 0 --microbatches 8", "pp must be 1 or more; got 0"),
        ("1f1b --pp 2", "1f1b needs --pp and --microbatches"),
        ("1f1b --pp 2 --microbatches 2 --time F=0", "time F must be more than 0"),
        ("1f1b --pp 2 --microbatches 2 --time F=0", "got 0\n"),
        ("1f1b --pp 2 --microbatches 2 --time F=1e400", "time 'F=1e400' is not NAME=number"),
        ("1f1b --pp 2 --microbatches 2 --time F=1,F=2", "time F is given twice"),
        ("1f1b --pp 2 --microbatches 2 --time F=-1", "time F must be more than 0"),
        ("1f1b --pp 2 --microbatches 2 --ranks 2", "1f1b takes no --ranks"),
        ("1f1b --pp 2 --microbatches 2 -o x.doc", "cannot write .doc"),
        ("1f1b --pp 2 --microbatches 2 -o no/such/x.svg", "there is no folder"),
        ("1f1b --pp 2 --microbatches 2 --block-time mlp=2", "--block-time needs --lanes"),
        ("1f1b --pp 2 --microbatches 2 --lanes --time F=1", "cannot be combined"),
        ("weight-reload --ranks 4", "weight-reload needs --ranks and --rounds"),
        ("weight-reload --ranks 4 --rounds 2 --pp 2", "weight-reload takes no --pp"),
        ("weight-reload --ranks 4 --rounds 2 --time F=2", "names: H2D, BROADCAST, RELOAD"),
        ("missing.txt", "cannot be read"),
        ("", "no schedule named"),
    ],
)
def test_wrong_words_are_one_line_and_exit_2(words, message, tmp_path, tracekit, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = tracekit(*words.split())
    assert run.returncode == 2
    assert run.stdout == ""
    assert message in run.stderr
    assert run.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
