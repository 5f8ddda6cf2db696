"""What people type wrong, and readers that leave: one line, the right exit code, never a traceback."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tracekit
from tracekit.errors import OptionError
from tracekit.parsers.rank_numbers import chosen_ranks

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]

COMMAND = [
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'tracekit'; from tracekit.cli import main; main()",
]
COMMANDS = [
    *(
        "analyze",
        "ingest",
        "diff",
        "gate",
        "export",
        "late",
        "memory",
        "doctor",
        "redact",
        "schedule",
    ),
    *("demo", "watch", "query", "mcp"),
]


def run(*words, **options):
    given = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "timeout": 120}
    return subprocess.run([*COMMAND, *map(str, words)], check=False, **{**given, **options})


WRONG = {
    "misspelt option": (
        ["analyze", "x", "--jsn"],
        "no such option: --jsn (possible options: --json); see tracekit analyze",
    ),
    "no option is near": (
        ["analyze", "x", "--qq"],
        "no such option: --qq; see tracekit analyze --help",
    ),
    "misspelt command": (["analyse", "x"], "did you mean 'analyze'?"),
    "an option without its value": (
        ["analyze", "x", "--file-rank"],
        "option '--file-rank' requires an argument",
    ),
    "nothing named": (["analyze"], "missing argument 'PATH'; see tracekit analyze --help"),
    "no output": (["ingest", "x"], "missing option '-o' / '--output'; see tracekit ingest --help"),
    "no number": (
        ["schedule", "1f1b", "--pp", "4.5", "--microbatches", "4"],
        "invalid value for '--pp'",
    ),
    "no worker": (["analyze", "x", "--workers", "0"], "invalid value for '--workers'"),
    "a rank below 0": (["analyze", "x", "--file-rank", "-3"], "invalid value for '--file-rank'"),
    "no port": (["export", "x", "--open", "--port", "99999"], "invalid value for '--port'"),
    "no policy": (["gate", "x", "--inconclusive", "maybe"], "'maybe' is not one of 'pass', 'fail'"),
    "ranks without end": (
        ["analyze", "x", "--ranks", "0-99999999999"],
        "99999999999 is more than any run has",
    ),
    "a plot without a picture": (
        ["analyze", "x", "--plot", "gap"],
        "--plot gap needs a picture to draw; add -o gap",
    ),
    "a plot on a page": (
        ["analyze", "x", "--plot", "gap", "-o", "x.html"],
        "--plot gap needs a picture to draw",
    ),
    "reasons as JSON": (
        ["analyze", "x", "--explain", "a", "--json"],
        "--explain prints text; leave --json out",
    ),
    "reasons in a file": (
        ["analyze", "x", "--explain", "a", "-o", "x.md"],
        "--explain prints text; leave -o out",
    ),
    "a finding as JSON": (
        ["analyze", "x", "--explain", "3", "--json"],
        "--explain prints text; leave --json out",
    ),
    "a finding in a file": (
        ["analyze", "x", "--explain", "3", "-o", "x.html"],
        "--explain prints text; leave -o out",
    ),
}

REMOVED = {
    ("open", "x"): "tracekit open was removed; use tracekit export --open",
    (
        "analyze",
        "x",
        "--rank",
        "3",
    ): "--rank was removed; --file-rank N says which rank a file is, --ranks reads",
    (
        "doctor",
        "x",
        "--nsys",
        "p",
    ): "--nsys was removed; set the environment variable TRACEKIT_NSYS",
    ("analyze", "x", "--critical-path"): "--critical-path was removed; use --show critical-path",
    ("analyze", "x", "--definitions"): "--definitions was removed; use --show definitions",
    ("analyze", "x", "--store", "s"): "--store was removed; use tracekit ingest PATH -o STORE",
    ("analyze", "x", "--resume"): "--resume was removed; use tracekit ingest",
    ("analyze", "x", "--overwrite"): "--overwrite was removed; use tracekit ingest",
    ("analyze", "x", "--dask=tcp://h:1"): "--dask was removed; use tracekit ingest",
    ("ingest", "x", "-o", "s", "--no-lenient"): "--no-lenient was removed; use --strict",
    ("ingest", "x", "-o", "s", "--lenient"): "--lenient was removed; a damaged file is read as far",
}


@pytest.mark.parametrize("words", REMOVED, ids=" ".join)
def test_what_was_removed_names_its_successor(run_command, words):
    out = run_command(*words)
    assert out.returncode == 2
    assert out.stderr.startswith(f"error: {REMOVED[words]}")
    assert out.stderr.count("\n") == 1


def test_sections_are_shown_by_name(run_command, samples):
    run = samples / "reload"
    plain = run_command("analyze", run).stdout
    out = run_command("analyze", run, "--show", "copies,definitions", "--show", "memory")
    assert out.stdout.startswith(plain)
    more = out.stdout.removeprefix(plain)
    assert "\nCopies" in more
    assert "\nspan  " in more
    assert "nothing of this run" in more.partition("Memory")[2]


def test_an_unknown_section_lists_those_there_are(run_command):
    out = run_command("analyze", "x", "--show", "budgets")
    assert out.returncode == 2
    assert out.stderr.startswith(
        "error: --show budgets: there is no such section; there are budget, "
    )
    assert out.stderr.endswith(", full\n")


def test_export_writes_or_opens(run_command):
    for words in ([], ["-o", "x.json", "--open"]):
        out = run_command("export", "x", *words)
        assert out.returncode == 2
        assert "give either -o FILE or --open" in out.stderr
    out = run_command("export", "x", "-o", "x.json", "--at", "5")
    assert "--at is for --open" in out.stderr


@pytest.mark.parametrize("case", WRONG)
def test_wrong_words_are_one_line_and_exit_code_2(run_command, case):
    words, message = WRONG[case]
    out = run_command(*words)
    assert out.returncode == 2
    assert out.stdout == ""
    assert out.stderr.startswith("error: ")
    assert out.stderr.count("\n") == 1
    assert message.lower() in out.stderr.lower()


def test_without_words_the_help_is_shown(run_command):
    out = run_command()
    assert out.returncode == 2
    assert out.stderr.startswith("Usage: tracekit [OPTIONS] COMMAND")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_in_which_options_name_their_value(
    run_command, monkeypatch, command
):
    monkeypatch.setenv("COLUMNS", "120")
    out = run_command(command, "--help")
    assert out.returncode == 0
    after = "\n" if command == "demo" else " "  # demo takes options alone
    assert out.stdout.startswith(f"Usage: tracekit {command} [OPTIONS]{after}")
    options = out.stdout.partition("Most used:\n" if command == "analyze" else "Options:\n")[2]
    assert options
    for type_name in ("<list", "<str>", "<path>", "<int"):
        assert type_name not in options


def test_the_help_of_analyze_has_every_option_under_what_it_is_for(run_command):
    out = run_command("analyze", "--help").stdout
    panels = dict.fromkeys(re.findall(r"^(\w[\w ]+):$", out, flags=re.MULTILINE))
    assert list(panels)[:2] == ["Arguments", "Most used"]
    others = out.partition("Others:\n")[2]
    assert re.findall(r"^  (?:-\w, )?(--[\w-]+)", others, flags=re.MULTILINE) == [
        "--quiet",
        "--help",
    ]


def test_each_command_fits_on_a_line_of_help(run_command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = run_command("--help").stdout.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in lines] == COMMANDS
    assert all(line.endswith(".") and not line.endswith("...") for line in lines)


def test_a_full_disk_behind_standard_output_is_one_line(saved):
    """In a gate, 1 would mean that the run regressed."""
    for words in (
        ["--help"],
        ["schedule", "--list"],
        ["gate", saved("reload"), "--require", "step_ms < 1000"],
    ):
        with open("/dev/full", "w") as full:  # noqa: PTH123
            out = run(*words, stdout=full)
        assert out.returncode == 2
        assert out.stderr.splitlines()[-1].startswith("error: standard output: the disk is full")
        assert "Traceback" not in out.stderr


def test_a_folder_that_may_not_be_written_in_is_one_line(
    run_command, samples, tmp_path, monkeypatch
):
    """Root may write anywhere, so the answer of the system is made up."""

    def refuse(self, *_, **__):
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    for words in (
        ["ingest", samples / "reload", "-o", tmp_path / "s"],
        ["redact", samples / "reload", "-o", tmp_path / "r"],
    ):
        out = run_command(*words)
        assert out.returncode == 2
        assert out.stderr.count("\n") == 1
        assert out.stderr.endswith(
            "permission denied; check the permissions there, or choose another place\n"
        )


def left_early(*words):
    """Run a command whose reader closes the pipe before the first byte.

    Return its exit code and stderr.
    """
    read, write = os.pipe()
    os.close(read)
    try:
        out = run(*words, stdout=write)
    finally:
        os.close(write)
    return out.returncode, out.stderr


def test_a_reader_that_leaves_has_read_enough(samples):
    analyze = ["analyze", samples / "reload/rank0.pt.trace.json.gz", "--json"]
    for words in (analyze, ["schedule", "--list"]):
        code, message = left_early(*words)
        assert code == 0
        assert message == ""


@pytest.mark.parametrize("options", [(), pytest.param(("--json",), marks=pytest.mark.nightly)])
def test_a_gate_keeps_its_verdict_when_its_reader_leaves(saved, options):
    broken = ["gate", saved("steps/straggler"), "--baseline", saved("steps/a")]
    code, _ = left_early(*broken, *options)
    assert code == 1


def test_a_narrow_terminal_cuts_no_number_off(run_command, monkeypatch, samples):
    monkeypatch.setenv("COLUMNS", "40")
    out = run_command("analyze", samples / "1f1b", "--schedule", "none", "--full")
    assert "118.8" in out.stdout
    table = out.stdout.partition("Where the step went")[2].partition("Compute (all")[0]
    assert "…" not in table
    assert "rank" in table


def test_ranks_are_counted_only_as_far_as_runs_go():
    assert chosen_ranks("0-3") == (0, 1, 2, 3)
    with pytest.raises(OptionError, match="more than any run has"):
        chosen_ranks("7,10000000")


def test_one_rank_is_one_rank(run_command, samples, tmp_path):
    out = run_command("ingest", samples / "compile", "-o", tmp_path / "store")
    assert out.stdout.startswith(f"Wrote {tmp_path}/store: 1 rank, ")
    out = run_command(
        "gate", samples / "compile", "--update-baseline", "--baseline", tmp_path / "base.json"
    )
    assert out.stdout.startswith(f"wrote {tmp_path}/base.json: 1 run, 2 steps, noise of 0 metrics")


@pytest.fixture(scope="module")
def sources(samples, tmp_path_factory):
    store = tracekit.ingest(
        samples / "reload", tmp_path_factory.mktemp("words") / "store", ranks=[0, 1]
    )
    return {"store": store.path, "nsight": samples / "nsys-1f1b/rank0.sqlite"}


@pytest.mark.parametrize("command", ["analyze", "doctor", "export", "ingest", "explain"])
@pytest.mark.parametrize("kind", ["store", "nsight"])
def test_a_rank_that_is_not_there(run_command, tmp_path, sources, command, kind):
    """Which ranks a store or a report of Nsight Systems holds is known only once it was opened."""
    source = sources[kind]
    words = {
        "explain": ["analyze", source, "--explain", "a"],
        "export": ["export", source, "-o", tmp_path / "x.json"],
    }
    words["ingest"] = ["ingest", source, "-o", tmp_path / "other"]
    out = run_command(*words.get(command, [command, source]), "--ranks", "9")
    assert out.returncode == 2
    assert out.stdout == ""
    assert out.stderr.count("\n") == 1
    assert "there is no rank 9" in out.stderr


def test_reasons_are_given_for_the_rank_asked_for(run_command, samples):
    out = run_command("analyze", samples / "nsys-1f1b", "--explain", "nvjet", "--ranks", "2")
    assert "\n  rank 2, event " in out.stdout


@pytest.mark.parametrize("name", ["drawn.json.gz", "rank0.json"])
def test_what_was_drawn_is_not_measured(run_command, samples, tmp_path, name):
    """An exported trace holds every kernel again on its label's track: its numbers would all be wrong."""
    run_command("export", samples / "reload", "--ranks", "0", "-o", tmp_path / name)
    out = run_command("analyze", tmp_path / name)
    assert out.returncode == 2
    assert out.stderr.startswith(
        f"error: {tmp_path}/{name}: was written by tracekit for ui.perfetto.dev; name the"
    )
    shutil.copy(samples / "compile/rank0.pt.trace.json.gz", tmp_path / "real.json.gz")
    out = run_command("analyze", tmp_path, "--json", "--schedule", "none")
    assert json.loads(out.stdout)["source"]["paths"] == [f"{tmp_path}/real.json.gz"]


def test_a_drawn_schedule_is_no_trace(run_command, tmp_path):
    run_command(
        "schedule", "1f1b", "--pp", "2", "--microbatches", "2", "-o", tmp_path / "s.trace.json"
    )
    out = run_command("analyze", tmp_path / "s.trace.json")
    assert out.returncode == 2
    assert "was written by tracekit" in out.stderr


def test_the_command_is_a_module_too():
    out = subprocess.run(
        [sys.executable, "-m", "tracekit", "--version"], capture_output=True, text=True, check=True
    )
    assert out.stdout == f"tracekit {tracekit.__version__}\n"
    out = subprocess.run(
        [sys.executable, "-m", "tracekit", "analyze"], capture_output=True, text=True, check=False
    )
    assert "see tracekit analyze --help" in out.stderr.replace("python -m tracekit", "tracekit")
