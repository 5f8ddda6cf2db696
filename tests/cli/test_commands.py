"""The commands as people type them: what they print where, and how they end."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

import tracekit
from tracekit.errors import OptionError
from tracekit.parsers.rank_numbers import chosen_ranks

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]


def test_ingest_prints_what_it_wrote_and_the_doctor_reads_it(run_command, samples, tmp_path):
    out = run_command("ingest", samples / "reload", "-o", tmp_path / "store")
    assert out.returncode == 0
    assert out.stdout.startswith(f"Wrote {tmp_path}/store: 4 ranks, ")
    out = run_command("doctor", tmp_path / "store", "--ranks", "0-1", "--json")
    assert json.loads(out.stdout)["ranks"] == [0, 1]


def test_notes_go_to_stderr_and_results_to_stdout(run_command, samples, tmp_path):
    out = run_command("ingest", samples / "nsys-1f1b", "--ranks", "0", "-o", tmp_path / "store")
    assert out.returncode == 0
    assert "note: read rank0.sqlite" in out.stderr
    assert "note:" not in out.stdout


@pytest.mark.parametrize("words", [["--brief"], ["--json"], []])
def test_a_rank_whose_file_is_empty_is_named_with_the_reason(run_command, samples, tmp_path, words):
    for rank in range(4):
        shutil.copy(samples / f"reload/rank{rank}.pt.trace.json.gz", tmp_path)
    (tmp_path / "rank2.pt.trace.json.gz").write_bytes(b"")
    out = run_command("analyze", tmp_path, "--schedule", "none", *words)
    assert out.returncode == 0
    assert out.stderr == "note: rank 2 is left out: rank2.pt.trace.json.gz is empty\n"


def test_redact_says_what_went(run_command, samples, tmp_path):
    out = run_command(
        "redact", samples / "reload/rank0.pt.trace.json.gz", "-o", tmp_path / "r.json.gz"
    )
    assert out.returncode == 0
    assert out.stdout.startswith(f"Wrote {tmp_path}/r.json.gz (")


BAD = {
    "no path": ["doctor", "nowhere.json"],
    "empty folder": ["doctor", "{tmp}/empty"],
    "png": ["doctor", "{tmp}/rank0.json"],
    "no trace": ["ingest", "{tmp}/data.json", "-o", "{tmp}/store"],
    "ranks": ["doctor", "{samples}/reload", "--ranks", "0-x"],
    "no such rank": ["doctor", "{samples}/reload", "--ranks", "9"],
    "output is taken": ["ingest", "{samples}/reload", "-o", "{tmp}"],
    "redact onto itself": ["redact", "{tmp}/trace.json", "-o", "{tmp}/trace.json"],
    "url": ["doctor", "nosuch://host/trace.json"],
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_exit_code_2(run_command, samples, tmp_path, case):
    (tmp_path / "empty").mkdir()
    (tmp_path / "rank0.json").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "data.json").write_text('{"a": 1}')
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    out = run_command(*(word.format(tmp=tmp_path, samples=samples) for word in BAD[case]))
    assert out.returncode == 2
    assert out.stdout == ""
    assert out.stderr.startswith("error: ")
    assert out.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "code", "closed"),
    [
        (["schedule", "--list"], 2, ">&-"),
        (["schedule", "--list"], 2, "<&- >&- 2>&-"),
        (["schedule", "--list"], 0, "<&- 2>&-"),
        (["doctor", "no"], 2, "2>&-"),
        (["doctor", "no"], 2, ">&-"),
    ],
)
def test_closed_standard_streams(words, code, closed):
    """A result that nobody can get is an error.

    Without a stream of its own on descriptor 2, a file that is opened later would get it.
    """
    command = shlex.join([sys.executable, "-m", "tracekit", *words])
    out = subprocess.run(
        ["sh", "-c", f"{command} {closed}"], capture_output=True, text=True, check=False
    )
    assert out.returncode == code
    assert bool(out.stdout) == (">&-" not in closed.replace("2>&-", "") and words[0] == "schedule")
    assert len(out.stderr.splitlines()) == (closed == ">&-")


def test_a_terminal_without_columns_has_the_usual_width(run_command, samples, monkeypatch):
    monkeypatch.setenv("COLUMNS", "0")
    shown = run_command("analyze", samples / "reload", "--schedule", "none")
    assert (shown.returncode, shown.stderr) == (0, "")
    monkeypatch.setenv("COLUMNS", "80")
    assert run_command("analyze", samples / "reload", "--schedule", "none").stdout == shown.stdout


@pytest.mark.parametrize("after_s", [0.02, 0.1, 0.3, 0.5, 0.8])
def test_an_interrupt_while_modules_are_imported_is_one_line(after_s):
    begin = "import tracekit_start, os; os.write(1, b'x'); tracekit_start.main()"
    command = [sys.executable, "-c", begin, "mcp", "--help"]
    running = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509  # as at a terminal
    )
    assert running.stdout.read(1) == "x"
    time.sleep(after_s)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate()
    assert (running.returncode, err) in [(130, "interrupted\n"), (0, "")]


def test_what_is_no_store_is_one_line_of_query(tmp_path):
    """DuckDB, loaded for nothing, would list what it leaves behind."""
    command = [sys.executable, "-m", "tracekit", "query", str(tmp_path / "none"), "select 1"]
    out = subprocess.run(command, capture_output=True, text=True, check=False)
    assert out.returncode == 2
    assert len(out.stderr.splitlines()) == 1


def test_nothing_of_duckdb_is_left_on_the_terminal(samples, tmp_path):
    store = tracekit.ingest(samples / "reload", tmp_path / "store", ranks=[0])
    for sql, code, lines in (
        ("select count(*) from ranks", 0, 0),
        ("select nosuch from ranks", 2, 1),
    ):
        command = [sys.executable, "-m", "tracekit", "query", str(store.path), sql]
        out = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (out.returncode, len(out.stderr.splitlines())) == (code, lines)


def test_workers_need_no_standard_error(samples):
    words = ["analyze", str(samples / "reload"), "--ranks", "0-1", "--workers", "2", "--brief"]
    command = shlex.join([sys.executable, "-m", "tracekit", *words])
    out = subprocess.run(
        ["sh", "-c", f"{command} 2>&-"], capture_output=True, text=True, check=False
    )
    assert out.returncode == 0
    assert out.stdout.startswith("reload · 2 of 4 ranks")
    assert out.stdout.endswith("→ add the traces of the other ranks\n")


def test_ranks_are_numbers_and_spans():
    assert chosen_ranks("3,0-2, 7") == (0, 1, 2, 3, 7)
    assert chosen_ranks(None) is None
    for wrong in ("", "a", "3-1", "1-", "-1"):
        with pytest.raises(OptionError, match="is not a rank"):
            chosen_ranks(wrong)


def test_quiet_commands_print_neither_notes_nor_what_they_wrote(run_command, samples, tmp_path):
    out = run_command(
        "ingest", samples / "nsys-1f1b", "--ranks", "0", "-o", tmp_path / "store", "-q"
    )
    assert (out.returncode, out.stdout, out.stderr) == (0, "", "")
    out = run_command("analyze", tmp_path / "store", "--quiet", "-o", tmp_path / "run.json")
    assert (out.returncode, out.stdout, out.stderr) == (0, "", "")
    assert (tmp_path / "run.json").exists()


def test_a_quiet_command_without_output_still_answers(run_command):
    out = run_command("schedule", "1f1b", "--pp", "2", "--microbatches", "2", "-q")
    assert "makespan  9" in out.stdout


def test_quiet_does_not_hide_that_a_rank_is_left_out(run_command, samples, tmp_path):
    for rank in range(2):
        shutil.copy(samples / f"reload/rank{rank}.pt.trace.json.gz", tmp_path)
    (tmp_path / "rank1.pt.trace.json.gz").write_bytes(b"")
    out = run_command("analyze", tmp_path, "--schedule", "none", "-q")
    assert out.stderr == "note: rank 1 is left out: rank1.pt.trace.json.gz is empty\n"


def test_an_error_in_a_requirement_is_printed_with_a_caret_below_it(run_command, tmp_path):
    out = run_command("gate", tmp_path, "--require", "step_ms < 5 and more")
    assert out.returncode == 2
    first, shown, caret = out.stderr.splitlines()
    assert first.startswith("error: --require: nothing may follow the limit")
    assert (shown, caret) == ("  step_ms < 5 and more", "              ^")


def test_shells_complete_commands_and_options(monkeypatch, run_command):
    monkeypatch.setenv("_TRACEKIT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_CWORD", "1")
    monkeypatch.setenv("COMP_WORDS", "tracekit ana")
    assert run_command().stdout.split() == ["analyze"]
    monkeypatch.setenv("COMP_CWORD", "2")
    monkeypatch.setenv("COMP_WORDS", "tracekit analyze --expl")
    assert run_command().stdout.split() == ["--explain"]


def test_of_a_label_the_rules_that_decided_are_listed(run_command, samples):
    out = run_command("analyze", samples / "compile", "--explain", "forward")
    assert "decided by" in out.stdout
    assert "✗" not in out.stdout
    assert (
        "✗" in run_command("analyze", samples / "compile", "--explain", "forward", "--full").stdout
    )


@pytest.mark.parametrize(
    "words",
    [
        ["analyze", "sample_traces/reload", "--steps", "9" * 5000],
        ["analyze", "sample_traces/reload", "--steps", "1:" + "9" * 5000],
        ["analyze", "sample_traces/reload", "--ranks", "9" * 5000],
        ["analyze", "sample_traces/reload", "--ranks", "0-" + "9" * 5000],
        ["analyze", "sample_traces/reload", "--explain", "9" * 5000],
        ["open", "sample_traces/reload", "--at", "9" * 5000],
        ["open", "sample_traces/reload", "--at", "1:" + "9" * 5000],
        ["analyze", "sample_traces/reload", "--file-rank", "9" * 5000],
        ["schedule", "1f1b", "--pp", "9" * 5000, "--microbatches", "8"],
        ["analyze", "sample_traces/reload", "--change", f"rank {'9' * 5000} like others"],
        ["analyze", "sample_traces/reload", "--change", f"microbatches {'9' * 5000}"],
        ["analyze", "sample_traces/reload", "--change", f"links x{'9' * 5000}"],
        [
            *("gate", "sample_traces/reload", "--baseline", "sample_traces/reload"),
            *("--require", f"step_ms@{'9' * 5000} < 3"),
        ],
    ],
)
def test_a_number_of_thousands_of_digits_is_one_line(run_command, words):
    done = run_command(*words)
    assert (done.returncode, done.stdout) == (2, "")
