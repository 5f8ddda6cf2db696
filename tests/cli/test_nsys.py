"""A report is exported by the nsys that the user names."""

from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.slow


def test_the_named_exporter_is_used(run_command, samples, tmp_path, monkeypatch):
    report = tmp_path / "rank0.nsys-rep"
    report.write_bytes(b"only nsys reads this")
    fake = tmp_path / "bin" / "my-nsys"
    fake.parent.mkdir()
    source = samples / "nsys-1f1b" / "rank0.sqlite"
    fake.write_text(
        f'#!/bin/sh\nfor word in "$@"; do case $word in --output=*) cp "{source}" "${{word#--output=}}";; esac; done\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("TRACEKIT_NSYS", str(fake))
    done = run_command("doctor", report, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ranks"]


def test_without_one_the_command_to_type_is_shown(run_command, tmp_path, monkeypatch):
    report = tmp_path / "rank0.nsys-rep"
    report.write_bytes(b"only nsys reads this")
    monkeypatch.setenv("TRACEKIT_NSYS", str(tmp_path / "no-such-program"))
    done = run_command("doctor", report)
    assert done.returncode == 2
    assert "no-such-program" in done.stderr
    assert "Traceback" not in done.stderr
