"""Reports of Nsight Systems, exported by nsys: found, named, missing or failing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parsers.nsight_reading import refused
from tracekit.errors import OptionError
from tracekit.parsers import nsight

pytestmark = pytest.mark.slow

FAKE = """#!/bin/sh
# Stands in for nsys: exports by copying, and understands what the real one does.
case "$*" in *--help*) echo "  --include-json=<true|false>"; exit 0;; esac
echo "$*" >> "{log}"
for word in "$@"; do
  case "$word" in --output=*) target="${{word#--output=}}";; esac
done
{action}
"""


def fake_nsys(folder, action):
    program = folder / "bin" / "nsys"
    program.parent.mkdir()
    program.write_text(FAKE.format(log=folder / "log", action=action))
    program.chmod(0o755)
    return program


@pytest.fixture
def report_file(tmp_path):
    path = tmp_path / "rank3.nsys-rep"
    path.write_bytes(b"a report")
    return path


def test_a_report_is_exported_by_nsys_on_the_path(sample, tmp_path, report_file, monkeypatch):
    program = fake_nsys(tmp_path, f'cp "{sample}/rank1.sqlite" "$target"')
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    (rank,) = nsight.read(report_file)
    assert (rank.source.rank, rank.source.path) == (3, str(report_file))
    assert rank.source.counts["kernel"] == 669
    log = (tmp_path / "log").read_text()
    assert "--type=sqlite" in log
    assert "--include-json=true" in log
    assert "--include-blobs" not in log  # this exporter does not know it
    exported = log.split("--output=")[1].split()[0]
    assert not Path(exported).exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bin", "log", "rank3.nsys-rep"]


def test_or_by_the_one_that_was_named(sample, tmp_path, report_file):
    program = fake_nsys(tmp_path, f'cp "{sample}/rank1.sqlite" "$target"')
    assert nsight.read(report_file, nsys=str(program))[0].source.rank == 3


def test_without_nsys_the_command_to_type_is_said(report_file, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    error = refused(report_file)
    assert "nsys is not on the PATH" in error.message
    assert "nsys export --type sqlite rank3.nsys-rep" in error.hint


def test_an_exporter_that_fails_is_said(tmp_path, report_file):
    program = fake_nsys(tmp_path, "exit 7")
    error = refused(report_file, nsys=str(program))
    assert "exit code 7" in error.message
    assert "at least as new" in error.hint


def test_an_exporter_that_is_none(report_file):
    with pytest.raises(OptionError, match="not a program"):
        nsight.read(report_file, nsys="/nowhere/nsys")
