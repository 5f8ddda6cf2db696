"""Results that cannot be written: one clear line, exit code 2, and nothing left behind, whatever the format."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap

import pytest

import tracekit
from tracekit._util.files import atomic_write, output_folder
from tracekit.errors import InputError, OutputError
from tracekit.results.write import PICTURES, WRITERS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured_once")]

FORMATS = [*WRITERS, *PICTURES]


def terminal(out):
    assert out.returncode == 2
    assert out.stdout == ""
    lines = out.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.parametrize(
    "words",
    [["analyze", "-o", "{}/no/report.html"], ["export", "-o", "{}/no/t.json.gz"]],
    ids=lambda w: w[0],
)
def test_a_folder_that_is_not_there(run_command, samples, tmp_path, words):
    text = terminal(run_command(words[0], samples / "reload", words[1], words[2].format(tmp_path)))
    assert f"there is no folder {tmp_path}/no; create it first" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["analyze", "-o", "x.docx"], "cannot write .docx"),
        (["analyze", "-o", "x.png", "--plot", "pie"], "there is no plot pie"),
        (["export", "-o", "x.pftrace"], "use .json, .json.gz or .tar"),
    ],
)
def test_what_cannot_be_written_is_said_before_any_work(run_command, tmp_path, words, reason):
    """The traces are not even there: the words are looked at first."""
    words = [str(tmp_path / word) if word.startswith("x.") else word for word in words]
    assert reason in terminal(run_command(words[0], tmp_path / "nowhere", *words[1:]))


def test_a_folder_one_may_not_write_in(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere; see the next test")
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(OutputError, match="no permission"), atomic_write(tmp_path / "x.html"):
            pass
    finally:
        tmp_path.chmod(0o755)


def test_a_place_that_refuses_files():
    with (
        pytest.raises(OutputError, match=r"/proc/x\.html: cannot be written"),
        atomic_write("/proc/x.html"),
    ):
        pass


FULL = """
import resource, sys
from pathlib import Path
import tracekit
from tracekit.errors import InputError, OutputError
from tracekit.run.export import export
from tracekit.results.write import write
from tracekit import ingest

samples, folder, *formats = sys.argv[1:]
found = tracekit.analyze(samples)
store = ingest(samples, folder + ".store")
for suffix in formats:
    write(found, folder + ".warm" + suffix)  # what is compiled and cached on first use is written now
sys.dont_write_bytecode = True  # a module cut short would be read by the next process
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for suffix in [*formats, ".json.gz"]:
    try:
        if suffix == ".json.gz":
            export(store.path, f"{folder}/x{suffix}")
        else:
            write(found, f"{folder}/x{suffix}")
    except OutputError as error:
        print(suffix, error.message, sep="\\t")
"""


def test_a_disk_that_is_full_leaves_no_half_file(samples, tmp_path):
    """A limit on the size of files fails writes like a full disk does, at some point inside them."""
    folder = tmp_path / "out"
    folder.mkdir()
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(FULL), samples / "reload/rank0.pt.trace.json.gz", folder, *FORMATS],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    values = dict(line.split("\t") for line in ran.stdout.splitlines())
    assert list(values) == [*FORMATS, ".json.gz"]
    for suffix, message in values.items():
        assert message.startswith(f"{folder}/x{suffix}: cannot be written: "), message
        assert "\n" not in message
        assert not message.endswith("None")
    assert list(folder.iterdir()) == []


def test_what_was_there_before_stays_when_writing_fails(tmp_path):
    target = tmp_path / "x.json"
    target.write_text("old")

    def fails():
        with atomic_write(target) as temporary:
            temporary.write_text("new")
            raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match="the disk is full"):
        fails()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_curve_is_predicted_without_being_asked_for(run_command, samples, tmp_path):
    out = run_command(
        "analyze", samples / "steps/a", "-o", tmp_path / "x.svg", "--plot", "curve", "--brief"
    )
    assert out.returncode == 0
    assert "Nothing was predicted" not in (tmp_path / "x.svg").read_text()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("tp_comm x0.5", "labels "),
        ("rank 9 like others", "ranks 0–3"),
        ("faster", "--list-changes names all"),
    ],
)
def test_a_change_that_cannot_be_made_is_one_line(run_command, samples, change, words):
    out = run_command("analyze", samples / "reload", "--change", change)
    assert (out.returncode, out.stdout) == (2, "")
    assert len(out.stderr.strip().splitlines()) == 1
    assert words in out.stderr


def test_changes_are_shown_and_written(run_command, samples, tmp_path):
    page = tmp_path / "x.html"
    out = run_command(
        "analyze",
        samples / "reload",
        "--change",
        "broadcast x0.5",
        "--change",
        "links x2",
        "-o",
        page,
    )
    assert "What a change would give" in out.stdout
    rows = [
        line for line in out.stdout.splitlines() if line.startswith(("broadcast x0.5", "links x2"))
    ]
    assert [row.split("  ")[0] for row in rows] == [
        "broadcast x0.5",
        "links x2",
        "broadcast x0.5, links x2",
    ]
    text = page.read_text()
    assert 'id="changes"' in text
    assert text.count("<summary>") >= 3


@pytest.mark.parametrize("suffix", [".html", ".HTML"])
def test_a_page_that_is_written_is_not_suggested(run_command, samples, tmp_path, suffix):
    page = tmp_path / f"x{suffix}"
    assert (
        "writes a page"
        not in run_command("analyze", samples / "reload", "--ranks", "0", "-o", page).stdout
    )
    assert "<html" in page.read_text()[:200]


@pytest.mark.parametrize("plot", [None, "budget"])
def test_a_picture_from_the_command_line(run_command, samples, tmp_path, plot):
    words = ["--plot", plot] if plot else []
    out = run_command(
        "analyze", samples / "reload", "--ranks", "0-1", "-o", tmp_path / "x.svg", *words
    )
    assert out.returncode == 0
    text = (tmp_path / "x.svg").read_text()
    assert text.startswith("<?xml")
    assert "Where the time of each rank went" in text  # there is no pipeline: the budget is drawn


def test_export_says_what_it_wrote(run_command, samples, tmp_path):
    out = run_command("export", samples / "reload", "--ranks", "0,2", "-o", tmp_path / "x.json")
    assert out.returncode == 0
    assert out.stdout.startswith(f"Wrote {tmp_path}/x.json: 2 ranks, ")
    assert (tmp_path / "x.json").read_bytes().endswith(b"]}\n")


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OutputError("x", hint="y")])
@pytest.mark.parametrize("existed", [False, True])
def test_a_folder_keeps_nothing_of_an_output_that_failed(tmp_path, failure, existed):
    target = tmp_path / "run"
    if existed:
        target.mkdir()
        (target / "old.json").write_text("{}")

    def write():
        with output_folder(target):
            (target / "rank0.json").write_text("{}")
            raise failure

    with pytest.raises((KeyboardInterrupt, OutputError)):
        write()
    assert [file.name for file in target.glob("*")] == (["old.json"] if existed else [])
    assert target.exists() == existed


def test_redacting_a_folder_with_a_damaged_trace_leaves_no_folder(samples, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    shutil.copy(samples / "reload/rank0.pt.trace.json.gz", source)
    whole = (samples / "reload/rank1.pt.trace.json.gz").read_bytes()
    (source / "rank1.pt.trace.json.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError):
        tracekit.redact(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
