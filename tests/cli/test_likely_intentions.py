"""Errors that name what was probably meant, and the command or package that does it."""

from __future__ import annotations

import importlib
import sys

import pytest

from tracekit._version import requirement
from tracekit.errors import InputError
from tracekit.parsers import remote
from tracekit.parsers.one_run import check_single_run
from tracekit.parsers.source_refs import SourceRef

pytestmark = pytest.mark.slow


def error_of(out):
    assert out.returncode == 2
    (line,) = out.stderr.splitlines()
    return line


def test_two_files_without_a_rank_may_be_two_runs():
    refs = [SourceRef(f"{run}/trace.json", "kineto") for run in ("be fore", "after")]
    with pytest.raises(InputError, match="2 files do not say their rank") as error:
        check_single_run(refs)
    assert "tracekit diff 'be fore/trace.json' after/trace.json" in str(error.value)
    assert "rank0.json" in str(error.value)
    with pytest.raises(InputError) as error:
        check_single_run([*refs, SourceRef("third/trace.json", "kineto")])
    assert "diff" not in str(error.value)


def test_a_gzip_file_that_ends_before_its_first_event_is_called_cut(samples, tmp_path, run_command):
    source = next((samples / "recompute").glob("*.json.gz")).read_bytes()
    (tmp_path / "rank0.json.gz").write_bytes(source[:300])
    text = error_of(run_command("analyze", tmp_path / "rank0.json.gz"))
    assert "is cut off: its gzip data ends before the first event" in text
    assert "not a PyTorch" not in text


def test_a_rank_without_a_snapshot_names_those_that_have_one(samples, run_command):
    text = error_of(run_command("memory", samples / "memory-snapshot", "--ranks", "7"))
    assert "there is no rank 7; ranks here: 0, " in text


@pytest.mark.parametrize(
    ("url", "missing", "install"),
    [
        ("s3://bucket/rank0.json", "s3fs", f"pip install '{requirement('s3')}'"),
        ("gs://bucket/rank0.json", "gcsfs", f"pip install '{requirement('remote')}' gcsfs"),
        (
            "https://example.invalid/a.json",
            "aiohttp",
            f"pip install '{requirement('remote')}', or copy",
        ),
    ],
)
def test_a_missing_package_for_urls_comes_with_its_installation(url, missing, install, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InputError) as error, remote.errors_on_one_line(url):
        importlib.import_module(missing)
    assert install in str(error.value)


@pytest.mark.parametrize("command", ["ingest", "analyze"])
def test_an_output_in_an_object_store_is_refused_before_the_work(
    command, samples, run_command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    text = error_of(run_command(command, samples / "reload", "-o", "s3://bucket/runs/run.json"))
    assert "s3://bucket/runs/run.json: results are written to folders of this machine" in text
    assert list(tmp_path.iterdir()) == []
