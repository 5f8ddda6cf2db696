"""The commands as people type them: what they print where, and how they end."""

from __future__ import annotations

import json
import resource
import subprocess
import sys

import pytest

from tracekit.cli._common import parse_ranks
from tracekit.errors import OptionError


def run(*words, timeout=120):
    command = [sys.executable, "-m", "tracekit", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def test_ingest_prints_what_it_wrote_and_the_doctor_reads_it(samples, tmp_path):
    out = run("ingest", samples / "reload", "-o", tmp_path / "store")
    assert out.returncode == 0
    assert out.stdout.startswith(f"Wrote {tmp_path}/store: 4 ranks, ")
    out = run("doctor", tmp_path / "store", "--ranks", "0-1", "--json")
    assert json.loads(out.stdout)["ranks"] == [0, 1]


def test_notes_go_to_stderr_and_results_to_stdout(samples, tmp_path):
    out = run("ingest", samples / "nsys-1f1b", "--ranks", "0", "-o", tmp_path / "store")
    assert out.returncode == 0
    assert "note: read rank0.sqlite" in out.stderr
    assert "note:" not in out.stdout


def test_redact_says_what_went(samples, tmp_path):
    out = run("redact", samples / "reload/rank0.pt.trace.json.gz", "-o", tmp_path / "r.json.gz")
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
def test_bad_input_is_one_line_and_exit_code_2(samples, tmp_path, case):
    (tmp_path / "empty").mkdir()
    (tmp_path / "rank0.json").write_bytes(b"\x89PNG\r\n\x1a\n")
    (tmp_path / "data.json").write_text('{"a": 1}')
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    out = run(*(word.format(tmp=tmp_path, samples=samples) for word in BAD[case]))
    assert out.returncode == 2
    assert out.stdout == ""
    assert out.stderr.startswith("error: ")
    assert out.stderr.count("\n") == 1


def test_help_is_instant():
    """Processor time, because a busy machine says nothing about us."""
    took = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert run("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(took) < 0.3


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom tracekit.cli import make_app\n"
        "try:\n    make_app()(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('polars', 'numpy', 'pandas', 'pyarrow', 'matplotlib') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "[]"


def test_of_a_command_that_is_named_only_its_own_module_is_imported():
    code = (
        "import atexit, sys\nfrom tracekit.cli import COMMANDS, main\nsys.argv[1:] = ['schedule', '--list']\n"
        "atexit.register(lambda: print([c for c in COMMANDS if f'tracekit.cli.{c}' in sys.modules]))\nmain()"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "['schedule']"


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["nothing"], 2)])
def test_a_process_that_ends_at_once_has_done_what_was_registered_for_its_end(words, code):
    """What was printed is written, and the code is the command's."""
    program = f"import atexit, sys\nfrom tracekit.program import program\nsys.argv[1:] = {words}\n"
    program += "atexit.register(print, 'the end')\nprogram()\nprint('never')"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert out.returncode == code
    assert out.stdout.splitlines()[-1] == "the end"
    assert ("tracekit 0" in out.stdout, "no such command" in out.stderr) == (code == 0, code == 2)


def test_interrupted_before_the_command_line_is_there():
    program = "from tracekit import program\ndef stop(words): raise KeyboardInterrupt\n"
    program += "program.look_ahead = stop\nprogram.program()"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (out.returncode, out.stdout, out.stderr) == (130, "", "interrupted\n")


def test_ranks_are_numbers_and_spans():
    assert parse_ranks("3,0-2, 7") == (0, 1, 2, 3, 7)
    assert parse_ranks(None) is None
    for wrong in ("", "a", "3-1", "1-", "-1"):
        with pytest.raises(OptionError, match="is not a rank"):
            parse_ranks(wrong)
